//! A power plug that is pulled while a pool runs: devices with a volatile write cache.
//!
//! The recorder of this crate keeps a whole run in memory and cuts it afterwards, at many positions. Here there is one cut, of real files
//! of any size: a [`PluggedDevice`] writes through, and keeps the previous contents of every write that no flush has made safe. When the
//! [`Plug`] is pulled, those writes are undone or kept, sector by sector, and from then on every operation fails.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use vdev::{Device, DeviceKind};

use crate::Rng;

/// The unit that a device writes atomically, in bytes.
const SECTOR: usize = 512;

/// The power supply of a set of devices, which fails at a chosen write.
#[derive(Debug)]
pub struct Plug {
    /// Number of writes until then.
    left: AtomicU64,
    seed: u64,
    pulled: AtomicBool,
    devices: Mutex<Vec<Arc<PluggedDevice>>>,
    lost: Mutex<Loss>,
}

/// The effect of a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Number of writes that no flush had made safe.
    pub pending: u64,
    /// Sectors of 512 bytes in them.
    pub sectors: u64,
    /// Number of these that never reached the medium.
    pub lost: u64,
}

impl Plug {
    /// A plug that is pulled at write number `writes`, counted over all its devices; `seed` decides which sectors are lost.
    #[must_use]
    pub fn new(writes: u64, seed: u64) -> Arc<Plug> {
        Arc::new(Plug {
            left: AtomicU64::new(writes.max(1)),
            seed,
            pulled: AtomicBool::new(false),
            devices: Mutex::default(),
            lost: Mutex::default(),
        })
    }

    /// Puts `device` behind the plug.
    pub fn device(self: &Arc<Plug>, device: Arc<dyn Device>) -> Arc<PluggedDevice> {
        let behind = Arc::new(PluggedDevice { device, plug: self.clone(), pending: Mutex::default() });
        self.devices.lock().push(behind.clone());
        behind
    }

    /// The loss, if the power has failed.
    pub fn loss(&self) -> Option<Loss> {
        // `pulled` is set under this lock, so the loss is complete once it is visible
        let lost = self.lost.lock();
        self.pulled.load(Ordering::Acquire).then_some(*lost)
    }

    /// Pulls the plug unless it is already pulled.
    pub fn pull_now(&self) {
        if self.left.swap(0, Ordering::AcqRel) > 0 {
            // a failure to undo writes on the medium does not matter: the power is off anyway
            let _unwritten = self.pull();
        }
    }

    fn check(&self) -> io::Result<()> {
        if self.pulled.load(Ordering::Acquire) { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    /// Counts a completed write; the last one pulls the plug, and so is not safe.
    fn count(&self) -> io::Result<()> {
        let down = |left: u64| left.checked_sub(1);
        if self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, down) == Ok(1) {
            self.pull()?;
        }
        self.check()
    }

    fn pull(&self) -> io::Result<()> {
        let mut lost = self.lost.lock();
        let rng = Rng::new(self.seed);
        for device in self.devices.lock().iter() {
            // writes in progress wait for this lock, and then find the power off
            let mut pending = device.pending.lock();
            self.pulled.store(true, Ordering::Release);
            let share = *rng.pick(&[0, 10, 50, 90, 100]);
            lost.pending += pending.len() as u64;
            undo(&*device.device, &std::mem::take(&mut *pending), share, &rng, &mut lost)?;
        }
        Ok(())
    }
}

/// The contents of a range before a write.
#[derive(Debug)]
struct Before {
    offset: u64,
    bytes: Vec<u8>,
}

/// Undoes `share` percent of the sectors of the writes, last write first: a sector that a later write also covered keeps the later contents
/// if that write reached the medium.
fn undo(device: &dyn Device, writes: &[Before], share: u64, rng: &Rng, loss: &mut Loss) -> io::Result<()> {
    let mut reached = HashSet::new();
    for write in writes.iter().rev() {
        for (n, old) in write.bytes.chunks(SECTOR).enumerate() {
            let at = write.offset + (n * SECTOR) as u64;
            loss.sectors += 1;
            if reached.contains(&at) {
                continue;
            }
            if rng.percent(share) {
                loss.lost += 1;
                device.write_at(at, old)?;
            } else {
                reached.insert(at);
            }
        }
    }
    Ok(())
}

/// A device behind a [`Plug`].
#[derive(Debug)]
pub struct PluggedDevice {
    device: Arc<dyn Device>,
    plug: Arc<Plug>,
    /// The previous contents for each write that is not safe yet, in order.
    pending: Mutex<Vec<Before>>,
}

impl Device for PluggedDevice {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.plug.check()?;
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_vectored_at(offset, &[IoSlice::new(data)])
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let mut bytes = vec![0; data.iter().map(|piece| piece.len()).sum()];
        let mut pending = self.pending.lock();
        self.plug.check()?;
        self.device.read_at(offset, &mut bytes)?;
        pending.push(Before { offset, bytes });
        self.device.write_vectored_at(offset, data)?;
        drop(pending);
        self.plug.count()
    }

    fn flush(&self) -> io::Result<()> {
        let mut pending = self.pending.lock();
        self.plug.check()?;
        self.device.flush()?;
        pending.clear();
        Ok(())
    }

    fn is_writable(&self) -> bool {
        self.device.is_writable()
    }

    fn kind(&self) -> DeviceKind {
        self.device.kind()
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

#[cfg(test)]
mod tests {
    use vdev::MemoryDevice;

    use super::*;

    const LEN: usize = 64 << 10;

    fn contents(device: &MemoryDevice) -> Vec<u8> {
        let mut all = vec![0; LEN];
        device.read_at(0, &mut all).expect("the medium can be read");
        all
    }

    #[test]
    fn a_flush_makes_safe_and_the_rest_may_go() {
        let (mut kept, mut gone) = (false, false);
        for seed in 0..40 {
            let medium = MemoryDevice::writable(LEN as u64);
            let plug = Plug::new(4, seed);
            let device = plug.device(Arc::new(medium.clone()));
            device.write_at(0, &[1; 4096]).expect("there is power");
            device.flush().expect("there is power");
            device.write_at(0, &[2; 1024]).expect("there is power");
            device.write_at(512, &[3; 1024]).expect("there is power");
            assert!(plug.loss().is_none());
            device.write_at(8192, &[4; 512]).expect_err("the power goes at the fourth write");
            device.flush().expect_err("there is no power");
            device.read_at(0, &mut [0; 512]).expect_err("there is no power");

            let now = contents(&medium);
            assert!(now[1536..4096].iter().all(|&b| b == 1), "flushed bytes are there");
            assert!([0, 4].contains(&now[8192]), "the interrupted write is there or not");
            let sector = |n: usize| now[n * 512];
            assert!([1, 2].contains(&sector(0)) && [1, 2, 3].contains(&sector(1)) && [1, 3].contains(&sector(2)));
            let loss = plug.loss().expect("the power has gone");
            assert_eq!((loss.pending, loss.sectors), (3, 5));
            kept |= sector(1) == 3;
            gone |= sector(1) == 1;
        }
        assert!(kept && gone, "seeds differ");
    }
}
