//! The list itself: slots in insertion order, chains of equal names, and their upkeep.

use std::fmt;

use crate::index::{Index, Place};
use crate::names::{NONE, Names, record_size};
use crate::{DataType, Uniqueness, Value};

/// Above this many distinct names a list has an index; below, reading the names in a row is faster.
const INDEX_ABOVE: usize = 16;

/// Dead memory that never triggers a compaction.
const DEAD_FREE: usize = 1024;

/// An ordered list of named values. OpenZFS: `nvlist_t`.
///
/// Names are given as `&str` or as bytes alike (`impl AsRef<[u8]>`). Getters of a type are in [`NvList::get_u64`] and its siblings.
#[derive(Clone)]
pub struct NvList {
    /// Pairs in the order of their insertion; `None` where one was removed.
    slots: Vec<Slot>,
    names: Names,
    /// Of every live record, when there are more than [`INDEX_ABOVE`].
    index: Option<Box<Index>>,
    /// Slots that hold a pair.
    live: usize,
    /// Records that a pair refers to.
    distinct: usize,
    /// Bytes of the other records.
    dead_names: usize,
    /// The flag word as it is packed.
    flags: u32,
}

/// A pair, linked with the other pairs of its name in the order of their insertion.
#[derive(Clone)]
struct Slot {
    value: Option<Value>,
    record: u32,
    /// The next pair of the name, or [`NONE`].
    next: u32,
    /// The one before; in the first, the last.
    prev: u32,
}

/// Where a name is, or would go in the index.
enum Found {
    Record(u32, Option<Place>),
    Absent(Option<(Place, u32)>),
}

impl Default for NvList {
    fn default() -> NvList {
        NvList::new()
    }
}

impl NvList {
    /// An empty list of unique names, as nearly all are.
    #[must_use]
    pub fn new() -> NvList {
        NvList::with_flags(Uniqueness::Name)
    }

    /// An empty list with a uniqueness of choice.
    #[must_use]
    pub fn with_flags(uniqueness: Uniqueness) -> NvList {
        NvList::with_raw_flags(uniqueness.flags())
    }

    /// An empty list with the flag word of a packed one.
    pub(crate) fn with_raw_flags(flags: u32) -> NvList {
        NvList {
            slots: Vec::new(),
            names: Names::default(),
            index: None,
            live: 0,
            distinct: 0,
            dead_names: 0,
            flags,
        }
    }

    /// What happens to a pair whose name is added again.
    #[must_use]
    pub fn uniqueness(&self) -> Uniqueness {
        Uniqueness::from_flags(self.flags)
    }

    /// The flag word (`nvl_nvflag`).
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Pairs in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Heap bytes of the list and all that hangs on it.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        let values: usize = self.slots.iter().filter_map(|s| s.value.as_ref()).map(Value::heap_size).sum();
        let index = self.index.as_ref().map_or(0, |i| size_of::<Index>() + i.capacity());
        self.slots.capacity() * size_of::<Slot>() + self.names.capacity() + index + values
    }

    /// About what [`NvList::pack`] will need for a list of small values.
    pub(crate) fn packed_size_hint(&self) -> usize {
        32 + self.names.len() + self.live * 24
    }

    /// The pairs whose names are UTF-8 (a name that is not is seen by [`NvList::iter_bytes`]), in insertion order.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter(self.iter_bytes())
    }

    /// All pairs, in insertion order.
    #[must_use]
    pub fn iter_bytes(&self) -> IterBytes<'_> {
        IterBytes {
            list: self,
            slots: self.slots.iter(),
            left: self.live,
        }
    }

    /// The first pair of a name. OpenZFS: `nvlist_lookup_nvpair()`.
    #[must_use]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&Value> {
        self.value(self.head(name.as_ref())?)
    }

    /// The first pair of a name, to be changed.
    pub fn get_mut(&mut self, name: impl AsRef<[u8]>) -> Option<&mut Value> {
        let head = self.head(name.as_ref())?;
        self.slots.get_mut(head as usize)?.value.as_mut()
    }

    /// The first pair of a name and a type.
    #[must_use]
    pub fn get_typed(&self, name: impl AsRef<[u8]>, ty: DataType) -> Option<&Value> {
        self.value(self.find_typed(self.head(name.as_ref())?, ty)?)
    }

    /// Whether a pair has this name. OpenZFS: `nvlist_exists()`.
    #[must_use]
    pub fn contains(&self, name: impl AsRef<[u8]>) -> bool {
        self.head(name.as_ref()).is_some()
    }

    /// Adds a pair at the end; what it replaces, the list's [`Uniqueness`] says. OpenZFS: `nvlist_add_*()`.
    ///
    /// # Panics
    /// The list would pass 2³² pairs or 32 GiB of names.
    pub fn insert(&mut self, name: impl AsRef<[u8]>, value: impl Into<Value>) {
        self.insert_value(name.as_ref(), value.into());
    }

    /// Adds all pairs of another list. OpenZFS: `nvlist_merge()`.
    pub fn merge(&mut self, other: &NvList) {
        for (name, value) in other.iter_bytes() {
            self.insert_value(name, value.clone());
        }
    }

    /// Removes the first pair of a name and gives its value.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) -> Option<Value> {
        let Found::Record(record, place) = self.find(name.as_ref()) else {
            return None;
        };
        let value = self.unlink(self.names.head(record), place);
        self.tidy();
        value
    }

    /// Removes the first pair of a name and a type. OpenZFS: `nvlist_remove()`.
    pub fn remove_typed(&mut self, name: impl AsRef<[u8]>, ty: DataType) -> Option<Value> {
        let Found::Record(record, place) = self.find(name.as_ref()) else {
            return None;
        };
        let slot = self.find_typed(self.names.head(record), ty)?;
        let value = self.unlink(slot, place);
        self.tidy();
        value
    }

    /// Removes all pairs of a name and tells how many there were. OpenZFS: `nvlist_remove_all()`.
    pub fn remove_all(&mut self, name: impl AsRef<[u8]>) -> usize {
        let Found::Record(record, place) = self.find(name.as_ref()) else {
            return 0;
        };
        let mut removed = 0;
        while self.names.head(record) != NONE {
            self.unlink(self.names.head(record), place);
            removed += 1;
        }
        self.tidy();
        removed
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        *self = NvList::with_raw_flags(self.flags);
    }

    /// Adds a pair unless its uniqueness forbids it: for decoding, where a second pair is corruption. Tells whether it was added.
    pub(crate) fn insert_new(&mut self, name: &[u8], value: Value) -> bool {
        let uniqueness = self.uniqueness();
        match self.find_to_insert(name) {
            Found::Record(record, _) => {
                let clash = match uniqueness {
                    Uniqueness::Name => true,
                    Uniqueness::NameAndType => {
                        self.find_typed(self.names.head(record), value.data_type()).is_some()
                    }
                    Uniqueness::None => false,
                };
                if clash {
                    return false;
                }
                self.append(record, value);
            }
            Found::Absent(place) => self.append_new(name, value, place),
        }
        true
    }

    fn insert_value(&mut self, name: &[u8], value: Value) {
        match self.find_to_insert(name) {
            Found::Record(record, _) => {
                let head = self.names.head(record);
                let old = match self.uniqueness() {
                    Uniqueness::Name => Some(head),
                    Uniqueness::NameAndType => self.find_typed(head, value.data_type()),
                    Uniqueness::None => None,
                };
                self.replace(record, old, value);
            }
            Found::Absent(place) => self.append_new(name, value, place),
        }
    }

    /// Removes the slot `old`, if any, and appends the value to the name's pairs.
    fn replace(&mut self, record: u32, old: Option<u32>, value: Value) {
        let Some(old) = old else {
            return self.append(record, value);
        };
        if old as usize + 1 == self.slots.len() {
            // the last pair of the list: its place is the new one's
            if let Some(slot) = self.slots.last_mut() {
                slot.value = Some(value);
            }
            return;
        }
        self.unlink_slot(old);
        self.append(record, value);
        self.tidy();
    }

    #[inline]
    fn append_new(&mut self, name: &[u8], value: Value, place: Option<(Place, u32)>) {
        let slot = self.slots.len() as u32;
        let record = self.names.push(name, slot);
        self.distinct += 1;
        self.push_slot(value, record, slot);
        match (self.index.as_deref_mut(), place) {
            (Some(index), Some((place, tag))) => index.fill(place, tag, record),
            _ if self.distinct > INDEX_ABOVE => self.build_index(),
            _ => {}
        }
    }

    /// Appends a pair of a name that has a record.
    fn append(&mut self, record: u32, value: Value) {
        let slot = self.slots.len() as u32;
        let head = self.names.head(record);
        let Some(first) = self.slots.get_mut(head as usize) else {
            // its only pair was just replaced
            self.names.set_head(record, slot);
            return self.push_slot(value, record, slot);
        };
        let last = std::mem::replace(&mut first.prev, slot);
        if let Some(last) = self.slots.get_mut(last as usize) {
            last.next = slot;
        }
        self.push_slot(value, record, last);
    }

    #[inline]
    fn push_slot(&mut self, value: Value, record: u32, prev: u32) {
        assert!(self.slots.len() < NONE as usize, "nvlist: more than 2^32 pairs");
        self.live += 1;
        self.slots.push(Slot {
            value: Some(value),
            record,
            next: NONE,
            prev,
        });
    }

    /// Empties a slot and takes it out of its name's chain; the record stays.
    fn unlink_slot(&mut self, slot: u32) -> Option<Value> {
        let at = self.slots.get_mut(slot as usize)?;
        let value = at.value.take()?;
        let (record, next, prev) = (at.record, at.next, at.prev);
        self.live -= 1;
        let head = self.names.head(record);
        if head == slot {
            self.names.set_head(record, next);
            if let Some(second) = self.slots.get_mut(next as usize) {
                second.prev = prev;
            }
        } else {
            // after the last one comes the first, which remembers the last
            let after = if next == NONE { head } else { next };
            if let Some(after) = self.slots.get_mut(after as usize) {
                after.prev = prev;
            }
            if let Some(before) = self.slots.get_mut(prev as usize) {
                before.next = next;
            }
        }
        Some(value)
    }

    /// Empties a slot, and when it was the last of its name, ends the record too.
    fn unlink(&mut self, slot: u32, place: Option<Place>) -> Option<Value> {
        let record = self.slots.get(slot as usize)?.record;
        let value = self.unlink_slot(slot);
        if self.names.head(record) == NONE {
            self.distinct -= 1;
            self.dead_names += record_size(self.names.get(record).len());
            if let (Some(index), Some(place)) = (self.index.as_deref_mut(), place) {
                index.remove(place);
            }
        }
        value
    }

    fn value(&self, slot: u32) -> Option<&Value> {
        self.slots.get(slot as usize)?.value.as_ref()
    }

    /// The first slot of a name.
    #[inline]
    fn head(&self, name: &[u8]) -> Option<u32> {
        match self.find(name) {
            Found::Record(record, _) => Some(self.names.head(record)),
            Found::Absent(_) => None,
        }
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Found {
        let Some(index) = self.index.as_deref() else {
            return self.names.scan(name).map_or(Found::Absent(None), |record| Found::Record(record, None));
        };
        let tag = index.tag(name);
        match index.find(tag, |record| self.names.get(record) == name) {
            Ok(place) => Found::Record(place.record, Some(place)),
            Err(place) => Found::Absent(Some((place, tag))),
        }
    }

    /// As [`NvList::find`], with room in the index for one more.
    #[inline]
    fn find_to_insert(&mut self, name: &[u8]) -> Found {
        if let Some(index) = self.index.as_deref_mut() {
            index.reserve();
        }
        self.find(name)
    }

    /// The first slot of a type in the chain that starts at `slot`.
    fn find_typed(&self, mut slot: u32, ty: DataType) -> Option<u32> {
        while let Some(at) = self.slots.get(slot as usize) {
            if at.value.as_ref().is_some_and(|v| v.data_type() == ty) {
                return Some(slot);
            }
            slot = at.next;
        }
        None
    }

    #[cold]
    fn build_index(&mut self) {
        let mut index = Box::new(Index::for_len(self.distinct));
        for (at, slot) in self.slots.iter().enumerate() {
            if slot.value.is_some() && self.names.head(slot.record) == at as u32 {
                let tag = index.tag(self.names.get(slot.record));
                if let Err(place) = index.find(tag, |_| false) {
                    index.fill(place, tag, slot.record);
                }
            }
        }
        self.index = Some(index);
    }

    /// Compacts when half of the memory is dead.
    #[inline]
    fn tidy(&mut self) {
        let dead = (self.slots.len() - self.live) * size_of::<Slot>() + self.dead_names;
        let all = self.slots.len() * size_of::<Slot>() + self.names.len();
        if dead > DEAD_FREE && dead > all / 2 {
            self.compact();
        }
    }

    /// Moves pairs and names together, in order. A chain runs forward through the slots, and its first slot names the last as the one
    /// before, so `prev >= at` tells a first slot; its record's new place is left behind in the old record for the rest of the chain.
    #[cold]
    fn compact(&mut self) {
        let mut old_names = std::mem::take(&mut self.names);
        let old_slots = std::mem::take(&mut self.slots);
        self.names = Names::with_capacity(old_names.len() - self.dead_names);
        self.slots = Vec::with_capacity(self.live);
        (self.live, self.dead_names) = (0, 0);
        for (at, slot) in old_slots.into_iter().enumerate() {
            let Some(value) = slot.value else { continue };
            if slot.prev as usize >= at {
                let to = self.slots.len() as u32;
                let record = self.names.push(old_names.get(slot.record), to);
                old_names.set_head(slot.record, record);
                self.push_slot(value, record, to);
            } else {
                self.append(old_names.head(slot.record), value);
            }
        }
        self.index = match self.index.take() {
            Some(index) if self.distinct > INDEX_ABOVE / 2 => {
                Some(Box::new(index.renamed(|record| old_names.head(record))))
            }
            _ => None,
        };
    }
}

impl fmt::Debug for NvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, value) in self.iter_bytes() {
            map.entry(&format_args!("{}", name.escape_ascii()), value);
        }
        map.finish()
    }
}

/// Equal lists have the same flags and the same pairs in the same order, so they pack to the same bytes.
impl PartialEq for NvList {
    fn eq(&self, other: &NvList) -> bool {
        self.flags == other.flags && self.live == other.live && self.iter_bytes().eq(other.iter_bytes())
    }
}

impl<N: AsRef<[u8]>, V: Into<Value>> Extend<(N, V)> for NvList {
    fn extend<I: IntoIterator<Item = (N, V)>>(&mut self, pairs: I) {
        for (name, value) in pairs {
            self.insert(name, value);
        }
    }
}

/// A list of unique names.
impl<N: AsRef<[u8]>, V: Into<Value>> FromIterator<(N, V)> for NvList {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> NvList {
        let mut list = NvList::new();
        list.extend(pairs);
        list
    }
}

impl<'a> IntoIterator for &'a NvList {
    type Item = (&'a str, &'a Value);
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// The pairs of a list whose names are UTF-8.
#[derive(Clone)]
pub struct Iter<'a>(IterBytes<'a>);

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, &'a Value);
    fn next(&mut self) -> Option<Self::Item> {
        self.0.find_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, value)))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.0.left))
    }
}

/// All pairs of a list, names as bytes.
#[derive(Clone)]
pub struct IterBytes<'a> {
    list: &'a NvList,
    slots: std::slice::Iter<'a, Slot>,
    left: usize,
}

impl<'a> Iterator for IterBytes<'a> {
    type Item = (&'a [u8], &'a Value);
    fn next(&mut self) -> Option<Self::Item> {
        let list = self.list;
        let pair = self.slots.find_map(|s| Some((list.names.get(s.record), s.value.as_ref()?)))?;
        self.left -= 1;
        Some(pair)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for IterBytes<'_> {}
