//! One dedup table of a pool open for writing: its entries in memory, and its ZAPs (OpenZFS: `ddt_t`, `ddt_zap.c`).

use std::collections::BTreeMap;

use base::{ObjectId, Txg};
use codec::{ChecksumKind, Compress};
use dmu::{NewZap, Zap, ZapValue};
use ondisk::ddt::{DdtHistogram, DdtKey, DdtPhys, DdtStat, DdtValue};
use ondisk::zap::FatHeader;
use ondisk::{BlkPtr, Dva, ObjectType};

use super::encode::{class_number, key_words, packed};
use super::live::TableSync;
use super::log::Logs;
use super::{Class, FLAG_FLAT, FLAG_LOG, Store, decode, stat_of, used_bytes};
use crate::Error;
use crate::spa::frees::free_if_known;
use crate::spa::mos::Mos;

/// log2 of the size of data and of indirect blocks of the ZAPs (OpenZFS: `ddt_zap_default_bs`, `ddt_zap_default_ibs`).
const BLOCK_SHIFT: u8 = 15;
/// The statistics of all tables, in the MOS directory.
pub(super) const STATS: &str = "DDT-statistics";

/// An entry that was looked up in this txg.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) value: DdtValue,
    /// The class of the ZAP that has it, perhaps with an older value.
    pub(super) stored: Option<Class>,
    /// The value that the statistics of that ZAP count for it.
    counted: Option<DdtValue>,
    pub(super) dirty: bool,
}

/// One ZAP, with its statistics.
#[derive(Clone, Debug)]
pub(super) struct LiveStore {
    pub(super) zap: Zap,
    histogram: DdtHistogram,
}

/// The table of one checksum.
#[derive(Debug)]
pub(super) struct LiveTable {
    pub(super) checksum: ChecksumKind,
    /// True if values are flat, and changes go to a log first. Decided with the first entry.
    pub(super) fast: Option<bool>,
    /// The object of its directory; a traditional table has none but the MOS's.
    pub(super) directory: Option<ObjectId>,
    pub(super) stores: [Option<LiveStore>; 3],
    pub(super) logs: Logs,
    pub(super) live: BTreeMap<DdtKey, Live>,
}

impl LiveTable {
    pub(super) fn new(checksum: ChecksumKind) -> Self {
        LiveTable {
            checksum,
            fast: None,
            directory: None,
            stores: [None, None, None],
            logs: Logs::default(),
            live: BTreeMap::new(),
        }
    }

    /// Opens the table from disk.
    pub(super) fn open(mos: &Mos, table: &super::Table) -> Result<Self, Error> {
        let mut live = LiveTable::new(table.checksum);
        live.fast = Some(table.flat);
        live.directory = mos.id_of(&directory_name(table.checksum))?;
        for Store { class, zap, histogram, .. } in &table.stores {
            if let Some(slot) = live.stores.get_mut(class_number(*class)) {
                *slot = Some(LiveStore { zap: zap.clone(), histogram: histogram.clone() });
            }
        }
        live.logs = Logs::open(table)?;
        Ok(live)
    }

    /// Sets the form of a table that has no entries yet.
    pub(super) fn configure(&mut self, fast: bool) {
        self.fast.get_or_insert(fast);
    }

    pub(super) fn flat(&self) -> bool {
        self.fast == Some(true)
    }

    /// Returns the table's ZAPs.
    pub(super) fn zaps(&self) -> Vec<(Class, Zap)> {
        let stores = Class::ALL.into_iter().zip(&self.stores);
        stores.filter_map(|(class, store)| Some((class, store.as_ref()?.zap.clone()))).collect()
    }

    /// Returns the bytes that the table takes on disk.
    pub(super) fn dspace(&self, mos: &Mos) -> Result<u64, Error> {
        let zaps = self.stores.iter().flatten().map(|store| store.zap.object().id());
        let mut sum = 0u64;
        for id in zaps.chain(self.logs.objects()) {
            sum = sum.saturating_add(used_bytes(&mos.object(id)?));
        }
        Ok(sum)
    }

    /// Returns whether the table has no block for a key that was looked up.
    pub(super) fn is_new(&self, key: &DdtKey) -> bool {
        self.live
            .get(key)
            .is_none_or(|live| live.stored.is_none() && live.value.slots.iter().all(|slot| slot.phys_birth == Txg(0)))
    }

    pub(super) fn empty_value(&self) -> DdtValue {
        let flat = self.flat();
        DdtValue { slots: vec![DdtPhys::default(); if flat { 1 } else { 4 }], flat }
    }

    /// Returns the slot of a value for blocks of this many copies.
    fn slot_for(&self, copies: u8) -> usize {
        if self.flat() { 0 } else { usize::from(copies.clamp(1, 3)) }
    }

    /// Loads the logs' value of `key`. Returns whether the entry is in memory now.
    pub(super) fn recall(&mut self, key: &DdtKey) -> bool {
        if self.live.contains_key(key) {
            return true;
        }
        let Some((stored, value)) = self.logs.find(key) else { return false };
        let live = Live { value, stored, counted: None, dirty: false };
        self.live.insert(*key, live);
        true
    }

    /// Looks an entry up in the given ZAPs.
    pub(super) fn look_up(
        stores: &[(Class, Zap)],
        key: &DdtKey,
        flat: bool,
    ) -> Result<Option<(Class, DdtValue)>, Error> {
        for (class, zap) in stores {
            if let Some(value) = zap.lookup_key(&key_words(key))? {
                return Ok(Some((*class, decode(zap.object().id(), &value, flat)?)));
            }
        }
        Ok(None)
    }

    /// Takes over the value of `key` from the ZAPs, unless another thread was faster.
    pub(super) fn learn(&mut self, key: DdtKey, found: Option<(Class, DdtValue)>) {
        let empty = self.empty_value();
        self.live.entry(key).or_insert_with(|| match found {
            Some((class, value)) => {
                Live { value: value.clone(), stored: Some(class), counted: Some(value), dirty: false }
            }
            None => Live { value: empty, stored: None, counted: None, dirty: false },
        });
    }

    /// Returns the slot that can serve a block of `copies` copies, and the number of copies that it has.
    pub(super) fn copies_of(&self, key: &DdtKey, copies: u8) -> Option<(DdtPhys, usize)> {
        let slot = *self.live.get(key)?.value.slots.get(self.slot_for(copies))?;
        let most = if key.is_encrypted() { 2 } else { 3 };
        Some((slot, slot.dva.iter().take(most).filter(|dva| !dva.is_empty()).count()))
    }

    /// Returns the slot that `bp` refers to.
    fn slot_of(&mut self, bp: &BlkPtr) -> Option<(&mut DdtPhys, &mut bool)> {
        let live = self.live.get_mut(&DdtKey::of(bp))?;
        let (place, birth) = (bp.dva(0), bp.birth_physical());
        // the gang bit and the size belong to the address: they are the same in all references
        let slot = live.value.slots.iter_mut().find(|s| s.dva[0] == place && s.phys_birth == birth)?;
        Some((slot, &mut live.dirty))
    }

    pub(super) fn add_ref(&mut self, bp: &BlkPtr) -> bool {
        let Some((slot, dirty)) = self.slot_of(bp) else { return false };
        slot.refcnt = slot.refcnt.saturating_add(1);
        *dirty = true;
        true
    }

    /// Removes one reference; returns `false` if the table does not have the block.
    pub(super) fn release(&mut self, bp: &BlkPtr) -> bool {
        let Some((slot, dirty)) = self.slot_of(bp) else { return false };
        if slot.refcnt == 0 {
            return false;
        }
        slot.refcnt -= 1;
        *dirty = true;
        true
    }

    /// Adds new content; returns `false` if its entry has no slot for it.
    pub(super) fn insert(&mut self, bp: &BlkPtr) -> bool {
        let copies = bp.dvas().count().min(3) as u8;
        let (place, empty) = (self.slot_for(copies), self.empty_value());
        let live =
            self.live.entry(DdtKey::of(bp)).or_insert(Live { value: empty, stored: None, counted: None, dirty: false });
        let Some(slot) = live.value.slots.get_mut(place) else { return false };
        let dva = [bp.dva(0), bp.dva(1), bp.dva(2)];
        *slot = DdtPhys { dva, refcnt: 1, phys_birth: bp.birth_physical(), class_start: 0 };
        live.dirty = true;
        true
    }

    pub(super) fn forget(&mut self, bp: &BlkPtr) {
        if let Some((slot, _)) = self.slot_of(bp) {
            *slot = DdtPhys::default();
        }
        let key = DdtKey::of(bp);
        // as if it had never existed
        self.live.retain(|k, live| {
            *k != key || live.stored.is_some() || live.value.slots.iter().any(|s| s.phys_birth != Txg(0))
        });
    }

    /// Removes an entry's share from the statistics of its ZAP, which no longer has the current value.
    pub(super) fn uncount(&mut self, cx: &TableSync<'_>, key: &DdtKey, live: &Live) {
        let (Some(class), Some(value)) = (live.stored, &live.counted) else { return };
        let stat = stat_of(key, value, &cx.zio.tree());
        let zap = self.stores.get(class_number(class)).and_then(Option::as_ref).map(|store| store.zap.object().id());
        if let (Some(zap), Some(bucket)) = (zap, self.bucket(class, &stat)) {
            subtract(cx.mos, zap, bucket, &stat);
        }
    }

    fn bucket(&mut self, class: Class, stat: &DdtStat) -> Option<&mut DdtStat> {
        let store = self.stores.get_mut(class_number(class))?.as_mut()?;
        store.histogram.buckets.get_mut(stat.ref_blocks.checked_ilog2()? as usize)
    }

    /// Puts an entry into the ZAP of its class, or removes it from all if it has no references; frees blocks without references (OpenZFS:
    /// `ddt_sync_flush_entry`).
    pub(super) fn flush_entry(
        &mut self,
        cx: &TableSync<'_>,
        key: &DdtKey,
        mut value: DdtValue,
        stored: Option<Class>,
    ) -> Result<(), Error> {
        let flat = self.flat();
        for (n, slot) in value.slots.iter_mut().enumerate() {
            let ditto = !flat && n == 0;
            if slot.phys_birth != Txg(0) && (slot.refcnt == 0 || ditto) {
                let block = pointer(self.checksum, key, slot);
                *slot = DdtPhys::default();
                free_if_known(cx.zio, cx.tx.txg(), &block)?;
            }
        }
        let refcnt = value.total_refcnt();
        let class = if refcnt > 1 { Class::Duplicate } else { Class::Unique };
        let words = key_words(key);
        if let Some(old) = stored.filter(|old| *old != class || refcnt == 0)
            && let Some(Some(store)) = self.stores.get(class_number(old))
        {
            store.zap.remove_key(cx.tx, &words)?;
        }
        if refcnt == 0 {
            return Ok(());
        }
        self.ensure_store(cx, class)?;
        let stat = stat_of(key, &value, &cx.zio.tree());
        if let Some(bucket) = self.bucket(class, &stat) {
            bucket.add(&stat);
        }
        let Some(Some(store)) = self.stores.get(class_number(class)) else {
            return Err(Error::Bug(format!("dedup table {}: no ZAP of class {class:?}", self.checksum.name())));
        };
        Ok(store.zap.update_key(cx.tx, &words, &ZapValue { int_size: 1, bytes: packed(&value) })?)
    }

    /// Makes the statistics of all tables, and the directory of a fast table, unless they exist.
    pub(super) fn ensure_directory(&mut self, cx: &TableSync<'_>) -> Result<(), Error> {
        let root = &cx.mos.directory;
        if root.lookup_u64(STATS)?.is_none() {
            Zap::create_link(cx.tx, root, STATS, ObjectType::DDT_STATS)?;
        }
        if self.flat() && self.directory.is_none() {
            let own = Zap::create_link(cx.tx, root, &directory_name(self.checksum), ObjectType::OTN_ZAP_METADATA)?;
            own.add_u64(cx.tx, "version", 1)?;
            own.add_u64(cx.tx, "flags", FLAG_FLAT | FLAG_LOG)?;
            self.directory = Some(own.object().id());
            cx.features.increment("fast_dedup")?;
        }
        Ok(())
    }

    /// Returns the ZAP that names its objects.
    pub(super) fn names(&self, mos: &Mos) -> Result<Zap, Error> {
        match self.directory {
            Some(id) => mos.zap(id),
            None => Ok(mos.directory.clone()),
        }
    }

    fn ensure_store(&mut self, cx: &TableSync<'_>, class: Class) -> Result<(), Error> {
        if self.stores.get(class_number(class)).is_none_or(Option::is_some) {
            return Ok(());
        }
        let hashed = if self.checksum.is_dedup() { FatHeader::FLAG_PRE_HASHED_KEY } else { 0 };
        let zap = Zap::create_with(
            cx.tx,
            &cx.mos.objset,
            &NewZap {
                object_type: ObjectType::DDT_ZAP,
                flags: FatHeader::FLAG_HASH64 | FatHeader::FLAG_UINT64_KEY | hashed,
                block_shift: BLOCK_SHIFT,
                indirect_shift: BLOCK_SHIFT,
                ..NewZap::default()
            },
        )?;
        self.names(cx.mos)?.add_id(cx.tx, store_name(self.checksum, class), zap.object().id())?;
        if let Some(slot) = self.stores.get_mut(class_number(class)) {
            *slot = Some(LiveStore { zap, histogram: DdtHistogram::empty() });
        }
        Ok(())
    }

    /// Writes the statistics of the ZAPs.
    pub(super) fn put_stats(&self, cx: &TableSync<'_>) -> Result<(), Error> {
        let Some(stats) = cx.mos.named_zap(STATS)? else { return Ok(()) };
        for (class, store) in Class::ALL.into_iter().zip(&self.stores) {
            let Some(store) = store else { continue };
            let words: Vec<u64> = store.histogram.buckets.iter().flat_map(words_of).collect();
            stats.update(cx.tx, store_name(self.checksum, class), 8, &words)?;
        }
        Ok(())
    }

    /// Removes the objects of an empty table; its form is decided anew with its next entry (OpenZFS: `ddt_sync_update_stats`).
    pub(super) fn clean_up(&mut self, cx: &TableSync<'_>) -> Result<(), Error> {
        let stored: u64 = self.stores.iter().flatten().map(|store| store.zap.count()).sum();
        if stored > 0 {
            return Ok(());
        }
        let names = self.names(cx.mos)?;
        let stats = cx.mos.named_zap(STATS)?;
        for (class, slot) in Class::ALL.into_iter().zip(&mut self.stores) {
            let Some(store) = slot.take() else { continue };
            let name = store_name(self.checksum, class);
            names.remove(cx.tx, &name)?;
            if let Some(stats) = &stats {
                stats.remove(cx.tx, &name)?;
            }
            cx.mos.objset.free_object(cx.tx, store.zap.object().id())?;
        }
        if !self.logs.is_empty() {
            return Ok(());
        }
        if let Some(directory) = self.directory.take() {
            self.logs.destroy(cx, self.checksum, &names)?;
            cx.mos.directory.remove(cx.tx, directory_name(self.checksum))?;
            cx.mos.objset.free_object(cx.tx, directory)?;
            cx.features.decrement("fast_dedup")?;
        }
        self.fast = None;
        Ok(())
    }
}

pub(super) fn directory_name(checksum: ChecksumKind) -> String {
    format!("DDT-{}", checksum.name())
}

fn store_name(checksum: ChecksumKind, class: Class) -> String {
    format!("DDT-{}-zap-{}", checksum.name(), class.as_str())
}

fn words_of(stat: &DdtStat) -> [u64; 8] {
    [stat.blocks, stat.lsize, stat.psize, stat.dsize, stat.ref_blocks, stat.ref_lsize, stat.ref_psize, stat.ref_dsize]
}

/// Takes an entry's share from the statistics of the ZAP in object `zap`.
fn subtract(mos: &Mos, zap: ObjectId, from: &mut DdtStat, stat: &DdtStat) {
    let [a, b, c, d, e, f, g, h] = words_of(stat);
    let fields = [
        (&mut from.blocks, a),
        (&mut from.lsize, b),
        (&mut from.psize, c),
        (&mut from.dsize, d),
        (&mut from.ref_blocks, e),
        (&mut from.ref_lsize, f),
        (&mut from.ref_psize, g),
        (&mut from.ref_dsize, h),
    ];
    for (sum, n) in fields {
        mos.count(zap, "statistics of a dedup table", sum, n.cast_signed().wrapping_neg());
    }
}

/// Returns a pointer to the block of a slot, suitable for freeing it: an ordinary one, without the dedup bit (OpenZFS: `ddt_bp_create`).
fn pointer(checksum: ChecksumKind, key: &DdtKey, slot: &DdtPhys) -> BlkPtr {
    use base::bytes::with_bits;
    let mut bp = BlkPtr::HOLE;
    for (pair, Dva { word0, word1 }) in bp.words.as_chunks_mut::<2>().0.iter_mut().zip(slot.dva) {
        *pair = [word0, word1];
    }
    let compress = Compress::from_u8(key.compression()).unwrap_or(Compress::Off);
    let fields = [
        (0, 16, (key.lsize() >> 9).wrapping_sub(1)),
        (16, 16, (key.psize() >> 9).wrapping_sub(1)),
        (32, 7, compress as u64),
        (40, 8, checksum as u64),
        (48, 8, ObjectType::DEDUP.0.into()),
        (61, 1, key.is_encrypted().into()),
        (63, 1, 1),
    ];
    bp.words[6] = fields.into_iter().fold(0, |word, (low, width, value)| with_bits(word, low, width, value));
    bp.words[10] = slot.phys_birth.0;
    bp.words[11] = 1;
    for (word, sum) in bp.words.iter_mut().skip(12).zip(key.cksum) {
        *word = sum;
    }
    bp
}
