//! The quota of dedup tables (OpenZFS: `ddt_over_quota`).
//!
//! Property `dedup_table_quota` is a number of bytes, 0 for no bound, or all ones: then the tables may fill the devices dedicated to them.
//! A table that is over the quota takes no new entries; reference counts of existing ones change as before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Error;
use crate::spa::mos::Mos;

/// The default of the property: automatic.
const AUTO: u64 = u64::MAX;
/// The most bytes that are kept free: large devices keep this rather than a share (OpenZFS: `ddt_special_over_quota`).
const KEPT_FREE_MAX: u64 = 8 << 30;
/// Percentage of the devices that the tables may fill.
const FULL_PERCENT: u64 = 85;

/// The quota of all tables together.
#[derive(Debug)]
pub(super) struct Quota {
    limit: AtomicU64,
    /// Bytes that the tables take on disk, as of the last sync.
    size: AtomicU64,
    /// True if the devices dedicated to the tables are full.
    class_full: AtomicBool,
}

impl Quota {
    /// Reads the quota from the pool's properties.
    pub(super) fn open(mos: &Mos) -> Result<Quota, Error> {
        let props = mos.id_of("pool_props")?.map(|id| mos.zap(id)).transpose()?;
        let limit = props.map(|props| props.lookup_u64("dedup_table_quota")).transpose()?.flatten().unwrap_or(AUTO);
        Ok(Quota { limit: AtomicU64::new(limit), size: AtomicU64::new(0), class_full: AtomicBool::new(false) })
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn note_size(&self, bytes: u64) {
        self.size.store(bytes, Ordering::Relaxed);
    }

    /// Notes how full the devices dedicated to the tables are; `None`: there are no such devices.
    pub(super) fn note_class(&self, class: Option<(u64, u64)>) {
        let full = class.is_some_and(|(used, space)| {
            let share = (u128::from(space) * u128::from(FULL_PERCENT) / 100) as u64;
            used >= share.max(space.saturating_sub(KEPT_FREE_MAX))
        });
        self.class_full.store(full, Ordering::Relaxed);
    }

    /// Returns whether the tables take no new entries now.
    pub(super) fn is_over(&self) -> bool {
        match self.limit.load(Ordering::Relaxed) {
            0 => false,
            AUTO => self.class_full.load(Ordering::Relaxed),
            limit => self.size.load(Ordering::Relaxed) > limit,
        }
    }
}
