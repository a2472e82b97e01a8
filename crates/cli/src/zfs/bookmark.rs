//! `zfs bookmark`.

use base::Errno;
use control::{Failed, Ioc};
use nvlist::{NvList, Value as Nv};

use super::select::{self, told};
use super::session::Session;
use super::words::of_errno;
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::{Types, pool_of};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let operands = call.args.names();
    let (source, mark) = match operands.as_slice() {
        [] => return Err(usage("missing source argument")),
        [_] => return Err(usage("missing bookmark argument")),
        [source, mark, ..] => (source, mark),
    };
    let (source, mark) = full_names(source, mark)?;
    let recursive = call.args.has('r');
    if recursive && !source.contains('@') {
        return Err(usage("recursive bookmarks (-r) can only be created from a snapshot source"));
    }
    Session::run(|session| {
        session.reach(&source)?;
        let types = if source.contains('@') { Types::SNAPSHOTS } else { Types::BOOKMARKS };
        select::find(&source, types).map_err(|failure| match failure {
            Failure::Failed(why) => usage(why),
            other => other,
        })?;
        let mut input = NvList::new();
        match recursive {
            true => below(&source, &mark, &mut input)?,
            false => input.insert(&mark, source.as_str()),
        }
        let Err(e) = session.requests(&source)?.call(Ioc::Bookmark, pool_of(&source), &input) else {
            return Ok(0);
        };
        let line = |mark: &str, number| format!("cannot create bookmark '{mark}': {}", why(number));
        let each = e.out.iter().filter_map(|(name, value)| match value {
            Nv::Int32(n) => Some(line(name, Errno::from_raw(*n))),
            _ => None,
        });
        let lines: Vec<String> = each.collect();
        Err(failed(if lines.is_empty() { line(&mark, e.errno) } else { lines.join("\n") }))
    })
}

/// Adds the bookmarks for `-r`: the snapshot of the same name on all datasets below, where there is one, each with a
/// bookmark of the same name.
fn below(source: &str, mark: &str, input: &mut NvList) -> Result<(), Failure> {
    let (head, snap) = source.split_once('@').unwrap_or((source, ""));
    let short = mark.rsplit('#').next().unwrap_or(mark);
    let mut heads = vec![select::find(head, Types::HEADS)?];
    while let Some(head) = heads.pop() {
        let name = head.name();
        let trouble = |e: Failed| failed(told(&e, name));
        if head.snapshot(snap).is_ok_and(|found| found.is_some()) {
            input.insert(format!("{name}#{short}"), format!("{name}@{snap}"));
        }
        heads.extend(head.children().map_err(trouble)?);
    }
    Ok(())
}

/// Completes the names: one of the two may be short, and is then in the other's dataset.
fn full_names(source: &str, mark: &str) -> Result<(String, String), Failure> {
    let Some((head, _)) = source.split_once(['@', '#']) else {
        return Err(usage(format!("invalid source name '{source}': must contain a '@' or '#'")));
    };
    let Some((of, _)) = mark.split_once('#') else {
        return Err(usage(format!("invalid bookmark name '{mark}': must contain a '#'")));
    };
    match (head, of) {
        ("", "") => Err(usage("either source or bookmark must be specified as full dataset paths")),
        ("", of) => Ok((format!("{of}{source}"), mark.to_owned())),
        (head, "") => Ok((source.to_owned(), format!("{head}{mark}"))),
        _ => Ok((source.to_owned(), mark.to_owned())),
    }
}

fn why(number: Errno) -> String {
    let words = match number {
        Errno::EXDEV => "bookmark is in a different pool",
        Errno::ZFS_ERR_BOOKMARK_SOURCE_NOT_ANCESTOR => "source is not an ancestor of the new bookmark's dataset",
        Errno::EEXIST => "bookmark exists",
        Errno::EINVAL => "invalid argument",
        Errno::ENOTSUP => "bookmark feature not enabled",
        Errno::ENOSPC => "out of space",
        Errno::ENOENT => "dataset does not exist",
        n => return of_errno(n),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_name_may_be_short() {
        let names = |source: &str, mark: &str| full_names(source, mark).ok();
        let good = Some(("a/b@s".to_owned(), "a/b#m".to_owned()));
        assert_eq!(names("a/b@s", "#m"), good);
        assert_eq!(names("@s", "a/b#m"), good);
        assert_eq!(names("a/b@s", "a/b#m"), good);
        assert_eq!(names("@s", "#m"), None);
        assert_eq!(names("a", "#m"), None);
        assert_eq!(names("a@s", "m"), None);
    }
}
