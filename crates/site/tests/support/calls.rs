//! What tests of sessions do to a pool `t`.

use std::sync::Arc;

use base::Errno;
use control::Ioc;
use nvlist::NvList;
use site::{Session, Site};

use crate::support::list;

/// Takes a snapshot.
pub(crate) fn snapshot(session: &Session, name: &str) -> Result<NvList, Errno> {
    let snaps = list(&[(name, ().into())]);
    session.call(Ioc::Snapshot, "t", &list(&[("snaps", snaps.into())])).map_err(|e| e.errno)
}

/// The pool, which is open for a change.
pub(crate) fn changing(site: &Site) -> Arc<pool::Spa> {
    site.changing(&site.find("t").unwrap().unwrap()).unwrap()
}
