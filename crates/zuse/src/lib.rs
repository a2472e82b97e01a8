//! Zuse as a library: pools, their datasets, files and objects, for programs and for the `zuse` command.
//!
//! [`Pool`] is where a program begins: it opens a pool, or makes one, and leads to everything in it. [`Files`] has the files of a file system by
//! path, [`Objects`] the raw objects of a dataset. `examples/kv.rs` and `examples/versions.rs` are small programs that use them. The
//! engine's rooms are re-exported under their own names ([`pool`], [`zpl`], …) for what goes deeper.
//!
//! On top of that stands what every tool that moves files in and out of pools needs:
//!
//! * [`Target`] is `pool/fs@snap:/path`.
//! * [`walk()`] goes through a tree depth first. It reports what cannot be read and goes on, and enters no directory twice.
//! * [`read_past_damage`] gives the data of one file or volume, in order, with the ranges that are lost.
//! * [`Copier`] is `cp -a` out of a pool, [`Importer`] into one: from the host ([`host`]), an archive ([`read_tar`]), another file system.
//!   [`Archiver`] makes PAX archives, [`entry::line`] is a file as JSON with its digest.
//! * [`verify::verify`] reads and checks every block of a pool; [`scrub()`] repairs it as well; [`resilver()`] gives devices what they missed.
//!
//! Damage is data here, not an error: it goes to a [`Report`], and the work goes on with what is left. An error is what ends
//! the work: the destination is full, the output is closed.
//!
//! A program that moves much data should choose an allocator (`#[global_allocator]`) that keeps freed memory and lets one thread free what another
//! allocated without a lock, as the `zuse` command does with `mimalloc`: with glibc's, large blocks are written and received at half the speed.
//!
//! Names and trees come from the pool and may lie: names that are no names are refused, and a copy touches the host only
//! through descriptors of directories that it made itself, following no symbolic link.
#![forbid(unsafe_code)]

mod archive;
mod copy;
pub mod dest;
pub mod entry;
mod error;
mod errorscrub;
mod files;
pub mod host;
mod importer;
mod item;
mod kept;
mod keys;
mod objects;
pub mod pax;
mod report;
mod resilver;
mod salvage;
mod scrub;
mod slices;
mod store;
mod target;
mod untar;
pub mod users;
pub mod verify;
mod walk;

pub use archive::Archiver;
pub use copy::{Copied, Copier};
pub use error::Error;
pub use errorscrub::error_scrub;
pub use files::Files;
pub use importer::{Imported, Importer, Streaming};
pub use item::{Item, LinkId, stored_device};
pub use keys::Key;
pub use objects::Objects;
pub use report::{Report, Silent};
pub use resilver::{CaughtUp, catch_up, resilver};
pub use salvage::{Chunk, Contents, read_past_damage};
pub use scrub::{ScrubOptions, Scrubbed, scrub};
pub use store::Pool;
pub use target::{BadTarget, Target};
pub use untar::{Entered, TarData, Visit, read_tar};
pub use walk::{Go, Step, sort, walk};

pub use {base, codec, dmu, nvlist, ondisk, pool, space, stream, vdev, zil, zio, zpl};
