//! Packages: several streams after a header that describes their datasets and snapshots (OpenZFS: compound streams,
//! `libzfs_sendrecv.c`).
//!
//! # What it is
//! `zfs send -R`, `-I`, `-p`, `-b` and `-h` make a package: BEGIN of header type 2 with a list, END, then one stream for each
//! snapshot, then an END of zeros. For each dataset the list gives its name, its snapshots with their guids, the snapshot that it
//! was cloned from, its properties and holds; so a receiver can find out what was renamed, destroyed or promoted since, before
//! the first stream arrives.
//!
//! * [`Facts`] tells of the datasets;
//! * [`Gathered`] is the content of a package, collected from there;
//! * [`Gathered::steps`] is the order of its streams: a dataset after its parent, a clone after its origin;
//! * [`header()`] and [`conclusion`] return the records around the streams.
//!
//! # The list (docs/format.md §15.5)
//! `tosnap`, `fromsnap`, `not_recursive`, `raw`, and `fss`: by the guid of the head dataset, `name`, `parentfromsnap` (guid),
//! `origin` (guid), `props`, `is_encroot`, `snaps` (name to guid), `snapprops`, `snapholds`.

mod facts;
mod gather;
mod header;
mod order;

pub use facts::{Details, Facts, Head, Snap};
pub use gather::{Error, Gathered, Member, Note, What};
pub use header::{conclusion, header};
pub use order::{Plan, Step, Unsent};
