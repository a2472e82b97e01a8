//! What a configuration that was read from a pool or from labels tells by itself.
//!
//! The maker of a pool can have stored anything. A key that is told by whoever opens a pool, as that the pool is suspended, is taken out first: it would pass for what is so.

use nvlist::NvList;
use ondisk::label::key;

use super::{ERROR_COUNT, FEATURE_STATS, SUSPENDED, TIMESTAMP, activity, dedup, figures, words};

/// Keys of a configuration that are told and never stored; the first two are of OpenZFS alone.
const OF_POOL: [&str; 9] = [
    "load_info",
    "suspended_reason",
    SUSPENDED,
    ERROR_COUNT,
    FEATURE_STATS,
    TIMESTAMP,
    dedup::OBJECT_STATS,
    dedup::HISTOGRAM,
    dedup::STATS,
];

/// Keys of a vdev that are told and never stored: spares and caches have lists of their own.
const OF_VDEV: [&str; 9] = [
    words::VDEV_STATS,
    figures::VDEV_STATS_EX,
    activity::SCAN_STATS,
    activity::REMOVAL_STATS,
    activity::CHECKPOINT_STATS,
    activity::EXPAND_STATS,
    activity::REBUILD_STATS,
    key::SPARES,
    key::L2CACHE,
];

/// Returns a configuration, as a pool or its labels hold it, without what can only be told of a pool that is open.
#[must_use]
pub fn stored(config: &NvList) -> NvList {
    let mut config = config.clone();
    for key in OF_POOL {
        config.remove_all(key);
    }
    if let Some(root) = config.get_nvlist_mut(key::VDEV_TREE) {
        keep_stored(root);
    }
    config
}

/// Takes what is told out of a vdev and of all below.
pub(super) fn keep_stored(vdev: &mut NvList) {
    for key in OF_VDEV {
        vdev.remove_all(key);
    }
    vdev.get_nvlist_array_mut(key::CHILDREN).into_iter().flatten().for_each(keep_stored);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_maker_of_a_pool_stored_is_not_told() {
        let (mut child, mut root, mut config) = (NvList::new(), NvList::new(), NvList::new());
        for vdev in [&mut child, &mut root] {
            OF_VDEV.iter().for_each(|key| vdev.insert(key, 1u64));
            vdev.insert(key::GUID, 7u64);
        }
        root.insert(key::CHILDREN, vec![child]);
        OF_POOL.iter().for_each(|key| config.insert(key, 1u64));
        config.insert(key::VERSION, 5000u64);
        config.insert(key::VDEV_TREE, root);
        let config = stored(&config);
        let names = |list: &NvList| list.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&config), [key::VERSION, key::VDEV_TREE]);
        let root = config.get_nvlist(key::VDEV_TREE).cloned().unwrap_or_default();
        assert_eq!(names(&root), [key::GUID, key::CHILDREN]);
        assert_eq!(
            root.get_nvlist_array(key::CHILDREN).map(|all| all.iter().map(names).collect()),
            Some(vec![vec![key::GUID.to_owned()]])
        );
    }
}
