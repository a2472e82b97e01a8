//! Two machines and one pool, with property `multihost` on. One story in one test: the machine's number is a setting of the process.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Env, tunable};
use oracle::judge;
use pool::{CreateOptions, Error, Hooks, ImportOptions, OpenOptions, Pool, Spa, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

fn import(devices: &[Arc<MemoryDevice>], force: bool) -> Result<Arc<Spa>, Error> {
    let found = devices.iter().map(|d| (PathBuf::from(d.name()), d.clone() as Arc<dyn Device>)).collect();
    let candidates = vdev::import::scan_devices(found);
    Spa::import(candidates.first().unwrap(), &ImportOptions { force, ..ImportOptions::default() }, hooks())
}

fn read(devices: &[Arc<MemoryDevice>]) -> Arc<Pool> {
    let found = devices.iter().map(|d| (PathBuf::from(d.name()), d.clone() as Arc<dyn Device>)).collect();
    Pool::open(vdev::import::scan_devices(found).first().unwrap(), &OpenOptions::default()).unwrap()
}

/// The best uberblock that a device has.
fn best(device: &MemoryDevice) -> (base::Txg, u64, u64) {
    vdev::label::read_uberblocks(device, 12).first().unwrap().rank()
}

#[test]
fn a_pool_belongs_to_one_machine() {
    tunable::ZFS_MULTIHOST_INTERVAL.set(100);
    tunable::ZFS_MULTIHOST_IMPORT_INTERVALS.set(6);
    tunable::ZFS_MULTIHOST_FAIL_INTERVALS.set(0);
    tunable::SPL_HOSTID.set(0xa);
    let devices: Vec<_> = ["d0", "d1"].map(|name| Arc::new(MemoryDevice::writable(64 << 20).named(name))).into();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        devices.iter().find(|d| d.name() == path).map(|d| d.clone() as Arc<dyn Device>)
    };
    let words = ["mirror", "d0", "d1"].map(str::to_string);
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks().env).unwrap();
    let owner = Spa::create(new, CreateOptions::new("t"), hooks()).unwrap();
    owner.set_prop("multihost", Value::Number(1)).unwrap();

    // nothing is written but the sign of life
    let (txg, before) = (owner.uberblock().txg, best(&devices[0]));
    let waited = Instant::now();
    while best(&devices[0]) <= before {
        assert!(waited.elapsed() < Duration::from_secs(20), "no sign of life");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(owner.uberblock().txg, txg);

    // it is seen by another machine, whatever that one's user says
    tunable::SPL_HOSTID.set(0xb);
    match import(&devices, true) {
        Err(Error::ActiveElsewhere { id: 0xa, .. }) => {}
        other => panic!("{other:?}"),
    }
    // it is not read by another one either, nor watched by who only wants to look
    assert!(matches!(read(&devices).watch_others(&hooks().env), Err(Error::ActiveElsewhere { id: 0xa, .. })));
    tunable::SPL_HOSTID.set(0);
    if std::fs::metadata("/etc/hostid").is_err() {
        assert!(matches!(import(&devices, true), Err(Error::NoHostid)));
    }

    // the owner dies: after a while, and if it is wished, the pool is another's
    drop(owner);
    tunable::SPL_HOSTID.set(0xb);
    let (started, before) = (Instant::now(), devices[0].snapshot());
    read(&devices).watch_others(&hooks().env).unwrap();
    assert!(started.elapsed() > Duration::from_millis(900), "it was not watched for long enough");
    assert!(devices[0].snapshot() == before, "a pool that is read was written");
    // who sees only one leg of the mirror does not get it: a third machine may see the other
    assert!(matches!(import(&devices[..1], true), Err(Error::ClaimNotWritten { .. })));
    assert!(matches!(import(&devices, false), Err(Error::InUseByHost { id: 0xa, .. })));
    let started = Instant::now();
    let heir = import(&devices, true).unwrap();
    assert!(started.elapsed() > Duration::from_millis(1500), "it was not watched for long enough");

    // who owned it before does not get it back by going on as if nothing had happened
    tunable::SPL_HOSTID.set(0xa);
    let found = devices.iter().map(|d| (PathBuf::from(d.name()), d.clone() as Arc<dyn Device>)).collect();
    let candidates = vdev::import::scan_devices(found);
    let again = ImportOptions { again: true, ..ImportOptions::default() };
    assert!(matches!(Spa::import(&candidates[0], &again, hooks()), Err(Error::InUseByHost { id: 0xb, .. })));

    tunable::SPL_HOSTID.set(0xb);
    heir.export().unwrap();
    drop(heir);
    let started = Instant::now();
    let again = import(&devices, false).unwrap();
    assert!(started.elapsed() < Duration::from_millis(1500), "who exported a pool need not watch it");
    again.set_prop("multihost", Value::Number(0)).unwrap();
    assert_eq!(again.uberblock().mmp.map(|mmp| mmp.delay_ns), Some(0));
    again.export().unwrap();

    let dir = tempfile::tempdir().unwrap();
    devices.iter().for_each(|d| std::fs::write(dir.path().join(d.name()), d.snapshot()).unwrap());
    judge::no_leaks(dir.path(), "t");
}
