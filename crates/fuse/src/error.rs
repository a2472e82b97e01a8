//! Reasons why a file system cannot be mounted or unmounted.

use std::io;
use std::path::PathBuf;

use base::Errno;

/// A failure to mount or unmount.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device of FUSE cannot be opened.
    #[error("/dev/fuse: {0}")]
    Device(#[source] io::Error),
    /// The mount point is missing, or not a directory.
    #[error("{}: {source}", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The name of a dataset contains what a mount option cannot.
    #[error("'{name}' cannot be in the mount table")]
    Name {
        /// The name.
        name: String,
    },
    /// The kernel refuses to mount.
    #[error("mounting at {}: {source}", path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// `fusermount3`, by which users mount, failed.
    #[error("fusermount3: {said}")]
    Helper {
        /// Its message.
        said: String,
    },
    /// The kernel and this program do not agree on a protocol, or the mount went away at once.
    #[error("starting to serve {}: {source}", path.display())]
    Session {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It cannot be unmounted: somebody uses it, or it is no longer mounted.
    #[error("unmounting {}: {source}", path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The kernel was not told of a change.
    #[error("telling the kernel of a change: {0}")]
    Notify(#[source] io::Error),
}

impl Error {
    /// Returns whether somebody uses what was to be unmounted.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Error::Unmount { .. }) && self.errno() == Errno::EBUSY
    }

    /// Returns the error number.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Name { .. } => Errno::EINVAL,
            Error::Helper { .. } => Errno::EPERM,
            Error::Device(source) | Error::Notify(source) => Errno::of_io(source, Errno::EIO),
            Error::MountPoint { source, .. }
            | Error::Mount { source, .. }
            | Error::Session { source, .. }
            | Error::Unmount { source, .. } => Errno::of_io(source, Errno::EIO),
        }
    }
}
