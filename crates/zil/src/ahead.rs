//! The reads of a window, before its first change: a record whose blocks cannot be read must not fail when records behind it are applied.
//!
//! Read are the dnodes of files, their blocks that are changed in part, and the blocks that indirect writes point at; the latter are kept
//! for the window. A record of names needs none of this: nothing behind it is applied before it is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::pump;
use dmu::Objset;
use ondisk::zil::{Record, TxType, Write};

use crate::replay::{self, Due, Replay, Replayer, object_of};
use crate::{Error, data_of};

/// What was read for the records of a window.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Number of records that can be applied together.
    records: usize,
    /// Writes that are overwritten within the window: only the file's size and times are set.
    superseded: HashSet<usize>,
    /// The blocks that indirect writes point at, by record.
    data: HashMap<usize, Vec<u8>>,
}

impl Ahead {
    /// Reads what the records `now` need, as far as it is answered.
    pub(crate) fn of<R: Replayer>(replay: &Replay<'_, R>, now: &[Due<'_>]) -> Ahead {
        if replay.width < 2 {
            // one after the other, they can fail at any one
            return Ahead { records: now.len(), ..Ahead::default() };
        }
        let mut ahead = Ahead { records: now.len(), ..Ahead::default() };
        loop {
            let window = now.get(..ahead.records).unwrap_or(now);
            ahead.superseded = replay::superseded(replay.objset, window);
            match ahead.read(replay.objset, window) {
                // fewer are superseded in a shorter window
                Some(unanswered) if unanswered > 0 => ahead.records = unanswered,
                Some(_) => return Ahead { records: 1, ..Ahead::default() },
                None => return ahead,
            }
        }
    }

    /// Number of records that can be applied together; at least one, if there are any.
    pub(crate) fn records(&self) -> usize {
        self.records
    }

    /// True if a write is overwritten within the window.
    pub(crate) fn is_superseded(&self, n: usize) -> bool {
        self.superseded.contains(&n)
    }

    /// Number of superseded writes among the first `good` records.
    pub(crate) fn superseded(&self, good: usize) -> u64 {
        self.superseded.iter().filter(|n| **n < good).count() as u64
    }

    /// The block that record `n` points at.
    pub(crate) fn data(&self, n: usize) -> Option<&[u8]> {
        self.data.get(&n).map(Vec::as_slice)
    }

    /// Reads for the records of `window`. Returns the first one for which devices do not answer.
    fn read(&mut self, objset: &Arc<Objset>, window: &[Due<'_>]) -> Option<usize> {
        let known = std::mem::take(&mut self.data);
        let wanted = |(n, due): (usize, &Due<'_>)| due.step().lane().is_some() && !known.contains_key(&n);
        let items: Vec<usize> =
            window.iter().enumerate().filter(|(n, due)| wanted((*n, due))).map(|(n, _)| n).collect();
        let read = pump::all(items, |n| {
            let found = window.get(*n).map(|due| read_for(objset, due, self.superseded.contains(n)));
            (*n, found.unwrap_or(Ok(None)))
        });
        self.data = known;
        let mut unanswered = None;
        for (n, found) in read {
            match found {
                Ok(data) => self.data.extend(data.map(|data| (n, data))),
                // the record fails with any other error when it is applied
                Err(error) if error.is_unanswered() => unanswered = unanswered.or(Some(n)),
                Err(_) => {}
            }
        }
        unanswered
    }
}

/// Reads what a record of a file needs. Returns the block that an indirect write points at.
fn read_for(objset: &Arc<Objset>, due: &Due<'_>, superseded: bool) -> Result<Option<Vec<u8>>, Error> {
    let Some(record) = &due.record else { return Ok(None) };
    let data = match record {
        Record::Write(write) if is_indirect(due, write) && !superseded => Some(data_of(objset, write)?.into_owned()),
        _ => None,
    };
    let object = match object_of(record).map(|id| objset.object(id)) {
        // a record before it may make the object
        None | Some(Err(dmu::Error::NoObject { .. })) => return Ok(data),
        Some(object) => object?,
    };
    let changed = match record {
        Record::Write(_) if superseded => None,
        Record::Write(write) => Some((write.offset, write.length)),
        Record::Truncate { offset, length, .. } => Some((*offset, *length)),
        Record::SetAttr(set) => Some((set.size, 0)),
        _ => None,
    };
    let size = object.block_size().max(1);
    if let Some((offset, len)) = changed {
        for at in [offset, offset.saturating_add(len)] {
            if at % size != 0 && at / size < object.nblocks() {
                object.fetch(at / size)?;
            }
        }
    }
    // attributes
    object.spill()?;
    Ok(data)
}

fn is_indirect(due: &Due<'_>, write: &Write<'_>) -> bool {
    due.raw.header.kind() == Some(TxType::Write) && write.data.is_none()
}
