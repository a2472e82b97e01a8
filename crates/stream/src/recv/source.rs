//! The reading thread: reads records from the stream, verifies and checks them, and groups them into batches.

use std::io::Read;

use ::base::{Guid, tunable};
use ondisk::send::{Record, feature};
use zio::Buf;

use super::Error;
use super::check::Check;
use super::queue::{Batch, Ending, Item, Queue, Reading, Whole};
use crate::Reader;

/// Maximum bytes of a transaction.
const BATCH_MAX: u64 = 32 << 20;
/// Approximate bytes that a dnode change dirties.
const DNODE_COST: u64 = 1 << 10;
/// Memory of a record in addition to its payload.
const ITEM_COST: u64 = 512;

/// Reads up to END, and puts the result into the queue.
pub(super) fn read_records<R: Read>(reader: &mut Reader<R>, from: u64, toguid: Guid, check: &Check, queue: &Queue) {
    let _end = Reading(queue);
    let mut batch = Batch::default();
    let ending = gather(reader, from, toguid, check, queue, &mut batch);
    // complete records before an error are applied, so they need not be sent again
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
        batch.items.push(Item { record, payload, offset, end: reader.offset() - from });
        if batch.dirties >= most {
            let next = Batch { items: Vec::with_capacity(batch.items.len()), ..Batch::default() };
            if !queue.put(std::mem::replace(batch, next)) {
                return Err(Error::Stopped);
            }
        }
    }
}

/// True if the payload is written exactly as it came and then released: it need not be copied out of the read buffer.
fn is_stored(record: &Record, check: &Check) -> bool {
    matches!(record, Record::Write(r) if check.has(feature::RAW) || r.compressiontype != 0)
}

/// Returns the approximate bytes that a record dirties.
fn cost(record: &Record) -> u64 {
    match record {
        Record::Write(r) => r.logical_size,
        Record::WriteEmbedded(r) => r.length,
        Record::Spill(r) => r.length,
        Record::Object(r) => DNODE_COST * u64::from(r.dn_slots.max(1)),
        _ => DNODE_COST,
    }
}
