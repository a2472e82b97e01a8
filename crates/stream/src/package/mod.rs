//! Packages: several streams behind a header that tells what they are, of datasets and their snapshots (OpenZFS: compound streams,
//! `libzfs_sendrecv.c`).
//!
//! # What it is
//! `zfs send -R`, `-I`, `-p`, `-b` and `-h` make a package: BEGIN of header type 2 with a list, END, then one stream for each snapshot, then
//! an END of zeros. The list tells of each dataset its name, its snapshots with their guids, the snapshot that it was cloned from, its properties
//! and holds; so a receiver can find out what was renamed, destroyed or promoted since, before the first stream comes.
//!
//! * [`Gathered`] is what a package is about, collected from a pool;
//! * [`Gathered::steps`] the order of its streams: a dataset after its parent, a clone after its origin;
//! * [`header()`] and [`conclusion`] the records around the streams.
//!
//! # The list (docs/format.md §15.5)
//! `tosnap`, `fromsnap`, `not_recursive`, `raw`, and `fss`: by the head's guid, `name`, `parentfromsnap` (guid), `origin` (guid), `props`,
//! `is_encroot`, `snaps` (name to guid), `snapprops`, `snapholds`.

mod gather;
mod header;
mod order;

pub use gather::{Error, Gathered, Member, Note, What};
pub use header::{conclusion, header};
pub use order::{Plan, Step, Unsent};
