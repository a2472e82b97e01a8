//! What was read of the MOS, decoded: it is carried over from one view of a pool to the next.
//!
//! # What it is
//! A view decodes directories, datasets, properties, keys and lists of names. Each such value depends on one object of the MOS, and is kept
//! by the number of that object. All views of a pool share what is kept: after a txg a view decodes anew only what that txg changed.
//!
//! # Nothing stale is shown
//! The sync of the MOS names the objects that it wrote ([`BlockOwner::changed`](dmu::BlockOwner::changed)). Before a view of the new txg can
//! exist, what was kept of them is dropped ([`Carried::advance`]), and the txg is noted as their last change. So what is kept of an object is as
//! the object is in the last synced txg. A view takes it, and adds to it, if the object did not change after the view's own txg: also a view
//! that was overtaken shares with its successors what they have in common. What it reads of objects that changed since, it keeps for itself.
//!
//! # Limits
//! Values are weighed in bytes, roughly, and kept in two generations: when the younger one has half of [`LIMIT_BYTES`], the older one is dropped. A single
//! value may be heavier than that. Nothing is freed under a lock. Changes are noted of [`CHANGES_MAX`] objects; beyond, all notes are dropped, and
//! the views of that time that are overtaken share nothing from then on.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base::counter::Counter;
use base::{ObjectId, Txg};
use parking_lot::RwLock;

use crate::Error;

/// The bytes that are kept of a MOS, about.
const LIMIT_BYTES: usize = 128 << 20;
/// The objects whose last change is noted, at most.
const CHANGES_MAX: usize = 1 << 16;
/// The bytes that a name takes beside its text, about.
pub(crate) const NAME_BYTES: usize = 64;

/// A decoded value that depends on one object of the MOS.
pub(crate) trait OfObject: Any + Send + Sync {
    /// The bytes that it takes in memory, about.
    fn weight(&self) -> usize {
        size_of_val(self)
    }
}

/// The numbers of objects that are looked up by name in the object.
type Ids = HashMap<Box<str>, ObjectId>;

/// What is kept of one object.
#[derive(Default)]
struct Kept {
    /// At most one value of each type.
    values: Vec<Arc<dyn Any + Send + Sync>>,
    ids: Ids,
    weight: usize,
}

/// What was kept in the same time.
#[derive(Default)]
struct Generation {
    kept: HashMap<ObjectId, Kept>,
    weight: usize,
}

#[derive(Default)]
struct Objects {
    young: Generation,
    old: Generation,
    /// What is to be freed once the lock is released.
    dropped: Vec<Generation>,
}

impl Objects {
    /// Returns what is kept of an object.
    fn of(&self, object: ObjectId) -> impl Iterator<Item = &Kept> {
        [&self.young, &self.old].into_iter().filter_map(move |generation| generation.kept.get(&object))
    }

    fn get<T: OfObject>(&self, object: ObjectId) -> Option<Arc<T>> {
        self.of(object).flat_map(|kept| &kept.values).find_map(|value| value.clone().downcast().ok())
    }

    fn id(&self, object: ObjectId, name: &str) -> Option<ObjectId> {
        self.of(object).find_map(|kept| kept.ids.get(name).copied())
    }

    /// Adds to what is kept of an object.
    fn put(&mut self, object: ObjectId, weight: usize, add: impl FnOnce(&mut Kept)) {
        if self.young.weight + weight > LIMIT_BYTES / 2 && self.young.weight > 0 {
            let young = std::mem::take(&mut self.young);
            self.dropped.push(std::mem::replace(&mut self.old, young));
        }
        let kept = self.young.kept.entry(object).or_default();
        add(kept);
        kept.weight += weight;
        self.young.weight += weight;
    }

    fn put_value<T: OfObject>(&mut self, object: ObjectId, value: T) -> Arc<T> {
        // another thread may have been faster
        if let Some(found) = self.get(object) {
            return found;
        }
        let (weight, value) = (value.weight(), Arc::new(value));
        self.put(object, weight, |kept| kept.values.push(value.clone()));
        value
    }

    fn put_id(&mut self, object: ObjectId, name: &str, id: ObjectId) {
        if self.id(object, name).is_none() {
            self.put(object, NAME_BYTES + name.len(), |kept| {
                kept.ids.insert(name.into(), id);
            });
        }
    }

    /// Forgets an object, and returns what was kept of it.
    fn take(&mut self, object: ObjectId) -> [Option<Kept>; 2] {
        [&mut self.young, &mut self.old].map(|generation| {
            let kept = generation.kept.remove(&object)?;
            generation.weight -= kept.weight;
            Some(kept)
        })
    }
}

/// When objects changed last.
struct Changes {
    /// The txg after which all changes are noted.
    since: Txg,
    last: HashMap<ObjectId, Txg>,
}

impl Changes {
    fn note(&mut self, txg: Txg, changed: &BTreeSet<ObjectId>) {
        if self.last.len() + changed.len() > CHANGES_MAX {
            *self = Changes { since: txg, last: HashMap::new() };
        } else {
            self.last.extend(changed.iter().map(|object| (*object, txg)));
        }
    }

    /// Returns whether an object is known to be in the last synced txg as it was in txg `at`.
    fn none_since(&self, at: Txg, object: ObjectId) -> bool {
        at >= self.since && self.last.get(&object).is_none_or(|changed| *changed <= at)
    }
}

/// What the views of a pool share.
pub(crate) struct Carried {
    shared: RwLock<Shared>,
    pub(crate) stats: CarriedStats,
}

struct Shared {
    /// The last synced txg.
    synced: Txg,
    changes: Changes,
    objects: Objects,
}

/// How often views found what they asked for.
#[derive(Debug, Default)]
pub(crate) struct CarriedStats {
    /// Values that were known.
    pub(crate) hits: Counter,
    /// Values that were read.
    pub(crate) misses: Counter,
}

impl Carried {
    /// Nothing yet, of a pool whose last synced txg is `synced`.
    pub(crate) fn new(synced: Txg) -> Arc<Carried> {
        let changes = Changes { since: synced, last: HashMap::new() };
        let shared = RwLock::new(Shared { synced, changes, objects: Objects::default() });
        Arc::new(Carried { shared, stats: CarriedStats::default() })
    }

    /// Drops what is kept of the objects that `txg` changed. No view of `txg` may exist before this returns.
    pub(crate) fn advance(&self, txg: Txg, changed: &BTreeSet<ObjectId>) {
        let mut shared = self.shared.write();
        assert!(txg > shared.synced, "txg {txg} synced after txg {}", shared.synced);
        shared.synced = txg;
        shared.changes.note(txg, changed);
        let dropped: Vec<_> = changed.iter().map(|object| shared.objects.take(*object)).collect();
        drop(shared);
        drop(dropped);
    }
}

impl Shared {
    /// Returns what is shared, if a view of txg `at` has the same `object`.
    fn of(&self, at: Txg, object: ObjectId) -> Option<&Objects> {
        self.changes.none_since(at, object).then_some(&self.objects)
    }
}

/// What a view knows of the MOS, as it is in the view's txg.
pub(crate) struct Known {
    at: Txg,
    carried: Arc<Carried>,
    /// What the view has read of objects that changed after its txg.
    own: RwLock<Objects>,
}

impl Known {
    /// What is known of the MOS as it is in txg `at`.
    pub(crate) fn new(at: Txg, carried: Arc<Carried>) -> Known {
        Known { at, carried, own: RwLock::default() }
    }

    /// What is known of the MOS of a pool that nobody here writes.
    pub(crate) fn alone(at: Txg) -> Known {
        Known::new(at, Carried::new(at))
    }

    /// What this view shares with others.
    pub(crate) fn carried(&self) -> &Arc<Carried> {
        &self.carried
    }

    /// Returns the value of `object`, which `load` reads if it is not known.
    pub(crate) fn of<T: OfObject>(
        &self,
        object: ObjectId,
        load: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        if let Some(found) = self.get(object) {
            self.carried.stats.hits.add(1);
            return Ok(found);
        }
        let loaded = load()?;
        self.carried.stats.misses.add(1);
        Ok(self.put(object, |objects| objects.put_value(object, loaded)))
    }

    /// Returns the value of `object`, if it is known.
    pub(crate) fn get<T: OfObject>(&self, object: ObjectId) -> Option<Arc<T>> {
        self.find(object, |objects| objects.get(object))
    }

    /// Returns the object that `object` names `name`, which `look_up` reads if it is not known.
    pub(crate) fn id(
        &self,
        object: ObjectId,
        name: &str,
        look_up: impl FnOnce() -> Result<Option<ObjectId>, Error>,
    ) -> Result<Option<ObjectId>, Error> {
        if let Some(id) = self.find(object, |objects| objects.id(object, name)) {
            self.carried.stats.hits.add(1);
            return Ok(Some(id));
        }
        let Some(id) = look_up()? else { return Ok(None) };
        self.carried.stats.misses.add(1);
        self.put(object, |objects| objects.put_id(object, name, id));
        Ok(Some(id))
    }

    /// Looks into what is shared of `object`, and then into what the view has for itself.
    fn find<R>(&self, object: ObjectId, look: impl Fn(&Objects) -> Option<R>) -> Option<R> {
        let found = self.carried.shared.read().of(self.at, object).and_then(&look);
        found.or_else(|| look(&self.own.read()))
    }

    /// Adds to what all views share, unless `object` changed after this view's txg.
    fn put<R>(&self, object: ObjectId, add: impl FnOnce(&mut Objects) -> R) -> R {
        let mut shared = self.carried.shared.write();
        let (added, dropped) = if shared.of(self.at, object).is_some() {
            let added = add(&mut shared.objects);
            (added, std::mem::take(&mut shared.objects.dropped))
        } else {
            drop(shared);
            let mut own = self.own.write();
            (add(&mut own), std::mem::take(&mut own.dropped))
        };
        drop(dropped);
        added
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Number(u64);

    impl OfObject for Number {}

    fn read(known: &Known, object: ObjectId, stored: u64) -> u64 {
        known.of(object, || Ok(Number(stored))).unwrap().0
    }

    #[test]
    fn a_view_takes_what_another_read_of_an_object_that_did_not_change_since() {
        let carried = Carried::new(Txg(5));
        let five = Known::new(Txg(5), carried.clone());
        assert_eq!((read(&five, ObjectId(1), 10), read(&five, ObjectId(2), 20)), (10, 20));
        carried.advance(Txg(6), &BTreeSet::from([ObjectId(2)]));
        let six = Known::new(Txg(6), carried.clone());
        // object 1 is not read again; object 2 is
        assert_eq!((read(&six, ObjectId(1), 99), read(&six, ObjectId(2), 21)), (10, 21));
        assert_eq!(read(&five, ObjectId(1), 99), 10);
    }

    #[test]
    fn a_view_that_was_overtaken_takes_nothing_newer_and_leaves_nothing_older() {
        let carried = Carried::new(Txg(5));
        let five = Known::new(Txg(5), carried.clone());
        carried.advance(Txg(6), &BTreeSet::from([ObjectId(1)]));
        let six = Known::new(Txg(6), carried.clone());
        assert_eq!(read(&five, ObjectId(1), 10), 10);
        assert_eq!(read(&six, ObjectId(1), 11), 11);
        // each remembers its own
        assert_eq!((read(&five, ObjectId(1), 99), read(&six, ObjectId(1), 99)), (10, 11));
        // and nothing of the one that changed goes to those that come later
        carried.advance(Txg(7), &BTreeSet::new());
        assert_eq!(read(&Known::new(Txg(7), carried.clone()), ObjectId(1), 99), 11);
    }

    #[test]
    fn a_view_that_was_overtaken_shares_what_did_not_change() {
        let carried = Carried::new(Txg(5));
        let five = Known::new(Txg(5), carried.clone());
        carried.advance(Txg(6), &BTreeSet::from([ObjectId(1)]));
        let six = Known::new(Txg(6), carried.clone());
        assert_eq!(read(&five, ObjectId(2), 20), 20);
        assert_eq!(read(&six, ObjectId(2), 99), 20, "what the older one read");
        assert_eq!(read(&six, ObjectId(3), 30), 30);
        assert_eq!(read(&five, ObjectId(3), 99), 30, "what the newer one read");
        carried.advance(Txg(7), &BTreeSet::from([ObjectId(2)]));
        let seven = Known::new(Txg(7), carried.clone());
        assert_eq!((read(&seven, ObjectId(2), 21), read(&seven, ObjectId(3), 99)), (21, 30));
        assert_eq!((read(&six, ObjectId(2), 20), read(&five, ObjectId(2), 20)), (20, 20));
    }

    #[test]
    fn where_changes_are_not_noted_any_more_a_view_that_was_overtaken_is_alone() {
        let carried = Carried::new(Txg(5));
        let five = Known::new(Txg(5), carried.clone());
        assert_eq!(read(&five, ObjectId(7), 70), 70);
        carried.advance(Txg(6), &(100..100 + CHANGES_MAX as u64 + 1).map(ObjectId).collect());
        let six = Known::new(Txg(6), carried.clone());
        assert_eq!(read(&six, ObjectId(7), 99), 70, "what is kept is as it was");
        assert_eq!((read(&five, ObjectId(8), 80), read(&six, ObjectId(8), 81)), (80, 81));
        carried.advance(Txg(7), &BTreeSet::from([ObjectId(9)]));
        assert_eq!(read(&Known::new(Txg(7), carried.clone()), ObjectId(8), 99), 81);
        assert!(carried.shared.read().changes.last.len() <= CHANGES_MAX);
    }

    #[test]
    fn numbers_go_with_their_object() {
        let carried = Carried::new(Txg(5));
        let id = |known: &Known, stored: Option<u64>| {
            known.id(ObjectId(1), "name", || Ok(stored.map(ObjectId))).unwrap().map(|id| id.0)
        };
        let five = Known::new(Txg(5), carried.clone());
        // that there is none is not kept
        assert_eq!(id(&five, None), None);
        assert_eq!(id(&five, Some(7)), Some(7));
        assert_eq!(id(&five, Some(99)), Some(7));
        carried.advance(Txg(6), &BTreeSet::from([ObjectId(1)]));
        assert_eq!(id(&Known::new(Txg(6), carried.clone()), Some(8)), Some(8));
        assert_eq!(carried.shared.read().objects.young.weight, NAME_BYTES + 4);
    }

    struct Heavy(usize);

    impl OfObject for Heavy {
        fn weight(&self) -> usize {
            self.0
        }
    }

    fn weigh(known: &Known) -> usize {
        let shared = known.carried().shared.read();
        assert!(shared.objects.dropped.is_empty());
        shared.objects.young.weight + shared.objects.old.weight
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let known = Known::alone(Txg(5));
        for object in 0..100 {
            known.of(ObjectId(object), || Ok(Heavy(LIMIT_BYTES / 4))).unwrap();
            assert!(weigh(&known) <= LIMIT_BYTES);
        }
        assert!(
            known.get::<Heavy>(ObjectId(99)).is_some()
                && known.get::<Heavy>(ObjectId(98)).is_some()
                && known.get::<Heavy>(ObjectId(0)).is_none()
        );
    }

    #[test]
    fn a_heavy_value_stays_beside_light_ones() {
        let known = Known::alone(Txg(5));
        known.of(ObjectId(1), || Ok(Heavy(2 * LIMIT_BYTES))).unwrap();
        for object in 2..1000 {
            known.of(ObjectId(object), || Ok(Heavy(1000))).unwrap();
            known.of(ObjectId(1), || -> Result<Heavy, Error> { panic!("read again") }).unwrap();
        }
        // the next heavy one takes its place in the end
        known.of(ObjectId(1000), || Ok(Heavy(2 * LIMIT_BYTES))).unwrap();
        known.of(ObjectId(1001), || Ok(Heavy(1000))).unwrap();
        assert!(known.get::<Heavy>(ObjectId(1)).is_none());
        assert!(weigh(&known) <= 2 * LIMIT_BYTES + 2000);
        known.carried().advance(Txg(6), &BTreeSet::from([ObjectId(1000)]));
        assert_eq!(weigh(&known), 1000);
    }
}
