//! `zfs diff`: the changes between two snapshots, or a snapshot and the file system.
//!
//! A request names the objects that may have changed, and those that were freed ([`Ioc::Diff`]); each is then looked up on both sides ([`Ioc::ObjToStats`]). Paths
//! are shown below the mount point that the file system would have. OpenZFS: `libzfs_diff.c`.

use std::io::{self, Write};
use std::iter;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use base::{Errno, ObjectId};
use control::{DiffRecord, Failed, Ioc};
use nvlist::{NvList, Value};
use site::Query;
use site::long_holds::Looking;
use zpl::Kind;

use super::listed::Listed;
use super::select::{find, told};
use super::words::of_errno;
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::names::{self, Types};
use crate::pools::stdout;

/// The number of the file that records are written to.
const OUTPUT: i32 = 1;
/// Objects that are asked for at once.
const BATCH: u64 = 1 << 10;
/// Pieces of records that are written ahead of what is shown.
const AHEAD: usize = 4;

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
    let mut snapshots = Vec::new();
    for dataset in [&from, &to].into_iter().filter(|dataset| dataset.is_snapshot()) {
        let id = dataset.number("objsetid").map_err(|e| failed(told(&e, dataset.name())))?;
        snapshots.extend(id.map(ObjectId));
    }
    let _held = looking.and_then(|looking| looking.hold(snapshots));
    compare(&from, &to, style)
}

/// Compares two datasets, and shows what differs while a request walks the later one.
fn compare(from: &Listed, to: &Listed, style: Style) -> Outcome {
    let caller = console::user();
    let query = Query::clone(to.source()).of(&caller);
    let (sender, receiver) = sync_channel(AHEAD);
    caller.files.output(OUTPUT, Box::new(Pieces(sender)), Arc::default());
    let mut input = NvList::new();
    input.insert("fromsnap", from.name());
    input.insert("fd", OUTPUT);
    let name = to.name();
    let console = console::current();
    let walk = || {
        let walked = query.call(Ioc::Diff, name, &input).map(drop).map_err(|e| unable(&e));
        // no more comes
        caller.files.close(OUTPUT);
        walked
    };
    thread::scope(|scope| {
        let walker = thread::Builder::new().name("diff".to_owned()).spawn_scoped(scope, || console.enter(walk));
        let walker = walker.map_err(|e| failed(format!("Unable to obtain diffs: {}", cause(&e))))?;
        let join = || walker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match receiver.recv() {
            Ok(first) => {
                let status = show(from, to, iter::once(first).chain(receiver), style)?;
                join().map(|()| status)
            }
            Err(_) => join().and_then(|()| show(from, to, iter::empty(), style)),
        }
    })
}

/// The failure of a request that looks for what differs.
fn unable(e: &Failed) -> Failure {
    failed(match e.errno {
        Errno::EXDEV => "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs".to_owned(),
        _ => format!("Unable to obtain diffs: {e}"),
    })
}

/// Shows what differs, as far as pieces of records come.
fn show(from: &Listed, to: &Listed, pieces: impl Iterator<Item = Vec<u8>>, style: Style) -> Outcome {
    if style.raw_names || style.scripted {
        crate::console::for_scripts();
    }
    let prefix = mount_point(to)?;
    let (from, to) = (Side::open(from)?, Side::open(to)?);
    let mut out = stdout();
    let mut differ = Differ { prefix, from, to, style, out: &mut out, failed: false };
    for piece in pieces {
        let (records, _) = piece.as_chunks::<{ DiffRecord::SIZE }>();
        for record in records.iter().filter_map(DiffRecord::decode) {
            differ.differ(record)?;
        }
    }
    let failed = differ.failed;
    out.flush()?;
    Ok(u8::from(failed))
}

/// The file that a request writes to: what is written at once is one piece, of whole records.
struct Pieces(SyncSender<Vec<u8>>);

impl Write for Pieces {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.0.send(piece.to_owned()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The two datasets that the operands name. One of them may name only a snapshot (`@snap`); if the second is absent,
/// or is not a snapshot, it is the current file system.
fn resolve(from: &str, to: Option<&str>) -> Result<(Listed, Listed), Failure> {
    let named = if from.starts_with('@') { to.ok_or_else(|| usage(""))? } else { from };
    let fs = named.split('@').next().unwrap_or("");
    let heads = Types { filesystems: true, ..Types::NONE };
    find(fs, heads)?;

    let Some(to) = to else {
        names::check(from, Types::SNAPSHOTS)
            .map_err(|why| failed(format!("Badly formed snapshot name {from}: {why}")))?;
        return Ok((find(from, Types::SNAPSHOTS)?, find(fs, heads)?));
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
    let from = find(&format!("{from_fs}@{from_snap}"), Types::SNAPSHOTS)?;
    let to = match to_snap {
        Some(snap) => find(&format!("{to_fs}@{snap}"), Types::SNAPSHOTS)?,
        None => find(&to_fs, heads)?,
    };
    Ok((from, to))
}

/// The prefix of each path; empty for a file system without a mount point of its own.
fn mount_point(of: &Listed) -> Result<Vec<u8>, Failure> {
    let head = of.name().split('@').next().unwrap_or(of.name());
    let head = Listed::named(of.source(), head.to_owned());
    let value = head.text("mountpoint").map_err(|e| failed(e.to_string()))?;
    Ok(value.filter(|path| path.starts_with('/') && path != "/").unwrap_or_default().into_bytes())
}

/// The state of an object on one side (OpenZFS: `zfs_stat_t`).
#[derive(Clone, Debug)]
struct Stat {
    generation: u64,
    kind: Kind,
    links: u64,
    /// Seconds and nanoseconds.
    ctime: (i64, u64),
}

impl Stat {
    fn of(list: &NvList) -> Option<Stat> {
        let number = |key: &str| list.get_u64(key);
        let (sec, nsec) = match list.get_u64_array("zs_ctime")? {
            [sec, nsec] => (sec.cast_signed(), *nsec),
            _ => return None,
        };
        let kind = Kind::from_number((number("zs_mode")? >> 12 & 0xf) as u8);
        Some(Stat { generation: number("zs_gen")?, kind, links: number("zs_links")?, ctime: (sec, nsec) })
    }
}

/// The result of looking up an object on one side.
#[derive(Debug)]
enum ObjectState {
    /// It has a path, or is waiting to be deleted.
    Here { stat: Stat, path: Vec<u8>, deleted: bool },
    /// It does not exist, or is not a file.
    Nowhere,
    /// It cannot be looked up, for this reason.
    Unknown(String),
}

impl ObjectState {
    fn of(list: &NvList) -> ObjectState {
        let errno = list.get_i32("errno").map(Errno::from_raw);
        match (Stat::of(list), errno, list.get("path")) {
            (Some(stat), None, Some(Value::String(path))) => {
                ObjectState::Here { stat, path: path.as_bytes().to_vec(), deleted: false }
            }
            (Some(stat), Some(Errno::ESTALE), _) => {
                ObjectState::Here { stat, path: b"(on_delete_queue)".to_vec(), deleted: true }
            }
            (_, Some(Errno::ENOENT | Errno::ENOTSUP), _) if !list.contains("error") => ObjectState::Nowhere,
            (_, Some(errno), _) => {
                ObjectState::Unknown(list.get_str("error").map_or_else(|| of_errno(errno), str::to_owned))
            }
            _ => ObjectState::Unknown("no answer".to_owned()),
        }
    }
}

/// One side of the comparison.
struct Side<'a> {
    dataset: &'a Listed,
    /// The folder of shares.
    shares: Option<ObjectId>,
}

impl Side<'_> {
    fn open(dataset: &Listed) -> Result<Side<'_>, Failure> {
        let opened = ask(dataset, Vec::new());
        let opened = opened.map_err(|e| failed(format!("cannot diff '{}': {e}", dataset.name())))?;
        Ok(Side { dataset, shares: opened.get_u64("shares").map(ObjectId) })
    }

    /// Looks up objects.
    fn find(&self, objects: &[ObjectId]) -> Result<Vec<ObjectState>, Failure> {
        let mut found: Vec<ObjectState> = Vec::with_capacity(objects.len());
        // an answer may hold the first of them alone
        while let Some(rest) = objects.get(found.len()..).filter(|rest| !rest.is_empty()) {
            let answer = ask(self.dataset, rest.to_vec()).map_err(|e| unable(&e))?;
            let states = answer.get_nvlist_array("objects").unwrap_or_default();
            if states.is_empty() || states.len() > rest.len() {
                return Err(failed(format!(
                    "Unable to obtain diffs: {} answers for {} objects",
                    states.len(),
                    rest.len()
                )));
            }
            found.extend(states.iter().map(ObjectState::of));
        }
        Ok(found)
    }

    /// The objects up to `last` that come next after `at`, at most as many as one answer holds; none if there are no more.
    fn after(&self, at: ObjectId, last: ObjectId) -> Result<Vec<ObjectId>, Failure> {
        let mut input = NvList::new();
        input.insert("obj", at.0);
        input.insert("last", last.0);
        let answer = self.dataset.source().call(Ioc::NextObj, self.dataset.name(), &input);
        let answer = answer.map_err(|e| failed(format!("next allocated object (> {at}) find failure: {e}")))?;
        Ok(answer.get_u64_array("objs").unwrap_or_default().iter().copied().map(ObjectId).collect())
    }
}

/// Asks about objects of a file system or snapshot.
fn ask(dataset: &Listed, objects: Vec<ObjectId>) -> Result<NvList, Failed> {
    let mut input = NvList::new();
    input.insert("objs", Value::Uint64Array(objects.into_iter().map(|object| object.0).collect()));
    dataset.source().call(Ioc::ObjToStats, dataset.name(), &input)
}

struct Differ<'a, O> {
    from: Side<'a>,
    to: Side<'a>,
    prefix: Vec<u8>,
    style: Style,
    out: &'a mut O,
    failed: bool,
}

impl<O: Write> Differ<'_, O> {
    fn differ(&mut self, record: DiffRecord) -> Result<(), Failure> {
        if !record.in_use {
            return self.free(record.first, record.last);
        }
        let mut first = record.first;
        loop {
            let last = record.last.min(first.saturating_add(BATCH - 1));
            self.in_use((first.0..=last.0).map(ObjectId).filter(|object| Some(*object) != self.to.shares).collect())?;
            match last.checked_add(1).filter(|next| *next <= record.last) {
                Some(next) => first = next,
                None => return Ok(()),
            }
        }
    }

    /// Handles objects that are free on the later side.
    fn free(&mut self, first: ObjectId, last: ObjectId) -> Result<(), Failure> {
        let mut at = ObjectId(first.0.saturating_sub(1));
        loop {
            let mut objects = self.from.after(at, last)?;
            let Some(end) = objects.last().copied() else { return Ok(()) };
            at = end;
            objects.retain(|object| *object >= first && Some(*object) != self.from.shares);
            for (object, state) in iter::zip(objects.iter().copied(), self.from.find(&objects)?) {
                match state {
                    ObjectState::Here { stat, path, deleted: false } => self.file('-', &path, &stat)?,
                    ObjectState::Here { .. } | ObjectState::Nowhere => {}
                    ObjectState::Unknown(why) => self.trouble(object, &why),
                }
            }
        }
    }

    fn trouble(&mut self, object: ObjectId, why: &str) {
        eprintln!("Unable to determine path or stats for object {object}: {why}");
        self.failed = true;
    }

    /// Handles objects that exist on the later side.
    fn in_use(&mut self, objects: Vec<ObjectId>) -> Result<(), Failure> {
        let states = iter::zip(self.from.find(&objects)?, self.to.find(&objects)?);
        for (object, (from, to)) in iter::zip(objects, states) {
            match (from, to) {
                (ObjectState::Unknown(why), _) | (_, ObjectState::Unknown(why)) => self.trouble(object, &why),
                (ObjectState::Nowhere, ObjectState::Nowhere) => {}
                (ObjectState::Nowhere, ObjectState::Here { stat, path, .. }) => self.file('+', &path, &stat)?,
                (ObjectState::Here { stat, path, .. }, ObjectState::Nowhere) => self.file('-', &path, &stat)?,
                (
                    ObjectState::Here { stat: old, path: old_path, .. },
                    ObjectState::Here { stat: new, path: new_path, .. },
                ) => self.both(&old, &old_path, &new, &new_path)?,
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
            write!(self.out, "{:>10}.{:09}\t", stat.ctime.0, stat.ctime.1)?;
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
