//! Walking a log's chain of blocks.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::{Endian, ObjectId, Txg, tunable};
use dmu::Objset;
use ondisk::zil::{ChainBlock, RawRecord, Records, Write, block_seq, is_successor};
use ondisk::{BlkPtr, ZilHeader};
use vdev::{DirectSource, LeafSource, ReadCx, WindowSource};
use zio::{Bookmark, Buf, Stage};

use crate::Error;
use crate::claim::needs_replay;

/// The header flag which says that `claim_lr_seq` is valid (OpenZFS: `ZIL_CLAIM_LR_SEQ_VALID`).
pub(crate) const CLAIM_LR_SEQ_VALID: u64 = 2;

/// The largest read-ahead window, in bytes. Blocks of a log are mostly contiguous, each names the next, and devices may be slow
/// to answer.
const WINDOW_MAX: usize = 8 << 20;

/// An item that a walk visits.
#[derive(Debug)]
pub enum Step<'a> {
    /// A block of the chain, before it is read. The last one of a chain is usually not (yet) written.
    Block(&'a BlkPtr),
    /// A record of that block.
    Record {
        /// The record.
        record: RawRecord<'a>,
        /// True if its body is ciphertext because the key is not loaded.
        sealed: bool,
    },
}

/// The reason why a walk ended.
#[derive(Debug)]
pub enum ChainEnd {
    /// No (further) block exists.
    Hole,
    /// The next block was never written, or belongs to another log: the usual end.
    NotWritten(zio::Error),
    /// The block is good, but names a successor that cannot be its own, or impossible sizes.
    BrokenLink,
    /// Everything that was claimed has been visited.
    Claimed,
    /// A block with a valid checksum holds bytes that are not a record.
    BadRecord(ondisk::Error),
    /// The visitor stopped the walk.
    Stopped,
}

/// The counts of a walk, and its end.
#[derive(Debug)]
pub struct Summary {
    /// Number of blocks whose pointers were visited, including the unwritten one at the end.
    pub blocks: u64,
    /// Number of records.
    pub records: u64,
    /// The highest sequence number of a block.
    pub max_blk_seq: u64,
    /// The highest sequence number of a record.
    pub max_lr_seq: u64,
    /// The reason why it ended.
    pub end: ChainEnd,
}

/// A block of a log in memory, from which its records can be decoded.
#[derive(Clone, Debug)]
pub struct LogBlock {
    /// The pointer to the block; its checksum words hold the block's identity.
    pub bp: BlkPtr,
    /// True if the bodies of the records are ciphertext.
    pub sealed: bool,
    /// The block, `None` for the unwritten one at the end.
    pub(crate) data: Option<Buf>,
}

impl LogBlock {
    /// The sequence number of the block.
    #[must_use]
    pub fn seq(&self) -> u64 {
        block_seq(&self.bp)
    }

    /// The records in it.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        let endian = self.bp.endian();
        let data = self.data.as_deref().unwrap_or(&[]);
        Records::new(ChainBlock::decode(data, self.bp.checksum(), endian).map_or(&[], |block| block.records), endian)
    }
}

/// A whole log in memory.
#[derive(Debug)]
pub struct Log {
    /// The header.
    pub header: ZilHeader,
    /// The blocks in order, the unwritten one at the end included.
    pub blocks: Vec<LogBlock>,
    /// Counts, and the reason why the walk ended.
    pub summary: Summary,
}

impl Log {
    /// Returns the records that a replay would apply (none of which a synced txg holds), each with a flag that is true if its
    /// body is ciphertext. `synced` is the last synced txg; it is used only for a log that is not claimed.
    pub fn due(&self, synced: Txg) -> impl Iterator<Item = (RawRecord<'_>, bool)> {
        let (header, claimed) = (&self.header, self.header.claim_txg.0 != 0);
        let first = if claimed { header.claim_txg } else { Txg(synced.0.saturating_add(1)) };
        let limit = if claimed && !needs_replay(header) { 0 } else { self.summary.records };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let all = self.blocks.iter().flat_map(|block| {
            let sealed = block.sealed;
            block.records().map_while(Result::ok).map(move |record| (record, sealed))
        });
        let replayed = header.replay_seq;
        all.take(limit).filter(move |(record, _)| record.header.seq > replayed && record.header.txg >= first)
    }

    /// Returns the records that belong to the log, in order.
    pub fn records(&self) -> impl Iterator<Item = RawRecord<'_>> {
        let limit = usize::try_from(self.summary.records).unwrap_or(usize::MAX);
        self.blocks.iter().flat_map(|block| block.records().map_while(Result::ok)).take(limit)
    }
}

/// A block that was read and belongs to the chain.
struct ReadBlock {
    data: Buf,
    next: BlkPtr,
}

/// Reads one block and checks that it continues the chain. Until the log is claimed its end is not known: the block after the
/// last one was never written, so failing to read it does not count as a device error (OpenZFS: `ZIO_FLAG_SPECULATIVE`).
fn read_block(objset: &Objset, source: &dyn LeafSource, bp: &BlkPtr, sealed: bool) -> Result<ReadBlock, ChainEnd> {
    let counts = objset.phys().zil_header.claim_txg.0 != 0;
    let bm = Bookmark { objset: objset.id(), object: ObjectId::NONE, level: Bookmark::ZIL_LEVEL, blkid: block_seq(bp) };
    let stage = if sealed { Stage::Stored } else { Stage::Logical };
    let mut data = Buf::zeros(usize::try_from(stage.size(bp)).unwrap_or(0));
    let read = match data.get_mut() {
        // log blocks are never compressed
        Some(buf) if !sealed || bp.psize() == bp.lsize() => {
            objset.zio().read_into(bp, &bm, stage, &ReadCx { source, counts, ..ReadCx::NORMAL }, buf)
        }
        _ => objset.zio().read_noauth(bp, &bm).map(|read| data = read),
    };
    read.map_err(ChainEnd::NotWritten)?;
    let block = ChainBlock::decode(&data, bp.checksum(), bp.endian()).map_err(|_| ChainEnd::BrokenLink)?;
    if !is_successor(bp, &block.next) {
        return Err(ChainEnd::BrokenLink);
    }
    let next = block.next;
    Ok(ReadBlock { data, next })
}

fn records_of<'a>(data: &'a Buf, bp: &BlkPtr, endian: Endian) -> &'a [u8] {
    ChainBlock::decode(data, bp.checksum(), endian).map_or(&[], |block| block.records)
}

/// Walks the log of `objset`. OpenZFS: `zil_parse`. With the key of an encrypted dataset loaded, records come decrypted.
pub fn walk(objset: &Arc<Objset>, visit: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>) -> Summary {
    walk_as(objset, false, visit, &mut |_, _, _| {})
}

/// As [`walk`], but `sealed_always` leaves an encrypted log encrypted. `keep` is called with each block that belongs to the
/// chain, and with the pointer to the one that ends it.
pub(crate) fn walk_as(
    objset: &Arc<Objset>,
    sealed_always: bool,
    visit: &mut dyn FnMut(Step<'_>) -> ControlFlow<()>,
    keep: &mut dyn FnMut(&BlkPtr, Option<Buf>, bool),
) -> Summary {
    let header = objset.phys().zil_header.clone();
    let claimed = header.claim_txg.0 != 0;
    let claim_blk_seq = if claimed { header.claim_blk_seq } else { u64::MAX };
    let claim_lr_seq = if claimed && header.flags & CLAIM_LR_SEQ_VALID != 0 { header.claim_lr_seq } else { u64::MAX };
    let mut sum = Summary { blocks: 0, records: 0, max_blk_seq: 0, max_lr_seq: 0, end: ChainEnd::Hole };
    let window = WindowSource::new(WINDOW_MAX);
    let source: &dyn LeafSource = if tunable::ZIL_REPLAY_PRIME.get() == 0 { &DirectSource } else { &window };
    let mut bp = header.log;
    while !bp.is_hole() {
        let seq = block_seq(&bp);
        if seq > claim_blk_seq {
            return sum.ended(ChainEnd::Claimed);
        }
        if visit(Step::Block(&bp)).is_break() {
            return sum.ended(ChainEnd::Stopped);
        }
        sum.max_blk_seq = seq;
        sum.blocks += 1;
        let sealed = bp.is_encrypted() && (sealed_always || !objset.zio().keys().contains(objset.id()));
        if sum.max_lr_seq == claim_lr_seq && sum.max_blk_seq == claim_blk_seq {
            keep(&bp, None, sealed);
            return sum.ended(ChainEnd::Claimed);
        }
        let block = match read_block(objset, source, &bp, sealed) {
            Ok(block) => block,
            Err(end) => {
                keep(&bp, None, sealed);
                return sum.ended(end);
            }
        };
        for record in Records::new(records_of(&block.data, &bp, bp.endian()), bp.endian()) {
            let end = match record {
                Err(e) => Some(ChainEnd::BadRecord(e)),
                Ok(record) if record.header.seq > claim_lr_seq => Some(ChainEnd::Claimed),
                Ok(record) => {
                    visit(Step::Record { record, sealed }).is_break().then_some(ChainEnd::Stopped).or_else(|| {
                        sum.max_lr_seq = record.header.seq;
                        sum.records += 1;
                        None
                    })
                }
            };
            if let Some(end) = end {
                keep(&bp, Some(block.data.clone()), sealed);
                return sum.ended(end);
            }
        }
        keep(&bp, Some(block.data), sealed);
        bp = block.next;
    }
    sum
}

impl Summary {
    fn ended(mut self, end: ChainEnd) -> Summary {
        self.end = end;
        self
    }
}

/// Reads the whole log of `objset` into memory. A log usually holds the writes of a few txgs; for one of unknown size use
/// [`walk`].
#[must_use]
pub fn read_log(objset: &Arc<Objset>) -> Log {
    let mut blocks = Vec::new();
    let mut keep = |bp: &BlkPtr, data, sealed| blocks.push(LogBlock { bp: *bp, sealed, data });
    let summary = walk_as(objset, false, &mut |_| ControlFlow::Continue(()), &mut keep);
    Log { header: objset.phys().zil_header.clone(), blocks, summary }
}

/// Returns the data of a WRITE: from the record, or from the block that it points at (whose length may exceed the record's).
///
/// # Errors
/// If that block cannot be read.
pub fn data_of<'a>(objset: &Objset, write: &Write<'a>) -> Result<std::borrow::Cow<'a, [u8]>, Error> {
    if let Some(data) = write.data {
        return Ok(data.into());
    }
    let size = write.blkptr.lsize();
    let blkid = write.offset.checked_div(size).unwrap_or(0);
    let bm = Bookmark { objset: objset.id(), object: write.foid, level: Bookmark::ZIL_LEVEL, blkid };
    Ok(objset.zio().read_uncached(&write.blkptr, &bm)?.to_vec().into())
}
