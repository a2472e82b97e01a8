//! Block pointers: their fields, and reads through them.

use base::{Endian, ObjectId};
use codec::ChecksumKind;
use codec::crypt::{DatasetKey, Suite};
use ondisk::{BLKPTR_SIZE, BlkPtr};
use vdev::ReadCx;
use zio::{Bookmark, Error, Scratch, Zio};

use crate::tape;

/// Larger blocks are read rarely, because they take long.
const LARGE: u64 = 64 << 10;
const OBJSET: ObjectId = ObjectId(7);

/// Takes bytes as: an operation, a block pointer, the contents of a pool's devices.
///
/// # Panics
/// On a bug in the library: a pointer does not survive encoding, or the ways to read a block disagree.
pub fn fuzz_blkptr(data: &[u8]) {
    let Some((flags, rest)) = data.split_first() else { return };
    let endian = if flags & 1 == 0 { Endian::Little } else { Endian::Big };
    let Ok(bp) = BlkPtr::decode(rest, endian) else { return };
    assert_eq!(&bp.encode(endian)[..], rest.get(..BLKPTR_SIZE).unwrap_or_default(), "the pointer changes");
    let _ = format!("{bp:?}");
    let large = bp.lsize().max(bp.psize()) > LARGE;
    if large && bp.cksum()[3] % 64 != 0 {
        return;
    }
    let zio = tape::pool(rest.get(BLKPTR_SIZE..).unwrap_or_default());
    zio.set_dynamic_gang(flags & 2 != 0);
    if flags & 4 != 0 {
        let key = DatasetKey::new(Suite::Aes128Gcm, base::Guid(1), u64::from(flags >> 7), &[1; 32], &[2; 64]);
        key.into_iter().for_each(|key| zio.keys().insert(OBJSET, key.into()));
    }
    read(&zio, &bp);
}

/// True if a block has no effective checksum.
fn is_unsummed(bp: &BlkPtr) -> bool {
    matches!(ChecksumKind::from_u8(bp.checksum()), Some(ChecksumKind::Off | ChecksumKind::Noparity))
}

/// Reads a block in every way that the library offers.
pub(crate) fn read(zio: &Zio, bp: &BlkPtr) {
    let bm = Bookmark::new(OBJSET, ObjectId(1), bp.level(), 0);
    let past = zio.read_uncached(bp, &bm);
    let (first, second) = (zio.read(bp, &bm), zio.read(bp, &bm));
    match (&past, &first, &second) {
        (Ok(past), Ok(first), Ok(second)) => {
            assert!(past == first && first == second, "the cache returns different bytes");
            assert_eq!(first.len() as u64, bp.lsize(), "a block has the wrong size");
        }
        (Err(_), Err(_), Err(_)) => {}
        other => panic!("some reads fail: {other:?}"),
    }
    let raw = zio.read_raw(bp, &bm);
    let scrub = zio.verify_block(bp, &bm, &ReadCx::SCRUB, &mut Scratch::default());
    if let Ok(raw) = &raw {
        assert!(bp.is_hole() || raw.len() as u64 == bp.psize(), "a stored block has the wrong size");
    }
    // a scrub checks all that a read checks, for every copy, and more than a raw read (MACs)
    match (&first, &scrub) {
        // without a checksum to tell the copies apart, the scrub may decompress another copy than the read
        (Ok(_), Err(Error::Decompress { .. })) if is_unsummed(bp) => {}
        (Ok(_), Err(e)) => panic!("the block can be read, but the scrub fails with {e}: {:?}, {bp:?}", bp.checksum()),
        (Err(Error::Checksum { .. } | Error::Io { .. }), Ok(_)) => {
            panic!("the block cannot be read, but the scrub succeeds")
        }
        _ => {}
    }
    let _ = zio.read_noauth(bp, &bm);
}
