//! Claiming: on import, the blocks of each log become allocated blocks of the pool before anything else is written (OpenZFS:
//! `zil_check_log_chain`, `zil_claim`).
//!
//! Log blocks that are younger than the last synced txg lie in space that the space maps call free, and so do the blocks that
//! indirect write records point at. An import allocates that space first, and records in the log's header how far it got: from
//! then on the log ends there, whatever may later be found after that point.
//!
//! One walk checks the chain and collects its blocks ([`survey`]); then the blocks that records point at are read, many at a
//! time; then space is claimed in the order of the log ([`Survey::claim`]). Nothing of this is on disk before the first txg is
//! synced, so a crash leaves an unclaimed log. No key is needed: block pointers are stored in the clear.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ObjectId, Txg, pump};
use dmu::Objset;
use ondisk::zil::{RawRecord, TxType, block_seq};
use ondisk::{BlkPtr, ZilHeader};
use zio::Bookmark;

use crate::chain::{CLAIM_LR_SEQ_VALID, ChainEnd, Log, LogBlock, Step, Summary, walk, walk_as};

/// The header flag which says that the log holds records to replay (OpenZFS: `ZIL_REPLAY_NEEDED`).
pub const REPLAY_NEEDED: u64 = 1;

/// A position up to which a log has been claimed.
#[derive(Clone, Copy, Default)]
struct Mark {
    blk_seq: u64,
    lr_seq: u64,
    blocks: u64,
    records: u64,
}

/// The claim that one block or record of a log needs, and the position in the log before it.
struct Item {
    before: Mark,
    wants: Wants,
}

enum Wants {
    /// A block of the chain.
    Block(BlkPtr),
    /// The block that an indirect write record points at; it must be readable, otherwise the log ends before that record.
    Data(BlkPtr),
    /// One more reference to each of these blocks, for a clone record.
    Clones(Vec<BlkPtr>),
    /// The log ends here.
    End,
}

/// An unclaimed log after its walk.
pub struct Survey {
    header: ZilHeader,
    items: Vec<Item>,
    seen: Mark,
    first: Txg,
    lost: Option<zio::Error>,
    kept: Kept,
    vdevs: BTreeSet<u64>,
}

/// The blocks of a log kept in memory; `None` once there is no room for all of them or one is ciphertext.
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

/// Returns the vdev and offset that identify a block.
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
            ChainEnd::NotWritten(error) if error.is_unanswered() => Some(error),
            _ => None,
        };
        let nothing = items.is_empty() && lost.is_none() && seen.blocks <= 1 && seen.records == 0;
        (!nothing).then_some(Survey { header, items, seen, first, lost, kept, vdevs })
    }

    /// The I/O error, if a device that should hold the next block returned nothing at all: the log may have held further records
    /// that can no longer be read.
    #[must_use]
    pub fn lost(&self) -> Option<&zio::Error> {
        self.lost.as_ref()
    }

    /// True if not even the first block could be read.
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

    /// Number of records seen.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.seen.records
    }

    /// Allocates with `take` all space that is not yet allocated in the pool, and adds with `refer` a reference to each block
    /// that a clone names. Returns the header of the claimed log, and the log itself if it was kept. The log ends where `take`
    /// first returns false.
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

/// Walks the logs of `objsets` in parallel; `synced` is the last synced txg. Returns `None` where there is nothing to claim: no
/// log, a log already claimed, or one without records all of whose blocks are known. Logs that can be replayed as they are stay
/// in memory, up to `room` bytes in total; a replay reads the others again.
#[must_use]
pub fn survey(objsets: &[Arc<Objset>], synced: Txg, room: u64) -> Vec<Option<Survey>> {
    let room = AtomicU64::new(room);
    let mut all = pump::all(objsets.to_vec(), |objset| Survey::walk(objset, synced, &room));
    check_data(objsets, &mut all);
    all
}

/// Reads the blocks that indirect writes point at. A log block may reach the disk before such a block does; the commit of that
/// record had not returned then, so the log may end before it.
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
        let bm = Bookmark { objset: objset.id(), object: ObjectId::NONE, level: Bookmark::ZIL_LEVEL, blkid: 0 };
        // decrypted, it stays in the cache for the replay
        let zio = objset.zio();
        let read = if bp.is_encrypted() { zio.read_raw(bp, &bm) } else { zio.read(bp, &bm) };
        // a device that does not answer says nothing of the record; the replay reads it again
        read.err().filter(|error| !error.is_unanswered()).map(|_| (*log, *n))
    });
    for (log, n) in bad.into_iter().flatten() {
        let survey = surveys.get_mut(log).and_then(Option::as_mut);
        if let Some(item) = survey.and_then(|survey| survey.items.get_mut(n)) {
            item.wants = Wants::End;
        }
    }
}

/// Returns the claim of a clone record. A block that is younger than the last synced txg cannot get a reference: the log ends
/// there.
fn clones(mut bps: Vec<BlkPtr>, first: Txg) -> Wants {
    bps.retain(|bp| !bp.is_hole() && !bp.is_embedded());
    if bps.iter().any(|bp| bp.birth_physical() >= first) { Wants::End } else { Wants::Clones(bps) }
}

/// True if the header's log is claimed and holds records that are not replayed yet.
#[must_use]
pub fn needs_replay(header: &ZilHeader) -> bool {
    header.flags & REPLAY_NEEDED != 0
}

/// The blocks that are freed together with a log: those of the chain and, if the log was claimed, those that indirect writes and
/// clones point at (OpenZFS: `zil_destroy_sync`). A block of the chain or of a write is listed once, one of a clone as often as
/// it is named.
pub(crate) struct Held {
    claimed: Txg,
    blocks: Vec<BlkPtr>,
    known: HashSet<(u64, u64)>,
}

impl Held {
    /// Creates the list for a log that was claimed in txg `claimed` (0 if it was not claimed).
    pub(crate) fn new(claimed: Txg) -> Held {
        Held { claimed, blocks: Vec::new(), known: HashSet::new() }
    }

    /// Adds a block of the chain.
    pub(crate) fn block(&mut self, bp: &BlkPtr) {
        if self.known.insert(place(bp)) {
            self.blocks.push(*bp);
        }
    }

    /// Adds the blocks that a record points at.
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

/// Returns all blocks that the log of `objset` holds.
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
