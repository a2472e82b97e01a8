//! Devices that were away while a pool was written: they are brought up to date, and until then the pool is not healthy.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use base::tunable::ZUSE_CATCH_UP_MS;
use base::{Env, ObjectId};
use ondisk::scan::{ScanFunc, ScanState};
use oracle::judge;
use pool::{ImportOptions, ScanEnd, ScrubRange, ScrubResult, Spa, Value};
use vdev::VdevState;
use zio::Bookmark;
use zpl::live::{Cred, Zfs};
use zuse::{CaughtUp, Pool};

const SIZE: u64 = 128 << 20;

/// A pool `t` in a folder, and the devices that are not there.
struct Rack {
    dir: tempfile::TempDir,
    away: tempfile::TempDir,
}

impl Rack {
    /// Makes a pool of these words, where single letters are devices.
    fn new(words: &str) -> Rack {
        // however slow the machine is
        ZUSE_CATCH_UP_MS.set(600_000);
        let rack = Rack { dir: tempfile::tempdir().unwrap(), away: tempfile::tempdir().unwrap() };
        let words: Vec<String> = words
            .split(' ')
            .map(|word| if word.len() == 1 { rack.path(word).display().to_string() } else { word.to_owned() })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Pool::create_new("t", &words, SIZE).unwrap().export().unwrap();
        rack
    }

    fn path(&self, device: &str) -> PathBuf {
        self.dir.path().join(device)
    }

    fn take(&self, device: &str) {
        std::fs::rename(self.path(device), self.away.path().join(device)).unwrap();
    }

    fn give_back(&self, device: &str) {
        std::fs::rename(self.away.path().join(device), self.path(device)).unwrap();
    }

    fn open(&self) -> Pool {
        Pool::open_writable(&[self.dir.path()], None).unwrap()
    }

    /// The pool with its devices as they are.
    fn as_it_is(&self) -> Arc<Spa> {
        let found = vdev::import::scan(&[self.dir.path().to_owned()]).unwrap().remove(0).lock().unwrap();
        let hooks = pool::Hooks { used_by: Some(Arc::new(zpl::UsedByBonus)), ..pool::Hooks::default() };
        Spa::import(&found, &ImportOptions::default(), hooks).unwrap()
    }

    fn health(&self) -> VdevState {
        Pool::open(&[self.dir.path()], None).unwrap().view().unwrap().tree().status().state
    }

    fn reads(&self, files: &[(String, Vec<u8>)]) {
        let pool = Pool::open(&[self.dir.path()], None).unwrap();
        let fs = pool.file_system("t").unwrap();
        for (name, data) in files {
            let node = fs.resolve(name.as_bytes()).unwrap();
            let mut found = vec![0; node.size() as usize];
            node.read(0, &mut found).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(found == *data, "{name} is another one");
        }
    }

    fn judge(&self) {
        judge::no_leaks(self.dir.path(), "t");
    }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, bytes)
}

fn stale(spa: &Arc<Spa>) -> usize {
    spa.tree().stale_leaves().count()
}

fn resilver(spa: &Arc<Spa>) -> Option<ScanEnd> {
    spa.resilver(true).unwrap().then(|| spa.scan_wait(&mut |_| {}).unwrap())
}

/// Each device is away for a while, one after the other, twice: what was written without one must be there when the next one goes.
fn one_after_another(words: &str, devices: &[&str]) {
    let rack = Rack::new(words);
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (n, device) in devices.iter().chain(devices).enumerate() {
        rack.take(device);
        rack.reads(&files);
        let pool = rack.open();
        let data = noise(300_000 + n, n as u64);
        pool.files("t").unwrap().write(format!("f{n}").as_bytes(), &data).unwrap();
        pool.snapshot(&format!("t@{n}")).unwrap();
        files.push((format!("f{n}"), data));
        // it is neither fresh nor stale, but away
        assert_eq!((pool.caught_up().unwrap(), rack.health()), (CaughtUp::Yes, VdevState::Degraded), "{words}");
        pool.export().unwrap();
        drop(pool);
        rack.judge();
        rack.give_back(device);
        assert_eq!(rack.health(), VdevState::Degraded, "{words}: {device} missed something");
        let pool = rack.open();
        assert_eq!(pool.caught_up().unwrap(), CaughtUp::Yes, "{words}");
        let scan = pool.view().unwrap().scan().unwrap().unwrap();
        assert_eq!((scan.func, scan.state, scan.errors), (ScanFunc::Resilver, ScanState::Finished, 0), "{words}");
        pool.export().unwrap();
        drop(pool);
        assert_eq!(rack.health(), VdevState::Healthy, "{words}");
    }
    rack.judge();
    let spa = rack.as_it_is();
    spa.scrub(ScrubRange::default()).unwrap();
    let ScanEnd::Finished(tally) = spa.scan_wait(&mut |_| {}).unwrap() else { panic!("stopped") };
    assert_eq!((tally.healed, tally.lost_blocks), (0, 0), "{words}: something was left to repair");
    spa.export().unwrap();
}

#[test]
fn a_mirror_survives_one_device_after_another() {
    one_after_another("mirror a b", &["a", "b"]);
}

#[test]
fn a_raidz_survives_one_device_after_another() {
    one_after_another("raidz1 a b c", &["b", "c", "a"]);
}

#[test]
fn a_raidz2_survives_one_device_after_another() {
    one_after_another("raidz2 a b c d", &["b", "d"]);
}

#[test]
fn a_draid_survives_one_device_after_another() {
    one_after_another("draid1:2d:4c:0s a b c d", &["c", "a"]);
}

/// Takes device b out, writes files, and puts it back.
fn behind(rack: &Rack, files: usize) -> Vec<(String, Vec<u8>)> {
    rack.take("b");
    let pool = rack.open();
    let files: Vec<_> = (0..files).map(|n| (format!("f{n}"), noise(200_000, n as u64))).collect();
    for (name, data) in &files {
        pool.files("t").unwrap().write(name.as_bytes(), data).unwrap();
    }
    pool.export().unwrap();
    drop(pool);
    rack.give_back("b");
    files
}

#[test]
fn a_resilver_that_was_stopped_goes_on_and_only_its_end_counts() {
    let rack = Rack::new("mirror a b");
    let files = behind(&rack, 3);
    let spa = rack.as_it_is();
    assert!(spa.resilver_begin(1 << 20, true).unwrap() && stale(&spa) == 1);
    // the machine stops here: nothing is closed
    let crashed = tempfile::tempdir().unwrap();
    for device in ["a", "b"] {
        std::fs::copy(rack.path(device), crashed.path().join(device)).unwrap();
    }
    spa.close().unwrap();
    drop(spa);
    assert_eq!(rack.health(), VdevState::Degraded);
    let pool = Pool::open_writable(&[crashed.path()], None).unwrap();
    assert_eq!(pool.caught_up().unwrap(), CaughtUp::Yes);
    pool.export().unwrap();
    drop(pool);
    judge::no_leaks(crashed.path(), "t");
    let pool = rack.open();
    assert_eq!(pool.caught_up().unwrap(), CaughtUp::Yes);
    // nothing is written where there is nothing to do
    let txg = pool.view().unwrap().uberblock().txg;
    assert!(resilver(pool.spa().unwrap()).is_none() && pool.view().unwrap().uberblock().txg == txg);
    pool.export().unwrap();
    drop(pool);
    rack.take("a");
    rack.reads(&files);
    rack.judge();
}

/// A resilver must not take the device for whole, nor be tried with each command; when the other device is back, it is.
#[test]
fn a_resilver_that_could_not_read_everything_waits_for_what_is_missing() {
    let rack = Rack::new("raidz1 a b c");
    let files = behind(&rack, 4);
    rack.take("a");
    // of the last txgs only `c` has anything without computing: the pool itself must be there
    let Ok(pool) = Pool::open_writable(&[rack.dir.path()], None) else {
        rack.give_back("a");
        return finished(&rack, &files);
    };
    assert_eq!(pool.caught_up().unwrap(), CaughtUp::No);
    let spa = pool.spa().unwrap().clone();
    let scan = pool.view().unwrap().scan().unwrap().unwrap();
    assert!(scan.state == ScanState::Finished && scan.errors > 0);
    assert!(!spa.is_resilver_due(false).unwrap() && spa.is_resilver_due(true).unwrap());
    drop(spa);
    pool.export().unwrap();
    drop(pool);
    rack.give_back("a");
    finished(&rack, &files);
}

fn finished(rack: &Rack, files: &[(String, Vec<u8>)]) {
    let pool = rack.open();
    assert_eq!(pool.caught_up().unwrap(), CaughtUp::Yes);
    assert!(pool.view().unwrap().errlog().unwrap().is_empty(), "what was read in the end is no error");
    pool.export().unwrap();
    drop(pool);
    assert_eq!(rack.health(), VdevState::Healthy);
    rack.take("c");
    rack.reads(files);
    rack.judge();
}

/// A scrub that saw everything makes the device whole as well; one of a range does not.
#[test]
fn a_scrub_without_errors_clears_what_was_missed() {
    let rack = Rack::new("mirror a b");
    let files = behind(&rack, 2);
    let spa = rack.as_it_is();
    let scrub = |range| {
        spa.scrub(range).unwrap();
        spa.scan_wait(&mut |_| {}).unwrap()
    };
    scrub(ScrubRange { after: spa.uberblock().txg, upto: None });
    assert_eq!(stale(&spa), 1, "nothing old was read");
    scrub(ScrubRange::default());
    assert_eq!(stale(&spa), 0);
    spa.export().unwrap();
    drop(spa);
    assert_eq!(rack.health(), VdevState::Healthy);
    rack.take("a");
    rack.reads(&files);
    rack.judge();
}

/// Blocks that only the checkpoint has are resilvered as well.
#[test]
fn what_the_checkpoint_has_is_resilvered() {
    let rack = Rack::new("mirror a b");
    rack.take("b");
    let pool = rack.open();
    let data = noise(500_000, 1);
    pool.files("t").unwrap().write(b"f", &data).unwrap();
    pool.spa().unwrap().checkpoint().unwrap();
    pool.files("t").unwrap().remove_file(b"f").unwrap();
    pool.sync().unwrap();
    pool.export().unwrap();
    drop(pool);
    rack.give_back("b");
    let pool = rack.open();
    assert_eq!(pool.caught_up().unwrap(), CaughtUp::Yes);
    pool.export().unwrap();
    drop(pool);
    rack.take("a");
    let found = vdev::import::scan(&[rack.dir.path().to_owned()]).unwrap().remove(0);
    let options = pool::OpenOptions { checkpoint: true, ..pool::OpenOptions::default() };
    let then = pool::Pool::open(&found, &options).unwrap();
    let fs = zpl::FileSystem::open(&then.dataset("t").unwrap()).unwrap();
    let mut seen = vec![0; data.len()];
    fs.resolve(b"f").unwrap().read(0, &mut seen).unwrap();
    assert!(seen == data);
}

/// A block that the resilver has not come to gets another pointer behind it, and loses the one before it.
fn shared_behind(props: &[(&str, Value)], share: impl Fn(&Zfs, u64, u64, &[u8])) {
    let rack = Rack::new("mirror a b");
    let pool = rack.open();
    pool.create("t/d", props).unwrap();
    let files = pool.files("t/d").unwrap();
    [b"one", b"two"].iter().for_each(|name| files.write(*name, b"").unwrap());
    // the one that comes first is behind the resilver
    let is_in_order = files.stat(b"one").unwrap().0 < files.stat(b"two").unwrap().0;
    let (copy, source) = if is_in_order { (b"one", b"two") } else { (b"two", b"one") };
    drop(files);
    pool.export().unwrap();
    drop(pool);
    rack.take("b");
    let pool = rack.open();
    let data = noise(1 << 20, 3);
    let files = pool.files("t/d").unwrap();
    let id = files.stat(source).unwrap().0;
    files.zfs().write(&Cred::ROOT, id, 0, &data).unwrap();
    drop(files);
    pool.export().unwrap();
    drop(pool);
    rack.give_back("b");

    let spa = rack.as_it_is();
    let pool = Pool::of_spa(spa.clone());
    let files = pool.files("t/d").unwrap();
    let name = source;
    let [copy, source] = [copy, source].map(|name| files.stat(name).unwrap().0);
    assert!(spa.resilver_begin(1 << 20, false).unwrap());
    let view = spa.view().unwrap();
    let head = view.dataset("t/d").unwrap().id();
    let mut place = view.scrub_cursor(ScanFunc::Resilver).unwrap().unwrap();
    while place.target(&view).unwrap().unwrap().dataset != head {
        place.done(&view).unwrap();
    }
    place.reached(&Bookmark::new(head, source, 0, 0));
    // what is before that place counts as read, though it was not: the MOS, and all that leads to the files
    spa.scrub_progress(place, ScrubResult::default(), Vec::new()).unwrap();
    share(files.zfs(), source.0, copy.0, &data);
    files.sync().unwrap();
    files.remove_file(name).unwrap();
    spa.sync().unwrap();
    resilver(&spa).unwrap();
    assert_eq!(stale(&spa), 0);
    let object = spa.view().unwrap().dataset("t/d").unwrap().objset().unwrap().object(copy).unwrap();
    let mut blocks = 0;
    for blkid in 0..object.nblocks() {
        let Some(bp) = object.blkptr(0, blkid).unwrap().filter(|bp| !bp.is_hole()) else { continue };
        assert!(bp.birth_physical() < bp.birth(), "it is not shared");
        let dva = bp.dva(0);
        let sides = ["a", "b"].map(|device| {
            use std::os::unix::fs::FileExt;
            let mut bytes = vec![0; bp.psize() as usize];
            let file = std::fs::File::open(rack.path(device)).unwrap();
            file.read_exact_at(&mut bytes, dva.offset() + (4 << 20)).unwrap();
            bytes
        });
        assert!(sides[0] == sides[1], "block {blkid} was lost behind the resilver");
        blocks += 1;
    }
    assert_eq!(blocks, 8);
    drop((files, pool));
    spa.export().unwrap();
}

#[test]
fn a_clone_behind_the_resilver_is_not_lost() {
    shared_behind(&[], |zfs, source, copy, data| {
        let done = zfs.copy_range(&Cred::ROOT, (ObjectId(source), 0), (ObjectId(copy), 0), data.len() as u64).unwrap();
        assert_eq!(done, data.len() as u64);
    });
}

#[test]
fn a_deduplicated_block_behind_the_resilver_is_not_lost() {
    // sha256
    shared_behind(&[("dedup", Value::Number(8))], |zfs, _, copy, data| {
        zfs.write(&Cred::ROOT, ObjectId(copy), 0, data).unwrap();
    });
}

/// A device that can only be read misses what is written, and nothing else happens.
#[test]
fn a_member_that_can_only_be_read_does_not_stop_the_pool() {
    let rack = Rack::new("mirror a b");
    let found = vdev::import::scan(&[rack.dir.path().to_owned()]).unwrap().remove(0);
    let device = |name: &str, writable: bool| -> (PathBuf, Arc<dyn vdev::Device>) {
        let path = rack.path(name);
        let open = if writable { vdev::FileDevice::open_read_write } else { vdev::FileDevice::open_read_only };
        (path.clone(), Arc::new(open(&path).unwrap()))
    };
    let again = vdev::import::scan_devices(vec![device("a", true), device("b", false)]);
    let candidate = again.into_iter().find(|candidate| candidate.guid == found.guid).unwrap();
    let before = std::fs::read(rack.path("b")).unwrap();
    let hooks = pool::Hooks { used_by: Some(Arc::new(zpl::UsedByBonus)), ..pool::Hooks::default() };
    let spa = Spa::import(&candidate, &ImportOptions::default(), hooks).unwrap();
    drop(candidate);
    let pool = Pool::of_spa(spa.clone());
    let data = noise(100_000, 9);
    pool.files("t").unwrap().write(b"f", &data).unwrap();
    assert!(!spa.is_resilver_due(true).unwrap(), "it cannot be written");
    pool.export().unwrap();
    drop((pool, spa));
    assert!(std::fs::read(rack.path("b")).unwrap() == before, "it was written");
    assert_eq!(rack.health(), VdevState::Degraded);
    let pool = rack.open();
    assert_eq!(pool.caught_up().unwrap(), CaughtUp::Yes);
    pool.export().unwrap();
    drop(pool);
    rack.take("a");
    rack.reads(&[("f".to_owned(), data)]);
}
