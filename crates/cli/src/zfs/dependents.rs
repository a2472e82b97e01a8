//! What depends on a dataset: what is below it, and clones wherever they are (OpenZFS: `zfs_iter_dependents`).

use std::collections::HashSet;

use pool::{Dataset, Error};

/// What must go before a dataset can go.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    /// In an order in which they can go: what is below before what it is in, clones before their snapshots, older snapshots first.
    pub(super) all: Vec<Dataset>,
    /// Something that depends on what depends on it: a file system whose child is its origin's.
    pub(super) circle: Option<String>,
}

/// All that depends on `dataset`, which is not among them.
pub(super) fn of(dataset: &Dataset) -> Result<Dependents, Error> {
    let mut walk = Walk::default();
    walk.seen.insert(dataset.id());
    walk.below(dataset)?;
    Ok(walk.found)
}

#[derive(Default)]
struct Walk {
    seen: HashSet<u64>,
    /// From the first to the one that is being visited.
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
            // a clone may be a child as well
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

/// Whether `name` is below `of`, or a snapshot of it.
pub(super) fn is_within(name: &str, of: &str) -> bool {
    name.strip_prefix(of).is_some_and(|rest| rest.starts_with(['/', '@']))
}
