//! Every fixture is verified as a whole: what the kernel module left in order is in order, and the damage of the damaged ones is found,
//! named, and no more than the kernel's.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use support::{each_fixture, open};
use zuse::verify::{Names, Options, Summary, verify};

/// The result that a fixture must have.
#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    /// Everything as it was written.
    Clean,
    /// Redundancy was needed, and enough.
    Repairable,
    /// These files are lost, in part.
    Lost(Vec<String>),
}

fn expected(name: &str) -> Verdict {
    match name {
        "degdraid-a" | "degmirror-a" | "degraidz1-a" | "degraidz2-a" | "degraidz3-a" | "resilver-a" => {
            Verdict::Repairable
        }
        // the kernel says so as well (kernel-says/scrub.txt)
        "lost-a" => Verdict::Lost(vec!["losta/fs:/victim".to_owned()]),
        "degraidz1-b" => Verdict::Lost(vec!["badzab/raw:/l1".to_owned(), "badzab/raw@snap:/l1".to_owned()]),
        _ => Verdict::Clean,
    }
}

fn verdict(summary: &Summary, files: &BTreeMap<String, u64>) -> Verdict {
    match summary {
        s if s.is_clean() => Verdict::Clean,
        s if s.is_sound() => Verdict::Repairable,
        _ => Verdict::Lost(files.keys().cloned().collect()),
    }
}

#[test]
fn every_fixture_verifies_as_the_kernel_left_it() {
    each_fixture(&|name| {
        let (_images, pool) = open(name);
        let options = Options { dataset: None, threads: 2, expand: true };
        let summary = verify(&pool, &options, &|_, _| {}).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut names = Names::new(&pool);
        let mut files = BTreeMap::new();
        for damage in summary.damage() {
            *files.entry(names.place(&damage.bm).to_string()).or_default() += 1;
        }
        for vdev in &summary.space {
            assert_eq!((vdev.leaked, vdev.unallocated), (0, 0), "{name}: vdev {}: {vdev:x?}", vdev.vdev);
        }
        assert!(summary.blocks > 100, "{name}: only {} blocks", summary.blocks);
        match (expected(name), verdict(&summary, &files)) {
            // better than the kernel is welcome
            (Verdict::Lost(theirs), Verdict::Lost(ours)) => {
                assert!(ours.iter().all(|f| theirs.contains(f)), "{name}: lost {ours:?}, the kernel {theirs:?}");
            }
            (theirs, ours) => assert_eq!(theirs, ours, "{name}: {:#?}", summary.tally),
        }
    });
}

#[test]
fn one_dataset_is_verified_with_what_it_shares() {
    let (_images, pool) = open("snaps-a");
    let dataset = pool.dataset("snapsa/clone2").unwrap();
    let options = Options { dataset: Some(dataset.clone()), threads: 1, expand: true };
    let summary = verify(&pool, &options, &|_, _| {}).unwrap();
    assert!(summary.is_clean() && summary.space.is_empty());
    // all that the dataset refers to was read, and a little more: what its accounting does not count
    assert!(
        summary.tally.bytes * 10 >= dataset.phys().referenced_bytes * 9,
        "{} of {}",
        summary.tally.bytes,
        dataset.phys().referenced_bytes
    );
}
