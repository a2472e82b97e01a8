//! The replay order: which records of a log can be applied in parallel, and which must wait for others.
//!
//! # Lanes and fences
//! A record that names nothing but an object (a write, a truncation, attributes, an ACL) goes into the *lane* of its object. The
//! records of a lane are applied in order, different lanes in parallel. A record of names (create, remove, link, rename) is a
//! *fence*: it is applied by itself, in order with all other fences, as soon as the lanes of the objects that it joins are empty
//! ([`Joins`]): its directories, the file that it names, the file that it takes a name from. Lanes of other objects run on
//! meanwhile.
//!
//! A fence can fail for a valid reason: its name is taken, or the number of its object is that of one freed a moment ago. A
//! replay ends, or waits, where a record fails, so nothing after a fence starts before the fence is finished. A record of a lane
//! fails only if its devices fail.
//!
//! # Windows
//! A log is replayed in windows: runs of records that share one transaction ([`windows`]). See [`replay`](crate::replay) for the
//! reason.
//!
//! # Superseded writes
//! Within a window and between two fences, a write whose every block is overwritten as a whole by a later write only needs to set
//! its file's size and times ([`superseded`]): nothing reads the blocks in between, both writes are in one txg, and a whole-block
//! write needs no read. This holds only for objects whose block size is settled, that is, files of two blocks or more.
//!
//! OpenZFS has none of this: `zil_replay` applies one record after the other, each with a transaction of its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use base::{ObjectId, tunable};
use ondisk::zil::{Record, TxType};

use crate::replay::object_of;

/// The maximum number of records in a window.
const WINDOW_RECORDS: usize = 1024;
/// The lower bound of the bytes that the records of a window may dirty, summed over the records without regard to what two of
/// them share. A single record may dirty more.
const WINDOW_BYTES_MIN: u64 = 32 << 20;
/// The maximum number of later writes that a write is compared with.
const LATER_MAX: usize = 64;

/// The facts about a record that the plan needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'r, 'a> {
    pub(crate) kind: Option<TxType>,
    /// `None` if it cannot be decoded: it is treated as a fence, which fails.
    pub(crate) record: Option<&'r Record<'a>>,
}

impl Step<'_, '_> {
    /// The object whose lane it belongs to; `None` for a fence.
    pub(crate) fn lane(&self) -> Option<ObjectId> {
        let record = self.record.filter(|_| self.kind.is_some_and(TxType::is_out_of_order))?;
        object_of(record)
    }
}

/// The objects whose lanes must be empty before a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Joins {
    /// The lanes of these objects.
    Objects(HashSet<ObjectId>),
    /// All lanes.
    All,
}

impl Joins {
    /// Returns the objects that the fence `record` joins. `named` looks up the file of a name; it returns `None` if the affected
    /// objects cannot be determined.
    pub(crate) fn of(record: &Record<'_>, mut named: impl FnMut(ObjectId, &[u8]) -> Option<Option<ObjectId>>) -> Joins {
        let mut objects = HashSet::new();
        let mut names: Vec<(ObjectId, &[u8])> = Vec::new();
        match record {
            Record::Create(new) => objects.extend([new.doid, new.foid]),
            Record::Link { doid, link_obj, .. } => objects.extend([*doid, *link_obj]),
            Record::Remove { doid, name } => names.push((*doid, name)),
            Record::Rename(rename) => {
                objects.extend(rename.whiteout.map(|new| new.foid));
                names.extend([(rename.sdoid, rename.src), (rename.tdoid, rename.dst)]);
            }
            Record::Commit => {}
            _ => return Joins::All,
        }
        for (dir, name) in names {
            let Some(file) = named(dir, name) else { return Joins::All };
            objects.insert(dir);
            objects.extend(file);
        }
        Joins::Objects(objects)
    }
}

/// The lanes of a window: waiting records by their index, and the objects whose records are being applied.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    waiting: HashMap<ObjectId, Vec<usize>>,
    /// Objects with a record that can start.
    ready: VecDeque<ObjectId>,
    busy: HashSet<ObjectId>,
}

impl Lanes {
    /// Puts record `n` at the end of the lane of `object`.
    pub(crate) fn push(&mut self, object: ObjectId, n: usize) {
        let lane = self.waiting.entry(object).or_default();
        lane.push(n);
        if lane.len() == 1 && !self.busy.contains(&object) {
            self.ready.push_back(object);
        }
    }

    /// Number of objects with a record that can start.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes a lane that can start: its object and its records.
    pub(crate) fn take(&mut self) -> Option<(ObjectId, Vec<usize>)> {
        let object = self.ready.pop_front()?;
        let lane = self.waiting.remove(&object)?;
        self.busy.insert(object);
        Some((object, lane))
    }

    /// Notes that the records of `object` that were being applied are finished.
    pub(crate) fn done(&mut self, object: ObjectId) {
        self.busy.remove(&object);
        if self.waiting.contains_key(&object) {
            self.ready.push_back(object);
        }
    }

    /// Notes that a record of `object` failed: the records that wait in its lane are not applied.
    pub(crate) fn failed(&mut self, object: ObjectId) {
        self.busy.remove(&object);
        self.waiting.remove(&object);
    }

    /// True if no record of the joined lanes is waiting or being applied.
    pub(crate) fn is_clear(&self, joins: &Joins) -> bool {
        match joins {
            Joins::All => self.waiting.is_empty() && self.busy.is_empty(),
            Joins::Objects(objects) => {
                !objects.iter().any(|object| self.waiting.contains_key(object) || self.busy.contains(object))
            }
        }
    }
}

/// Returns the number of records in the first window, given the bytes that each record may dirty.
pub(crate) fn window(bytes: impl Iterator<Item = u64>) -> usize {
    let mut sum = 0u64;
    // the dirty data of a window counts like that of any other transaction
    let most = (tunable::ZFS_DIRTY_DATA_MAX.get() / 4).max(WINDOW_BYTES_MIN);
    let fits = |(n, bytes): &(usize, u64)| {
        sum = sum.saturating_add(*bytes);
        *n == 0 || (*n < WINDOW_RECORDS && sum <= most)
    };
    bytes.enumerate().take_while(fits).count()
}

/// Cuts records into windows.
pub(crate) fn windows(bytes: &[u64]) -> Vec<Range<usize>> {
    let (mut all, mut start) = (Vec::new(), 0);
    while let Some(rest) = bytes.get(start..).filter(|rest| !rest.is_empty()) {
        let end = start + window(rest.iter().copied());
        all.push(start..end);
        start = end;
    }
    all
}

/// Returns the records of a window that are writes all of whose bytes are written again. `block` returns the block size of an
/// object if that is settled.
pub(crate) fn superseded(steps: &[Step<'_, '_>], block: impl Fn(ObjectId) -> Option<u64>) -> HashSet<usize> {
    // block sizes are looked up only where it matters, since that may need a read
    let candidates = covered(steps, &|_| Some(1));
    let objects: HashSet<ObjectId> = candidates.iter().filter_map(|n| steps.get(*n)?.lane()).collect();
    let sizes: HashMap<ObjectId, u64> = objects.into_iter().filter_map(|id| Some((id, block(id)?))).collect();
    if sizes.is_empty() {
        return HashSet::new();
    }
    covered(steps, &|object| sizes.get(&object).copied())
}

/// Returns the writes all of whose bytes are within one later write of whole blocks, with no write between them that can fail. `block` returns the
/// block size; objects for which it returns `None` are skipped.
fn covered(steps: &[Step<'_, '_>], block: &dyn Fn(ObjectId) -> Option<u64>) -> HashSet<usize> {
    let mut found = HashSet::new();
    // later writes up to the next fence, by object
    let mut later: HashMap<ObjectId, Vec<Range<u64>>> = HashMap::new();
    for (n, step) in steps.iter().enumerate().rev() {
        let Some(object) = step.lane() else {
            later.clear();
            continue;
        };
        let Some(size) = block(object) else { continue };
        let Some(bytes) = bytes_of(step) else {
            later.remove(&object);
            continue;
        };
        let writes = later.entry(object).or_default();
        if writes.iter().any(|write| write.start <= bytes.start && bytes.end <= write.end) {
            found.insert(n);
        } else if !is_whole(&bytes, size) || !has_data(step) {
            // it reads a block, which may fail: then no later write is applied
            later.remove(&object);
        } else if writes.len() < LATER_MAX {
            writes.push(bytes);
        }
    }
    found
}

/// Returns whether the bytes of a WRITE are in its record.
fn has_data(step: &Step<'_, '_>) -> bool {
    matches!(step.record, Some(Record::Write(write)) if write.data.is_some())
}

fn is_whole(bytes: &Range<u64>, size: u64) -> bool {
    bytes.start.checked_rem(size) == Some(0) && bytes.end.checked_rem(size) == Some(0) && bytes.start < bytes.end
}

/// Returns the range of a file that a WRITE changes; `None` for other records.
fn bytes_of(step: &Step<'_, '_>) -> Option<Range<u64>> {
    let Some(Record::Write(write)) = step.record.filter(|_| step.kind == Some(TxType::Write)) else { return None };
    let size = write.blkptr.lsize();
    let (start, len) = match write.data {
        Some(data) => (write.offset, data.len() as u64),
        // an indirect write of part of a block logs the whole block
        None if write.length < size => (write.offset - write.offset.checked_rem(size)?, size),
        None => (write.offset, write.length.min(size)),
    };
    Some(start..start.checked_add(len)?)
}

#[cfg(test)]
mod tests;
