//! A pool that can be written: shared memory devices, and space handed out one block behind the other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::Dva;
use vdev::{Device, MemoryDevice, VdevConfig, VdevTree};
use zio::{AllocError, AllocRequest, SpaceSource, Zio};

use super::{SALT, node};

const LABELS: u64 = 4 << 20;

/// One behind the other, the copies on vdevs in turn.
pub struct Bump {
    tree: Arc<VdevTree>,
    next: Mutex<Vec<u64>>,
    /// The allocations: size and whether freed, by address.
    pub live: Mutex<BTreeMap<(u64, u64), u64>>,
    pub freed: Mutex<Vec<(u64, u64)>>,
    /// Larger requests find no room.
    pub largest: AtomicU64,
    /// Bytes that are left.
    pub left: AtomicU64,
}

impl SpaceSource for Bump {
    fn allocate(&self, req: &AllocRequest<'_>) -> Result<Dva, AllocError> {
        if req.psize > self.largest.load(Ordering::Relaxed) {
            return Err(AllocError::NoSpace);
        }
        let mut next = self.next.lock().unwrap();
        let taken: Vec<u64> = req.avoid.iter().map(Dva::vdev).collect();
        let wanted = u64::from(req.copies_index) % next.len() as u64;
        let vdev = (0..next.len() as u64)
            .map(|n| (wanted + n) % next.len() as u64)
            .find(|v| !taken.contains(v))
            .unwrap_or(wanted);
        let asize = self.asize(vdev, req.psize);
        let left = self.left.load(Ordering::Relaxed);
        let at = next[vdev as usize];
        if left < asize || at + asize > self.tree.top(vdev).unwrap().config().asize {
            return Err(AllocError::NoSpace);
        }
        self.left.store(left - asize, Ordering::Relaxed);
        next[vdev as usize] += asize;
        self.live.lock().unwrap().insert((vdev, at), asize);
        Ok(Dva::new(vdev, at, asize, false))
    }

    fn release(&self, dva: &Dva, _txg: Txg) {
        let was = self.live.lock().unwrap().remove(&(dva.vdev(), dva.offset()));
        assert_eq!(was, Some(dva.asize()), "released what was not allocated");
        self.left.fetch_add(dva.asize(), Ordering::Relaxed);
    }

    fn free(&self, _txg: Txg, dva: &Dva, _birth: Txg) {
        let was = self.live.lock().unwrap().remove(&(dva.vdev(), dva.offset()));
        assert_eq!(was, Some(dva.asize()), "freed what was not allocated");
        self.freed.lock().unwrap().push((dva.vdev(), dva.offset()));
    }

    fn claim(&self, _txg: Txg, dva: &Dva) -> Result<(), AllocError> {
        let old = self.live.lock().unwrap().insert((dva.vdev(), dva.offset()), dva.asize());
        if old.is_some() { Err(AllocError::Failed("in use".into())) } else { Ok(()) }
    }

    fn asize(&self, vdev: u64, psize: u64) -> u64 {
        self.tree.top(vdev).unwrap().psize_to_asize(psize)
    }
}

/// A top-level vdev.
#[derive(Clone, Copy)]
pub enum Top {
    Mirror(usize),
    Raidz(usize, u64),
}

pub struct Writable {
    pub zio: Arc<Zio>,
    pub space: Arc<Bump>,
    pub devices: Vec<Vec<MemoryDevice>>,
    config: VdevConfig,
}

impl Writable {
    pub fn new(tops: &[Top], ashift: u64, size: u64) -> Self {
        let devices: Vec<Vec<MemoryDevice>> = tops
            .iter()
            .map(|top| {
                let (Top::Mirror(n) | Top::Raidz(n, _)) = *top;
                (0..n).map(|_| MemoryDevice::writable(size)).collect()
            })
            .collect();
        let leaf = |v: usize, s: usize| {
            let mut list = node("disk", s as u64, 1000 + 10 * v as u64 + s as u64);
            list.insert("path", format!("/dev/v{v}s{s}").as_str());
            list
        };
        let children: Vec<NvList> = tops
            .iter()
            .enumerate()
            .map(|(v, top)| {
                let (kind, n) = match *top {
                    Top::Mirror(n) => ("mirror", n),
                    Top::Raidz(n, _) => ("raidz", n),
                };
                let mut list = node(kind, v as u64, 100 + v as u64);
                list.insert("ashift", ashift);
                let own = size - LABELS - (512 << 10);
                list.insert("asize", if kind == "raidz" { own * n as u64 } else { own });
                if let Top::Raidz(_, parity) = *top {
                    list.insert("nparity", parity);
                }
                list.insert("children", (0..n).map(|s| leaf(v, s)).collect::<Vec<_>>());
                list
            })
            .collect();
        let mut root = node("root", 0, 1);
        root.insert("children", children);
        let config = VdevConfig::parse(&root).unwrap();
        let tree = tree(&config, &|v, s| Some(Arc::new(devices[v][s].clone())));
        let zio = Arc::new(Zio::new(tree.clone(), 32 << 20));
        zio.set_salt(SALT);
        let space = Arc::new(Bump {
            next: Mutex::new(vec![0; tops.len()]),
            tree,
            live: Mutex::default(),
            freed: Mutex::default(),
            largest: AtomicU64::new(u64::MAX),
            left: AtomicU64::new(u64::MAX >> 1),
        });
        zio.set_space(space.clone());
        Writable { zio, space, devices, config }
    }

    /// The pool once more, on the devices that `find` gives for vdev and side.
    pub fn open_on(&self, find: &dyn Fn(usize, usize) -> Option<Arc<dyn Device>>) -> Zio {
        let zio = Zio::new(tree(&self.config, find), 1 << 20);
        zio.set_salt(SALT);
        zio
    }

    /// Bytes that are allocated now.
    pub fn allocated(&self) -> u64 {
        self.space.live.lock().unwrap().values().sum()
    }

    pub fn snapshot(&self) -> Vec<Vec<u8>> {
        self.devices.iter().flatten().map(MemoryDevice::snapshot).collect()
    }

    /// Turns over one byte of a leaf, `at` bytes into the pool's space.
    pub fn damage(&self, vdev: usize, side: usize, at: u64) {
        let device = &self.devices[vdev][side];
        let mut byte = [0];
        device.read_at(LABELS + at, &mut byte).unwrap();
        device.write_at(LABELS + at, &[byte[0] ^ 0x5a]).unwrap();
    }
}

fn tree(config: &VdevConfig, find: &dyn Fn(usize, usize) -> Option<Arc<dyn Device>>) -> Arc<VdevTree> {
    let of = |leaf: Guid| find((leaf.0 as usize - 1000) / 10, (leaf.0 as usize - 1000) % 10);
    Arc::new(VdevTree::open(config, &of).unwrap())
}
