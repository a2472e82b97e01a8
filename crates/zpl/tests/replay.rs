//! Pools of the OpenZFS kernel module that were stopped with full intent logs: Zuse's replay gives the same result as the
//! kernel's own.
#![allow(clippy::unwrap_used, dead_code)]

mod support;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use base::tunable;
use ondisk::BlkPtr;
use ondisk::zil::Record;
use oracle::{fixtures, judge};
use pool::{Hooks, ImportOptions, Kind, ListOptions, OpenOptions, Pool, Spa};
use support::{Fixture, Touched, compare_replayed, touched_in};
use vdev::testing::{Call, Tapped};
use vdev::{Device, FileDevice};
use zpl::live::{ReplayProgress, Volume, Zfs, replay_all};

const FIXTURES: [&str; 2] = ["zil-a", "zilslog-a"];
/// Bytes before the space of a device.
const LABELS: u64 = 4 << 20;

/// Stretches of devices that cannot be read.
type Broken = Arc<Mutex<Vec<Range<u64>>>>;

/// A device that loses power after a number of writes: later ones fail. Its broken stretches cannot be read.
fn cut(file: FileDevice, left: &Arc<AtomicI64>, broken: &Broken) -> Arc<dyn Device> {
    let (left, broken) = (left.clone(), broken.clone());
    let pass = move |call: &Call| match call {
        Call::Write(_) if left.fetch_sub(1, Ordering::Relaxed) <= 0 => Err(std::io::Error::other("the power is cut")),
        Call::Read(_) if broken.lock().unwrap().iter().any(|broken| call.meets(broken)) => {
            Err(std::io::Error::other("it cannot be read"))
        }
        _ => Ok(()),
    };
    Arc::new(Tapped::new(Arc::new(file), pass))
}

struct Pools {
    name: &'static str,
    pool: String,
    images: fixtures::Unpacked,
    touched: BTreeMap<String, Touched>,
    broken: Broken,
}

impl Pools {
    fn new(name: &'static str) -> Pools {
        let images = fixtures::unpack_private(name);
        let touched = touched_in(name, &images);
        let pool = fixtures::manifest(name)["pool"].as_str().unwrap().to_owned();
        Pools { name, pool, images, touched, broken: Broken::default() }
    }

    /// Opens the pool for writing; its devices fail after the given number of writes.
    fn import(&self, writes: i64, options: OpenOptions) -> Result<Arc<Spa>, pool::Error> {
        let left = Arc::new(AtomicI64::new(writes));
        let open = |path: PathBuf| -> (PathBuf, Arc<dyn Device>) {
            let file = open_again(&path);
            (path, cut(file, &left, &self.broken))
        };
        let found = vdev::import::scan_devices(self.images.images().into_iter().map(open).collect());
        let candidate = found.iter().find(|c| c.name == self.pool).unwrap();
        let used_by = Some(Arc::new(zpl::UsedByBonus) as _);
        let hooks = Hooks { used_by, never_suspends: true, ..Hooks::default() };
        let options = ImportOptions { open: options, force: true, ..ImportOptions::default() };
        Spa::import(candidate, &options, hooks)
    }

    /// Imports the pool, replays all logs, exports it. Fails if the power is cut meanwhile.
    fn replay(&self, writes: i64) -> Result<(), String> {
        let spa = self.import(writes, OpenOptions::default()).map_err(|e| format!("import: {e}"))?;
        let view = spa.view().map_err(|e| e.to_string())?;
        support::load_keys(self.name, &view);
        for name in datasets(&view, Kind::Filesystem) {
            Zfs::open(&spa, &name).map_err(|e| format!("{name}: {e}"))?;
        }
        for name in datasets(&view, Kind::Volume) {
            Volume::open(&spa, &name).map_err(|e| format!("{name}: {e}"))?;
        }
        drop(view);
        spa.export().map_err(|e| format!("export: {e}"))
    }

    /// The pool as its devices have it, if they can be read.
    fn look(&self) -> Arc<Pool> {
        let found = vdev::import::scan(std::slice::from_ref(&self.images.dir)).unwrap();
        Pool::open(&found[0], &OpenOptions::default()).unwrap()
    }

    /// Makes blocks unreadable, or none.
    fn break_blocks(&self, blocks: &[BlkPtr]) {
        let of =
            |bp: &BlkPtr| bp.dvas().map(|dva| dva.offset() + LABELS..dva.offset() + LABELS + dva.asize()).collect();
        *self.broken.lock().unwrap() = blocks.iter().flat_map(|bp| -> Vec<_> { of(bp) }).collect();
    }

    /// Checks that a dataset whose log cannot be replayed now is not opened for writing, and that its log is as it was.
    fn refuses(&self, spa: &Arc<Spa>, name: &str) {
        let refused = Zfs::open(spa, name).map(drop).unwrap_err();
        assert_eq!(refused.errno(), base::Errno::EIO);
        let why = refused.to_string();
        assert!(why.contains("I/O error: DVA 0:"), "{why}");
        let dataset = spa.view().unwrap().dataset(name).unwrap();
        let refused = spa.objset(&dataset).map(drop).unwrap_err().to_string();
        assert!(refused.contains("is not replayed"), "{refused}");
    }

    /// Returns the number of partially replayed logs.
    fn half_replayed(&self) -> usize {
        let pool = self.look();
        let all = pool.list(pool.name(), &ListOptions::DATASETS).unwrap();
        let headers = all.iter().filter_map(|entry| Some(entry.dataset()?.objset().ok()?.phys().zil_header.clone()));
        headers.filter(|header| header.replay_seq != 0).count()
    }

    /// Checks the pool with zdb, the list of files and the sums of the volumes.
    fn check(&self) {
        judge::no_leaks(&self.images.dir, &self.pool);
        let fixture = Fixture::of(self.name, self.images.clone());
        let compared = compare_replayed(&fixture, &self.touched);
        assert!(compared.differences.is_empty(), "{compared}: {:#?}", compared.differences);
        for (volume, truth) in fixture.manifest["zvols"].as_object().unwrap() {
            let wanted = (truth["size"].as_u64(), truth["sha256"].as_str().map(str::to_owned));
            assert_eq!(support::volume_digest(&fixture, volume), wanted, "{volume}");
        }
        for name in datasets(&fixture.pool, Kind::Filesystem) {
            let header = fixture.pool.dataset(&name).unwrap().objset().unwrap().phys().zil_header.clone();
            assert_eq!(header, ondisk::ZilHeader::empty(), "{name}: the log is gone");
        }
    }
}

/// Opens a device once the previous pool has released it.
fn open_again(path: &std::path::Path) -> FileDevice {
    for _ in 0..500 {
        match FileDevice::open_read_write(path) {
            Err(vdev::Error::Busy { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
            opened => return opened.unwrap(),
        }
    }
    panic!("{}: still in use", path.display());
}

fn datasets(pool: &Arc<Pool>, kind: Kind) -> Vec<String> {
    let all = pool.list(pool.name(), &ListOptions::DATASETS).unwrap();
    let heads = all.iter().filter_map(|entry| entry.dataset());
    heads.filter(|dataset| dataset.kind().unwrap() == kind).map(|dataset| dataset.name().to_owned()).collect()
}

#[test]
fn replayed_pools_are_what_the_kernel_made_of_them() {
    for name in FIXTURES {
        let pools = Pools::new(name);
        pools.replay(i64::MAX).unwrap();
        pools.check();
    }
}

#[test]
fn priming_and_width_change_nothing_but_the_time() {
    // (primed, in parallel): as OpenZFS does it, and each option by itself; both together is the default
    for (name, prime, width) in
        [("zil-a", 0, 0), ("zilslog-a", 0, 0), ("zil-a", 1, 0), ("zilslog-a", 0, 32), ("zil-a", 0, 3)]
    {
        let tunables = (tunable::ZIL_REPLAY_PRIME.get(), tunable::ZIL_REPLAY_PARALLEL.get());
        tunable::ZIL_REPLAY_PRIME.set(prime);
        tunable::ZIL_REPLAY_PARALLEL.set(width);
        let pools = Pools::new(name);
        let done = pools.replay(i64::MAX);
        tunable::ZIL_REPLAY_PRIME.set(tunables.0);
        tunable::ZIL_REPLAY_PARALLEL.set(tunables.1);
        done.unwrap_or_else(|e| panic!("{name}, {prime}, {width}: {e}"));
        pools.check();
    }
}

#[test]
fn all_logs_are_replayed_side_by_side_and_it_is_told_how_far() {
    let pools = Pools::new("zil-a");
    let spa = pools.import(i64::MAX, OpenOptions::default()).unwrap();
    support::load_keys(pools.name, &spa.view().unwrap());
    let mut last = ReplayProgress::default();
    let done = replay_all(&spa, &mut |progress| {
        assert!(progress.records_done >= last.records_done && progress.bytes_done <= progress.bytes);
        last = *progress;
    });
    let names: Vec<String> = done.unwrap().into_iter().map(|(name, opened)| opened.map(|()| name).unwrap()).collect();
    assert_eq!(names, ["zila/a", "zila/b", "zila/enc", "zila/vol"]);
    assert_eq!((last.logs, last.logs_done, last.records), (4, 4, last.records_done));
    assert!(last.records > 300 && last.bytes == last.bytes_done, "{last:?}");
    assert!(replay_all(&spa, &mut |_| ()).unwrap().is_empty(), "once is enough");
    spa.export().unwrap();
    pools.check();
}

#[test]
fn a_power_cut_in_a_replay_leaves_the_rest_to_the_next() {
    let pools = Pools::new("zil-a");
    // dirty data is written at once, and throttled where it is much: a replay takes many txgs
    let (percent, most) = (tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.get(), tunable::ZFS_DIRTY_DATA_MAX.get());
    tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.set(0);
    tunable::ZFS_DIRTY_DATA_MAX.set(0);
    let (mut cuts, mut halves) = (0, 0);
    // each attempt gets further: claims, then some of the logs, then the export
    for writes in (1..).map(|n: i64| 20 + n * 10) {
        match pools.replay(writes) {
            Ok(()) => break,
            Err(_) => cuts += 1,
        }
        halves += pools.half_replayed();
    }
    tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.set(percent);
    tunable::ZFS_DIRTY_DATA_MAX.set(most);
    assert!(cuts >= 4 && halves >= 2, "{cuts} cuts, {halves} logs that were left half replayed");
    pools.check();
}

#[test]
fn a_missing_log_device_is_told_of_and_given_up_on_demand() {
    let pools = Pools::new("zilslog-a");
    std::fs::remove_file(pools.images.dir.join("log0.img")).unwrap();
    let refused = pools.import(i64::MAX, OpenOptions::default());
    assert!(matches!(refused, Err(pool::Error::MissingVdevs(_))), "{refused:?}");
    let options = OpenOptions { missing_log_ok: true, ..OpenOptions::default() };
    let spa = pools.import(i64::MAX, options).unwrap();
    support::load_keys(pools.name, &spa.view().unwrap());
    for name in datasets(&spa.view().unwrap(), Kind::Filesystem) {
        Zfs::open(&spa, &name).unwrap();
    }
    spa.export().unwrap();
}

/// The blocks of a log that have records, and those that its records point at.
fn logged(pool: &Arc<Pool>, name: &str) -> (Vec<BlkPtr>, Vec<BlkPtr>) {
    let (mut chain, mut data, mut last) = (Vec::new(), Vec::new(), None);
    let objset = pool.dataset(name).unwrap().objset().unwrap();
    zil::walk(&objset, &mut |step| {
        match step {
            zil::Step::Block(bp) => last = Some(*bp),
            zil::Step::Record { record, .. } => {
                chain.extend(last.take());
                if let Ok(Record::Write(write)) = record.decode()
                    && write.data.is_none()
                {
                    data.push(write.blkptr);
                }
            }
        }
        ControlFlow::Continue(())
    });
    (chain, data)
}

#[test]
fn a_log_that_cannot_be_read_again_is_kept_until_it_can() {
    let pools = Pools::new("zil-a");
    let spa = pools.import(i64::MAX, OpenOptions::default()).unwrap();
    support::load_keys(pools.name, &spa.view().unwrap());
    let (chain, _) = logged(&pools.look(), "zila/a");
    let objset = spa.objset_to_replay(&spa.view().unwrap().dataset("zila/a").unwrap()).unwrap();
    let header = objset.phys().zil_header.clone();
    // the log is not in memory
    drop(spa.take_log(&objset));
    assert!(chain.len() > 1);
    for broken in [chain[0], chain[chain.len() / 2], chain[chain.len() - 1]] {
        pools.break_blocks(&[broken]);
        pools.refuses(&spa, "zila/a");
        assert_eq!(objset.phys().zil_header, header);
    }
    drop(objset);
    pools.break_blocks(&[]);
    spa.export().unwrap();
    drop(spa);
    pools.replay(i64::MAX).unwrap();
    pools.check();
}

#[test]
fn a_record_whose_block_cannot_be_read_waits_with_those_after_it() {
    let pools = Pools::new("zil-a");
    let (_, data) = logged(&pools.look(), "zila/a");
    assert!(data.len() > 2);
    for (prime, width) in [(1, 32), (0, 32), (1, 0)] {
        let pools = Pools::new("zil-a");
        let tunables = (tunable::ZIL_REPLAY_PRIME.get(), tunable::ZIL_REPLAY_PARALLEL.get());
        tunable::ZIL_REPLAY_PRIME.set(prime);
        tunable::ZIL_REPLAY_PARALLEL.set(width);
        pools.break_blocks(&data);
        let spa = pools.import(i64::MAX, OpenOptions::default()).unwrap();
        support::load_keys(pools.name, &spa.view().unwrap());
        pools.refuses(&spa, "zila/a");
        // the others do not wait
        Zfs::open(&spa, "zila/b").unwrap();
        spa.export().unwrap();
        drop(spa);
        let spa = pools.import(i64::MAX, OpenOptions::default()).unwrap();
        pools.refuses(&spa, "zila/a");
        pools.break_blocks(&[]);
        Zfs::open(&spa, "zila/a").unwrap();
        spa.export().unwrap();
        drop(spa);
        let done = pools.replay(i64::MAX);
        tunable::ZIL_REPLAY_PRIME.set(tunables.0);
        tunable::ZIL_REPLAY_PARALLEL.set(tunables.1);
        done.unwrap();
        pools.check();
    }
}

#[test]
fn a_pool_is_not_written_while_it_cannot_be_told_whether_a_dataset_has_a_log() {
    let pools = Pools::new("zil-a");
    let root = pools.look().dataset("zila/a").unwrap().phys().bp;
    pools.break_blocks(&[root]);
    let refused = pools.import(i64::MAX, OpenOptions::default()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("'zila/a'") && refused.contains("I/O error: DVA 0:"), "{refused}");
    pools.break_blocks(&[]);
    pools.replay(i64::MAX).unwrap();
    pools.check();
}
