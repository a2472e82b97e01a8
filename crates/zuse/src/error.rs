//! Errors of the library.

use std::io;
use std::path::PathBuf;

use base::Errno;
/// Why something could not be done. [`Error::errno`] is what a system call would give.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool, or a dataset in it.
    #[error(transparent)]
    Pool(Box<pool::Error>),
    /// A file.
    #[error(transparent)]
    Files(Box<zpl::Error>),
    /// An object.
    #[error(transparent)]
    Objects(Box<dmu::Error>),
    /// A device.
    #[error(transparent)]
    Devices(Box<vdev::Error>),
    /// The words for new vdevs make none.
    #[error(transparent)]
    Layout(#[from] vdev::create::SpecError),
    /// A device for a new pool holds another one, or something else (EBUSY).
    #[error("{why}")]
    InUse {
        /// The contents found there.
        why: String,
    },
    /// A path in a pool.
    #[error("{}: {source}", String::from_utf8_lossy(path))]
    At {
        /// The path.
        path: Vec<u8>,
        /// The error.
        source: Box<zpl::Error>,
    },
    /// The host: a file there, or what is read or written.
    #[error("{}{source}", path.as_ref().map(|p| format!("{}: ", p.display())).unwrap_or_default())]
    Host {
        /// The path, if it is about one.
        path: Option<PathBuf>,
        /// The system's error.
        source: io::Error,
    },
    /// No pool of that name, or none at all, on these devices (ENOENT).
    #[error("no pool found{}", name.as_ref().map(|n| format!(" named '{n}'")).unwrap_or_default())]
    NoPool {
        /// The name that was asked for.
        name: Option<String>,
    },
    /// More than one pool is on these devices (EINVAL).
    #[error("several pools are there; name one: {}", names.join(", "))]
    SeveralPools {
        /// Their names.
        names: Vec<String>,
    },
    /// The name of a pool that none can have (EINVAL).
    #[error("'{name}': {why}")]
    PoolName {
        /// The name.
        name: String,
        /// The rule that it breaks.
        why: pool::BadPoolName,
    },
    /// A key that is none (EINVAL).
    #[error("{why}")]
    Key {
        /// The reason.
        why: String,
    },
    /// A path in a volume, which has no files (ENOTDIR).
    #[error("'{volume}' is a volume, and has no files")]
    NoFiles {
        /// The volume.
        volume: String,
    },
    /// A change of a pool that was opened for reading (EROFS).
    #[error("pool '{pool}' is open for reading only")]
    ReadOnly {
        /// The pool.
        pool: String,
    },
}

macro_rules! boxed {
    ($($from:ty => $variant:ident),*) => {$(
        impl From<$from> for Error {
            fn from(source: $from) -> Self {
                Error::$variant(Box::new(source))
            }
        }
    )*};
}

boxed!(pool::Error => Pool, zpl::Error => Files, dmu::Error => Objects, vdev::Error => Devices);

impl From<site::Error> for Error {
    fn from(e: site::Error) -> Self {
        match e {
            site::Error::Open { source, .. } => source.into(),
            site::Error::Devices { source, .. } => source.into(),
            site::Error::Folder { path, source } => Error::Host { path: Some(path), source },
            other => Error::Host { path: None, source: io::Error::other(other) },
        }
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        Error::Host { path: None, source }
    }
}

impl Error {
    /// The error number of Linux.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Pool(e) => e.errno(),
            Error::Files(e) | Error::At { source: e, .. } => e.errno(),
            Error::Objects(e) if e.is_not_found() => Errno::ENOENT,
            Error::Objects(_) => Errno::EIO,
            Error::Devices(e) => e.errno(),
            Error::InUse { .. } => Errno::EBUSY,
            Error::Layout(_) | Error::SeveralPools { .. } => Errno::EINVAL,
            Error::Host { source, .. } => Errno::of_io(source, Errno::EIO),
            Error::PoolName { .. } | Error::Key { .. } => Errno::EINVAL,
            Error::NoPool { .. } => Errno::ENOENT,
            Error::NoFiles { .. } => Errno::ENOTDIR,
            Error::ReadOnly { .. } => Errno::EROFS,
        }
    }

    /// Names the path that an error of a file is about.
    pub(crate) fn at(path: &[u8]) -> impl FnOnce(zpl::Error) -> Error {
        let path = path.to_vec();
        move |source| Error::At { path, source: Box::new(source) }
    }

    /// Names the path of the host that an error is about.
    pub(crate) fn host(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Host { path: Some(path), source }
    }
}
