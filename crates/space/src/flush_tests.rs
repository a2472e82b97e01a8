#![allow(clippy::unwrap_used)]

use super::*;

/// Returns `rows` logs of `blocks` blocks each from txg 100 on, with `dirty` dirty metaslabs last flushed in each.
fn loaded(rows: u64, blocks: u64, dirty: u64) -> LogSpace {
    let logs = (0..rows).map(|n| (Txg(100 + n), ObjectId(n + 1), blocks));
    let metaslabs = (0..rows * dirty).map(|n| ((0, n as u32), Txg(100 + n / dirty.max(1)), true));
    LogSpace::load(1 << 40, logs, metaslabs)
}

#[test]
fn the_block_limit_follows_the_dirty_metaslabs() {
    assert_eq!(loaded(10, 1, 10).block_limit, 1000, "400 % of 100 is below the least");
    assert_eq!(loaded(10, 1, 100).block_limit, 4000);
    assert_eq!(loaded(10, 1, 10_000).block_limit, 131_072);
}

#[test]
fn rows_are_filled_by_blocks_and_by_txgs() {
    // limit 1000 in 10 rows: 100 blocks per row
    let rows: Vec<_> = loaded(30, 50, 1).summary().map(|r| (r.txgs, r.blocks)).collect();
    assert_eq!(rows, vec![(2, 100); 15]);
    // 1000 txgs in 10 rows: 100 txgs per row
    let rows: Vec<_> = loaded(250, 0, 1).summary().map(|r| r.txgs).collect();
    assert_eq!(rows, vec![100, 100, 50]);
}

#[test]
fn nothing_has_to_go_while_there_is_room() {
    // 10 blocks, 1 per txg, limit 1000: the first row (10 dirty) is due in 990 txgs, and the limit of txgs is as near
    let logs = loaded(10, 1, 1);
    assert_eq!(logs.estimate(Txg(110)), 1);
    assert_eq!(LogSpace::new(1 << 40).estimate(Txg(5)), 1);
}

#[test]
fn full_logs_are_flushed_as_fast_as_they_grow() {
    // 20 logs of 50 blocks: all of a limit of 1000. Rows of 2 txgs with 100 blocks and 40 metaslabs.
    let logs = LogSpace { block_limit: 1000, ..loaded(20, 50, 20) };
    assert!(logs.summary().all(|r| (r.txgs, r.blocks, r.dirty) == (2, 100, 40)));
    // the next txg adds 50: room is 1000 − 1000 − 50 = −50, so the first row is due at once: 40 flushes. Then there is room for
    // 50: by txg 3 the second row must be flushed, 80 in 3 txgs; 120 in 5, ...
    assert_eq!(logs.estimate(Txg(120)), 40);
}

#[test]
fn the_projection_looks_beyond_the_first_row() {
    let mut logs = LogSpace::new(1 << 40);
    let row = |start, dirty, blocks| SummaryRow {
        start: Txg(start),
        end: Txg(start),
        txgs: 1,
        metaslabs: dirty,
        dirty,
        blocks,
    };
    logs.summary = [row(1, 2, 100), row(2, 60, 100), row(3, 4, 100)].into();
    (1..4).for_each(|t| {
        logs.logs.insert(Txg(t), Log { object: ObjectId(t), blocks: 100 });
    });
    (logs.blocks, logs.block_limit) = (300, 500);
    // incoming 100; room 500 − 300 − 100 = 100: skip 2 txgs (room −100), ahead 3: row 1: 2 flushes in 3 txgs → 1; room 0:
    // skip 1, ahead 4, room −100: row 2: 62 flushes in 4 txgs → 16; room 0: skip 1, ahead 5: row 3: 66 in 5 → 14
    assert_eq!(logs.estimate(Txg(4)), 16);
    // the log that is being written does not count for the incoming blocks
    logs.logs.insert(Txg(4), Log { object: ObjectId(4), blocks: 0 });
    assert_eq!(logs.estimate(Txg(4)), 16);
}

#[test]
fn the_oldest_goes_first_and_logs_become_obsolete() {
    let mut logs = loaded(3, 10, 2);
    logs.start(Txg(103), ObjectId(50));
    assert_eq!(logs.next_to_flush(Txg(103), 1), Some(((0, 0), true)));
    logs.flushed((0, 0), Txg(103));
    assert!(logs.take_obsolete().is_empty());
    assert_eq!(logs.next_to_flush(Txg(103), 1), Some(((0, 1), true)));
    logs.flushed((0, 1), Txg(103));
    assert_eq!(logs.take_obsolete(), vec![(Txg(100), ObjectId(1))]);
    assert_eq!(logs.next_to_flush(Txg(103), 0), None);
    assert!(logs.dirtied((0, 0), Txg(103)) && !logs.dirtied((0, 0), Txg(103)));
    assert!(logs.dirtied((7, 7), Txg(103)));
    assert!(!logs.dirtied((0, 2), Txg(103)), "is dirty since its own txg");
    logs.close(Txg(103), 4);
    let stats = logs.stats();
    assert_eq!((stats.logs, stats.log_blocks, stats.unflushed_metaslabs, stats.oldest_txg), (3, 24, 6, Txg(101)));
    let sum = |f: fn(&SummaryRow) -> u64| logs.summary().map(f).sum::<u64>();
    assert_eq!((sum(|r| r.metaslabs), sum(|r| r.dirty), sum(|r| r.blocks)), (7, 6, 24));
}

#[test]
fn an_export_flushes_everything_in_one_txg() {
    let mut logs = loaded(5, 10, 3);
    logs.flush_all(FlushAll::Export);
    logs.start(Txg(105), ObjectId(50));
    let mut flushed = 0;
    while let Some((id, dirty)) = logs.next_to_flush(Txg(105), logs.target(Txg(105))) {
        assert!(dirty);
        logs.flushed(id, Txg(105));
        flushed += 1;
    }
    assert_eq!((flushed, logs.mode()), (15, FlushAll::No));
    assert_eq!(logs.take_obsolete().len(), 5);
    logs.close(Txg(105), 1);
    let stats = logs.stats();
    assert_eq!((stats.logs, stats.log_blocks, stats.unflushed_metaslabs), (1, 1, 0));
    assert_eq!(logs.summary().map(|r| (r.metaslabs, r.dirty, r.blocks)).collect::<Vec<_>>(), [(15, 0, 1)]);
}

#[test]
fn a_request_flushes_what_was_there_in_steps() {
    let mut logs = loaded(5, 10, 40);
    logs.flush_all(FlushAll::Request { upto: Txg(104) });
    assert_eq!(logs.progress(), Progress { processed: 0, total: 200, active: true });
    let mut txg = Txg(105);
    while logs.progress().active {
        logs.start(txg, ObjectId(txg.0));
        let mut wanted = logs.target(txg);
        assert_eq!(wanted, 10);
        while let Some((id, dirty)) = logs.next_to_flush(txg, wanted) {
            wanted -= u64::from(dirty);
            logs.flushed(id, txg);
        }
        logs.dirtied((0, 0), txg);
        logs.take_obsolete();
        logs.close(txg, 1);
        txg.0 += 1;
        assert!(txg.0 < 130);
    }
    assert_eq!((txg.0 - 105, logs.progress().processed), (20, 200));
}

#[test]
fn memory_makes_flushes_go_on() {
    let mut logs = loaded(1, 1, 5);
    logs.start(Txg(200), ObjectId(9));
    assert_eq!(logs.next_to_flush(Txg(200), 0), None);
    logs.memory_changed((1 << 30) + 1);
    assert!(logs.exceeds_memory());
    assert!(logs.next_to_flush(Txg(200), 0).is_some());
    logs.memory_changed(-(1 << 30));
    assert!(!logs.exceeds_memory());
    let small = LogSpace { memory: 1 << 20, ..LogSpace::new(1 << 30) };
    assert!(!small.exceeds_memory(), "0.1 % of 1 GiB is a little more than 1 MiB");
    assert!(LogSpace { memory: (1 << 20) + (1 << 17), ..small }.exceeds_memory());
}

#[test]
fn the_txg_limit_is_kept() {
    // a quiet pool: one block per txg, one metaslab dirtied in each of the first 900 txgs
    let mut logs = LogSpace::new(1 << 40);
    let mut oldest_age = 0;
    for t in 1..4000u64 {
        let txg = Txg(t);
        logs.start(txg, ObjectId(t));
        let mut wanted = logs.target(txg);
        while let Some((id, dirty)) = logs.next_to_flush(txg, wanted) {
            wanted -= u64::from(dirty);
            logs.flushed(id, txg);
        }
        logs.take_obsolete();
        logs.dirtied((0, (t % 900) as u32), txg);
        logs.close(txg, 1);
        oldest_age = oldest_age.max(t - logs.stats().oldest_txg.0);
        assert!(logs.summary().count() <= 12, "{:?}", logs.summary);
    }
    assert!(oldest_age <= 1000, "{oldest_age}");
}
