//! Metrics of vdevs: what all processes have done with them since the import.

use std::collections::HashMap;
use std::sync::Arc;

use base::Guid;
use control::stats::figures;
use control::stats::{VdevStat, VdevStats};
use nvlist::NvList;
use ondisk::label::key;
use site::LivePool;
use vdev::{Direction, VdevState};

use super::{Metric, Sample};
use crate::asked::Facts;

/// The classes of I/Os in a queue, in its order.
const CLASSES: [&str; 7] = ["sync_read", "sync_write", "async_read", "async_write", "scrub", "trim", "rebuild"];
/// The powers of two of nanoseconds that buckets end at: 8 µs, and each a fourfold of the one before, to 34 s. What is between is added up.
const BUCKETS: std::ops::RangeInclusive<u32> = 13..=35;
const BUCKET_STEP: usize = 2;

struct Vdevs {
    state: Metric,
    operations: Metric,
    bytes: Metric,
    errors: Metric,
    slow: Metric,
    allocated: Metric,
    size: Metric,
    queued: Metric,
    latency: Metric,
}

impl Vdevs {
    fn new() -> Vdevs {
        Vdevs {
            state: Metric::gauge("zuse_vdev_state", "1 for the state that the vdev is in, 0 for the others"),
            operations: Metric::counter("zuse_vdev_operations", "Reads and writes of a vdev since the import"),
            bytes: Metric::counter("zuse_vdev_bytes", "Their bytes"),
            errors: Metric::counter("zuse_vdev_errors", "Failures since the import, or since they were cleared"),
            slow: Metric::counter(
                "zuse_vdev_slow_operations",
                "Reads and writes that a device had for longer than zio_slow_io_ms",
            ),
            allocated: Metric::gauge(
                "zuse_vdev_allocated_bytes",
                "Allocated space of a top-level vdev, parity included",
            ),
            size: Metric::gauge("zuse_vdev_size_bytes", "Space of a top-level vdev, parity included"),
            queued: Metric::gauge(
                "zuse_vdev_queue_operations",
                "Reads and writes that wait for a device, and that it has",
            ),
            latency: Metric::histogram(
                "zuse_vdev_latency_seconds",
                "How long a device had its reads and writes; their sum is estimated from the buckets",
            ),
        }
    }

    fn all(self) -> Vec<Metric> {
        let Vdevs { state, operations, bytes, errors, slow, allocated, size, queued, latency } = self;
        vec![state, operations, bytes, errors, slow, allocated, size, queued, latency]
    }

    /// Adds a vdev and all below; those of the root are top-level vdevs.
    fn add(&mut self, pool: &str, vdev: &NvList, depth: usize) {
        let children = vdev.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
        if depth > 0 && !matches!(vdev.get_str(key::TYPE), Some("hole" | "indirect")) {
            self.add_one(pool, vdev, depth == 1, children.is_empty());
        }
        children.iter().for_each(|child| self.add(pool, child, depth + 1));
        for aside in [key::SPARES, key::L2CACHE].iter().filter(|_| depth == 0) {
            let devices = vdev.get_nvlist_array(aside).unwrap_or(&[]);
            devices.iter().for_each(|device| self.add_one(pool, device, false, true));
        }
    }

    fn add_one(&mut self, pool: &str, vdev: &NvList, is_top: bool, is_leaf: bool) {
        let kind = vdev.get_str(key::TYPE).unwrap_or("unknown");
        let numbered = || format!("{kind}-{}", vdev.get_u64(key::ID).unwrap_or(0));
        let name = vdev.get_str(key::PATH).filter(|_| is_leaf).map_or_else(numbered, str::to_owned);
        let labels = [("pool", pool), ("vdev", name.as_str())];
        let stats = VdevStats::of(vdev);
        let (now, _) = stats.health();
        for state in VdevState::ALL {
            self.state.add(&with(labels, "state", &state.name().to_lowercase()), u64::from(state == now));
        }
        let io = figures::io(vdev);
        for (op, direction) in [("read", Direction::Read), ("write", Direction::Write)] {
            self.operations.add(&with(labels, "op", op), io.operations(direction));
            self.bytes.add(&with(labels, "op", op), io.bytes(direction));
            if is_leaf {
                self.latency.add(&with(labels, "op", op), histogram(io.disk_wait(direction)));
            }
        }
        let errors = stats.errors();
        for (of, n) in [("read", errors.read), ("write", errors.write), ("checksum", errors.checksum)] {
            self.errors.add(&with(labels, "kind", of), n);
        }
        if is_top {
            self.allocated.add(&labels, stats.get(VdevStat::Alloc));
            self.size.add(&labels, stats.get(VdevStat::Space));
        }
        if is_leaf {
            self.slow.add(&labels, stats.get(VdevStat::SlowIos));
            for (class, [waiting, active]) in CLASSES.iter().zip(figures::queue(vdev).0) {
                self.queued.add(&[labels[0], labels[1], ("class", class), ("stage", "waiting")], waiting);
                self.queued.add(&[labels[0], labels[1], ("class", class), ("stage", "active")], active);
            }
        }
    }
}

/// The labels of a vdev, and one more.
fn with<'a>(labels: [(&'static str, &'a str); 2], name: &'static str, value: &'a str) -> [(&'static str, &'a str); 3] {
    let [pool, vdev] = labels;
    [pool, vdev, (name, value)]
}

/// The vdevs of pools.
pub(super) fn of_facts(pools: &[LivePool], facts: &HashMap<Guid, Arc<Facts>>) -> Vec<Metric> {
    let mut all = Vdevs::new();
    for pool in pools {
        let config = facts.get(&pool.record.guid).and_then(|facts| facts.config.as_ref());
        if let Some(tree) = config.and_then(|config| config.get_nvlist(key::VDEV_TREE)) {
            all.add(&pool.record.name, tree, 0);
        }
    }
    all.all()
}

/// A histogram of nanoseconds, which has in its place n those from 2^n to twice that, in seconds. An I/O is taken to have had one and a half times the least of its place.
fn histogram(counts: &[u64]) -> Sample {
    let mut sum = 0.0;
    let ends: Vec<u32> = BUCKETS.step_by(BUCKET_STEP).collect();
    let mut buckets: Vec<(f64, u64)> = ends.iter().map(|end| (2f64.powi(end.cast_signed()) / 1e9, 0)).collect();
    buckets.push((f64::INFINITY, 0));
    for (place, count) in (0u32..).zip(counts) {
        sum += *count as f64 * 1.5 * 2f64.powi(place.cast_signed()) / 1e9;
        // what is in a place is below twice its least
        let bucket = ends.iter().position(|end| place < *end).unwrap_or(ends.len());
        if let Some((_, n)) = buckets.get_mut(bucket) {
            *n += count;
        }
    }
    Sample::Histogram { sum, buckets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_in_the_buckets_of_their_times() {
        let mut counts = vec![0; 37];
        // 1 µs, 8 µs, 16 µs, 1 ms, 68 s
        for (place, n) in [(10, 1), (13, 2), (14, 4), (20, 8), (36, 16)] {
            counts[place] = n;
        }
        let Sample::Histogram { sum, buckets } = histogram(&counts) else { panic!() };
        let filled: Vec<(u64, u64)> =
            buckets.iter().filter(|(_, n)| *n > 0).map(|(end, n)| ((end * 1e9).min(1e18).round() as u64, *n)).collect();
        assert_eq!(filled, [(8192, 1), (32768, 6), (1 << 21, 8), (1_000_000_000_000_000_000, 16)]);
        assert_eq!((buckets.len(), buckets[0].0), (13, 8192.0 / 1e9));
        assert!((1600.0..1700.0).contains(&sum), "{sum}");
    }

    #[test]
    fn vdevs_have_their_figures_by_name() {
        let leaf = |path: &str| {
            let mut list = NvList::new();
            list.insert(key::TYPE, "file");
            list.insert(key::PATH, path);
            let mut stats = VdevStats::default();
            stats.set(VdevStat::ReadOps, 5);
            stats.set(VdevStat::ChecksumErrors, 3);
            stats.put(&mut list);
            list
        };
        let (mut root, mut mirror) = (NvList::new(), NvList::new());
        mirror.insert(key::TYPE, "mirror");
        mirror.insert(key::ID, 0u64);
        mirror.insert(key::CHILDREN, vec![leaf("/a"), leaf("/b")]);
        root.insert(key::TYPE, "root");
        root.insert(key::CHILDREN, vec![mirror]);
        root.insert(key::SPARES, vec![leaf("/c")]);
        let mut vdevs = Vdevs::new();
        vdevs.add("t", &root, 0);
        let text = super::super::encode(vdevs.all());
        for line in [
            "zuse_vdev_operations_total{pool=\"t\",vdev=\"/a\",op=\"read\"} 5",
            "zuse_vdev_errors_total{pool=\"t\",vdev=\"/b\",kind=\"checksum\"} 3",
            "zuse_vdev_size_bytes{pool=\"t\",vdev=\"mirror-0\"} 0",
            "zuse_vdev_state{pool=\"t\",vdev=\"/c\",state=\"unavail\"} 1",
            "zuse_vdev_queue_operations{pool=\"t\",vdev=\"/a\",class=\"scrub\",stage=\"active\"} 0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
        assert!(!text.contains("zuse_vdev_latency_seconds_count{pool=\"t\",vdev=\"mirror-0\""), "{text}");
    }
}
