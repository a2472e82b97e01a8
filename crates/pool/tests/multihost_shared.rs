//! Two machines that share a device and no memory: what one has not brought to the device the other does not see, and what the other has read
//! before it does not read again. In a process of its own: the machine's number is a setting.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::{Env, tunable};
use pool::{CreateOptions, Error, Hooks, ImportOptions, Spa, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

const PAGE: usize = 4096;
/// Labels lie in front of this, and less than this before the end.
const LABELS: u64 = 512 << 10;

/// The device as one machine has it, behind a cache of pages.
#[derive(Debug)]
struct Seen {
    medium: MemoryDevice,
    /// Pages by number, and whether they are newer than the medium.
    pages: Mutex<BTreeMap<u64, (Vec<u8>, bool)>>,
    /// Whether anything but labels can be written.
    works: AtomicBool,
}

impl Seen {
    fn new(medium: &MemoryDevice) -> Arc<Seen> {
        Arc::new(Seen { medium: medium.clone(), pages: Mutex::default(), works: AtomicBool::new(true) })
    }

    /// Calls `work` with each page of a range, where the range's part of it begins, and which part of the range that is.
    fn each(
        &self,
        offset: u64,
        len: usize,
        mut work: impl FnMut(&mut (Vec<u8>, bool), usize, std::ops::Range<usize>),
    ) -> io::Result<()> {
        let mut pages = self.pages.lock().unwrap();
        let mut at = 0;
        while at < len {
            let (n, skip) = ((offset + at as u64) / PAGE as u64, (offset + at as u64) as usize % PAGE);
            let take = (PAGE - skip).min(len - at);
            let page = match pages.entry(n) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(place) => {
                    let mut page = vec![0; PAGE];
                    self.medium.read_at(n * PAGE as u64, &mut page)?;
                    place.insert((page, false))
                }
            };
            work(page, skip, at..at + take);
            at += take;
        }
        Ok(())
    }

    fn write_back(&self, pages: std::ops::RangeInclusive<u64>) -> io::Result<()> {
        for (n, (page, dirty)) in self.pages.lock().unwrap().range_mut(pages).filter(|(_, (_, dirty))| *dirty) {
            self.medium.write_at(n * PAGE as u64, page)?;
            *dirty = false;
        }
        Ok(())
    }
}

impl Device for Seen {
    fn size(&self) -> u64 {
        self.medium.size()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.each(offset, buf.len(), |(page, _), skip, part| {
            let len = part.len();
            buf[part].copy_from_slice(&page[skip..skip + len]);
        })
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if !self.works.load(Ordering::Relaxed) && (LABELS..self.size() - LABELS).contains(&offset) {
            return Err(io::Error::other("the device has failed"));
        }
        self.each(offset, data.len(), |(page, dirty), skip, part| {
            page[skip..skip + part.len()].copy_from_slice(&data[part]);
            *dirty = true;
        })
    }
    fn flush(&self) -> io::Result<()> {
        self.write_back(0..=u64::MAX)
    }
    fn write_through_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(offset, data)?;
        self.write_back(offset / PAGE as u64..=(offset + data.len() as u64) / PAGE as u64)
    }
    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        let forgotten = offset / PAGE as u64..=(offset + len) / PAGE as u64;
        self.pages.lock().unwrap().retain(|n, (_, dirty)| *dirty || !forgotten.contains(n));
        Ok(())
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn name(&self) -> String {
        "disk".to_string()
    }
}

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), never_suspends: true, ..Hooks::default() }
}

/// The best uberblock on the device itself.
fn best(medium: &MemoryDevice) -> (base::Txg, u64, u64) {
    vdev::label::read_uberblocks(medium, 12).first().unwrap().rank()
}

fn import(device: Arc<dyn Device>, rewind: bool) -> Result<Arc<Spa>, Error> {
    let candidates = vdev::import::scan_devices(vec![(PathBuf::from("disk"), device)]);
    Spa::import(&candidates[0], &ImportOptions { force: true, rewind, ..ImportOptions::default() }, hooks())
}

#[test]
fn signs_of_life_go_to_the_device_and_are_read_from_there() {
    tunable::ZFS_MULTIHOST_INTERVAL.set(100);
    tunable::ZFS_MULTIHOST_IMPORT_INTERVALS.set(6);
    tunable::ZFS_MULTIHOST_FAIL_INTERVALS.set(0);
    tunable::SPL_HOSTID.set(0xa);
    let medium = MemoryDevice::writable(64 << 20);
    let own = Seen::new(&medium);
    let open = |_: &str| -> Option<Arc<dyn Device>> { Some(own.clone()) };
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&["disk".to_string()]).unwrap(), &open, options, &hooks().env).unwrap();
    let owner = Spa::create(new, CreateOptions::new("t"), hooks()).unwrap();
    owner.set_prop("multihost", Value::Number(1)).unwrap();

    // an idle pool flushes nothing, and yet it is seen to be in use
    let (before, waited) = (best(&medium), Instant::now());
    while best(&medium) <= before {
        assert!(waited.elapsed() < Duration::from_secs(20), "no sign of life reaches the device");
        std::thread::sleep(Duration::from_millis(20));
    }
    // though the other machine has read the labels before, or would go back to an older txg
    tunable::SPL_HOSTID.set(0xb);
    for rewind in [false, true] {
        let other = Seen::new(&medium);
        other.read_at(0, &mut vec![0; LABELS as usize]).unwrap();
        match import(other, rewind) {
            Err(Error::ActiveElsewhere { id: 0xa, .. }) => {}
            got => panic!("{rewind} {got:?}"),
        }
    }

    // a pool that is suspended gives no signs any more: it may be taken
    tunable::SPL_HOSTID.set(0xa);
    own.works.store(false, Ordering::Relaxed);
    assert!(owner.set_prop("comment", Value::String("x".to_string())).is_err());
    std::thread::sleep(Duration::from_millis(500));
    let last = best(&medium);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(best(&medium), last, "a suspended pool gives signs of life");
    tunable::SPL_HOSTID.set(0xb);
    import(Seen::new(&medium), false).unwrap().export().unwrap();
}
