//! Compressors, ciphers and blocks with embedded checksums.
//!
//! The input of a decompressor is a byte that chooses the block's size, then the block. The input of the others is the block.

use std::sync::LazyLock;

use base::Endian;
use codec::crypt::{DatasetKey, Suite, indirect_mac, verify_indirect_mac_any};
use codec::{ChecksumKind, Compress, compress, decompress, embedded};

static KEY: LazyLock<Option<DatasetKey>> =
    LazyLock::new(|| DatasetKey::new(Suite::Aes256Gcm, base::Guid(1), 1, &[1; 32], &[2; 64]).ok());

const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];

/// A block either fails to decompress, or its decompressed contents survive compression.
fn expand(kind: Compress, data: &[u8]) {
    let Some((size, block)) = data.split_first() else { return };
    let size = 512usize << (size % 6);
    let mut out = vec![0xa5; size];
    if decompress(kind, block, &mut out).is_err() {
        return;
    }
    if let Some(again) = compress(kind, None, &out, size) {
        assert!(again.len() <= size);
        let mut back = vec![0; size];
        assert_eq!(decompress(kind, &again, &mut back), Ok(()));
        assert!(back == out);
    }
}

/// LZJB.
pub fn fuzz_lzjb(data: &[u8]) {
    expand(Compress::Lzjb, data);
}

/// ZLE.
pub fn fuzz_zle(data: &[u8]) {
    expand(Compress::Zle, data);
}

/// LZ4.
pub fn fuzz_lz4(data: &[u8]) {
    expand(Compress::Lz4, data);
}

/// gzip.
pub fn fuzz_gzip(data: &[u8]) {
    expand(Compress::Gzip1, data);
}

/// zstd.
pub fn fuzz_zstd(data: &[u8]) {
    expand(Compress::Zstd, data);
}

/// Dnode blocks: a block that can be split into its parts is encrypted, and decrypted to the same bytes. (The other way round, a mutated
/// block would never pass its MAC.)
pub fn fuzz_crypt_dnode(data: &[u8]) {
    let Some(key) = KEY.as_ref() else { return };
    for endian in ORDERS {
        let mut block = data.to_vec();
        assert!(key.decrypt_dnode_block(1, [3; 12], [4; 16], &mut block, endian).is_err());
        assert!(block == data);
        if let Ok(mac) = key.encrypt_dnode_block(1, [3; 12], &mut block, endian) {
            assert_eq!(key.decrypt_dnode_block(1, [3; 12], mac, &mut block, endian), Ok(()));
            assert!(block == data);
        }
    }
}

/// Intent-log blocks, in the same way; the bytes beyond those in use are zeroed.
pub fn fuzz_crypt_zil(data: &[u8]) {
    let Some(key) = KEY.as_ref() else { return };
    for endian in ORDERS {
        let mut block = data.to_vec();
        assert!(key.decrypt_zil_block(1, [3; 12], [4; 16], &mut block, endian).is_err());
        assert!(block == data);
        if let Ok(mac) = key.encrypt_zil_block(1, [3; 12], &mut block, endian) {
            assert_eq!(key.decrypt_zil_block(1, [3; 12], mac, &mut block, endian), Ok(()));
            assert!(block.iter().zip(data).all(|(b, d)| b == d || *b == 0));
        }
    }
}

/// Object sets and indirect blocks: only MACs.
pub fn fuzz_crypt_objset(data: &[u8]) {
    let Some(key) = KEY.as_ref() else { return };
    for endian in ORDERS {
        let _ = key.verify_objset(data, endian);
        let mac = indirect_mac(1, data, endian);
        assert_eq!(verify_indirect_mac_any(data, endian, mac), Ok(()));
    }
}

/// Labels, gang headers and intent-log blocks: their embedded checksums.
pub fn fuzz_embedded(data: &[u8]) {
    let _ = embedded::verify_label(data, 0);
    let _ = embedded::verify_gang(data, 1, 2, 3);
    for kind in [ChecksumKind::Zilog, ChecksumKind::Zilog2] {
        for encrypted in [false, true] {
            let _ = embedded::verify_zil(data, kind, &[1, 2, 3, 4], encrypted);
        }
        for endian in ORDERS {
            let mut block = data.to_vec();
            if embedded::seal_zil(&mut block, kind, &[1, 2, 3, 4], None, endian).is_ok() {
                assert_eq!(embedded::verify_zil(&block, kind, &[1, 2, 3, 4], false), Ok(endian));
            }
        }
    }
}
