//! What the MOS kept about the space of a vdev goes with it (OpenZFS: `vdev_remove_empty_log`, `vdev_destroy_unlink_zap`).

use std::collections::BTreeMap;

use dmu::Zap;
use ondisk::spacemap::SPACE_MAP_HEADER_V0_SIZE;
use vdev::VdevConfig;

use super::open::METASLABS_MAX;
use super::store::UNFLUSHED_TXGS;
use crate::Error;
use crate::spa::TaskCx;

/// The ZAP of all ZAPs of vdevs.
pub(crate) const ALL_VDEV_ZAPS: &str = "com.delphix:vdev_zap_map";

/// Frees the metaslab array, the space maps, the missed txgs and the ZAPs of a top-level vdev, on which nothing is allocated.
pub(crate) fn forget_vdev(cx: &TaskCx<'_>, top: &VdevConfig) -> Result<(), Error> {
    if top.ms_array.0 != 0 {
        let maps = cx.mos.words(top.ms_array.0, METASLABS_MAX)?;
        maps.into_iter().filter(|map| *map != 0).try_for_each(|map| free_map(cx, map))?;
        cx.mos.objset.free_object(cx.tx, top.ms_array.0)?;
    }
    if let Some(zap) = cx.mos.zap_if(top.top_zap.0)?
        && let Some(unflushed) = zap.lookup_u64(UNFLUSHED_TXGS)?
    {
        cx.mos.objset.free_object(cx.tx, unflushed)?;
    }
    for leaf in top.leaves().filter(|leaf| leaf.dtl.0 != 0) {
        free_map(cx, leaf.dtl.0)?;
    }
    let all: Option<Zap> = cx.mos.named_zap(ALL_VDEV_ZAPS)?;
    let zaps = top.walk().flat_map(|vdev| [vdev.top_zap.0, vdev.leaf_zap.0]);
    // of a vdev without children both are its own
    let zaps: BTreeMap<u64, ()> = zaps.filter(|zap| *zap != 0).map(|zap| (zap, ())).collect();
    for zap in zaps.into_keys() {
        if let Some(all) = &all {
            all.remove_int(cx.tx, zap)?;
        }
        cx.mos.objset.free_object(cx.tx, zap)?;
    }
    Ok(())
}

fn free_map(cx: &TaskCx<'_>, id: u64) -> Result<(), Error> {
    let object = cx.mos.object(id)?;
    if object.bonus().len() != SPACE_MAP_HEADER_V0_SIZE && cx.spa.feature_enabled(cx.mos, "spacemap_histogram")? {
        cx.spa.feature_decrement(cx.mos, cx.tx, "spacemap_histogram")?;
    }
    Ok(cx.mos.objset.free_object(cx.tx, id)?)
}
