//! `zfs snapshot`.

use base::Errno;
use control::{Failed, Ioc};
use nvlist::{NvList, Value as Nv};
use pool::Kind;

use super::listed::Listed;
use super::select::{self, told};
use super::session::Session;
use super::words::{self, standard};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::{self, Types, pool_of};
use crate::props::Said;
use crate::props::valid::{Target, add_said, valid};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let recursive = call.args.has('r');
    let mut props: Vec<Said> = Vec::new();
    for value in call.args.values('o') {
        add_said(&mut props, &value.to_string_lossy()).map_err(failed)?;
    }
    let operands = call.args.names();
    if operands.is_empty() {
        return Err(usage("missing snapshot argument"));
    }
    Session::run(|session| {
        let snaps = gather(session, &operands, recursive)?;
        let many = recursive || operands.len() > 1;
        take(session, snaps, &props).inspect_err(|failure| {
            if let (Failure::Failed(why), true) = (failure, many) {
                eprintln!("{why}\nno snapshots were created");
            }
        })?;
        Ok(0)
    })
    .map_err(|failure| match failure {
        // already reported
        Failure::Failed(_) if recursive || operands.len() > 1 => failed(""),
        other => other,
    })
}

/// The full names of all snapshots to be taken.
fn gather(session: &Session, operands: &[String], recursive: bool) -> Result<NvList, Failure> {
    let mut snaps = NvList::new();
    for operand in operands {
        let (head, snap) = operand.split_once('@').ok_or_else(|| usage(""))?;
        session.reach(head)?;
        // as in OpenZFS, a dataset that does not exist is a usage error
        let head = select::find(head, Types::HEADS).map_err(misuse)?;
        add(&mut snaps, &head, snap, recursive)?;
    }
    Ok(snaps)
}

fn misuse(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(why) => usage(why),
        other => other,
    }
}

fn add(snaps: &mut NvList, head: &Listed, snap: &str, recursive: bool) -> Result<(), Failure> {
    // a partly received dataset has no snapshot yet
    let trouble = |e: Failed| failed(told(&e, head.name()));
    if recursive && head.is("inconsistent").map_err(trouble)? {
        return Ok(());
    }
    snaps.insert(format!("{}@{snap}", head.name()), ());
    if recursive {
        head.children().map_err(trouble)?.iter().try_for_each(|child| add(snaps, child, snap, true))?;
    }
    Ok(())
}

/// Takes snapshots, all or none (OpenZFS: `zfs_snapshot_nvl`).
fn take(session: &Session, snaps: NvList, props: &[Said]) -> Result<(), Failure> {
    for (name, _) in &snaps {
        names::check_new(name, Types::SNAPSHOTS)
            .map_err(|why| failed(format!("cannot create snapshot '{name}': {why}")))?;
    }
    let Some(first) = snaps.iter().next().map(|(name, _)| name.to_owned()) else { return Err(failed("")) };
    let target = Target { kind: Kind::Snapshot, existing: None, large_blocks: true, zoned: false, key_params: false };
    let props = valid(props, &target).map_err(|why| failed(format!("cannot create snapshots : {why}")))?;
    let mut input = NvList::new();
    input.insert("snaps", snaps);
    if !props.is_empty() {
        input.insert("props", props);
    }
    let Err(e) = session.requests(&first)?.call(Ioc::Snapshot, pool_of(&first), &input) else { return Ok(()) };
    let mut lines = Vec::new();
    for (name, value) in &*e.out {
        if let Nv::Int32(n) = value {
            lines.push(format!("cannot create snapshot '{name}': {}", words::of_errno(Errno::from_raw(*n))));
        }
    }
    if lines.is_empty() {
        let why = match e.errno {
            Errno::EXDEV => "multiple snapshots of same fs not allowed".to_owned(),
            _ => standard(&e),
        };
        lines.push(format!("cannot create snapshots : {why}"));
    }
    Err(failed(lines.join("\n")))
}
