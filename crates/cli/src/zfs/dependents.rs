//! What depends on a dataset: what is below it, and clones wherever they are (OpenZFS: `zfs_iter_dependents`).

use std::collections::HashSet;

use pool::{Dataset, Error};

/// All that must go before `dataset` can go, in an order in which it can: what is below before what it is in, clones before their
/// snapshots, older snapshots first. `dataset` itself is not among them.
pub(super) fn of(dataset: &Dataset) -> Result<Vec<Dataset>, Error> {
    let mut walk = Walk::default();
    walk.seen.insert(dataset.id());
    walk.below(dataset)?;
    Ok(walk.found)
}

#[derive(Default)]
struct Walk {
    seen: HashSet<u64>,
    found: Vec<Dataset>,
}

impl Walk {
    fn below(&mut self, dataset: &Dataset) -> Result<(), Error> {
        if dataset.is_snapshot() {
            return self.each(dataset.clones()?);
        }
        let mut children = dataset.children()?;
        children.sort_by(|a, b| a.name().cmp(b.name()));
        self.each(children)?;
        self.each(dataset.snapshots()?)
    }

    fn each(&mut self, datasets: Vec<Dataset>) -> Result<(), Error> {
        for dataset in datasets {
            // a clone may be a child as well
            if self.seen.insert(dataset.id()) {
                self.below(&dataset)?;
                self.found.push(dataset);
            }
        }
        Ok(())
    }
}

/// Whether `name` is below `of`, or a snapshot of it.
pub(super) fn is_within(name: &str, of: &str) -> bool {
    name.strip_prefix(of).is_some_and(|rest| rest.starts_with(['/', '@']))
}
