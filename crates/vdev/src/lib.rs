//! Devices: leaves, mirrors, raidz, dRAID, removed devices; labels; finding pools, and making the vdevs of new ones.
//!
//! # From devices to a tree
//! [`import::scan`] asks files and block devices for their labels ([`label`]) and puts the pools together that they tell of. A pool's configuration
//! ([`VdevConfig`]) and its devices make a [`VdevTree`]. What labels do not know, the caller takes from the pool's own objects and hands over:
//! the mappings of removed devices, the txgs that leaves missed, the progress of an expansion. None of it has to be there to begin with.
//!
//! A tree has the same vdevs for as long as it lives. When vdevs come or go, the pool gets another tree, which shares what stays, and publishes
//! it in its [`LiveTree`]: readers take the current tree for one operation, without a lock.
//!
//! # A read
//! [`VdevTree::read`] takes one address of a block, and a `check` that knows the block's checksum. A top-level vdev has one of four shapes:
//!
//! * *copies* (a leaf, mirror, replacing, spare): each side is tried, the best first, until one is right;
//! * *striped* (raidz, dRAID): a map says which runs of bytes on which children are the block's data and parity. When all is
//!   well the data columns are read straight into the caller's buffer and nothing is computed or allocated. Otherwise
//!   the repair computes what is missing, and searches for columns that silently hold wrong bytes;
//! * *sides*, a mirror of striped vdevs;
//! * *indirect*: the mapping leads to other vdevs, perhaps in pieces, which are combined until the whole is right.
//!
//! A copy has a rank before it is read: fresh, stale (its leaf missed the block's txg), out of use (offline, faulted, removed), absent. Worse ranks are
//! asked only when the better ones do not give the block; as the checksum decides, an old copy can do no harm.
//! [`ReadMode::Scrub`] reads and compares every copy and all parity. Who held wrong bytes is told per leaf in a [`ReadReport`] or an
//! [`Error`], and counted.
//!
//! Leaves are read through a [`LeafSource`]: straight; by a worker that knows what it will read, through an [`AheadSource`], which has few large reads
//! under way for many small ones; by one that follows a chain, through a [`WindowSource`].
//!
//! # A device
//! [`device::open`] opens a file, a block device or memory by name, and `vdev_io` says how the system is asked to read and write it. See `device`.
//!
//! # A queue
//! Each leaf has a [`Queue`], which all its reads and writes pass. A request has a class ([`IoClass`]: sync read, sync write, async read, async write,
//! scrub, …), which [`ReadCx::class`] or the caller of [`VdevTree::write_as`] says, and waits while its class, or the device, has enough. See `queue`.
//!
//! # A write
//! [`VdevTree::write`] takes a batch of blocks. Each is turned into pieces on leaves by the same maps that reads use; the pieces of a leaf are
//! sorted, and neighbours go out together. A leaf that is not there or fails gets the txg into its DTL, and a block is lost only when it
//! has less left than its redundancy covers. [`ReadCx::heal`] lets a read overwrite what it found wrong; with [`ReadMode::Scrub`] that is
//! a resilver, as leaves that missed a block's txg are rewritten. A leaf that does not flush has missed what was written, too
//! ([`VdevTree::flush_written`]).
//!
//! [`label::commit`] makes a txg the pool's state: data is flushed, then labels and uberblocks are written in an order that a crash at any
//! point leaves with one whole state. [`create`] makes the configuration of new vdevs.
//!
//! # Invariants
//! * Labels and configurations are hostile: shapes, widths, shifts and nesting are checked when a tree is opened, addresses when they are
//!   read; the search for bad columns has a budget, chains of mappings end.
//! * A block that the redundancy covers is read, whichever columns are gone, stale or silently wrong, as long as each row has no more of them than
//!   parity. Two exceptions: with three parity columns over more than a hundred disks (fewer for large blocks) not every set is tried; and in a block of
//!   many rows (an expanded raidz), rows as bad as parity allows are found where the same disks are bad in all, or in up to six rows.
//! * No lock is held over I/O. The path of a healthy block takes one, twice and shortly: that of the queue.
//! * Nothing is overwritten by a read unless a checksum decided what is right.
//! * What is on a removed device is never written: blocks are born on vdevs that are there.
//! * Nothing here knows what a block pointer means. Callers: `zio` (blocks), `pool` (import, labels, health), `cli` (`zdb -l`).
//!
//! OpenZFS: `vdev.c`, `vdev_mirror.c`, `vdev_raidz.c`, `vdev_draid.c`, `vdev_indirect.c`, `vdev_label.c`, `vdev_queue.c`,
//! `zpool_vdev.c`, `zutil_import.c`.
#![deny(unsafe_code)]

mod ahead;
mod columns;
mod config;
mod config_list;
pub mod create;
pub mod device;
mod diagnosis;
mod draid;
mod dtl;
mod error;
mod errors;
mod free_space;
mod gf;
mod growth;
pub mod import;
mod indirect;
pub mod label;
mod latency;
mod leaf;
mod live;
mod lost;
mod names;
mod node;
mod overlay;
mod queue;
mod raidz;
mod read;
mod reopen;
mod repair;
mod report;
mod scratch;
mod slot;
mod source;
mod stale;
mod status;
mod stripe;
#[cfg(test)]
mod test_pool;
pub mod testing;
mod tree;
mod write;

pub use ahead::{AheadSource, Planned};
pub use config::{ASHIFT_MAX, VdevConfig, VdevType};
pub use device::{Access, Device, DeviceKind, Discards, FileDevice, MemoryDevice};
pub use diagnosis::{Threshold, Thresholds};
pub use error::Error;
pub use errors::{Ereport, FollowedLeaf, PoolErrors, VdevErrors};
pub use free_space::LeafMap;
pub use latency::Latency;
pub use leaf::Leaf;
pub use live::{LiveTree, TreeRef};
pub use lost::LostBlock;
pub use names::sync_names;
pub use ondisk::indirect::IndirectMapping;
pub use overlay::{Overlay, Room};
pub use queue::{Direction, IoClass, IoFigures, LATENCY_BUCKETS, Overdue, Queue, QueueDepths, Queued, SIZE_BUCKETS};
pub use report::{FaultKind, LeafFault, ReadReport};
pub use slot::Health;
pub use source::{DirectSource, LeafSource, ReadCx, ReadMode, WindowSource};
pub use stale::check_writable;
pub use status::{VdevAux, VdevState, VdevStatus};
pub use tree::{Newcomers, TopVdev, VdevTree};
pub use write::{BlockWrite, Flushes, WriteReport, Written};

#[cfg(test)]
mod tests;
