//! Work in the background of a pool that is used: scrubs beside writers, snapshots and destroys; pools that are closed, and opened again, meanwhile.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use base::Env;
use base::tunable::ZFS_SCAN_SUSPEND_PROGRESS;
use ondisk::scan::{ScanFunc, ScanState};
use oracle::judge;
use pool::{ScanEnd, ScrubRange};
use zuse::Pool;
use zuse::verify::{Options, verify};

/// While it exists, scans begin and read nothing. The tunable is of the process.
struct Suspended(#[allow(dead_code)] MutexGuard<'static, ()>);

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Suspended {
    fn new() -> Suspended {
        let alone = alone();
        ZFS_SCAN_SUSPEND_PROGRESS.set(1);
        Suspended(alone)
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        ZFS_SCAN_SUSPEND_PROGRESS.set(0);
    }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, bytes)
}

fn make(dir: &Path, megabytes: usize) -> Pool {
    let path = |name: &str| dir.join(name).display().to_string();
    let pool = Pool::create_new("t", &["mirror", &path("a"), &path("b")], 256 << 20).unwrap();
    let files = pool.files("t").unwrap();
    (0..megabytes).for_each(|n| files.write(format!("f{n}").as_bytes(), &noise(1 << 20, n as u64)).unwrap());
    pool.sync().unwrap();
    pool
}

fn clean(pool: &Pool) -> bool {
    let options = Options { dataset: None, threads: 1, expand: true };
    verify(&pool.view().unwrap(), &options, &|_, _| {}).unwrap().is_clean()
}

/// Everything that is done to datasets and files while scrubs run is whole at the end, and no scrub meets anything wrong.
#[test]
fn a_scrub_runs_beside_users_and_finds_no_error() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let pool = make(dir.path(), 24);
    let mut scrubs = 0;
    let mut scan = pool.scrub(ScrubRange::default()).unwrap();
    for round in 0..24u64 {
        let files = pool.files("t").unwrap();
        files.write(format!("f{}", round * 7 % 24).as_bytes(), &noise(600_000, 100 + round)).unwrap();
        match round % 6 {
            0 => pool.snapshot(&format!("t@{round}")).unwrap(),
            1 => pool.clone_snapshot(&format!("t@{}", round - 1), &format!("t/c{round}")).unwrap(),
            2 => pool.files(&format!("t/c{}", round - 1)).unwrap().write(b"own", &noise(900_000, round)).unwrap(),
            3 => files.remove_file(format!("f{round}").as_bytes()).unwrap(),
            4 => pool.destroy(&format!("t/c{}", round - 3)).unwrap(),
            _ => pool.destroy(&format!("t@{}", round - 5)).unwrap(),
        }
        if pool.scan().unwrap().is_none() {
            let ScanEnd::Finished(tally) = scan.wait(|_| {}).unwrap() else { panic!("stopped") };
            assert_eq!((tally.lost_blocks, tally.healed), (0, 0), "{tally:?}");
            scrubs += 1;
            scan = pool.scrub(ScrubRange::default()).unwrap();
        }
    }
    let ScanEnd::Finished(tally) = scan.wait(|_| {}).unwrap() else { panic!("stopped") };
    assert_eq!((tally.lost_blocks, tally.healed), (0, 0), "{tally:?} after {scrubs} scrubs");
    assert!(tally.bytes > 12 << 20, "{tally:?}");
    let record = pool.view().unwrap().scan().unwrap().unwrap();
    assert_eq!((record.state, record.errors), (ScanState::Finished, 0));
    pool.spa().unwrap().wait_freed().unwrap();
    assert!(clean(&pool));
    pool.export().unwrap();
    drop((pool, scan));
    judge::no_leaks(dir.path(), "t");
}

/// A pool is exported, or just let go, while a scrub runs: it goes on by itself when the pool is next opened.
#[test]
fn a_scrub_outlives_the_open_pool() {
    let dir = tempfile::tempdir().unwrap();
    let suspended = Suspended::new();
    let pool = make(dir.path(), 8);
    let scan = pool.scrub(ScrubRange::default()).unwrap();
    assert!(scan.figures().is_some());
    pool.export().unwrap();
    drop((pool, scan));
    judge::no_leaks(dir.path(), "t");
    for exports in [true, false] {
        let pool = Pool::open_writable(&[dir.path()], None).unwrap();
        let scan = pool.scan().unwrap().expect("it goes on");
        assert_eq!(scan.figures().map(|figures| figures.bytes), Some(0));
        let record = pool.view().unwrap().scan().unwrap().unwrap();
        assert_eq!((record.func, record.state), (ScanFunc::Scrub, ScanState::Scanning));
        if exports {
            pool.export().unwrap();
        }
    }
    drop(suspended);
    let _alone = alone();
    let pool = Pool::open_writable(&[dir.path()], None).unwrap();
    if let Some(scan) = pool.scan().unwrap() {
        scan.wait(|_| {}).unwrap();
    }
    let record = pool.view().unwrap().scan().unwrap().unwrap();
    assert_eq!((record.state, record.errors), (ScanState::Finished, 0));
    assert!(record.examined > 8 << 20, "{} bytes were read", record.examined);
    pool.export().unwrap();
    drop(pool);
    judge::no_leaks(dir.path(), "t");
}

/// A paused scrub waits for its resumption, whatever is opened meanwhile; a cancelled one is gone.
#[test]
fn a_paused_scrub_stays_paused() {
    let dir = tempfile::tempdir().unwrap();
    let suspended = Suspended::new();
    let pool = make(dir.path(), 4);
    let scan = pool.scrub(ScrubRange::default()).unwrap();
    assert!(scan.pause().unwrap() && scan.figures().is_none());
    assert!(!Pool::scrub(&pool, ScrubRange::default()).unwrap().figures().unwrap().start_time.eq(&0));
    assert!(scan.pause().unwrap());
    pool.export().unwrap();
    drop((pool, scan));
    let pool = Pool::open_writable(&[dir.path()], None).unwrap();
    assert!(pool.scan().unwrap().is_none());
    let scan = pool.scrub(ScrubRange::default()).unwrap();
    assert!(scan.cancel().unwrap() && !scan.cancel().unwrap());
    let record = pool.view().unwrap().scan().unwrap().unwrap();
    assert_eq!((record.state, record.examined), (ScanState::Canceled, 0));
    drop(suspended);
    let _alone = alone();
    assert!(matches!(pool.scrub(ScrubRange::default()).unwrap().wait(|_| {}).unwrap(), ScanEnd::Finished(_)));
    pool.export().unwrap();
}

/// Two kinds of background work at once: a scrub waits until what was destroyed is freed.
#[test]
fn a_scrub_goes_on_when_destroyed_blocks_are_freed() {
    let _alone = alone();
    let blocks = base::tunable::ZFS_ASYNC_BLOCK_MAX_BLOCKS.get();
    base::tunable::ZFS_ASYNC_BLOCK_MAX_BLOCKS.set(8);
    let dir = tempfile::tempdir().unwrap();
    let pool = make(dir.path(), 8);
    pool.create("t/d", &[]).unwrap();
    let files = pool.files("t/d").unwrap();
    (0..12).for_each(|n| files.write(format!("g{n}").as_bytes(), &noise(1 << 20, n)).unwrap());
    drop(files);
    pool.sync().unwrap();
    let scan = pool.scrub(ScrubRange::default()).unwrap();
    pool.destroy("t/d").unwrap();
    let spa = pool.spa().unwrap().clone();
    assert!(spa.is_freeing());
    let ScanEnd::Finished(tally) = scan.wait(|_| {}).unwrap() else { panic!("stopped") };
    assert_eq!(tally.lost_blocks, 0);
    spa.wait_freed().unwrap();
    base::tunable::ZFS_ASYNC_BLOCK_MAX_BLOCKS.set(blocks);
    // the last of it may be freed in a txg that is not on disk yet
    pool.sync().unwrap();
    assert_eq!(pool.view().unwrap().space().unwrap().freeing, 0);
    assert!(clean(&pool) && spa.scan_wait_for(Duration::ZERO).unwrap());
    pool.export().unwrap();
    drop((pool, scan, spa));
    judge::no_leaks(dir.path(), "t");
}
