//! Removed files that the kernel has forgotten, until they are freed.
//!
//! To free a file is a transaction. Where many files are removed, the kernel forgets each right after it has lost its name: then the transactions would
//! be one per file, beside the next removal, which needs the same locks. So they are gathered for a moment, and freed together, in a thread that waits for
//! that. Until then they are in the unlinked set, as all files are that have lost their name: a crash frees them at the next opening.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use zpl::live::Handle;

use crate::known::Nameless;
use crate::waiters::Waiters;

/// How long the first of them waits for others.
const GATHERED_FOR: Duration = Duration::from_millis(20);
/// So many, or so many bytes, are freed at once, by whoever adds the last: space is not waited for.
const MANY: usize = 256;
const MUCH: u64 = 1 << 20;

/// The files that are to be freed.
#[derive(Default)]
pub(crate) struct Leaving {
    state: Mutex<State>,
    /// It has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    files: Vec<Handle>,
    /// Their bytes.
    bytes: u64,
    /// A thread is going to free them.
    is_awaited: bool,
    ended: bool,
}

impl State {
    fn take(&mut self) -> Vec<Handle> {
        self.bytes = 0;
        std::mem::take(&mut self.files)
    }
}

impl Leaving {
    /// Adds what has held a file.
    pub(crate) fn add(self: &Arc<Self>, held: Nameless, waiters: &Waiters) {
        let mut state = self.state.lock();
        state.files.push(held.handle);
        state.bytes = state.bytes.saturating_add(held.len);
        if state.files.len() >= MANY || state.bytes >= MUCH || state.ended {
            let files = state.take();
            drop(state);
            Handle::release_all(files);
        } else if !std::mem::replace(&mut state.is_awaited, true) {
            drop(state);
            let all = self.clone();
            waiters.run_apart(move |apart| all.free(apart));
        }
    }

    /// Frees what has gathered; `apart`, after a moment.
    fn free(&self, apart: bool) {
        let mut state = self.state.lock();
        if apart && !state.ended {
            let _ = self.ended.wait_for(&mut state, GATHERED_FOR);
        }
        state.is_awaited = false;
        let files = state.take();
        drop(state);
        Handle::release_all(files);
    }

    /// Has all freed without waiting for others, from now on.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.ended.notify_all();
    }
}
