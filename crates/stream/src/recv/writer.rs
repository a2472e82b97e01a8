//! The writing thread: applies batches, each in one transaction (OpenZFS: `receive_process_record` and what it calls).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::base::Endian;
use base::ObjectId;
use codec::{Compress, decompress};
use dmu::{Object, Objset, Tx};
use ondisk::send::{
    self, DRR_FLAG_SPILL_BLOCK, DRR_OBJECT_SPILL, DRR_SPILL_UNMODIFIED, ObjectRange, Record, RecordType, Spill, Write,
    WriteEmbedded,
};
use ondisk::{EmbeddedType, ObjectType, byteswap};
use pool::{Receiving, ResumePoint};
use zio::{Buf, Payload};

use super::object::{self, Fate, Freeing};
use super::queue::{Batch, Item, Queue, Whole};
use super::{Error, Progress, raw};

/// Maximum number of objects that one transaction frees.
const FREED_AT_ONCE: usize = 1000;
/// Number of blocks that one transaction frees before the next one continues (OpenZFS: `zfs_per_txg_dirty_frees_percent`).
const BLOCKS_FREED_AT_ONCE: u64 = 1 << 16;
/// Approximate bytes that freeing one piece dirties.
const SMALL_CHANGE: u64 = 1 << 10;

/// The result of applying a record.
enum Step {
    Done,
    Not(Pause),
}

/// The action required between one transaction and the next.
enum Pause {
    /// None: the first transaction has freed enough.
    No,
    /// Sync: the free of the replaced object must be on disk first.
    Sync,
    /// Free this range of the object, which has more blocks than one transaction can free.
    Free(ObjectId, Range<u64>),
}

pub(super) struct Writer<'a> {
    receiving: &'a Receiving,
    objset: &'a Arc<Objset>,
    progress: &'a Progress,
    /// Byte order of the stream.
    order: Endian,
    spill: bool,
    /// True if blocks come as they are stored.
    raw: bool,
    /// The encryption parameters of the next objects' dnode block.
    range: Option<ObjectRange>,
    /// True if the stream is not an increment: existing objects are unrelated to its objects.
    full: bool,
    /// Bytes of the earlier streams that this one resumes.
    before: u64,
    /// The position of the last WRITE: positions ascend.
    last: (ObjectId, u64),
    max_object: ObjectId,
    /// The object of the last record.
    open: Option<Object>,
    /// The blocks that the current transaction frees.
    freeing: Freeing,
    /// The object number up to which a FREEOBJECTS record is applied.
    freed_objects: Option<ObjectId>,
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
            last: (ObjectId::NONE, 0),
            max_object: ObjectId::NONE,
            open: None,
            freeing: Freeing::default(),
            freed_objects: None,
        }
    }

    /// Applies all batches, and returns the proof that the stream was complete. Stops at the first error.
    pub(super) fn run(&mut self, queue: &Queue) -> Result<Whole, Error> {
        loop {
            let batch = match queue.take() {
                Ok(batch) => batch,
                Err(ending) => {
                    let whole = ending?;
                    if self.receiving.replaces_clone() {
                        self.free_objects(self.max_object, ObjectId(u64::MAX))?;
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
        let (mut items, mut waited) = (batch.items, false);
        let mut rest = items.as_mut_slice();
        while !rest.is_empty() {
            let tx = self.receiving.spa().dataset_tx(self.objset, batch.dirties, netfree)?;
            let (count, pause) = self.in_one(&tx, rest)?;
            let (done, left) = std::mem::take(&mut rest).split_at_mut(count);
            rest = left;
            if let Some((object, offset, end)) = done.iter().rev().find_map(resume_point_of) {
                let bytes = self.before.saturating_add(end);
                self.receiving.note(&tx, ResumePoint { object, offset, bytes });
            }
            drop(tx);
            waited &= count == 0;
            let (cleared, first) = (self.freeing.cleared.filter(|_| count == 0), rest.first());
            self.freeing = Freeing { cleared, ..Freeing::default() };
            match (pause, first) {
                (Pause::Sync, Some(item)) => {
                    if std::mem::replace(&mut waited, true) {
                        let fault = Fault::Invalid("the object number is in use".into());
                        return Err(fault.at(item.offset, item.record.kind()));
                    }
                    self.receiving.spa().sync()?;
                }
                (Pause::Free(object, range), Some(item)) => {
                    let (offset, kind) = (item.offset, item.record.kind());
                    self.free_long(object, range, |source| Error::Apply { offset, kind, source })?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Applies the first of `items` in one transaction. Returns how many, and the action required before the others.
    fn in_one(&mut self, tx: &Tx, items: &mut [Item]) -> Result<(usize, Pause), Error> {
        let mut done = 0;
        while let Some(rest) = items.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let count = match self.some(tx, rest)? {
                Ok(count) => count,
                Err(pause) => return Ok((done, pause)),
            };
            done += count;
            let Some(last) = items.get(done.saturating_sub(1)) else { break };
            self.progress.bytes.store(last.end, Ordering::Relaxed);
            self.progress.records.fetch_add(count as u64, Ordering::Relaxed);
            if self.freeing.blocks.get() >= BLOCKS_FREED_AT_ONCE {
                return Ok((done, Pause::No));
            }
        }
        Ok((done, Pause::No))
    }

    /// Frees most of an object, with transactions of its own, so that little is left of it.
    fn free_long(
        &mut self,
        id: ObjectId,
        range: Range<u64>,
        failed: impl Fn(dmu::Error) -> Error,
    ) -> Result<(), Error> {
        let (spa, objset) = (self.receiving.spa(), self.objset);
        let mut place = || spa.dataset_tx(objset, SMALL_CHANGE, true).map_err(Freed::Pool);
        let freed = objset.object(id).map_err(Freed::Dmu).and_then(|object| object.free_long(range, &mut place));
        self.freeing.cleared = Some(id);
        freed.map_err(|error| match error {
            Freed::Pool(error) => error.into(),
            Freed::Dmu(source) => failed(source),
        })
    }

    /// Applies the first of `items`. Returns how many, or the action required before the first.
    fn some(&mut self, tx: &Tx, items: &mut [Item]) -> Result<Result<usize, Pause>, Error> {
        let run = self.stored_run(items);
        if run > 1 {
            self.write_run(tx, items.get_mut(..run).unwrap_or_default())?;
            return Ok(Ok(run));
        }
        let Some(item) = items.first_mut() else { return Ok(Ok(0)) };
        let (offset, kind) = (item.offset, item.record.kind());
        match self.record(tx, item).map_err(|fault| fault.at(offset, kind))? {
            Step::Done => Ok(Ok(1)),
            Step::Not(pause) => Ok(Err(pause)),
        }
    }

    /// Returns how many records, from the first on, are consecutive whole blocks of one object as they are stored.
    fn stored_run(&mut self, items: &[Item]) -> usize {
        let Some(Record::Write(first)) = items.first().map(|item| &item.record) else { return 0 };
        let id = first.object;
        let Ok(size) = self.object(id).map(Object::block_size) else { return 0 };
        let (raw, mut last) = (self.raw, self.last);
        let fits = |item: &&Item| {
            let Record::Write(r) = &item.record else { return false };
            let stored = raw || (r.compressiontype != 0 && Compress::from_u8(r.compressiontype).is_some());
            let whole = r.logical_size == size && r.offset.is_multiple_of(size);
            let ascends = (r.object, r.offset) >= std::mem::replace(&mut last, (r.object, r.offset));
            r.object == id && stored && whole && ascends
        };
        items.iter().take_while(fits).count()
    }

    /// Writes the records that [`Writer::stored_run`] has counted.
    fn write_run(&mut self, tx: &Tx, items: &mut [Item]) -> Result<(), Error> {
        let mut blocks = Vec::with_capacity(items.len());
        let (order, raw) = (self.order, self.raw);
        for item in &mut *items {
            let Record::Write(r) = &item.record else { unreachable!("a run is of WRITE records") };
            let bytes = std::mem::replace(&mut item.payload, Buf::zeros(0));
            let block = block_of(r, bytes, order, raw).map_err(|fault| fault.at(item.offset, RecordType::Write))?;
            blocks.push((r.offset / r.logical_size, block));
            self.last = (r.object, r.offset);
        }
        let id = self.last.0;
        let written = match self.object(id) {
            Ok(object) => object.write_stored_run(tx, blocks).map_err(|(n, error)| (n, Fault::Dmu(error))),
            Err(fault) => Err((0, fault)),
        };
        written.map_err(|(n, fault)| fault.at(items.get(n).map_or(0, |item| item.offset), RecordType::Write))
    }

    fn record(&mut self, tx: &Tx, item: &mut Item) -> Result<Step, Fault> {
        match &item.record {
            Record::Object(r) => {
                self.max_object = self.max_object.max(r.object);
                self.open = None;
                let (full, spill, order, raw) = (self.full, self.spill, self.order, self.raw);
                let existing = object::Existing { full, spill, order, raw, freeing: &self.freeing };
                return Ok(match object::put(self.objset, tx, r, item.payload.make_mut(), existing)? {
                    Fate::There(object) => {
                        // not earlier: a dnode block without objects is a hole
                        if let Some(range) = self.range.take() {
                            raw::range(self.objset, tx, &range, self.order)?;
                        }
                        self.open = Some(object);
                        Step::Done
                    }
                    Fate::AfterSync => Step::Not(Pause::Sync),
                    Fate::TooLong(id, from) => Step::Not(Pause::Free(id, from..u64::MAX)),
                });
            }
            Record::FreeObjects(r) => {
                let after = self.freed_objects.unwrap_or(ObjectId(r.firstobj.0.max(1) - 1));
                let (at, pause) = self.free_some_objects(tx, after, r.firstobj.saturating_add(r.numobjs))?;
                self.freed_objects = pause.is_some().then_some(at);
                if let Some(pause) = pause {
                    return Ok(Step::Not(pause));
                }
            }
            Record::Write(r) => self.write(tx, r, std::mem::replace(&mut item.payload, Buf::zeros(0)))?,
            Record::Free(r) => return self.free(tx, r.object, r.offset, r.length),
            // becomes a hole, as in OpenZFS (`receive_redact`): it reads as zeros, and the next stream from the bookmark fills it
            Record::Redact(r) => return self.free(tx, r.object, r.offset, r.length),
            Record::WriteEmbedded(r) => self.embedded(tx, r, &item.payload)?,
            Record::Spill(r) => self.spill(tx, r, std::mem::replace(&mut item.payload, Buf::zeros(0)))?,
            Record::ObjectRange(r) => {
                self.max_object = self.max_object.max(r.firstobj);
                self.range = Some(r.clone());
            }
            Record::Begin(_) | Record::End(_) | Record::WriteByref(_) => {
                return Err(Fault::Invalid("unexpected at this position".into()));
            }
        }
        Ok(Step::Done)
    }

    fn object(&mut self, id: ObjectId) -> Result<&Object, Fault> {
        self.max_object = self.max_object.max(id);
        if self.open.as_ref().is_none_or(|object| object.id() != id) {
            self.open = Some(self.objset.object(id)?);
        }
        self.open.as_ref().ok_or_else(|| Fault::Invalid("no object".into()))
    }

    fn write(&mut self, tx: &Tx, r: &Write, mut payload: Buf) -> Result<(), Fault> {
        let at = (r.object, r.offset);
        if at < self.last {
            let (object, offset) = self.last;
            return Err(Fault::Invalid(format!(
                "it goes back from object {object} offset {offset} to ({}, {})",
                r.object, r.offset
            )));
        }
        self.last = at;
        let (order, raw) = (self.order, self.raw);
        let object = self.object(r.object)?;
        if raw {
            return raw_write(object, tx, r, block_of(r, payload, order, raw)?);
        }
        let compressed = Compress::from_u8(r.compressiontype).filter(|_| r.compressiontype != 0);
        let size = object.block_size();
        let whole = (size == r.logical_size && r.offset.is_multiple_of(size)).then(|| r.offset / size);
        match (whole, compressed) {
            (Some(blkid), Some(_)) => object.write_stored(tx, blkid, block_of(r, payload, order, raw)?)?,
            (None, Some(compress)) => {
                let mut data = expand(compress, &payload, r.logical_size)?;
                to_ours(r.object_type, order, &mut data)?;
                object.write(tx, r.offset, &data)?;
            }
            (whole, None) => {
                to_ours(r.object_type, order, payload.make_mut())?;
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
            let bytes = embedded_bytes(r, payload)?;
            let compress = compression_of(r)?;
            let data = expand(compress, bytes, r.lsize.into())?;
            return Ok(self.object(r.object)?.set_spill(tx, data)?);
        }
        let order = self.order;
        let object = self.object(r.object)?;
        let size = object.block_size();
        let compress = compression_of(r)?;
        let bytes = embedded_bytes(r, payload)?;
        let lsize = u64::from(r.lsize);
        if size == r.length && lsize == r.length && r.offset.is_multiple_of(size) {
            // compressed data cannot be byte-swapped: the pointer states its byte order
            let (bytes, kind) = (Buf::from(bytes.to_vec()), EmbeddedType::Data);
            let payload = Payload::Embedded { bytes, lsize, compress, kind, byteorder: order };
            return Ok(object.write_stored(tx, r.offset / size, payload)?);
        }
        let mut data = expand(compress, bytes, lsize)?;
        to_ours(object.phys().object_type.0.into(), order, &mut data)?;
        data.resize(usize::try_from(r.length).unwrap_or(data.len()), 0);
        Ok(object.write(tx, r.offset, &data)?)
    }

    fn free(&mut self, tx: &Tx, object: ObjectId, offset: u64, length: u64) -> Result<Step, Fault> {
        self.object(object)?;
        let Some(open) = &self.open else { return Ok(Step::Done) };
        let range = offset..offset.saturating_add(length);
        if !self.freeing.fits(open, &range) {
            return Ok(Step::Not(Pause::Free(object, range)));
        }
        open.free_range(tx, offset, length)?;
        Ok(Step::Done)
    }

    fn spill(&mut self, tx: &Tx, r: &Spill, mut payload: Buf) -> Result<(), Fault> {
        if self.spill && r.flags & DRR_SPILL_UNMODIFIED != 0 {
            return Ok(());
        }
        if self.raw {
            let block = raw::spill(r, self.order, payload)?;
            return Ok(self.object(r.object)?.set_spill_stored(tx, block)?);
        }
        to_ours(r.object_type, self.order, payload.make_mut())?;
        Ok(self.object(r.object)?.set_spill(tx, payload.into_vec())?)
    }

    /// Frees objects after `at` and below `end`, as many as fit in one transaction. Returns the number reached, and the action
    /// required before the rest, if any.
    fn free_some_objects(
        &mut self,
        tx: &Tx,
        mut at: ObjectId,
        end: ObjectId,
    ) -> Result<(ObjectId, Option<Pause>), Fault> {
        self.open = None;
        for _ in 0..FREED_AT_ONCE {
            let Some(id) = self.objset.next_object(at)?.filter(|id| *id < end) else { return Ok((at, None)) };
            if self.freeing.blocks.get() >= BLOCKS_FREED_AT_ONCE {
                break;
            }
            if !self.freeing.fits(&self.objset.object(id)?, &object::ALL) {
                return Ok((at, Some(Pause::Free(id, object::ALL))));
            }
            self.objset.free_object(tx, id)?;
            at = id;
        }
        Ok((at, Some(Pause::No)))
    }

    /// Frees existing objects that the stream does not have: those after `after` and below `end`.
    fn free_objects(&mut self, after: ObjectId, end: ObjectId) -> Result<(), Error> {
        let failed = |source| Error::Apply { offset: 0, kind: RecordType::End, source };
        let mut at = after;
        loop {
            let tx = self.receiving.spa().dataset_tx(self.objset, FREED_AT_ONCE as u64 * 512, true)?;
            let freed = self.free_some_objects(&tx, at, end).map_err(|fault| fault.at(0, RecordType::End))?;
            drop(tx);
            self.freeing = Freeing::default();
            at = freed.0;
            match freed.1 {
                None => return Ok(()),
                Some(Pause::Free(id, range)) => self.free_long(id, range, failed)?,
                Some(_) => {}
            }
        }
    }
}

/// Returns the block of a WRITE record that carries it as it is stored.
fn block_of(r: &Write, bytes: Buf, order: Endian, raw: bool) -> Result<Payload, Fault> {
    if raw {
        return raw::write(r, order, bytes);
    }
    let compress = Compress::from_u8(r.compressiontype);
    let compress = compress.ok_or_else(|| Fault::Invalid(format!("compression type {}", r.compressiontype)))?;
    Ok(Payload::Stored { bytes, lsize: r.logical_size, compress, crypt: None, byteorder: order })
}

/// Replaces a whole block by one that is written as stored.
fn raw_write(object: &Object, tx: &Tx, r: &Write, block: Payload) -> Result<(), Fault> {
    let size = object.block_size();
    if size != r.logical_size || !r.offset.is_multiple_of(size) {
        return Err(Fault::Invalid(format!(
            "{} bytes at {} are not a whole block of {size}",
            r.logical_size, r.offset
        )));
    }
    Ok(object.write_stored(tx, r.offset / size, block)?)
}

/// Returns the [`resume_point`], with the number of stream bytes up to there.
fn resume_point_of(item: &Item) -> Option<(ObjectId, u64, u64)> {
    resume_point(&item.record).map(|(object, at)| (object, at, item.end))
}

/// Returns the position at which a resumed stream starts if this record is the last one.
fn resume_point(record: &Record) -> Option<(ObjectId, u64)> {
    match record {
        Record::Write(r) => Some((r.object, r.offset)),
        Record::WriteEmbedded(r) if !is_spill(r) => Some((r.object, r.offset)),
        // a send resumed here sends the object first
        Record::Object(r) => Some((r.object, 0)),
        _ => None,
    }
}

/// True for an embedded spill block: OpenZFS sends it as a block of data with the number of spill blocks (`DMU_SPILL_BLKID`), and
/// then cannot read what it has received.
fn is_spill(r: &WriteEmbedded) -> bool {
    const DMU_SPILL_BLKID: u64 = u64::MAX - 1;
    r.offset == DMU_SPILL_BLKID.wrapping_mul(r.length)
}

fn compression_of(r: &WriteEmbedded) -> Result<Compress, Fault> {
    let compress = Compress::from_u8(r.compression);
    compress.ok_or_else(|| Fault::Invalid(format!("compression type {}", r.compression)))
}

/// Returns the bytes of an embedded block, without the filling of the payload.
fn embedded_bytes<'a>(r: &WriteEmbedded, payload: &'a [u8]) -> Result<&'a [u8], Fault> {
    let bytes = payload.get(..r.psize as usize);
    bytes.ok_or_else(|| Fault::Invalid(format!("payload size {} of {} bytes", r.psize, payload.len())))
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

/// The reason why a free failed.
enum Freed {
    Pool(pool::Error),
    Dmu(dmu::Error),
}

impl From<dmu::Error> for Freed {
    fn from(error: dmu::Error) -> Freed {
        Freed::Dmu(error)
    }
}

/// The reason why a record cannot be applied.
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

/// True if an OBJECT record says that there is a spill block.
pub(super) fn has_spill(flags: u8) -> bool {
    flags & DRR_OBJECT_SPILL != 0
}

/// Byte-swaps a record's data from the stream's order to the one that is written.
pub(super) fn to_ours(object_type: u32, order: Endian, data: &mut [u8]) -> Result<(), Fault> {
    let kind = type_of(object_type);
    // dnode blocks are never sent as data
    if order != Endian::Little && matches!(kind, ObjectType::DNODE | ObjectType::OBJSET) {
        return Err(Fault::Invalid(format!("{} in the other byte order", kind.name())));
    }
    byteswap::to_little(kind, order, data)
        .map_err(|_| Fault::Invalid(format!("{} in the other byte order", kind.name())))
}

/// Returns the type that a record names.
pub(super) fn type_of(number: u32) -> ObjectType {
    ObjectType(u8::try_from(number).unwrap_or(0))
}
