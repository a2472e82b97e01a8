//! Blocks that a sync writes at its end.
//!
//! A sync takes several passes, as writing metadata changes metadata. Each pass writes the trees of the MOS again, most of their blocks in place
//! of those of the pass before ([`is_rewrite`](super::prepare::Batch)). Kept until the last pass each is written once, and all together: they were
//! allocated one behind another, so that a small txg is one write for each copy.
//!
//! Until they are written they are read from here. A write to the address of such a block replaces it: nothing older can come behind it.
//!
//! One thread writes here, that of the sync; any may read.
//!
//! A block that is freed in its own txg is written nevertheless; its space is not reused before a later txg.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::{BlkPtr, Dva};
use parking_lot::Mutex;

use super::place::{Chunk, From, Placed, Planned};
use super::{HeldWrites, WriteCx};
use crate::{ArcKey, Bookmark, Buf, Error, Zio};

/// With more bytes than these all are to be written.
const LATE_MAX: usize = 1 << 20;

/// One copy of a block.
struct Copy {
    dva: Dva,
    bm: Bookmark,
    metadata: bool,
    stored: Buf,
}

#[derive(Default)]
struct Waiting {
    /// By vdev and offset, as they are written.
    copies: BTreeMap<(u64, u64), Copy>,
    bytes: usize,
    /// What the cache has of them.
    cached: Vec<ArcKey>,
}

impl Waiting {
    fn remove(&mut self, dva: &Dva) {
        if let Some(old) = self.copies.remove(&(dva.vdev(), dva.offset())) {
            self.bytes -= old.stored.len();
        }
    }

    fn insert(&mut self, copy: Copy) {
        self.remove(&copy.dva);
        self.bytes += copy.stored.len();
        self.copies.insert((copy.dva.vdev(), copy.dva.offset()), copy);
    }
}

/// The blocks that wait for the end of a sync.
#[derive(Default)]
pub(crate) struct Late {
    waiting: Mutex<Waiting>,
    /// False if there are none, as is so outside of a sync.
    any: AtomicBool,
}

impl Late {
    fn with<R>(&self, work: impl FnOnce(&mut Waiting) -> R) -> R {
        let mut waiting = self.waiting.lock();
        let done = work(&mut waiting);
        if waiting.copies.is_empty() {
            waiting.cached.clear();
        }
        self.any.store(!waiting.copies.is_empty(), Ordering::Release);
        done
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// The stored bytes of a block that waits.
    pub(crate) fn find(&self, bp: &BlkPtr) -> Option<Buf> {
        if self.is_empty() || bp.is_gang() {
            return None;
        }
        let first = bp.dva(0);
        let waiting = self.waiting.lock();
        let found = waiting.copies.get(&(first.vdev(), first.offset()))?;
        (found.stored.len() as u64 == bp.psize()).then(|| found.stored.clone())
    }

    /// Forgets what `chunk` replaces.
    pub(crate) fn replaced_by(&self, chunk: &Chunk) {
        if !self.is_empty() {
            self.with(|waiting| chunk.writes.iter().for_each(|planned| waiting.remove(&planned.dva)));
        }
    }
}

impl Zio {
    /// Keeps the held blocks for the end of the sync ([`Zio::write_late_blocks`]). They can be read at once, and are not freed if they cannot be written in
    /// the end: the sync has failed for good then.
    ///
    /// # Errors
    /// As [`Zio::write_held`], of gang blocks, which are not kept.
    pub fn write_late(&self, cx: &WriteCx, held: HeldWrites) -> Result<(), Error> {
        let whole = |planned: &Planned| match planned.from {
            From::Block(n, 0, len) => held.chunk.blocks.get(n).is_some_and(|block| block.stored.len() == len),
            From::Block(..) | From::Header(_) => false,
        };
        // pieces of gang blocks are found by their headers alone
        if !held.chunk.writes.iter().all(whole) {
            return self.write_held(cx, held);
        }
        let HeldWrites { chunk, undo } = held;
        self.write.late.with(|waiting| {
            for planned in &chunk.writes {
                let From::Block(n, ..) = planned.from else { continue };
                let Some(Placed { bm, metadata, stored, .. }) = chunk.blocks.get(n) else { continue };
                waiting.insert(Copy { dva: planned.dva, bm: *bm, metadata: *metadata, stored: stored.clone() });
            }
            waiting.cached.extend(undo.cached);
        });
        self.settle_cache(&chunk);
        Ok(())
    }

    /// Whether so much is kept that it is to be written, before the end of the sync. Who reads by the pointers from before a pass finds none of its blocks
    /// meanwhile: so this is done when the new ones are known.
    #[must_use]
    pub fn is_late_full(&self) -> bool {
        !self.write.late.is_empty() && self.write.late.waiting.lock().bytes > LATE_MAX
    }

    /// Writes the blocks that were kept. When it returns, all of them have been written to the devices (not flushed).
    ///
    /// # Errors
    /// [`Error::Write`]: the sync has failed then, and its txg must not be committed.
    pub fn write_late_blocks(&self, cx: &WriteCx) -> Result<(), Error> {
        if self.write.late.is_empty() {
            return Ok(());
        }
        let (chunk, cached) = self.write.late.with(|waiting| {
            let mut chunk = Chunk::default();
            for (n, copy) in waiting.copies.values().enumerate() {
                let Copy { dva, bm, metadata, stored } = copy;
                chunk.writes.push(Planned { dva: *dva, from: From::Block(n, 0, stored.len()) });
                chunk.blocks.push(Placed {
                    bm: *bm,
                    metadata: *metadata,
                    stored: stored.clone(),
                    cache: None,
                    overwritten: None,
                });
            }
            (chunk, std::mem::take(&mut waiting.cached))
        });
        // they are forgotten when they are on the devices
        let done = self.write_chunk(cx, chunk);
        if done.is_err() {
            cached.iter().for_each(|key| {
                self.arc().remove(key);
            });
        }
        done
    }
}
