//! Answers that are under way: what they tell the kernel has been read, and may have changed before the kernel knows it.
//!
//! Whoever tells of a change waits until the answers that may be older than it are sent: otherwise the kernel would be told of the change first, and
//! then cache the answer. Answers that begin meanwhile are not waited for: they are in the other one of two phases.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// The answers that are under way.
#[derive(Default)]
pub(crate) struct UnderWay {
    phases: Mutex<Phases>,
    sent: Condvar,
    /// Held by the one who waits.
    waiting: Mutex<()>,
}

/// The phase of answers that begin, and how many are under way of each.
#[derive(Default)]
struct Phases {
    is_odd: bool,
    even: usize,
    odd: usize,
}

impl Phases {
    fn of(&mut self, is_odd: bool) -> &mut usize {
        if is_odd { &mut self.odd } else { &mut self.even }
    }
}

/// An answer that is under way, until this is dropped.
pub(crate) struct Answering {
    all: Arc<UnderWay>,
    is_odd: bool,
}

impl UnderWay {
    /// Begins an answer, before anything is read for it.
    pub(crate) fn begin(self: &Arc<Self>) -> Answering {
        let mut phases = self.phases.lock();
        let is_odd = phases.is_odd;
        *phases.of(is_odd) += 1;
        Answering { all: self.clone(), is_odd }
    }

    /// Waits until all answers that have begun before are sent.
    pub(crate) fn wait(&self) {
        let _alone = self.waiting.lock();
        let mut phases = self.phases.lock();
        let before = phases.is_odd;
        phases.is_odd = !before;
        while *phases.of(before) > 0 {
            self.sent.wait(&mut phases);
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut phases = self.all.phases.lock();
        let left = phases.of(self.is_odd);
        *left -= 1;
        if *left == 0 {
            self.all.sent.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn older_answers_are_waited_for_and_newer_ones_not() {
        let all: Arc<UnderWay> = Arc::default();
        for _ in 0..3 {
            let older = all.begin();
            let before = older.is_odd;
            let (told, is_told) = mpsc::channel();
            let waiter = all.clone();
            let thread = std::thread::Builder::new().spawn(move || {
                waiter.wait();
                told.send(()).unwrap();
            });
            while all.phases.lock().is_odd == before {
                std::thread::yield_now();
            }
            assert!(is_told.try_recv().is_err());
            let newer = all.begin();
            drop(older);
            is_told.recv().unwrap();
            drop(newer);
            thread.unwrap().join().unwrap();
        }
        all.wait();
    }
}
