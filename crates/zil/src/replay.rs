//! Replay: the records of a log that no synced txg holds are applied again (OpenZFS: `zil_replay`).
//!
//! The log was claimed and ends where its header says. Its records are passed to a [`Replayer`], which makes the changes. A
//! record that may be logged out of order and names an object that no longer exists is skipped.
//!
//! # Exactly once
//! The header has one number for the progress of a replay, `replay_seq`: all records up to it are applied. Records are replayed
//! in *windows*: a window has one transaction, which all threads that work on it share, and the next window assigns its
//! transaction only after this one has released its own. In the txg of that transaction the header is set to the window's last
//! record. So, for every txg T that reaches the disk:
//!
//! * every record up to T's `replay_seq` was applied in T or before, because its window's transaction was in T or before;
//! * no record after it was applied in T or before, because a window is in one txg as a whole, and the txgs of successive windows
//!   never decrease.
//!
//! Within a window records may be applied in any order that the [`plan`](mod@crate::plan) allows: no crash can separate them. After a
//! crash the replay continues after the mark, here or with OpenZFS, and applies nothing twice.
//!
//! # Records that free much
//! A discard of a whole volume is one record, and may free more than a txg can hold. Such a record starts a window of its own,
//! and before that most of its range is freed in pieces, each with a transaction of its own. Meanwhile the record stays due:
//! after a crash the next replay frees the rest, since nothing after the record was started.
//!
//! # Records that fail
//! A failing record of names ends its window: all records before it are applied, none after it was started. It is retried once
//! when everything before it is on disk, since object numbers freed in a txg cannot be reused before that txg is synced; if it
//! fails again, the replay ends there, as with OpenZFS. Any other record fails only with its device, and is retried once
//! immediately.
//!
//! Devices that do not answer end no log. Unless records are applied one after the other, a window begins with all reads that its records
//! will need ([`ahead`](mod@crate::ahead)), and ends before the first record for which one is not answered; that record then has a window
//! of its own. If it fails, the log stays, with its header at the record before: the dataset is not opened, and the next opening replays the
//! rest. Records of lanes that were applied after it are then applied again, which changes nothing, as each says what its object becomes.
//! Only if a read fails that was answered just before, and a record of names behind it is applied by then, or if what was read is not what was
//! written, the replay ends in that same txg: the header then says that nothing is left to replay.
//!
//! # Speed
//! First the blocks that the records will need are read into the cache, many reads at a time ([`prime`](mod@crate::prime)). Then
//! records without a common object are applied in parallel, [`ZIL_REPLAY_PARALLEL`](tunable::ZIL_REPLAY_PARALLEL) at a time; and
//! a write that is overwritten before anything could read it is skipped. With `ZIL_REPLAY_PARALLEL` 0, records are applied one
//! after the other.

use std::borrow::{Borrow, Cow};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use base::counter::Counter;
use base::pump::Pace;
use base::{Endian, ObjectId, Txg, tunable};
use dmu::{Object, Objset, Tx};
use ondisk::zil::{RawRecord, Record, TxType};
use ondisk::{BlkPtr, ZilHeader};

use crate::ahead::Ahead;
use crate::chain::{ChainEnd, Log, read_log};
use crate::claim::{REPLAY_NEEDED, needs_replay};
use crate::plan::{self, Step};
use crate::window::{self, Ran};
use crate::{Error, data_of, prime};

/// A record to replay.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The type of the change.
    pub kind: TxType,
    /// The decoded record.
    pub record: &'a Record<'a>,
    /// The data of an indirect write: the whole block.
    pub data: Option<Cow<'a, [u8]>>,
    /// For a write: true if all its bytes are written again in the same txg, by whole blocks, so that only the file's size and
    /// times need to be set.
    pub superseded: bool,
    /// The writer's byte order, for the parts of the record that are not decoded.
    pub endian: Endian,
    /// Its sequence number.
    pub seq: u64,
}

/// Applies records to a file system or a volume (OpenZFS: `zil_replay_func_t`).
pub trait Replayer: Sync {
    /// The reason why a change failed.
    type Error: From<Error> + From<dmu::Error> + Send;
    /// An assigned transaction, shared by all threads that work for it; committed when it is dropped.
    type Window: Sync;

    /// Assigns a transaction for about `bytes` dirty bytes.
    ///
    /// # Errors
    /// If there is no space, or the pool is suspended.
    fn window(&self, bytes: u64) -> Result<Self::Window, Self::Error>;

    /// Returns the window's transaction.
    fn tx(window: &Self::Window) -> &Tx;

    /// Applies a record in the window's transaction. Several threads may call this at the same time, with records that the plan
    /// found to be independent.
    ///
    /// # Errors
    /// If the change cannot be made; nothing is changed then.
    fn apply(&self, window: &Self::Window, entry: &Entry<'_>) -> Result<(), Self::Error>;

    /// Returns an approximate upper bound of the bytes that a record dirties.
    fn bytes(&self, record: &Record<'_>) -> u64;

    /// Returns the object and byte range that a record frees, if that is [long](Object::is_long).
    fn frees_long(&self, record: &Record<'_>) -> Option<(Object, Range<u64>)>;

    /// Looks up the file of a name. The outer `None` says that more than the file changes when it loses the name, or that this
    /// cannot be determined; the inner one that the name does not exist.
    fn file_of(&self, dir: ObjectId, name: &[u8]) -> Option<Option<ObjectId>>;

    /// Returns whether a change failed because devices do not answer, and may be possible when they do.
    fn is_unanswered(error: &Self::Error) -> bool;

    /// Returns whether a log is kept until all devices answer. Otherwise records that cannot be read are given up, as the import was told to.
    fn waits(&self) -> bool;

    /// Called after a window's transaction is committed; does the work that had to wait for that.
    fn after_window(&self);

    /// Waits until all changes are on disk.
    ///
    /// # Errors
    /// When the pool is suspended.
    fn sync(&self) -> Result<(), Self::Error>;

    /// Destroys the log: clears its header and frees `blocks`.
    ///
    /// # Errors
    /// When the pool is suspended.
    fn finish(&self, blocks: Vec<BlkPtr>) -> Result<(), Self::Error>;
}

/// The progress of replays, shared by all logs that are replayed in parallel.
#[derive(Debug, Default)]
pub struct Meter {
    /// Logs whose replay was started.
    pub logs: Counter,
    /// Logs whose replay is finished.
    pub logs_done: Counter,
    /// Records of the logs whose replay was started.
    pub records: Counter,
    /// Records that are applied.
    pub records_done: Counter,
    /// Bytes of all these records, and of the blocks that they point at.
    pub bytes: Counter,
    /// Bytes of the records that are applied.
    pub bytes_done: Counter,
}

/// The result of a replay.
#[derive(Debug)]
pub struct Replayed<E> {
    /// Records that were applied or had nothing to do.
    pub records: u64,
    /// Writes among these that were skipped because a later record overwrote them.
    pub superseded: u64,
    /// Records that were already on disk.
    pub skipped: u64,
    /// The record at which the replay ended: sequence number, type and error. The records after it are lost.
    pub failed: Option<(u64, u64, E)>,
}

/// A record that is due.
pub(crate) struct Due<'a> {
    pub(crate) raw: RawRecord<'a>,
    /// `None` if it cannot be decoded.
    pub(crate) record: Option<Record<'a>>,
    /// The bytes that it dirties.
    pub(crate) bytes: u64,
}

impl<'a> Due<'a> {
    pub(crate) fn step(&self) -> Step<'_, 'a> {
        Step { kind: self.raw.header.kind(), record: self.record.as_ref() }
    }

    /// Bytes that it counts for in the progress meter.
    fn weight(&self) -> u64 {
        let block = match &self.record {
            Some(Record::Write(write)) if write.data.is_none() => write.blkptr.lsize(),
            _ => 0,
        };
        self.raw.header.reclen.saturating_add(block)
    }
}

/// The transaction for one piece of a long free.
struct PiecePlace<R: Replayer>(R::Window);

impl<R: Replayer> Borrow<Tx> for PiecePlace<R> {
    fn borrow(&self) -> &Tx {
        R::tx(&self.0)
    }
}

/// One replay.
pub(crate) struct Replay<'a, R> {
    pub(crate) objset: &'a Arc<Objset>,
    pub(crate) replayer: &'a R,
    meter: &'a Meter,
    /// Maximum number of records that are applied at a time.
    pub(crate) width: usize,
    /// The recent time per record.
    pub(crate) pace: Pace,
}

/// Replays the log of `objset` if it was claimed, and destroys it. Returns `None` if there was nothing to replay. `log` is the
/// log as it was claimed, if it was kept in memory.
///
/// # Errors
/// When the pool is suspended, or devices do not answer. The log then stays, with what was replayed of it noted in its header.
pub fn replay<R: Replayer>(
    objset: &Arc<Objset>,
    log: Option<Log>,
    replayer: &R,
    meter: &Meter,
) -> Result<Option<Replayed<R::Error>>, R::Error> {
    let header = objset.phys().zil_header.clone();
    // an unclaimed log is one that is being written, or no log at all
    if header.claim_txg == Txg(0) {
        return Ok(None);
    }
    let log = log.filter(|log| log.header.log == header.log).unwrap_or_else(|| read_log(objset));
    if !needs_replay(&header) {
        replayer.finish(blocks_of(&log))?;
        return Ok(None);
    }
    let log = if tunable::ZIL_REPLAY_DISABLE.get() == 0 { whole(objset, log, replayer.waits())? } else { log };
    let mut done = Replayed { records: 0, superseded: 0, skipped: 0, failed: None };
    if tunable::ZIL_REPLAY_DISABLE.get() == 0 {
        let all = log.records().count() as u64;
        let due: Vec<_> = log.records().filter(|raw| is_due(raw, &header)).map(|raw| due_of(raw, replayer)).collect();
        done.skipped = all.saturating_sub(due.len() as u64);
        let bytes: u64 = due.iter().map(Due::weight).sum();
        meter.logs.add(1);
        meter.records.add(due.len() as u64);
        meter.bytes.add(bytes);
        let replay = Replay { objset, replayer, meter, width: width(), pace: Pace::default() };
        replay.prepare(&due)?;
        replay.run(&due, &mut done)?;
        meter.logs_done.add(1);
    }
    replayer.finish(blocks_of(&log))?;
    Ok(Some(done))
}

/// Checks that a log which was read again does not end where a device did not answer: the rest of it would be lost.
fn whole(objset: &Objset, log: Log, waits: bool) -> Result<Log, Error> {
    match log.summary.end {
        ChainEnd::NotWritten(source) if waits && source.is_unanswered() => {
            Err(Error::Unanswered { objset: objset.id(), source })
        }
        _ => Ok(log),
    }
}

fn width() -> usize {
    // with a single thread all records are applied in order
    let most = if base::tasks::width() == 1 { 1 } else { tunable::ZIL_REPLAY_PARALLEL.get() };
    usize::try_from(most).unwrap_or(usize::MAX).clamp(1, 256)
}

fn is_due(raw: &RawRecord<'_>, header: &ZilHeader) -> bool {
    raw.header.seq > header.replay_seq && raw.header.txg >= header.claim_txg
}

fn due_of<'a, R: Replayer>(raw: RawRecord<'a>, replayer: &R) -> Due<'a> {
    let record = raw.decode().ok();
    let bytes = record.as_ref().map_or(0, |record| replayer.bytes(record));
    Due { raw, record, bytes }
}

impl<R: Replayer> Replay<'_, R> {
    /// Waits for a txg, so that freed object numbers can be reused; meanwhile reads ahead what the records will need.
    fn prepare(&self, due: &[Due<'_>]) -> Result<(), R::Error> {
        if tunable::ZIL_REPLAY_PRIME.get() == 0 {
            return self.replayer.sync();
        }
        let prime = || prime::prime(self.objset, due, self.width > 1);
        if base::tasks::width() == 1 {
            prime();
            return self.replayer.sync();
        }
        std::thread::scope(|scope| {
            let primed = std::thread::Builder::new().name("zil-prime".to_owned()).spawn_scoped(scope, prime);
            let synced = self.replayer.sync();
            // if the thread did not start, the blocks are just read later
            drop(primed);
            synced
        })
    }

    fn run(&self, due: &[Due<'_>], done: &mut Replayed<R::Error>) -> Result<(), R::Error> {
        let (mut rest, mut most) = (due, usize::MAX);
        while let Some(first) = rest.first() {
            let len = plan::window(rest.iter().map(|due| due.bytes)).min(most);
            let len = match self.free_ahead(rest.get(..len).unwrap_or(rest)) {
                Ok(len) => len,
                Err(error) => return self.end(first, error, done),
            };
            let ahead = Ahead::of(self, rest.get(..len).unwrap_or(rest));
            let (now, later) = rest.split_at_checked(ahead.records()).unwrap_or((rest, &[]));
            let place = match self.replayer.window(now.iter().map(|due| due.bytes).sum()) {
                // with little free space a smaller window may fit
                Err(_) if now.len() > 1 => {
                    most = now.len() / 2;
                    continue;
                }
                place => place,
            };
            let ran = match place {
                Ok(place) => self.window(&place, now, &ahead, done)?,
                Err(_) => Ran::Fence(0),
            };
            self.replayer.after_window();
            match ran {
                Ran::All => rest = later,
                Ran::Fence(n) => {
                    let found = rest.get(n..).and_then(<[_]>::split_first);
                    let Some((failed, behind)) = found else { return Err(self.bug().into()) };
                    if let Some(error) = self.again(failed, done)? {
                        return self.end(failed, error, done);
                    }
                    rest = behind;
                }
                Ran::Lost { n, error, .. } => match now.get(n) {
                    Some(failed) => return self.end(failed, error, done),
                    None => return Err(self.bug().into()),
                },
            }
        }
        Ok(())
    }

    /// The error after which the log is kept, as the record that failed is none of those that were due.
    fn bug(&self) -> Error {
        Error::Unusable { objset: self.objset.id(), what: "bug: an unknown record has failed" }
    }

    /// Returns whether the log is kept after this failure.
    fn waits_for(&self, error: &R::Error) -> bool {
        self.replayer.waits() && R::is_unanswered(error)
    }

    /// Ends the replay at the record that failed. Devices that do not answer are waited for by the next replay, unless the header says by now
    /// that there is none.
    fn end(&self, failed: &Due<'_>, error: R::Error, done: &mut Replayed<R::Error>) -> Result<(), R::Error> {
        if self.waits_for(&error) && needs_replay(&self.objset.phys().zil_header) {
            return Err(error);
        }
        done.failed = Some((failed.raw.header.seq, failed.raw.header.txtype, error));
        Ok(())
    }

    /// If the first record of a window frees much, frees most of that range. Returns the number of records that the window may
    /// have.
    fn free_ahead(&self, now: &[Due<'_>]) -> Result<usize, R::Error> {
        let long = |due: &Due<'_>| due.record.as_ref().and_then(|record| self.replayer.frees_long(record));
        match now.iter().enumerate().find_map(|(n, due)| Some((n, long(due)?))) {
            None => Ok(now.len()),
            Some((0, (object, range))) => {
                object.free_long(range, || self.replayer.window(0).map(PiecePlace::<R>))?;
                Ok(1)
            }
            Some((n, _)) => Ok(n),
        }
    }

    /// Applies the records of one window, and updates the header in its txg.
    fn window(
        &self,
        place: &R::Window,
        now: &[Due<'_>],
        ahead: &Ahead,
        done: &mut Replayed<R::Error>,
    ) -> Result<Ran<R::Error>, R::Error> {
        let ran = window::run(self, place, now, ahead);
        let good = match &ran {
            Ran::All => now.len(),
            Ran::Fence(n) | Ran::Lost { n, .. } => *n,
        };
        // what is applied is applied again by a replay that goes on at the failed record: that may be done with records of lanes alone
        let ends = match &ran {
            Ran::Lost { error, fenced, .. } => *fenced || !self.waits_for(error),
            _ => false,
        };
        let did = now.get(..good).unwrap_or(now);
        if ends || !did.is_empty() {
            self.mark(R::tx(place), did.last().map(|due| due.raw.header.seq), ends)?;
        }
        self.count(did, done);
        done.superseded += ahead.superseded(good);
        Ok(ran)
    }

    /// Retries a record by itself, after everything before it is on disk. Returns the error if it fails again.
    fn again(&self, due: &Due<'_>, done: &mut Replayed<R::Error>) -> Result<Option<R::Error>, R::Error> {
        self.replayer.sync()?;
        let place = match self.replayer.window(due.bytes) {
            Ok(place) => place,
            Err(error) => return Ok(Some(error)),
        };
        if let Err(error) = self.one(&place, due, None, false) {
            return Ok(Some(error));
        }
        self.mark(R::tx(&place), Some(due.raw.header.seq), false)?;
        drop(place);
        self.replayer.after_window();
        self.count(std::slice::from_ref(due), done);
        Ok(None)
    }

    /// Records in the header, in the txg of `tx`, what is replayed (OpenZFS: `zil_replaying`) and, if the replay `ends` there,
    /// that nothing is left to replay.
    fn mark(&self, tx: &Tx, seq: Option<u64>, ends: bool) -> Result<(), R::Error> {
        let mut header = self.objset.phys().zil_header.clone();
        header.replay_seq = seq.unwrap_or(header.replay_seq);
        header.flags &= if ends { !REPLAY_NEEDED } else { u64::MAX };
        Ok(self.objset.set_zil_header(tx, header)?)
    }

    fn count(&self, did: &[Due<'_>], done: &mut Replayed<R::Error>) {
        done.records += did.len() as u64;
        self.meter.records_done.add(did.len() as u64);
        self.meter.bytes_done.add(did.iter().map(Due::weight).sum());
    }

    /// Applies one record. `read` is the block that it points at, if that is read already.
    pub(crate) fn one(
        &self,
        place: &R::Window,
        due: &Due<'_>,
        read: Option<&[u8]>,
        superseded: bool,
    ) -> Result<(), R::Error> {
        let header = &due.raw.header;
        let broken = |source| Error::Record { objset: self.objset.id(), seq: header.seq, source };
        let Some(record) = &due.record else {
            // decodes again to get the error
            due.raw.decode().map_err(broken)?;
            return Ok(());
        };
        let unknown = ondisk::Error::Invalid { what: "log record", field: "type", value: header.txtype };
        let kind = header.kind().ok_or_else(|| broken(unknown))?;
        if let Some(object) = object_of(record).filter(|_| kind.is_out_of_order()) {
            match self.objset.object(object) {
                Ok(_) => {}
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        let data = match record {
            Record::Write(write) if kind == TxType::Write && write.data.is_none() && !superseded => Some(match read {
                Some(read) => Cow::Borrowed(read),
                None => data_of(self.objset, write)?.into_owned().into(),
            }),
            _ => None,
        };
        let entry = Entry { kind, record, data, superseded, endian: due.raw.endian, seq: header.seq };
        self.replayer.apply(place, &entry)
    }
}

/// Returns the writes of a window that are overwritten within it.
pub(crate) fn superseded(objset: &Arc<Objset>, window: &[Due<'_>]) -> HashSet<usize> {
    let steps: Vec<Step<'_, '_>> = window.iter().map(Due::step).collect();
    plan::superseded(&steps, |id| {
        let object = objset.object(id).ok()?;
        // a file's block grows with the file as long as it is the only one
        (object.nblocks() > 1).then(|| object.block_size())
    })
}

/// Returns the object that a record without names changes.
pub(crate) fn object_of(record: &Record<'_>) -> Option<ObjectId> {
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

/// Returns all blocks that the log holds.
fn blocks_of(log: &Log) -> Vec<BlkPtr> {
    let mut held = crate::claim::Held::new(log.header.claim_txg);
    log.blocks.iter().for_each(|block| held.block(&block.bp));
    log.records().for_each(|raw| held.record(&raw));
    held.into_blocks()
}
