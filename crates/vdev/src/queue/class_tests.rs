use super::*;

/// OpenZFS's defaults.
pub(crate) fn openzfs() -> Limits {
    let bounds = [(10, 10), (10, 10), (1, 3), (2, 10), (1, 3), (1, 2), (1, 1), (1, 2), (1, 3)];
    Limits {
        classes: bounds.map(|(min, max)| Bounds { min, max }),
        max_active: 1000,
        nia_delay: 5,
        nia_credit: 5,
        dirty: (300, 600),
    }
}

use IoClass::{AsyncRead, AsyncWrite, Initializing, Rebuild, Removal, Scrub, SyncRead, SyncWrite, Trim};

/// A queue in which so many of these classes are active, begun in this order, and these wait.
fn state(active: &[(IoClass, u64)], queued: &[IoClass]) -> Admission {
    let mut admission = Admission::default();
    for (class, count) in active {
        (0..*count).for_each(|_| admission.begin(*class));
    }
    queued.iter().for_each(|class| admission.wait(*class));
    admission.undisturbed = UNDISTURBED;
    admission
}

/// The I/Os that are active, those that wait, the class with which the round of minimums goes on, and the next one.
type Case<'a> = (&'a [(IoClass, u64)], &'a [IoClass], IoClass, Option<IoClass>);

#[test]
fn the_next_class_is_that_of_openzfs() {
    let all = IoClass::ALL;
    let cases: &[Case<'_>] = &[
        (&[], &[], SyncRead, None),
        (&[], &all, SyncRead, Some(SyncRead)),
        // below their minimum they take turns
        (&[(SyncRead, 1)], &all, SyncWrite, Some(SyncWrite)),
        (&[(SyncRead, 1)], &[SyncRead, AsyncWrite], AsyncWrite, Some(AsyncWrite)),
        (&[(SyncRead, 1)], &[SyncRead, AsyncWrite], Scrub, Some(SyncRead)),
        // a minimum that is not met comes before a maximum of higher priority
        (&[(AsyncRead, 1)], &[AsyncRead, AsyncWrite], SyncRead, Some(AsyncWrite)),
        // all minimums are met: the order is that of priority
        (&[(AsyncRead, 1), (AsyncWrite, 2)], &[AsyncRead, AsyncWrite], AsyncWrite, Some(AsyncRead)),
        (&[(AsyncRead, 3), (AsyncWrite, 2)], &[AsyncRead], SyncRead, None),
        (&[(SyncRead, 10)], &[SyncRead], SyncRead, None),
        // the trim of what is free is interactive, though nobody waits for it
        (&[(Trim, 1)], &[Trim, Scrub], SyncRead, Some(Scrub)),
        (&[(Trim, 2)], &[Trim], SyncRead, None),
        // what is not interactive: its minimum beside interactive I/O, once for the first
        (&[(SyncRead, 1)], &[Scrub, Rebuild], Scrub, Some(Scrub)),
        (&[(SyncRead, 1), (Scrub, 1)], &[Scrub, Rebuild], SyncRead, None),
        (&[(SyncRead, 1), (Scrub, 1)], &[SyncRead, Scrub], Scrub, Some(SyncRead)),
        // without it: its minimum, until the device is known to be idle
        (&[(Scrub, 1)], &[Scrub, Removal], SyncRead, Some(Removal)),
        (&[(Scrub, 1), (Removal, 1)], &[Scrub, Removal, Initializing], SyncRead, Some(Initializing)),
        (&[(Scrub, 1), (Removal, 1), (Initializing, 1)], &[Scrub, Removal, Initializing], SyncRead, None),
    ];
    for (n, (active, queued, from, expected)) in cases.iter().enumerate() {
        let mut admission = state(active, queued);
        admission.next = from.index();
        assert_eq!(admission.choose(&openzfs()), *expected, "case {n}");
    }
}

#[test]
fn an_idle_device_gets_more_of_a_scrub_and_a_busy_one_less() {
    let limits = openzfs();
    let mut admission = state(&[(Scrub, 1)], &[Scrub; 20]);
    // one at a time until as many as the delay have ended
    for ended in 0..5 {
        assert_eq!(admission.choose(&limits), None, "{ended}");
        admission.end(Scrub, &limits);
        assert_eq!(admission.choose(&limits), Some(Scrub));
        admission.begin(Scrub);
    }
    for _ in 0..2 {
        assert_eq!(admission.choose(&limits), Some(Scrub));
        admission.begin(Scrub);
    }
    assert_eq!(admission.choose(&limits), None);
    // a reader comes: none begins until there is less than the minimum
    admission.begin(SyncRead);
    admission.begin(SyncRead);
    admission.end(Scrub, &limits);
    admission.end(Scrub, &limits);
    // as many reads as are left undisturbed have ended, here and below
    admission.undisturbed = UNDISTURBED;
    assert_eq!(admission.choose(&limits), None);
    admission.end(Scrub, &limits);
    assert_eq!(admission.choose(&limits), Some(Scrub));
    admission.begin(Scrub);
    // the credit is used up, until a read ends
    admission.end(Scrub, &limits);
    admission.undisturbed = UNDISTURBED;
    assert_eq!(admission.choose(&limits), None);
    admission.end(SyncRead, &limits);
    for _ in 0..5 {
        admission.undisturbed = UNDISTURBED;
        assert_eq!(admission.choose(&limits), Some(Scrub));
        admission.begin(Scrub);
        admission.end(Scrub, &limits);
    }
    assert_eq!(admission.choose(&limits), None);
    // and the device is not idle at once when the last is gone
    admission.end(SyncRead, &limits);
    assert_eq!(admission.choose(&limits), Some(Scrub));
    admission.begin(Scrub);
    assert_eq!(admission.choose(&limits), None);
}

#[test]
fn a_scrub_leaves_some_reads_undisturbed_between_two_of_its_own() {
    let limits = openzfs();
    let mut admission = state(&[], &[Scrub; 20]);
    let mut turns = Vec::new();
    // a single reader, who asks again as soon as he has his answer
    for _ in 0..11 {
        admission.begin(SyncRead);
        turns.push(SyncRead);
        if admission.choose(&limits) == Some(Scrub) {
            admission.begin(Scrub);
            turns.push(Scrub);
            admission.end(Scrub, &limits);
        }
        admission.end(SyncRead, &limits);
        admission.expected_until = admission.would_yield().then(Instant::now);
    }
    assert_eq!(turns, [[SyncRead, Scrub, SyncRead, SyncRead, SyncRead]; 3].concat()[..14]);
    // he does not come back
    assert_eq!(admission.choose(&limits), None);
    admission.expect_no_longer(Instant::now());
    assert_eq!(admission.choose(&limits), Some(Scrub));
}

#[test]
fn no_more_than_the_maximum_of_all_is_active() {
    let limits = Limits { max_active: 4, ..openzfs() };
    let mut admission = state(&[(SyncRead, 3)], &[SyncRead, SyncWrite]);
    admission.next = SyncRead.index();
    assert!(admission.admits(Scrub, &limits) && !admission.admits(SyncRead, &limits));
    // who fills the device up shares it with the others in turns
    assert_eq!(admission.choose(&limits), Some(SyncRead));
    admission.begin(SyncRead);
    assert_eq!(admission.choose(&limits), None);
    assert!(!admission.admits(AsyncWrite, &limits));
    admission.end(SyncRead, &limits);
    assert_eq!(admission.choose(&limits), Some(SyncWrite));
}

#[test]
fn async_writes_follow_what_is_dirty_beside_other_io() {
    let limits = openzfs();
    let writes = |dirty: u64, active: &[(IoClass, u64)], quiet: u64| {
        Admission { dirty, quiet, ..state(active, &[]) }.max(AsyncWrite, &limits)
    };
    let cases = [(0, 2), (300, 2), (299, 2), (450, 6), (599, 9), (600, 10), (u64::MAX, 10)];
    for (dirty, expected) in cases {
        assert_eq!(writes(dirty, &[(SyncRead, 1)], 0), expected, "{dirty}");
        assert_eq!(writes(dirty, &[], 4), expected, "{dirty}");
        // nobody else uses the device
        assert_eq!(writes(dirty, &[(Scrub, 1)], 5), 10, "{dirty}");
    }
    let odd = Limits { dirty: (600, 300), ..openzfs() };
    assert_eq!(state(&[(SyncRead, 1)], &[]).max(AsyncWrite, &odd), 2);
}
