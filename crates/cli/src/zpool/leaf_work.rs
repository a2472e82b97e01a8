//! The state of initialize and trim on devices, for `zpool status -i` and `-t`.
//!
//! OpenZFS: `print_status_initialize`, `print_status_trim`.

use control::stats::{VdevStat, VdevStats};

use super::activity::ctime;

/// Work on all free space of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Initialize,
    Trim,
}

/// States of the work (OpenZFS: `vdev_initializing_state_t`, `vdev_trim_state_t`, whose numbers are the same).
const ACTIVE: u64 = 1;
const SUSPENDED: u64 = 3;
const COMPLETE: u64 = 4;

/// The progress of the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) state: u64,
    /// The time at which it began or ended.
    pub(super) time: u64,
    /// Bytes of free space that are done.
    pub(super) done: u64,
    /// Bytes of free space in all.
    pub(super) size: u64,
    /// Whether its device does not do it.
    pub(super) unsupported: bool,
}

impl Work {
    /// The remark after the line of a leaf.
    pub(super) fn remark(self, progress: &Progress) -> String {
        let done = match self {
            Work::Initialize => "initialized",
            Work::Trim => "trimmed",
        };
        let what = match progress.state {
            ACTIVE => "started at",
            SUSPENDED => "suspended, started at",
            COMPLETE => "completed at",
            _ if progress.unsupported => return "  (trim unsupported)".to_owned(),
            _ => return format!("  (un{done})"),
        };
        let percent = match progress.state {
            COMPLETE => 100,
            _ => u128::from(progress.done) * 100 / (u128::from(progress.size) + 1),
        };
        format!("  ({percent}% {done}, {what} {})", ctime(progress.time))
    }

    /// The remark where nobody has asked for it.
    pub(super) fn short_remark(self, progress: &Progress) -> &'static str {
        match self {
            _ if !progress.is_active() => "",
            Work::Initialize => "  (initializing)",
            Work::Trim => "  (trimming)",
        }
    }
}

impl Progress {
    /// Reads it from the figures of a vdev.
    pub(super) fn of(stats: &VdevStats, work: Work) -> Progress {
        let words = match work {
            Work::Initialize => [
                VdevStat::InitializeState,
                VdevStat::InitializeTime,
                VdevStat::InitializeDone,
                VdevStat::InitializeTotal,
            ],
            Work::Trim => [VdevStat::TrimState, VdevStat::TrimTime, VdevStat::TrimDone, VdevStat::TrimTotal],
        };
        let [state, time, done, size] = words.map(|word| stats.get(word));
        let unsupported = work == Work::Trim && stats.get(VdevStat::TrimUnsupported) != 0;
        Progress { state, time, done, size, unsupported }
    }

    /// Whether it goes on, or would if the pool were open.
    pub(super) fn is_active(&self) -> bool {
        self.state == ACTIVE
    }

    /// Its state in JSON; `None` if it was never started.
    pub(super) fn state_name(&self) -> Option<&'static str> {
        let state = usize::try_from(self.state).ok().filter(|state| *state != 0)?;
        ["NONE", "ACTIVE", "CANCELED", "SUSPENDED", "COMPLETE"].get(state).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console;

    #[test]
    fn what_is_done_is_told_in_the_words_of_openzfs() {
        let progress = |state| Progress { state, done: 30, size: 100, ..Progress::default() };
        assert_eq!(Work::Initialize.remark(&progress(0)), "  (uninitialized)");
        assert_eq!(Work::Trim.remark(&progress(2)), "  (untrimmed)");
        let told = console::in_test(|| Work::Trim.remark(&progress(3)));
        assert!(told.starts_with("  (29% trimmed, suspended, started at "), "{told}");
        let told = console::in_test(|| Work::Initialize.remark(&progress(4)));
        assert!(told.starts_with("  (100% initialized, completed at ") && told.ends_with(" 1970)"), "{told}");
        assert_eq!(Work::Trim.remark(&Progress { unsupported: true, ..progress(0) }), "  (trim unsupported)");
        assert_eq!([0, 1, 4].map(|state| Work::Trim.short_remark(&progress(state))), ["", "  (trimming)", ""]);
        assert_eq!(progress(4).state_name(), Some("COMPLETE"));
        assert_eq!(progress(9).state_name(), None);
    }
}
