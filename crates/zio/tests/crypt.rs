//! Encrypted datasets: data, authenticated types, indirect blocks, with and without the key.
#![allow(clippy::unwrap_used)]

mod common;

use base::Endian;
use codec::Compress;
use codec::crypt::indirect_mac;
use common::*;
use ondisk::{BlkPtr, ObjectType};
use vdev::ReadCx;
use zio::{Error, Scratch};

#[test]
fn data_needs_the_key_and_its_mac_is_checked() {
    for (endian, compress) in
        [(Endian::Little, Compress::Off), (Endian::Big, Compress::Lz4), (Endian::Little, Compress::Zstd)]
    {
        let mut pool = Pool::new(2, 1, 9);
        let data = text(8192);
        let bp = pool.write_encrypted(&data, Kind { endian, compress, ..PLAIN }, &[0, 1], &key());
        let zio = pool.open(&[]);
        assert!(matches!(zio.read(&bp, &BM), Err(Error::KeyNotLoaded { .. })));
        let ciphertext = zio.read_raw(&bp, &BM).unwrap();
        assert_eq!(ciphertext.len() as u64, bp.psize());
        let report = zio.verify_block(&bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).unwrap();
        assert_eq!((report.copies, report.authenticated), (2, false));

        zio.keys().insert(BM.objset, key().into());
        assert_eq!(&*zio.read(&bp, &BM).unwrap(), &data);
        assert!(zio.verify_block(&bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).unwrap().authenticated);

        let mut forged = bp;
        forged.words[14] ^= 1;
        let zio = pool.open(&[]);
        zio.keys().insert(BM.objset, key().into());
        assert!(matches!(zio.read(&forged, &BM), Err(Error::Auth { .. })));
        assert!(matches!(
            zio.verify_block(&forged, &BM, &ReadCx::SCRUB, &mut Scratch::default()),
            Err(Error::Auth { .. })
        ));
        // what was decrypted goes with the key
        assert!(zio.read(&bp, &BM).is_ok());
        zio.forget_key(BM.objset);
        assert!(matches!(zio.read(&bp, &BM), Err(Error::KeyNotLoaded { .. })));
    }
}

#[test]
fn authenticated_types_are_readable_without_the_key() {
    let mut pool = Pool::new(1, 1, 9);
    let data = text(8192);
    let kind = Kind { compress: Compress::Lz4, object_type: ObjectType::MASTER_NODE, crypt: true, ..PLAIN };
    let mut bp = pool.write(&data, kind, &[0]);
    let stored = squeeze(&data, Compress::Lz4);
    set_mac(&mut bp, key().authenticate(&stored));
    assert!(bp.is_authenticated() && !bp.is_encrypted());
    let zio = pool.open(&[]);
    assert_eq!(&*zio.read_uncached(&bp, &BM).unwrap(), &data);
    zio.keys().insert(BM.objset, key().into());
    assert_eq!(&*zio.read(&bp, &BM).unwrap(), &data);
    bp.words[15] ^= 1;
    assert!(matches!(pool_with_key(&pool).read(&bp, &BM), Err(Error::Auth { .. })));
}

fn pool_with_key(pool: &Pool) -> zio::Zio {
    let zio = pool.open(&[]);
    zio.keys().insert(BM.objset, key().into());
    zio
}

#[test]
fn indirect_blocks_are_checked_without_the_key() {
    for endian in [Endian::Little, Endian::Big] {
        let mut pool = Pool::new(1, 1, 9);
        let children: Vec<BlkPtr> =
            (0..8).map(|n| pool.write_encrypted(&[n; 1024], Kind { endian, ..PLAIN }, &[0], &key())).collect();
        let mut block: Vec<u8> = children.iter().flat_map(|bp| bp.encode(endian)).collect();
        block.resize(16 << 10, 0);
        let kind = Kind { compress: Compress::Lz4, level: 1, crypt: true, endian, ..PLAIN };
        let mut bp = pool.write(&block, kind, &[0]);
        set_mac(&mut bp, indirect_mac(1, &block, endian));
        let zio = pool.open(&[]);
        assert_eq!(&*zio.read(&bp, &BM).unwrap(), &block);
        assert!(zio.verify_block(&bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).unwrap().authenticated);
        bp.words[15] ^= 1 << 40;
        let zio = pool.open(&[]);
        assert!(matches!(zio.read(&bp, &BM), Err(Error::Auth { .. })));
        assert!(zio.verify_block(&bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).is_err());
    }
}

#[test]
fn dnode_blocks_are_readable_as_they_are() {
    let mut pool = Pool::new(1, 1, 9);
    let key = key();
    let (salt, iv) = (77, [4; 12]);
    let mut dnode = vec![0u8; 1024];
    // a plain file with one pointer and 64 bytes of system attributes
    (dnode[0], dnode[2], dnode[3], dnode[4], dnode[10]) = (19, 1, 1, 44, 64);
    dnode[192..256].fill(0xaa);
    let mut stored = dnode.clone();
    let mac = key.encrypt_dnode_block(salt, iv, &mut stored, Endian::Little).unwrap();
    let kind = Kind { object_type: ObjectType::DNODE, crypt: true, ..PLAIN };
    let mut bp = pool.write(&stored, kind, &[0]);
    bp.words[4] = salt;
    bp.words[5] = u64::from_le_bytes([4; 8]);
    bp.words[11] |= u64::from(u32::from_le_bytes([4; 4])) << 32;
    set_mac(&mut bp, mac);

    let zio = pool.open(&[]);
    assert!(matches!(zio.read(&bp, &BM), Err(Error::KeyNotLoaded { .. })));
    let clear = zio.read_noauth(&bp, &BM).unwrap();
    assert_eq!(&clear[..192], &dnode[..192]);
    assert_ne!(&clear[192..256], &dnode[192..256]);
    zio.keys().insert(BM.objset, key.into());
    assert_eq!(&*zio.read(&bp, &BM).unwrap(), &dnode, "the cached ciphertext is another entry");
}
