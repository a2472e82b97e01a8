//! `zfs bookmark`.

use control::Ioc;
use nvlist::{NvList, Value as Nv};

use super::destroy::pool_of;
use super::select;
use super::session::Session;
use super::words::{errno, of_errno};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;

/// The source is not an ancestor of the bookmark's dataset (OpenZFS's own number).
const NOT_ANCESTOR: i32 = 1039;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let operands = call.args.names();
    let (source, mark) = match operands.as_slice() {
        [] => return Err(usage("missing source argument")),
        [_] => return Err(usage("missing bookmark argument")),
        [source, mark, ..] => (source, mark),
    };
    let (source, mark) = full_names(source, mark)?;
    Session::run(|session| {
        session.find(&source)?;
        let types = if source.contains('@') { Types::SNAPSHOTS } else { Types::BOOKMARKS };
        select::open(&source, types).map_err(|failure| match failure {
            Failure::Failed(why) => usage(why),
            other => other,
        })?;
        let mut input = NvList::new();
        input.insert(&mark, source.as_str());
        let Err(e) = session.control(&source)?.call(Ioc::Bookmark, pool_of(&source), &input) else {
            return Ok(0);
        };
        let number = match e.out.get(&mark) {
            Some(Nv::Int32(n)) => *n,
            _ => e.errno,
        };
        Err(failed(format!("cannot create bookmark '{mark}': {}", why(number))))
    })
}

/// One of the two may be said in short: it is in the other's dataset.
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

fn why(number: i32) -> String {
    let words = match number {
        errno::EXDEV => "bookmark is in a different pool",
        NOT_ANCESTOR => "source is not an ancestor of the new bookmark's dataset",
        errno::EEXIST => "bookmark exists",
        errno::EINVAL => "invalid argument",
        errno::ENOTSUP => "bookmark feature not enabled",
        errno::ENOSPC => "out of space",
        errno::ENOENT => "dataset does not exist",
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
