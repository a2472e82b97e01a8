//! The structures of pools and datasets, decoded from random bytes: an error or a value, never a panic, and nothing larger than the input.

use base::Endian;
use ondisk::bpobj::{BpobjPhys, BptreeEntry, BptreePhys};
use ondisk::brt::{BrtVdevPhys, entry_count};
use ondisk::ddt::{DdtHistogram, DdtKey, DdtLogHeader, DdtLogRecord, DdtValue};
use ondisk::dsl::{BookmarkPhys, DeadlistPhys, DslDatasetPhys, DslDirPhys, RedactEntry, RedactionListPhys};
use ondisk::history::HistoryPhys;
use ondisk::scan::{RebuildPhys, ScanPhys};

#[test]
fn noise_never_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..20_000 {
        let len = (next() % 400) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        // many real fields are zeros or ones: mix them in
        if round % 3 == 0 {
            bytes.iter_mut().filter(|b| **b & 3 != 0).for_each(|b| *b = 0);
        }
        let e = if round % 2 == 0 { Endian::Little } else { Endian::Big };
        let words: Vec<u64> = base::bytes::u64s(&bytes, e).collect();
        let _ = DslDirPhys::decode(&bytes, e);
        if let Ok(ds) = DslDatasetPhys::decode(&bytes, e) {
            let _ = ds.bp.validate();
            let _ = DdtKey::of(&ds.bp);
        }
        let _ = DeadlistPhys::decode(&bytes, e);
        let _ = RedactEntry::decode(&bytes, e);
        let _ = BookmarkPhys::from_words(&words);
        if let Ok(list) = RedactionListPhys::decode(&bytes, e) {
            assert!(list.snaps.len() * 8 <= bytes.len());
        }
        let _ = BpobjPhys::decode(&bytes, e);
        let _ = BptreePhys::decode(&bytes, e);
        let _ = BptreeEntry::decode(&bytes, e);
        if let Ok(history) = HistoryPhys::decode(&bytes, e) {
            let _ = history.log_to_phys(next());
        }
        let _ = ScanPhys::from_words(&words);
        let _ = RebuildPhys::from_words(&words);
        let _ = DdtHistogram::from_words(&words);
        let _ = DdtLogHeader::decode(&bytes, e);
        for flat in [false, true] {
            let _ = DdtValue::decode(&bytes, flat, e).map(|v| v.total_refcnt());
            if let Ok(Some((_, used))) = DdtLogRecord::decode(&bytes, flat, e) {
                assert!(used > 0 && used <= bytes.len());
            }
        }
        let _ = BrtVdevPhys::decode(&bytes, e);
        let _ = entry_count(round as u8 % 9, &bytes, e);
    }
}
