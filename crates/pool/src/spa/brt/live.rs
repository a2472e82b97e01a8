//! The block reference tables of a pool open for writing.
//!
//! A clone is noted when its pointer is written in the sync of its txg ([`LiveClones::add`]); a pointer that was overwritten before then
//! does not count. When all data of the txg is written, the notes become references ([`LiveClones::apply`]), before anything is freed. A
//! free looks here first: if the block has a reference beyond the first, one reference is removed, and the block stays. The sync writes
//! changed entries to the ZAP of their vdev.
//!
//! Each range of 16 MiB of a vdev has a count of entries, in memory, which is enough to answer most frees.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Endian, ObjectId, Txg};
use dmu::{NewObject, NewZap, Objset, Zap, ZapValue};
use ondisk::brt::{BrtVdevPhys, entry_count};
use ondisk::zap::FatHeader;
use ondisk::{BlkPtr, ObjectType};
use parking_lot::Mutex;
use vdev::TopVdev;
use zio::{CloneTable, TableError};

use crate::Error;
use crate::spa::ddt::{LiveTables, TableSync};
use crate::spa::mos::Mos;

/// Size of a range whose entries are counted together (OpenZFS: `BRT_RANGESIZE`).
const RANGE: u64 = 16 << 20;
/// Bytes of counts that are written together (OpenZFS: `BRT_BLOCKSIZE`).
const BLOCK: usize = 32 << 10;
/// log2 of the block sizes of the ZAP of entries (OpenZFS: `brt_zap_default_bs`, `brt_zap_default_ibs`).
const SHIFT: u8 = 13;
/// The largest vdev size that is accepted, whatever the configuration says: 1 PiB.
const VDEV_MAX: u64 = 1 << 50;
/// The most txgs that have notes at a time.
const TXGS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Number of references beyond the first.
    count: u64,
    /// The number that the ZAP has.
    stored: u64,
}

#[derive(Debug, Default)]
struct VdevState {
    object: ObjectId,
    entries: Option<Zap>,
    /// Number of entries by range.
    counts: Vec<u16>,
    /// Blocks of counts that have changed.
    changed: Vec<bool>,
    endian: Option<Endian>,
    total: u64,
    used: u64,
    saved: u64,
    /// True once one of the sums of space was found to be too small.
    miscounted: bool,
    dirty: bool,
    live: BTreeMap<u64, Entry>,
}

/// Blocks by the DVA of their first copy, with their number of new clones.
type Notes = BTreeMap<(u64, u64), (BlkPtr, u64)>;

#[derive(Debug, Default)]
struct State {
    vdevs: BTreeMap<u64, VdevState>,
    notes: [Notes; TXGS],
}

/// The block reference tables of a pool open for writing (OpenZFS: `spa_brt_vdevs`).
#[derive(Debug)]
pub struct LiveClones {
    mos: Arc<Objset>,
    state: Mutex<State>,
}

impl VdevState {
    fn open(mos: &Mos, id: ObjectId, top: &TopVdev) -> Result<VdevState, Error> {
        let object = mos.object(id)?;
        let phys = Mos::bonus(&object, BrtVdevPhys::decode)?;
        if phys.rangesize != RANGE {
            return Err(Error::corrupt(id, format!("block reference table with ranges of {} bytes", phys.rangesize)));
        }
        let endian = if phys.byteorder == 0 { Endian::Little } else { Endian::Big };
        let mut state = VdevState {
            object: id,
            entries: mos.zap_if(phys.mos_entries)?,
            endian: Some(endian),
            total: phys.totalcount,
            used: phys.usedspace,
            saved: phys.savedspace,
            ..VdevState::default()
        };
        state.grow(top);
        let known = usize::try_from(phys.size).unwrap_or(usize::MAX).min(state.counts.len());
        let bytes = object.read_vec(0, known * 2)?;
        for (count, raw) in state.counts.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *count = endian.u16(*raw);
        }
        state.count_anew();
        Ok(state)
    }

    /// Corrects the number of entries, if the counts by range belie it. A full count may stand for more entries than it says.
    fn count_anew(&mut self) {
        let counted: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        let is_exact = !self.counts.contains(&u16::MAX);
        if self.total < counted || (is_exact && self.total > counted) || self.total > i64::MAX as u64 {
            let (object, stored) = (self.object.0, self.total);
            tracing::warn!(target: "zuse::space", object, stored, counted, "wrong number of entries of a block reference table");
            self.total = counted;
        }
    }

    /// Extends the counts to the size of the vdev.
    fn grow(&mut self, top: &TopVdev) {
        let config = top.config();
        let metaslab = 1u64.checked_shl(u32::try_from(config.ms_shift).unwrap_or(0)).unwrap_or(1);
        let size = config.asize.min(VDEV_MAX);
        let size = size - size % metaslab.max(1);
        let ranges = usize::try_from(size.div_ceil(RANGE)).unwrap_or(0).max(self.counts.len());
        self.counts.resize(ranges, 0);
        self.changed.resize((ranges * 2).div_ceil(BLOCK), false);
    }

    fn range(&mut self, offset: u64) -> Option<&mut u16> {
        self.counts.get_mut(usize::try_from(offset / RANGE).ok()?)
    }

    fn maybe_has(&self, offset: u64) -> bool {
        usize::try_from(offset / RANGE).ok().and_then(|n| self.counts.get(n)).is_some_and(|count| *count > 0)
    }

    /// Loads the entry of a block into memory.
    fn load(&mut self, offset: u64) -> Result<Entry, Error> {
        if let Some(entry) = self.live.get(&offset) {
            return Ok(*entry);
        }
        let mut stored = 0;
        if let Some(zap) = self.entries.as_ref().filter(|_| self.maybe_has(offset))
            && let Some(value) = zap.lookup_key(&[offset])?
        {
            let id = zap.object().id();
            let endian = self.endian.unwrap_or(Endian::Little);
            let broken = || Error::corrupt(id, "broken entry of a block reference table");
            stored = entry_count(value.int_size, &value.bytes, endian).ok_or_else(broken)?;
        }
        let entry = Entry { count: stored, stored };
        self.live.insert(offset, entry);
        Ok(entry)
    }

    /// Changes the count of entries of a range.
    ///
    /// # Errors
    /// If there are fewer by the count than there are: more of them could not be found.
    fn count(&mut self, offset: u64, more: bool) -> Result<(), Error> {
        let block = usize::try_from(offset / RANGE).unwrap_or(usize::MAX) / (BLOCK / 2);
        let object = self.object;
        let wrong =
            |what: &str| Error::corrupt(object, format!("block reference table: wrong number of entries {what}"));
        let total = if more { self.total.checked_add(1) } else { self.total.checked_sub(1) };
        let total = total.ok_or_else(|| wrong("in all"))?;
        if let Some(range) = self.range(offset) {
            // a full count stays so, as in OpenZFS
            *range = if more { Some(range.saturating_add(1)) } else { range.checked_sub(1) }
                .ok_or_else(|| wrong(&format!("at {offset:x}")))?;
        }
        self.total = total;
        if let Some(changed) = self.changed.get_mut(block) {
            *changed = true;
        }
        Ok(())
    }

    fn add(&mut self, offset: u64, dsize: u64, times: u64) -> Result<(), Error> {
        if self.range(offset).is_none() {
            return Err(Error::corrupt(self.object, format!("a clone of a block at {offset:x}, beyond its vdev")));
        }
        let entry = self.load(offset)?;
        self.saved = self.saved.saturating_add(dsize.saturating_mul(times));
        self.dirty = true;
        if entry.count == 0 {
            self.used = self.used.saturating_add(dsize);
            self.count(offset, true)?;
        }
        self.live.insert(offset, Entry { count: entry.count.saturating_add(times), ..entry });
        Ok(())
    }

    fn release(&mut self, offset: u64, dsize: u64) -> Result<bool, Error> {
        if !self.live.contains_key(&offset) && !self.maybe_has(offset) {
            return Ok(false);
        }
        let entry = self.load(offset)?;
        if entry.count == 0 {
            return Ok(false);
        }
        if entry.count == 1 {
            self.count(offset, false)?;
            self.used = self.less(self.used, dsize);
        }
        self.saved = self.less(self.saved, dsize);
        self.dirty = true;
        self.live.insert(offset, Entry { count: entry.count - 1, ..entry });
        Ok(true)
    }

    /// Returns a sum of space without `bytes`. OpenZFS lets it wrap; it is held at zero here, and does no harm but to the figures shown.
    fn less(&mut self, sum: u64, bytes: u64) -> u64 {
        if sum < bytes && !std::mem::replace(&mut self.miscounted, true) {
            let (object, what) = (self.object, "space of a block reference table");
            tracing::error!(target: "zuse::space", object = object.0, what, sum, bytes, "wrong counter");
        }
        sum.saturating_sub(bytes)
    }

    fn create(&mut self, cx: &TableSync<'_>, vdev: u64) -> Result<(), Error> {
        let zap = Zap::create_with(
            cx.tx,
            &cx.mos.objset,
            &NewZap {
                object_type: ObjectType::OTN_ZAP_METADATA,
                flags: FatHeader::FLAG_HASH64 | FatHeader::FLAG_UINT64_KEY,
                block_shift: SHIFT,
                indirect_shift: SHIFT,
                ..NewZap::default()
            },
        )?;
        let object = cx.mos.objset.alloc_object(
            cx.tx,
            &NewObject {
                object_type: ObjectType::OTN_UINT64_METADATA,
                block_size: BLOCK as u64,
                bonus_type: ObjectType::OTN_UINT64_METADATA,
                bonus_len: PHYS_SIZE,
                ..NewObject::default()
            },
        )?;
        cx.mos.directory.add_id(cx.tx, name_of(vdev), object.id())?;
        self.object = object.id();
        self.entries = Some(zap);
        self.endian = Some(Endian::Little);
        self.changed.iter_mut().for_each(|block| *block = true);
        // all entries of a pool have the byte order of the first
        let endian = if cx.features.active("block_cloning")? {
            cx.features.active("block_cloning_endian")?
        } else {
            cx.features.enabled("block_cloning_endian")?
        };
        if endian {
            cx.features.increment("block_cloning_endian")?;
        }
        cx.features.increment("block_cloning")
    }

    fn sync(&mut self, cx: &TableSync<'_>, vdev: u64) -> Result<(), Error> {
        if !self.dirty {
            self.live.clear();
            return Ok(());
        }
        if self.object.is_none() {
            self.create(cx, vdev)?;
        }
        let whole = cx.features.active("block_cloning_endian")?;
        let endian = self.endian.unwrap_or(Endian::Little);
        if let Some(zap) = &self.entries {
            for (offset, entry) in std::mem::take(&mut self.live) {
                if entry.count == entry.stored {
                    continue;
                }
                if entry.count == 0 {
                    zap.remove_key(cx.tx, &[offset])?;
                } else if whole {
                    zap.update_key(cx.tx, &[offset], &ZapValue::from_u64(entry.count))?;
                } else {
                    let bytes = endian.put_u64(entry.count);
                    zap.update_key(cx.tx, &[offset], &ZapValue::from_bytes(&bytes))?;
                }
            }
        }
        self.dirty = false;
        let is_empty = self.entries.as_ref().is_none_or(|zap| zap.count() == 0);
        if self.total == 0 && is_empty { self.destroy(cx, vdev) } else { self.put_counts(cx, endian) }
    }

    fn put_counts(&mut self, cx: &TableSync<'_>, endian: Endian) -> Result<(), Error> {
        let object = cx.mos.object(self.object)?;
        for (n, block) in self.counts.chunks(BLOCK / 2).enumerate() {
            if self.changed.get(n) != Some(&true) {
                continue;
            }
            let mut bytes: Vec<u8> = block.iter().flat_map(|count| endian.put_u16(*count)).collect();
            bytes.resize(BLOCK, 0);
            object.write(cx.tx, (n * BLOCK) as u64, &bytes)?;
        }
        self.changed.iter_mut().for_each(|block| *block = false);
        let words = [
            self.entries.as_ref().map_or(0, |zap| zap.object().id().0),
            self.counts.len() as u64,
            u64::from(endian == Endian::Big),
            self.total,
            RANGE,
            self.used,
            self.saved,
        ];
        let bonus: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        Ok(object.set_bonus(cx.tx, &bonus)?)
    }

    fn destroy(&mut self, cx: &TableSync<'_>, vdev: u64) -> Result<(), Error> {
        if let Some(zap) = self.entries.take() {
            cx.mos.objset.free_object(cx.tx, zap.object().id())?;
        }
        cx.mos.objset.free_object(cx.tx, self.object)?;
        cx.mos.directory.remove(cx.tx, name_of(vdev))?;
        *self = VdevState::default();
        cx.features.decrement("block_cloning")?;
        if cx.features.active("block_cloning_endian")? {
            cx.features.decrement("block_cloning_endian")?;
        }
        Ok(())
    }
}

/// Size of the bonus buffer.
const PHYS_SIZE: usize = 56;

fn name_of(vdev: u64) -> String {
    format!("com.fudosecurity:brt:vdev:{vdev}")
}

impl LiveClones {
    /// Opens the tables of the pool whose MOS is `mos` (OpenZFS: `brt_load`).
    ///
    /// # Errors
    /// When the MOS cannot be read or a table is broken.
    pub fn open(mos: Arc<Objset>) -> Result<LiveClones, Error> {
        let view = Mos::open(mos.clone())?;
        let mut state = State::default();
        for top in mos.zio().tree().tops() {
            if let Some(id) = view.id_of(&name_of(top.id()))?.filter(|id| id.is_some()) {
                state.vdevs.insert(top.id(), VdevState::open(&view, id, top)?);
            }
        }
        Ok(LiveClones { mos, state: Mutex::new(state) })
    }

    /// Notes that a pointer to the block of `bp` was written in the sync of `txg` (OpenZFS: `brt_pending_add`).
    pub fn add(&self, txg: Txg, bp: &BlkPtr) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        let place = (bp.dva(0).vdev(), bp.dva(0).offset());
        if let Some(notes) = self.state.lock().notes.get_mut(slot(txg)) {
            notes.entry(place).or_insert((*bp, 0)).1 += 1;
        }
    }

    /// Turns the notes of `txg` into references, when its data is written and before anything is freed. Blocks in the dedup table are
    /// counted there (OpenZFS: `brt_pending_apply`). Returns the blocks.
    ///
    /// # Errors
    /// When a table cannot be read.
    pub fn apply(&self, txg: Txg, dedup: Option<&LiveTables>) -> Result<Vec<BlkPtr>, Error> {
        let notes = match self.state.lock().notes.get_mut(slot(txg)) {
            Some(notes) => std::mem::take(notes),
            None => return Ok(Vec::new()),
        };
        let blocks = notes.values().map(|(bp, _)| *bp).collect();
        for ((vdev, offset), (bp, mut times)) in notes {
            if let Some(tables) = dedup.filter(|_| bp.is_dedup()) {
                while times > 0 && tables.clone_ref(&bp)? {
                    times -= 1;
                }
            }
            let tree = self.mos.zio().tree();
            let Some(top) = tree.top(vdev).filter(|_| times > 0) else { continue };
            let dsize = self.dsize(&bp);
            let mut state = self.state.lock();
            let table = state.vdevs.entry(vdev).or_default();
            table.grow(top);
            table.add(offset, dsize, times)?;
        }
        Ok(blocks)
    }

    /// Returns whether a sync has something to do.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.state.lock().vdevs.values().any(|table| table.dirty)
    }

    /// Returns the references of a block beyond the first.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn references(&self, bp: &BlkPtr) -> Result<u64, Error> {
        let (place, mut state) = (bp.dva(0), self.state.lock());
        let Some(table) = state.vdevs.get_mut(&place.vdev()) else { return Ok(0) };
        Ok(table.load(place.offset())?.count)
    }

    /// Writes the changes to disk (OpenZFS: `brt_sync`). To be called in each pass, before the space maps are written.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn sync(&self, cx: &TableSync<'_>) -> Result<(), Error> {
        let mut state = self.state.lock();
        for (vdev, table) in &mut state.vdevs {
            table.sync(cx, *vdev)?;
        }
        Ok(())
    }

    /// Returns the block's size as datasets are charged for it.
    fn dsize(&self, bp: &BlkPtr) -> u64 {
        let tree = self.mos.zio().tree();
        bp.dvas().filter_map(|dva| Some(tree.top(dva.vdev())?.deflated(dva.asize()))).fold(0, u64::saturating_add)
    }
}

fn slot(txg: Txg) -> usize {
    (txg.0 % TXGS as u64) as usize
}

impl CloneTable for LiveClones {
    fn add(&self, txg: Txg, bp: &BlkPtr) {
        LiveClones::add(self, txg, bp);
    }

    fn release(&self, _txg: Txg, bp: &BlkPtr) -> Result<bool, TableError> {
        let (place, dsize) = (bp.dva(0), self.dsize(bp));
        let mut state = self.state.lock();
        match state.vdevs.get_mut(&place.vdev()) {
            Some(table) => Ok(table.release(place.offset(), dsize)?),
            None => Ok(false),
        }
    }
}
