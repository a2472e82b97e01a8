//! Space accounting and allocation of top-level vdevs: range trees, space maps, log space maps. Logic only, no I/O.
//!
//! A top-level vdev is divided into *metaslabs* of equal size. Each has a **space map**: an object that logs allocations and
//! frees in order, from which a [`RangeTree`] of the allocated space is built ([`load_metaslab`]). Appending to the map of each
//! changed metaslab in each txg was slow, so a pool with feature `log_spacemap` appends to one **log** per txg for the whole
//! pool; from time to time a metaslab is flushed: its changes are written to its own map, and its *unflushed txg* advances. The
//! current state of a metaslab is therefore its map, minus the unflushed frees, plus the unflushed allocations ([`log`]).
//!
//! The writing side decides where blocks are allocated ([`SpaceManager`]: classes, groups of metaslabs, allocators), when freed
//! space becomes available again ([`Metaslab`], [`Held`]), and what is written to maps and logs in each pass of a txg
//! ([`SpaceSync`], with the flushing of [`flush`]). Free space in memory is a [`FreeSpace`].
//!
//! The bytes of maps and logs come from the caller (`pool` reads the objects), block by block: entries do not straddle blocks,
//! each block has its own byte order, and blocks can be decoded in parallel. Offsets are bytes on the vdev, as in a DVA.
//!
//! Invariants: in a range tree segments neither overlap nor touch, so a set of bytes has exactly one tree; the unflushed
//! allocations and frees of a metaslab are disjoint. Malicious maps give an [`Error`]; the memory of a tree is proportional to
//! the number of entries read, never to what an entry claims.
//!
//! Callers: `pool` (import, allocation, sync, space accounting, verification, zdb). OpenZFS: `range_tree.c`, `space_map.c`,
//! `spa_log_spacemap.c`, and the loading in `metaslab.c`.
#![forbid(unsafe_code)]

mod allocatable;
mod class;
mod encode;
mod error;
pub mod flush;
mod group;
mod held;
mod load;
pub mod log;
mod manager;
mod metaslab;
mod range_tree;
mod sync;

pub use allocatable::FreeSpace;
pub use class::Class;
pub use encode::{Encoder, add_to_histogram, optimal_length};
pub use error::{AllocError, Error};
pub use held::{Held, Recent};
pub use load::{Change, MapGeometry, SpaceMapReader, load_free, load_metaslab, load_recent};
pub use manager::{DisabledMetaslab, Layout, SpaceFigures, SpaceManager, SpaceRequest, TopSpace};
pub use metaslab::{DEFER_TXGS, MapInfo, Metaslab, MetaslabLoader, PassWork, SpaceDelta};
pub use ondisk::spacemap::{Action, Entry, SpaceMapHeader};
pub use range_tree::RangeTree;
pub use sync::{MapStore, SpaceSync, SyncFeatures};
