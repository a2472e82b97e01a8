#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::behind::fuzz_behind(data));
