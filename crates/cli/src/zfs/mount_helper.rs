//! `mount.zfs`, which mount(8) calls for `mount -t zfs DATASET DIR` and lines of /etc/fstab (OpenZFS: `cmd/mount_zfs.c`).
//!
//! Only file systems with `mountpoint=legacy` and snapshots are mounted by it; the others are `zfs mount`'s.

use std::ffi::OsString;

use pool::Kind;

use super::mounting::options::Options;
use super::mounting::{self, Ask, Facts};
use super::select;
use super::session::Session;
use crate::args;
use crate::command::{report, version};
use crate::console;
use crate::error::{Failure, Outcome};
use crate::names::Types;

/// Exit statuses of mount(8).
const USAGE: u8 = 1;
const SYSTEM: u8 = 2;

const USAGE_TEXT: &str = "Usage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>";

/// Runs it with the arguments after its name; the exit status.
pub(crate) fn main(args: &[OsString]) -> u8 {
    if args.iter().any(|arg| arg == "--version") {
        return version();
    }
    // mount(8) puts options behind the operands
    let (mut options, mut operands, mut rest) = (Vec::new(), Vec::new(), args);
    while let [first, ..] = rest {
        if first.to_string_lossy().starts_with('-') && first.len() > 1 {
            let takes_value = first.to_string_lossy().ends_with(['o', 't', 'N']) && rest.len() > 1;
            let (taken, left) = rest.split_at(if takes_value { 2 } else { 1 });
            options.extend_from_slice(taken);
            rest = left;
        } else {
            operands.push(first.to_string_lossy().into_owned());
            rest = rest.get(1..).unwrap_or_default();
        }
    }
    let parsed = match args::parse(":sfnvho:t:N:", &[], &options) {
        Ok(parsed) if !parsed.has('h') => parsed,
        _ => {
            eprintln!("{USAGE_TEXT}");
            return USAGE;
        }
    };
    let (dataset, point) = match operands.as_slice() {
        [dataset, point] => (dataset, point),
        other => {
            let what = match other.len() {
                0 => "missing dataset argument",
                1 => "missing mountpoint argument",
                _ => "too many arguments",
            };
            eprintln!("{what}\nusage: mount <dataset> <mountpoint>");
            return USAGE;
        }
    };
    let lists: Vec<String> = parsed.values('o').map(|list| list.to_string_lossy().into_owned()).collect();
    let options = match Options::parse(lists.iter().map(String::as_str)) {
        Ok(options) => options,
        Err(_) if parsed.has('s') => Options::default(),
        Err(word) => {
            eprintln!(
                "filesystem '{dataset}' cannot be mounted due to invalid option '{word}'.\n\
                 Use the '-s' option to ignore the bad mount option."
            );
            return USAGE;
        }
    };
    match Session::run(|session| run(session, dataset, point, &options, parsed.has('f'))) {
        Ok(status) => status,
        Err(failure) => {
            let _one = report(&failure);
            SYSTEM
        }
    }
}

fn run(session: &Session, name: &str, said: &str, options: &Options, fake: bool) -> Outcome {
    let cannot = |why: String, status: u8| {
        eprintln!("{why}");
        Ok(status)
    };
    let point = match console::path(said).canonicalize() {
        Ok(point) => point,
        Err(e) => {
            let why = crate::error::cause(&e);
            return cannot(
                format!("filesystem '{name}' cannot be mounted at '{said}' due to canonicalization error: {why}"),
                SYSTEM,
            );
        }
    };
    let shown = point.display();
    let types = Types { snapshots: true, ..Types::FILESYSTEMS };
    let dataset = match select::find_with(name, types, &mounting::wanted()) {
        Ok(dataset) => dataset,
        Err(Failure::Failed(why)) => {
            eprintln!("{why}");
            return cannot(format!("filesystem '{name}' cannot be mounted, unable to open the dataset"), USAGE);
        }
        Err(other) => return Err(other),
    };
    let facts = Facts::of(&dataset)?;
    let is_snapshot = dataset.kind().is_ok_and(|kind| kind == Kind::Snapshot);
    let is_legacy = is_snapshot || facts.is_legacy();
    if options.by_zfs && is_legacy {
        return cannot(
            format!(
                "filesystem '{name}' cannot be mounted using 'zfs mount'.\n\
                 Use 'zfs set mountpoint={shown}' or 'mount -t zfs {name} {shown}'.\n\
                 See zfs(8) for more information."
            ),
            USAGE,
        );
    }
    if !options.by_zfs && !is_legacy && !options.remount && !fake {
        return cannot(
            format!(
                "filesystem '{name}' cannot be mounted using 'mount'.\n\
                 Use 'zfs set mountpoint=legacy' or 'zfs mount {name}'.\n\
                 See zfs(8) for more information."
            ),
            USAGE,
        );
    }
    if fake {
        return Ok(0);
    }
    let Some(table) = console::mounts() else {
        return cannot(format!("filesystem '{name}' can not be mounted: a server has to be running for that"), SYSTEM);
    };
    // what mount(8) is told to cover is covered
    let ask = Ask { overlay: true, ..Ask::FOLLOWS };
    match mounting::mount_at(&table, &mounting::source(session, name)?, &facts, &point, options, ask) {
        Ok(()) => Ok(0),
        Err(Failure::Failed(why)) => {
            let why = why.split_once("': ").map_or(&*why, |(_, why)| why);
            cannot(format!("zfs_mount_at() failed: {why}"), SYSTEM)
        }
        Err(other) => Err(other),
    }
}
