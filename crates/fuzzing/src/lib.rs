//! The bodies of the fuzz targets.
//!
//! A body is a plain function of bytes that may do anything but panic, hang or take more memory than it allows itself. `fuzz/` wraps each for
//! libFuzzer (`cargo fuzz run NAME`); the test of this crate replays `fuzz/corpus/NAME/` and seeded mutations of it wherever tests run.
//!
//! A new target is a module here, a line in [`TARGETS`], a file in `fuzz/fuzz_targets/` and a few small real seeds in `fuzz/corpus/`.

#![forbid(unsafe_code)]

pub mod mutate;
pub mod nvlist;

/// A body.
pub type Body = fn(&[u8]);

/// Every target: its name, which is that of its corpus directory, and its body.
pub const TARGETS: &[(&str, Body)] = &[("nvlist", nvlist::fuzz_nvlist)];
