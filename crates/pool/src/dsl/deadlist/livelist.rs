//! Livelists: the blocks that a clone does not share with its origin, so that it can be destroyed without reading its block tree (OpenZFS:
//! `spa_livelist_*`, `dsl_livelist_*`).
//!
//! A livelist has the form of a deadlist: parts by birth, each with entries ALLOC and FREE. An entry is appended for each block that the clone
//! writes or frees (`dsl::open_datasets`). Two neighbouring parts with few live blocks are *condensed* into one. A clone that shares little with its origin
//! any more loses its livelist: walking its block tree is as fast. The livelist of a destroyed clone is processed part by part, txg by txg, from
//! the ZAP `com.delphix:deleted_clones`.

use std::collections::HashMap;

use base::{ObjectId, Txg, tunable};
use dmu::Tx;
use ondisk::bpobj::livelist_entry_is_free;
use ondisk::dsl::dir_keys;
use ondisk::{BlkPtr, ObjectType};

use crate::Error;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::space::Delta;
use crate::spa::Spa;
use crate::spa::bpobj::Bpobj;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::remove_present;

/// Key of the livelists of destroyed clones, in the MOS directory.
pub(in crate::dsl) const DELETED_CLONES: &str = "com.delphix:deleted_clones";

/// The blocks of some parts of a livelist that were not freed again, each as often as it was referred to (OpenZFS: `dsl_process_sub_livelist`).
/// A block that was freed more often than written is recorded as a wrong counter of the livelist, `id`.
fn alive(mos: &Mos, id: ObjectId, parts: &[Bpobj]) -> Result<Vec<BlkPtr>, Error> {
    let mut count: HashMap<[u64; 3], (BlkPtr, u64, i64)> = HashMap::new();
    for part in parts {
        part.for_each(&mut |bp| {
            let dva = bp.dva(0);
            let slot = count.entry([dva.word0, dva.word1, bp.birth_physical().0]).or_insert((*bp, 0, 0));
            if livelist_entry_is_free(bp) {
                slot.2 += 1;
            } else {
                slot.1 += 1;
            }
            Ok(())
        })?;
    }
    let mut alive: Vec<BlkPtr> = Vec::new();
    for (bp, mut written, freed) in count.into_values() {
        mos.count(id, "uses of a block of a livelist", &mut written, -freed);
        alive.extend((0..written).map(|_| bp));
    }
    // the order of a hash table must not show on disk
    alive.sort_unstable_by_key(|bp| (bp.dva(0).word0, bp.dva(0).word1, bp.birth_physical()));
    Ok(alive)
}

impl Spa {
    /// Condenses or removes the livelist of a clone, in its sync.
    pub(in crate::dsl) fn tend_livelist(&self, mos: &Mos, tx: &Tx, head: ObjectId) -> Result<(), Error> {
        let phys = mos.dataset_phys(head)?;
        let Some(id) = mos.extra_id(phys.dir_obj, dir_keys::LIVELIST)? else { return Ok(()) };
        let own = mos.dir_phys(phys.dir_obj)?.used_breakdown.head;
        let shared = phys.referenced_bytes.saturating_sub(own);
        if phys.referenced_bytes > 0
            && u128::from(shared) * 100 / u128::from(phys.referenced_bytes)
                <= u128::from(tunable::ZFS_LIVELIST_MIN_PERCENT_SHARED.get())
        {
            return self.remove_livelist(mos, tx, phys.dir_obj);
        }
        self.condense(mos, tx, Deadlist::open(mos, id)?)
    }

    /// Removes the livelist of directory `dir`, if it has one (OpenZFS: `dsl_dir_remove_livelist`).
    pub(in crate::dsl) fn remove_livelist(&self, mos: &Mos, tx: &Tx, dir: ObjectId) -> Result<(), Error> {
        let Some(id) = mos.extra_id(dir, dir_keys::LIVELIST)? else { return Ok(()) };
        mos.zap(dir)?.remove(tx, dir_keys::LIVELIST)?;
        let list = Deadlist::open(mos, id)?;
        self.with_empty_bpobj(mos, tx, |count| list.free(tx, count))?;
        self.feature_decrement(mos, tx, "livelist")
    }

    /// Condenses the first two neighbouring parts whose live blocks fit into one part. The last part is left alone, since it still grows; thus a
    /// part is condensed once and not in each txg.
    fn condense(&self, mos: &Mos, tx: &Tx, livelist: Deadlist) -> Result<(), Error> {
        let lists = livelist.lists();
        let settled = lists.len().saturating_sub(1);
        for pair in lists.get(..settled).unwrap_or(&[]).windows(2) {
            let [(key, first), (gone, second)] = pair else { continue };
            let parts = [livelist.list(*first)?, livelist.list(*second)?];
            let entries: u64 = parts.iter().map(|part| part.phys().num_blkptrs).sum();
            let freed: u64 = parts.iter().map(|part| part.phys().num_freed).sum();
            if entries.saturating_sub(freed.saturating_mul(2)) < tunable::ZFS_LIVELIST_MAX_ENTRIES.get() {
                let alive = alive(mos, livelist.id(), &parts)?;
                return self.join_parts(mos, tx, livelist, (*key, *gone), &alive);
            }
        }
        Ok(())
    }

    fn join_parts(
        &self,
        mos: &Mos,
        tx: &Tx,
        mut livelist: Deadlist,
        (key, gone): (Txg, Txg),
        alive: &[BlkPtr],
    ) -> Result<(), Error> {
        self.with_empty_bpobj(mos, tx, |count| {
            livelist.remove_entry(tx, gone, count)?;
            livelist.remove_entry(tx, key, count)?;
            livelist.add_key(tx, key, count)?;
            livelist.insert_many(tx, alive, count)
        })
    }

    /// Queues the livelist of the clone in directory `dir`, which is destroyed, to be processed.
    pub(in crate::dsl) fn delete_by_livelist(
        &self,
        mos: &Mos,
        tx: &Tx,
        dir: ObjectId,
        livelist: ObjectId,
    ) -> Result<(), Error> {
        mos.zap(dir)?.remove(tx, dir_keys::LIVELIST)?;
        let deleted = match mos.id_of(DELETED_CLONES)? {
            Some(id) => id,
            None => {
                let id = mos.new_zap(tx, ObjectType::OTN_ZAP_METADATA)?;
                mos.root_zap()?.add_id(tx, DELETED_CLONES, id)?;
                id
            }
        };
        Ok(mos.zap(deleted)?.add_int(tx, livelist.0, livelist.0)?)
    }

    /// Frees the blocks of one part of one destroyed clone's livelist, and returns how many; `None` if there is nothing left.
    pub(in crate::dsl) fn free_deleted_clone(&self, mos: &Mos, tx: &Tx) -> Result<Option<u64>, Error> {
        let Some(deleted) = mos.named_zap(DELETED_CLONES)? else { return Ok(None) };
        let Some(first) = deleted.entries()?.next().transpose()? else { return Ok(None) };
        let id = first.value.id();
        let mut livelist = Deadlist::open(mos, id)?;
        if let Some((key, part)) = livelist.lists().first().copied() {
            let blocks = alive(mos, id, &[livelist.list(part)?])?;
            let mut sum = Delta::default();
            blocks.iter().for_each(|bp| sum.add(Delta::of(mos, bp)));
            let freed = blocks.len() as u64;
            self.frees.add(blocks);
            self.did_use_free(mos, tx, Delta::default().minus(sum))?;
            self.with_empty_bpobj(mos, tx, |count| livelist.remove_entry(tx, key, count))?;
            return Ok(Some(freed));
        }
        remove_present(tx, &deleted, &first.name)?;
        self.with_empty_bpobj(mos, tx, |count| livelist.free(tx, count))?;
        self.feature_decrement(mos, tx, "livelist")?;
        if deleted.count() == 0 {
            mos.root_zap()?.remove(tx, DELETED_CLONES)?;
            mos.objset.free_object(tx, deleted.object().id())?;
        }
        Ok(Some(0))
    }
}
