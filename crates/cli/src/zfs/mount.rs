//! `zfs mount`, `zfs unmount`, `zfs share`, `zfs unshare`.
//!
//! Mounts belong to the process that has the pools open. Where this is one without a table of mounts, what would be mounted is refused, and nothing is
//! mounted. Zuse shares nothing: what OpenZFS refuses to share is refused in its words, the rest with that.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use mounts::{Entry, Mounts, Source};
use nvlist::NvList;

use super::listed::Listed;
use super::mounting::changes::{Change, Changes};
use super::mounting::of_pool::{Wanted, mount_all};
use super::mounting::options::Options;
use super::mounting::{self, Ask, Facts};
use super::select::{self, Selection, told};
use super::session::Session;
use crate::command::Call;
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::json;
use crate::names::{Types, pool_of};
use crate::progress::count;

/// `mount` and `share`.
pub(super) fn mount(call: &Call<'_>) -> Outcome {
    let (all, recursive) = (call.args.has('a'), call.args.has('R'));
    let share = call.command.name == "share";
    let mut names = call.args.names();
    if call.args.values('o').any(|options| options.is_empty()) {
        return Err(usage("empty mount options (-o) specified"));
    }
    if call.args.has('j') && !names.is_empty() {
        return Err(usage("too many arguments"));
    }
    let ask = Ask {
        what: if share { "share" } else { "mount" },
        named: !(all || recursive),
        force: call.args.has('f'),
        overlay: call.args.has('O'),
        loads_keys: call.args.has('l'),
    };
    if all || recursive {
        if share && !names.is_empty() {
            let protocol = names.remove(0);
            if !matches!(protocol.as_str(), "nfs" | "smb") {
                return Err(usage(format!("share type must be 'nfs' or 'smb', not '{protocol}'")));
            }
        }
        if all && !names.is_empty() {
            return Err(usage("too many arguments"));
        }
        if names.is_empty() && recursive {
            return Err(usage("no dataset provided"));
        }
        return if share { share_many(&names, ask) } else { mount_many(call, &names, ask) };
    }
    match names.as_slice() {
        [] if share || call.args.has('o') => Err(usage("missing filesystem argument (specify -a for all)")),
        [] => list(call),
        [name] if share => share_one(name, ask),
        [name] => mount_one(call, name, ask),
        _ => Err(usage("too many arguments")),
    }
}

/// The list of what is mounted, without snapshots.
fn list(call: &Call<'_>) -> Outcome {
    let mounts: Vec<(String, String)> = match console::mounts() {
        Some(table) => table.list().iter().map(|one| (one.name(), one.path().display().to_string())).collect(),
        None => Vec::new(),
    };
    let mounts = mounts.iter().filter(|(name, _)| !name.contains('@'));
    if !call.args.has('j') {
        mounts.for_each(|(name, path)| println!("{name:<30}  {path}"));
        return Ok(0);
    }
    let mut datasets = NvList::new();
    for (name, path) in mounts {
        let mut item = NvList::new();
        item.insert("filesystem", name.as_str());
        item.insert("mountpoint", path.as_str());
        datasets.insert(name, item);
    }
    if datasets.is_empty() {
        return Ok(0);
    }
    let mut schema = json::schema(call);
    schema.insert("datasets", datasets);
    json::print(&schema)
}

/// Finds a file system, with all that says how it is mounted.
fn find_all(name: &str) -> Result<Listed, Failure> {
    select::find_with(name, Types::FILESYSTEMS, &mounting::wanted())
}

fn options(call: &Call<'_>) -> Option<Options> {
    let lists: Vec<_> = call.args.values('o').map(|list| list.to_string_lossy().into_owned()).collect();
    Options::parse(lists.iter().map(String::as_str)).ok()
}

/// The message for a file system that is to be mounted by a process that mounts nothing.
fn no_server(name: &str) -> Failure {
    failed(format!(
        "cannot mount '{name}': a server has to be running for that: start one with 'zuse serve'\n\
         without one, 'zuse ls', 'zuse cat', 'zuse cp' and 'zuse tar' reach its files"
    ))
}

fn mount_one(call: &Call<'_>, name: &str, ask: Ask) -> Outcome {
    Session::run(|session| {
        let dataset = find_all(name)?;
        let facts = Facts::of(&dataset)?;
        let cannot = |why: String| failed(format!("cannot mount '{name}': {why}"));
        if let Err(why) = facts.bar(ask) {
            return Err(cannot(why.unwrap_or_default()));
        }
        let table = console::mounts().ok_or_else(|| no_server(name))?;
        let options = options(call).ok_or_else(|| cannot("Invalid argument".to_owned()))?;
        if !options.remount && table.of(name).is_some() {
            return Err(cannot("filesystem already mounted".to_owned()));
        }
        mounting::mount(&table, &mounting::source(session, name)?, &facts, &options, ask)?;
        Ok(0)
    })
}

/// Everything that is to be mounted, of all pools or below these file systems.
fn mount_many(call: &Call<'_>, names: &[String], ask: Ask) -> Outcome {
    Session::run(|session| {
        let mut selection = Selection::new(Types::FILESYSTEMS);
        selection.recurse = true;
        let (entries, whole) = selection.run(names, &mounting::wanted())?;
        let Some(options) = options(call) else { return Err(failed("cannot mount: Invalid argument")) };
        let table = console::mounts();
        let (mut wanted, mut good) = (Vec::new(), whole);
        let mounted: HashSet<String> = table.iter().flat_map(|table| table.list()).map(|mount| mount.name()).collect();
        let mut sources = Sources { session, known: HashMap::new() };
        for dataset in entries.iter().filter(|dataset| !mounted.contains(dataset.name())) {
            match wanted_of(dataset, &mut sources, table.is_some(), ask) {
                Ok(one) => wanted.extend(one),
                Err(Failure::Failed(why)) => {
                    eprintln!("{why}");
                    good = false;
                }
                Err(other) => return Err(other),
            }
        }
        let Some(table) = table else { return Ok(u8::from(!good)) };
        let bar = count(wanted.len() as u64, "Mounting ZFS filesystems", !call.args.has('v'));
        good &= mount_all(&table, &wanted, &options, ask, |done| bar.set_position(done as u64))?;
        bar.finish_and_clear();
        Ok(u8::from(!good))
    })
}

/// The pools of many file systems, each looked up once.
struct Sources<'a> {
    session: &'a Session,
    known: HashMap<String, Source>,
}

impl Sources<'_> {
    fn of(&mut self, name: &str) -> Result<Source, Failure> {
        let pool = pool_of(name);
        if let Some(source) = self.known.get(pool) {
            return Ok(source.clone());
        }
        let source = mounting::source(self.session, name)?;
        self.known.insert(pool.to_owned(), source.clone());
        Ok(source)
    }
}

/// A file system of many, if it is to be mounted, and can be.
fn wanted_of(
    dataset: &Listed,
    sources: &mut Sources<'_>,
    can_mount: bool,
    ask: Ask,
) -> Result<Option<Wanted>, Failure> {
    let facts = Facts::of(dataset)?;
    match facts.bar(ask) {
        Err(_) => Ok(None),
        Ok(()) if !can_mount => Err(no_server(dataset.name())),
        Ok(()) => Ok(Some(Wanted { source: sources.of(dataset.name())?, facts })),
    }
}

/// `unmount` and `unshare`.
pub(super) fn unmount(call: &Call<'_>) -> Outcome {
    let share = call.command.name == "unshare";
    let names = call.args.names();
    let (force, unloads) = (call.args.has('f'), call.args.has('u'));
    if call.args.has('a') {
        return match names.as_slice() {
            [protocol] if share && matches!(protocol.as_str(), "nfs" | "smb") => Ok(0),
            [] if share => Ok(0),
            [] => Session::run(|session| unmount_many(session, force, unloads)),
            _ => Err(usage("too many arguments")),
        };
    }
    let name = match names.as_slice() {
        [] => return Err(usage("missing filesystem argument")),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    match name.starts_with('/') {
        _ if share => unshare(name),
        true => Session::run(|session| unmount_path(session, name, force, unloads)),
        false => Session::run(|session| unmount_named(session, name, force, unloads)),
    }
}

fn unmount_named(session: &Session, name: &str, force: bool, unloads: bool) -> Outcome {
    let dataset = find_all(name)?;
    let cannot = |why: &str| failed(format!("cannot unmount '{name}': {why}"));
    if Facts::of(&dataset)?.is_legacy() {
        return Err(cannot("legacy mountpoint\nuse umount(8) to unmount this filesystem"));
    }
    if console::mounts().and_then(|table| table.of(name)).is_none() {
        return Err(cannot("not currently mounted"));
    }
    unmount_with_those_below(session, &dataset, force, unloads)
}

/// Unmounts a file system and those below it that take their mount points from it (OpenZFS: `zfs_unmountall`).
fn unmount_with_those_below(session: &Session, dataset: &Listed, force: bool, unloads: bool) -> Outcome {
    Changes::gather(session, dataset, Change::Mountpoint, force)?.prefix()?;
    if unloads {
        super::load_key::unload_below(dataset)?;
    }
    Ok(0)
}

fn unmount_path(session: &Session, path: &str, force: bool, unloads: bool) -> Outcome {
    let cannot = |why: &str| failed(format!("cannot unmount '{path}': {why}"));
    let table = console::mounts();
    let at = Path::new(path);
    // one that nobody answers says that as well
    let real = at.canonicalize().map_err(|e| cannot(&crate::error::cause(&e).to_lowercase()))?;
    let Some(entry) = table.as_ref().and_then(|table| containing(table, &real)) else {
        return Err(cannot("not a ZFS filesystem"));
    };
    if entry.path() != real {
        return Err(cannot("not a mountpoint"));
    }
    let name = entry.name();
    if name.contains('@') {
        let table = table.ok_or_else(|| cannot("not currently mounted"))?;
        return mounting::unmount(&table, &entry, force).map(|()| 0);
    }
    let dataset = find_all(&name)?;
    if Facts::of(&dataset)?.is_legacy() {
        return Err(failed(format!(
            "cannot unmount '{name}': legacy mountpoint\nuse umount(8) to unmount this filesystem"
        )));
    }
    unmount_with_those_below(session, &dataset, force, unloads)
}

/// The mount that a path is in, if nothing else is mounted in between.
fn containing(table: &Mounts, path: &Path) -> Option<Arc<Entry>> {
    let entry = table.containing(path)?;
    let device = |path: &Path| path.symlink_metadata().ok().map(|meta| meta.dev());
    (device(path) == device(entry.path())).then_some(entry)
}

/// Everything that `zfs mount -a` mounts, by name from the last one.
fn unmount_many(session: &Session, force: bool, unloads: bool) -> Outcome {
    let Some(table) = console::mounts() else { return Ok(0) };
    let mut entries: Vec<(String, Arc<Entry>)> = table.list().into_iter().map(|one| (one.name(), one)).collect();
    entries.retain(|(name, _)| !name.contains('@'));
    entries.sort_by(|a, b| b.0.cmp(&a.0));
    let mut status = 0;
    for (name, entry) in entries {
        match unmount_of_many(session, &table, (&name, &entry), force, unloads) {
            Err(Failure::Failed(why)) => {
                eprintln!("{why}");
                status = 1;
            }
            other => other?,
        }
    }
    Ok(status)
}

fn unmount_of_many(
    session: &Session,
    table: &Mounts,
    (name, entry): (&str, &Arc<Entry>),
    force: bool,
    unloads: bool,
) -> Result<(), Failure> {
    session.reach(name)?;
    let dataset = find_all(name)?;
    let facts = Facts::of(&dataset)?;
    if facts.is_legacy() || facts.canmount == mounting::CANMOUNT_NOAUTO {
        return Ok(());
    }
    mounting::unmount(table, entry, force)?;
    if unloads {
        super::load_key::unload_below(&dataset)?;
    }
    Ok(())
}

/// Refuses to share.
fn refuse_to_share(name: &str) -> Failure {
    failed(format!("cannot share '{name}': Zuse shares nothing"))
}

fn is_shared(dataset: &Listed) -> Result<bool, Failure> {
    let text = |prop: &str| dataset.text(prop).map_err(|e| failed(told(&e, dataset.name())));
    let off = |value: Option<String>| value.is_none_or(|value| value == "off");
    Ok(!(off(text("sharenfs")?) && off(text("sharesmb")?)))
}

/// Why a file system is not shared, as [`Facts::bar`].
fn bar_of_share(dataset: &Listed, ask: Ask) -> Result<(), Option<String>> {
    let facts = Facts::of(dataset).map_err(|_| None)?;
    if !facts.zoned && !is_shared(dataset).map_err(|_| None)? {
        let why = "legacy share\nuse exports(5) or smb.conf(5) to share this filesystem, or set the sharenfs or sharesmb property";
        return Err(Some(why.to_owned()));
    }
    facts.bar(ask)
}

fn share_one(name: &str, ask: Ask) -> Outcome {
    let dataset = find_all(name)?;
    match bar_of_share(&dataset, ask) {
        Err(why) => Err(failed(format!("cannot share '{name}': {}", why.unwrap_or_default()))),
        Ok(()) => Err(refuse_to_share(name)),
    }
}

fn share_many(names: &[String], ask: Ask) -> Outcome {
    let mut selection = Selection::new(Types::FILESYSTEMS);
    selection.recurse = true;
    let (entries, whole) = selection.run(names, &mounting::wanted())?;
    let mut status = u8::from(!whole);
    for dataset in entries.iter().filter(|dataset| bar_of_share(dataset, ask).is_ok()) {
        if let Failure::Failed(why) = refuse_to_share(dataset.name()) {
            eprintln!("{why}");
        }
        status = 1;
    }
    Ok(status)
}

fn unshare(name: &str) -> Outcome {
    if name.starts_with('/') {
        let why = match console::path(name).exists() {
            true => "not a ZFS filesystem",
            false => "no such file or directory",
        };
        return Err(failed(format!("cannot unshare '{name}': {why}")));
    }
    let dataset = find_all(name)?;
    let why = match is_shared(&dataset)? {
        false => "legacy share\nuse exports(5) or smb.conf(5) to unshare this filesystem",
        true => "not currently shared",
    };
    Err(failed(format!("cannot unshare '{name}': {why}")))
}
