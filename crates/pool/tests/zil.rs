//! Intent logs that Zuse writes: OpenZFS's zdb lists their records after a crash, an import claims them, and no block is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Env, ObjectId, Txg, tunable};
use codec::crypt::{Suite, WrappingKey};
use dmu::{NewObject, Object, Objset};
use ondisk::zil::{Record, TxType, Write};
use ondisk::{BlkPtr, ObjectType, ObjsetType, ZilHeader};
use oracle::judge;
use pool::{CreateOptions, Hooks, ImportOptions, KeyFormat, NewDataset, NewKey, OpenOptions, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, Direction, FileDevice};
use zil::write::{BlockGot, Got, Itx, ItxData, WriteSource, Zil};

const SIZE: u64 = 128 << 20;
/// Bytes in front of what is allocated of a device.
const LABELS: u64 = 4 << 20;
/// A block of a file.
const BLOCK: u64 = 128 << 10;

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

fn key() -> NewKey {
    NewKey {
        cipher: Suite::Aes256Gcm,
        keyformat: KeyFormat::Raw,
        keylocation: "prompt".to_string(),
        wrapping: WrappingKey::from_raw(&[7; 32]).unwrap(),
        pbkdf2_iters: 0,
        salt: 0,
    }
}

/// The pool `t`, with file systems `p`, and `e` that is encrypted.
fn make(dir: &Path, words: &str) -> Arc<Spa> {
    // only who waits makes txgs
    tunable::ZFS_TXG_TIMEOUT.set(3600);
    let path = |w: &str| dir.join(w).display().to_string();
    let word = |w: &str| if ["mirror", "raidz", "log"].contains(&w) { w.to_owned() } else { path(w) };
    let words: Vec<String> = words.split(' ').map(word).collect();
    let open =
        |path: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(FileDevice::create(Path::new(path), SIZE).unwrap())) };
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks().env).unwrap();
    let spa = Spa::create(new, CreateOptions::new("t"), hooks()).unwrap();
    for (name, key) in [("t/p", None), ("t/e", Some(key()))] {
        let name = name.to_owned();
        let os_type = ObjsetType::Zfs;
        let new = NewDataset { key, ..NewDataset::inheriting(name, os_type) };
        spa.create_dataset(new, Box::new(|_, _| Ok(()))).unwrap();
    }
    spa
}

fn import(dir: &Path) -> Arc<Spa> {
    let spa = import_as(dir, &ImportOptions::default(), &|_, device| Arc::new(device)).unwrap();
    spa.load_key("t/e", &key().wrapping).unwrap();
    spa
}

/// Imports the pool on what `wrap` makes of each of its devices.
fn import_as(
    dir: &Path,
    options: &ImportOptions,
    wrap: &dyn Fn(&str, FileDevice) -> Arc<dyn Device>,
) -> Result<Arc<Spa>, pool::Error> {
    let devices = std::fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let device = wrap(path.file_name().unwrap().to_str().unwrap(), FileDevice::open_read_write(&path).unwrap());
        (path, device)
    });
    let found = vdev::import::scan_devices(devices.collect());
    Spa::import(found.first().unwrap(), options, hooks())
}

/// What an import gives up that lacks log devices.
fn with_lost_logs(again: bool) -> ImportOptions {
    let open = OpenOptions { missing_log_ok: true, ..OpenOptions::default() };
    ImportOptions { open, again, ..ImportOptions::default() }
}

/// The offsets on a device, with which a mirror's devices have the copies of a block.
fn places(bp: &BlkPtr) -> Vec<u64> {
    bp.dvas().map(|dva| dva.offset() + LABELS).collect()
}

/// A device that does not give the sectors at some offsets, until it is well again.
#[derive(Debug)]
struct Unread {
    inner: FileDevice,
    offsets: Vec<u64>,
    is_well: Arc<AtomicBool>,
}

impl Device for Unread {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let range = offset..offset + buf.len() as u64;
        if !self.is_well.load(Ordering::Relaxed) && self.offsets.iter().any(|bad| range.contains(bad)) {
            return Err(io::Error::other("a bad sector"));
        }
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn name(&self) -> String {
        self.inner.name()
    }
}

/// The devices as a power cut would leave them now.
fn crash(dir: &Path) -> tempfile::TempDir {
    let left = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, left.path().join(path.file_name().unwrap())).unwrap();
    }
    left
}

fn zdb(dir: &Path, option: &str) -> Option<String> {
    let out = judge::run("zdb", &["-e", "-p", &dir.display().to_string(), option, "t"])?;
    let (text, trouble) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}\n{trouble}");
    Some(text.into_owned())
}

/// Files are objects; blocks cannot be written to their place.
struct Files(Arc<Objset>);

impl WriteSource for Files {
    fn copy(&self, object: ObjectId, _: u64, offset: u64, buf: &mut [u8]) -> Result<Got, dmu::Error> {
        buf.copy_from_slice(&self.0.object(object)?.read_vec(offset, buf.len())?);
        Ok(Got::Data)
    }

    fn write_block(&self, _: ObjectId, _: u64, _: u64, _: u64, _: Txg) -> Result<BlockGot, dmu::Error> {
        Ok(BlockGot::Copy)
    }
}

struct Fs {
    spa: Arc<Spa>,
    zil: Arc<Zil>,
    files: Arc<dyn WriteSource>,
    file: Object,
}

impl Fs {
    fn open(spa: &Arc<Spa>, name: &str) -> Fs {
        let objset = spa.objset(&spa.view().unwrap().dataset(name).unwrap()).unwrap();
        let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: BLOCK, ..NewObject::default() };
        let file = objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
        let zil = spa.zil(&objset);
        let files: Arc<dyn WriteSource> = Arc::new(Files(objset));
        zil.set_source(Arc::downgrade(&files));
        Fs { spa: spa.clone(), zil, files, file }
    }

    /// Writes to the file, and notes it.
    fn write(&self, offset: u64, data: &[u8], kind: ItxData) {
        let tx = self.spa.tx(data.len() as u64).unwrap();
        self.file.write(&tx, offset, data).unwrap();
        let (foid, length) = (self.file.id(), data.len() as u64);
        let data = (kind == ItxData::InRecord).then_some(data);
        let record = Record::Write(Write { foid, offset, length, blkptr: BlkPtr::HOLE, data }).encode(TxType::Write);
        self.zil.assign(&tx, Itx { record, object: Some(foid), sync: false, data: kind });
    }

    fn truncate(&self) {
        let tx = self.spa.tx(1).unwrap();
        let foid = self.file.id();
        let record = Record::Truncate { foid, offset: 1 << 40, length: 0 }.encode(TxType::Truncate);
        self.zil.assign(&tx, Itx { record, object: Some(foid), sync: true, data: ItxData::InRecord });
    }

    /// Begins the chain: with a txg, which frees what other logs have.
    fn begin(&self) {
        self.truncate();
        self.zil.commit(None).unwrap();
    }

    /// The records that a log should hold.
    fn work(&self) {
        self.begin();
        self.log();
    }

    fn log(&self) {
        self.write(100, b"in the record", ItxData::InRecord);
        self.zil.commit(Some(self.file.id())).unwrap();
        let len = 2 * BLOCK + 1000;
        self.write(BLOCK, &content(len), ItxData::NeedCopy { offset: BLOCK, len, generation: 0 });
        self.truncate();
        self.zil.commit(Some(self.file.id())).unwrap();
        // nobody waited for this one
        self.write(0, b"lost", ItxData::InRecord);
        assert!(Arc::strong_count(&self.files) == 1);
    }
}

fn content(len: u64) -> Vec<u8> {
    (0..len).map(|n| (n / 3) as u8).collect()
}

/// Finds in the log what was worked, and gives it up as a replay does.
fn found(spa: &Arc<Spa>, name: &str) {
    let dataset = spa.view().unwrap().dataset(name).unwrap();
    let objset = spa.objset_to_replay(&dataset).unwrap();
    let log = zil::read_log(&objset);
    assert!(log.header.claim_txg.0 != 0, "{name}: claimed");
    let (mut written, mut truncated) = (Vec::new(), 0);
    for record in log.records() {
        match record.decode().unwrap() {
            Record::Write(write) if write.offset == 100 => assert_eq!(write.data.unwrap(), b"in the record"),
            Record::Write(write) => written.extend_from_slice(write.data.unwrap()),
            Record::Truncate { .. } => truncated += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(written == content(2 * BLOCK + 1000), "{name}");
    assert_eq!(truncated, 1, "{name}: the first one was in a txg");
    spa.destroy_log(&objset, zil::claim::blocks_of(&objset)).unwrap();
}

fn logs_survive(words: &str, slog: bool) {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), words);
    let all = [Fs::open(&spa, "t/p"), Fs::open(&spa, "t/e")];
    spa.sync().unwrap();
    all.iter().for_each(Fs::begin);
    all.iter().for_each(Fs::log);
    assert_eq!(all[0].zil.has_slog(), slog);
    let kstats = spa.kstats();
    let figure = |name: &str| kstats.iter().find(|k| k.name == "zil").and_then(|k| k.get(name)).unwrap();
    let (used, unused) = if slog { ("slog", "normal") } else { ("normal", "slog") };
    assert!(figure(&format!("zil_itx_metaslab_{used}_count")) >= 8, "{kstats:?}");
    assert_eq!(figure(&format!("zil_itx_metaslab_{unused}_count")), 0);
    assert_eq!(figure("zil_commit_error_count"), 0);

    let left = crash(dir.path());
    if let Some(text) = zdb(left.path(), "-ivvvvv") {
        // three pieces of the long write, at least, in each of the two
        let count = |what: &str| text.lines().filter(|line| line.trim_start().starts_with(what)).count();
        assert!(count("TX_WRITE ") >= 2 * 4 && count("TX_TRUNCATE ") >= 2, "{text}");
        assert!(text.contains("will claim"), "{text}");
    }
    drop((all, kstats));
    spa.export().unwrap();
    drop(spa);

    let spa = import(left.path());
    ["t/p", "t/e"].iter().for_each(|name| found(&spa, name));
    // a log that was replayed and given up begins anew
    let again = Fs::open(&spa, "t/p");
    again.work();
    drop(again);
    let left = crash(left.path());
    spa.export().unwrap();
    drop(spa);
    let spa = import(left.path());
    found(&spa, "t/p");
    Fs::open(&spa, "t/e").work();
    spa.export().unwrap();
    drop(spa);
    judge::no_leaks(left.path(), "t");
    // an exported pool has no logs
    let spa = import(dir.path());
    for name in ["t/p", "t/e"] {
        let objset = spa.objset(&spa.view().unwrap().dataset(name).unwrap()).unwrap();
        assert_eq!(objset.phys().zil_header, ZilHeader::empty());
    }
    spa.close().unwrap();
}

#[test]
fn a_log_on_the_devices_of_the_pool() {
    logs_survive("raidz a b c", false);
}

#[test]
fn a_log_on_a_device_of_its_own() {
    logs_survive("mirror a b log l", true);
}

/// The end of a dataset's life, or of its key's, ends its log: no block of it is left, and none is freed twice.
#[test]
fn logs_of_datasets_that_change_behind_their_backs() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a");
    let fs = Fs::open(&spa, "t/p");
    fs.work();
    spa.snapshot(&["t/p@s".to_owned()], &[]).unwrap();
    fs.work();
    drop(fs);
    spa.rollback("t/p", None).unwrap();
    let fs = Fs::open(&spa, "t/p");
    fs.work();
    drop(fs);
    let fs = Fs::open(&spa, "t/e");
    fs.work();
    drop(fs);
    spa.sync().unwrap();
    spa.unload_key("t/e").unwrap();
    spa.load_key("t/e", &key().wrapping).unwrap();
    Fs::open(&spa, "t/e").work();
    spa.sync().unwrap();
    spa.destroy_head("t/e").unwrap();
    spa.export().unwrap();
    drop(spa);
    judge::no_leaks(dir.path(), "t");
}

/// Blocks of a log lie behind one another: a walk takes few reads for many of them.
#[test]
fn a_chain_is_read_ahead_of_its_pointers() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "raidz a b c");
    let fs = Fs::open(&spa, "t/p");
    fs.begin();
    for n in 0..60 {
        fs.write(n * BLOCK, &content(1000 + 300 * n), ItxData::InRecord);
        fs.zil.commit(Some(fs.file.id())).unwrap();
    }
    let left = crash(dir.path());
    drop(fs);
    spa.close().unwrap();
    let look = |prime: u64| {
        tunable::ZIL_REPLAY_PRIME.set(prime);
        let devices = std::fs::read_dir(left.path()).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_only(&path).unwrap());
            (path, device)
        });
        let found = vdev::import::scan_devices(devices.collect());
        let pool = pool::Pool::open(found.first().unwrap(), &pool::OpenOptions::default()).unwrap();
        let objset = pool.dataset("t/p").unwrap().objset().unwrap();
        let of_leaf = |leaf: &Arc<vdev::Leaf>| leaf.queue().figures().operations(Direction::Read);
        let reads = || pool.tree().leaves().iter().map(of_leaf).sum::<u64>();
        let before = reads();
        let seen = zil::walk(&objset, &mut |_| std::ops::ControlFlow::Continue(()));
        ((seen.blocks, seen.records, seen.max_blk_seq), reads() - before)
    };
    let (ahead, one_by_one) = (look(1), look(0));
    tunable::ZIL_REPLAY_PRIME.set(1);
    assert!(ahead.0 == one_by_one.0 && ahead.0.0 >= 60, "{ahead:?} {one_by_one:?}");
    assert!(one_by_one.1 >= 60 && ahead.1 <= one_by_one.1 / 4, "{ahead:?} {one_by_one:?}");
}

/// A snapshot's root block has the log that its dataset had then. A clone has none of it, though its key is not at hand.
#[test]
fn a_clone_made_without_its_key_has_no_log() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a");
    let fs = Fs::open(&spa, "t/e");
    fs.work();
    spa.snapshot(&["t/e@s".to_owned()], &[]).unwrap();
    drop(fs);
    let header = |name: &str| {
        let objset = spa.view().unwrap().dataset(name).unwrap().objset().unwrap();
        objset.phys().zil_header.clone()
    };
    assert_ne!(header("t/e@s"), ZilHeader::empty());
    spa.unload_key("t/e").unwrap();
    spa.clone_dataset("t/e@s", "t/c", Vec::new()).unwrap();
    spa.sync().unwrap();
    assert_eq!(header("t/c"), ZilHeader::empty());
    spa.load_key("t/e", &key().wrapping).unwrap();
    Fs::open(&spa, "t/c").work();
    spa.export().unwrap();
    judge::no_leaks(dir.path(), "t");
}

/// The root block of a dataset is damaged on one device of a mirror, and the other does not answer: it may have a log, which is not given up unless that is asked for. Blocks that were
/// then not claimed are not freed when the device answers again.
#[test]
fn a_log_behind_a_block_that_an_absent_device_may_have_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "mirror a b");
    let fs = Fs::open(&spa, "t/p");
    fs.work();
    let left = crash(dir.path());
    let root = spa.view().unwrap().dataset("t/p").unwrap().phys().bp;
    drop(fs);
    spa.close().unwrap();
    let damaged = FileDevice::open_read_write(&left.path().join("a")).unwrap();
    places(&root).iter().for_each(|place| damaged.write_at(*place, &[0x5a; 4096]).unwrap());
    drop(damaged);
    let is_well = Arc::new(AtomicBool::new(false));
    let wrap = |name: &str, inner: FileDevice| -> Arc<dyn Device> {
        let offsets = if name == "b" { places(&root) } else { Vec::new() };
        Arc::new(Unread { inner, offsets, is_well: is_well.clone() })
    };
    let again = ImportOptions { again: true, ..ImportOptions::default() };
    let refused = import_as(left.path(), &again, &wrap).unwrap_err();
    assert!(refused.to_string().contains("whether 't/p' has an intent log cannot be read"), "{refused}");

    // the other device is not there at all
    let (here, elsewhere) = (left.path().join("b"), tempfile::tempdir().unwrap());
    std::fs::rename(&here, elsewhere.path().join("b")).unwrap();
    let refused = import_as(left.path(), &again, &wrap).map(drop).unwrap_err();
    assert!(refused.to_string().contains("whether 't/p' has an intent log cannot be read"), "{refused}");
    std::fs::rename(elsewhere.path().join("b"), &here).unwrap();

    for destroyed in [false, true] {
        let given_up = crash(left.path());
        is_well.store(false, Ordering::Relaxed);
        let spa = import_as(given_up.path(), &with_lost_logs(true), &wrap).unwrap();
        is_well.store(true, Ordering::Relaxed);
        if destroyed {
            spa.destroy_head("t/p").unwrap();
        } else {
            Fs::open(&spa, "t/p").work();
        }
        spa.export().unwrap();
        drop(spa);
        judge::no_leaks(given_up.path(), "t");
    }
    let spa = import_as(left.path(), &again, &wrap).unwrap();
    found(&spa, "t/p");
    spa.export().unwrap();
    drop(spa);
    judge::no_leaks(left.path(), "t");
}

/// The first block of a log may be younger than the last txg: nothing on disk says that it is allocated, and who gives up the log does not free it.
#[test]
fn a_lost_log_that_begins_after_the_last_txg_is_not_freed() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "mirror a b");
    let fs = Fs::open(&spa, "t/p");
    fs.begin();
    spa.sync().unwrap();
    let tx = spa.tx(1).unwrap();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| spa.sync().unwrap());
        while spa.txgs().open() == tx.txg() {
            std::thread::yield_now();
        }
        // the next block of the chain is of the txg that is open now
        let record = Record::Truncate { foid: fs.file.id(), offset: 1 << 40, length: 0 }.encode(TxType::Truncate);
        fs.zil.assign(&tx, Itx { record, object: Some(fs.file.id()), sync: true, data: ItxData::InRecord });
        fs.zil.commit(None).unwrap();
        drop(tx);
        syncing.join().unwrap();
    });
    let left = crash(dir.path());
    let view = spa.view().unwrap();
    let head = view.dataset("t/p").unwrap().objset().unwrap().phys().zil_header.log;
    assert!(head.birth() > view.uberblock().txg, "{} {}", head.birth(), view.uberblock().txg);
    drop((view, fs));
    spa.close().unwrap();
    drop(spa);
    let wrap = |_: &str, inner: FileDevice| -> Arc<dyn Device> {
        Arc::new(Unread { inner, offsets: places(&head), is_well: Arc::default() })
    };
    assert!(import_as(left.path(), &ImportOptions::default(), &wrap).is_err(), "it may be lost only if that is said");
    let spa = import_as(left.path(), &with_lost_logs(false), &wrap).unwrap();
    spa.export().unwrap();
    drop(spa);
    judge::no_leaks(left.path(), "t");
}
