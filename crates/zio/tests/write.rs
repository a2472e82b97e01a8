//! Blocks are written and read back: every way in which a block can be stored.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Endian, Env, Errno, ObjectId, Txg, tasks};
use codec::crypt::{DatasetKey, Suite};
use codec::{ChecksumKind, Compress};
use common::writable::{Top, Writable};
use common::{BM, key, text};
use ondisk::{BlkPtr, EmbeddedType, ObjectType, VDEV_LABEL_START_SIZE};
use proptest::prelude::*;
use vdev::testing::{Call, Tapped};
use vdev::{Device, MemoryDevice, ReadCx};
use zio::{
    ArcKey, Bookmark, Buf, CryptParams, Error, HeldWrites, Payload, Scratch, WriteCx, WriteProps, WriteReq, Zio,
};

const TXG: Txg = Txg(100);
const CX: WriteCx = WriteCx { txg: TXG, pass: 1 };
const SUMS: [ChecksumKind; 8] = [
    ChecksumKind::Off,
    ChecksumKind::Fletcher2,
    ChecksumKind::Fletcher4,
    ChecksumKind::Sha256,
    ChecksumKind::Sha512,
    ChecksumKind::Skein,
    ChecksumKind::Edonr,
    ChecksumKind::Blake3,
];

fn pool() -> Writable {
    Writable::new(&[Top::Mirror(2), Top::Mirror(1), Top::Mirror(1)], 9, 24 << 20)
}

fn noise(n: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, n)
}

fn req(data: impl Into<Vec<u8>>, props: WriteProps) -> WriteReq {
    WriteReq { bm: BM, props, payload: Payload::Logical(Buf::from(data.into())), orig: BlkPtr::HOLE, fill: 1 }
}

fn write_one(pool: &Writable, cx: &WriteCx, req: WriteReq) -> BlkPtr {
    pool.zio.write(cx, vec![req]).unwrap()[0]
}

/// Reads from the devices and, first, from the cache.
fn assert_reads(pool: &Writable, bp: &BlkPtr, bm: &Bookmark, data: &[u8]) {
    assert_eq!(&pool.zio.read(bp, bm).unwrap()[..], data, "{bp:?}");
    pool.zio.arc().clear();
    assert_eq!(&pool.zio.read_uncached(bp, bm).unwrap()[..], data, "{bp:?}");
    let report = pool.zio.verify_block(bp, bm, &ReadCx::SCRUB, &mut Scratch::default()).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn every_checksum_compression_and_number_of_copies_comes_back() {
    let pool = pool();
    let datas = [text(512), text(4096), text(128 << 10), noise(4096, 1), noise(64 << 10, 2)];
    let mut reqs = Vec::new();
    for checksum in SUMS {
        for compress in Compress::ALL {
            for (n, data) in datas.iter().enumerate() {
                let copies = 1 + (n as u8 + compress as u8) % 3;
                let props = WriteProps { checksum, compress, copies, ..WriteProps::default() };
                reqs.push((req(data.clone(), props), data));
            }
        }
    }
    for batch in reqs.chunks(64) {
        let pool = if batch.len() % 7 == 0 { &pool } else { &self::pool() };
        let bps = pool.zio.write(&CX, batch.iter().map(|(req, _)| req.clone()).collect()).unwrap();
        for (bp, (req, data)) in bps.iter().zip(batch) {
            assert_reads(pool, bp, &BM, data);
            assert_eq!(bp.checksum(), req.props.checksum as u8);
            assert_eq!(bp.dvas().count(), usize::from(req.props.copies));
            assert_eq!((bp.birth_logical(), bp.birth_physical(), bp.fill()), (TXG, TXG, 1));
            let vdevs: Vec<u64> = bp.dvas().map(|d| d.vdev()).collect();
            assert!(vdevs.windows(2).all(|w| w[0] != w[1]));
        }
        let used: u64 = bps.iter().map(BlkPtr::asize).sum();
        assert_eq!(used, pool.allocated());
        for bp in &bps {
            pool.zio.free(Txg(101), bp).unwrap();
        }
        assert_eq!(pool.allocated(), 0);
    }
}

#[test]
fn zeros_become_holes_that_know_their_birth() {
    let pool = pool();
    let lz4 = WriteProps { compress: Compress::Lz4, level: 1, object_type: ObjectType::DNODE, ..WriteProps::default() };
    let first = write_one(&pool, &CX, req(vec![0; 8192], lz4.clone()));
    assert_eq!(first, BlkPtr::HOLE);
    let old = write_one(&pool, &CX, req(text(8192), lz4.clone()));
    let later = WriteCx { txg: Txg(101), pass: 1 };
    let hole = write_one(&pool, &later, WriteReq { orig: old, ..req(vec![0; 8192], lz4.clone()) });
    assert!(hole.is_hole());
    assert_eq!((hole.birth_logical(), hole.lsize(), hole.level()), (Txg(101), 8192, 1));
    assert_eq!(hole.object_type(), ObjectType::DNODE);
    pool.zio.set_hole_birth(false);
    let hole = write_one(&pool, &later, WriteReq { orig: old, ..req(vec![0; 8192], lz4) });
    assert_eq!(hole, BlkPtr::HOLE);
    // without compression zeros are data; "empty" finds them
    let stored = write_one(&pool, &CX, req(vec![0; 4096], WriteProps::default()));
    assert!(!stored.is_hole());
    let empty = WriteProps { compress: Compress::Empty, ..WriteProps::default() };
    assert!(write_one(&pool, &CX, req(vec![0; 4096], empty.clone())).is_hole());
    let bp = write_one(&pool, &CX, req(text(4096), empty));
    assert_eq!(bp.compression(), Compress::Off as u8);
    assert_reads(&pool, &bp, &BM, &text(4096));
}

#[test]
fn little_data_stands_in_the_pointer() {
    let pool = pool();
    let mut data = vec![0; 4 << 10];
    data[3000..3030].copy_from_slice(&noise(30, 1));
    let props = WriteProps { compress: Compress::Lz4, embed: true, ..WriteProps::default() };
    let bp = write_one(&pool, &CX, req(data.clone(), props.clone()));
    assert!(bp.is_embedded() && bp.psize() <= 112);
    assert_eq!((bp.lsize(), bp.birth_logical(), bp.embedded_type()), (4 << 10, TXG, Some(EmbeddedType::Data)));
    assert_reads(&pool, &bp, &BM, &data);
    for other in [
        WriteProps { embed: false, ..props.clone() },
        WriteProps { level: 1, ..props.clone() },
        WriteProps { object_type: ObjectType::DNODE, ..props.clone() },
    ] {
        let bp = write_one(&pool, &CX, req(data.clone(), other));
        assert!(!bp.is_embedded());
        assert_eq!(bp.psize(), 512);
        assert_reads(&pool, &bp, &BM, &data);
    }
    // given as such
    let payload = Payload::Embedded {
        bytes: Buf::from(b"hello".to_vec()),
        lsize: 5,
        compress: Compress::Off,
        kind: EmbeddedType::Data,
        byteorder: Endian::Big,
    };
    let bp = write_one(&pool, &CX, WriteReq { payload, ..req([], props) });
    assert_eq!(&pool.zio.read_raw(&bp, &BM).unwrap()[..], b"hello");
    assert_eq!(bp.endian(), Endian::Big);
    assert_eq!(pool.zio.write(&CX, vec![]).unwrap(), vec![]);
}

#[test]
fn compression_that_saves_too_little_is_not_used() {
    // of 16 sectors one can be saved: less than an eighth
    let mut data = noise(8192, 9);
    data[..700].fill(0);
    let props = WriteProps { compress: Compress::Lz4, ..WriteProps::default() };
    let pool9 = pool();
    let bp = write_one(&pool9, &CX, req(data.clone(), props.clone()));
    assert_eq!((bp.compression(), bp.psize()), (Compress::Off as u8, 8192));
    data[..2000].fill(0);
    let bp = write_one(&pool9, &CX, req(data.clone(), props.clone()));
    assert_eq!((bp.compression(), bp.psize()), (Compress::Lz4 as u8, 6656));
    // with sectors of 4 KiB the same saves nothing
    let pool12 = Writable::new(&[Top::Mirror(1)], 12, 24 << 20);
    let bp = write_one(&pool12, &CX, req(data.clone(), props.clone()));
    assert_eq!((bp.compression(), bp.psize()), (Compress::Off as u8, 8192));
    data[..5000].fill(0);
    let bp = write_one(&pool12, &CX, req(data.clone(), props.clone()));
    assert_eq!((bp.compression(), bp.psize()), (Compress::Lz4 as u8, 4096));
    assert_reads(&pool12, &bp, &BM, &data);
    // from the eighth pass on a block of this txg that has outgrown its place keeps its size
    let late = WriteCx { txg: TXG, pass: 8 };
    let bp = write_one(&pool12, &late, WriteReq { orig: bp, ..req(noise(8192, 9), props) });
    assert_eq!((bp.compression(), bp.psize()), (Compress::Off as u8, 8192));
}

#[test]
fn a_block_that_shrinks_in_a_later_pass_stays_where_it_is() {
    let pool = pool();
    let props = WriteProps { compress: Compress::Lz4, object_type: ObjectType::SPACE_MAP, ..WriteProps::default() };
    let mut data = noise(16 << 10, 1);
    data[3000..].fill(0);
    let old = write_one(&pool, &CX, req(data.clone(), props.clone()));
    let (mut bp, taken) = (old, pool.allocated());
    for pass in [2, 5, 8, 20] {
        data[..1000 + pass as usize].fill(pass as u8);
        bp = write_one(&pool, &WriteCx { txg: TXG, pass }, WriteReq { orig: bp, ..req(data.clone(), props.clone()) });
        assert_eq!((bp.dva(0), bp.psize()), (old.dva(0), old.psize()), "pass {pass}");
        assert_reads(&pool, &bp, &BM, &data);
    }
    assert_eq!(pool.allocated(), taken);
}

#[test]
fn encrypted_blocks_of_every_suite_come_back() {
    let suites = [3, 4, 5, 6, 7, 8].map(|n| Suite::from_u64(n).unwrap());
    for suite in suites {
        let pool = pool();
        pool.zio
            .keys()
            .insert(BM.objset, Arc::new(DatasetKey::new(suite, base::Guid(1), 1, &[3; 32], &[9; 64]).unwrap()));
        let base = WriteProps { encrypt: true, copies: 3, embed: true, ..WriteProps::default() };
        let types =
            [ObjectType::PLAIN_FILE_CONTENTS, ObjectType::DIRECTORY_CONTENTS, ObjectType::MASTER_NODE, ObjectType::SA];
        for (object_type, checksum) in types.into_iter().flat_map(|t| SUMS.map(|s| (t, s))) {
            let props = WriteProps { object_type, checksum, compress: Compress::Lz4, ..base.clone() };
            for data in [text(8192), noise(4096, 3)] {
                let bp = write_one(&pool, &CX, req(data.clone(), props.clone()));
                assert!(bp.uses_crypt() && !bp.is_embedded());
                assert_eq!(bp.dvas().count(), if object_type.is_encrypted() { 2 } else { 3 });
                assert_eq!(bp.fill(), 1);
                assert_reads(&pool, &bp, &BM, &data);
                if object_type.is_encrypted() {
                    assert_ne!(&pool.zio.read_raw(&bp, &BM).unwrap()[..64], &data[..64]);
                }
            }
        }
        // without the key there is no way in
        let other = Bookmark { objset: ObjectId(77), ..BM };
        let refused = pool.zio.write(&CX, vec![WriteReq { bm: other, ..req(text(4096), base.clone()) }]);
        assert!(matches!(refused, Err(Error::KeyNotLoaded { bm }) if bm == other));
        // nor two times the same initialisation vector
        let twice = [0, 1].map(|_| write_one(&pool, &CX, req(text(4096), base.clone())));
        assert_ne!(twice[0].iv(), twice[1].iv());
        assert_eq!(twice[0].salt(), twice[1].salt());
    }
}

#[test]
fn indirect_blocks_object_sets_and_dnodes_of_encrypted_datasets_have_their_macs() {
    let pool = pool();
    pool.zio.keys().insert(BM.objset, Arc::new(key()));
    let base = WriteProps { encrypt: true, compress: Compress::Lz4, ..WriteProps::default() };
    let leaf = write_one(&pool, &CX, req(text(4096), base.clone()));
    let mut pointers = vec![0; 16 << 10];
    pointers[..128].copy_from_slice(&leaf.encode(Endian::Little));
    let above = WriteProps { level: 1, copies: 2, ..base.clone() };
    let bp = write_one(&pool, &CX, req(pointers.clone(), above));
    assert!(bp.has_indirect_mac() && bp.compression() == Compress::Lz4 as u8);
    assert_reads(&pool, &bp, &BM, &pointers);

    let objset = WriteProps { object_type: ObjectType::OBJSET, compress: Compress::Empty, copies: 3, ..base.clone() };
    let mut block = vec![0; 4096];
    block[704] = 2;
    block[2] = 17;
    block[1] = 14;
    block[3] = 1;
    let bp = write_one(&pool, &CX, req(block.clone(), objset));
    assert_eq!(bp.dvas().count(), 3);
    let back = pool.zio.read(&bp, &BM).unwrap();
    pool.zio.arc().clear();
    assert_eq!(pool.zio.read(&bp, &BM).unwrap(), back);
    assert_ne!(back[720..752], [0; 32]);
    assert_eq!(back[..704], block[..704]);

    let dnodes = WriteProps { object_type: ObjectType::DNODE, compress: Compress::Empty, ..base };
    let mut block = vec![0; 16 << 10];
    // a dnode with an encrypted bonus (system attributes)
    block[..12].copy_from_slice(&[19, 17, 1, 1, 44, 7, 0, 0, 8, 0, 168, 0]);
    block[192..360].copy_from_slice(&noise(168, 4));
    let bp = write_one(&pool, &CX, req(block.clone(), dnodes));
    assert_reads(&pool, &bp, &BM, &block);
    let clear = pool.zio.read_noauth(&bp, &BM).unwrap();
    assert_eq!(clear[..192], block[..192]);
    assert_ne!(clear[192..360], block[192..360]);
}

#[test]
fn raw_blocks_are_stored_as_they_are() {
    let (from, to) = (pool(), pool());
    from.zio.keys().insert(BM.objset, Arc::new(key()));
    to.zio.keys().insert(BM.objset, Arc::new(key()));
    let props = WriteProps { encrypt: true, compress: Compress::Zstd, ..WriteProps::default() };
    let bp = write_one(&from, &CX, req(text(32 << 10), props.clone()));
    let payload = Payload::Stored {
        bytes: from.zio.read_raw(&bp, &BM).unwrap(),
        lsize: bp.lsize(),
        compress: Compress::Zstd,
        crypt: Some(CryptParams { salt: bp.salt(), iv: bp.iv(), mac: bp.mac() }),
        byteorder: Endian::Little,
    };
    let there = write_one(&to, &CX, WriteReq { payload, ..req([], props) });
    assert_eq!((there.salt(), there.iv(), there.mac()), (bp.salt(), bp.iv(), bp.mac()));
    assert_reads(&to, &there, &BM, &text(32 << 10));
    // compressed, not encrypted, and in another byte order
    let bytes = Buf::from(codec::compress(Compress::Lz4, None, &text(8192), 8192).unwrap());
    let payload = Payload::Stored { bytes, lsize: 8192, compress: Compress::Lz4, crypt: None, byteorder: Endian::Big };
    let bp = write_one(&to, &CX, WriteReq { payload, ..req([], WriteProps::default()) });
    assert_eq!(bp.endian(), Endian::Big);
    assert_reads(&to, &bp, &BM, &text(8192));
}

#[test]
fn blocks_too_large_for_any_range_are_ganged() {
    for (copies, dynamic, ashift, encrypt) in
        [(1, false, 9, false), (2, false, 9, true), (3, false, 12, false), (2, true, 12, false), (1, true, 12, true)]
    {
        let pool = Writable::new(&[Top::Mirror(2), Top::Mirror(1), Top::Mirror(1)], ashift, 24 << 20);
        pool.zio.keys().insert(BM.objset, Arc::new(key()));
        pool.zio.set_dynamic_gang(dynamic);
        pool.space.largest.store(8192, Ordering::Relaxed);
        let props = WriteProps { copies, gang_copies: copies + 1, encrypt, ..WriteProps::default() };
        let datas = [text(4096), text(16 << 10), noise(128 << 10, 5), text(1 << 20)];
        let bps = pool.zio.write(&CX, datas.iter().map(|d| req(d.clone(), props.clone())).collect()).unwrap();
        for (bp, data) in bps.iter().zip(&datas) {
            assert_eq!(bp.is_gang(), data.len() > 8192);
            assert_reads(&pool, bp, &BM, data);
        }
        // more pointers would have saved a level, where more are possible
        assert_eq!(pool.zio.take_outgrown_gangs(), !dynamic && ashift > 9);
        assert!(!pool.zio.take_outgrown_gangs());
        let pieces = |bp| pool.zio.gang_members(bp, &BM).unwrap().len();
        assert_eq!((pieces(&bps[1]), pieces(&bps[2])), if dynamic { (2, 16) } else { (2, 3 + 9 + 18) }, "large pieces");
        let members = pool.zio.gang_members(&bps[3], &BM).unwrap();
        assert_eq!(members.iter().any(BlkPtr::is_gang), !dynamic || (1 << 20) / 31 > 8192);
        // the addresses of a gang count what lies below them; header copies have none
        let total: u64 = pool.allocated();
        assert!(bps.iter().map(BlkPtr::asize).sum::<u64>() <= total);
        for bp in &bps {
            pool.zio.free(Txg(101), bp).unwrap();
        }
        assert_eq!(pool.allocated(), 0);
        for bp in &bps[..1] {
            pool.zio.claim(Txg(102), bp).unwrap();
            assert!(pool.zio.claim(Txg(102), bp).is_err());
        }
    }
}

#[test]
fn what_a_slow_reader_of_an_earlier_pass_keeps_is_not_taken_for_what_the_block_is_now() {
    let pool = pool();
    let props = WriteProps { object_type: ObjectType::SPACE_MAP, ..WriteProps::default() };
    let old = write_one(&pool, &CX, req(noise(16 << 10, 1), props.clone()));
    let read = pool.zio.read(&old, &BM).unwrap();
    let pass2 = WriteCx { txg: TXG, pass: 2 };
    let new = write_one(&pool, &pass2, WriteReq { orig: old, ..req(noise(16 << 10, 2), props) });
    assert_eq!(new.dva(0), old.dva(0));
    // what is new did not stay in the cache for long, and then the reader comes
    pool.zio.arc().clear();
    pool.zio.arc().insert(&ArcKey::of(&old).unwrap(), &read);
    assert_reads(&pool, &new, &BM, &noise(16 << 10, 2));
}

#[test]
fn a_later_pass_overwrites_in_place() {
    let pool = pool();
    let props = WriteProps { copies: 2, object_type: ObjectType::SPACE_MAP, ..WriteProps::default() };
    let old = write_one(&pool, &CX, req(noise(16 << 10, 1), props.clone()));
    let pass2 = WriteCx { txg: TXG, pass: 2 };
    let again = |cx: &WriteCx, orig: &BlkPtr, data: &[u8]| {
        write_one(&pool, cx, WriteReq { orig: *orig, ..req(data.to_vec(), props.clone()) })
    };
    let new = again(&pass2, &old, &noise(16 << 10, 2));
    assert_eq!((new.dva(0), new.dva(1)), (old.dva(0), old.dva(1)));
    assert_ne!(new.cksum(), old.cksum());
    assert_reads(&pool, &new, &BM, &noise(16 << 10, 2));
    // not in the first pass, not in another txg, not at another size
    assert_ne!(again(&CX, &new, &noise(16 << 10, 3)).dva(0), old.dva(0));
    assert_ne!(again(&WriteCx { txg: Txg(101), pass: 2 }, &new, &noise(16 << 10, 3)).dva(0), old.dva(0));
    assert_ne!(again(&pass2, &new, &noise(8 << 10, 3)).dva(0), old.dva(0));
    // gang blocks too
    for dynamic in [false, true] {
        pool.zio.set_dynamic_gang(dynamic);
        pool.space.largest.store(1024, Ordering::Relaxed);
        let old = again(&CX, &BlkPtr::HOLE, &noise(16 << 10, 4));
        let before = pool.allocated();
        let new = again(&pass2, &old, &noise(16 << 10, 5));
        assert!(new.is_gang());
        assert_eq!((new.dva(0), pool.allocated()), (old.dva(0), before));
        assert_reads(&pool, &new, &BM, &noise(16 << 10, 5));
    }
}

#[test]
fn an_equal_block_is_not_written_again() {
    let pool = pool();
    let props =
        WriteProps { checksum: ChecksumKind::Sha256, compress: Compress::Lz4, nopwrite: true, ..Default::default() };
    let old = write_one(&pool, &CX, req(text(8192), props.clone()));
    let later = WriteCx { txg: Txg(105), pass: 1 };
    let again = |props: &WriteProps, data: Vec<u8>| {
        write_one(&pool, &later, WriteReq { orig: old, ..req(data, props.clone()) })
    };
    let before = pool.allocated();
    assert_eq!(again(&props, text(8192)), old);
    assert_eq!(pool.allocated(), before);
    let mut other = text(8192);
    other[100] ^= 1;
    assert_ne!(again(&props, other), old);
    assert_ne!(again(&WriteProps { copies: 2, ..props.clone() }, text(8192)), old);
    assert_ne!(again(&WriteProps { nopwrite: false, ..props.clone() }, text(8192)), old);
    assert_ne!(again(&WriteProps { checksum: ChecksumKind::Sha512, ..props }, text(8192)), old);
}

/// Counts nothing.
struct NoClones;

impl zio::CloneTable for NoClones {
    fn add(&self, _txg: Txg, _bp: &BlkPtr) {}

    fn release(&self, _txg: Txg, _bp: &BlkPtr) -> Result<bool, zio::TableError> {
        Ok(false)
    }
}

#[test]
fn a_moved_block_keeps_its_birth_and_a_clone_its_place() {
    let pool = pool();
    let old = write_one(&pool, &CX, req(text(8192), WriteProps::default()));
    let later = WriteCx { txg: Txg(105), pass: 1 };
    let props = WriteProps { rewrite: true, ..WriteProps::default() };
    let moved = write_one(&pool, &later, WriteReq { orig: old, ..req(text(8192), props) });
    assert_eq!((moved.birth_logical(), moved.birth_physical()), (TXG, Txg(105)));
    assert!(moved.is_rewritten());
    assert_reads(&pool, &moved, &BM, &text(8192));
    let of_clone = || WriteReq { payload: Payload::Clone(old), ..req([], WriteProps::default()) };
    // a second pointer that nobody counts would be freed as if it were the last
    assert!(matches!(pool.zio.write(&later, vec![of_clone()]), Err(Error::Bug { .. })));
    pool.zio.set_clones(Arc::new(NoClones));
    let clone = write_one(&pool, &later, of_clone());
    assert_eq!((clone.dva(0), clone.birth_logical(), clone.birth_physical()), (old.dva(0), Txg(105), TXG));
    assert_reads(&pool, &clone, &BM, &text(8192));
}

#[test]
fn small_batches_are_held_and_go_out_side_by_side() {
    let pool = pool();
    let bm = Bookmark { objset: ObjectId(0), ..BM };
    let props = WriteProps { object_type: ObjectType::DNODE, ..WriteProps::default() };
    let batch = |data: &[u8]| vec![WriteReq { bm, ..req(data, props.clone()) }];
    let write = |data: &[u8], held: &mut HeldWrites| pool.zio.write_or_hold(&CX, batch(data), held).unwrap()[0];
    let small = [noise(4096, 1), noise(16384, 2), noise(512, 3)];
    let mut held = HeldWrites::default();
    let pointers = small.each_ref().map(|data| write(data, &mut held));
    assert_eq!(pool.zio.stats().written.get(), 0);
    // a large one does not wait
    let large = noise(2 << 20, 4);
    let bp = write(&large, &mut held);
    assert_eq!((pool.zio.stats().written.get(), pool.zio.stats().written_mos.get()), (1, 1));
    assert_reads(&pool, &bp, &bm, &large);
    pool.zio.write_held(&CX, held).unwrap();
    assert_eq!((pool.zio.stats().written.get(), pool.zio.stats().written_mos.get()), (4, 2));
    pointers.iter().zip(&small).for_each(|(bp, data)| assert_reads(&pool, bp, &bm, data));

    let taken = pool.allocated();
    let mut held = HeldWrites::default();
    write(&small[0], &mut held);
    assert!(pool.allocated() > taken);
    pool.zio.drop_held(&CX, held);
    assert_eq!(pool.allocated(), taken);
    assert_eq!(pool.zio.stats().written.get(), 4);
}

#[test]
fn a_failed_batch_leaves_nothing_allocated() {
    let pool = pool();
    let props = WriteProps { copies: 2, ..WriteProps::default() };
    // several chunks, so that some are on their way when the space ends
    let batch = |n: u64| (0..n).map(|i| req(noise(128 << 10, i), props.clone())).collect::<Vec<_>>();
    let kept = pool.zio.write(&CX, batch(3)).unwrap();
    let before = pool.allocated();
    pool.space.left.store(6 << 20, Ordering::Relaxed);
    for n in [60, 200] {
        let failed = pool.zio.write(&CX, batch(n));
        assert!(matches!(failed, Err(Error::NoSpace { .. })), "{failed:?}");
        assert_eq!(failed.unwrap_err().errno(), Errno::ENOSPC);
        assert_eq!(pool.allocated(), before);
        assert_eq!(pool.space.left.load(Ordering::Relaxed), 6 << 20);
    }
    assert_reads(&pool, &kept[2], &BM, &noise(128 << 10, 2));
    // an impossible block fails the batch as well
    let mut broken = batch(2);
    broken.push(req(vec![1; 100], props.clone()));
    assert!(matches!(pool.zio.write(&CX, broken), Err(Error::BadRequest { .. })));
    assert_eq!(pool.allocated(), before);
    let bytes = Writable::new(&[Top::Mirror(1)], 9, 24 << 20);
    bytes.zio.close_write();
    assert!(matches!(bytes.zio.write(&CX, batch(1)), Err(Error::ReadOnly { .. })));
}

#[test]
fn large_batches_are_cut_and_come_back_in_order() {
    let pool = Writable::new(&[Top::Raidz(4, 1), Top::Raidz(4, 1)], 12, 32 << 20);
    let reqs: Vec<WriteReq> = (0..400u64)
        .map(|n| {
            let size = 512 << (n % 9);
            let compress = if n % 3 == 0 { Compress::Lz4 } else { Compress::Off };
            let bm = Bookmark { blkid: n, ..BM };
            let data = if n % 3 == 0 { text(size) } else { noise(size, n) };
            WriteReq { bm, ..req(data, WriteProps { compress, ..WriteProps::default() }) }
        })
        .collect();
    let bps = pool.zio.write(&CX, reqs.clone()).unwrap();
    for (bp, req) in bps.iter().zip(&reqs) {
        let Payload::Logical(data) = &req.payload else { unreachable!() };
        assert_reads(&pool, bp, &req.bm, data);
    }
}

#[test]
fn under_a_seeded_environment_the_same_bytes_are_written() {
    let run = || {
        let pool = pool();
        pool.zio.set_env(Env::seeded(42));
        pool.zio.keys().insert(BM.objset, Arc::new(key()));
        let reqs = |from: u64| {
            (from..from + 150).map(|n| {
                let encrypt = n % 2 == 0;
                let props = WriteProps { encrypt, compress: Compress::Zstd, copies: 2, ..WriteProps::default() };
                req(if n % 3 == 0 { text(64 << 10) } else { noise(64 << 10, n) }, props)
            })
        };
        let bps = tasks::inline(|| {
            let mut bps = pool.zio.write(&CX, reqs(0).take(20).collect()).unwrap();
            bps.extend(pool.zio.write(&CX, reqs(40).collect()).unwrap());
            bps
        });
        (bps, pool.snapshot())
    };
    let (a, b) = (run(), run());
    assert_eq!(a.0, b.0);
    assert!(a.1 == b.1);
}

#[test]
fn a_bad_copy_is_healed_by_a_scrub_and_by_no_read() {
    let pool = pool();
    let props = WriteProps { copies: 2, ..WriteProps::default() };
    let bp = write_one(&pool, &CX, req(noise(8192, 1), props));
    pool.zio.arc().clear();
    // one side of the mirror, then both sides of the first copy
    for sides in [&[1][..], &[0, 1]] {
        sides.iter().for_each(|side| pool.damage(0, *side, bp.dva(0).offset() + 77));
        let found = pool.zio.verify_block(&bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).unwrap();
        assert!(!found.is_clean());
        let heal = ReadCx { heal: true, ..ReadCx::SCRUB };
        let healed = pool.zio.verify_block(&bp, &BM, &heal, &mut Scratch::default()).unwrap();
        assert!(!healed.is_clean() && healed.healed > 0);
        assert_reads(&pool, &bp, &BM, &noise(8192, 1));
        pool.zio.arc().clear();
    }
    pool.damage(0, 0, bp.dva(0).offset() + 77);
    pool.damage(0, 1, bp.dva(0).offset() + 77);
    assert_eq!(&pool.zio.read_uncached(&bp, &BM).unwrap()[..], noise(8192, 1));
    // whoever only reads may hold a pointer that is older than what lies there now
    assert!(!pool.zio.verify_block(&bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).unwrap().is_clean());
}

/// A device that takes no writes to some of its bytes, though it should.
fn stuck(device: MemoryDevice, bytes: Range<u64>) -> Arc<dyn Device> {
    let pass = move |call: &Call| match call {
        Call::Write(_) if call.meets(&bytes) => Err(std::io::Error::other("stuck")),
        _ => Ok(()),
    };
    Arc::new(Tapped::new(Arc::new(device), pass))
}

#[test]
fn the_block_that_devices_fail_to_write_is_told_of_and_counts_once() {
    let pool = Writable::new(&[Top::Mirror(1)], 9, 24 << 20);
    // the second of three
    let bad = VDEV_LABEL_START_SIZE + 8192..VDEV_LABEL_START_SIZE + 8704;
    let zio = pool.open_on(&|_, _| Some(stuck(pool.devices[0][0].clone(), bad.clone())));
    zio.set_space(pool.space.clone());
    let block = |n| WriteReq { bm: Bookmark { blkid: n, ..BM }, ..req(noise(8192, n), WriteProps::default()) };
    let failed = zio.write(&CX, (0..3).map(block).collect());
    assert!(matches!(&failed, Err(Error::Write { bm, .. }) if bm.blkid == 1), "{failed:?}");
    assert_eq!(zio.tree().status().children[0].children[0].errors.write, 1);
}

#[test]
fn a_copy_that_is_mended_counts_if_it_was_written_and_tells_no_device_that_it_missed_something() {
    let pool = pool();
    let props = WriteProps { copies: 2, ..WriteProps::default() };
    let bp = write_one(&pool, &CX, req(noise(8192, 1), props));
    let vdev = bp.dvas().map(|dva| dva.vdev()).position(|vdev| vdev == 0).unwrap();
    let heal = |zio: &Zio, at: u64| {
        [0, 1].iter().for_each(|side| pool.damage(0, *side, bp.dva(vdev).offset() + at));
        let cx = ReadCx { heal: true, ..ReadCx::SCRUB };
        let report = zio.verify_block(&bp, &BM, &cx, &mut Scratch::default()).unwrap();
        assert_eq!(report.bad_copies.len(), 1);
        (report.healed, zio.tree().unhealed(), zio.tree().dirty_dtls())
    };
    let device = |v: usize, s: usize| Some(Arc::new(pool.devices[v][s].clone()) as Arc<dyn Device>);
    let away = pool.open_on(&|v, s| device(v, s).filter(|_| (v, s) != (0, 1)));
    assert_eq!(heal(&away, 77), (1, 0, Vec::new()), "a side is away");
    let stuck = pool.open_on(&|v, s| match (v, s) {
        (0, 1) => Some(stuck(pool.devices[0][1].clone(), 0..u64::MAX)),
        _ => device(v, s),
    });
    assert_eq!(heal(&stuck, 99), (0, 1, Vec::new()), "a side fails");
    assert!(stuck.tree().has_new_errors());
}

#[derive(Debug, Clone)]
enum Pattern {
    Zeros,
    Random(u64),
    Text,
    Sparse(u64),
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::Zeros),
        any::<u64>().prop_map(Pattern::Random),
        Just(Pattern::Text),
        any::<u64>().prop_map(Pattern::Sparse)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_written_is_read(
        blocks in prop::collection::vec((pattern(), 1usize..65, 0usize..15, 0usize..8, 1u8..4, any::<bool>(), any::<bool>()), 1..20),
        largest in prop_oneof![Just(u64::MAX), Just(4096u64), Just(1024u64)],
        ashift in prop_oneof![Just(9u64), Just(12u64)],
        raidz in any::<bool>(),
    ) {
        let top = if raidz { Top::Raidz(5, 2) } else { Top::Mirror(2) };
        let pool = Writable::new(&[top, Top::Mirror(1)], ashift, 24 << 20);
        pool.zio.keys().insert(BM.objset, Arc::new(key()));
        pool.space.largest.store(largest.max(1 << ashift), Ordering::Relaxed);
        let (mut reqs, mut datas) = (Vec::new(), Vec::new());
        for (n, (pattern, sectors, compress, sum, copies, encrypt, embed)) in blocks.into_iter().enumerate() {
            let size = sectors * 512;
            let data = match pattern {
                Pattern::Zeros => vec![0; size],
                Pattern::Random(seed) => noise(size, seed),
                Pattern::Text => text(size),
                Pattern::Sparse(seed) => {
                    let mut data = vec![0; size];
                    let at = seed as usize % (size - 16);
                    data[at..at + 16].copy_from_slice(&noise(16, seed));
                    data
                }
            };
            let props = WriteProps {
                compress: Compress::ALL[compress], checksum: SUMS[sum], copies, encrypt, embed, ..WriteProps::default()
            };
            reqs.push(WriteReq { bm: Bookmark { blkid: n as u64, ..BM }, ..req(data.clone(), props) });
            datas.push(data);
        }
        let bms: Vec<Bookmark> = reqs.iter().map(|r| r.bm).collect();
        let bps = pool.zio.write(&CX, reqs).unwrap();
        for ((bp, bm), data) in bps.iter().zip(&bms).zip(&datas) {
            if *bp == BlkPtr::HOLE {
                prop_assert!(data.iter().all(|b| *b == 0));
            } else {
                assert_reads(&pool, bp, bm, data);
            }
        }
        for bp in &bps {
            pool.zio.free(Txg(101), bp).unwrap();
        }
        prop_assert_eq!(pool.allocated(), 0);
    }
}

#[test]
fn blocks_of_the_intent_log_are_written_once_their_place_is_known() {
    for encrypt in [false, true] {
        let pool = pool();
        pool.zio.keys().insert(BM.objset, Arc::new(key()));
        let bm = Bookmark { objset: BM.objset, object: ObjectId::NONE, level: Bookmark::ZIL_LEVEL, blkid: 1 };
        let identity = [11, 22, BM.objset.0, 1];
        let allocate = |size| pool.zio.allocate_log(TXG, &bm, size, identity, encrypt);
        let bp = allocate(16 << 10).unwrap();
        assert_eq!((bp.cksum(), bp.lsize(), bp.dvas().count()), (identity, 16 << 10, 1));
        assert_eq!(bp.uses_crypt(), encrypt);
        let next = allocate(4096).unwrap();
        let mut block = vec![0; 16 << 10];
        block[8..136].copy_from_slice(&next.encode(Endian::Little));
        block[136..144].copy_from_slice(&184u64.to_le_bytes());
        pool.zio.write_log(&bm, vec![(bp, block[..4096].to_vec())]).unwrap();
        let back = pool.zio.read(&bp, &bm).unwrap();
        assert_eq!(back[..144], block[..144]);
        assert!(back[184..].iter().all(|b| *b == 0));
        // one that was never written is no part of the chain
        assert!(pool.zio.read(&next, &bm).is_err());
        assert!(matches!(pool.zio.write_log(&bm, vec![(next, block)]), Err(Error::BadRequest { .. })));
        assert!(matches!(allocate(1000), Err(Error::BadRequest { .. })));
    }
}
