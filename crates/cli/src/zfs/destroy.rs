//! `zfs destroy`.

use control::Ioc;
use nvlist::NvList;
use site::Query;

use super::destroyer::{Destroyer, Options, check, only_operand};
use super::select::{self, told};
use super::session::Session;
use super::words::standard;
use super::{dependents, destroy_snaps};
use crate::command::Call;
use crate::error::{Outcome, failed};
use crate::names::{Types, pool_of};
use crate::pools;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let has = |flag| call.args.has(flag);
    let options = Options {
        verbose: has('v') || has('p'),
        parsable: has('p'),
        dry_run: has('n'),
        defer: has('d'),
        recurse: has('r') || has('R'),
        clones: has('R'),
        force: has('f'),
    };
    let name = &only_operand(call)?;
    Session::run(|session| {
        if !options.dry_run {
            session.reach(name)?;
        }
        let done = match name.split_once('@') {
            Some((head, spec)) => destroy_snaps::run(session, head, spec, options),
            None if name.contains('#') => bookmark(session, name, options),
            None => head(session, name, options),
        };
        // some may have been destroyed before a failure
        let freed = session.wait_freed();
        let status = done?;
        freed.map(|()| status)
    })
}

fn bookmark(session: &Session, name: &str, options: Options) -> Outcome {
    let refused = [
        (options.dry_run, "dryrun is not supported with bookmark"),
        (options.defer, "defer destroy is not supported with bookmark"),
        (options.recurse, "recursive is not supported with bookmark"),
    ];
    if let Some((_, why)) = refused.iter().find(|(refused, _)| *refused) {
        eprintln!("{why}");
        return Ok(255);
    }
    let is_there = |source: &Query| source.call(Ioc::GetBookmarkProps, name, &NvList::new()).is_ok();
    let there = pools::of_dataset(name)?.is_some_and(|source| is_there(&source));
    if !there {
        return Err(failed(format!("bookmark '{name}' does not exist.")));
    }
    let mut input = NvList::new();
    input.insert(name, ());
    let pool = pool_of(name);
    let done = session.requests(name)?.call(Ioc::DestroyBookmarks, pool, &input);
    done.map_err(|e| failed(format!("cannot destroy bookmark: {}", standard(&e))))?;
    Ok(0)
}

fn head(session: &Session, name: &str, options: Options) -> Outcome {
    let types = if options.defer { Types::SNAPSHOTS } else { Types::DATASETS };
    let target = select::find(name, types)?;
    let kind = target.kind().map_err(|e| failed(told(&e, name)))?;
    if !options.recurse && !name.contains('/') {
        return Err(failed(format!(
            "cannot destroy '{name}': operation does not apply to pools\n\
             use 'zfs destroy -r {name}' to destroy all datasets in the pool\n\
             use 'zpool destroy {name}' to destroy the pool itself"
        )));
    }
    let all = dependents::of(&target).map_err(|e| failed(told(&e, name)))?;
    if !options.clones && !check(&target, kind, &all.all, options.recurse) {
        return Ok(1);
    }
    if let Some(at) = all.circle {
        return Err(failed(format!("cannot determine dependent datasets: recursive dependency at '{at}'")));
    }
    let mut destroyer = Destroyer::new(session, options);
    for dataset in &all.all {
        destroyer.add(dataset)?;
    }
    destroyer.add(&target)?;
    destroyer.finish()
}
