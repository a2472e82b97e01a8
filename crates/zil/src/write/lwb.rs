//! The blocks of a log between their allocation and the txg that makes them superfluous.
//!
//! A block can be freed in the sync of a txg when its records belong to this txg or earlier ones, and its place was allocated in one of
//! these. The header then leads to the block behind it. The last block of the list has a place and no content: the next commit fills it.
//!
//! Several batches of blocks may be on their way at a time. They become safe in the order of the chain; where one fails, so do all behind it,
//! and the chain ends. Then blocks are freed once nobody writes them any more.

use std::collections::VecDeque;

use base::Txg;
use ondisk::{BlkPtr, ZilHeader};

use super::Placed;

/// A block of the log (OpenZFS: `lwb_t`).
#[derive(Clone, Copy, Debug)]
struct Lwb {
    bp: BlkPtr,
    /// The txg in which its place was allocated.
    alloc: Txg,
    /// The latest txg of a record in it.
    last: Txg,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Without content.
    New,
    /// On its way to the devices, with the batch of this number.
    Writing(u64),
    /// On stable storage, or given up.
    Done,
}

/// All blocks of a log that are allocated.
#[derive(Debug, Default)]
pub(crate) struct Lwbs {
    list: VecDeque<Lwb>,
    /// Batches that were put on their way.
    batches: u64,
    /// The chain begins in this txg; blocks of the one before go with it.
    begun: Option<(Txg, Vec<BlkPtr>)>,
    /// Places that were allocated for nothing, and when.
    unused: Vec<(Txg, BlkPtr)>,
    /// What the header leads to, as this log wrote it.
    header: Option<BlkPtr>,
    /// The chain ends: all of it is freed.
    ending: bool,
}

/// What the sync of a txg has to do for a log.
#[derive(Debug, Default)]
pub struct SyncedLog {
    /// The header changes to this.
    pub header: Option<ZilHeader>,
    /// These blocks are freed.
    pub free: Vec<BlkPtr>,
}

impl Lwbs {
    /// A chain begins with `first`, in txg `txg`; the blocks of an earlier one go.
    pub(crate) fn begin(&mut self, txg: Txg, first: &Placed, left_behind: Vec<BlkPtr>) {
        self.begun = Some((txg, left_behind));
        self.push(txg, first);
        self.ending = false;
    }

    /// A block is allocated in txg `txg`, behind all others.
    pub(crate) fn push(&mut self, txg: Txg, block: &Placed) {
        self.list.push_back(Lwb { bp: block.bp, alloc: txg, last: Txg(0), state: State::New });
    }

    /// Blocks get content: those without any from the front on, with the latest txg of their records. Gives the number of their batch.
    pub(crate) fn writing(&mut self, lasts: impl Iterator<Item = Txg>) -> u64 {
        self.batches += 1;
        let new = self.list.iter_mut().filter(|lwb| lwb.state == State::New);
        for (lwb, last) in new.zip(lasts) {
            (lwb.last, lwb.state) = (last, State::Writing(self.batches));
        }
        self.batches
    }

    /// Nobody writes the blocks of batch `batch` any more, nor those of the ones before: they are on stable storage, if it `worked`. Whether
    /// the chain leads to them: it ends where the first batch failed.
    pub(crate) fn landed(&mut self, batch: u64, worked: bool) -> bool {
        for lwb in self.list.iter_mut().filter(|lwb| matches!(lwb.state, State::Writing(of) if of <= batch)) {
            lwb.state = State::Done;
        }
        self.ending |= !worked;
        !self.ending
    }

    /// Places that nothing leads to are freed.
    pub(crate) fn give_up(&mut self, txg: Txg, blocks: &[Placed]) {
        self.unused.extend(blocks.iter().map(|block| (txg, block.bp)));
    }

    /// The chain ends here; no block is pushed until another begins.
    pub(crate) fn end(&mut self) {
        self.ending = true;
    }

    /// Whether the chain ends: no block may follow.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending
    }

    /// Whether nothing of a chain is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.unused.is_empty()
    }

    /// Whether there is more than a block that waits for content.
    pub(crate) fn is_busy(&self) -> bool {
        self.list.len() > 1 || self.begun.is_some() || !self.unused.is_empty()
    }

    /// The part of a txg's sync (OpenZFS: `zil_sync`).
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
        let due = |lwb: &Lwb| {
            let over = lwb.state == State::Done || (ending && lwb.state == State::New);
            over && lwb.alloc <= txg && lwb.last <= txg
        };
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
        assert!(lwbs.landed(3, true));
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
        assert!(lwbs.landed(1, true));
        lwbs.end();
        lwbs.give_up(Txg(8), &[block(50)]);
        assert_eq!(freed(&mut lwbs, 6), (vec![1], Some(2)));
        assert_eq!(freed(&mut lwbs, 7), (vec![2], Some(0)), "the end of the chain takes all of it");
        assert!(!lwbs.is_empty());
        assert_eq!(freed(&mut lwbs, 8), (vec![50], None));
        assert!(lwbs.is_empty());
    }

    #[test]
    fn behind_a_batch_that_failed_nothing_counts_and_nothing_is_freed_while_it_is_written() {
        let mut lwbs = Lwbs::default();
        lwbs.begin(Txg(5), &block(1), vec![]);
        assert_eq!(freed(&mut lwbs, 5), (vec![], Some(1)));
        let batches: Vec<u64> = [2, 3, 4]
            .into_iter()
            .map(|n| {
                lwbs.push(Txg(6), &block(n));
                lwbs.writing([Txg(6)].into_iter())
            })
            .collect();
        assert!(lwbs.landed(batches[0], true));
        assert_eq!(freed(&mut lwbs, 6), (vec![1], Some(2)), "the others are on their way");
        assert!(!lwbs.landed(batches[1], false));
        assert!(lwbs.is_ending());
        assert_eq!(freed(&mut lwbs, 7), (vec![2], Some(3)), "one of them still is");
        assert!(!lwbs.landed(batches[2], true), "it is behind the end of the chain");
        assert_eq!(freed(&mut lwbs, 8), (vec![3, 4], Some(0)));
        lwbs.begin(Txg(9), &block(7), vec![]);
        let batch = lwbs.writing([Txg(9)].into_iter());
        assert!(lwbs.landed(batch, true), "another chain has begun");
    }
}
