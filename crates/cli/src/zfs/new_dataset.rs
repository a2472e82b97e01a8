//! The request for a new dataset, and why one is refused.

use base::Errno;
use control::Failed;
use nvlist::NvList;
use pool::Kind;

use super::words::{self, standard};
use crate::error::{Failure, failed};
use crate::keys::Material;

/// A file system (OpenZFS: `DMU_OST_ZFS`).
pub(super) const OST_ZFS: i32 = 2;

/// A volume (OpenZFS: `DMU_OST_ZVOL`).
pub(super) const OST_ZVOL: i32 = 3;

/// The request for a new dataset.
pub(super) fn request(ost: i32, props: NvList, key: Option<&Material>) -> NvList {
    let mut input = NvList::new();
    input.insert("type", ost);
    if !props.is_empty() {
        input.insert("props", props);
    }
    if let Some(key) = key {
        input.insert("hidden_args", key.hidden());
    }
    input
}

/// The message for a dataset that could not be created.
pub(super) fn refused(name: &str, kind: Kind, e: &Failed) -> Failure {
    let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
    let why = match e.errno {
        Errno::ENOENT => format!("no such parent '{parent}'"),
        Errno::ENOTSUP => "pool must be upgraded to set this property or value".to_owned(),
        Errno::EACCES => "encryption root's key is not loaded or provided".to_owned(),
        Errno::ERANGE => "invalid property value(s) specified".to_owned(),
        Errno::EINVAL if kind == Kind::Volume => words::of_errno(Errno::EINVAL),
        _ => standard(e),
    };
    failed(format!("cannot create '{name}': {why}"))
}
