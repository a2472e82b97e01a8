//! Random operations on files and datasets, against a model in memory: ZUSE_OPS of them (100,000; a million is a matter of minutes), with
//! seed ZUSE_SEED. Now and then the pool is killed (its device is copied as it is) and must come back as the model was when the txg that is
//! found was closed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Env, Errno, ObjectId};
use oracle::judge;
use pool::{CreateOptions, Hooks, ImportOptions, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::import::{Candidate, scan_devices};
use vdev::{Device, MemoryDevice};
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, SetAttr, XattrMode, Zfs};
use zpl::{FileSystem, Kind, UsedByBonus};
use zuse::{Files, Go, Item, Pool, Step, base, pool, vdev, walk, zpl};

/// Bytes of the pool: there are two of them, and each kill copies one.
const SIZE: u64 = 192 << 20;
/// Operations of which one is a kill, one an import, and some are on datasets.
const ROUND: usize = 2000;
const OPS: u64 = 100_000;
/// Files in a file system, and bytes in a file, at most.
const FILES_MAX: usize = 120;
const BYTES_MAX: u64 = 300_000;
const SNAPSHOTS_MAX: usize = 5;
/// Bytes that an operation dirties at most: with more, the pool would sync for room every few operations.
const CHANGE_MAX: u64 = 256 << 10;
const CLONES_MAX: usize = 3;

#[derive(Clone, PartialEq, Eq, Debug)]
struct File {
    kind: u8,
    mode: u32,
    data: Vec<u8>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A file system: names, and what they lead to.
#[derive(Clone, Default, Debug)]
struct Tree {
    names: BTreeMap<Vec<u8>, u64>,
    files: BTreeMap<u64, Arc<File>>,
    next: u64,
}

/// All file systems and snapshots by name, and what clones were made of.
#[derive(Clone, Default, Debug)]
struct World {
    trees: BTreeMap<String, Arc<Tree>>,
    origins: BTreeMap<String, String>,
}

/// The view of each name: the file, and the first of its names.
type Shown = BTreeMap<Vec<u8>, (File, Vec<u8>)>;

impl Tree {
    fn shown(&self) -> Shown {
        let mut firsts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let show = |(name, id): (&Vec<u8>, &u64)| {
            let first = firsts.entry(*id).or_insert_with(|| name.clone()).clone();
            (name.clone(), ((*self.files[id]).clone(), first))
        };
        self.names.iter().map(show).collect()
    }

    fn file(&mut self, name: &[u8]) -> &mut File {
        let id = self.names[name];
        Arc::make_mut(self.files.get_mut(&id).unwrap())
    }

    fn drop_name(&mut self, name: &[u8]) {
        let id = self.names.remove(name).unwrap();
        if !self.names.values().any(|other| *other == id) {
            self.files.remove(&id);
        }
    }

    fn is_dir(&self, name: &[u8]) -> bool {
        name.is_empty() || self.names.get(name).is_some_and(|id| self.files[id].kind == Kind::Directory.number())
    }

    fn has_children(&self, name: &[u8]) -> bool {
        let below = [name, b"/"].concat();
        self.names.keys().any(|other| other.starts_with(&below))
    }
}

fn shown(fs: &FileSystem) -> Shown {
    let mut all: BTreeMap<Vec<u8>, (File, u64)> = BTreeMap::new();
    walk::<()>(fs.root_node().unwrap(), true, &mut |step| {
        match step {
            Step::Enter { path: b"", .. } | Step::Leave { .. } => {}
            Step::Enter { path, node } => {
                let (item, trouble) = Item::of_node(node);
                assert!(trouble.is_none(), "{trouble:?}");
                let mut data = vec![0; item.size as usize];
                assert_eq!(node.read(0, &mut data).unwrap_or(0), data.len());
                let kind = item.kind.number();
                let mode = if item.kind == Kind::Symlink { 0 } else { item.meta.mode };
                let file =
                    File { kind, mode, data, target: item.target, xattrs: item.meta.xattrs.into_iter().collect() };
                all.insert(path.to_vec(), (file, node.id().0));
            }
            Step::Lost { path, why } => panic!("{}: {why}", String::from_utf8_lossy(path)),
            Step::Refused { path, why } => panic!("{}: {why}", String::from_utf8_lossy(path)),
        }
        Ok(Go::In)
    })
    .unwrap();
    // the first name in the order of names, not of the walk
    let mut first: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (name, (_, id)) in &all {
        first.entry(*id).or_insert_with(|| name.clone());
    }
    all.into_iter().map(|(name, (file, id))| (name, (file, first[&id].clone()))).collect()
}

struct Run {
    env: Env,
    device: Arc<MemoryDevice>,
    /// The copy of the device that the next kill makes: bytes that are touched already cost no new memory.
    spare: Arc<MemoryDevice>,
    pool: Pool,
    open: BTreeMap<String, Files>,
    world: World,
    /// The world as the last operation of each txg left it; those before the last synced one are gone.
    history: BTreeMap<u64, World>,
    number: u64,
    counts: BTreeMap<&'static str, u64>,
}

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: Some(Arc::new(UsedByBonus)), ..Hooks::default() }
}

fn device() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::writable(SIZE).named("memory"))
}

/// Makes one device what the other is.
fn copy_device(from: &MemoryDevice, to: &MemoryDevice) {
    let mut buf = vec![0; 4 << 20];
    for at in (0..SIZE).step_by(buf.len()) {
        from.read_at(at, &mut buf).unwrap();
        to.write_at(at, &buf).unwrap();
    }
}

fn candidate(device: &Arc<MemoryDevice>) -> Candidate {
    scan_devices(vec![(PathBuf::from("memory"), device.clone() as Arc<dyn Device>)]).pop().unwrap()
}

fn import(device: &Arc<MemoryDevice>) -> Pool {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Pool::of_spa(Spa::import(&candidate(device), &options, hooks()).unwrap())
}

impl Run {
    fn new(seed: u64) -> Run {
        let device = device();
        let spec = VdevSpec::parse(&["memory".to_owned()]).unwrap();
        let find = |_: &str| Some(device.clone() as Arc<dyn Device>);
        let new = layout(&spec, &find, LayoutOptions::default(), &hooks().env).unwrap();
        let populate = |objset: &Arc<_>, tx: &_| create_fs(objset, tx, &FsProps::default());
        let options = CreateOptions { populate: Some(Box::new(populate)), ..CreateOptions::new("m") };
        let pool = Pool::of_spa(Spa::create(new, options, hooks()).unwrap());
        pool.create("m/a", &[]).unwrap();
        pool.create("m/b", &[]).unwrap();
        let mut world = World::default();
        for name in ["m/a", "m/b"] {
            world.trees.insert(name.to_owned(), Arc::default());
        }
        let mut run = Run {
            env: Env::seeded(seed),
            device,
            spare: self::device(),
            pool,
            open: BTreeMap::new(),
            world,
            history: BTreeMap::new(),
            number: 0,
            counts: BTreeMap::new(),
        };
        run.synced();
        run
    }

    fn below(&self, n: usize) -> usize {
        (self.env.random_u64() % n.max(1) as u64) as usize
    }

    fn pick<T>(&self, all: impl IntoIterator<Item = T>) -> Option<T> {
        let mut all: Vec<T> = all.into_iter().collect();
        let n = self.below(all.len());
        (n < all.len()).then(|| all.swap_remove(n))
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn files(&mut self, dataset: &str) -> Files {
        let pool = &self.pool;
        self.open.entry(dataset.to_owned()).or_insert_with(|| pool.files(dataset).unwrap()).clone()
    }

    /// All is on disk: what the world is now is the oldest that can come back.
    fn synced(&mut self) {
        self.pool.sync().unwrap();
        // a txg in which nothing was changed leaves nothing on disk, so the number that is found may be any
        self.history = BTreeMap::from([(0, self.world.clone())]);
    }

    fn heads(&self) -> Vec<String> {
        self.world.trees.keys().filter(|name| !name.contains('@')).cloned().collect()
    }

    fn snapshots(&self) -> Vec<String> {
        self.world.trees.keys().filter(|name| name.contains('@')).cloned().collect()
    }

    fn step(&mut self) {
        match self.below(ROUND) {
            0..8 => self.dataset_step(),
            8 => self.again(),
            9 => self.kill(),
            10 => self.synced(),
            _ => self.file_step(),
        }
    }

    fn file_step(&mut self) {
        let dataset = self.pick(self.heads()).unwrap();
        let zfs = self.files(&dataset).zfs().clone();
        let mut tree = self.world.trees[&dataset].clone();
        // the operation is in one txg, and that is known
        let txg = zfs
            .together(CHANGE_MAX, |zfs, tx| {
                let files = Files::new(zfs.clone());
                self.one(zfs, &files, Arc::make_mut(&mut tree));
                Ok(tx.txg().0)
            })
            .unwrap();
        self.world.trees.insert(dataset, tree);
        self.history.insert(txg, self.world.clone());
    }

    fn one(&mut self, zfs: &Zfs, files: &Files, tree: &mut Tree) {
        let any = self.pick(tree.names.keys()).cloned();
        let id = |path: &[u8]| files.stat(path).unwrap().0;
        match (self.below(100), any) {
            (0..25, _) | (_, None) if tree.names.len() < FILES_MAX => self.create(files, tree),
            (25..55, Some(name)) if !tree.is_dir(&name) => {
                self.count("write");
                let file = tree.file(&name);
                if file.kind != Kind::File.number() {
                    return;
                }
                let at = self.below(BYTES_MAX as usize / 2);
                let mut data = vec![0; 1 + self.below(if self.below(8) == 0 { 150_000 } else { 5000 })];
                self.env.fill_random(&mut data);
                zfs.write(&Cred::ROOT, id(&name), at as u64, &data).unwrap();
                let end = at + data.len();
                file.data.resize(file.data.len().max(end), 0);
                file.data[at..end].copy_from_slice(&data);
            }
            (55..65, Some(name)) if tree.file(&name).kind == Kind::File.number() => {
                self.count("truncate");
                let size = self.below(BYTES_MAX as usize);
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                zfs.setattr(&Cred::ROOT, id(&name), &set).unwrap();
                tree.file(&name).data.resize(size, 0);
            }
            (65..70, Some(name)) => self.xattr(zfs, id(&name), tree.file(&name)),
            (70..74, Some(name)) if tree.file(&name).kind != Kind::Symlink.number() => {
                self.count("chmod");
                let mode = self.below(0o1000) as u32;
                zfs.setattr(&Cred::ROOT, id(&name), &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
                tree.file(&name).mode = mode;
            }
            (74..78, Some(name)) if !tree.is_dir(&name) => {
                self.count("link");
                let to = self.new_name(tree);
                if !tree.names.contains_key(&to) {
                    files.hard_link(&name, &to).unwrap();
                    let file = tree.names[&name];
                    tree.names.insert(to, file);
                }
            }
            (78..88, Some(name)) => self.rename(files, tree, &name),
            (_, Some(name)) => {
                self.count("remove");
                match (tree.is_dir(&name), tree.has_children(&name)) {
                    (true, true) => assert_eq!(files.remove_dir(&name).unwrap_err().errno(), Errno::ENOTEMPTY),
                    (true, false) => files.remove_dir(&name).unwrap(),
                    (false, _) => files.remove_file(&name).unwrap(),
                }
                if !tree.has_children(&name) {
                    tree.drop_name(&name);
                }
            }
            _ => {}
        }
    }

    /// A name in a directory that is there; it may be taken.
    fn new_name(&self, tree: &Tree) -> Vec<u8> {
        let dirs = tree.names.keys().filter(|name| tree.is_dir(name)).map(Vec::as_slice);
        let dir = self.pick(dirs.chain([b"".as_slice()])).unwrap();
        let name = format!("n{}", self.below(60)).into_bytes();
        if dir.is_empty() { name } else { [dir, &name].join(&b'/') }
    }

    fn create(&mut self, files: &Files, tree: &mut Tree) {
        self.count("create");
        let name = self.new_name(tree);
        let target = format!("to {}", self.below(1 << 40)).into_bytes();
        let new = match self.below(10) {
            0..2 => NewFile::new(Kind::Directory, 0o755),
            2 => NewFile::symlink(&target),
            _ => NewFile::new(Kind::File, 0o640),
        };
        let made = files.make(&name, &new);
        if tree.names.contains_key(&name) {
            assert_eq!(made.unwrap_err().errno(), Errno::EEXIST);
            return;
        }
        made.unwrap();
        let mode = if new.kind == Kind::Symlink { 0 } else { new.mode };
        let file = File {
            kind: new.kind.number(),
            mode,
            data: Vec::new(),
            target: new.target.to_vec(),
            xattrs: BTreeMap::new(),
        };
        tree.next += 1;
        tree.files.insert(tree.next, Arc::new(file));
        tree.names.insert(name, tree.next);
    }

    fn xattr(&mut self, zfs: &Zfs, id: ObjectId, file: &mut File) {
        self.count("xattr");
        let name = format!("user.x{}", self.below(4)).into_bytes();
        if file.kind == Kind::Symlink.number() {
            return;
        }
        if file.xattrs.contains_key(&name) && self.below(2) == 0 {
            zfs.remove_xattr(&Cred::ROOT, id, &name).unwrap();
            file.xattrs.remove(&name);
        } else {
            let mut value = vec![0; self.below(if self.below(10) == 0 { 40_000 } else { 100 })];
            self.env.fill_random(&mut value);
            zfs.set_xattr(&Cred::ROOT, id, &name, &value, XattrMode::Set).unwrap();
            file.xattrs.insert(name, value);
        }
    }

    fn rename(&mut self, files: &Files, tree: &mut Tree, name: &[u8]) {
        self.count("rename");
        let to = self.new_name(tree);
        let below = [name, b"/"].concat();
        let renamed = files.rename(name, &to).map_err(|e| e.errno());
        let there = tree.names.get(&to).copied();
        if to.starts_with(&below) {
            assert_eq!(renamed, Err(Errno::EINVAL));
        } else if name.starts_with(&[&to, &b"/"[..]].concat()) {
            // Linux asks this before it asks what the two are
            assert_eq!(renamed, Err(Errno::ENOTEMPTY));
        } else if there == Some(tree.names[name]) {
            // two names of one file: nothing is done
            assert_eq!(renamed, Ok(()));
        } else if let Some(errno) = match (tree.is_dir(name), there.map(|_| tree.is_dir(&to))) {
            (_, None) | (false, Some(false)) => None,
            (true, Some(false)) => Some(Errno::ENOTDIR),
            (false, Some(true)) => Some(Errno::EISDIR),
            (true, Some(true)) => tree.has_children(&to).then_some(Errno::ENOTEMPTY),
        } {
            assert_eq!(renamed, Err(errno));
        } else {
            assert_eq!(renamed, Ok(()));
            if there.is_some() {
                tree.drop_name(&to);
            }
            let moved: Vec<_> = tree.names.keys().filter(|n| *n == name || n.starts_with(&below)).cloned().collect();
            for old in moved {
                let id = tree.names.remove(&old).unwrap();
                tree.names.insert([&to, &old[name.len()..]].concat(), id);
            }
        }
    }

    fn dataset_step(&mut self) {
        self.number += 1;
        let head = self.pick(self.heads()).unwrap();
        let snapshot = self.pick(self.snapshots());
        match (self.below(6), snapshot) {
            (0..2, _) if self.snapshots().len() < SNAPSHOTS_MAX => {
                self.count("snapshot");
                let name = format!("{head}@s{:06}", self.number);
                self.pool.snapshot(&name).unwrap();
                self.world.trees.insert(name, self.world.trees[&head].clone());
            }
            (2, Some(snapshot)) if self.heads().len() < 2 + CLONES_MAX => {
                self.count("clone");
                let name = format!("m/c{:06}", self.number);
                self.pool.clone_snapshot(&snapshot, &name).unwrap();
                self.world.trees.insert(name.clone(), self.world.trees[&snapshot].clone());
                self.world.origins.insert(name, snapshot);
            }
            (3, _) => self.rollback(&head),
            (4, Some(snapshot)) => {
                self.count("destroy snapshot");
                let cloned = self.world.origins.values().any(|origin| *origin == snapshot);
                let done = self.pool.destroy(&snapshot).map_err(|e| e.errno());
                assert_eq!(done, if cloned { Err(Errno::EEXIST) } else { Ok(()) });
                if !cloned {
                    self.world.trees.remove(&snapshot);
                }
            }
            (5, _) if self.world.origins.contains_key(&head) && self.latest(&head).is_none() => {
                self.count("destroy clone");
                self.open.remove(&head);
                self.pool.destroy(&head).unwrap();
                self.world.trees.remove(&head);
                self.world.origins.remove(&head);
            }
            _ => return,
        }
        // what a sync task did is on disk when it is done
        self.synced();
    }

    fn latest(&self, head: &str) -> Option<String> {
        let own = format!("{head}@");
        self.snapshots().into_iter().rfind(|name| name.starts_with(&own))
    }

    fn rollback(&mut self, head: &str) {
        let Some(latest) = self.latest(head) else { return };
        self.count("rollback");
        self.open.remove(head);
        self.pool.rollback(head).unwrap();
        self.world.trees.insert(head.to_owned(), self.world.trees[&latest].clone());
    }

    /// Exports the pool and imports it again; everything is compared.
    fn again(&mut self) {
        self.count("import");
        self.open.clear();
        self.pool.export().unwrap();
        self.pool = import(&self.device);
        self.compare();
        self.synced();
    }

    /// The pool as its device has it at this moment is what goes on.
    fn kill(&mut self) {
        self.count("kill");
        copy_device(&self.device, &self.spare);
        self.open.clear();
        self.pool.export().unwrap();
        std::mem::swap(&mut self.device, &mut self.spare);
        let found = pool::Pool::open(&candidate(&self.device), &pool::OpenOptions::default()).unwrap();
        let found = found.uberblock().txg.0;
        self.pool = import(&self.device);
        let (_, world) = self.history.range(..=found).next_back().unwrap();
        self.world = world.clone();
        self.compare();
        self.synced();
    }

    fn compare(&self) {
        for (name, tree) in &self.world.trees {
            let found = shown(&self.pool.file_system(name).unwrap());
            let expected = tree.shown();
            for (path, file) in &expected {
                assert!(found.get(path) == Some(file), "{name}: {}", String::from_utf8_lossy(path));
            }
            assert_eq!(found.len(), expected.len(), "{name}");
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn random_operations_leave_what_the_model_says() {
    // where a kill leads must not depend on the clock
    base::tunable::set("zfs_txg_timeout", "3600").unwrap();
    let mut run = Run::new(number("ZUSE_SEED", 1));
    for _ in 0..number("ZUSE_OPS", OPS) {
        run.step();
    }
    run.again();
    println!("{:?}", run.counts);
    run.open.clear();
    run.pool.export().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), run.device.snapshot()).unwrap();
    judge::no_leaks(dir.path(), "m");
}
