use std::fmt;

use base::Errno;
use ondisk::Dva;
use vdev::{FaultKind, LeafFault};

use crate::Bookmark;

/// The reason why one copy of a block cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The devices returned nothing that satisfies the checksum, or nothing at all.
    #[error("{0}")]
    Device(Box<vdev::Error>),
    /// The bytes were read and are not those that were written.
    #[error("{kind} checksum mismatch{}", because(device.as_deref()))]
    Checksum {
        /// The name of the checksum function.
        kind: &'static str,
        /// The devices at fault, and how. `None` if each part was right and the whole is not.
        device: Option<Box<vdev::Error>>,
    },
    /// The checksum cannot be computed: the pool's salt is not known.
    #[error("{0}")]
    Codec(codec::Error),
    /// The gang header, or the tree of gang headers, is impossible.
    #[error("gang block: {0}")]
    Gang(&'static str),
    /// A block that a gang header points at cannot be read.
    #[error("gang member {member}: {cause}")]
    GangMember {
        /// The index of the pointer in the header.
        member: usize,
        /// Its copies, and what is wrong with each.
        cause: Box<CopyFailures>,
    },
}

fn because(cause: Option<&vdev::Error>) -> String {
    cause.map_or_else(String::new, |e| format!(" ({e})"))
}

impl Fault {
    /// The leaf devices that are known to be at fault.
    #[must_use]
    pub fn leaves(&self) -> &[LeafFault] {
        match self {
            Fault::Device(e) => e.faults(),
            Fault::Checksum { device, .. } => device.as_ref().map_or(&[], |e| e.faults()),
            _ => &[],
        }
    }
}

/// One copy of a block, and the reason why it cannot be used.
#[derive(Debug)]
pub struct CopyFailure {
    /// The address of the copy.
    pub dva: Dva,
    /// The reason.
    pub fault: Fault,
}

/// Every copy of a block, none of which can be used.
#[derive(Debug, Default)]
pub struct CopyFailures(pub Vec<CopyFailure>);

impl CopyFailures {
    /// True if bytes were read and found wrong (OpenZFS: `ECKSUM`), not merely unreadable (`EIO`, `ENXIO`).
    #[must_use]
    pub fn is_checksum(&self) -> bool {
        self.0.iter().any(|copy| match &copy.fault {
            Fault::Checksum { .. } | Fault::Gang(_) => true,
            Fault::GangMember { cause, .. } => cause.is_checksum(),
            Fault::Device(_) | Fault::Codec(_) => false,
        })
    }

    /// True if a device that may hold a copy, or a part of one, did not answer.
    fn lack_answers(&self) -> bool {
        let unanswered = |leaves: &[LeafFault]| leaves.iter().any(|leaf| leaf.kind == FaultKind::Io);
        self.0.iter().any(|copy| match &copy.fault {
            Fault::Device(_) => true,
            Fault::GangMember { cause, .. } => cause.lack_answers(),
            fault => unanswered(fault.leaves()),
        })
    }
}

impl fmt::Display for CopyFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, copy) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "; " };
            write!(f, "{comma}DVA {}: {}", copy.dva, copy.fault)?;
        }
        if self.0.is_empty() { f.write_str("it has no copies") } else { Ok(()) }
    }
}

/// The reason why a block could not be read or written. Every variant names the block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The block is encrypted and its dataset's key is not loaded (OpenZFS: `EACCES`).
    #[error("block {bm}: the encryption key of dataset {} is not loaded", bm.objset)]
    KeyNotLoaded {
        /// The block.
        bm: Bookmark,
    },
    /// No copy has the bytes that were written (OpenZFS: `ECKSUM`).
    #[error("block {bm}: checksum error: {copies}")]
    Checksum {
        /// The block.
        bm: Bookmark,
        /// The fault of each copy.
        copies: CopyFailures,
    },
    /// No copy can be read (OpenZFS: `EIO`).
    #[error("block {bm}: I/O error: {copies}")]
    Io {
        /// The block.
        bm: Bookmark,
        /// The fault of each copy.
        copies: CopyFailures,
    },
    /// Another host writes the pool and has reused space that was freed since the state being read (`ESTALE`).
    #[error("block {bm}: it was freed while the pool was being read, and its space was reused")]
    Overtaken {
        /// The block.
        bm: Bookmark,
    },
    /// The checksum is right, but the data does not decompress (OpenZFS: `EIO`).
    #[error("block {bm}: {source}")]
    Decompress {
        /// The block.
        bm: Bookmark,
        /// The decompressor's error.
        source: codec::Error,
    },
    /// The checksum is right, but the MAC is not: forged, or the wrong key (OpenZFS: `EIO` with an ereport).
    #[error("block {bm}: {source}")]
    Auth {
        /// The block.
        bm: Bookmark,
        /// The authentication error.
        source: codec::Error,
    },
    /// The block was left out by a redacted send (OpenZFS: `EIO`).
    #[error("block {bm} was redacted: its data is not in this pool")]
    Redacted {
        /// The block.
        bm: Bookmark,
    },
    /// The pointer has an impossible field.
    #[error("block {bm}: {source}")]
    BadPointer {
        /// The block.
        bm: Bookmark,
        /// The impossible field.
        source: ondisk::Error,
    },
    /// The pointer names an algorithm that this program does not know.
    #[error("block {bm}: unknown {what} {value}")]
    Unsupported {
        /// The block.
        bm: Bookmark,
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The pool was opened for reading only (OpenZFS: `EROFS`).
    #[error("block {bm}: the pool is open for reading only")]
    ReadOnly {
        /// The block.
        bm: Bookmark,
    },
    /// No space for the block, not even in pieces (OpenZFS: `ENOSPC`).
    #[error("block {bm}: no space for {psize} bytes")]
    NoSpace {
        /// The block.
        bm: Bookmark,
        /// Bytes wanted.
        psize: u64,
    },
    /// Space cannot be allocated, freed or claimed, for the pool's reason.
    #[error("block {bm}: {reason}")]
    Space {
        /// The block.
        bm: Bookmark,
        /// The reason.
        reason: String,
    },
    /// The devices failed to write the block (OpenZFS: `EIO`, and the pool is suspended).
    #[error("block {bm} cannot be written: {source}")]
    Write {
        /// The block.
        bm: Bookmark,
        /// The device and its error.
        source: Box<vdev::Error>,
    },
    /// The block cannot be encrypted, authenticated or checksummed.
    #[error("block {bm} cannot be prepared: {source}")]
    Encode {
        /// The block.
        bm: Bookmark,
        /// The codec's error.
        source: codec::Error,
    },
    /// The request cannot become a block.
    #[error("block {bm} cannot be written: {what}")]
    BadRequest {
        /// The block.
        bm: Bookmark,
        /// The reason.
        what: &'static str,
    },
    /// An invariant of Zuse's own is broken.
    #[error("bug: block {bm}: {what}")]
    Bug {
        /// The block.
        bm: Bookmark,
        /// The invariant.
        what: &'static str,
    },
    /// A table of references cannot be read.
    #[error("block {bm}: {source}")]
    Table {
        /// The block.
        bm: Bookmark,
        /// The table's error.
        source: crate::TableError,
    },
}

impl Error {
    /// The block that the error is about.
    #[must_use]
    pub fn bookmark(&self) -> Bookmark {
        match self {
            Error::KeyNotLoaded { bm }
            | Error::Checksum { bm, .. }
            | Error::Io { bm, .. }
            | Error::Decompress { bm, .. }
            | Error::Auth { bm, .. }
            | Error::Redacted { bm }
            | Error::Overtaken { bm }
            | Error::BadPointer { bm, .. }
            | Error::Unsupported { bm, .. }
            | Error::ReadOnly { bm }
            | Error::NoSpace { bm, .. }
            | Error::Space { bm, .. }
            | Error::Write { bm, .. }
            | Error::Encode { bm, .. }
            | Error::BadRequest { bm, .. }
            | Error::Bug { bm, .. }
            | Error::Table { bm, .. } => *bm,
        }
    }

    /// The errno that OpenZFS on Linux returns: 13 `EACCES` without a key, 52 (`EBADE`, its `ECKSUM`), 28 `ENOSPC`, 30 `EROFS`, 22
    /// `EINVAL`, else 5 `EIO`; and 116 `ESTALE` for [`Error::Overtaken`], as of a file server.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::KeyNotLoaded { .. } => Errno::EACCES,
            Error::Checksum { .. } => Errno::ECKSUM,
            Error::ReadOnly { .. } => Errno::EROFS,
            Error::Overtaken { .. } => Errno::ESTALE,
            Error::NoSpace { .. } => Errno::ENOSPC,
            Error::BadRequest { .. } => Errno::EINVAL,
            _ => Errno::EIO,
        }
    }

    /// True if no device said what the block holds: it may be readable when they answer again.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Error::Io { .. } | Error::Overtaken { .. })
    }

    /// True if a device that may hold the block did not answer, whatever the others said: the block may be readable when it answers again.
    #[must_use]
    pub fn lacks_answers(&self) -> bool {
        self.is_unanswered() || matches!(self, Error::Checksum { copies, .. } if copies.lack_answers())
    }

    /// No copy could be used: [`Error::Checksum`] or [`Error::Io`].
    pub(crate) fn unreadable(bm: &Bookmark, copies: CopyFailures) -> Self {
        if copies.is_checksum() { Error::Checksum { bm: *bm, copies } } else { Error::Io { bm: *bm, copies } }
    }
}
