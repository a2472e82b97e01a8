//! The bodies of the fuzz targets.
//!
//! A body is a plain function of bytes that may do anything but panic, hang or exceed its memory limits. `fuzz/` wraps each for libFuzzer
//! (`cargo fuzz run NAME`); the tests of this crate replay `fuzz/corpus/NAME/` and seeded mutations of it wherever tests run.
//!
//! A new target is a module here, a line in [`TARGETS`], a file in `fuzz/fuzz_targets/` and a few small real seeds in `fuzz/corpus/`.

#![forbid(unsafe_code)]

pub mod acl;
#[cfg(debug_assertions)]
pub mod behind;
pub mod blkptr;
mod blocks;
pub mod codec;
pub mod dnode;
pub mod dxattr;
mod exercise;
pub mod gang;
pub mod image;
pub mod label;
pub mod mutate;
pub mod nbd;
pub mod nvlist;
pub mod sa;
pub mod server;
pub mod spacemap;
pub mod stream;
mod tape;
pub mod vdev_config;
pub mod zap;
pub mod zil;

/// The body of a target.
pub type Body = fn(&[u8]);

/// Every target: its name, which is also that of its corpus directory, and its body.
pub const TARGETS: &[(&str, Body)] = &[
    ("acl", acl::fuzz_acl),
    ("blkptr", blkptr::fuzz_blkptr),
    ("crypt_dnode", codec::fuzz_crypt_dnode),
    ("crypt_objset", codec::fuzz_crypt_objset),
    ("crypt_zil", codec::fuzz_crypt_zil),
    ("dnode", dnode::fuzz_dnode),
    ("dxattr", dxattr::fuzz_dxattr),
    ("embedded", codec::fuzz_embedded),
    ("gang", gang::fuzz_gang),
    ("gzip", codec::fuzz_gzip),
    ("label", label::fuzz_label),
    ("lz4", codec::fuzz_lz4),
    ("lzjb", codec::fuzz_lzjb),
    ("nbd", nbd::fuzz_nbd),
    ("nvlist", nvlist::fuzz_nvlist),
    ("sa", sa::fuzz_sa),
    ("server", server::fuzz_server),
    ("spacemap", spacemap::fuzz_spacemap),
    ("stream", stream::fuzz_stream),
    ("token", stream::fuzz_token),
    ("vdev_config", vdev_config::fuzz_vdev_config),
    ("zap", zap::fuzz_zap),
    ("zil", zil::fuzz_zil),
    ("zle", codec::fuzz_zle),
    ("zstd", codec::fuzz_zstd),
];
