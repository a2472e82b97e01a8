//! The writing thread: applies batches, each in one transaction (OpenZFS: `receive_process_record` and what it calls).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::base::Endian;
use codec::{Compress, decompress};
use dmu::{Object, Objset, Tx};
use ondisk::send::{
    self, DRR_FLAG_SPILL_BLOCK, DRR_OBJECT_SPILL, DRR_SPILL_UNMODIFIED, ObjectRange, Record, RecordType, Spill, Write,
    WriteEmbedded,
};
use ondisk::{EmbeddedType, ObjectType};
use pool::{Receiving, ResumePoint};
use zio::{Buf, Payload};

use super::object::{self, Fate};
use super::queue::{Batch, Item, Queue, Whole};
use super::{Error, Progress, raw, swap};

/// Objects that one transaction frees.
const FREED_AT_ONCE: usize = 1000;

/// Whether a record was applied.
enum Step {
    Done,
    /// What it replaces must be gone from disk first.
    AfterSync,
}

pub(super) struct Writer<'a> {
    receiving: &'a Receiving,
    objset: &'a Arc<Objset>,
    progress: &'a Progress,
    /// Byte order of the stream.
    order: Endian,
    spill: bool,
    /// Blocks come as they are stored.
    raw: bool,
    /// How the next objects' block of dnodes is encrypted.
    range: Option<ObjectRange>,
    /// The stream is no increment: what is there is none of its objects.
    full: bool,
    /// Bytes of earlier streams that this one goes on from.
    before: u64,
    /// The last WRITE: they ascend.
    last: (u64, u64),
    max_object: u64,
    /// The object of the last record.
    open: Option<Object>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(receiving: &'a Receiving, begin: &send::Begin, order: Endian, progress: &'a Progress) -> Self {
        Writer {
            receiving,
            objset: receiving.objset(),
            progress,
            order,
            spill: begin.flags & DRR_FLAG_SPILL_BLOCK != 0,
            raw: begin.features() & send::feature::RAW != 0,
            range: None,
            full: begin.fromguid.0 == 0,
            before: receiving.resumed().map_or(0, |at| at.bytes),
            last: (0, 0),
            max_object: 0,
            open: None,
        }
    }

    /// Applies all batches, and gives the proof that they were all. The first error ends it.
    pub(super) fn run(&mut self, queue: &Queue) -> Result<Whole, Error> {
        loop {
            let batch = match queue.take() {
                Ok(batch) => batch,
                Err(ending) => {
                    let whole = ending?;
                    if self.receiving.replaces_clone() {
                        self.free_objects(self.max_object.saturating_add(1), u64::MAX)?;
                    }
                    return Ok(whole);
                }
            };
            self.apply(batch)?;
        }
    }

    fn apply(&mut self, batch: Batch) -> Result<(), Error> {
        let frees = |item: &Item| matches!(item.record, Record::Free(_) | Record::FreeObjects(_) | Record::Redact(_));
        let netfree = batch.items.iter().all(frees);
        let mut items = batch.items.into_iter().peekable();
        let mut waited = false;
        while items.peek().is_some() {
            let tx = self.receiving.spa().dataset_tx(self.objset, batch.dirties, netfree)?;
            let mut reached = None;
            while let Some(item) = items.peek_mut() {
                let (offset, kind) = (item.offset, item.record.kind());
                let step = self.record(&tx, item).map_err(|fault| fault.at(offset, kind))?;
                if matches!(step, Step::AfterSync) {
                    break;
                }
                waited = false;
                let point = resume_point(&item.record).map(|(object, offset)| (object, offset, item.end));
                reached = point.or(reached);
                self.progress.bytes.store(item.end, Ordering::Relaxed);
                self.progress.records.fetch_add(1, Ordering::Relaxed);
                items.next();
            }
            if let Some((object, offset, end)) = reached {
                let bytes = self.before.saturating_add(end);
                self.receiving.note(&tx, ResumePoint { object, offset, bytes });
            }
            drop(tx);
            if let Some(item) = items.peek() {
                if std::mem::replace(&mut waited, true) {
                    let fault = Fault::Invalid("its number is taken".into());
                    return Err(fault.at(item.offset, item.record.kind()));
                }
                self.receiving.spa().sync()?;
            }
        }
        Ok(())
    }

    fn record(&mut self, tx: &Tx, item: &mut Item) -> Result<Step, Fault> {
        match &item.record {
            Record::Object(r) => {
                self.max_object = self.max_object.max(r.object);
                self.open = None;
                let (full, spill, order, raw) = (self.full, self.spill, self.order, self.raw);
                let existing = object::Existing { full, spill, order, raw };
                return Ok(match object::put(self.objset, tx, r, &mut item.payload, existing)? {
                    Fate::There(object) => {
                        // not before: a block of dnodes without objects is a hole
                        if let Some(range) = self.range.take() {
                            raw::range(self.objset, tx, &range, self.order)?;
                        }
                        self.open = Some(object);
                        Step::Done
                    }
                    Fate::AfterSync => Step::AfterSync,
                });
            }
            Record::FreeObjects(r) => {
                self.open = None;
                self.free_range_of_objects(tx, r.firstobj, r.firstobj.saturating_add(r.numobjs))?;
            }
            Record::Write(r) => self.write(tx, r, std::mem::take(&mut item.payload))?,
            Record::Free(r) => self.free(tx, r.object, r.offset, r.length)?,
            // a hole, as OpenZFS makes it (`receive_redact`): it reads as zeros, and the next stream from the bookmark fills it
            Record::Redact(r) => self.free(tx, r.object, r.offset, r.length)?,
            Record::WriteEmbedded(r) => self.embedded(tx, r, &item.payload)?,
            Record::Spill(r) => self.spill(tx, r, std::mem::take(&mut item.payload))?,
            Record::ObjectRange(r) => {
                self.max_object = self.max_object.max(r.firstobj);
                self.range = Some(r.clone());
            }
            Record::Begin(_) | Record::End(_) | Record::WriteByref(_) => {
                return Err(Fault::Invalid("out of place".into()));
            }
        }
        Ok(Step::Done)
    }

    fn object(&mut self, id: u64) -> Result<&Object, Fault> {
        self.max_object = self.max_object.max(id);
        if self.open.as_ref().is_none_or(|object| object.id() != id) {
            self.open = Some(self.objset.object(id)?);
        }
        self.open.as_ref().ok_or_else(|| Fault::Invalid("no object".into()))
    }

    fn write(&mut self, tx: &Tx, r: &Write, mut payload: Vec<u8>) -> Result<(), Fault> {
        let at = (r.object, r.offset);
        if at < self.last {
            let (object, offset) = self.last;
            return Err(Fault::Invalid(format!("it goes back from object {object} offset {offset} to {at:?}")));
        }
        self.last = at;
        let (order, raw) = (self.order, self.raw);
        let object = self.object(r.object)?;
        if raw {
            return raw_write(object, tx, r, raw::write(r, order, payload)?);
        }
        let compressed = Compress::from_u8(r.compressiontype).filter(|_| r.compressiontype != 0);
        let size = object.block_size();
        let whole = (size == r.logical_size && r.offset.is_multiple_of(size)).then(|| r.offset / size);
        match (whole, compressed) {
            (Some(blkid), Some(compress)) => {
                let (bytes, lsize) = (Buf::from(payload), r.logical_size);
                // only bytes of files are sent compressed: they have no order
                let byteorder = Endian::Little;
                object.write_stored(tx, blkid, Payload::Stored { bytes, lsize, compress, crypt: None, byteorder })?;
            }
            (None, Some(compress)) => {
                object.write(tx, r.offset, &expand(compress, &payload, r.logical_size)?)?;
            }
            (whole, None) => {
                swap::to_ours(r.object_type, order, &mut payload).map_err(Fault::Invalid)?;
                match whole {
                    Some(blkid) => object.write_block(tx, blkid, payload)?,
                    None => object.write(tx, r.offset, &payload)?,
                }
            }
        }
        Ok(())
    }

    fn embedded(&mut self, tx: &Tx, r: &WriteEmbedded, payload: &[u8]) -> Result<(), Fault> {
        if is_spill(r) {
            let bytes = payload.get(..r.psize as usize).unwrap_or(payload);
            let compress = Compress::from_u8(r.compression).unwrap_or(Compress::Off);
            let data = expand(compress, bytes, r.lsize.into())?;
            return Ok(self.object(r.object)?.set_spill(tx, data)?);
        }
        let object = self.object(r.object)?;
        let size = object.block_size();
        let compress = Compress::from_u8(r.compression).unwrap_or(Compress::Off);
        let bytes = payload.get(..r.psize as usize).unwrap_or(payload);
        let lsize = u64::from(r.lsize);
        if size == r.length && lsize == r.length && r.offset.is_multiple_of(size) {
            let payload =
                Payload::Embedded { bytes: Buf::from(bytes.to_vec()), lsize, compress, kind: EmbeddedType::Data };
            return Ok(object.write_stored(tx, r.offset / size, payload)?);
        }
        let mut data = expand(compress, bytes, lsize)?;
        data.resize(usize::try_from(r.length).unwrap_or(data.len()), 0);
        Ok(object.write(tx, r.offset, &data)?)
    }

    fn free(&mut self, tx: &Tx, object: u64, offset: u64, length: u64) -> Result<(), Fault> {
        Ok(self.object(object)?.free_range(tx, offset, length)?)
    }

    fn spill(&mut self, tx: &Tx, r: &Spill, mut payload: Vec<u8>) -> Result<(), Fault> {
        if self.spill && r.flags & DRR_SPILL_UNMODIFIED != 0 {
            return Ok(());
        }
        if self.raw {
            let block = raw::spill(r, self.order, payload)?;
            return Ok(self.object(r.object)?.set_spill_stored(tx, block)?);
        }
        swap::to_ours(r.object_type, self.order, &mut payload).map_err(Fault::Invalid)?;
        Ok(self.object(r.object)?.set_spill(tx, payload)?)
    }

    fn free_range_of_objects(&mut self, tx: &Tx, first: u64, end: u64) -> Result<(), Fault> {
        let mut at = first.max(1) - 1;
        while let Some(id) = self.objset.next_object(at)?.filter(|id| *id < end) {
            self.objset.free_object(tx, id)?;
            at = id;
        }
        Ok(())
    }

    /// Frees what a stream does not have, a bounded number a transaction.
    fn free_objects(&mut self, first: u64, end: u64) -> Result<(), Error> {
        let failed = |source| Error::Apply { offset: 0, kind: RecordType::End, source };
        let mut at = first.max(1) - 1;
        loop {
            let tx = self.receiving.spa().dataset_tx(self.objset, FREED_AT_ONCE as u64 * 512, true)?;
            for _ in 0..FREED_AT_ONCE {
                match self.objset.next_object(at).map_err(failed)?.filter(|id| *id < end) {
                    Some(id) => self.objset.free_object(&tx, id).map_err(failed)?,
                    None => return Ok(()),
                }
                at = at.saturating_add(1);
            }
        }
    }
}

/// A block as it is stored takes the place of a whole block.
fn raw_write(object: &Object, tx: &Tx, r: &Write, block: Payload) -> Result<(), Fault> {
    let size = object.block_size();
    if size != r.logical_size || !r.offset.is_multiple_of(size) {
        return Err(Fault::Invalid(format!("{} bytes at {} are no block of {size}", r.logical_size, r.offset)));
    }
    Ok(object.write_stored(tx, r.offset / size, block)?)
}

/// Where a resumed stream begins if this record is the last one.
fn resume_point(record: &Record) -> Option<(u64, u64)> {
    match record {
        Record::Write(r) => Some((r.object, r.offset)),
        Record::WriteEmbedded(r) if !is_spill(r) => Some((r.object, r.offset)),
        // whoever sends from here sends the object first
        Record::Object(r) => Some((r.object, 0)),
        _ => None,
    }
}

/// A spill block that stood in its pointer: OpenZFS sends it as a block of data with the number of spill blocks (`DMU_SPILL_BLKID`), and then cannot
/// read what it has received.
fn is_spill(r: &WriteEmbedded) -> bool {
    const DMU_SPILL_BLKID: u64 = u64::MAX - 1;
    r.offset == DMU_SPILL_BLKID.wrapping_mul(r.length)
}

fn expand(compress: Compress, bytes: &[u8], size: u64) -> Result<Vec<u8>, Fault> {
    let mut data = vec![0; usize::try_from(size).unwrap_or(0)];
    if compress == Compress::Off {
        data.clear();
        data.extend_from_slice(bytes);
        return Ok(data);
    }
    decompress(compress, bytes, &mut data).map_err(Fault::Decompress)?;
    Ok(data)
}

/// Why a record cannot be applied.
#[derive(Debug)]
pub(super) enum Fault {
    Dmu(dmu::Error),
    Decompress(codec::Error),
    Invalid(String),
}

impl From<dmu::Error> for Fault {
    fn from(error: dmu::Error) -> Fault {
        Fault::Dmu(error)
    }
}

impl Fault {
    fn at(self, offset: u64, kind: RecordType) -> Error {
        match self {
            Fault::Dmu(source) => Error::Apply { offset, kind, source },
            Fault::Decompress(source) => Error::Decompress { offset, source },
            Fault::Invalid(why) => Error::Record { offset, kind, why, range: false },
        }
    }
}

/// Whether an OBJECT record says that there is a spill block.
pub(super) fn has_spill(flags: u8) -> bool {
    flags & DRR_OBJECT_SPILL != 0
}

/// The type that a record names.
pub(super) fn type_of(number: u32) -> ObjectType {
    ObjectType(u8::try_from(number).unwrap_or(0))
}
