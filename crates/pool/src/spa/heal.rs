//! Self-healing of damage that ordinary reads found.
//!
//! A read that met a bad copy and a good one leaves a note ([`zio::Suspect`]). Before anything of a txg is written, the noted pointers are
//! looked up in the last synced state, by the bookmark that they were read from. Where the same pointer is still found there, its bad
//! copies are overwritten.
//!
//! Why no other block can be hit: a block that the synced state leads to is allocated in it. Should the open txg, or the one being synced,
//! free it, its space is reused two txgs later at the earliest, and the repair ends before the txg being synced does. A block that was
//! freed is not found, whatever lies at its DVA by now. A block that is younger than the synced state waits for the next txg.
//!
//! Pointers that are not looked up are not repaired either: chains of intent logs (they are short-lived), and blocks that a dataset has
//! overwritten and only a snapshot keeps (reading the snapshot heals them, as does a scrub).

use std::sync::Arc;

use base::ObjectId;
use dmu::Objset;
use ondisk::BlkPtr;
use zio::{Bookmark, Scratch, Suspect};

use crate::spa::Spa;
use crate::{Error, Pool};

/// Bytes of suspects, as stored, that one txg rereads; the others wait for the next.
const BYTES_OF_A_TXG: u64 = 64 << 20;

impl Spa {
    /// Lets reads note damaged blocks; they are healed from the next txg on.
    pub(crate) fn watch_reads(&self) {
        let txgs = self.txgs.clone();
        // of states that were looked at and not taken
        let _other = self.zio.live_tree().errors().take_lost();
        self.zio.on_suspect(Arc::new(move || txgs.note_work()));
    }

    /// Heals the suspects that are current. To be called before anything of a txg is written.
    pub(crate) fn heal_suspects(&self) {
        let suspects = self.zio.take_suspects();
        if suspects.is_empty() {
            return;
        }
        // without a view no pointer can be checked to be current; the next read will find the damage again
        let Ok(view) = self.view() else { return };
        let mut scratch = Scratch::default();
        let mut bytes = 0;
        for suspect in suspects {
            if suspect.bp.birth_physical() > view.uberblock().txg || bytes >= BYTES_OF_A_TXG {
                self.zio.suspect(&suspect.bp, &suspect.bm);
                continue;
            }
            if is_current(&view, &suspect).is_ok_and(|current| current) {
                bytes += suspect.bp.psize();
                // a block that cannot be healed any more is lost; its readers get the error
                let _lost = self.zio.heal(&suspect, &mut scratch);
            }
        }
    }
}

/// Returns whether this state of the pool still has the pointer at the bookmark that it was read from.
fn is_current(view: &Pool, suspect: &Suspect) -> Result<bool, Error> {
    let Suspect { bp, bm } = suspect;
    let objset = match bm.objset {
        ObjectId::MOS => view.mos().clone(),
        id => Objset::open(view.zio().clone(), id, &view.mos.dataset_phys(id)?.bp)?,
    };
    Ok(standing(&objset, bm)?.is_some_and(|found| found == *bp))
}

/// Returns the pointer at a bookmark of an object set.
fn standing(objset: &Arc<Objset>, bm: &Bookmark) -> Result<Option<BlkPtr>, Error> {
    if bm.level == Bookmark::ROOT_LEVEL {
        return Ok(Some(objset.rootbp()));
    }
    let object = objset.object(bm.object)?;
    if bm.blkid == Bookmark::SPILL_BLKID {
        return Ok(object.phys().spill);
    }
    Ok(object.blkptr(bm.level, bm.blkid)?)
}
