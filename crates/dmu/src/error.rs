//! Errors above block pointers.

use base::ObjectId;
use zio::Bookmark;

/// The reason why an object, a ZAP or an attribute could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block could not be read, verified or decrypted.
    #[error(transparent)]
    Zio(#[from] zio::Error),
    /// A block holds bytes that are not the structure that belongs there.
    #[error("object {object} of dataset {objset}: {source}")]
    Format {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
        /// The decoder's error.
        source: ondisk::Error,
    },
    /// The object does not exist: the slot is free, inside a larger dnode, or beyond the end (ENOENT).
    #[error("object {object} does not exist in dataset {objset}")]
    NoObject {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object asked for.
        object: ObjectId,
    },
    /// The object's structure contradicts itself.
    #[error("object {object} of dataset {objset}: {what} is {value}, which cannot be")]
    Corrupt {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
        /// The field or relation that is wrong.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The fill count of a block pointer differs from the number of blocks (in the meta-dnode's tree: dnodes) below it.
    #[error(
        "object {} of dataset {}, level {}, block {}: the fill count of its pointer is {counted}, which should be {found}",
        .bm.object, .bm.objset, .bm.shown_level(), .bm.blkid
    )]
    Fill {
        /// The block that the pointer leads to.
        bm: Bookmark,
        /// The fill count in the pointer.
        counted: u64,
        /// The count of the blocks or dnodes below it.
        found: u64,
    },
    /// The object is of another type than the caller needs (EINVAL).
    #[error("object {object} of dataset {objset} is of type {found:?}, not {wanted}")]
    WrongType {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
        /// Its type.
        found: ondisk::ObjectType,
        /// The type that the caller needs.
        wanted: &'static str,
    },
    /// The operation does not fit this kind of ZAP: a name looked up in a ZAP with number keys, or the reverse (ENOTSUP).
    #[error("ZAP object {object} of dataset {objset} {what}")]
    KeyKind {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
        /// The operation that this kind does not support.
        what: &'static str,
    },
    /// The object set was opened for reading only (EROFS).
    #[error("dataset {objset} is open for reading only: object {object} is not changed")]
    ReadOnly {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
    },
    /// The object's number is taken, or was freed in a txg that is not on disk yet (EEXIST).
    #[error("object {object} of dataset {objset} exists already")]
    Exists {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
    },
    /// A change that the object cannot take (EINVAL, ENOTSUP).
    #[error("object {object} of dataset {objset}: {what} cannot be {value}")]
    Refused {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
        /// The change that was refused.
        what: &'static str,
        /// The value asked for.
        value: u64,
    },
    /// The object is changed in another txg, by a transaction that is not finished (EAGAIN).
    #[error("{} of dataset {objset} is changed in another txg than {txg}", .object.map_or("an object".to_string(), |id| format!("object {id}")))]
    InOtherTxg {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object; `None` for all of the dataset.
        object: Option<ObjectId>,
        /// The txg of the transaction.
        txg: base::Txg,
    },
    /// The ZAP has an entry of this key already (EEXIST).
    #[error("ZAP object {object} of dataset {objset} has an entry '{key}' already")]
    KeyExists {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
        /// The key, as text or in hexadecimal words.
        key: String,
    },
    /// An invariant of Zuse's own is broken.
    #[error("bug: object {object} of dataset {objset}: {what}")]
    Bug {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
        /// The invariant.
        what: &'static str,
    },
    /// The ZAP can hold no more keys of such hashes (ENOSPC).
    #[error("ZAP object {object} of dataset {objset}: too many keys of nearly the same hash")]
    TooManyCollisions {
        /// The dataset (0 is the MOS).
        objset: ObjectId,
        /// The object.
        object: ObjectId,
    },
}

impl Error {
    /// True if no device said what a block holds: it may be readable when they answer again.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Error::Zio(error) if error.is_unanswered())
    }

    /// True if a device that may hold a block did not answer, whatever the others said: the block may be readable when it answers again.
    #[must_use]
    pub fn lacks_answers(&self) -> bool {
        matches!(self, Error::Zio(error) if error.lacks_answers())
    }

    /// True if the object does not exist (ENOENT), as opposed to being unreadable.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::NoObject { .. })
    }
}
