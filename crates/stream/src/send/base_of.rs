//! What the receiver has already.

use base::{Guid, Txg};
use ondisk::dsl::RedactEntry;
use pool::{Bookmark, Dataset};

use super::Error;

/// How far a redaction list says that it is, when nothing is missing.
const COMPLETE: (u64, u64) = (u64::MAX, u64::MAX);

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
    /// Blocks that the receiver was not given, although they are older, in the order of objects and blocks.
    pub redacted: Vec<RedactEntry>,
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
            // a redacted dataset does not have them itself
            redacted: Vec::new(),
        })
    }

    /// A bookmark. One that a redacted send was made by tells what that send left out.
    ///
    /// # Errors
    /// When its redaction list cannot be read, or is not complete.
    pub fn of_bookmark(from: &Bookmark, to: &Dataset) -> Result<Base, Error> {
        let phys = from.phys();
        let list = from.redaction_list()?;
        if list.as_ref().is_some_and(|list| (list.header.last_object, list.header.last_blkid) != COMPLETE) {
            return Err(Error::Unfinished { name: from.name().to_owned() });
        }
        let (redact_snaps, mut redacted) = match list {
            Some(list) => (Some(list.header.snaps), list.entries),
            None => (None, Vec::new()),
        };
        redacted.sort_unstable_by_key(|entry| (entry.object, entry.blkid));
        Ok(Base {
            guid: phys.guid,
            txg: phys.creation_txg,
            is_clone: from.dataset().dir().id() != to.dir().id(),
            ivset_guid: phys.ivset_guid,
            redact_snaps,
            redacted,
        })
    }
}
