//! The space of single vdevs, as `zpool list -v` shows it.

use crate::spa::metaslab::AllocClass;
use crate::{Error, Pool};

/// The space of a top-level vdev, in bytes, parity included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VdevSpace {
    /// Its number.
    pub id: u64,
    /// The class of its blocks.
    pub class: AllocClass,
    /// All metaslabs.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// How fragmented the free space is, in percent; `None` if it is not known.
    pub fragmentation: Option<u64>,
    /// Bytes that only the checkpoint holds.
    pub checkpoint: u64,
}

impl Pool {
    /// The space of top-level vdev `top`; `None` if it has no metaslabs: it is removed, missing, or a hole.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn vdev_space(&self, top: u64) -> Result<Option<VdevSpace>, Error> {
        let Some(vdev) = self.tree().top(top).filter(|t| t.is_concrete()) else { return Ok(None) };
        let metaslabs = self.metaslabs(top)?;
        let counted = self.options().space_maps;
        Ok(Some(VdevSpace {
            id: top,
            class: self.vdev_class(vdev),
            size: metaslabs.iter().map(|m| m.size).fold(0, u64::saturating_add),
            allocated: if counted { metaslabs.iter().map(|m| m.allocated).fold(0, u64::saturating_add) } else { 0 },
            fragmentation: self.vdev_fragmentation(top)?,
            checkpoint: self.checkpoint_map(top)?.map_or(0, |map| map.header.alloc.wrapping_neg() as u64),
        }))
    }
}
