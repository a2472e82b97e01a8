//! A small pool in a temporary directory that receives streams, and the files that the kernel module received from the same
//! streams.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use base::{Env, Guid};
use codec::crypt::WrappingKey;
use ondisk::send::DRR_FLAG_CLONE;
use oracle::{fixtures, judge};
use pool::{CreateOptions, Hooks, ImportOptions, KeyFormat, ListOptions, Spa};
use serde_json::Value;
use stream::recv::{Error, Progress, Received, RecvArgs, receive};
use stream::send::{Base, SendFlags, send};
use stream::{Reader, Record};
use tempfile::TempDir;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::create::{FsProps, create_fs};
use zpl::{FileSystem, Kind, Node, Zvol};

pub(crate) mod remake;

#[path = "../../../zpl/tests/support/describe.rs"]
pub(crate) mod describe;

const SIZE: u64 = 192 << 20;
pub(crate) const POOL: &str = "recva";

pub(crate) struct Target {
    dir: TempDir,
    spa: Option<Arc<Spa>>,
}

fn hooks() -> Hooks {
    let used_by = Some(Arc::new(zpl::UsedByBonus) as _);
    // a device that a test lets fail does not come back
    Hooks { env: Env::system(), used_by, never_suspends: true, ..Hooks::default() }
}

impl Target {
    pub(crate) fn new() -> Target {
        Target::on(&|device| Arc::new(device))
    }

    /// Creates a pool whose device is a file wrapped by `wrap`.
    pub(crate) fn on(wrap: &dyn Fn(FileDevice) -> Arc<dyn Device>) -> Target {
        Target::made(wrap, 9)
    }

    /// Creates a pool with this sector size, as a power of two.
    pub(crate) fn with_ashift(ashift: u64) -> Target {
        Target::made(&|device| Arc::new(device), ashift)
    }

    fn made(wrap: &dyn Fn(FileDevice) -> Arc<dyn Device>, ashift: u64) -> Target {
        let dir = tempfile::tempdir().unwrap();
        let spec = VdevSpec::parse(&[dir.path().join("a").display().to_string()]).unwrap();
        let open =
            |path: &str| -> Option<Arc<dyn Device>> { Some(wrap(FileDevice::create(Path::new(path), SIZE).unwrap())) };
        let new =
            layout(&spec, &open, LayoutOptions { ashift: Some(ashift), ..LayoutOptions::default() }, &hooks().env);
        let mut create = CreateOptions::new(POOL);
        create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
        let spa = Spa::create(new.unwrap(), create, hooks()).unwrap();
        Target { dir, spa: Some(spa) }
    }

    pub(crate) fn spa(&self) -> &Arc<Spa> {
        self.spa.as_ref().unwrap()
    }

    /// Exports the pool, checks it with zdb, and imports it again.
    pub(crate) fn again(&mut self) {
        self.close();
        let path = self.dir.path().join("a");
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        let found = vdev::import::scan_devices(vec![(path, device)]);
        self.spa = Some(Spa::import(found.first().unwrap(), &ImportOptions::default(), hooks()).unwrap());
    }

    /// Reopens the pool as another machine finds it that gets the device, or this one after a restart: what was not synced is
    /// lost.
    pub(crate) fn crash(&mut self) {
        self.crash_on(&|device| Arc::new(device));
    }

    /// As [`Target::crash`], with the file wrapped by `wrap`.
    pub(crate) fn crash_on(&mut self, wrap: &dyn Fn(FileDevice) -> Arc<dyn Device>) {
        // the devices are released with the pool
        drop(self.spa.take());
        let path = self.dir.path().join("a");
        let device = wrap(FileDevice::open_read_write(&path).unwrap());
        let found = vdev::import::scan_devices(vec![(path, device)]);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        self.spa = Some(Spa::import(found.first().unwrap(), &options, hooks()).unwrap());
    }

    /// Exports the pool and checks it with zdb: every block is found, none is leaked, every object can be read.
    pub(crate) fn close(&mut self) {
        let spa = self.spa.take().unwrap();
        spa.export().unwrap();
        drop(spa);
        judge::no_leaks(self.dir.path(), POOL);
    }

    /// Receives the streams of a package, or a single stream, into `fs`; each snapshot gets its name in the stream.
    pub(crate) fn receive(&self, bytes: &[u8], fs: &str, args: &RecvArgs) -> Result<Vec<Received>, Error> {
        self.receive_from(bytes, fs, args)
    }

    pub(crate) fn receive_from<R: Read + Send>(
        &self,
        input: R,
        fs: &str,
        args: &RecvArgs,
    ) -> Result<Vec<Received>, Error> {
        let mut reader = Reader::new(input);
        let mut all = Vec::new();
        while let Some(entry) = reader.next_record()? {
            let payload = entry.payload.to_vec();
            let Record::Begin(begin) = entry.header.record else { continue };
            if begin.hdrtype() != 1 {
                continue;
            }
            let mut args = args.clone();
            if begin.flags & DRR_FLAG_CLONE != 0 && args.origin.is_none() {
                args.origin = self.snapshot_of(begin.fromguid);
            }
            let name = String::from_utf8_lossy(begin.name()).into_owned();
            let snap = name.split_once('@').map_or("received", |(_, snap)| snap);
            args.target = format!("{fs}@{snap}");
            all.push(receive(self.spa(), &mut reader, &begin, &payload, &args, &Progress::default())?);
        }
        Ok(all)
    }

    /// Returns the snapshot with this guid.
    fn snapshot_of(&self, guid: Guid) -> Option<String> {
        let view = self.spa().view().unwrap();
        let heads = view.list(POOL, &ListOptions::DATASETS).unwrap();
        let snapshots = heads.iter().filter_map(|entry| entry.dataset()).flat_map(|head| head.snapshots().unwrap());
        snapshots.filter(|snap| snap.guid() == guid).map(|snap| snap.name().to_owned()).next()
    }

    /// Receives a package: each of its datasets below `fs`, with the path that it has below `top` at the sender.
    pub(crate) fn receive_package(&self, bytes: &[u8], top: &str, fs: &str) -> Result<Vec<String>, Error> {
        let mut reader = Reader::new(bytes);
        let mut all = Vec::new();
        while let Some(entry) = reader.next_record()? {
            let payload = entry.payload.to_vec();
            let Record::Begin(begin) = entry.header.record else { continue };
            if begin.hdrtype() != 1 {
                continue;
            }
            let name = String::from_utf8_lossy(begin.name()).into_owned();
            let target = format!("{fs}{}", name.strip_prefix(top).unwrap());
            let args = RecvArgs { target: target.clone(), ..RecvArgs::default() };
            receive(self.spa(), &mut reader, &begin, &payload, &args, &Progress::default())?;
            all.push(target);
        }
        Ok(all)
    }

    /// Loads the key of an encryption root from a file of a fixture.
    pub(crate) fn load_key(&self, fixture: &str, root: &str, file: &str) -> usize {
        let secret = std::fs::read(fixtures::dir(fixture).join("keys").join(file)).unwrap();
        let (_, info) = self.spa().view().unwrap().encryption_root(root).unwrap();
        let key = match info.keyformat.unwrap() {
            KeyFormat::Raw => WrappingKey::from_raw(&secret),
            KeyFormat::Hex => WrappingKey::from_hex(std::str::from_utf8(&secret).unwrap().trim_end()),
            KeyFormat::Passphrase => {
                WrappingKey::from_passphrase(secret.trim_ascii_end(), info.pbkdf2_salt, info.pbkdf2_iters)
            }
        };
        self.spa().load_key(root, &key.unwrap()).unwrap()
    }

    /// Sends a snapshot, raw or not.
    pub(crate) fn send(&self, to: &str, from: Option<&str>, raw: bool) -> Vec<u8> {
        let flags = SendFlags { embed: false, large_block: false, compress: false, raw, resume: None, saved: None };
        self.send_as(to, from, &flags)
    }

    pub(crate) fn send_as(&self, to: &str, from: Option<&str>, flags: &SendFlags) -> Vec<u8> {
        let view = self.spa().view().unwrap();
        let to = view.dataset(to).unwrap();
        let base = from.map(|from| Base::of_snapshot(&view.dataset(from).unwrap(), &to).unwrap());
        let mut out = Vec::new();
        send(&to, base.as_ref(), flags, &mut out, &Default::default()).unwrap();
        out
    }

    /// True if this dataset or snapshot exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.spa().view().unwrap().dataset(name).is_ok()
    }

    /// Compares the datasets that `wanted` selects with what the kernel module had received; returns the number of files. Where
    /// `truth_of` names another dataset, its files are the reference: the kernel module could not read all that it had received.
    pub(crate) fn compare(
        &self,
        fixture: &str,
        wanted: &dyn Fn(&str) -> bool,
        truth_of: &dyn Fn(&str) -> Option<String>,
    ) -> usize {
        let truth = truth(fixture, "recv");
        // snapshots that were not mounted by the kernel module
        let unseen = |name: &str, files: &Files| name.contains('@') && files.len() == 1;
        let pairs = truth.keys().filter(|name| *name != POOL && wanted(name)).filter_map(|name| {
            let files = &truth[&truth_of(name).unwrap_or_else(|| name.clone())];
            (!unseen(name, files)).then(|| (name.clone(), files.clone()))
        });
        self.compare_all(fixture, pairs)
    }

    /// Compares datasets with those of the sender: (here, there).
    pub(crate) fn compare_source(&self, fixture: &str, pairs: &[(&str, &str)]) -> usize {
        let truth = truth(fixture, "source");
        self.compare_all(fixture, pairs.iter().map(|(here, there)| ((*here).to_owned(), truth[*there].clone())))
    }

    fn compare_all(&self, fixture: &str, pairs: impl Iterator<Item = (String, Files)>) -> usize {
        let view = self.spa().view().unwrap();
        let (mut files, mut differences) = (0, Vec::new());
        for (name, truth) in pairs {
            let fs = FileSystem::open(&view.dataset(&name).unwrap_or_else(|e| panic!("{e}"))).unwrap();
            let mut tree = Tree { dataset: &name, truth, seen: HashSet::new(), out: &mut differences };
            let root = fs.root_node().unwrap();
            tree.node(b".", &root);
            tree.directory(b"", &root);
            let missing: Vec<_> = tree.truth.keys().filter(|path| !tree.seen.contains(*path)).cloned().collect();
            missing.iter().for_each(|path| tree.differ(path, "missing"));
            files += tree.seen.len();
        }
        assert!(
            differences.is_empty(),
            "{fixture}: {} differences\n{}",
            differences.len(),
            differences[..differences.len().min(20)].join("\n")
        );
        files
    }

    /// Returns the SHA-256 of a volume.
    pub(crate) fn volume_sum(&self, name: &str) -> String {
        use sha2::{Digest, Sha256};
        let volume = Zvol::open(&self.spa().view().unwrap().dataset(name).unwrap()).unwrap();
        let mut data = Vec::new();
        volume.reader().read_to_end(&mut data).unwrap();
        describe::hex(&Sha256::digest(&data))
    }
}

/// The recorded files of a dataset, by path.
type Files = HashMap<Vec<u8>, Value>;

/// Returns the files that a fixture records for its datasets; `side` is the source, or the received side.
fn truth(fixture: &str, side: &str) -> BTreeMap<String, Files> {
    let mut truth: BTreeMap<String, Files> = BTreeMap::new();
    for line in fixtures::json_lines(fixture, &format!("{side}/files.jsonl.zst")) {
        let files = truth.entry(line["dataset"].as_str().unwrap().to_owned()).or_default();
        files.insert(describe::path_of(&line["path"]), line);
    }
    truth
}

struct Tree<'a> {
    dataset: &'a str,
    truth: HashMap<Vec<u8>, Value>,
    seen: HashSet<Vec<u8>>,
    out: &'a mut Vec<String>,
}

impl Tree<'_> {
    fn differ(&mut self, path: &[u8], what: impl std::fmt::Display) {
        self.out.push(format!("{} {}: {what}", self.dataset, String::from_utf8_lossy(path)));
    }

    fn directory(&mut self, path: &[u8], dir: &Node) {
        for entry in dir.fs().read_dir(dir.id()).unwrap() {
            let entry = entry.unwrap();
            let child = if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name].concat() };
            match dir.fs().node(entry.object) {
                Ok(node) => {
                    self.node(&child, &node);
                    if node.kind() == Kind::Directory {
                        self.directory(&child, &node);
                    }
                }
                Err(error) => self.differ(&child, error),
            }
        }
    }

    fn node(&mut self, path: &[u8], node: &Node) {
        self.seen.insert(path.to_vec());
        let Some(truth) = self.truth.get(path).cloned() else { return self.differ(path, "not in the truth") };
        match describe::describe(node, &truth, true) {
            Ok((mut ours, _)) => {
                let root_of_snapshot = node.fs().is_snapshot() && path == b".";
                // compression ratios and dataset numbers may differ in this pool
                let mut truth = truth;
                for side in [&mut ours, &mut truth] {
                    let side = side.as_object_mut().unwrap();
                    side.remove("blocks");
                    if root_of_snapshot {
                        side.remove("ino");
                    }
                }
                let differing = describe::differing(&ours, &truth, true, root_of_snapshot);
                if !differing.is_empty() {
                    self.differ(path, differing);
                }
            }
            Err(error) => self.differ(path, error),
        }
    }
}
