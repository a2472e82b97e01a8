#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::codec::fuzz_lz4(data));
