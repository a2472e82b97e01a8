//! `zfs destroy fs@a,b%c`: snapshots by name and by range.

use std::collections::{HashMap, HashSet};

use control::{Failed, Ioc};
use nvlist::NvList;
use pool::Kind;
use pool::prop::nicebytes;

use super::dependents;
use super::destroyer::{self, Destroyer, Options};
use super::listed::{Listed, Wanted};
use super::select::{self, told};
use super::session::Session;
use crate::error::{Failure, Outcome, failed};
use crate::names::Types;

pub(super) fn run(session: &Session, head: &str, spec: &str, options: Options) -> Outcome {
    let head = select::find(head, Types::HEADS)?;
    let mut gather = Gather { spec, options, snaps: Vec::new(), reclaimed: 0, good: true };
    gather.visit(&head)?;
    if !gather.good {
        return Ok(1);
    }
    if gather.snaps.is_empty() {
        return Err(failed("could not find any snapshots to destroy; check snapshot names."));
    }
    if options.verbose {
        match (options.parsable, options.dry_run) {
            (true, _) => println!("reclaim\t{}", gather.reclaimed),
            (false, true) => println!("would reclaim {}", nicebytes(gather.reclaimed)),
            (false, false) => println!("will reclaim {}", nicebytes(gather.reclaimed)),
        }
    }
    if options.dry_run {
        return Ok(0);
    }
    if options.clones {
        let mut destroyer = Destroyer::new(session, options);
        for snap in &gather.snaps {
            for dataset in dependents::of(snap).map_err(|e| failed(told(&e, snap.name())))?.all {
                destroyer.add(&dataset)?;
            }
        }
        let status = destroyer.finish()?;
        if status != 0 {
            return Ok(status);
        }
    }
    let mut snaps = NvList::new();
    gather.snaps.iter().for_each(|snap| snaps.insert(snap.name(), ()));
    destroyer::destroy_snapshots(session, snaps, options.defer)?;
    Ok(0)
}

/// The snapshots to be destroyed, collected as they are found.
struct Gather<'a> {
    spec: &'a str,
    options: Options,
    snaps: Vec<Listed>,
    reclaimed: u64,
    good: bool,
}

impl Gather<'_> {
    /// The snapshots of a head, and of all below with `-r`.
    fn visit(&mut self, head: &Listed) -> Result<(), Failure> {
        let trouble = |e: Failed| failed(told(&e, head.name()));
        let all = head.snapshots(&Wanted::props(&["clones"])).map_err(trouble)?;
        // one that is known by another name, as where case does not matter
        let look_up = |short: &str| {
            let found = Listed::find(head.source(), &format!("{}@{short}", head.name())).ok()?;
            let txg = found.txg().ok()?;
            all.iter().position(|snap| snap.txg().is_ok_and(|other| other == txg))
        };
        let chosen = choose(&all.iter().map(Listed::short_name).collect::<Vec<_>>(), self.spec, look_up);
        if !self.options.clones && !self.options.defer {
            for snap in chosen.iter().filter_map(|n| all.get(*n)) {
                let clones = dependents::of(snap).map_err(trouble)?;
                self.good &= destroyer::check(snap, Kind::Snapshot, &clones.all, self.options.recurse);
            }
        }
        if self.options.verbose {
            self.estimate(&all, &chosen)?;
        }
        self.snaps.extend(chosen.iter().filter_map(|n| all.get(*n)).cloned());
        if self.options.recurse {
            head.children().map_err(trouble)?.iter().try_for_each(|child| self.visit(child))?;
        }
        Ok(())
    }

    /// Adds up the space that the chosen snapshots of one head would free, by ranges without gaps.
    fn estimate(&mut self, all: &[Listed], chosen: &[usize]) -> Result<(), Failure> {
        let mut sorted = chosen.to_vec();
        sorted.sort_unstable();
        for range in sorted.chunk_by(|a, b| a + 1 == *b) {
            let at = |n: Option<&usize>| n.and_then(|n| all.get(*n));
            let (Some(first), Some(last)) = (at(range.first()), at(range.last())) else { continue };
            range.iter().filter_map(|n| all.get(*n)).for_each(|snap| destroyer::tell(snap.name(), self.options));
            let mut input = NvList::new();
            input.insert("firstsnap", first.name());
            let space = last.source().call(Ioc::SpaceSnaps, last.name(), &input);
            self.reclaimed += space.map_err(|e| failed(told(&e, first.name())))?.get_u64("used").unwrap_or(0);
        }
        Ok(())
    }
}

/// The indices of the snapshots that `spec` names, oldest first: `a,b%c,%d`. A snapshot that has none of these names is looked up; those that do not exist are skipped. The ends
/// of ranges are exact names.
fn choose(names: &[&str], spec: &str, look_up: impl Fn(&str) -> Option<usize>) -> Vec<usize> {
    // ten thousand may be named one by one
    let places: HashMap<&str, usize> = names.iter().enumerate().map(|(n, name)| (*name, n)).collect();
    let place = |name: &str| places.get(name).copied();
    let mut chosen = Vec::new();
    for part in spec.split(',') {
        let Some((first, last)) = part.split_once('%') else {
            chosen.extend(place(part).or_else(|| look_up(part)));
            continue;
        };
        let first = if first.is_empty() { Some(0) } else { place(first) };
        let last = if last.is_empty() { names.len().checked_sub(1) } else { place(last) };
        if let (Some(first), Some(last)) = (first, last) {
            chosen.extend(first..=last);
        }
    }
    let mut seen = HashSet::new();
    chosen.retain(|n| seen.insert(*n));
    chosen
}

#[cfg(test)]
mod tests {
    fn choose(names: &[&str], spec: &str) -> Vec<usize> {
        super::choose(names, spec, |name| names.iter().position(|other| other.to_uppercase() == name))
    }

    #[test]
    fn ranges_are_by_age() {
        let names = ["a", "c", "b", "d"];
        assert_eq!(choose(&names, "B,a%B,b"), [2]);
        assert_eq!(choose(&names, "a"), [0]);
        assert_eq!(choose(&names, "d,a"), [3, 0]);
        assert_eq!(choose(&names, "a%b"), [0, 1, 2]);
        assert_eq!(choose(&names, "%b,d"), [0, 1, 2, 3]);
        assert_eq!(choose(&names, "c%"), [1, 2, 3]);
        assert_eq!(choose(&names, "%"), [0, 1, 2, 3]);
        assert_eq!(choose(&names, "x,a%x,b%a,c"), [1]);
        assert_eq!(choose(&[], "%"), [0usize; 0]);
    }
}
