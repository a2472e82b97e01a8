//! Datasets as the MOS records them, and their chains of snapshots, for the layers that need no names.

use base::ObjectId;
use ondisk::dsl::DslDatasetPhys;

use crate::Error;
use crate::spa::mos::Mos;

/// A dataset as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// Its object in the MOS.
    pub(crate) id: ObjectId,
    /// Its on-disk record.
    pub(crate) phys: DslDatasetPhys,
}

impl Mos {
    /// The dataset in object `id`, as it is now.
    pub(crate) fn live(&self, id: ObjectId) -> Result<Live, Error> {
        Ok(Live { id, phys: self.dataset_phys(id)? })
    }

    /// The dataset before `ds` in its chain of snapshots.
    pub(crate) fn before(&self, ds: &Live) -> Result<Option<Live>, Error> {
        let id = ds.phys.prev_snap_obj;
        if id.is_none() {
            return Ok(None);
        }
        let before = self.live(id)?;
        let older = !ds.phys.is_snapshot() || before.phys.creation_txg < ds.phys.creation_txg;
        if !before.phys.is_snapshot() || !older {
            return Err(Error::corrupt(id, "the chain of snapshots does not go back in time"));
        }
        Ok(Some(before))
    }
}
