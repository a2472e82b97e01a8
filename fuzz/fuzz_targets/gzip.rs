#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::codec::fuzz_gzip(data));
