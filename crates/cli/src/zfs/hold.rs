//! `zfs hold`, `zfs release`.

use base::Errno;
use control::{Failed, Ioc};
use nvlist::{NvList, Value as Nv};

use super::listed::Listed;
use super::select::{self, told};
use super::session::Session;
use super::words::{BAD_TYPE, of_errno};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::{Types, pool_of};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let holding = call.command.name == "hold";
    let recursive = call.args.has('r');
    let operands = call.args.names();
    let (tag, snaps) = match operands.split_first() {
        Some((tag, snaps)) if !snaps.is_empty() => (tag, snaps),
        _ => return Err(usage("")),
    };
    if holding && tag.starts_with('.') {
        return Err(usage("tag may not start with '.'"));
    }
    Session::run(|session| {
        let mut status = 0;
        for snap in snaps {
            let done = match holding {
                true => hold(session, snap, tag, recursive),
                false => release(session, snap, tag, recursive),
            };
            match done {
                Ok(()) => {}
                Err(Failure::Failed(why)) => {
                    if !why.is_empty() {
                        eprintln!("{why}");
                    }
                    status = 1;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(status)
    })
}

/// The snapshots of that name: of the head, and of all datasets below it with `-r`. Empty if there are none.
fn snapshots(session: &Session, name: &str, recursive: bool) -> Result<(String, Vec<Listed>), Failure> {
    let (head, snap) = name.split_once('@').ok_or_else(|| failed(format!("'{name}' is not a snapshot")))?;
    session.reach(head)?;
    let head = select::find(head, Types::HEADS)?;
    let mut found = Vec::new();
    collect(&head, snap, recursive, &mut found).map_err(|e| failed(told(&e, name)))?;
    Ok((format!("{}@{snap}", head.name()), found))
}

fn collect(head: &Listed, snap: &str, recursive: bool, found: &mut Vec<Listed>) -> Result<(), Failed> {
    found.extend(head.snapshot(snap)?);
    if recursive {
        for child in head.children()? {
            collect(&child, snap, true, found)?;
        }
    }
    Ok(())
}

fn hold(session: &Session, name: &str, tag: &str, recursive: bool) -> Result<(), Failure> {
    let (name, found) = snapshots(session, name, recursive)?;
    if found.is_empty() {
        return Err(failed(format!("cannot hold snapshot '{name}': {}", of_errno(Errno::ENOENT))));
    }
    let mut holds = NvList::new();
    found.iter().for_each(|snap| holds.insert(snap.name(), tag));
    let mut input = NvList::new();
    input.insert("holds", holds);
    let Err(e) = session.requests(&name)?.call(Ioc::Hold, pool_of(&name), &input) else { return Ok(()) };
    let why = |number: Errno| match number {
        Errno::E2BIG => "tag too long".to_owned(),
        Errno::EINVAL => BAD_TYPE.to_owned(),
        Errno::EEXIST => "tag already exists on this dataset".to_owned(),
        n => of_errno(n),
    };
    let overall = |number: Errno| match number {
        Errno::ENOTSUP => "pool must be upgraded".to_owned(),
        n => why(n),
    };
    Err(tell(&e, "cannot hold", "cannot hold snapshot", why, overall))
}

fn release(session: &Session, name: &str, tag: &str, recursive: bool) -> Result<(), Failure> {
    let (name, found) = snapshots(session, name, recursive)?;
    let mut input = NvList::new();
    let mut number = Errno::ENOENT;
    for snap in &found {
        let held = snap.source().call(Ioc::GetHolds, snap.name(), &NvList::new());
        if !held.map_err(|e| failed(told(&e, snap.name())))?.contains(tag) {
            number = Errno::ESRCH;
            continue;
        }
        let mut tags = NvList::new();
        tags.insert(tag, ());
        input.insert(snap.name(), tags);
    }
    let why = |number: Errno| match number {
        Errno::ESRCH => "no such tag on this dataset".to_owned(),
        Errno::EINVAL => BAD_TYPE.to_owned(),
        n => of_errno(n),
    };
    if input.is_empty() {
        return Err(failed(format!("cannot release hold from snapshot '{name}': {}", why(number))));
    }
    let Err(e) = session.requests(&name)?.call(Ioc::Release, pool_of(&name), &input) else { return Ok(()) };
    Err(tell(&e, "cannot release", "cannot release hold from snapshot", why, of_errno))
}

/// The message for each snapshot that failed, else for all.
fn tell(
    e: &Failed,
    all: &str,
    each: &str,
    why: impl Fn(Errno) -> String,
    overall: impl Fn(Errno) -> String,
) -> Failure {
    let line = |(name, value): (&str, &Nv)| match value {
        Nv::Int32(n) => Some(format!("{each} '{name}': {}", why(Errno::from_raw(*n)))),
        _ => None,
    };
    let lines: Vec<String> = e.out.iter().filter_map(line).collect();
    if lines.is_empty() { failed(format!("{all}: {}", overall(e.errno))) } else { failed(lines.join("\n")) }
}
