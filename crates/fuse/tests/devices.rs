//! A directory of block devices, as the kernel shows it.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "there is no pool")]
mod lab;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base::Errno;
use fuse::{Device, DeviceDirectory, Devices, Entry, Found, Identity, Kind, Unmount};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

const BLOCK: u64 = 4096;

/// A device in memory: blocks that are stored.
#[derive(Default)]
struct Memory {
    size: Mutex<u64>,
    blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
    read_only: AtomicBool,
    flushes: AtomicUsize,
    durable: AtomicUsize,
    /// It answers nothing while this is locked.
    suspended: Mutex<()>,
}

impl Memory {
    fn each(offset: u64, len: usize, mut work: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let into = (at % BLOCK) as usize;
            let now = (BLOCK as usize - into).min(len - done);
            work(at / BLOCK, into, done..done + now);
            done += now;
        }
    }
}

impl Device for Memory {
    fn size(&self) -> u64 {
        drop(self.suspended.lock().unwrap());
        *self.size.lock().unwrap()
    }
    fn block_size(&self) -> u64 {
        BLOCK
    }
    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::SeqCst)
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let len = (self.size().saturating_sub(offset) as usize).min(buf.len());
        let blocks = self.blocks.lock().unwrap();
        Memory::each(offset, len, |block, into, range| {
            let len = range.len();
            match blocks.get(&block) {
                Some(stored) => buf[range].copy_from_slice(&stored[into..into + len]),
                None => buf[range].fill(0),
            }
        });
        Ok(len)
    }
    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Errno> {
        assert!(offset + data.len() as u64 <= self.size());
        self.durable.fetch_add(usize::from(durable), Ordering::SeqCst);
        let mut blocks = self.blocks.lock().unwrap();
        Memory::each(offset, data.len(), |block, into, range| {
            let stored = blocks.entry(block).or_insert_with(|| vec![0; BLOCK as usize]);
            stored[into..into + range.len()].copy_from_slice(&data[range]);
        });
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        assert!(offset + len <= self.size() && len > 0);
        let mut blocks = self.blocks.lock().unwrap();
        Memory::each(offset, len as usize, |block, into, range| {
            if range.len() == BLOCK as usize {
                blocks.remove(&block);
            } else if let Some(stored) = blocks.get_mut(&block) {
                stored[into..into + range.len()].fill(0);
            }
        });
        Ok(())
    }
    fn flush(&self) -> Result<(), Errno> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn seek(&self, from: u64, is_data: bool) -> Result<Option<u64>, Errno> {
        let blocks = self.blocks.lock().unwrap();
        let all = from / BLOCK..self.size().div_ceil(BLOCK);
        Ok(all.into_iter().find(|block| blocks.contains_key(block) == is_data).map(|block| from.max(block * BLOCK)))
    }
}

/// Devices by their paths, each with its number; directories are what is above.
#[derive(Default)]
struct World {
    all: Mutex<BTreeMap<String, (u64, Arc<Memory>)>>,
    /// What takes a path just before the next device is opened.
    swap: Mutex<Option<(String, u64, Arc<Memory>)>>,
}

impl World {
    fn add(&self, path: &str, number: u64, size: u64) -> Arc<Memory> {
        let device = Arc::new(Memory { size: Mutex::new(size), ..Memory::default() });
        self.all.lock().unwrap().insert(path.to_owned(), (number, device.clone()));
        device
    }

    fn found(&self, path: &str) -> Option<Found> {
        // one that does not answer is not waited for with the lock
        let device = self.all.lock().unwrap().get(path).cloned();
        if let Some((number, device)) = device {
            let (size, block_size, read_only) = (device.size(), BLOCK, device.is_read_only());
            return Some(Found {
                identity: Identity([0, 0, number]),
                kind: Kind::Device { size, block_size, read_only },
            });
        }
        let all = self.all.lock().unwrap();
        let is_above = path.is_empty() || all.keys().any(|key| key.starts_with(&format!("{path}/")));
        let number = path.bytes().fold(1 << 32, |sum: u64, byte| sum * 31 + u64::from(byte));
        is_above.then_some(Found { identity: Identity([1, 0, number]), kind: Kind::Directory })
    }
}

impl Devices for World {
    fn find(&self, path: &str) -> Result<Found, Errno> {
        self.found(path).ok_or(Errno::ENOENT)
    }
    fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let all = self.all.lock().unwrap().keys().cloned().collect::<Vec<_>>();
        let below = all.iter().filter_map(|key| Some(key.strip_prefix(&prefix)?.split('/').next()?.to_owned()));
        let names: std::collections::BTreeSet<String> = below.collect();
        let entry = |name: String| match self.found(&format!("{prefix}{name}")).unwrap().kind {
            Kind::Directory => (name, Entry::Directory),
            Kind::Device { .. } => (name, Entry::Device),
        };
        Ok(names.into_iter().map(entry).collect())
    }
    fn open(&self, path: &str, expected: Identity) -> Result<Arc<dyn Device>, Errno> {
        if let Some((path, number, device)) = self.swap.lock().unwrap().take() {
            self.all.lock().unwrap().insert(path, (number, device));
        }
        match self.all.lock().unwrap().get(path) {
            Some((number, _)) if Identity([0, 0, *number]) != expected => Err(Errno::ESTALE),
            Some((_, device)) => Ok(device.clone()),
            None => Err(Errno::ENOENT),
        }
    }
}

struct Lab {
    world: Arc<World>,
    mount: Option<DeviceDirectory>,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Option<Lab> {
        if !lab::can_mount() {
            return None;
        }
        let (world, dir) = (Arc::<World>::default(), tempfile::tempdir().unwrap());
        let mount = DeviceDirectory::mount(world.clone(), dir.path(), "test:a b").unwrap();
        Some(Lab { world, mount: Some(mount), dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn names(&self, path: &str) -> Vec<String> {
        let names =
            fs::read_dir(self.path(path)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

fn errno<T: std::fmt::Debug>(done: std::io::Result<T>) -> i32 {
    done.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn devices_are_files_of_directories_and_come_and_go() {
    let Some(lab) = Lab::new() else { return };
    assert_eq!(lab.names(""), [] as [&str; 0]);
    let (size, other) = (1 << 20, 3 * BLOCK + 512);
    lab.world.add("t/a", 1, size);
    lab.world.add("t/fs/b@s", 2, other).read_only.store(true, Ordering::SeqCst);
    assert_eq!(
        (lab.names(""), lab.names("t"), lab.names("t/fs")),
        (vec!["t".into()], vec!["a".into(), "fs".into()], vec!["b@s".into()])
    );
    let meta = |path: &str| fs::metadata(lab.path(path)).unwrap();
    assert_eq!((meta("t/a").len(), meta("t/a").blksize(), meta("t/a").mode()), (size, BLOCK, 0o100_600));
    assert_eq!((meta("t/fs/b@s").len(), meta("t/fs/b@s").mode()), (other, 0o100_400));
    assert!(meta("t/fs").is_dir() && !lab.path("t/none").exists() && !lab.path("t/a/x").exists());
    let shown = fuse::all_mounts().into_iter().find(|seen| seen.path == lab.dir.path()).unwrap();
    assert!(shown.is_devices && shown.source == "test:a b");

    // under another name it is the same file; what takes its name is another
    let file = File::open(lab.path("t/a")).unwrap();
    let moved = lab.world.all.lock().unwrap().remove("t/a").unwrap();
    lab.world.all.lock().unwrap().insert("t/c".to_owned(), moved);
    assert!(!lab.path("t/a").exists());
    *lab.world.all.lock().unwrap()["t/c"].1.size.lock().unwrap() = 2 * size;
    assert_eq!((file.metadata().unwrap().len(), meta("t/c").len()), (2 * size, 2 * size));
    assert_eq!(file.metadata().unwrap().ino(), meta("t/c").ino());
    lab.world.add("t/a", 7, size);
    assert_ne!(meta("t/a").ino(), meta("t/c").ino());
    assert_eq!(errno(OpenOptions::new().write(true).open(lab.path("t/fs/b@s"))), Errno::EROFS.raw());
    assert!(File::open(lab.path("t/fs/b@s")).is_ok());
    for (what, done) in [
        ("create", File::create(lab.path("t/new")).map(drop)),
        ("mkdir", fs::create_dir(lab.path("t/dir"))),
        ("unlink", fs::remove_file(lab.path("t/a"))),
        ("rename", fs::rename(lab.path("t/a"), lab.path("t/b"))),
    ] {
        assert!(done.is_err(), "{what}");
    }

    assert!(lab.mount.as_ref().unwrap().unmount(Unmount::Idle).is_err(), "a file is open");
    drop(file);
    let users = || Arc::strong_count(&lab.world.all.lock().unwrap()["t/c"].1);
    // a file is released after its last descriptor is closed
    let begun = std::time::Instant::now();
    while users() > 1 {
        assert!(begun.elapsed().as_secs() < 60, "the device is not released");
        std::thread::yield_now();
    }
    let idle = || lab.mount.as_ref().unwrap().unmount(Unmount::Idle);
    lab::when_idle(idle, |done| done.as_ref().is_err_and(|e| e.errno() == Errno::EBUSY)).unwrap();
    assert!(lab.mount.as_ref().unwrap().has_ended() && lab.names("").is_empty());
}

#[test]
fn what_is_written_is_the_device_s_and_ends_with_it() {
    let Some(lab) = Lab::new() else { return };
    let size = 64 * BLOCK;
    let device = lab.world.add("a", 1, size);
    let file = OpenOptions::new().read(true).write(true).open(lab.path("a")).unwrap();
    let data: Vec<u8> = (0..5 * BLOCK as usize).map(|n| (n % 251) as u8 + 1).collect();
    file.write_all_at(&data, 100).unwrap();
    let mut seen = vec![0; data.len()];
    device.read(100, &mut seen).unwrap();
    assert!(seen == data, "it was not there at once");
    // what others write is seen
    device.write(100, &[7; 9], false).unwrap();
    file.read_exact_at(&mut seen, 100).unwrap();
    assert!(seen[..9] == [7; 9] && seen[9..] == data[9..]);

    // the end
    assert_eq!(file.write_at(&[1; 100], size - 10).unwrap(), 10);
    assert_eq!(errno(file.write_at(&[1], size)), Errno::ENOSPC.raw());
    assert_eq!(file.read_at(&mut [0; 100], size - 10).unwrap(), 10);
    assert_eq!(file.read_at(&mut [0; 100], size).unwrap(), 0);
    assert_eq!(errno(file.set_len(size - 1)), Errno::EINVAL.raw());
    file.set_len(size).unwrap();
    assert_eq!(errno(OpenOptions::new().write(true).truncate(true).open(lab.path("a"))), Errno::EINVAL.raw());

    // stable storage
    assert_eq!((device.flushes.load(Ordering::SeqCst), device.durable.load(Ordering::SeqCst)), (0, 0));
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!(device.flushes.load(Ordering::SeqCst), 2);
    for flags in [rustix::fs::OFlags::DSYNC, rustix::fs::OFlags::SYNC] {
        let synced = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(lab.path("a")).unwrap();
        synced.write_all_at(&[3; 4096], BLOCK).unwrap();
    }
    let durable = device.durable.load(Ordering::SeqCst);
    assert!(durable + device.flushes.load(Ordering::SeqCst) >= 4 && durable >= 2, "{durable}");
    // past the kernel's cache, too
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let direct = OpenOptions::new().read(true).write(true).custom_flags(direct).open(lab.path("a")).unwrap();
    assert_eq!(direct.metadata().unwrap().len(), size);
}

#[test]
fn ranges_are_freed_and_found() {
    let Some(lab) = Lab::new() else { return };
    let size = 64 * BLOCK;
    let device = lab.world.add("a", 1, size);
    let file = OpenOptions::new().read(true).write(true).open(lab.path("a")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)).unwrap_err(), rustix::io::Errno::NXIO);
    assert_eq!(seek(&file, SeekFrom::Hole(9)).unwrap(), 9);
    file.write_all_at(&vec![5; 20 * BLOCK as usize], 10 * BLOCK).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(3)).unwrap(), 10 * BLOCK);
    assert_eq!(seek(&file, SeekFrom::Hole(11 * BLOCK)).unwrap(), 30 * BLOCK);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 12 * BLOCK + 1, 3 * BLOCK).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(11 * BLOCK)).unwrap(), 13 * BLOCK);
    assert_eq!(seek(&file, SeekFrom::Data(13 * BLOCK)).unwrap(), 15 * BLOCK);
    let mut seen = vec![9; BLOCK as usize];
    file.read_exact_at(&mut seen, 12 * BLOCK).unwrap();
    assert!(seen[0] == 5 && seen[1..].iter().all(|byte| *byte == 0));
    fallocate(&file, FallocateFlags::ZERO_RANGE, 0, size).unwrap();
    assert!(device.blocks.lock().unwrap().is_empty());
    // beyond the end there is nothing
    fallocate(&file, punch, size - BLOCK, 8 * BLOCK).unwrap();
    fallocate(&file, punch, size, BLOCK).unwrap();
    assert!(fallocate(&file, FallocateFlags::ZERO_RANGE, size - BLOCK, 2 * BLOCK).is_err());
    assert!(fallocate(&file, FallocateFlags::empty(), 0, BLOCK).is_err());
    assert_eq!(file.metadata().unwrap().len(), size);
}

/// Many wait for a pool that does not answer, in all ways; another one answers meanwhile.
#[test]
fn a_pool_that_does_not_answer_holds_up_no_other() {
    let Some(lab) = Lab::new() else { return };
    let (stuck, well) = (lab.world.add("stuck/a", 1, 1 << 20), lab.world.add("well/a", 2, 1 << 20));
    let open = |path: &str| OpenOptions::new().read(true).write(true).open(lab.path(path)).unwrap();
    let file = Arc::new(open("stuck/a"));
    let mut waiting = Vec::new();
    let held = stuck.suspended.lock().unwrap();
    for n in 0..60u8 {
        let (file, path) = (file.clone(), lab.path("stuck/a"));
        let wait = move || match n % 5 {
            0 => file.read_exact_at(&mut [0; 100], 0).unwrap(),
            1 => file.write_all_at(&[n; 100], 0).unwrap(),
            2 => assert_eq!(fs::metadata(path).unwrap().len(), 1 << 20),
            3 => drop(File::open(path).unwrap()),
            _ => assert_eq!(file.metadata().unwrap().len(), 1 << 20),
        };
        waiting.push(std::thread::Builder::new().spawn(wait).unwrap());
    }
    // those that wait have come to it
    let begun = std::time::Instant::now();
    while Arc::strong_count(&stuck) < 12 && begun.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    let other = open("well/a");
    other.write_all_at(b"meanwhile", 7).unwrap();
    other.sync_all().unwrap();
    let mut seen = [0; 9];
    other.read_exact_at(&mut seen, 7).unwrap();
    assert_eq!(&seen, b"meanwhile");
    assert_eq!((lab.names(""), lab.names("well")), (vec!["stuck".into(), "well".into()], vec!["a".into()]));
    assert_eq!(fs::metadata(lab.path("well/a")).unwrap().len(), 1 << 20);
    assert!(well.flushes.load(Ordering::SeqCst) > 0 && waiting.iter().all(|thread| !thread.is_finished()));
    drop(held);
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
}

/// What takes the name of a device between the look at it and its opening is not opened as if it were that.
#[test]
fn another_device_is_not_opened_under_the_name_of_one() {
    let Some(lab) = Lab::new() else { return };
    let first = lab.world.add("t/a", 1, 1 << 20);
    first.write(0, b"first", false).unwrap();
    let second = Arc::new(Memory { size: Mutex::new(1 << 20), ..Memory::default() });
    second.write(0, b"other", false).unwrap();
    *lab.world.swap.lock().unwrap() = Some(("t/a".to_owned(), 2, second));
    // the kernel looks the name up again, and opens what it is by now, as that
    let file = File::open(lab.path("t/a")).unwrap();
    assert_eq!(file.metadata().unwrap().ino(), fs::metadata(lab.path("t/a")).unwrap().ino());
    let mut seen = [0; 5];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"other");
    // a node that is known is not another one
    let node = rustix::fs::open(lab.path("t/a"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let third = Arc::new(Memory { size: Mutex::new(1 << 20), ..Memory::default() });
    *lab.world.swap.lock().unwrap() = Some(("t/a".to_owned(), 3, third));
    use std::os::fd::AsRawFd;
    assert_eq!(errno(File::open(format!("/proc/self/fd/{}", node.as_raw_fd()))), Errno::ESTALE.raw());
}

#[test]
fn a_file_system_is_made_on_one_and_checked() {
    let Some(lab) = Lab::new() else { return };
    let device = lab.world.add("t/a", 1, 16 << 20);
    for (program, args) in [("mke2fs", &["-q", "-t", "ext4", "-d", "src"][..]), ("e2fsck", &["-fn"])] {
        match Command::new(program).args(args).arg(lab.path("t/a")).output() {
            Err(_) if std::env::var_os("CI").is_none() => eprintln!("no {program} here: skipped"),
            done => {
                let done = done.unwrap();
                assert!(done.status.success(), "{program}: {done:?}");
            }
        }
    }
    assert!(device.flushes.load(Ordering::SeqCst) > 0);
}
