//! Numbers that a user may set, as small and as large as they go: whatever they are, a pool is made, written, closed and opened again, and a sync
//! comes to its end.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use base::{Env, tunable};
use dmu::NewObject;
use ondisk::ObjectType;
use pool::{CreateOptions, Hooks, ImportOptions, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

const BLOCK: usize = 16 << 10;
/// Tunables that make blocks fail on purpose, make devices slow, name this machine, or say what is not to be read.
const NOT_LIMITS: [&str; 6] = [
    "metaslab_force_ganging",
    "metaslab_force_ganging_pct",
    "vdev_latency_ms",
    "vdev_latency_depth",
    "spl_hostid",
    "zuse_max_nvlist_bytes",
];

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

fn content(seed: u64) -> Vec<u8> {
    Env::noise(seed, 8 * BLOCK)
}

/// The life of a pool on one device.
fn lives(logs: bool) {
    let device = MemoryDevice::writable(64 << 20).named("d".to_string());
    let open = |_: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(device.clone())) };
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&["d".to_string()]).unwrap(), &open, options, &hooks().env).unwrap();
    let mut create = CreateOptions::new("t");
    create.features.retain(|name| logs || *name != "log_spacemap");
    let spa = Spa::create(new, create, hooks()).unwrap();
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: BLOCK as u64, ..NewObject::default() };
    let object = objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
    let gone = objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
    for seed in 1..4 {
        object.write(&spa.tx(1 << 20).unwrap(), 0, &content(seed)).unwrap();
        gone.write(&spa.tx(1 << 20).unwrap(), 0, &content(seed + 10)).unwrap();
        spa.sync().unwrap();
    }
    spa.snapshot(&["t@s".to_string()], &[]).unwrap();
    objset.free_object(&spa.tx(1 << 20).unwrap(), gone.id()).unwrap();
    object.write(&spa.tx(1 << 20).unwrap(), 0, &content(4)).unwrap();
    spa.sync().unwrap();
    let id = object.id();
    drop((object, gone, objset));
    spa.export().unwrap();
    drop(spa);

    let found = vdev::import::scan_devices(vec![("d".into(), Arc::new(device.clone()))]);
    let spa = Spa::import(found.first().unwrap(), &ImportOptions::default(), hooks()).unwrap();
    let read = |name: &str| {
        let objset = spa.view().unwrap().dataset(name).unwrap().objset().unwrap();
        objset.object(id).unwrap().read_vec(0, 8 * BLOCK).unwrap()
    };
    assert!(read("t") == content(4));
    assert!(read("t@s") == content(3));
    spa.export().unwrap();
}

#[test]
fn whatever_the_numbers_are_a_pool_is_written() {
    let mut failed = Vec::new();
    for tunable in tunable::ALL.iter().filter(|tunable| !NOT_LIMITS.contains(&tunable.name)) {
        let usual = tunable.get();
        for value in [0, 1, u64::MAX] {
            tunable.set(value);
            let both = || [true, false].into_iter().for_each(lives);
            if std::panic::catch_unwind(both).is_err() {
                failed.push((tunable.name, value));
            }
        }
        tunable.set(usual);
    }
    assert!(failed.is_empty(), "{failed:?}");
}
