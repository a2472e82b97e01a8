//! Log blocks (lwb) between their allocation and the txg that makes them obsolete.
//!
//! A block can be freed in the sync of a txg when its records belong to this txg or earlier ones, and it was allocated in one of
//! these. The header then points to the block after it. The last block of the list is allocated but empty: the next commit fills
//! it.

use std::collections::VecDeque;

use base::Txg;
use ondisk::{BlkPtr, ZilHeader};

use super::Placed;

/// A block of the log (OpenZFS: `lwb_t`).
#[derive(Clone, Copy, Debug)]
struct Lwb {
    bp: BlkPtr,
    /// The txg in which it was allocated.
    alloc: Txg,
    /// The latest txg of a record in it.
    last: Txg,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Without content.
    New,
    /// Being written to the devices.
    Writing,
    /// On stable storage.
    Done,
}

/// All allocated blocks of a log.
#[derive(Debug, Default)]
pub(crate) struct Lwbs {
    list: VecDeque<Lwb>,
    /// The txg in which the chain begins, and the blocks of the previous chain, which are freed in it.
    begun: Option<(Txg, Vec<BlkPtr>)>,
    /// Blocks that were allocated but not used, with the txg of their allocation.
    unused: Vec<(Txg, BlkPtr)>,
    /// The block that the header points to, as this log last wrote it.
    header: Option<BlkPtr>,
    /// True while the chain is ending: all of its blocks are freed.
    ending: bool,
}

/// The work of a txg's sync for a log.
#[derive(Debug, Default)]
pub struct SyncedLog {
    /// The new header, if it changes.
    pub header: Option<ZilHeader>,
    /// The blocks to free.
    pub free: Vec<BlkPtr>,
}

impl Lwbs {
    /// Starts a chain with `first` in txg `txg`; the blocks of an earlier one, `left_behind`, are freed.
    pub(crate) fn begin(&mut self, txg: Txg, first: &Placed, left_behind: Vec<BlkPtr>) {
        self.begun = Some((txg, left_behind));
        self.push(txg, first);
        self.ending = false;
    }

    /// Appends a block allocated in txg `txg`.
    pub(crate) fn push(&mut self, txg: Txg, block: &Placed) {
        self.list.push_back(Lwb { bp: block.bp, alloc: txg, last: Txg(0), state: State::New });
    }

    /// Marks empty blocks, from the front, as being written, each with the latest txg of its records.
    pub(crate) fn writing(&mut self, lasts: impl Iterator<Item = Txg>) {
        let mut new = self.list.iter_mut().filter(|lwb| lwb.state == State::New);
        for last in lasts {
            let Some(lwb) = new.next() else {
                // it could be freed before its records are on disk
                panic!("a block of the intent log with records of txg {last} is not in its list");
            };
            (lwb.last, lwb.state) = (last, State::Writing);
        }
    }

    /// Marks all blocks that were being written as on stable storage.
    pub(crate) fn written(&mut self) {
        for lwb in self.list.iter_mut().filter(|lwb| lwb.state == State::Writing) {
            lwb.state = State::Done;
        }
    }

    /// Frees allocated blocks that nothing points to.
    pub(crate) fn give_up(&mut self, txg: Txg, blocks: &[Placed]) {
        self.unused.extend(blocks.iter().map(|block| (txg, block.bp)));
    }

    /// Ends the chain: none of its blocks is written any more, and none is pushed until another chain begins.
    pub(crate) fn end(&mut self) {
        self.ending = true;
    }

    /// True if no block of a chain is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.unused.is_empty()
    }

    /// True if this log has written the header: the block that it points to is then in this list, or was freed from it.
    pub(crate) fn has_header(&self) -> bool {
        self.header.is_some()
    }

    /// True if there is more than one empty block waiting for content.
    pub(crate) fn is_busy(&self) -> bool {
        self.list.len() > 1 || self.begun.is_some() || !self.unused.is_empty()
    }

    /// True if a block was allocated, or got records, in a txg after `txg`.
    pub(crate) fn is_beyond(&self, txg: Txg) -> bool {
        self.list.iter().any(|lwb| lwb.alloc > txg || lwb.last > txg)
            || self.begun.as_ref().is_some_and(|(begun, _)| *begun > txg)
            || self.unused.iter().any(|(alloc, _)| *alloc > txg)
    }

    /// Performs the log's part of a txg's sync (OpenZFS: `zil_sync`).
    pub(crate) fn sync(&mut self, txg: Txg) -> Option<SyncedLog> {
        let mut synced = SyncedLog::default();
        self.unused.retain(|(alloc, bp)| {
            let due = *alloc <= txg;
            synced.free.extend(due.then_some(*bp));
            !due
        });
        match self.begun.take() {
            Some(begun) if begun.0 > txg => {
                self.begun = Some(begun);
                return (!synced.free.is_empty()).then_some(synced);
            }
            begun => synced.free.extend(begun.into_iter().flat_map(|(_, left_behind)| left_behind)),
        }
        let ending = self.ending;
        let due = |lwb: &Lwb| (ending || lwb.state == State::Done) && lwb.alloc <= txg && lwb.last <= txg;
        let over = self.list.iter().take_while(|lwb| due(lwb)).count();
        synced.free.extend(self.list.drain(..over).map(|lwb| lwb.bp));
        let log = self.list.front().map_or(BlkPtr::HOLE, |lwb| lwb.bp);
        let known = self.header.unwrap_or(BlkPtr::HOLE);
        if log != known {
            self.header = Some(log);
            synced.header = Some(ZilHeader { log, ..ZilHeader::empty() });
        }
        (synced.header.is_some() || !synced.free.is_empty()).then_some(synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(n: u64) -> Placed {
        let mut bp = BlkPtr::HOLE;
        bp.words[15] = n;
        Placed { bp, slog: false }
    }

    fn freed(lwbs: &mut Lwbs, txg: u64) -> (Vec<u64>, Option<u64>) {
        let synced = lwbs.sync(Txg(txg)).unwrap_or_default();
        let seqs = synced.free.iter().map(|bp| bp.words[15]).collect();
        (seqs, synced.header.map(|header| header.log.words[15]))
    }

    #[test]
    fn a_block_goes_with_the_last_txg_of_its_records() {
        let mut lwbs = Lwbs::default();
        lwbs.begin(Txg(5), &block(1), vec![block(99).bp]);
        assert_eq!(freed(&mut lwbs, 4), (vec![], None), "the chain is not there yet");
        assert_eq!(freed(&mut lwbs, 5), (vec![99], Some(1)));
        for (n, last) in [(2, 6), (3, 7), (4, 6)] {
            lwbs.push(Txg(6), &block(n));
            lwbs.writing([Txg(last)].into_iter());
        }
        assert_eq!(freed(&mut lwbs, 6), (vec![], None), "on their way");
        lwbs.written();
        assert_eq!(freed(&mut lwbs, 6), (vec![1], Some(2)), "what is behind stays");
        assert_eq!(freed(&mut lwbs, 7), (vec![2, 3], Some(4)));
        assert_eq!(freed(&mut lwbs, 8), (vec![], None));
        assert!(!lwbs.is_busy() && !lwbs.is_empty());
    }

    #[test]
    fn a_place_of_a_later_txg_is_not_freed_yet() {
        let mut lwbs = Lwbs::default();
        lwbs.begin(Txg(5), &block(1), vec![]);
        assert_eq!(freed(&mut lwbs, 5), (vec![], Some(1)));
        lwbs.push(Txg(7), &block(2));
        lwbs.writing([Txg(6)].into_iter());
        lwbs.written();
        lwbs.end();
        lwbs.give_up(Txg(8), &[block(50)]);
        assert_eq!(freed(&mut lwbs, 6), (vec![1], Some(2)));
        assert_eq!(freed(&mut lwbs, 7), (vec![2], Some(0)), "the end of the chain takes all of it");
        assert!(!lwbs.is_empty());
        assert_eq!(freed(&mut lwbs, 8), (vec![50], None));
        assert!(lwbs.is_empty());
    }

    #[test]
    fn what_could_not_be_written_goes_with_the_end_of_the_chain() {
        let mut lwbs = Lwbs::default();
        lwbs.begin(Txg(5), &block(1), vec![]);
        assert_eq!(freed(&mut lwbs, 5), (vec![], Some(1)));
        lwbs.push(Txg(6), &block(2));
        lwbs.writing([Txg(6)].into_iter());
        assert_eq!(freed(&mut lwbs, 6), (vec![], None), "on its way");
        lwbs.end();
        assert_eq!(freed(&mut lwbs, 7), (vec![1, 2], Some(0)));
        lwbs.begin(Txg(8), &block(7), vec![]);
        lwbs.writing([Txg(8)].into_iter());
        assert_eq!(freed(&mut lwbs, 8), (vec![], Some(7)), "another chain has begun");
    }
}
