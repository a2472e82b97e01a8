//! Updates remap deadlists when snapshots are destroyed (OpenZFS: `dsl_destroy_snapshot_handle_remaps`).
//!
//! When a block of a removed device is found elsewhere, its old segment is not needed any more, unless a snapshot still refers to it. Such segments
//! are listed in a *remap deadlist*, which a snapshot takes over from its head. When the snapshot is destroyed they move to that of the next one,
//! or, where no dataset refers to them any more, to the pool's list of obsolete segments.

use base::{ObjectId, Txg};
use dmu::Tx;
use ondisk::dsl::dataset_keys::REMAP_DEADLIST;

use crate::Error;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::deadlist::write::Lists;
use crate::dsl::destroy::snapshot::Run;
use crate::dsl::lookup::Live;
use crate::spa::Spa;
use crate::spa::bpobj::write::{LIST_BLOCK, empty_list};
use crate::spa::bpobj::{Bpobj, Space};
use crate::spa::mos::Mos;

/// Key of the list of obsolete segments, in the MOS directory.
const OBSOLETE_BPOBJ: &str = "com.delphix:obsolete_bpobj";

/// The lists of one or more remap deadlists.
#[derive(Default)]
struct Remaps {
    obsolete: Vec<ObjectId>,
    keep: Lists,
    kept: Space,
}

impl Remaps {
    fn take(&mut self, list: &Deadlist, since: Txg, empty: Option<ObjectId>) -> Result<(), Error> {
        for (key, id) in list.lists().into_iter().filter(|(_, id)| Some(*id) != empty) {
            if key >= since {
                self.obsolete.push(id);
                continue;
            }
            self.kept.add(list.list(id)?.space());
            match self.keep.range_mut(..=key).next_back() {
                Some((_, lists)) => lists.push(id),
                None => return Err(Error::corrupt(list.id(), format!("remap deadlist: no key up to {key}"))),
            }
        }
        Ok(())
    }
}

impl Spa {
    /// The remap deadlists of snapshots that go.
    pub(in crate::dsl) fn remap_lists_of_run(&self, mos: &Mos, tx: &Tx, run: &Run<'_>) -> Result<(), Error> {
        let mut own = Vec::new();
        for (n, one) in run.all.iter().enumerate() {
            if let Some(id) = mos.extra_id(one.snap.id, REMAP_DEADLIST)? {
                own.push((n, Deadlist::open(mos, id)?));
            }
        }
        let next = mos.extra_id(run.next.id, REMAP_DEADLIST)?;
        if own.is_empty() && next.is_none() {
            return Ok(());
        }
        let next = match next {
            Some(id) => Deadlist::open(mos, id)?,
            None => self.new_remap_list(mos, tx, &mos.live(run.next.id)?)?,
        };
        let (since, empty) = (run.first.snap.phys.prev_snap_txg, empty_list(mos)?);
        let below = next.lists().into_iter().filter(|(key, _)| *key < since);
        let mut remaps = Remaps { keep: below.map(|(key, _)| (key, Vec::new())).collect(), ..Remaps::default() };
        remaps.take(&next, since, empty)?;
        let mut empties = 0;
        for (n, list) in own {
            // what the oldest one has, the snapshot before it has as well
            remaps.take(&list, if n == 0 { Txg(u64::MAX) } else { since }, empty)?;
            empties += list.empties(empty);
            mos.objset.free_object(tx, list.id())?;
            self.feature_decrement(mos, tx, "obsolete_counts")?;
        }
        let id = self.with_empty_bpobj(mos, tx, |count| {
            let id = next.rebuild(tx, &remaps.keep, remaps.kept, count)?;
            crate::spa::bpobj::write::drop_empties(mos, tx, empties, count)?;
            Ok(id)
        })?;
        mos.zap(run.next.id)?.update_id(tx, REMAP_DEADLIST, id)?;
        if remaps.obsolete.is_empty() { Ok(()) } else { self.note_obsolete(mos, tx, &remaps.obsolete) }
    }

    fn new_remap_list(&self, mos: &Mos, tx: &Tx, next: &Live) -> Result<Deadlist, Error> {
        let id = self.with_empty_bpobj(mos, tx, |count| {
            Deadlist::succeed((mos, tx), next.phys.deadlist_obj, next.phys.prev_snap_obj, &[], count)
        })?;
        self.zapify(mos, tx, next.id)?.add_id(tx, REMAP_DEADLIST, id)?;
        self.feature_increment(mos, tx, "obsolete_counts")?;
        Deadlist::open(mos, id)
    }

    fn note_obsolete(&self, mos: &Mos, tx: &Tx, lists: &[ObjectId]) -> Result<(), Error> {
        let id = match mos.id_of(OBSOLETE_BPOBJ)? {
            Some(id) => id,
            None => {
                let id = Bpobj::create(mos, tx, LIST_BLOCK)?;
                mos.root_zap()?.add_id(tx, OBSOLETE_BPOBJ, id)?;
                self.feature_increment(mos, tx, "obsolete_counts")?;
                id
            }
        };
        Bpobj::open(mos, id)?.append_lists(tx, lists)
    }

    /// Takes keys out of a head's remap deadlist.
    pub(in crate::dsl) fn remove_remap_keys(
        &self,
        mos: &Mos,
        tx: &Tx,
        head: ObjectId,
        list: ObjectId,
        keys: &[Txg],
    ) -> Result<(), Error> {
        let remaps = Deadlist::open(mos, list)?;
        let id = self.with_empty_bpobj(mos, tx, |count| remaps.remove_keys(tx, keys, count))?;
        if id != list {
            mos.zap(head)?.update_id(tx, REMAP_DEADLIST, id)?;
        }
        Ok(())
    }

    /// Frees the remap deadlist of a head that goes.
    pub(in crate::dsl) fn drop_remap_list(&self, mos: &Mos, tx: &Tx, head: ObjectId) -> Result<(), Error> {
        let Some(id) = mos.extra_id(head, REMAP_DEADLIST)? else { return Ok(()) };
        mos.zap(head)?.remove(tx, REMAP_DEADLIST)?;
        self.with_empty_bpobj(mos, tx, |count| Deadlist::open(mos, id)?.free(tx, count))?;
        self.feature_decrement(mos, tx, "obsolete_counts")
    }
}
