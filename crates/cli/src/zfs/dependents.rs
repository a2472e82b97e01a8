//! The dependents of a dataset: everything below it, and clones wherever they are (OpenZFS: `zfs_iter_dependents`).

use std::collections::HashSet;

use pool::{Dataset, Error};

/// The datasets that must be destroyed before a dataset can be.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    /// In an order in which they can be destroyed: children before parents, clones before their snapshots, older
    /// snapshots first.
    pub(super) all: Vec<Dataset>,
    /// A dataset that depends on its own dependent: a file system whose child is its origin's.
    pub(super) circle: Option<String>,
}

/// All dependents of `dataset`, without itself.
pub(super) fn of(dataset: &Dataset) -> Result<Dependents, Error> {
    let mut walk = Walk::default();
    walk.seen.insert(dataset.id());
    walk.below(dataset)?;
    Ok(walk.found)
}

#[derive(Default)]
struct Walk {
    seen: HashSet<u64>,
    /// The path from the first dataset to the one being visited.
    path: Vec<u64>,
    found: Dependents,
}

impl Walk {
    fn below(&mut self, dataset: &Dataset) -> Result<(), Error> {
        self.path.push(dataset.id());
        if dataset.is_snapshot() {
            self.each(dataset.clones()?)?;
        } else {
            let mut children = dataset.children()?;
            children.sort_by(|a, b| a.name().cmp(b.name()));
            self.each(children)?;
            self.each(dataset.snapshots()?)?;
        }
        self.path.pop();
        Ok(())
    }

    fn each(&mut self, datasets: Vec<Dataset>) -> Result<(), Error> {
        for dataset in datasets {
            // a clone may also be a child
            if self.seen.insert(dataset.id()) {
                self.below(&dataset)?;
                self.found.all.push(dataset);
            } else if self.path.contains(&dataset.id()) {
                self.found.circle.get_or_insert(dataset.name().to_owned());
            }
        }
        Ok(())
    }
}

/// Returns whether `name` is below `of`, or a snapshot of it.
pub(super) fn is_within(name: &str, of: &str) -> bool {
    name.strip_prefix(of).is_some_and(|rest| rest.starts_with(['/', '@']))
}
