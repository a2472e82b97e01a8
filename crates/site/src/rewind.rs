//! The state of a pool that an import loads, as requests ask for it and tell of it.
//!
//! A configuration can have the list `load-policy` with `load-rewind-policy` and `load-request-txg` ([`Policy`]). Where newer states than the one that
//! is loaded cannot be used, the answer has the list `rewind_info` in its `load_info` ([`Rewind`]).
//!
//! OpenZFS: `zpool_get_load_policy`, `ZPOOL_CONFIG_REWIND_INFO`.

use nvlist::NvList;
use ondisk::label::key;
use pool::{LoadPolicy, Pool};
use vdev::import::Candidate;

/// The list in a configuration that says which state is to be loaded, and its keys.
pub(crate) const LOAD_POLICY: &str = "load-policy";
const REWIND_POLICY: &str = "load-rewind-policy";
const REQUEST_TXG: &str = "load-request-txg";
/// Bits of the policy: an older state is looked for, and not loaded; it is loaded if need be; it may be any one.
const TRY_REWIND: u32 = 4;
const DO_REWIND: u32 = 8;
const EXTREME_REWIND: u32 = 16;
/// The bit of a policy that asks for the newest state alone.
const NO_REWIND: u32 = 1;
/// The number for no txg.
const NO_TXG: u64 = u64::MAX;

/// The list in `load_info` about a state that is not the newest, and its keys.
const REWIND_INFO: &str = "rewind_info";
const LOAD_TIME: &str = "rewind_txg_ts";
const REWIND_TIME: &str = "seconds_of_rewind";
const DATA_ERRORS: &str = "verify_data_errors";

/// The state of a pool that is to be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether an older state is taken if the newest cannot be used.
    pub rewind: bool,
    /// Whether that may be any state.
    pub extreme: bool,
    /// Whether nothing is imported: it is told which state would be loaded.
    pub dry_run: bool,
    /// The txg to go back to.
    pub txg: Option<u64>,
}

impl Policy {
    /// Reads it from a configuration.
    #[must_use]
    pub fn of(config: &NvList) -> Policy {
        let list = config.get_nvlist(LOAD_POLICY);
        let bits = list.and_then(|list| list.get_u32(REWIND_POLICY)).unwrap_or(NO_REWIND);
        Policy {
            rewind: bits & (DO_REWIND | TRY_REWIND) != 0,
            extreme: bits & EXTREME_REWIND != 0,
            dry_run: bits & TRY_REWIND != 0,
            txg: list.and_then(|list| list.get_u64(REQUEST_TXG)).filter(|txg| *txg != NO_TXG),
        }
    }

    /// Puts it into a configuration.
    pub fn put(&self, config: &mut NvList) {
        let mut bits = match (self.rewind, self.dry_run) {
            (_, true) => TRY_REWIND,
            (true, false) => DO_REWIND,
            (false, false) => NO_REWIND,
        };
        if self.extreme {
            bits |= EXTREME_REWIND;
        }
        let mut list = NvList::new();
        list.insert(REWIND_POLICY, bits);
        list.insert(REQUEST_TXG, self.txg.unwrap_or(NO_TXG));
        config.insert(LOAD_POLICY, list);
    }

    /// The verification of a pool that is opened in this state.
    pub(crate) fn verify(&self) -> LoadPolicy {
        LoadPolicy { rewind: self.rewind || self.txg.is_some(), extreme: self.extreme, ..LoadPolicy::default() }
    }
}

/// A state of a pool that is loaded, or could be, though there are newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// The time of the state, in seconds.
    pub time: u64,
    /// Seconds between it and the newest.
    pub seconds: u64,
    /// Damaged blocks of files in it.
    pub data_errors: u64,
}

impl Rewind {
    /// The state in which a pool was opened, if that is not the newest.
    pub(crate) fn find(candidate: &Candidate, seen: &Pool) -> Option<Rewind> {
        let info = seen.load_info();
        let time = seen.uberblock().timestamp;
        let seconds = newest(candidate).saturating_sub(time);
        (!info.skipped.is_empty()).then_some(Rewind { time, seconds, data_errors: info.errors.data })
    }

    /// Reads it from the list `load_info` of an answer.
    #[must_use]
    pub fn of(info: &NvList) -> Option<Rewind> {
        let list = info.get_nvlist(REWIND_INFO)?;
        Some(Rewind {
            time: list.get_u64(LOAD_TIME)?,
            seconds: list.get_i64(REWIND_TIME).and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0),
            data_errors: list.get_u64(DATA_ERRORS).unwrap_or(0),
        })
    }

    /// Puts it into the list `load_info`.
    pub(crate) fn put(&self, info: &mut NvList) {
        let mut list = NvList::new();
        list.insert(LOAD_TIME, self.time);
        list.insert(REWIND_TIME, i64::try_from(self.seconds).unwrap_or(i64::MAX));
        list.insert(DATA_ERRORS, self.data_errors);
        info.insert(REWIND_INFO, list);
    }
}

/// The time of the newest state that the labels know.
fn newest(candidate: &Candidate) -> u64 {
    let newest = candidate.devices.iter().filter_map(|found| {
        let ashift = found.label.config.get_nvlist(key::VDEV_TREE)?.get_u64(key::ASHIFT)?;
        vdev::label::read_uberblocks(&*found.device, ashift).into_iter().max_by_key(|ub| ub.txg)
    });
    newest.max_by_key(|ub| ub.txg).map_or(0, |ub| ub.timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_what_is_read() {
        assert_eq!(Policy::of(&NvList::new()), Policy::default());
        let (back, txg) = (Policy { rewind: true, ..Policy::default() }, Policy { txg: Some(7), ..Policy::default() });
        for policy in [Policy::default(), txg, back, Policy { extreme: true, ..back }, Policy { dry_run: true, ..back }]
        {
            let mut config = NvList::new();
            policy.put(&mut config);
            assert_eq!(Policy::of(&config), policy);
        }
        let (rewind, mut info) = (Rewind { time: 9, seconds: 2, data_errors: 1 }, NvList::new());
        assert_eq!(Rewind::of(&info), None);
        rewind.put(&mut info);
        assert_eq!(Rewind::of(&info), Some(rewind));
    }
}
