//! Gang blocks of whole pools: feature `dynamic_gang_header` comes into use when headers of 512 bytes are too small, as in OpenZFS, and
//! OpenZFS's own zdb finds every header and piece.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::{Env, ObjectId, tunable};
use dmu::NewObject;
use ondisk::{BlkPtr, ObjectType};
use oracle::judge;
use pool::feature::State;
use pool::{CreateOptions, Hooks, ImportOptions, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zio::Bookmark;

const DEVICE: u64 = 128 << 20;
const BLOCK: usize = 128 << 10;
const FILE: usize = 12 * BLOCK;
const FEATURE: &str = "dynamic_gang_header";

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

/// The pool `t` in `dir`, where no block finds room for more than 24 KiB in one place.
fn make(dir: &Path, words: &str, ashift: u64, with_feature: bool) -> Arc<Spa> {
    tunable::METASLAB_FORCE_GANGING.set((24 << 10) + 1);
    tunable::METASLAB_FORCE_GANGING_PCT.set(100);
    let keyword = |w: &str| ["mirror", "raidz", "draid"].iter().any(|k| w.starts_with(k));
    let path = |w: &str| if keyword(w) { w.to_string() } else { dir.join(w).display().to_string() };
    let words: Vec<String> = words.split(' ').map(path).collect();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        Some(Arc::new(FileDevice::create(Path::new(path), DEVICE).unwrap()))
    };
    let options = LayoutOptions { ashift: Some(ashift), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks().env).unwrap();
    let mut create = CreateOptions::new("t");
    create.features.retain(|name| with_feature || *name != FEATURE);
    Spa::create(new, create, hooks()).unwrap()
}

fn import(dir: &Path) -> Arc<Spa> {
    let open = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        (path, device)
    };
    let found = vdev::import::scan_devices(std::fs::read_dir(dir).unwrap().map(open).collect());
    Spa::import(found.first().unwrap(), &ImportOptions::default(), hooks()).unwrap()
}

fn content(seed: u64) -> Vec<u8> {
    Env::noise(seed, FILE)
}

/// Writes a new object and syncs.
fn write(spa: &Arc<Spa>, seed: u64) -> ObjectId {
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: BLOCK as u64, ..NewObject::default() };
    let object = objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
    object.write(&spa.tx(FILE as u64).unwrap(), 0, &content(seed)).unwrap();
    spa.sync().unwrap();
    object.id()
}

/// The content of an object, read from the devices.
fn read(spa: &Arc<Spa>, id: ObjectId) -> Vec<u8> {
    let view = spa.view().unwrap();
    view.zio().arc().clear();
    view.dataset("t").unwrap().objset().unwrap().object(id).unwrap().read_vec(0, FILE).unwrap()
}

/// Whether the first block of an object has headers below its header, and how many headers and pieces there are below.
fn shape(spa: &Arc<Spa>, id: ObjectId) -> (bool, usize) {
    let view = spa.view().unwrap();
    let bp = view.dataset("t").unwrap().objset().unwrap().object(id).unwrap().blkptr(0, 0).unwrap().unwrap();
    assert!(bp.is_gang());
    let members = view.zio().gang_members(&bp, &Bookmark::default()).unwrap();
    (members.iter().any(BlkPtr::is_gang), members.len())
}

fn state(spa: &Arc<Spa>) -> State {
    let view = spa.view().unwrap();
    let found = view.features().iter().find(|f| f.def.is_some_and(|def| def.name == FEATURE));
    found.map_or(State::Disabled, |f| f.state)
}

fn free(spa: &Arc<Spa>, id: ObjectId) {
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    objset.free_object(&spa.tx(1 << 20).unwrap(), id).unwrap();
    spa.sync().unwrap();
}

/// A pool whose headers grow, if they are `to_grow`: all is there, and given back to the last byte.
fn lives(words: &str, ashift: u64, with_feature: bool, to_grow: bool) {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), words, ashift, with_feature);
    let before = if with_feature { State::Enabled } else { State::Disabled };
    assert_eq!(state(&spa), before, "{words}: nothing is ganged yet");
    let old = write(&spa, 1);
    assert!(shape(&spa, old).0, "{words}: three pieces of 24 KiB are not 128");
    write(&spa, 2);
    assert_eq!(state(&spa), if to_grow { State::Active } else { before }, "{words} ashift {ashift}");
    let new = write(&spa, 3);
    let (nested, pieces) = shape(&spa, new);
    assert_eq!(nested, !to_grow, "{words}");
    assert!(!to_grow || pieces <= 16, "{words}: pieces are larger than they need be: {pieces}");
    spa.export().unwrap();
    drop(spa);
    judge::no_leaks(dir.path(), "t");

    let spa = import(dir.path());
    for (id, seed) in [(old, 1), (new, 3)] {
        assert!(read(&spa, id) == content(seed), "{words}: object {id}");
    }
    // one with headers of each size goes
    free(&spa, old);
    free(&spa, new);
    let last = write(&spa, 4);
    assert_eq!(shape(&spa, last).0, !to_grow, "{words}");
    spa.export().unwrap();
    drop(spa);
    judge::no_leaks(dir.path(), "t");
}

#[test]
fn headers_grow_on_sectors_of_4_kib() {
    lives("a", 12, true, true);
    lives("mirror a b", 12, true, true);
}

#[test]
fn headers_grow_on_sectors_of_8_kib() {
    lives("a", 13, true, true);
    lives("raidz2 a b c d", 13, true, true);
}

#[test]
fn headers_grow_where_there_is_parity() {
    lives("raidz1 a b c", 12, true, true);
    lives("draid1:2d:4c:0s a b c d", 12, true, true);
}

#[test]
fn headers_stay_small_without_the_feature_or_in_small_sectors() {
    lives("a", 12, false, false);
    lives("raidz1 a b c", 13, false, false);
    lives("a", 9, true, false);
}

/// Bytes of labels and boot area in front of what an address counts from.
const FRONT: u64 = 4 << 20;

#[test]
fn a_gang_block_whose_headers_are_lost_can_be_freed() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), "a", 12, true);
    let (lost, kept) = (write(&spa, 1), write(&spa, 2));
    let device = std::fs::OpenOptions::new().write(true).open(dir.path().join("a")).unwrap();
    let view = spa.view().unwrap();
    let object = view.dataset("t").unwrap().objset().unwrap().object(lost).unwrap();
    for dva in object.blkptr(0, 0).unwrap().unwrap().dvas() {
        device.write_all_at(&[0xa5; 4096], FRONT + dva.offset()).unwrap();
    }
    drop((object, view));
    free(&spa, lost);
    assert!(read(&spa, kept) == content(2));
    // the others' space is there again
    let last = write(&spa, 3);
    spa.export().unwrap();
    drop(spa);

    let spa = import(dir.path());
    assert!(read(&spa, kept) == content(2) && read(&spa, last) == content(3));
    free(&spa, kept);
    free(&spa, last);
    spa.export().unwrap();
}
