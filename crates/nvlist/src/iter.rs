//! Iteration over a list, and the related traits.

use std::fmt;

use crate::list::Slot;
use crate::{NvList, Value};

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

/// Builds a list of unique names.
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

impl<'a> Iter<'a> {
    pub(crate) fn new(list: &'a NvList) -> Iter<'a> {
        Iter(IterBytes::new(list))
    }
}

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

impl<'a> IterBytes<'a> {
    pub(crate) fn new(list: &'a NvList) -> IterBytes<'a> {
        IterBytes { list, slots: list.slots.iter(), left: list.live }
    }
}

impl<'a> Iterator for IterBytes<'a> {
    type Item = (&'a [u8], &'a Value);
    fn next(&mut self) -> Option<Self::Item> {
        let list = self.list;
        let pair = self.slots.find_map(|s| Some((s.name.get(&list.names), s.value.as_ref()?)))?;
        self.left -= 1;
        Some(pair)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for IterBytes<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_changed_in_their_places() {
        let long = "n".repeat(100);
        let mut list = NvList::with_capacity(3);
        [("a", 1u64), (&long, 2), ("c", 3)].into_iter().for_each(|(name, value)| list.insert(name, value));
        list.remove("a");
        for (name, value) in list.iter_mut() {
            *value = (name.len() as u64).into();
        }
        let pairs: Vec<_> = list.iter().map(|(name, value)| (name, value.as_u64())).collect();
        assert_eq!(pairs, [(&*long, Some(100)), ("c", Some(1))]);
    }
}
