//! Intent-log blocks: the parts that claiming needs stay clear, the users' data does not.
//!
//! Clear and authenticated: the chain structure without its trailer, each record's common header, the block pointer of a WRITE, and the
//! count and block pointers of a CLONE_RANGE. All other bytes of the records are encrypted. The MAC is in words 2 and 3 of the trailer's
//! checksum. OpenZFS: `zio_crypt_init_uios_zil`.

use base::{Endian, bytes};

use super::parts::Parts;
use crate::Error;

/// Length of the chain structure.
const CHAIN: usize = 184;
/// Offset of its count of bytes in use, which includes the chain structure itself.
const NUSED: usize = 136;
/// Offset of its trailer.
const TRAILER: usize = 144;
/// Offset of the MAC.
const MAC: usize = TRAILER + 8 + 16;

/// Length of a record's common header: type, length, txg, sequence.
const COMMON: usize = 32;
const TX_WRITE: u64 = 9;
/// Offset of the block pointer of a WRITE, within the record; data follows.
const WRITE_BLKPTR: usize = 64;
const WRITE_DATA: usize = 192;
const TX_CLONE_RANGE: u64 = 24;
/// Offset of the count of block pointers of a CLONE_RANGE, within the record; they follow.
const CLONE_NBPS: usize = 64;

const WHAT: &str = "encrypted intent log block";

/// Splits an intent-log block into its parts.
pub(super) fn parse(block: &[u8], endian: Endian, parts: &mut Parts) -> Result<(), Error> {
    let bad = |why| Error::Malformed { what: WHAT, why };
    let end = used(block, endian)?;
    parts.aad.extend(block.get(..TRAILER).unwrap_or_default());
    let mut at = CHAIN;
    while at < end {
        let record = block.get(at..end).unwrap_or_default();
        let (Some(kind), Some(len)) = (bytes::u64(record, 0, endian), bytes::u64(record, 8, endian)) else {
            return Err(bad("a record is truncated"));
        };
        let record =
            usize::try_from(len).ok().and_then(|n| record.get(..n)).ok_or(bad("a record goes beyond the end"))?;
        let clear = match kind {
            TX_WRITE => WRITE_BLKPTR..WRITE_DATA,
            TX_CLONE_RANGE => CLONE_NBPS..record.len(),
            _ => record.len()..record.len(),
        };
        let (Some(common), Some(clear_bytes)) = (record.get(..COMMON), record.get(clear.clone())) else {
            return Err(bad("a record is too short"));
        };
        parts.aad.extend(common);
        parts.aad.extend(clear_bytes);
        for r in [COMMON..clear.start, clear.end..record.len()] {
            if r.start > r.end {
                return Err(bad("a record is too short"));
            }
            if !r.is_empty() {
                parts.encrypted.push(at + r.start..at + r.end);
            }
        }
        at += record.len();
    }
    Ok(())
}

/// Bytes in use, checked against the block.
pub(super) fn used(block: &[u8], endian: Endian) -> Result<usize, Error> {
    let used = bytes::u64(block, NUSED, endian).and_then(|n| usize::try_from(n).ok());
    used.filter(|n| (CHAIN..=block.len()).contains(n))
        .ok_or(Error::Malformed { what: WHAT, why: "impossible count of bytes in use" })
}

/// The MAC stored in the block.
pub(super) fn mac(block: &[u8]) -> Option<[u8; 16]> {
    bytes::array(block, MAC)
}
