//! Dedup tables: statistics and entries (OpenZFS: `ddt.c`, `ddt_zap.c`, `ddt_log.c`).
//!
//! Each checksum that dedup uses has a table: up to three ZAPs by class of entry (obsolete ditto, several references, one reference). With
//! fast dedup the ZAPs are in a directory of the table, values are flat, and changes go first to one of two logs: the current value of an
//! entry is the active log's, else the flushing log's, else the ZAP's.
//!
//! This module is the read side. A pool open for writing has [`LiveTables`].

mod encode;
mod live;
mod log;
mod prune;
mod quota;
mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::BTreeMap;

use base::{Endian, ObjectId};
use codec::{ChecksumKind, Compress};
use dmu::{Zap, ZapValue};
use ondisk::ddt::{DdtHistogram, DdtKey, DdtLogHeader, DdtLogRecord, DdtStat, DdtValue};
use vdev::VdevTree;

use crate::spa::mos::{self, Mos};
use crate::{Error, Pool};

pub use live::{FeatureUse, LiveTables, TableSync};
pub use prune::Prune;

/// Numbers of the checksums that dedup may use.
const CHECKSUMS: [u8; 5] = [8, 11, 12, 13, 14];
/// Flag of a table with the flat values of fast dedup.
const FLAG_FLAT: u64 = 1;
/// Flag of a table with a log.
const FLAG_LOG: u64 = 2;

/// The class of an entry (OpenZFS: `ddt_class_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Class {
    /// With additional copies (obsolete).
    Ditto,
    /// With several references.
    Duplicate,
    /// With one reference.
    Unique,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Class; 3] = [Class::Ditto, Class::Duplicate, Class::Unique];

    /// Returns the class as it appears in names of objects.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::Ditto => "ditto",
            Class::Duplicate => "duplicate",
            Class::Unique => "unique",
        }
    }

    fn from_number(n: u8) -> Option<Class> {
        Self::ALL.get(usize::from(n)).copied()
    }
}

/// One ZAP of a table.
#[derive(Clone, Debug)]
pub struct Store {
    /// The class of its entries.
    pub class: Class,
    /// The name that zdb shows.
    pub name: String,
    /// The ZAP's object.
    pub object: ObjectId,
    /// Number of entries.
    pub count: u64,
    /// Bytes that it takes on disk.
    pub dspace: u64,
    /// Bytes that it takes in memory.
    pub mspace: u64,
    /// Its statistics.
    pub histogram: DdtHistogram,
    zap: Zap,
}

/// One log of a table.
#[derive(Clone, Debug)]
pub struct Log {
    /// Its name.
    pub name: String,
    /// Its object.
    pub object: ObjectId,
    /// Its header.
    pub header: DdtLogHeader,
    /// Bytes that it takes on disk.
    pub dspace: u64,
}

/// The dedup table of one checksum (OpenZFS: `ddt_t`).
#[derive(Clone, Debug)]
pub struct Table {
    /// The checksum.
    pub checksum: ChecksumKind,
    /// True if values are flat (fast dedup).
    pub flat: bool,
    /// Its ZAPs.
    pub stores: Vec<Store>,
    /// Its logs.
    pub logs: Vec<Log>,
    mos: Mos,
}

/// An entry of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The block's key.
    pub key: DdtKey,
    /// The entry's class; for an entry that no ZAP has yet, the one it will have.
    pub class: Class,
    /// The class of the ZAP that has it, perhaps with an older value.
    pub stored: Option<Class>,
    /// The block's addresses and reference counts.
    pub value: DdtValue,
}

impl Store {
    fn open(
        mos: &Mos,
        directory: &Zap,
        stats: Option<&Zap>,
        name: String,
        class: Class,
    ) -> Result<Option<Store>, Error> {
        let Some(id) = directory.lookup_id(&name)? else { return Ok(None) };
        let object = mos.object(id)?;
        let words = stats.map(|s| s.lookup(&name)).transpose()?.flatten().map(|v| v.u64s());
        let histogram = match words {
            Some(words) => DdtHistogram::from_words(&words).map_err(|source| Error::Format { object: id, source })?,
            None => DdtHistogram::empty(),
        };
        let phys = object.phys();
        let fill = phys.blkptr.iter().fold(0u64, |sum, bp| sum.saturating_add(bp.fill()));
        let (dspace, mspace) = (used_bytes(&object), fill.saturating_mul(object.block_size()));
        let zap = Zap::open(object)?;
        Ok(Some(Store { class, name, object: id, count: zap.count(), dspace, mspace, histogram, zap }))
    }
}

/// Returns the bytes that an object takes on disk, in whole sectors, as `dmu_object_info` counts them.
fn used_bytes(object: &dmu::Object) -> u64 {
    let phys = object.phys();
    let used = if phys.flags & ondisk::DnodePhys::FLAG_USED_BYTES != 0 { phys.used } else { phys.used << 9 };
    (used.saturating_add(256) >> 9) << 9
}

/// Decodes the value of an entry from its ZAP.
fn decode(object: ObjectId, value: &ZapValue, flat: bool) -> Result<DdtValue, Error> {
    let broken = || Error::corrupt(object, "dedup entry with a broken value");
    let (version, packed) = value.as_bytes().and_then(|b| b.split_first()).ok_or_else(broken)?;
    // low bits: compression; top bit: byte order
    let endian = if version & 0x80 != 0 { Endian::Little } else { Endian::Big };
    let size = DdtValue::size(flat);
    let format = |source| Error::Format { object, source };
    match version & 0x7f {
        14 => {
            let mut plain = vec![0; size];
            codec::decompress(Compress::Zle, packed, &mut plain).map_err(|_| broken())?;
            DdtValue::decode(&plain, flat, endian).map_err(format)
        }
        // stored uncompressed, and then in this machine's order whatever the bit says; both agree on pools made here
        _ => DdtValue::decode(packed, flat, endian).map_err(format),
    }
}

impl Table {
    fn open(mos: &Mos, checksum: ChecksumKind, stats: Option<&Zap>) -> Result<Option<Table>, Error> {
        let sum = checksum.name();
        let own = mos.named_zap(&format!("DDT-{sum}"))?;
        let flags = match &own {
            None => 0,
            Some(dir) => {
                let number = |key: &str| -> Result<u64, Error> {
                    dir.lookup_u64(key)?
                        .ok_or_else(|| Error::corrupt(dir.object().id(), format!("dedup table without '{key}'")))
                };
                let (version, flags) = (number("version")?, number("flags")?);
                if version != 1 || flags & !(FLAG_FLAT | FLAG_LOG) != 0 {
                    return Err(Error::corrupt(
                        dir.object().id(),
                        format!("dedup table of version {version}, flags {flags:#x}"),
                    ));
                }
                flags
            }
        };
        let directory = own.as_ref().unwrap_or(&mos.directory);
        let mut stores = Vec::new();
        for class in Class::ALL {
            let name = format!("DDT-{sum}-zap-{}", class.as_str());
            stores.extend(Store::open(mos, directory, stats, name, class)?);
        }
        let mut logs = Vec::new();
        if flags & FLAG_LOG != 0 {
            for n in 0..2 {
                let name = format!("DDT-log-{sum}-{n}");
                let Some(id) = directory.lookup_id(&name)? else { continue };
                let object = mos.object(id)?;
                let header = Mos::bonus(&object, DdtLogHeader::decode)?;
                logs.push(Log { name, object: id, header, dspace: used_bytes(&object) });
            }
        }
        if stores.is_empty() && logs.is_empty() && own.is_none() {
            return Ok(None);
        }
        Ok(Some(Table { checksum, flat: flags & FLAG_FLAT != 0, stores, logs, mos: mos.clone() }))
    }

    /// Returns the entries of one ZAP, which may be older than those in the logs.
    ///
    /// # Errors
    /// While iterating: when the ZAP cannot be read or a value is broken.
    pub fn stored_entries<'a>(
        &'a self,
        store: &'a Store,
    ) -> Result<impl Iterator<Item = Result<Entry, Error>> + 'a, Error> {
        Ok(self.stored_entries_from(store, 0)?.map(|entry| entry.map(|(_, entry)| entry)))
    }

    /// As [`Table::stored_entries`], from a cursor on, each with the cursor after it, as zdb shows it.
    ///
    /// # Errors
    /// As [`Table::stored_entries`].
    pub fn stored_entries_from<'a>(
        &'a self,
        store: &'a Store,
        cookie: u64,
    ) -> Result<impl Iterator<Item = Result<(u64, Entry), Error>> + 'a, Error> {
        Ok(store.zap.entries_from(cookie)?.map(move |entry| {
            let entry = entry?;
            let key = entry.key();
            let words: [u64; 5] =
                key.as_slice().try_into().map_err(|_| Error::corrupt(store.object, "dedup key of a wrong length"))?;
            let value = decode(store.object, &entry.value, self.flat)?;
            let (class, stored) = (store.class, Some(store.class));
            Ok((entry.next_cookie, Entry { key: DdtKey::from_words(words), class, stored, value }))
        }))
    }

    /// Returns the entries in the logs, the newest for each key.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn log_entries(&self) -> Result<BTreeMap<DdtKey, Entry>, Error> {
        let mut all = BTreeMap::new();
        // the log being flushed is the older one
        let mut logs: Vec<&Log> = self.logs.iter().collect();
        logs.sort_by_key(|log| log.header.flags & 1 == 0);
        for log in logs {
            self.read_log(log, &mut |entry| {
                all.insert(entry.key, entry);
            })?;
        }
        Ok(all)
    }

    /// Returns the entries of one log, the newest for each key.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn entries_of(&self, log: &Log) -> Result<BTreeMap<DdtKey, Entry>, Error> {
        let mut all = BTreeMap::new();
        self.read_log(log, &mut |entry| {
            all.insert(entry.key, entry);
        })?;
        Ok(all)
    }

    fn read_log(&self, log: &Log, visit: &mut dyn FnMut(Entry)) -> Result<(), Error> {
        let object = self.mos.object(log.object)?;
        if log.header.version != 1 {
            return Err(Error::corrupt(log.object, format!("dedup log of version {}", log.header.version)));
        }
        let blocks = log.header.length.div_ceil(object.block_size().max(1));
        if blocks > object.most_blocks() {
            return Err(Error::corrupt(log.object, format!("dedup log claims {} bytes", log.header.length)));
        }
        for blkid in 0..blocks {
            let Some((block, endian)) = object.block_with_endian(blkid)? else { continue };
            let mut rest: &[u8] = &block;
            let format = |source| Error::Format { object: log.object, source };
            while let Some((record, len)) = DdtLogRecord::decode(rest, self.flat, endian).map_err(format)? {
                rest = rest.get(len..).unwrap_or(&[]);
                let flushed = log.header.checkpoint.is_some_and(|done| record.key <= done);
                // an entry that no ZAP has yet is marked by numbers beyond the last
                let stored = Class::from_number(record.class).filter(|_| record.entry_type == 0);
                let class =
                    stored.unwrap_or(if record.value.total_refcnt() > 1 { Class::Duplicate } else { Class::Unique });
                if !flushed {
                    visit(Entry { key: record.key, class, stored, value: record.value });
                }
            }
        }
        Ok(())
    }

    /// Visits every entry once; entries in the logs precede those in the ZAPs. Entries without references are left out.
    ///
    /// # Errors
    /// When the table cannot be read, or the error of `visit`.
    pub fn for_each(&self, visit: &mut dyn FnMut(&Entry) -> Result<(), Error>) -> Result<(), Error> {
        let logged = self.log_entries()?;
        for entry in logged.values().filter(|e| e.value.total_refcnt() != 0) {
            visit(entry)?;
        }
        for store in &self.stores {
            for entry in self.stored_entries(store)? {
                let entry = entry?;
                if !logged.contains_key(&entry.key) {
                    visit(&entry)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the statistics of the entries in the logs.
    fn log_stats(&self, pool: &Pool) -> Result<DdtHistogram, Error> {
        let mut histogram = DdtHistogram::empty();
        for entry in self.log_entries()?.values() {
            let stat = entry.stat(pool);
            if let Some(bucket) = stat.ref_blocks.checked_ilog2().and_then(|n| histogram.buckets.get_mut(n as usize)) {
                bucket.add(&stat);
            }
        }
        Ok(histogram)
    }

    /// Returns the statistics of all entries, logs included.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn histogram(&self, pool: &Pool) -> Result<DdtHistogram, Error> {
        let mut sum = self.log_stats(pool)?;
        for store in &self.stores {
            sum.buckets.iter_mut().zip(&store.histogram.buckets).for_each(|(a, b)| a.add(b));
        }
        Ok(sum)
    }

    /// Returns the bytes that the table takes on disk.
    #[must_use]
    pub fn dspace(&self) -> u64 {
        let logs = self.logs.iter().map(|l| l.dspace);
        self.stores.iter().map(|s| s.dspace).chain(logs).fold(0, u64::saturating_add)
    }
}

impl Entry {
    /// Returns the table's part in the statistics (OpenZFS: `ddt_stat_generate`).
    #[must_use]
    pub fn stat(&self, pool: &Pool) -> DdtStat {
        stat_of(&self.key, &self.value, pool.tree())
    }
}

/// Returns an entry's part in the statistics.
fn stat_of(key: &DdtKey, value: &DdtValue, tree: &VdevTree) -> DdtStat {
    let mut stat = DdtStat::default();
    let (lsize, psize) = (key.lsize(), key.psize());
    let copies = if key.is_encrypted() { 2 } else { 3 };
    for slot in value.slots.iter().filter(|s| s.phys_birth.0 != 0) {
        let dvas = slot.dva.iter().take(copies).filter(|d| !d.is_empty());
        let dsize =
            dvas.map(|d| tree.top(d.vdev()).map_or(0, |top| top.deflated(d.asize()))).fold(0, u64::saturating_add);
        let refs = |n: u64| n.wrapping_mul(slot.refcnt);
        stat.add(&DdtStat {
            blocks: 1,
            lsize,
            psize,
            dsize,
            ref_blocks: slot.refcnt,
            ref_lsize: refs(lsize),
            ref_psize: refs(psize),
            ref_dsize: refs(dsize),
        });
    }
    stat
}

impl Pool {
    /// Returns the dedup tables, by number of their checksum.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn ddts(&self) -> Result<Vec<Table>, Error> {
        let stats = self.mos.named_zap("DDT-statistics")?;
        let mut tables = Vec::new();
        if stats.is_none() {
            return Ok(tables);
        }
        for number in CHECKSUMS {
            let Some(kind) = ChecksumKind::from_u8(number) else { continue };
            tables.extend(Table::open(&self.mos, kind, stats.as_ref())?);
        }
        Ok(tables)
    }

    /// Returns the statistics of all dedup tables together.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn dedup_total(&self) -> Result<DdtStat, Error> {
        let mut sum = DdtStat::default();
        for table in self.ddts()? {
            sum.add(&table.histogram(self)?.total());
        }
        Ok(sum)
    }

    /// Returns the ratio of referenced to allocated bytes by dedup alone, in hundredths.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn dedupratio(&self) -> Result<u64, Error> {
        let total = self.dedup_total()?;
        let ratio = (u128::from(total.ref_dsize) * 100).checked_div(total.dsize.into());
        Ok(ratio.map_or(100, |n| u64::try_from(n).unwrap_or(u64::MAX)))
    }

    /// Returns the bytes that all dedup tables take on disk.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn dedup_table_size(&self) -> Result<u64, Error> {
        Ok(self.ddts()?.iter().map(Table::dspace).fold(0, u64::saturating_add))
    }
}

/// Returns the entries of the directory of a fast-dedup table, for display.
///
/// # Errors
/// When the MOS cannot be read.
pub fn directory_entries(pool: &Pool, checksum: ChecksumKind) -> Result<Vec<(String, u64)>, Error> {
    let Some(zap) = pool.mos.named_zap(&format!("DDT-{}", checksum.name()))? else { return Ok(Vec::new()) };
    Ok(mos::named_entries(&zap)?.into_iter().map(|(name, value)| (name, value.first())).collect())
}
