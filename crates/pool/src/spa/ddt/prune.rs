//! Pruning of old entries with one reference (OpenZFS: `ddt_prune_unique_entries`): their blocks are ordinary ones from then on, and the
//! table has room for content that recurs more often.
//!
//! Only a fast table records since when an entry has its class; others are not pruned. Entries in a log have changed recently, and stay.

use std::sync::Arc;

use codec::ChecksumKind;
use ondisk::ddt::{DdtKey, DdtPhys};

use super::table::LiveTable;
use super::{Class, LiveTables, Table};
use crate::spa::Spa;
use crate::{Error, Pool};

/// Number of entries that are examined, and pruned if they are old, at a time (OpenZFS: `zfs_ddt_prunes_per_txg`).
const PER_TXG: usize = 50_000;
/// Ages are counted by powers of two of an hour (OpenZFS: `HIST_BINS`).
const BINS: usize = 31;
const HOUR_S: u64 = 3600;

/// The criterion for old entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prune {
    /// Entries of this age or more, in seconds.
    Age(u64),
    /// The oldest entries, in percent; rounded by [bins of ages](self), so that it may be more.
    Percent(u64),
}

impl Spa {
    /// Prunes old entries of the dedup tables that have one reference. Returns their number.
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
        let flat = view.ddts()?.into_iter().filter(|table| table.flat).map(|table| table.checksum);
        let mut pruned = 0;
        for checksum in flat.collect::<Vec<_>>() {
            let mut at = Some(0);
            while let Some(from) = at {
                // a view of a txg that is long over may no longer be readable
                let view = self.view()?;
                let (old, behind) = old_entries(&view, checksum, (from, PER_TXG), cutoff)?;
                at = behind;
                if old.is_empty() {
                    continue;
                }
                pruned += self.sync_task(move |cx| {
                    let gone = cx.spa.dedup.forget_stored(checksum, &old)?;
                    cx.spa.log_internal(cx.mos, cx.tx, "ddt prune", &format!("entries={gone}"))?;
                    Ok(gone)
                })?;
            }
        }
        Ok(pruned)
    }
}

/// Returns those of the next `most` entries of one reference, from a cursor on, that have it since before `cutoff`; and the cursor after
/// all of them, `None` at the end.
fn old_entries(
    view: &Pool,
    checksum: ChecksumKind,
    (from, most): (u64, usize),
    cutoff: u64,
) -> Result<(Vec<DdtKey>, Option<u64>), Error> {
    let (mut old, mut behind) = (Vec::new(), from);
    let tables = view.ddts()?;
    let Some(table) = tables.iter().find(|table| table.checksum == checksum) else { return Ok((old, None)) };
    let Some(store) = table.stores.iter().find(|store| store.class == Class::Unique) else { return Ok((old, None)) };
    for (n, entry) in table.stored_entries_from(store, from)?.enumerate() {
        if n == most {
            // a hostile table may have no end
            return Ok((old, Some(behind).filter(|behind| *behind > from)));
        }
        let (next, entry) = entry?;
        behind = next;
        if entry.value.slots.first().is_some_and(|slot| slot.class_start < cutoff) {
            old.push(entry.key);
        }
    }
    Ok((old, None))
}

/// Visits each entry of one reference with the second since which it has it.
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

/// Returns the second since which the youngest of the oldest `percent` of all entries has its reference.
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

/// Returns the age in seconds from which on entries are the oldest `percent`.
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
    /// Prunes entries of one reference that the ZAPs of the table have, except those that changed meanwhile. Returns their number.
    pub(super) fn forget_stored(&self, checksum: ChecksumKind, keys: &[DdtKey]) -> Result<u64, Error> {
        let number = checksum as u8;
        let (stores, flat, keys) = {
            let tables = self.tables.lock();
            let Some(table) = tables.get(&number) else { return Ok(0) };
            let keys: Vec<DdtKey> = keys.iter().filter(|key| table.is_at_rest(key)).copied().collect();
            (table.zaps(), table.flat(), keys)
        };
        // writers continue meanwhile; only this thread changes the ZAPs
        let found = keys.into_iter().map(|key| Ok((key, LiveTable::look_up(&stores, &key, flat)?)));
        let found: Vec<_> = found.collect::<Result<_, Error>>()?;
        let mut tables = self.tables.lock();
        let Some(table) = tables.get_mut(&number) else { return Ok(0) };
        let mut gone = 0;
        for (key, found) in found {
            if !matches!(found, Some((Class::Unique, _))) || !table.is_at_rest(&key) {
                continue;
            }
            table.learn(key, found);
            if let Some(live) = table.live.get_mut(&key) {
                // without an address there is no block to free
                live.value.slots.iter_mut().for_each(|slot| *slot = DdtPhys::default());
                live.dirty = true;
                gone += 1;
            }
        }
        Ok(gone)
    }
}

impl LiveTable {
    /// Returns whether the ZAPs have the current value of an entry: it is not in use and not in a log.
    fn is_at_rest(&self, key: &DdtKey) -> bool {
        !self.live.contains_key(key) && self.logs.find(key).is_none()
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
