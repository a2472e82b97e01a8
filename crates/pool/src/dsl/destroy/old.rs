//! Destroys snapshots of pools before version 26, whose deadlists have no keys (OpenZFS: `process_old_deadlist`).

use base::ObjectId;
use dmu::Tx;
use ondisk::BlkPtr;

use crate::Error;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::destroy::snapshot::Doomed;
use crate::dsl::space::{Delta, UNIQUE, Used};
use crate::spa::Spa;
use crate::spa::mos::Mos;

impl Spa {
    /// Splits the deadlist of the next dataset: a block born after the previous snapshot is freed; any other is added to the snapshot's own
    /// deadlist, which becomes that of the next dataset.
    pub(in crate::dsl) fn destroy_old(&self, mos: &Mos, tx: &Tx, one: &Doomed) -> Result<(), Error> {
        let snap = mos.live(one.snap.id)?;
        let next = mos.live(snap.phys.next_snap_obj)?;
        let prev = match snap.phys.prev_snap_obj {
            ObjectId::NONE => None,
            id => Some(mos.live(id)?).filter(|prev| prev.phys.next_snap_obj == snap.id),
        };
        let (mut free, mut keep, mut alone, mut sum): (Vec<BlkPtr>, Vec<BlkPtr>, u64, Delta) = Default::default();
        Deadlist::open(mos, next.phys.deadlist_obj)?.for_each(&mut |bp| {
            if bp.birth() > snap.phys.prev_snap_txg {
                sum.add(Delta::of(mos, bp));
                free.push(*bp);
                return Ok(());
            }
            if prev.as_ref().is_some_and(|prev| bp.birth() > prev.phys.prev_snap_txg) {
                alone += mos.dsize(bp, true);
            }
            keep.push(*bp);
            Ok(())
        })?;
        let mut own = Deadlist::open(mos, snap.phys.deadlist_obj)?;
        self.with_empty_bpobj(mos, tx, |count| {
            own.insert_many(tx, &keep, count)?;
            Deadlist::open(mos, next.phys.deadlist_obj)?.free(tx, count)
        })?;
        self.frees.add(free.into_iter().filter(|bp| !bp.is_embedded()));
        mos.did_use(tx, snap.phys.dir_obj, Used::Snap, Delta::default().minus(sum))?;
        mos.edit_dataset(tx, next.id, |phys| {
            phys.deadlist_obj = snap.phys.deadlist_obj;
            (phys.prev_snap_obj, phys.prev_snap_txg) = (snap.phys.prev_snap_obj, snap.phys.prev_snap_txg);
        })?;
        match (&prev, snap.phys.prev_snap_obj) {
            (Some(prev), _) => mos.edit_dataset(tx, prev.id, |phys| {
                phys.next_snap_obj = next.id;
                mos.count(prev.id, UNIQUE, &mut phys.unique_bytes, alone.cast_signed());
            })?,
            (None, ObjectId::NONE) => {}
            (None, origin) => {
                if let Some(clones) = mos.zap_if(mos.dataset_phys(origin)?.next_clones_obj)? {
                    clones.remove_int(tx, snap.id.0)?;
                    clones.add_int(tx, next.id.0, next.id.0)?;
                }
            }
        }
        if !next.phys.is_snapshot() {
            return self.recount_head(mos, tx, next.id);
        }
        let after = mos.dataset_phys(next.phys.next_snap_obj)?;
        let more =
            Deadlist::open(mos, after.deadlist_obj)?.space_range(snap.phys.prev_snap_txg, snap.phys.creation_txg)?;
        mos.grow_unique(tx, next.id, more.used)
    }
}
