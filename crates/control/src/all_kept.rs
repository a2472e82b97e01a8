//! What the requests of many callers keep, let go in time also where nobody asks for anything any more: it keeps space of the pool from being reused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::Kept;
use crate::kept::{IDLE, WeakKept};

/// What the requests of many callers keep ([`Kept`]). While there is something, a thread looks after it.
pub struct AllKept {
    all: Arc<Mutex<All>>,
    idle: Duration,
}

#[derive(Default)]
struct All {
    kept: Vec<WeakKept>,
    /// Whether there is a thread.
    is_watched: bool,
}

impl std::fmt::Debug for AllKept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AllKept").field("idle", &self.idle).finish_non_exhaustive()
    }
}

impl Default for AllKept {
    fn default() -> Self {
        AllKept::new(IDLE)
    }
}

fn lock(all: &Mutex<All>) -> MutexGuard<'_, All> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AllKept {
    /// Lets go what is not used for `idle`.
    #[must_use]
    pub fn new(idle: Duration) -> AllKept {
        AllKept { all: Arc::default(), idle }
    }

    /// Counts a caller among them, as long as he makes requests.
    pub fn add(&self, kept: &Kept) {
        let mut all = lock(&self.all);
        all.drop_idle(self.idle);
        all.kept.push(kept.downgrade());
    }

    /// Lets everything go: a pool is closed, or a key is gone.
    pub fn forget(&self) {
        lock(&self.all).kept.retain(WeakKept::forget);
    }

    /// A request may have kept something: it is looked after from now on.
    pub fn watch(&self) {
        let mut all = lock(&self.all);
        if all.is_watched || !all.drop_idle(self.idle) {
            return;
        }
        let (weak, idle) = (Arc::downgrade(&self.all), self.idle);
        let thread = std::thread::Builder::new().name("kept".to_owned());
        // without one it is let go by the next request
        all.is_watched = thread.spawn(move || watch(&weak, idle)).is_ok();
    }
}

/// Looks after what is kept, until nothing is.
fn watch(all: &Weak<Mutex<All>>, idle: Duration) {
    let mut stays = true;
    while stays {
        std::thread::sleep(idle / 4);
        let Some(all) = all.upgrade() else { return };
        let mut all = lock(&all);
        stays = all.drop_idle(idle);
        all.is_watched = stays;
    }
}

impl All {
    /// Lets go what was not used for so long. Returns whether something stays.
    fn drop_idle(&mut self, idle: Duration) -> bool {
        let mut stays = false;
        self.kept.retain(|kept| {
            let left = kept.drop_idle(idle);
            stays |= left == Some(true);
            left.is_some()
        });
        stays
    }
}
