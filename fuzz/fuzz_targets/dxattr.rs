#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::dxattr::fuzz_dxattr(data));
