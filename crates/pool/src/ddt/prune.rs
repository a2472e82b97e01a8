//! Old entries with one reference are forgotten (OpenZFS: `ddt_prune_unique_entries`): their blocks are ordinary ones from then on, and
//! the table has room for content that comes more often.
//!
//! A table tells since when an entry has its class only if it is a fast one; others are left as they are. What a log has a word on has changed of
//! late, and stays.

use std::sync::Arc;

use codec::ChecksumKind;
use ondisk::ddt::{DdtKey, DdtPhys};

use super::{Class, LiveTables, Table};
use crate::spa::Spa;
use crate::{Error, Pool};

/// Entries that are forgotten in one txg (OpenZFS: `zfs_ddt_prunes_per_txg`).
const PER_TXG: usize = 50_000;
/// Ages are counted by powers of two of an hour (OpenZFS: `HIST_BINS`).
const BINS: usize = 31;
const HOUR_S: u64 = 3600;

/// Which entries are old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prune {
    /// Those of this age or more, in seconds.
    Age(u64),
    /// So many in a hundred, the oldest; told by [bins of ages](self), so that it may come to more.
    Percent(u64),
}

impl Spa {
    /// Forgets old entries of the dedup tables that have one reference. How many.
    ///
    /// # Errors
    /// [`Error::FeatureDisabled`] without `fast_dedup`; when a table cannot be read or the pool is suspended.
    pub fn prune_dedup(self: &Arc<Self>, what: Prune) -> Result<u64, Error> {
        if !self.feature_enabled(&self.live_mos()?, "fast_dedup")? {
            return Err(Error::FeatureDisabled("fast_dedup".to_string()));
        }
        let view = self.view()?;
        let now = self.env().now_s();
        let cutoff = match what {
            Prune::Age(age) => now.saturating_sub(age),
            Prune::Percent(percent) => cutoff_of(&view, percent, now)?,
        };
        let mut pruned = 0;
        for table in view.ddts()? {
            let mut old = Vec::new();
            for_each_unique(&table, &mut |key, since| {
                if since < cutoff {
                    old.push(*key);
                }
            })?;
            for keys in old.chunks(PER_TXG) {
                let (keys, checksum) = (keys.to_vec(), table.checksum);
                pruned += self.sync_task(move |cx| {
                    let gone = cx.spa.dedup.forget_stored(checksum, &keys)?;
                    cx.spa.log_internal(cx.mos, cx.tx, "ddt prune", &format!("entries={gone}"))?;
                    Ok(gone)
                })?;
            }
        }
        Ok(pruned)
    }
}

/// Gives each entry of one reference with the second since which it has it.
fn for_each_unique(table: &Table, visit: &mut dyn FnMut(&DdtKey, u64)) -> Result<(), Error> {
    if !table.flat {
        return Ok(());
    }
    let logged = table.log_entries()?;
    for store in table.stores.iter().filter(|store| store.class == Class::Unique) {
        for entry in table.stored_entries(store)? {
            let entry = entry?;
            if let Some(slot) = entry.value.slots.first().filter(|_| !logged.contains_key(&entry.key)) {
                visit(&entry.key, slot.class_start);
            }
        }
    }
    Ok(())
}

/// Since when the youngest of the oldest `percent` of all entries has its reference.
fn cutoff_of(view: &Pool, percent: u64, now: u64) -> Result<u64, Error> {
    let mut bins = [0u64; BINS];
    for table in view.ddts()? {
        for_each_unique(&table, &mut |_, since| {
            let hours = now.saturating_sub(since) / HOUR_S;
            let bin = (u64::BITS - hours.leading_zeros()) as usize;
            if let Some(count) = bins.get_mut(bin.min(BINS - 1)) {
                *count += 1;
            }
        })?;
    }
    Ok(now.saturating_sub(age_of(&bins, percent)))
}

/// The age in seconds from which on entries are the oldest `percent`.
fn age_of(bins: &[u64; BINS], percent: u64) -> u64 {
    let all: u64 = bins.iter().sum();
    let mut target = u128::from(all) * u128::from(percent) / 100;
    for (bin, count) in bins.iter().enumerate().rev().filter(|(_, count)| **count != 0) {
        if target <= u128::from(*count) {
            return bin.checked_sub(1).map_or(0, |bit| (1u64 << bit) * HOUR_S);
        }
        target -= u128::from(*count);
    }
    0
}

impl LiveTables {
    /// Forgets entries of one reference that the ZAPs of the table have, but not those that changed meanwhile. How many.
    pub(super) fn forget_stored(&self, checksum: ChecksumKind, keys: &[DdtKey]) -> Result<u64, Error> {
        let mut tables = self.tables.lock();
        let Some(table) = tables.get_mut(&(checksum as u8)) else { return Ok(0) };
        let stores = table.zaps();
        let mut gone = 0;
        for key in keys.iter().filter(|key| !table.live.contains_key(key)).copied().collect::<Vec<_>>() {
            if table.logs.find(&key).is_some() {
                continue;
            }
            let found = super::table::LiveTable::look_up(&stores, &key, table.flat())?;
            let Some((Class::Unique, _)) = found else { continue };
            table.learn(key, found);
            if let Some(live) = table.live.get_mut(&key) {
                // without an address there is no block to be freed
                live.value.slots.iter_mut().for_each(|slot| *slot = DdtPhys::default());
                live.dirty = true;
                gone += 1;
            }
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_by_bins() {
        let mut bins = [0; BINS];
        (bins[0], bins[3], bins[10]) = (50, 30, 20);
        assert_eq!(age_of(&bins, 10), 512 * HOUR_S);
        assert_eq!(age_of(&bins, 20), 512 * HOUR_S);
        assert_eq!(age_of(&bins, 21), 4 * HOUR_S);
        assert_eq!(age_of(&bins, 50), 4 * HOUR_S);
        assert_eq!(age_of(&bins, 51), 0);
        assert_eq!(age_of(&bins, 100), 0);
    }
}
