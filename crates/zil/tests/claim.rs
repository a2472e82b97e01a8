//! Claiming the logs of pools that were cut off in the middle of writes.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::Txg;
use dmu::Objset;
use ondisk::{BlkPtr, ZilHeader};
use oracle::fixtures;
use pool::{OpenOptions, Pool};
use zil::claim::{Survey, needs_replay, survey};

fn open(name: &str) -> (Arc<Pool>, fixtures::Unpacked) {
    let images = fixtures::unpack(name);
    let found = vdev::import::scan(std::slice::from_ref(&images.dir)).unwrap();
    (Pool::open(&found[0], &OpenOptions::default()).unwrap(), images)
}

fn objset(pool: &Arc<Pool>, short: &str) -> Arc<Objset> {
    pool.dataset(&format!("{}/{short}", pool.name())).unwrap().objset().unwrap()
}

fn survey_of(pool: &Arc<Pool>, short: &str) -> Survey {
    survey(&[objset(pool, short)], pool.uberblock().txg, u64::MAX).pop().unwrap().unwrap()
}

/// Claims with a pool that refuses the block after `good` ones. Returns the header, the allocated blocks and the references.
fn claim(survey: Survey, good: usize) -> (ZilHeader, Vec<BlkPtr>, Vec<BlkPtr>) {
    let (mut taken, mut referred) = (Vec::new(), Vec::new());
    let mut take = |bp: &BlkPtr| {
        if taken.len() < good {
            taken.push(*bp);
        }
        taken.len() <= good && taken.last() == Some(bp)
    };
    let (header, log) = survey.claim(&mut take, &mut |bp| referred.push(*bp));
    if let Some(log) = log {
        assert_eq!(log.records().count() as u64, log.summary.records);
        assert!(log.records().all(|record| record.header.seq <= header.claim_lr_seq));
        assert_eq!(log.header, header);
    }
    (header, taken, referred)
}

#[test]
fn a_log_is_claimed_to_its_end() {
    // as many records as zdb counts
    for (short, records) in [("a", 177), ("b", 177), ("enc", 176), ("vol", 82)] {
        let (pool, _images) = open("zil-a");
        let log = objset(&pool, short);
        let summary = zil::walk(&log, &mut |_| ControlFlow::Continue(()));
        let found = survey_of(&pool, short);
        assert_eq!(found.records(), records, "{short}");
        assert!(found.lost().is_none() && !found.is_lost_whole());
        let (header, taken, referred) = claim(found, usize::MAX);
        assert_eq!(header.claim_txg, Txg(pool.uberblock().txg.0 + 1));
        assert_eq!((header.claim_blk_seq, header.claim_lr_seq), (summary.max_blk_seq, summary.max_lr_seq), "{short}");
        assert!(needs_replay(&header) && header.replay_seq == 0 && header.log == log.phys().zil_header.log);
        let places: HashSet<_> = taken.iter().map(|bp| (bp.dva(0).vdev(), bp.dva(0).offset())).collect();
        assert_eq!(places.len(), taken.len(), "{short}: each block once");
        assert!(taken.iter().all(|bp| bp.birth() > pool.uberblock().txg));
        assert!(referred.iter().all(|bp| bp.birth_physical() <= pool.uberblock().txg));
        assert_eq!(referred.is_empty(), short == "vol", "files were cloned");
    }
}

#[test]
fn a_block_that_cannot_be_had_ends_the_log() {
    let (pool, _images) = open("zil-a");
    let (full, all, _) = claim(survey_of(&pool, "a"), usize::MAX);
    let mut before = (0, 0);
    for good in 0..all.len() {
        let (header, taken, _) = claim(survey_of(&pool, "a"), good);
        let now = (header.claim_blk_seq, header.claim_lr_seq);
        assert_eq!(taken.len(), good);
        assert!(now >= before && now < (full.claim_blk_seq, full.claim_lr_seq + 1), "{good}: {now:?}");
        before = now;
    }
    assert!(before.1 > 0, "there are records before the last block");
    let (none, ..) = claim(survey_of(&pool, "a"), 0);
    assert!(!needs_replay(&none) || none.claim_lr_seq > 0, "a log without a block holds nothing");
}

#[test]
fn what_was_claimed_or_is_empty_is_left_alone() {
    for fixture in ["basic-a", "enc-a"] {
        let (pool, _images) = open(fixture);
        let all = pool.list(pool.name(), &pool::ListOptions::DATASETS).unwrap();
        let objsets: Vec<_> = all.iter().filter_map(|entry| entry.dataset()?.objset().ok()).collect();
        assert!(!objsets.is_empty());
        assert!(survey(&objsets, pool.uberblock().txg, u64::MAX).iter().all(Option::is_none), "{fixture}");
    }
}

/// Logs may be larger than memory: those that do not fit are claimed all the same, and read again when they are replayed.
#[test]
fn logs_are_kept_as_far_as_there_is_room() {
    let (pool, _images) = open("zil-a");
    let objsets: Vec<_> = ["a", "b", "enc"].iter().map(|short| objset(&pool, short)).collect();
    let claim = |room: u64| -> Vec<(ZilHeader, Option<u64>)> {
        let found = survey(&objsets, pool.uberblock().txg, room).into_iter().flatten();
        let claimed = found.map(|found| found.claim(&mut |_| true, &mut |_| ()));
        let bytes = |log: zil::Log| log.blocks.iter().map(|block| block.bp.lsize()).sum();
        claimed.map(|(header, log)| (header, log.map(bytes))).collect()
    };
    let all = claim(u64::MAX);
    let [(_, Some(a)), (_, Some(b)), (_, None)] = all[..] else { panic!("{all:?}: the key of enc is not loaded") };
    for (room, most) in [(a + b, 2), (a + b - 1, 1), (a.min(b) - 1, 0)] {
        let some = claim(room);
        assert!(some.iter().zip(&all).all(|(some, all)| some.0 == all.0), "{room}");
        assert!(some.iter().filter(|(_, kept)| kept.is_some()).count() <= most, "{room}");
    }
    assert_eq!(claim(a + b).iter().filter(|(_, kept)| kept.is_some()).count(), 2);
}

/// The block after the last one of a chain was never written; the device that would hold it is healthy.
#[test]
fn the_end_of_a_log_is_no_error_of_a_device() {
    for (name, short) in [("zil-a", "a"), ("zil-a", "enc"), ("zilslog-a", "b")] {
        let images = fixtures::unpack(name);
        let found = vdev::import::scan(std::slice::from_ref(&images.dir)).unwrap();
        let pool = Pool::open(&found[0], &OpenOptions::default()).unwrap();
        let log = objset(&pool, short);
        assert!(!log.phys().zil_header.log.is_hole(), "{name}/{short} has a log");
        let _survey = survey(std::slice::from_ref(&log), pool.uberblock().txg, u64::MAX);
        let _log = zil::read_log(&log);
        zil::walk(&log, &mut |_| ControlFlow::Continue(()));
        assert!(found[0].errors.figures().is_empty(), "{name}/{short}: {:?}", found[0].errors.figures());
    }
}
