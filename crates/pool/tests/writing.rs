//! Pools that Zuse makes, held against OpenZFS's own zdb.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::Arc;

use base::Env;
use dmu::{NewObject, Object};
use ondisk::ObjectType;
use oracle::judge;
use pool::{CreateOptions, Hooks, ImportOptions, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};

const SIZE: u64 = 128 << 20;

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

/// Makes the pool `t` in `dir`; words that are no keyword are names of files.
fn make(dir: &Path, words: &str, ashift: u64, tune: impl FnOnce(&mut CreateOptions)) -> Arc<Spa> {
    let keyword = |w: &str| {
        ["mirror", "raidz", "draid", "log", "special", "dedup", "spare", "cache"].iter().any(|k| w.starts_with(k))
    };
    let path = |w: &str| dir.join(w).display().to_string();
    let words: Vec<String> = words.split(' ').map(|w| if keyword(w) { w.to_string() } else { path(w) }).collect();
    let spec = VdevSpec::parse(&words).unwrap();
    let open =
        |path: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(FileDevice::create(Path::new(path), SIZE).unwrap())) };
    let options = LayoutOptions { ashift: Some(ashift), ..LayoutOptions::default() };
    let new = layout(&spec, &open, options, &hooks().env).unwrap();
    let mut create = CreateOptions::new("t");
    tune(&mut create);
    Spa::create(new, create, hooks()).unwrap()
}

fn import(dir: &Path) -> Arc<Spa> {
    let mut devices = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        devices.push((path, device));
    }
    let found = vdev::import::scan_devices(devices);
    Spa::import(found.first().unwrap(), &ImportOptions::default(), hooks()).unwrap()
}

/// zdb finds every block, and no space without one.
fn judged(dir: &Path) {
    judge::no_leaks(dir, "t");
}

fn object(spa: &Arc<Spa>, block_size: u64) -> Object {
    let dataset = spa.view().unwrap().dataset("t").unwrap();
    let objset = spa.objset(&dataset).unwrap();
    let tx = spa.tx(1 << 20).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size, ..NewObject::default() };
    objset.alloc_object(&tx, &new).unwrap()
}

fn bytes(n: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, n)
}

#[test]
fn an_empty_pool() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), "a", 9, |_| {}).export().unwrap();
    judged(dir.path());
}

#[test]
fn what_was_written_is_there_after_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "mirror a b", 12, |_| {});
    let file = object(&spa, 8192);
    let data = bytes(1 << 20, 7);
    file.write(&spa.tx(1 << 20).unwrap(), 12345, &data).unwrap();
    spa.sync().unwrap();
    file.write(&spa.tx(1 << 20).unwrap(), 0, &data[..9000]).unwrap();
    spa.export().unwrap();
    let id = file.id();
    // who holds an object holds the devices
    drop((spa, file));
    judged(dir.path());
    let spa = import(dir.path());
    let view = spa.view().unwrap();
    let again = view.dataset("t").unwrap().objset().unwrap().object(id).unwrap();
    let mut expected = vec![0; 12345 + data.len()];
    expected[12345..].copy_from_slice(&data);
    expected[..9000].copy_from_slice(&data[..9000]);
    assert!(again.read_vec(0, expected.len()).unwrap() == expected);
    spa.export().unwrap();
    judged(dir.path());
}

/// Writes some, syncs, overwrites and frees some, several txgs long.
fn work(spa: &Arc<Spa>) {
    let data = bytes(1 << 20, 3);
    let objects: Vec<Object> = [512, 8192, 128 << 10].into_iter().map(|size| object(spa, size)).collect();
    for round in 0..6u64 {
        for (n, object) in objects.iter().enumerate() {
            let tx = spa.tx(1 << 20).unwrap();
            let at = round * 300_000 + n as u64 * 777;
            object.write(&tx, at, &data[..(100_000 << n).min(900_000)]).unwrap();
            if round % 2 == 1 {
                object.free_range(&tx, round * 100_000, 50_000).unwrap();
            }
        }
        spa.sync().unwrap();
    }
    let gone = object(spa, 4096);
    gone.write(&spa.tx(1 << 20).unwrap(), 0, &data).unwrap();
    spa.sync().unwrap();
    gone.objset().free_object(&spa.tx(1 << 20).unwrap(), gone.id()).unwrap();
    spa.sync().unwrap();
}

fn shapes(ashift: u64, every: usize) {
    let shapes = [
        "a",
        "raidz a b c",
        "mirror a b special mirror c d dedup e log f",
        "a b c",
        "draid2:3d:6c:1s a b c d e f",
        "a spare c cache d",
        "mirror a b c",
        "raidz2 a b c d",
        "a special b",
        "draid1:2d:4c:1s a b c d",
        "raidz3 a b c d e",
        "a log b",
    ];
    for words in shapes.into_iter().step_by(every) {
        println!("{words} at ashift {ashift}");
        let dir = tempfile::tempdir().unwrap();
        let spa = make(dir.path(), words, ashift, |_| {});
        work(&spa);
        spa.export().unwrap();
        drop(spa);
        judged(dir.path());
    }
}

#[test]
fn pools_in_small_sectors() {
    shapes(9, 2);
}

#[test]
fn pools_of_every_shape_in_usual_sectors() {
    shapes(12, 1);
}

#[test]
fn pools_in_large_sectors() {
    shapes(13, 3);
}

/// Beyond the sums, zdb reads everything that it can show.
#[test]
fn zdb_reads_all_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "raidz a b c", 12, |_| {});
    work(&spa);
    spa.log_history(0, "zpool create t").unwrap();
    spa.close().unwrap();
    drop(spa);
    let path = dir.path().display().to_string();
    for how in ["-mmm", "-dddd", "-C", "-h", "-i", "-bbcc"] {
        let Some(out) = judge::run("zdb", &["-e", "-p", &path, how, "t"]) else { return };
        let trouble = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && !trouble.contains("error"), "{how}: {trouble}");
    }
}

#[test]
fn every_checksum_and_compression() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a b", 9, |_| {});
    let with = |name: &str, number: u64| {
        println!("{name}={number}");
        let props = [(name.to_string(), pool::Value::Number(number))];
        spa.set_props("t", &props, pool::PropSource::Local).unwrap();
        work(&spa);
    };
    [2, 6, 8, 11, 12, 13, 14, 1].into_iter().for_each(|n| with("checksum", n));
    // off, lzjb, gzip-1, gzip-9, zle, lz4, zstd, zstd-19, on
    [2, 3, 5, 13, 14, 15, 16, 16 | 19 << 7, 1].into_iter().for_each(|n| with("compression", n));
    [2, 3, 1].into_iter().for_each(|n| with("copies", n));
    [8, 257].into_iter().for_each(|n| with("dedup", n));
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}

#[test]
fn without_features() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a b", 9, |create| create.features.clear());
    work(&spa);
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a b", 9, |create| create.features.retain(|name| *name != "log_spacemap"));
    work(&spa);
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}

/// Space that a txg freed is not handed out before two more are synced. A writer that finds no space waits for them.
#[test]
fn a_pool_that_is_filled_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a", 12, |_| {});
    let (data, file) = (bytes(1 << 20, 5), object(&spa, 128 << 10));
    let fill = || {
        let mut blocks = 0;
        while let Ok(tx) = spa.tx(1 << 20) {
            file.write(&tx, blocks << 20, &data).unwrap();
            blocks += 1;
        }
        blocks
    };
    let blocks = fill();
    for round in 0..3 {
        spa.sync().unwrap();
        file.free_range(&spa.tx_netfree(1 << 20).unwrap(), 0, blocks << 20).unwrap();
        spa.sync().unwrap();
        assert!(spa.space().available(false) < 2 << 20, "what was freed just now is not there yet");
        let again = fill();
        assert!(again >= blocks * 9 / 10, "round {round}: {again} of {blocks} MiB");
    }
    spa.export().unwrap();
    drop((spa, file));
    judged(dir.path());
}

#[test]
fn a_full_pool() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a", 12, |_| {});
    let data = bytes(1 << 20, 5);
    let file = object(&spa, 128 << 10);
    let (keep, small) = (object(&spa, 128 << 10), object(&spa, 16 << 10));
    keep.write(&spa.tx(1 << 20).unwrap(), 0, &data).unwrap();
    let mut full = false;
    for n in 0..2000u64 {
        match spa.tx(1 << 20) {
            Ok(tx) => file.write(&tx, n << 20, &data).unwrap(),
            Err(pool::Error::NoSpace) => {
                full = true;
                break;
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(full);
    let mut at = 0;
    while let Ok(tx) = spa.tx(16 << 10) {
        small.write(&tx, at, &data[..16 << 10]).unwrap();
        at += 16 << 10;
    }
    // what takes room is refused before anything is changed, and the pool goes on
    for _ in 0..3 {
        assert!(matches!(spa.snapshot(&["t@s".to_string()], &[]), Err(pool::Error::NoSpace)));
    }
    // what frees goes on
    file.free_range(&spa.tx_netfree(1 << 20).unwrap(), 0, 40 << 20).unwrap();
    spa.sync().unwrap();
    file.objset().free_object(&spa.tx_netfree(1 << 20).unwrap(), file.id()).unwrap();
    for _ in 0..4 {
        spa.log_history(0, "some txgs").unwrap();
    }
    keep.write(&spa.tx(1 << 20).unwrap(), 1 << 20, &data).unwrap();
    spa.sync().unwrap();
    let id = keep.id();
    spa.export().unwrap();
    drop((spa, file, keep, small));
    judged(dir.path());
    let spa = import(dir.path());
    let again = spa.view().unwrap().dataset("t").unwrap().objset().unwrap().object(id).unwrap();
    assert!(again.read_vec(1 << 20, data.len()).unwrap() == data);
}

#[test]
fn a_checkpoint_is_kept_and_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "mirror a b", 12, |_| {});
    let data = bytes(2 << 20, 9);
    let file = object(&spa, 8 << 10);
    file.write(&spa.tx(2 << 20).unwrap(), 0, &data).unwrap();
    spa.checkpoint().unwrap();
    assert!(matches!(spa.checkpoint(), Err(pool::Error::CheckpointExists)));
    file.free_range(&spa.tx(1 << 20).unwrap(), 0, 1 << 20).unwrap();
    file.write(&spa.tx(1 << 20).unwrap(), 1 << 20, &data[..500_000]).unwrap();
    work(&spa);
    let id = file.id();
    spa.export().unwrap();
    drop((spa, file));
    judged(dir.path());
    {
        let found = vdev::import::scan(&[dir.path().to_owned()]).unwrap();
        let options = pool::OpenOptions { checkpoint: true, ..pool::OpenOptions::default() };
        let old = pool::Pool::open(&found[0], &options).unwrap();
        let old = old.dataset("t").unwrap().objset().unwrap().object(id).unwrap();
        assert!(old.read_vec(0, data.len()).unwrap() == data);
    }
    let spa = import(dir.path());
    work(&spa);
    let before = spa.view().unwrap().space().unwrap().allocated;
    spa.discard_checkpoint().unwrap();
    for _ in 0..3 {
        spa.log_history(0, "some txgs").unwrap();
    }
    assert!(spa.view().unwrap().space().unwrap().allocated < before - (1 << 20));
    assert!(matches!(spa.discard_checkpoint(), Err(pool::Error::NoCheckpoint)));
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}

#[test]
fn a_pool_that_was_not_exported() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let spa = if round == 0 { make(dir.path(), "raidz a b c", 9, |_| {}) } else { import(dir.path()) };
        work(&spa);
        // as it is when the machine stops: logs of space changes are not flushed
        spa.close().unwrap();
        drop(spa);
        judged(dir.path());
    }
    import(dir.path()).export().unwrap();
    judged(dir.path());
}

#[test]
fn a_disk_that_was_away_missed_something() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "mirror a b", 12, |_| {});
    work(&spa);
    spa.export().unwrap();
    drop(spa);
    let away = tempfile::tempdir().unwrap();
    std::fs::rename(dir.path().join("b"), away.path().join("b")).unwrap();
    let spa = import(dir.path());
    work(&spa);
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
    std::fs::rename(away.path().join("b"), dir.path().join("b")).unwrap();
    let spa = import(dir.path());
    let missed = spa.tree().leaves().iter().any(|leaf| !leaf.dtl().is_empty());
    assert!(missed);
    work(&spa);
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}

#[test]
fn going_back_is_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a", 12, |_| {});
    let file = object(&spa, 8 << 10);
    file.write(&spa.tx(1 << 20).unwrap(), 0, &bytes(100_000, 1)).unwrap();
    spa.sync().unwrap();
    let (id, back) = (file.id(), spa.txgs().synced());
    file.write(&spa.tx(1 << 20).unwrap(), 0, &bytes(100_000, 2)).unwrap();
    spa.sync().unwrap();
    drop(file);
    spa.close().unwrap();
    drop(spa);
    let open = || {
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&dir.path().join("a")).unwrap());
        vdev::import::scan_devices(vec![(dir.path().join("a"), device)])
    };
    let read = |spa: &Arc<Spa>| {
        spa.view().unwrap().dataset("t").unwrap().objset().unwrap().object(id).unwrap().read_vec(0, 100_000).unwrap()
    };
    {
        let open_options = pool::OpenOptions { txg: Some(back), ..pool::OpenOptions::default() };
        let options = ImportOptions { open: open_options, again: true, ..ImportOptions::default() };
        let spa = Spa::import(&open()[0], &options, hooks()).unwrap();
        assert!(read(&spa) == bytes(100_000, 1));
        spa.close().unwrap();
    }
    // without asking for anything it is the old state that is found
    let spa = Spa::import(&open()[0], &ImportOptions { again: true, ..ImportOptions::default() }, hooks()).unwrap();
    assert!(read(&spa) == bytes(100_000, 1));
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
}

#[test]
fn going_back_to_the_checkpoint_is_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a", 12, |_| {});
    let file = object(&spa, 8 << 10);
    file.write(&spa.tx(1 << 20).unwrap(), 0, &bytes(300_000, 1)).unwrap();
    spa.checkpoint().unwrap();
    for round in 2..12 {
        file.write(&spa.tx(1 << 20).unwrap(), 0, &bytes(300_000, round)).unwrap();
        spa.sync().unwrap();
    }
    let (id, newest) = (file.id(), spa.txgs().synced());
    drop(file);
    spa.export().unwrap();
    drop(spa);
    let import = |open: pool::OpenOptions| {
        let path = dir.path().join("a");
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        let found = vdev::import::scan_devices(vec![(path, device)]);
        Spa::import(&found[0], &ImportOptions { open, ..ImportOptions::default() }, hooks()).unwrap()
    };
    let back = pool::OpenOptions { checkpoint: true, ..pool::OpenOptions::default() };
    let spa = import(back);
    assert!(spa.uberblock().txg > newest, "the state gone back to is the newest");
    let view = spa.view().unwrap();
    let read = |view: &Arc<pool::Pool>| {
        view.dataset("t").unwrap().objset().unwrap().object(id).unwrap().read_vec(0, 300_000).unwrap()
    };
    assert!(read(&view) == bytes(300_000, 1));
    assert!(!view.feature_active("zpool_checkpoint"), "before the checkpoint there was none");
    work(&spa);
    spa.export().unwrap();
    drop((view, spa));
    judged(dir.path());
    let spa = import(pool::OpenOptions::default());
    assert!(read(&spa.view().unwrap()) == bytes(300_000, 1));
    spa.export().unwrap();
}

#[test]
fn a_temporary_name_is_in_memory_only() {
    let dir = tempfile::tempdir().unwrap();
    let temporary = |create: &mut CreateOptions| create.temporary_name = Some("guest".to_string());
    let spa = make(dir.path(), "a", 12, temporary);
    assert_eq!((spa.name(), spa.view().unwrap().name()), ("guest", "guest"));
    work_as(&spa, "guest");
    spa.export().unwrap();
    drop(spa);
    judged(dir.path());
    let spa = import(dir.path());
    assert_eq!(spa.name(), "t");
    spa.export().unwrap();
}

/// Writes something below a pool that is called `name`.
fn work_as(spa: &Arc<Spa>, name: &str) {
    let objset = spa.objset(&spa.view().unwrap().dataset(name).unwrap()).unwrap();
    let tx = spa.tx(1 << 20).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 8192, ..NewObject::default() };
    objset.alloc_object(&tx, &new).unwrap().write(&tx, 0, &bytes(50_000, 1)).unwrap();
    drop(tx);
    spa.sync().unwrap();
}
