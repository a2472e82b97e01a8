//! The choice of the state to open.

use base::Txg;
use ondisk::Uberblock;
use ondisk::label::key;
use vdev::import::{Candidate, FoundDevice};
use vdev::label::read_uberblocks;

use crate::Error;

/// Returns every valid uberblock on any device.
fn all(candidate: &Candidate) -> Vec<Uberblock> {
    let of = |found: &FoundDevice| {
        let tree = found.label.config.get_nvlist(key::VDEV_TREE);
        let ashift = tree.and_then(|t| t.get_u64(key::ASHIFT)).unwrap_or(9);
        read_uberblocks(found.device.as_ref(), ashift)
    };
    candidate.devices.iter().flat_map(of).collect()
}

/// Returns the highest txg of which any device has an uberblock, usable or not.
pub(crate) fn newest(candidate: &Candidate) -> Txg {
    all(candidate).into_iter().map(|ub| ub.txg).max().unwrap_or_default()
}

/// Returns the states that the devices have, up to `limit`, the best first, each txg once.
pub(super) fn choose(candidate: &Candidate, limit: Option<Txg>) -> Result<Vec<Uberblock>, Error> {
    let mut all = all(candidate);
    if all.is_empty() {
        return Err(Error::NoUberblock("no device of the pool has a valid uberblock".to_string()));
    }
    all.sort_by_key(|ub| std::cmp::Reverse(ub.rank()));
    if let Some(limit) = limit {
        all.retain(|ub| ub.txg <= limit);
        if all.is_empty() {
            return Err(Error::NoUberblock(format!("no device remembers the pool's state at txg {limit} or before")));
        }
    }
    // of one txg only the best is tried: the others differ in timestamps only
    all.dedup_by_key(|ub| ub.txg);
    Ok(all)
}
