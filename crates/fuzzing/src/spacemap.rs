//! Space maps: headers, entries, the resulting range sets, the logs.

use base::{Endian, Txg, bytes};
use ondisk::spacemap::{self, Entry};
use space::log::{Unflushed, VdevChanges, decode_log};
use space::{MapGeometry, SpaceMapHeader, SpaceMapReader, load_free, load_metaslab};

/// Takes bytes as: an operation, the header's bonus (24 bytes), blocks of entries.
///
/// # Panics
/// On a bug in the library: entries or headers do not survive encoding, allocated and free space do not make the whole, a log
/// leaves sets that overlap.
pub fn fuzz_spacemap(data: &[u8]) {
    let Some((flags, rest)) = data.split_first() else { return };
    let Some((bonus, entries)) = rest.split_at_checked(spacemap::SPACE_MAP_HEADER_V0_SIZE) else { return };
    let endian = if flags & 1 == 0 { Endian::Little } else { Endian::Big };
    let Ok(header) = SpaceMapHeader::decode(bonus, endian) else { return };
    assert_eq!(header.encode(endian), bonus, "the header changes");
    let block = 8 << (flags >> 1 & 7);
    let blocks = || entries.chunks(block).map(|b| (b, endian));

    round_trip(entries, endian);
    let geometry = MapGeometry { start: u64::from(flags >> 4) << 34, size: 1 << 34, shift: 9 };
    load(&header, geometry, entries, block, endian);
    let words = entries.len() / 8;
    let count = SpaceMapReader::new(&header, geometry, blocks()).count();
    assert!(count <= words + 1, "more changes than words");
    if let Ok(changes) = decode_log(Txg(9), &header, blocks()) {
        apply(changes);
    }
}

/// A decoded entry encodes to the same words.
fn round_trip(entries: &[u8], endian: Endian) {
    let words: Vec<u64> = bytes::u64s(entries, endian).collect();
    let mut at = 0;
    while let Some((entry, taken)) = words.get(at..).and_then(Entry::decode) {
        let (first, second) = entry.encode();
        let same = |n: usize, mask: u64| words.get(at + n).map(|w| w & mask);
        // two-word entries have two spare bits; a debug entry's action has one unused bit
        let mask = if matches!(entry, Entry::Run { words: 1, .. }) { u64::MAX } else { !(3 << 60) };
        assert_eq!(same(0, mask), Some(first & mask), "{entry:?}");
        assert!(second.is_none() || same(1, u64::MAX) == second, "{entry:?}");
        at += taken;
    }
}

fn load(header: &SpaceMapHeader, geometry: MapGeometry, entries: &[u8], block: usize, endian: Endian) {
    let blocks = || entries.chunks(block).map(|b| (b, endian));
    let Ok(allocated) = load_metaslab(header, geometry, blocks()) else { return };
    let free = load_free(header, geometry, blocks()).unwrap_or_else(|e| panic!("free space does not load: {e}"));
    assert_eq!(allocated.total() + free.total(), geometry.size);
    assert!(allocated.iter().all(|r| !free.intersects(r)));
}

fn apply(changes: Vec<space::log::LogChange>) {
    let vdev = |id: u32| (id, VdevChanges::new(24 + id, 9 + id, vec![Txg(u64::from(id) * 5); 16]));
    let mut unflushed = Unflushed::new([vdev(0), vdev(1), vdev(2)]);
    let _ = unflushed.apply(vec![(Txg(9), changes)]);
    for vdev in (0..3).filter_map(|id| unflushed.vdev(id)) {
        for (_, changed) in vdev.iter() {
            assert!(
                changed.allocs.iter().all(|r| !changed.frees.intersects(r)),
                "unflushed allocations and frees overlap"
            );
        }
    }
}
