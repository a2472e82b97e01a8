//! Devices that fail writes while a pool is open: what becomes of them, of what they missed, and of what is read from them.
#![allow(clippy::unwrap_used)]

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Env;
use dmu::Object;
use nvlist::NvList;
use ondisk::label::key;
use pool::testing::{BLOCK, noise, object};
use pool::{CreateOptions, Hooks, ImportOptions, PropSource, Spa, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::import::scan_devices;
use vdev::{Device, MemoryDevice, VdevState};

/// Labels and boot area in front of what a DVA counts from.
const FRONT: u64 = 4 << 20;

/// A device that fails when it is told to.
#[derive(Debug)]
struct Weak {
    device: MemoryDevice,
    /// Nothing at all can be written.
    dead: AtomicBool,
    /// The number of writes of blocks that fail.
    bad_writes: AtomicU64,
    /// Blocks cannot be read.
    deaf: AtomicBool,
}

impl Weak {
    fn new(name: &str) -> Arc<Weak> {
        let device = MemoryDevice::writable(64 << 20).named(name.to_owned());
        Arc::new(Weak {
            device,
            dead: AtomicBool::new(false),
            bad_writes: AtomicU64::new(0),
            deaf: AtomicBool::new(false),
        })
    }

    fn check(&self, offset: u64) -> io::Result<()> {
        let in_blocks = offset >= FRONT && offset < self.size() - (512 << 10);
        let take = |left: u64| left.checked_sub(1);
        let bad = in_blocks && self.bad_writes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        if bad || self.dead.load(Ordering::SeqCst) { Err(io::Error::other("weak")) } else { Ok(()) }
    }
}

impl Device for Weak {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.deaf.load(Ordering::SeqCst) && offset >= FRONT {
            return Err(io::Error::other("deaf"));
        }
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset)?;
        self.device.write_at(offset, data)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        self.check(offset)?;
        self.device.write_vectored_at(offset, data)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

fn make(words: &str, count: usize) -> (Arc<Spa>, Vec<Arc<Weak>>) {
    let devices: Vec<_> = (0..count).map(|n| Weak::new(&format!("d{n}"))).collect();
    let words: Vec<String> = words.split(' ').map(str::to_string).collect();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        devices.iter().find(|d| d.name() == path).map(|d| d.clone() as Arc<dyn Device>)
    };
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks().env).unwrap();
    (Spa::create(new, CreateOptions::new("t"), hooks()).unwrap(), devices)
}

fn again(devices: &[Arc<Weak>]) -> Arc<Spa> {
    let all = devices.iter().map(|d| (d.name().into(), d.clone() as Arc<dyn Device>)).collect();
    Spa::import(&scan_devices(all)[0], &ImportOptions::default(), hooks()).unwrap()
}

fn write(spa: &Arc<Spa>, file: &Object, seed: u64) {
    file.write(&spa.tx(2 << 20).unwrap(), 0, &noise(4, seed)).unwrap();
    spa.sync().unwrap();
}

/// The configuration on disk of device `name`: faulted, degraded, why.
fn said(spa: &Arc<Spa>, name: &str) -> (u64, u64, Option<String>) {
    fn find(list: &NvList, name: &str) -> Option<NvList> {
        if list.get_str(key::PATH) == Some(name) {
            return Some(list.clone());
        }
        list.get_nvlist_array(key::CHILDREN).unwrap_or(&[]).iter().find_map(|child| find(child, name))
    }
    let view = spa.view().unwrap();
    let leaf = find(view.config().get_nvlist(key::VDEV_TREE).unwrap(), name).unwrap();
    let number = |name| leaf.get_u64(name).unwrap_or(0);
    (number(key::FAULTED), number(key::DEGRADED), leaf.get_str(key::AUX_STATE).map(str::to_owned))
}

fn states(spa: &Arc<Spa>) -> (VdevState, Vec<VdevState>) {
    let root = spa.tree().status();
    (root.state, root.walk().filter(|v| v.children.is_empty()).map(|v| v.state).collect())
}

#[test]
fn a_device_that_cannot_be_written_is_faulted() {
    for (words, count) in [("mirror d0 d1", 2), ("raidz1 d0 d1 d2", 3)] {
        let (spa, devices) = make(words, count);
        let file = object(&spa);
        write(&spa, &file, 1);
        devices[1].dead.store(true, Ordering::SeqCst);
        write(&spa, &file, 2);
        spa.close().unwrap();
        let (root, leaves) = states(&spa);
        assert_eq!((root, leaves[0], leaves[1]), (VdevState::Degraded, VdevState::Healthy, VdevState::Faulted));
        assert_eq!(said(&spa, "d1"), (1, 0, Some("err_exceeded".into())), "{words}");
        drop((file, spa));

        // it stays so, until somebody says that it is well; then it has what it missed
        devices[1].dead.store(false, Ordering::SeqCst);
        let spa = again(&devices);
        assert_eq!(states(&spa).1[1], VdevState::Faulted);
        assert!(spa.tree().missed().is_none(), "it is not written");
        spa.clear(None).unwrap();
        spa.close().unwrap();
        drop(spa);
        let spa = again(&devices);
        assert_eq!(states(&spa), (VdevState::Degraded, vec![VdevState::Healthy; count]), "{words}");
        assert!(spa.tree().missed().is_some(), "{words}");
        spa.export().unwrap();
    }
}

#[test]
fn a_few_bad_writes_are_missed_and_not_forgotten() {
    let (spa, devices) = make("mirror d0 d1", 2);
    let file = object(&spa);
    devices[1].bad_writes.store(2, Ordering::SeqCst);
    write(&spa, &file, 1);
    assert_eq!(states(&spa), (VdevState::Degraded, vec![VdevState::Healthy; 2]), "it missed something");
    assert_eq!(said(&spa, "d1").0, 0);
    let missed = spa.tree().missed().unwrap();
    spa.close().unwrap();
    drop((file, spa));
    let spa = again(&devices);
    assert_eq!(spa.tree().missed(), Some(missed), "it is on disk");
    spa.export().unwrap();
}

#[test]
fn the_last_copy_is_used_on() {
    let (spa, devices) = make("mirror d0 d1", 2);
    let file = object(&spa);
    devices[0].bad_writes.store(2, Ordering::SeqCst);
    write(&spa, &file, 1);
    // what the first one missed only the second one has
    devices[1].bad_writes.store(60, Ordering::SeqCst);
    write(&spa, &file, 2);
    spa.sync().unwrap();
    spa.close().unwrap();
    assert_eq!(said(&spa, "d1"), (0, 1, Some("err_exceeded".into())));
    assert_eq!(said(&spa, "d0").0, 0);
}

/// Without a checksum nothing tells old bytes from right ones: who missed them is not asked.
#[test]
fn old_bytes_are_not_taken_for_right_ones_without_a_checksum() {
    const OFF: u64 = 2;
    let (spa, devices) = make("mirror d0 d1", 2);
    spa.set_props("t", &[("checksum".to_owned(), Value::Number(OFF))], PropSource::Local).unwrap();
    let file = object(&spa);
    devices[1].bad_writes.store(u64::MAX, Ordering::SeqCst);
    file.write(&spa.tx(1 << 20).unwrap(), 0, &noise(1, 7)).unwrap();
    spa.sync().unwrap();
    assert!(spa.tree().leaves()[1].is_stale());
    spa.zio().arc().clear();
    assert!(file.read_vec(0, BLOCK).unwrap() == noise(1, 7), "the other one has it");
    devices[0].deaf.store(true, Ordering::SeqCst);
    spa.zio().arc().clear();
    assert!(file.read_vec(0, BLOCK).is_err(), "old bytes were given for the block");
    devices[0].deaf.store(false, Ordering::SeqCst);
    spa.close().unwrap();
}
