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

use std::collections::BTreeSet;
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
    sets: BTreeSet<ObjectId>,
    /// Object set and object.
    objects: BTreeSet<(ObjectId, ObjectId)>,
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
        TxObjects { sets: BTreeSet::from([objset]), ..TxObjects::default() }
    }

    /// Some objects of one object set.
    #[must_use]
    pub fn of(objset: ObjectId, objects: &[ObjectId]) -> TxObjects {
        TxObjects { objects: objects.iter().map(|object| (objset, *object)).collect(), ..TxObjects::default() }
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
                && others.sets.is_subset(&self.sets)
                && others.objects.iter().all(|(objset, object)| self.has(*objset, *object)))
    }

    /// Returns whether an object is among them.
    #[must_use]
    pub fn has(&self, objset: ObjectId, object: ObjectId) -> bool {
        self.all || self.sets.contains(&objset) || self.objects.contains(&(objset, object))
    }

    fn is_empty(&self) -> bool {
        !self.all && self.sets.is_empty() && self.objects.is_empty()
    }

    /// Returns whether an object of `objset` is among them.
    fn has_any(&self, objset: ObjectId) -> bool {
        let mut some = self.objects.range((objset, ObjectId(0))..=(objset, ObjectId(u64::MAX)));
        self.sets.contains(&objset) || some.next().is_some()
    }

    /// Returns whether some object is in both.
    #[must_use]
    pub fn meets(&self, others: &TxObjects) -> bool {
        match (self.all, others.all) {
            (true, _) => !others.is_empty(),
            (_, true) => !self.is_empty(),
            _ => {
                self.sets.iter().any(|objset| others.has_any(*objset))
                    || others.sets.iter().any(|objset| self.has_any(*objset))
                    || others.objects.iter().any(|object| self.objects.contains(object))
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
