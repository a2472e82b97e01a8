//! Metrics of pools, and of their datasets.

use std::collections::HashMap;
use std::sync::Arc;

use base::Guid;
use control::stats::Activity;
use nvlist::NvList;
use ondisk::scan::{ScanFunc, ScanState};
use pool::{Spa, TxgState};
use site::{LiveHeld, LivePool};

use super::Metric;
use crate::asked::Facts;
use crate::files;

/// The states of a pool.
const STATES: [&str; 7] = ["ONLINE", "DEGRADED", "FAULTED", "OFFLINE", "REMOVED", "UNAVAIL", "SUSPENDED"];

/// A number of nanoseconds, in seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// What is known without a request.
pub(super) fn of_memory(pools: &[LivePool]) -> Vec<Metric> {
    let mut states = Metric::gauge("zuse_pool_state", "1 for the state that the pool is in, 0 for the others");
    let mut suspended = Metric::gauge("zuse_pool_suspended", "Whether the pool waits for its devices");
    let mut read_only = Metric::gauge("zuse_pool_readonly", "Whether the pool was imported to be read");
    for pool in pools {
        let (name, now) = (pool.record.name.as_str(), files::state(pool));
        for state in STATES {
            states.add(&[("pool", name), ("state", state.to_lowercase().as_str())], u64::from(state == now));
        }
        suspended.add(&[("pool", name)], u64::from(now == "SUSPENDED"));
        read_only.add(&[("pool", name)], u64::from(matches!(pool.held, LiveHeld::Reading(_))));
    }
    let mut all = vec![states, suspended, read_only];
    let written: Vec<(&str, &Arc<Spa>)> = pools.iter().filter_map(written).collect();
    all.extend(txgs(&written));
    all.extend(transactions(&written));
    all.extend(logs(&written));
    all.extend(blocks(&written));
    all.extend(datasets_in_use(&written));
    all
}

fn written(pool: &LivePool) -> Option<(&str, &Arc<Spa>)> {
    match &pool.held {
        LiveHeld::Writing(spa) => Some((pool.record.name.as_str(), spa)),
        LiveHeld::Reading(_) => None,
    }
}

fn txgs(pools: &[(&str, &Arc<Spa>)]) -> Vec<Metric> {
    let mut last = Metric::gauge("zuse_pool_txg", "The last txg that is on disk");
    let mut dirty = Metric::gauge("zuse_pool_dirty_bytes", "Data that is not on disk yet");
    let mut times = Metric::gauge("zuse_pool_last_txg_seconds", "How long the last txg was in each state");
    for (name, spa) in pools {
        let pool = ("pool", *name);
        last.add(&[pool], spa.txgs().synced().0);
        dirty.add(&[pool], spa.txgs().dirty());
        let recent = spa.txgs().recent();
        let done = recent.iter().rev().find(|(_, state)| *state == TxgState::Committed);
        if let Some((txg, _)) = done {
            for (state, ns) in [("open", txg.open_ns), ("quiescing", txg.quiesce_ns), ("syncing", txg.sync_ns)] {
                times.add_float(&[pool, ("state", state)], seconds(ns));
            }
        }
    }
    vec![last, dirty, times]
}

fn transactions(pools: &[(&str, &Arc<Spa>)]) -> Vec<Metric> {
    let mut assigned = Metric::counter("zuse_pool_transactions", "Transactions that joined a txg");
    let mut delayed =
        Metric::counter("zuse_pool_transactions_delayed", "Transactions that were slowed, as much was dirty");
    let mut delay = Metric::counter("zuse_pool_transaction_delay_seconds", "How long they were");
    let mut waited =
        Metric::counter("zuse_pool_transactions_waited", "Transactions that waited, as too much was dirty");
    let mut refused = Metric::counter("zuse_pool_transactions_refused", "Transactions refused for lack of space");
    for (name, spa) in pools {
        let (pool, stats) = ([("pool", *name)], &spa.txgs().stats);
        assigned.add(&pool, stats.assigned.get());
        delayed.add(&pool, stats.delayed.get());
        delay.add_float(&pool, seconds(stats.delay_ns.get()));
        waited.add(&pool, stats.dirty_over_max.get());
        refused.add(&pool, stats.no_space.get());
    }
    vec![assigned, delayed, delay, waited, refused]
}

fn logs(pools: &[(&str, &Arc<Spa>)]) -> Vec<Metric> {
    let mut commits = Metric::counter("zuse_pool_zil_commits", "Times that somebody waited for the intent log");
    let mut failed = Metric::counter(
        "zuse_pool_zil_commits_failed",
        "Commits of the intent log that failed, stalled or met a crash",
    );
    let mut records = Metric::counter("zuse_pool_zil_records", "Records of the intent log");
    let mut bytes =
        Metric::counter("zuse_pool_zil_written_bytes", "Blocks of the intent log that were written, by place");
    for (name, spa) in pools {
        let (pool, kept): (_, HashMap<&str, u64>) = (("pool", *name), spa.zil_figures().into_iter().collect());
        let get = |name: &str| kept.get(name).copied().unwrap_or(0);
        commits.add(&[pool], get("zil_commit_count"));
        for (why, figure) in [
            ("error", "zil_commit_error_count"),
            ("stall", "zil_commit_stall_count"),
            ("crash", "zil_commit_crash_count"),
        ] {
            failed.add(&[pool, ("why", why)], get(figure));
        }
        records.add(&[pool], get("zil_itx_count"));
        bytes.add(&[pool, ("place", "normal")], get("zil_itx_metaslab_normal_write"));
        bytes.add(&[pool, ("place", "slog")], get("zil_itx_metaslab_slog_write"));
    }
    vec![commits, failed, records, bytes]
}

fn blocks(pools: &[(&str, &Arc<Spa>)]) -> Vec<Metric> {
    let mut count = Metric::counter(
        "zuse_pool_blocks",
        "Blocks that were read from devices, and copies written to them, since the pool was opened",
    );
    let mut bytes = Metric::counter("zuse_pool_blocks_bytes", "Their bytes");
    let mut damaged =
        Metric::counter("zuse_pool_blocks_damaged", "Blocks that were found damaged, by what became of them");
    for (name, spa) in pools {
        let (pool, stats) = (("pool", *name), spa.zio().stats());
        for (op, blocks, size) in
            [("read", &stats.blocks, &stats.bytes), ("write", &stats.written, &stats.written_bytes)]
        {
            count.add(&[pool, ("op", op)], blocks.get());
            bytes.add(&[pool, ("op", op)], size.get());
        }
        for (fate, n) in [("recovered", &stats.recovered), ("lost", &stats.lost), ("healed", &stats.healed)] {
            damaged.add(&[pool, ("fate", fate)], n.get());
        }
    }
    vec![count, bytes, damaged]
}

fn datasets_in_use(pools: &[(&str, &Arc<Spa>)]) -> Vec<Metric> {
    let mut operations =
        Metric::counter("zuse_dataset_operations", "Reads and writes of the users of a dataset, while it is open");
    let mut bytes = Metric::counter("zuse_dataset_bytes", "Their bytes");
    let mut unlinks = Metric::counter("zuse_dataset_unlinks", "Files that lost their last name");
    let mut unlinked = Metric::counter("zuse_dataset_unlinked", "Such files that have been freed");
    for (name, spa) in pools {
        let mut seen = Vec::new();
        for stats in spa.dataset_stats() {
            // one that is being closed while it is opened again
            if seen.contains(&stats.id()) {
                continue;
            }
            seen.push(stats.id());
            let (of, figures) = (stats.name(), HashMap::from(stats.named()));
            let labels = [("pool", *name), ("dataset", &*of)];
            let get = |name: &str| figures.get(name).copied().unwrap_or(0);
            for (op, count, size) in [("read", "reads", "nread"), ("write", "writes", "nwritten")] {
                operations.add(&[labels[0], labels[1], ("op", op)], get(count));
                bytes.add(&[labels[0], labels[1], ("op", op)], get(size));
            }
            unlinks.add(&labels, get("nunlinks"));
            unlinked.add(&labels, get("nunlinked"));
        }
    }
    vec![operations, bytes, unlinks, unlinked]
}

/// What requests tell.
pub(super) fn of_facts(pools: &[LivePool], facts: &HashMap<Guid, Arc<Facts>>) -> Vec<Metric> {
    let mut age = Metric::gauge(
        "zuse_pool_figures_age_seconds",
        "How old the figures of space, vdevs, scans and datasets are: a request for them may wait",
    );
    let mut props: Vec<(Metric, &str, f64)> = [
        ("zuse_pool_size_bytes", "Space of the pool, parity included", "size", 1.0),
        ("zuse_pool_allocated_bytes", "Allocated space, parity included", "allocated", 1.0),
        ("zuse_pool_free_bytes", "Free space, parity included", "free", 1.0),
        ("zuse_pool_freeing_bytes", "Space that is being freed in the background", "freeing", 1.0),
        ("zuse_pool_leaked_bytes", "Space that could not be freed", "leaked", 1.0),
        ("zuse_pool_fragmentation_ratio", "How fragmented the free space is", "fragmentation", 0.01),
        (
            "zuse_pool_dedup_ratio",
            "What is referred to for each byte that deduplication has stored",
            "dedupratio",
            0.01,
        ),
    ]
    .map(|(name, help, prop, unit)| (Metric::gauge(name, help), prop, unit))
    .into();
    let mut errors = Metric::gauge("zuse_pool_data_errors", "Blocks that are known to be damaged");
    let mut scans = Scans::default();
    let mut datasets = Datasets::default();
    for pool in pools {
        let name = pool.record.name.as_str();
        let Some(facts) = facts.get(&pool.record.guid) else { continue };
        age.add_float(&[("pool", name)], facts.age().as_secs_f64());
        for (metric, prop, unit) in &mut props {
            // a property that is not known is the largest number
            match facts.props.as_ref().and_then(|props| number(props, prop)).filter(|number| *number != u64::MAX) {
                Some(number) if *unit == 1.0 => metric.add(&[("pool", name)], number),
                Some(number) => metric.add_float(&[("pool", name)], number as f64 * *unit),
                None => {}
            }
        }
        if let Some(count) = facts.errors {
            errors.add(&[("pool", name)], count);
        }
        if let Some(config) = &facts.config {
            scans.add(name, &Activity::of(config));
        }
        if let Some((below, root)) = &facts.datasets {
            datasets.add(name, name, root);
            for (dataset, list) in below {
                if let nvlist::Value::NvList(list) = list {
                    datasets.add(name, dataset, list.get_nvlist("props").unwrap_or(list));
                }
            }
        }
    }
    let mut all = vec![age, errors];
    all.extend(props.into_iter().map(|(metric, ..)| metric));
    all.extend(scans.0);
    all.extend(datasets.0.map(|(metric, _)| metric));
    all
}

/// A property in an answer.
fn number(props: &NvList, name: &str) -> Option<u64> {
    props.get_nvlist(name)?.get_u64("value")
}

/// Scrubs and resilvers.
struct Scans([Metric; 5]);

impl Default for Scans {
    fn default() -> Scans {
        Scans([
            Metric::gauge("zuse_pool_scan_running", "Whether a scrub or resilver runs; there is the last one"),
            Metric::gauge("zuse_pool_scan_examined_bytes", "What it has read"),
            Metric::gauge("zuse_pool_scan_to_examine_bytes", "What there is to be read"),
            Metric::gauge("zuse_pool_scan_errors", "Errors that it has found and could not repair"),
            Metric::gauge("zuse_pool_scan_end_time_seconds", "When it ended, in seconds since 1970; 0 if it has not"),
        ])
    }
}

impl Scans {
    fn add(&mut self, pool: &str, activity: &Activity) {
        let Some(scan) = &activity.scan else { return };
        let kind = match scan.func {
            ScanFunc::Scrub => "scrub",
            ScanFunc::Resilver => "resilver",
            _ => return,
        };
        let labels = [("pool", pool), ("scan", kind)];
        let running = scan.state == ScanState::Scanning;
        let end = if running { 0 } else { scan.end_time };
        let values = [u64::from(running), scan.examined, scan.to_examine, scan.errors, end];
        self.0.iter_mut().zip(values).for_each(|(metric, value)| metric.add(&labels, value));
    }
}

/// The space of datasets.
struct Datasets([(Metric, &'static str); 6]);

impl Default for Datasets {
    fn default() -> Datasets {
        let metric = |name, help, prop| (Metric::gauge(name, help), prop);
        Datasets([
            metric("zuse_dataset_used_bytes", "Space of a dataset with all below it and its snapshots", "used"),
            metric("zuse_dataset_available_bytes", "Space that it may use yet", "available"),
            metric("zuse_dataset_referenced_bytes", "Space that it refers to", "referenced"),
            metric("zuse_dataset_logical_used_bytes", "What it has used before compression", "logicalused"),
            metric("zuse_dataset_quota_bytes", "Its quota, if it has one", "quota"),
            metric("zuse_dataset_volume_size_bytes", "The size of a volume", "volsize"),
        ])
    }
}

impl Datasets {
    fn add(&mut self, pool: &str, dataset: &str, props: &NvList) {
        for (metric, prop) in &mut self.0 {
            let number = number(props, prop).filter(|number| *prop != "quota" || *number != 0);
            if let Some(number) = number {
                metric.add(&[("pool", pool), ("dataset", dataset)], number);
            }
        }
    }
}
