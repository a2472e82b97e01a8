//! Blocks that are no longer needed: from whoever dropped them to the space maps (OpenZFS: `spa_sync_frees`,
//! `spa_sync_deferred_frees`).

use std::sync::atomic::Ordering;

use base::tunable;
use dmu::Tx;
use ondisk::BlkPtr;
use parking_lot::Mutex;

use crate::Error;
use crate::bpobj::Bpobj;
use crate::mos::Mos;
use crate::spa::Spa;

/// Blocks dropped in the txg that is being synced.
#[derive(Default)]
pub(crate) struct Frees(Mutex<Vec<BlkPtr>>);

impl Frees {
    pub(crate) fn add(&self, blocks: impl IntoIterator<Item = BlkPtr>) {
        self.0.lock().extend(blocks);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    fn take(&self) -> Vec<BlkPtr> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Where the list of deferred frees stands in the MOS directory.
pub(crate) const SYNC_BPOBJ: &str = "sync_bplist";

impl Spa {
    /// Frees what this pass dropped. In a pool without logs of space changes a late pass puts it on the list of the next txg instead:
    /// else each free would dirty another space map.
    pub(crate) fn sync_frees(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let blocks = self.frees.take();
        if blocks.is_empty() {
            return Ok(());
        }
        let pass = self.pass.load(Ordering::Relaxed);
        if pass < tunable::ZFS_SYNC_PASS_DEFERRED_FREE.get() || self.feature_active(mos, "log_spacemap")? {
            return blocks.iter().try_for_each(|bp| Ok(self.zio.free(tx.txg(), bp)?));
        }
        self.deferred(mos)?.append_many(tx, &blocks)
    }

    fn deferred(&self, mos: &Mos) -> Result<Bpobj, Error> {
        let id = mos.number(SYNC_BPOBJ)?.ok_or_else(|| Error::corrupt(1, "no list of deferred frees"))?;
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
        blocks.iter().try_for_each(|bp| Ok(self.zio.free(tx.txg(), bp)?))
    }
}
