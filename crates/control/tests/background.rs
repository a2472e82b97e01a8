//! Requests that begin, end and wait for work in the background.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::{Control, Ioc};
use nvlist::{NvList, Value};
use ondisk::scan::ScanState;
use support::pool;

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

fn scan(control: &Control, kind: u64, command: u64) -> Result<NvList, control::Failed> {
    control.call(Ioc::PoolScrub, "t", &list(&[("scan_type", kind.into()), ("scan_command", command.into())]))
}

/// Waits for an activity; returns whether there was any.
fn wait(control: &Control, activity: i32) -> bool {
    let out = control.call(Ioc::Wait, "t", &list(&[("wait_activity", activity.into())])).unwrap();
    assert_eq!(out.len(), 1);
    out.get("wait_waited") == Some(&true.into())
}

#[test]
fn a_scrub_is_begun_paused_resumed_and_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let state = || control.spa().view().unwrap().scan().unwrap().unwrap();
    assert!((0..10).all(|activity| !wait(&control, activity)), "nothing is under way");
    assert_eq!(scan(&control, 1, 1).unwrap_err().errno, Errno::ENOENT);
    assert_eq!(scan(&control, 0, 0).unwrap_err().errno, Errno::ENOENT);
    // there are no errors to be scrubbed, and no device that missed anything
    assert_eq!(scan(&control, 3, 0).unwrap_err().errno, Errno::ECANCELED);
    scan(&control, 2, 0).unwrap();
    assert!(!wait(&control, 5));

    scan(&control, 1, 0).unwrap();
    scan(&control, 1, 1).unwrap();
    assert!(!wait(&control, 6), "a paused scrub is not waited for");
    assert_ne!((state().state, state().flags), (ScanState::Scanning, 0));
    scan(&control, 1, 0).unwrap();
    assert!(wait(&control, 6) && !wait(&control, 6));
    assert_eq!((state().state, state().errors), (ScanState::Finished, 0));

    scan(&control, 1, 0).unwrap();
    scan(&control, 0, 0).unwrap();
    assert!(!wait(&control, 6));
    assert_eq!(state().state, ScanState::Canceled);
    assert_eq!(scan(&control, 0, 0).unwrap_err().errno, Errno::ENOENT);
}

#[test]
fn other_activities_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let none = NvList::new();
    control.call(Ioc::PoolCheckpoint, "t", &none).unwrap();
    assert!(!wait(&control, 0));
    control.call(Ioc::PoolDiscardCheckpoint, "t", &none).unwrap();
    wait(&control, 0);
    assert!(!control.spa().view().unwrap().feature_active("zpool_checkpoint"));
    let condense = |command: &str| {
        let input = list(&[("condense_command", command.into()), ("condense_type", "log_spacemap".into())]);
        control.call(Ioc::PoolCondense, "t", &input).unwrap()
    };
    condense("start");
    wait(&control, 9);
    assert!(!control.spa().space().condense_progress().active);
    condense("start");
    condense("cancel");
    assert!(!wait(&control, 9) && !control.spa().space().condense_progress().active);
}

#[test]
fn waits_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    for (activity, tag, errno) in [
        (-1, None, Some(Errno::EINVAL)),
        (10, None, Some(Errno::EINVAL)),
        (6, Some(1u64), Some(Errno::EINVAL)),
        (7, Some(1), None),
    ] {
        let mut input = list(&[("wait_activity", activity.into())]);
        if let Some(tag) = tag {
            input.insert("wait_tag", tag);
        }
        assert_eq!(control.call(Ioc::Wait, "t", &input).err().map(|failed| failed.errno), errno, "{activity}");
    }
}
