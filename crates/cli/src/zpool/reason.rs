//! The status of a pool, in OpenZFS's words (`zpool_get_status`, `print_status_reason`, `show_import`).

use control::stats::{Activity, FEATURE_STATS, REBUILD_COMPLETE};
use nvlist::NvList;
use ondisk::label::key;
use ondisk::scan::{ScanFunc, ScanState};
use pool::Erratum;
use pool::feature::{FEATURES, Feature};
use vdev::{VdevAux, VdevState, VdevType};

use super::vdevs::Vdevs;
use crate::props::compat::Compat;

/// The property `failmode` of pools whose users get errors.
const FAILMODE_CONTINUE: u64 = 1;

/// The single reason that is reported for a pool: the gravest (OpenZFS: `zpool_status_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    Ok,
    MissingDevReplicated,
    MissingDev,
    CorruptLabelReplicated,
    CorruptLabel,
    BadGuidSum,
    CorruptPool,
    CorruptData,
    FailingDev,
    VersionNewer,
    HostidMismatch,
    UnsupportedFeature,
    FaultedDevReplicated,
    FaultedDev,
    VersionOlder,
    FeatureDisabled,
    Resilvering,
    StaleDev,
    /// The devices hold only an older state than the last one.
    OlderState,
    OfflineDev,
    RemovedDev,
    /// The pool is suspended: those who use it wait.
    IoFailureWait,
    /// The pool is suspended: those who use it get errors.
    IoFailureContinue,
    Rebuilding,
    RebuildScrub,
    Errata(Erratum),
}

impl Reason {
    /// The number of OpenZFS's article about the reason, if there is one.
    pub(super) const fn message_id(self) -> Option<&'static str> {
        Some(match self {
            Reason::MissingDevReplicated => "ZFS-8000-2Q",
            Reason::MissingDev => "ZFS-8000-3C",
            Reason::CorruptLabelReplicated => "ZFS-8000-4J",
            Reason::CorruptLabel => "ZFS-8000-5E",
            Reason::BadGuidSum => "ZFS-8000-6X",
            Reason::CorruptPool => "ZFS-8000-72",
            Reason::CorruptData => "ZFS-8000-8A",
            Reason::FailingDev => "ZFS-8000-9P",
            Reason::VersionNewer => "ZFS-8000-A5",
            Reason::HostidMismatch => "ZFS-8000-EY",
            Reason::IoFailureWait => "ZFS-8000-HC",
            Reason::IoFailureContinue => "ZFS-8000-JQ",
            Reason::Errata(_) => "ZFS-8000-ER",
            _ => return None,
        })
    }

    /// The reason of a pool that is suspended, by the number of its property `failmode`.
    pub(super) fn of_suspended(failmode: u64) -> Reason {
        if failmode == FAILMODE_CONTINUE { Reason::IoFailureContinue } else { Reason::IoFailureWait }
    }

    /// The word for the state of a pool that is in `state`.
    pub(super) const fn state_name(self, state: VdevState) -> &'static str {
        match self {
            Reason::IoFailureWait | Reason::IoFailureContinue => "SUSPENDED",
            _ => state.name(),
        }
    }

    /// Returns whether `zpool status -x` skips the pool.
    pub(super) const fn is_healthy(self) -> bool {
        matches!(self, Reason::Ok | Reason::VersionOlder | Reason::FeatureDisabled)
    }

    /// Status and action of an imported pool, which name only verbs that exist (except those that `advice.rs` lists).
    /// Lines after the first begin with a tab; each has its newline.
    pub(super) const fn status(self) -> (&'static str, &'static str) {
        match self {
            Reason::Ok => ("", ""),
            Reason::MissingDevReplicated => (
                "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool to continue functioning in a degraded state.\n",
                "Attach the missing device and online it using 'zpool online'.\n",
            ),
            Reason::MissingDev => (
                "One or more devices could not be opened.  There are insufficient\n\treplicas for the pool to continue functioning.\n",
                "Attach the missing device.  The next command finds it by itself.\n",
            ),
            Reason::CorruptLabelReplicated => (
                "One or more devices could not be used because the label is missing or\n\tinvalid.  Sufficient replicas exist for the pool to continue\n\tfunctioning in a degraded state.\n",
                "Replace the device on a system with OpenZFS.\n",
            ),
            Reason::CorruptLabel => (
                "One or more devices could not be used because the label is missing \n\tor invalid.  There are insufficient replicas for the pool to continue\n\tfunctioning.\n",
                "",
            ),
            Reason::FailingDev => (
                "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made to correct the error.  Applications are unaffected.\n",
                "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool clear' or replace the device with 'zpool replace'.\n",
            ),
            Reason::StaleDev => (
                "One or more devices has missed writes and needs to be resilvered.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.\n",
                "Resilver the devices using 'zpool resilver', or 'zpool scrub'.  Commands\n\tthat change the pool do so by themselves where it does not take long.\n",
            ),
            Reason::OlderState => (
                "The devices that are there hold an older state of the pool than the one\n\tthat was written last on this system.\n",
                "Attach the missing device.  The next command finds it by itself.  If it\n\tis lost for good, what it has alone is lost too: 'zpool export -f' forgets\n\tthat there was a newer state, and 'zpool import' opens the older one.\n",
            ),
            Reason::OfflineDev => (
                "One or more devices has been taken offline by the administrator.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.\n",
                "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.\n",
            ),
            Reason::RemovedDev => (
                "One or more devices have been removed.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.\n",
                "Online the device using zpool online' or replace the device with\n\t'zpool replace'.\n",
            ),
            Reason::IoFailureWait | Reason::IoFailureContinue => (
                "One or more devices are faulted in response to IO failures.\n",
                "Make sure the affected devices are connected, then run 'zpool clear'.\n",
            ),
            Reason::Resilvering | Reason::Rebuilding => (
                "One or more devices is currently being resilvered.  The pool will\n\tcontinue to function, possibly in a degraded state.\n",
                "Wait for the resilver to complete.\n",
            ),
            Reason::RebuildScrub => (
                "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is recommended.\n",
                "Use 'zpool scrub' to verify all data checksums.\n",
            ),
            Reason::CorruptData => (
                "One or more devices has experienced an error resulting in data\n\tcorruption.  Applications may be affected.\n",
                "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from backup.\n",
            ),
            Reason::BadGuidSum | Reason::CorruptPool => {
                ("The pool metadata is corrupted and the pool cannot be opened.\n", "")
            }
            Reason::VersionOlder => (
                "The pool is formatted using a legacy on-disk format.  The pool can\n\tstill be used, but some features are unavailable.\n",
                "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\tpool will no longer be accessible on software that does not support\n\tfeature flags.\n",
            ),
            Reason::VersionNewer => (
                "The pool has been upgraded to a newer, incompatible on-disk version.\n\tThe pool cannot be accessed on this system.\n",
                "Access the pool from a system running more recent software, or\n\trestore the pool from backup.\n",
            ),
            Reason::FeatureDisabled => (
                "Some supported and requested features are not enabled on the pool.\n\tThe pool can still be used, but some features are unavailable.\n",
                "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no longer be accessible by software that does not support\n\tthe features. See zpool-features(7) for details.\n",
            ),
            Reason::UnsupportedFeature => (
                "The pool cannot be accessed on this system because it uses the\n\tfollowing feature(s) not supported on this system:\n",
                "Access the pool from a system that supports the required feature(s),\n\tor restore the pool from backup.\n",
            ),
            Reason::FaultedDevReplicated => (
                "One or more devices are faulted in response to persistent errors.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.\n",
                "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.\n",
            ),
            Reason::FaultedDev => (
                "One or more devices are faulted in response to persistent errors.  There are insufficient replicas for the pool to\n\tcontinue functioning.\n",
                "Destroy and re-create the pool from a backup source.  Manually marking the device\n\trepaired using 'zpool clear' may allow some data to be recovered.\n",
            ),
            Reason::HostidMismatch => (
                "Mismatch between pool hostid and system hostid on imported pool.\n\tThis pool was previously imported into a system with a different hostid,\n\tand then was verbatim imported into this system.\n",
                "Export this pool on all systems on which it is imported.\n\tThen import it to correct the mismatch.\n",
            ),
            Reason::Errata(Erratum::OldKeys) => (
                "Errata #3 detected.\n\tExisting encrypted datasets contain an on-disk incompatibility\n\t which needs to be corrected.\n",
                "To correct the issue backup existing encrypted datasets to new\n\tencrypted datasets and destroy the old ones.  'zuse cp' and 'zuse tar' read\n\texisting encrypted datasets.\n",
            ),
            // OpenZFS's own words
            Reason::Errata(Erratum::NoIvset) => (
                "Errata #4 detected.\n\tExisting encrypted snapshots and bookmarks contain an on-disk\n\tincompatibility. This may cause on-disk corruption if they are used\n\twith 'zfs recv'.\n",
                "To correct theissue, enable the bookmark_v2 feature. No additional\n\taction is needed if there are no encrypted snapshots or bookmarks.\n\tIf preservingthe encrypted snapshots and bookmarks is required, use\n\ta non-raw send to backup and restore them. Alternately, they may be\n\tremoved to resolve the incompatibility.\n",
            ),
        }
    }

    /// The status of a pool that could be imported; lines after the first begin with a tab and `indent`.
    pub(super) fn import_status(self, indent: &str) -> String {
        match self {
            Reason::Ok => String::new(),
            Reason::MissingDevReplicated | Reason::MissingDev | Reason::BadGuidSum => {
                "One or more devices are missing from the system.\n".to_owned()
            }
            Reason::CorruptLabelReplicated | Reason::CorruptLabel => {
                "One or more devices contains corrupted data.\n".to_owned()
            }
            Reason::CorruptData => "The pool data is corrupted.\n".to_owned(),
            Reason::CorruptPool => "The pool metadata is corrupted.\n".to_owned(),
            Reason::OfflineDev => "One or more devices are offlined.\n".to_owned(),
            Reason::VersionOlder => "The pool is formatted using a legacy on-disk version.\n".to_owned(),
            Reason::VersionNewer => "The pool is formatted using an incompatible version.\n".to_owned(),
            Reason::FeatureDisabled => format!(
                "Some supported features are not enabled on the pool.\n\
                 \t{indent}(Note that they may be intentionally disabled if the\n\
                 \t{indent}'compatibility' property is set.)\n"
            ),
            Reason::UnsupportedFeature => {
                "The pool uses the following feature(s) not supported on this system:\n".to_owned()
            }
            Reason::HostidMismatch => "The pool was last accessed by another system.\n".to_owned(),
            Reason::FaultedDevReplicated | Reason::FaultedDev => "One or more devices are faulted.\n".to_owned(),
            Reason::Resilvering | Reason::Rebuilding => "One or more devices were being resilvered.\n".to_owned(),
            Reason::Errata(which) => format!("Errata #{} detected.\n", which as u64),
            Reason::IoFailureWait | Reason::IoFailureContinue => String::new(),
            Reason::RemovedDev | Reason::FailingDev | Reason::RebuildScrub | Reason::StaleDev | Reason::OlderState => {
                String::new()
            }
        }
    }

    /// The action for a pool that could be imported.
    pub(super) fn import_action(self, state: VdevState, indent: &str) -> String {
        let by_name = "The pool can be imported using its name or numeric identifier";
        match (state, self) {
            (VdevState::Healthy, Reason::VersionOlder | Reason::FeatureDisabled) => format!(
                "{by_name}, though\n\t{indent}some features will not be available without an explicit 'zpool upgrade'.\n"
            ),
            (VdevState::Healthy, Reason::HostidMismatch) => format!("{by_name} and\n\t{indent}the '-f' flag.\n"),
            (VdevState::Healthy, Reason::Errata(Erratum::OldKeys)) => format!(
                "Existing encrypted datasets contain an on-disk incompatibility, which\n\
                 \t{indent}needs to be corrected. Backup these datasets to new encrypted datasets\n\
                 \t{indent}and destroy the old ones.\n"
            ),
            (VdevState::Healthy, Reason::Errata(Erratum::NoIvset)) => format!(
                "Existing encrypted snapshots and bookmarks contain an on-disk\n\
                 \t{indent}incompatibility. This may cause on-disk corruption if they are used\n\
                 \t{indent}with 'zfs recv'. To correct the issue, enable the bookmark_v2 feature.\n\
                 \t{indent}No additional action is needed if there are no encrypted snapshots or\n\
                 \t{indent}bookmarks. If preserving the encrypted snapshots and bookmarks is\n\
                 \t{indent}required, use a non-raw send to backup and restore them. Alternately,\n\
                 \t{indent}they may be removed to resolve the incompatibility.\n"
            ),
            (VdevState::Healthy, _) => format!("{by_name}.\n"),
            (VdevState::Degraded, _) => format!(
                "The pool can be imported despite missing or damaged devices.  The\n\
                 \t{indent}fault tolerance of the pool may be compromised if imported.\n"
            ),
            (_, Reason::VersionNewer) => format!(
                "The pool cannot be imported.  Access the pool on a system running newer\n\
                 \t{indent}software, or recreate the pool from backup.\n"
            ),
            (_, Reason::UnsupportedFeature) => format!(
                "The pool cannot be imported. Access the pool on a system that supports\n\
                 \t{indent}the required feature(s), or recreate the pool from backup.\n"
            ),
            (_, Reason::MissingDevReplicated | Reason::MissingDev | Reason::BadGuidSum) => {
                format!("The pool cannot be imported. Attach the missing\n\t{indent}devices and try again.\n")
            }
            _ => "The pool cannot be imported due to damaged devices or data.\n".to_owned(),
        }
    }
}

/// A feature of the version after OpenZFS 2.4: users are never advised to enable it.
const NEWER_FEATURE: &str = "draid_failure_domains";

/// The reason for an open pool with this configuration. `importing`: it is only a candidate, last used by host `hostid` unless exported.
pub(super) fn of_pool(
    config: &NvList,
    vdevs: &Vdevs,
    activity: &Activity,
    errors: u64,
    importing: Option<bool>,
) -> Reason {
    if activity.is_resilvering() {
        return Reason::Resilvering;
    }
    if activity.is_rebuilding() {
        return Reason::Rebuilding;
    }
    if needs_scrub(activity) {
        return Reason::RebuildScrub;
    }
    if importing == Some(true) {
        return Reason::HostidMismatch;
    }
    let by_vdevs = of_vdevs(vdevs, importing.is_none(), errors);
    if by_vdevs != Reason::Ok {
        return by_vdevs;
    }
    if let Some(erratum) = config.get_u64(key::ERRATA).and_then(Erratum::from_number) {
        return Reason::Errata(erratum);
    }
    let compatibility = config.get_str(key::COMPATIBILITY).filter(|_| importing.is_none()).unwrap_or("off");
    if config.get_u64(key::VERSION).unwrap_or(0) < 5000 {
        return if compatibility == "legacy" { Reason::Ok } else { Reason::VersionOlder };
    }
    // feature sets that do not exist ask for nothing
    let wanted = Compat::load(compatibility).ok();
    let wanted = |feature: &Feature| wanted.as_ref().is_some_and(|wanted| wanted.allows(feature));
    let mut upgradable = FEATURES.iter().filter(|f| !f.not_by_upgrade() && f.name != NEWER_FEATURE);
    let enabled = config.get_nvlist(FEATURE_STATS);
    if upgradable.any(|f| wanted(f) && !enabled.is_some_and(|enabled| enabled.contains(f.guid))) {
        return Reason::FeatureDisabled;
    }
    Reason::Ok
}

/// Returns whether a scrub should follow a rebuild, which verifies no checksums.
fn needs_scrub(activity: &Activity) -> bool {
    let complete = activity.rebuilds.iter().filter(|(_, r)| r.state == REBUILD_COMPLETE).map(|(_, r)| r.end_time);
    let Some(end) = complete.max().filter(|end| *end > 0) else { return false };
    activity.scan.as_ref().is_none_or(|scan| {
        scan.state == ScanState::None
            || (scan.state == ScanState::Finished && scan.func == ScanFunc::Scrub && end > scan.end_time)
    })
}

/// The reason that the vdevs give.
pub(super) fn of_vdevs(vdevs: &Vdevs, imported: bool, errors: u64) -> Reason {
    let root = &vdevs.root;
    let relevant = |v: &&super::vdevs::Vdev| !matches!(v.kind, VdevType::Root | VdevType::Hole | VdevType::Indirect);
    let leaves: Vec<_> = root.leaves().into_iter().chain(&vdevs.l2cache).filter(relevant).collect();
    let faulted = leaves.iter().any(|v| v.state == VdevState::Faulted);
    let missing = leaves.iter().any(|v| v.state == VdevState::CantOpen && v.aux == VdevAux::OpenFailed);
    let broken = leaves.iter().any(|v| v.state == VdevState::CantOpen);
    if root.state == VdevState::CantOpen {
        return if faulted {
            Reason::FaultedDev
        } else if missing {
            Reason::MissingDev
        } else if broken {
            Reason::CorruptLabel
        } else {
            Reason::CorruptPool
        };
    }
    if imported && errors > 0 {
        return Reason::CorruptData;
    }
    let errors_seen = |v: &&super::vdevs::Vdev| v.state == VdevState::Degraded || !v.errors.is_none();
    if faulted {
        Reason::FaultedDevReplicated
    } else if missing {
        Reason::MissingDevReplicated
    } else if broken {
        Reason::CorruptLabelReplicated
    } else if leaves.iter().any(|v| v.stale) {
        Reason::StaleDev
    } else if imported && leaves.iter().any(errors_seen) {
        Reason::FailingDev
    } else if leaves.iter().any(|v| v.state == VdevState::Offline) {
        Reason::OfflineDev
    } else if leaves.iter().any(|v| v.state == VdevState::Removed) {
        Reason::RemovedDev
    } else {
        Reason::Ok
    }
}
