//! `zfs upgrade`: versions of file systems.

use nvlist::NvList;
use pool::Dataset;

use super::select::{Selection, said};
use super::session::Session;
use super::set;
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::here::here;
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

fn version_of(dataset: &Dataset) -> Result<u64, Failure> {
    let props = dataset.zpl_props().map_err(|e| failed(said(&e, dataset.name())))?;
    Ok(props.map_or(0, |props| props.version))
}

/// Lists the file systems whose version is not the newest.
fn list() -> Outcome {
    println!("This system is currently running ZFS filesystem version {NEWEST}.\n");
    let (entries, whole) = Selection::new(Types::FILESYSTEMS).datasets(&[])?;
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
    let (entries, whole) = selection.datasets(names)?;
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
