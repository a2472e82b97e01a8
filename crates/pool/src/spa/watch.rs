//! Who is told that properties have changed (OpenZFS: `dsl_prop_register`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::spa::Spa;

/// Who works by the properties of a dataset while it is open.
pub trait PropsWatch: Send + Sync {
    /// Properties of some dataset have changed, and the change is on disk. Called by the thread that made it, before its call returns.
    fn props_changed(&self);
}

/// All who want to be told.
#[derive(Default)]
pub(crate) struct Watches {
    all: Mutex<Vec<Weak<dyn PropsWatch>>>,
    changed: AtomicBool,
    /// Held by who tells, so that nobody returns from a change before all know of it.
    telling: Mutex<()>,
}

impl Spa {
    /// From now on `watch` is told of changes, as long as it lives.
    pub fn watch_props(&self, watch: Weak<dyn PropsWatch>) {
        let mut all = self.watches.all.lock();
        all.retain(|watch| watch.strong_count() > 0);
        all.push(watch);
    }

    /// Notes, while a txg is synced, that properties change in it.
    pub(crate) fn note_props_changed(&self) {
        self.watches.changed.store(true, Ordering::Release);
    }

    /// Tells all of what was noted. The txg is on disk.
    pub(crate) fn tell_props_changed(&self) {
        let _telling = self.watches.telling.lock();
        if self.watches.changed.swap(false, Ordering::Acquire) {
            let all: Vec<Arc<dyn PropsWatch>> = self.watches.all.lock().iter().filter_map(Weak::upgrade).collect();
            all.iter().for_each(|watch| watch.props_changed());
        }
    }
}
