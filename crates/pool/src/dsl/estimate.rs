//! What a destroy would give back (OpenZFS: `lzc_snaprange_space`).

use std::sync::Arc;

use crate::bpobj::Space;
use crate::dsl::lookup::split_snapshot;
use crate::{Error, Pool};

impl Pool {
    /// What is freed if the snapshots from `first` to `last` of one file system are destroyed, both and all between. Nothing but whole
    /// lists of deadlists is looked at.
    ///
    /// # Errors
    /// [`Error::NotEarlier`] if they are not snapshots of one file system in that order; [`Error::NoSuchDataset`]; when the MOS cannot
    /// be read.
    pub fn reclaimed_by(self: &Arc<Self>, first: &str, last: &str) -> Result<Space, Error> {
        split_snapshot(first)?;
        split_snapshot(last)?;
        self.dataset(last)?.space_freed_with(&self.dataset(first)?)
    }
}
