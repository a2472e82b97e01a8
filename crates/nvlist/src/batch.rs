//! Lookup and removal of many names at once.
//!
//! A lookup in a list that is in no cache waits for memory three times: for the name asked for, for its entry in the index, for its slot.
//! These three are dependent loads, and the processor sees no further than the next two or three lookups. Here a group of names takes each
//! of these steps together. A step is a few instructions per name and names do not depend on each other, so a dozen misses are in flight at
//! any time; when the pairs are compared, they are in the L1 cache.
//!
//! It helps callers that have all names before they need the first answer: subtracting one list from another ([`NvList::remove_many`]),
//! checking a request of ten thousand snapshots against those that exist ([`NvList::get_many`]).

use crate::index::{EntryPosition, Guess};
use crate::{NvList, Value};

/// Names per group: enough to cover every miss that a core can have in flight, few enough for its L1 cache.
const GROUP: usize = 32;

/// The first guess at the position of each name of a group, in the order of the names.
type Guesses = [Guess; GROUP];

impl NvList {
    /// Like [`NvList::get`] for each of the names, in their order, and faster on a large list.
    pub fn get_many<I>(&self, names: I) -> GetMany<'_, I::IntoIter>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let group = Vec::with_capacity(GROUP);
        GetMany { list: self, names: names.into_iter(), group, found: [None; GROUP], at: 0 }
    }

    /// Like [`NvList::remove`] for each of the names, in their order, and faster on a large list. Returns the number of pairs removed.
    pub fn remove_many<I>(&mut self, names: I) -> usize
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let (before, mut names) = (self.len(), names.into_iter());
        let mut group = Vec::with_capacity(GROUP);
        loop {
            group.extend(names.by_ref().take(GROUP));
            if group.is_empty() {
                return before - self.len();
            }
            let guesses = self.look(&group);
            for (name, guess) in group.drain(..).zip(guesses) {
                self.remove_guessed(name.as_ref(), guess);
            }
            // places are valid until slots move
            self.tidy();
        }
    }

    /// Removes the first pair of a name. It is where the guess says, unless an earlier name of this group changed that.
    #[inline]
    fn remove_guessed(&mut self, name: &[u8], guess: Guess) {
        let place = match guess {
            Guess::Absent => return,
            Guess::Perhaps(place) if self.is_first(place, name) => place,
            _ => match self.find(name) {
                Some(place) => place,
                None => return,
            },
        };
        self.unlink(place, place.slot);
    }

    /// True if a guessed slot still holds the first pair of this name.
    #[inline(always)]
    fn is_first(&self, place: EntryPosition, name: &[u8]) -> bool {
        let slot = self.slots.get(place.slot as usize);
        slot.is_some_and(|slot| slot.value.is_some() && slot.name.get(&self.names) == name)
    }

    /// The first steps (hash, index, slot) for all names of a group.
    #[inline]
    fn look<N: AsRef<[u8]>>(&self, group: &[N]) -> Guesses {
        let mut guesses = [Guess::Elsewhere; GROUP];
        let Some(index) = self.index.as_deref() else {
            return guesses;
        };
        let mut tags = [0; GROUP];
        for (tag, name) in tags.iter_mut().zip(group) {
            *tag = index.tag(name.as_ref());
        }
        for ((guess, tag), _) in guesses.iter_mut().zip(tags).zip(group) {
            *guess = index.guess(tag);
        }
        for (guess, name) in guesses.iter_mut().zip(group) {
            if let Guess::Perhaps(place) = *guess
                && let Some(slot) = self.slots.get(place.slot as usize)
            {
                // nearly always true; the test also loads both cache lines of the slot
                let fits = slot.value.is_some() & (slot.name.len() == name.as_ref().len());
                *guess = if fits { *guess } else { Guess::Elsewhere };
            }
        }
        guesses
    }
}

/// The iterator of [`NvList::get_many`].
pub struct GetMany<'a, I: Iterator> {
    list: &'a NvList,
    names: I,
    group: Vec<I::Item>,
    found: [Option<&'a Value>; GROUP],
    /// The position in the group of the next item to return.
    at: usize,
}

impl<'a, I: Iterator<Item: AsRef<[u8]>>> GetMany<'a, I> {
    /// Looks up the next group; `None` after the last.
    #[inline(never)]
    fn refill(&mut self) -> Option<()> {
        self.at = 0;
        self.group.clear();
        self.group.extend(self.names.by_ref().take(GROUP));
        let guesses = self.list.look(&self.group);
        for ((found, name), guess) in self.found.iter_mut().zip(&self.group).zip(guesses) {
            let name = name.as_ref();
            *found = match guess {
                Guess::Absent => None,
                Guess::Perhaps(place) if self.list.is_first(place, name) => {
                    self.list.slots.get(place.slot as usize).and_then(|slot| slot.value.as_ref())
                }
                _ => self.list.get(name),
            };
        }
        (!self.group.is_empty()).then_some(())
    }
}

impl<'a, I: Iterator<Item: AsRef<[u8]>>> Iterator for GetMany<'a, I> {
    type Item = Option<&'a Value>;

    #[inline]
    fn next(&mut self) -> Option<Option<&'a Value>> {
        if self.at == self.group.len() {
            self.refill()?;
        }
        let found = self.found.get(self.at).copied();
        self.at += 1;
        found
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.names.size_hint();
        let waiting = self.group.len() - self.at;
        (least.saturating_add(waiting), most.and_then(|most| most.checked_add(waiting)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Uniqueness;

    fn name(i: usize) -> String {
        // some are longer than fits in a slot
        format!("tank/{}@{i}", "x".repeat(if i.is_multiple_of(7) { 80 } else { i % 50 }))
    }

    fn list(len: usize, uniqueness: Uniqueness) -> NvList {
        let mut list = NvList::with_flags(uniqueness);
        for i in 0..len {
            list.insert(name(i), i as u64);
            if i % 5 == 0 {
                list.insert(name(i), i as u64 + 1);
            }
        }
        list
    }

    #[test]
    fn finds_what_one_by_one_finds() {
        for len in [0, 3, 31, 32, 33, 5_000] {
            let list = list(len, Uniqueness::None);
            let names: Vec<String> = (0..len * 2).rev().map(name).collect();
            let found: Vec<_> = list.get_many(&names).collect();
            assert_eq!(found, names.iter().map(|name| list.get(name)).collect::<Vec<_>>());
            assert_eq!(list.get_many(&names).size_hint().0, names.len());
        }
    }

    #[test]
    fn removes_what_one_by_one_removes() {
        for uniqueness in [Uniqueness::None, Uniqueness::Name, Uniqueness::NameAndType] {
            for len in [3, 40, 5_000] {
                let (mut one, mut many) = (list(len, uniqueness), list(len, uniqueness));
                // absent names and, side by side, names that are asked for two and three times
                let names: Vec<String> = (0..len * 2).step_by(3).flat_map(|i| vec![name(i); 1 + i % 3]).collect();
                let removed = names.iter().filter(|name| one.remove(name).is_some()).count();
                assert_eq!(many.remove_many(&names), removed);
                assert_eq!(one, many);
                let all: Vec<_> = many.iter_bytes().map(|(name, _)| name.to_vec()).collect();
                assert_eq!(many.remove_many(all), one.len());
                assert!(many.is_empty() && many.get_many([name(1)]).eq([None]));
            }
        }
    }
}
