//! Random operations on the root file system of a pool, mirrored in a model.

use std::collections::VecDeque;
use std::sync::Arc;

use base::ObjectId;
use dmu::{NewObject, NewZap, Object, Objset, Tx, Zap};
use ondisk::ObjectType;
use pool::Spa;

use crate::Rng;
use crate::compare::{Context, Result, compare, same_bytes};
use crate::model::{Data, Entries, History, Model, Thing, Value};

/// Types of objects with bytes: data and metadata are written by different rules.
const DATA_TYPES: [ObjectType; 3] =
    [ObjectType::PLAIN_FILE_CONTENTS, ObjectType::OTN_UINT8_DATA, ObjectType::OTN_UINT8_METADATA];
/// Types of ZAPs.
const ZAP_TYPES: [ObjectType; 2] = [ObjectType::OTN_ZAP_DATA, ObjectType::OTN_ZAP_METADATA];
const BLOCK_SIZES: [u64; 8] = [512, 1024, 4096, 4096, 8192, 16 << 10, 32 << 10, 128 << 10];
const SLOTS: [usize; 8] = [1, 1, 1, 2, 3, 4, 8, 16];
/// Number of recent operations listed in a failure report.
const TRACE: usize = 30;

/// Limits on the contents.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Total bytes of all objects.
    pub bytes: u64,
    /// Objects.
    pub objects: usize,
    /// Bytes of the longest write.
    pub write: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { bytes: 6 << 20, objects: 40, write: 96 << 10 }
    }
}

/// Applies operations to a pool and to its model.
pub struct Driver {
    spa: Arc<Spa>,
    objset: Arc<Objset>,
    rng: Rng,
    limits: Limits,
    model: Model,
    /// The txg of the last change.
    txg: u64,
    history: History,
    trace: VecDeque<String>,
    steps: u64,
}

impl Driver {
    /// A driver of a pool whose root file system has the contents of `model`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn new(spa: Arc<Spa>, model: Model, rng: Rng, limits: Limits) -> Result<Driver> {
        let objset = root(&spa)?;
        let (history, trace) = (History::default(), VecDeque::new());
        Ok(Driver { spa, objset, rng, limits, model, txg: 0, history, trace, steps: 0 })
    }

    /// The expected contents.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The txg of the last change.
    pub(crate) fn txg(&self) -> u64 {
        self.txg
    }

    /// Records that the pool at the end of `txg` had the contents that the model has now.
    pub(crate) fn reached(&mut self, txg: u64) {
        self.txg = self.txg.max(txg);
        self.history.keep(self.txg, &self.model);
    }

    /// The pool.
    #[must_use]
    pub fn spa(&self) -> &Arc<Spa> {
        &self.spa
    }

    /// Random choices.
    #[must_use]
    pub fn rng(&self) -> &Rng {
        &self.rng
    }

    /// Ends the run, and returns the contents after each txg.
    #[must_use]
    pub fn into_history(mut self) -> History {
        self.history.keep(self.txg, &self.model);
        self.history
    }

    /// The most recent operations, for the report of a failure.
    #[must_use]
    pub fn trace(&self) -> String {
        self.trace.iter().map(|line| format!("    {line}\n")).collect()
    }

    /// Continues with the same pool after it was reopened: all contents must be there.
    ///
    /// # Errors
    /// The first difference.
    pub fn reopened(&mut self, spa: Arc<Spa>) -> Result<()> {
        self.objset = root(&spa)?;
        self.spa = spa;
        self.compare()
    }

    /// Compares everything, as the live object set shows it.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self) -> Result<()> {
        compare(&self.objset, &self.model)
    }

    /// Waits until everything is on disk. Returns the txg of the last change, which is then on disk.
    ///
    /// A txg in which nothing changed has no uberblock, and the next import gives out its number again: such a txg is not promised.
    ///
    /// # Errors
    /// Those of the pool; when a txg without an uberblock changed the contents.
    pub fn sync(&mut self) -> Result<u64> {
        self.spa.sync().context(|| "sync".to_string())?;
        let written = self.spa.uberblock().txg.0;
        if written < self.txg && self.history.at(written) != self.model {
            return Err(format!("txg {} changed the contents, but the last uberblock is of txg {written}", self.txg));
        }
        self.txg = self.txg.min(written);
        self.history.keep(self.txg, &self.model);
        Ok(self.txg)
    }

    /// Does one to three operations in one transaction.
    ///
    /// # Errors
    /// The error of a refused operation, or a wrong result.
    pub fn step(&mut self) -> Result<()> {
        self.steps += 1;
        let tx = match self.spa.tx(4 * self.limits.write) {
            Err(pool::Error::NoSpace) => return self.make_room(),
            other => other.context(|| "tx".to_string())?,
        };
        self.enter(&tx);
        for _ in 0..=self.rng.below(3) {
            self.operation(&tx)?;
        }
        Ok(())
    }

    /// Starts a new txg: the contents so far belong to the previous one.
    fn enter(&mut self, tx: &Tx) {
        let txg = tx.txg().0;
        if txg != self.txg {
            self.history.keep(self.txg, &self.model);
            self.txg = txg;
        }
    }

    fn make_room(&mut self) -> Result<()> {
        let tx = self.spa.tx_netfree(0).context(|| "tx of a free".to_string())?;
        self.enter(&tx);
        self.note(|| "no space".to_string());
        (0..3).try_for_each(|_| self.free_object(&tx))
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.trace.len() >= TRACE {
            self.trace.pop_front();
        }
        self.trace.push_back(format!("step {} txg {}: {}", self.steps, self.txg, what()));
    }

    fn operation(&mut self, tx: &Tx) -> Result<()> {
        let full = self.model.size() >= self.limits.bytes || self.model.objects.len() >= self.limits.objects;
        match self.rng.below(100) {
            0..10 if !full => self.alloc_data(tx),
            10..14 if !full => self.alloc_zap(tx),
            0..14 => self.free_object(tx),
            14..18 => self.free_object(tx),
            18..46 => self.write(tx, full),
            46..52 => self.write_block(tx, full),
            52..57 => self.modify_block(tx),
            57..67 => self.free_range(tx),
            67..71 => self.set_bonus(tx),
            71..74 => self.spill(tx),
            74..77 => self.shape(tx),
            77..92 => self.zap(tx),
            _ => self.read(),
        }
    }

    /// A random object of bytes.
    fn any_data(&self) -> Option<(ObjectId, Data)> {
        let of = |(id, thing): (&ObjectId, &Arc<Thing>)| match &**thing {
            Thing::Data(_) => Some(*id),
            Thing::Zap(_) => None,
        };
        let all: Vec<ObjectId> = self.model.objects.iter().filter_map(of).collect();
        let id = *all.get(self.rng.index(all.len()))?;
        match self.model.objects.get(&id).map(|thing| &**thing) {
            Some(Thing::Data(data)) => Some((id, data.clone())),
            _ => None,
        }
    }

    fn object(&self, id: ObjectId) -> Result<Object> {
        self.objset.object(id).context(|| format!("object {id}"))
    }

    /// Random contents: noise, well compressible bytes, a few random bytes before zeros, or zeros.
    fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        match self.rng.below(10) {
            0..4 => self.rng.fill(&mut bytes),
            4..8 => {
                let mut pattern = [0; 24];
                self.rng.fill(&mut pattern);
                bytes.chunks_mut(24).for_each(|place| place.copy_from_slice(&pattern[..place.len()]));
            }
            8 => bytes.iter_mut().take(16).for_each(|byte| *byte = self.rng.word() as u8),
            _ => {}
        }
        bytes
    }

    fn alloc_data(&mut self, tx: &Tx) -> Result<()> {
        let slots = *self.rng.pick(&SLOTS);
        let mut block_size = *self.rng.pick(&BLOCK_SIZES);
        if self.rng.percent(3) {
            block_size = 1 << 20;
        }
        let bonus_len = self.rng.index(slots * 512 - 192 + 1);
        let new = NewObject {
            object_type: *self.rng.pick(&DATA_TYPES),
            block_size,
            indirect_shift: *self.rng.pick(&[0, 12, 12, 13, 14, 17]),
            bonus_type: if bonus_len == 0 { ObjectType::NONE } else { ObjectType::OTN_UINT8_DATA },
            bonus_len,
            slots,
            ..NewObject::default()
        };
        self.note(|| format!("alloc {new:?}"));
        let object = self.objset.alloc_object(tx, &new).context(|| format!("alloc {new:?}"))?;
        self.note(|| format!("  is {}", object.id()));
        let data = Data { block_size, slots, bonus: vec![0; bonus_len], ..Data::default() };
        self.insert(object.id(), Thing::Data(data))
    }

    fn alloc_zap(&mut self, tx: &Tx) -> Result<()> {
        let slots = *self.rng.pick(&SLOTS);
        let new = NewZap {
            object_type: *self.rng.pick(&ZAP_TYPES),
            slots,
            flags: if self.rng.percent(20) { ondisk::zap::FatHeader::FLAG_HASH64 } else { 0 },
            block_shift: *self.rng.pick(&[0, 12, 14]),
            ..NewZap::default()
        };
        let zap = Zap::create_with(tx, &self.objset, &new).context(|| format!("create {new:?}"))?;
        self.note(|| format!("create {} {new:?}", zap.object().id()));
        self.insert(zap.object().id(), Thing::Zap(Entries { slots, ..Entries::default() }))
    }

    fn insert(&mut self, id: ObjectId, thing: Thing) -> Result<()> {
        match self.model.objects.insert(id, Arc::new(thing)) {
            Some(_) => Err(format!("object {id} was allocated, but is in use")),
            None => Ok(()),
        }
    }

    fn free_object(&mut self, tx: &Tx) -> Result<()> {
        let all: Vec<ObjectId> = self.model.objects.keys().copied().collect();
        let Some(id) = all.get(self.rng.index(all.len())).copied() else { return Ok(()) };
        self.note(|| format!("free {id}"));
        self.model.objects.remove(&id);
        self.objset.free_object(tx, id).context(|| format!("free {id}"))
    }

    /// A random offset: mostly near the front, sometimes far out, where more levels are needed.
    fn place(&self) -> u64 {
        match self.rng.below(100) {
            0..85 => self.rng.below(512 << 10),
            85..97 => self.rng.below(64 << 20),
            _ => self.rng.below(1 << 40),
        }
    }

    fn write(&mut self, tx: &Tx, full: bool) -> Result<()> {
        let Some((id, data)) = self.any_data() else { return Ok(()) };
        let mut offset = self.place();
        if full {
            // over existing blocks
            let blocks: Vec<u64> = data.blocks.keys().copied().collect();
            let Some(block) = blocks.get(self.rng.index(blocks.len())) else { return Ok(()) };
            offset = block * data.block_size + self.rng.below(data.block_size);
        }
        let most = if full { data.block_size - offset % data.block_size } else { self.limits.write };
        let len = match self.rng.below(3) {
            0 => self.rng.below(most.min(200)),
            1 => self.rng.below(most.min(9000)),
            _ => self.rng.below(most),
        };
        let bytes = self.bytes(len as usize + 1);
        self.note(|| format!("write {id} {offset:#x}+{:#x}", bytes.len()));
        self.object(id)?.write(tx, offset, &bytes).context(|| format!("write {id}"))?;
        self.edit(id, |data| data.write(offset, &bytes))
    }

    fn edit(&mut self, id: ObjectId, edit: impl FnOnce(&mut Data)) -> Result<()> {
        edit(self.model.data(id).ok_or("an object is missing in the model")?);
        Ok(())
    }

    fn write_block(&mut self, tx: &Tx, full: bool) -> Result<()> {
        let Some((id, data)) = self.any_data() else { return Ok(()) };
        let block = match data.blocks.keys().next_back() {
            Some(last) if full => *last,
            _ => self.place() / data.block_size,
        };
        let bytes = self.bytes(data.block_size as usize);
        self.note(|| format!("write block {block} of {id}"));
        self.object(id)?.write_block(tx, block, bytes.clone()).context(|| format!("write block {block} of {id}"))?;
        self.edit(id, |data| data.write(block * data.block_size, &bytes))
    }

    fn modify_block(&mut self, tx: &Tx) -> Result<()> {
        let Some((id, data)) = self.any_data() else { return Ok(()) };
        let blocks: Vec<u64> = data.blocks.keys().copied().collect();
        let Some(block) = blocks.get(self.rng.index(blocks.len())).copied() else { return Ok(()) };
        let from = self.rng.index(data.block_size as usize);
        let mut bytes = [0; 64];
        self.rng.fill(&mut bytes);
        let len = (data.block_size as usize - from).min(self.rng.index(64) + 1);
        self.note(|| format!("modify block {block} of {id}, {from:#x}+{len:#x}"));
        let change = |place: &mut [u8]| place[from..from + len].copy_from_slice(&bytes[..len]);
        self.object(id)?.modify_block(tx, block, change).context(|| format!("modify block {block} of {id}"))?;
        self.edit(id, |data| data.write(block * data.block_size + from as u64, &bytes[..len]))
    }

    fn free_range(&mut self, tx: &Tx) -> Result<()> {
        let Some((id, data)) = self.any_data() else { return Ok(()) };
        let end = data.blocks.keys().next_back().map_or(0, |last| (last + 1) * data.block_size);
        let mut offset = if self.rng.percent(80) { self.rng.below(end + 1) } else { self.place() };
        let mut len = match self.rng.below(4) {
            0 => u64::MAX,
            1 => self.rng.below(end + 1),
            2 => self.rng.below(4 * data.block_size) + 1,
            _ => self.place(),
        };
        if self.rng.percent(40) {
            offset -= offset % data.block_size;
            len = if len == u64::MAX { len } else { len.next_multiple_of(data.block_size) };
        }
        self.note(|| format!("free {id} {offset:#x}+{len:#x}"));
        self.object(id)?.free_range(tx, offset, len).context(|| format!("free {id} {offset:#x}+{len:#x}"))?;
        self.edit(id, |data| data.free(offset, len))
    }

    fn set_bonus(&mut self, tx: &Tx) -> Result<()> {
        let Some((id, data)) = self.any_data() else { return Ok(()) };
        if data.bonus.is_empty() {
            return Ok(());
        }
        let mut bonus = vec![0; self.rng.index(data.bonus.len()) + 1];
        self.rng.fill(&mut bonus);
        self.note(|| format!("bonus of {id}: {}", bonus.len()));
        self.object(id)?.set_bonus(tx, &bonus).context(|| format!("bonus of {id}"))?;
        self.edit(id, |data| data.bonus = bonus)
    }

    fn spill(&mut self, tx: &Tx) -> Result<()> {
        let Some((id, data)) = self.any_data() else { return Ok(()) };
        let object = self.object(id)?;
        if data.spill.is_some() && self.rng.percent(40) {
            self.note(|| format!("no spill of {id}"));
            object.remove_spill(tx).context(|| format!("spill of {id}"))?;
            return self.edit(id, |data| data.spill = None);
        }
        let bytes = self.bytes(512 * (self.rng.index(40) + 1));
        // zeros would be a hole, and a spill block is never a hole
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        // the dnode's core, its pointers, the spill pointer, and the bonus buffer
        let fits = 64 + 128 * (object.phys().blkptr.len() + 1) + data.bonus.len() <= 512 * data.slots;
        self.note(|| format!("spill of {id}: {}", bytes.len()));
        match object.set_spill(tx, bytes.clone()) {
            Ok(()) if fits => self.edit(id, |data| data.spill = Some(Arc::new(bytes))),
            Ok(()) => Err(format!("object {id} has no space for a spill block, but accepts it")),
            Err(dmu::Error::Refused { .. }) if !fits => Ok(()),
            Err(e) => Err(format!("spill of {id}: {e}")),
        }
    }

    /// Changes the block size, compression or checksum.
    fn shape(&mut self, tx: &Tx) -> Result<()> {
        let Some((id, data)) = self.any_data() else { return Ok(()) };
        let object = self.object(id)?;
        if object.nblocks() <= 1 && data.blocks.keys().all(|block| *block == 0) && self.rng.percent(60) {
            let sizes: Vec<u64> = BLOCK_SIZES.into_iter().filter(|size| *size > data.block_size).collect();
            let Some(size) = sizes.get(self.rng.index(sizes.len())).copied() else { return Ok(()) };
            self.note(|| format!("block size of {id}: {size}"));
            object.set_block_size(tx, size, 0).context(|| format!("block size of {id}: {size}"))?;
            return self.edit(id, |data| data.grow_block(size));
        }
        let (compress, checksum) = (*self.rng.pick(&[0, 2, 14, 15]), *self.rng.pick(&[0, 7, 8]));
        self.note(|| format!("compression {compress}, checksum {checksum} of {id}"));
        object.set_compress(tx, compress).context(|| format!("compression of {id}"))?;
        object.set_checksum(tx, checksum).context(|| format!("checksum of {id}"))
    }

    fn zap(&mut self, tx: &Tx) -> Result<()> {
        let of = |(id, thing): (&ObjectId, &Arc<Thing>)| matches!(**thing, Thing::Zap(_)).then_some(*id);
        let all: Vec<ObjectId> = self.model.objects.iter().filter_map(of).collect();
        let Some(id) = all.get(self.rng.index(all.len())).copied() else { return Ok(()) };
        let zap = Zap::open(self.object(id)?).context(|| format!("ZAP {id}"))?;
        // some ZAPs stay small, some become large; all lose their entries from time to time
        let (names, plain) = (if id.0 % 3 == 0 { 2000 } else { 60 }, id.0 % 2 == 0);
        let (count, removes) =
            (self.rng.index(if id.0 % 3 == 0 { 150 } else { 20 }) + 1, *self.rng.pick(&[10, 30, 90]));
        self.note(|| format!("{count} changes of ZAP {id}, {removes} % of them removals"));
        for _ in 0..count {
            let name = self.name(names, plain);
            let Some(entries) = self.model.zap(id) else { return Err("a ZAP is missing in the model".to_string()) };
            let there = entries.entries.contains_key(&name);
            if self.rng.percent(removes) {
                let removed = zap.remove(tx, &name).context(|| format!("remove {name:?} of ZAP {id}"))?;
                if removed != there {
                    return Err(format!("ZAP {id}: {name:?} existed: {there}, removed: {removed}"));
                }
                entries.entries.remove(&name);
                continue;
            }
            let (width, ints) = value(&self.rng, plain);
            if there {
                zap.update(tx, &name, width, &ints).context(|| format!("update {name:?} of ZAP {id}"))?;
            } else {
                zap.add(tx, &name, width, &ints).context(|| format!("add {name:?} to ZAP {id}"))?;
            }
            entries.entries.insert(name, (width, ints));
        }
        Ok(())
    }

    fn name(&self, names: u64, plain: bool) -> String {
        let number = self.rng.below(names);
        match number % 7 {
            _ if plain => format!("name {number}"),
            0 => format!("{number} {}", "long ".repeat(10 + number as usize % 30)),
            1 => format!("Ärger {number}"),
            _ => format!("{number}"),
        }
    }

    fn read(&mut self) -> Result<()> {
        if self.rng.percent(3) {
            return self.compare().context(|| "live".to_string());
        }
        let Some((id, data)) = self.any_data() else { return Ok(()) };
        let blocks: Vec<u64> = data.blocks.keys().copied().collect();
        let near = blocks.get(self.rng.index(blocks.len())).map_or(0, |block| block * data.block_size);
        let offset = near.saturating_sub(self.rng.below(5000)) + self.rng.below(data.block_size);
        let len = self.rng.index(20_000);
        let found = self.object(id)?.read_vec(offset, len).context(|| format!("read {id} {offset:#x}+{len:#x}"))?;
        same_bytes(|| format!("read {id} {offset:#x}+{len:#x}"), &found, &data.read(offset, len))
    }
}

fn value(rng: &Rng, plain: bool) -> Value {
    if plain {
        return (8, vec![rng.word()]);
    }
    let width = *rng.pick(&[1, 2, 4, 8]);
    let mask = if width == 8 { u64::MAX } else { (1 << (8 * width)) - 1 };
    let len = if rng.percent(5) { rng.index(900 / width as usize) + 1 } else { rng.index(6) + 1 };
    (width, (0..len).map(|_| rng.word() & mask).collect())
}

/// The live object set of the root file system.
pub(crate) fn root(spa: &Arc<Spa>) -> Result<Arc<Objset>> {
    let view = spa.view().context(|| "view".to_string())?;
    let dataset = view.dataset(spa.name()).context(|| "root file system".to_string())?;
    spa.objset(&dataset).context(|| "root object set".to_string())
}
