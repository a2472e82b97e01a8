//! Blocks that an ordinary read found damaged in part, until whoever may overwrite them does.
//!
//! A reader must not repair what it reads: its pointer may be older than the block that lies there now. So it only notes what
//! it met. Whoever writes the pool takes the notes at a moment when it can tell which pointers are still current, and calls
//! [`Zio::mend`] for those.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::BlkPtr;
use parking_lot::{Mutex, RwLock};
use vdev::{IoClass, ReadCx};

use crate::{Bookmark, Error, Scratch, Zio};

/// So many blocks are remembered; what is found beyond is found again when it is next read.
const SUSPECTS_MAX: usize = 4096;

/// A block that has a bad copy, and a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The pointer that it was read through.
    pub bp: BlkPtr,
    /// Where that pointer stood.
    pub bm: Bookmark,
}

/// Who is told that there are suspects.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// By place in the pool and place of the pointer: the same block may be read through several.
type Key = (u64, u64, Bookmark);

#[derive(Default)]
pub(crate) struct Suspects {
    found: Mutex<BTreeMap<Key, BlkPtr>>,
    /// Blocks that some device missed and that got another pointer.
    shared: Mutex<Vec<BlkPtr>>,
    wake: RwLock<Option<Wake>>,
}

impl Suspects {
    fn note(&self, suspect: &Suspect) {
        let Some(wake) = self.wake.read().clone() else { return };
        let dva = suspect.bp.dva(0);
        let mut found = self.found.lock();
        if found.len() < SUSPECTS_MAX {
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
    /// Says who is told when a read has met a block with a bad copy. From then on such blocks are remembered.
    pub fn on_suspect(&self, wake: Wake) {
        *self.suspects.wake.write() = Some(wake);
    }

    /// Remembers a block that is damaged in part.
    pub fn suspect(&self, bp: &BlkPtr, bm: &Bookmark) {
        // the chain of an intent log has no place in the tree of blocks: whether it is current cannot be looked up
        if bm.level != Bookmark::ZIL_LEVEL {
            self.suspects.note(&Suspect { bp: *bp, bm: *bm });
        }
    }

    /// The suspects, in the order of their places; they are forgotten here.
    pub fn take_suspects(&self) -> Vec<Suspect> {
        let found = std::mem::take(&mut *self.suspects.found.lock());
        found.into_iter().map(|((_, _, bm), bp)| Suspect { bp, bm }).collect()
    }

    /// Notes that a block, written in an earlier txg, gets another pointer; of no interest unless a device missed it.
    pub(crate) fn note_shared(&self, bp: &BlkPtr) {
        if self.tree().is_missed(bp.birth_physical()) {
            self.suspects.shared.lock().push(*bp);
        }
    }

    /// The blocks that some device missed and that have got another pointer since this was last asked.
    pub fn take_shared(&self) -> Vec<BlkPtr> {
        std::mem::take(&mut *self.suspects.shared.lock())
    }

    /// Reads every copy of a block and overwrites what is wrong with what is right. Gives the number of places that were overwritten.
    ///
    /// The caller vouches that the pointer is current, and stays so until this returns, at least in that its place is given to nobody else.
    ///
    /// # Errors
    /// As [`Zio::verify_sums`].
    pub fn mend(&self, suspect: &Suspect, scratch: &mut Scratch) -> Result<u32, Error> {
        // whoever suspected it has counted what is wrong
        // the txg waits for it
        let cx = ReadCx { heal: true, counts: false, class: IoClass::AsyncRead, ..ReadCx::SCRUB };
        let report = self.verify_sums(&suspect.bp, &suspect.bm, &cx, scratch)?;
        if report.healed > 0 {
            self.stats().mended.add(1);
        }
        Ok(report.healed)
    }
}
