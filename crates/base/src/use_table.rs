//! A table of what is in use, which keeps some of what is not.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A map whose entries are dropped once they are not in use, some later than others: it has no more than a fixed number of them, or twice as many as are in
/// use, whichever is more.
///
/// The entries themselves say whether they are in use. They are looked through when there are as many as the threshold says, which is then set to twice
/// what is left; it sinks with each entry whose [use ends](UseTable::release). So each insertion and each end of a use costs a constant number of
/// looks, however many entries there are. Memory of a table that was large is given back as it is looked through.
#[derive(Debug)]
pub struct UseTable<K, V> {
    all: HashMap<K, V, RandomState>,
    /// As many entries are not looked through.
    keep: usize,
    /// The threshold after they were looked through last.
    full: usize,
    /// Uses that have ended since.
    released: AtomicUsize,
}

impl<K: Eq + Hash, V> UseTable<K, V> {
    /// Makes an empty table that keeps up to `keep` entries that are not in use.
    #[must_use]
    pub fn new(keep: usize) -> UseTable<K, V> {
        UseTable { all: HashMap::new(), keep, full: keep, released: AtomicUsize::new(0) }
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.all.get(key)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds an entry, or replaces the value of its key. Returns values that are in the table no more, for the caller to drop once no lock is held.
    pub fn insert(&mut self, key: K, value: V, in_use: impl Fn(&V) -> bool) -> Vec<V> {
        let mut gone = if self.is_due(1) { self.sweep(in_use) } else { Vec::new() };
        gone.extend(self.all.insert(key, value));
        gone
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.all.remove(key)?;
        if self.all.len() < self.full / 4 {
            self.full = (2 * self.all.len()).max(self.keep);
        }
        Some(value)
    }

    /// Notes that an entry may be in use no more. Returns whether it is time to [sweep](UseTable::sweep): the caller does so, or the next insertion.
    #[must_use]
    pub fn release(&self) -> bool {
        self.released.fetch_add(1, Ordering::Relaxed);
        self.is_due(0)
    }

    /// Removes and returns all entries that are not in use.
    pub fn sweep(&mut self, in_use: impl Fn(&V) -> bool) -> Vec<V> {
        let gone = self.all.extract_if(|_, value| !in_use(value)).map(|(_, value)| value).collect();
        self.full = (2 * self.all.len()).max(self.keep);
        *self.released.get_mut() = 0;
        if self.all.capacity() / 4 > self.full {
            self.all.shrink_to(self.full);
        }
        gone
    }

    /// Returns whether so many entries more would be too many.
    fn is_due(&self, more: usize) -> bool {
        // twice what is in use
        let sunk = self.released.load(Ordering::Relaxed).saturating_mul(2);
        self.all.len() + more > self.full.saturating_sub(sunk).max(self.keep)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    const KEEP: usize = 64;

    /// A table whose looks and events are counted.
    struct Counted {
        table: UseTable<u64, Rc<u64>>,
        looks: Cell<usize>,
        events: usize,
    }

    impl Counted {
        fn new() -> Counted {
            Counted { table: UseTable::new(KEEP), looks: Cell::new(0), events: 0 }
        }

        fn insert(&mut self, key: u64) -> Rc<u64> {
            self.events += 1;
            let value = Rc::new(key);
            let looks = &self.looks;
            self.table.insert(key, value.clone(), |value| {
                looks.set(looks.get() + 1);
                Rc::strong_count(value) > 1
            });
            value
        }

        fn release(&mut self, value: Rc<u64>) {
            drop(value);
            self.events += 1;
            if self.table.release() {
                let looks = &self.looks;
                self.table.sweep(|value| {
                    looks.set(looks.get() + 1);
                    Rc::strong_count(value) > 1
                });
            }
        }

        fn check(&self) {
            let (looks, events) = (self.looks.get(), self.events);
            assert!(looks <= 5 * events + KEEP, "{looks} looks for {events} events");
        }
    }

    #[test]
    fn a_burst_leaves_a_small_table() {
        let mut all = Counted::new();
        let used: Vec<_> = (0..100_000).map(|key| all.insert(key)).collect();
        assert_eq!(all.table.len(), 100_000);
        let largest = all.table.all.capacity();
        all.check();
        // most of it ends, and nothing new comes
        let mut used = used.into_iter();
        let few: Vec<_> = used.by_ref().take(10).collect();
        used.for_each(|value| all.release(value));
        all.check();
        assert!(all.table.len() <= 2 * KEEP, "{} entries are left of a burst", all.table.len());
        assert!(all.table.all.capacity() < largest / 50, "memory of the burst is kept");
        assert!(few.iter().all(|value| all.table.get(value).is_some()));
    }

    #[test]
    fn little_use_after_a_burst_of_removals_keeps_little() {
        let mut all = Counted::new();
        let used: Vec<_> = (0..10_000).map(|key| all.insert(key)).collect();
        for value in used {
            assert_eq!(all.table.remove(&value), Some(value));
        }
        assert!(all.table.is_empty());
        for key in 0..1_000 {
            drop(all.insert(key));
            assert!(all.table.len() <= KEEP);
        }
    }

    #[test]
    fn what_is_used_again_and_again_costs_little() {
        let mut all = Counted::new();
        let used: Vec<_> = (0..10_000).map(|key| all.insert(key)).collect();
        for key in 0..50_000 {
            // others come and go beside it
            let other = all.insert(100_000 + key);
            all.release(other);
        }
        all.check();
        assert!(all.table.len() <= 2 * used.len());
        assert!(used.iter().all(|value| all.table.get(value).is_some()));
    }

    #[test]
    fn what_is_not_in_use_is_kept_up_to_a_number() {
        let mut all = Counted::new();
        for key in 0..KEEP as u64 {
            let value = all.insert(key);
            all.release(value);
        }
        // all of them are there, until one more comes
        assert_eq!(all.table.len(), KEEP);
        drop(all.insert(1_000));
        assert!(all.table.len() <= KEEP);
    }
}
