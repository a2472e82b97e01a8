//! The contents of the files below `kstat/zfs`.

use std::collections::HashMap;
use std::sync::Arc;

use pool::{DatasetStats, DmuTxStats, Spa, TxgState};
use site::{LiveHeld, LivePool};
use zil::write::ZilStats;
use zio::ArcCache;

use crate::layout::{self, Figure, Header, Value};
use crate::names;

/// The widths of the columns of `txgs`, of its titles and rows.
const TXGS: [usize; 12] = [8, 16, 5, 12, 12, 12, 8, 8, 12, 12, 12, 12];
const TXG_TITLES: [&str; 12] =
    ["txg", "birth", "state", "ndirty", "nread", "nwritten", "reads", "writes", "otime", "qtime", "wtime", "stime"];

/// Figures by their names.
pub(crate) type Kept = HashMap<&'static str, u64>;

/// The files of all pools together.
pub(crate) const OF_ALL: [&str; 13] = [
    "abdstats",
    "arcstats",
    "brtstats",
    "dbgmsg",
    "dbufstats",
    "dmu_tx",
    "dnodestats",
    "fm",
    "import_progress",
    "vdev_mirror_stats",
    "zfetchstats",
    "zil",
    "zstd",
];

/// The files of a pool but for those of its datasets; one that is only read has the first two.
pub(crate) const OF_POOL: [&str; 8] =
    ["guid", "state", "dmu_tx_assign", "iostats", "log_spacemaps", "multihost", "reads", "txgs"];
/// How many of them a pool that is only read has.
pub(crate) const OF_READ_POOL: usize = 2;

/// The beginning of the name of a dataset's file; its number follows, in hexadecimal.
pub(crate) const OBJSET: &str = "objset-0x";

/// The text of a file of all pools together; `None` if there is none such.
pub(crate) fn of_all(name: &str, pools: &[LivePool], header: Header) -> Option<String> {
    let figures = |names, kept: &Kept| Some(layout::named(header, &in_order(names, kept)));
    match name {
        "arcstats" => figures(names::ARCSTATS, &arcstats()),
        "dmu_tx" => {
            figures(names::DMU_TX, &sum(pools, &DmuTxStats::of_closed(), |spa| spa.txgs().stats.named().to_vec()))
        }
        "zil" => figures(names::ZIL, &sum(pools, &ZilStats::of_closed(), Spa::zil_figures)),
        "abdstats" => figures(names::ABDSTATS, &Kept::new()),
        "brtstats" => figures(names::BRTSTATS, &Kept::new()),
        "dbufstats" => figures(names::DBUFSTATS, &Kept::new()),
        "dnodestats" => figures(names::DNODESTATS, &Kept::new()),
        "fm" => figures(names::FM, &Kept::new()),
        "vdev_mirror_stats" => figures(names::VDEV_MIRROR_STATS, &Kept::new()),
        "zfetchstats" => figures(names::ZFETCHSTATS, &zfetchstats(pools)),
        "zstd" => figures(names::ZSTD, &Kept::new()),
        "dbgmsg" => Some(messages()),
        "import_progress" => Some(titles(
            &[20, 14, 14, 12, 16, 0],
            &["pool_guid", "load_state", "multihost_secs", "max_txg", "pool_name", "notes"],
        )),
        _ => None,
    }
}

/// The text of a file of a pool; `None` if there is none such.
pub(crate) fn of_pool(name: &str, pool: &LivePool, header: Header) -> Option<String> {
    match name {
        "guid" => return Some(format!("{}\n", pool.record.guid.0)),
        "state" => return Some(format!("{}\n", state(pool))),
        _ => {}
    }
    let LiveHeld::Writing(spa) = &pool.held else { return None };
    if let Some(number) = name.strip_prefix(OBJSET) {
        let stats = spa.dataset_stats().into_iter().find(|stats| format!("{:x}", stats.id().0) == number)?;
        return Some(layout::named(header, &of_dataset(&stats)));
    }
    match name {
        "txgs" => Some(txgs(spa, header.read_ns)),
        "iostats" => Some(layout::named(header, &in_order(names::IOSTATS, &iostats(spa)))),
        "log_spacemaps" => Some(layout::named(header, &in_order(names::LOG_SPACEMAPS, &log_spacemaps(spa)))),
        // it is not counted: a histogram without rows
        "dmu_tx_assign" => Some(layout::named(header, &[])),
        // the histories are empty, as they are in OpenZFS unless somebody asks for them
        "multihost" => Some(titles(
            &[10, 10, 10, 6, 10, 12, 24, 10, 0],
            &["id", "txg", "timestamp", "error", "duration", "mmp_delay", "vdev_guid", "vdev_label", "vdev_path"],
        )),
        "reads" => Some(titles(
            &[8, 16, 8, 8, 8, 8, 8, 24, 8, 16],
            &["UID", "start", "objset", "object", "level", "blkid", "aflags", "origin", "pid", "process"],
        )),
        _ => None,
    }
}

/// The names of the files of a pool's datasets that are open.
pub(crate) fn datasets(pool: &LivePool) -> Vec<String> {
    let LiveHeld::Writing(spa) = &pool.held else { return Vec::new() };
    let mut names: Vec<String> =
        spa.dataset_stats().iter().map(|stats| format!("{OBJSET}{:x}", stats.id().0)).collect();
    names.dedup();
    names
}

/// The state of a pool, in the words of `zpool status` (OpenZFS: `spa_state_to_name`).
pub(crate) fn state(pool: &LivePool) -> &'static str {
    match &pool.held {
        LiveHeld::Writing(spa) if spa.suspended().is_some() => "SUSPENDED",
        LiveHeld::Writing(spa) => spa.tree().status().state.name(),
        LiveHeld::Reading(view) => view.tree().status().state.name(),
    }
}

/// The figures of the cache, and of the machine's memory.
pub(crate) fn arcstats() -> Kept {
    let mut kept: Kept = ArcCache::stats_of_process().named().into_iter().collect();
    let get = |kept: &Kept, name: &str| kept.get(name).copied().unwrap_or(0);
    // targets are fractions of 2^32 there: of the cache for metadata, and of data and metadata for what was seen once
    let fraction =
        |part: u64, of: u64| (u128::from(part) << 32).checked_div(of.into()).unwrap_or(0).min(1 << 32) as u64;
    let seen_once = fraction(get(&kept, "p"), get(&kept, "c"));
    let data = get(&kept, "uncompressed_size");
    let metadata = fraction(get(&kept, "metadata_size"), data);
    kept.extend([("pd", seen_once), ("pm", seen_once), ("meta", metadata)]);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kept.extend([
        ("memory_all_bytes", meminfo(&memory, "MemTotal")),
        ("memory_free_bytes", meminfo(&memory, "MemFree")),
        ("memory_available_bytes", meminfo(&memory, "MemAvailable")),
    ]);
    kept
}

/// A figure of `/proc/meminfo`, in bytes; 0 if it is not there.
fn meminfo(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

/// Figures of all pools together, those that are closed included.
fn sum(pools: &[LivePool], closed: &[(&'static str, u64)], of: impl Fn(&Arc<Spa>) -> Vec<(&'static str, u64)>) -> Kept {
    let mut kept: Kept = closed.iter().copied().collect();
    for pool in pools {
        if let LiveHeld::Writing(spa) = &pool.held {
            for (name, n) in of(spa) {
                let sum = kept.entry(name).or_default();
                *sum = sum.wrapping_add(n);
            }
        }
    }
    kept
}

/// Reads of files that continued a stream, and reads that did not.
fn zfetchstats(pools: &[LivePool]) -> Kept {
    let [mut hits, mut misses] = DatasetStats::streams_of_closed();
    for pool in pools {
        if let LiveHeld::Writing(spa) = &pool.held {
            for [continued, not] in spa.dataset_stats().iter().map(|stats| stats.streams()) {
                hits += continued;
                misses += not;
            }
        }
    }
    Kept::from([("hits", hits), ("misses", misses)])
}

/// All figures of a kstat in its order; those that are not kept are 0.
fn in_order(names: &[&'static str], kept: &Kept) -> Vec<Figure> {
    names.iter().map(|name| ((*name).into(), kept.get(name).copied().unwrap_or(0).into())).collect()
}

/// The figures of a dataset; those of its intent log are kept by pool.
pub(crate) fn of_dataset(stats: &DatasetStats) -> Vec<Figure> {
    let name = ("dataset_name".into(), Value::String(stats.name().to_string()));
    let own = stats.named().into_iter().map(|(name, n)| (name.into(), n.into()));
    std::iter::once(name).chain(own).chain(in_order(names::ZIL, &Kept::new())).collect()
}

/// Blocks that were read from devices and written to them.
fn iostats(spa: &Spa) -> Kept {
    let stats = spa.zio().stats();
    Kept::from([
        ("arc_read_count", stats.blocks.get()),
        ("arc_read_bytes", stats.bytes.get()),
        ("arc_write_count", stats.written.get()),
        ("arc_write_bytes", stats.written_bytes.get()),
    ])
}

fn log_spacemaps(spa: &Spa) -> Kept {
    const ALSO: [(&str, &str); 4] = [
        ("sus_memused", "unflushed_memused"),
        ("sus_nmetaslabs", "unflushed_nmetaslabs"),
        ("sus_blocklimit", "unflushed_blocklimit"),
        ("sus_nblocks", "unflushed_nblocks"),
    ];
    let kept = spa.log_figures();
    let named = |(known, n): (&str, u64)| Some((ALSO.iter().find(|(ours, _)| *ours == known)?.1, n));
    kept.into_iter().filter_map(named).collect()
}

/// The history of txgs. Here none waits between its quiescence and its sync.
fn txgs(spa: &Spa, now_ns: u64) -> String {
    let mut text = titles(&TXGS, &TXG_TITLES);
    for (txg, state) in spa.txgs().recent() {
        let age = txg.born.map_or(0, |born| u64::try_from(born.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let letter = match state {
            TxgState::Open => 'O',
            TxgState::Quiescing => 'Q',
            TxgState::Syncing => 'S',
            TxgState::Committed => 'C',
        };
        layout::row(
            &mut text,
            &TXGS,
            &[
                &txg.txg,
                &now_ns.saturating_sub(age),
                &letter,
                &txg.dirty,
                &txg.read.1,
                &txg.written.1,
                &txg.read.0,
                &txg.written.0,
                &txg.open_ns,
                &txg.quiesce_ns,
                &0,
                &txg.sync_ns,
            ],
        );
    }
    text
}

fn messages() -> String {
    let mut text = titles(&[12, 8], &["timestamp", "message"]);
    for message in pool::dbgmsg::messages() {
        layout::row(&mut text, &[12, 0], &[&message.time, &message.text]);
    }
    text
}

/// The line of titles of a list.
fn titles(widths: &[usize], words: &[&'static str]) -> String {
    let mut text = String::new();
    let words: Vec<&dyn std::fmt::Display> = words.iter().map(|word| word as &dyn std::fmt::Display).collect();
    layout::row(&mut text, widths, &words);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_have_the_figures_of_openzfs_in_its_order() {
        let header = Header { id: 1, made_ns: 0, read_ns: 0 };
        for (name, figures) in [("arcstats", 149), ("zil", 21), ("dmu_tx", 13), ("dbufstats", 44), ("fm", 5)] {
            let text = of_all(name, &[], header).unwrap();
            let first = text.lines().next().unwrap();
            assert!(first.starts_with(&format!("1 1 0x01 {figures} {} ", figures * 272)), "{name}: {first}");
            assert_eq!(text.lines().count(), figures + 2, "{name}");
        }
        for name in OF_ALL {
            assert!(of_all(name, &[], header).is_some_and(|text| text.ends_with('\n')), "{name}");
        }
        assert_eq!(of_all("no_such", &[], header), None);
        // all that is kept has a place in the file
        let known =
            |kept: &Kept, names: &[&str]| kept.keys().filter(|name| !names.contains(name)).copied().collect::<Vec<_>>();
        let ours = ["mru_size", "p"];
        assert!(
            known(&arcstats(), names::ARCSTATS).iter().all(|name| ours.contains(name)),
            "{:?}",
            known(&arcstats(), names::ARCSTATS)
        );
    }

    #[test]
    fn memory_is_told_in_bytes() {
        let text = "MemTotal:       16303428 kB\nMemFree:         1234 kB\nMemAvailable:   x kB\n";
        assert_eq!(meminfo(text, "MemTotal"), 16_303_428 << 10);
        assert_eq!((meminfo(text, "MemFree"), meminfo(text, "MemAvailable"), meminfo(text, "Mem")), (1234 << 10, 0, 0));
    }

    #[test]
    fn titles_are_those_of_openzfs() {
        let wanted = "txg      birth            state ndirty       nread        nwritten     reads    writes   \
                      otime        qtime        wtime        stime       \n";
        assert_eq!(titles(&TXGS, &TXG_TITLES), wanted);
    }
}
