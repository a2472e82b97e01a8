//! What of a log can be replayed side by side, and what has to wait for what.
//!
//! # Lanes and fences
//! A record that names nothing but an object (a write, a truncation, attributes, an ACL) goes into the *lane* of its object. Records of a lane
//! are done in their order, lanes side by side. A record of names (create, remove, link, rename) is a *fence*: it is done by itself, in
//! order with all other fences, as soon as the lanes of the objects that it joins are empty ([`Joins`]): its directories, the file that it names,
//! the file that it takes a name from. Lanes of other objects run on meanwhile.
//!
//! A fence can fail for a good reason: its name is taken, the number of its object is that of one freed a moment ago. A replay ends, or waits,
//! where a record fails, so nothing behind a fence begins before the fence is done. A record of a lane fails only with its devices.
//!
//! # Windows
//! A log is replayed in windows, stretches of records that share one place in a txg ([`windows`]). See [`replay`](crate::replay) for why.
//!
//! # What is written again
//! Within a window and between two fences, a write whose every block is written as a whole by a later one need not be done at all but for its
//! file's size and times ([`superseded`]): nothing reads the blocks in between, both are in one txg, and what is written as a whole needs no
//! read. That holds for blocks whose size is settled, those of a file of two blocks or more.
//!
//! OpenZFS has none of this: `zil_replay` does one record after the other, each with a transaction of its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use base::tunable;
use ondisk::zil::{Record, TxType};

use crate::replay::object_of;

/// The most records of a window.
const WINDOW_RECORDS: usize = 1024;
/// The bytes that the records of a window may dirty at least, by their own account, which knows nothing of what two of them have in common; one
/// record alone may dirty more.
const WINDOW_BYTES_MIN: u64 = 32 << 20;
/// The most later writes that one is held against.
const LATER_MAX: usize = 64;

/// What the plan has to know of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'r, 'a> {
    pub(crate) kind: Option<TxType>,
    /// `None` if it is not to be understood: a fence, and it fails.
    pub(crate) record: Option<&'r Record<'a>>,
}

impl Step<'_, '_> {
    /// The object in whose lane it goes; `None` of a fence.
    pub(crate) fn lane(&self) -> Option<u64> {
        let record = self.record.filter(|_| self.kind.is_some_and(TxType::is_out_of_order))?;
        object_of(record)
    }
}

/// The objects whose lanes must be empty before a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Joins {
    /// These.
    Objects(HashSet<u64>),
    /// All.
    All,
}

impl Joins {
    /// What `record`, a fence, joins. `named` tells the file of a name, and `None` if it cannot be told what goes with it.
    pub(crate) fn of(record: &Record<'_>, mut named: impl FnMut(u64, &[u8]) -> Option<Option<u64>>) -> Joins {
        let mut objects = HashSet::new();
        let mut names: Vec<(u64, &[u8])> = Vec::new();
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

/// The lanes of a window: records that wait, by their numbers, and objects of which some are under way.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    waiting: HashMap<u64, Vec<usize>>,
    /// Objects with a record that can begin.
    ready: VecDeque<u64>,
    busy: HashSet<u64>,
}

impl Lanes {
    /// Puts record `n` at the end of the lane of `object`.
    pub(crate) fn push(&mut self, object: u64, n: usize) {
        let lane = self.waiting.entry(object).or_default();
        lane.push(n);
        if lane.len() == 1 && !self.busy.contains(&object) {
            self.ready.push_back(object);
        }
    }

    /// Objects with a record that can begin.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The records of a lane that can begin, and its object.
    pub(crate) fn take(&mut self) -> Option<(u64, Vec<usize>)> {
        let object = self.ready.pop_front()?;
        let lane = self.waiting.remove(&object)?;
        self.busy.insert(object);
        Some((object, lane))
    }

    /// The records of `object` that were under way are done.
    pub(crate) fn done(&mut self, object: u64) {
        self.busy.remove(&object);
        if self.waiting.contains_key(&object) {
            self.ready.push_back(object);
        }
    }

    /// A record of `object` that was under way failed: what waits behind it is not done.
    pub(crate) fn failed(&mut self, object: u64) {
        self.busy.remove(&object);
        self.waiting.remove(&object);
    }

    /// Whether nothing of what is joined waits or is under way.
    pub(crate) fn is_clear(&self, joins: &Joins) -> bool {
        match joins {
            Joins::All => self.waiting.is_empty() && self.busy.is_empty(),
            Joins::Objects(objects) => {
                !objects.iter().any(|object| self.waiting.contains_key(object) || self.busy.contains(object))
            }
        }
    }
}

/// How many records the first window has, by the bytes that each may dirty.
pub(crate) fn window(bytes: impl Iterator<Item = u64>) -> usize {
    let mut sum = 0u64;
    // what is dirty in one window counts as that of any other transaction
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

/// Which records of a window are writes all of whose bytes are written again. `block` tells the size of an object's blocks if that is settled.
pub(crate) fn superseded(steps: &[Step<'_, '_>], block: impl Fn(u64) -> Option<u64>) -> HashSet<usize> {
    // sizes are asked for only where it matters: that may be a read
    let candidates = covered(steps, &|_| Some(1));
    let objects: HashSet<u64> = candidates.iter().filter_map(|n| steps.get(*n)?.lane()).collect();
    let sizes: HashMap<u64, u64> = objects.into_iter().filter_map(|id| Some((id, block(id)?))).collect();
    if sizes.is_empty() {
        return HashSet::new();
    }
    covered(steps, &|object| sizes.get(&object).copied())
}

/// Writes all of whose bytes are within one later write of whole blocks. `block` tells how large these are; nothing of objects that do not count.
fn covered(steps: &[Step<'_, '_>], block: &dyn Fn(u64) -> Option<u64>) -> HashSet<usize> {
    let mut found = HashSet::new();
    // later writes up to the next fence, by object
    let mut later: HashMap<u64, Vec<Range<u64>>> = HashMap::new();
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
        } else if writes.len() < LATER_MAX && is_whole(&bytes, size) {
            writes.push(bytes);
        }
    }
    found
}

fn is_whole(bytes: &Range<u64>, size: u64) -> bool {
    bytes.start.checked_rem(size) == Some(0) && bytes.end.checked_rem(size) == Some(0) && bytes.start < bytes.end
}

/// The bytes of a file that a WRITE changes; `None` of other records.
fn bytes_of(step: &Step<'_, '_>) -> Option<Range<u64>> {
    let Some(Record::Write(write)) = step.record.filter(|_| step.kind == Some(TxType::Write)) else { return None };
    let size = write.blkptr.lsize();
    let (start, len) = match write.data {
        Some(data) => (write.offset, data.len() as u64),
        // a part of a block comes with the whole of it
        None if write.length < size => (write.offset - write.offset.checked_rem(size)?, size),
        None => (write.offset, write.length.min(size)),
    };
    Some(start..start.checked_add(len)?)
}

#[cfg(test)]
mod tests;
