//! Reading a chain ahead of its pointers.
//!
//! A block of a log says where the next one lies, so a walk waits for one read after the other. But what a pointer would say can be guessed: the
//! number in its checksum is the next one, and the allocator puts the blocks of a log at even distances. So blocks behind the one asked for are
//! read along with it, by guessed pointers. A guess is used only if the chain then has that very pointer (place, sizes and checksum words): a
//! wrong one costs a read. How many are read along grows while the guesses are right.
//!
//! Pointers of encrypted logs have random numbers of their own, which nobody can guess.

use std::collections::BTreeMap;

use base::tunable;
use dmu::Objset;
use ondisk::BlkPtr;
use ondisk::zil::block_seq;
use zio::{Bookmark, Buf, Error};

use crate::pump;

/// Blocks that are read along, at most: a chain of one dataset shares the devices with those of others.
const MOST: u64 = 16;
/// Blocks further apart are in places that have nothing to do with each other.
const STRIDE_MAX: u64 = 1 << 20;

/// The reader of one chain.
pub(crate) struct Ahead<'a> {
    objset: &'a Objset,
    /// The block that was asked for last.
    last: Option<BlkPtr>,
    /// Blocks that were read along, by their guessed pointers' numbers.
    found: BTreeMap<u64, (BlkPtr, Buf)>,
    depth: u64,
}

/// All by which a block is found and known.
fn identity(bp: &BlkPtr) -> impl PartialEq {
    (bp.dva(0), bp.psize(), bp.lsize(), bp.checksum(), bp.cksum())
}

impl<'a> Ahead<'a> {
    pub(crate) fn new(objset: &'a Objset) -> Self {
        let depth = if tunable::ZIL_REPLAY_PRIME.get() == 0 { 0 } else { 1 };
        Ahead { objset, last: None, found: BTreeMap::new(), depth }
    }

    /// Reads the block that `bp`, the next pointer of the chain, points at.
    ///
    /// # Errors
    /// When the block cannot be read, or is not there.
    pub(crate) fn read(&mut self, bp: &BlkPtr) -> Result<Buf, Error> {
        if let Some((guess, data)) = self.found.remove(&block_seq(bp))
            && identity(&guess) == identity(bp)
        {
            self.depth = (self.depth * 2).min(MOST);
            self.last = Some(*bp);
            return Ok(data);
        }
        if !self.found.is_empty() {
            self.found.clear();
            self.depth = 1;
        }
        let guesses = self.guesses(bp);
        self.last = Some(*bp);
        let all: Vec<BlkPtr> = std::iter::once(*bp).chain(guesses).collect();
        let read = |bp: &BlkPtr| (*bp, self.objset.zio().read_uncached(bp, &bookmark(self.objset, bp)));
        let mut read = pump::all(all, read);
        // there is a result for each pointer
        let (_, asked) = read.remove(0);
        let along = read.into_iter().filter_map(|(guess, data)| Some((block_seq(&guess), (guess, data.ok()?))));
        self.found.extend(along);
        asked
    }

    /// Pointers as they may come behind `bp`, if the distance stays what it was.
    fn guesses(&self, bp: &BlkPtr) -> Vec<BlkPtr> {
        let (here, Some(last)) = (bp.dva(0), self.last) else { return Vec::new() };
        let stride = here.offset().wrapping_sub(last.dva(0).offset());
        let alike = here.vdev() == last.dva(0).vdev() && bp.psize() == last.psize() && bp.dvas().count() == 1;
        if !alike || bp.is_gang() || bp.is_encrypted() || !(1..=STRIDE_MAX).contains(&stride) {
            return Vec::new();
        }
        let guess = |n: u64| {
            let mut guess = *bp;
            let place =
                ondisk::Dva::new(here.vdev(), here.offset().checked_add(n.checked_mul(stride)?)?, here.asize(), false);
            let [word0, word1, .., seq] = &mut guess.words;
            (*word0, *word1, *seq) = (place.word0, place.word1, seq.checked_add(n)?);
            Some(guess)
        };
        (1..=self.depth).map_while(guess).collect()
    }
}

/// Where a block of a log stands.
pub(crate) fn bookmark(objset: &Objset, bp: &BlkPtr) -> Bookmark {
    Bookmark { objset: objset.id(), object: 0, level: Bookmark::ZIL_LEVEL, blkid: block_seq(bp) }
}
