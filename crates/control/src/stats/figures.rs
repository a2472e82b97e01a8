//! The I/O of the vdevs in a configuration, done and waiting: `vdev_stats` and `vdev_stats_ex`.
//!
//! A vdev above others has the sums of what is below, but its own errors. OpenZFS: `vdev_get_stats_ex`.

use base::Guid;
use nvlist::{NvList, Value};
use ondisk::label::key;
use vdev::{Direction, IoFigures, QueueDepths, VdevErrors};

use super::{VdevStat, VdevStats};

/// The key of the list in a vdev's list.
pub(super) const VDEV_STATS_EX: &str = "vdev_stats_ex";
/// Slow operations, in that list as well.
const SLOW_IOS: &str = "vdev_slow_ios";

/// Keys of I/Os that wait and that are active, by class as in [`IoFigures::queue_wait`].
const QUEUES: [[&str; 2]; 7] = [
    ["vdev_sync_r_pend_queue", "vdev_sync_r_active_queue"],
    ["vdev_sync_w_pend_queue", "vdev_sync_w_active_queue"],
    ["vdev_async_r_pend_queue", "vdev_async_r_active_queue"],
    ["vdev_async_w_pend_queue", "vdev_async_w_active_queue"],
    ["vdev_async_scrub_pend_queue", "vdev_async_scrub_active_queue"],
    ["vdev_async_trim_pend_queue", "vdev_async_trim_active_queue"],
    ["vdev_rebuild_pend_queue", "vdev_rebuild_active_queue"],
];

/// Keys of histograms, in the order of [`IoFigures::histograms`].
const HISTOGRAMS: [&str; 25] = [
    "vdev_tot_r_lat_histo",
    "vdev_tot_w_lat_histo",
    "vdev_disk_r_lat_histo",
    "vdev_disk_w_lat_histo",
    "vdev_sync_r_lat_histo",
    "vdev_sync_w_lat_histo",
    "vdev_async_r_lat_histo",
    "vdev_async_w_lat_histo",
    "vdev_scrub_histo",
    "vdev_trim_histo",
    "vdev_rebuild_histo",
    "vdev_sync_ind_r_histo",
    "vdev_sync_ind_w_histo",
    "vdev_async_ind_r_histo",
    "vdev_async_ind_w_histo",
    "vdev_ind_scrub_histo",
    "vdev_ind_trim_histo",
    "vdev_ind_rebuild_histo",
    "vdev_sync_agg_r_histo",
    "vdev_sync_agg_w_histo",
    "vdev_async_agg_r_histo",
    "vdev_async_agg_w_histo",
    "vdev_agg_scrub_histo",
    "vdev_agg_trim_histo",
    "vdev_agg_rebuild_histo",
];

/// A source of figures, by vdev.
pub trait Counted {
    /// Returns the I/O of a device.
    fn io(&self, leaf: Guid) -> IoFigures;

    /// Returns the I/Os that wait for a device.
    fn queue(&self, leaf: Guid) -> QueueDepths;

    /// Returns the errors of a vdev.
    fn errors(&self, vdev: Guid) -> VdevErrors;

    /// Returns the nanoseconds since counting began.
    fn since_ns(&self) -> u64;
}

/// Sets the figures of the root and of all below, the spares and caches of the pool included.
pub fn put(root: &mut NvList, counted: &dyn Counted) {
    put_below(root, counted);
    for aside in [key::SPARES, key::L2CACHE] {
        root.get_nvlist_array_mut(aside).into_iter().flatten().for_each(|vdev| drop(put_below(vdev, counted)));
    }
}

fn put_below(vdev: &mut NvList, counted: &dyn Counted) -> (IoFigures, QueueDepths) {
    let guid = Guid(vdev.get_u64(key::GUID).unwrap_or(0));
    let (mut io, mut queue) = (IoFigures::default(), QueueDepths::default());
    match vdev.get_nvlist_array_mut(key::CHILDREN).filter(|children| !children.is_empty()) {
        None => (io, queue) = (counted.io(guid), counted.queue(guid)),
        Some(children) => {
            for child in children {
                let (below, waiting) = put_below(child, counted);
                io.add(&below);
                queue.add(&waiting);
            }
            // only devices are slow
            io.clear_slow();
        }
    }
    let mut stats = VdevStats::of(vdev);
    stats.set(VdevStat::Timestamp, counted.since_ns());
    stats.set_errors(counted.errors(guid));
    set_io(&mut stats, &io);
    stats.put(vdev);
    vdev.insert(VDEV_STATS_EX, extended(&io, &queue));
    (io, queue)
}

fn set_io(stats: &mut VdevStats, io: &IoFigures) {
    let [read, write] = [Direction::Read, Direction::Write];
    stats.set(VdevStat::ReadOps, io.operations(read));
    stats.set(VdevStat::WriteOps, io.operations(write));
    stats.set(VdevStat::ReadBytes, io.bytes(read));
    stats.set(VdevStat::WriteBytes, io.bytes(write));
    stats.set(VdevStat::SlowIos, slow(io));
}

fn slow(io: &IoFigures) -> u64 {
    io.slow(Direction::Read).saturating_add(io.slow(Direction::Write))
}

fn extended(io: &IoFigures, queue: &QueueDepths) -> NvList {
    let mut list = NvList::new();
    for (keys, depths) in QUEUES.iter().zip(&queue.0) {
        keys.iter().zip(depths).for_each(|(key, depth)| list.insert(key, *depth));
    }
    // a pool can have thousands of vdevs that nothing is known of: no histograms of zeros for these
    if *io != IoFigures::default() {
        for (key, histogram) in HISTOGRAMS.iter().zip(io.histograms()) {
            list.insert(key, Value::Uint64Array(histogram.to_vec()));
        }
    }
    list.insert(SLOW_IOS, slow(io));
    list
}

/// Reads back the I/O of a vdev; slow operations are told as reads.
#[must_use]
pub fn io(vdev: &NvList) -> IoFigures {
    let (stats, none) = (VdevStats::of(vdev), NvList::new());
    let extended = vdev.get_nvlist(VDEV_STATS_EX).unwrap_or(&none);
    let counts = [
        [stats.get(VdevStat::ReadOps), stats.get(VdevStat::ReadBytes), stats.get(VdevStat::SlowIos)],
        [stats.get(VdevStat::WriteOps), stats.get(VdevStat::WriteBytes), 0],
    ];
    IoFigures::from_parts(counts, HISTOGRAMS.iter().map(|key| extended.get_u64_array(key).unwrap_or(&[])))
}

/// Reads back the I/Os that wait for a vdev.
#[must_use]
pub fn queue(vdev: &NvList) -> QueueDepths {
    let extended = vdev.get_nvlist(VDEV_STATS_EX);
    let depth = |key: &str| extended.and_then(|list| list.get_u64(key)).unwrap_or(0);
    QueueDepths(QUEUES.map(|keys| keys.map(depth)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Three;

    impl Counted for Three {
        fn io(&self, leaf: Guid) -> IoFigures {
            let histogram = vec![leaf.0; 25];
            IoFigures::from_parts([[leaf.0, 10, 1], [2, 20, 2]], (0..25).map(|_| histogram.as_slice()))
        }

        fn queue(&self, _leaf: Guid) -> QueueDepths {
            QueueDepths([[1, 2], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [3, 0]])
        }

        fn errors(&self, vdev: Guid) -> VdevErrors {
            VdevErrors { checksum: vdev.0, ..VdevErrors::default() }
        }

        fn since_ns(&self) -> u64 {
            5
        }
    }

    #[test]
    fn a_vdev_has_the_sums_of_its_devices_and_its_own_errors() {
        let vdev = |guid: u64| {
            let mut list = NvList::new();
            list.insert(key::GUID, guid);
            list
        };
        let mut mirror = vdev(3);
        mirror.insert(key::CHILDREN, vec![vdev(1), vdev(2)]);
        put(&mut mirror, &Three);
        let leaf = mirror.get_nvlist_array(key::CHILDREN).and_then(|all| all.get(1)).cloned().unwrap_or_default();
        let (one, both) = (io(&leaf), io(&mirror));
        assert_eq!((one.operations(Direction::Read), both.operations(Direction::Read)), (2, 3));
        assert_eq!(both.bytes(Direction::Write), 40);
        assert_eq!(one.histograms().map(|all| all.first().copied()).collect::<Vec<_>>(), [Some(2); 25]);
        assert_eq!(both.histograms().last().and_then(|all| all.last().copied()), Some(3));
        assert_eq!((slow(&one), slow(&both)), (3, 0));
        assert_eq!(queue(&mirror).0, [[2, 4], [0; 2], [0; 2], [0; 2], [0; 2], [0; 2], [6, 0]]);
        let stats = VdevStats::of(&mirror);
        assert_eq!((stats.errors().checksum, stats.get(VdevStat::Timestamp)), (3, 5));
    }
}
