//! `zfs destroy fs@a,b%c`: snapshots by name and by range.

use std::collections::{HashMap, HashSet};

use nvlist::NvList;
use pool::prop::nicebytes;
use pool::{Dataset, Kind};

use super::dependents;
use super::destroyer::{self, Destroyer, Options};
use super::select::{self, said};
use super::session::Session;
use crate::error::{Failure, Outcome, failed};
use crate::names::Types;

pub(super) fn run(session: &Session, head: &str, spec: &str, options: Options) -> Outcome {
    let head = select::open_dataset(head, Types::HEADS)?;
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
            for dataset in dependents::of(snap).map_err(|e| failed(said(&e, snap.name())))?.all {
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
    snaps: Vec<Dataset>,
    reclaimed: u64,
    good: bool,
}

impl Gather<'_> {
    /// The snapshots of a head, and of all below with `-r`.
    fn visit(&mut self, head: &Dataset) -> Result<(), Failure> {
        let trouble = |e: pool::Error| failed(said(&e, head.name()));
        let all = head.snapshots().map_err(trouble)?;
        let chosen = choose(&all.iter().map(Dataset::short_name).collect::<Vec<_>>(), self.spec);
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
            let mut children = head.children().map_err(trouble)?;
            children.sort_by(|a, b| a.name().cmp(b.name()));
            children.iter().try_for_each(|child| self.visit(child))?;
        }
        Ok(())
    }

    /// Adds up the space that the chosen snapshots of one head would free, by ranges without gaps.
    fn estimate(&mut self, all: &[Dataset], chosen: &[usize]) -> Result<(), Failure> {
        let mut sorted = chosen.to_vec();
        sorted.sort_unstable();
        for range in sorted.chunk_by(|a, b| a + 1 == *b) {
            let at = |n: Option<&usize>| n.and_then(|n| all.get(*n));
            let (Some(first), Some(last)) = (at(range.first()), at(range.last())) else { continue };
            range.iter().filter_map(|n| all.get(*n)).for_each(|snap| destroyer::tell(snap.name(), self.options));
            let space = first.pool().reclaimed_by(first.name(), last.name());
            self.reclaimed += space.map_err(|e| failed(said(&e, first.name())))?.used;
        }
        Ok(())
    }
}

/// The indices of the snapshots that `spec` names, oldest first: `a,b%c,%d`. Snapshots that do not exist are skipped.
fn choose(names: &[&str], spec: &str) -> Vec<usize> {
    // ten thousand may be named one by one
    let places: HashMap<&str, usize> = names.iter().enumerate().map(|(n, name)| (*name, n)).collect();
    let place = |name: &str| places.get(name).copied();
    let mut chosen = Vec::new();
    for part in spec.split(',') {
        let Some((first, last)) = part.split_once('%') else {
            chosen.extend(place(part));
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
    use super::choose;

    #[test]
    fn ranges_are_by_age() {
        let names = ["a", "c", "b", "d"];
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
