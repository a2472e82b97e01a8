//! The base of an incremental stream, which the receiver already has.

use base::{Guid, ObjectId, Txg};
use ondisk::dsl::RedactEntry;
use pool::{Bookmark, Dataset};

use super::Error;

/// The progress recorded in a complete redaction list.
const COMPLETE: (ObjectId, u64) = (ObjectId(u64::MAX), u64::MAX);

/// The snapshot or bookmark that an incremental stream starts from (OpenZFS: the `ancestor_zb` of a send).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base {
    /// Its guid.
    pub guid: Guid,
    /// Blocks born later are sent.
    pub txg: Txg,
    /// True if it belongs to another dataset: the stream makes a clone.
    pub is_clone: bool,
    /// The guid of the IV set of its encrypted blocks; 0 if it is not encrypted.
    pub ivset_guid: Guid,
    /// The snapshots with respect to which it is redacted, if it is.
    pub redact_snaps: Option<Vec<Guid>>,
    /// Blocks that the receiver lacks although they are older, ordered by object and block.
    pub redacted: Vec<RedactEntry>,
}

impl Base {
    /// Creates a base from a snapshot. The caller must have checked that it is earlier than `to`.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn of_snapshot(from: &Dataset, to: &Dataset) -> Result<Base, Error> {
        Ok(Base {
            guid: from.guid(),
            txg: from.phys().creation_txg,
            is_clone: from.dir().id() != to.dir().id(),
            ivset_guid: from.ivset_guid()?.unwrap_or(Guid(0)),
            redact_snaps: from.redact_snaps()?,
            // a redacted dataset does not hold these blocks itself
            redacted: Vec::new(),
        })
    }

    /// Creates a base from a bookmark. One made by a redacted send lists the blocks that the send omitted.
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
        check_apart(&redacted)?;
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

/// Checks that the ranges of a sorted redaction list do not overlap: they are searched by their ends, and blocks of one that
/// contains the next would not be sent.
fn check_apart(redacted: &[RedactEntry]) -> Result<(), Error> {
    for pair in redacted.windows(2) {
        let [a, b] = pair else { continue };
        let end = a.blkid.checked_add(a.count);
        if a.object == b.object && end.is_none_or(|end| end > b.blkid) {
            return Err(Error::invalid(b.object, "redaction list", "block, in two ranges,", b.blkid));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_redaction_list_are_apart() {
        let list = |all: &[(u64, u64, u64)]| -> Vec<RedactEntry> {
            all.iter()
                .map(|&(object, blkid, count)| RedactEntry { object: ObjectId(object), blkid, count, size: 512 })
                .collect()
        };
        assert!(check_apart(&list(&[(1, 0, 5), (1, 5, 1), (2, 0, 9)])).is_ok());
        for overlapping in [[(1, 0, 100), (1, 5, 1)], [(1, 0, 6), (1, 5, 9)], [(1, 3, u64::MAX), (1, 7, 1)]] {
            assert!(check_apart(&list(&overlapping)).is_err());
        }
    }
}
