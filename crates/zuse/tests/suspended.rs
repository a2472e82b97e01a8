//! Pools that cannot be written, because too few of their devices are there: what waits, what gets errors, and how they go on.
#![allow(clippy::unwrap_used)]

#[path = "support/shelf.rs"]
mod shelf;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base::tunable::ZUSE_CATCH_UP_MS;
use dmu::{SyncedBlock, TxObjects};
use oracle::judge;
use pool::testing::{BLOCK, noise, object, write};
use pool::{Error, Spa, Value};
use vdev::VdevState;
use zpl::Kind;
use zpl::live::{Cred, NewFile, Zfs};
use zuse::CaughtUp;

use shelf::Shelf;

const CONTINUE: u64 = 1;
const PANIC: u64 = 2;

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn reads(spa: &Arc<Spa>, file: &dmu::Object, blocks: usize, seed: u64) -> bool {
    spa.zio().arc().clear();
    file.read_vec(0, blocks * BLOCK).is_ok_and(|read| read == noise(blocks, seed))
}

fn judged(shelf: &Shelf, spa: Arc<Spa>) {
    spa.export().unwrap();
    drop(spa);
    let dir = tempfile::tempdir().unwrap();
    shelf.dump(dir.path());
    judge::no_leaks(dir.path(), "t");
}

/// Gives the pool up where a test fails, so that nobody waits for it.
struct Ended<'a>(&'a Spa);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abandon();
        }
    }
}

/// A way in which devices cannot be written.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Pulled,
    Errors,
    ReadOnly,
}

fn break_all(shelf: &Shelf, trouble: Trouble) {
    for disk in &shelf.disks {
        match trouble {
            Trouble::Pulled => disk.pull(true),
            Trouble::Errors => disk.fail_writes(1 << 40),
            Trouble::ReadOnly => disk.set_read_only(true),
        }
    }
}

#[test]
fn a_suspended_pool_waits_and_commits_that_very_txg() {
    ZUSE_CATCH_UP_MS.set(600_000);
    let pools = [("d0", 1), ("mirror d0 d1", 2), ("raidz1 d0 d1 d2", 3)];
    for ((words, count), trouble) in
        pools.into_iter().flat_map(|pool| [Trouble::Pulled, Trouble::Errors, Trouble::ReadOnly].map(|t| (pool, t)))
    {
        let what = format!("{words}, {trouble:?}");
        let shelf = Shelf::new(count);
        let spa = shelf.create(words);
        let file = object(&spa);
        write(&spa, &file, 8, 1).unwrap();
        let before = spa.txgs().synced();
        file.write(&spa.tx((8 * BLOCK) as u64).unwrap(), 0, &noise(8, 2)).unwrap();
        break_all(&shelf, trouble);
        let (synced, later) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let _ended = Ended(&spa);
            scope.spawn(|| {
                spa.sync().unwrap();
                synced.store(true, Ordering::SeqCst);
            });
            wait_for(&what, || spa.suspended().is_some());
            assert!(spa.suspended().unwrap().to_string().contains("block "), "{what}");
            // who comes now waits as well
            scope.spawn(|| {
                drop(spa.tx(1 << 20).unwrap());
                later.store(true, Ordering::SeqCst);
            });
            thread::sleep(Duration::from_millis(100));
            assert!(!synced.load(Ordering::SeqCst) && !later.load(Ordering::SeqCst), "{what}");
            assert!(matches!(spa.clear(None), Err(Error::Suspended(_))), "{what}: cleared in vain");
            assert!(!synced.load(Ordering::SeqCst), "{what}");
            assert_eq!(spa.txgs().synced(), before, "{what}");
            shelf.disks.iter().for_each(|disk| disk.mend());
            spa.clear(None).unwrap();
        });
        assert!(spa.suspended().is_none() && synced.load(Ordering::SeqCst), "{what}");
        assert!(reads(&spa, &file, 8, 2), "{what}");
        assert_eq!(zuse::catch_up(&spa).unwrap(), CaughtUp::Yes, "{what}");
        assert_eq!(spa.tree().status().state, VdevState::Healthy, "{what}");
        drop(file);
        judged(&shelf, spa);
    }
}

#[test]
fn with_failmode_continue_writers_get_errors_until_it_is_cleared() {
    let shelf = Shelf::new(3);
    let spa = shelf.create("d0 d1 d2");
    spa.set_prop("failmode", Value::Number(CONTINUE)).unwrap();
    let file = object(&spa);
    write(&spa, &file, 8, 1).unwrap();
    file.write(&spa.tx((8 * BLOCK) as u64).unwrap(), 0, &noise(8, 2)).unwrap();
    shelf.disks.iter().for_each(|disk| disk.fail_writes(1 << 40));
    let begun = Instant::now();
    assert!(matches!(spa.sync(), Err(Error::Suspended(_))));
    assert!(matches!(spa.tx(1 << 20), Err(Error::Suspended(_))));
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(file.read_vec(0, 8 * BLOCK).unwrap() == noise(8, 2), "what can be read is read");
    shelf.disks.iter().for_each(|disk| disk.mend());
    spa.clear(None).unwrap();
    spa.sync().unwrap();
    assert!(reads(&spa, &file, 8, 2));
    // closed while it is suspended, it is the pool of the last txg
    file.write(&spa.tx((8 * BLOCK) as u64).unwrap(), 0, &noise(8, 3)).unwrap();
    shelf.disks.iter().for_each(|disk| disk.fail_writes(1 << 40));
    assert!(spa.close().is_err());
    let id = file.id();
    drop((file, spa));
    shelf.disks.iter().for_each(|disk| disk.mend());
    let spa = shelf.import().unwrap();
    let file = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap().object(id).unwrap();
    assert!(reads(&spa, &file, 8, 2));
    drop(file);
    judged(&shelf, spa);
}

#[test]
fn with_failmode_panic_nothing_is_committed() {
    let shelf = Shelf::new(1);
    let spa = shelf.create("d0");
    spa.set_prop("failmode", Value::Number(PANIC)).unwrap();
    let file = object(&spa);
    write(&spa, &file, 8, 1).unwrap();
    let synced = spa.txgs().synced();
    file.write(&spa.tx((8 * BLOCK) as u64).unwrap(), 0, &noise(8, 2)).unwrap();
    shelf.disks[0].fail_writes(1 << 40);
    assert!(spa.sync().is_err());
    assert_eq!(spa.txgs().synced(), synced);
    let said = shelf.panics.lock().unwrap().clone();
    assert!(said.len() == 1 && said[0].contains("failure mode property for this pool is set to panic"), "{said:?}");
}

/// The loss of blocks that a device had taken and not flushed is noticed before the txg is committed.
#[test]
fn a_txg_whose_blocks_were_lost_is_not_committed() {
    for lost in [false, true] {
        let shelf = Shelf::new(1);
        let spa = shelf.create("d0");
        let file = object(&spa);
        write(&spa, &file, 8, 1).unwrap();
        file.write(&spa.tx((8 * BLOCK) as u64).unwrap(), 0, &noise(8, 2)).unwrap();
        shelf.disks[0].lose_cache(lost);
        shelf.disks[0].fail_flushes(1);
        assert_eq!(spa.sync().is_err(), lost);
        let id = file.id();
        if !lost {
            assert!(reads(&spa, &file, 8, 2));
        }
        assert_eq!(spa.close().is_err(), lost);
        drop((file, spa));
        let spa = shelf.import().unwrap();
        let file = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap().object(id).unwrap();
        assert!(reads(&spa, &file, 8, if lost { 1 } else { 2 }));
        drop(file);
        judged(&shelf, spa);
    }
}

/// Blocks of a file that is fsynced are written while the txg before theirs is still ending: what happens to them then is not settled by that
/// txg's end.
#[test]
fn a_txg_whose_blocks_were_lost_before_it_was_synced_is_not_committed() {
    for lost in [false, true] {
        let shelf = Shelf::new(1);
        let spa = shelf.create("d0");
        let (early, late) = (object(&spa), object(&spa));
        write(&spa, &early, 1, 1).unwrap();
        let tx_for = |file: &dmu::Object| {
            let objset = file.objset();
            spa.dataset_tx_for(objset, BLOCK as u64, false, TxObjects::of(objset.id(), &[file.id()])).unwrap()
        };
        let held = tx_for(&late);
        let before = held.txg();
        thread::scope(|scope| {
            let first = scope.spawn(|| spa.sync());
            wait_for("the txg quiesces", || spa.txgs().open() > before);
            let tx = tx_for(&early);
            early.write(&tx, 0, &noise(1, 2)).unwrap();
            let txg = tx.txg();
            drop(tx);
            let policy = spa.write_policy(early.objset()).unwrap();
            assert!(matches!(early.sync_block(0, txg, &policy), Ok(SyncedBlock::Written(_))));
            shelf.disks[0].lose_cache(lost);
            shelf.disks[0].fail_flushes(1);
            assert!(spa.tree().flush().is_err());
            late.write(&held, 0, &noise(1, 3)).unwrap();
            drop(held);
            first.join().unwrap().unwrap();
        });
        assert_eq!(spa.sync().is_err(), lost);
        let (early, late) = (early.id(), late.id());
        assert_eq!(spa.close().is_err(), lost);
        drop(spa);
        let spa = shelf.import().unwrap();
        let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
        assert!(reads(&spa, &objset.object(late).unwrap(), 1, 3));
        assert!(reads(&spa, &objset.object(early).unwrap(), 1, if lost { 1 } else { 2 }));
        drop(objset);
        judged(&shelf, spa);
    }
}

/// An fsync that returned holds, whatever becomes of the pool after it; one that did not return waits.
#[test]
fn what_was_fsynced_before_the_pool_was_suspended_is_there() {
    for (words, count) in [("d0", 1), ("mirror d0 d1", 2), ("d0 log d1", 2)] {
        let shelf = Shelf::new(count);
        let spa = shelf.create_with_files(words);
        let zfs = Zfs::open(&spa, "t").unwrap();
        let new = |name: &str| {
            zfs.create(&Cred::ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap().0
        };
        let (kept, other) = (new("kept"), new("other"));
        spa.sync().unwrap();
        zfs.write(&Cred::ROOT, kept, 0, &noise(1, 1)).unwrap();
        zfs.fsync(kept).unwrap();
        zfs.write(&Cred::ROOT, other, 0, &noise(1, 2)).unwrap();
        shelf.disks.iter().for_each(|disk| disk.pull(false));
        let returned = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ended = Ended(&spa);
            let waiting = scope.spawn(|| {
                let done = zfs.fsync(other);
                returned.store(true, Ordering::SeqCst);
                done
            });
            wait_for(words, || spa.suspended().is_some());
            thread::sleep(Duration::from_millis(100));
            assert!(!returned.load(Ordering::SeqCst), "{words}");
            spa.abandon();
            assert!(waiting.join().unwrap().is_err(), "{words}");
        });
        drop(zfs);
        assert!(spa.close().is_err());
        drop(spa);
        shelf.disks.iter().for_each(|disk| disk.push());
        let spa = shelf.import().unwrap();
        let zfs = Zfs::open(&spa, "t").unwrap();
        let mut found = vec![0; BLOCK];
        let (id, _) = zfs.lookup(&Cred::ROOT, zfs.fs().root(), b"kept").unwrap();
        zfs.read(id, 0, &mut found).unwrap();
        assert!(found == noise(1, 1), "{words}");
        drop(zfs);
        judged(&shelf, spa);
    }
}
