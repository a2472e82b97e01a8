//! Notification of changed properties (OpenZFS: `dsl_prop_register`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::spa::Spa;

/// A user of an open dataset that follows its properties.
pub trait PropsWatch: Send + Sync {
    /// Called when properties of some dataset have changed and the change is on disk, by the thread that made it, before its call returns.
    fn props_changed(&self);
}

/// The registered watchers.
#[derive(Default)]
pub(crate) struct Watches {
    all: Mutex<Vec<Weak<dyn PropsWatch>>>,
    changed: AtomicBool,
    /// Held while watchers are called, so that no change returns before all of them know of it.
    telling: Mutex<()>,
}

impl Spa {
    /// Registers `watch` for changes, as long as it lives.
    pub fn watch_props(&self, watch: Weak<dyn PropsWatch>) {
        let mut all = self.watches.all.lock();
        all.retain(|watch| watch.strong_count() > 0);
        all.push(watch);
    }

    /// Notes, while a txg is synced, that properties change in it.
    pub(crate) fn note_props_changed(&self) {
        self.watches.changed.store(true, Ordering::Release);
    }

    /// Notifies the watchers of noted changes. The txg is on disk.
    pub(crate) fn tell_props_changed(&self) {
        let _telling = self.watches.telling.lock();
        if self.watches.changed.swap(false, Ordering::Acquire) {
            let all: Vec<Arc<dyn PropsWatch>> = self.watches.all.lock().iter().filter_map(Weak::upgrade).collect();
            all.iter().for_each(|watch| watch.props_changed());
        }
    }
}
