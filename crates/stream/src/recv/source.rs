//! The reading thread: takes records from the stream, verifies and checks them, and lays them into batches.

use std::io::Read;

use ::base::{Guid, tunable};
use ondisk::send::{Record, feature};
use zio::Buf;

use super::Error;
use super::check::Check;
use super::queue::{Batch, Ending, Item, Queue, Reading, Whole};
use crate::Reader;

/// Bytes of a transaction at most.
const BATCH_MAX: u64 = 32 << 20;
/// What a change of a dnode dirties, about.
const DNODE_COST: u64 = 1 << 10;
/// What a record takes in memory beside its payload.
const ITEM_COST: u64 = 512;

/// Reads up to END, and says how that went.
pub(super) fn read_records<R: Read>(reader: &mut Reader<R>, from: u64, toguid: Guid, check: &Check, queue: &Queue) {
    let _end = Reading(queue);
    let mut batch = Batch::default();
    let ending = gather(reader, from, toguid, check, queue, &mut batch);
    // what was whole before an error is applied: it need not be sent again
    if !batch.items.is_empty() {
        queue.put(batch);
    }
    queue.end(ending);
}

fn gather<R: Read>(
    reader: &mut Reader<R>,
    from: u64,
    toguid: Guid,
    check: &Check,
    queue: &Queue,
    batch: &mut Batch,
) -> Ending {
    let most = tunable::ZFS_RECV_WRITE_BATCH_SIZE.get().min(BATCH_MAX);
    loop {
        let offset = reader.offset();
        let Some(entry) = reader.next_record()? else {
            return Err(crate::Error::Truncated { offset, need: 1, have: 0 }.into());
        };
        let record = entry.header.record;
        if let Record::End(end) = &record {
            if end.toguid != toguid {
                return Err(Error::OtherEnd { offset, expected: toguid, found: end.toguid });
            }
            return Ok(Whole::at_end());
        }
        check.record(&record, offset)?;
        let len = entry.payload.len();
        let stays = is_stored(&record, check);
        let payload = if stays { reader.kept(len) } else { Buf::from(entry.payload.to_vec()) };
        let cost = cost(&record);
        batch.dirties = batch.dirties.saturating_add(cost);
        batch.memory = batch.memory.saturating_add(len as u64 + ITEM_COST);
        batch.items.push(Item { record, payload, offset, end: reader.offset().saturating_sub(from) });
        if batch.dirties >= most {
            let next = Batch { items: Vec::with_capacity(batch.items.len()), ..Batch::default() };
            if !queue.put(std::mem::replace(batch, next)) {
                return Err(Error::Stopped);
            }
        }
    }
}

/// Whether the payload is what will be written, and then is gone: it need not be copied out of what was read.
fn is_stored(record: &Record, check: &Check) -> bool {
    matches!(record, Record::Write(r) if check.has(feature::RAW) || r.compressiontype != 0)
}

/// Bytes that a record dirties, about.
fn cost(record: &Record) -> u64 {
    match record {
        Record::Write(r) => r.logical_size,
        Record::WriteEmbedded(r) => r.length,
        Record::Spill(r) => r.length,
        Record::Object(r) => DNODE_COST * u64::from(r.dn_slots.max(1)),
        _ => DNODE_COST,
    }
}
