#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::gang::fuzz_gang(data));
