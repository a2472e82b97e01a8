//! A pool in files that tests change, and OpenZFS's zdb judges.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::path::Path;
use std::sync::Arc;

use base::{Env, ObjectId};
use dmu::{NewObject, Object};
use ondisk::{ObjectType, ObjsetType};
use oracle::judge;
use pool::{CreateOptions, Error, HeldElsewhere, Hooks, ImportOptions, NewDataset, Pool, Refusal, Spa, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};

const SIZE: u64 = 256 << 20;

/// The pool `t` on one file.
pub struct Live {
    dir: tempfile::TempDir,
    pub spa: Arc<Spa>,
}

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

impl Live {
    pub fn new() -> Live {
        Live::with(|_| {})
    }

    pub fn with(tune: impl FnOnce(&mut CreateOptions)) -> Live {
        Live::made(tune, hooks())
    }

    /// A pool of which other processes read something.
    pub fn hooked(held_elsewhere: Option<Arc<dyn HeldElsewhere>>) -> Live {
        Live::hooked_with(|_| {}, held_elsewhere)
    }

    /// Both of these.
    pub fn hooked_with(tune: impl FnOnce(&mut CreateOptions), held_elsewhere: Option<Arc<dyn HeldElsewhere>>) -> Live {
        Live::made(tune, Hooks { held_elsewhere, ..hooks() })
    }

    fn made(tune: impl FnOnce(&mut CreateOptions), hooks: Hooks) -> Live {
        let dir = tempfile::tempdir().unwrap();
        let words = [dir.path().join("a").display().to_string()];
        let open = |path: &str| -> Option<Arc<dyn Device>> {
            Some(Arc::new(FileDevice::create(Path::new(path), SIZE).unwrap()))
        };
        let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
        let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks.env).unwrap();
        let mut create = CreateOptions::new("t");
        tune(&mut create);
        let spa = Spa::create(new, create, hooks).unwrap();
        Live { dir, spa }
    }

    pub fn view(&self) -> Arc<Pool> {
        self.spa.view().unwrap()
    }

    /// An empty file system.
    pub fn fs(&self, name: &str) {
        self.create(name, &[]).unwrap();
    }

    pub fn create(&self, name: &str, props: &[(&str, u64)]) -> Result<(), Error> {
        let props = props.iter().map(|(name, n)| ((*name).to_string(), Value::Number(*n))).collect();
        let new = NewDataset { props, ..NewDataset::inheriting(name, ObjsetType::Zfs) };
        self.spa.create_dataset(new, Box::new(|_, _| Ok(())))
    }

    /// A new object in a dataset, with so many bytes that do not compress.
    pub fn file(&self, name: &str, len: usize, seed: u64) -> u64 {
        let object = self.object(name);
        object.write(&self.spa.tx(len as u64).unwrap(), 0, &bytes(len, seed)).unwrap();
        self.spa.sync().unwrap();
        object.id().0
    }

    pub fn object(&self, name: &str) -> Object {
        let objset = self.spa.objset(&self.view().dataset(name).unwrap()).unwrap();
        let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 128 << 10, ..NewObject::default() };
        objset.alloc_object(&self.spa.tx(1 << 20).unwrap(), &new).unwrap()
    }

    /// Writes into an object that is there.
    pub fn write(&self, name: &str, id: ObjectId, at: u64, len: usize, seed: u64) {
        let objset = self.spa.objset(&self.view().dataset(name).unwrap()).unwrap();
        objset.object(id).unwrap().write(&self.spa.tx(len as u64).unwrap(), at, &bytes(len, seed)).unwrap();
        self.spa.sync().unwrap();
    }

    pub fn read(&self, name: &str, id: ObjectId, len: usize) -> Vec<u8> {
        self.view().dataset(name).unwrap().objset().unwrap().object(id).unwrap().read_vec(0, len).unwrap()
    }

    pub fn set(&self, name: &str, prop: &str, n: u64) -> Result<(), Error> {
        self.spa.set_props(name, &[(prop.to_string(), Value::Number(n))], pool::PropSource::Local)
    }

    /// The number of a property, and where it comes from.
    pub fn get(&self, name: &str, prop: &str) -> (u64, String) {
        let value = self.view().dataset(name).unwrap().prop(prop).unwrap().unwrap();
        (value.value.number().unwrap(), value.source.to_string())
    }

    /// For each directory: what is used is what its parts add up to, and children count in their parents.
    pub fn adds_up(&self) {
        fn below(dir: &pool::Dir) {
            let p = dir.phys();
            let u = &p.used_breakdown;
            assert_eq!(p.used_bytes, u.head + u.snap + u.child + u.child_rsrv + u.refrsrv, "{}", dir.name());
            let children = dir.children().unwrap();
            let used: u64 = children.iter().map(|c| c.phys().used_bytes).sum();
            let held: u64 = children.iter().map(|c| c.phys().reserved.saturating_sub(c.phys().used_bytes)).sum();
            assert_eq!((u.child, u.child_rsrv), (used, held), "{}", dir.name());
            children.iter().for_each(below);
        }
        below(&self.view().root_dir().unwrap());
        let history = self.view().history().unwrap();
        let wrong = history.iter().find(|record| record.list.get_str("internal_name") == Some("miscount"));
        assert!(wrong.is_none(), "a counter fell below zero: {wrong:?}");
    }

    /// zdb finds every block, and no space without one, and reads all there is.
    pub fn judged(self) {
        self.adds_up();
        let Live { dir, spa } = self;
        spa.export().unwrap();
        drop(spa);
        judge_dir(dir.path());
    }

    /// The same, and opens the pool again.
    pub fn judged_and_back(self) -> Live {
        self.adds_up();
        let Live { dir, spa } = self;
        spa.export().unwrap();
        drop(spa);
        judge_dir(dir.path());
        let path = dir.path().join("a");
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        let found = vdev::import::scan_devices(vec![(path, device)]);
        let spa = Spa::import(found.first().unwrap(), &ImportOptions::default(), hooks()).unwrap();
        Live { dir, spa }
    }
}

fn judge_dir(dir: &Path) {
    judge::no_leaks(dir, "t");
    let Some(out) = judge::run("zdb", &["-e", "-p", &dir.display().to_string(), "-dddd", "t"]) else { return };
    let trouble = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !trouble.contains("rror"), "{trouble}");
}

pub fn bytes(n: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, n)
}

/// The rule that was broken.
pub fn why<T: std::fmt::Debug>(result: Result<T, Error>) -> Refusal {
    match result {
        Err(Error::Refused { why, .. }) => why,
        other => panic!("not refused: {other:?}"),
    }
}
