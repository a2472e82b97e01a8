#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::sa::fuzz_sa(data));
