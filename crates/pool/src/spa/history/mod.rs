//! The pool's history (OpenZFS: `spa_history.c`).

mod write;

use base::{Endian, ObjectId};
use dmu::{NewObject, Object, Tx};
use nvlist::{Encoding, NvList};
use ondisk::ObjectType;
use ondisk::history::HistoryPhys;

use crate::spa::mos::Mos;
use crate::{Error, Pool};

/// Larger than any record that OpenZFS writes; a length beyond it is not believed.
const RECORD_MAX: u64 = 64 << 20;

/// One record: what was done, when, by whom.
#[derive(Clone, Debug)]
pub struct HistoryRecord {
    /// Its position, as a logical offset that grows without end.
    pub offset: u64,
    /// Bytes of the packed record.
    pub length: u64,
    /// The record as it is stored; its keys are those of OpenZFS (`history time`, `history command`, …).
    pub list: NvList,
}

impl HistoryRecord {
    /// When, in seconds since 1970.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.list.get_u64("history time")
    }

    /// The command line, if a command is recorded.
    #[must_use]
    pub fn command(&self) -> Option<&str> {
        self.list.get_str("history command")
    }

    /// The txg, if a change in the pool is recorded.
    #[must_use]
    pub fn txg(&self) -> Option<u64> {
        self.list.get_u64("history txg")
    }
}

impl Pool {
    /// All records, oldest first. The first one, the pool's creation, is never lost.
    ///
    /// # Errors
    /// When the history cannot be read, or its offsets make no sense.
    pub fn history(&self) -> Result<Vec<HistoryRecord>, Error> {
        let Some(id) = self.mos.id_of("history")?.filter(|id| id.is_some()) else { return Ok(Vec::new()) };
        Ok(read(&self.mos, id)?.0)
    }

    /// How many records were overwritten.
    ///
    /// # Errors
    /// When the history cannot be read.
    pub fn history_records_lost(&self) -> Result<u64, Error> {
        let Some(id) = self.mos.id_of("history")?.filter(|id| id.is_some()) else { return Ok(0) };
        Ok(Mos::bonus(&self.mos.object(id)?, HistoryPhys::decode_mended)?.records_lost)
    }
}

/// All records of the history in object `id`, oldest first, and how many were overwritten.
pub(crate) fn read(mos: &Mos, id: ObjectId) -> Result<(Vec<HistoryRecord>, u64), Error> {
    let object = mos.object(id)?;
    let phys = Mos::bonus(&object, HistoryPhys::decode_mended)?;
    let length = phys.pool_create_len.saturating_add(phys.eof - phys.bof);
    if length > object.most_bytes().min(SIZE_MAX) {
        return Err(Error::corrupt(id, format!("history claims {length} bytes")));
    }
    let read = |at: u64, len: u64| -> Result<Vec<u8>, Error> {
        // up to the end of the ring, and on behind the first record
        let start = phys.log_to_phys(at);
        let first = len.min(phys.phys_max_off.saturating_sub(start));
        let mut bytes = object.read_vec(start, first as usize)?;
        bytes.extend(object.read_vec(phys.pool_create_len, (len - first) as usize)?);
        Ok(bytes)
    };
    let mut records = Vec::new();
    // the record of the creation, then the ring
    let mut at = 0;
    while at < phys.pool_create_len {
        at = next_record(id, at, phys.pool_create_len, &read, &mut records)?;
    }
    at = phys.bof;
    while at < phys.eof {
        at = next_record(id, at, phys.eof, &read, &mut records)?;
    }
    Ok((records, phys.records_lost))
}

/// The name of the history in the MOS directory.
pub(crate) const HISTORY: &str = "history";
/// Blocks of the history (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`).
const BLOCK: u64 = 128 << 10;
/// The history has a thousandth of the pool, within these bounds.
const SIZE_MIN: u64 = 128 << 10;
const SIZE_MAX: u64 = 1 << 30;

/// Makes the history of a pool (OpenZFS: `spa_history_create_obj`).
pub(crate) fn create(mos: &Mos, tx: &Tx) -> Result<ObjectId, Error> {
    let tree = mos.objset.zio().tree();
    let tops = tree.tops().iter().filter(|top| top.is_concrete() && !top.config().is_log);
    let space = tops.fold(0u64, |sum, top| sum.saturating_add(top.deflated(top.config().asize)));
    let phys = HistoryPhys { phys_max_off: (space / 1000).clamp(SIZE_MIN, SIZE_MAX), ..HistoryPhys::default() };
    let new = NewObject {
        object_type: ObjectType::SPA_HISTORY,
        block_size: BLOCK,
        bonus_type: ObjectType::SPA_HISTORY_OFFSETS,
        bonus_len: HistoryPhys::SIZE,
        ..NewObject::default()
    };
    let object = mos.objset.alloc_object(tx, &new)?;
    object.set_bonus(tx, &phys.encode(Endian::Little))?;
    mos.directory.add_id(tx, HISTORY, object.id())?;
    Ok(object.id())
}

/// Adds a record; the oldest go if there is no room (OpenZFS: `spa_history_log_sync`). The first record of a command, the pool's
/// creation, is kept for ever with all before it: unless records were lost before it, or it would leave the ring little room, for then it is
/// no creation (ztest's pools have no commands). OpenZFS looks at neither, and then has a ring of no length. Host name, time and user are for the
/// caller to put into the list.
pub(crate) fn append(mos: &Mos, tx: &Tx, list: &NvList) -> Result<(), Error> {
    let id = match mos.id_of(HISTORY)?.filter(|id| id.is_some()) {
        Some(id) => id,
        None => create(mos, tx)?,
    };
    let object = mos.object(id)?;
    let mut phys = Mos::bonus(&object, HistoryPhys::decode_mended)?;
    let packed = list.pack(Encoding::Native, Endian::Little);
    let packed = packed.map_err(|source| Error::Nvlist { what: "history record", source })?;
    let mut record = (packed.len() as u64).to_le_bytes().to_vec();
    record.extend_from_slice(&packed);
    if !make_room(&object, &mut phys, record.len() as u64)? {
        return Ok(()); // larger than the ring
    }
    let start = phys.log_to_phys(phys.eof);
    let first = (record.len() as u64).min(phys.phys_max_off.saturating_sub(start)) as usize;
    let (front, back) = record.split_at(first);
    object.write(tx, start, front)?;
    if !back.is_empty() {
        object.write(tx, phys.pool_create_len, back)?;
    }
    phys.eof += record.len() as u64;
    let from_the_start = phys.bof == 0 && phys.records_lost == 0 && phys.eof <= phys.phys_max_off / 2;
    if phys.pool_create_len == 0 && from_the_start && list.get_str("history command").is_some() {
        (phys.pool_create_len, phys.bof) = (phys.eof, phys.eof);
    }
    Ok(object.set_bonus(tx, &phys.encode(Endian::Little))?)
}

/// Drops the oldest records until there is room for `len` bytes; `false` if there never is.
fn make_room(object: &Object, phys: &mut HistoryPhys, len: u64) -> Result<bool, Error> {
    let ring = phys.phys_max_off.saturating_sub(phys.pool_create_len);
    if ring <= len {
        return Ok(false);
    }
    while ring.saturating_sub(phys.eof.saturating_sub(phys.bof)) <= len {
        if phys.bof == phys.eof {
            return Ok(false);
        }
        let start = phys.log_to_phys(phys.bof);
        let first = 8.min(phys.phys_max_off.saturating_sub(start)) as usize;
        let mut head = object.read_vec(start, first)?;
        head.extend(object.read_vec(phys.pool_create_len, 8 - first)?);
        let length = base::bytes::u64(&head, 0, Endian::Little).unwrap_or(0).saturating_add(8);
        let next = phys.bof.checked_add(length).filter(|next| *next <= phys.eof);
        // lengths that lead nowhere: what there is, is lost
        phys.bof = next.unwrap_or(phys.eof);
        phys.records_lost += 1;
    }
    Ok(true)
}

/// Reads the record at logical offset `at` and gives where the next one begins.
fn next_record(
    id: ObjectId,
    at: u64,
    end: u64,
    read: &dyn Fn(u64, u64) -> Result<Vec<u8>, Error>,
    records: &mut Vec<HistoryRecord>,
) -> Result<u64, Error> {
    let broken = |what: &str| Error::corrupt(id, format!("history record at {at}: {what}"));
    let head = read(at, 8)?;
    let length = base::bytes::u64(&head, 0, Endian::Little).ok_or_else(|| broken("no length"))?;
    let next = at.checked_add(8).and_then(|n| n.checked_add(length)).filter(|next| *next <= end);
    let next = next.filter(|_| length != 0 && length <= RECORD_MAX).ok_or_else(|| broken("impossible length"))?;
    let bytes = read(at + 8, length)?;
    let list = NvList::unpack(&bytes).map_err(|source| Error::Nvlist { what: "pool history", source })?;
    records.push(HistoryRecord { offset: at, length, list });
    Ok(next)
}
