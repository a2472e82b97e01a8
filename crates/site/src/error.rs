//! Errors of the pools of this machine.

use std::io;
use std::path::PathBuf;

use base::Errno;

/// A pool that cannot be found, opened, or recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The environment names no folder for records.
    #[error("no place to remember imported pools: set ZUSE_STATE, XDG_STATE_HOME or HOME")]
    NoFolder,
    /// A file or folder of the site cannot be used.
    #[error("cannot use '{}': {source}", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No device of the pool is where it was.
    #[error("cannot open '{name}': its devices are not there any more")]
    Gone {
        /// The pool.
        name: String,
    },
    /// A device of the pool may not be read by this process.
    #[error("cannot open '{name}': {}: permission denied", path.display())]
    Denied {
        /// The pool.
        name: String,
        /// The device.
        path: PathBuf,
    },
    /// No pool of this name or number is on the devices that were searched.
    #[error("cannot open '{name}': no such pool on these devices")]
    NoSuchPool {
        /// The name or number.
        name: String,
    },
    /// Several pools on the devices that were searched have the name.
    #[error("cannot open '{name}': several pools have this name; use the number: {}", guids.join(", "))]
    SeveralPools {
        /// The name.
        name: String,
        /// Their numbers.
        guids: Vec<String>,
    },
    /// The devices cannot be scanned, opened or locked.
    #[error("cannot open '{name}': {source}")]
    Devices {
        /// The pool.
        name: String,
        /// The cause.
        source: vdev::Error,
    },
    /// The pool does not open.
    #[error("cannot open '{name}': {source}")]
    Open {
        /// The pool.
        name: String,
        /// The cause.
        source: pool::Error,
    },
    /// The machine that has the pools open does not give it.
    #[error("cannot open '{name}': {source}")]
    Machine {
        /// The pool.
        name: String,
        /// The cause.
        source: Box<control::Error>,
        /// The errno of that.
        errno: Errno,
    },
    /// The logs of the pool cannot be replayed in memory: it was changed meanwhile.
    #[error("cannot open '{name}': it was changed while its logs were replayed")]
    ChangedMeanwhile {
        /// The pool.
        name: String,
    },
    /// The pool was imported read-only.
    #[error("cannot open '{name}': pool is read-only")]
    ReadOnly {
        /// The pool.
        name: String,
    },
    /// The pool is imported: it is to be used by its name, not by its devices.
    #[error("cannot open '{name}': the pool is imported")]
    IsImported {
        /// The pool.
        name: String,
    },
    /// Another imported pool has this name, or this pool is imported already.
    #[error("cannot import '{name}': a pool with that name already exists")]
    NameTaken {
        /// The name.
        name: String,
    },
}

/// A pool that could not be found or opened, as the failure of a request.
pub(crate) fn opening(e: Error) -> control::Failed {
    control::Error::Opening(e.errno(), Box::new(e)).into()
}

impl Error {
    /// The failure of a request to open a pool.
    pub(crate) fn of_machine(name: &str, failed: control::Failed) -> Error {
        let control::Failed { errno, error, .. } = failed;
        let (name, other) = match *error {
            control::Error::Opening(_, source) => match source.downcast::<Error>() {
                Ok(known) => return *known,
                Err(source) => (name.to_owned(), control::Error::Opening(errno, source)),
            },
            other => (name.to_owned(), other),
        };
        Error::Machine { name, source: Box::new(other), errno }
    }

    /// The errno that OpenZFS gives for it on Linux.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::NoFolder | Error::NoSuchPool { .. } => Errno::ENOENT,
            Error::Folder { source, .. } => Errno::of_io(source, Errno::EIO),
            Error::Gone { .. } => Errno::ENXIO,
            Error::Denied { .. } => Errno::EACCES,
            Error::SeveralPools { .. } => Errno::EINVAL,
            Error::Devices { source: vdev::Error::Busy { .. }, .. } => Errno::EBUSY,
            Error::Devices { .. } => Errno::EIO,
            Error::Machine { errno, .. } => *errno,
            Error::Open { source, .. } => source.errno(),
            Error::ChangedMeanwhile { .. } => Errno::EAGAIN,
            Error::ReadOnly { .. } => Errno::EROFS,
            Error::IsImported { .. } | Error::NameTaken { .. } => Errno::EEXIST,
        }
    }
}
