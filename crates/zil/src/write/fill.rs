//! Lays out records in blocks (OpenZFS: `zil_lwb_assign`, `zil_lwb_commit`).
//!
//! First the blocks of indirect writes are written, many at a time, because only then is it known which of them must be copied
//! instead. Then records are laid out, and data is copied straight into its block. A block of the chain is allocated later, when
//! its fill is known; only the first one already has its location and size.

use base::{Endian, ObjectId, Txg, pump};
use dmu::Error as DmuError;
use ondisk::BlkPtr;
use ondisk::zil::{TxType, WRITE_RECORD_SIZE, ZIL_CHAIN_SIZE};
use vdev::Written;

use super::bursts::Bursts;
use super::itx::{BLKPTR_AT, LENGTH_AT, OFFSET_AT, RECLEN_AT, SEQ_AT, TXG_AT, TXTYPE_AT, WORD, put, put_u64};
use super::policy::max_log_data;
use super::{BlockGot, Got, Itx, ItxData, WriteSource, ZilStats};

/// A block of the log with its records, which may not be allocated yet.
#[derive(Debug)]
pub(crate) struct Filled {
    /// The block: room for the chain structure, then records.
    pub(crate) bytes: Vec<u8>,
    /// The latest txg of its records.
    pub(crate) last: Txg,
    /// The size to which it may grow.
    limit: usize,
}

impl Filled {
    fn new(limit: u64) -> Filled {
        let limit = usize::try_from(limit).unwrap_or(0).max(ZIL_CHAIN_SIZE);
        let mut bytes = Vec::with_capacity(limit);
        bytes.resize(ZIL_CHAIN_SIZE, 0);
        Filled { bytes, last: Txg(0), limit }
    }

    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.bytes.len()) as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() <= ZIL_CHAIN_SIZE
    }
}

/// Adds a written block to `written`.
pub(crate) fn note(written: &mut Written, bp: &BlkPtr) {
    if bp.is_hole() || bp.is_embedded() {
        return;
    }
    written.births.insert(bp.birth_physical());
    for dva in bp.dvas() {
        written.tops.insert(dva.vdev());
        // the pieces of a gang block may be on any vdev
        written.all |= dva.is_gang();
    }
}

/// Lays out the records of one batch.
pub(crate) struct Filler<'a> {
    pub(crate) source: Option<&'a dyn WriteSource>,
    pub(crate) stats: &'a ZilStats,
    pub(crate) bursts: &'a Bursts,
    pub(crate) max_block: u64,
    /// The last sequence number that a record got.
    pub(crate) seq: u64,
    /// The data blocks that were written outside the log.
    pub(crate) written: Written,
    /// The txg that must be on disk: it holds changes that cannot be logged.
    pub(crate) owed: Txg,
    /// Blocks that are full.
    full: Vec<Filled>,
    /// The block that is being filled.
    open: Filled,
    /// Bytes of records that are still to be laid out.
    left: u64,
    longest: u64,
}

impl<'a> Filler<'a> {
    pub(crate) fn new(
        source: Option<&'a dyn WriteSource>,
        stats: &'a ZilStats,
        bursts: &'a Bursts,
        max_block: u64,
        seq: u64,
    ) -> Filler<'a> {
        let (written, owed, open) = (Written::default(), Txg(0), Filled::new(0));
        Filler { source, stats, bursts, max_block, seq, written, owed, full: Vec::new(), open, left: 0, longest: 0 }
    }

    fn owe(&mut self, txg: Txg) {
        self.owed = self.owed.max(txg);
    }

    /// Lays out `itxs` in blocks, the first of which has `first` bytes. Returns no block if nothing is left to be logged.
    pub(crate) fn fill(&mut self, first: u64, itxs: Vec<(Txg, Itx)>) -> Vec<Filled> {
        let itxs = self.indirect(itxs);
        (self.left, self.longest) = Filler::burst(&itxs);
        self.open = Filled::new(first);
        for (txg, itx) in itxs {
            let size = itx.full_size();
            let after = self.left.saturating_sub(size);
            self.record(txg, &itx);
            self.left = after;
        }
        let mut blocks = std::mem::take(&mut self.full);
        if !self.open.is_empty() {
            blocks.push(std::mem::replace(&mut self.open, Filled::new(0)));
        }
        blocks
    }

    /// Returns the size of a burst: the bytes that `itxs` take, and the longest record.
    pub(crate) fn burst(itxs: &[(Txg, Itx)]) -> (u64, u64) {
        let longest = itxs.iter().map(|(_, itx)| itx.record.len() as u64).max().unwrap_or(0);
        (itxs.iter().map(|(_, itx)| itx.full_size()).sum(), longest)
    }

    /// Writes the blocks of indirect writes, and turns these into ordinary records.
    fn indirect(&mut self, itxs: Vec<(Txg, Itx)>) -> Vec<(Txg, Itx)> {
        let block = |(txg, itx): &(Txg, Itx)| match itx.data {
            ItxData::Indirect { offset, len, generation } => {
                Some((*txg, itx.object.unwrap_or(ObjectId::NONE), generation, offset, len))
            }
            _ => None,
        };
        let wanted: Vec<_> = itxs.iter().filter_map(block).collect();
        if wanted.is_empty() {
            return itxs;
        }
        let Some(source) = self.source else {
            // nobody has the dataset open any more who could read the data
            wanted.iter().for_each(|(txg, ..)| self.owe(*txg));
            return itxs.into_iter().filter(|itx| block(itx).is_none()).collect();
        };
        let mut got = pump::all(wanted, |(txg, object, generation, offset, len)| {
            source.write_block(*object, *generation, *offset, *len, *txg)
        })
        .into_iter();
        let itxs = itxs.into_iter();
        itxs.filter_map(|(txg, itx)| match itx.data {
            ItxData::Indirect { .. } => match got.next() {
                Some(got) => self.pointed(txg, itx, got).map(|itx| (txg, itx)),
                // as many blocks came back as were asked for; else the record must not be taken for logged
                None => {
                    self.owe(txg);
                    None
                }
            },
            _ => Some((txg, itx)),
        })
        .collect()
    }

    fn pointed(&mut self, txg: Txg, mut itx: Itx, got: Result<BlockGot, DmuError>) -> Option<Itx> {
        let ItxData::Indirect { offset, len, generation } = itx.data else { return Some(itx) };
        if matches!(got, Ok(BlockGot::Copy)) {
            itx.data = ItxData::NeedCopy { offset, len, generation };
            return Some(itx);
        }
        self.stats.itx_indirect_count.add(1);
        self.stats.itx_indirect_bytes.add(len);
        let pointer = match got {
            Ok(BlockGot::Block(bp)) => {
                note(&mut self.written, &bp);
                bp
            }
            // an earlier record points at it, in this commit or an older one
            Ok(BlockGot::Already) => {
                put_u64(&mut itx.record, TXTYPE_AT, TxType::Write2 as u64);
                BlkPtr::HOLE
            }
            // OpenZFS also counts the records that it skips
            Ok(_) => {
                self.stats.itx_count.add(1);
                return None;
            }
            Err(_) => {
                self.stats.itx_count.add(1);
                self.owe(txg);
                return None;
            }
        };
        put(&mut itx.record, BLKPTR_AT, &pointer.encode(Endian::Little));
        itx.data = ItxData::InRecord;
        Some(itx)
    }

    /// Returns the block for the next record, with room for at least `need` bytes, the part that cannot be split; the `data`
    /// after them can.
    fn room(&mut self, need: u64, data: u64) -> &mut Filled {
        let left = self.open.left();
        let most = max_log_data(self.max_block, WRITE_RECORD_SIZE).max(1);
        // a little space is wasted if that saves a piece of a split write
        let cut = need + data > left
            && left < self.bursts.waste_max()
            && (data.is_multiple_of(most) || left < need + data % most);
        if need + data.min(WORD) > left || cut {
            let planned = self.bursts.plan(self.left.max(need), self.longest).best;
            let limit = self.bursts.block_of(planned.max(need + data.min(WORD)));
            self.full.push(std::mem::replace(&mut self.open, Filled::new(limit)));
        }
        &mut self.open
    }

    fn record(&mut self, txg: Txg, itx: &Itx) {
        match itx.data {
            ItxData::NeedCopy { offset, len, generation } => self.copied(txg, itx, offset, len, generation),
            _ => {
                let seq = self.seq + 1;
                let block = self.room(itx.record.len() as u64, 0);
                push(block, txg, seq, &itx.record);
                self.seq = seq;
                self.stats.itx_count.add(1);
                if itx.record.first() == Some(&(TxType::Write as u8)) && itx.record.len() > WRITE_RECORD_SIZE {
                    self.stats.itx_copied_count.add(1);
                    let len = base::bytes::u64(&itx.record, LENGTH_AT, Endian::Little);
                    self.stats.itx_copied_bytes.add(len.unwrap_or(0));
                }
            }
        }
    }

    /// Copies the data of a write now, into as many records as the blocks require.
    fn copied(&mut self, txg: Txg, itx: &Itx, offset: u64, len: u64, generation: u64) {
        let (Some(source), Some(object)) = (self.source, itx.object) else { return self.owe(txg) };
        let (mut at, end) = (offset, offset.saturating_add(len));
        let head = itx.record.len() as u64;
        while at < end {
            let seq = self.seq + 1;
            let (rest, stats) = (end - at, self.stats);
            let block = self.room(head, rest.next_multiple_of(WORD));
            let now = rest.min(block.left().saturating_sub(head) / WORD * WORD);
            if now == 0 {
                return self.owe(txg);
            }
            let start = block.bytes.len();
            let before = block.last;
            push(block, txg, seq, &itx.record);
            let data = start + itx.record.len();
            block.bytes.resize(data + now as usize, 0);
            let buf = block.bytes.get_mut(data..).unwrap_or_default();
            stats.itx_count.add(1);
            stats.itx_needcopy_count.add(1);
            stats.itx_needcopy_bytes.add(now.next_multiple_of(WORD));
            let got = source.copy(object, generation, at, buf);
            if !matches!(got, Ok(Got::Data)) {
                block.bytes.truncate(start);
                block.last = before;
                if got.is_err() {
                    self.owe(txg);
                }
                return;
            }
            block.bytes.resize(block.bytes.len().next_multiple_of(WORD as usize), 0);
            let reclen = (block.bytes.len() - start) as u64;
            let record = block.bytes.get_mut(start..).unwrap_or_default();
            put_u64(record, RECLEN_AT, reclen);
            put_u64(record, OFFSET_AT, at);
            put_u64(record, LENGTH_AT, now);
            self.seq = seq;
            at += now;
            self.left = self.left.saturating_sub(now);
        }
    }
}

fn push(block: &mut Filled, txg: Txg, seq: u64, record: &[u8]) {
    let at = block.bytes.len();
    block.bytes.extend_from_slice(record);
    block.last = block.last.max(txg);
    let record = block.bytes.get_mut(at..).unwrap_or_default();
    put_u64(record, TXG_AT, txg.0);
    put_u64(record, SEQ_AT, seq);
}
