//! Initializing and trimming of leaves: beside writes, over any topology, across imports, and as OpenZFS reads their progress.
#![allow(clippy::unwrap_used)]

use std::io::{self, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{Env, Errno, Guid};
use dmu::Object;
use oracle::judge;
use pool::testing::{BLOCK, noise, object, write};
use pool::{
    Activity, CreateOptions, Hooks, ImportOptions, LeafCommand, LeafOptions, LeafWork, LeafWorkState, Spa, StoredWork,
    Value,
};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::import::scan_devices;
use vdev::{Device, DeviceKind, Discards, FileDevice};

const START: LeafCommand = LeafCommand::Start(LeafOptions { value: None, rate: 0, secure: false });

/// A file of which discarded bytes become others.
#[derive(Debug)]
struct Junk {
    file: FileDevice,
    discarded: AtomicU64,
    discards: Discards,
    /// Bytes that may still be discarded before it fails for good.
    left: AtomicU64,
}

impl Device for Junk {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        self.file.write_vectored_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.discarded.fetch_add(len, Ordering::SeqCst);
        let junk = vec![0xa5; 1 << 20];
        for at in (offset..offset + len).step_by(junk.len()) {
            let len = (offset + len - at).min(junk.len() as u64) as usize;
            self.file.write_at(at, &junk[..len])?;
        }
        let left = |left: u64| left.checked_sub(len);
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::other("no more")),
        }
    }

    fn discards(&self) -> Discards {
        self.discards
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::FILE
    }

    fn name(&self) -> String {
        self.file.name()
    }
}

fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: None, ..Hooks::default() }
}

/// A pool `t` of files in `dir`, whose disks are `d0`, `d1` and so on in `words`.
fn make(dir: &Path, words: &str, (size, ashift): (u64, u64), wrap: &dyn Fn(FileDevice) -> Arc<dyn Device>) -> Arc<Spa> {
    let is_disk = |word: &str| word.strip_prefix('d').is_some_and(|n| n.parse::<u32>().is_ok());
    let path = |word: &str| if is_disk(word) { dir.join(word).display().to_string() } else { word.to_owned() };
    let words: Vec<String> = words.split(' ').map(path).collect();
    let open =
        |path: &str| -> Option<Arc<dyn Device>> { Some(wrap(FileDevice::create(Path::new(path), size).unwrap())) };
    let options = LayoutOptions { ashift: Some(ashift), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks().env).unwrap();
    Spa::create(new, CreateOptions::new("t"), hooks()).unwrap()
}

fn plain(file: FileDevice) -> Arc<dyn Device> {
    Arc::new(file)
}

fn junk(file: FileDevice) -> Arc<dyn Device> {
    let discards = Discards { plainly: true, securely: true };
    Arc::new(Junk { file, discarded: AtomicU64::new(0), discards, left: AtomicU64::new(u64::MAX) })
}

/// Opens the pool in `dir` anew.
fn again(dir: &Path) -> Arc<Spa> {
    let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    let open = |path: std::path::PathBuf| {
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        (path, device)
    };
    Spa::import(&scan_devices(all.into_iter().map(open).collect())[0], &ImportOptions::default(), hooks()).unwrap()
}

fn leaves(spa: &Spa) -> Vec<Guid> {
    spa.tree().config().leaves().map(|leaf| leaf.guid).collect()
}

/// What is stored of the work on each leaf.
fn stored(spa: &Spa, work: LeafWork) -> Vec<StoredWork> {
    let view = spa.view().unwrap();
    spa.tree().config().leaves().map(|leaf| view.leaf_work(leaf.leaf_zap, work).unwrap()).collect()
}

fn states(spa: &Spa, work: LeafWork) -> Vec<LeafWorkState> {
    stored(spa, work).into_iter().map(|stored| stored.state).collect()
}

/// Asserts that a file begins with the blocks of this seed.
fn assert_blocks(file: &Object, blocks: usize, seed: u64) {
    assert!(file.read_vec(0, blocks * BLOCK).unwrap() == noise(blocks, seed), "the data of seed {seed}");
}

/// Writes, frees and reads while all leaves are initialized and trimmed; then everything is there, and nothing else is allocated.
fn work_beside_writes(words: &str, size: u64, ashift: u64) {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), words, (size, ashift), &junk);
    let (kept, changing, done) = (object(&spa), object(&spa), AtomicBool::new(false));
    write(&spa, &kept, 20, 1).unwrap();
    write(&spa, &changing, 40, 2).unwrap();
    let all = leaves(&spa);
    assert_eq!(spa.initialize(&all, START).unwrap(), []);
    assert_eq!(spa.trim(&all, START).unwrap(), []);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 3;
            while !done.load(Ordering::SeqCst) || seed < 8 {
                write(&spa, &changing, 40, seed).unwrap();
                assert_blocks(&changing, 40, seed);
                seed += 1;
            }
        });
        spa.wait_activity(Activity::Initialize).unwrap();
        spa.wait_activity(Activity::Trim).unwrap();
        done.store(true, Ordering::SeqCst);
    });
    for work in [LeafWork::Initialize, LeafWork::Trim] {
        assert_eq!(states(&spa, work), vec![LeafWorkState::Complete; all.len()], "{work:?}");
    }
    assert_blocks(&kept, 20, 1);
    spa.export().unwrap();
    drop((kept, changing, spa));
    judge::no_leaks(dir.path(), "t");
}

#[test]
fn a_disk() {
    work_beside_writes("d0", 256 << 20, 9);
    work_beside_writes("d0 d1", 128 << 20, 12);
}

#[test]
fn a_mirror() {
    work_beside_writes("mirror d0 d1", 128 << 20, 9);
    work_beside_writes("mirror d0 d1 mirror d2 d3", 128 << 20, 12);
}

#[test]
fn a_raidz() {
    work_beside_writes("raidz d0 d1 d2", 96 << 20, 9);
    work_beside_writes("raidz2 d0 d1 d2 d3 d4", 96 << 20, 12);
}

#[test]
fn a_draid() {
    work_beside_writes("draid1:2d:4c:0s d0 d1 d2 d3", 128 << 20, 9);
    work_beside_writes("draid1:2d:5c:1s d0 d1 d2 d3 d4", 128 << 20, 12);
}

#[test]
fn a_log_a_special_and_a_dedup_vdev() {
    work_beside_writes("d0 log d1 special d2 dedup d3", 128 << 20, 9);
    work_beside_writes("d0 log mirror d1 d2 special mirror d3 d4", 128 << 20, 12);
}

#[test]
fn free_space_that_was_overwritten_becomes_holes() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "mirror d0 d1", (128 << 20, 12), &plain);
    let file = object(&spa);
    write(&spa, &file, 20, 1).unwrap();
    let bytes = || ["d0", "d1"].map(|name| std::fs::metadata(dir.path().join(name)).unwrap().blocks() * 512);
    let all = leaves(&spa);
    let value = 0x0123_4567_89ab_cdef_u64;
    assert_eq!(
        spa.initialize(&all, LeafCommand::Start(LeafOptions { value: Some(value), ..LeafOptions::default() })).unwrap(),
        []
    );
    spa.wait_activity(Activity::Initialize).unwrap();
    assert!(bytes().iter().all(|bytes| *bytes > 100 << 20), "{:?}", bytes());
    let image = std::fs::read(dir.path().join("d1")).unwrap();
    let words = image.chunks_exact(8).filter(|word| **word == value.to_ne_bytes()).count() * 8;
    assert!(words > 90 << 20, "{words} bytes have the pattern");
    // one leaf only
    assert_eq!(spa.trim(&all[..1], START).unwrap(), []);
    let waited = spa.wait_leaf_while(Activity::Trim, all[0], &|| true).unwrap();
    let [first, second] = bytes();
    assert!(waited && first < 30 << 20 && second > 100 << 20, "{first} {second}");
    assert!(!spa.wait_leaf_while(Activity::Trim, all[1], &|| true).unwrap());
    assert_eq!(states(&spa, LeafWork::Trim), [LeafWorkState::Complete, LeafWorkState::None]);
    assert_blocks(&file, 20, 1);
    spa.export().unwrap();
    drop((file, spa));
    judge::no_leaks(dir.path(), "t");
}

#[test]
fn commands_that_do_not_fit_are_refused_leaf_by_leaf() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "mirror d0 d1", (128 << 20, 12), &|file| {
        let discards = Discards { plainly: file.name().ends_with('0'), securely: false };
        Arc::new(Junk { file, discarded: AtomicU64::new(0), discards, left: AtomicU64::new(u64::MAX) })
    });
    let all = leaves(&spa);
    let top = spa.tree().tops()[0].guid();
    let (nobody, first, second) = (Guid(12), all[0], all[1]);
    let refused = |guids: &[Guid], command| spa.trim(guids, command).unwrap();
    assert_eq!(refused(&[nobody, top], START), [(nobody, Errno::ENODEV), (top, Errno::EINVAL)]);
    let slowly = LeafCommand::Start(LeafOptions { rate: 1, ..LeafOptions::default() });
    assert_eq!(refused(&[second, first], slowly), [(second, Errno::ENOTSUP)], "the other one begins");
    let securely = LeafCommand::Start(LeafOptions { secure: true, ..LeafOptions::default() });
    assert_eq!(refused(&[first], securely), [(first, Errno::ENOTSUP)]);
    assert_eq!(refused(&[first], START), [(first, Errno::EBUSY)]);
    assert_eq!(states(&spa, LeafWork::Trim), [LeafWorkState::Active, LeafWorkState::None]);
    assert_eq!(refused(&[first], LeafCommand::Suspend), []);
    assert_eq!(refused(&[first], LeafCommand::Suspend), [(first, Errno::ESRCH)]);
    assert_eq!(refused(&[first], LeafCommand::Cancel), []);
    assert_eq!(refused(&[first], LeafCommand::Cancel), [(first, Errno::ESRCH)]);
    assert_eq!(states(&spa, LeafWork::Trim), [LeafWorkState::Canceled, LeafWorkState::None]);
    // a new one is not bound to the old rate
    assert_eq!(refused(&[first], START), []);
    spa.wait_activity(Activity::Trim).unwrap();
    assert_eq!(stored(&spa, LeafWork::Trim)[0].rate, 0);

    let of_initialize = |guids: &[Guid], command| spa.initialize(guids, command).unwrap();
    assert_eq!(of_initialize(&all, LeafCommand::Suspend), [(first, Errno::ESRCH), (second, Errno::ESRCH)]);
    assert_eq!(of_initialize(&[second], START), []);
    spa.wait_activity(Activity::Initialize).unwrap();
    assert_eq!(states(&spa, LeafWork::Initialize), [LeafWorkState::None, LeafWorkState::Complete]);
    assert_eq!(of_initialize(&[second], LeafCommand::Uninit), []);
    assert_eq!(stored(&spa, LeafWork::Initialize), stored(&spa, LeafWork::Initialize)[..1].repeat(2));
    spa.export().unwrap();
}

#[test]
fn work_goes_on_after_the_next_import_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "d0", (512 << 20, 12), &plain);
    let all = leaves(&spa);
    // a megabyte, and then a rest of a quarter of an hour
    let slowly = LeafCommand::Start(LeafOptions { rate: 1 << 10, ..LeafOptions::default() });
    assert_eq!(spa.trim(&all, slowly).unwrap(), []);
    while stored(&spa, LeafWork::Trim)[0].offset == 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        spa.sync().unwrap();
    }
    let zap = spa.tree().config().leaves().next().unwrap().leaf_zap;
    let before = stored(&spa, LeafWork::Trim)[0];
    assert_eq!((before.state, before.rate), (LeafWorkState::Active, 1 << 10));
    spa.export().unwrap();
    drop(spa);
    if let Some(out) =
        judge::run("zdb", &["-e", "-p", &dir.path().display().to_string(), "-dddd", "t", &zap.0.to_string()])
    {
        let said = String::from_utf8_lossy(&out.stdout);
        let offset = format!("org.zfsonlinux:next_offset_to_trim = {}", before.offset + (4 << 20));
        for line in [&offset, "org.zfsonlinux:vdev_trim_state = 1", "org.zfsonlinux:vdev_trim_rate = 1024"] {
            assert!(said.contains(line), "{line}\n{said}");
        }
    }

    let spa = again(dir.path());
    let progress = |spa: &Spa| {
        let view = spa.view().unwrap();
        view.leaf_progress(0, all[0], &stored(spa, LeafWork::Trim)[0]).unwrap()
    };
    let begun = progress(&spa);
    assert!(begun.done > 0 && begun.total > 400 << 20 && begun.done < begun.total / 2, "{begun:?}");
    assert_eq!(spa.trim(&all, LeafCommand::Suspend).unwrap(), []);
    assert!(!spa.wait_activity(Activity::Trim).unwrap(), "what is suspended is not waited for");
    spa.export().unwrap();
    drop(spa);

    let spa = again(dir.path());
    let suspended = stored(&spa, LeafWork::Trim)[0];
    assert_eq!((suspended.state, suspended.rate), (LeafWorkState::Suspended, 1 << 10));
    assert!(suspended.offset >= before.offset);
    // it goes on, at the speed that is asked for now
    assert_eq!(
        spa.trim(&all, LeafCommand::Start(LeafOptions { rate: 1 << 40, ..LeafOptions::default() })).unwrap(),
        []
    );
    assert!(stored(&spa, LeafWork::Trim)[0].offset >= suspended.offset);
    spa.wait_activity(Activity::Trim).unwrap();
    let after = progress(&spa);
    assert_eq!((states(&spa, LeafWork::Trim)[0], after.done), (LeafWorkState::Complete, after.total));
    spa.export().unwrap();
    drop(spa);
    judge::no_leaks(dir.path(), "t");
}

#[test]
fn a_device_that_fails_to_discard_does_not_end_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "mirror d0 d1", (128 << 20, 12), &|file| {
        let discards = Discards { plainly: true, securely: true };
        Arc::new(Junk { file, discarded: AtomicU64::new(0), discards, left: AtomicU64::new(20 << 20) })
    });
    let file = object(&spa);
    write(&spa, &file, 20, 1).unwrap();
    assert_eq!(spa.trim(&leaves(&spa), START).unwrap(), []);
    spa.wait_activity(Activity::Trim).unwrap();
    assert_eq!(states(&spa, LeafWork::Trim), [LeafWorkState::Complete; 2]);
    assert_blocks(&file, 20, 1);
    spa.export().unwrap();
    drop((file, spa));
    judge::no_leaks(dir.path(), "t");
}

#[test]
fn what_is_freed_is_trimmed_while_autotrim_is_on() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "raidz d0 d1 d2", (128 << 20, 12), &plain);
    let bytes = || ["d0", "d1", "d2"].map(|name| std::fs::metadata(dir.path().join(name)).unwrap().blocks() * 512);
    let autotrim = |on: u64| spa.set_prop("autotrim", Value::Number(on)).unwrap();
    let (kept, freed) = (object(&spa), object(&spa));
    write(&spa, &kept, 20, 1).unwrap();
    let small = bytes().iter().sum::<u64>();
    autotrim(1);
    write(&spa, &freed, 400, 2).unwrap();
    let large = bytes().iter().sum::<u64>();
    assert!(large > small + (60 << 20), "{small} {large}");
    // all but the first block goes
    freed.free_range(&spa.tx(1 << 20).unwrap(), BLOCK as u64, 399 * BLOCK as u64).unwrap();
    let begun = std::time::Instant::now();
    while bytes().iter().sum::<u64>() > small + (20 << 20) {
        assert!(begun.elapsed().as_secs() < 60, "nothing is trimmed: {:?}", bytes());
        kept.write(&spa.tx(1 << 20).unwrap(), 0, &noise(1, begun.elapsed().as_micros() as u64)).unwrap();
        spa.sync().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    autotrim(0);
    write(&spa, &kept, 20, 3).unwrap();
    assert_blocks(&kept, 20, 3);
    assert_blocks(&freed, 1, 2);
    spa.export().unwrap();
    drop((kept, freed));
    drop(spa);
    judge::no_leaks(dir.path(), "t");
}
