//! The objects that differ between a snapshot and a later one, or the head (OpenZFS: `dmu_diff.c`).
//!
//! The dnode tree of the later one is walked, and whatever was born before the earlier one is skipped. A block of dnodes that is left names the objects that may have
//! changed; a hole names those that were freed. So the work is in proportion to what has changed. The records go to a file of the caller, each as three
//! numbers of 64 bits in the order of the machine, as OpenZFS's `dmu_diff_record_t`: the kind, and the first and the last object.

use std::io::Write;
use std::sync::PoisonError;

use base::{Endian, ObjectId};
use dmu::{Object, Special, Visit, Walk};
use nvlist::NvList;
use ondisk::{DNODE_SHIFT, DNODE_SIZE, DnodePhys, ObjectType};
use pool::{Dataset, Error as PoolError, check_entity_name};

use crate::decode::require_str;
use crate::{Error, Failed, ReadOnlyControl};

/// Bytes of a record.
const RECORD_SIZE: usize = 24;
/// Bytes of records that are written at once.
const BATCH: usize = RECORD_SIZE << 10;

/// Objects with consecutive numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiffRecord {
    /// Whether they exist in the later snapshot, and may have been changed; else none of them does.
    pub in_use: bool,
    /// The first.
    pub first: ObjectId,
    /// The last.
    pub last: ObjectId,
}

impl DiffRecord {
    /// Its size in bytes.
    pub const SIZE: usize = RECORD_SIZE;
    /// OpenZFS: `diff_type_t`.
    const IN_USE: u64 = 2;
    const FREE: u64 = 4;

    fn encode(self) -> [u8; RECORD_SIZE] {
        let words = [if self.in_use { Self::IN_USE } else { Self::FREE }, self.first.0, self.last.0];
        let mut bytes = [0; RECORD_SIZE];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(at, word)| at.copy_from_slice(&word.to_ne_bytes()));
        bytes
    }

    /// Reads it back; `None` if the bytes are none.
    #[must_use]
    pub fn decode(bytes: &[u8; RECORD_SIZE]) -> Option<DiffRecord> {
        let (words, _) = bytes.as_chunks::<8>();
        let [kind, first, last] = *words else { return None };
        let in_use = match u64::from_ne_bytes(kind) {
            Self::IN_USE => true,
            Self::FREE => false,
            _ => return None,
        };
        let id = |word| ObjectId(u64::from_ne_bytes(word));
        Some(DiffRecord { in_use, first: id(first), last: id(last) })
    }
}

impl ReadOnlyControl {
    pub(crate) fn diff(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let from = require_str(input, "fromsnap")?;
        let number = input.get_i32("fd").unwrap_or(-1);
        if !from.contains('@') {
            return Err(Error::Invalid(format!("'{from}' is not a snapshot")).into());
        }
        check_entity_name(from)?;
        self.check_pool(from)?;
        let (output, _) = self.files.out(number).ok_or(Error::BadFile(number))?;
        let (from, to) = (self.view.dataset(from)?, self.view.dataset(name)?);
        if !to.is_later_than(&from)? {
            return Err(PoolError::NotEarlier { from: from.name().to_owned(), to: name.to_owned() }.into());
        }
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records = Records { output: &mut **output, open: None, batch: Vec::with_capacity(BATCH) };
        let walked = walk(&from, &to, &mut records);
        // what was found before a failure is told
        let ended = records.finish();
        walked?;
        ended?;
        Ok(NvList::new())
    }
}

fn walk(from: &Dataset, to: &Dataset, records: &mut Records<'_>) -> Result<(), Failed> {
    let since = from.phys().creation_txg;
    let objset = to.objset()?;
    let Some(meta) = objset.special(Special::MetaDnode) else { return Ok(()) };
    let mut done = Ok(());
    let tree = meta.clone();
    meta.walk(&mut |visit: &Visit<'_>| {
        if let Some(e) = visit.damage {
            done = Err(Error::Damaged(e.to_string()).into());
            return Walk::Stop;
        }
        let born = visit.bp.birth_logical();
        if born.0 != 0 && born <= since {
            return Walk::Skip;
        }
        self::visit(visit, to.id(), &tree, records).unwrap_or_else(|e| {
            done = Err(e);
            Walk::Stop
        })
    });
    done
}

/// Notes the objects of a block of dnodes, or of a hole.
fn visit(visit: &Visit<'_>, objset: ObjectId, meta: &Object, records: &mut Records<'_>) -> Result<Walk, Failed> {
    if visit.bp.is_hole() {
        let dn = visit.dnode;
        let shift = u32::from(visit.level) * u32::from(dn.indblkshift).saturating_sub(7);
        let bytes = (u128::from(dn.datablkszsec) << 9) << shift.min(64);
        let span = u64::try_from(bytes >> DNODE_SHIFT).unwrap_or(u64::MAX);
        let first = ObjectId(visit.bookmark.blkid.saturating_mul(span));
        records.note(DiffRecord { in_use: false, first, last: first.saturating_add(span.saturating_sub(1)) })?;
        return Ok(Walk::Skip);
    }
    if visit.level > 0 {
        return Ok(Walk::Into);
    }
    let read = meta.block_with_endian(visit.bookmark.blkid).map_err(PoolError::from)?;
    let Some((block, endian)) = read else { return Ok(Walk::Skip) };
    note_block(&block, endian, (objset, visit.bookmark.blkid), records)?;
    Ok(Walk::Skip)
}

fn note_block(
    block: &[u8],
    endian: Endian,
    (objset, blkid): (ObjectId, u64),
    records: &mut Records<'_>,
) -> Result<(), Failed> {
    let slots = (block.len() / DNODE_SIZE) as u64;
    let base = ObjectId(blkid.saturating_mul(slots));
    let mut slot = 0;
    while slot < slots {
        let at = block.get(slot as usize * DNODE_SIZE..).unwrap_or(&[]);
        let object = base.saturating_add(slot);
        let dn = DnodePhys::decode(at, endian)
            .map_err(|source| PoolError::from(dmu::Error::Format { objset, object, source }))?;
        records.note(DiffRecord { in_use: dn.object_type != ObjectType::NONE, first: object, last: object })?;
        slot += 1 + u64::from(dn.extra_slots);
    }
    Ok(())
}

/// The records of one request: those that follow on each other become one.
struct Records<'a> {
    output: &'a mut (dyn Write + Send),
    open: Option<DiffRecord>,
    batch: Vec<u8>,
}

impl Records<'_> {
    fn note(&mut self, next: DiffRecord) -> Result<(), Failed> {
        match &mut self.open {
            Some(open) if open.in_use == next.in_use && open.last.checked_add(1) == Some(next.first) => {
                open.last = next.last;
                Ok(())
            }
            open => {
                let before = open.replace(next);
                self.batch.extend(before.map(DiffRecord::encode).into_iter().flatten());
                if self.batch.len() < BATCH { Ok(()) } else { self.write() }
            }
        }
    }

    fn write(&mut self) -> Result<(), Failed> {
        let written = self.output.write_all(&self.batch);
        self.batch.clear();
        written.map_err(|e| Error::Output(e).into())
    }

    fn finish(mut self) -> Result<(), Failed> {
        self.batch.extend(self.open.take().map(DiffRecord::encode).into_iter().flatten());
        self.write()?;
        self.output.flush().map_err(|e| Error::Output(e).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_follow_on_each_other_are_one_record() {
        let mut output = Vec::new();
        let mut records = Records { output: &mut output, open: None, batch: Vec::new() };
        let spans = [(true, 1, 1), (true, 2, 2), (false, 3, 31), (false, 32, 63), (true, 64, 64), (true, 66, 66)];
        for (in_use, first, last) in spans {
            records.note(DiffRecord { in_use, first: ObjectId(first), last: ObjectId(last) }).unwrap();
        }
        records.finish().unwrap();
        let (all, rest) = output.as_chunks::<RECORD_SIZE>();
        assert!(rest.is_empty());
        let read = all.iter().map(|bytes| DiffRecord::decode(bytes).map(|r| (r.in_use, r.first.0, r.last.0)));
        let read: Vec<_> = read.map(Option::unwrap).collect();
        assert_eq!(read, [(true, 1, 2), (false, 3, 63), (true, 64, 64), (true, 66, 66)]);
        assert_eq!(DiffRecord::decode(&[0; RECORD_SIZE]), None);
    }
}
