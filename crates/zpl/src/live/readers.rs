//! Cached readers of the most recently read files.
//!
//! As far as possible, each thread uses a slot of its own for a file, so that threads that read the same file do not pass cache
//! lines to and fro. A reader is borrowed for the duration of a read.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmu::BlockCursor;
use parking_lot::Mutex;

use super::Znode;
use super::times::Times;
use crate::{FileFlags, Kind};

const SHARDS: usize = 16;
/// Number of readers that a shard keeps. They pin indirect blocks, so there are few.
const KEEP: usize = 4;

/// A reader of one file: a cursor, which remembers the indirect blocks that it used last, and a copy of the attributes.
pub(super) struct Reader {
    /// [`Znode::number`].
    of: u64,
    pub(super) cursor: BlockCursor,
    seen: Option<(u64, Look)>,
}

/// The attributes that a read needs.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) flags: FileFlags,
    pub(super) times: Times,
}

impl Reader {
    /// Returns the current attributes.
    pub(super) fn look(&mut self, node: &Znode) -> Look {
        node.look(&mut self.seen, |attrs| Look {
            kind: attrs.kind(),
            size: attrs.size,
            flags: attrs.flags,
            times: Times::of(attrs),
        })
    }
}

/// Aligned to a cache line of its own, and the one that is prefetched with it.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Vec<Reader>>);

/// Readers of the most recently read files.
#[derive(Default)]
pub(super) struct Readers([Shard; SHARDS]);

/// Returns the number of this thread.
fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed)));
    NUMBER.get()
}

impl Readers {
    /// Calls `read` with a reader of the file that no other thread has.
    pub(super) fn with<R>(&self, node: &Znode, read: impl FnOnce(&mut Reader) -> R) -> R {
        let at = (node.number() as usize).wrapping_add(thread()) % SHARDS;
        // in range: a remainder
        #[allow(clippy::indexing_slicing)]
        let shard = &self.0[at].0;
        let kept = {
            let mut kept = shard.lock();
            let found = kept.iter().position(|reader| reader.of == node.number());
            found.map(|at| kept.swap_remove(at))
        };
        let new = || Reader { of: node.number(), cursor: node.object().cursor(), seen: None };
        let mut reader = kept.unwrap_or_else(new);
        let result = read(&mut reader);
        let mut kept = shard.lock();
        if kept.len() >= KEEP {
            kept.remove(0);
        }
        kept.push(reader);
        result
    }
}
