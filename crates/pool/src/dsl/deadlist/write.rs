//! Deadlists that change (OpenZFS: `dsl_deadlist.c`, the writing half). Only the thread that syncs does so.
//!
//! The deadlist of the n-th snapshot has n keys, nearly all with the shared empty list. So whatever concerns many keys is one change:
//! a deadlist is made of all its keys at once ([`Deadlist::create_with`]), put in a new order at once ([`Deadlist::rebuild`]), and made of another one
//! by its blocks ([`Deadlist::succeed`]).

use std::collections::BTreeMap;

use base::{Endian, ObjectId, Txg};
use dmu::{NewZap, Tx, Zap, ZapValue};
use ondisk::dsl::DeadlistPhys;
use ondisk::{BlkPtr, ObjectType};

use crate::Error;
use crate::dsl::deadlist::{Body, Deadlist};
use crate::spa::bpobj::write::{
    EmptyCount, LIST_BLOCK, create_empties, create_empty, drop_empties, drop_empty, empty_list,
};
use crate::spa::bpobj::{Bpobj, Space};
use crate::spa::mos::Mos;
use crate::spa::mos::edit::{SMALL_INDIRECT_SHIFT, remove_int_present};

const OURS: Endian = Endian::Little;
/// From so many changed keys on, the ZAP of a deadlist is written anew.
const REWRITE_MIN: usize = 32;

/// A new deadlist.
const NEW: NewZap = NewZap {
    object_type: ObjectType::DEADLIST,
    id: None,
    normflags: 0,
    flags: 0,
    block_shift: 0,
    indirect_shift: SMALL_INDIRECT_SHIFT,
    bonus_type: ObjectType::DEADLIST_HDR,
    bonus_len: DeadlistPhys::SIZE,
    slots: 0,
    salt: 0,
};

/// The contents that a deadlist is to have: its keys, and the lists of each, none of them the shared empty one.
pub(in crate::dsl) type Lists = BTreeMap<Txg, Vec<ObjectId>>;

impl Deadlist {
    /// Makes a deadlist without keys.
    pub(in crate::dsl) fn create(mos: &Mos, tx: &Tx) -> Result<ObjectId, Error> {
        let zap = Zap::create_with(tx, &mos.objset, &NEW)?;
        zap.object().set_bonus(tx, &DeadlistPhys::default().encode(OURS))?;
        Ok(zap.object().id())
    }

    /// The deadlist of what follows a snapshot that takes over deadlist `old`: the keys of that one and `more`, all lists empty (OpenZFS:
    /// `dsl_deadlist_clone`, `dsl_deadlist_add_key`). `last_snapshot` as for [`Deadlist::clone_with`].
    pub(in crate::dsl) fn succeed(
        (mos, tx): (&Mos, &Tx),
        old: ObjectId,
        last_snapshot: ObjectId,
        more: &[Txg],
        count: &mut EmptyCount<'_>,
    ) -> Result<ObjectId, Error> {
        let is_old = mos.object(old)?.phys().object_type == ObjectType::BPOBJ;
        if is_old || count(0)?.is_none() {
            return Deadlist::open(mos, old)?.clone_with(tx, Txg(u64::MAX), last_snapshot, more, count);
        }
        let empty = create_empty(mos, tx, count)?;
        let zap = mos.zap(old)?.create_like(tx, &NEW, empty.0)?;
        zap.object().set_bonus(tx, &DeadlistPhys::default().encode(OURS))?;
        more.iter().try_for_each(|key| zap.update_int(tx, key.0, empty.0))?;
        match zap.count() {
            0 => drop_empty(mos, tx, count)?,
            1 => {}
            keys => drop(count(keys as i64 - 1)?),
        }
        Ok(zap.object().id())
    }

    /// Makes a deadlist of `lists`, by key.
    fn create_with(mos: &Mos, tx: &Tx, lists: &[(Txg, ObjectId)]) -> Result<ObjectId, Error> {
        let id = Deadlist::create(mos, tx)?;
        let entries: Vec<(String, ZapValue)> =
            lists.iter().map(|(key, list)| (format!("{:x}", key.0), ZapValue::from_u64(list.0))).collect();
        mos.zap(id)?.add_many(tx, &entries)?;
        Ok(id)
    }

    /// Frees a deadlist with its lists. The blocks in it are not touched.
    pub(in crate::dsl) fn free(self, tx: &Tx, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        let mos = &self.mos;
        let Body::Keyed { lists, .. } = &self.body else { return Bpobj::free(mos, tx, self.id) };
        let empty = empty_list(mos)?;
        for (_, list) in lists.iter().filter(|(_, list)| Some(*list) != empty) {
            Bpobj::free(mos, tx, *list)?;
        }
        drop_empties(mos, tx, self.empties(empty), count)?;
        Ok(mos.objset.free_object(tx, self.id)?)
    }

    /// How many keys have the shared empty list `empty`.
    pub(in crate::dsl) fn empties(&self, empty: Option<ObjectId>) -> u64 {
        match &self.body {
            Body::Old(_) => 0,
            Body::Keyed { lists, .. } => lists.iter().filter(|(_, list)| Some(*list) == empty).count() as u64,
        }
    }

    /// Its keys with their lists, without the shared empty one.
    pub(in crate::dsl) fn contents(&self) -> Result<Lists, Error> {
        let empty = empty_list(&self.mos)?;
        let own = |list: ObjectId| if Some(list) == empty { Vec::new() } else { vec![list] };
        Ok(self.lists().into_iter().map(|(key, list)| (key, own(list))).collect())
    }

    /// Makes this deadlist hold exactly `lists`, whose space is `space`: lists under one key are joined. Lists that it had and that
    /// `lists` does not name are the caller's. Gives its object, a new one if much changed.
    pub(in crate::dsl) fn rebuild(
        mut self,
        tx: &Tx,
        lists: &Lists,
        space: Space,
        count: &mut EmptyCount<'_>,
    ) -> Result<ObjectId, Error> {
        let mos = self.mos.clone();
        let empties_before = self.empties(empty_list(&mos)?);
        let Body::Keyed { lists: old, .. } = &self.body else {
            return Err(self.broken("has no keys".to_string()));
        };
        let mut spare = create_empties(&mos, tx, lists.values().filter(|ids| ids.is_empty()).count(), count)?;
        let mut new = Vec::with_capacity(lists.len());
        for (key, ids) in lists {
            let list = match ids.split_first() {
                None => spare.pop().ok_or_else(|| self.bug("fewer empty lists than keys without blocks"))?,
                Some((first, rest)) => {
                    if !rest.is_empty() {
                        Bpobj::open(&mos, *first)?.append_lists(tx, rest)?;
                    }
                    *first
                }
            };
            new.push((*key, list));
        }
        let changes = changes(old, &new);
        if changes.len() < REWRITE_MIN {
            let zap = self.zap()?;
            for (key, list) in changes {
                match list {
                    Some(list) => zap.update_int(tx, key.0, list.0)?,
                    None => remove_int_present(tx, &zap, key.0)?,
                }
            }
        } else {
            mos.objset.free_object(tx, self.id)?;
            self.id = Deadlist::create_with(&mos, tx, &new)?;
        }
        if let Body::Keyed { lists, .. } = &mut self.body {
            *lists = new;
        }
        drop_empties(&mos, tx, empties_before, count)?;
        self.book(tx, |all| *all = space)?;
        Ok(self.id)
    }

    /// Removes many keys at once; the list of each is joined to that of the next lower key that stays. Gives its object.
    pub(in crate::dsl) fn remove_keys(
        self,
        tx: &Tx,
        keys: &[Txg],
        count: &mut EmptyCount<'_>,
    ) -> Result<ObjectId, Error> {
        let (id, space) = (self.id, self.space());
        if matches!(self.body, Body::Old(_)) || keys.is_empty() {
            return Ok(id);
        }
        let (mut lists, mut changed) = (self.contents()?, false);
        for key in keys {
            let Some(ids) = lists.remove(key) else { continue };
            changed = true;
            match lists.range_mut(..key).next_back() {
                Some((_, below)) => below.extend(ids),
                None if ids.is_empty() => {}
                None => return Err(self.broken(format!("no key before {key}"))),
            }
        }
        if changed { self.rebuild(tx, &lists, space, count) } else { Ok(id) }
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

    /// Adds blocks that died.
    pub(in crate::dsl) fn insert_many(
        &mut self,
        tx: &Tx,
        blocks: &[BlkPtr],
        count: &mut EmptyCount<'_>,
    ) -> Result<(), Error> {
        let marked: Vec<(BlkPtr, bool)> = blocks.iter().map(|bp| (*bp, false)).collect();
        self.insert_marked(tx, &marked, count)
    }

    /// Adds blocks, each with whether it says FREE (livelists). A block goes into the list of the last key before its birth.
    pub(in crate::dsl) fn insert_marked(
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

    fn bug(&self, what: &str) -> Error {
        Error::Bug(format!("deadlist {}: {what}", self.id))
    }

    /// List `n`, one of its own in any case: the shared empty one is replaced.
    fn own_list(&mut self, tx: &Tx, n: usize, count: &mut EmptyCount<'_>) -> Result<ObjectId, Error> {
        let empty = empty_list(&self.mos)?;
        let (zap, mos) = (self.zap()?, self.mos.clone());
        let bug = self.bug(&format!("no list {n}"));
        let Body::Keyed { lists, .. } = &mut self.body else { return Err(bug) };
        let Some((key, id)) = lists.get_mut(n) else { return Err(bug) };
        if Some(*id) == empty {
            *id = Bpobj::create(&mos, tx, LIST_BLOCK)?;
            zap.update_int(tx, key.0, id.0)?;
            drop_empty(&mos, tx, count)?;
        }
        Ok(*id)
    }

    /// Begins a list for blocks born after `txg`, which must be behind all keys. An old deadlist has none.
    pub(in crate::dsl) fn add_key(&mut self, tx: &Tx, txg: Txg, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        let zap = self.zap_if_keyed()?;
        let Body::Keyed { lists, .. } = &mut self.body else { return Ok(()) };
        let id = create_empty(&self.mos, tx, count)?;
        if let Some(zap) = zap {
            zap.add_int(tx, txg.0, id.0)?;
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

    fn forget(&mut self, tx: &Tx, n: usize) -> Result<ObjectId, Error> {
        let (zap, bug) = (self.zap()?, self.bug("no keys"));
        let Body::Keyed { lists, .. } = &mut self.body else { return Err(bug) };
        let (key, id) = lists.remove(n);
        remove_int_present(tx, &zap, key.0)?;
        Ok(id)
    }

    /// Removes a key with its list (OpenZFS: `dsl_deadlist_remove_entry`). The blocks in it are not touched.
    pub(in crate::dsl) fn remove_entry(&mut self, tx: &Tx, txg: Txg, count: &mut EmptyCount<'_>) -> Result<(), Error> {
        if matches!(self.body, Body::Old(_)) {
            return Ok(());
        }
        let n = self.place(txg)?;
        let id = self.forget(tx, n)?;
        let space = Bpobj::open(&self.mos, id)?.space();
        release(&self.mos, tx, id, count)?;
        self.book(tx, |all| all.sub(space))
    }

    /// A new deadlist with the keys of this one before `until` and those of `more`, all of its lists empty: that of a snapshot's
    /// successor or a clone (OpenZFS: `dsl_deadlist_clone`, `dsl_deadlist_add_key`). For an old deadlist the keys are made of the
    /// chain of snapshots that ends with dataset `last_snapshot`.
    pub(in crate::dsl) fn clone_with(
        &self,
        tx: &Tx,
        until: Txg,
        last_snapshot: ObjectId,
        more: &[Txg],
        count: &mut EmptyCount<'_>,
    ) -> Result<ObjectId, Error> {
        let mut keys: Vec<Txg> = match &self.body {
            Body::Keyed { lists, .. } => lists.iter().map(|(key, _)| *key).filter(|key| *key < until).collect(),
            Body::Old(_) => self.keys_of_chain(last_snapshot)?,
        };
        keys.extend_from_slice(more);
        keys.sort_unstable();
        keys.dedup();
        let empties = create_empties(&self.mos, tx, keys.len(), count)?;
        let lists: Vec<(Txg, ObjectId)> = keys.into_iter().zip(empties).collect();
        Deadlist::create_with(&self.mos, tx, &lists)
    }

    /// The txgs of the snapshots before each of a chain (OpenZFS: `dsl_deadlist_regenerate`).
    fn keys_of_chain(&self, mut snapshot: ObjectId) -> Result<Vec<Txg>, Error> {
        let mut keys: Vec<Txg> = Vec::new();
        while snapshot.is_some() {
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
}

/// The changes of a deadlist of `old` lists, by key, that make it one of `new`: the new list of a key, or none.
fn changes(old: &[(Txg, ObjectId)], new: &[(Txg, ObjectId)]) -> Vec<(Txg, Option<ObjectId>)> {
    let list_of = |lists: &[(Txg, ObjectId)], key: Txg| {
        let n = lists.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        lists.get(n).map(|(_, list)| *list)
    };
    let gone = old.iter().filter(|(key, _)| list_of(new, *key).is_none()).map(|(key, _)| (*key, None));
    let put = new.iter().filter(|(key, list)| list_of(old, *key) != Some(*list)).map(|(key, list)| (*key, Some(*list)));
    gone.chain(put).collect()
}

/// Frees a list, or lets go of the shared empty one.
fn release(mos: &Mos, tx: &Tx, id: ObjectId, count: &mut EmptyCount<'_>) -> Result<(), Error> {
    if empty_list(mos)? == Some(id) { drop_empty(mos, tx, count) } else { Bpobj::free(mos, tx, id) }
}
