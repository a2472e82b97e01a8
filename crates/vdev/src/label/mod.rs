//! Labels: configurations, uberblocks, boot environments. Reading is here, writing in a part of its own.

mod write;

use base::{Endian, Guid, Txg};
use codec::embedded::verify_label;
use nvlist::{Limits, NvList};
use ondisk::Uberblock;
use ondisk::label::{self as layout, BootEnv, key};

use crate::Error;
use crate::device::Device;
pub use write::{
    AuxUse, PoolLabel, aux_config, clear, commit, encode_config, encode_uberblock, init, initial_config, leaf_config,
    probe, uberblock_slot, write_config, write_heartbeat,
};

/// The limits of a label's configuration: one packed area of 112 KiB holds no more.
const LIMITS: Limits = Limits { depth: 20, pairs: 1 << 16, bytes: 16 << 20 };

/// The configuration of one label.
#[derive(Debug, Clone)]
pub struct Label {
    /// Which of the four labels.
    pub index: usize,
    /// The configuration: of the leaf, its top-level vdev, its pool.
    pub config: NvList,
    /// The byte order of whoever wrote it.
    pub endian: Endian,
}

impl Label {
    /// The txg of the pool when the label was written; 0 for a device that was never in use, a spare, a cache.
    #[must_use]
    pub fn txg(&self) -> Txg {
        Txg(self.config.get_u64(key::POOL_TXG).unwrap_or(0))
    }

    /// The leaf that the device is.
    #[must_use]
    pub fn guid(&self) -> Option<Guid> {
        self.config.get_u64(key::GUID).map(Guid)
    }

    /// The pool that the device belongs to.
    #[must_use]
    pub fn pool_guid(&self) -> Option<Guid> {
        self.config.get_u64(key::POOL_GUID).map(Guid)
    }
}

/// An uberblock and where it was found.
#[derive(Debug, Clone)]
pub struct UberblockSlot {
    /// Which of the four labels.
    pub label: usize,
    /// Which slot of its ring.
    pub slot: usize,
    /// The uberblock.
    pub ub: Uberblock,
}

fn place(dev: &dyn Device, index: usize) -> Result<u64, Error> {
    layout::offset(dev.size(), index).ok_or_else(|| Error::TooSmall { device: dev.name() })
}

fn read(dev: &dyn Device, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut buf = vec![0; len];
    dev.read_at(offset, &mut buf).map_err(|source| Error::Io {
        device: dev.name(),
        offset,
        len: len as u64,
        source,
    })?;
    Ok(buf)
}

/// Reads the configurations of all four labels, each with its own outcome.
pub fn read_labels(dev: &dyn Device) -> [Result<Label, Error>; layout::LABELS] {
    std::array::from_fn(|index| read_label(dev, index))
}

/// Reads the configuration of label `index`.
///
/// # Errors
/// The device is too small, fails, or has no such label; or what is there is none.
pub fn read_label(dev: &dyn Device, index: usize) -> Result<Label, Error> {
    let offset = place(dev, index)? + layout::CONFIG_OFFSET;
    let area = read(dev, offset, layout::CONFIG_SIZE)?;
    decode_label(&area, offset, index, &dev.name())
}

/// Decodes the configuration area of label `index`, which lies at byte `offset` of the device called `device`.
///
/// # Errors
/// The checksum is wrong, or the area holds no nvlist.
pub fn decode_label(area: &[u8], offset: u64, index: usize, device: &str) -> Result<Label, Error> {
    let endian =
        verify_label(area, offset).map_err(|source| Error::Label { device: device.to_owned(), index, source })?;
    let config =
        decode_config(area).map_err(|source| Error::LabelConfig { device: device.to_owned(), index, source })?;
    Ok(Label { index, config, endian })
}

/// Decodes a packed configuration, whatever follows it.
///
/// # Errors
/// What is wrong with the nvlist.
pub fn decode_config(packed: &[u8]) -> Result<NvList, nvlist::Error> {
    NvList::unpack_with(packed, &LIMITS).map(|(list, _)| list)
}

/// Reads all uberblocks with a valid checksum from the rings of all labels, for a top-level vdev with this ashift. The same uberblock is
/// usually found in all four labels.
#[must_use]
pub fn read_uberblock_slots(dev: &dyn Device, ashift: u64) -> Vec<UberblockSlot> {
    let mut found = Vec::new();
    for label in 0..layout::LABELS {
        let Ok(offset) = place(dev, label).map(|o| o + layout::RING_OFFSET) else { continue };
        let slot_size = 1usize << layout::uberblock_shift(ashift);
        // a ring that cannot be read as a whole may still have readable slots
        let ring = read(dev, offset, layout::RING_SIZE).ok();
        for slot in 0..layout::uberblock_count(ashift) {
            let at = slot * slot_size;
            let slot_offset = offset + at as u64;
            let alone;
            let bytes = match &ring {
                Some(ring) => ring.get(at..at + slot_size).unwrap_or(&[]),
                None => {
                    alone = read(dev, slot_offset, slot_size).unwrap_or_default();
                    &alone
                }
            };
            if let Some(ub) = decode_uberblock(bytes, slot_offset) {
                found.push(UberblockSlot { label, slot, ub });
            }
        }
    }
    found
}

/// As [`read_uberblock_slots`], each uberblock once, the best first.
#[must_use]
pub fn read_uberblocks(dev: &dyn Device, ashift: u64) -> Vec<Uberblock> {
    let mut all: Vec<Uberblock> = read_uberblock_slots(dev, ashift).into_iter().map(|s| s.ub).collect();
    sort_uberblocks(&mut all);
    all
}

/// As [`read_uberblocks`], of a device that another machine may be writing: what this one keeps of it in memory does not count.
#[must_use]
pub fn read_uberblocks_anew(dev: &dyn Device, ashift: u64) -> Vec<Uberblock> {
    for offset in (0..layout::LABELS).filter_map(|label| place(dev, label).ok()) {
        // what cannot be forgotten is read as it was
        let _kept = dev.forget(offset + layout::RING_OFFSET, layout::RING_SIZE as u64);
    }
    read_uberblocks(dev, ashift)
}

/// Puts the best uberblock first (highest txg, then latest, then highest multihost sequence) and drops repetitions.
pub fn sort_uberblocks(all: &mut Vec<Uberblock>) {
    all.sort_by_key(|ub| std::cmp::Reverse(ub.rank()));
    all.dedup();
}

/// An uberblock's slot, if its magic number and its checksum are right; it lies at byte `offset` of its device.
#[must_use]
pub fn decode_uberblock(slot: &[u8], offset: u64) -> Option<Uberblock> {
    // the magic number first: most slots of a young pool are empty, and a checksum costs more
    let ub = Uberblock::decode(slot).ok()?;
    verify_label(slot, offset).ok()?;
    Some(ub)
}

/// The boot environment of the first label that has one with a right checksum.
///
/// # Errors
/// That of the last label.
pub fn read_bootenv(dev: &dyn Device) -> Result<BootEnv, Error> {
    let mut last = Err(Error::TooSmall { device: dev.name() });
    for index in 0..layout::LABELS {
        last = place(dev, index).map(|o| o + layout::BOOTENV_OFFSET).and_then(|offset| {
            let block = read(dev, offset, layout::BOOTENV_SIZE)?;
            verify_label(&block, offset).map_err(|source| Error::Label { device: dev.name(), index, source })?;
            Ok(BootEnv::decode(&block)?)
        });
        if last.is_ok() {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests;
