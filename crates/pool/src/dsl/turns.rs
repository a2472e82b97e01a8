//! Turns at a head: it is opened for a mount, or a task replaces its contents, but not both at a time.
//!
//! Who replaces the contents has the mounts of the head let go of it first ([`Spa::suspend_head`]). A mount that begins after that would have the head in use,
//! and the task would be refused as busy. So the mount waits until the task is over, and the task until the mounts that have begun can be told to let go.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::ObjectId;
use parking_lot::{Condvar, Mutex};

use crate::Dataset;
use crate::spa::Spa;

/// The turns at the heads of a pool.
#[derive(Default)]
pub(in crate::dsl) struct Turns {
    heads: Mutex<BTreeMap<ObjectId, Turn>>,
    /// A turn has ended.
    ended: Condvar,
}

/// How many have their turn at a head: those who open it, or those who replace its contents and then wait for one another elsewhere.
#[derive(Clone, Copy, Default)]
struct Turn {
    opening: usize,
    replacing: usize,
}

impl Turns {
    /// Waits until nobody replaces the contents of a head, and keeps them from being replaced.
    fn open(self: &Arc<Self>, id: ObjectId) -> OpenTurn {
        let mut heads = self.heads.lock();
        while heads.get(&id).is_some_and(|turn| turn.replacing > 0) {
            self.ended.wait(&mut heads);
        }
        heads.entry(id).or_default().opening += 1;
        OpenTurn(self.clone(), id)
    }

    /// Keeps a head from being opened for a mount, once those who have begun to open it are done.
    pub(in crate::dsl) fn replace(self: &Arc<Self>, id: ObjectId) -> ReplaceTurn {
        let mut heads = self.heads.lock();
        heads.entry(id).or_default().replacing += 1;
        while heads.get(&id).is_some_and(|turn| turn.opening > 0) {
            self.ended.wait(&mut heads);
        }
        ReplaceTurn(self.clone(), id)
    }

    fn end(&self, id: ObjectId, end: impl FnOnce(&mut Turn)) {
        let mut heads = self.heads.lock();
        if let Some(turn) = heads.get_mut(&id) {
            end(turn);
            if turn.opening == 0 && turn.replacing == 0 {
                heads.remove(&id);
            }
        }
        drop(heads);
        self.ended.notify_all();
    }
}

/// The turn of one who opens a head, which ends when this is dropped: see [`Spa::turn_to_open`].
#[must_use]
pub struct OpenTurn(Arc<Turns>, ObjectId);

impl std::fmt::Debug for OpenTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "turn to open dataset {}", self.1)
    }
}

impl Drop for OpenTurn {
    fn drop(&mut self) {
        self.0.end(self.1, |turn| turn.opening -= 1);
    }
}

/// The turn of one who replaces the contents of a head, which ends when this is dropped.
pub(in crate::dsl) struct ReplaceTurn(Arc<Turns>, ObjectId);

impl Drop for ReplaceTurn {
    fn drop(&mut self) {
        self.0.end(self.1, |turn| turn.replacing -= 1);
    }
}

impl Spa {
    /// Waits for a task that replaces the contents of a head. None begins to until the result is dropped: by then whoever has opened the head is
    /// registered as one who can let go of it ([`Spa::suspend_with`]). The caller has no transaction open, which the task would wait for.
    pub fn turn_to_open(&self, head: &Dataset) -> OpenTurn {
        self.dsl.open_datasets.turns().open(head.id())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_replaces_waits_for_those_who_open_and_is_waited_for() {
        let (turns, id) = (Arc::<Turns>::default(), ObjectId(1));
        let (done, all_done) = channel();
        let opening = turns.open(id);
        // others do not matter: one more who opens it, and who does either at another head
        drop(turns.open(id));
        drop(turns.open(ObjectId(2)));
        drop(turns.replace(ObjectId(2)));
        std::thread::scope(|scope| {
            let replaces = done.clone();
            scope.spawn(|| {
                let turn = turns.replace(id);
                replaces.send("replaced").unwrap_or_default();
                drop((turn, replaces));
            });
            while turns.heads.lock().get(&id).is_none_or(|turn| turn.replacing == 0) {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                drop(turns.open(id));
                done.send("opened").unwrap_or_default();
            });
            assert!(all_done.try_recv().is_err());
            drop(opening);
            assert_eq!((all_done.recv(), all_done.recv()), (Ok("replaced"), Ok("opened")));
        });
        assert!(turns.heads.lock().is_empty());
    }
}
