//! The dependents of a dataset: everything below it, and clones wherever they are (OpenZFS: `zfs_iter_dependents`).

use std::collections::HashSet;

use control::Failed;

use super::listed::{Listed, Wanted};

/// The datasets that must be destroyed before a dataset can be.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    /// In an order in which they can be destroyed: children before parents, clones before their snapshots, older
    /// snapshots first.
    pub(super) all: Vec<Listed>,
    /// A dataset that depends on its own dependent: a file system whose child is its origin's.
    pub(super) circle: Option<String>,
}

/// All dependents of `dataset`, without itself.
pub(super) fn of(dataset: &Listed) -> Result<Dependents, Failed> {
    let mut walk = Walk::default();
    walk.seen.insert(dataset.name().to_owned());
    walk.below(dataset)?;
    Ok(walk.found)
}

#[derive(Default)]
struct Walk {
    seen: HashSet<String>,
    /// The path from the first dataset to the one being visited.
    path: Vec<String>,
    found: Dependents,
}

impl Walk {
    fn below(&mut self, dataset: &Listed) -> Result<(), Failed> {
        self.path.push(dataset.name().to_owned());
        if dataset.is_snapshot() {
            self.each(dataset.clones()?)?;
        } else {
            self.each(dataset.children()?)?;
            // one answer for the clones of all
            self.each(dataset.snapshots(&Wanted::props(&["clones"]))?)?;
        }
        self.path.pop();
        Ok(())
    }

    fn each(&mut self, datasets: Vec<Listed>) -> Result<(), Failed> {
        for dataset in datasets {
            // a clone may also be a child
            if self.seen.insert(dataset.name().to_owned()) {
                self.below(&dataset)?;
                self.found.all.push(dataset);
            } else if self.path.iter().any(|above| above == dataset.name()) {
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
