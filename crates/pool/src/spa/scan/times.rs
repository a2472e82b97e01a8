//! The times of txgs, for scrubs of a range of dates (OpenZFS: `zfs_crrd.c`, `spa_sync_time_logger`).
//!
//! Three rings in the MOS directory have a time and a txg in each entry: one of minutes, one of days, one of months. A new entry goes to
//! the coarsest ring whose last one is long enough ago. Time that goes backwards is not recorded. OpenZFS records every ten minutes while a
//! pool is open, and at its export; here ten minutes count from the last entry in the rings, because a pool may be opened for each command.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Txg;
use dmu::Tx;

use crate::spa::Spa;
use crate::spa::mos::Mos;
use crate::{Error, Pool};

/// The rings in the MOS directory, and the seconds that lie between two entries of each at least.
const RINGS: [(&str, u64); 3] = [
    ("com.klarasystems:txg_log_time:minutes", 0),
    ("com.klarasystems:txg_log_time:days", 24 * 3600),
    ("com.klarasystems:txg_log_time:months", 30 * 24 * 3600),
];
/// Entries of a ring (OpenZFS: `RRD_MAX_ENTRIES`).
const ENTRIES_MAX: usize = 256;
/// Words of a ring: first, next and number of entries, and the entries.
const WORDS: usize = 3 + 2 * ENTRIES_MAX;
/// Seconds between two entries (OpenZFS: `spa_note_txg_time`).
const NOTE_S: u64 = 600;

/// The recorded txg to choose for a time between two of them (OpenZFS: `dbrrd_rounding_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nearest {
    /// The last one before.
    Before,
    /// The first one after.
    After,
}

/// The time of the last entry, in seconds since 1970; 0: look it up in the rings.
#[derive(Debug, Default)]
pub(crate) struct LastNoted(AtomicU64);

/// One ring, the oldest entry first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ring(VecDeque<(u64, Txg)>);

impl Ring {
    /// Decodes the words of the ZAP value; another length means an empty ring.
    fn from_words(words: &[u64]) -> Ring {
        if words.len() != WORDS {
            return Ring::default();
        }
        let [first, _, len] = words.first_chunk().copied().unwrap_or_default();
        let entries = words.get(3..).unwrap_or_default().as_chunks::<2>().0;
        let (first, len) = ((first % ENTRIES_MAX as u64) as usize, len.min(ENTRIES_MAX as u64) as usize);
        let at = |n: usize| entries.get((first + n) % ENTRIES_MAX).map(|[time, txg]| (*time, Txg(*txg)));
        Ring((0..len).filter_map(at).collect())
    }

    fn to_words(&self) -> Vec<u64> {
        let len = self.0.len();
        let mut words = vec![0, (len % ENTRIES_MAX) as u64, len as u64];
        words.extend(self.0.iter().flat_map(|(time, txg)| [*time, txg.0]));
        words.resize(WORDS, 0);
        words
    }

    fn last(&self) -> u64 {
        self.0.back().map_or(0, |(time, _)| *time)
    }

    fn push(&mut self, time: u64, txg: Txg) {
        if self.0.len() == ENTRIES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((time, txg));
    }

    fn find(&self, time: u64, nearest: Nearest) -> Option<(u64, Txg)> {
        match nearest {
            Nearest::Before => self.0.iter().take_while(|(at, _)| *at <= time).last().copied(),
            Nearest::After => self.0.iter().find(|(at, _)| *at >= time).copied(),
        }
    }
}

fn rings(mos: &Mos) -> Result<[Ring; 3], Error> {
    let mut rings = <[Ring; 3]>::default();
    for (ring, (name, _)) in rings.iter_mut().zip(RINGS) {
        if let Some(value) = mos.root_zap()?.lookup(name)? {
            *ring = Ring::from_words(&value.u64s());
        }
    }
    Ok(rings)
}

/// Enters a time and its txg in the coarsest ring that is due.
fn note(rings: &mut [Ring; 3], time: u64, txg: Txg) {
    let ages = rings.iter().map(|ring| time.checked_sub(ring.last()));
    let due = ages.zip(RINGS).rposition(|(age, (_, least))| age.is_some_and(|age| age >= least));
    if let Some(ring) = due.and_then(|n| rings.get_mut(n)) {
        ring.push(time, txg);
    }
}

impl Spa {
    /// Records the time of this txg, which has changes, if the last entry is old.
    pub(crate) fn sync_times(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let now = self.env().now_s();
        let last = &self.times.0;
        if now < last.load(Ordering::Relaxed).saturating_add(NOTE_S) {
            return Ok(());
        }
        // nothing is recorded while the pool is being created
        if mos.id_of("root_dataset")?.is_none() {
            last.store(now, Ordering::Relaxed);
            return Ok(());
        }
        let mut all = rings(mos)?;
        let noted = all.iter().map(Ring::last).max().unwrap_or(0);
        if now < noted.saturating_add(NOTE_S) {
            last.store(noted, Ordering::Relaxed);
            return Ok(());
        }
        last.store(now, Ordering::Relaxed);
        let before = all.clone();
        note(&mut all, now, tx.txg());
        for ((ring, before), (name, _)) in all.iter().zip(&before).zip(RINGS) {
            if ring != before {
                mos.root_zap()?.update(tx, name, 8, &ring.to_words())?;
            }
        }
        Ok(())
    }
}

impl Pool {
    /// Returns the txg written nearest to a time, in seconds since 1970, among those recorded; `None` if there is none on that side.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn txg_at(&self, time: u64, nearest: Nearest) -> Result<Option<Txg>, Error> {
        let found = rings(&self.mos)?.into_iter().filter_map(|ring| ring.find(time, nearest));
        Ok(found.min_by_key(|(at, _)| at.abs_diff(time)).map(|(_, txg)| txg))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    #[test]
    fn a_ring_keeps_its_newest_entries() {
        let mut ring = Ring::default();
        (0..300).for_each(|n| ring.push(n * 10, Txg(n)));
        let words = ring.to_words();
        assert_eq!((words.len(), &words[..5]), (WORDS, &[0, 0, 256, 440, 44][..]));
        assert_eq!(Ring::from_words(&words), ring);
        assert_eq!(ring.find(1005, Nearest::Before), Some((1000, Txg(100))));
        assert_eq!(ring.find(1005, Nearest::After), Some((1010, Txg(101))));
        assert_eq!(ring.find(1000, Nearest::After), ring.find(1000, Nearest::Before));
        assert_eq!((ring.find(439, Nearest::Before), ring.find(2991, Nearest::After)), (None, None));
        // as OpenZFS leaves a ring that wrapped around
        let mut turned = words.clone();
        turned[3..].rotate_right(2 * 7);
        (turned[0], turned[1]) = (7, 7);
        assert_eq!(Ring::from_words(&turned), ring);
        assert_eq!(Ring::from_words(&[u64::MAX, 0, u64::MAX, 1, 2]).0.len(), 0);
        assert_eq!(Ring::from_words(&[]), Ring::default());
    }

    #[test]
    fn the_coarsest_ring_that_wants_an_entry_gets_it() {
        let mut rings = <[Ring; 3]>::default();
        let start = 50 * 365 * DAY;
        (0..3000u64).for_each(|n| note(&mut rings, start + n * DAY / 24, Txg(n)));
        let [minutes, days, months] = &rings;
        assert_eq!((minutes.0.len(), days.0.len(), months.0.len()), (256, 125, 5));
        // time that goes backwards is not recorded
        let before = rings.clone();
        note(&mut rings, start, Txg(5000));
        assert_eq!(before, rings);
    }
}
