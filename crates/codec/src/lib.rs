//! Checksums, compressors and ciphers for blocks: functions from bytes to bytes.
//!
//! There are three parts, each with one table of kinds whose numbers are those in the block pointer:
//!
//! * **Checksums** ([`ChecksumKind`], [`Checksummer`]). A checksum is four 64-bit words ([`Cksum`]) as in a *decoded* block pointer. Most
//!   functions are defined over bytes and their digest is stored as four words in the writer's byte order; SHA-256 is always big-endian;
//!   the fletchers are sums of words, so the *data* is loaded in the writer's byte order. The caller therefore passes the writer's byte
//!   order (an [`base::Endian`]), and the result compares with the decoded words directly. Skein, Edon-R and BLAKE3 are keyed with the
//!   pool's salt: a [`Checksummer`] holds the keyed states, one per pool. Labels, gang headers and intent-log blocks have their checksum
//!   embedded, seeded with a verifier that identifies their position: [`embedded`].
//! * **Compressors** ([`Compress`], [`decompress`], [`compress()`]). A decompressor fills exactly the buffer that it is given or fails; it
//!   never writes past it, and never allocates a size that the input claims. Contexts that are expensive to set up (zstd, inflate) are
//!   kept, one per thread.
//! * **Ciphers** ([`crypt`]). A wrapping key unwraps the two keys of a dataset; each block has its own AES key, derived from the master key
//!   and the block's salt. Dnode and intent-log blocks are partly encrypted, and the rest of them is authenticated; objects that must stay
//!   readable are only authenticated.
//!
//! Invariants: no I/O, no pool state, no knowledge of a block's location; structures that hold block pointers are taken as raw bytes plus a
//! byte order. Bytes from disk are hostile: every function answers damaged ones with an [`Error`]. `unsafe` occurs only in the SIMD kernels
//! of this crate, each use with its reason.
//!
//! Called by `zio` (blocks), `vdev` (labels), `zil` (log blocks), `stream` (running fletcher4, raw records) and `pool`
//! (keys). OpenZFS: `zio_checksum.c`, `zio_compress.c`, `zio_crypt.c`, `dsl_crypt.c`, `module/icp`.

#![deny(unsafe_code)]

mod checksum;
mod compress;
pub mod crypt;
mod error;

pub use checksum::{ChecksumKind, Checksummer, Cksum, embedded, fletcher};
pub use compress::{Compress, compress, decompress, zstd_header};
pub use error::Error;
