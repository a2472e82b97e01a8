//! ZAPs of up to three blocks. The first byte is the byte order, the second log2 of the block size, then the blocks.

use base::Endian;
use dmu::{MatchMode, Zap, normalise};
use ondisk::ObjectType;

use crate::blocks;

/// Number of entries that are looked up.
const LOOKED_UP: usize = 40;

/// Opens, lists, looks up, continues from cookies, counts.
///
/// # Panics
/// On a bug in the library: a cookie leads backwards.
pub fn fuzz_zap(data: &[u8]) {
    let [how, shift, rest @ ..] = data else { return };
    let endian = if how & 1 == 0 { Endian::Little } else { Endian::Big };
    let object = blocks::object(rest, 1 << shift.clamp(&9, &17), ObjectType::ZAP_OTHER, endian);
    let Ok(zap) = Zap::open(object) else { return };
    let Ok(entries) = zap.entries() else { return };
    for entry in entries.map_while(Result::ok).take(LOOKED_UP) {
        let again = zap.entries_from(entry.cookie).ok().and_then(|mut from| from.next());
        if let Some(Ok(found)) = again {
            // entries that OpenZFS does not make (more hash bits, a differentiator that a cookie cannot hold) may be returned again
            let sound = entry.cd < 0xffff && entry.hash.trailing_zeros() >= 36;
            assert!(!sound || (found.hash, found.cd) >= (entry.hash, entry.cd), "a cookie leads backwards");
        }
        let _ = zap.lookup(&entry.name);
        let _ = zap.lookup_norm(&entry.name, MatchMode::Normalize);
        let _ = zap.lookup_norm(&entry.name, MatchMode::NormalizeMatchCase);
        let _ = zap.lookup_key(&entry.key());
        let folded = normalise(&entry.name, 0x52).into_owned();
        assert_eq!(normalise(&folded, 0x52), folded, "normalising twice is normalising once");
    }
    let _ = zap.stats();
}
