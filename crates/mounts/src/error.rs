//! Reasons why a file system cannot be mounted or unmounted.

use std::io;
use std::path::PathBuf;

use base::Errno;

/// A failure to mount or unmount.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mount itself.
    #[error(transparent)]
    Mount(#[from] fuse::Error),
    /// The file system does not open.
    #[error(transparent)]
    FileSystem(#[from] zpl::Error),
    /// The dataset does not open.
    #[error(transparent)]
    Dataset(#[from] pool::Error),
    /// The mount point cannot be made.
    #[error("{}: {source}", path.display())]
    Point {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl Error {
    /// Returns the error number.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Mount(error) => error.errno(),
            Error::FileSystem(error) => error.errno(),
            Error::Dataset(error) => error.errno(),
            Error::Point { source, .. } => Errno::of_io(source, Errno::EIO),
        }
    }
}
