//! Conversion of contents in foreign byte order to little-endian (OpenZFS: `dmu_ot_byteswap`).
//!
//! A block is in the byte order of its writer; its object's type says how its contents are laid out. Everything written here is
//! little-endian, whatever the machine: a big-endian block is converted before it is modified, and so are the contents of a stream or of a
//! dnode's bonus buffer. System attributes (SA) record their own byte order and stay unchanged.

use base::{Endian, bytes};

use crate::zap::{LEAF_CHUNK_SIZE, MZAP_ENT_LEN, ZBT_LEAF, ZBT_MICRO};
use crate::znode::{turn_acl, turn_old_acl, turn_znode};
use crate::{BLKPTR_SIZE, ByteswapClass, DNODE_SIZE, DnodePhys, Error, ObjectType};

/// Converts the contents of a block or of a bonus buffer of this type from byte order `from` to little-endian, in place.
///
/// # Errors
/// [`Error::Invalid`] if the layout is unknown: a type of a newer OpenZFS, or a root block, which is [decoded](crate::ObjsetPhys) instead.
pub fn to_little(object_type: ObjectType, from: Endian, data: &mut [u8]) -> Result<(), Error> {
    if from == Endian::Little {
        return Ok(());
    }
    match object_type.byteswap_class() {
        Some(ByteswapClass::Uint8) => {}
        Some(ByteswapClass::Uint16) => words::<2>(data),
        Some(ByteswapClass::Uint32) => words::<4>(data),
        Some(ByteswapClass::Uint64) => words::<8>(data),
        Some(ByteswapClass::Zap) => zap(data, from),
        Some(ByteswapClass::Dnode) => dnodes(data, from),
        Some(ByteswapClass::Znode) => turn_znode(data, from),
        Some(ByteswapClass::OldAcl) => turn_old_acl(data),
        Some(ByteswapClass::Acl) => turn_acl(data, from),
        Some(ByteswapClass::Objset) | None => {
            let value = object_type.0.into();
            return Err(Error::Invalid { what: "block in foreign byte order", field: "type", value });
        }
    }
    Ok(())
}

/// True if the contents of this type are the same in both byte orders.
#[must_use]
pub fn is_orderless(object_type: ObjectType) -> bool {
    object_type.byteswap_class() == Some(ByteswapClass::Uint8)
}

fn words<const N: usize>(data: &mut [u8]) {
    data.as_chunks_mut::<N>().0.iter_mut().for_each(|word| word.reverse());
}

/// Swaps a word within `data`.
fn word(data: &mut [u8], at: usize, len: usize) {
    if let Some(word) = data.get_mut(at..at.saturating_add(len)) {
        word.reverse();
    }
}

/// Swaps a block of dnodes (OpenZFS: `dnode_buf_byteswap`). Malformed dnodes stay malformed.
fn dnodes(block: &mut [u8], from: Endian) {
    let mut at = 0;
    while let Some(rest) = block.get_mut(at..).filter(|rest| rest.len() >= DNODE_SIZE) {
        let slots = usize::from(rest.get(12).copied().unwrap_or(0)) + 1;
        let free = rest.first() == Some(&ObjectType::NONE.0);
        let size = if free { DNODE_SIZE } else { (slots * DNODE_SIZE).min(rest.len()) };
        if let Some(slot) = rest.get_mut(..size).filter(|_| !free) {
            dnode(slot, from);
        }
        at += size;
    }
}

/// Swaps one dnode with all its slots.
fn dnode(slot: &mut [u8], from: Endian) {
    const CORE: usize = 64;
    let byte = |n: usize| slot.get(n).copied().unwrap_or(0);
    let (pointers, bonus_type, flags) = (usize::from(byte(3)).min(3), ObjectType(byte(4)), byte(7));
    let bonus_len = usize::from(bytes::u16(slot, 10, from).unwrap_or(0));
    for (at, len) in [(8, 2), (10, 2), (16, 8), (24, 8)] {
        word(slot, at, len);
    }
    let bonus = CORE + pointers * BLKPTR_SIZE;
    if let Some(pointers) = slot.get_mut(CORE..bonus) {
        words::<8>(pointers);
    }
    let spill = flags & DnodePhys::FLAG_SPILL_BLKPTR != 0;
    let end = slot.len() - if spill { BLKPTR_SIZE } else { 0 };
    if let Some(place) = slot.get_mut(bonus..bonus.saturating_add(bonus_len).min(end)) {
        // the layout of an unknown type is unknown; a reader of this bonus gets the error
        let _ = to_little(bonus_type, from, place);
    }
    if let Some(spill) = slot.get_mut(end..) {
        words::<8>(spill);
    }
}

/// Swaps a block of a ZAP (OpenZFS: `zap_byteswap`); its first word identifies its kind.
fn zap(block: &mut [u8], order: Endian) {
    match bytes::u64(block, 0, order) {
        Some(ZBT_MICRO) => {
            for (n, entry) in block.as_chunks_mut::<MZAP_ENT_LEN>().0.iter_mut().enumerate() {
                if n == 0 {
                    words::<8>(entry);
                } else {
                    word(entry, 0, 8);
                    word(entry, 8, 4);
                }
            }
        }
        Some(ZBT_LEAF) => leaf(block),
        // the header, and pointer tables
        _ => words::<8>(block),
    }
}

/// Swaps a leaf of a ZAP (OpenZFS: `zap_leaf_byteswap`): its header, the hash table, and the chunks, whose first byte identifies their
/// kind.
fn leaf(block: &mut [u8]) {
    /// Bytes of the header.
    const HEADER: usize = 2 * LEAF_CHUNK_SIZE;
    const ENTRY: u8 = 252;
    const ARRAY: u8 = 251;
    for (at, len) in [(0, 8), (8, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)] {
        word(block, at, len);
    }
    // one bucket per 32 bytes of the block
    let buckets = block.len() / 32 * 2;
    if let Some(table) = block.get_mut(HEADER..HEADER + buckets) {
        words::<2>(table);
    }
    for chunk in block.get_mut(HEADER + buckets..).unwrap_or_default().chunks_exact_mut(LEAF_CHUNK_SIZE) {
        match chunk.first() {
            Some(&ENTRY) => {
                for (at, len) in [(2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 8)] {
                    word(chunk, at, len);
                }
            }
            // bytes, and the link to the next chunk
            Some(&ARRAY) => word(chunk, 22, 2),
            // a free chunk has only the link
            _ => word(chunk, 22, 2),
        }
    }
}

#[cfg(test)]
#[path = "byteswap_tests.rs"]
mod tests;
