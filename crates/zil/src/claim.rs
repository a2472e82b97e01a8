//! Claiming: what a log holds becomes the pool's own, before anything else is written (OpenZFS: `zil_check_log_chain`, `zil_claim`).
//!
//! Blocks of a log that are younger than the last synced txg lie in space that the maps call free, and so do the blocks that its
//! records of indirect writes point at. An import takes that space first of all, and writes into the log's header how far it got:
//! the log ends there from now on, whatever later turns up behind.
//!
//! One walk checks and collects ([`survey`]); then blocks that records point at are read, many at a time; then space is taken in the
//! order of the log ([`Survey::claim`]). Nothing is on disk before the first txg is, so a crash leaves a log that is not claimed.
//! No key is needed: pointers stand in clear.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Txg, pump};
use dmu::Objset;
use ondisk::zil::{RawRecord, TxType, block_seq};
use ondisk::{BlkPtr, ZilHeader};
use zio::Bookmark;

use crate::chain::{CLAIM_LR_SEQ_VALID, ChainEnd, Log, LogBlock, Step, Summary, walk, walk_as};

/// The header's flag that its log holds something to replay (OpenZFS: `ZIL_REPLAY_NEEDED`).
pub const REPLAY_NEEDED: u64 = 1;

/// How far a log has been taken.
#[derive(Clone, Copy, Default)]
struct Mark {
    blk_seq: u64,
    lr_seq: u64,
    blocks: u64,
    records: u64,
}

/// What one block or record of a log wants, and how far the log went before it.
struct Item {
    before: Mark,
    wants: Wants,
}

enum Wants {
    /// A block of the chain.
    Block(BlkPtr),
    /// The block that a record of an indirect write points at; it must be readable, else the log ends before the record.
    Data(BlkPtr),
    /// One reference more for each of these blocks, by a record of a clone.
    Clones(Vec<BlkPtr>),
    /// The log cannot go on behind here.
    End,
}

/// An unclaimed log, walked.
pub struct Survey {
    header: ZilHeader,
    items: Vec<Item>,
    seen: Mark,
    first: Txg,
    lost: Option<zio::Error>,
    kept: Kept,
    vdevs: BTreeSet<u64>,
}

/// The blocks of a log, for as long as there is room for all of them and none is ciphertext.
struct Kept(Option<Vec<LogBlock>>);

impl Kept {
    fn add(&mut self, block: LogBlock, room: &AtomicU64) {
        let Some(all) = &mut self.0 else { return };
        let take = |left: u64| left.checked_sub(block.bp.lsize());
        if !block.sealed && room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return all.push(block);
        }
        room.fetch_add(all.iter().map(|block| block.bp.lsize()).sum(), Ordering::Relaxed);
        self.0 = None;
    }
}

/// A place on a device, by which a block is known.
fn place(bp: &BlkPtr) -> (u64, u64) {
    (bp.dva(0).vdev(), bp.dva(0).offset())
}

impl Survey {
    /// Walks the log of `objset`.
    fn walk(objset: &Arc<Objset>, synced: Txg, room: &AtomicU64) -> Option<Survey> {
        let header = objset.phys().zil_header.clone();
        if header.log.is_hole() || header.claim_txg.0 != 0 {
            return None;
        }
        let first = Txg(synced.0.saturating_add(1));
        let (mut items, mut seen, mut known) = (Vec::new(), Mark::default(), HashSet::new());
        let mut young = |bp: &BlkPtr| bp.birth() >= first && !bp.is_embedded() && known.insert(place(bp));
        let (mut kept, mut vdevs) = (Kept(Some(Vec::new())), BTreeSet::new());
        let mut keep = |bp: &BlkPtr, data, sealed| kept.add(LogBlock { bp: *bp, sealed, data }, room);
        let mut visit = |step: Step<'_>| {
            match step {
                Step::Block(bp) => {
                    vdevs.insert(bp.dva(0).vdev());
                    if young(bp) {
                        items.push(Item { before: seen, wants: Wants::Block(*bp) });
                    }
                    (seen.blk_seq, seen.blocks) = (block_seq(bp), seen.blocks + 1);
                }
                Step::Record { record, .. } => {
                    let wants = match record.clear_blkptrs() {
                        Ok(bps) if record.header.kind() == Some(TxType::CloneRange) => Some(clones(bps, first)),
                        Ok(bps) => bps.into_iter().find(&mut young).map(Wants::Data),
                        Err(_) => Some(Wants::End),
                    };
                    items.extend(wants.map(|wants| Item { before: seen, wants }));
                    (seen.lr_seq, seen.records) = (record.header.seq, seen.records + 1);
                }
            }
            ControlFlow::Continue(())
        };
        let end = walk_as(objset, false, &mut visit, &mut keep).end;
        let lost = match end {
            ChainEnd::NotWritten(error) if !is_end(&error) => Some(error),
            _ => None,
        };
        let nothing = items.is_empty() && lost.is_none() && seen.blocks <= 1 && seen.records == 0;
        (!nothing).then_some(Survey { header, items, seen, first, lost, kept, vdevs })
    }

    /// The error by which a device that should have the next block gave nothing at all: more may have been promised than can be seen.
    #[must_use]
    pub fn lost(&self) -> Option<&zio::Error> {
        self.lost.as_ref()
    }

    /// Whether not even the first block can be had.
    #[must_use]
    pub fn is_lost_whole(&self) -> bool {
        self.lost.is_some() && self.seen.records == 0 && self.seen.blocks <= 1
    }

    /// The top-level vdevs that blocks of its chain lie on.
    #[must_use]
    pub fn vdevs(&self) -> &BTreeSet<u64> {
        &self.vdevs
    }

    /// The log's first block.
    #[must_use]
    pub fn head(&self) -> &BlkPtr {
        &self.header.log
    }

    /// Records seen.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.seen.records
    }

    /// Takes the space of all that is not the pool's yet, with `take`, and a reference with `refer` for each block that a clone names. Gives
    /// the header that says so, and the log if it was kept. It ends where `take` first says no.
    #[must_use]
    pub fn claim(
        self,
        take: &mut dyn FnMut(&BlkPtr) -> bool,
        refer: &mut dyn FnMut(&BlkPtr),
    ) -> (ZilHeader, Option<Log>) {
        let mut seen = self.seen;
        for item in &self.items {
            let good = match &item.wants {
                Wants::Block(bp) | Wants::Data(bp) => take(bp),
                Wants::Clones(bps) => {
                    bps.iter().for_each(&mut *refer);
                    true
                }
                Wants::End => false,
            };
            if !good {
                seen = item.before;
                break;
            }
        }
        let replay = if seen.records > 0 || seen.blocks > 1 { REPLAY_NEEDED } else { 0 };
        let header = ZilHeader {
            claim_txg: self.first,
            claim_blk_seq: seen.blk_seq,
            claim_lr_seq: seen.lr_seq,
            flags: self.header.flags | replay | CLAIM_LR_SEQ_VALID,
            ..self.header
        };
        let log = self.kept.0.map(|mut blocks| {
            blocks.retain(|block| block.seq() <= seen.blk_seq);
            let (max_blk_seq, max_lr_seq, end) = (seen.blk_seq, seen.lr_seq, ChainEnd::Claimed);
            let summary = Summary { blocks: seen.blocks, records: seen.records, max_blk_seq, max_lr_seq, end };
            Log { header: header.clone(), blocks, summary }
        });
        (header, log)
    }
}

/// Walks the logs of `objsets`, side by side; `synced` is the last synced txg. `None` where there is nothing to claim: no log, one that was
/// claimed before, or one without records all of whose blocks are known. Logs that can be replayed as they are kept in memory, up to `room` bytes of
/// them; a replay reads the others again.
#[must_use]
pub fn survey(objsets: &[Arc<Objset>], synced: Txg, room: u64) -> Vec<Option<Survey>> {
    let room = AtomicU64::new(room);
    let mut all = pump::all(objsets.to_vec(), |objset| Survey::walk(objset, synced, &room));
    check_data(objsets, &mut all);
    all
}

/// Reads what indirect writes point at. A log block may have been written before such a block was; nobody was promised the record then.
fn check_data(objsets: &[Arc<Objset>], surveys: &mut [Option<Survey>]) {
    let mut wanted: Vec<(usize, usize, BlkPtr)> = Vec::new();
    for (log, survey) in surveys.iter().enumerate() {
        for (n, item) in survey.iter().flat_map(|survey| &survey.items).enumerate() {
            if let Wants::Data(bp) = &item.wants {
                wanted.push((log, n, *bp));
            }
        }
    }
    wanted.sort_unstable_by_key(|(_, _, bp)| place(bp));
    let bad = pump::all(wanted, |(log, n, bp)| {
        let objset = objsets.get(*log)?;
        let bm = Bookmark { objset: objset.id(), object: 0, level: Bookmark::ZIL_LEVEL, blkid: 0 };
        // in clear it stays in the cache for replay
        let zio = objset.zio();
        let read = if bp.is_encrypted() { zio.read_raw(bp, &bm) } else { zio.read(bp, &bm) };
        read.err().map(|_| (*log, *n))
    });
    for (log, n) in bad.into_iter().flatten() {
        let survey = surveys.get_mut(log).and_then(Option::as_mut);
        if let Some(item) = survey.and_then(|survey| survey.items.get_mut(n)) {
            item.wants = Wants::End;
        }
    }
}

/// What a record of a clone wants. A block that is younger than the pool cannot be had a reference of: the log ends there.
fn clones(mut bps: Vec<BlkPtr>, first: Txg) -> Wants {
    bps.retain(|bp| !bp.is_hole() && !bp.is_embedded());
    if bps.iter().any(|bp| bp.birth_physical() >= first) { Wants::End } else { Wants::Clones(bps) }
}

/// Whether what a read met is how a chain ends: bytes that are not those of the next block.
fn is_end(error: &zio::Error) -> bool {
    !matches!(error, zio::Error::Io { .. } | zio::Error::Overtaken { .. })
}

/// Whether a header's log is claimed and holds what is not replayed yet.
#[must_use]
pub fn needs_replay(header: &ZilHeader) -> bool {
    header.flags & REPLAY_NEEDED != 0
}

/// The blocks that a log holds, to be freed when it goes: those of the chain, and if it was claimed those that indirect writes and clones
/// point at (OpenZFS: `zil_destroy_sync`). A block of the chain or of a write comes once, one of a clone as often as it is named.
pub(crate) struct Held {
    claimed: Txg,
    blocks: Vec<BlkPtr>,
    known: HashSet<(u64, u64)>,
}

impl Held {
    /// Of a log that was claimed in `claimed`, 0 if it was not.
    pub(crate) fn new(claimed: Txg) -> Held {
        Held { claimed, blocks: Vec::new(), known: HashSet::new() }
    }

    /// A block of the chain.
    pub(crate) fn block(&mut self, bp: &BlkPtr) {
        if self.known.insert(place(bp)) {
            self.blocks.push(*bp);
        }
    }

    /// What a record points at.
    pub(crate) fn record(&mut self, record: &RawRecord<'_>) {
        if self.claimed.0 == 0 {
            return;
        }
        let clone = record.header.kind() == Some(TxType::CloneRange);
        for bp in record.clear_blkptrs().unwrap_or_default() {
            let own = clone || (bp.birth() >= self.claimed && self.known.insert(place(&bp)));
            if own && !bp.is_hole() && !bp.is_embedded() {
                self.blocks.push(bp);
            }
        }
    }

    pub(crate) fn into_blocks(self) -> Vec<BlkPtr> {
        self.blocks
    }
}

/// All blocks that the log of `objset` holds.
#[must_use]
pub fn blocks_of(objset: &Arc<Objset>) -> Vec<BlkPtr> {
    let mut held = Held::new(objset.phys().zil_header.claim_txg);
    let _summary = walk(objset, &mut |step| {
        match step {
            Step::Block(bp) => held.block(bp),
            Step::Record { record, .. } => held.record(&record),
        }
        ControlFlow::Continue(())
    });
    held.into_blocks()
}
