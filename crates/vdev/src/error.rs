use std::io;

use base::{Errno, Guid};

use crate::report::LeafFault;

/// Why a device, a label or a block could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device failed.
    #[error("{device}: cannot read {len} bytes at {offset:#x}: {source}")]
    Io {
        /// Its name.
        device: String,
        /// The offset, in bytes from its front.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A device could not be written.
    #[error("{device}: cannot write {len} bytes at {offset:#x}: {source}")]
    Write {
        /// Its name.
        device: String,
        /// The offset, in bytes from its front.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A device could not be brought to put what was written on stable storage.
    #[error("{device}: cannot flush: {source}")]
    Flush {
        /// Its name.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another writer has the device.
    #[error("cannot open '{path}': in use{holder}")]
    Busy {
        /// The path.
        path: String,
        /// The holder of its lock, as the end of a sentence; empty if that is not known.
        holder: String,
    },
    /// A write failed on so many devices that the block could not be read again.
    #[error("vdev {vdev}, offset {offset:#x}: write of {size} bytes failed on more devices than redundancy covers")]
    WriteFailed {
        /// The id of the top-level vdev.
        vdev: u64,
        /// Offset on it, in bytes.
        offset: u64,
        /// Bytes of the block.
        size: u64,
        /// The fault of each leaf.
        faults: Vec<LeafFault>,
    },
    /// No device took a label or an uberblock where at least one had to.
    #[error("no device of vdev {vdev} took its {what}")]
    LabelNotWritten {
        /// The top-level vdev.
        vdev: Guid,
        /// `label` or `uberblock`.
        what: &'static str,
    },
    /// Too few devices of a top-level vdev can be written.
    #[error("too few devices of {vdev} can be written")]
    Unwritable {
        /// The top-level vdev.
        vdev: String,
    },
    /// A configuration that is too large for a label.
    #[error("{device}: a configuration of {size} bytes does not fit a label")]
    LabelTooLarge {
        /// The device's name.
        device: String,
        /// Bytes of the packed configuration.
        size: usize,
    },
    /// A device has no label that could be cleared.
    #[error("{device}: no valid ZFS label")]
    NoLabel {
        /// The device's name.
        device: String,
    },
    /// A path could not be opened as a device.
    #[error("cannot open '{path}': {source}")]
    Open {
        /// The path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The leaf has no device, or one that must not be used (offline, faulted, removed).
    #[error("vdev {leaf} is not available")]
    NoDevice {
        /// The leaf.
        leaf: Guid,
    },
    /// An address names a top-level vdev that is not there, or a hole.
    #[error("no top-level vdev {id}")]
    NoVdev {
        /// Its id.
        id: u64,
    },
    /// Too many devices of the vdev are missing to read the block.
    #[error("vdev {vdev}, offset {offset:#x}: too few devices left to read {size} bytes")]
    TooFewDevices {
        /// The id of the top-level vdev.
        vdev: u64,
        /// Offset on it, in bytes.
        offset: u64,
        /// Bytes of the block.
        size: u64,
        /// The fault of each leaf.
        faults: Vec<LeafFault>,
    },
    /// Nothing that the devices hold gives the block that was asked for.
    #[error("vdev {vdev}, offset {offset:#x}: no copy of {size} bytes has the right checksum")]
    Checksum {
        /// The id of the top-level vdev.
        vdev: u64,
        /// Offset on it, in bytes.
        offset: u64,
        /// Bytes of the block.
        size: u64,
        /// The fault of each leaf.
        faults: Vec<LeafFault>,
    },
    /// An offset of a removed device that was not in use when it was removed.
    #[error("vdev {vdev} was removed, and its offset {offset:#x} maps nowhere")]
    Unmapped {
        /// The id of the removed vdev.
        vdev: u64,
        /// Offset on it, in bytes.
        offset: u64,
    },
    /// The mapping of a removed device has not been loaded.
    #[error("vdev {vdev} was removed, and its mapping is not loaded")]
    NoMapping {
        /// The id of the removed vdev.
        vdev: u64,
    },
    /// Mappings of removed devices lead in a circle, or through more devices than there can be.
    #[error("vdev {vdev} was removed, and its mappings do not end")]
    MappingTooDeep {
        /// The id of the first removed vdev.
        vdev: u64,
    },
    /// A block address that cannot be: empty, beyond the vdev, misaligned, or larger than a block can be.
    #[error("vdev {vdev}: no block of {size} bytes can lie at offset {offset:#x}")]
    BadAddress {
        /// The id of the top-level vdev.
        vdev: u64,
        /// Offset on it, in bytes.
        offset: u64,
        /// Bytes of the block.
        size: u64,
    },
    /// A vdev configuration that cannot be.
    #[error("vdev {guid}: bad configuration: {what}")]
    Config {
        /// The vdev, 0 if it has no guid.
        guid: Guid,
        /// The problem.
        what: String,
    },
    /// A device is too small to have labels.
    #[error("{device}: too small to be part of a pool")]
    TooSmall {
        /// Its name.
        device: String,
    },
    /// A device is too small for a new vdev.
    #[error("{device}: {size} bytes are less than the minimum size (64M)")]
    BelowMinimum {
        /// Its name.
        device: String,
        /// Its bytes.
        size: u64,
    },
    /// A device that is to be used again is not the one that it was.
    #[error("{device}: {what}")]
    NotReopened {
        /// Its name.
        device: String,
        /// The fault.
        what: &'static str,
    },
    /// A part of a label has the wrong checksum.
    #[error("{device}: label {index}: {source}")]
    Label {
        /// The device's name.
        device: String,
        /// Which of the four labels.
        index: usize,
        /// The problem.
        source: codec::Error,
    },
    /// The configuration in a label is no nvlist.
    #[error("{device}: label {index}: {source}")]
    LabelConfig {
        /// The device's name.
        device: String,
        /// Which of the four labels.
        index: usize,
        /// The problem.
        source: nvlist::Error,
    },
    /// A list of names lacks one, or has it in another type.
    #[error("bad vdev configuration: {0}")]
    Nvlist(#[from] nvlist::Error),
    /// Bytes are not the structure that they were taken for.
    #[error(transparent)]
    Ondisk(#[from] ondisk::Error),
}

impl Error {
    /// The errno that OpenZFS gives in this case (Linux numbers; a bad checksum is `EBADE`).
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Io { source, .. }
            | Error::Open { source, .. }
            | Error::Write { source, .. }
            | Error::Flush { source, .. } => Errno::of_io(source, Errno::EIO),
            Error::Busy { .. } => Errno::EBUSY,
            Error::BelowMinimum { .. } => Errno::EOVERFLOW,
            Error::NoDevice { .. } | Error::NoVdev { .. } | Error::TooFewDevices { .. } => Errno::ENXIO,
            Error::Checksum { .. } | Error::Label { .. } => Errno::ECKSUM,
            Error::Config { .. } | Error::Nvlist(_) | Error::Ondisk(_) | Error::LabelConfig { .. } => Errno::EINVAL,
            _ => Errno::EIO,
        }
    }

    /// Returns the fault of each leaf, where the error knows.
    #[must_use]
    pub fn faults(&self) -> &[LeafFault] {
        match self {
            Error::TooFewDevices { faults, .. }
            | Error::Checksum { faults, .. }
            | Error::WriteFailed { faults, .. } => faults,
            _ => &[],
        }
    }

    pub(crate) fn config(guid: Guid, what: impl Into<String>) -> Error {
        Error::Config { guid, what: what.into() }
    }
}
