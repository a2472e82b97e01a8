//! The checkpoint of a pool: a state that it can be wound back to (OpenZFS: `spa_checkpoint.c`).
//!
//! A checkpoint is a copy of an uberblock in the MOS. While it exists, blocks that it leads to are not given back when they are freed:
//! their space goes into a space map of its own for each vdev, and is freed when the checkpoint is discarded. An import can begin at the
//! copied uberblock instead of the newest.

use std::sync::Arc;

use base::Txg;
use ondisk::Uberblock;
use space::MapGeometry;

use crate::Error;
use crate::spa::metaslab::spacemap::SpaceMap;
use crate::spa::{Spa, TaskCx};

/// The entry of the MOS directory that holds the copy of the uberblock.
const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// The entry of a top-level vdev's ZAP that names the space map of what only the checkpoint holds.
const CHECKPOINT_SM: &str = "com.delphix:pool_checkpoint_sm";
const FEATURE: &str = "zpool_checkpoint";

impl Spa {
    /// Makes a checkpoint of the pool as it is now.
    ///
    /// # Errors
    /// [`Error::CheckpointExists`]; [`Error::FeatureDisabled`]; when a device is being removed; when the pool is suspended.
    pub fn checkpoint(self: &Arc<Self>) -> Result<(), Error> {
        self.sync()?;
        // vdevs stay as they are: the state that is kept needs them
        let _alone = self.vdev_change.lock();
        // before anything is freed in the txg: blocks of the last txg must not be lost in this one
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

    /// Discards the checkpoint, and frees what only it held.
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
    /// Makes the opened checkpoint the newest state of the pool, as txg `txg`. This cannot be undone: blocks written after the checkpoint
    /// lie in space that is free in it, and the next txg overwrites them. Hence the devices must have left the old state before that txg
    /// begins (OpenZFS: `spa_ld_checkpoint_rewind`).
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

/// Frees what only the checkpoint held on a vdev, and the space map of it.
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
