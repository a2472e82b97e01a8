//! Healing what ordinary reads found damaged.
//!
//! A read that met a bad copy and a good one leaves a note ([`zio::Suspect`]). Each txg begins, before anything of it is written,
//! with looking the noted pointers up in the state that was synced last: the very place of the tree that they were read from.
//! What still stands there, word for word, is overwritten where it is wrong.
//!
//! Why no other block can be hit: a block that the synced state leads to is allocated in it. Should the open txg, or the one
//! that is being synced, free it, its space is handed out again two txgs later at the earliest. And the repair ends before
//! the txg that is being synced does. A block that was freed is not found, whatever lies in its place by now. A block
//! that is younger than the synced state waits for the next txg.
//!
//! What is not looked up is not repaired either: chains of intent logs (they are short-lived), and what a dataset has overwritten and only
//! a snapshot keeps (reading the snapshot heals it, as does a scrub).

use std::sync::Arc;

use dmu::Objset;
use ondisk::BlkPtr;
use zio::{Bookmark, Scratch, Suspect};

use crate::spa::Spa;
use crate::{Error, Pool};

/// Bytes of suspects, as stored, that one txg reads again; the others wait for the next.
const BYTES_OF_A_TXG: u64 = 64 << 20;

impl Spa {
    /// Lets reads note what has to be mended, and mends it from the next txg on.
    pub(crate) fn watch_reads(&self) {
        let txgs = self.txgs.clone();
        self.zio.on_suspect(Arc::new(move || txgs.note_work()));
    }

    /// Mends the suspects that are current. To be called before anything of a txg is written.
    pub(crate) fn mend_suspects(&self) {
        let suspects = self.zio.take_suspects();
        if suspects.is_empty() {
            return;
        }
        // without a view nothing can be told to be current; the next reader will find the damage again
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
                // what cannot be mended any more is lost, which whoever reads it is told
                let _lost = self.zio.mend(&suspect, &mut scratch);
            }
        }
    }
}

/// Whether the pointer stands, in this state of the pool, where it was read from.
fn is_current(view: &Pool, suspect: &Suspect) -> Result<bool, Error> {
    let Suspect { bp, bm } = suspect;
    let objset = match bm.objset {
        0 => view.mos().clone(),
        id => Objset::open(view.zio().clone(), id, &view.mos.dataset_phys(id)?.bp)?,
    };
    Ok(standing(&objset, bm)?.is_some_and(|found| found == *bp))
}

/// The pointer at a place of an object set.
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
