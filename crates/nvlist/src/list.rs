//! The list itself: slots in insertion order, chains of equal names, and their maintenance.

use crate::index::{EntryPosition, Guess, Index};
use crate::names::{Name, Names};
use crate::{DataType, Iter, IterBytes, Uniqueness, Value};

/// A list with more slots than this has an index; below, a linear search is faster.
pub(crate) const INDEX_ABOVE: usize = 24;

/// The number that stands for no slot.
pub(crate) const NONE: u32 = u32::MAX;

/// An ordered list of named values. OpenZFS: `nvlist_t`.
///
/// Names can be given as `&str` or as bytes (`impl AsRef<[u8]>`). Getters by type are [`NvList::get_u64`] and its siblings.
#[derive(Clone)]
pub struct NvList {
    /// Pairs in insertion order; the value is `None` where a pair was removed.
    pub(crate) slots: Vec<Slot>,
    /// The long names.
    pub(crate) names: Names,
    /// The first slot of every name, if there are more slots than [`INDEX_ABOVE`].
    pub(crate) index: Option<Box<Index>>,
    /// Number of slots that hold a pair.
    pub(crate) live: usize,
    /// Number of distinct names.
    pub(crate) distinct: usize,
    /// Bytes of names that no pair uses any more.
    pub(crate) dead_names: usize,
    /// The flag word as it is packed.
    pub(crate) flags: u32,
}

/// A pair, linked with the other pairs of its name in insertion order.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) value: Option<Value>,
    pub(crate) name: Name,
    /// The next pair of the name, or [`NONE`].
    pub(crate) next: u32,
    /// The previous pair of the name; in the first, the last.
    pub(crate) prev: u32,
}

impl Default for NvList {
    fn default() -> NvList {
        NvList::new()
    }
}

impl NvList {
    /// An empty list of unique names, the usual kind.
    #[must_use]
    pub fn new() -> NvList {
        NvList::with_flags(Uniqueness::Name)
    }

    /// An empty list of unique names with room for `pairs`.
    #[must_use]
    pub fn with_capacity(pairs: usize) -> NvList {
        NvList { slots: Vec::with_capacity(pairs), ..NvList::new() }
    }

    /// An empty list with the given uniqueness.
    #[must_use]
    pub fn with_flags(uniqueness: Uniqueness) -> NvList {
        NvList::with_raw_flags(uniqueness.flags())
    }

    /// An empty list with the flag word of a packed one.
    pub(crate) fn with_raw_flags(flags: u32) -> NvList {
        NvList { slots: Vec::new(), names: Names::default(), index: None, live: 0, distinct: 0, dead_names: 0, flags }
    }

    /// The list's behaviour when a name is added again.
    #[must_use]
    pub fn uniqueness(&self) -> Uniqueness {
        Uniqueness::from_flags(self.flags)
    }

    /// The flag word (`nvl_nvflag`).
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// True if the list has no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Heap bytes of the list and everything that it owns.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        let values: usize = self.slots.iter().filter_map(|s| s.value.as_ref()).map(Value::heap_size).sum();
        let index = self.index.as_ref().map_or(0, |i| size_of::<Index>() + i.capacity());
        self.slots.capacity() * size_of::<Slot>() + self.names.capacity() + index + values
    }

    /// An estimate of the packed size of a list of small values.
    pub(crate) fn packed_size_hint(&self) -> usize {
        32 + self.names.len() + self.live * 80
    }

    /// The pairs whose names are UTF-8, in insertion order ([`NvList::iter_bytes`] shows the others too).
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter::new(self)
    }

    /// As [`NvList::iter`], with the values mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Value)> {
        let NvList { slots, names, .. } = self;
        let names = &*names;
        slots.iter_mut().filter_map(move |Slot { name, value, .. }| {
            let name: &Name = name;
            Some((std::str::from_utf8(name.get(names)).ok()?, value.as_mut()?))
        })
    }

    /// All pairs, in insertion order.
    #[must_use]
    pub fn iter_bytes(&self) -> IterBytes<'_> {
        IterBytes::new(self)
    }

    /// The first pair of a name. OpenZFS: `nvlist_lookup_nvpair()`.
    #[must_use]
    #[inline]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&Value> {
        self.slot(name.as_ref())?.value.as_ref()
    }

    /// The value of the first pair of a name, mutable.
    pub fn get_mut(&mut self, name: impl AsRef<[u8]>) -> Option<&mut Value> {
        let slot = self.find(name.as_ref())?.slot;
        self.slots.get_mut(slot as usize)?.value.as_mut()
    }

    /// The value of the first pair of a name and a type.
    #[must_use]
    #[inline]
    pub fn get_typed(&self, name: impl AsRef<[u8]>, ty: DataType) -> Option<&Value> {
        let first = self.slot(name.as_ref())?;
        match &first.value {
            Some(value) if value.data_type() == ty => Some(value),
            _ => self.slots.get(self.find_typed(first.next, ty)? as usize)?.value.as_ref(),
        }
    }

    /// True if a pair has this name. OpenZFS: `nvlist_exists()`.
    #[must_use]
    #[inline]
    pub fn contains(&self, name: impl AsRef<[u8]>) -> bool {
        self.slot(name.as_ref()).is_some()
    }

    /// Adds a pair at the end; the list's [`Uniqueness`] decides which pairs it replaces. OpenZFS: `nvlist_add_*()`.
    ///
    /// # Panics
    /// The list would exceed 2³² pairs or 32 GiB of names.
    pub fn insert(&mut self, name: impl AsRef<[u8]>, value: impl Into<Value>) {
        self.insert_value(name.as_ref(), value.into());
    }

    /// Adds all pairs of another list. OpenZFS: `nvlist_merge()`.
    pub fn merge(&mut self, other: &NvList) {
        for (name, value) in other.iter_bytes() {
            self.insert_value(name, value.clone());
        }
    }

    /// Removes the first pair of a name and returns its value.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) -> Option<Value> {
        let head = self.find(name.as_ref())?;
        let value = self.unlink(head, head.slot);
        self.tidy();
        value
    }

    /// Removes the first pair of a name and a type. OpenZFS: `nvlist_remove()`.
    pub fn remove_typed(&mut self, name: impl AsRef<[u8]>, ty: DataType) -> Option<Value> {
        let head = self.find(name.as_ref())?;
        let slot = self.find_typed(head.slot, ty)?;
        let value = self.unlink(head, slot);
        self.tidy();
        value
    }

    /// Removes all pairs of a name and returns their number. OpenZFS: `nvlist_remove_all()`.
    pub fn remove_all(&mut self, name: impl AsRef<[u8]>) -> usize {
        let Some(mut head) = self.find(name.as_ref()) else {
            return 0;
        };
        let mut removed = 0;
        while let Some(next) = self.slots.get(head.slot as usize).map(|s| s.next) {
            self.unlink(head, head.slot);
            head.slot = next;
            removed += 1;
        }
        self.tidy();
        removed
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        *self = NvList::with_raw_flags(self.flags);
    }

    /// Adds a pair unless the list's uniqueness forbids it: for decoding, where a second pair is corruption. Returns true if it was added.
    pub(crate) fn insert_new(&mut self, name: &[u8], value: Value) -> bool {
        let (head, tag) = self.find_to_insert(name);
        match head {
            None => self.append_new(name, value, tag),
            Some(head) if self.replaced(head, &value).is_none() => self.append(head.slot, value),
            Some(_) => return false,
        }
        true
    }

    fn insert_value(&mut self, name: &[u8], value: Value) {
        let (head, tag) = self.find_to_insert(name);
        let Some(head) = head else {
            return self.append_new(name, value, tag);
        };
        match self.replaced(head, &value) {
            None => self.append(head.slot, value),
            Some(old) => self.replace(head, old, value),
        }
    }

    /// The pair that a new one of this value replaces.
    fn replaced(&self, head: EntryPosition, value: &Value) -> Option<u32> {
        match self.uniqueness() {
            Uniqueness::None => None,
            Uniqueness::Name => Some(head.slot),
            Uniqueness::NameAndType => self.find_typed(head.slot, value.data_type()),
        }
    }

    /// Removes the pair `old` and adds one of the same name at the end.
    fn replace(&mut self, head: EntryPosition, old: u32, value: Value) {
        let to = self.slots.len() as u32;
        let Some(slot) = self.slots.get_mut(old as usize) else {
            return;
        };
        if old + 1 == to {
            // it is at the end already
            slot.value = Some(value);
        } else if slot.next == NONE && old == head.slot {
            // the only one of its name, nearly always the case: it moves
            slot.value = None;
            let name = slot.name;
            self.live -= 1;
            if let Some(index) = self.index.as_deref_mut() {
                index.set_slot(head, to);
            }
            self.push_slot(Slot { value: Some(value), name, next: NONE, prev: to });
            self.tidy();
        } else {
            // other pairs of this name remain, so the name stays
            let first = if old == head.slot { slot.next } else { head.slot };
            self.unlink(head, old);
            self.append(first, value);
            self.tidy();
        }
    }

    /// Adds the first pair of a name.
    #[inline]
    fn append_new(&mut self, name: &[u8], value: Value, tag: u32) {
        let to = self.slots.len() as u32;
        let name = self.names.add(name);
        self.distinct += 1;
        if let Some(index) = self.index.as_deref_mut() {
            index.insert(tag, to);
        }
        self.push_slot(Slot { value: Some(value), name, next: NONE, prev: to });
    }

    /// Adds another pair of the name whose first slot is `head`.
    fn append(&mut self, head: u32, value: Value) {
        let to = self.slots.len() as u32;
        let Some(first) = self.slots.get_mut(head as usize) else {
            return;
        };
        let name = first.name;
        let last = std::mem::replace(&mut first.prev, to);
        if let Some(last) = self.slots.get_mut(last as usize) {
            last.next = to;
        }
        self.push_slot(Slot { value: Some(value), name, next: NONE, prev: last });
    }

    #[inline(always)]
    fn push_slot(&mut self, slot: Slot) {
        assert!(self.slots.len() < NONE as usize, "nvlist: more than 2^32 pairs");
        self.live += 1;
        self.slots.push(slot);
        if self.index.is_none() && self.slots.len() > INDEX_ABOVE {
            self.build_index();
        }
    }

    /// Empties a slot and unlinks it from its name's chain; with the last pair the name is removed.
    #[inline]
    pub(crate) fn unlink(&mut self, head: EntryPosition, slot: u32) -> Option<Value> {
        let at = self.slots.get_mut(slot as usize)?;
        let value = at.value.take()?;
        let (next, prev, long) = (at.next, at.prev, at.name.long_size());
        self.live -= 1;
        if slot != head.slot {
            if let Some(before) = self.slots.get_mut(prev as usize) {
                before.next = next;
            }
            // the last pair is followed by the first, whose `prev` is the last
            let after = if next == NONE { head.slot } else { next };
            if let Some(after) = self.slots.get_mut(after as usize) {
                after.prev = prev;
            }
        } else if next == NONE {
            self.distinct -= 1;
            self.dead_names += long;
            if let Some(index) = self.index.as_deref_mut() {
                index.remove(head);
            }
        } else {
            if let Some(second) = self.slots.get_mut(next as usize) {
                second.prev = prev;
            }
            if let Some(index) = self.index.as_deref_mut() {
                index.set_slot(head, next);
            }
        }
        Some(value)
    }

    /// The first pair of a name: [`NvList::find`] for reading, with a fast path for short names. It calls nothing, so that a few lookups
    /// fit in the processor at once and wait for memory together.
    #[inline]
    fn slot(&self, name: &[u8]) -> Option<&Slot> {
        if let (Some(index), true) = (self.index.as_deref(), Name::is_short(name)) {
            match index.guess(index.tag(name)) {
                Guess::Perhaps(place) => match self.slots.get(place.slot as usize) {
                    Some(slot) if slot.name.is(name) => return Some(slot),
                    _ => {}
                },
                Guess::Absent => return None,
                Guess::Elsewhere => {}
            }
        }
        self.slot_anyhow(name)
    }

    #[inline(never)]
    fn slot_anyhow(&self, name: &[u8]) -> Option<&Slot> {
        self.slots.get(self.find(name)?.slot as usize)
    }

    #[inline(always)]
    pub(crate) fn find(&self, name: &[u8]) -> Option<EntryPosition> {
        match self.index.as_deref() {
            Some(index) => self.find_indexed(index, index.tag(name), name),
            None => self.scan(name),
        }
    }

    /// The first pair of a name, and the name's tag if there is an index.
    #[inline(always)]
    fn find_to_insert(&self, name: &[u8]) -> (Option<EntryPosition>, u32) {
        match self.index.as_deref() {
            Some(index) => {
                let tag = index.tag(name);
                (self.find_indexed(index, tag, name), tag)
            }
            None => (self.scan(name), 0),
        }
    }

    #[inline(always)]
    fn find_indexed(&self, index: &Index, tag: u32, name: &[u8]) -> Option<EntryPosition> {
        match index.guess(tag) {
            Guess::Perhaps(place) if self.has_name(place.slot, name) => Some(place),
            Guess::Absent => None,
            _ => self.find_further(index, tag, name),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_further(&self, index: &Index, tag: u32, name: &[u8]) -> Option<EntryPosition> {
        index.find(tag, |slot| self.has_name(slot, name))
    }

    #[inline(always)]
    fn has_name(&self, slot: u32, name: &[u8]) -> bool {
        self.slots.get(slot as usize).is_some_and(|s| s.name.get(&self.names) == name)
    }

    #[inline(never)]
    fn scan(&self, name: &[u8]) -> Option<EntryPosition> {
        let is = |s: &Slot| s.name.get(&self.names) == name && s.value.is_some();
        self.slots.iter().position(is).map(|slot| EntryPosition::unindexed(slot as u32))
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
}
