//! The configuration that a pool would have if it was imported (OpenZFS: `spa_tryimport`).
//!
//! It is that of [`Ioc::PoolStats`], `brief` but for `errata`, with `state` as the labels have it, `timestamp`, and `load_info`. For a pool that does not
//! open this list has `errno` and `error`, in `aux` the number that the root vdev would have, in `unsup_feat` the features that are not supported,
//! and `older_state` where the devices hold only an older state than the last one; the vdevs are described as far as labels and devices allow.

use control::stats;
use control::{Failed, Ioc};
use nvlist::NvList;
use ondisk::label::key;
use pool::{Error, OpenOptions, Pool};
use vdev::import::Candidate;
use vdev::{VdevState, VdevStatus, VdevTree};

use crate::query::place_devices;
use crate::{Query, devices};

/// The list of findings while the pool was opened.
pub const LOAD_INFO: &str = "load_info";
/// Keys in it: the errno and the message of a pool that does not open.
pub const ERRNO: &str = "errno";
/// The message.
pub const ERROR: &str = "error";
/// The number of the reason why the root vdev cannot be opened.
pub const AUX: &str = "aux";
/// A list of the features that the pool needs and that are not supported: their guids, each with what is known of it, which is nothing.
pub const UNSUP_FEAT: &str = "unsup_feat";
/// The tree of the log devices that are absent, where nothing else is.
pub const MISSING_VDEVS: &str = "missing_vdevs";
/// Set where the devices hold only an older state than the last one.
pub const OLDER_STATE: &str = "older_state";

/// Numbers of OpenZFS's `vdev_aux_t` that the root of a pool has which does not open: damaged data,
pub const AUX_CORRUPT_DATA: u64 = 2;
/// too few devices,
pub const AUX_NO_REPLICAS: u64 = 3;
/// top-level vdevs that are missing,
pub const AUX_BAD_GUID_SUM: u64 = 4;
/// a version that is newer,
pub const AUX_VERSION_NEWER: u64 = 7;
/// features that are not supported.
pub const AUX_UNSUP_FEAT: u64 = 9;

/// Tries to open a pool that was found for reading, and returns its configuration.
#[must_use]
pub fn try_import(candidate: &Candidate, options: &OpenOptions) -> NvList {
    let mut info = NvList::new();
    let opened = Pool::open(candidate, options).map_err(Failed::from).and_then(|pool| {
        let query = Query::of_found(pool, devices::paths(candidate));
        let mut input = NvList::new();
        ["brief", "errata"].into_iter().for_each(|key| input.insert(key, ()));
        query.call(Ioc::PoolStats, query.name(), &input)
    });
    let mut config = opened.unwrap_or_else(|failed| {
        info.insert(ERRNO, failed.errno);
        info.insert(ERROR, failed.error.to_string());
        of_labels(candidate, &failed, &mut info)
    });
    config.insert(key::POOL_STATE, candidate.state.number());
    config.insert(LOAD_INFO, info);
    config
}

/// The configuration of a pool that does not open, as labels and devices tell of it.
fn of_labels(candidate: &Candidate, failed: &Failed, info: &mut NvList) -> NvList {
    let mut config = stats::stored(&candidate.config);
    config.insert(key::POOL_NAME, candidate.name.as_str());
    config.remove(key::VDEV_TREE);
    let find = |guid| candidate.device(guid).map(|found| found.device.clone());
    let tree = candidate.vdev_config().and_then(|config| VdevTree::open(&config, &find)).ok();
    let is_broken = tree.as_ref().is_some_and(|tree| is_broken(&tree.status()));
    let aux = match &*failed.error {
        control::Error::Pool(Error::Version(_)) => AUX_VERSION_NEWER,
        control::Error::Pool(Error::Features(features)) => {
            let mut unsupported = NvList::new();
            features.iter().for_each(|name| unsupported.insert(name, ""));
            info.insert(UNSUP_FEAT, unsupported);
            AUX_UNSUP_FEAT
        }
        control::Error::Pool(Error::MissingVdevs(_)) => AUX_BAD_GUID_SUM,
        control::Error::Pool(Error::Behind { .. }) => {
            info.insert(OLDER_STATE, ());
            AUX_BAD_GUID_SUM
        }
        _ if is_broken => AUX_NO_REPLICAS,
        _ => AUX_CORRUPT_DATA,
    };
    info.insert(AUX, aux);
    if let Some(tree) = tree {
        config.insert(key::VDEV_TREE, stats::of_devices(&tree));
        place_devices(&mut config, &devices::paths(candidate));
    }
    config
}

/// Whether something is wrong with the devices.
fn is_broken(root: &VdevStatus) -> bool {
    let is_bad = |vdev: &VdevStatus| !matches!(vdev.state, VdevState::Healthy | VdevState::Degraded) || vdev.is_stale;
    root.state == VdevState::CantOpen || root.walk().any(|vdev| vdev.children.is_empty() && is_bad(vdev))
}
