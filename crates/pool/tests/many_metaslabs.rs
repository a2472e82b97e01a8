//! Pools of very many, very small metaslabs: each sync dirties more space maps than fit in what a late pass may take.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use base::Env;
use dmu::{NewObject, Object};
use ondisk::ObjectType;
use oracle::judge;
use pool::{CreateOptions, Hooks, Spa, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};

const SIZE: u64 = 64 << 20;
const MS_SHIFT: u64 = 15;
const BLOCK: usize = 8192;
const LZ4: u64 = 15;

fn make(dir: &Path, logs: bool) -> Arc<Spa> {
    let env = Env::seeded(1);
    let words: Vec<String> = ["a", "b", "c", "d"].iter().map(|name| dir.join(name).display().to_string()).collect();
    let open =
        |path: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(FileDevice::create(Path::new(path), SIZE).unwrap())) };
    let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
    let mut new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &env).unwrap();
    for top in new.vdev_tree.get_nvlist_array_mut("children").into_iter().flatten() {
        top.insert("metaslab_shift", MS_SHIFT);
    }
    let mut create = CreateOptions::new("t");
    create.features.retain(|name| logs || *name != "log_spacemap");
    create.fs_props.push(("compression".to_string(), Value::Number(LZ4)));
    Spa::create(new, create, Hooks { env, used_by: None, ..Hooks::default() }).unwrap()
}

fn object(spa: &Arc<Spa>) -> Object {
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let new = NewObject {
        object_type: ObjectType::UINT64_OTHER,
        block_size: BLOCK as u64,
        indirect_shift: 14,
        ..NewObject::default()
    };
    objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap()
}

/// A block that takes 2,560 bytes.
fn block(seed: u64) -> Vec<u8> {
    let mut block = vec![0x5a; BLOCK];
    Env::seeded(seed).fill_random(block.get_mut(..2400).unwrap());
    block
}

/// A pool, rather full for its slop, of `4 * SIZE >> MS_SHIFT` metaslabs, in which blocks are overwritten all over the place.
fn worked_on(dir: &Path, logs: bool) -> Arc<Spa> {
    let spa = make(dir, logs);
    let object = object(&spa);
    let blocks = 4 * SIZE * 3 / 8 / 2560;
    let mut seed = 1u64;
    for blkid in 0..blocks {
        object.write_block(&spa.tx(BLOCK as u64).unwrap(), blkid, block(blkid)).unwrap();
        if blkid % 2048 == 0 {
            spa.sync().unwrap();
        }
    }
    spa.sync().unwrap();
    for _ in 0..6 {
        for _ in 0..500 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let blkid = (seed >> 33) % blocks;
            object.write_block(&spa.tx(BLOCK as u64).unwrap(), blkid, block(seed)).unwrap();
        }
        spa.sync().unwrap();
    }
    spa
}

#[test]
fn a_sync_without_logs_comes_to_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let spa = worked_on(dir.path(), false);
    let passes = spa.txgs().history().iter().map(|txg| txg.passes).max().unwrap();
    println!("{passes} passes");
    spa.export().unwrap();
    drop(spa);
    judge::no_leaks(dir.path(), "t");
}
