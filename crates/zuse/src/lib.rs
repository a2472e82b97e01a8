//! Zuse as a library: pools, their datasets, files and objects, for programs and for the `zuse` command.
//!
//! [`Pool`] is the entry point: it opens or creates a pool, and leads to everything in it. [`Files`] gives access to the files of a file system by
//! path, [`Objects`] to the raw objects of a dataset. `examples/kv.rs` and `examples/versions.rs` are small programs that use them. The crates of
//! the engine are re-exported under their own names ([`pool`], [`zpl`], …) for lower-level access.
//!
//! Tools that move files in and out of pools build on these:
//!
//! * [`Target`] is `pool/fs@snap:/path`.
//! * [`walk()`] traverses a tree depth first. It reports what cannot be read and continues, and enters no directory twice.
//! * [`read_past_damage`] returns the data of one file or volume, in order, with the ranges that are lost.
//! * [`Copier`] is `cp -a` out of a pool, [`CopyIn`] into one: from the host ([`host`]), an archive ([`read_tar`]), another file system.
//!   [`OutOperand`] and [`InOperand`] are what a command line names for them: the name that each copy gets, and what is refused.
//!   [`Archiver`] writes PAX archives; [`entry::line`] is a file as JSON with its digest.
//! * [`verify::verify`] reads and checks every block of a pool; [`Pool::scrub`] also repairs it; [`Pool::resilver`] writes to devices the blocks
//!   that they missed.
//!
//! Damage is reported as data, not as an error: it is passed to a [`Report`], and the work continues with the rest. An error ends the work: the
//! destination is full, the output is closed.
//!
//! A program that moves much data should choose an allocator (`#[global_allocator]`) that keeps freed memory and lets one thread free, without a
//! lock, what another allocated, as the `zuse` command does with `mimalloc`: with glibc's, large blocks are written and received at half the speed.
//!
//! Names and trees come from the pool and cannot be trusted: invalid names are refused, and a copy accesses the host only through descriptors of
//! directories that it created itself, following no symbolic link.
#![forbid(unsafe_code)]

mod archive;
mod copy;
mod copy_in;
mod descent;
pub mod dest;
pub mod entry;
mod error;
mod files;
pub mod host;
mod image;
mod item;
mod kept;
mod keys;
mod objects;
mod operands;
pub mod pax;
mod report;
mod salvage;
mod scan;
mod store;
mod target;
mod target_object;
mod untar;
pub mod users;
pub mod verify;
mod walk;

pub use archive::Archiver;
pub use base::Errno;
pub use copy::{Copied, Copier};
pub use copy_in::{CopyIn, Imported, Streaming};
pub use error::Error;
pub use files::Files;
pub use image::{ImageError, ImageIn};
pub use item::{Item, LinkId, stored_device};
pub use keys::Key;
pub use objects::Objects;
pub use operands::{InDest, InError, InOperand, OutError, OutOperand, base_name, place_in};
pub use report::{Report, Silent};
pub use salvage::{Chunk, Contents, read_past_damage};
pub use scan::Scan;
pub use site::{CaughtUp, catch_up};
pub use store::Pool;
pub use target::{BadTarget, Target};
pub use target_object::TargetObject;
pub use untar::{Entered, TarData, Visit, read_tar};
pub use walk::{Go, Step, sort, walk};

pub use {base, codec, dmu, nvlist, ondisk, pool, space, stream, vdev, zil, zio, zpl};
