//! The device of a leaf, which can go and come back while the leaf stays, and the health of the leaf.
//!
//! Both are read by every I/O without a lock and changed together under one. A leaf whose device was lost or closed has none; one that failed too
//! often keeps it, as the last that may be asked for a block.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;

use crate::config::VdevConfig;
use crate::device::Device;
use crate::status::{VdevAux, VdevState};

/// The state of a leaf, and the reason for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// The state.
    pub state: VdevState,
    /// The reason.
    pub aux: VdevAux,
}

impl Health {
    pub(crate) const fn new(state: VdevState, aux: VdevAux) -> Health {
        Health { state, aux }
    }

    /// The reason why a leaf is faulted or degraded, if its configuration says that it is.
    pub(crate) fn reason(config: &VdevConfig) -> VdevAux {
        match config.aux_state.as_deref() {
            Some("external") => VdevAux::External,
            _ => VdevAux::ErrExceeded,
        }
    }

    /// The health of a leaf that was just opened, with a device or without. A device that was pulled out and is there again is used.
    pub(crate) fn at_open(config: &VdevConfig, present: bool) -> Health {
        let reason = Health::reason(config);
        let (state, aux) = if config.offline {
            (VdevState::Offline, VdevAux::None)
        } else if config.faulted {
            (VdevState::Faulted, reason)
        } else if present {
            (if config.degraded { VdevState::Degraded } else { VdevState::Healthy }, reason)
        } else if config.removed {
            (VdevState::Removed, VdevAux::None)
        } else {
            (VdevState::CantOpen, VdevAux::OpenFailed)
        };
        Health { state, aux: if state == VdevState::Healthy { VdevAux::None } else { aux } }
    }
}

const HAS_DEVICE: u16 = 1 << 8;
const IS_WRITABLE: u16 = 1 << 9;

/// The device of a leaf, if it has one, and its health.
#[derive(Debug)]
pub(crate) struct Slot {
    device: ArcSwapOption<Arc<dyn Device>>,
    /// State and reason, four bits each, and the flags above.
    word: AtomicU16,
    /// Held by whoever changes the two.
    change: Mutex<Kept>,
}

/// The parts that are only looked at when something changes.
#[derive(Debug, Default)]
struct Kept {
    /// The name of the last device.
    name: Option<String>,
    /// The last error of the device.
    error: Option<String>,
}

impl Slot {
    pub(crate) fn new(health: Health, device: Option<Arc<dyn Device>>) -> Slot {
        let slot = Slot { device: ArcSwapOption::empty(), word: AtomicU16::new(0), change: Mutex::default() };
        slot.set(&mut slot.kept(), health, device);
        slot
    }

    fn put(&self, kept: &mut Kept, health: Health, device: Option<Arc<dyn Device>>) {
        let was = self.health();
        self.set(kept, health, device);
        if let Some(name) = &kept.name {
            tracing::debug!(target: "zuse::vdev", device = name, was = ?was.state, is = ?health.state, reason = ?health.aux, "state");
        }
    }

    fn set(&self, kept: &mut Kept, health: Health, device: Option<Arc<dyn Device>>) {
        let mut word = (health.state as u16) | (health.aux as u16) << 4;
        if let Some(device) = &device {
            kept.name = Some(device.name());
            word |= HAS_DEVICE | if device.is_writable() { IS_WRITABLE } else { 0 };
        }
        self.device.store(device.map(Arc::new));
        self.word.store(word, Ordering::SeqCst);
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device.
    pub(crate) fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.load().as_ref().map(|device| Arc::clone(&**device))
    }

    /// Whether it has this very device.
    pub(crate) fn holds(&self, device: &Arc<dyn Device>) -> bool {
        self.device.load().as_ref().is_some_and(|own| Arc::ptr_eq(&**own, device))
    }

    pub(crate) fn has_device(&self) -> bool {
        self.word.load(Ordering::Acquire) & HAS_DEVICE != 0
    }

    /// Whether there is a device that may be read.
    pub(crate) fn is_usable(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & HAS_DEVICE != 0 && state_of(word).is_readable()
    }

    /// Whether there is a device that may be read and written.
    pub(crate) fn is_writable(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & IS_WRITABLE != 0 && state_of(word).is_readable()
    }

    pub(crate) fn health(&self) -> Health {
        let word = self.word.load(Ordering::Acquire);
        Health { state: state_of(word), aux: VdevAux::from_bits(word >> 4 & 0xf) }
    }

    /// The name of the device, or of the last one that was there.
    pub(crate) fn name(&self) -> Option<String> {
        self.kept().name.clone()
    }

    /// The last error of a device.
    pub(crate) fn error(&self) -> Option<String> {
        self.kept().error.clone()
    }

    pub(crate) fn note_error(&self, error: String) {
        self.kept().error = Some(error);
    }

    /// Changes the health; the device stays.
    pub(crate) fn judge(&self, health: Health) {
        let mut kept = self.kept();
        let device = self.device();
        self.put(&mut kept, health, device);
    }

    /// The same if the slot `is_so`, which nobody changes meanwhile. Returns whether it was.
    pub(crate) fn judge_if(&self, is_so: impl FnOnce(&Slot) -> bool, health: Health) -> bool {
        let mut kept = self.kept();
        let is_so = is_so(self);
        if is_so {
            let device = self.device();
            self.put(&mut kept, health, device);
        }
        is_so
    }

    /// Takes the device away, if it is `device` (any, if `None`). Returns whether it was.
    pub(crate) fn take(&self, device: Option<&Arc<dyn Device>>, health: Health) -> bool {
        let mut kept = self.kept();
        if device.is_some_and(|device| !self.holds(device)) {
            return false;
        }
        self.put(&mut kept, health, None);
        true
    }

    /// Puts a device into the empty slot. Returns whether it was empty.
    pub(crate) fn fill(&self, health: Health, device: Arc<dyn Device>) -> bool {
        let mut kept = self.kept();
        if self.device.load().is_some() {
            return false;
        }
        kept.error = None;
        self.put(&mut kept, health, Some(device));
        true
    }
}

fn state_of(word: u16) -> VdevState {
    VdevState::from_bits(word & 0xf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn a_slot_tells_what_was_put_into_it() {
        let device = || -> Arc<dyn Device> { Arc::new(MemoryDevice::writable(1 << 20).named("d".to_owned())) };
        let (first, second) = (device(), device());
        let well = Health::new(VdevState::Healthy, VdevAux::None);
        let slot = Slot::new(well, Some(first.clone()));
        assert!(slot.is_writable() && slot.holds(&first) && !slot.holds(&second));
        for aux in VdevAux::ALL {
            for state in VdevState::ALL {
                slot.judge(Health { state, aux });
                assert_eq!(slot.health(), Health { state, aux });
                assert_eq!(slot.is_usable(), state.is_readable());
            }
        }
        let removed = Health::new(VdevState::Removed, VdevAux::None);
        assert!(!slot.fill(well, second.clone()) && !slot.take(Some(&second), removed));
        assert!(slot.take(Some(&first), removed) && !slot.has_device() && !slot.is_usable());
        assert_eq!((slot.health(), slot.name().as_deref()), (removed, Some("d")));
        assert!(!slot.judge_if(Slot::is_usable, well) && slot.health() == removed, "it has gone");
        assert!(slot.fill(well, second.clone()) && slot.is_writable() && slot.holds(&second));
    }
}
