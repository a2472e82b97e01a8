#![allow(clippy::unwrap_used)]

use base::{Endian, ObjectId};
use ondisk::spacemap::SpaceMapHeader;
use proptest::prelude::*;

use super::*;
use crate::log::decode_log;
use crate::{SpaceMapReader, load_metaslab};

const BLOCK: u64 = 128;

fn blocks(raw: &[u8]) -> Vec<(Vec<u8>, Endian)> {
    let pad = |b: &[u8]| [b, &vec![0; BLOCK as usize - b.len()][..]].concat();
    raw.chunks(BLOCK as usize).map(|b| (pad(b), Endian::Little)).collect()
}

proptest! {
    /// Batches that are encoded decode to the same changes, for all word sizes.
    #[test]
    fn maps_read_back(
        ranges in prop::collection::vec((0..1u64 << 50, 1..1u64 << 20, any::<bool>()), 1..60),
        v2 in any::<bool>(), log in any::<bool>(),
    ) {
        let geometry = MapGeometry { start: 1 << 40, size: 1 << 60, shift: 9 };
        let vdev = (log && v2).then_some(7);
        let (mut raw, mut alloc, mut expected) = (Vec::new(), 0, Vec::new());
        for (n, (at, len, free)) in ranges.iter().enumerate() {
            let at = if v2 { *at } else { at >> 6 };
            let range = geometry.start + at * 512..geometry.start + (at + len) * 512;
            let action = if *free { Action::Free } else { Action::Alloc };
            let mut encoder = Encoder::new(geometry, raw.len() as u64, BLOCK, v2);
            encoder.batch(action, 3, Txg(n as u64 + 1), &[range.clone()].into_iter().collect(), vdev);
            let (bytes, delta) = encoder.finish();
            raw.extend(bytes);
            alloc += delta;
            expected.push((n as u64 + 1, action, range));
        }
        let header = SpaceMapHeader { object: ObjectId(1), length: raw.len() as u64, alloc, histogram: None };
        let mut found: Vec<(u64, Action, Range<u64>)> = Vec::new();
        for change in SpaceMapReader::new(&header, geometry, blocks(&raw)) {
            let c = change.unwrap();
            prop_assert_eq!(c.pass, 3);
            if vdev.is_some() { prop_assert_eq!(c.vdev, vdev); }
            match found.last_mut().filter(|f| f.0 == c.txg.0) {
                Some(last) => { prop_assert_eq!(last.2.end, c.range.start); last.2.end = c.range.end; }
                None => found.push((c.txg.0, c.action, c.range)),
            }
        }
        let sum: i64 = expected.iter().map(|(_, a, r)| if *a == Action::Alloc { (r.end - r.start) as i64 } else { -((r.end - r.start) as i64) }).sum();
        prop_assert_eq!(alloc, sum);
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn two_words_do_not_straddle_a_block() {
    let geometry = MapGeometry::LOG;
    let mut encoder = Encoder::new(geometry, 0, BLOCK, true);
    let tree: RangeTree = (0..20u64).map(|n| n * 2048..n * 2048 + 512).collect();
    encoder.batch(Action::Free, 1, Txg(9), &tree, Some(3));
    let (raw, delta) = encoder.finish();
    assert_eq!(delta, -20 * 512);
    // the debug word, 7 entries, padding; 8 entries; 5 entries
    assert_eq!(raw.len() as u64, BLOCK + BLOCK + 5 * 16);
    let header = SpaceMapHeader { object: ObjectId(0), length: raw.len() as u64, alloc: delta, histogram: None };
    let log = decode_log(Txg(9), &header, blocks(&raw)).unwrap();
    assert_eq!(log.iter().map(|c| c.start..c.end).collect::<RangeTree>(), tree);
}

#[test]
fn long_runs_need_one_entry_with_two_words_and_many_with_one() {
    let geometry = MapGeometry { start: 0, size: 1 << 40, shift: 9 };
    for (v2, len) in [(true, 16), (false, 8 << 5)] {
        let mut encoder = Encoder::new(geometry, 0, 1 << 17, v2);
        encoder.run(Action::Alloc, &(0..1 << 29), None);
        let (raw, delta) = encoder.finish();
        assert_eq!((raw.len(), delta), (len, 1 << 29));
        let header = SpaceMapHeader { length: raw.len() as u64, alloc: delta, ..SpaceMapHeader::default() };
        assert_eq!(load_metaslab(&header, geometry, [(raw, Endian::Little)]).unwrap().total(), 1 << 29);
    }
}

#[test]
fn histograms_collect_what_is_too_large() {
    let mut histogram = [0; HISTOGRAM_BUCKETS];
    let mut counts = [0u64; 64];
    (counts[9], counts[12], counts[40], counts[44]) = (3, 2, 1, 5);
    add_to_histogram(&mut histogram, counts.into_iter(), 9);
    assert_eq!((histogram[0], histogram[3], histogram[31]), (3, 2, 1 + (5 << 4)));
}

#[test]
fn the_estimate_is_no_less_than_the_truth() {
    let geometry = MapGeometry { start: 0, size: 1 << 34, shift: 9 };
    let free: RangeTree = (0..500u64).map(|n| n << 25..(n << 25) + (512 << (n % 16))).collect();
    let space = FreeSpace::new(&free, 1 << 34, 9);
    for v2 in [false, true] {
        let mut encoder = Encoder::new(geometry, 0, 4096, v2);
        free.iter().for_each(|r| encoder.run(Action::Free, &r, None));
        let real = encoder.finish().0.len() as u64;
        let guess = optimal_length(&space, &geometry, 4096, v2);
        assert!(guess >= real && guess < real * 2, "{guess} {real}");
    }
}
