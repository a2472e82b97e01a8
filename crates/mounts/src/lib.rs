//! The mounted file systems of a process that owns pools.
//!
//! # What it is
//! [`Mounts`] is the table of what this process has mounted: for each mount the dataset, the mount point, and how it was mounted ([`How`]). A server has
//! one, and the commands that it runs share it; a command in a process of its own has none, as a mount would end with it. What `zfs mount` is to do
//! with which dataset is the command's business: this crate mounts what it is told to, where it is told to.
//!
//! # A dataset and its mount
//! A live file system is mounted once at a time; snapshots, and file systems of pools that are only read, more often. An entry knows its dataset by the
//! object number, so that its name follows a rename, whoever made the request. The source in the kernel's mount table stays what it was at mounting, as
//! FUSE has no way to change it.
//!
//! A mounted file system is in use: its dataset cannot be destroyed, nor its pool be exported, before it is unmounted. A rollback and a receive can take
//! place while it is mounted ([`zpl::live::Suspendable`]); then the kernel is told that all it has cached may be old.
//!
//! # Snapshots below a mount
//! A mounted file system shows its snapshots in `.zfs` ([`zpl::live::Ctldir`]). Who may make, destroy and rename them there the process says ([`Mounts::with_admins`]).
//!
//! # The end of a mount
//! Whoever may can unmount it, also by `umount`: entries that have ended are dropped whenever the table is looked at. If the process dies the kernel
//! answers ENOTCONN at the mount points; the next one unmounts them ([`fuse::unmount_dead`]).
//!
//! # Options
//! Of each [`Flag`] a mount has the value of the property, unless an option of the mount says otherwise. A property that is set later takes effect at
//! once, also over an option ([`Mounts::set`]).
//!
//! # Limits
//! * `nbmand` is kept and shown, and has no effect: Linux has no mandatory locks any more.
//! * Only root can change options of a mount; for other users they stay what they were at mounting.
#![forbid(unsafe_code)]

mod error;
mod how;
mod order;
mod points;
mod table;

pub use error::Error;
pub use fuse::Unmount;
pub use how::{Flag, How};
pub use order::in_order;
pub use points::{has_entries, make_point};
pub use table::{Admins, Entry, Keep, Mounts, Source};
