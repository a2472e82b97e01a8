//! Checksums, compressors and ciphers of blocks: bytes in, bytes out.
//!
//! Three shelves, each with one table of kinds whose numbers are those of the block pointer:
//!
//! * **Checksums** ([`ChecksumKind`], [`Checksummer`]). A checksum is four 64-bit words ([`Cksum`]) as they stand in
//!   a *decoded* block pointer. Most functions are defined over bytes and their digest is stored as four words in the
//!   writer's byte order; SHA-256 is always big-endian; the fletchers are sums of words, so the *data* is loaded in
//!   the writer's order. The caller therefore says who wrote the block (an [`base::Endian`]), and the result compares
//!   with the decoded words without further care. Skein, Edon-R and BLAKE3 are keyed with the pool's salt: a
//!   [`Checksummer`] holds the keyed states, one a pool. Labels, gang headers and intent-log blocks carry their
//!   checksum within themselves, seeded with a verifier that says where they belong: [`embedded`].
//! * **Compressors** ([`Compress`], [`decompress`], [`compress()`]). A decompressor fills exactly the buffer that it is
//!   given or fails; it never writes past it, and allocates nothing that the input claims. Contexts with a cost to
//!   set up (zstd, inflate) are kept one a thread.
//! * **Ciphers** ([`crypt`]). A wrapping key unwraps the two keys of a dataset; each block has its own AES key, derived
//!   from the master key and the block's salt. Dnode and intent-log blocks are encrypted in part, the rest of them is
//!   authenticated; objects that must stay readable are authenticated only.
//!
//! Invariants: no I/O, no pool state, no knowledge of where a block lives; structures that hold block pointers are
//! taken as raw bytes plus a byte order. Bytes from disk are hostile: every function answers them with an [`Error`].
//! `unsafe` stands only in the SIMD kernels of this crate, each with its reason.
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
