//! Errors of pools and datasets.

use base::{Errno, ObjectId, Txg};

use crate::Refusal;
use crate::spa::{ScrubRefusal, VdevRefusal};

/// Why a pool could not be opened, or something in it not be found or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An object, a ZAP or a block could not be read.
    #[error(transparent)]
    Dmu(#[from] dmu::Error),
    /// A block could not be read.
    #[error(transparent)]
    Zio(#[from] zio::Error),
    /// The devices do not make up a tree, or cannot be read.
    #[error(transparent)]
    Vdev(#[from] vdev::Error),
    /// A packed list is broken or lacks something.
    #[error("{what}: {source}")]
    Nvlist {
        /// Which list.
        what: &'static str,
        /// The problem.
        source: nvlist::Error,
    },
    /// A space map contradicts itself.
    #[error("space map object {object}: {source}")]
    Space {
        /// The space map's object in the MOS.
        object: ObjectId,
        /// The problem.
        source: space::Error,
    },
    /// A structure in the MOS is not what it was taken for.
    #[error("object {object} of the MOS: {source}")]
    Format {
        /// The object.
        object: ObjectId,
        /// The problem.
        source: ondisk::Error,
    },
    /// Objects of the MOS contradict each other.
    #[error("object {object} of the MOS: {what}")]
    Corrupt {
        /// The object.
        object: ObjectId,
        /// The contradiction.
        what: String,
    },
    /// No device has an uberblock that fits what was asked for.
    #[error("{0}")]
    NoUberblock(String),
    /// No uberblock leads to a readable MOS; the reason is that of the newest one.
    #[error("no usable state of the pool found: txg {txg}: {source}")]
    Unreadable {
        /// The newest txg that was tried.
        txg: Txg,
        /// Why it is of no use.
        source: Box<Error>,
    },
    /// A rewind to a checkpoint was asked for, and there is none.
    #[error("the pool has no checkpoint")]
    NoCheckpoint,
    /// The pool's format is newer than any that is known.
    #[error("the pool has version {0}, which is not known here")]
    Version(u64),
    /// The pool uses features that are needed to read it and not known here.
    #[error("the pool uses features that are not supported here: {}", .0.join(", "))]
    Features(Vec<String>),
    /// The vdevs of the pool stay as they are.
    #[error(transparent)]
    Vdevs(VdevRefusal),
    /// Whole top-level vdevs are missing.
    #[error("top-level vdevs are missing: {}", .0.join(", "))]
    MissingVdevs(Vec<String>),
    /// No such dataset, snapshot or bookmark (ENOENT).
    #[error("cannot open '{name}': dataset does not exist")]
    NoSuchDataset {
        /// The name.
        name: String,
    },
    /// A name that no dataset can have (EINVAL).
    #[error("'{name}': {why}")]
    InvalidName {
        /// The name.
        name: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// Two snapshots, or a snapshot and a bookmark, that are not in one line of descent (EXDEV).
    #[error("'{from}' is not an earlier snapshot of '{to}'")]
    NotEarlier {
        /// The snapshot that should have been the earlier one.
        from: String,
        /// The snapshot that should have been the later one.
        to: String,
    },
    /// The dataset is not encrypted (EINVAL).
    #[error("'{name}' is not encrypted")]
    NotEncrypted {
        /// The dataset.
        name: String,
    },
    /// The dataset's key is that of another dataset, its encryption root (EINVAL).
    #[error("keys must be loaded for the encryption root of '{name}' ({root})")]
    NotEncryptionRoot {
        /// The dataset.
        name: String,
        /// Its encryption root.
        root: String,
    },
    /// The key does not open the dataset, or is malformed (EACCES).
    #[error("key of '{name}': {source}")]
    Key {
        /// The dataset.
        name: String,
        /// The problem.
        source: codec::Error,
    },
    /// The newest state cannot be used, an older one can: going back loses what came since (EIO).
    #[error("txg {txg} cannot be used ({why}); going back to txg {back} would lose what came since")]
    NeedsRewind {
        /// The newest txg.
        txg: Txg,
        /// The problem.
        why: String,
        /// The newest that is good.
        back: Txg,
    },
    /// The devices that are there were away when the pool was written last, or do not suffice for what was written then (EIO).
    #[error("it was left in txg {left}, and the newest state that can be opened here is that of txg {found}{}", why.as_ref().map_or_else(String::new, |why| format!(" ({why})")))]
    Behind {
        /// The txg that was written last.
        left: Txg,
        /// The newest that can be opened.
        found: Txg,
        /// Why a newer one that a device knows cannot.
        why: Option<String>,
    },
    /// Blocks of a state's last txgs are not there (EIO).
    #[error("{metadata} metadata blocks and {data} data blocks of the last txgs cannot be read")]
    Unverified {
        /// Blocks of metadata.
        metadata: u64,
        /// Blocks of data.
        data: u64,
    },
    /// A device is being brought up to date (EBUSY).
    #[error("currently resilvering")]
    Resilvering,
    /// Blocks are being read already (EBUSY).
    #[error(transparent)]
    Scrubbing(ScrubRefusal),
    /// There is a checkpoint already, or the last one is being discarded (EEXIST).
    #[error("checkpoint exists")]
    CheckpointExists,
    /// There is no room for what was to be written (ENOSPC).
    #[error("no space left in the pool")]
    NoSpace,
    /// A sync failed: nothing more is written (EIO).
    #[error("the pool is suspended: {0}")]
    Suspended(std::sync::Arc<Error>),
    /// Devices are gone, or fail: more than redundancy covers (EIO).
    #[error("{0}")]
    IoFailure(String),
    /// An invariant of Zuse's own is broken, whatever is on disk. The pool is suspended before it commits anything more (EIO).
    #[error("bug: {0}; nothing of it was committed")]
    Bug(String),
    /// A background task of the pool ended with an error; it can be started again (errno of the error).
    #[error("{task}: {source}")]
    Background {
        /// The task.
        task: &'static str,
        /// The cause.
        source: std::sync::Arc<Error>,
    },
    /// The pool was closed meanwhile (EIO).
    #[error("the pool was closed")]
    Closed,
    /// A snapshot cannot be changed, nor the size of a read-only volume (EROFS).
    #[error("'{name}' is read-only")]
    ReadOnlyDataset {
        /// The snapshot or volume.
        name: String,
    },
    /// The pool can only be opened for reading (EROFS).
    #[error("the pool can only be opened for reading: {0}")]
    NotWritable(String),
    /// The pool does not have this feature enabled (ENOTSUP).
    #[error("feature '{0}' is not enabled in the pool")]
    FeatureDisabled(String),
    /// Another machine uses the pool, or did and did not export it (EBUSY).
    #[error("the pool was last in use by another system: {host} (hostid={id:x})")]
    InUseByHost {
        /// Its name.
        host: String,
        /// Its hostid.
        id: u64,
    },
    /// Another machine has the pool open: what it writes was seen (EREMOTEIO).
    #[error(
        "pool is imported on host '{host}' (hostid={id:x}). Export the pool on the other system, then run 'zpool import'."
    )]
    ActiveElsewhere {
        /// Its name.
        host: String,
        /// Its hostid.
        id: u64,
    },
    /// The pool is protected from use by several machines, and this one has no number to be known by (ENXIO).
    #[error(
        "pool has the multihost property on and the system's hostid is not set. Set a unique hostid with the zgenhostid(8) command."
    )]
    NoHostid,
    /// Other machines could not be told that the pool is taken (ENODEV).
    #[error("the multihost claim could not be written to enough devices of vdev {vdev}")]
    ClaimNotWritten {
        /// The top-level vdev.
        vdev: base::Guid,
    },
    /// No multihost write succeeded for so long that another machine may take the pool (EIO).
    #[error("no multihost write has succeeded for {ms} ms; another system could import the pool undetected")]
    NoHeartbeat {
        /// Milliseconds.
        ms: u64,
    },
    /// A change breaks a rule; nothing was changed (errno by the [`Refusal`]).
    #[error("'{name}': {why}")]
    Refused {
        /// The dataset, snapshot or bookmark.
        name: String,
        /// The rule.
        why: Refusal,
    },
    /// A change of many things fails for some; nothing was changed (errno of the first).
    #[error("{}", .0.iter().map(|(_, error)| error.to_string()).collect::<Vec<_>>().join("; "))]
    Many(Vec<(String, Error)>),
    /// The thread that syncs cannot be started.
    #[error("the thread that syncs cannot be started: {source}")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns whether no device said what a block holds, or the pool is suspended: what failed may succeed when devices answer again.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        match self {
            Error::Dmu(error) => error.is_unanswered(),
            Error::Zio(error) => error.is_unanswered(),
            Error::Suspended(_) | Error::IoFailure(_) | Error::Closed => true,
            _ => false,
        }
    }

    /// The errno that OpenZFS gives on Linux in such a case.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Zio(e) | Error::Dmu(dmu::Error::Zio(e)) => e.errno(),
            Error::Dmu(e) if e.is_not_found() => Errno::ENOENT,
            Error::NoSuchDataset { .. } => Errno::ENOENT,
            Error::NoSpace => Errno::ENOSPC,
            Error::Refused { why, .. } => why.errno(),
            Error::Background { source, .. } => source.errno(),
            Error::Vdevs(why) => why.errno(),
            Error::Many(all) => all.first().map_or(Errno::EIO, |(_, error)| error.errno()),
            Error::ReadOnlyDataset { .. } | Error::NotWritable(_) => Errno::EROFS,
            Error::InUseByHost { .. } | Error::Resilvering | Error::Scrubbing(_) => Errno::EBUSY,
            Error::ActiveElsewhere { .. } => Errno::EREMOTEIO,
            Error::NoHostid => Errno::ENXIO,
            Error::ClaimNotWritten { .. } => Errno::ENODEV,
            Error::CheckpointExists => Errno::EEXIST,
            Error::NotEarlier { .. } => Errno::EXDEV,
            Error::Version(_) | Error::Features(_) | Error::FeatureDisabled(_) => Errno::ENOTSUP,
            Error::Key { .. } => Errno::EACCES,
            Error::InvalidName { .. }
            | Error::NotEncrypted { .. }
            | Error::NotEncryptionRoot { .. }
            | Error::NoCheckpoint => Errno::EINVAL,
            _ => Errno::EIO,
        }
    }

    /// Whether the thing asked for is not there, as opposed to unreadable.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Error::NoSuchDataset { .. } => true,
            Error::Dmu(e) => e.is_not_found(),
            _ => false,
        }
    }

    pub(crate) fn corrupt(object: ObjectId, what: impl Into<String>) -> Self {
        Error::Corrupt { object, what: what.into() }
    }

    pub(crate) fn no_dataset(name: &str) -> Self {
        Error::NoSuchDataset { name: name.to_string() }
    }
}
