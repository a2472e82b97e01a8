//! Deadlists that change (OpenZFS: `dsl_deadlist.c`, the writing half). Only the thread that syncs does so.
#![cfg_attr(
    not(test),
    allow(dead_code, reason = "joining and taking lists apart is for snapshots that are destroyed, which comes next")
)]

use base::{Endian, Txg};
use dmu::{NewZap, Tx, Zap};
use ondisk::bpobj::livelist_entry_is_free;
use ondisk::dsl::DeadlistPhys;
use ondisk::{BlkPtr, ObjectType};

use crate::Error;
use crate::bpobj::{Bpobj, Space};
use crate::bpobj_write::{EmptyCount, LIST_BLOCK, create_empty, drop_empty, empty_list};
use crate::deadlist::{Body, Deadlist};
use crate::mos::Mos;

const OURS: Endian = Endian::Little;

impl Deadlist {
    /// Makes a deadlist without keys.
    pub(crate) fn create(mos: &Mos, tx: &Tx) -> Result<u64, Error> {
        let new = NewZap {
            object_type: ObjectType::DEADLIST,
            bonus_type: ObjectType::DEADLIST_HDR,
            bonus_len: DeadlistPhys::SIZE,
            ..NewZap::default()
        };
        let zap = Zap::create_with(tx, &mos.objset, &new)?;
        zap.object().set_bonus(tx, &DeadlistPhys::default().encode(OURS))?;
        Ok(zap.object().id())
    }

    /// Frees a deadlist with its lists. The blocks in it are not touched.
    pub(crate) fn free(self, tx: &Tx, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        let mos = &self.mos;
        match &self.body {
            Body::Old(_) => return Bpobj::free(mos, tx, self.id),
            Body::Keyed { lists, .. } => {
                for (_, list) in lists {
                    release(mos, tx, *list, count)?;
                }
            }
        }
        Ok(mos.objset.free_object(tx, self.id)?)
    }

    fn zap(&self) -> Result<Zap, Error> {
        self.mos.zap(self.id)
    }

    /// Changes the space of all lists.
    fn book(&mut self, tx: &Tx, change: impl FnOnce(&mut Space)) -> Result<(), Error> {
        let Body::Keyed { phys, .. } = &mut self.body else { return Ok(()) };
        let mut space = Space { used: phys.used, comp: phys.comp, uncomp: phys.uncomp };
        change(&mut space);
        *phys = DeadlistPhys { used: space.used, comp: space.comp, uncomp: space.uncomp };
        let encoded = phys.encode(OURS);
        Ok(self.mos.object(self.id)?.set_bonus(tx, &encoded)?)
    }

    /// Adds a block that died.
    pub(crate) fn insert(&mut self, tx: &Tx, bp: &BlkPtr, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        self.insert_marked(tx, &[(*bp, false)], count)
    }

    /// Adds blocks that died.
    pub(crate) fn insert_many(&mut self, tx: &Tx, blocks: &[BlkPtr], count: &mut EmptyCount<'_>) -> Result<(), Error> {
        let marked: Vec<(BlkPtr, bool)> = blocks.iter().map(|bp| (*bp, false)).collect();
        self.insert_marked(tx, &marked, count)
    }

    /// Adds blocks, each with whether it says FREE (livelists). A block goes into the list of the last key before its birth.
    pub(crate) fn insert_marked(
        &mut self,
        tx: &Tx,
        blocks: &[(BlkPtr, bool)],
        count: &mut EmptyCount<'_>,
    ) -> Result<(), Error> {
        let blocks = blocks.iter().filter(|(bp, _)| !bp.is_hole());
        let lists = match &self.body {
            Body::Old(list) => {
                let all: Vec<(BlkPtr, bool)> = blocks.copied().collect();
                return list.append_marked(tx, &all);
            }
            Body::Keyed { lists, .. } => lists,
        };
        let deflate = self.mos.number("deflate")?.unwrap_or(0) != 0;
        let mut by_list: Vec<Vec<(BlkPtr, bool)>> = vec![Vec::new(); lists.len()];
        let (mut more, mut less) = (Space::default(), Space::default());
        for (bp, free) in blocks {
            let n = lists.partition_point(|(txg, _)| *txg < bp.birth()).checked_sub(1);
            let place = n.and_then(|n| by_list.get_mut(n));
            place.ok_or_else(|| self.broken(format!("no list for a block of txg {}", bp.birth())))?.push((*bp, *free));
            let side = if *free { &mut less } else { &mut more };
            side.add(Space::of(&self.mos, bp, deflate));
        }
        for (n, blocks) in by_list.iter().enumerate().filter(|(_, blocks)| !blocks.is_empty()) {
            let id = self.own_list(tx, n, count)?;
            Bpobj::open(&self.mos, id)?.append_marked(tx, blocks)?;
        }
        self.book(tx, |space| {
            space.add(more);
            space.sub(less);
        })
    }

    fn broken(&self, what: String) -> Error {
        Error::corrupt(self.id, format!("deadlist: {what}"))
    }

    /// List `n`, one of its own in any case: the shared empty one is replaced.
    fn own_list(&mut self, tx: &Tx, n: usize, count: &mut EmptyCount<'_>) -> Result<u64, Error> {
        let empty = empty_list(&self.mos)?;
        let (zap, mos) = (self.zap()?, self.mos.clone());
        let Body::Keyed { lists, .. } = &mut self.body else { return Ok(self.id) };
        let Some((key, id)) = lists.get_mut(n) else { return Ok(0) };
        if Some(*id) == empty {
            *id = Bpobj::create(&mos, tx, LIST_BLOCK)?;
            zap.update_int(tx, key.0, *id)?;
            drop_empty(&mos, tx, count)?;
        }
        Ok(*id)
    }

    /// Joins the list in object `id` to list `n`.
    fn join(&mut self, tx: &Tx, n: usize, id: u64, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        let empty = empty_list(&self.mos)?;
        let (zap, mos) = (self.zap()?, self.mos.clone());
        let Body::Keyed { lists, .. } = &mut self.body else { return Ok(()) };
        let Some((key, own)) = lists.get_mut(n) else { return Ok(()) };
        if Some(*own) == empty {
            // it takes the place of the empty one
            *own = id;
            zap.update_int(tx, key.0, id)?;
            return drop_empty(&mos, tx, count);
        }
        Bpobj::open(&mos, *own)?.append_list(tx, id, count)
    }

    /// Begins a list for blocks born after `txg`, which must be behind all keys. An old deadlist has none.
    pub(crate) fn add_key(&mut self, tx: &Tx, txg: Txg, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        let zap = self.zap_if_keyed()?;
        let Body::Keyed { lists, .. } = &mut self.body else { return Ok(()) };
        let id = create_empty(&self.mos, tx, count)?;
        if let Some(zap) = zap {
            zap.add_int(tx, txg.0, id)?;
        }
        let at = lists.partition_point(|(key, _)| *key < txg);
        lists.insert(at, (txg, id));
        Ok(())
    }

    fn zap_if_keyed(&self) -> Result<Option<Zap>, Error> {
        match &self.body {
            Body::Old(_) => Ok(None),
            Body::Keyed { .. } => self.zap().map(Some),
        }
    }

    fn place(&self, txg: Txg) -> Result<usize, Error> {
        let Body::Keyed { lists, .. } = &self.body else { return Err(self.broken("has no keys".to_string())) };
        lists.iter().position(|(key, _)| *key == txg).ok_or_else(|| self.broken(format!("no key {txg}")))
    }

    fn forget(&mut self, tx: &Tx, n: usize) -> Result<u64, Error> {
        let zap = self.zap()?;
        let Body::Keyed { lists, .. } = &mut self.body else { return Ok(0) };
        let (key, id) = lists.remove(n);
        zap.remove_int(tx, key.0)?;
        Ok(id)
    }

    /// Removes a key; its list is joined to the one before (OpenZFS: `dsl_deadlist_remove_key`).
    pub(crate) fn remove_key(&mut self, tx: &Tx, txg: Txg, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        if matches!(self.body, Body::Old(_)) {
            return Ok(());
        }
        let n = self.place(txg)?;
        let before = n.checked_sub(1).ok_or_else(|| self.broken(format!("no key before {txg}")))?;
        let id = self.forget(tx, n)?;
        self.join(tx, before, id, count)
    }

    /// Removes a key with its list (OpenZFS: `dsl_deadlist_remove_entry`). The blocks in it are not touched.
    pub(crate) fn remove_entry(&mut self, tx: &Tx, txg: Txg, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        if matches!(self.body, Body::Old(_)) {
            return Ok(());
        }
        let n = self.place(txg)?;
        let id = self.forget(tx, n)?;
        let space = Bpobj::open(&self.mos, id)?.space();
        release(&self.mos, tx, id, count)?;
        self.book(tx, |all| all.sub(space))
    }

    /// A new deadlist with the keys of this one before `until`, all of its lists empty: that of a snapshot's successor or a clone
    /// (OpenZFS: `dsl_deadlist_clone`). For an old deadlist the keys are made of the chain of snapshots that ends with dataset
    /// `last_snapshot`.
    pub(crate) fn clone_from_chain(
        &self,
        tx: &Tx,
        until: Txg,
        last_snapshot: u64,
        count: &mut EmptyCount<'_>,
    ) -> Result<u64, Error> {
        let id = Deadlist::create(&self.mos, tx)?;
        let keys: Vec<Txg> = match &self.body {
            Body::Keyed { lists, .. } => lists.iter().map(|(key, _)| *key).filter(|key| *key < until).collect(),
            Body::Old(_) => self.keys_of_chain(last_snapshot)?,
        };
        let mut new = Deadlist::open(&self.mos, id)?;
        for key in keys {
            new.add_key(tx, key, count)?;
        }
        Ok(id)
    }

    /// [`Deadlist::clone_from_chain`] of a deadlist that has keys.
    pub(crate) fn clone_until(&self, tx: &Tx, until: Txg, count: &mut EmptyCount<'_>) -> Result<u64, Error> {
        self.clone_from_chain(tx, until, 0, count)
    }

    /// The txgs of the snapshots before each of a chain (OpenZFS: `dsl_deadlist_regenerate`).
    fn keys_of_chain(&self, mut snapshot: u64) -> Result<Vec<Txg>, Error> {
        let mut keys: Vec<Txg> = Vec::new();
        while snapshot != 0 {
            let phys = Mos::bonus(&self.mos.object(snapshot)?, ondisk::dsl::DslDatasetPhys::decode)?;
            if keys.last().is_some_and(|last| *last <= phys.prev_snap_txg) {
                return Err(Error::corrupt(snapshot, "the chain of snapshots does not go back in time"));
            }
            keys.push(phys.prev_snap_txg);
            snapshot = phys.prev_snap_obj;
        }
        keys.reverse();
        Ok(keys)
    }

    /// Takes over all of the deadlist in object `other`, which is left without keys (OpenZFS: `dsl_deadlist_merge`).
    pub(crate) fn merge(&mut self, tx: &Tx, other: u64, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        let mut other = Deadlist::open(&self.mos, other)?;
        let lists = match &other.body {
            Body::Old(list) => {
                let mut blocks = Vec::new();
                list.for_each(&mut |bp| {
                    blocks.push((*bp, livelist_entry_is_free(bp)));
                    Ok(())
                })?;
                return self.insert_marked(tx, &blocks, count);
            }
            Body::Keyed { lists, .. } => lists.clone(),
        };
        for (key, id) in lists {
            let space = Bpobj::open(&self.mos, id)?.space();
            let Body::Keyed { lists: own, .. } = &self.body else {
                return Err(self.broken("an old one cannot take over one with keys".to_string()));
            };
            // a key that is not here goes to the one before
            let n = own.partition_point(|(own, _)| *own <= key).checked_sub(1);
            let n = n.ok_or_else(|| self.broken(format!("no key up to {key}")))?;
            other.forget(tx, 0)?;
            self.join(tx, n, id, count)?;
            self.book(tx, |all| all.add(space))?;
        }
        other.book(tx, |all| *all = Space::default())
    }

    /// Moves the lists of blocks born after `txg` to `list`, with their keys (OpenZFS: `dsl_deadlist_move_bpobj`).
    pub(crate) fn move_to(&mut self, tx: &Tx, list: &Bpobj, txg: Txg, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        loop {
            let Body::Keyed { lists, .. } = &self.body else {
                return Err(self.broken("an old one cannot be divided".to_string()));
            };
            let n = lists.partition_point(|(key, _)| *key < txg);
            if n >= lists.len() {
                return Ok(());
            }
            let id = self.forget(tx, n)?;
            let space = Bpobj::open(&self.mos, id)?.space();
            list.append_list(tx, id, count)?;
            self.book(tx, |all| all.sub(space))?;
        }
    }
}

/// Frees a list, or lets go of the shared empty one.
fn release(mos: &Mos, tx: &Tx, id: u64, count: &mut EmptyCount<'_>) -> Result<(), Error> {
    if empty_list(mos)? == Some(id) { drop_empty(mos, tx, count) } else { Bpobj::free(mos, tx, id) }
}
