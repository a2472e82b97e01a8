//! Estimates the space that a destroy would free (OpenZFS: `lzc_snaprange_space`).

use std::sync::Arc;

use crate::dsl::lookup::split_snapshot;
use crate::spa::bpobj::Space;
use crate::{Error, Pool};

impl Pool {
    /// The space that destroying the snapshots `first` to `last` of one file system, inclusive, would free. Only the sums of whole deadlist entries
    /// are read.
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
