//! The bodies of the fuzz targets.
//!
//! A body is a plain function of bytes that may do anything but panic, hang or take more memory than it allows itself. `fuzz/` wraps each for
//! libFuzzer (`cargo fuzz run NAME`); the test of this crate replays `fuzz/corpus/NAME/` and seeded mutations of it wherever tests run.
//!
//! A new target is a module here, a line in [`TARGETS`], a file in `fuzz/fuzz_targets/` and a few small real seeds in `fuzz/corpus/`.

#![forbid(unsafe_code)]

pub mod acl;
pub mod codec;
pub mod dxattr;
pub mod blkptr;
pub mod gang;
pub mod spacemap;
pub mod mutate;
mod tape;
pub mod nvlist;
pub mod zil;

/// A body.
pub type Body = fn(&[u8]);

/// Every target: its name, which is that of its corpus directory, and its body.
pub const TARGETS: &[(&str, Body)] = &[
    ("spacemap", spacemap::fuzz_spacemap),
    ("gang", gang::fuzz_gang),
    ("blkptr", blkptr::fuzz_blkptr),
    ("acl", acl::fuzz_acl),
    ("lzjb", codec::fuzz_lzjb),
    ("zle", codec::fuzz_zle),
    ("lz4", codec::fuzz_lz4),
    ("gzip", codec::fuzz_gzip),
    ("zstd", codec::fuzz_zstd),
    ("crypt_dnode", codec::fuzz_crypt_dnode),
    ("crypt_zil", codec::fuzz_crypt_zil),
    ("crypt_objset", codec::fuzz_crypt_objset),
    ("embedded", codec::fuzz_embedded),
    ("dxattr", dxattr::fuzz_dxattr),
    ("nvlist", nvlist::fuzz_nvlist),
    ("zil", zil::fuzz_zil),
];
