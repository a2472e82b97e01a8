//! The configuration of a pool with all figures of its vdevs, which [`Ioc::PoolStats`](crate::Ioc::PoolStats) answers with.
//!
//! It is the configuration of the MOS, in which each vdev of `vdev_tree` has `vdev_stats` and `vdev_stats_ex` ([`VdevStats`], [`figures`]), the root `scan_stats`,
//! `removal_stats`, `checkpoint_stats` and `raidz_expand_stats`, and a top-level vdev that was rebuilt `org.openzfs:rebuild_stats`
//! ([`Activity`]). Beside the tree are `feature_stats`, `errata` and `error_count`, and for those who ask for it `ddt_histogram`, `ddt_object_stats` and
//! `ddt_stats` ([`Dedup`]). What cannot be read is left out, but for lists of devices and what was asked for. Arrays have the words of OpenZFS's structures, in their order. Each concept has its writing and its reading half in one file.
//!
//! Figures are those of this process; `site` replaces them by those of all processes that had the pool open.
//!
//! OpenZFS: `spa_get_stats`, `spa_config_generate`.

mod activity;
mod dedup;
pub mod figures;
mod stored;
mod tree;
mod words;

use std::sync::Arc;

use nvlist::NvList;
use ondisk::label::key;
use pool::{Error, Pool, Spa};
use vdev::LostBlock;

pub use activity::{Activity, Checkpoint, Expansion, REBUILD_ACTIVE, REBUILD_COMPLETE, Removal};
pub use dedup::Dedup;
pub use stored::stored;
pub use tree::of_devices;
pub use words::{VdevStat, VdevStats};

/// Features that are enabled, by guid, with how many things need them. This and the following keys are not stored.
pub const FEATURE_STATS: &str = "feature_stats";
/// The number of blocks in the error log; missing if it cannot be read.
pub const ERROR_COUNT: &str = "error_count";
/// Set for a pool that waits for its devices: the number of the property `failmode`.
pub const SUSPENDED: &str = "suspended";
/// The time of the uberblock.
pub const TIMESTAMP: &str = "timestamp";

/// What is known of the configuration of an open pool without the devices that it cannot be read without.
pub(crate) fn unreadable(spa: &Spa) -> NvList {
    let mut config = NvList::new();
    config.insert(key::POOL_NAME, spa.name());
    config.insert(key::POOL_GUID, spa.guid().0);
    config.insert(key::POOL_TXG, spa.txgs().synced().0);
    // of a pool that is imported (OpenZFS: `POOL_STATE_ACTIVE`)
    config.insert(key::POOL_STATE, 0u64);
    config.insert(key::VDEV_TREE, tree::of_live(spa));
    if spa.suspended().is_some() {
        config.insert(SUSPENDED, spa.failmode() as u64);
    }
    config
}

/// The configuration of `view`, with what `input` asks for beside the figures of vdevs. Blocks that were `met` are counted with those of the error log.
pub(crate) fn config(view: &Arc<Pool>, input: &NvList, met: &[LostBlock]) -> Result<NvList, Error> {
    let brief = input.contains("brief");
    let mut config = stored(view.config());
    config.insert(key::POOL_NAME, view.name());
    config.insert(key::POOL_GUID, view.guid().0);
    config.insert(key::VERSION, view.version());
    config.insert(key::POOL_TXG, view.uberblock().txg.0);
    config.insert(TIMESTAMP, view.uberblock().timestamp);
    config.insert(key::VDEV_TREE, tree::tree(view)?);
    let mut features = NvList::new();
    for feature in view.features().iter().filter(|feature| feature.state != pool::feature::State::Disabled) {
        features.insert(&feature.guid, feature.refcount);
    }
    config.insert(FEATURE_STATS, features);
    if !brief || input.contains("errata") {
        // where keys cannot be read, datasets that need them say so
        config.insert(key::ERRATA, view.erratum().ok().flatten().map_or(0, |erratum| erratum as u64));
    }
    if !brief && let Ok(errors) = view.errlog_with(met) {
        config.insert(ERROR_COUNT, errors.len() as u64);
    }
    if input.contains("dedup") {
        Dedup::read(view)?.put(&mut config);
    }
    Ok(config)
}
