//! `zfs upgrade`: versions of file systems.

use nvlist::NvList;

use super::listed::{Listed, Wanted};
use super::select::{Selection, told};
use super::session::Session;
use super::set;
use crate::columns::{Of, column};
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;

/// The newest version (OpenZFS: `ZPL_VERSION`).
const NEWEST: u64 = 5;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let (all, recursive, show) = (call.args.has('a'), call.args.has('r'), call.args.has('v'));
    let version = match call.args.text('V') {
        None => None,
        Some(text) => {
            let known = pool::prop::find("version").and_then(|def| def.index_value(&text));
            Some(known.ok_or_else(|| usage(format!("invalid version {text}")))?)
        }
    };
    let names = call.args.names();
    let nothing = !all && names.is_empty();
    if (nothing && (recursive || version.is_some()))
        || (show && (recursive || all || version.is_some() || !names.is_empty()))
        || (all && !names.is_empty())
    {
        return Err(usage(""));
    }
    if show {
        print!("{VERSIONS}");
        return Ok(0);
    }
    if nothing {
        return list();
    }
    let mut selection = Selection::new(Types::FILESYSTEMS);
    selection.recurse = recursive;
    Session::run(|session| upgrade(session, &selection, &names, version.unwrap_or(NEWEST)))
}

const VERSIONS: &str = "The following filesystem versions are supported:

VER  DESCRIPTION
---  --------------------------------------------------------
 1   Initial ZFS filesystem version
 2   Enhanced directory entries
 3   Case insensitive and filesystem user identifier (FUID)
 4   userquota, groupquota properties
 5   System attributes

For more information on a particular version, including supported releases,
see the ZFS Administration Guide.

";

/// The version of a file system; 0 if it tells none.
fn version_of(entry: &Listed) -> Result<u64, Failure> {
    let version = entry.value("version").map_err(|e| failed(told(&e, entry.name())))?;
    Ok(version.and_then(|version| version.number()).unwrap_or(0))
}

/// Lists file systems with their versions.
fn run_over(selection: &Selection, names: &[String]) -> Result<(Vec<Listed>, bool), Failure> {
    let version = column("version", Of::Dataset);
    selection.run(names, &Wanted::of(Some(version.as_slice())))
}

/// Lists the file systems whose version is not the newest.
fn list() -> Outcome {
    println!("This system is currently running ZFS filesystem version {NEWEST}.\n");
    let (entries, whole) = run_over(&Selection::new(Types::FILESYSTEMS), &[])?;
    let mut old = Vec::new();
    let mut newer = Vec::new();
    for dataset in entries.iter() {
        match version_of(dataset)? {
            0 | NEWEST => {}
            version if version < NEWEST => old.push((version, dataset.name())),
            version => newer.push((version, dataset.name())),
        }
    }
    let tables = [
        (
            &old,
            "The following filesystems are out of date, and can be upgraded.  After being\n\
             upgraded, these filesystems (and any 'zfs send' streams generated from\n\
             subsequent snapshots) will no longer be accessible by older software versions.\n\n",
        ),
        (
            &newer,
            "The following filesystems are formatted using a newer software version and\n\
             cannot be accessed on the current system.\n\n",
        ),
    ];
    for (found, text) in tables.iter().filter(|(found, _)| !found.is_empty()) {
        println!("{text}\nVER  FILESYSTEM\n---  ------------");
        found.iter().for_each(|(version, name)| println!("{version:2}   {name}"));
    }
    if old.is_empty() && newer.is_empty() {
        println!("All filesystems are formatted with the current version.");
    }
    Ok(u8::from(!whole))
}

fn upgrade(session: &Session, selection: &Selection, names: &[String], version: u64) -> Outcome {
    if names.is_empty() {
        here().all()?.iter().try_for_each(|record| session.reach(&record.name).map(drop))?;
    }
    for name in names {
        session.reach(name)?;
    }
    let (entries, whole) = run_over(selection, names)?;
    let (mut upgraded, mut same, mut bad) = (0, 0, 0);
    for dataset in entries.iter() {
        let now = version_of(dataset)?;
        if now == version {
            same += 1;
        } else if now > version {
            println!("{}: can not be downgraded; it is already at version {now}", dataset.name());
            bad += 1;
        } else {
            let mut props = NvList::new();
            props.insert("version", version);
            match set::apply(session, dataset.name(), props) {
                Ok(()) => upgraded += 1,
                Err(Failure::Failed(why)) => {
                    eprintln!("{why}");
                    bad += 1;
                }
                Err(other) => return Err(other),
            }
        }
    }
    println!("{upgraded} filesystems upgraded");
    if same > 0 {
        println!("{same} filesystems already at this version");
    }
    Ok(u8::from(bad > 0 || !whole))
}
