//! Frees in a stream are split over transactions, however large they are; received data does not stay in the cache.
#![allow(clippy::unwrap_used)]

mod target;

use base::tunable;
use dmu::{NewObject, Object};
use ondisk::{ObjectType, ObjsetType};
use pool::{NewDataset, Spa};
use stream::recv::RecvArgs;
use stream::send::SendFlags;
use target::Target;
use zpl::create::{FsProps, create_fs};

const BLOCK: u64 = 512;
/// Blocks of the object, each embedded in its pointer: nearly three pieces of 2^18.
const BLOCKS: u64 = 700_000;
/// Memory that a sync needs per freed block: its pointer on three lists.
const COST: u64 = 3 * 128;
const PIECE: u64 = (1 << 18) * COST;
const FLAGS: SendFlags =
    SendFlags { embed: true, large_block: true, compress: true, raw: false, resume: None, saved: None };

/// Creates an object with blocks of this size in a new file system.
fn object(spa: &std::sync::Arc<Spa>, name: &str, block_size: u64) -> Object {
    let new = NewDataset::inheriting(name, ObjsetType::Zfs);
    spa.create_dataset(new, Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default()))).unwrap();
    let objset = spa.objset(&spa.view().unwrap().dataset(name).unwrap()).unwrap();
    let new = NewObject { object_type: ObjectType::PLAIN_FILE_CONTENTS, block_size, ..NewObject::default() };
    objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap()
}

/// Returns the bytes that each txg since `first` had to write or to keep in memory.
fn dirty_since(spa: &Spa, first: u64) -> Vec<u64> {
    spa.txgs().history().iter().filter(|txg| txg.txg > first).map(|txg| txg.dirty).collect()
}

#[test]
fn a_large_object_is_freed_over_many_txgs() {
    tunable::set("zfs_dirty_data_max", &(16u64 << 20).to_string()).unwrap();
    let mut target = Target::new();
    let spa = target.spa().clone();
    let source = object(&spa, "recva/a", BLOCK);
    let data = vec![7; 1000 * BLOCK as usize];
    for at in (0..BLOCKS * BLOCK).step_by(data.len()) {
        source.write(&spa.tx(data.len() as u64).unwrap(), at, &data).unwrap();
    }
    let snapshot = |name: &str| spa.snapshot(&[name.to_owned()], &[]).unwrap();
    snapshot("recva/a@1");
    let source = source.reload().unwrap();
    source.free_long(BLOCK..u64::MAX, || spa.tx_netfree(1)).unwrap();
    source.free_range(&spa.tx_netfree(1).unwrap(), BLOCK, u64::MAX).unwrap();
    snapshot("recva/a@2");
    spa.objset(&spa.view().unwrap().dataset("recva/a").unwrap())
        .unwrap()
        .free_object(&spa.tx_netfree(1).unwrap(), source.id())
        .unwrap();
    snapshot("recva/a@3");
    let id = source.id();
    drop(source);

    let receive = |bytes: &[u8], fs: &str| target.receive(bytes, fs, &RecvArgs::default()).unwrap();
    receive(&target.send_as("recva/a@1", None, &FLAGS), "recva/b");
    for (to, is_there) in [("recva/a@2", true), ("recva/a@3", false)] {
        let stream = target.send_as(to, Some("recva/a@1"), &FLAGS);
        assert!(stream.len() < 1 << 20, "{} bytes", stream.len());
        let first = spa.txgs().synced().0;
        receive(&stream, "recva/b");
        let dirty = dirty_since(&spa, first);
        println!("{to}: dirty by txg: {dirty:?}");
        let (all, most) = (dirty.iter().sum::<u64>(), dirty.iter().max().copied().unwrap_or(0));
        assert!(all >= (BLOCKS - 1) * COST, "{dirty:?}");
        assert!(most < PIECE + (32 << 20), "{dirty:?}");
        let received = spa.view().unwrap().dataset(&to.replace("/a", "/b")).unwrap().objset().unwrap();
        assert_eq!(received.object(id).map(|object| object.nblocks()).ok(), is_there.then_some(1), "{to}");
        let name = to.replace("/a", "/b");
        drop(received);
        spa.destroy_snapshots(&[name], false).unwrap();
        spa.rollback("recva/b", None).unwrap();
    }
    drop(spa);
    target.close();
}

#[test]
fn what_is_received_does_not_fill_the_cache() {
    let mut target = Target::new();
    let spa = target.spa().clone();
    let source = object(&spa, "recva/a", 128 << 10);
    let data = vec![7; 24 << 20];
    source.write(&spa.tx(data.len() as u64).unwrap(), 0, &data).unwrap();
    spa.sync().unwrap();
    let cached = || spa.zio().arc().stats().size;
    // written data usually is read next
    assert!(cached() > data.len() as u64 / 2, "{} bytes", cached());
    spa.snapshot(&["recva/a@1".to_owned()], &[]).unwrap();
    let plain = target.send("recva/a@1", None, false);
    assert!(plain.len() > data.len());
    let before = cached();
    target.receive(&plain, "recva/b", &RecvArgs::default()).unwrap();
    assert!(cached() < before + data.len() as u64 / 4, "{before} bytes, then {}", cached());
    // afterwards it is an ordinary file system
    let head = spa.view().unwrap().dataset("recva/b").unwrap();
    let objset = spa.objset(&head).unwrap();
    assert!(!spa.write_policy(&objset).unwrap().uncached);
    let copy = objset.object(source.id()).unwrap();
    assert!(copy.read_vec(0, data.len()).unwrap() == data);
    copy.write(&spa.tx(data.len() as u64).unwrap(), 0, &data).unwrap();
    spa.sync().unwrap();
    assert!(cached() > before + data.len() as u64 / 2, "{before} bytes, then {}", cached());
    drop((source, copy, objset, head, spa));
    target.close();
}
