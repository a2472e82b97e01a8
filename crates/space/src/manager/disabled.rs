//! Metaslabs that are disabled: their free space is overwritten or trimmed, and meanwhile nothing is allocated there.
//!
//! A [`DisabledMetaslab`] ends with its drop. An allocation that finds no space while metaslabs are disabled waits until none is, and tries once more
//! before it fails; as long as it does, no other metaslab is disabled, and those who have one should [hurry](DisabledMetaslab::is_wanted). So a disabled
//! metaslab may not be kept across anything that waits for a txg.
//!
//! OpenZFS: `metaslab_disable`, `metaslab_enable`.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Condvar, Mutex};

use super::SpaceManager;
use crate::flush::MetaslabId;
use crate::{AllocError, RangeTree};

/// The most metaslabs of a vdev that are disabled at a time (OpenZFS: `max_disabled_ms`).
const DISABLED_MAX: usize = 3;

/// The metaslabs that are disabled now.
#[derive(Default)]
pub(super) struct Disabled {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How often each is disabled, by vdev and number.
    open: BTreeMap<MetaslabId, u32>,
    /// Number of times that a metaslab was enabled again.
    enabled: u64,
    /// Allocations that wait, or try once more.
    waiting: usize,
}

/// As long as it exists no metaslab is disabled.
pub(super) struct AllEnabled<'a>(&'a Disabled);

impl Drop for AllEnabled<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

impl Disabled {
    /// Returns the number of times that a metaslab was enabled again, for [`Disabled::wait`].
    pub(super) fn enabled(&self) -> u64 {
        self.state.lock().enabled
    }

    /// Waits until no metaslab is disabled. `None` if none was since [`Disabled::enabled`] returned `since`.
    pub(super) fn wait(&self, since: u64) -> Option<AllEnabled<'_>> {
        let mut state = self.state.lock();
        if state.open.is_empty() && state.enabled == since {
            return None;
        }
        state.waiting += 1;
        while !state.open.is_empty() {
            self.changed.wait(&mut state);
        }
        Some(AllEnabled(self))
    }

    fn begin(&self, (vdev, id): MetaslabId) -> bool {
        let mut state = self.state.lock();
        let others = state.open.range((vdev, 0)..=(vdev, u32::MAX)).filter(|(other, _)| **other != (vdev, id)).count();
        if state.waiting > 0 || others >= DISABLED_MAX {
            return false;
        }
        *state.open.entry((vdev, id)).or_default() += 1;
        true
    }

    fn end(&self, metaslab: MetaslabId) {
        let mut state = self.state.lock();
        if let Some(count) = state.open.get_mut(&metaslab) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&metaslab);
            }
        }
        state.enabled += 1;
        self.changed.notify_all();
    }

    fn is_wanted(&self) -> bool {
        self.state.lock().waiting > 0
    }
}

/// A metaslab from which nothing is allocated.
pub struct DisabledMetaslab<'a> {
    manager: &'a SpaceManager,
    id: MetaslabId,
    /// Its free space, of which none is held for readers or deferred.
    pub free: RangeTree,
    /// Whether something was allocated there at some time.
    pub was_used: bool,
}

impl std::fmt::Debug for DisabledMetaslab<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "disabled metaslab {:?} with {} free bytes", self.id, self.free.total())
    }
}

impl DisabledMetaslab<'_> {
    /// Takes what was freed there since it was last trimmed, if that is [kept](SpaceManager::keep_freed), as far as it is still free.
    #[must_use]
    pub fn take_freed(&self) -> RangeTree {
        self.manager.with(self.id, |metaslab| metaslab.take_freed()).unwrap_or_default()
    }

    /// Returns whether an allocation waits for its end.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.manager.disabled.is_wanted()
    }
}

impl Drop for DisabledMetaslab<'_> {
    fn drop(&mut self) {
        self.manager.enable(self.id);
    }
}

impl SpaceManager {
    /// Has all metaslabs keep what is freed from now on, for a trim; or forget it.
    pub fn keep_freed(&self, keeps: bool) {
        self.keeps_freed.store(keeps, Relaxed);
        for id in self.metaslabs() {
            self.with(id, |metaslab| metaslab.keep_freed(keeps));
        }
    }

    /// Disables a metaslab. `None` if there is no such metaslab, too many are disabled already, or an allocation waits for all of them.
    ///
    /// # Errors
    /// [`AllocError::Load`].
    pub fn disable(&self, id: MetaslabId) -> Result<Option<DisabledMetaslab<'_>>, AllocError> {
        if !self.disabled.begin(id) {
            return Ok(None);
        }
        let disabled = self.disable_one(id);
        if !matches!(disabled, Ok(Some(_))) {
            self.disabled.end(id);
        }
        disabled
    }

    fn disable_one(&self, id: MetaslabId) -> Result<Option<DisabledMetaslab<'_>>, AllocError> {
        let Some(top) = self.tops.read().by_id.get(&id.0).cloned() else { return Ok(None) };
        let Some(cell) = top.metaslabs.get(id.1 as usize) else { return Ok(None) };
        let mut ms = cell.lock();
        self.load_one(&top, &mut ms)?;
        ms.disable();
        top.group(id.1).passivate(&ms);
        let free = ms.free_space().map(|free| free.iter().collect()).unwrap_or_default();
        Ok(Some(DisabledMetaslab { manager: self, id, free, was_used: ms.map.is_some() }))
    }

    fn enable(&self, (vdev, id): MetaslabId) {
        let top = self.tops.read().by_id.get(&vdev).cloned();
        if let Some(top) = top
            && let Some(cell) = top.metaslabs.get(id as usize)
        {
            let mut ms = cell.lock();
            ms.enable();
            let group = top.group(id);
            group.update(&ms);
            // it may be full only because of this one
            group.full.store(false, Relaxed);
        }
        self.disabled.end((vdev, id));
    }
}
