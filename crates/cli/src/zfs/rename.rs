//! `zfs rename`.

use base::Errno;
use control::Ioc;
use nvlist::NvList;

use super::ancestors::{self, Ancestors};
use super::listed::Listed;
use super::mounting::changes::{Change, Changes};
use super::session::Session;
use super::words::standard;
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::{self, Types, pool_of};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let ancestors = Ancestors::of(call.args.count('p'));
    let (recursive, no_unmount) = (call.args.has('r'), call.args.has('u'));
    let force = call.args.has('f');
    let operands = call.args.names();
    let (from, to) = match operands.as_slice() {
        [] => return Err(usage("missing source dataset argument")),
        [_] => return Err(usage("missing target dataset argument")),
        [from, to] => (from, to),
        _ => return Err(usage("too many arguments")),
    };
    let parents = ancestors != Ancestors::Wanted;
    if recursive && parents {
        return Err(usage("-p and -r options are mutually exclusive"));
    }
    if no_unmount && parents {
        return Err(usage("-u and -p options are mutually exclusive"));
    }
    if recursive && !from.contains('@') {
        return Err(usage("source dataset for recursive rename must be a snapshot"));
    }
    let types = match (no_unmount, parents) {
        (true, _) => Types::FILESYSTEMS,
        (false, true) => Types::HEADS,
        (false, false) => Types::DATASETS,
    };
    Session::run(|session| {
        let dataset = session.dataset(from, types)?;
        if let Ancestors::Made { unmountable } = ancestors
            && names::check_new(to, Types::HEADS).is_ok()
        {
            ancestors::make(session, to, unmountable)?;
        }
        rename(session, &dataset, to, (recursive, no_unmount, force))
    })
}

/// Renames, with the options `-r`, `-u` and `-f`.
fn rename(
    session: &Session,
    dataset: &Listed,
    to: &str,
    (recursive, no_unmount, force): (bool, bool, bool),
) -> Outcome {
    let from = dataset.name();
    if from == to {
        return Ok(0);
    }
    let target = match from.split_once('@') {
        Some((head, _)) => of_snapshot(head, to)?,
        None => {
            of_head(session, from, to)?;
            to.to_owned()
        }
    };
    let mut input = NvList::new();
    input.insert("target", target);
    if recursive {
        input.insert("recursive", ());
    }
    let mut mounts = Changes::gather(session, dataset, Change::Name, force)?;
    // without a path of its own, its mount point is the same under each name
    let keeps = no_unmount || mounts.is_without_path();
    if !keeps {
        mounts.prefix()?;
    }
    let Err(e) = session.requests(from)?.call(Ioc::Rename, from, &input) else {
        if !keeps {
            mounts.renamed(from, to);
            mounts.postfix()?;
        }
        return Ok(0);
    };
    if !keeps {
        // why it cannot be renamed is what counts
        let _ = mounts.postfix();
    }
    // of several snapshots, the one that failed
    let failing = e.out.iter().next().map_or(from, |(name, _)| name);
    let why = match e.errno {
        Errno::EEXIST if recursive => "a child dataset already has a snapshot with the new name".to_owned(),
        Errno::EACCES => "cannot move encrypted child outside of its encryption root".to_owned(),
        _ => standard(&e),
    };
    Err(failed(format!("cannot rename '{failing}': {why}")))
}

/// The full new name of a snapshot, which may be given in short.
fn of_snapshot(head: &str, to: &str) -> Result<String, Failure> {
    let cannot = |why: &str| failed(format!("cannot rename to '{to}': {why}"));
    let target = match to.split_once('@') {
        None => format!("{head}@{to}"),
        Some(("", snap)) => format!("{head}@{snap}"),
        Some((other, _)) if other != head => return Err(cannot("snapshots must be part of same dataset")),
        Some(_) => to.to_owned(),
    };
    names::check_new(&target, Types::SNAPSHOTS).map_err(|why| failed(format!("cannot rename to '{target}': {why}")))?;
    Ok(target)
}

fn of_head(session: &Session, from: &str, to: &str) -> Result<(), Failure> {
    let cannot = |why: &str| failed(format!("cannot rename to '{to}': {why}"));
    names::check_new(to, Types::HEADS).map_err(|why| cannot(&why))?;
    ancestors::existing(session, to, false)?;
    if pool_of(from) != pool_of(to) || !from.contains('/') {
        return Err(cannot("datasets must be within same pool"));
    }
    if to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
        return Err(cannot("New dataset name cannot be a descendant of current dataset name"));
    }
    Ok(())
}
