//! Blocks that are no longer needed: from the sync that dropped them to the space maps (OpenZFS: `spa_sync_frees`,
//! `spa_sync_deferred_frees`).

use std::sync::atomic::{AtomicBool, Ordering};

use base::{ObjectId, Txg, tasks, tunable};
use dmu::Tx;
use ondisk::BlkPtr;
use parking_lot::Mutex;
use zio::Zio;

use crate::Error;
use crate::spa::Spa;
use crate::spa::bpobj::Bpobj;
use crate::spa::mos::Mos;

/// Blocks dropped in the txg that is being synced.
#[derive(Default)]
pub(crate) struct Frees {
    blocks: Mutex<Vec<BlkPtr>>,
    /// True if all destroyed trees that are left are damaged.
    stalled: AtomicBool,
}

impl Frees {
    pub(crate) fn add(&self, blocks: impl IntoIterator<Item = BlkPtr>) {
        self.blocks.lock().extend(blocks);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.lock().is_empty()
    }

    fn take(&self) -> Vec<BlkPtr> {
        std::mem::take(&mut *self.blocks.lock())
    }

    pub(crate) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
}

/// The entry of the MOS directory that names the list of deferred frees.
pub(crate) const SYNC_BPOBJ: &str = "sync_bplist";

/// Frees a block. Returns `false` if the block stays allocated: a gang block whose header cannot be read, an invalid pointer, or a block in
/// a table of references that cannot be read, so that its other users are unknown. A leaked block is better than a pool that stops whenever
/// that block is dropped.
pub(crate) fn free_if_known(zio: &Zio, txg: Txg, bp: &BlkPtr) -> Result<bool, zio::Error> {
    match tasks::can_fail(|| zio.free(txg, bp)) {
        Err(
            zio::Error::Checksum { .. }
            | zio::Error::Io { .. }
            | zio::Error::Table { .. }
            | zio::Error::BadPointer { .. }
            | zio::Error::Unsupported { .. },
        ) => Ok(false),
        other => other.map(|()| true),
    }
}

impl Spa {
    /// Frees the blocks that this pass dropped. In a pool without log space maps a late pass puts them on the list of deferred frees
    /// instead, because each free would dirty another space map.
    pub(crate) fn sync_frees(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let blocks = self.frees.take();
        if blocks.is_empty() {
            return Ok(());
        }
        let pass = self.pass.load(Ordering::Relaxed);
        if pass < tunable::ZFS_SYNC_PASS_DEFERRED_FREE.get() || self.feature_active(mos, "log_spacemap")? {
            return self.give_back(mos, tx, &blocks);
        }
        self.deferred(mos)?.append_many(tx, &blocks)
    }

    fn deferred(&self, mos: &Mos) -> Result<Bpobj, Error> {
        let id = mos
            .id_of(SYNC_BPOBJ)?
            .ok_or_else(|| Error::corrupt(ObjectId::POOL_DIRECTORY, "no list of deferred frees"))?;
        Bpobj::open(mos, id)
    }

    /// Frees what the txg before deferred.
    pub(crate) fn sync_deferred_frees(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let list = self.deferred(mos)?;
        if list.phys().num_blkptrs == 0 {
            return Ok(());
        }
        let mut blocks = Vec::new();
        list.for_each(&mut |bp| {
            blocks.push(*bp);
            Ok(())
        })?;
        list.clear(tx)?;
        self.give_back(mos, tx, &blocks)
    }

    fn give_back(&self, mos: &Mos, tx: &Tx, blocks: &[BlkPtr]) -> Result<(), Error> {
        let mut stranded = 0u64;
        for bp in blocks {
            stranded += u64::from(!free_if_known(&self.zio, tx.txg(), bp)?);
        }
        if stranded == 0 {
            return Ok(());
        }
        let what = format!(
            "{stranded} blocks stay allocated: their gang headers, or what counts their references, cannot be read"
        );
        self.log_internal(mos, tx, "free", &what)
    }
}
