//! Files that may be changed through mappings: the engine has what was changed when the kernel writes it.
//!
//! When the contents of the file system are replaced, pages that were changed before have not all been written. They are of the former contents, and are
//! not to come into those that are there then. So what the kernel writes of them is refused with EIO, which the next `msync` or `fsync` of the file returns,
//! until it was told to forget the pages of the file, which has it written first ([`Notifier::all_changed`](crate::Notifier::all_changed)). Pages that are
//! changed meanwhile are refused with them: the kernel does not say by which handle a page was changed.
//!
//! Contents may be replaced again before all is told of the time before: each replacement has a number, the *epoch*, and whoever was told of one ends no
//! later one.

use std::collections::{HashMap, HashSet};

use base::ObjectId;
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Mapped(Mutex<State>);

#[derive(Default)]
struct State {
    /// Of each file how many handles it has by which it may be mapped for writing.
    writable: HashMap<ObjectId, usize>,
    /// Files whose changed pages are of contents that were replaced, and in which epoch they were last.
    outdated: HashMap<ObjectId, u64>,
    /// The number of replacements.
    epoch: u64,
}

impl Mapped {
    /// Notes that a file is open, and may be mapped for writing.
    pub(crate) fn opened(&self, id: ObjectId) {
        *self.0.lock().writable.entry(id).or_default() += 1;
    }

    /// Notes that one of the handles of a file is closed: the kernel has written what was changed by it.
    pub(crate) fn closed(&self, id: ObjectId) {
        let mut state = self.0.lock();
        let left = state.writable.get(&id).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            state.writable.remove(&id);
            state.outdated.remove(&id);
        } else {
            state.writable.insert(id, left);
        }
    }

    /// True if pages of a file may have been changed that the engine does not have.
    pub(crate) fn may_be(&self, id: ObjectId) -> bool {
        self.0.lock().writable.contains_key(&id)
    }

    /// Notes that the contents were replaced.
    pub(crate) fn replaced(&self) {
        let mut state = self.0.lock();
        state.epoch += 1;
        let epoch = state.epoch;
        state.outdated = state.writable.keys().map(|id| (*id, epoch)).collect();
    }

    /// Returns the epoch, before the kernel is told of files.
    pub(crate) fn epoch(&self) -> u64 {
        self.0.lock().epoch
    }

    /// True if pages that the kernel writes are of contents that were replaced.
    pub(crate) fn is_outdated(&self, id: ObjectId) -> bool {
        self.0.lock().outdated.contains_key(&id)
    }

    /// Notes that the kernel has forgotten the pages that a file had in an epoch.
    pub(crate) fn forgotten(&self, id: ObjectId, epoch: u64) {
        let mut state = self.0.lock();
        if state.outdated.get(&id).is_some_and(|marked| *marked <= epoch) {
            state.outdated.remove(&id);
        }
    }

    /// Notes that the kernel was told of all files, and has forgotten the pages that they had in an epoch, but for those that it `refused`.
    pub(crate) fn all_forgotten(&self, epoch: u64, refused: &HashSet<ObjectId>) {
        self.0.lock().outdated.retain(|id, marked| *marked > epoch || refused.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_outdated_until_they_are_forgotten() {
        let (mapped, [a, b, c]) = (Mapped::default(), [7, 8, 9].map(ObjectId));
        [a, a, b].into_iter().for_each(|id| mapped.opened(id));
        assert!(mapped.may_be(a) && mapped.may_be(b) && !mapped.may_be(c) && !mapped.is_outdated(a));
        mapped.replaced();
        mapped.opened(c);
        assert!(mapped.is_outdated(a) && mapped.is_outdated(b) && !mapped.is_outdated(c));
        mapped.closed(a);
        assert!(mapped.is_outdated(a));
        mapped.closed(a);
        mapped.forgotten(b, mapped.epoch());
        assert!(!mapped.is_outdated(a) && !mapped.is_outdated(b) && !mapped.may_be(a) && mapped.may_be(b));
        mapped.replaced();
        mapped.all_forgotten(mapped.epoch(), &HashSet::new());
        assert!(!mapped.is_outdated(b) && mapped.may_be(b));
    }

    #[test]
    fn what_is_told_of_one_replacement_ends_neither_the_next_nor_what_was_refused() {
        let (mapped, [a, b]) = (Mapped::default(), [7, 8].map(ObjectId));
        [a, b].into_iter().for_each(|id| mapped.opened(id));
        mapped.replaced();
        let first = mapped.epoch();
        mapped.replaced();
        mapped.forgotten(a, first);
        mapped.all_forgotten(first, &HashSet::new());
        assert!(mapped.is_outdated(a) && mapped.is_outdated(b));
        let second = mapped.epoch();
        mapped.forgotten(a, second);
        mapped.all_forgotten(second, &HashSet::from([b]));
        assert!(!mapped.is_outdated(a) && mapped.is_outdated(b));
    }
}
