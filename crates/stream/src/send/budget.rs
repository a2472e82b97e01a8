//! How much a send has in memory: what was laid out and is not yet written.

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    held: u64,
    /// Nobody writes any more.
    closed: bool,
}

/// Bytes that one thread takes and another gives back.
pub(super) struct Budget {
    state: Mutex<State>,
    changed: Condvar,
    limit: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        Budget { state: Mutex::default(), changed: Condvar::new(), limit }
    }

    /// Waits until `bytes` more may be held; where nothing is, any number may. `false`: nobody writes any more.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.held > 0 && state.held.saturating_add(bytes) > self.limit {
            self.changed.wait(&mut state);
        }
        state.held = state.held.saturating_add(bytes);
        !state.closed
    }

    /// Gives back what was taken.
    pub(super) fn give(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.held = state.held.saturating_sub(bytes);
        self.changed.notify_all();
    }
}

/// Ends the waiting, whatever becomes of the writer.
pub(super) struct Writing<'a>(pub(super) &'a Budget);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn no_more_is_held_than_may_be() {
        let (budget, held, most) = (Budget::new(100), AtomicU64::new(0), AtomicU64::new(0));
        let (send, receive) = crossbeam_channel::unbounded();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for bytes in [40, 60, 30, 250, 10, 90, 5] {
                    assert!(budget.take(bytes));
                    most.fetch_max(held.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
                    send.send(bytes).expect("a receiver");
                }
                drop(send);
            });
            for bytes in receive {
                // what is larger than the limit goes alone
                assert!(held.load(Ordering::SeqCst) <= 100 || held.load(Ordering::SeqCst) == 250);
                held.fetch_sub(bytes, Ordering::SeqCst);
                budget.give(bytes);
            }
        });
        assert_eq!(most.into_inner(), 250);
    }

    #[test]
    fn who_waits_is_told_that_nobody_writes() {
        let budget = Budget::new(10);
        assert!(budget.take(10));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.take(1));
            drop(Writing(&budget));
            assert!(!waiting.join().expect("a thread"));
        });
    }
}
