//! Blocks that an ordinary read found damaged: in part, kept until the pool heals them, or lost, kept until the pool records them.
//!
//! A reader must not repair what it reads: its pointer may be older than the block that is at that address now. So it
//! only notes the block. The pool takes the notes at a moment when it can tell which pointers are still current, and
//! calls [`Zio::heal`] for those.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::BlkPtr;
use parking_lot::{Mutex, RwLock};
use vdev::{IoClass, LostBlock, ReadCx};

use crate::{Bookmark, Error, Scratch, Zio};

/// The number of blocks remembered; those found beyond it are found again when they are next read.
const QUEUE_MAX: usize = 4096;

/// A block that has a bad copy, and a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The pointer that it was read through.
    pub bp: BlkPtr,
    /// The position of that pointer.
    pub bm: Bookmark,
}

/// The callback that is invoked when there are suspects.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// DVA and pointer position: the same block may be read through several pointers.
type Key = (u64, u64, Bookmark);

#[derive(Default)]
pub(crate) struct SelfHealQueue {
    found: Mutex<BTreeMap<Key, BlkPtr>>,
    /// Blocks that some device missed and that got another pointer.
    shared: Mutex<Vec<BlkPtr>>,
    wake: RwLock<Option<Wake>>,
}

impl SelfHealQueue {
    fn note(&self, suspect: &Suspect) {
        let Some(wake) = self.wake.read().clone() else { return };
        let dva = suspect.bp.dva(0);
        let mut found = self.found.lock();
        if found.len() < QUEUE_MAX {
            found.insert((dva.word0, dva.word1, suspect.bm), suspect.bp);
            drop(found);
            wake();
        }
    }

    pub(crate) fn forget(&self) {
        *self.wake.write() = None;
        self.found.lock().clear();
    }
}

impl Zio {
    /// Sets the callback for when a read has met a block with a bad copy. From then on such blocks are remembered.
    pub fn on_suspect(&self, wake: Wake) {
        *self.self_heal.wake.write() = Some(wake);
    }

    /// Remembers a block that is damaged in part.
    pub fn suspect(&self, bp: &BlkPtr, bm: &Bookmark) {
        // a block of an intent log's chain is not in the tree of blocks: whether it is current cannot be looked up
        if bm.level != Bookmark::ZIL_LEVEL {
            self.self_heal.note(&Suspect { bp: *bp, bm: *bm });
        }
    }

    /// Passes on the result of a read, and remembers the block if it is lost (OpenZFS: `spa_log_error`).
    pub(crate) fn noted<R>(&self, bp: &BlkPtr, bm: &Bookmark, read: Result<R, Error>) -> Result<R, Error> {
        let lost = matches!(
            read,
            Err(Error::Checksum { .. } | Error::Io { .. } | Error::Decompress { .. } | Error::Auth { .. })
        );
        // the end of an intent log's chain is found by reading what may not be there
        if lost && bm.level != Bookmark::ZIL_LEVEL {
            let (Bookmark { objset, object, blkid, .. }, level) = (*bm, bm.shown_level().into());
            let block = LostBlock { objset, object, level, blkid, birth: bp.birth_physical() };
            let wake = self.self_heal.wake.read().clone();
            if self.live_tree().errors().note_lost(block)
                && let Some(wake) = wake
            {
                wake();
            }
        }
        read
    }

    /// Takes the suspects out, in the order of their addresses.
    pub fn take_suspects(&self) -> Vec<Suspect> {
        let found = std::mem::take(&mut *self.self_heal.found.lock());
        found.into_iter().map(|((_, _, bm), bp)| Suspect { bp, bm }).collect()
    }

    /// Notes that a block, written in an earlier txg, gets another pointer; only relevant if a device missed it.
    pub(crate) fn note_shared(&self, bp: &BlkPtr) {
        if self.tree().is_missed(bp.birth_physical()) {
            self.self_heal.shared.lock().push(*bp);
        }
    }

    /// The blocks that some device missed and that have got another pointer since this was last asked.
    pub fn take_shared(&self) -> Vec<BlkPtr> {
        std::mem::take(&mut *self.self_heal.shared.lock())
    }

    /// Reads every copy of a block and overwrites bad ones with good data. Returns the number of copies or parts
    /// overwritten.
    ///
    /// The caller guarantees that the pointer is current, and stays so until this returns, at least in that its space is
    /// not reallocated.
    ///
    /// # Errors
    /// As [`Zio::verify_sums`].
    pub fn heal(&self, suspect: &Suspect, scratch: &mut Scratch) -> Result<u32, Error> {
        // the read that suspected the block has counted the errors
        // the txg waits for it
        let cx = ReadCx { heal: true, counts: false, class: IoClass::AsyncRead, ..ReadCx::SCRUB };
        let report = self.verify_sums(&suspect.bp, &suspect.bm, &cx, scratch)?;
        if report.healed > 0 {
            self.stats().self_healed.add(1);
        }
        Ok(report.healed)
    }
}
