//! Files that may be changed through mappings: the engine has what was changed when the kernel writes it.
//!
//! When the contents of the file system are replaced, pages that were changed before have not all been written. They are of the former contents, and are
//! not to come into those that are there then. So what the kernel writes of them is dropped until it was told to forget the pages of the file, which has
//! it written first ([`Notifier::all_changed`](crate::Notifier::all_changed)).

use std::collections::{HashMap, HashSet};

use base::ObjectId;
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Mapped(Mutex<State>);

#[derive(Default)]
struct State {
    /// Of each file how many handles it has by which it may be mapped for writing.
    writable: HashMap<ObjectId, usize>,
    /// Files whose changed pages are of contents that were replaced.
    outdated: HashSet<ObjectId>,
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
        state.outdated = state.writable.keys().copied().collect();
    }

    /// True if pages that the kernel writes are of contents that were replaced.
    pub(crate) fn is_outdated(&self, id: ObjectId) -> bool {
        self.0.lock().outdated.contains(&id)
    }

    /// Notes that the kernel has forgotten the pages of a file.
    pub(crate) fn forgotten(&self, id: ObjectId) {
        self.0.lock().outdated.remove(&id);
    }

    /// Notes that the kernel was told of all files.
    pub(crate) fn all_forgotten(&self) {
        self.0.lock().outdated.clear();
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
        mapped.forgotten(b);
        assert!(!mapped.is_outdated(a) && !mapped.is_outdated(b) && !mapped.may_be(a) && mapped.may_be(b));
        mapped.replaced();
        mapped.all_forgotten();
        assert!(!mapped.is_outdated(b) && mapped.may_be(b));
    }
}
