//! The bytes of a dRAID.

use super::ROW_HEIGHT;
use crate::config::VdevConfig;

/// Bytes at the end of each child that are kept for expansions (OpenZFS: `VDEV_DRAID_REFLOW_RESERVE`).
const RESERVE: u64 = 32 << 20;

/// The numbers of a dRAID on which its size depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Children in all, and those of a failure group.
    pub(crate) width: u64,
    pub(crate) children: u64,
    /// Data and parity columns of a group.
    pub(crate) group_width: u64,
    /// Distributed spares.
    pub(crate) spares: u64,
    /// Groups of a slice.
    pub(crate) groups: u64,
}

impl Sizes {
    /// The numbers of a configuration.
    pub(crate) fn of(config: &VdevConfig) -> Sizes {
        let width = config.children.len() as u64;
        Sizes {
            width,
            children: config.draid_nchildren.unwrap_or(width),
            group_width: config.draid_ndata.saturating_add(config.nparity),
            spares: config.draid_nspares,
            groups: config.draid_ngroups,
        }
    }

    /// Bytes between the labels that each child has, at least, of a dRAID that has `bytes` (OpenZFS: `vdev_draid_min_asize`).
    pub(crate) fn least_room(self, bytes: u64) -> u64 {
        let disks = self.width.saturating_sub(self.spares).max(1);
        bytes.div_ceil(disks).next_multiple_of(ROW_HEIGHT).saturating_add(RESERVE)
    }

    /// Its bytes, if the smallest of its children has `smallest`; `None` for a dRAID that cannot be (OpenZFS: `vdev_draid_open`).
    pub(crate) fn asize(self, smallest: u64) -> Option<u64> {
        let rows = smallest.saturating_sub(RESERVE) / ROW_HEIGHT;
        let disks = self.width.saturating_sub(self.spares);
        let group = self.group_width.checked_mul(ROW_HEIGHT).filter(|group| *group > 0)?;
        let groups = (rows * ROW_HEIGHT).saturating_mul(disks) / group;
        if self.children == self.width {
            return groups.checked_mul(group);
        }
        // whole slices, where several lie side by side
        let slice = group.checked_mul(self.groups).filter(|slice| *slice > 0)?;
        (groups.checked_mul(group)? / slice).checked_mul(slice)
    }
}
