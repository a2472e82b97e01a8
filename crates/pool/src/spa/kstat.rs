//! The figures of an open pool under OpenZFS's names (`/proc/spl/kstat/zfs`).
//!
//! | kstat | of | open for |
//! |---|---|---|
//! | `zfs/arcstats` | the cache | reading, writing |
//! | `zfs/dmu_tx` | transactions, and why they waited | writing |
//! | `zfs/zil` | intent logs: who asked, what was written where | writing |
//! | `zfs/dbgmsg` | the last debug messages of the process | reading, writing |
//! | `zfs/POOL/txgs` | the last txgs: nanoseconds in each state | writing |
//! | `zfs/POOL/log_spacemaps` | the logs of space changes, and what they cost an import | reading, writing |
//!
//! OpenZFS has one cache, one `dmu_tx` and one `zil` for all pools, here each pool has its own. The logs of space changes have no kstat there; their
//! figures have the names of `spa_unflushed_stats_t` where it has them. A figure that is not kept is left out, never zero.

use std::fmt;
use std::sync::Arc;

use ondisk::spacemap::SpaceMapHeader;
use space::flush::LogSpacemapStats;

use crate::spa::datasets::Datasets;
use crate::spa::dbgmsg::{self, DebugMessage};
use crate::spa::{Spa, Txgs};
use crate::{Error, Pool};

/// The type of all our figures (Linux SPL: `KSTAT_DATA_UINT64`).
const UINT64: u32 = 4;

/// A named set of figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kstat {
    /// Its module: `zfs`, or `zfs/POOL`.
    pub module: String,
    /// Its name there.
    pub name: &'static str,
    /// The figures.
    pub data: KstatData,
}

/// The data of a kstat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KstatData {
    /// One number a name.
    Named(Vec<(&'static str, u64)>),
    /// Rows of numbers.
    Table {
        /// Their names.
        columns: &'static [&'static str],
        /// As many numbers in each as there are columns.
        rows: Vec<Vec<u64>>,
    },
    /// The lines of a log.
    Messages(Vec<DebugMessage>),
}

impl Kstat {
    fn global(name: &'static str, figures: Vec<(&'static str, u64)>) -> Kstat {
        Kstat { module: "zfs".to_owned(), name, data: KstatData::Named(figures) }
    }

    fn of_pool(pool: &str, name: &'static str, data: KstatData) -> Kstat {
        Kstat { module: format!("zfs/{pool}"), name, data }
    }

    /// The figure of this name, of a set of named ones.
    #[must_use]
    pub fn get(&self, figure: &str) -> Option<u64> {
        match &self.data {
            KstatData::Named(all) => all.iter().find(|(name, _)| *name == figure).map(|(_, n)| *n),
            KstatData::Table { .. } | KstatData::Messages(_) => None,
        }
    }
}

/// As the file of the kstat shows it: `name type data`, or a table.
impl fmt::Display for Kstat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.data {
            KstatData::Named(all) => {
                writeln!(f, "{:<31} {:<4} data", "name", "type")?;
                all.iter().try_for_each(|(name, n)| writeln!(f, "{name:<31} {UINT64:<4} {n}"))
            }
            KstatData::Table { columns, rows } => {
                let line = |words: Vec<String>| words.join(" ").trim_end().to_owned();
                let wide = |word: &dyn fmt::Display| format!("{word:<16}");
                writeln!(f, "{}", line(columns.iter().map(|name| wide(name)).collect()))?;
                rows.iter().try_for_each(|row| writeln!(f, "{}", line(row.iter().map(|n| wide(n)).collect())))
            }
            KstatData::Messages(all) => {
                writeln!(f, "{:<12} message", "timestamp")?;
                all.iter().try_for_each(|message| writeln!(f, "{:<12} {}", message.time, message.text))
            }
        }
    }
}

impl Pool {
    /// Returns the figures of a pool that is open for reading.
    ///
    /// # Errors
    /// When the space maps or their logs cannot be read.
    pub fn kstats(&self) -> Result<Vec<Kstat>, Error> {
        let arc = Kstat::global("arcstats", self.zio().arc().stats().named());
        Ok(vec![arc, dbgmsg(), self.log_spacemaps()?])
    }

    fn log_spacemaps(&self) -> Result<Kstat, Error> {
        let logs = self.log_space_maps()?;
        let mut blocks = 0u64;
        for (_, id) in &logs {
            let object = self.mos().object(*id)?;
            let header = SpaceMapHeader::decode(object.bonus(), object.endian())
                .map_err(|e| Error::corrupt(*id, e.to_string()))?;
            blocks = blocks.saturating_add(header.length.div_ceil(object.block_size().max(1)));
        }
        let (mut unflushed, mut allocs, mut frees) = (0, 0u64, 0u64);
        for top in self.tree().tops() {
            for metaslab in self.metaslabs(top.id())? {
                unflushed += u64::from(metaslab.unflushed_allocs > 0 || metaslab.unflushed_frees > 0);
                allocs = allocs.saturating_add(metaslab.unflushed_allocs);
                frees = frees.saturating_add(metaslab.unflushed_frees);
            }
        }
        let figures = vec![
            ("logs", logs.len() as u64),
            ("sus_nblocks", blocks),
            ("oldest_txg", logs.first().map_or(0, |(txg, _)| txg.0)),
            ("sus_nmetaslabs", unflushed),
            ("unflushed_allocs", allocs),
            ("unflushed_frees", frees),
        ];
        Ok(Kstat::of_pool(self.name(), "log_spacemaps", KstatData::Named(figures)))
    }
}

impl Spa {
    /// Returns the figures of a pool that is open for writing.
    #[must_use]
    pub fn kstats(self: &Arc<Self>) -> Vec<Kstat> {
        let arc = Kstat::global("arcstats", self.zio().arc().stats().named());
        let txgs = Kstat::of_pool(self.name(), "txgs", txgs(self.txgs()));
        let logs =
            Kstat::of_pool(self.name(), "log_spacemaps", KstatData::Named(log_figures(&self.space().log_stats())));
        let zil = Kstat::global("zil", self.zil_figures());
        vec![arc, dmu_tx(self.txgs()), zil, dbgmsg(), txgs, logs]
    }

    /// The figures of all intent logs of the pool. Nothing is waited for.
    #[must_use]
    pub fn zil_figures(self: &Arc<Self>) -> Vec<(&'static str, u64)> {
        Datasets::log_figures(&**self)
    }

    /// The figures of the logs of space changes. Nothing is waited for.
    #[must_use]
    pub fn log_figures(&self) -> Vec<(&'static str, u64)> {
        log_figures(&self.space().last_log_stats())
    }
}

fn log_figures(stats: &LogSpacemapStats) -> Vec<(&'static str, u64)> {
    vec![
        ("logs", stats.logs),
        ("sus_nblocks", stats.log_blocks),
        ("sus_blocklimit", stats.block_limit),
        ("sus_memused", stats.unflushed_memory),
        ("oldest_txg", stats.oldest_txg.0),
        ("sus_nmetaslabs", stats.unflushed_metaslabs),
        ("flushes", stats.flushes),
        ("flushes_total", stats.flushes_total),
        ("condenses", stats.condenses),
        ("condenses_total", stats.condenses_total),
        ("import_ms", (stats.import_seconds * 1000.0) as u64),
    ]
}

fn dbgmsg() -> Kstat {
    Kstat { module: "zfs".to_owned(), name: "dbgmsg", data: KstatData::Messages(dbgmsg::messages()) }
}

fn dmu_tx(txgs: &Txgs) -> Kstat {
    Kstat::global("dmu_tx", txgs.stats.named().to_vec())
}

fn txgs(txgs: &Txgs) -> KstatData {
    let row = |txg: crate::TxgRecord| {
        let passes = u64::from(txg.passes);
        vec![txg.txg, txg.dirty, passes, txg.open_ns, txg.quiesce_ns, txg.sync_ns, txg.first_pass_ns]
    };
    let rows = txgs.history().into_iter().map(row).collect();
    KstatData::Table { columns: &["txg", "ndirty", "passes", "otime", "qtime", "stime", "pass1time"], rows }
}
