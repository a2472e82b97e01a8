//! Zuse as a library: getting data out of pools, for programs and for the `zuse` command.
//!
//! The engine's rooms are re-exported under their own names ([`pool`], [`zpl`], …). On top of them stands what every tool
//! that reads files out of a pool needs:
//!
//! * [`Target`] is `pool/fs@snap:/path`.
//! * [`walk()`] goes through a tree depth first. It reports what cannot be read and goes on, and enters no directory twice.
//! * [`read_past_damage`] gives the data of one file, in order, with the ranges that are lost.
//! * [`Copier`] is `cp -a`, [`Archiver`] makes PAX archives, [`entry::line`] is a file as JSON with its digest.
//! * [`verify::verify`] reads and checks every block of a pool; [`scrub()`] repairs it as well.
//!
//! Damage is data here, not an error: it goes to a [`Report`], and the work goes on with what is left. An error is what ends
//! the work: the destination is full, the output is closed.
//!
//! Names and trees come from the pool and may lie: names that are no names are refused, and a copy touches the host only
//! through descriptors of directories that it made itself, following no symbolic link.
#![forbid(unsafe_code)]

mod archive;
mod copy;
pub mod dest;
pub mod entry;
pub mod pax;
mod report;
mod salvage;
mod scrub;
mod target;
pub mod verify;
mod walk;

pub use archive::Archiver;
pub use copy::{Copied, Copier};
pub use report::{Report, Silent};
pub use salvage::{Chunk, read_past_damage};
pub use scrub::{Scrubbed, scrub};
pub use target::{BadTarget, Target};
pub use walk::{Go, Step, sort, walk};

pub use {base, codec, dmu, nvlist, ondisk, pool, space, stream, vdev, zil, zio, zpl};
