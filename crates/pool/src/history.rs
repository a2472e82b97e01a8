//! The pool's history (OpenZFS: `spa_history.c`).

use base::Endian;
use nvlist::NvList;
use ondisk::history::HistoryPhys;

use crate::mos::Mos;
use crate::{Error, Pool};

/// Larger than any record that OpenZFS writes; a length beyond it is not believed.
const RECORD_MAX: u64 = 64 << 20;

/// One record: what was done, when, by whom.
#[derive(Clone, Debug)]
pub struct HistoryRecord {
    /// Where it stands, as a logical offset that grows without end.
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
        let Some(id) = self.mos.number("history")?.filter(|id| *id != 0) else { return Ok(Vec::new()) };
        let object = self.mos.object(id)?;
        let phys = Mos::bonus(&object, HistoryPhys::decode)?;
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
        Ok(records)
    }

    /// How many records were overwritten.
    ///
    /// # Errors
    /// When the history cannot be read.
    pub fn history_records_lost(&self) -> Result<u64, Error> {
        let Some(id) = self.mos.number("history")?.filter(|id| *id != 0) else { return Ok(0) };
        Ok(Mos::bonus(&self.mos.object(id)?, HistoryPhys::decode)?.records_lost)
    }
}

/// Reads the record at logical offset `at` and gives where the next one begins.
fn next_record(
    id: u64,
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
