//! Errors of pools and of the site in OpenZFS's words.

use crate::error::{Failure, cause, failed};

impl From<site::Error> for Failure {
    fn from(e: site::Error) -> Failure {
        match e {
            site::Error::Open { name, source } => failed(format!("cannot open '{name}': {}", why_not(&name, &source))),
            other => failed(other.to_string()),
        }
    }
}

/// Why a remembered pool does not open, and what can be done.
pub(crate) fn why_not(name: &str, e: &pool::Error) -> String {
    match e {
        pool::Error::Behind { .. } => format!("{e} ('zpool export -f {name}' forgets that)"),
        e => why(e),
    }
}

/// The message for devices that cannot be opened or locked.
pub(crate) fn busy(pool: &str, e: &vdev::Error) -> Failure {
    match e {
        vdev::Error::Busy { path, holder } => {
            failed(format!("cannot open '{pool}': pool is busy\n{path} is in use{holder}"))
        }
        vdev::Error::Open { path, source } => failed(format!("cannot open '{pool}': {path}: {}", cause(source))),
        other => failed(format!("cannot open '{pool}': {other}")),
    }
}

/// As [`why`], for a request.
pub(crate) fn why_failed(failed: &control::Failed) -> String {
    match &*failed.error {
        control::Error::Pool(e) => why(e),
        other => other.to_string(),
    }
}

/// An error in OpenZFS's words, where it has some (OpenZFS: `zpool_standard_error_fmt`).
pub(crate) fn why(e: &pool::Error) -> String {
    match e {
        pool::Error::NoSpace => "out of space".to_owned(),
        pool::Error::Suspended(cause) => format!("pool I/O is currently suspended: {cause}"),
        other => other.to_string(),
    }
}
