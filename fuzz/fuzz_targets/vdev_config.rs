#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::vdev_config::fuzz_vdev_config(data));
