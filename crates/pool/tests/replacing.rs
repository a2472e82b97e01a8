//! Devices that are attached, detached and replaced while a pool is written: the new ones have everything, and nothing of it depends on the old.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Errno, Guid};
use dmu::Object;
use pool::testing::{BLOCK, hooks, in_memory_of, noise, object};
use pool::{Error, ImportOptions, ScrubRange, Spa, VdevRefusal};
use vdev::create::{LayoutOptions, NewPool, VdevSpec, layout};
use vdev::import::{scan, scan_devices};
use vdev::testing::{Call, Tapped};
use vdev::{Device, MemoryDevice, VdevType};

/// The labels at the front of a device, the boot area, and those at its end.
const FRONT: u64 = 4 << 20;
const END: u64 = 512 << 10;

/// A pool whose disks are exchanged, and a file that is in it before.
struct Bench {
    spa: Arc<Spa>,
    disks: Vec<Arc<MemoryDevice>>,
    file: Object,
    data: Vec<u8>,
}

impl Bench {
    fn new(words: &str, count: usize) -> Bench {
        let size = if words.starts_with("draid") { 160 << 20 } else { 64 << 20 };
        let (spa, disks) = in_memory_of(words, count, size);
        let file = object(&spa);
        let data = noise(40, 3);
        file.write(&spa.tx(data.len() as u64).unwrap(), 0, &data).unwrap();
        spa.sync().unwrap();
        Bench { spa, disks, file, data }
    }

    fn guid(&self, name: &str) -> Guid {
        self.spa.tree().leaves().iter().find(|leaf| leaf.name() == name).unwrap().guid()
    }

    fn lay_out(&self, name: &str) -> NewPool {
        let disk = self.disks.iter().find(|disk| disk.name() == name).unwrap();
        let options = self.spa.layout_options(Some(12));
        lay_out(&self.spa, disk, options)
    }

    fn attach(&self, old: &str, new: &str, replacing: bool) -> Result<(), Error> {
        self.spa.attach_vdev(self.guid(old), self.lay_out(new), replacing)
    }

    fn detach(&self, name: &str) -> Result<(), Error> {
        self.spa.detach_vdev(self.guid(name))
    }

    fn wait(&self) {
        self.spa.scan_wait(&mut |_| {}).unwrap();
    }

    /// The leaves in the order of the configuration, with the kinds of the vdevs above them.
    fn shape(&self) -> String {
        let tree = self.spa.tree();
        let of = |vdev: &vdev::VdevConfig| match vdev.kind.is_leaf() {
            true => tree.leaf(vdev.guid).map_or("?".to_owned(), |leaf| leaf.name()),
            false => vdev.kind.name().to_owned(),
        };
        tree.config().walk().skip(1).map(of).collect::<Vec<_>>().join(" ")
    }

    /// Runs `work` while another thread writes a file of its own. Returns that file and what it has.
    fn written_beside(&self, work: impl FnOnce()) -> (Object, Vec<u8>) {
        let (stop, file) = (AtomicBool::new(false), object(&self.spa));
        let mut data = vec![0; 16 * BLOCK];
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for seed in 10.. {
                    let (at, block) = ((seed as usize * 7) % 16 * BLOCK, noise(1, seed));
                    file.write(&self.spa.tx(BLOCK as u64).unwrap(), at as u64, &block).unwrap();
                    data[at..][..BLOCK].copy_from_slice(&block);
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    if seed % 3 == 0 {
                        self.spa.sync().unwrap();
                    }
                }
            });
            work();
            stop.store(true, Ordering::Release);
            writer.join().unwrap();
        });
        self.spa.sync().unwrap();
        (file, data)
    }

    /// Overwrites all that is between the labels of these disks: the others must have everything.
    fn wipe(&self, names: &[&str]) {
        for disk in self.disks.iter().filter(|disk| names.contains(&disk.name().as_str())) {
            let len = disk.size() - FRONT - END;
            disk.write_at(FRONT, &vec![0x5a; len as usize]).unwrap();
        }
        self.spa.zio().arc().clear();
    }

    fn check(&self, other: &(Object, Vec<u8>)) {
        assert!(self.file.read_vec(0, self.data.len()).unwrap() == self.data, "what was there before");
        let (file, data) = other;
        assert!(file.read_vec(0, data.len()).unwrap() == *data, "what was written beside it");
    }

    /// Lets OpenZFS check the pool, if `zdb` is there, then opens it again from its disks.
    fn export_and_judge(self) {
        self.spa.export().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let tree = self.spa.tree();
        let is_used = |disk: &&Arc<MemoryDevice>| tree.leaves().iter().any(|leaf| leaf.name() == disk.name());
        for disk in self.disks.iter().filter(is_used) {
            let mut bytes = vec![0; disk.size() as usize];
            disk.read_at(0, &mut bytes).unwrap();
            std::fs::write(dir.path().join(disk.name()), bytes).unwrap();
        }
        oracle::judge::no_leaks(dir.path(), "t");
    }
}

/// Holds up all resilvers of this process while it lasts.
struct Held(#[allow(dead_code)] MutexGuard<'static, ()>);

fn hold_resilvers() -> Held {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    base::tunable::ZFS_SCAN_SUSPEND_PROGRESS.set(1);
    Held(guard)
}

impl Drop for Held {
    fn drop(&mut self) {
        base::tunable::ZFS_SCAN_SUSPEND_PROGRESS.set(0);
    }
}

fn lay_out(spa: &Spa, disk: &Arc<MemoryDevice>, options: LayoutOptions) -> NewPool {
    let spec = VdevSpec::parse(&[disk.name()]).unwrap();
    layout(&spec, &|_| Some(disk.clone() as Arc<dyn Device>), options, spa.env()).unwrap()
}

fn refusal(done: Result<(), Error>) -> VdevRefusal {
    match done {
        Err(Error::Vdevs(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// Replaces `d0` by `d9`, and has the block read without `wiped`, which are as many disks as the vdev can miss.
fn replace(words: &str, shape: &str, wiped: &[&str]) -> Bench {
    let bench = Bench::new(words, 10);
    let other = bench.written_beside(|| {
        bench.attach("d0", "d9", true).unwrap();
        bench.wait();
    });
    assert_eq!(bench.shape(), shape, "{words}");
    bench.check(&other);
    bench.wipe(&["d0"]);
    let recovered = || bench.spa.zio().stats().recovered.get();
    let before = recovered();
    bench.check(&other);
    assert_eq!(recovered(), before, "{words}: the old disk is asked no more");
    bench.wipe(wiped);
    bench.check(&other);
    bench.spa.scrub(ScrubRange::default()).unwrap();
    bench.wait();
    bench
}

#[test]
fn a_single_disk_is_replaced() {
    replace("d0", "d9", &[]).export_and_judge();
}

#[test]
fn a_disk_of_a_mirror_is_replaced() {
    replace("mirror d0 d1", "mirror d9 d1", &["d1"]).export_and_judge();
}

#[test]
fn a_disk_of_a_raidz_is_replaced() {
    replace("raidz1 d0 d1 d2", "raidz d9 d1 d2", &["d1"]);
    replace("raidz2 d0 d1 d2 d3 d4", "raidz d9 d1 d2 d3 d4", &["d1", "d3"]);
    replace("raidz3 d0 d1 d2 d3 d4", "raidz d9 d1 d2 d3 d4", &["d1", "d2", "d4"]).export_and_judge();
}

#[test]
fn a_disk_of_a_draid_is_replaced() {
    replace("draid1:2d:5c:1s d0 d1 d2 d3 d4", "draid d9 d1 d2 d3 d4", &["d2"]).export_and_judge();
}

#[test]
fn one_of_several_vdevs_is_replaced() {
    replace("d0 mirror d1 d2", "d9 mirror d1 d2", &["d2"]);
    replace("mirror d1 d2 special mirror d0 d3 log d4", "mirror d1 d2 mirror d9 d3 d4", &["d3", "d1"])
        .export_and_judge();
}

#[test]
fn a_disk_gets_a_mirror_and_goes() {
    let bench = Bench::new("d0 d1", 6);
    let other = bench.written_beside(|| {
        bench.attach("d0", "d2", false).unwrap();
        bench.attach("d0", "d3", false).unwrap();
        bench.wait();
        assert_eq!(bench.shape(), "mirror d0 d2 d3 d1");
        bench.detach("d0").unwrap();
        bench.detach("d2").unwrap();
    });
    assert_eq!(bench.shape(), "d3 d1");
    assert_eq!(refusal(bench.detach("d3")), VdevRefusal::NotSupported);
    bench.wipe(&["d0", "d2"]);
    bench.check(&other);
    // the disks that went belong to nobody, and may come back
    bench.attach("d3", "d0", false).unwrap();
    bench.attach("d1", "d2", false).unwrap();
    bench.wait();
    bench.wipe(&["d3", "d1"]);
    bench.check(&other);
    bench.spa.scrub(ScrubRange::default()).unwrap();
    bench.wait();
    bench.export_and_judge();
}

#[test]
fn a_replacement_is_called_off() {
    let bench = Bench::new("raidz1 d0 d1 d2", 6);
    let held = hold_resilvers();
    bench.attach("d0", "d3", true).unwrap();
    assert_eq!(bench.shape(), "raidz replacing d0 d3 d1 d2");
    assert!(!bench.spa.tree().leaf(bench.guid("d3")).unwrap().dtl().is_empty());
    assert_eq!(refusal(bench.detach("d1")), VdevRefusal::NotSupported);
    // a third takes part; the newest is the one that is to stay
    bench.attach("d0", "d4", true).unwrap();
    bench.detach("d3").unwrap();
    assert_eq!(bench.shape(), "raidz replacing d0 d4 d1 d2");
    bench.detach("d4").unwrap();
    assert_eq!(bench.shape(), "raidz d0 d1 d2");
    drop(held);
    bench.wait();
    bench.export_and_judge();
}

#[test]
fn what_a_new_disk_lacks_keeps_the_old_one() {
    let bench = Bench::new("mirror d0 d1", 6);
    let held = hold_resilvers();
    bench.attach("d1", "d2", false).unwrap();
    bench.detach("d1").unwrap();
    assert_eq!(refusal(bench.detach("d0")), VdevRefusal::NoReplicas, "d2 has not everything");
    drop(held);
    bench.wait();
    bench.detach("d0").unwrap();
    bench.wipe(&["d0", "d1"]);
    assert!(bench.file.read_vec(0, bench.data.len()).unwrap() == bench.data);
    bench.export_and_judge();
}

#[test]
fn an_interrupted_replacement_goes_on_after_an_import() {
    for words in ["mirror d0 d1", "raidz1 d0 d1 d2"] {
        let bench = Bench::new(words, 6);
        let held = hold_resilvers();
        bench.attach("d0", "d5", true).unwrap();
        let Bench { spa, disks, .. } = bench;
        spa.close().unwrap();
        drop(spa);
        drop(held);
        let found = disks.iter().map(|disk| (disk.name().into(), disk.clone() as Arc<dyn Device>)).collect();
        let pools = scan_devices(found);
        assert_eq!(pools.len(), 1);
        let spa = Spa::import(&pools[0], &ImportOptions { force: true, ..ImportOptions::default() }, hooks()).unwrap();
        assert!(spa.tree().config().walk().any(|vdev| vdev.kind == VdevType::Replacing), "{words}");
        spa.resilver(false).unwrap();
        spa.scan_wait(&mut |_| {}).unwrap();
        let names: Vec<String> = spa.tree().leaves().iter().map(|leaf| leaf.name()).collect();
        assert!(!names.contains(&"d0".to_owned()) && names.contains(&"d5".to_owned()), "{words}: {names:?}");
        spa.export().unwrap();
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let bench = Bench::new("mirror d0 d1 cache d6", 8);
    let small = Arc::new(MemoryDevice::writable((64 << 20) + (1 << 18)).named("small".to_owned()));
    let new = |disk: &Arc<MemoryDevice>, ashift| lay_out(&bench.spa, disk, bench.spa.layout_options(Some(ashift)));
    let before = bench.spa.tree().config().to_nvlist();
    let attach = |old: Guid, new, replacing| bench.spa.attach_vdev(old, new, replacing);
    let (d0, free) = (bench.guid("d0"), &bench.disks[5]);
    assert_eq!(refusal(attach(Guid(5), new(free, 12), true)), VdevRefusal::NoVdev);
    let mirror = bench.spa.tree().tops()[0].guid();
    assert_eq!(refusal(attach(mirror, new(free, 12), true)), VdevRefusal::NotSupported);
    assert_eq!(refusal(attach(d0, new(free, 13), true)), VdevRefusal::Alignment);
    assert_eq!(refusal(attach(d0, new(&bench.disks[1], 12), true)), VdevRefusal::InUse);
    assert_eq!(refusal(attach(d0, new(&bench.disks[6], 12), true)), VdevRefusal::InUse);
    assert!(attach(d0, new(&small, 12), true).is_ok(), "larger than what the other has to have");
    bench.wait();
    assert_eq!(bench.spa.detach_vdev(Guid(5)).unwrap_err().errno(), Errno::ENODEV);
    bench.spa.checkpoint().unwrap();
    assert_eq!(refusal(bench.attach("d1", "d5", true)), VdevRefusal::Checkpoint);
    assert_eq!(refusal(bench.detach("d1")), VdevRefusal::Checkpoint);
    assert_ne!(before, bench.spa.tree().config().to_nvlist());
}

/// A crash while the labels of a detach are written: half of those of the device that is left have the guid of its place, and the uberblock is the one before.
#[test]
fn labels_of_two_states_are_those_of_one_device() {
    let bench = Bench::new("mirror d0 d1", 2);
    let image = |n: usize| {
        let mut bytes = vec![0; bench.disks[n].size() as usize];
        bench.disks[n].read_at(0, &mut bytes).unwrap();
        bytes
    };
    bench.spa.sync().unwrap();
    let (mut left, gone) = (image(1), image(0));
    bench.detach("d0").unwrap();
    let after = image(1);
    let size = after.len();
    // the configurations of labels 0 and 2
    for label in [0, size - (512 << 10)] {
        let config = label + (16 << 10)..label + (128 << 10);
        left[config.clone()].copy_from_slice(&after[config]);
    }
    bench.spa.close().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("d0"), gone).unwrap();
    std::fs::write(dir.path().join("d1"), left).unwrap();
    let found = scan(&[dir.path().to_owned()]).unwrap();
    let locked = found.iter().find(|pool| pool.name == "t").unwrap().lock().unwrap();
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = Spa::import(&locked, &options, hooks()).unwrap();
    assert!(spa.tree().leaves().len() == 2 && spa.tree().leaves().iter().all(|leaf| leaf.is_writable()));
    spa.export().unwrap();
}

/// A repair that a scrub could not write leaves the device behind: the other one has the only good copy.
#[test]
fn a_failed_repair_keeps_the_sibling() {
    // where a write is to fail, once: ten errors would be too many
    let fail = Arc::new(AtomicU64::new(u64::MAX));
    let (failing, memory) = (fail.clone(), Arc::new(MemoryDevice::writable(64 << 20).named("d0".to_owned())));
    let pass = move |call: &Call| match call {
        Call::Write(range) if range.contains(&failing.load(Ordering::SeqCst)) => {
            failing.store(u64::MAX, Ordering::SeqCst);
            Err(std::io::Error::from_raw_os_error(5))
        }
        _ => Ok(()),
    };
    let devices: Vec<Arc<dyn Device>> = vec![
        Arc::new(Tapped::new(memory.clone(), pass)),
        Arc::new(MemoryDevice::writable(64 << 20).named("d1".to_owned())),
    ];
    let words = ["mirror", "d0", "d1"].map(str::to_owned);
    let open = |path: &str| devices.iter().find(|device| device.name() == path).cloned();
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let hooks = hooks();
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks.env).unwrap();
    let spa = Spa::create(new, pool::CreateOptions::new("t"), hooks).unwrap();
    let file = object(&spa);
    file.write(&spa.tx(BLOCK as u64).unwrap(), 0, &noise(1, 3)).unwrap();
    spa.sync().unwrap();
    let guid = |name: &str| spa.tree().leaves().iter().find(|leaf| leaf.name() == name).unwrap().guid();
    let objset = spa.view().unwrap().dataset("t").unwrap().objset().unwrap();
    let at = objset.object(file.id()).unwrap().blkptr(0, 0).unwrap().unwrap().dva(0).offset();
    memory.write_at(FRONT + at, &[0x5a; 4096]).unwrap();
    fail.store(FRONT + at, Ordering::SeqCst);
    spa.zio().arc().clear();
    spa.scrub(ScrubRange::default()).unwrap();
    spa.scan_wait(&mut |_| {}).unwrap();
    assert_eq!(fail.load(Ordering::SeqCst), u64::MAX, "nothing was repaired");
    assert_eq!(refusal(spa.detach_vdev(guid("d1"))), VdevRefusal::NoReplicas);
    spa.clear(None).unwrap();
    spa.resilver(true).unwrap();
    spa.scan_wait(&mut |_| {}).unwrap();
    spa.detach_vdev(guid("d1")).unwrap();
    spa.zio().arc().clear();
    assert!(file.read_vec(0, BLOCK).unwrap() == noise(1, 3));
}
