//! A store of two slots, correct or deliberately broken, to test the harness.
//!
//! A value is written beside the previous one, flushed, and then made current by a header, which is written to two slots alternately, and
//! flushed too. A reader takes the newest header whose checksum is valid.

use std::io;
use std::sync::Arc;

use vdev::Device;

/// Bytes of a slot's header; more than a sector, so it can be torn.
const HEADER: usize = 4096;
/// Bytes of a value.
pub const VALUE: usize = 32 << 10;
/// Bytes of a device.
pub const SIZE: u64 = 2 * (HEADER + VALUE) as u64;

/// The bug of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// No bug.
    None,
    /// The header is written before the value is safe.
    NoFlushBetween,
    /// The value is reported as safe before the header is.
    NoFlushAfter,
    /// The flush goes to one device only.
    FlushesOneDevice,
    /// The header overwrites the current one.
    OneSlot,
    /// The value overwrites the current one.
    InPlace,
}

/// The contents of a device: a generation and its value.
pub type ReadBack = Option<(u64, Vec<u8>)>;

/// A value on some devices, the same on each.
#[derive(Debug)]
pub struct Store {
    devices: Vec<Arc<dyn Device>>,
    generation: u64,
    bug: Bug,
}

/// FNV-1a, which suffices because the checksum is not under test.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

const fn place(slot: u64) -> u64 {
    slot * (HEADER + VALUE) as u64
}

impl Store {
    /// A store on empty devices of [`SIZE`] bytes.
    #[must_use]
    pub fn new(devices: Vec<Arc<dyn Device>>, bug: Bug) -> Store {
        Store { devices, generation: 0, bug }
    }

    /// Makes `value` the current one, and returns its generation.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn put(&mut self, value: &[u8; VALUE]) -> io::Result<u64> {
        self.generation += 1;
        let slot = if self.bug == Bug::OneSlot { 0 } else { self.generation % 2 };
        let value_slot = if self.bug == Bug::InPlace { 0 } else { self.generation % 2 };
        // each sector differs from that of the previous header
        let mut header = vec![self.generation as u8; HEADER];
        header[8..16].copy_from_slice(&self.generation.to_le_bytes());
        header[16..24].copy_from_slice(&value_slot.to_le_bytes());
        let sum = checksum(&header[8..]);
        header[..8].copy_from_slice(&sum.to_le_bytes());
        for device in &self.devices {
            // in pieces, so that parts of one value can be lost
            for (n, piece) in value.chunks(VALUE / 4).enumerate() {
                device.write_at(place(value_slot) + (HEADER + n * VALUE / 4) as u64, piece)?;
            }
        }
        if self.bug != Bug::NoFlushBetween {
            self.flush()?;
        }
        self.devices.iter().try_for_each(|device| device.write_at(place(slot), &header))?;
        if self.bug != Bug::NoFlushAfter {
            self.flush()?;
        }
        Ok(self.generation)
    }

    fn flush(&self) -> io::Result<()> {
        let some = if self.bug == Bug::FlushesOneDevice { 1 } else { self.devices.len() };
        self.devices.iter().take(some).try_for_each(|device| device.flush())
    }

    /// The current value of each device, with its generation; `None` if nothing was written yet.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn read(devices: &[Arc<dyn Device>]) -> io::Result<Vec<ReadBack>> {
        let one = |device: &Arc<dyn Device>| {
            let mut newest = None;
            for slot in 0..2 {
                let mut header = vec![0; HEADER];
                device.read_at(place(slot), &mut header)?;
                let found = (word(&header, 8), word(&header, 16) % 2);
                if word(&header, 0) == checksum(&header[8..]) && newest.is_none_or(|other| found > other) {
                    newest = Some(found);
                }
            }
            let Some((generation, slot)) = newest else { return Ok(None) };
            let mut value = vec![0; VALUE];
            device.read_at(place(slot) + HEADER as u64, &mut value)?;
            Ok(Some((generation, value)))
        };
        devices.iter().map(one).collect()
    }
}
