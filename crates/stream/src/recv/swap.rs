//! Contents of the other byte order, made ours (OpenZFS: `dmu_ot_byteswap`).
//!
//! A non-raw stream carries the blocks of its sender's objects in the sender's order. What we write is little-endian, whatever machine that is;
//! attributes alone (SA) tell their order themselves and stay as they are.

use ::base::{Endian, bytes};
use ondisk::ByteswapClass;
use ondisk::zap::{LEAF_CHUNK_SIZE, MZAP_ENT_LEN, ZBT_LEAF, ZBT_MICRO};
use ondisk::znode::{acl_to_native, old_acl_to_native, znode_to_native};

use super::writer::type_of;

/// Changes what a record holds from the stream's order to the one that is written.
///
/// # Errors
/// What the contents are, if it is not known how to change them.
pub(super) fn to_ours(object_type: u32, order: Endian, data: &mut [u8]) -> Result<(), String> {
    if order == Endian::Little {
        return Ok(());
    }
    match type_of(object_type).byteswap_class() {
        Some(ByteswapClass::Uint8) => {}
        Some(ByteswapClass::Uint16) => words::<2>(data),
        Some(ByteswapClass::Uint32) => words::<4>(data),
        Some(ByteswapClass::Uint64) => words::<8>(data),
        Some(ByteswapClass::Zap) => zap(data, order),
        Some(ByteswapClass::Znode) => znode_to_native(data, order),
        Some(ByteswapClass::OldAcl) => old_acl_to_native(data, order),
        Some(ByteswapClass::Acl) => acl_to_native(data, order),
        // blocks of dnodes and object sets do not travel as data
        Some(ByteswapClass::Dnode | ByteswapClass::Objset) | None => {
            return Err(format!("{} in the other byte order", type_of(object_type).name()));
        }
    }
    Ok(())
}

fn words<const N: usize>(data: &mut [u8]) {
    data.as_chunks_mut::<N>().0.iter_mut().for_each(|word| word.reverse());
}

/// A word within `data`, turned round.
fn word(data: &mut [u8], at: usize, len: usize) {
    if let Some(word) = data.get_mut(at..at.saturating_add(len)) {
        word.reverse();
    }
}

/// A block of a ZAP (OpenZFS: `zap_byteswap`): its first word tells which kind it is.
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
        // the header, and tables of pointers
        _ => words::<8>(block),
    }
}

/// A leaf of a ZAP (OpenZFS: `zap_leaf_byteswap`): its header, the hash table, the chunks of the heap, each told by its first byte.
fn leaf(block: &mut [u8]) {
    /// Bytes of the header.
    const HEADER: usize = 2 * LEAF_CHUNK_SIZE;
    const ENTRY: u8 = 252;
    const ARRAY: u8 = 251;
    for (at, len) in [(0, 8), (8, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)] {
        word(block, at, len);
    }
    // a bucket for each 32 bytes of the block
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
            // a free one has nothing but the link
            _ => word(chunk, 22, 2),
        }
    }
}

#[cfg(test)]
#[path = "swap_tests.rs"]
mod tests;
