//! The dedup tables of a pool open for writing.
//!
//! Entries looked up in a txg are loaded into memory ([`DedupTable::load`], from many threads); writes and frees change them there. The
//! sync of the txg writes the changed ones to the ZAPs, or to the log of a fast table, and drops the rest. Blocks without references are
//! freed then, not before: until then the same content may be written again.
//!
//! All of it happens in the sync thread, or in its workers: there is one txg at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Txg;
use codec::ChecksumKind;
use dmu::{Objset, Tx};
use ondisk::BlkPtr;
use ondisk::ddt::DdtKey;
use parking_lot::Mutex;
use zio::{DedupLookup, DedupTable, TableError, Zio};

use super::quota::Quota;
use super::table::{Live, LiveTable, STATS};
use super::{CHECKSUMS, Table};
use crate::Error;
use crate::spa::mos::Mos;

/// Counts the uses of features, for code that makes and destroys objects that are uses of them.
pub trait FeatureUse {
    /// Returns whether the pool may use the feature.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    fn enabled(&self, name: &str) -> Result<bool, Error>;

    /// Returns whether the pool uses the feature.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    fn active(&self, name: &str) -> Result<bool, Error>;

    /// Adds one use.
    ///
    /// # Errors
    /// When the MOS cannot be read, or the feature is disabled.
    fn increment(&self, name: &str) -> Result<(), Error>;

    /// Removes one use.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    fn decrement(&self, name: &str) -> Result<(), Error>;
}

/// The context of one sync of the tables.
pub struct TableSync<'a> {
    pub(crate) mos: &'a Mos,
    /// The sync's transaction.
    pub tx: &'a Tx,
    /// The I/O pipeline, which frees blocks.
    pub zio: &'a Zio,
    /// The pool's features.
    pub features: &'a dyn FeatureUse,
    /// The pass of the sync, from 1.
    pub pass: u32,
    /// Seconds since 1970.
    pub now_s: u64,
    /// True if the pool is about to be exported: work that can wait is skipped.
    pub last: bool,
}

impl std::fmt::Debug for TableSync<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sync of tables, {:?}, pass {}", self.tx, self.pass)
    }
}

/// The dedup tables of a pool open for writing (OpenZFS: `spa_ddt`).
#[derive(Debug)]
pub struct LiveTables {
    fast: AtomicBool,
    quota: Quota,
    pub(super) tables: Mutex<BTreeMap<u8, LiveTable>>,
    /// A block that the tables could not take in where no error could be returned; the sync fails with it.
    failed: Mutex<Option<String>>,
}

impl LiveTables {
    /// Opens the tables of the pool whose MOS is `mos` (OpenZFS: `ddt_load`).
    ///
    /// # Errors
    /// When the MOS or a log cannot be read.
    pub fn open(mos: Arc<Objset>) -> Result<LiveTables, Error> {
        let view = Mos::open(mos)?;
        let mut tables = BTreeMap::new();
        if let Some(stats) = view.named_zap(STATS)? {
            for kind in CHECKSUMS.into_iter().filter_map(ChecksumKind::from_u8) {
                if let Some(table) = Table::open(&view, kind, Some(&stats))? {
                    tables.insert(kind as u8, LiveTable::open(&view, &table)?);
                }
            }
        }
        let live = LiveTables {
            fast: AtomicBool::new(false),
            quota: Quota::open(&view)?,
            tables: Mutex::new(tables),
            failed: Mutex::default(),
        };
        live.note_size(&view)?;
        Ok(live)
    }

    /// Sets whether new tables may be fast ones (feature `fast_dedup` is enabled).
    pub fn set_fast(&self, fast: bool) {
        self.fast.store(fast, Ordering::Relaxed);
    }

    /// Sets the quota of all tables: bytes, 0 for none, all ones for the capacity of dedicated devices (property `dedup_table_quota`).
    pub fn set_quota(&self, bytes: u64) {
        self.quota.set_limit(bytes);
    }

    /// Notes how full the devices dedicated to the tables are: bytes allocated, bytes in total. `None`: there are no such devices.
    pub fn note_class(&self, class: Option<(u64, u64)>) {
        self.quota.note_class(class);
    }

    /// Has the table in which [`DedupTable::find`] has looked the pointer up take it in. If it does not, the block would be freed while it is in use:
    /// its txg must not reach the disk.
    fn must(&self, bp: &BlkPtr, what: &str, work: impl FnOnce(&mut LiveTable) -> bool) {
        if !self.tables.lock().get_mut(&bp.checksum()).is_some_and(work) {
            let what = format!("dedup table: no entry to {what} the block at {:?} of txg {}", bp.dva(0), bp.birth());
            self.failed.lock().get_or_insert(what);
        }
    }

    fn note_size(&self, mos: &Mos) -> Result<(), Error> {
        let sizes = self.tables.lock().values().map(|table| table.dspace(mos)).collect::<Result<Vec<_>, _>>()?;
        self.quota.note_size(sizes.into_iter().fold(0, u64::saturating_add));
        Ok(())
    }

    /// Returns the number of entries in the logs that are not yet in the ZAPs.
    #[must_use]
    pub fn logged(&self) -> usize {
        self.tables.lock().values().map(|table| table.logs.len()).sum()
    }

    /// Returns whether a sync has something to do.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.tables.lock().values().any(|table| table.live.values().any(|live| live.dirty))
    }

    /// Runs `work` on the table of the pointer's checksum, with the pointer's entry in memory.
    fn with_entry<R>(&self, bp: &BlkPtr, work: impl FnOnce(&mut LiveTable) -> R) -> Result<Option<R>, Error> {
        let Some(kind) = ChecksumKind::from_u8(bp.checksum()).filter(|kind| CHECKSUMS.contains(&(*kind as u8))) else {
            return Ok(None);
        };
        let key = DdtKey::of(bp);
        let (stores, flat) = {
            let mut tables = self.tables.lock();
            let table = tables.entry(kind as u8).or_insert_with(|| LiveTable::new(kind));
            table.configure(self.fast.load(Ordering::Relaxed));
            if table.recall(&key) {
                return Ok(Some(work(table)));
            }
            (table.zaps(), table.flat())
        };
        // read without the lock, so that other threads continue
        let found = LiveTable::look_up(&stores, &key, flat)?;
        let mut tables = self.tables.lock();
        let Some(table) = tables.get_mut(&(kind as u8)) else { return Ok(None) };
        table.learn(key, found);
        Ok(Some(work(table)))
    }

    /// Adds a reference to a block that is cloned; returns `false` if the table has no entry for it (OpenZFS: `ddt_addref`).
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn clone_ref(&self, bp: &BlkPtr) -> Result<bool, Error> {
        Ok(self.with_entry(bp, |table| table.add_ref(bp))?.unwrap_or(false))
    }

    /// Writes the changes to disk (OpenZFS: `ddt_sync`). To be called in each pass, before the space maps are written.
    ///
    /// # Errors
    /// When the MOS cannot be read, or a block cannot be freed; [`Error::Bug`] if a reference got lost.
    pub fn sync(&self, cx: &TableSync<'_>) -> Result<(), Error> {
        if let Some(what) = self.failed.lock().clone() {
            return Err(Error::Bug(what));
        }
        for table in self.tables.lock().values_mut() {
            let live = std::mem::take(&mut table.live);
            let dirty: Vec<(DdtKey, Live)> = live.into_iter().filter(|(_, live)| live.dirty).collect();
            let changed = !dirty.is_empty();
            if changed {
                table.ensure_directory(cx)?;
                if table.flat() {
                    sync_log(table, cx, dirty)?
                } else {
                    sync_stores(table, cx, dirty)?
                };
            }
            if table.flat() && cx.pass == 1 && !cx.last && !table.logs.is_empty() {
                flush_log(table, cx)?;
            }
        }
        self.note_size(cx.mos)
    }
}

/// Writes changes of a fast table to its log. Its ZAPs are not touched, but their statistics are no longer current. A block without
/// references is freed at once, with its entry: OpenZFS keeps both until the log is flushed, and until then `zdb` reports the block as
/// leaked.
fn sync_log(table: &mut LiveTable, cx: &TableSync<'_>, dirty: Vec<(DdtKey, Live)>) -> Result<(), Error> {
    let mut entries = Vec::with_capacity(dirty.len());
    for (key, mut live) in dirty {
        table.uncount(cx, &key, &live);
        if live.value.total_refcnt() > 0 {
            live.value.slots.iter_mut().for_each(|slot| slot.class_start = cx.now_s);
            entries.push((key, (live.stored, live.value)));
            continue;
        }
        table.flush_entry(cx, &key, live.value, live.stored)?;
        if table.logs.find(&key).is_some() {
            entries.push((key, (None, table.empty_value())));
        }
    }
    if !entries.is_empty() {
        let names = table.names(cx.mos)?;
        table.logs.append(cx, table.checksum, &names, entries)?;
    }
    table.put_stats(cx)?;
    table.clean_up(cx)
}

/// Writes changes of a traditional table to its ZAPs.
fn sync_stores(table: &mut LiveTable, cx: &TableSync<'_>, dirty: Vec<(DdtKey, Live)>) -> Result<(), Error> {
    for (key, live) in dirty {
        table.uncount(cx, &key, &live);
        table.flush_entry(cx, &key, live.value, live.stored)?;
    }
    table.put_stats(cx)?;
    table.clean_up(cx)
}

fn flush_log(table: &mut LiveTable, cx: &TableSync<'_>) -> Result<(), Error> {
    let due = table.logs.take_due();
    let last = due.last().map(|(key, _)| *key);
    for (key, (stored, value)) in due {
        table.flush_entry(cx, &key, value, stored)?;
    }
    table.logs.flushed(cx, last)?;
    if last.is_some() {
        table.put_stats(cx)?;
        table.clean_up(cx)?;
    }
    Ok(())
}

impl DedupTable for LiveTables {
    fn load(&self, bp: &BlkPtr) -> Result<(), TableError> {
        self.with_entry(bp, |_| ())?;
        Ok(())
    }

    fn find(&self, txg: Txg, bp: &BlkPtr, copies: u8) -> Result<DedupLookup, TableError> {
        let key = DdtKey::of(bp);
        let slot = self.with_entry(bp, |table| table.copies_of(&key, copies))?;
        let Some(slot) = slot else { return Ok(DedupLookup::Ordinary) };
        let Some((slot, have)) = slot else { return Ok(DedupLookup::Missing) };
        if have == 0 {
            // content that the table has with another number of copies is no new entry
            let new = self.tables.lock().get(&bp.checksum()).is_none_or(|table| table.is_new(&key));
            return Ok(if new && self.quota.is_over() { DedupLookup::Ordinary } else { DedupLookup::Missing });
        }
        // a block without a birth is none that could be referred to
        if have < usize::from(copies) || slot.phys_birth == Txg(0) {
            return Ok(DedupLookup::Ordinary);
        }
        let mut hit = *bp;
        let most = if bp.is_encrypted() { 2 } else { 3 };
        for (pair, dva) in hit.words.as_chunks_mut::<2>().0.iter_mut().zip(slot.dva).take(most) {
            *pair = [dva.word0, dva.word1];
        }
        hit.words[10] = txg.0;
        hit.words[9] = if slot.phys_birth == txg { 0 } else { slot.phys_birth.0 };
        Ok(DedupLookup::Hit(hit))
    }

    fn add_ref(&self, _txg: Txg, bp: &BlkPtr) {
        self.must(bp, "refer to", |table| table.add_ref(bp));
    }

    fn insert(&self, _txg: Txg, bp: &BlkPtr) {
        self.must(bp, "put in", |table| table.insert(bp));
    }

    fn forget(&self, _txg: Txg, bp: &BlkPtr) {
        if let Some(table) = self.tables.lock().get_mut(&bp.checksum()) {
            table.forget(bp);
        }
    }

    fn release(&self, _txg: Txg, bp: &BlkPtr) -> Result<bool, TableError> {
        Ok(self.with_entry(bp, |table| table.release(bp))?.unwrap_or(false))
    }
}
