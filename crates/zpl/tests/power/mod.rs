//! A pool in memory whose devices can be copied at any moment: the state after a power failure.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base::{Env, ObjectId, tunable};
use codec::crypt::{Suite, WrappingKey};
use ondisk::ObjsetType;
use oracle::judge;
use pool::{CreateOptions, Hooks, ImportOptions, KeyFormat, NewDataset, NewKey, Spa, Value};
use tempfile::TempDir;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice, MemoryDevice};
use zpl::create::{FsProps, create_fs, create_volume};
use zpl::live::{Cred, Zfs};
use zpl::{FileFlags, Kind, Node};

/// Large enough that the dirty data never has to wait for a sync.
const SIZE: u64 = 512 << 20;
const CHUNK: usize = 256 << 10;

pub(crate) struct Rig {
    devices: Arc<Mutex<BTreeMap<String, MemoryDevice>>>,
    pub(crate) spa: Arc<Spa>,
}

/// The state found by an import after the power failure.
pub(crate) struct After {
    dir: TempDir,
    pub(crate) spa: Option<Arc<Spa>>,
    /// Returns zdb's output about the logs.
    pub(crate) logs: Option<String>,
}

/// Returns bytes that do not compress.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, len)
}

fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() }
}

pub(crate) fn key() -> WrappingKey {
    WrappingKey::from_raw(&[7; 32]).unwrap()
}

impl Rig {
    /// Creates a pool `t` on these devices. Txgs are synced only on demand.
    pub(crate) fn new(words: &[&str]) -> Rig {
        Rig::with(words, &|device| Arc::new(device))
    }

    /// The same; the pool accesses its devices through `wrap`.
    pub(crate) fn with(words: &[&str], wrap: &dyn Fn(MemoryDevice) -> Arc<dyn Device>) -> Rig {
        tunable::ZFS_TXG_TIMEOUT.set(3600);
        let words: Vec<String> = words.iter().map(|word| (*word).to_string()).collect();
        let devices: Arc<Mutex<BTreeMap<String, MemoryDevice>>> = Arc::default();
        let open = |path: &str| -> Option<Arc<dyn Device>> {
            let device = MemoryDevice::writable(SIZE).named(path);
            devices.lock().unwrap().insert(path.to_string(), device.clone());
            Some(wrap(device))
        };
        let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
        let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks().env).unwrap();
        let mut create = CreateOptions::new("t");
        create.populate = Some(Box::new(move |objset, tx| create_fs(objset, tx, &FsProps::default())));
        // a device that was closed is opened again by its name
        let shelf = devices.clone();
        let open_device = move |path: &str| -> Result<Arc<dyn Device>, vdev::Error> {
            let gone = || vdev::Error::Open { path: path.to_owned(), source: std::io::ErrorKind::NotFound.into() };
            Ok(Arc::new(shelf.lock().unwrap().get(path).cloned().ok_or_else(gone)?))
        };
        let hooks = Hooks { open_device: Arc::new(open_device), ..hooks() };
        let spa = Spa::create(new, create, hooks).unwrap();
        Rig { devices, spa }
    }

    /// Adds vdevs.
    pub(crate) fn add(&self, words: &[&str]) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_string()).collect();
        let open = |path: &str| -> Option<Arc<dyn Device>> {
            let device = MemoryDevice::writable(SIZE).named(path);
            self.devices.lock().unwrap().insert(path.to_string(), device.clone());
            Some(Arc::new(device))
        };
        let options = self.spa.layout_options(Some(9));
        let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks().env).unwrap();
        self.spa.add_vdevs(new, false).unwrap();
    }

    /// Creates a file system with these properties, optionally encrypted.
    pub(crate) fn file_system(&self, name: &str, props: &[(&str, u64)], encrypted: bool) -> Zfs {
        let key = encrypted.then(|| NewKey {
            cipher: Suite::Aes256Gcm,
            keyformat: KeyFormat::Raw,
            keylocation: "prompt".to_string(),
            wrapping: key(),
            pbkdf2_iters: 0,
            salt: 0,
        });
        let props = props.iter().map(|(name, value)| ((*name).to_string(), Value::Number(*value))).collect();
        let new = NewDataset { props, key, ..NewDataset::inheriting(name, ObjsetType::Zfs) };
        let init = Box::new(move |objset: &_, tx: &_| create_fs(objset, tx, &FsProps::default()));
        self.spa.create_dataset(new, init).unwrap();
        Zfs::open(&self.spa, name).unwrap()
    }

    pub(crate) fn volume(&self, name: &str, size: u64, block: u64) {
        let props = [("volsize", size), ("volblocksize", block)];
        let new = NewDataset {
            props: props.iter().map(|(name, value)| ((*name).to_string(), Value::Number(*value))).collect(),
            ..NewDataset::inheriting(name, ObjsetType::Zvol)
        };
        let init = Box::new(move |objset: &_, tx: &_| create_volume(objset, tx, size, block));
        self.spa.create_dataset(new, init).unwrap();
    }

    /// Overwrites bytes of the space of a device.
    #[allow(dead_code, reason = "not all tests use it")]
    pub(crate) fn damage(&self, name: &str, offset: u64, len: u64) {
        const LABELS: u64 = 4 << 20;
        let noise = bytes(len as usize, 99);
        self.devices.lock().unwrap()[name].write_at(LABELS + offset, &noise).unwrap();
    }

    /// Imports the pool in the current state of the devices, with the keys of these datasets.
    pub(crate) fn after_cut(&self, keys: &[&str], judged: bool) -> After {
        let dir = tempfile::tempdir().unwrap();
        let mut files: Vec<PathBuf> = Vec::new();
        for (name, device) in self.devices.lock().unwrap().iter() {
            let path = dir.path().join(Path::new(name).file_name().unwrap());
            copy(device, &path);
            files.push(path);
        }
        let at = dir.path().display().to_string();
        let logs = if judged { judge::run("zdb", &["-e", "-p", &at, "-ivvvvv", "t"]) } else { None };
        let logs = logs.map(|out| {
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
            text
        });
        let open = |path: PathBuf| -> (PathBuf, Arc<dyn Device>) {
            let device = Arc::new(FileDevice::open_read_write(&path).unwrap());
            (path, device)
        };
        let found = vdev::import::scan_devices(files.into_iter().map(open).collect());
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let spa = Spa::import(found.first().unwrap(), &options, hooks()).unwrap();
        for name in keys {
            spa.load_key(name, &key()).unwrap();
        }
        After { dir, spa: Some(spa), logs }
    }
}

/// Copies the nonzero parts.
fn copy(device: &MemoryDevice, path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(SIZE).unwrap();
    let mut buf = vec![0; CHUNK];
    for at in (0..SIZE).step_by(CHUNK) {
        device.read_at(at, &mut buf).unwrap();
        if buf.iter().any(|byte| *byte != 0) {
            file.write_all_at(&buf, at).unwrap();
        }
    }
}

impl After {
    pub(crate) fn open(&self, name: &str) -> Zfs {
        Zfs::open(self.spa.as_ref().unwrap(), name).unwrap()
    }

    /// Exports the pool and checks it with zdb.
    pub(crate) fn close(mut self) {
        let spa = self.spa.take().unwrap();
        spa.export().unwrap();
        drop(spa);
        judge::no_leaks(self.dir.path(), "t");
    }
}

/// Describes all files of a file system, by path: everything that a replay must restore.
pub(crate) fn tree(zfs: &Zfs) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    walk(zfs, "", zfs.fs().root(), &mut out);
    out
}

fn walk(zfs: &Zfs, path: &str, id: ObjectId, out: &mut BTreeMap<String, String>) {
    let node = zfs.fs().node(id).unwrap();
    out.insert(path.to_string(), told(zfs, &node));
    if node.kind() != Kind::Directory {
        return;
    }
    for entry in zfs.fs().read_dir(id).unwrap() {
        let entry = entry.unwrap();
        walk(zfs, &format!("{path}/{}", String::from_utf8_lossy(&entry.name)), entry.object, out);
    }
}

fn told(zfs: &Zfs, node: &Node) -> String {
    let a = zfs.getattr(node.id()).unwrap();
    // the root is not created by the log
    let born = if a.parent == node.id() { (0, a.crtime) } else { (a.generation, a.crtime) };
    let mut xattrs = node.xattrs().unwrap();
    xattrs.sort();
    let xattrs: Vec<_> =
        xattrs.iter().map(|(n, v)| (String::from_utf8_lossy(n).into_owned(), sum(v), v.len())).collect();
    let mut hidden = Vec::new();
    if !a.xattr_dir.is_none() {
        let files = zfs.fs().read_dir(a.xattr_dir).unwrap().map(|entry| entry.unwrap().object);
        hidden.extend(
            files.chain([a.xattr_dir]).map(|id| zfs.getattr(id).unwrap()).map(|own| (own.uid(), own.gid(), own.projid)),
        );
    }
    // with POSIX ACLs, a mode that follows from a POSIX ACL leaves the NFSv4 ACL unchanged, while a replay updates it
    let nfs4 = zfs.settings().acltype != 1;
    let acl = if nfs4 { node.acl().unwrap().show(zfs.fs().fuids().unwrap()) } else { String::new() };
    let flags = a.flags.0 & if nfs4 { u64::MAX } else { !FileFlags::NO_EXECS_DENIED.0 };
    let content = match node.kind() {
        Kind::File => {
            let mut data = vec![0; a.size as usize];
            zfs.read(node.id(), 0, &mut data).unwrap();
            format!("{:x}", sum(&data))
        }
        Kind::Symlink => String::from_utf8_lossy(&node.target().unwrap()).into_owned(),
        _ => String::new(),
    };
    format!(
        "#{} {:o} {}:{} size {} links {} in {} born {born:?} flags {:x} project {:?} rdev {:?} {content} {xattrs:?} {hidden:?} {acl}",
        node.id(),
        a.mode,
        a.owner.0,
        a.group.0,
        a.size,
        a.links,
        a.parent,
        flags,
        a.projid,
        a.rdev
    )
}

pub(crate) fn sum(data: &[u8]) -> u64 {
    data.iter()
        .fold(data.len() as u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3).rotate_left(5))
}

pub(crate) const ROOT: Cred = Cred::ROOT;
