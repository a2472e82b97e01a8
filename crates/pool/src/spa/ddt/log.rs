//! The logs of a fast table (OpenZFS: `ddt_log.c`): changes of a txg are appended at once; collected changes are written to the ZAPs some
//! txgs later, in the order of keys, a part each txg.
//!
//! Two logs take turns: the *active* one receives the changes; the other is being *flushed*.

use std::collections::BTreeMap;

use base::{ObjectId, Txg};
use codec::ChecksumKind;
use dmu::{NewObject, Object, Zap};
use ondisk::ObjectType;
use ondisk::ddt::{DdtKey, DdtLogHeader, DdtValue};

use super::encode::{LOG_HEADER_SIZE, log_header, put_record, record_len};
use super::live::TableSync;
use super::{Class, Table};
use crate::Error;
use crate::spa::mos::Mos;

/// Size of a block of a log.
const BLOCK: usize = 128 << 10;
const FLUSHING: u8 = 1;
const CHECKPOINT: u8 = 2;
/// Txgs after which a log is flushed (OpenZFS: `zfs_dedup_log_txg_max`).
const TXG_MAX: u64 = 8;
/// Number of entries after which it is flushed at once: about 64 MiB.
const ENTRIES_MAX: usize = 1 << 19;
/// Number of txgs over which a backlog is spread (OpenZFS: `zfs_dedup_log_flush_txgs`).
const FLUSH_TXGS: usize = 100;
/// The fewest entries that are flushed in a txg (OpenZFS: `zfs_dedup_log_flush_entries_min`).
const FLUSH_MIN: usize = 200;

type Logged = (Option<Class>, DdtValue);

#[derive(Debug)]
struct LiveLog {
    object: ObjectId,
    header: DdtLogHeader,
    entries: BTreeMap<DdtKey, Logged>,
}

impl Default for LiveLog {
    fn default() -> Self {
        let header = DdtLogHeader { version: 1, flags: 0, length: 0, first_txg: Txg(0), checkpoint: None };
        LiveLog { object: ObjectId::NONE, header, entries: BTreeMap::new() }
    }
}

/// Both logs of a table.
#[derive(Debug, Default)]
pub(super) struct Logs {
    active: LiveLog,
    flushing: LiveLog,
}

impl Logs {
    pub(super) fn open(table: &Table) -> Result<Logs, Error> {
        let mut logs = Logs::default();
        logs.flushing.header.flags = FLUSHING;
        for log in &table.logs {
            let mut entries = BTreeMap::new();
            table.read_log(log, &mut |entry| {
                entries.insert(entry.key, (entry.stored, entry.value));
            })?;
            let live = LiveLog { object: log.object, header: log.header, entries };
            if log.header.flags & FLUSHING != 0 {
                logs.flushing = live;
            } else {
                logs.active = live;
            }
        }
        // the newer value counts
        let active = &logs.active.entries;
        logs.flushing.entries.retain(|key, _| !active.contains_key(key));
        Ok(logs)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active.entries.is_empty() && self.flushing.entries.is_empty()
    }

    /// Returns the objects of the logs.
    pub(super) fn objects(&self) -> impl Iterator<Item = ObjectId> {
        [self.active.object, self.flushing.object].into_iter().filter(|id| id.is_some())
    }

    pub(super) fn len(&self) -> usize {
        self.active.entries.len() + self.flushing.entries.len()
    }

    /// Returns the newest value of an entry, and the class of the ZAP that has it as well.
    pub(super) fn find(&self, key: &DdtKey) -> Option<Logged> {
        self.active.entries.get(key).or_else(|| self.flushing.entries.get(key)).cloned()
    }

    /// Appends entries, in the order of their keys, to the active log.
    pub(super) fn append(
        &mut self,
        cx: &TableSync<'_>,
        checksum: ChecksumKind,
        names: &Zap,
        entries: Vec<(DdtKey, Logged)>,
    ) -> Result<(), Error> {
        if self.active.object.is_none() {
            self.flushing.header.flags |= FLUSHING;
            self.active.create(cx, checksum, names, 0)?;
            self.flushing.create(cx, checksum, names, 1)?;
        }
        let log = &mut self.active;
        let object = cx.mos.object(log.object)?;
        let block_size = usize::try_from(object.block_size()).unwrap_or(BLOCK).max(4096);
        let mut block = Vec::with_capacity(block_size);
        let mut entries = entries.into_iter().peekable();
        while let Some((key, (stored, value))) = entries.next() {
            put_record(&key, &value, stored, &mut block);
            let full = block.len() + record_len(value.flat) > block_size;
            if full || entries.peek().is_none() {
                block.resize(block_size, 0);
                object.write(cx.tx, log.header.length, &block)?;
                log.header.length += block_size as u64;
                block.clear();
            }
            self.flushing.entries.remove(&key);
            log.entries.insert(key, (stored, value));
        }
        log.put_header(cx)
    }

    /// Takes the entries that are due from the log being flushed, in order (OpenZFS: `ddt_sync_flush_log`).
    pub(super) fn take_due(&mut self) -> Vec<(DdtKey, Logged)> {
        let due = (self.len() / FLUSH_TXGS).max(FLUSH_MIN) * 5 / 4;
        let due = due.min(self.flushing.entries.len());
        std::iter::from_fn(|| self.flushing.entries.pop_first()).take(due).collect()
    }

    /// Records that everything up to `last` is flushed; when nothing is left, begins with the other log if that is due.
    pub(super) fn flushed(&mut self, cx: &TableSync<'_>, last: Option<DdtKey>) -> Result<(), Error> {
        if let Some(last) = last {
            let log = &mut self.flushing;
            if log.entries.is_empty() {
                log.truncate(cx)?;
            } else {
                log.header.flags |= CHECKPOINT;
                log.header.checkpoint = Some(last);
                log.put_header(cx)?;
            }
        }
        if !self.flushing.entries.is_empty() || self.active.entries.is_empty() {
            return Ok(());
        }
        if self.flushing.header.length > 0 {
            self.flushing.truncate(cx)?;
        }
        let old = cx.tx.txg().0 >= self.active.header.first_txg.0.saturating_add(TXG_MAX);
        if old || self.active.entries.len() >= ENTRIES_MAX {
            std::mem::swap(&mut self.active, &mut self.flushing);
            self.active.header.flags &= !(FLUSHING | CHECKPOINT);
            self.active.header.checkpoint = None;
            self.active.header.first_txg = cx.tx.txg();
            self.flushing.header.flags |= FLUSHING;
            self.active.put_header(cx)?;
            self.flushing.put_header(cx)?;
        }
        Ok(())
    }

    /// Removes the objects of empty logs.
    pub(super) fn destroy(&mut self, cx: &TableSync<'_>, checksum: ChecksumKind, names: &Zap) -> Result<(), Error> {
        for n in 0..2 {
            let name = log_name(checksum, n);
            if let Some(id) = names.lookup_id(&name)? {
                names.remove(cx.tx, &name)?;
                cx.mos.objset.free_object(cx.tx, id)?;
            }
        }
        *self = Logs::default();
        Ok(())
    }
}

impl LiveLog {
    fn create(&mut self, cx: &TableSync<'_>, checksum: ChecksumKind, names: &Zap, n: u32) -> Result<(), Error> {
        let object = cx.mos.objset.alloc_object(
            cx.tx,
            &NewObject {
                object_type: ObjectType::OTN_UINT64_METADATA,
                block_size: BLOCK as u64,
                bonus_type: ObjectType::OTN_UINT64_METADATA,
                bonus_len: LOG_HEADER_SIZE,
                ..NewObject::default()
            },
        )?;
        names.add_id(cx.tx, log_name(checksum, n), object.id())?;
        self.object = object.id();
        self.header.length = 0;
        self.header.first_txg = cx.tx.txg();
        self.put_header(cx)
    }

    fn open(&self, mos: &Mos) -> Result<Object, Error> {
        mos.object(self.object)
    }

    fn put_header(&self, cx: &TableSync<'_>) -> Result<(), Error> {
        Ok(self.open(cx.mos)?.set_bonus(cx.tx, &log_header(&self.header))?)
    }

    fn truncate(&mut self, cx: &TableSync<'_>) -> Result<(), Error> {
        if self.object.is_none() {
            return Ok(());
        }
        self.open(cx.mos)?.free_range(cx.tx, 0, u64::MAX)?;
        self.header.length = 0;
        self.header.flags &= !CHECKPOINT;
        self.header.checkpoint = None;
        self.put_header(cx)
    }
}

fn log_name(checksum: ChecksumKind, n: u32) -> String {
    format!("DDT-log-{}-{n}", checksum.name())
}
