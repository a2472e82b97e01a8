//! Locations of logs: on a device that fails, one that is removed, a special one; and indirect writes in pieces.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // what is tested elsewhere
mod power;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::{Errno, Guid, ObjectId, tunable};
use parking_lot::RwLock;
use pool::Spa;
use power::{ROOT, Rig, bytes, tree};
use vdev::{Device, MemoryDevice, VdevState};
use zpl::Kind;
use zpl::live::{NewFile, Zfs};

/// Creates a file that is on stable storage when this returns.
fn commit(zfs: &Zfs, name: &str, len: usize) -> u64 {
    let (id, _) = zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap();
    zfs.write(&ROOT, id, 0, &bytes(len, id.0)).unwrap();
    zfs.fsync(id).unwrap();
    id.0
}

fn kstat(spa: &Arc<Spa>, name: &str) -> u64 {
    spa.kstats().iter().find(|k| k.name == "zil").and_then(|k| k.get(name)).unwrap()
}

/// Returns the top-level vdev that is a log device.
fn log(spa: &Arc<Spa>) -> Guid {
    spa.tree().tops().iter().find(|top| top.config().is_log).unwrap().guid()
}

/// Locked for writing by tests that set tunables which change where logs are allocated, for reading by tests that count blocks
/// there.
static PLACES: RwLock<()> = RwLock::new(());

/// The operation that a device refuses.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Writes,
    Flushes,
    Both,
}

/// A device that from some moment on fails writes, or fails flushes. Data that was written but not flushed is lost.
#[derive(Debug)]
struct Tired {
    inner: MemoryDevice,
    fault: Option<Fault>,
    broken: Arc<AtomicBool>,
}

impl Tired {
    fn has(&self, fault: Fault) -> bool {
        self.broken.load(Ordering::Relaxed) && (self.fault == Some(fault) || self.fault == Some(Fault::Both))
    }

    fn works(&self, fault: Fault) -> io::Result<()> {
        if self.has(fault) { Err(io::Error::other("the device has failed")) } else { Ok(()) }
    }
}

impl Device for Tired {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.works(Fault::Writes)?;
        if self.has(Fault::Flushes) { Ok(()) } else { self.inner.write_at(offset, data) }
    }
    fn flush(&self) -> io::Result<()> {
        self.works(Fault::Flushes)?;
        self.inner.flush()
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn name(&self) -> String {
        self.inner.name()
    }
}

/// Creates a pool, some of whose devices will fail when the switch is set.
fn rig(words: &[&str], faults: &[(&str, Fault)]) -> (Rig, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let wrap = |inner: MemoryDevice| -> Arc<dyn Device> {
        let fault = faults.iter().find(|(name, _)| *name == inner.name()).map(|(_, fault)| *fault);
        Arc::new(Tired { inner, fault, broken: broken.clone() })
    };
    (Rig::with(words, &wrap), broken)
}

/// The log loses its devices while the pool is open: the commit that meets the failure waits for a txg, later ones use other
/// devices.
fn fails(words: &[&str], faults: &[(&str, Fault)]) {
    let _places = PLACES.read();
    let (rig, broken) = rig(words, faults);
    let zfs = rig.file_system("t/f", &[], false);
    commit(&zfs, "first", 100);
    commit(&zfs, "second", 200_000);
    assert!(kstat(&rig.spa, "zil_itx_metaslab_slog_count") >= 1);
    assert_eq!(kstat(&rig.spa, "zil_commit_error_count"), 0);
    broken.store(true, Ordering::Relaxed);
    let synced = rig.spa.txgs().synced();
    commit(&zfs, "when it fails", 50_000);
    assert!(rig.spa.txgs().synced() > synced, "a txg has it");
    assert_eq!((kstat(&rig.spa, "zil_commit_error_count"), kstat(&rig.spa, "zil_commit_stall_count")), (1, 0));
    // a chain begins on the other device
    commit(&zfs, "the next", 50_000);
    let (synced, others) = (rig.spa.txgs().synced(), kstat(&rig.spa, "zil_itx_metaslab_normal_count"));
    for n in 0..5 {
        commit(&zfs, &format!("after that {n}"), 30_000 * n);
    }
    assert_eq!(rig.spa.txgs().synced(), synced, "no commit waits any more");
    assert!(kstat(&rig.spa, "zil_itx_metaslab_normal_count") >= others + 5);
    let after = rig.after_cut(&[], false);
    assert_eq!(tree(&zfs), tree(&after.open("t/f")));
    after.close();
    rig.spa.sync().unwrap();
    drop(zfs);
    rig.spa.export().unwrap();
}

/// A device fails and the others have all its data: no commit waits for a txg, and the log stays where it is.
fn holds(words: &[&str], fault: (&str, Fault), props: &[(&str, u64)]) {
    let place = if words.contains(&"log") { "zil_itx_metaslab_slog_count" } else { "zil_itx_metaslab_normal_count" };
    let _places = PLACES.read();
    let (rig, broken) = rig(words, &[fault]);
    let zfs = rig.file_system("t/f", props, false);
    commit(&zfs, "first", 100);
    commit(&zfs, "second", 200_000);
    let (synced, logged) = (rig.spa.txgs().synced(), kstat(&rig.spa, place));
    broken.store(true, Ordering::Relaxed);
    for n in 0..5 {
        commit(&zfs, &format!("after that {n}"), 30_000 * n + 100);
    }
    assert_eq!(rig.spa.txgs().synced(), synced, "no commit waits");
    assert_eq!(kstat(&rig.spa, "zil_commit_error_count"), 0);
    assert!(kstat(&rig.spa, place) >= logged + 5, "the log is where it was");
    let leaf = rig.spa.tree().leaves().iter().find(|leaf| leaf.name() == fault.0).unwrap().clone();
    assert!(!leaf.dtl().is_empty(), "it is known what the device missed");
    // reads return the data of the other devices
    let after = rig.after_cut(&[], false);
    assert_eq!(tree(&zfs), tree(&after.open("t/f")));
    after.close();
    rig.spa.sync().unwrap();
    commit(&zfs, "in another txg", 50_000);
    let after = rig.after_cut(&[], false);
    assert_eq!(tree(&zfs), tree(&after.open("t/f")));
    after.close();
    drop(zfs);
    rig.spa.export().unwrap();
}

const FAULTS: [Fault; 3] = [Fault::Writes, Fault::Flushes, Fault::Both];

#[test]
fn a_log_device_that_fails_its_writes_or_does_not_flush() {
    FAULTS.iter().for_each(|fault| fails(&["/a", "log", "/log"], &[("/log", *fault)]));
}

#[test]
fn a_log_mirror_does_with_one_of_its_devices() {
    FAULTS.iter().for_each(|fault| holds(&["/a", "log", "mirror", "/b", "/c"], ("/b", *fault), &[]));
}

#[test]
fn a_log_mirror_whose_devices_all_fail() {
    let all = [(Fault::Flushes, Fault::Flushes), (Fault::Writes, Fault::Both)];
    // one device lacks data that the other may lose
    for (b, c) in all.into_iter().chain([(Fault::Writes, Fault::Flushes)]) {
        fails(&["/a", "log", "mirror", "/b", "/c"], &[("/b", b), ("/c", c)]);
    }
}

#[test]
fn a_log_among_the_data_does_without_a_device() {
    for fault in FAULTS {
        holds(&["mirror", "/a", "/b"], ("/b", fault), &[]);
        holds(&["raidz", "/a", "/b", "/c"], ("/a", fault), &[("logbias", 1)]);
    }
}

/// The working one of two log devices stays in use.
#[test]
fn a_log_device_is_not_given_up_for_the_fault_of_another() {
    let _places = PLACES.read();
    let (rig, broken) = rig(&["/a", "log", "/b", "/c"], &[("/b", Fault::Flushes)]);
    let zfs = rig.file_system("t/f", &[], false);
    for n in 0..4 {
        commit(&zfs, &format!("before {n}"), 300_000);
    }
    broken.store(true, Ordering::Relaxed);
    for n in 0..8 {
        commit(&zfs, &format!("when it fails {n}"), 300_000);
    }
    let (synced, logged) = (rig.spa.txgs().synced(), kstat(&rig.spa, "zil_itx_metaslab_slog_count"));
    for n in 0..4 {
        commit(&zfs, &format!("after that {n}"), 300_000);
    }
    assert_eq!(rig.spa.txgs().synced(), synced, "no commit waits any more");
    assert!(kstat(&rig.spa, "zil_itx_metaslab_slog_count") >= logged + 4);
    let after = rig.after_cut(&[], false);
    assert_eq!(tree(&zfs), tree(&after.open("t/f")));
    after.close();
    drop(zfs);
    rig.spa.export().unwrap();
}

#[test]
fn a_log_device_is_removed_while_it_has_records() {
    let rig = Rig::new(&["/a", "log", "mirror", "/b", "/c"]);
    let zfs = rig.file_system("t/f", &[], false);
    commit(&zfs, "first", 100);
    rig.spa.sync().unwrap();
    let synced = rig.spa.txgs().synced();
    commit(&zfs, "in the log", 200_000);
    assert_eq!(rig.spa.txgs().synced(), synced);
    let (before, logged) = (tree(&zfs), kstat(&rig.spa, "zil_itx_metaslab_slog_count"));
    rig.spa.remove_vdev(log(&rig.spa)).unwrap();
    assert!(rig.spa.tree().tops().iter().all(|top| !top.config().is_log));
    assert_eq!(tree(&zfs), before);
    commit(&zfs, "elsewhere", 200_000);
    assert_eq!(kstat(&rig.spa, "zil_itx_metaslab_slog_count"), logged);
    let after = rig.after_cut(&[], false);
    assert_eq!(tree(&zfs), tree(&after.open("t/f")));
    after.close();
}

/// The only log device is emptied before it goes offline; until it is online again logs are elsewhere.
#[test]
fn a_log_device_with_records_is_offline_for_a_while() {
    let _places = PLACES.read();
    let rig = Rig::new(&["/a", "log", "/b"]);
    let zfs = rig.file_system("t/f", &[], false);
    commit(&zfs, "first", 100);
    rig.spa.sync().unwrap();
    commit(&zfs, "in the log", 200_000);
    let (logged, log) = (kstat(&rig.spa, "zil_itx_metaslab_slog_count"), log(&rig.spa));
    assert!(logged > 0);
    rig.spa.offline_vdev(log, false).unwrap();
    assert_eq!(rig.spa.tree().leaf(log).unwrap().health().state, VdevState::Offline);
    commit(&zfs, "elsewhere", 200_000);
    assert_eq!(kstat(&rig.spa, "zil_itx_metaslab_slog_count"), logged);
    // an import asks for no log device that is offline, and uses it as little
    let after = rig.after_cut(&[], false);
    let there = after.open("t/f");
    assert_eq!(tree(&zfs), tree(&there));
    commit(&there, "after an import", 200_000);
    assert_eq!(kstat(after.spa.as_ref().unwrap(), "zil_itx_metaslab_slog_count"), 0);
    drop(there);
    after.close();
    assert_eq!(rig.spa.online_vdev(log).unwrap(), VdevState::Healthy);
    rig.spa.sync().unwrap();
    commit(&zfs, "back again", 200_000);
    assert!(kstat(&rig.spa, "zil_itx_metaslab_slog_count") > logged);
    let after = rig.after_cut(&[], false);
    assert_eq!(tree(&zfs), tree(&after.open("t/f")));
    after.close();
    drop(zfs);
    rig.spa.export().unwrap();
}

/// Sets its flag when it is dropped, also by a panic.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Log devices are added and removed while files are written and waited for, in several datasets, by some writers without a pause and by others with
/// pauses, in which their logs are nearly empty. Everything that was acknowledged survives a power cut.
#[test]
fn log_devices_come_and_go_under_writers() {
    let rig = Rig::new(&["/a"]);
    let file_systems: Vec<Zfs> = (0..3).map(|n| rig.file_system(&format!("t/f{n}"), &[], false)).collect();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (zfs, stop, written) = (&file_systems[thread as usize % 3], &stop, &written);
            scope.spawn(move || {
                let _ended = Flag(stop);
                for n in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    commit(zfs, &format!("{thread} {n}"), 5000);
                    written.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(thread / 2 * (n * 7 % 5)));
                }
            });
        }
        let _ended = Flag(&stop);
        for round in 0..8 {
            rig.add(&["log", &format!("/log{round}")]);
            let logged = kstat(&rig.spa, "zil_itx_metaslab_slog_count");
            rig.spa.sync().unwrap();
            let so_far = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) < so_far + 20 {
                assert!(!stop.load(Ordering::Relaxed), "a writer has failed");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(kstat(&rig.spa, "zil_itx_metaslab_slog_count") > logged, "the new log is used");
            assert_eq!(rig.spa.view().unwrap().tree().tops().len() as u64, round + 2, "numbers are not given again");
            rig.spa.remove_vdev(log(&rig.spa)).unwrap();
        }
    });
    assert_eq!(kstat(&rig.spa, "zil_commit_error_count"), 0);
    let after = rig.after_cut(&[], true);
    for (n, zfs) in file_systems.iter().enumerate() {
        assert_eq!(tree(zfs), tree(&after.open(&format!("t/f{n}"))));
    }
    after.close();
    drop(file_systems);
    rig.spa.export().unwrap();
}

/// A commit that was acknowledged on a log that has just come is not lost with a cut at once.
#[test]
fn a_commit_right_after_a_log_device_has_come_is_safe() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[], false);
    commit(&zfs, "before", 100);
    rig.add(&["log", "/b"]);
    commit(&zfs, "on the new log", 200_000);
    let after = rig.after_cut(&[], true);
    assert_eq!(tree(&zfs), tree(&after.open("t/f")));
    after.close();
}

#[test]
fn a_log_device_with_records_that_nobody_has_replayed_stays() {
    let rig = Rig::new(&["/a", "log", "/b"]);
    let (plain, secret) = (rig.file_system("t/f", &[], false), rig.file_system("t/secret", &[], true));
    for zfs in [&plain, &secret] {
        commit(zfs, "first", 100);
        rig.spa.sync().unwrap();
        commit(zfs, "in the log", 200_000);
    }
    let after = rig.after_cut(&[], false);
    let spa = after.spa.clone().unwrap();
    assert_eq!(spa.remove_vdev(log(&spa)).unwrap_err().errno(), Errno::EBUSY);
    assert_eq!(tree(&plain), tree(&after.open("t/f")));
    // the key of the other was never loaded
    assert_eq!(spa.remove_vdev(log(&spa)).unwrap_err().errno(), Errno::EBUSY);
    spa.load_key("t/secret", &power::key()).unwrap();
    assert_eq!(tree(&secret), tree(&after.open("t/secret")));
    spa.remove_vdev(log(&spa)).unwrap();
    assert_eq!(tree(&plain), tree(&Zfs::open(&spa, "t/f").unwrap()));
    spa.export().unwrap();
}

#[test]
fn a_special_device_has_the_log() {
    let rig = Rig::new(&["/a", "special", "/b"]);
    let all =
        [rig.file_system("t/f", &[], false), rig.file_system("t/small", &[("special_small_blocks", 131_072)], false)];
    for zfs in &all {
        commit(zfs, "first", 100);
        rig.spa.sync().unwrap();
        for n in 0..5 {
            commit(zfs, &format!("n{n}"), n * 70_000);
        }
    }
    let after = rig.after_cut(&[], true);
    if let Some(logs) = &after.logs {
        // all log blocks are on the second vdev
        let blocks = logs.lines().filter(|line| line.contains("ZIL intent log") || line.contains("zilog2"));
        assert!(blocks.clone().count() > 0 && blocks.clone().all(|line| line.contains("DVA[0]=<1:")), "{logs}");
    }
    for (zfs, name) in all.iter().zip(["t/f", "t/small"]) {
        assert_eq!(tree(zfs), tree(&after.open(name)));
    }
    after.close();
}

#[test]
fn indirect_writes_may_be_gang_blocks() {
    let _places = PLACES.write();
    tunable::METASLAB_FORCE_GANGING.set(100 << 10);
    tunable::METASLAB_FORCE_GANGING_PCT.set(100);
    let rig = Rig::new(&["/a", "log", "/b"]);
    let through = [("logbias", 1)];
    let all = [rig.file_system("t/f", &through, false), rig.file_system("t/secret", &through, true)];
    for zfs in &all {
        commit(zfs, "first", 100);
        rig.spa.sync().unwrap();
        let synced = rig.spa.txgs().synced();
        let id = commit(zfs, "large", 1 << 20);
        zfs.write(&ROOT, ObjectId(id), 100_000, &bytes(200_000, 5)).unwrap();
        zfs.fsync(ObjectId(id)).unwrap();
        assert_eq!(rig.spa.txgs().synced(), synced);
    }
    let after = rig.after_cut(&["t/secret"], true);
    if let Some(logs) = &after.logs {
        assert!(logs.matches("gang").count() >= 8, "{logs}");
    }
    for (zfs, name) in all.iter().zip(["t/f", "t/secret"]) {
        assert_eq!(tree(zfs), tree(&after.open(name)));
    }
    after.close();
    // in the pool that continues, the sync uses these blocks as they are
    let before: Vec<_> = all.iter().map(tree).collect();
    rig.spa.sync().unwrap();
    let after = rig.after_cut(&["t/secret"], false);
    for (before, name) in before.iter().zip(["t/f", "t/secret"]) {
        assert_eq!(*before, tree(&after.open(name)));
    }
    after.close();
    tunable::METASLAB_FORCE_GANGING_PCT.set(0);
}
