#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::spacemap::fuzz_spacemap(data));
