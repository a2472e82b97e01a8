//! The checkpoint of a pool: a state that it can be wound back to (OpenZFS: `spa_checkpoint.c`).
//!
//! A checkpoint is a copy of an uberblock in the MOS. While there is one, what it leads to is not given back when it is freed: such
//! space goes into a map of its own for each vdev, and is freed when the checkpoint is discarded. An import can begin at the copied
//! uberblock instead of the newest.

use std::sync::Arc;

use base::Txg;
use ondisk::Uberblock;
use space::MapGeometry;

use crate::Error;
use crate::spa::{Spa, TaskCx};
use crate::spacemap::SpaceMap;

/// Where the copy of the uberblock stands in the MOS directory.
const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// Where the map of what the checkpoint alone holds stands in the ZAP of a top-level vdev.
const CHECKPOINT_SM: &str = "com.delphix:pool_checkpoint_sm";
const FEATURE: &str = "zpool_checkpoint";

impl Spa {
    /// Makes a checkpoint of the pool as it is now.
    ///
    /// # Errors
    /// [`Error::CheckpointExists`]; [`Error::FeatureDisabled`]; when a device is being removed; when the pool is suspended.
    pub fn checkpoint(self: &Arc<Self>) -> Result<(), Error> {
        self.sync()?;
        // before anything is freed in the txg: what the last one has must not get lost in this one
        self.early_task(|cx| {
            if !cx.spa.feature_enabled(cx.mos, FEATURE)? {
                return Err(Error::FeatureDisabled(FEATURE.to_string()));
            }
            if cx.spa.feature_active(cx.mos, FEATURE)? {
                return Err(Error::CheckpointExists);
            }
            let mut copy = cx.spa.uberblock();
            copy.checkpoint_txg = copy.txg;
            cx.mos.root_zap()?.add(cx.tx, CHECKPOINT, 8, &words(&copy))?;
            cx.spa.space.set_checkpoint(Some(copy.txg));
            cx.spa.feature_increment(cx.mos, cx.tx, FEATURE)?;
            let what = format!("checkpointed uberblock txg={}", copy.txg);
            cx.spa.log_internal(cx.mos, cx.tx, "spa checkpoint", &what)
        })
    }

    /// Gives the checkpoint up, and frees what it alone held.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`]; when the pool is suspended.
    pub fn discard_checkpoint(self: &Arc<Self>) -> Result<(), Error> {
        self.early_task(|cx| {
            let root = cx.mos.root_zap()?;
            if root.lookup(CHECKPOINT)?.is_none() {
                return Err(Error::NoCheckpoint);
            }
            root.remove(cx.tx, CHECKPOINT)?;
            cx.spa.space.set_checkpoint(None);
            let tops: Vec<u64> = cx.spa.tree().tops().iter().filter(|t| t.is_concrete()).map(|t| t.id()).collect();
            tops.into_iter().try_for_each(|top| discard(cx, top))?;
            cx.spa.feature_decrement(cx.mos, cx.tx, FEATURE)?;
            let what = "finished discarding checkpointed state from the pool";
            cx.spa.log_internal(cx.mos, cx.tx, "spa discard checkpoint", what)
        })
    }
}

impl Spa {
    /// Makes the checkpoint that was opened the newest state of the pool, as txg `txg`. From here on there is no way back: what came after
    /// the checkpoint lies in space that is free in it, and is overwritten by the next txg. Hence before that one begins, the
    /// devices must have left the old state (OpenZFS: `spa_ld_checkpoint_rewind`).
    pub(crate) fn settle_at_checkpoint(&self, txg: Txg) -> Result<(), Error> {
        let mut uberblock = self.uberblock();
        uberblock.txg = txg;
        uberblock.timestamp = self.env().now_s();
        vdev::label::commit(&self.tree(), None, &uberblock)?;
        *self.uberblock.lock() = uberblock;
        Ok(())
    }
}

fn words(uberblock: &Uberblock) -> Vec<u64> {
    uberblock.encode().as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Frees what the checkpoint alone held on a vdev, and the map of it.
fn discard(cx: &TaskCx<'_>, id: u64) -> Result<(), Error> {
    let tree = cx.spa.tree();
    let Some(top) = tree.top(id) else { return Ok(()) };
    let Some(zap) = cx.mos.zap_if(top.config().top_zap.0)? else { return Ok(()) };
    let Some(object) = zap.lookup_u64(CHECKPOINT_SM)?.filter(|object| *object != 0) else { return Ok(()) };
    let map = SpaceMap::open(cx.mos, object)?;
    let geometry = MapGeometry { start: 0, size: top.config().asize, shift: top.ashift() };
    map.for_each(geometry, &mut |change| {
        let range = change.range;
        let freed = cx.spa.space.manager().free(id, range.start, range.end - range.start, false);
        freed.map_err(|e| Error::corrupt(object, format!("checkpointed space {range:x?}: {e}")))
    })?;
    zap.remove(cx.tx, CHECKPOINT_SM)?;
    cx.mos.objset.free_object(cx.tx, object)?;
    if map.header.histogram.is_some() {
        cx.spa.feature_decrement(cx.mos, cx.tx, "spacemap_histogram")?;
    }
    Ok(())
}
