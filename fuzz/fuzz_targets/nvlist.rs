#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::nvlist::fuzz_nvlist(data));
