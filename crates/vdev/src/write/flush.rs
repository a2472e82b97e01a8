//! Flushes: what was written gets to stable storage, and a leaf that fails has missed it.
//!
//! The system tells once of what it could not bring to stable storage, and to anybody: a flush that works says nothing of what was written before one
//! that failed. So failures are counted for each leaf ([`Flushes`]), and who wrote holds the count of before his writes against that
//! of after his flush. A batch of the intent log does so from its own beginning; a txg from the end of the txg before its predecessor on
//! (`label::commit`), as blocks of files that were fsynced are written while the predecessor is still ending.
//!
//! A leaf that may have lost something has missed the txgs of it, and what was written is as good as the rest of its redundancy. Of
//! OpenZFS's intent log nobody hears of a flush that failed.
//!
//! OpenZFS: `zio_flush`, `zil_lwb_write_done`.

use std::collections::BTreeSet;

use base::{Txg, pump};

use crate::config::{VdevConfig, VdevType};
use crate::{Error, Leaf, TopVdev, VdevTree};

/// How many flushes had failed on each leaf at some moment, by the index of the leaf.
#[derive(Debug, Clone, Default)]
pub struct Flushes(Vec<u64>);

/// The vdevs on which something was written, and its txgs.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// Top-level vdevs.
    pub tops: BTreeSet<u64>,
    /// It cannot be told which: all.
    pub all: bool,
    /// The txgs in which the blocks were born.
    pub births: BTreeSet<Txg>,
}

impl VdevTree {
    /// Flushes that have failed up to now: later ones may lose what is written from now on.
    #[must_use]
    pub fn flushes(&self) -> Flushes {
        let mut failed = vec![0; self.leaves().last().map_or(0, |leaf| leaf.index() + 1)];
        for leaf in self.leaves() {
            if let Some(of_leaf) = failed.get_mut(leaf.index()) {
                *of_leaf = leaf.failed_flushes();
            }
        }
        Flushes(failed)
    }

    /// Brings everything that was written to stable storage, on all leaves at the same time.
    ///
    /// # Errors
    /// [`Error::Flush`] for the first leaf that fails. As in OpenZFS, a caller may go on: the leaf's next writes will tell.
    pub fn flush(&self) -> Result<(), Error> {
        pump::together(self.leaves().iter().map(|leaf| &**leaf).collect(), Leaf::flush).into_iter().collect()
    }

    /// Brings what was `written` since `before` to stable storage. Leaves that fail, or failed meanwhile for somebody else, have missed its txgs;
    /// the next end of a txg counts the error.
    ///
    /// # Errors
    /// [`Error::Flush`] if a top-level vdev may have lost more than its redundancy covers ([`VdevTree::has_all`]).
    pub fn flush_written(&self, written: &Written, before: &Flushes) -> Result<(), Error> {
        let is_touched = |top: &&TopVdev| top.is_concrete() && (written.all || written.tops.contains(&top.id()));
        let tops: Vec<&TopVdev> = self.tops().iter().filter(is_touched).collect();
        let leaves = tops.iter().flat_map(|top| top.config().leaves()).filter_map(|config| self.leaf(config.guid));
        // also those that have been lost since: what they took may not be there
        let leaves: Vec<&Leaf> = leaves.map(|leaf| &**leaf).collect();
        let mut failed = None;
        for (leaf, flushed) in pump::together(leaves, |leaf| (leaf, leaf.flush())) {
            let known = before.0.get(leaf.index()).copied().unwrap_or(0);
            if flushed.is_ok() && leaf.failed_flushes() == known {
                continue;
            }
            written.births.iter().for_each(|birth| leaf.miss(*birth));
            let error = flushed.err().unwrap_or_else(|| leaf.failed_before());
            failed.get_or_insert(error);
        }
        match failed {
            Some(error) if !tops.iter().all(|top| self.has_all(top, &written.births)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Forgets what this machine keeps of the devices in memory, so that reads tell what is on them.
    pub fn forget(&self) {
        for device in self.leaves().iter().filter_map(|leaf| leaf.device()) {
            // a device that cannot forget keeps nothing
            let _kept = device.forget(0, device.size());
        }
    }

    /// Notes that the txg that ends now has lost nothing by the flushes that had failed at `known`: its blocks were read back.
    pub fn accept_flushes(&self, known: &Flushes) {
        for leaf in self.leaves() {
            if let Some(failed) = known.0.get(leaf.index()) {
                leaf.accept_flushes(*failed);
            }
        }
    }

    /// Whether a flush has failed since the last txg ended.
    #[must_use]
    pub fn has_failed_flushes(&self) -> bool {
        self.leaves().iter().any(|leaf| leaf.is_unsettled(leaf.failed_flushes()))
    }

    /// Whether everything that was written to a top-level vdev in these txgs is there without the leaves that missed a part of one. Which part
    /// each missed is not known here, so that two that missed some of one txg count as if it were the same.
    #[must_use]
    pub fn has_all(&self, top: &TopVdev, births: &BTreeSet<Txg>) -> bool {
        births.iter().all(|birth| self.survives(top.config(), *birth))
    }

    fn survives(&self, vdev: &VdevConfig, birth: Txg) -> bool {
        self.is_enough(vdev, &|leaf| leaf.is_writable() && !leaf.misses(birth))
    }

    /// Whether enough devices of a top-level vdev are there to read what lies on it. One without devices of its own counts as there.
    #[must_use]
    pub fn reaches(&self, top: &TopVdev) -> bool {
        !top.is_concrete() || self.is_enough(top.config(), &Leaf::is_usable)
    }

    /// Whether a vdev has enough `good` leaves for all its blocks.
    fn is_enough(&self, vdev: &VdevConfig, good: &dyn Fn(&Leaf) -> bool) -> bool {
        let gone = vdev.children.iter().filter(|child| !self.is_enough(child, good)).count() as u64;
        match vdev.kind {
            VdevType::Raidz | VdevType::Draid => gone <= vdev.nparity,
            // it lies on the others, and one of them has failed
            VdevType::DraidSpare => false,
            _ if vdev.children.is_empty() => self.leaf(vdev.guid).is_some_and(|leaf| good(leaf)),
            _ => gone < vdev.children.len() as u64,
        }
    }
}
