//! `zfs rollback`.

use base::Errno;
use control::{Failed, Ioc};
use nvlist::NvList;
use pool::Kind;

use super::destroyer::{self, Destroyer, Options};
use super::listed::{self, Listed, Wanted};
use super::select::{self, told};
use super::session::Session;
use super::words::{BAD_TYPE, standard};
use super::{dependents, set};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed};
use crate::names::{Types, pool_of};

/// Limit on the younger snapshots that are listed.
const LISTED_MAX: usize = 32;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let clones = call.args.has('R');
    let recurse = clones || call.args.has('r');
    let name = &destroyer::only_operand(call)?;
    Session::run(|session| {
        let snap = session.dataset(name, Types::SNAPSHOTS)?;
        let (head, _) = name.split_once('@').unwrap_or((name, ""));
        let head = select::find(head, Types::HEADS)?;
        let younger = Younger::find(&head, &snap).map_err(|e| failed(told(&e, name)))?;
        if !younger.check(name, recurse, clones)? {
            return Ok(1);
        }
        younger.destroy(session, call.args.has('f'))?;
        back(session, &head, name)
    })
}

/// The snapshots, bookmarks and clones that are younger than the rollback's target.
struct Younger {
    snaps: Vec<Listed>,
    marks: Vec<Listed>,
}

impl Younger {
    fn find(head: &Listed, snap: &Listed) -> Result<Younger, Failed> {
        let target = snap.txg()?;
        let younger = |one: Listed| Ok((one.txg()? > target).then_some(one));
        let snaps = head.snapshots(&Wanted::props(&["clones"]))?;
        let snaps = snaps.into_iter().map(younger).filter_map(Result::transpose).collect::<Result<_, Failed>>()?;
        let marks = listed::bookmarks(head.source(), (head.name(), 1), &Wanted::default())?;
        let marks = marks.into_iter().map(younger).filter_map(Result::transpose).collect::<Result<_, Failed>>()?;
        Ok(Younger { snaps, marks })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.snaps.iter().chain(&self.marks).map(Listed::name)
    }

    /// Returns whether the rollback may be done; otherwise prints what is in the way.
    fn check(&self, target: &str, recurse: bool, clones: bool) -> Result<bool, Failure> {
        if clones {
            return Ok(true);
        }
        if !recurse {
            let all: Vec<&str> = self.names().take(LISTED_MAX).collect();
            if all.is_empty() {
                return Ok(true);
            }
            eprintln!(
                "cannot rollback to '{target}': more recent snapshots or bookmarks exist\n\
                 use '-r' to force deletion of the following snapshots and bookmarks:\n{}",
                all.join("\n")
            );
            if all.len() == LISTED_MAX {
                eprintln!("Output limited to {LISTED_MAX} snapshots/bookmarks");
            }
            return Ok(false);
        }
        let mut good = true;
        for snap in &self.snaps {
            for dataset in dependents::of(snap).map_err(|e| failed(told(&e, snap.name())))?.all {
                if good {
                    eprintln!(
                        "cannot rollback to '{target}': clones of previous snapshots exist\n\
                         use '-R' to force deletion of the following clones and dependents:"
                    );
                    good = false;
                }
                eprintln!("{}", dataset.name());
            }
        }
        Ok(good)
    }

    fn destroy(&self, session: &Session, force: bool) -> Result<(), Failure> {
        let options = Options {
            verbose: false,
            parsable: false,
            dry_run: false,
            defer: false,
            recurse: false,
            clones: true,
            force,
        };
        let mut destroyer = Destroyer::new(session, options);
        for snap in &self.snaps {
            for dataset in dependents::of(snap).map_err(|e| failed(told(&e, snap.name())))?.all {
                destroyer.add(&dataset)?;
            }
            destroyer.add(snap)?;
        }
        destroyer.finish()?;
        let Some(first) = self.marks.first() else { return Ok(()) };
        let mut input = NvList::new();
        self.marks.iter().for_each(|mark| input.insert(mark.name(), ()));
        let done = session.requests(first.name())?.call(Ioc::DestroyBookmarks, pool_of(first.name()), &input);
        done.map_err(|e| failed(format!("cannot destroy '{}': {}", first.name(), standard(&e))))?;
        Ok(())
    }
}

/// Does the rollback. A volume whose reservation matched its size gets a matching one again.
fn back(session: &Session, head: &Listed, target: &str) -> Outcome {
    let name = head.name();
    let number = |dataset: &Listed, prop: &str| dataset.number(prop).ok().flatten();
    let volume = head.kind().map_err(|e| failed(told(&e, name)))? == Kind::Volume;
    let old_size = if volume { number(head, "volsize") } else { None };
    let reserved = old_size.is_some() && old_size == number(head, "refreservation");
    let mut input = NvList::new();
    input.insert("target", target);
    if let Err(e) = session.requests(name)?.call(Ioc::Rollback, name, &input) {
        let why = match e.errno {
            Errno::EEXIST => format!("there is a snapshot or bookmark more recent than '{target}'"),
            Errno::ESRCH => format!("'{target}' is not found among snapshots of '{name}'"),
            Errno::EINVAL => BAD_TYPE.to_owned(),
            _ => standard(&e),
        };
        return Err(failed(format!("cannot rollback '{name}': {why}")));
    }
    if reserved {
        let now = number(&select::find(name, Types::HEADS)?, "volsize");
        if let Some(now) = now.filter(|now| Some(*now) != old_size) {
            let mut props = NvList::new();
            props.insert("refreservation", now);
            set::apply(session, name, props)?;
        }
    }
    Ok(0)
}
