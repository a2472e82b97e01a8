//! Block reference tables: cloned blocks (OpenZFS: `brt.c`).
//!
//! This module is the read side. A pool open for writing has [`LiveClones`].

mod live;

use base::{Endian, ObjectId};
use dmu::Zap;
use ondisk::brt::{BrtVdevPhys, entry_count};

use crate::spa::mos::Mos;
use crate::{Error, Pool};

pub use live::LiveClones;

/// The table of one top-level vdev.
#[derive(Clone, Debug)]
pub struct VdevBrt {
    /// The vdev's index.
    pub vdev: u64,
    /// The table's object.
    pub object: ObjectId,
    /// The table's header.
    pub phys: BrtVdevPhys,
    entries: Option<Zap>,
    endian: Endian,
}

/// Cloned space of the whole pool, as datasets count it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BrtStats {
    /// Cloned blocks, each counted once.
    pub used: u64,
    /// Bytes that their further references would take without cloning.
    pub saved: u64,
    /// Number of cloned blocks.
    pub entries: u64,
}

impl BrtStats {
    /// Returns the ratio of referenced to allocated bytes by cloning alone, in hundredths.
    #[must_use]
    pub fn ratio(&self) -> u64 {
        let all = u128::from(self.used) + u128::from(self.saved);
        (all * 100).checked_div(self.used.into()).map_or(100, |n| u64::try_from(n).unwrap_or(u64::MAX))
    }
}

impl VdevBrt {
    /// Returns every cloned block: its offset on the vdev, and its number of references beyond the first.
    ///
    /// # Errors
    /// While iterating: when the table cannot be read.
    pub fn entries(&self) -> Result<impl Iterator<Item = Result<(u64, u64), Error>> + '_, Error> {
        let entries = self.entries.as_ref().map(Zap::entries).transpose()?;
        Ok(entries.into_iter().flatten().map(|entry| {
            let entry = entry?;
            let broken = || Error::corrupt(self.phys.mos_entries, "broken entry of a block reference table");
            let offset = entry.key().first().copied().ok_or_else(broken)?;
            let count = entry_count(entry.value.int_size, &entry.value.bytes, self.endian).ok_or_else(broken)?;
            Ok((offset, count))
        }))
    }
}

impl Pool {
    /// Returns the block reference tables of all top-level vdevs that have one.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn brts(&self) -> Result<Vec<VdevBrt>, Error> {
        let mut all = Vec::new();
        if !self.feature_active("block_cloning") {
            return Ok(all);
        }
        for top in self.tree().tops() {
            let key = format!("com.fudosecurity:brt:vdev:{}", top.id());
            let Some(id) = self.mos.id_of(&key)?.filter(|id| id.is_some()) else { continue };
            let object = self.mos.object(id)?;
            let phys = Mos::bonus(&object, BrtVdevPhys::decode)?;
            let entries = self.mos.zap_if(phys.mos_entries)?;
            let endian = if phys.byteorder == 0 { Endian::Little } else { Endian::Big };
            all.push(VdevBrt { vdev: top.id(), object: id, phys, entries, endian });
        }
        Ok(all)
    }

    /// Returns the cloned space of the whole pool.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn brt_stats(&self) -> Result<BrtStats, Error> {
        let mut sum = BrtStats::default();
        for table in self.brts()? {
            sum.used = sum.used.wrapping_add(table.phys.usedspace);
            sum.saved = sum.saved.wrapping_add(table.phys.savedspace);
            sum.entries = sum.entries.wrapping_add(table.phys.totalcount);
        }
        Ok(sum)
    }
}
