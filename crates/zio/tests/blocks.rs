//! Ordinary blocks: every checksum and compressor, both byte orders, copies, mirrors, the cache, hostile pointers.
#![allow(clippy::unwrap_used)]

mod common;

use base::{Endian, Errno};
use codec::{ChecksumKind, Compress};
use common::*;
use ondisk::{BlkPtr, Dva};
use vdev::{ReadCx, WindowSource};
use zio::{ArcKey, Error, Scratch};

#[test]
fn every_checksum_and_compressor_in_both_orders() {
    let mut pool = Pool::new(1, 1, 9);
    let data = text(16 << 10);
    let mut written = Vec::new();
    for endian in [Endian::Little, Endian::Big] {
        for checksum in ChecksumKind::ALL.into_iter().filter(|k| !k.is_embedded()) {
            written.push(pool.write(&data, Kind { checksum, endian, ..PLAIN }, &[0]));
        }
        for compress in Compress::ALL.into_iter().filter(|c| *c != Compress::Empty) {
            written.push(pool.write(&data, Kind { compress, endian, ..PLAIN }, &[0]));
        }
    }
    let zio = pool.open(&[]);
    for bp in &written {
        assert_eq!(&*zio.read(bp, &BM).unwrap(), &data, "{bp:?}");
        assert_eq!(zio.read_raw(bp, &BM).unwrap().len() as u64, bp.psize());
        assert!(zio.verify_block(bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).unwrap().is_clean());
    }
    let stats = zio.arc().stats();
    assert_eq!((stats.misses, stats.hits), (written.len() as u64, 0));
}

#[test]
fn holes_are_zeros_and_embedded_blocks_stand_in_their_pointer() {
    let zio = Pool::new(1, 1, 9).open(&[]);
    let mut hole = BlkPtr::HOLE;
    hole.words[6] = 15;
    assert_eq!(&*zio.read(&hole, &BM).unwrap(), &[0; 8192]);
    assert!(zio.read_raw(&hole, &BM).unwrap().is_empty());

    let data = vec![5u8; 4096];
    let payload = codec::compress(Compress::Lz4, None, &data, 112).unwrap();
    let mut padded = payload.clone();
    padded.resize(112, 0);
    let mut places = padded.as_chunks::<8>().0.iter();
    let mut bp = BlkPtr::HOLE;
    for n in (0..16).filter(|n| ![6, 10].contains(n)) {
        bp.words[n] = u64::from_le_bytes(*places.next().unwrap());
    }
    bp.words[6] = 4095 | (payload.len() as u64 - 1) << 25 | (Compress::Lz4 as u64) << 32 | 1 << 39 | 19 << 48 | 1 << 63;
    assert_eq!(&*zio.read(&bp, &BM).unwrap(), &data);
    assert_eq!(&*zio.read_raw(&bp, &BM).unwrap(), &payload);
    assert_eq!(zio.stats().blocks.get(), 0);

    let mut redacted = bp;
    redacted.words[6] |= 2 << 40;
    assert!(matches!(zio.read(&redacted, &BM), Err(Error::Redacted { .. })));
    assert!(matches!(zio.read_raw(&redacted, &BM), Err(Error::Redacted { .. })));
    let mut huge = bp;
    huge.words[6] |= 0x1ff_ffff;
    assert!(matches!(zio.read(&huge, &BM), Err(Error::BadPointer { .. })));
}

#[test]
fn a_bad_copy_is_passed_over_and_a_bad_side_is_named() {
    let mut pool = Pool::new(3, 2, 12);
    let data = text(8192);
    let bp = pool.write(&data, Kind { compress: Compress::Lz4, ..PLAIN }, &[0, 1, 2]);
    pool.damage(bp.dva(0), 0, 100);
    pool.damage(bp.dva(0), 1, 200);
    pool.damage(bp.dva(1), 0, 300);
    let zio = pool.open(&[]);
    assert_eq!(&*zio.read(&bp, &BM).unwrap(), &data);
    assert_eq!(zio.stats().recovered.get(), 1);
    let leaves = zio.stats().leaves();
    assert!(leaves.values().any(|l| l.checksum > 0), "{leaves:?}");

    let report = zio.verify_block(&bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).unwrap();
    assert_eq!((report.copies, report.bad_copies.len()), (2, 1));
    assert_eq!(report.bad_copies[0].dva, bp.dva(0));
    assert_eq!(report.faults.iter().map(|f| f.leaf.0).collect::<Vec<_>>(), [1010]);

    // with the last copy damaged the good one must remain in the scratch: the MAC is taken of it
    let zio = pool.open(&[(1, 1), (2, 0), (2, 1)]);
    let error = zio.read(&bp, &BM).unwrap_err();
    assert!(matches!(error, Error::Checksum { .. }));
    assert_eq!(error.errno(), Errno::ECKSUM);
    let said = error.to_string();
    assert!(said.contains("<21, 4, 0, 7>") && said.contains("DVA 0:0:") && said.contains("fletcher4"), "{said}");
    assert_eq!(zio.stats().lost.get(), 1);
}

#[test]
fn devices_that_are_not_there_are_an_io_error() {
    let mut pool = Pool::new(1, 1, 9);
    let bp = pool.write(&text(512), PLAIN, &[0]);
    let error = pool.open(&[(0, 0)]).read(&bp, &BM).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(error.errno(), Errno::EIO);

    let nowhere = pool.pointer(&text(512), 512, PLAIN, &[Dva::new(9, 0, 512, false), Dva::new(0, 1 << 60, 512, false)]);
    let error = pool.open(&[]).read(&nowhere, &BM).unwrap_err().to_string();
    assert!(error.contains("9"), "{error}");
}

#[test]
fn the_cache_is_used_passed_by_and_bounded() {
    let mut pool = Pool::new(1, 1, 9);
    let blocks: Vec<_> = (0..64u8).map(|n| pool.write(&[n; 4096], PLAIN, &[0])).collect();
    let zio = pool.open_with(&[], 32 * 4096);
    for _ in 0..3 {
        assert_eq!(zio.read(&blocks[0], &BM).unwrap()[0], 0);
    }
    assert_eq!(zio.stats().blocks.get(), 1);
    for (n, bp) in blocks.iter().enumerate() {
        assert_eq!(zio.read_uncached(bp, &BM).unwrap()[0], n as u8);
    }
    assert_eq!(zio.stats().blocks.get(), 64, "the first one came from the cache, the others went past it");
    assert_eq!(zio.arc().stats().hash_elements, 1);
    blocks.iter().for_each(|bp| drop(zio.read(bp, &BM).unwrap()));
    let stats = zio.arc().stats();
    assert!(stats.size <= 32 * 4096 && stats.hash_elements > 20, "{stats:?}");

    // the same place as another pointer, another size: the cache must not answer
    let cached = blocks.iter().rfind(|bp| zio.arc().peek(&ArcKey::of(bp).unwrap()).is_some()).unwrap();
    let mut shorter = *cached;
    shorter.words[6] = base::bytes::with_bits(base::bytes::with_bits(shorter.words[6], 0, 16, 0), 16, 16, 0);
    assert!(zio.read(&shorter, &BM).is_err());
}

#[test]
fn impossible_pointers_are_refused() {
    let mut pool = Pool::new(1, 1, 9);
    let data = text(4096);
    let good = pool.write(&data, Kind { compress: Compress::Lz4, ..PLAIN }, &[0]);
    let zio = pool.open(&[]);
    let read = |low, width, value| {
        let mut bp = good;
        bp.words[6] = base::bytes::with_bits(bp.words[6], low, width, value);
        zio.read(&bp, &BM).unwrap_err()
    };
    assert!(matches!(read(32, 7, 99), Error::Unsupported { what: "compression", .. }));
    assert!(matches!(read(32, 7, 0), Error::Unsupported { what: "compression", .. }));
    assert!(matches!(read(40, 8, 200), Error::Unsupported { what: "checksum", .. }));
    assert!(matches!(read(40, 8, 3), Error::Unsupported { what: "checksum", .. }));
    assert!(matches!(read(0, 16, 0xffff), Error::BadPointer { .. }));
    assert!(matches!(read(16, 16, 0xffff), Error::BadPointer { .. }));
    assert!(matches!(read(32, 7, 2), Error::BadPointer { .. }));
    assert!(matches!(read(32, 7, Compress::Zstd as u64), Error::Decompress { .. }));
    assert!(matches!(read(0, 16, 1), Error::Decompress { .. }), "it expands to more than the pointer says");
}

#[test]
fn a_window_serves_sorted_scrubs() {
    let mut pool = Pool::new(2, 1, 9);
    let kind = Kind { compress: Compress::Lz4, ..PLAIN };
    let blocks: Vec<_> = (0..200).map(|n| pool.write(&text(8192 + 512 * (n % 3)), kind, &[n % 2])).collect();
    let zio = pool.open(&[]);
    let (source, mut scratch) = (WindowSource::default(), Scratch::default());
    let cx = ReadCx { source: &source, ..ReadCx::SCRUB };
    let bytes: u64 = blocks.iter().map(|bp| zio.verify_block(bp, &BM, &cx, &mut scratch).unwrap().bytes).sum();
    assert_eq!(bytes, blocks.iter().map(BlkPtr::psize).sum::<u64>());
}
