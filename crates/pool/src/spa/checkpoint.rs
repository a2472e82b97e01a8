//! The checkpoint of a pool: a state that it can be wound back to (OpenZFS: `spa_checkpoint.c`).
//!
//! A checkpoint is a copy of an uberblock in the MOS. While it exists, blocks that it leads to are not given back when they are freed:
//! their space goes into a space map of its own for each vdev, and is freed when the checkpoint is discarded. An import can begin at the
//! copied uberblock instead of the newest.
//!
//! # Discarding
//! The copy of the uberblock is removed first. Then a background task frees what only the checkpoint held: in the sync of each txg it takes
//! entries from the end of a vdev's space map, as many as [`tunable::ZFS_SPA_DISCARD_MEMORY_LIMIT`] allows. In the txg that empties the last
//! map, the feature becomes inactive. A discard that was interrupted is resumed after the next import, by any implementation.

use std::sync::Arc;

use base::{Txg, tunable};
use dmu::{Tx, Zap};
use ondisk::Uberblock;
use ondisk::spacemap::SpaceMapHeader;
use space::MapGeometry;

use crate::Error;
use crate::spa::Spa;
use crate::spa::metaslab::spacemap::SpaceMap;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::OURS;
use crate::spa::zthr::Next;

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

    /// Discards the checkpoint: it is gone at once, and what only it held is freed in the background.
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
            cx.spa.background.discard.wake_in_sync();
            let what = "started discarding checkpointed state from the pool";
            cx.spa.log_internal(cx.mos, cx.tx, "spa discard checkpoint", what)
        })
    }

    /// Resumes a discard that an earlier import, by any implementation, left unfinished.
    pub(crate) fn resume_discard(&self) -> Result<(), Error> {
        let mos = self.live_mos()?;
        if self.feature_active(&mos, FEATURE)? && mos.root_zap()?.lookup(CHECKPOINT)?.is_none() {
            self.background.discard.wake(self);
        }
        Ok(())
    }

    /// A slice of the background task: frees some of what only the discarded checkpoint held.
    pub(crate) fn discard_slice(&self, mos: &Mos, tx: &Tx) -> Result<Next, Error> {
        let mut room = tunable::ZFS_SPA_DISCARD_MEMORY_LIMIT.get().max(1);
        let tops: Vec<u64> = self.tree().tops().iter().filter(|t| t.is_concrete()).map(|t| t.id()).collect();
        for top in tops {
            while let Some(map) = self.checkpoint_map(mos, top)? {
                if room == 0 {
                    return Ok(Next::More);
                }
                room = room.saturating_sub(self.discard_some(mos, tx, &map, room)?);
            }
        }
        self.feature_decrement(mos, tx, FEATURE)?;
        let what = "finished discarding checkpointed state from the pool";
        self.log_internal(mos, tx, "spa discard checkpoint", what)?;
        Ok(Next::Done)
    }
}

/// The space map of what only a checkpoint holds on a vdev.
struct CheckpointMap {
    top: u64,
    zap: Zap,
    map: SpaceMap,
    geometry: MapGeometry,
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

impl Spa {
    fn checkpoint_map(&self, mos: &Mos, id: u64) -> Result<Option<CheckpointMap>, Error> {
        let tree = self.tree();
        let Some(top) = tree.top(id) else { return Ok(None) };
        let Some(zap) = mos.zap_if(top.config().top_zap)? else { return Ok(None) };
        let Some(object) = zap.lookup_id(CHECKPOINT_SM)?.filter(|object| object.is_some()) else { return Ok(None) };
        let geometry = MapGeometry { start: 0, size: top.config().asize, shift: top.ashift() };
        Ok(Some(CheckpointMap { top: id, zap, map: SpaceMap::open(mos, object)?, geometry }))
    }

    /// Frees the last entries of a map, about `room` bytes of them, and the map itself with the last one. Returns the bytes of entries that
    /// were freed (OpenZFS: `space_map_incremental_destroy`).
    fn discard_some(&self, mos: &Mos, tx: &Tx, of: &CheckpointMap, room: u64) -> Result<u64, Error> {
        let CheckpointMap { top, zap, map, geometry } = of;
        let (object, size) = (map.object.id(), map.object.block_size().max(1));
        let blocks = map.blocks()?;
        let first = blocks.saturating_sub((room / size).max(1));
        let mut freed: u64 = 0;
        map.for_each_from(first, *geometry, &mut |change| {
            let (start, len) = (change.range.start, change.range.end - change.range.start);
            freed = freed.saturating_add(len);
            let done = self.space.manager().free(*top, start, len, false);
            done.map_err(|e| Error::corrupt(object, format!("checkpointed space {:x?}: {e}", change.range)))
        })?;
        let length = first.saturating_mul(size);
        if length == 0 {
            zap.remove(tx, CHECKPOINT_SM)?;
            mos.objset.free_object(tx, object)?;
            if map.header.histogram.is_some() {
                self.feature_decrement(mos, tx, "spacemap_histogram")?;
            }
        } else {
            let alloc = map.header.alloc.saturating_add_unsigned(freed);
            let header = SpaceMapHeader { length, alloc, ..map.header.clone() };
            map.object.free_range(tx, length, u64::MAX)?;
            map.object.set_bonus(tx, &header.encode(OURS))?;
        }
        Ok(map.header.length.saturating_sub(length))
    }
}

#[cfg(test)]
mod tests;
