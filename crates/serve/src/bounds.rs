//! How many connections and requests there may be at once: of all users, of those that are not the owner, and of each of these.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// A bound on things that users have.
#[derive(Debug)]
pub(crate) struct Quota {
    all: usize,
    strangers: usize,
    stranger: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    strangers: usize,
    /// By user.
    each: HashMap<u32, usize>,
}

/// One of them. It is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    quota: Arc<Quota>,
    stranger: Option<u32>,
}

impl Quota {
    /// Connections, each of which has a thread and a descriptor.
    pub(crate) fn of_connections() -> Arc<Quota> {
        Quota::new(1024, 512, 64)
    }

    /// Requests, each of which has a thread.
    pub(crate) fn of_requests() -> Arc<Quota> {
        Quota::new(512, 128, 32)
    }

    fn new(all: usize, strangers: usize, stranger: usize) -> Arc<Quota> {
        Arc::new(Quota { all, strangers, stranger, used: Mutex::default() })
    }

    /// One for a user, named if it is not the owner; `None` if there are as many as may be.
    pub(crate) fn take(self: &Arc<Quota>, stranger: Option<u32>) -> Option<Permit> {
        let mut used = self.used.lock();
        if used.all >= self.all {
            return None;
        }
        if let Some(uid) = stranger {
            if used.strangers >= self.strangers || used.each.get(&uid).is_some_and(|has| *has >= self.stranger) {
                return None;
            }
            used.strangers += 1;
            *used.each.entry(uid).or_default() += 1;
        }
        used.all += 1;
        Some(Permit { quota: self.clone(), stranger })
    }

    /// As many there are.
    pub(crate) fn used(&self) -> usize {
        self.used.lock().all
    }

    /// As many the owner has.
    pub(crate) fn used_by_owner(&self) -> usize {
        let used = self.used.lock();
        used.all - used.strangers
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.quota.used.lock();
        used.all -= 1;
        if let Some(uid) = self.stranger {
            used.strangers -= 1;
            let left = used.each.get(&uid).map_or(0, |has| has - 1);
            match left {
                0 => used.each.remove(&uid),
                left => used.each.insert(uid, left),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_leave_room_for_each_other_and_for_the_owner() {
        let quota = Quota::new(6, 4, 3);
        let mut of_one: Vec<Option<Permit>> = (0..4).map(|_| quota.take(Some(7))).collect();
        assert_eq!(of_one.iter().flatten().count(), 3);
        let of_another: Vec<Permit> = (0..2).filter_map(|_| quota.take(Some(8))).collect();
        assert_eq!(of_another.len(), 1);
        let of_owner: Vec<Permit> = (0..3).filter_map(|_| quota.take(None)).collect();
        assert_eq!((of_owner.len(), quota.used(), quota.used_by_owner()), (2, 6, 2));
        assert!(quota.take(Some(8)).is_none());
        of_one.clear();
        assert!(quota.take(Some(8)).is_some());
        drop((of_another, of_owner));
        assert_eq!(quota.used(), 0);
        assert!(quota.used.lock().each.is_empty());
    }
}
