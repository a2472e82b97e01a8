//! Gang blocks, classic and dynamic, nested, damaged and hostile.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use base::{Endian, ObjectId};
use codec::{ChecksumKind, Compress, embedded};
use common::*;
use ondisk::gang::GangHeader;
use ondisk::{BlkPtr, Dva, ObjectType};
use vdev::ReadCx;
use zio::{Bookmark, Error, ReadGuard, Scratch, Zio};

/// Writes a header of `size` bytes with `pieces` in all places of `dvas`.
fn put_header(pool: &mut Pool, pieces: Vec<BlkPtr>, size: usize, dvas: &[Dva], kind: Kind) {
    let mut raw = GangHeader { blkptrs: pieces }.encode(size, kind.endian).unwrap();
    embedded::seal_gang(&mut raw, dvas[0].vdev(), dvas[0].offset(), BIRTH, kind.endian);
    if kind.crypt {
        // such headers have half a checksum: fold it as the writer does
        let at = raw.len() - embedded::TRAILER + 8;
        let words: Vec<u64> = raw[at..].as_chunks::<8>().0.iter().map(|b| kind.endian.u64(*b)).collect();
        let folded = ChecksumKind::GangHeader.truncate([words[0], words[1], words[2], words[3]]);
        let bytes: Vec<u8> = folded.into_iter().flat_map(|w| kind.endian.put_u64(w)).collect();
        raw[at..].copy_from_slice(&bytes);
    }
    dvas.iter().for_each(|dva| pool.put(*dva, &raw));
}

/// Writes `stored` as a gang of pieces of `piece` bytes, each with copies on `vdevs`.
fn write_gang(
    pool: &mut Pool,
    stored: &[u8],
    lsize: usize,
    kind: Kind,
    piece: usize,
    header: usize,
    vdevs: &[usize],
) -> BlkPtr {
    let member = Kind { compress: Compress::Off, object_type: ObjectType::NONE, ..kind };
    let pieces = stored.chunks(piece).map(|part| pool.write(part, member, vdevs)).collect();
    let dvas: Vec<Dva> = vdevs.iter().map(|v| pool.alloc(*v, header, true)).collect();
    put_header(pool, pieces, header, &dvas, kind);
    pool.pointer(stored, lsize, kind, &dvas)
}

fn scrub(zio: &Zio, bp: &BlkPtr) -> Result<zio::VerifyReport, Error> {
    zio.verify_block(bp, &BM, &ReadCx::SCRUB, &mut Scratch::default())
}

#[test]
fn pieces_are_put_together_in_both_orders() {
    for endian in [Endian::Little, Endian::Big] {
        let mut pool = Pool::new(2, 1, 9);
        let (data, kind) = (text(12 << 10), Kind { compress: Compress::Lz4, endian, ..PLAIN });
        let stored = squeeze(&data, Compress::Lz4);
        let piece = (stored.len() / 3).next_multiple_of(512);
        let pieces = stored.len().div_ceil(piece) as u32;
        let bp = write_gang(&mut pool, &stored, data.len(), kind, piece, 512, &[0, 1]);
        let zio = pool.open(&[]);
        assert_eq!(&*zio.read(&bp, &BM).unwrap(), &data);
        assert_eq!(&*zio.read_raw(&bp, &BM).unwrap(), &stored);
        let report = scrub(&zio, &bp).unwrap();
        assert_eq!((report.is_clean(), report.copies), (true, 2 + 2 * pieces));

        // a header and a piece lost, each with another copy
        let lost = pool.sides[0][0].clone();
        pool.sides[0][0] = vec![0xee; DISK];
        let zio = pool.open(&[]);
        assert_eq!(&*zio.read(&bp, &BM).unwrap(), &data);
        let report = scrub(&zio, &bp).unwrap();
        assert_eq!((report.copies, report.bad_copies.len() as u32), (1 + pieces, 1 + pieces));
        pool.sides[0][0] = lost;
        assert_eq!(&*pool.open(&[(1, 0)]).read(&bp, &BM).unwrap(), &data);
    }
}

#[test]
fn a_gang_may_hold_gangs() {
    let mut pool = Pool::new(1, 1, 9);
    let (data, member) = (text(6 << 10), Kind { object_type: ObjectType::NONE, ..PLAIN });
    let inner: Vec<BlkPtr> =
        data.chunks(2048).map(|part| write_gang(&mut pool, part, 2048, member, 1024, 512, &[0])).collect();
    let dva = pool.alloc(0, 512, true);
    put_header(&mut pool, inner, 512, &[dva], PLAIN);
    let bp = pool.pointer(&data, data.len(), PLAIN, &[dva]);
    let zio = pool.open(&[]);
    assert_eq!(&*zio.read(&bp, &BM).unwrap(), &data);
    assert_eq!(zio.stats().gangs.get(), 4);
    assert_eq!(scrub(&zio, &bp).unwrap().copies, 4 + 6);
}

#[test]
fn dynamic_headers_are_as_large_as_a_sector_and_old_ones_still_work() {
    let mut pool = Pool::new(1, 1, 12);
    let data = text(20 << 12);
    let new = write_gang(&mut pool, &data, data.len(), PLAIN, 4096, 4096, &[0]);
    let old = write_gang(&mut pool, &data, data.len(), PLAIN, 8 << 12, 512, &[0]);
    let zio = pool.open(&[]);
    assert!(zio.read(&new, &BM).is_err(), "without the feature a header has 512 bytes");
    assert_eq!(&*zio.read(&old, &BM).unwrap(), &data);
    let zio = pool.open(&[]);
    zio.set_dynamic_gang(true);
    assert_eq!(&*zio.read(&new, &BM).unwrap(), &data);
    assert_eq!(&*zio.read(&old, &BM).unwrap(), &data);
    assert_eq!(scrub(&zio, &new).unwrap().copies, 21);
}

#[test]
fn gangs_of_encrypted_datasets_have_half_a_checksum_everywhere() {
    for checksum in [ChecksumKind::Fletcher4, ChecksumKind::Sha256] {
        let (mut pool, key) = (Pool::new(1, 1, 9), key());
        let data = text(6 << 10);
        let kind = Kind { crypt: true, checksum, ..PLAIN };
        // write it whole for the pointer's salt, IV and MAC, then again in pieces
        let whole = pool.write_encrypted(&data, kind, &[0], &key);
        let stored = pool.open(&[]).read_raw(&whole, &BM).unwrap();
        let gang = write_gang(&mut pool, &stored, data.len(), kind, 2048, 512, &[0]);
        let mut bp = whole;
        bp.words[..2].copy_from_slice(&gang.words[..2]);
        let zio = pool.open(&[]);
        assert_eq!(zio.read_raw(&bp, &BM).unwrap(), stored);
        assert!(matches!(zio.read(&bp, &BM), Err(Error::KeyNotLoaded { bm: Bookmark { objset: ObjectId(21), .. } })));
        zio.keys().insert(ObjectId(21), key.into());
        assert_eq!(&*zio.read(&bp, &BM).unwrap(), &data);
        assert!(scrub(&zio, &bp).unwrap().authenticated);
    }
}

#[test]
fn damage_is_named() {
    let mut pool = Pool::new(1, 1, 9);
    let data = text(1536);
    let bp = write_gang(&mut pool, &data, data.len(), PLAIN, 512, 512, &[0]);
    let piece = Dva::new(0, 512, 512, false);
    pool.damage(piece, 0, 3);
    let zio = pool.open(&[]);
    let error = zio.read(&bp, &BM).unwrap_err();
    assert!(matches!(error, Error::Checksum { .. }));
    assert!(error.to_string().contains("gang member 1: DVA 0:200:200"), "{error}");
    assert!(matches!(scrub(&zio, &bp), Err(Error::Checksum { .. })));
    pool.damage(piece, 0, 3);
    pool.damage(bp.dva(0), 0, 3);
    let error = pool.open(&[]).read(&bp, &BM).unwrap_err();
    assert!(error.to_string().contains("gang_header"), "{error}");
}

#[test]
fn hostile_headers_end_in_errors() {
    let read = |make: &dyn Fn(&mut Pool, Dva) -> Vec<BlkPtr>| {
        let mut pool = Pool::new(1, 1, 9);
        let dva = pool.alloc(0, 512, true);
        let pieces = make(&mut pool, dva);
        put_header(&mut pool, pieces, 512, &[dva], PLAIN);
        let bp = pool.pointer(&text(16 << 10), 16 << 10, PLAIN, &[dva]);
        let zio = pool.open(&[]);
        assert!(scrub(&zio, &bp).is_err());
        zio.read(&bp, &BM).unwrap_err().to_string()
    };
    let nested = |pool: &Pool, dva, size: usize| pool.pointer(&text(size), size, PLAIN, &[dva]);
    assert!(read(&|_, _| vec![]).contains("smaller"));
    assert!(read(&|pool, dva| vec![nested(pool, dva, 16 << 10)]).contains("as large as its parent"), "itself");
    assert!(
        read(&|pool, dva| vec![nested(pool, dva, 15 << 10), nested(pool, dva, 1 << 10)]).contains("as large"),
        "itself, smaller"
    );
    assert!(read(&|pool, _| vec![pool.write(&text(17 << 10), PLAIN, &[0])]).contains("larger"));
    assert!(read(&|pool, _| vec![pool.write(&text(8 << 10), PLAIN, &[0]); 3]).contains("larger"));
    assert!(
        read(&|pool, _| vec![BlkPtr { words: pool.write(&text(512), PLAIN, &[0]).words.map(|w| w | 1 << 39) }])
            .contains("impossible")
    );
    // the pieces are fine, but they are not the block
    assert!(read(&|pool, _| vec![pool.write(&[9; 8 << 10], PLAIN, &[0]); 2]).contains("checksum mismatch"));
}

struct Overtaken;

impl ReadGuard for Overtaken {
    fn is_overtaken(&self) -> bool {
        true
    }
}

#[test]
fn a_header_whose_space_is_used_again_is_no_damage() {
    let mut pool = Pool::new(2, 1, 9);
    let bp = write_gang(&mut pool, &text(4096), 4096, PLAIN, 2048, 512, &[0, 1]);
    let zio = pool.open(&[]);
    zio.set_guard(Arc::new(Overtaken));
    assert_eq!(zio.gang_members(&bp, &BM).unwrap().len(), 2);
    bp.dvas().for_each(|dva| pool.damage(dva, 0, 9));
    let zio = pool.open(&[]);
    zio.set_guard(Arc::new(Overtaken));
    for found in [zio.gang_members(&bp, &BM).map(drop), scrub(&zio, &bp).map(drop), zio.read(&bp, &BM).map(drop)] {
        assert!(matches!(found, Err(Error::Overtaken { .. })), "{found:?}");
    }
    assert_eq!(zio.stats().lost.get(), 0, "nothing was lost");
}
