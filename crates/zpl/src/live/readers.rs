//! What is kept of the files that were read last, from read to read.
//!
//! Each thread has a place of its own for a file, as far as that goes, so that threads that read the same file do not pass memory to
//! and fro. A reader is borrowed for the time of a read.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmu::BlockCursor;
use parking_lot::Mutex;

use super::Znode;
use super::times::Times;
use crate::{FileFlags, Kind};

const SHARDS: usize = 16;
/// Readers that a shard keeps. They pin blocks of pointers, so there are few.
const KEEP: usize = 4;

/// A reader of one file: a cursor, which remembers the blocks of pointers that it came through last, and what was seen of the attributes.
pub(super) struct Reader {
    /// [`Znode::number`].
    of: u64,
    pub(super) cursor: BlockCursor,
    seen: Option<(u64, Look)>,
}

/// The attributes that a read looks at.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) flags: FileFlags,
    pub(super) times: Times,
}

impl Reader {
    /// The attributes as they are now.
    pub(super) fn look(&mut self, node: &Znode) -> Look {
        node.look(&mut self.seen, |attrs| Look {
            kind: attrs.kind(),
            size: attrs.size,
            flags: attrs.flags,
            times: Times::of(attrs),
        })
    }
}

/// A line of memory of its own, and the one that is fetched with it.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Vec<Reader>>);

/// Readers of the files that were read last.
#[derive(Default)]
pub(super) struct Readers([Shard; SHARDS]);

/// The number of this thread.
fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed)));
    NUMBER.get()
}

impl Readers {
    /// Lends a reader of the file, which nobody else has.
    pub(super) fn with<R>(&self, node: &Znode, read: impl FnOnce(&mut Reader) -> R) -> R {
        let at = (node.number() as usize).wrapping_add(thread()) % SHARDS;
        // a remainder
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
