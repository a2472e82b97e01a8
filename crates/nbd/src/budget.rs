//! How many bytes all connections of a server may have in flight together.
//!
//! A part of it is divided among the connections: what a connection has in flight up to its share needs nobody's leave, so that those who hold much, and take no replies or send no payloads, keep nobody from working. Beyond
//! its share a connection takes from what is common to all, and waits while that is used up.

use parking_lot::{Condvar, Mutex};
use rustix::system::sysinfo;

use crate::PAYLOAD_MAX;

/// The maximum, if nothing else is said.
const MAX: usize = 1 << 30;
/// The part of the memory of the machine that it is at most.
const PART: u64 = 4;

/// Returns how many bytes a server may have in flight, if nothing else is said: 1 GiB, or a quarter of memory if that is less.
pub(crate) fn of_machine() -> usize {
    let info = sysinfo();
    let memory = info.totalram.saturating_mul(info.mem_unit.max(1).into());
    usize::try_from(memory / PART).unwrap_or(usize::MAX).clamp(PAYLOAD_MAX as usize, MAX)
}

/// The bytes of all connections of a server.
#[derive(Debug)]
pub struct Budget {
    /// Bytes that each connection may have of its own.
    pub(crate) share: usize,
    /// Bytes that are for all.
    common: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of what is common that are taken.
    taken: usize,
    /// Counts up when something has changed for those who wait.
    changes: u64,
    waiting: usize,
}

impl Budget {
    /// A budget of so many bytes, for so many connections: half of it is divided among them.
    #[must_use]
    pub fn new(bytes: usize, connections: usize) -> Budget {
        let share = (bytes / 2).checked_div(connections).unwrap_or(0);
        Budget { share, common: bytes - share * connections, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Returns how many of the bytes that a connection has in flight are taken from what is common, of which it gets `most` at most.
    pub(crate) fn beyond_share(&self, bytes: usize, most: usize) -> usize {
        bytes.min(most).saturating_sub(self.share).min(self.common)
    }

    /// Takes bytes of what is common. If there are not as many, what is returned is for [`Budget::wait`].
    pub(crate) fn take(&self, bytes: usize) -> Result<(), u64> {
        let mut state = self.state.lock();
        if bytes > 0 && bytes > self.common - state.taken {
            return Err(state.changes);
        }
        state.taken += bytes;
        Ok(())
    }

    /// Gives back what was taken, which may be nothing: who waits looks again.
    pub(crate) fn give(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.taken -= bytes;
        // also if nobody waits: somebody may be about to
        state.changes += 1;
        if state.waiting > 0 {
            self.freed.notify_all();
        }
    }

    /// Waits until something has changed since there were not enough bytes.
    pub(crate) fn wait(&self, since: u64) {
        let mut state = self.state.lock();
        state.waiting += 1;
        while state.changes == since {
            self.freed.wait(&mut state);
        }
        state.waiting -= 1;
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.state.lock().taken
    }
}
