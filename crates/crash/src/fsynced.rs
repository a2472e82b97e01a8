//! Files under power cuts: after log replay, everything that `fsync` promised must be there, and the later changes must be consistent.
//!
//! A run is a sequence of operations on a file system, one after the other. The run records the tree of names after each operation, and
//! every content that each file has had. A log has all changes of names in order, and the changes of each file in order; changes of a file
//! without an `fsync` may be missing. So after a cut
//!
//! * the names are those after some operation: at the earliest the last one promised, at the latest the last one started;
//! * the content of each file is one that it had: at the earliest the promised one. Unfinished changes may be there in part, and a log
//!   record of an earlier change may contain bytes of a later one, as it copies them when it is written: each byte of the file is then that
//!   of some content from the promised one on.
//!
//! Some writes repeat whole blocks, and some files clone blocks of others, so that blocks are shared: through the dedup table if the file
//! system is [deduplicated](Storage::Dedup), by cloning in all of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::{Env, ObjectId};
use pool::{Hooks, ImportOptions, OpenOptions, Spa};
use vdev::Device;
use zuse::zpl::live::{Cred, NewFile, RenameMode, SetAttr, Vfs, Zfs};
use zuse::zpl::{Kind, Node, UsedByBonus};

use crate::compare::{Context, Result};
use crate::pools::{NAME, Shape, find, open, verify_all};
use crate::storage::{RECORDSIZE, Storage, unlock};
use crate::{Recording, Rng, State, Tape};

/// The name of the file system under test.
pub(crate) const FS: &str = "fs";
/// Number of directories.
const DIRS: u64 = 3;
/// Maximum number of files.
const FILES: usize = 10;
/// Maximum size of a file.
const SIZE: u64 = 96 << 10;
/// Maximum size of one write.
const WRITE: u64 = 40 << 10;
/// Number of different contents of repeated blocks.
const PATTERNS: u64 = 3;
/// Size of a pool's ARC.
const ARC_BYTES: u64 = 16 << 20;

/// The tree of names: each name refers to a file, by its number in the run, or to a directory.
type Names = BTreeMap<String, Option<usize>>;

/// The contents that a file has had, each with the operation that wrote it.
type Versions = Vec<(usize, Arc<Vec<u8>>)>;

/// The result of an operation.
type Done = std::result::Result<(), zuse::zpl::Error>;

/// The safe part of a run: all names after this operation, and of each file at least this version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    op: usize,
    versions: BTreeMap<usize, usize>,
}

/// The promises made so far.
#[derive(Clone, Debug, Default)]
pub struct Promised {
    /// The part that is safe in a log or a txg.
    pub(crate) kept: Kept,
    /// The part that is safe in a txg.
    pub(crate) synced: Kept,
    /// The state of the log device that is added and removed.
    pub(crate) slog: Slog,
}

/// The state of the log device that is added and removed, according to the promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Slog {
    /// It is not part of the pool.
    #[default]
    Out,
    /// It is being added or removed.
    Changing,
    /// It is part of the pool.
    In,
}

/// The record of a run's operations.
#[derive(Debug, Default)]
pub struct Journal {
    /// The names after each operation; the first entry is the empty file system.
    names: Vec<Names>,
    /// The number of events at the start of each operation.
    begun: Vec<usize>,
    files: Vec<Versions>,
    /// The range of events of each addition or removal of a log device.
    pub changes: Vec<Range<usize>>,
}

/// A run in progress.
pub(crate) struct Work {
    pub(crate) zfs: Zfs,
    pub(crate) book: Book,
}

/// The bookkeeping of a run.
pub(crate) struct Book {
    pub(crate) rng: Rng,
    dirs: Vec<(String, ObjectId)>,
    /// Path and object of each file that has a name, by file number.
    live: BTreeMap<usize, (String, ObjectId)>,
    pub(crate) journal: Journal,
    pub(crate) promised: Promised,
}

fn hooks(seed: u64) -> Hooks {
    Hooks { env: Env::seeded(seed), used_by: Some(Arc::new(UsedByBonus)), ..Hooks::default() }
}

/// Imports the pool on these devices; `missing_log_ok`: even if its log device is missing.
pub(crate) fn import(devices: &[Arc<dyn Device>], seed: u64, missing_log_ok: bool) -> Result<Arc<Spa>> {
    let candidate = find(devices).ok_or("there is no pool to import")?;
    let open = OpenOptions { arc_bytes: ARC_BYTES, missing_log_ok, ..OpenOptions::default() };
    let options = ImportOptions { open, force: true, ..ImportOptions::default() };
    Spa::import(&candidate, &options, hooks(seed)).context(|| "import".to_string())
}

/// Opens the file system, which replays its log.
pub(crate) fn enter(spa: &Arc<Spa>) -> Result<Zfs> {
    unlock(spa, &format!("{NAME}/{FS}"))?;
    Zfs::open(spa, &format!("{NAME}/{FS}")).context(|| "open, replaying".to_string())
}

/// Creates a pool with a file system, and runs `steps` operations on it while recording a tape. The tape ends while the pool is open.
///
/// # Errors
/// The first failure.
pub fn record(shape: &Shape, storage: Storage, seed: u64, steps: u64) -> Result<(Tape<Promised>, Journal)> {
    let recording = Recording::new(&shape.disks()?, 512 << 20);
    let mut work = Work::begin(shape, storage, &recording, seed)?;
    for step in 0..steps {
        work.step(&recording).context(|| format!("{}, seed {seed}, step {step}", shape.name))?;
    }
    Ok((recording.finish(), work.into_journal()))
}

impl Work {
    /// Creates a pool with a file system, and promises its initial contents.
    pub(crate) fn begin(shape: &Shape, storage: Storage, recording: &Recording<Promised>, seed: u64) -> Result<Work> {
        let devices = recording.devices();
        shape.create(&devices, seed)?.export().context(|| "export".to_string())?;
        // another seed, so that guids differ from those already drawn
        let spa = import(&devices, seed | 1 << 63, false)?;
        storage.create(&spa, &format!("{NAME}/{FS}"))?;
        let zfs = enter(&spa)?;
        let mut dirs = vec![(String::new(), zfs.fs().root())];
        for n in 1..DIRS {
            let (name, new) = (format!("d{n}"), NewFile::new(Kind::Directory, 0o755));
            let made = zfs.create(&Cred::ROOT, zfs.fs().root(), name.as_bytes(), &new).context(|| name.clone())?;
            dirs.push((format!("{name}/"), made.0));
        }
        spa.sync().context(|| "sync".to_string())?;
        let names = (1..DIRS).map(|n| (format!("d{n}"), None)).collect();
        let journal = Journal { names: vec![names], begun: vec![recording.events()], ..Journal::default() };
        let (live, promised) = (BTreeMap::new(), Promised::default());
        recording.promise(0, promised.clone());
        Ok(Work { zfs, book: Book { rng: Rng::new(seed), dirs, live, journal, promised } })
    }

    /// Ends the run and returns its record.
    pub(crate) fn into_journal(self) -> Journal {
        self.book.journal
    }

    /// Does a random operation.
    pub(crate) fn step(&mut self, recording: &Recording<Promised>) -> Done {
        let names = self.book.journal.names.last().cloned().unwrap_or_default();
        self.book.journal.begun.push(recording.events());
        let op = self.book.journal.names.len();
        self.book.journal.names.push(names);
        match self.book.rng.below(100) {
            0..15 => self.create(op)?,
            15..37 => self.write(op)?,
            37..43 => self.repeat(op)?,
            43..50 => self.clone_range(op)?,
            50..56 => self.truncate(op)?,
            56..66 => self.rename()?,
            66..72 => self.unlink()?,
            72..94 => self.fsync(recording)?,
            94..97 => self.commit(recording)?,
            _ => {
                self.zfs.spa().sync()?;
                self.book.synced();
                recording.promise(0, self.book.promised.clone());
            }
        }
        Ok(())
    }

    fn names(&mut self) -> &mut Names {
        // the list is never empty: it starts with the empty file system
        let last = self.book.journal.names.len() - 1;
        &mut self.book.journal.names[last]
    }

    fn any(&self) -> Option<(usize, String, ObjectId)> {
        let all: Vec<_> = self.book.live.iter().map(|(file, (path, id))| (*file, path.clone(), *id)).collect();
        (!all.is_empty()).then(|| self.book.rng.pick(&all).clone())
    }

    /// A random directory and a name in it, which may be in use.
    fn place(&self) -> (ObjectId, String, String) {
        let (above, dir) = self.book.rng.pick(&self.book.dirs).clone();
        let name = format!("f{}", self.book.rng.below(12));
        (dir, name.clone(), above + &name)
    }

    fn at(&self, path: &str) -> (ObjectId, String) {
        let (dir, name) = path.rsplit_once('/').map_or(("", path), |(dir, name)| (dir, name));
        let above = self.book.dirs.iter().find(|(prefix, _)| prefix.trim_end_matches('/') == dir);
        (above.map_or(ObjectId(0), |(_, id)| *id), name.to_string())
    }

    fn create(&mut self, op: usize) -> Done {
        let (dir, name, path) = self.place();
        if self.book.live.len() >= FILES || self.names().contains_key(&path) {
            return Ok(());
        }
        let (id, _) = self.zfs.create(&Cred::ROOT, dir, name.as_bytes(), &NewFile::new(Kind::File, 0o644))?;
        let file = self.book.journal.files.len();
        self.book.journal.files.push(vec![(op, Arc::default())]);
        self.book.live.insert(file, (path.clone(), id));
        self.names().insert(path, Some(file));
        Ok(())
    }

    fn write(&mut self, op: usize) -> Done {
        let Some((file, _, id)) = self.any() else { return Ok(()) };
        let mut content = self.content(file);
        let small = self.book.rng.percent(60);
        let len = 1 + self.book.rng.below(if small { 600 } else { WRITE });
        let append = self.book.rng.percent(50);
        let at = if append { content.len() as u64 } else { self.book.rng.below(SIZE - len) }.min(SIZE - len);
        let mut data = vec![0; len as usize];
        self.book.rng.fill(&mut data);
        self.zfs.write(&Cred::ROOT, id, at, &data)?;
        put(&mut content, at as usize, &data);
        self.book.journal.files[file].push((op, Arc::new(content)));
        Ok(())
    }

    /// Writes whole blocks with contents that other blocks have too.
    fn repeat(&mut self, op: usize) -> Done {
        let Some((file, _, id)) = self.any() else { return Ok(()) };
        let mut content = self.content(file);
        let at = self.book.rng.below(SIZE / RECORDSIZE) * RECORDSIZE;
        let count = 1 + self.book.rng.below(3).min((SIZE - at) / RECORDSIZE - 1);
        let data = vec![1 + self.book.rng.below(PATTERNS) as u8; (count * RECORDSIZE) as usize];
        self.zfs.write(&Cred::ROOT, id, at, &data)?;
        put(&mut content, at as usize, &data);
        self.book.journal.files[file].push((op, Arc::new(content)));
        Ok(())
    }

    /// Clones blocks of another file into a file.
    fn clone_range(&mut self, op: usize) -> Done {
        let (Some((source, _, from)), Some((file, _, to))) = (self.any(), self.any()) else { return Ok(()) };
        let (given, mut content) = (self.content(source), self.content(file));
        if source == file || given.is_empty() {
            return Ok(());
        }
        let first = self.book.rng.below(given.len() as u64) / RECORDSIZE * RECORDSIZE;
        let at = self.book.rng.below(SIZE / RECORDSIZE) * RECORDSIZE;
        let len = (SIZE - at).min(given.len() as u64 - first);
        let copied = self.zfs.copy_range(&Cred::ROOT, (from, first), (to, at), len)?;
        let end = (first + copied) as usize;
        put(&mut content, at as usize, given.get(first as usize..end).unwrap_or_default());
        self.book.journal.files[file].push((op, Arc::new(content)));
        Ok(())
    }

    fn truncate(&mut self, op: usize) -> Done {
        let Some((file, _, id)) = self.any() else { return Ok(()) };
        let size = self.book.rng.below(SIZE);
        self.zfs.setattr(&Cred::ROOT, id, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        let mut content = self.content(file);
        content.resize(size as usize, 0);
        self.book.journal.files[file].push((op, Arc::new(content)));
        Ok(())
    }

    fn rename(&mut self) -> Done {
        let Some((file, path, id)) = self.any() else { return Ok(()) };
        let ((from, old), (to, new, target)) = (self.at(&path), self.place());
        if path == target {
            return Ok(());
        }
        Vfs::rename(&self.zfs, &Cred::ROOT, from, old.as_bytes(), to, new.as_bytes(), RenameMode::Replace)?;
        let names = self.names();
        names.remove(&path);
        if let Some(Some(gone)) = names.insert(target.clone(), Some(file)) {
            self.book.live.remove(&gone);
        }
        self.book.live.insert(file, (target, id));
        Ok(())
    }

    fn unlink(&mut self) -> Done {
        let Some((file, path, _)) = self.any() else { return Ok(()) };
        let (dir, name) = self.at(&path);
        self.zfs.unlink(&Cred::ROOT, dir, name.as_bytes())?;
        self.book.live.remove(&file);
        self.names().remove(&path);
        Ok(())
    }

    fn fsync(&mut self, recording: &Recording<Promised>) -> Done {
        let Some((file, _, id)) = self.any() else { return Ok(()) };
        self.zfs.fsync(id)?;
        self.book.promised.kept.op = self.book.journal.names.len() - 1;
        self.book.promised.kept.versions.insert(file, self.book.journal.files[file].len() - 1);
        recording.promise(0, self.book.promised.clone());
        Ok(())
    }

    /// Commits everything to the log, and promises it.
    pub(crate) fn commit(&mut self, recording: &Recording<Promised>) -> Done {
        self.zfs.sync()?;
        self.book.promised.kept = self.book.all();
        recording.promise(0, self.book.promised.clone());
        Ok(())
    }

    fn content(&self, file: usize) -> Vec<u8> {
        self.book.journal.files[file].last().map(|(_, bytes)| bytes.to_vec()).unwrap_or_default()
    }
}

impl Book {
    /// Everything done so far, as safe.
    fn all(&self) -> Kept {
        let last = self.journal.files.iter().map(|versions| versions.len() - 1);
        Kept { op: self.journal.names.len() - 1, versions: last.enumerate().collect() }
    }

    /// Records that a txg contains everything done so far.
    pub(crate) fn synced(&mut self) {
        self.promised.kept = self.all();
        self.promised.synced = self.all();
    }
}

/// Writes bytes to the content of a file, extending it if necessary.
fn put(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    let end = at + data.len();
    content.resize(content.len().max(end), 0);
    content[at..end].copy_from_slice(data);
}

/// Checks the state after a cut: imports it, with log replay.
///
/// # Errors
/// The loss or damage found.
pub fn check(state: &State<'_, Promised>, journal: &Journal) -> Result<()> {
    let devices = state.devices();
    let Some(promised) = state.promised.map(|promise| &promise.payload) else {
        // the pool was still being created
        return Ok(());
    };
    let spa = import(&devices, state.cut.seed, false)?;
    check_files(&spa, journal, &promised.kept, state.cut.at)?;
    spa.export().context(|| "export".to_string())?;
    drop(spa);
    verify_all(&open(&devices)?).map(drop)
}

/// Compares the files of a pool, after log replay, with the promises at the time when `at` events had happened.
pub(crate) fn check_files(spa: &Arc<Spa>, journal: &Journal, kept: &Kept, at: usize) -> Result<()> {
    let begun = journal.begun.partition_point(|events| *events <= at).saturating_sub(1);
    let zfs = enter(spa)?;
    compare(&tree(&zfs)?, journal, kept, begun)
}

/// Path and content of all files; `None` for directories.
fn tree(zfs: &Zfs) -> Result<BTreeMap<String, Option<Vec<u8>>>> {
    let mut all = BTreeMap::new();
    let mut open = vec![(String::new(), zfs.fs().root())];
    while let Some((above, dir)) = open.pop() {
        let entries = zfs.fs().read_dir(dir).context(|| format!("/{above}"))?;
        for entry in entries {
            let entry = entry.context(|| format!("/{above}"))?;
            let path = above.clone() + &String::from_utf8_lossy(&entry.name);
            let node = zfs.fs().node(entry.object).context(|| path.clone())?;
            if node.kind() == Kind::Directory {
                open.push((format!("{path}/"), node.id()));
                all.insert(path, None);
            } else {
                all.insert(path.clone(), Some(content(&node).context(|| path)?));
            }
        }
    }
    Ok(all)
}

fn content(node: &Node) -> std::result::Result<Vec<u8>, zuse::zpl::Error> {
    let mut bytes = vec![0; node.size() as usize];
    let len = node.read(0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn compare(found: &BTreeMap<String, Option<Vec<u8>>>, journal: &Journal, kept: &Kept, begun: usize) -> Result<()> {
    let span = kept.op..=begun.max(kept.op);
    let fits = |names: &&Names| names.keys().eq(found.keys());
    let mut why = format!("the names are those after none of the operations {span:?}: {:?}", found.keys());
    for names in journal.names.get(span).unwrap_or_default().iter().filter(fits) {
        match contents(found, names, journal, kept, begun) {
            Ok(()) => return Ok(()),
            Err(what) => why = what,
        }
    }
    Err(why)
}

fn contents(
    found: &BTreeMap<String, Option<Vec<u8>>>,
    names: &Names,
    journal: &Journal,
    kept: &Kept,
    begun: usize,
) -> Result<()> {
    for ((path, bytes), file) in found.iter().zip(names.values()) {
        let (Some(bytes), Some(file)) = (bytes, file) else {
            if bytes.is_some() != file.is_some() {
                return Err(format!("{path} has the wrong kind"));
            }
            continue;
        };
        let least = kept.versions.get(file).copied().unwrap_or(0);
        let versions = journal.files.get(*file).map(Vec::as_slice).unwrap_or_default();
        let known = versions.get(least..).unwrap_or_default();
        let known: Vec<&[u8]> =
            known.iter().filter(|(op, _)| *op <= begun).map(|(_, bytes)| bytes.as_slice()).collect();
        let whole = known.iter().any(|version| version == bytes);
        if !whole && !is_mix(bytes, &known) {
            let sizes: Vec<usize> = known.iter().map(|version| version.len()).collect();
            return Err(format!(
                "{path} (file {file}) of {} bytes is none of its {} versions from the promised one on: {sizes:?}",
                bytes.len(),
                known.len()
            ));
        }
    }
    Ok(())
}

/// True if `bytes` can be the result of partly applied changes: each byte is that of some version.
fn is_mix(bytes: &[u8], versions: &[&[u8]]) -> bool {
    let sizes = || versions.iter().map(|version| version.len());
    let span = sizes().min().unwrap_or(0)..=sizes().max().unwrap_or(0);
    let known = |n: usize, byte: &u8| versions.iter().any(|version| version.get(n).copied().unwrap_or(0) == *byte);
    span.contains(&bytes.len()) && bytes.iter().enumerate().all(|(n, byte)| known(n, byte))
}
