//! Replay: what a log promises and no synced txg holds is done again (OpenZFS: `zil_replay`).
//!
//! The log was claimed and ends where its header says. Its records go, in order, to a [`Replayer`], which makes the change and notes in
//! the header, *in the same txg*, that the record is replayed: after a crash the rest is replayed, and nothing twice. Many records share a
//! transaction. A record that may be logged out of order and names an object that is no more has nothing to do. A record that fails is tried
//! once more when all before it is on disk, as numbers of objects freed in a txg cannot be used again before; if it fails again, the replay
//! ends there, as with OpenZFS.
//!
//! First what the records will read is brought into the cache, many reads at a time ([`prime`](crate::prime)).

use std::borrow::Cow;
use std::sync::Arc;

use base::{Endian, Txg, tunable};
use dmu::{Objset, Tx};
use ondisk::zil::{RawRecord, Record, TxType};
use ondisk::{BlkPtr, ZilHeader};

use crate::chain::{Log, read_log};
use crate::claim::needs_replay;
use crate::{Error, data_of, prime};

/// Records of one batch.
const BATCH: usize = 256;

/// A record to replay.
#[derive(Debug)]
pub struct Entry<'a> {
    /// What it does.
    pub kind: TxType,
    /// What it says.
    pub record: Record<'a>,
    /// What an indirect write writes: the whole block.
    pub data: Option<Cow<'a, [u8]>>,
    /// The writer's byte order, of what is decoded no further.
    pub endian: Endian,
    /// Its sequence number.
    pub seq: u64,
}

impl Entry<'_> {
    /// Notes, in the txg of `tx`, that the record is replayed (OpenZFS: `zil_replaying`).
    ///
    /// # Errors
    /// If the object set is not open for changes.
    pub fn note(&self, objset: &Objset, tx: &Tx) -> Result<(), dmu::Error> {
        let header = ZilHeader { replay_seq: self.seq, ..objset.phys().zil_header.clone() };
        objset.set_zil_header(tx, header)
    }
}

/// Who knows how a file system, or a volume, is changed (OpenZFS: `zil_replay_func_t`).
pub trait Replayer {
    /// Why a change failed.
    type Error: From<Error> + From<dmu::Error>;

    /// Makes the change of a record, and [notes](Entry::note) it, in one txg.
    ///
    /// # Errors
    /// When it cannot be made.
    fn apply(&self, entry: &Entry<'_>) -> Result<(), Self::Error>;

    /// Runs `work`, whose changes may share transactions.
    fn batch(&self, work: &mut dyn FnMut());

    /// Waits until all is on disk.
    ///
    /// # Errors
    /// When the pool is suspended.
    fn sync(&self) -> Result<(), Self::Error>;

    /// Gives the log up: its header, and `blocks`.
    ///
    /// # Errors
    /// When the pool is suspended.
    fn finish(&self, blocks: Vec<BlkPtr>) -> Result<(), Self::Error>;
}

/// How a replay went.
#[derive(Debug)]
pub struct Replayed<E> {
    /// Records whose changes were made, or had nothing to do.
    pub records: u64,
    /// Records that were on disk already.
    pub skipped: u64,
    /// The record that ended the replay, by sequence number and type, and why. What came behind it is lost.
    pub failed: Option<(u64, u64, E)>,
}

/// Replays the log of `objset`, if it was claimed, and gives it up. `None` if there was nothing to replay. `log` is
/// the log as it was claimed, if that was kept.
///
/// # Errors
/// When the pool is suspended.
pub fn replay<R: Replayer>(
    objset: &Arc<Objset>,
    log: Option<Log>,
    replayer: &R,
) -> Result<Option<Replayed<R::Error>>, R::Error> {
    let header = objset.phys().zil_header.clone();
    // a log that was not claimed is one that somebody writes, or nothing at all
    if header.claim_txg == Txg(0) {
        return Ok(None);
    }
    let log = log.filter(|log| log.header.log == header.log).unwrap_or_else(|| read_log(objset));
    if !needs_replay(&header) {
        replayer.finish(blocks_of(&log))?;
        return Ok(None);
    }
    let mut done = Replayed { records: 0, skipped: 0, failed: None };
    if tunable::ZIL_REPLAY_DISABLE.get() == 0 {
        let all = log.records().count() as u64;
        let due: Vec<RawRecord<'_>> = log.records().filter(|raw| is_due(raw, &header)).collect();
        done.skipped = all.saturating_sub(due.len() as u64);
        // numbers that were freed can be used again
        replayer.sync()?;
        if tunable::ZIL_REPLAY_PRIME.get() != 0 {
            prime::prime(objset, &due);
        }
        run(objset, replayer, &due, &mut done)?;
    }
    replayer.finish(blocks_of(&log))?;
    Ok(Some(done))
}

fn is_due(raw: &RawRecord<'_>, header: &ZilHeader) -> bool {
    raw.header.seq > header.replay_seq && raw.header.txg >= header.claim_txg
}

fn run<R: Replayer>(
    objset: &Arc<Objset>,
    replayer: &R,
    due: &[RawRecord<'_>],
    done: &mut Replayed<R::Error>,
) -> Result<(), R::Error> {
    let mut rest = due;
    while !rest.is_empty() {
        let (mut good, mut failed) = (0, false);
        replayer.batch(&mut || {
            for raw in rest.iter().take(BATCH) {
                if one(objset, replayer, raw).is_err() {
                    failed = true;
                    break;
                }
                good += 1;
            }
        });
        done.records += good as u64;
        rest = rest.get(good..).unwrap_or(&[]);
        let Some(raw) = rest.first().filter(|_| failed) else { continue };
        replayer.sync()?;
        if let Err(error) = one(objset, replayer, raw) {
            done.failed = Some((raw.header.seq, raw.header.txtype, error));
            return Ok(());
        }
        done.records += 1;
        rest = rest.get(1..).unwrap_or(&[]);
    }
    Ok(())
}

fn one<R: Replayer>(objset: &Arc<Objset>, replayer: &R, raw: &RawRecord<'_>) -> Result<(), R::Error> {
    let broken = |source| Error::Record { objset: objset.id(), seq: raw.header.seq, source };
    let record = raw.decode().map_err(broken)?;
    let unknown = ondisk::Error::Invalid { what: "log record", field: "type", value: raw.header.txtype };
    let kind = raw.header.kind().ok_or_else(|| broken(unknown))?;
    if let Some(object) = object_of(&record).filter(|_| kind.is_out_of_order()) {
        match objset.object(object) {
            Ok(_) => {}
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    let data = match &record {
        Record::Write(write) if kind == TxType::Write && write.data.is_none() => {
            Some(data_of(objset, write)?.into_owned().into())
        }
        _ => None,
    };
    replayer.apply(&Entry { kind, record, data, endian: raw.endian, seq: raw.header.seq })
}

/// The object that a record without names changes.
pub(crate) fn object_of(record: &Record<'_>) -> Option<u64> {
    match record {
        Record::Write(write) => Some(write.foid),
        Record::SetAttr(set) => Some(set.foid),
        Record::Truncate { foid, .. }
        | Record::AclV0 { foid, .. }
        | Record::Acl { foid, .. }
        | Record::SetSaXattr { foid, .. }
        | Record::CloneRange { foid, .. } => Some(*foid),
        Record::Commit | Record::Create(_) | Record::Remove { .. } | Record::Link { .. } | Record::Rename(_) => None,
    }
}

/// All blocks that the log holds.
fn blocks_of(log: &Log) -> Vec<BlkPtr> {
    let mut held = crate::claim::Held::new(log.header.claim_txg);
    log.blocks.iter().for_each(|block| held.block(&block.bp));
    log.records().for_each(|raw| held.record(&raw));
    held.into_blocks()
}
