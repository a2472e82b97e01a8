//! The health of a pool's vdevs, as `zpool status` shows it.

use base::Guid;

use crate::config::{VdevConfig, VdevType};
use crate::errors::VdevErrors;
use crate::slot::Health;
use crate::tree::VdevTree;

/// The state of a vdev (OpenZFS: `vdev_state_t`). Greater is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevState {
    /// Taken offline.
    Offline,
    /// Pulled out.
    Removed,
    /// Cannot be opened.
    CantOpen,
    /// Too many errors.
    Faulted,
    /// Works, with less redundancy than it should have.
    Degraded,
    /// All is well.
    Healthy,
}

impl VdevState {
    /// All of them, the worst first.
    pub const ALL: [VdevState; 6] = [
        VdevState::Offline,
        VdevState::Removed,
        VdevState::CantOpen,
        VdevState::Faulted,
        VdevState::Degraded,
        VdevState::Healthy,
    ];

    pub(crate) fn from_bits(bits: u16) -> VdevState {
        VdevState::ALL.into_iter().find(|state| *state as u16 == bits).unwrap_or(VdevState::CantOpen)
    }

    /// The word of `zpool status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::CantOpen => "UNAVAIL",
            VdevState::Faulted => "FAULTED",
            VdevState::Degraded => "DEGRADED",
            VdevState::Healthy => "ONLINE",
        }
    }

    /// OpenZFS's number.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            VdevState::Offline => 2,
            VdevState::Removed => 3,
            VdevState::CantOpen => 4,
            VdevState::Faulted => 5,
            VdevState::Degraded => 6,
            VdevState::Healthy => 7,
        }
    }

    /// The state that OpenZFS's number stands for; `None` for 0 (unknown), 1 (closed) and those that there are not.
    #[must_use]
    pub fn from_number(number: u64) -> Option<VdevState> {
        VdevState::ALL.into_iter().find(|state| state.number() == number)
    }

    pub(crate) const fn is_readable(self) -> bool {
        matches!(self, VdevState::Degraded | VdevState::Healthy)
    }
}

/// Why a vdev is in its state (OpenZFS: `vdev_aux_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VdevAux {
    /// No reason known, or none needed.
    None,
    /// Its device was not found.
    OpenFailed,
    /// Too many of its children are gone.
    NoReplicas,
    /// Too many errors.
    ErrExceeded,
    /// Somebody said so.
    External,
    /// Its device is not the one that it was: other labels, or too small.
    BadLabel,
    /// A spare that has taken the place of a device.
    Spared,
}

impl VdevAux {
    /// All of them.
    pub const ALL: [VdevAux; 7] = [
        VdevAux::None,
        VdevAux::OpenFailed,
        VdevAux::NoReplicas,
        VdevAux::ErrExceeded,
        VdevAux::External,
        VdevAux::BadLabel,
        VdevAux::Spared,
    ];

    pub(crate) fn from_bits(bits: u16) -> VdevAux {
        VdevAux::ALL.into_iter().find(|aux| *aux as u16 == bits).unwrap_or(VdevAux::None)
    }

    /// OpenZFS's number.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            VdevAux::None => 0,
            VdevAux::OpenFailed => 1,
            VdevAux::NoReplicas => 3,
            VdevAux::BadLabel => 6,
            VdevAux::Spared => 10,
            VdevAux::ErrExceeded => 11,
            VdevAux::External => 14,
        }
    }

    /// The reason that OpenZFS's number stands for; those that do not occur here are no reason known.
    #[must_use]
    pub fn from_number(number: u64) -> VdevAux {
        VdevAux::ALL.into_iter().find(|aux| aux.number() == number).unwrap_or(VdevAux::None)
    }

    /// The words of `zpool status`, empty for [`VdevAux::None`].
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            VdevAux::None => "",
            VdevAux::OpenFailed => "cannot open",
            VdevAux::NoReplicas => "insufficient replicas",
            VdevAux::ErrExceeded => "too many errors",
            VdevAux::External => "external device fault",
            VdevAux::BadLabel => "invalid label",
            VdevAux::Spared => "currently in use",
        }
    }
}

/// The health of one vdev and of those below.
#[derive(Debug, Clone)]
pub struct VdevStatus {
    /// Its identity.
    pub guid: Guid,
    /// Its type.
    pub kind: VdevType,
    /// The name in `zpool status`.
    pub name: String,
    /// Its state.
    pub state: VdevState,
    /// Why.
    pub aux: VdevAux,
    /// Its errors since the pool was opened.
    pub errors: VdevErrors,
    /// Whether it holds intent logs only.
    pub is_log: bool,
    /// Whether it is a device that missed writes, and has to be resilvered.
    pub is_stale: bool,
    /// The vdevs below.
    pub children: Vec<VdevStatus>,
}

impl VdevStatus {
    /// This and all below, parents first.
    pub fn walk(&self) -> impl Iterator<Item = &VdevStatus> {
        let mut stack = vec![self];
        std::iter::from_fn(move || {
            let next = stack.pop()?;
            stack.extend(next.children.iter().rev());
            Some(next)
        })
    }
}

impl VdevTree {
    /// The health of all vdevs. The root's state is the pool's.
    #[must_use]
    pub fn status(&self) -> VdevStatus {
        self.status_of(self.config())
    }

    fn status_of(&self, config: &VdevConfig) -> VdevStatus {
        let children: Vec<VdevStatus> = config.children.iter().map(|child| self.status_of(child)).collect();
        let leaf = if config.children.is_empty() { self.leaf(config.guid) } else { None };
        let unknown = Health::new(VdevState::CantOpen, VdevAux::OpenFailed);
        let (state, aux) = match config.kind {
            VdevType::Hole | VdevType::Indirect => (VdevState::Healthy, VdevAux::None),
            VdevType::Missing => (VdevState::CantOpen, VdevAux::OpenFailed),
            VdevType::Disk | VdevType::File | VdevType::DraidSpare => {
                let Health { state, aux } = leaf.map_or(unknown, |leaf| leaf.health());
                (state, aux)
            }
            _ => parent_state(config, &children),
        };
        VdevStatus {
            guid: config.guid,
            kind: config.kind,
            name: config.name(),
            state,
            aux,
            errors: self.errors_of(config.guid),
            is_log: config.is_log,
            is_stale: state.is_readable() && leaf.is_some_and(|leaf| leaf.is_stale()),
            children,
        }
    }
}

/// OpenZFS: `vdev_propagate_state` and the state-change function of each type. There a member that missed writes is resilvered at once, and does not
/// count; here that may have to wait for a command, and till then the vdev has less redundancy than it should have.
fn parent_state(config: &VdevConfig, children: &[VdevStatus]) -> (VdevState, VdevAux) {
    let is_root = config.kind == VdevType::Root;
    // a pool goes on without its log devices
    let may_miss = |c: &VdevStatus| is_root && c.is_log;
    let gone = children.iter().filter(|c| !c.state.is_readable() && !may_miss(c)).count();
    let hurt = children.iter().any(|c| c.state != VdevState::Healthy || c.is_stale);
    let width = config.children.len() as u64;
    let may_go = match config.kind {
        VdevType::Root => 0,
        VdevType::Raidz => config.nparity,
        VdevType::Draid => config.nparity * (width / config.draid_nchildren.unwrap_or(width).max(1)),
        _ => width.saturating_sub(1),
    };
    if gone as u64 > may_go {
        (VdevState::CantOpen, VdevAux::NoReplicas)
    } else if hurt {
        (VdevState::Degraded, VdevAux::None)
    } else {
        (VdevState::Healthy, VdevAux::None)
    }
}
