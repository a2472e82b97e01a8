//! Opening fixtures and comparing file trees.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use base::ObjectId;
use oracle::fixtures;
use pool::{OpenOptions, Pool};
use serde_json::Value;
use sha2::{Digest, Sha256};
use zpl::{FileSystem, Kind, Node, Zvol};

mod damage;
mod describe;
mod keys;
mod log;

#[allow(unused_imports, reason = "not all tests use it")]
pub(crate) use log::Touched;

/// Opens the pool of a fixture, with all keys loaded.
pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) pool: Arc<Pool>,
    pub(crate) manifest: Value,
    _images: fixtures::Unpacked,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Fixture {
        Fixture::of(name, fixtures::unpack(name))
    }

    /// Opens the pool in `images`, which were unpacked from the fixture and may have changed since.
    pub(crate) fn of(name: &str, images: fixtures::Unpacked) -> Fixture {
        let found = vdev::import::scan(std::slice::from_ref(&images.dir)).unwrap();
        let manifest = fixtures::manifest(name);
        let wanted = manifest["pool"].as_str().unwrap();
        let candidate = found.iter().find(|c| c.name == wanted).unwrap_or_else(|| panic!("{name}: no pool {wanted}"));
        let pool = Pool::open(candidate, &OpenOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        keys::load_all(name, &pool, &manifest);
        Fixture { name: name.to_owned(), pool, manifest, _images: images }
    }

    pub(crate) fn file_system(&self, dataset: &str) -> FileSystem {
        FileSystem::open(&self.pool.dataset(dataset).unwrap()).unwrap_or_else(|e| panic!("{dataset}: {e}"))
    }

    /// Returns the paths in `dataset` on which other file systems were mounted when the list was made.
    fn mounts_in(&self, dataset: &str) -> Vec<String> {
        let mountpoints = self.manifest["mountpoints"].as_object().unwrap();
        let Some(outer) = mountpoints.get(dataset).and_then(Value::as_str) else { return Vec::new() };
        let inner = mountpoints.values().filter_map(Value::as_str);
        inner.filter_map(|path| path.strip_prefix(outer)?.strip_prefix('/')).map(str::to_owned).collect()
    }
}

/// Loads all keys of a fixture's pool.
#[allow(dead_code, reason = "one of the tests loads them itself")]
pub(crate) fn load_keys(name: &str, pool: &Arc<Pool>) {
    keys::load_all(name, pool, &fixtures::manifest(name));
}

/// The result of a comparison.
#[derive(Default)]
pub(crate) struct Compared {
    files: usize,
    bytes: u64,
    skipped: usize,
    unreadable: usize,
    pub(crate) differences: Vec<String>,
}

impl Compared {
    pub(crate) fn failed(why: &str) -> Compared {
        Compared { differences: vec![why.to_owned()], ..Compared::default() }
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compared { files, bytes, skipped, unreadable, differences } = self;
        write!(
            f,
            "{files} files, {} MiB read, {skipped} skipped, {unreadable} unreadable, {} differences",
            bytes >> 20,
            differences.len()
        )
    }
}

/// The objects that the logs of the file systems in `images` will change.
#[allow(dead_code, reason = "not all tests use it")]
pub(crate) fn touched_in(name: &str, images: &fixtures::Unpacked) -> BTreeMap<String, Touched> {
    let fixture = Fixture::of(name, images.clone());
    let all = fixture.pool.list(fixture.pool.name(), &pool::ListOptions::DATASETS).unwrap();
    let heads = all.iter().filter_map(|entry| entry.dataset());
    let systems = heads.filter(|dataset| dataset.kind().unwrap() == pool::Kind::Filesystem);
    systems
        .map(|dataset| (dataset.name().to_owned(), log::touched(name, &FileSystem::open(dataset).unwrap())))
        .collect()
}

/// Compares all file systems of a fixture.
#[allow(dead_code, reason = "not all tests use it")]
pub(crate) fn compare(fixture: &Fixture) -> Compared {
    compare_replayed(fixture, &BTreeMap::new())
}

/// As [`compare`], after the logs of these file systems were replayed, which sets the times of change of the files that they
/// change.
pub(crate) fn compare_replayed(fixture: &Fixture, replayed: &BTreeMap<String, Touched>) -> Compared {
    let mut by_dataset: BTreeMap<String, HashMap<Vec<u8>, Value>> = BTreeMap::new();
    for line in fixtures::files(&fixture.name) {
        let files = by_dataset.entry(line["dataset"].as_str().unwrap().to_owned()).or_default();
        files.insert(describe::path_of(&line["path"]), line);
    }
    let mut out = Compared::default();
    let damage = damage::unreadable(&fixture.name);
    // files skipped below a mount point are compared with those of the mounted file system
    let listed: HashSet<_> = by_dataset.keys().cloned().collect();
    assert!(fixture.manifest["mountpoints"].as_object().unwrap().keys().all(|dataset| listed.contains(dataset)));
    for (dataset, truth) in by_dataset {
        let fs = fixture.file_system(&dataset);
        let touched = log::touched(&fixture.name, &fs);
        let under = |path: &[u8], mount: &String| {
            path.strip_prefix(mount.as_bytes()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        let mounts = fixture.mounts_in(&dataset);
        let replayed = replayed.get(&dataset);
        let (replay_began, replay_ended) = kernel_replay(&truth);
        let seen = HashSet::new();
        let mut tree = Tree {
            dataset: &dataset,
            truth,
            touched,
            replayed,
            replay_began,
            replay_ended,
            damage: &damage,
            seen,
            out: &mut out,
        };
        tree.truth.retain(|path, _| !mounts.iter().any(|mount| under(path, mount)));
        let root = fs.root_node().unwrap();
        tree.node(b".", &root, true);
        tree.directory(b"", &root, &|path| mounts.iter().any(|mount| under(path, mount)));
        tree.missing();
    }
    out
}

/// The kernel's replay ran minutes after the last operation, which made files just before the power failure.
const AFTER_THE_LAST_FILE: i64 = 60;

/// The earliest start of the kernel's replay, and its end.
fn kernel_replay(truth: &HashMap<Vec<u8>, Value>) -> ((i64, u32), (i64, u32)) {
    let last = |field: &str| truth.values().map(|t| instant(&t[field])).max().unwrap_or_default();
    let (sec, nsec) = last("btime");
    ((sec + AFTER_THE_LAST_FILE, nsec), last("ctime"))
}

/// Parses a time of the list.
fn instant(time: &Value) -> (i64, u32) {
    let (sec, nsec) = time.as_str().unwrap().split_once('.').unwrap();
    (sec.parse().unwrap(), nsec.parse().unwrap())
}

struct Tree<'a> {
    dataset: &'a str,
    truth: HashMap<Vec<u8>, Value>,
    touched: Touched,
    replayed: Option<&'a Touched>,
    /// Start and end of the kernel's replay.
    replay_began: (i64, u32),
    replay_ended: (i64, u32),
    damage: &'a damage::Unreadable,
    seen: HashSet<Vec<u8>>,
    out: &'a mut Compared,
}

impl Tree<'_> {
    fn differ(&mut self, path: &[u8], what: impl fmt::Display) {
        self.out.differences.push(format!("{} {}: {what}", self.dataset, String::from_utf8_lossy(path)));
    }

    fn directory(&mut self, path: &[u8], dir: &Node, hidden: &dyn Fn(&[u8]) -> bool) {
        let entries = match dir.fs().read_dir(dir.id()) {
            Ok(entries) => entries,
            Err(e) => return self.differ(path, e),
        };
        let mut subdirs = Vec::new();
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return self.differ(path, e),
            };
            let child = if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name].concat() };
            if hidden(&child) {
                continue;
            }
            let node = match dir.fs().node(entry.object) {
                Ok(node) => node,
                Err(e) => {
                    self.differ(&child, e);
                    continue;
                }
            };
            if entry.kind != node.kind() {
                self.differ(&child, format!("entry says {:?}, file is {:?}", entry.kind, node.kind()));
            }
            self.node(&child, &node, self.truth.contains_key(&child) || !self.touched.contains(dir.id()));
            if node.kind() == Kind::Directory {
                subdirs.push((child, node));
            }
        }
        for (child, node) in subdirs {
            self.directory(&child, &node, hidden);
        }
    }

    fn node(&mut self, path: &[u8], node: &Node, expected: bool) {
        self.seen.insert(path.to_vec());
        let truth = self.truth.get(path).cloned();
        // names that the log gives to other files: after the replay they refer to another object
        let renamed =
            truth.as_ref().is_some_and(|t| t["ino"].as_u64().is_some_and(|ino| self.touched.contains(ObjectId(ino))));
        if !expected || renamed || self.touched.contains(node.id()) {
            self.out.skipped += 1;
            return;
        }
        let Some(mut truth) = truth else { return self.differ(path, "not in the truth") };
        self.out.files += 1;
        // data that the kernel could not read may be unreadable here too, but never wrong
        let damaged = self.damage.contains(self.dataset, path);
        let (described, content) = match describe::describe(node, &truth, true) {
            Err(_) if damaged => (describe::describe(node, &truth, false), false),
            described => (described, true),
        };
        self.out.unreadable += usize::from(!content);
        match described {
            Ok((mut ours, bytes)) => {
                self.out.bytes += bytes;
                if self.replayed.is_some_and(|replayed| replayed.contains(node.id())) {
                    // compressors find different matches
                    (ours["blocks"], truth["blocks"]) = (Value::Null, Value::Null);
                    for field in ["ctime", "mtime"] {
                        self.same_replay(&ours[field], &mut truth[field]);
                    }
                }
                let differing = describe::differing(&ours, &truth, content, node.fs().is_snapshot() && path == b".");
                if !differing.is_empty() {
                    self.differ(path, differing);
                }
            }
            Err(e) => self.differ(path, e),
        }
    }

    /// Compares times: where the kernel's replay set a time, the replay here sets one that is later than everything the kernel
    /// did; other times are unchanged.
    fn same_replay(&self, ours: &Value, truth: &mut Value) {
        if instant(truth) >= self.replay_began && instant(ours) > self.replay_ended {
            *truth = ours.clone();
        }
    }

    fn missing(&mut self) {
        let gone: Vec<_> = self
            .truth
            .iter()
            .filter(|(path, _)| !self.seen.contains(*path))
            .map(|(p, t)| (p.clone(), t.clone()))
            .collect();
        for (path, truth) in gone {
            let below_touched =
                self.touched.any() && truth["ino"].as_u64().is_some_and(|ino| self.touched.contains(ObjectId(ino)));
            if below_touched { self.out.skipped += 1 } else { self.differ(&path, "missing") }
        }
    }
}

/// Returns the size of a volume and the SHA-256 of its content.
pub(crate) fn volume_digest(fixture: &Fixture, name: &str) -> (Option<u64>, Option<String>) {
    let volume = Zvol::open(&fixture.pool.dataset(name).unwrap()).unwrap();
    let mut sum = Sha256::new();
    let copied = std::io::copy(&mut volume.reader(), &mut HashWriter(&mut sum)).unwrap();
    assert_eq!(copied, volume.size());
    (Some(volume.size()), Some(describe::hex(&sum.finalize())))
}

pub(crate) struct HashWriter<'a>(pub(crate) &'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.update(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
