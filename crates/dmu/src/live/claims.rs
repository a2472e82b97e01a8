//! The objects that transactions change.
//!
//! While a txg quiesces the next one is open already. An object must not be changed in both at a time: a change of the older txg would have to
//! leave out what the newer one has changed before. So each transaction has a list of the objects that it may change. It is given when the
//! transaction is assigned, which waits for the transactions of the txg before that have one of these objects on theirs; transactions on other
//! objects go on. New objects are added as they are made, others may be claimed later, as long as no other txg has them.
//!
//! Objects whose contents only grow, and mean nothing by themselves, are *shared*: every transaction may change them
//! ([`Object::share`]).
//!
//! OpenZFS: `dmu_tx_hold_*`, `dmu_tx_try_assign`, `dn_assigned_txg`.

use std::sync::atomic::Ordering;

use base::ObjectId;

use super::Tx;
use super::dnode::slot_of;
use crate::{Error, Object, Objset};

/// The objects that a transaction may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxObjects {
    /// True for all objects of the pool.
    all: bool,
    /// Object sets that may be changed as a whole.
    sets: Set<ObjectId>,
    /// Object set and object.
    objects: Set<(ObjectId, ObjectId)>,
}

/// A small set, in order. Most transactions have one object, or two.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Set<T>(Vec<T>);

impl<T> Default for Set<T> {
    fn default() -> Set<T> {
        Set(Vec::new())
    }
}

impl<T: Copy + Ord> Set<T> {
    fn of(all: impl IntoIterator<Item = T>) -> Set<T> {
        let mut all: Vec<T> = all.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Set(all)
    }

    /// Adds one. New objects come in the order of their numbers, mostly.
    fn insert(&mut self, one: T) {
        if self.0.last().is_none_or(|last| *last < one) {
            self.0.push(one);
        } else if let Err(n) = self.0.binary_search(&one) {
            self.0.insert(n, one);
        }
    }

    fn extend(&mut self, more: &Set<T>) {
        more.0.iter().for_each(|one| self.insert(*one));
    }

    fn contains(&self, one: &T) -> bool {
        self.0.binary_search(one).is_ok()
    }

    /// True if one that is not below `first` is not above `last`.
    fn has_within(&self, first: &T, last: &T) -> bool {
        let n = self.0.partition_point(|one| one < first);
        self.0.get(n).is_some_and(|one| one <= last)
    }
}

impl TxObjects {
    /// No object.
    #[must_use]
    pub fn none() -> TxObjects {
        TxObjects::default()
    }

    /// All objects of the pool.
    #[must_use]
    pub fn all() -> TxObjects {
        TxObjects { all: true, ..TxObjects::default() }
    }

    /// All objects of one object set.
    #[must_use]
    pub fn of_set(objset: ObjectId) -> TxObjects {
        TxObjects { sets: Set(vec![objset]), ..TxObjects::default() }
    }

    /// Some objects of one object set.
    #[must_use]
    pub fn of(objset: ObjectId, objects: &[ObjectId]) -> TxObjects {
        TxObjects { objects: Set::of(objects.iter().map(|object| (objset, *object))), ..TxObjects::default() }
    }

    /// Returns both.
    #[must_use]
    pub fn and(mut self, more: TxObjects) -> TxObjects {
        self.add(&more);
        self
    }

    /// Adds more objects.
    pub fn add(&mut self, more: &TxObjects) {
        self.all |= more.all;
        self.sets.extend(&more.sets);
        self.objects.extend(&more.objects);
    }

    /// Adds an object.
    pub fn add_object(&mut self, objset: ObjectId, object: ObjectId) {
        self.objects.insert((objset, object));
    }

    /// Returns whether all of `others` are among them.
    #[must_use]
    pub fn covers(&self, others: &TxObjects) -> bool {
        self.all
            || (!others.all
                && others.sets.0.iter().all(|objset| self.sets.contains(objset))
                && others.objects.0.iter().all(|(objset, object)| self.has(*objset, *object)))
    }

    /// Returns whether an object is among them.
    #[must_use]
    pub fn has(&self, objset: ObjectId, object: ObjectId) -> bool {
        self.all || self.sets.contains(&objset) || self.objects.contains(&(objset, object))
    }

    fn is_empty(&self) -> bool {
        !self.all && self.sets.0.is_empty() && self.objects.0.is_empty()
    }

    /// Returns whether an object of `objset` is among them.
    fn has_any(&self, objset: ObjectId) -> bool {
        let (first, last) = ((objset, ObjectId(0)), (objset, ObjectId(u64::MAX)));
        self.sets.contains(&objset) || self.objects.has_within(&first, &last)
    }

    /// Returns whether some object is in both.
    #[must_use]
    pub fn meets(&self, others: &TxObjects) -> bool {
        match (self.all, others.all) {
            (true, _) => !others.is_empty(),
            (_, true) => !self.is_empty(),
            _ => {
                self.sets.0.iter().any(|objset| others.has_any(*objset))
                    || others.sets.0.iter().any(|objset| self.has_any(*objset))
                    || others.objects.0.iter().any(|object| self.objects.contains(object))
            }
        }
    }
}

impl Objset {
    /// Adds an object to those that the transaction may change. To be called before the first change, which then need not be undone.
    ///
    /// # Errors
    /// [`Error::InOtherTxg`] if another txg changes it: the caller releases the transaction, and asks for another with this object.
    pub fn claim(&self, tx: &Tx, object: ObjectId) -> Result<(), Error> {
        if tx.may_change(self.id(), object) {
            return Ok(());
        }
        let newer = || {
            let dnode = self.live().and_then(|live| live.get(object));
            dnode.is_some_and(|dnode| dnode.state.read().slots.iter().flatten().any(|dirty| dirty.txg > tx.txg()))
        };
        if !tx.claim(&TxObjects::of(self.id(), &[object])) || newer() {
            return Err(Error::InOtherTxg { objset: self.id(), object: Some(object), txg: tx.txg() });
        }
        Ok(())
    }

    /// As [`Objset::claim`], for all objects of the set.
    ///
    /// # Errors
    /// As [`Objset::claim`].
    pub fn claim_all(&self, tx: &Tx) -> Result<(), Error> {
        let all = TxObjects::of_set(self.id());
        let newer = || self.is_dirty(base::Txg(tx.txg().0 + 1));
        if tx.covers(&all) || (tx.claim(&all) && !newer()) {
            return Ok(());
        }
        Err(Error::InOtherTxg { objset: self.id(), object: None, txg: tx.txg() })
    }
}

impl Object {
    /// Makes the object one that every transaction may change, and changes of newer txgs a part of that of `tx` as well: so what is changed now
    /// is based on the same contents in all of them. For objects whose contents only grow, and mean nothing by themselves; the caller's lock
    /// orders the changes.
    pub(crate) fn share(&self, tx: &Tx) -> Result<(), Error> {
        let Some(dnode) = self.live() else { return Ok(()) };
        dnode.shared.store(true, Ordering::Relaxed);
        if !dnode.state.read().slots.iter().flatten().any(|dirty| dirty.txg > tx.txg()) {
            return Ok(());
        }
        let bytes = self.objset().change(tx, dnode, |state| {
            let mut newer: Vec<_> =
                state.slots.iter().flatten().filter(|dirty| dirty.txg > tx.txg()).cloned().collect();
            newer.sort_by_key(|dirty| dirty.txg);
            let slot = state.slots.get_mut(slot_of(tx.txg()));
            let (Some(slot), mut bytes) = (slot, 0) else { return Ok(0) };
            for mut dirty in newer {
                // blocks that were written early are those of the newer txg
                dirty.placed.clear();
                dirty.dropped.clear();
                bytes += dirty.bytes;
                *slot = slot.take().map(|own| own.under(Some(dirty)));
            }
            Ok(bytes)
        })?;
        tx.dirtied(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::TxObjects;
    use base::ObjectId;

    #[test]
    fn sets_meet_their_objects() {
        let (file, other) =
            (TxObjects::of(ObjectId(54), &[ObjectId(7), ObjectId(8)]), TxObjects::of(ObjectId(54), &[ObjectId(9)]));
        let (set, elsewhere) = (TxObjects::of_set(ObjectId(54)), TxObjects::of(ObjectId(55), &[ObjectId(7)]));
        assert!(
            file.meets(&file)
                && file.meets(&TxObjects::of(ObjectId(54), &[ObjectId(8), ObjectId(10)]))
                && !file.meets(&other)
        );
        assert!(set.meets(&file) && file.meets(&set) && set.meets(&set) && !set.meets(&elsewhere));
        assert!(TxObjects::all().meets(&file) && file.meets(&TxObjects::all()) && TxObjects::all().meets(&set));
        for some in [&file, &set, &TxObjects::all(), &TxObjects::none()] {
            assert!(!TxObjects::none().meets(some) && !some.meets(&TxObjects::none()));
            assert!(some.covers(some) && some.covers(&TxObjects::none()) && TxObjects::all().covers(some));
        }
        assert!(set.covers(&file) && !file.covers(&set) && !file.covers(&other) && !set.covers(&TxObjects::all()));
        let both = file.clone().and(other.clone());
        assert!(
            both.covers(&file)
                && both.covers(&other)
                && both.has(ObjectId(54), ObjectId(9))
                && !both.has(ObjectId(55), ObjectId(9))
        );
    }
}
