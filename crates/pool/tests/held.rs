//! Freed space is not used again before its time: two txgs, whoever has the pool open then, and as long as somebody reads it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::any::Any;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::{Env, Guid, ObjectId, Txg};
use dmu::{NewObject, Object};
use ondisk::ObjectType;
use oracle::judge;
use pool::{CreateOptions, Hooks, ImportOptions, OpenOptions, Pool, Readers, Spa};
use space::Class;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};

const MIB: u64 = 1 << 20;
/// Bytes of the file that is freed.
const LEN: u64 = 20 * MIB;

/// Somebody who reads the pool from outside: as of which txg, and whether told to stop.
#[derive(Default)]
struct Outside {
    reads: AtomicU64,
    overtaken: AtomicU64,
    /// Whether who begins now is told.
    given_up: Arc<AtomicBool>,
}

/// Until dropped, all states that there are so far are being given up.
struct GivingUp(Arc<AtomicBool>);

impl Drop for GivingUp {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Readers for Outside {
    fn oldest(&self, _: Guid) -> Option<Txg> {
        Some(self.reads.load(Ordering::SeqCst)).filter(|txg| *txg != 0).map(Txg)
    }

    fn overtake(&self, _: Guid, txg: Txg) {
        self.overtaken.store(txg.0, Ordering::SeqCst);
        self.reads.store(0, Ordering::SeqCst);
    }

    fn overtake_all(&self, pool: Guid) -> Box<dyn Any + Send> {
        self.overtake(pool, Txg(u64::MAX));
        self.given_up.store(true, Ordering::SeqCst);
        Box::new(GivingUp(self.given_up.clone()))
    }
}

fn hooks(outside: &Arc<Outside>) -> Hooks {
    Hooks { env: Env::seeded(1), readers: Some(outside.clone()), ..Hooks::default() }
}

struct Lab {
    dir: tempfile::TempDir,
    outside: Arc<Outside>,
}

impl Lab {
    fn new() -> Lab {
        Lab { dir: tempfile::tempdir().unwrap(), outside: Arc::default() }
    }

    fn make(&self, feature_left_out: &str) -> Arc<Spa> {
        let words = [self.dir.path().join("a").display().to_string()];
        let open = |path: &str| -> Option<Arc<dyn Device>> {
            Some(Arc::new(FileDevice::create(Path::new(path), 256 * MIB).unwrap()))
        };
        let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
        let env = Env::seeded(1);
        let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &env).unwrap();
        let mut create = CreateOptions::new("t");
        create.features.retain(|name| *name != feature_left_out);
        Spa::create(new, create, hooks(&self.outside)).unwrap()
    }

    fn import(&self) -> Arc<Spa> {
        self.import_with(&ImportOptions::default(), hooks(&self.outside))
    }

    fn import_with(&self, options: &ImportOptions, hooks: Hooks) -> Arc<Spa> {
        let path = self.dir.path().join("a");
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        let found = vdev::import::scan_devices(vec![(path, device)]);
        Spa::import(found.first().unwrap(), options, hooks).unwrap()
    }

    /// The pool as of `txg`, from its devices.
    fn at(&self, txg: Txg) -> Arc<Pool> {
        let found = vdev::import::scan(&[self.dir.path().to_owned()]).unwrap();
        Pool::open(found.first().unwrap(), &OpenOptions { txg: Some(txg), ..OpenOptions::default() }).unwrap()
    }

    fn judged(&self, spa: Arc<Spa>) {
        spa.export().unwrap();
        drop(spa);
        judge::no_leaks(self.dir.path(), "t");
    }
}

fn object(spa: &Arc<Spa>) -> Object {
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 128 << 10, ..NewObject::default() };
    objset.alloc_object(&spa.tx(MIB).unwrap(), &new).unwrap()
}

fn bytes(seed: u64) -> Vec<u8> {
    Env::noise(seed, LEN as usize)
}

/// Another file of so many bytes.
fn file(spa: &Arc<Spa>, seed: u64) -> ObjectId {
    let object = object(spa);
    for (n, part) in bytes(seed).chunks(MIB as usize).enumerate() {
        object.write(&spa.tx(MIB).unwrap(), n as u64 * MIB, part).unwrap();
    }
    spa.sync().unwrap();
    object.id()
}

fn free(spa: &Arc<Spa>, id: ObjectId) {
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let object = objset.object(id).unwrap();
    object.free_range(&spa.tx_netfree(MIB).unwrap(), 0, LEN).unwrap();
    spa.sync().unwrap();
}

fn read(pool: &Arc<Pool>, id: ObjectId) -> Vec<u8> {
    pool.dataset("t").unwrap().objset().unwrap().object(id).unwrap().read_vec(0, LEN as usize).unwrap()
}

/// Bytes that are held, when all maps were read.
fn held(spa: &Spa) -> u64 {
    let manager = spa.space().manager();
    manager.metaslabs().into_iter().for_each(|id| manager.load(id).unwrap());
    Class::ALL.into_iter().map(|class| spa.space().figures(class).deferred).sum()
}

/// Some txgs.
fn pass(spa: &Arc<Spa>, txgs: u32) {
    for _ in 0..txgs {
        spa.log_history(0, "a txg").unwrap();
        spa.sync().unwrap();
    }
}

#[test]
fn what_the_last_txgs_freed_is_held_by_who_opens_the_pool_next() {
    // in logs, in maps after a flush, in maps without logs
    for (exported, left_out) in [(false, ""), (true, ""), (false, "log_spacemap")] {
        let lab = Lab::new();
        let spa = lab.make(left_out);
        let id = file(&spa, 5);
        let before = spa.uberblock().txg;
        free(&spa, id);
        assert!(held(&spa) >= LEN);
        if exported {
            spa.export().unwrap()
        } else {
            spa.close().unwrap()
        }
        assert!(spa.uberblock().txg.0 <= before.0 + 4, "{before} {}", spa.uberblock().txg);
        drop(spa);
        // as many txgs as there are until then may have passed
        lab.outside.reads.store(before.0, Ordering::SeqCst);
        let spa = lab.import();
        assert!(held(&spa) >= LEN, "{exported} {left_out}: {} bytes are held", held(&spa));
        for seed in 6..9 {
            file(&spa, seed);
        }
        assert!(read(&lab.at(before), id) == bytes(5), "{exported} {left_out}");
        lab.outside.reads.store(0, Ordering::SeqCst);
        pass(&spa, 4);
        assert!(held(&spa) < LEN);
        lab.judged(spa);
    }
}

#[test]
fn two_txgs_are_held_though_nobody_reads() {
    let lab = Lab::new();
    let spa = lab.make("");
    let id = file(&spa, 5);
    free(&spa, id);
    spa.close().unwrap();
    drop(spa);
    let spa = lab.import();
    assert!(held(&spa) >= LEN, "{} bytes are held", held(&spa));
    pass(&spa, 3);
    assert!(held(&spa) < LEN);
    lab.judged(spa);
}

#[test]
fn a_view_keeps_what_it_leads_to() {
    let lab = Lab::new();
    let spa = lab.make("");
    let id = file(&spa, 5);
    let view = spa.view().unwrap();
    free(&spa, id);
    for seed in 6..10 {
        file(&spa, seed);
    }
    assert!(held(&spa) >= LEN);
    view.zio().arc().clear();
    assert!(read(&view, id) == bytes(5));
    drop(view);
    pass(&spa, 3);
    assert!(held(&spa) < LEN);
    lab.judged(spa);
}

#[test]
fn a_reader_and_a_view_are_told_before_their_space_is_used() {
    let lab = Lab::new();
    let spa = lab.make("");
    let id = file(&spa, 5);
    let before = spa.uberblock().txg;
    lab.outside.reads.store(before.0, Ordering::SeqCst);
    let view = spa.view().unwrap();
    free(&spa, id);
    assert!(!view.is_overtaken());
    let full = object(&spa);
    let mut at = 0;
    let mut used = None;
    while let Ok(tx) = spa.tx(MIB) {
        full.write(&tx, at, &bytes(7)[..MIB as usize]).unwrap();
        at += MIB;
        let told = lab.outside.overtaken.load(Ordering::SeqCst);
        used = used.or(Some(at).filter(|_| told != 0));
    }
    let used = used.expect("the pool is full, and nobody was told");
    assert!(at >= used + LEN * 3 / 4, "{used} bytes were written beside the reader, and {at} in all");
    assert!(lab.outside.overtaken.load(Ordering::SeqCst) > before.0);
    assert!(view.is_overtaken());
    drop((full, view));
    assert!(!spa.view().unwrap().is_overtaken());
    lab.judged(spa);
}

#[test]
fn who_begins_to_read_what_is_given_up_is_told_until_there_is_something_new() {
    let lab = Lab::new();
    let spa = lab.make("");
    spa.checkpoint().unwrap();
    file(&spa, 5);
    spa.export().unwrap();
    drop(spa);
    let (told, given_up) = (Arc::new(Mutex::new(Vec::new())), lab.outside.given_up.clone());
    let synced = {
        let told = told.clone();
        Arc::new(move |_, _| told.lock().unwrap().push(given_up.load(Ordering::SeqCst))) as _
    };
    let options =
        ImportOptions { open: OpenOptions { checkpoint: true, ..OpenOptions::default() }, ..ImportOptions::default() };
    let spa = lab.import_with(&options, Hooks { synced: Some(synced), ..hooks(&lab.outside) });
    assert_eq!(told.lock().unwrap().first(), Some(&true));
    assert!(!lab.outside.given_up.load(Ordering::SeqCst));
    assert_eq!(lab.outside.overtaken.load(Ordering::SeqCst), u64::MAX);
    lab.judged(spa);
}
