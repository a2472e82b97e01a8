//! Rolls a dataset back to its last snapshot (OpenZFS: `dsl_dataset_rollback_check`, `dsl_dataset_rollback_sync`).
//!
//! A clone of the snapshot is swapped with the head, and destroyed at once, with all changes since the snapshot.

use std::sync::Arc;

use crate::Error;
use crate::dsl::Refusal;
use crate::dsl::lookup::Live;
use crate::dsl::refused;
use crate::spa::Spa;
use crate::spa::mos::Mos;

/// The temporary clone that takes over the discarded blocks.
const CLONE: &str = "%rollback";

impl Spa {
    /// Drops all that was changed in file system or volume `fs` since its last snapshot, and gives that snapshot's full name. With `to`, it must be
    /// that one.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`]; [`Error::Refused`]: [`Refusal::NoSnapshot`], [`Refusal::NotLatest`] if there are newer snapshots than `to`, or
    /// bookmarks, [`Refusal::Busy`] while it is in use, [`Refusal::TryAgain`], [`Refusal::Quota`], [`Refusal::NoSpace`].
    pub fn rollback(self: &Arc<Self>, fs: &str, to: Option<&str>) -> Result<String, Error> {
        // one that is not there is found missing below
        let open = self.live_mos().and_then(|mos| self.find_head(&mos, fs)).ok();
        let mut suspended = open.map(|head| self.suspend_head(head.id));
        let (fs, to, _frozen) = (fs.to_string(), to.map(str::to_owned), self.freeze_holds());
        let done = self.sync_task(move |cx| {
            let (spa, mos, tx) = (cx.spa, cx.mos, cx.tx);
            let head = spa.find_head(mos, &fs)?;
            let snap = spa.check_rollback(mos, &fs, &head, to.as_deref())?;
            if snap.phys.creation_txg >= tx.txg() {
                return Err(refused(&fs, Refusal::TryAgain));
            }
            if spa.is_held_elsewhere(head.id) {
                return Err(refused(&fs, Refusal::Busy));
            }
            spa.dsl.open_datasets.evict_suspended(&[head.id], cx.tx.txg()).map_err(|why| refused(&fs, why))?;
            let clone = cx.clone_snapshot(&snap, head.phys.dir_obj, CLONE)?;
            cx.swap(&clone, &head)?;
            spa.destroy_checked(cx, &format!("{fs}/{CLONE}"), &mos.live(clone.id)?)?;
            cx.zero_zil(&mos.live(head.id)?)?;
            mos.full_name(spa.name(), &snap)
        });
        if let Some(suspended) = &mut suspended {
            suspended.ended(&done);
        }
        done
    }

    /// The snapshot to go back to.
    fn check_rollback(&self, mos: &Mos, fs: &str, head: &Live, to: Option<&str>) -> Result<Live, Error> {
        let origin = self.origin_snapshot(mos)?;
        let last = head.phys.prev_snap_obj;
        if last.is_none() || Some(last) == origin {
            return Err(refused(fs, Refusal::NoSnapshot));
        }
        if let Some(to) = to {
            let target = match self.find_snapshot(mos, to) {
                Err(Error::NoSuchDataset { .. }) => return Err(refused(to, Refusal::NoSnapshot)),
                other => other?,
            };
            let of_origin = mos.dir_phys(head.phys.dir_obj)?.origin_obj == target.id;
            if target.id != last {
                let own = target.phys.dir_obj == head.phys.dir_obj || of_origin;
                return Err(refused(to, if own { Refusal::NotLatest } else { Refusal::NoSnapshot }));
            }
        }
        let snap = mos.live(last)?;
        if mos.marks(head.id)?.iter().any(|mark| mark.phys.creation_txg > snap.phys.creation_txg) {
            return Err(refused(fs, Refusal::NotLatest));
        }
        let number = |name: &str| mos.prop_number(head.phys.dir_obj, name);
        let refquota = number("refquota")?;
        if refquota != 0 && snap.phys.referenced_bytes > refquota {
            return Err(refused(fs, Refusal::Quota));
        }
        // what is reserved must be there anew
        let unused = number("refreservation")?.min(head.phys.unique_bytes);
        if unused > 0 && unused > self.space_available(mos, head.phys.dir_obj, None)? {
            return Err(refused(fs, Refusal::NoSpace));
        }
        Ok(snap)
    }
}
