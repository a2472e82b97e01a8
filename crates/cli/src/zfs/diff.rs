//! `zfs diff`: the changes between two snapshots, or a snapshot and the file system.
//!
//! It walks the dnode tree of the later one, and skips everything that was born before the earlier one. A remaining
//! block of dnodes names the objects that may have changed; a hole names those that were freed. Each is then looked up
//! on both sides. The work is in proportion to what has changed. Paths are shown below the mount point that the file
//! system would have. OpenZFS: `dmu_diff.c`, `libzfs_diff.c`.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::rc::Rc;

use base::Txg;
use dmu::{Special, Visit, Walk};
use ondisk::{DNODE_SHIFT, DNODE_SIZE, DnodePhys, ObjectType};
use pool::Dataset;
use site::long_holds::Looking;
use zpl::{FileFlags, FileSystem, Kind, Time};

use super::select::open_dataset;
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::here::here;
use crate::names::{self, Types};
use crate::pools::stdout;

/// Limit on the names of directories that are cached.
const CACHED_NAMES_MAX: usize = 1 << 20;
/// Limit on the directories above a file.
const DEPTH_MAX: usize = 1 << 12;

/// The format of lines.
#[derive(Clone, Copy, Debug)]
struct Style {
    /// `-F`: with the type of file.
    classify: bool,
    /// `-H`: tabs.
    scripted: bool,
    /// `-t`: with the time of the change.
    time: bool,
    /// `-h`: names as they are.
    raw_names: bool,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let style = Style {
        classify: call.args.has('F'),
        scripted: call.args.has('H'),
        time: call.args.has('t'),
        raw_names: call.args.has('h'),
    };
    let names = call.args.names();
    let (from, to) = match names.as_slice() {
        [] => return Err(usage("must provide at least one snapshot name")),
        [from] => (from.as_str(), None),
        [from, to] => (from.as_str(), Some(to.as_str())),
        _ => return Err(usage("too many arguments")),
    };
    let looking = Looking::at(if from.starts_with('@') { to.unwrap_or(from) } else { from }, &**here().front());
    let (from, to) = resolve(from, to)?;
    let snapshots = [&from, &to].into_iter().filter(|dataset| dataset.is_snapshot());
    let _held = looking.and_then(|looking| looking.hold(snapshots));
    let unable = |why: String| failed(format!("Unable to obtain diffs: {why}"));
    if !to.is_later_than(&from).map_err(|e| unable(e.to_string()))? {
        return Err(unable("\n   Not an earlier snapshot from the same fs".to_owned()));
    }

    if style.raw_names || style.scripted {
        crate::out::for_scripts();
    }
    let mut out = stdout();
    let mut differ = Differ {
        prefix: mount_point(&to)?,
        from: Side::open(&from)?,
        to: Side::open(&to)?,
        style,
        out: &mut out,
        failed: false,
    };
    differ.run(from.phys().creation_txg, &to)?;
    let failed = differ.failed;
    out.flush()?;
    Ok(u8::from(failed))
}

/// The two datasets that the operands name. One of them may name only a snapshot (`@snap`); if the second is absent,
/// or is not a snapshot, it is the current file system.
fn resolve(from: &str, to: Option<&str>) -> Result<(Dataset, Dataset), Failure> {
    let named = if from.starts_with('@') { to.ok_or_else(|| usage(""))? } else { from };
    let fs = named.split('@').next().unwrap_or("");
    let heads = Types { filesystems: true, ..Types::NONE };
    open_dataset(fs, heads)?;

    let Some(to) = to else {
        names::check(from, Types::SNAPSHOTS)
            .map_err(|why| failed(format!("Badly formed snapshot name {from}: {why}")))?;
        return Ok((open_dataset(from, Types::SNAPSHOTS)?, open_dataset(fs, heads)?));
    };
    let split =
        |name: &str| name.split_once('@').map_or((name.to_owned(), None), |(d, s)| (d.to_owned(), Some(s.to_owned())));
    let (from_fs, from_snap) = split(from);
    let (to_fs, to_snap) = split(to);
    let from_snap = from_snap.filter(|s| !s.is_empty());
    let (Some(from_snap), false) =
        (from_snap, to_snap.as_deref() == Some("") || (from_fs.is_empty() && to_fs.is_empty()))
    else {
        return Err(failed("Unable to determine which snapshots to compare: invalid name"));
    };
    let or = |a: &str, b: &str| if a.is_empty() { b.to_owned() } else { a.to_owned() };
    let (from_fs, to_fs) = (or(&from_fs, &to_fs), or(&to_fs, &from_fs));
    let from = open_dataset(&format!("{from_fs}@{from_snap}"), Types::SNAPSHOTS)?;
    let to = match to_snap {
        Some(snap) => open_dataset(&format!("{to_fs}@{snap}"), Types::SNAPSHOTS)?,
        None => open_dataset(&to_fs, heads)?,
    };
    Ok((from, to))
}

/// The prefix of each path; empty for a file system without a mount point of its own.
fn mount_point(of: &Dataset) -> Result<Vec<u8>, Failure> {
    let head = of.head().map_err(|e| failed(e.to_string()))?;
    let value = head.prop("mountpoint").map_err(|e| failed(e.to_string()))?.map(|p| p.value.to_string());
    Ok(value.filter(|path| path.starts_with('/') && path != "/").unwrap_or_default().into_bytes())
}

/// The state of an object on one side (OpenZFS: `zfs_stat_t`).
#[derive(Clone, Debug)]
struct Stat {
    generation: u64,
    kind: Kind,
    links: u64,
    ctime: Time,
}

/// The result of looking up an object on one side.
#[derive(Debug)]
enum ObjectState {
    /// It has a path, or is waiting to be deleted.
    Here { stat: Stat, path: Vec<u8>, deleted: bool },
    /// It does not exist, or is not a file.
    Nowhere,
}

/// One side of the comparison.
struct Side {
    fs: FileSystem,
    deleted: HashSet<u64>,
    /// The names of the objects in each directory.
    names: HashMap<u64, Rc<HashMap<u64, Vec<u8>>>>,
    cached: usize,
}

impl Side {
    fn open(dataset: &Dataset) -> Result<Side, Failure> {
        let cannot = |e: zpl::Error| failed(format!("cannot diff '{}': {e}", dataset.name()));
        let fs = FileSystem::open(dataset).map_err(cannot)?;
        let deleted = fs.delete_queue().map_err(cannot)?.into_iter().collect();
        Ok(Side { fs, deleted, names: HashMap::new(), cached: 0 })
    }

    fn find(&mut self, object: u64) -> Result<ObjectState, zpl::Error> {
        let node = match self.fs.node(object) {
            Ok(node) => node,
            Err(zpl::Error::NotA { .. }) => return Ok(ObjectState::Nowhere),
            Err(e) if is_missing(&e) => return Ok(ObjectState::Nowhere),
            Err(e) => return Err(e),
        };
        let attrs = node.attrs();
        let stat = Stat { generation: attrs.generation, kind: attrs.kind(), links: attrs.links, ctime: attrs.ctime };
        if self.deleted.contains(&object) {
            return Ok(ObjectState::Here { stat, path: b"(on_delete_queue)".to_vec(), deleted: true });
        }
        match self.path(object)? {
            Some(path) => Ok(ObjectState::Here { stat, path, deleted: false }),
            None => Ok(ObjectState::Nowhere),
        }
    }

    fn path(&mut self, object: u64) -> Result<Option<Vec<u8>>, zpl::Error> {
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        let mut at = object;
        while at != self.fs.root() && pieces.len() < DEPTH_MAX {
            let node = match self.fs.node(at) {
                Ok(node) => node,
                Err(e) if is_missing(&e) => return Ok(None),
                Err(e) => return Err(e),
            };
            let attrs = node.attrs();
            if attrs.parent == at {
                break;
            }
            if attrs.flags.has(FileFlags::XATTR) && attrs.kind() == Kind::Directory {
                pieces.push(b"<xattrdir>".to_vec());
            } else {
                match self.names_in(attrs.parent)?.get(&at) {
                    Some(name) => pieces.push(name.clone()),
                    None => return Ok(None),
                }
            }
            at = attrs.parent;
        }
        let mut path = Vec::new();
        for piece in pieces.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(piece);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(Some(path))
    }

    fn names_in(&mut self, dir: u64) -> Result<Rc<HashMap<u64, Vec<u8>>>, zpl::Error> {
        if let Some(names) = self.names.get(&dir) {
            return Ok(names.clone());
        }
        let mut names: HashMap<u64, Vec<u8>> = HashMap::new();
        match self.fs.read_dir(dir) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry?;
                    names.entry(entry.object).or_insert(entry.name);
                }
            }
            Err(zpl::Error::NotDirectory { .. }) => {}
            Err(e) if is_missing(&e) => {}
            Err(e) => return Err(e),
        }
        if self.cached.saturating_add(names.len()) > CACHED_NAMES_MAX {
            self.names.clear();
            self.cached = 0;
        }
        self.cached += names.len();
        let names = Rc::new(names);
        self.names.insert(dir, names.clone());
        Ok(names)
    }
}

fn is_missing(e: &zpl::Error) -> bool {
    match e {
        zpl::Error::Dmu(e) => e.is_not_found(),
        zpl::Error::NotFound { .. } | zpl::Error::NoPath { .. } => true,
        _ => false,
    }
}

/// Objects that may differ.
#[derive(Clone, Copy, Debug)]
enum Span {
    /// None of these objects exists on the later side.
    Free(u64, u64),
    /// This object exists on the later side.
    InUse(u64),
}

struct Differ<'a, O> {
    from: Side,
    to: Side,
    prefix: Vec<u8>,
    style: Style,
    out: &'a mut O,
    failed: bool,
}

impl<O: Write> Differ<'_, O> {
    fn run(&mut self, since: Txg, to: &Dataset) -> Result<(), Failure> {
        let objset = to.objset().map_err(|e| failed(e.to_string()))?;
        let Some(meta) = objset.special(Special::MetaDnode) else { return Ok(()) };
        let mut ended: Result<(), Failure> = Ok(());
        let meta_dnode = meta.clone();
        meta.walk(&mut |visit: &Visit<'_>| {
            let step = self.visit(visit, since, &meta_dnode);
            step.unwrap_or_else(|e| {
                ended = Err(e);
                Walk::Stop
            })
        });
        ended
    }

    fn visit(&mut self, visit: &Visit<'_>, since: Txg, meta: &dmu::Object) -> Result<Walk, Failure> {
        if let Some(e) = visit.damage {
            return Err(failed(format!("Unable to obtain diffs: {e}")));
        }
        let born = visit.bp.birth_logical();
        if born.0 != 0 && born <= since {
            return Ok(Walk::Skip);
        }
        if visit.bp.is_hole() {
            let dn = visit.dnode;
            let shift = u32::from(visit.level) * u32::from(dn.indblkshift).saturating_sub(7);
            let bytes = (u128::from(dn.datablkszsec) << 9) << shift.min(64);
            let span = u64::try_from(bytes >> DNODE_SHIFT).unwrap_or(u64::MAX);
            let first = visit.bookmark.blkid.saturating_mul(span);
            self.differ(Span::Free(first, first.saturating_add(span.saturating_sub(1))))?;
            return Ok(Walk::Skip);
        }
        if visit.level > 0 {
            return Ok(Walk::Into);
        }
        let unreadable = |e: dmu::Error| failed(format!("Unable to obtain diffs: {e}"));
        if let Some((block, endian)) = meta.block_with_endian(visit.bookmark.blkid).map_err(unreadable)? {
            let slots = (block.len() / DNODE_SIZE) as u64;
            let base = visit.bookmark.blkid.saturating_mul(slots);
            let mut slot = 0;
            while slot < slots {
                let at = block.get(slot as usize * DNODE_SIZE..).unwrap_or(&[]);
                let object = base.saturating_add(slot);
                let dn = DnodePhys::decode(at, endian).map_err(|e| failed(format!("object {object}: {e}")))?;
                self.differ(match dn.object_type {
                    ObjectType::NONE => Span::Free(object, object),
                    _ => Span::InUse(object),
                })?;
                slot += 1 + u64::from(dn.extra_slots);
            }
        }
        Ok(Walk::Skip)
    }

    fn differ(&mut self, span: Span) -> Result<(), Failure> {
        match span {
            Span::InUse(object) if Some(object) != self.to.fs.shares() => self.in_use(object),
            Span::InUse(_) => Ok(()),
            Span::Free(first, last) => {
                let mut at = first.saturating_sub(1);
                loop {
                    let next = self.from.fs.objset().next_object(at);
                    match next.map_err(|e| failed(format!("next allocated object (> {at}) find failure: {e}")))? {
                        Some(object) if object <= last => {
                            if object >= first && Some(object) != self.from.fs.shares() {
                                self.gone(object)?;
                            }
                            at = object;
                        }
                        _ => return Ok(()),
                    }
                }
            }
        }
    }

    /// Handles an object that is free on the later side.
    fn gone(&mut self, object: u64) -> Result<(), Failure> {
        match self.from.find(object) {
            Ok(ObjectState::Here { stat, path, deleted: false }) => Ok(self.file('-', &path, &stat)?),
            Ok(_) => Ok(()),
            Err(e) => self.trouble(object, &e),
        }
    }

    fn trouble(&mut self, object: u64, e: &zpl::Error) -> Result<(), Failure> {
        eprintln!("Unable to determine path or stats for object {object}: {e}");
        self.failed = true;
        Ok(())
    }

    fn in_use(&mut self, object: u64) -> Result<(), Failure> {
        let from = self.from.find(object);
        let to = self.to.find(object);
        let (from, to) = match (from, to) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(e), _) | (_, Err(e)) => return self.trouble(object, &e),
        };
        match (from, to) {
            (ObjectState::Nowhere, ObjectState::Nowhere) => {}
            (ObjectState::Nowhere, ObjectState::Here { stat, path, .. }) => self.file('+', &path, &stat)?,
            (ObjectState::Here { stat, path, .. }, ObjectState::Nowhere) => self.file('-', &path, &stat)?,
            (
                ObjectState::Here { stat: old, path: old_path, .. },
                ObjectState::Here { stat: new, path: new_path, .. },
            ) => {
                self.both(&old, &old_path, &new, &new_path)?;
            }
        }
        Ok(())
    }

    fn both(&mut self, old: &Stat, old_path: &[u8], new: &Stat, new_path: &[u8]) -> io::Result<()> {
        if old.generation != new.generation || old.kind != new.kind {
            self.file('-', old_path, old)?;
            return self.file('+', new_path, new);
        }
        if old.ctime == new.ctime {
            return Ok(());
        }
        let directory = old.kind == Kind::Directory || new.kind == Kind::Directory;
        let links = match directory || old.links == 0 || new.links == 0 {
            true => 0,
            false => i128::from(new.links) - i128::from(old.links),
        };
        if links != 0 {
            self.head('M', new)?;
            self.path(if links > 0 { old_path } else { new_path })?;
            writeln!(self.out, "\t({links:+})")
        } else if old_path == new_path {
            self.file('M', old_path, new)
        } else {
            self.head('R', new)?;
            self.path(old_path)?;
            self.out.write_all(if self.style.scripted { b"\t" } else { b" -> " })?;
            self.path(new_path)?;
            writeln!(self.out)
        }
    }

    fn file(&mut self, change: char, path: &[u8], stat: &Stat) -> io::Result<()> {
        self.head(change, stat)?;
        self.path(path)?;
        writeln!(self.out)
    }

    fn head(&mut self, change: char, stat: &Stat) -> io::Result<()> {
        if self.style.time {
            write!(self.out, "{:>10}.{:09}\t", stat.ctime.sec, stat.ctime.nsec)?;
        }
        write!(self.out, "{change}\t")?;
        if self.style.classify {
            write!(self.out, "{}\t", letter(stat.kind))?;
        }
        Ok(())
    }

    /// Prints a path; bytes that are not printable ASCII become four octal digits.
    fn path(&mut self, path: &[u8]) -> io::Result<()> {
        let bytes = self.prefix.iter().chain(path);
        for b in bytes {
            match b {
                b'!'..=b'[' | b']'..=b'~' => self.out.write_all(&[*b])?,
                _ if self.style.raw_names => self.out.write_all(&[*b])?,
                _ => write!(self.out, "\\{b:04o}")?,
            }
        }
        Ok(())
    }
}

const fn letter(kind: Kind) -> char {
    match kind {
        Kind::File => 'F',
        Kind::Directory => '/',
        Kind::Symlink => '@',
        Kind::CharDevice => 'C',
        Kind::BlockDevice => 'B',
        Kind::Fifo => '|',
        Kind::Socket => '=',
        Kind::Other(_) => '?',
    }
}
