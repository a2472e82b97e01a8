//! Bonus buffers of the DSL: directories, datasets, deadlists, bookmarks, and the keys that extend them (docs/format.md §9).

use base::{Endian, Guid, ObjectId, Txg, bytes};

use crate::{BlkPtr, Error};

/// Reads `u64` word `n` of a structure called `what`.
fn word(what: &'static str, buf: &[u8], n: usize, e: Endian) -> Result<u64, Error> {
    bytes::u64(buf, n * 8, e).ok_or(Error::short(what, (n + 1) * 8, buf.len()))
}

/// The breakdown of a directory's used space (OpenZFS: `dd_used_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UsedBreakdown {
    /// The head dataset.
    pub head: u64,
    /// Its snapshots.
    pub snap: u64,
    /// Children.
    pub child: u64,
    /// Reservations of children beyond what they use.
    pub child_rsrv: u64,
    /// The head's reservation for overwriting everything.
    pub refrsrv: u64,
}

/// A directory: a name in the hierarchy with its space accounting (OpenZFS: `dsl_dir_phys_t`). Sizes are in bytes unless stated otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DslDirPhys {
    /// Unused by OpenZFS.
    pub creation_time: u64,
    /// The dataset object of the head.
    pub head_dataset_obj: ObjectId,
    /// The parent directory, 0 for the root.
    pub parent_obj: ObjectId,
    /// The snapshot that the head is a clone of.
    pub origin_obj: ObjectId,
    /// ZAP: child name to directory object.
    pub child_dir_zapobj: ObjectId,
    /// Space of head, snapshots and children, including reservations.
    pub used_bytes: u64,
    /// The same compressed, without parity and copies.
    pub compressed_bytes: u64,
    /// The same uncompressed.
    pub uncompressed_bytes: u64,
    /// Limit on `used_bytes`, 0 none.
    pub quota: u64,
    /// Space held for this directory.
    pub reserved: u64,
    /// ZAP of locally set properties.
    pub props_zapobj: ObjectId,
    /// ZAP of delegated permissions.
    pub deleg_zapobj: ObjectId,
    /// See [`DslDirPhys::FLAG_USED_BREAKDOWN`].
    pub flags: u64,
    /// Valid with [`DslDirPhys::FLAG_USED_BREAKDOWN`].
    pub used_breakdown: UsedBreakdown,
    /// ZAP of clone directories of this directory's snapshots.
    pub clones: ObjectId,
}

impl DslDirPhys {
    /// `used_breakdown` is maintained.
    pub const FLAG_USED_BREAKDOWN: u64 = 1;
    /// Bytes of the bonus buffer.
    pub const SIZE: usize = 256;

    /// Decodes a bonus buffer of at least 160 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n| word("DSL directory", buf, n, e);
        Ok(DslDirPhys {
            creation_time: w(0)?,
            head_dataset_obj: ObjectId(w(1)?),
            parent_obj: ObjectId(w(2)?),
            origin_obj: ObjectId(w(3)?),
            child_dir_zapobj: ObjectId(w(4)?),
            used_bytes: w(5)?,
            compressed_bytes: w(6)?,
            uncompressed_bytes: w(7)?,
            quota: w(8)?,
            reserved: w(9)?,
            props_zapobj: ObjectId(w(10)?),
            deleg_zapobj: ObjectId(w(11)?),
            flags: w(12)?,
            used_breakdown: UsedBreakdown {
                head: w(13)?,
                snap: w(14)?,
                child: w(15)?,
                child_rsrv: w(16)?,
                refrsrv: w(17)?,
            },
            clones: ObjectId(w(18)?),
        })
    }

    /// Encodes the 256-byte bonus buffer.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; Self::SIZE] {
        let u = &self.used_breakdown;
        let words = [
            self.creation_time,
            self.head_dataset_obj.0,
            self.parent_obj.0,
            self.origin_obj.0,
            self.child_dir_zapobj.0,
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.quota,
            self.reserved,
            self.props_zapobj.0,
            self.deleg_zapobj.0,
            self.flags,
            u.head,
            u.snap,
            u.child,
            u.child_rsrv,
            u.refrsrv,
            self.clones.0,
        ];
        let mut out = [0; Self::SIZE];
        for (chunk, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = e.put_u64(w);
        }
        out
    }
}

/// A dataset: the head of a directory, or a snapshot (OpenZFS: `dsl_dataset_phys_t`). Sizes are in bytes unless stated otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DslDatasetPhys {
    /// Its directory.
    pub dir_obj: ObjectId,
    /// The previous snapshot.
    pub prev_snap_obj: ObjectId,
    /// The txg of the previous snapshot.
    pub prev_snap_txg: Txg,
    /// The next snapshot, or the head; 0 for a head.
    pub next_snap_obj: ObjectId,
    /// ZAP: snapshot name to dataset object; 0 for a snapshot.
    pub snapnames_zapobj: ObjectId,
    /// For a snapshot, 1 + clones + the next one; 0 for a head.
    pub num_children: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// The txg in which it was created.
    pub creation_txg: Txg,
    /// Blocks of the previous snapshot that this one no longer has.
    pub deadlist_obj: ObjectId,
    /// Space of all blocks that it references.
    pub referenced_bytes: u64,
    /// The same compressed, without parity and copies.
    pub compressed_bytes: u64,
    /// The same uncompressed.
    pub uncompressed_bytes: u64,
    /// Space that no other dataset references.
    pub unique_bytes: u64,
    /// Identifies the mounted file system, 56 bits.
    pub fsid_guid: u64,
    /// Its identity, kept by send and receive.
    pub guid: Guid,
    /// See the `FLAG_` constants.
    pub flags: u64,
    /// The object set.
    pub bp: BlkPtr,
    /// ZAP of clones of a snapshot.
    pub next_clones_obj: ObjectId,
    /// ZAP of a snapshot's own properties.
    pub props_obj: ObjectId,
    /// ZAP of holds.
    pub userrefs_obj: ObjectId,
}

impl DslDatasetPhys {
    /// Partly received or partly destroyed: users must not open it.
    pub const FLAG_INCONSISTENT: u64 = 1;
    /// Cannot be promoted.
    pub const FLAG_NOPROMOTE: u64 = 2;
    /// `unique_bytes` is maintained.
    pub const FLAG_UNIQUE_ACCURATE: u64 = 4;
    /// To be destroyed when its last hold or clone is gone.
    pub const FLAG_DEFER_DESTROY: u64 = 8;
    /// The file system ignores case.
    pub const FLAG_CI_DATASET: u64 = 0x10000;
    /// Bytes of the bonus buffer.
    pub const SIZE: usize = 320;

    /// True if this is a snapshot (a snapshot has a count of children, a head has not).
    #[must_use]
    pub const fn is_snapshot(&self) -> bool {
        self.num_children != 0
    }

    /// Decodes a bonus buffer of at least 280 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n| word("DSL dataset", buf, n, e);
        Ok(DslDatasetPhys {
            dir_obj: ObjectId(w(0)?),
            prev_snap_obj: ObjectId(w(1)?),
            prev_snap_txg: Txg(w(2)?),
            next_snap_obj: ObjectId(w(3)?),
            snapnames_zapobj: ObjectId(w(4)?),
            num_children: w(5)?,
            creation_time: w(6)?,
            creation_txg: Txg(w(7)?),
            deadlist_obj: ObjectId(w(8)?),
            referenced_bytes: w(9)?,
            compressed_bytes: w(10)?,
            uncompressed_bytes: w(11)?,
            unique_bytes: w(12)?,
            fsid_guid: w(13)?,
            guid: Guid(w(14)?),
            flags: w(15)?,
            bp: BlkPtr::decode(buf.get(128..).unwrap_or(&[]), e)?,
            next_clones_obj: ObjectId(w(32)?),
            props_obj: ObjectId(w(33)?),
            userrefs_obj: ObjectId(w(34)?),
        })
    }

    /// Encodes the 320-byte bonus buffer.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; Self::SIZE] {
        let front = [
            self.dir_obj.0,
            self.prev_snap_obj.0,
            self.prev_snap_txg.0,
            self.next_snap_obj.0,
            self.snapnames_zapobj.0,
            self.num_children,
            self.creation_time,
            self.creation_txg.0,
            self.deadlist_obj.0,
            self.referenced_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.unique_bytes,
            self.fsid_guid,
            self.guid.0,
            self.flags,
        ];
        let back = [self.next_clones_obj.0, self.props_obj.0, self.userrefs_obj.0];
        let mut out = [0; Self::SIZE];
        let words = front.into_iter().chain(self.bp.words).chain(back);
        for (chunk, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = e.put_u64(w);
        }
        out
    }
}

/// The bonus of a deadlist or livelist (OpenZFS: `dsl_deadlist_phys_t`): the space of all its lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeadlistPhys {
    /// Bytes, including parity and copies (raidz deflated).
    pub used: u64,
    /// Compressed bytes.
    pub comp: u64,
    /// Uncompressed bytes.
    pub uncomp: u64,
}

impl DeadlistPhys {
    /// Decodes at least 24 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n| word("deadlist", buf, n, e);
        Ok(DeadlistPhys { used: w(0)?, comp: w(1)?, uncomp: w(2)? })
    }

    /// Bytes of the bonus buffer.
    pub const SIZE: usize = 320;

    /// Encodes the 320-byte bonus buffer.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        for (chunk, w) in out.as_chunks_mut::<8>().0.iter_mut().zip([self.used, self.comp, self.uncomp]) {
            *chunk = e.put_u64(w);
        }
        out
    }
}

/// A bookmark (OpenZFS: `zfs_bookmark_phys_t`): the position of a snapshot in the history of its dataset, kept after the snapshot is
/// destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BookmarkPhys {
    /// Guid of the snapshot.
    pub guid: Guid,
    /// Txg of the snapshot.
    pub creation_txg: Txg,
    /// Creation time of the snapshot, seconds since 1970.
    pub creation_time: u64,
    /// The redaction list object, 0 none.
    pub redaction_obj: ObjectId,
    /// See the `FLAG_` constants.
    pub flags: u64,
    /// Space that the snapshot referenced.
    pub referenced_bytes_refd: u64,
    /// The same compressed.
    pub compressed_bytes_refd: u64,
    /// The same uncompressed.
    pub uncompressed_bytes_refd: u64,
    /// Space that was freed between the snapshot and the next one.
    pub referenced_freed_before_next_snap: u64,
    /// The same compressed.
    pub compressed_freed_before_next_snap: u64,
    /// The same uncompressed.
    pub uncompressed_freed_before_next_snap: u64,
    /// Set of IVs of an encrypted snapshot.
    pub ivset_guid: Guid,
    /// Number of words stored: 3 in the oldest form.
    pub words: usize,
}

impl BookmarkPhys {
    /// The "freed before next snapshot" fields are valid.
    pub const FLAG_HAS_FBN: u64 = 1;
    /// The snapshot still exists.
    pub const FLAG_SNAPSHOT_EXISTS: u64 = 2;

    /// Builds it from the words of a bookmark ZAP's value: at least 3, missing ones are 0.
    ///
    /// # Errors
    /// [`Error::Truncated`] for fewer than 3.
    pub fn from_words(words: &[u64]) -> Result<Self, Error> {
        if words.len() < 3 {
            return Err(Error::short("bookmark", 24, words.len() * 8));
        }
        let w = |n: usize| words.get(n).copied().unwrap_or(0);
        Ok(BookmarkPhys {
            guid: Guid(w(0)),
            creation_txg: Txg(w(1)),
            creation_time: w(2),
            redaction_obj: ObjectId(w(3)),
            flags: w(4),
            referenced_bytes_refd: w(5),
            compressed_bytes_refd: w(6),
            uncompressed_bytes_refd: w(7),
            referenced_freed_before_next_snap: w(8),
            compressed_freed_before_next_snap: w(9),
            uncompressed_freed_before_next_snap: w(10),
            ivset_guid: Guid(w(11)),
            words: words.len().min(12),
        })
    }

    /// True if the fields about space are present (feature `bookmark_written`).
    #[must_use]
    pub const fn has_space(&self) -> bool {
        self.words > 3
    }
}

/// One entry of a redaction list (OpenZFS: `redact_block_phys_t`): blocks that a redacted send omits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedactEntry {
    /// The object.
    pub object: ObjectId,
    /// Its first block.
    pub blkid: u64,
    /// Number of blocks.
    pub count: u64,
    /// Size of a block in bytes.
    pub size: u64,
}

impl RedactEntry {
    /// Bytes of an entry on disk.
    pub const SIZE: usize = 32;

    /// Decodes 32 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n| word("redaction list entry", buf, n, e);
        Ok(Self::from_words(&[w(0)?, w(1)?, w(2)?, w(3)?]))
    }

    /// Builds it from the four words of an entry.
    #[must_use]
    pub const fn from_words(w: &[u64; 4]) -> Self {
        RedactEntry {
            object: ObjectId(w[0]),
            blkid: w[1],
            count: bytes::bits(w[2], 0, 48).saturating_add(1),
            size: bytes::bits(w[2], 48, 16) << crate::SECTOR_SHIFT,
        }
    }
}

/// The header of a redaction list (OpenZFS: `redaction_list_phys_t`), in the bonus or in the spill block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RedactionListPhys {
    /// Progress of an interrupted redaction: object.
    pub last_object: ObjectId,
    /// Progress of an interrupted redaction: block.
    pub last_blkid: u64,
    /// Entries in the object's data.
    pub num_entries: u64,
    /// Guids of the redaction snapshots.
    pub snaps: Vec<Guid>,
}

impl RedactionListPhys {
    /// Decodes a header with as many snapshots as it claims, if the bytes are present.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let what = "redaction list";
        let w = |n| word(what, buf, n, e);
        let (last_object, last_blkid, num_entries, num_snaps) = (w(0)?, w(1)?, w(2)?, w(3)?);
        let rest = buf.get(32..).unwrap_or(&[]);
        if num_snaps > (rest.len() / 8) as u64 {
            return Err(Error::Invalid { what, field: "number of snapshots", value: num_snaps });
        }
        let snaps = bytes::u64s(rest, e).take(num_snaps as usize).map(Guid).collect();
        Ok(RedactionListPhys { last_object: ObjectId(last_object), last_blkid, num_entries, snaps })
    }
}

/// Keys that extend a directory object (it is then a ZAP as well).
pub mod dir_keys {
    /// Number of file systems below, if limits are in use.
    pub const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
    /// Number of snapshots below, if limits are in use.
    pub const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
    /// The key object of an encrypted dataset.
    pub const CRYPTO_KEY_OBJ: &str = "com.datto:crypto_key_obj";
    /// The livelist of a clone.
    pub const LIVELIST: &str = "com.delphix:livelist";
    /// Time of the last change to the list of snapshots: seconds, nanoseconds.
    pub const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";
}

/// Keys that extend a dataset object (it is then a ZAP as well); active features are recorded there under their guids.
pub mod dataset_keys {
    /// ZAP of bookmarks.
    pub const BOOKMARK_NAMES: &str = "com.delphix:bookmarks";
    /// Resume state: guid of the incremental source.
    pub const RESUME_FROMGUID: &str = "com.delphix:resume_fromguid";
    /// Resume state: name of the snapshot being received.
    pub const RESUME_TONAME: &str = "com.delphix:resume_toname";
    /// Resume state: guid of the snapshot being received.
    pub const RESUME_TOGUID: &str = "com.delphix:resume_toguid";
    /// Resume state: last object received.
    pub const RESUME_OBJECT: &str = "com.delphix:resume_object";
    /// Resume state: last offset received.
    pub const RESUME_OFFSET: &str = "com.delphix:resume_offset";
    /// Resume state: bytes received.
    pub const RESUME_BYTES: &str = "com.delphix:resume_bytes";
    /// Resume state: the stream may contain large blocks.
    pub const RESUME_LARGEBLOCK: &str = "com.delphix:resume_largeblockok";
    /// Resume state: the stream may contain embedded blocks.
    pub const RESUME_EMBEDOK: &str = "com.delphix:resume_embedok";
    /// Resume state: the stream may contain compressed blocks.
    pub const RESUME_COMPRESSOK: &str = "com.delphix:resume_compressok";
    /// Resume state: the stream is raw.
    pub const RESUME_RAWOK: &str = "com.datto:resume_rawok";
    /// Resume state: the snapshots of the redaction bookmark.
    pub const RESUME_REDACT_BOOKMARK_SNAPS: &str = "com.delphix:resume_redact_book_snaps";
    /// The set of IVs of an encrypted snapshot.
    pub const IVSET_GUID: &str = "com.datto:ivset_guid";
    /// The snapshot was received raw.
    pub const RAW_RECEIVED: &str = "org.openzfs:raw_received";
    /// Blocks that device removal moved while a snapshot held them.
    pub const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
    /// The feature `redacted_datasets` is active for this dataset: an array of the guids of its redaction snapshots.
    pub const REDACTED_DATASETS: &str = "com.delphix:redacted_datasets";
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_round_trip() {
        let dir = DslDirPhys {
            head_dataset_obj: ObjectId(54),
            used_bytes: 1 << 40,
            clones: ObjectId(9),
            flags: 1,
            ..DslDirPhys::default()
        };
        let ds_bytes: Vec<u8> = (0..280u32).map(|n| (n * 7) as u8).chain([0; 40]).collect();
        for e in [Endian::Little, Endian::Big] {
            assert_eq!(DslDirPhys::decode(&dir.encode(e), e).unwrap(), dir);
            let ds = DslDatasetPhys::decode(&ds_bytes, e).unwrap();
            assert_eq!(ds.encode(e).as_slice(), ds_bytes.as_slice());
        }
        assert!(DslDatasetPhys::decode(&ds_bytes[..200], Endian::Little).is_err());
        assert!(BookmarkPhys::from_words(&[1, 2]).is_err());
        assert!(!BookmarkPhys::from_words(&[1, 2, 3]).unwrap().has_space());
    }

    #[test]
    fn a_redaction_list_that_claims_too_many_snapshots_is_refused() {
        let mut buf = [0u8; 48];
        buf[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(RedactionListPhys::decode(&buf, Endian::Little).is_err());
    }
}
