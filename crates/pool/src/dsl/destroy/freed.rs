//! The space that no dataset holds any more and that is still allocated: frees that are put off, and trees and clones under destruction.

use std::collections::HashMap;

use base::ObjectId;
use ondisk::BlkPtr;
use ondisk::bpobj::{BptreeEntry, livelist_entry_is_free};

use crate::dsl::deadlist::Deadlist;
use crate::spa::bpobj::bptree_entries;
use crate::{Bpobj, Error, Pool};

impl Pool {
    /// The lists of blocks whose free is put off: to the next txg, and to the background (OpenZFS: `spa_deferred_bpobj`,
    /// `dp_free_bpobj`).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn deferred_frees(&self) -> Result<Vec<Bpobj>, Error> {
        let ids = [self.mos_lookup("sync_bplist")?, self.mos_lookup("free_bpobj")?];
        ids.into_iter().flatten().filter(|id| id.is_some()).map(|id| Bpobj::open(&self.mos, id)).collect()
    }

    /// The trees of datasets that are being destroyed in the background (OpenZFS: `dp_bptree_obj`).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn destroyed_trees(&self) -> Result<Vec<BptreeEntry>, Error> {
        match self.mos_lookup("bptree_obj")?.filter(|id| id.is_some()) {
            Some(id) => bptree_entries(&self.mos, id),
            None => Ok(Vec::new()),
        }
    }

    /// The livelists of clones that are being destroyed (OpenZFS: `spa_livelists_to_delete`).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn deleted_livelists(&self) -> Result<Vec<Deadlist>, Error> {
        let Some(id) = self.mos_lookup("com.delphix:deleted_clones")?.filter(|id| id.is_some()) else {
            return Ok(Vec::new());
        };
        let mut lists = Vec::new();
        for entry in self.mos.zap(id)?.entries()? {
            if let Some(id) = entry?.value.u64().map(ObjectId) {
                lists.push(Deadlist::open(&self.mos, id)?);
            }
        }
        Ok(lists)
    }

    /// The blocks of clones that are being destroyed by their livelists (OpenZFS: `spa_livelists_to_delete`).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn destroyed_clone_blocks(&self) -> Result<Vec<BlkPtr>, Error> {
        let mut alive: HashMap<[u64; 3], (BlkPtr, i64)> = HashMap::new();
        for list in self.deleted_livelists()? {
            list.for_each(&mut |bp| {
                let dva = bp.dva(0);
                let slot = alive.entry([dva.word0, dva.word1, bp.birth_physical().0]).or_insert((*bp, 0));
                slot.1 += if livelist_entry_is_free(bp) { -1 } else { 1 };
                Ok(())
            })?;
        }
        Ok(alive.into_values().filter(|(_, count)| *count > 0).map(|(bp, _)| bp).collect())
    }
}
