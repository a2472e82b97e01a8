//! What the receiver has already.

use base::{Guid, Txg};
use pool::{Bookmark, Dataset};

use super::Error;

/// The snapshot or bookmark that an incremental stream starts from (OpenZFS: the `ancestor_zb` of a send).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base {
    /// Its guid.
    pub guid: Guid,
    /// Blocks born later are sent.
    pub txg: Txg,
    /// It belongs to another dataset: the stream makes a clone.
    pub is_clone: bool,
    /// Which IVs its encrypted blocks have; 0 if it is not encrypted.
    pub ivset_guid: u64,
    /// It is redacted, with respect to these snapshots.
    pub redact_snaps: Option<Vec<u64>>,
}

impl Base {
    /// A snapshot. That it is earlier than what is sent is for the caller to have checked.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn of_snapshot(from: &Dataset, to: &Dataset) -> Result<Base, Error> {
        Ok(Base {
            guid: from.guid(),
            txg: from.phys().creation_txg,
            is_clone: from.dir().id() != to.dir().id(),
            ivset_guid: from.ivset_guid()?.unwrap_or(0),
            redact_snaps: from.redact_snaps()?,
        })
    }

    /// A bookmark.
    #[must_use]
    pub fn of_bookmark(from: &Bookmark, to: &Dataset) -> Base {
        let phys = from.phys();
        Base {
            guid: phys.guid,
            txg: phys.creation_txg,
            is_clone: from.dataset().dir().id() != to.dir().id(),
            ivset_guid: phys.ivset_guid,
            redact_snaps: None,
        }
    }
}
