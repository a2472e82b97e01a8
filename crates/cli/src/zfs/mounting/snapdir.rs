//! Snapshots that are made, destroyed and renamed below `.zfs/snapshot` of a mount: as requests of the user who does it, who must be allowed to make them (OpenZFS:
//! `zfsctl_snapdir_mkdir` and its like).

use std::sync::Arc;

use base::Errno;
use control::{Caller, Control, Ioc};
use nvlist::NvList;
use pool::Spa;
use zpl::live::{Caps, Cred, SnapshotAdmin};

use crate::names::pool_of;

/// The user whose requests need a capability.
const ROOT: u32 = 0;

/// Requests to a pool.
struct Requests {
    spa: Arc<Spa>,
    /// The user that the pools belong to.
    owner: u32,
}

/// Returns who changes the snapshots of a pool for the users of its mounts.
pub(crate) fn admin(spa: &Arc<Spa>) -> Arc<dyn SnapshotAdmin> {
    Arc::new(Requests { spa: spa.clone(), owner: site::records::owner() })
}

impl Requests {
    fn call(&self, cred: &Cred, ioc: Ioc, name: &str, input: &NvList) -> Result<(), Errno> {
        let caller = caller(cred)?;
        ioc.check_caller(&caller, self.owner).map_err(|error| error.errno())?;
        Control::new(self.spa.clone(), caller).call(ioc, name, input).map(|_| ()).map_err(|failed| failed.errno)
    }
}

/// Returns who makes the request.
///
/// # Errors
/// EPERM for root without the capability (OpenZFS: `secpolicy_zfs`), as in a container. Other users make requests for what they are.
fn caller(cred: &Cred) -> Result<Caller, Errno> {
    if cred.uid == ROOT && !cred.has(Caps::SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let Cred { uid, gid, groups, .. } = cred.clone();
    Ok(Caller { uid, gid, groups, real_uid: uid, ..Caller::default() })
}

/// The list of a request about one snapshot.
fn only(snapshot: &str) -> NvList {
    let (mut snaps, mut input) = (NvList::new(), NvList::new());
    snaps.insert(snapshot, ());
    input.insert("snaps", snaps);
    input
}

impl SnapshotAdmin for Requests {
    fn create(&self, cred: &Cred, name: &str) -> Result<(), Errno> {
        self.call(cred, Ioc::Snapshot, pool_of(name), &only(name))
    }

    fn destroy(&self, cred: &Cred, name: &str) -> Result<(), Errno> {
        self.call(cred, Ioc::DestroySnaps, pool_of(name), &only(name))
    }

    fn rename(&self, cred: &Cred, from: &str, to: &str) -> Result<(), Errno> {
        let mut input = NvList::new();
        input.insert("target", to);
        self.call(cred, Ioc::Rename, from, &input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_needs_the_capability() {
        let uid = |cred: &Cred| caller(cred).map(|caller| caller.uid);
        assert_eq!(uid(&Cred::ROOT), Ok(0));
        assert_eq!(uid(&Cred::user(0, 0, []).with_caps(Caps::DAC_OVERRIDE)), Err(Errno::EPERM));
        assert_eq!(uid(&Cred::user(7, 7, [])), Ok(7));
    }
}
