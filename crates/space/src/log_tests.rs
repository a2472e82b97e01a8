#![allow(clippy::unwrap_used)]

use base::ObjectId;
use ondisk::spacemap::Entry;
use proptest::prelude::*;

use super::*;
use crate::load_metaslab;

/// Encodes runs as a map in blocks of `block` bytes, padded as OpenZFS pads.
fn encode(
    runs: &[(Action, u64, u64, Option<u32>)],
    block: usize,
    e: Endian,
) -> (SpaceMapHeader, Vec<(Vec<u8>, Endian)>) {
    let mut words: Vec<u64> = Vec::new();
    for (action, offset, run, vdev) in runs {
        let (first, second) = Entry::for_run(*action, *offset, *run, *vdev).unwrap().encode();
        if second.is_some() && (words.len() * 8) % block == block - 8 {
            words.push(Entry::PADDING.encode().0);
        }
        words.push(first);
        words.extend(second);
    }
    let alloc: i64 = runs.iter().map(|r| if r.0 == Action::Alloc { r.2 as i64 } else { -(r.2 as i64) }).sum();
    let raw: Vec<u8> = words.iter().flat_map(|w| e.put_u64(*w)).collect();
    let header = SpaceMapHeader { object: ObjectId(1), length: raw.len() as u64, alloc: alloc << 9, histogram: None };
    let pad = |b: &[u8]| [b, &vec![0xff; block - b.len()][..]].concat();
    (header, raw.chunks(block).map(|b| (pad(b), e)).collect())
}

const MS_SHIFT: u32 = 14;
const UNITS: u64 = 1 << (MS_SHIFT - 9);

/// Random valid allocations and frees, each with its txg.
fn history() -> impl Strategy<Value = Vec<(u64, Action, u64, u64)>> {
    prop::collection::vec((0..2 * UNITS, 1..9u64, any::<bool>()), 0..120).prop_map(|wishes| {
        let (mut used, mut out) = (RangeTree::new(), Vec::new());
        for (n, (start, len, free)) in wishes.into_iter().enumerate() {
            let end = (start + len).min((start / UNITS + 1) * UNITS);
            let (action, done) =
                if free { (Action::Free, used.remove(start..end)) } else { (Action::Alloc, used.add(start..end)) };
            if done.is_ok() {
                out.push((n as u64 / 10, action, start, end - start));
            }
        }
        out
    })
}

proptest! {
    /// However the history is split between the metaslabs' own maps and the logs, the current state is the same.
    #[test]
    fn maps_and_logs_together_give_the_present(history in history(), flushed in [0..13u64, 0..13u64], big in any::<bool>()) {
        let e = if big { Endian::Big } else { Endian::Little };
        let mut now = RangeTree::new();
        for (_, action, start, len) in &history {
            let bytes = start * 512..(start + len) * 512;
            if *action == Action::Alloc { now.add(bytes).unwrap() } else { now.remove(bytes).unwrap() }
        }
        let none = || Unflushed::new([(5, VdevChanges::new(MS_SHIFT, 9, flushed.map(Txg).to_vec()))]);
        let (mut logs, mut all) = (none(), Vec::new());
        for txg in 0..13 {
            let runs: Vec<_> = history.iter().filter(|h| h.0 == txg).map(|h| (h.1, h.2, h.3, Some(5))).collect();
            let (header, blocks) = encode(&runs, 64, e);
            let changes = decode_log(Txg(txg), &header, blocks).unwrap();
            logs.apply(vec![(Txg(txg), changes.clone())]).unwrap();
            all.push((Txg(txg), changes));
        }
        // applied at once or in two parts, the result is the same
        let mut at_once = none();
        let behind = all.split_off(4);
        at_once.apply(all).unwrap();
        at_once.apply(behind).unwrap();
        prop_assert!(at_once.vdev(5).unwrap().iter().eq(logs.vdev(5).unwrap().iter()));
        let mut found = RangeTree::new();
        for ms in 0..2u64 {
            let own: Vec<_> = history
                .iter()
                .filter(|h| h.0 < flushed[ms as usize] && h.2 / UNITS == ms)
                .map(|h| (h.1, h.2 - ms * UNITS, h.3, None))
                .collect();
            let (header, blocks) = encode(&own, 64, e);
            let geometry = MapGeometry::metaslab(ms, MS_SHIFT, 9).unwrap();
            let mut allocated = load_metaslab(&header, geometry, blocks).unwrap();
            if let Some(changes) = logs.vdev(5).unwrap().metaslab(ms) {
                prop_assert!(changes.allocs.iter().all(|r| !changes.frees.intersects(r)));
                changes.update(&mut allocated).unwrap();
            }
            allocated.iter().for_each(|r| found.add(r).unwrap());
        }
        prop_assert_eq!(found, now);
    }

    /// Arbitrary bytes decode to a set or an error.
    #[test]
    fn garbage_is_no_trap(words in prop::collection::vec(any::<u64>(), 0..64), length in 0..600u64, shift in 0..70u32) {
        let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let header = SpaceMapHeader { length, ..SpaceMapHeader::default() };
        let blocks = || raw.chunks(40).map(|b| (b, Endian::Little));
        for geometry in [MapGeometry { start: u64::MAX - 9, size: 1 << 40, shift }, MapGeometry { start: 0, size: u64::MAX, shift }] {
            let _ = load_metaslab(&header, geometry, blocks());
            prop_assert!(SpaceMapReader::new(&header, geometry, blocks()).count() <= 65);
        }
        if let Ok(changes) = decode_log(Txg(1), &header, blocks()) {
            let _ = Unflushed::new([(0, VdevChanges::new(shift, 9, vec![Txg(0); 4]))]).apply(vec![(Txg(1), changes)]);
        }
    }
}

#[test]
fn contradictions_are_errors() {
    let geometry = MapGeometry::metaslab(1, MS_SHIFT, 9).unwrap();
    let load = |runs: &[_]| {
        let (header, blocks) = encode(runs, 64, Endian::Little);
        load_metaslab(&header, geometry, blocks)
    };
    let (a, f) = (Action::Alloc, Action::Free);
    assert_eq!(load(&[(a, 0, 4, None)]).unwrap().segment_at(16384), Some(16384..16384 + 2048));
    assert!(matches!(load(&[(a, 0, 4, None), (a, 3, 1, None)]), Err(Error::Overlap { .. })));
    assert!(matches!(load(&[(a, 0, 4, None), (f, 3, 2, None)]), Err(Error::Absent { .. })));
    assert!(matches!(load(&[(a, UNITS - 1, 2, None)]), Err(Error::OutOfMap { .. })));

    let (header, blocks) = encode(&[(a, 0, 4, None)], 64, Endian::Little);
    let wrong = SpaceMapHeader { alloc: 1, ..header.clone() };
    assert!(matches!(load_metaslab(&wrong, geometry, blocks.clone()), Err(Error::Allocated { .. })));
    let long = SpaceMapHeader { length: 4096, ..header.clone() };
    assert!(load_metaslab(&long, geometry, blocks.clone()).is_err());
    assert!(matches!(decode_log(Txg(3), &header, blocks), Err(Error::NoVdev { txg: Txg(3) })));

    let mut logs = Unflushed::new([(1, VdevChanges::new(MS_SHIFT, 9, vec![Txg(0); 2]))]);
    let mut apply = |txg, vdev, start, end| {
        let applied = logs.apply(vec![(Txg(txg), vec![LogChange { vdev, action: a, start, end }])]);
        applied.map_err(|e| (e.txg.0, e.source))
    };
    apply(5, 1, 0, 512).unwrap();
    apply(5, 9, 0, 512).unwrap();
    assert!(matches!(apply(4, 1, 512, 1024), Err((4, Error::LogOrder { .. }))));
    assert!(matches!(apply(6, 1, 0, 512), Err((6, Error::Overlap { .. }))));
    assert!(matches!(apply(6, 1, 16000, 17000), Err((6, Error::NoMetaslab { .. }))));
    assert!(matches!(apply(6, 1, 1 << 20, (1 << 20) + 512), Err((6, Error::NoMetaslab { .. }))));
    assert!(matches!(apply(6, 1, 512, 0), Err((6, Error::NoMetaslab { .. }))));

    // sectors of 4 KiB, whose maps cannot hold a range that ends between two
    let mut logs = Unflushed::new([(1, VdevChanges::new(MS_SHIFT, 12, vec![Txg(0); 2]))]);
    for (start, end) in [(512, 4096), (4096, 4608)] {
        let odd = logs.apply(vec![(Txg(5), vec![LogChange { vdev: 1, action: a, start, end }])]);
        assert!(matches!(odd.map_err(|e| e.source), Err(Error::NoMetaslab { .. })));
    }
}
