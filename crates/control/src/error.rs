//! Errors of requests.

use std::sync::Arc;

use base::Errno;
use nvlist::NvList;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused it, or could not do it.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// Files could not be reached.
    #[error(transparent)]
    Zpl(#[from] zpl::Error),
    /// A stream was not received.
    #[error(transparent)]
    Receive(stream::recv::Error),
    /// The pool has no such device (ENODEV).
    #[error("no such device in pool")]
    NoDevice,
    /// A stream cannot be made.
    #[error(transparent)]
    Send(stream::send::Error),
    /// A device of a new vdev (EBUSY, EOVERFLOW, ENOENT and its like).
    #[error(transparent)]
    Device(#[from] vdev::Error),
    /// The request is about the pools of the machine, and was made to one of them (EINVAL).
    #[error("{0}: is no request to a pool")]
    NotOfAPool(&'static str),
    /// A pool could not be found or opened; the errno, and why.
    #[error("{1}")]
    Opening(Errno, Box<dyn std::error::Error + Send + Sync>),
    /// The pool is there already (EEXIST).
    #[error("pool '{0}' already exists")]
    Exists(String),
    /// The caller has no such file open (EBADF).
    #[error("file {0} is not open")]
    BadFile(i32),
    /// The file that an answer is written to cannot be written.
    #[error(transparent)]
    Output(std::io::Error),
    /// There is no such object, or none that has a path (ENOENT).
    #[error("no such object")]
    NoObject,
    /// What would have to be read is damaged (EIO).
    #[error("{0}")]
    Damaged(String),
    /// There is no event, or no more (ENOENT).
    #[error("no event")]
    NoEvent,
    /// A key that the request does not have (`ZFS_ERR_IOC_ARG_UNAVAIL`).
    #[error("{ioc}: unknown argument '{key}'")]
    UnknownKey {
        /// The request.
        ioc: &'static str,
        /// The key.
        key: String,
    },
    /// A key that is not there (`ZFS_ERR_IOC_ARG_REQUIRED`).
    #[error("{ioc}: argument '{key}' is missing")]
    MissingKey {
        /// The request.
        ioc: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A value of another type (`ZFS_ERR_IOC_ARG_BADTYPE`).
    #[error("{ioc}: argument '{key}' is of the wrong type")]
    KeyType {
        /// The request.
        ioc: &'static str,
        /// The key.
        key: String,
    },
    /// The pool was imported to be read (EROFS).
    #[error("pool is read-only")]
    ReadOnly,
    /// The pool waits for its devices, and the request would wait as well (EAGAIN); the failure that suspended it.
    #[error("pool I/O is currently suspended: {0}")]
    Suspended(Arc<pool::Error>),
    /// The caller may not make this request (EPERM).
    #[error("{0}: permission denied")]
    NotPermitted(&'static str),
    /// The state of a head that is compared is gone, as its space was needed (EIO: what is stale of an object is that it waits to be deleted).
    #[error("the state that is compared is gone, as its space was needed: compare again")]
    Overtaken,
    /// A wait that its caller has ended (EINTR).
    #[error("the wait was ended")]
    Cancelled,
    /// Arguments that make no sense (EINVAL).
    #[error("{0}")]
    Invalid(String),
    /// The pool lacks what a property or value needs (ENOTSUP).
    #[error("'{0}' is not supported by this pool")]
    NotSupported(String),
    /// A value beyond what is allowed (ERANGE).
    #[error("value of '{0}' is out of range")]
    OutOfRange(String),
    /// Names of several pools, or a pool other than that asked (EXDEV).
    #[error("'{0}' is in another pool")]
    OtherPool(String),
    /// The name of a property that is longer than any can be (ENAMETOOLONG).
    #[error("the name of property '{0}' is too long")]
    NameTooLong(String),
    /// The value of a property that is longer than any can be (E2BIG).
    #[error("the value of property '{0}' is too long")]
    ValueTooLong(String),
    /// The parent is no file system (`ZFS_ERR_WRONG_PARENT`).
    #[error("parent of '{0}' is not a filesystem")]
    WrongParent(String),
}

impl Error {
    /// Whether a stream could not be written where it was sent to, perhaps after a part of it.
    #[must_use]
    pub fn is_of_output(&self) -> bool {
        matches!(self, Error::Send(stream::send::Error::Output(_)))
    }

    /// The errno that OpenZFS gives on Linux; above 1024 are its own.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Pool(e) => e.errno(),
            Error::Zpl(e) => e.errno(),
            Error::Receive(e) => e.errno(),
            Error::Send(e) => e.errno(),
            Error::Device(e) => device_errno(e),
            Error::NotOfAPool(_) => Errno::EINVAL,
            Error::Opening(errno, _) => *errno,
            Error::NoEvent | Error::NoObject => Errno::ENOENT,
            Error::Output(e) => Errno::of_io(e, Errno::EIO),
            Error::Damaged(_) => Errno::EIO,
            Error::BadFile(_) => Errno::EBADF,
            Error::Exists(_) => Errno::EEXIST,
            Error::ValueTooLong(_) => Errno::E2BIG,
            Error::OtherPool(_) => Errno::EXDEV,
            Error::NoDevice => Errno::ENODEV,
            Error::Invalid(_) => Errno::EINVAL,
            Error::ReadOnly => Errno::EROFS,
            Error::Suspended(_) => Errno::EAGAIN,
            Error::NotPermitted(_) => Errno::EPERM,
            Error::Cancelled => Errno::EINTR,
            Error::Overtaken => Errno::EIO,
            Error::OutOfRange(_) => Errno::ERANGE,
            Error::NameTooLong(_) => Errno::ENAMETOOLONG,
            Error::NotSupported(_) => Errno::ENOTSUP,
            Error::UnknownKey { .. } => Errno::ZFS_ERR_IOC_ARG_UNAVAIL,
            Error::MissingKey { .. } => Errno::ZFS_ERR_IOC_ARG_REQUIRED,
            Error::KeyType { .. } => Errno::ZFS_ERR_IOC_ARG_BADTYPE,
            Error::WrongParent(_) => Errno::ZFS_ERR_WRONG_PARENT,
        }
    }
}

/// The errno of a device that cannot be in a pool.
fn device_errno(e: &vdev::Error) -> Errno {
    match e {
        vdev::Error::Busy { .. } => Errno::EBUSY,
        vdev::Error::BelowMinimum { .. } | vdev::Error::TooSmall { .. } => Errno::EOVERFLOW,
        vdev::Error::Open { source, .. } => Errno::of_io(source, Errno::EIO),
        vdev::Error::Config { .. } => Errno::EINVAL,
        _ => Errno::EIO,
    }
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// Why, as OpenZFS's number; of the first thing, if several failed.
    pub errno: Errno,
    /// The answer of the request nevertheless: the errno of each thing that failed (an `Int32` by its name).
    pub out: Box<NvList>,
    /// Why.
    pub error: Box<Error>,
}

impl Failed {
    /// Returns whether it failed because the pool is suspended: it may be done when the pool goes on.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        matches!(&*self.error, Error::Pool(pool::Error::Suspended(_)))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        let mut out = NvList::new();
        if let Error::Pool(pool::Error::Many(all)) = &error {
            for (name, e) in all {
                out.insert(name, e.errno());
            }
        }
        Failed { errno: error.errno(), out: Box::new(out), error: Box::new(error) }
    }
}

impl From<pool::Error> for Failed {
    fn from(e: pool::Error) -> Failed {
        Error::Pool(e).into()
    }
}

impl From<vdev::Error> for Failed {
    fn from(e: vdev::Error) -> Failed {
        Error::Device(e).into()
    }
}

impl From<zpl::Error> for Failed {
    fn from(e: zpl::Error) -> Failed {
        Error::Zpl(e).into()
    }
}
