//! The activities of a pool as it was last written: `scan_stats`, `removal_stats`, `checkpoint_stats`, `raidz_expand_stats` of the root, and
//! `org.openzfs:rebuild_stats` of top-level vdevs.

use std::sync::Arc;

use dmu::Zap;
use nvlist::{NvList, Value};
use ondisk::label::key;
use ondisk::scan::{ErrorScrubPhys, RebuildPhys, ScanFunc, ScanPhys, ScanState};
use pool::{Error, Pool};
use vdev::VdevType;

pub(super) const SCAN_STATS: &str = "scan_stats";
pub(super) const REMOVAL_STATS: &str = "removal_stats";
pub(super) const CHECKPOINT_STATS: &str = "checkpoint_stats";
pub(super) const EXPAND_STATS: &str = "raidz_expand_stats";
pub(super) const REBUILD_STATS: &str = "org.openzfs:rebuild_stats";

/// States of a rebuild (OpenZFS: `vdev_rebuild_state_t`).
pub const REBUILD_ACTIVE: u64 = 1;
/// It was complete.
pub const REBUILD_COMPLETE: u64 = 3;
/// States of a checkpoint (OpenZFS: `checkpoint_state_t`).
const CHECKPOINT_EXISTS: u64 = 1;
const CHECKPOINT_DISCARDING: u64 = 2;
/// Bytes of an entry in the mapping of a removed vdev.
const MAPPING_ENTRY_BYTES: u64 = 24;

/// The removal of a vdev (OpenZFS: `pool_removal_stat_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Under way, done or canceled.
    pub state: ScanState,
    /// The number of the top-level vdev.
    pub vdev: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970.
    pub end: u64,
    /// Bytes that are moved in all.
    pub to_copy: u64,
    /// Bytes that are moved already.
    pub copied: u64,
    /// Bytes of memory for the mappings of all removed vdevs.
    pub mapping_memory: u64,
}

/// The expansion of a raidz (OpenZFS: `pool_raidz_expand_stat_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// Under way, or done.
    pub state: ScanState,
    /// The number of the top-level vdev.
    pub vdev: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970.
    pub end: u64,
    /// Bytes that are moved in all.
    pub to_reflow: u64,
    /// Bytes that are moved already.
    pub reflowed: u64,
}

/// The checkpoint (OpenZFS: `pool_checkpoint_stat_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Set while it is being discarded.
    pub discarding: bool,
    /// When it was taken, in seconds since 1970.
    pub time: u64,
    /// Bytes that only it holds.
    pub space: u64,
}

/// All activities of a pool.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The scan that runs, or the last one.
    pub scan: Option<ScanPhys>,
    /// The scrub of the error log that runs, or the last one.
    pub error_scrub: Option<ErrorScrubPhys>,
    /// The rebuilds, each with its top-level vdev.
    pub rebuilds: Vec<(u64, RebuildPhys)>,
    /// The removal of a vdev that runs, or the last one.
    pub removal: Option<Removal>,
    /// The expansion that runs, or the last one.
    pub expansion: Option<Expansion>,
    /// The checkpoint.
    pub checkpoint: Option<Checkpoint>,
}

impl Activity {
    /// Reads those of a pool. A record that cannot be read is told as an activity that never was: devices are listed, and brought back, nevertheless.
    pub(super) fn read(pool: &Arc<Pool>) -> Activity {
        let tops = pool.tree().tops().iter().map(|top| top.id());
        let rebuild = |id| Some((id, pool.rebuild(id).ok()??));
        Activity {
            scan: pool.scan().ok().flatten().filter(|scan| scan.func != ScanFunc::None),
            error_scrub: pool.error_scrub().ok().flatten().filter(|scrub| scrub.func != ScanFunc::None),
            rebuilds: tops.filter_map(rebuild).filter(|(_, rebuild)| rebuild.state != 0).collect(),
            removal: removal(pool).ok().flatten(),
            expansion: expansion(pool).ok().flatten(),
            checkpoint: checkpoint(pool).ok().flatten(),
        }
    }

    /// Puts them into the list of the root, all but rebuilds.
    pub(super) fn put(&self, root: &mut NvList) {
        let mut add = |key: &str, words: Vec<u64>| root.insert(key, Value::Uint64Array(words));
        if self.scan.is_some() || self.error_scrub.is_some() {
            add(SCAN_STATS, scan_words(self.scan.as_ref(), self.error_scrub.as_ref()));
        }
        if let Some(Removal { state, vdev, start, end, to_copy, copied, mapping_memory }) = &self.removal {
            add(REMOVAL_STATS, vec![state.number(), *vdev, *start, *end, *to_copy, *copied, *mapping_memory]);
        }
        if let Some(Checkpoint { discarding, time, space }) = &self.checkpoint {
            let state = if *discarding { CHECKPOINT_DISCARDING } else { CHECKPOINT_EXISTS };
            add(CHECKPOINT_STATS, vec![state, *time, *space]);
        }
        if let Some(Expansion { state, vdev, start, end, to_reflow, reflowed }) = &self.expansion {
            add(EXPAND_STATS, vec![state.number(), *vdev, *start, *end, *to_reflow, *reflowed, 0]);
        }
    }

    /// Puts the rebuild of the top-level vdev `id` into its list.
    pub(super) fn put_rebuild(&self, id: u64, top: &mut NvList) {
        if let Some((_, rebuild)) = self.rebuilds.iter().find(|(of, _)| *of == id) {
            top.insert(REBUILD_STATS, Value::Uint64Array(rebuild_words(rebuild)));
        }
    }

    /// Reads them back from the configuration of a pool.
    #[must_use]
    pub fn of(config: &NvList) -> Activity {
        let Some(root) = config.get_nvlist(key::VDEV_TREE) else { return Activity::default() };
        let words = |key: &str| root.get_u64_array(key);
        let (scan, error_scrub) = words(SCAN_STATS).map(scan_of).unwrap_or_default();
        let tops = root.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
        let rebuild = |(id, top): (u64, &NvList)| Some((id, rebuild_of(top.get_u64_array(REBUILD_STATS)?)));
        Activity {
            scan,
            error_scrub,
            rebuilds: (0..).zip(tops).filter_map(rebuild).collect(),
            removal: words(REMOVAL_STATS).and_then(removal_of),
            expansion: words(EXPAND_STATS).and_then(expansion_of),
            checkpoint: words(CHECKPOINT_STATS).and_then(checkpoint_of),
        }
    }

    /// Returns whether a resilver runs.
    #[must_use]
    pub fn is_resilvering(&self) -> bool {
        self.scan.as_ref().is_some_and(|s| s.func == ScanFunc::Resilver && s.state == ScanState::Scanning)
    }

    /// Returns whether a rebuild runs.
    #[must_use]
    pub fn is_rebuilding(&self) -> bool {
        self.rebuilds.iter().any(|(_, r)| r.state == REBUILD_ACTIVE)
    }

    /// The time at which the last rebuild ended; 0 if there was none, or one runs.
    #[must_use]
    pub fn rebuild_end(&self) -> u64 {
        if self.is_rebuilding() { 0 } else { self.rebuilds.iter().map(|(_, r)| r.end_time).max().unwrap_or(0) }
    }
}

/// The words of `pool_scan_stat_t`. Of a scan that is paused it is not recorded since when: it is told as paused since it began.
fn scan_words(scan: Option<&ScanPhys>, errors: Option<&ErrorScrubPhys>) -> Vec<u64> {
    let (none, no_errors) = (ScanPhys::default(), ErrorScrubPhys::default());
    let (scan, errors) = (scan.unwrap_or(&none), errors.unwrap_or(&no_errors));
    let paused = scan.flags & ScanPhys::FLAG_SCRUB_PAUSED != 0;
    vec![
        scan.func.number(),
        scan.state.number(),
        scan.start_time,
        scan.end_time,
        scan.to_examine,
        scan.examined,
        scan.skipped,
        scan.processed,
        scan.errors,
        0,
        scan.start_time,
        if paused { scan.start_time.max(1) } else { 0 },
        0,
        0,
        scan.examined,
        errors.func.number(),
        errors.state.number(),
        errors.start_time,
        errors.end_time,
        errors.examined,
        errors.to_examine,
        if errors.paused { errors.start_time.max(1) } else { 0 },
        scan.flags,
    ]
}

fn scan_of(words: &[u64]) -> (Option<ScanPhys>, Option<ErrorScrubPhys>) {
    let word = |n: usize| words.get(n).copied().unwrap_or(0);
    let scan = ScanPhys {
        func: ScanFunc::from_number(word(0)),
        state: ScanState::from_number(word(1)),
        start_time: word(2),
        end_time: word(3),
        to_examine: word(4),
        examined: word(5),
        skipped: word(6),
        processed: word(7),
        errors: word(8),
        flags: if word(11) == 0 { 0 } else { ScanPhys::FLAG_SCRUB_PAUSED },
        ..ScanPhys::default()
    };
    let errors = ErrorScrubPhys {
        func: ScanFunc::from_number(word(15)),
        state: ScanState::from_number(word(16)),
        start_time: word(17),
        end_time: word(18),
        examined: word(19),
        to_examine: word(20),
        paused: word(21) != 0,
        ..ErrorScrubPhys::default()
    };
    (Some(scan).filter(|scan| scan.func != ScanFunc::None), Some(errors).filter(|all| all.func != ScanFunc::None))
}

/// The words of `vdev_rebuild_stat_t`.
fn rebuild_words(rebuild: &RebuildPhys) -> Vec<u64> {
    vec![
        rebuild.state,
        rebuild.start_time,
        rebuild.end_time,
        rebuild.scan_time_ms,
        rebuild.bytes_scanned,
        rebuild.bytes_issued,
        rebuild.bytes_rebuilt,
        rebuild.bytes_est,
        rebuild.errors,
        0,
        0,
        0,
        0,
    ]
}

fn rebuild_of(words: &[u64]) -> RebuildPhys {
    let word = |n: usize| words.get(n).copied().unwrap_or(0);
    RebuildPhys {
        state: word(0),
        start_time: word(1),
        end_time: word(2),
        scan_time_ms: word(3),
        bytes_scanned: word(4),
        bytes_issued: word(5),
        bytes_rebuilt: word(6),
        bytes_est: word(7),
        errors: word(8),
        ..RebuildPhys::default()
    }
}

fn removal_of(words: &[u64]) -> Option<Removal> {
    let [state, vdev, start, end, to_copy, copied, mapping_memory] = words.try_into().ok()?;
    Some(Removal { state: ScanState::from_number(state), vdev, start, end, to_copy, copied, mapping_memory })
}

fn expansion_of(words: &[u64]) -> Option<Expansion> {
    let [state, vdev, start, end, to_reflow, reflowed, _waits] = words.try_into().ok()?;
    Some(Expansion { state: ScanState::from_number(state), vdev, start, end, to_reflow, reflowed })
}

fn checkpoint_of(words: &[u64]) -> Option<Checkpoint> {
    let [state, time, space] = words.try_into().ok()?;
    Some(Checkpoint { discarding: state == CHECKPOINT_DISCARDING, time, space })
}

/// The record `com.delphix:removing` of the MOS directory (OpenZFS: `spa_removing_phys_t`).
fn removal(pool: &Arc<Pool>) -> Result<Option<Removal>, Error> {
    let Some(words) = pool.mos_words("com.delphix:removing")? else { return Ok(None) };
    let [state, vdev, mut indirect, start, end, to_copy, copied, ..] = *words.as_slice() else { return Ok(None) };
    let state = ScanState::from_number(state);
    if !matches!(state, ScanState::Scanning | ScanState::Finished | ScanState::Canceled) {
        return Ok(None);
    }
    let mut mapping_memory = 0;
    // a chain of removed vdevs, each naming the one removed before
    let tree = pool.tree();
    for _ in tree.tops() {
        let Some(top) = tree.top(indirect) else { break };
        mapping_memory += top.mapping().map_or(0, |m| m.entries().len() as u64 * MAPPING_ENTRY_BYTES);
        indirect = top.config().prev_indirect_vdev.unwrap_or(u64::MAX);
    }
    Ok(Some(Removal { state, vdev, start, end, to_copy, copied, mapping_memory }))
}

/// The expansion that runs, or the one that ended last.
fn expansion(pool: &Arc<Pool>) -> Result<Option<Expansion>, Error> {
    let mut found: Option<Expansion> = None;
    for top in pool.tree().tops().iter().filter(|t| t.config().kind == VdevType::Raidz) {
        let id = top.config().top_zap;
        if id.is_none() {
            continue;
        }
        let zap = Zap::open(pool.mos().object(id)?)?;
        let number =
            |what: &str| Ok::<_, dmu::Error>(zap.lookup_u64(format!("org.openzfs:raidz_expand_{what}"))?.unwrap_or(0));
        let (state, start, end) = (number("state")?, number("start_time")?, number("end_time")?);
        let state = ScanState::from_number(state);
        let runs = |state| state == ScanState::Scanning;
        if !runs(state) && state != ScanState::Finished {
            continue;
        }
        if found.as_ref().is_none_or(|f| !runs(f.state) && (runs(state) || end > f.end)) {
            let to_reflow = pool.vdev_space(top.id())?.map_or(0, |s| s.allocated);
            let reflowed = number("bytes_copied")?;
            found = Some(Expansion { state, vdev: top.id(), start, end, to_reflow, reflowed });
        }
    }
    Ok(found)
}

fn checkpoint(pool: &Arc<Pool>) -> Result<Option<Checkpoint>, Error> {
    if !pool.feature_active("zpool_checkpoint") {
        return Ok(None);
    }
    // the uberblock of the checkpoint, as words: magic, version, txg, sum of guids, time
    let words = pool.mos_words("com.delphix:zpool_checkpoint")?;
    let time = words.as_ref().and_then(|w| w.get(4).copied()).unwrap_or(0);
    Ok(Some(Checkpoint { discarding: words.is_none(), time, space: pool.space()?.checkpoint }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_read_back() {
        let activity = Activity {
            scan: Some(ScanPhys {
                func: ScanFunc::Scrub,
                state: ScanState::Scanning,
                start_time: 5,
                examined: 7,
                flags: ScanPhys::FLAG_SCRUB_PAUSED,
                ..ScanPhys::default()
            }),
            rebuilds: vec![(1, RebuildPhys { state: REBUILD_COMPLETE, end_time: 9, ..RebuildPhys::default() })],
            checkpoint: Some(Checkpoint { discarding: true, time: 0, space: 3 }),
            ..Activity::default()
        };
        let (mut root, mut top, mut config) = (NvList::new(), NvList::new(), NvList::new());
        activity.put(&mut root);
        activity.put_rebuild(1, &mut top);
        assert_eq!(root.get_u64_array(SCAN_STATS).map(<[u64]>::len), Some(23));
        root.insert(key::CHILDREN, vec![NvList::new(), top]);
        config.insert(key::VDEV_TREE, root);
        let read = Activity::of(&config);
        assert_eq!((&read.scan, read.rebuild_end()), (&activity.scan, 9));
        assert_eq!((&read.rebuilds, &read.checkpoint), (&activity.rebuilds, &activity.checkpoint));
        assert!(read.error_scrub.is_none() && read.removal.is_none() && read.expansion.is_none());
    }
}
