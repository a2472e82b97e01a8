//! Disks that can be pulled out and pushed in while a pool is open, and fail as they are told to.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::Env;
use pool::{CreateOptions, Error, Hooks, ImportOptions, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::import::scan_devices;
use vdev::{Device, MemoryDevice};
use zpl::create::{FsProps, create_fs};

/// Labels and boot area in front of what a DVA counts from.
pub const FRONT: u64 = 4 << 20;
pub const SIZE: u64 = 80 << 20;

const EIO: i32 = 5;
const ENXIO: i32 = 6;
const EROFS: i32 = 30;

/// A disk: its medium, the cache in front of it, and its troubles.
#[derive(Debug)]
pub struct Disk {
    /// What reads see.
    seen: MemoryDevice,
    /// What a loss of power leaves.
    safe: MemoryDevice,
    /// Ranges of `seen` that are not in `safe`.
    unsafe_ranges: Mutex<Vec<(u64, usize)>>,
    name: String,
    pulled: AtomicBool,
    /// Counts how often it was pulled: who opened it before has lost it.
    pulls: AtomicU64,
    /// So many writes pass before it is pulled by itself.
    pull_after: AtomicU64,
    /// So many writes of blocks fail, with this errno.
    bad_writes: AtomicU64,
    bad_reads: AtomicU64,
    read_only: AtomicBool,
    bad_flushes: AtomicU64,
    /// Whether its cache is lost when it is pulled by itself, or a flush fails.
    loses_cache: AtomicBool,
}

impl Disk {
    fn new(name: String) -> Arc<Disk> {
        let memory = || MemoryDevice::writable(SIZE).named(name.clone());
        Arc::new(Disk {
            seen: memory(),
            safe: memory(),
            unsafe_ranges: Mutex::default(),
            name: name.clone(),
            pulled: AtomicBool::new(false),
            pulls: AtomicU64::new(0),
            pull_after: AtomicU64::new(u64::MAX),
            bad_writes: AtomicU64::new(0),
            bad_reads: AtomicU64::new(0),
            read_only: AtomicBool::new(false),
            bad_flushes: AtomicU64::new(0),
            loses_cache: AtomicBool::new(true),
        })
    }

    /// Pulls it out. Without power, what was not flushed is lost.
    pub fn pull(&self, power: bool) {
        self.pulled.store(true, Ordering::SeqCst);
        self.pulls.fetch_add(1, Ordering::SeqCst);
        let mut ranges = self.unsafe_ranges.lock().unwrap();
        if !power {
            ranges.drain(..).for_each(|(at, len)| copy(&self.safe, &self.seen, at, len));
        }
    }

    pub fn push(&self) {
        self.pull_after.store(u64::MAX, Ordering::SeqCst);
        self.pulled.store(false, Ordering::SeqCst);
    }

    pub fn pull_after(&self, writes: u64) {
        self.pull_after.store(writes, Ordering::SeqCst);
    }

    pub fn lose_cache(&self, lost: bool) {
        self.loses_cache.store(lost, Ordering::SeqCst);
    }

    pub fn is_pulled(&self) -> bool {
        self.pulled.load(Ordering::SeqCst)
    }

    pub fn fail_writes(&self, count: u64) {
        self.bad_writes.store(count, Ordering::SeqCst);
    }

    pub fn fail_reads(&self, count: u64) {
        self.bad_reads.store(count, Ordering::SeqCst);
    }

    pub fn fail_flushes(&self, count: u64) {
        self.bad_flushes.store(count, Ordering::SeqCst);
    }

    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::SeqCst);
    }

    /// Nothing is wrong with it any more.
    pub fn mend(&self) {
        self.fail_writes(0);
        self.fail_reads(0);
        self.fail_flushes(0);
        self.set_read_only(false);
        self.push();
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if take(&self.pull_after) == Some(0) {
            self.pull(!self.loses_cache.load(Ordering::SeqCst));
            return Err(io::Error::from_raw_os_error(ENXIO));
        }
        if self.read_only.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(EROFS));
        }
        let in_blocks = (FRONT..SIZE - (512 << 10)).contains(&offset);
        if in_blocks && take(&self.bad_writes).is_some() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let mut ranges = self.unsafe_ranges.lock().unwrap();
        if self.is_pulled() {
            return Err(io::Error::from_raw_os_error(ENXIO));
        }
        ranges.push((offset, data.len()));
        self.seen.write_at(offset, data)
    }
}

/// Counts down; the number that was left, `None` if there was none or no limit.
fn take(count: &AtomicU64) -> Option<u64> {
    let less = |left: u64| (left != u64::MAX).then(|| left.checked_sub(1)).flatten();
    match count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
        Ok(left) => Some(left - 1),
        Err(_) => None,
    }
}

fn copy(from: &MemoryDevice, to: &MemoryDevice, at: u64, len: usize) {
    let mut bytes = vec![0; len];
    from.read_at(at, &mut bytes).unwrap();
    to.write_at(at, &bytes).unwrap();
}

/// A disk as a pool has opened it.
#[derive(Debug)]
struct Handle {
    disk: Arc<Disk>,
    pulls: u64,
}

impl Handle {
    fn there(&self) -> io::Result<()> {
        if self.is_gone() { Err(io::Error::from_raw_os_error(ENXIO)) } else { Ok(()) }
    }
}

impl Device for Handle {
    fn size(&self) -> u64 {
        SIZE
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.there()?;
        if offset >= FRONT && take(&self.disk.bad_reads).is_some() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.disk.seen.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.there()?;
        self.disk.write(offset, data)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        self.write_at(offset, &data.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>())
    }

    fn flush(&self) -> io::Result<()> {
        self.there()?;
        let mut ranges = self.disk.unsafe_ranges.lock().unwrap();
        if take(&self.disk.bad_flushes).is_some() {
            if self.disk.loses_cache.load(Ordering::SeqCst) {
                ranges.drain(..).for_each(|(at, len)| copy(&self.disk.safe, &self.disk.seen, at, len));
            }
            return Err(io::Error::from_raw_os_error(EIO));
        }
        ranges.drain(..).for_each(|(at, len)| copy(&self.disk.seen, &self.disk.safe, at, len));
        Ok(())
    }

    fn is_gone(&self) -> bool {
        self.disk.is_pulled() || self.disk.pulls.load(Ordering::SeqCst) != self.pulls
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.disk.name.clone()
    }
}

/// All disks that a pool has or could have.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    pub disks: Vec<Arc<Disk>>,
    /// What was said instead of ending the process.
    pub panics: Arc<Mutex<Vec<String>>>,
}

impl Shelf {
    pub fn new(count: usize) -> Shelf {
        Shelf { disks: (0..count).map(|n| Disk::new(format!("d{n}"))).collect(), ..Shelf::default() }
    }

    pub fn open(&self, path: &str) -> Option<Arc<dyn Device>> {
        let disk = self.disks.iter().find(|disk| disk.name == path && !disk.is_pulled())?;
        Some(Arc::new(Handle { disk: disk.clone(), pulls: disk.pulls.load(Ordering::SeqCst) }))
    }

    pub fn hooks(&self) -> Hooks {
        let shelf = self.clone();
        let open_device = move |path: &str| {
            let gone = || io::Error::from_raw_os_error(ENXIO);
            shelf.open(path).ok_or_else(|| vdev::Error::Open { path: path.to_owned(), source: gone() })
        };
        let panics = self.panics.clone();
        let panic = Arc::new(move |message: &str| panics.lock().unwrap().push(message.to_owned()));
        let used_by = Some(Arc::new(zpl::UsedByBonus) as _);
        Hooks { env: Env::system(), used_by, open_device: Arc::new(open_device), panic, ..Hooks::default() }
    }

    /// The pool `t` of these words.
    pub fn create(&self, words: &str) -> Arc<Spa> {
        self.create_as(words, CreateOptions::new("t"))
    }

    /// The same without some features.
    pub fn create_without(&self, words: &str, features: &[&str]) -> Arc<Spa> {
        let mut options = CreateOptions::new("t");
        options.features.retain(|feature| !features.contains(feature));
        self.create_as(words, options)
    }

    /// The same with a file system.
    pub fn create_with_files(&self, words: &str) -> Arc<Spa> {
        let populate: pool::Populate = Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default()));
        self.create_as(words, CreateOptions { populate: Some(populate), ..CreateOptions::new("t") })
    }

    fn create_as(&self, words: &str, options_of_pool: CreateOptions) -> Arc<Spa> {
        let words: Vec<String> = words.split(' ').map(str::to_string).collect();
        let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
        let open = |path: &str| self.open(path);
        let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &Env::seeded(7)).unwrap();
        Spa::create(new, options_of_pool, self.hooks()).unwrap()
    }

    pub fn import(&self) -> Result<Arc<Spa>, Error> {
        let all = self.disks.iter().filter_map(|disk| Some((disk.name.clone().into(), self.open(&disk.name)?)));
        Spa::import(&scan_devices(all.collect())[0], &ImportOptions::default(), self.hooks())
    }

    /// Writes what the disks hold into files of a folder, for OpenZFS's tools.
    pub fn dump(&self, dir: &std::path::Path) {
        for disk in &self.disks {
            let mut bytes = vec![0; SIZE as usize];
            disk.seen.read_at(0, &mut bytes).unwrap();
            std::fs::write(dir.join(&disk.name), bytes).unwrap();
        }
    }
}
