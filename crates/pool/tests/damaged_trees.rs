//! A block of pointers that is lost costs what lies below it, and not the pool: who writes there is told so, and what is freed goes as far as it
//! is known.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use base::{Env, ObjectId};
use dmu::{NewObject, Object, Walk};
use ondisk::ObjectType;
use pool::{CreateOptions, Hooks, ImportOptions, LoadPolicy, OpenOptions, PropSource, Spa, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

const BLOCK: usize = 4 << 10;
/// Pointers in an indirect block of 4 KiB.
const FANOUT: usize = 32;
const BLOCKS: usize = 4 * FANOUT;
/// Labels and boot area in front of what a DVA counts from.
const FRONT: u64 = 4 << 20;

struct Damaged {
    spa: Arc<Spa>,
    /// Its second block of pointers is lost.
    object: Object,
    /// Nothing is wrong with it.
    other: Object,
}

fn content(seed: u64) -> Vec<u8> {
    Env::noise(seed, BLOCKS * BLOCK)
}

impl Damaged {
    fn new() -> Damaged {
        let hooks = Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() };
        let device = MemoryDevice::writable(64 << 20).named("d".to_string());
        let open = |_: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(device.clone())) };
        let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
        let new = layout(&VdevSpec::parse(&["d".to_string()]).unwrap(), &open, options, &hooks.env).unwrap();
        let spa = Spa::create(new, CreateOptions::new("t"), hooks).unwrap();
        let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
        let make = |seed| {
            let new = NewObject {
                object_type: ObjectType::UINT64_OTHER,
                block_size: BLOCK as u64,
                indirect_shift: 12,
                ..NewObject::default()
            };
            let object = objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
            object.write(&spa.tx(1 << 20).unwrap(), 0, &content(seed)).unwrap();
            object
        };
        let (object, other) = (make(1), make(2));
        spa.sync().unwrap();
        let view = spa.view().unwrap();
        let stored = view.dataset("t").unwrap().objset().unwrap().object(object.id()).unwrap();
        for dva in stored.blkptr(1, 1).unwrap().unwrap().dvas() {
            device.write_at(FRONT + dva.offset(), &[0xa5; BLOCK]).unwrap();
        }
        view.zio().arc().clear();
        let (object, other) = (object.reload().unwrap(), other.reload().unwrap());
        Damaged { spa, object, other }
    }

    /// The pool goes on, and what is not below the lost block is all there.
    fn goes_on(&self) {
        self.other.write(&self.spa.tx(1 << 20).unwrap(), 0, &content(3)).unwrap();
        self.spa.sync().unwrap();
        self.spa.zio().arc().clear();
        assert!(self.other.read_vec(0, BLOCKS * BLOCK).unwrap() == content(3));
        self.spa.export().unwrap();
    }
}

#[test]
fn who_writes_below_it_is_told() {
    let pool = Damaged::new();
    let tx = pool.spa.tx(1 << 20).unwrap();
    let at = (FANOUT * BLOCK) as u64;
    pool.object.write(&tx, at, &[7; BLOCK]).expect_err("a whole block");
    pool.object.write(&tx, at + 5, &[7; 9]).expect_err("a part");
    pool.object.write_block(&tx, FANOUT as u64 + 3, vec![7; BLOCK]).expect_err("a block of its own");
    // beside it there is nothing wrong
    pool.object.write(&tx, 0, &[8; BLOCK]).unwrap();
    drop(tx);
    pool.goes_on();
}

#[test]
fn the_object_can_be_freed() {
    let pool = Damaged::new();
    let objset = pool.spa.objset(&pool.spa.view().unwrap().dataset("t").unwrap()).unwrap();
    objset.free_object(&pool.spa.tx(1 << 20).unwrap(), pool.object.id()).unwrap();
    pool.spa.sync().unwrap();
    pool.object.reload().expect_err("it is gone");
    pool.goes_on();
}

#[test]
fn all_of_its_blocks_can_be_freed() {
    let pool = Damaged::new();
    pool.object.free_range(&pool.spa.tx(1 << 20).unwrap(), 0, u64::MAX).unwrap();
    pool.spa.sync().unwrap();
    assert_eq!(pool.object.reload().unwrap().read_vec(0, BLOCK).unwrap(), [0; BLOCK]);
    pool.goes_on();
}

#[test]
fn who_frees_a_part_of_what_is_below_it_is_told() {
    let pool = Damaged::new();
    let (at, len) = ((FANOUT * BLOCK + 4 * BLOCK) as u64, 4 * BLOCK as u64);
    pool.object.free_range(&pool.spa.tx(1 << 20).unwrap(), at, len).expect_err("a few blocks");
    pool.object.free_range(&pool.spa.tx(1 << 20).unwrap(), at, u64::MAX).expect_err("to the end");
    pool.goes_on();
}

/// A pool whose last txgs lack blocks is imported all the same.
fn as_it_is() -> ImportOptions {
    let verify = Some(LoadPolicy { max_meta_errors: u64::MAX, ..LoadPolicy::default() });
    ImportOptions { open: OpenOptions { verify, ..OpenOptions::default() }, ..ImportOptions::default() }
}

#[test]
fn objects_are_made_beside_a_lost_block_of_dnodes() {
    let hooks = || Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() };
    let device = MemoryDevice::writable(64 << 20).named("d".to_string());
    let open = |_: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(device.clone())) };
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&["d".to_string()]).unwrap(), &open, options, &hooks().env).unwrap();
    let spa = Spa::create(new, CreateOptions::new("t"), hooks()).unwrap();
    // 32 dnodes to a block
    let make = |spa: &Arc<Spa>| {
        let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
        let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 512, ..NewObject::default() };
        let made: Vec<ObjectId> =
            (0..100).map(|_| objset.alloc_object(&spa.tx(1 << 16).unwrap(), &new).unwrap().id()).collect();
        spa.sync().unwrap();
        made
    };
    let first: Vec<ObjectId> = make(&spa);
    let mut lost = None;
    spa.view().unwrap().dataset("t").unwrap().objset().unwrap().walk(&mut |at| {
        if at.bookmark.object == ObjectId::META_DNODE && at.level == 0 && at.bookmark.blkid == 2 {
            lost = Some(*at.bp);
        }
        Walk::Into
    });
    for dva in lost.unwrap().dvas() {
        device.write_at(FRONT + dva.offset(), &[0xa5; BLOCK]).unwrap();
    }
    spa.export().unwrap();
    drop(spa);

    let found = vdev::import::scan_devices(vec![("d".into(), Arc::new(device.clone()))]);
    let spa = Spa::import(found.first().unwrap(), &as_it_is(), hooks()).unwrap();
    let second: Vec<ObjectId> = make(&spa);
    assert!(second.iter().all(|id| !first.contains(id) && !(64..96).contains(&id.0)), "{second:?}");
    spa.export().unwrap();
}

#[test]
fn blocks_of_a_dedup_table_that_is_lost_are_freed_and_written_by_its_pool() {
    let hooks = || Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() };
    let device = MemoryDevice::writable(64 << 20).named("d".to_string());
    let open = |_: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(device.clone())) };
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&["d".to_string()]).unwrap(), &open, options, &hooks().env).unwrap();
    let mut create = CreateOptions::new("t");
    // its entries stand in the table at once
    create.features.retain(|name| *name != "fast_dedup");
    let spa = Spa::create(new, create, hooks()).unwrap();
    spa.set_props("t", &[("dedup".to_string(), Value::Number(1))], PropSource::Local).unwrap();
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: BLOCK as u64, ..NewObject::default() };
    let write = |spa: &Arc<Spa>, object: &Object, seed| {
        object.write(&spa.tx(1 << 20).unwrap(), 0, &content(seed)).unwrap();
        spa.sync().unwrap();
    };
    let object = objset.alloc_object(&spa.tx(1 << 16).unwrap(), &new).unwrap();
    write(&spa, &object, 1);
    let view = spa.view().unwrap();
    for store in view.ddts().unwrap().iter().flat_map(|table| &table.stores) {
        let zap = view.mos().object(store.object).unwrap();
        for leaf in (1..zap.nblocks()).filter_map(|n| zap.blkptr(0, n).unwrap()) {
            for dva in leaf.dvas() {
                device.write_at(FRONT + dva.offset(), &[0xa5; BLOCK]).unwrap();
            }
        }
    }
    let id = object.id();
    drop((view, object, objset));
    spa.export().unwrap();
    drop(spa);

    let found = vdev::import::scan_devices(vec![("d".into(), Arc::new(device.clone()))]);
    let spa = Spa::import(found.first().unwrap(), &as_it_is(), hooks()).unwrap();
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    // all of it is overwritten, by the same and by others
    let object = objset.object(id).unwrap();
    write(&spa, &object, 1);
    write(&spa, &object, 2);
    objset.free_object(&spa.tx(1 << 16).unwrap(), id).unwrap();
    let other = objset.alloc_object(&spa.tx(1 << 16).unwrap(), &new).unwrap();
    write(&spa, &other, 3);
    spa.zio().arc().clear();
    assert!(other.read_vec(0, BLOCKS * BLOCK).unwrap() == content(3));
    spa.export().unwrap();
}
