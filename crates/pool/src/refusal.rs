//! Reasons for which a change of a dataset is refused.

use base::Errno;

use crate::Error;

/// The rule that a change would break. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A dataset of this name exists (EEXIST).
    #[error("dataset already exists")]
    Exists,
    /// The dataset that it shall be in does not exist (ENOENT).
    #[error("parent does not exist")]
    NoParent,
    /// The parent is a volume (`ZFS_ERR_WRONG_PARENT`).
    #[error("parent is not a filesystem")]
    NotAFilesystem,
    /// In use: open, mounted, or with a key that is needed (EBUSY).
    #[error("dataset is busy")]
    Busy,
    /// A snapshot that is held (EBUSY).
    #[error("it's being held; run 'zfs holds -r' to see holders")]
    Held,
    /// A snapshot with clones (EEXIST).
    #[error("dataset has dependent clones")]
    HasClones,
    /// A head with snapshots (EBUSY).
    #[error("dataset has snapshots")]
    HasSnapshots,
    /// A directory with children (EEXIST).
    #[error("dataset has children")]
    HasChildren,
    /// Beyond a quota (EDQUOT).
    #[error("disk quota exceeded")]
    Quota,
    /// More than the pool, or what is above, has room for (ENOSPC).
    #[error("out of space")]
    NoSpace,
    /// A name of 256 or more bytes, of the thing itself or of one below it (ENAMETOOLONG).
    #[error("dataset name is too long")]
    NameTooLong,
    /// More than 50 levels (ENAMETOOLONG).
    #[error("dataset nesting is too deep")]
    TooDeep,
    /// Two pools, or two lines of descent (EXDEV).
    #[error("crosses pools or lines of descent")]
    CrossPool,
    /// A snapshot is wanted (EINVAL).
    #[error("not a snapshot")]
    NotSnapshot,
    /// A clone is wanted (EINVAL).
    #[error("not a cloned filesystem")]
    NotClone,
    /// A bookmark is to be made of what is no past of its file system (`ZFS_ERR_BOOKMARK_SOURCE_NOT_ANCESTOR`).
    #[error("source is not an ancestor of the new bookmark's dataset")]
    NotAncestor,
    /// Other snapshots, or bookmarks, are younger (EEXIST).
    #[error("more recent snapshots or bookmarks exist")]
    NotLatest,
    /// The key is not loaded (EACCES).
    #[error("encryption key is not loaded")]
    KeyUnavailable,
    /// The key is loaded already (EEXIST).
    #[error("key already loaded")]
    KeyLoaded,
    /// A hold of this tag is there (EEXIST).
    #[error("tag already exists on this dataset")]
    TagExists,
    /// The tag is too long (E2BIG).
    #[error("tag too long")]
    TagTooLong,
    /// The value of a property is too long (E2BIG).
    #[error("property value too long")]
    ValueTooLong,
    /// Only an encryption root has a place of its key (EACCES).
    #[error("keylocation must be 'prompt' or a URI, and can only be set on an encryption root")]
    KeyLocation,
    /// The new place would need another key (EACCES).
    #[error("would change the encryption root")]
    EncryptionRoot,
    /// No snapshot to roll back to (ESRCH).
    #[error("no such snapshot to go back to")]
    NoSnapshot,
    /// The snapshot was made in this moment: try again (EAGAIN).
    #[error("snapshot is not on disk yet")]
    TryAgain,
    /// The head changed since its last snapshot (ETXTBSY).
    #[error("dataset was modified since its most recent snapshot")]
    Modified,
    /// No snapshot is the base of the stream (ENODEV).
    #[error("most recent snapshot does not match incremental source")]
    NoBase,
    /// A stream with features that are not known (`ZFS_ERR_UNKNOWN_SEND_STREAM_FEATURE`).
    #[error("stream has unsupported feature")]
    UnknownStream,
    /// A raw stream of an implementation that loses spill blocks (`ZFS_ERR_SPILL_BLOCK_FLAG_MISSING`).
    #[error("the raw stream does not say which objects have spill blocks")]
    SpillFlag,
    /// The base has large blocks, the stream has none (`ZFS_ERR_STREAM_LARGE_BLOCK_MISMATCH`).
    #[error("the dataset has large blocks: the stream must be sent with them")]
    LargeBlocks,
    /// A raw stream that does not name the IVs of its base, or the base has none (`ZFS_ERR_FROM_IVSET_GUID_MISSING`).
    #[error("IV set guid missing")]
    IvsetMissing,
    /// A raw stream whose base has other IVs (`ZFS_ERR_FROM_IVSET_GUID_MISMATCH`).
    #[error("IV set guid mismatch")]
    IvsetMismatch,
    /// A raw stream whose keys are not those of the dataset (EACCES).
    #[error("encryption key does not match existing key")]
    OtherKey,
    /// A raw stream with a cipher that is not known (`ZFS_ERR_CRYPTO_NOTSUP`).
    #[error("the cipher of the stream is not known")]
    CryptoUnsupported,
    /// A full stream is resumed into a dataset that has something already (`ZFS_ERR_RESUME_EXISTS`).
    #[error("resuming a full stream into an existing dataset needs force")]
    ResumeExists,
    /// Half received or half destroyed (EBUSY).
    #[error("dataset is inconsistent")]
    Inconsistent,
    /// The pool's version or features do not have it (ENOTSUP).
    #[error("operation not supported on this type of dataset or pool")]
    Unsupported,
    /// A value beyond what can be (EOVERFLOW).
    #[error("value is too large")]
    Overflow,
    /// Anything else that makes no sense, with the reason (EINVAL).
    #[error("{0}")]
    Invalid(&'static str),
}

impl Refusal {
    /// The errno that OpenZFS gives on Linux; above 1024 are its own.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Refusal::NoParent => Errno::ENOENT,
            Refusal::NoSnapshot => Errno::ESRCH,
            Refusal::TagTooLong | Refusal::ValueTooLong => Errno::E2BIG,
            Refusal::TryAgain => Errno::EAGAIN,
            Refusal::KeyUnavailable | Refusal::KeyLocation | Refusal::EncryptionRoot | Refusal::OtherKey => {
                Errno::EACCES
            }
            Refusal::Busy | Refusal::Held | Refusal::HasSnapshots | Refusal::Inconsistent => Errno::EBUSY,
            Refusal::Exists
            | Refusal::HasClones
            | Refusal::HasChildren
            | Refusal::NotLatest
            | Refusal::KeyLoaded
            | Refusal::TagExists => Errno::EEXIST,
            Refusal::CrossPool => Errno::EXDEV,
            Refusal::NotSnapshot | Refusal::NotClone | Refusal::Invalid(_) => Errno::EINVAL,
            Refusal::NoBase => Errno::ENODEV,
            Refusal::Modified => Errno::ETXTBSY,
            Refusal::NoSpace => Errno::ENOSPC,
            Refusal::NameTooLong | Refusal::TooDeep => Errno::ENAMETOOLONG,
            Refusal::Overflow => Errno::EOVERFLOW,
            Refusal::Unsupported => Errno::ENOTSUP,
            Refusal::Quota => Errno::EDQUOT,
            Refusal::NotAFilesystem => Errno::ZFS_ERR_WRONG_PARENT,
            Refusal::IvsetMissing => Errno::ZFS_ERR_FROM_IVSET_GUID_MISSING,
            Refusal::IvsetMismatch => Errno::ZFS_ERR_FROM_IVSET_GUID_MISMATCH,
            Refusal::SpillFlag => Errno::ZFS_ERR_SPILL_BLOCK_FLAG_MISSING,
            Refusal::UnknownStream => Errno::ZFS_ERR_UNKNOWN_SEND_STREAM_FEATURE,
            Refusal::NotAncestor => Errno::ZFS_ERR_BOOKMARK_SOURCE_NOT_ANCESTOR,
            Refusal::LargeBlocks => Errno::ZFS_ERR_STREAM_LARGE_BLOCK_MISMATCH,
            Refusal::ResumeExists => Errno::ZFS_ERR_RESUME_EXISTS,
            Refusal::CryptoUnsupported => Errno::ZFS_ERR_CRYPTO_NOTSUP,
        }
    }
}

/// Returns the error of a change of `name` that is refused.
pub(crate) fn refused(name: &str, why: Refusal) -> Error {
    Error::Refused { name: name.to_string(), why }
}

#[cfg(test)]
mod tests {
    use base::Errno;

    use super::Refusal;

    #[test]
    fn errnos_are_those_of_linux() {
        assert_eq!(Refusal::Exists.errno(), Errno::EEXIST);
        assert_eq!(Refusal::Quota.errno(), Errno::EDQUOT);
        assert_eq!(Refusal::NotAFilesystem.errno(), Errno::ZFS_ERR_WRONG_PARENT);
        assert_eq!(Refusal::Invalid("x").to_string(), "x");
    }
}
