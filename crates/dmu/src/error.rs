//! What can go wrong above block pointers.

/// Why an object, a ZAP or an attribute could not be read.
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
        objset: u64,
        /// The object.
        object: u64,
        /// What is wrong.
        source: ondisk::Error,
    },
    /// There is no such object: the slot is free, inside a larger dnode, or beyond the end (ENOENT).
    #[error("object {object} does not exist in dataset {objset}")]
    NoObject {
        /// The dataset (0 is the MOS).
        objset: u64,
        /// The object asked for.
        object: u64,
    },
    /// The object's structure contradicts itself.
    #[error("object {object} of dataset {objset}: {what} is {value}, which cannot be")]
    Corrupt {
        /// The dataset (0 is the MOS).
        objset: u64,
        /// The object.
        object: u64,
        /// The field or relation that is wrong.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The object is of another type than the caller needs (EINVAL).
    #[error("object {object} of dataset {objset} is of type {found:?}, not {wanted}")]
    WrongType {
        /// The dataset (0 is the MOS).
        objset: u64,
        /// The object.
        object: u64,
        /// Its type.
        found: ondisk::ObjectType,
        /// What was needed.
        wanted: &'static str,
    },
    /// The operation does not fit this kind of ZAP: a name looked up in a ZAP with number keys, or the reverse (ENOTSUP).
    #[error("ZAP object {object} of dataset {objset} {what}")]
    KeyKind {
        /// The dataset (0 is the MOS).
        objset: u64,
        /// The object.
        object: u64,
        /// What it cannot do.
        what: &'static str,
    },
}

impl Error {
    /// Whether nothing is there (ENOENT), as opposed to something unreadable.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::NoObject { .. })
    }
}
