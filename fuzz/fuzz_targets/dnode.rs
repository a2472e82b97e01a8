#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::dnode::fuzz_dnode(data));
