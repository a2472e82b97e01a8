//! Blocks that wait for the end of a sync.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Env, ObjectId, Txg};
use common::BM;
use common::writable::{Top, Writable};
use ondisk::{BlkPtr, ObjectType};
use vdev::ReadCx;
use vdev::testing::{Call, Tapped};
use zio::{ArcKey, Bookmark, Buf, Error, HeldWrites, Payload, Scratch, WriteCx, WriteProps, WriteReq, Zio};

const TXG: Txg = Txg(100);

fn pass(pass: u32) -> WriteCx {
    WriteCx { txg: TXG, pass }
}

fn noise(n: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, n)
}

fn pool() -> Writable {
    Writable::new(&[Top::Mirror(1), Top::Mirror(1)], 9, 24 << 20)
}

/// A block of the MOS with two copies that is written over `orig`.
fn req(data: &[u8], orig: BlkPtr) -> WriteReq {
    let bm = Bookmark { objset: ObjectId::MOS, ..BM };
    let props = WriteProps { object_type: ObjectType::SPACE_MAP, copies: 2, ..WriteProps::default() };
    WriteReq { bm, props, payload: Payload::Logical(Buf::from(data.to_vec())), orig, fill: 1 }
}

/// Writes a block late.
fn late(zio: &Zio, cx: &WriteCx, data: &[u8], orig: BlkPtr) -> BlkPtr {
    let mut held = HeldWrites::default();
    let bp = zio.write_or_hold(cx, vec![req(data, orig)], &mut held).unwrap()[0];
    zio.write_late(cx, held).unwrap();
    bp
}

fn read(zio: &Zio, bp: &BlkPtr) -> Result<Buf, Error> {
    zio.arc().clear();
    zio.read(bp, &BM)
}

#[test]
fn a_block_of_several_passes_is_written_once_and_can_be_read_before() {
    let pool = pool();
    let zio = &pool.zio;
    let first = late(zio, &pass(1), &noise(4096, 1), BlkPtr::HOLE);
    let other = late(zio, &pass(1), &noise(4096, 2), BlkPtr::HOLE);
    assert_eq!(&read(zio, &first).unwrap()[..], noise(4096, 1));
    let second = late(zio, &pass(2), &noise(4096, 3), first);
    assert_eq!(second.dva(0), first.dva(0), "in place");
    // from the cache, and without it
    assert_eq!(&zio.read(&second, &BM).unwrap()[..], noise(4096, 3));
    assert_eq!(&read(zio, &second).unwrap()[..], noise(4096, 3));
    read(zio, &first).unwrap_err();
    assert_eq!(zio.stats().written.get(), 0);

    zio.write_late_blocks(&pass(3)).unwrap();
    assert_eq!((zio.stats().written.get(), zio.stats().written_mos.get()), (4, 2), "two blocks, two runs");
    for (bp, seed) in [(second, 3), (other, 2)] {
        assert_eq!(&read(zio, &bp).unwrap()[..], noise(4096, seed));
        assert!(zio.verify_block(&bp, &BM, &ReadCx::SCRUB, &mut Scratch::default()).unwrap().is_clean());
    }
    zio.write_late_blocks(&pass(3)).unwrap();
    assert_eq!(zio.stats().written.get(), 4, "nothing is left");
}

#[test]
fn what_is_written_at_once_is_not_overwritten_at_the_end() {
    let pool = pool();
    let zio = &pool.zio;
    let first = late(zio, &pass(1), &noise(4096, 1), BlkPtr::HOLE);
    let second = zio.write(&pass(2), vec![req(&noise(4096, 2), first)]).unwrap()[0];
    assert_eq!(second.dva(0), first.dva(0));
    assert_eq!(&read(zio, &second).unwrap()[..], noise(4096, 2));
    zio.write_late_blocks(&pass(2)).unwrap();
    assert_eq!(&read(zio, &second).unwrap()[..], noise(4096, 2));
    assert_eq!(zio.stats().written.get(), 2);
}

#[test]
fn a_megabyte_is_too_much_and_gang_blocks_do_not_wait() {
    let pool = pool();
    let zio = &pool.zio;
    let blocks: Vec<BlkPtr> = (0..9).map(|n| late(zio, &pass(1), &noise(64 << 10, n), BlkPtr::HOLE)).collect();
    assert!(zio.is_late_full() && zio.stats().written.get() == 0, "until the pointers are known");
    zio.write_late_blocks(&pass(1)).unwrap();
    assert_eq!((zio.is_late_full(), zio.stats().written.get()), (false, 18), "two copies each");
    pool.space.largest.store(1024, Ordering::Relaxed);
    let ganged = late(zio, &pass(1), &noise(16 << 10, 20), BlkPtr::HOLE);
    assert!(ganged.is_gang() && zio.stats().written.get() > 18);
    assert_eq!(&read(zio, &ganged).unwrap()[..], noise(16 << 10, 20));
    blocks.iter().zip(0..).for_each(|(bp, n)| assert_eq!(&read(zio, bp).unwrap()[..], noise(64 << 10, n)));
}

#[test]
fn when_the_devices_fail_the_cache_shows_none_of_it() {
    let pool = pool();
    let fails = Arc::new(AtomicBool::new(false));
    let device = |vdev: usize| {
        let fails = fails.clone();
        let pass = move |call: &Call| match call {
            Call::Write(_) if fails.load(Ordering::Relaxed) => Err(std::io::Error::other("stuck")),
            _ => Ok(()),
        };
        Arc::new(Tapped::new(Arc::new(pool.devices[vdev][0].clone()), pass))
    };
    let zio = pool.open_on(&|vdev, _| Some(device(vdev)));
    zio.set_space(pool.space.clone());
    let bp = late(&zio, &pass(1), &noise(4096, 1), BlkPtr::HOLE);
    assert_eq!(&zio.read(&bp, &BM).unwrap()[..], noise(4096, 1));
    fails.store(true, Ordering::Relaxed);
    assert!(matches!(zio.write_late_blocks(&pass(2)), Err(Error::Write { .. })));
    assert!(zio.arc().peek(&ArcKey::of(&bp).unwrap()).is_none());
}
