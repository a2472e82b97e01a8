//! What was read of the MOS, decoded: it is carried over from one view of a pool to the next.
//!
//! # What it is
//! A view decodes directories, datasets, properties, keys and lists of names. Each such value depends on one object of the MOS, and is kept
//! by the number of that object. All views of a pool share what is kept: after a txg a view decodes anew only what that txg changed.
//!
//! # Nothing stale is shown
//! The sync of the MOS names the objects that it wrote ([`BlockOwner::changed`](dmu::BlockOwner::changed)). Before a view of the new txg can
//! exist, what was kept of them is dropped ([`Carried::advance`]). So what is kept of an object is as the object was in every txg from that of
//! the view which kept it first to the last synced one. Only a view of one of these txgs takes it, and only a view of the last synced txg
//! keeps anything. A view that was overtaken keeps for itself what it reads.
//!
//! # Limits
//! Values are weighed in bytes, roughly, and kept in two generations: when the younger one has half of [`LIMIT_BYTES`], the older one is dropped. A single
//! value may be heavier than that. Nothing is freed under a lock.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base::Txg;
use parking_lot::RwLock;

use crate::Error;

/// The bytes that are kept of a MOS, about.
const LIMIT_BYTES: usize = 128 << 20;
/// The bytes that a name takes beside its text, about.
pub(crate) const NAME_BYTES: usize = 64;

/// A decoded value that depends on one object of the MOS.
pub(crate) trait OfObject: Any + Send + Sync {
    /// The bytes that it takes in memory, about.
    fn weight(&self) -> usize {
        size_of_val(self)
    }
}

/// A number that is looked up by name in the object.
type Numbers = HashMap<Box<str>, u64>;

/// What is kept of one object.
struct Kept {
    /// The txg of the view that kept it first.
    from: Txg,
    /// At most one value of each type.
    values: Vec<Arc<dyn Any + Send + Sync>>,
    numbers: Numbers,
    weight: usize,
}

/// What was kept in the same time.
#[derive(Default)]
struct Generation {
    kept: HashMap<u64, Kept>,
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
    /// Returns what is kept of an object and was so in txg `at`.
    fn of(&self, at: Txg, object: u64) -> impl Iterator<Item = &Kept> {
        let generations = [&self.young, &self.old].into_iter();
        generations.filter_map(move |generation| generation.kept.get(&object)).filter(move |kept| kept.from <= at)
    }

    fn get<T: OfObject>(&self, at: Txg, object: u64) -> Option<Arc<T>> {
        self.of(at, object).flat_map(|kept| &kept.values).find_map(|value| value.clone().downcast().ok())
    }

    fn number(&self, at: Txg, object: u64, name: &str) -> Option<u64> {
        self.of(at, object).find_map(|kept| kept.numbers.get(name).copied())
    }

    /// Adds to what is kept of an object.
    fn put(&mut self, at: Txg, object: u64, weight: usize, add: impl FnOnce(&mut Kept)) {
        if self.young.weight + weight > LIMIT_BYTES / 2 && self.young.weight > 0 {
            let young = std::mem::take(&mut self.young);
            self.dropped.push(std::mem::replace(&mut self.old, young));
        }
        let fresh = || Kept { from: at, values: Vec::new(), numbers: Numbers::new(), weight: 0 };
        let kept = self.young.kept.entry(object).or_insert_with(fresh);
        add(kept);
        kept.weight += weight;
        self.young.weight += weight;
    }

    fn put_value<T: OfObject>(&mut self, at: Txg, object: u64, value: T) -> Arc<T> {
        // another thread may have been faster
        if let Some(found) = self.get(at, object) {
            return found;
        }
        let (weight, value) = (value.weight(), Arc::new(value));
        self.put(at, object, weight, |kept| kept.values.push(value.clone()));
        value
    }

    fn put_number(&mut self, at: Txg, object: u64, name: &str, number: u64) {
        if self.number(at, object, name).is_none() {
            self.put(at, object, NAME_BYTES + name.len(), |kept| {
                kept.numbers.insert(name.into(), number);
            });
        }
    }

    /// Forgets an object, and returns what was kept of it.
    fn take(&mut self, object: u64) -> [Option<Kept>; 2] {
        [&mut self.young, &mut self.old].map(|generation| {
            let kept = generation.kept.remove(&object)?;
            generation.weight -= kept.weight;
            Some(kept)
        })
    }
}

/// What the views of a pool share.
pub(crate) struct Carried(RwLock<Shared>);

struct Shared {
    /// The last synced txg.
    synced: Txg,
    objects: Objects,
}

impl Carried {
    /// Nothing yet, of a pool whose last synced txg is `synced`.
    pub(crate) fn new(synced: Txg) -> Arc<Carried> {
        Arc::new(Carried(RwLock::new(Shared { synced, objects: Objects::default() })))
    }

    /// Drops what is kept of the objects that `txg` changed. No view of `txg` may exist before this returns.
    pub(crate) fn advance(&self, txg: Txg, changed: &BTreeSet<u64>) {
        let mut shared = self.0.write();
        assert!(txg > shared.synced, "txg {txg} synced after txg {}", shared.synced);
        shared.synced = txg;
        let dropped: Vec<_> = changed.iter().map(|object| shared.objects.take(*object)).collect();
        drop(shared);
        drop(dropped);
    }
}

/// What a view knows of the MOS, as it is in the view's txg.
pub(crate) struct Known {
    at: Txg,
    carried: Arc<Carried>,
    /// What the view has read since it was overtaken.
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
        object: u64,
        load: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        if let Some(found) = self.get(object) {
            return Ok(found);
        }
        let loaded = load()?;
        Ok(self.put(|objects| objects.put_value(self.at, object, loaded)))
    }

    /// Returns the value of `object`, if it is known.
    pub(crate) fn get<T: OfObject>(&self, object: u64) -> Option<Arc<T>> {
        let found = self.carried.0.read().objects.get(self.at, object);
        found.or_else(|| self.own.read().get(self.at, object))
    }

    /// Returns the number that `object` has under `name`, which `look_up` reads if it is not known.
    pub(crate) fn number(
        &self,
        object: u64,
        name: &str,
        look_up: impl FnOnce() -> Result<Option<u64>, Error>,
    ) -> Result<Option<u64>, Error> {
        let found = self.carried.0.read().objects.number(self.at, object, name);
        if let Some(number) = found.or_else(|| self.own.read().number(self.at, object, name)) {
            return Ok(Some(number));
        }
        let Some(number) = look_up()? else { return Ok(None) };
        self.put(|objects| objects.put_number(self.at, object, name, number));
        Ok(Some(number))
    }

    /// Adds to what all views share, unless this one was overtaken.
    fn put<R>(&self, add: impl FnOnce(&mut Objects) -> R) -> R {
        let mut shared = self.carried.0.write();
        let (added, dropped) = if shared.synced == self.at {
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

    fn read(known: &Known, object: u64, stored: u64) -> u64 {
        known.of(object, || Ok(Number(stored))).unwrap().0
    }

    #[test]
    fn a_view_takes_what_another_read_of_an_object_that_did_not_change_since() {
        let carried = Carried::new(Txg(5));
        let five = Known::new(Txg(5), carried.clone());
        assert_eq!((read(&five, 1, 10), read(&five, 2, 20)), (10, 20));
        carried.advance(Txg(6), &BTreeSet::from([2]));
        let six = Known::new(Txg(6), carried.clone());
        // object 1 is not read again; object 2 is
        assert_eq!((read(&six, 1, 99), read(&six, 2, 21)), (10, 21));
        assert_eq!(read(&five, 1, 99), 10);
    }

    #[test]
    fn a_view_that_was_overtaken_takes_nothing_newer_and_leaves_nothing_older() {
        let carried = Carried::new(Txg(5));
        let five = Known::new(Txg(5), carried.clone());
        carried.advance(Txg(6), &BTreeSet::from([1]));
        let six = Known::new(Txg(6), carried.clone());
        assert_eq!(read(&five, 1, 10), 10);
        assert_eq!(read(&six, 1, 11), 11);
        // each remembers its own
        assert_eq!((read(&five, 1, 99), read(&six, 1, 99)), (10, 11));
        // what did not change is all the same not known to be what it was before it was read
        assert_eq!((read(&six, 3, 30), read(&five, 3, 29)), (30, 29));
    }

    #[test]
    fn numbers_go_with_their_object() {
        let carried = Carried::new(Txg(5));
        let number = |known: &Known, stored| known.number(1, "name", || Ok(stored)).unwrap();
        let five = Known::new(Txg(5), carried.clone());
        // that there is none is not kept
        assert_eq!(number(&five, None), None);
        assert_eq!(number(&five, Some(7)), Some(7));
        assert_eq!(number(&five, Some(99)), Some(7));
        carried.advance(Txg(6), &BTreeSet::from([1]));
        assert_eq!(number(&Known::new(Txg(6), carried.clone()), Some(8)), Some(8));
        assert_eq!(carried.0.read().objects.young.weight, NAME_BYTES + 4);
    }

    struct Heavy(usize);

    impl OfObject for Heavy {
        fn weight(&self) -> usize {
            self.0
        }
    }

    fn weigh(known: &Known) -> usize {
        let shared = known.carried().0.read();
        assert!(shared.objects.dropped.is_empty());
        shared.objects.young.weight + shared.objects.old.weight
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let known = Known::alone(Txg(5));
        for object in 0..100 {
            known.of(object, || Ok(Heavy(LIMIT_BYTES / 4))).unwrap();
            assert!(weigh(&known) <= LIMIT_BYTES);
        }
        assert!(
            known.get::<Heavy>(99).is_some() && known.get::<Heavy>(98).is_some() && known.get::<Heavy>(0).is_none()
        );
    }

    #[test]
    fn a_heavy_value_stays_beside_light_ones() {
        let known = Known::alone(Txg(5));
        known.of(1, || Ok(Heavy(2 * LIMIT_BYTES))).unwrap();
        for object in 2..1000 {
            known.of(object, || Ok(Heavy(1000))).unwrap();
            known.of(1, || -> Result<Heavy, Error> { panic!("read again") }).unwrap();
        }
        // the next heavy one takes its place in the end
        known.of(1000, || Ok(Heavy(2 * LIMIT_BYTES))).unwrap();
        known.of(1001, || Ok(Heavy(1000))).unwrap();
        assert!(known.get::<Heavy>(1).is_none());
        assert!(weigh(&known) <= 2 * LIMIT_BYTES + 2000);
        known.carried().advance(Txg(6), &BTreeSet::from([1000]));
        assert_eq!(weigh(&known), 1000);
    }
}
