//! Freeing much at once: a txg frees so much as it can remember.
#![allow(clippy::unwrap_used)]

mod live;

use base::tunable;
use dmu::NewObject;
use live::{Live, bytes};
use ondisk::ObjectType;

/// Blocks of the object: three pieces.
const BLOCKS: u64 = 20_000;
const BLOCK: u64 = 512;

#[test]
fn a_large_object_is_freed_over_many_txgs() {
    tunable::set("zfs_dirty_data_max", &(2u64 << 20).to_string()).unwrap();
    let live = Live::new();
    let objset = live.spa.objset(&live.view().dataset("t").unwrap()).unwrap();
    let new = NewObject {
        object_type: ObjectType::UINT64_OTHER,
        block_size: BLOCK,
        indirect_shift: 12,
        ..NewObject::default()
    };
    let object = objset.alloc_object(&live.spa.tx(1 << 20).unwrap(), &new).unwrap();
    for run in 0..BLOCKS / 500 {
        let data = bytes(500 * BLOCK as usize, run);
        object.write(&live.spa.tx(data.len() as u64).unwrap(), run * data.len() as u64, &data).unwrap();
    }
    // far behind all the rest, so that most of the object is a hole
    object.write(&live.spa.tx(BLOCK).unwrap(), 1 << 50, &[1; BLOCK as usize]).unwrap();
    live.spa.sync().unwrap();

    let (first, before) = (live.spa.txgs().synced(), live.view().space().unwrap().allocated);
    let object = object.reload().unwrap();
    let mut pieces = 0;
    let place = || {
        pieces += 1;
        live.spa.tx_netfree(1)
    };
    object.free_long(0..u64::MAX, place).unwrap();
    objset.free_object(&live.spa.tx_netfree(1).unwrap(), object.id()).unwrap();
    live.spa.sync().unwrap();
    live.spa.sync().unwrap();

    let txgs: Vec<u64> = live.spa.txgs().history().iter().filter(|r| r.txg > first.0).map(|r| r.dirty).collect();
    println!("{pieces} pieces, dirty by txg: {txgs:?}");
    assert!((3..10).contains(&pieces), "{pieces} pieces");
    // each freed block counts, the hole does not, and no txg has more than one piece beyond what may be dirty
    let all = txgs.iter().sum::<u64>();
    assert!((BLOCKS * 128..BLOCKS * 512).contains(&all), "{txgs:?}");
    assert!(txgs.iter().all(|dirty| *dirty < 6 << 20), "{txgs:?}");
    let after = live.view().space().unwrap().allocated;
    assert!(after + BLOCKS * 4096 / 2 < before, "{before} bytes, then {after}");
    live.judged();
}

/// A damaged dnode may say that more blocks are below it than there can be.
#[test]
fn what_is_freed_by_its_own_account_has_no_end() {
    let live = Live::new();
    let tx = live.spa.tx_netfree(1).unwrap();
    let txg = tx.txg();
    tx.burdened(u64::MAX);
    tx.burdened(u64::MAX);
    drop(tx);
    // who comes next waits until it is on disk
    assert!(live.spa.tx_netfree(1).unwrap().txg() > txg);
    live.judged();
}
