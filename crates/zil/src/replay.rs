//! Replay: what a log promises and no synced txg holds is done again (OpenZFS: `zil_replay`).
//!
//! The log was claimed and ends where its header says. Its records go to a [`Replayer`], which makes the changes. A record that may be logged
//! out of order and names an object that is no more has nothing to do.
//!
//! # Exactly once
//! The header has one number for what is replayed, `replay_seq`: all records up to it are done. Records are replayed in *windows*: a
//! window has one place in a txg, which all threads that work for it share, and the next window takes its place when this one has given its own
//! back. In the txg of the place the header is set to the window's last record. So, of every txg T that reaches the disk:
//!
//! * every record up to T's `replay_seq` was done in T or before, for its window's place was in T or before;
//! * no record behind it was done in T or before, for a window is in one txg as a whole, and windows are in txgs that never go back.
//!
//! Within a window records may be done in any order that the [plan](crate::plan) allows: no crash can come between them. After a crash the
//! replay goes on behind the mark, here or with OpenZFS, and does nothing twice.
//!
//! # Records that free much
//! A discard of a whole volume is one record, and may free more than a txg can remember. Such a record begins a window of its own, and before that
//! most of what it frees is freed in pieces, each with a place of its own. Meanwhile the record stays due: after a crash the next replay frees the
//! rest, as nothing behind the record was begun.
//!
//! # Records that fail
//! A record of names ends its window: all before it are done, nothing behind it was begun. It is tried once more when all before it is on
//! disk, as numbers of objects freed in a txg cannot be used again before; if it fails again, the replay ends there, as with OpenZFS. Any
//! other record fails with its device. It is tried once more at once; if it fails again, other records behind it may be done already. So
//! the replay ends in that very txg: the header says that nothing is to be replayed any more.
//!
//! # How fast
//! First what the records will read is brought into the cache, many reads at a time ([`prime`](crate::prime)). Then records without
//! a common object are done side by side, [`ZIL_REPLAY_PARALLEL`](tunable::ZIL_REPLAY_PARALLEL) at a time; and what is written again before anybody
//! could read it is not written before. With 0, records are done one after the other.

use std::borrow::{Borrow, Cow};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use base::counter::Counter;
use base::pump::Pace;
use base::{Endian, Txg, tunable};
use dmu::{Object, Objset, Tx};
use ondisk::zil::{RawRecord, Record, TxType};
use ondisk::{BlkPtr, ZilHeader};

use crate::chain::{Log, read_log};
use crate::claim::{REPLAY_NEEDED, needs_replay};
use crate::plan::{self, Step};
use crate::window::{self, Ran};
use crate::{Error, data_of, prime};

/// A record to replay.
#[derive(Debug)]
pub struct Entry<'a> {
    /// What it does.
    pub kind: TxType,
    /// What it says.
    pub record: &'a Record<'a>,
    /// What an indirect write writes: the whole block.
    pub data: Option<Cow<'a, [u8]>>,
    /// Of a write: all that it writes is written again in the same txg, by whole blocks. Only the file's size and times count.
    pub superseded: bool,
    /// The writer's byte order, of what is decoded no further.
    pub endian: Endian,
    /// Its sequence number.
    pub seq: u64,
}

/// Who knows how a file system, or a volume, is changed (OpenZFS: `zil_replay_func_t`).
pub trait Replayer: Sync {
    /// Why a change failed.
    type Error: From<Error> + From<dmu::Error> + Send;
    /// A place in a txg, shared by all threads that work for it; given back when it is dropped.
    type Window: Sync;

    /// Takes a place for about `bytes` bytes.
    ///
    /// # Errors
    /// When there is no room, or the pool is suspended.
    fn window(&self, bytes: u64) -> Result<Self::Window, Self::Error>;

    /// The txg of a place.
    fn tx(window: &Self::Window) -> &Tx;

    /// Makes the change of a record, in the txg of the place. Several threads may be here at a time, with records that the plan holds to be
    /// independent.
    ///
    /// # Errors
    /// When it cannot be made; then nothing is changed.
    fn apply(&self, window: &Self::Window, entry: &Entry<'_>) -> Result<(), Self::Error>;

    /// How many bytes a record dirties, at most, about.
    fn bytes(&self, record: &Record<'_>) -> u64;

    /// What a record frees of which object, in bytes, if that is [long](Object::is_long).
    fn frees_long(&self, record: &Record<'_>) -> Option<(Object, Range<u64>)>;

    /// The file of a name, if there is one. `None` if more than the file changes when it loses the name, or if that cannot be told.
    fn file_of(&self, dir: u64, name: &[u8]) -> Option<Option<u64>>;

    /// The place of a window has been given back: what had to wait for that is done now.
    fn after_window(&self);

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

/// How far replays are, for who watches: one for many logs that are replayed side by side.
#[derive(Debug, Default)]
pub struct Meter {
    /// Logs that were begun.
    pub logs: Counter,
    /// Of them, those that are done.
    pub logs_done: Counter,
    /// Records of the logs that were begun.
    pub records: Counter,
    /// Of them, those that are done.
    pub records_done: Counter,
    /// Bytes of these records, and of the blocks that they point at.
    pub bytes: Counter,
    /// Of them, those of records that are done.
    pub bytes_done: Counter,
}

/// How a replay went.
#[derive(Debug)]
pub struct Replayed<E> {
    /// Records whose changes were made, or had nothing to do.
    pub records: u64,
    /// Of them, writes that were written again at once.
    pub superseded: u64,
    /// Records that were on disk already.
    pub skipped: u64,
    /// The record that ended the replay, by sequence number and type, and why. What came behind it is lost.
    pub failed: Option<(u64, u64, E)>,
}

/// A record that is due.
pub(crate) struct Due<'a> {
    pub(crate) raw: RawRecord<'a>,
    /// `None` if it cannot be decoded.
    pub(crate) record: Option<Record<'a>>,
    /// What it dirties.
    pub(crate) bytes: u64,
}

impl<'a> Due<'a> {
    pub(crate) fn step(&self) -> Step<'_, 'a> {
        Step { kind: self.raw.header.kind(), record: self.record.as_ref() }
    }

    /// Bytes that it stands for, to whom progress is told.
    fn weight(&self) -> u64 {
        let block = match &self.record {
            Some(Record::Write(write)) if write.data.is_none() => write.blkptr.lsize(),
            _ => 0,
        };
        self.raw.header.reclen.saturating_add(block)
    }
}

/// A place for a piece of what a record frees.
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
    /// Records that are done at a time, at most.
    pub(crate) width: usize,
    /// How long they take.
    pub(crate) pace: Pace,
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
    meter: &Meter,
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

fn width() -> usize {
    // a thread that does everything itself does it in order
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
    /// Waits for a txg, so that numbers that were freed can be used again; meanwhile what the records read is read ahead.
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
            // without it all is only read later
            drop(primed);
            synced
        })
    }

    fn run(&self, due: &[Due<'_>], done: &mut Replayed<R::Error>) -> Result<(), R::Error> {
        let (mut rest, mut most) = (due, usize::MAX);
        while !rest.is_empty() {
            let len = plan::window(rest.iter().map(|due| due.bytes)).min(most);
            let len = match self.free_ahead(rest.get(..len).unwrap_or(rest)) {
                Ok(len) => len,
                Err(error) => {
                    done.failed = rest.first().map(|due| (due.raw.header.seq, due.raw.header.txtype, error));
                    return Ok(());
                }
            };
            let (now, later) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            let place = match self.replayer.window(now.iter().map(|due| due.bytes).sum()) {
                // where little room is left fewer may fit
                Err(_) if len > 1 => {
                    most = len / 2;
                    continue;
                }
                place => place,
            };
            let ran = match place {
                Ok(place) => self.window(&place, now, done)?,
                Err(_) => Ran::Fence(0),
            };
            self.replayer.after_window();
            match ran {
                Ran::All => rest = later,
                Ran::Fence(n) => {
                    let Some((failed, behind)) = rest.get(n..).and_then(<[_]>::split_first) else { break };
                    if let Some(error) = self.again(failed, done)? {
                        done.failed = Some((failed.raw.header.seq, failed.raw.header.txtype, error));
                        return Ok(());
                    }
                    rest = behind;
                }
                Ran::Lost(n, error) => {
                    let header = now.get(n).map(|failed| failed.raw.header);
                    done.failed = header.map(|header| (header.seq, header.txtype, error));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// If the first record of a window frees much, frees most of that. Gives how many of the records the window can have.
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

    /// Does the records of one window, and sets the mark in its txg.
    fn window(
        &self,
        place: &R::Window,
        now: &[Due<'_>],
        done: &mut Replayed<R::Error>,
    ) -> Result<Ran<R::Error>, R::Error> {
        let superseded = if self.width > 1 { superseded(self.objset, now) } else { HashSet::new() };
        let ran = window::run(self, place, now, &superseded);
        let good = match &ran {
            Ran::All => now.len(),
            Ran::Fence(n) | Ran::Lost(n, _) => *n,
        };
        let ends = matches!(ran, Ran::Lost(..));
        let did = now.get(..good).unwrap_or(now);
        if ends || !did.is_empty() {
            self.mark(R::tx(place), did.last().map(|due| due.raw.header.seq), ends)?;
        }
        self.count(did, done);
        done.superseded += superseded.iter().filter(|n| **n < good).count() as u64;
        Ok(ran)
    }

    /// Does a record once more, by itself and behind all that is on disk. The error if it fails.
    fn again(&self, due: &Due<'_>, done: &mut Replayed<R::Error>) -> Result<Option<R::Error>, R::Error> {
        self.replayer.sync()?;
        let place = match self.replayer.window(due.bytes) {
            Ok(place) => place,
            Err(error) => return Ok(Some(error)),
        };
        if let Err(error) = self.one(&place, due, false) {
            return Ok(Some(error));
        }
        self.mark(R::tx(&place), Some(due.raw.header.seq), false)?;
        drop(place);
        self.replayer.after_window();
        self.count(std::slice::from_ref(due), done);
        Ok(None)
    }

    /// Notes, in the txg of `tx`, what is replayed (OpenZFS: `zil_replaying`); and, if the replay `ends` there, that nothing more will be.
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

    /// Does one record.
    pub(crate) fn one(&self, place: &R::Window, due: &Due<'_>, superseded: bool) -> Result<(), R::Error> {
        let header = &due.raw.header;
        let broken = |source| Error::Record { objset: self.objset.id(), seq: header.seq, source };
        let Some(record) = &due.record else {
            // it says why
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
            Record::Write(write) if kind == TxType::Write && write.data.is_none() && !superseded => {
                Some(data_of(self.objset, write)?.into_owned().into())
            }
            _ => None,
        };
        let entry = Entry { kind, record, data, superseded, endian: due.raw.endian, seq: header.seq };
        self.replayer.apply(place, &entry)
    }
}

/// Which records of a window are written again within it.
pub(crate) fn superseded(objset: &Arc<Objset>, window: &[Due<'_>]) -> HashSet<usize> {
    let steps: Vec<Step<'_, '_>> = window.iter().map(Due::step).collect();
    plan::superseded(&steps, |id| {
        let object = objset.object(id).ok()?;
        // the first block of a file grows with it as long as it is the only one
        (object.nblocks() > 1).then(|| object.block_size())
    })
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
