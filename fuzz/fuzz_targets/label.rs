#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::label::fuzz_label(data));
