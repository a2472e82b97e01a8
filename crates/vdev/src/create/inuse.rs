//! The contents that a device has already.

use std::path::Path;

use base::{Guid, Txg};
use ondisk::label::{LABELS, key};

use crate::Error;
use crate::device::{self, Access, Device};
use crate::import::PoolState;
use crate::label::read_label;

/// The use of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InUse {
    /// It is part of a pool.
    Pool {
        /// The pool's name.
        name: String,
        /// The pool.
        guid: Guid,
        /// The leaf that the device is.
        leaf: Guid,
        /// `active`, `potentially active` or `exported`.
        state: &'static str,
    },
    /// It is a hot spare, in use or not.
    Spare {
        /// Its identity; pools that share it know it by that.
        leaf: Guid,
    },
    /// It is a cache, in use or not.
    L2cache {
        /// Its identity.
        leaf: Guid,
    },
    /// It holds something else: the name that `blkid` has for it.
    Foreign(&'static str),
    /// It holds a partition table: `gpt` or `dos`.
    Partitions(&'static str),
}

impl InUse {
    /// Why a device must not be used, in the words of `zpool`; `None` if it may be. `force` is `-f`, `as_spare` that it is to be a spare,
    /// `is_block` that it is a block device: files are only looked at for pools.
    #[must_use]
    pub fn refusal(&self, path: &str, is_block: bool, as_spare: bool, force: bool) -> Option<String> {
        match self {
            InUse::Pool { name, state, .. } if !force || *state == "active" => {
                Some(format!("{path} is part of {state} pool '{name}'"))
            }
            // spares may be shared; those of pools that are not in use are free
            InUse::Spare { .. } if as_spare => None,
            InUse::Foreign(kind) if is_block && !force => {
                Some(format!("{path} contains a filesystem of type '{kind}'"))
            }
            InUse::Partitions(kind) if is_block && !force => {
                Some(format!("{path} contains a partition table of type '{kind}'"))
            }
            _ => None,
        }
    }
}

/// The contents of a device, if it has any. Of a pool that says it is active, only its owner knows whether it is: it counts as *potentially active*.
///
/// # Errors
/// If the device cannot be read.
pub fn in_use(device: &dyn Device) -> Result<Option<InUse>, Error> {
    if let Some(found) = in_pool(device) {
        return Ok(Some(found));
    }
    foreign(device)
}

/// The same for a path. A pool whose device another process has open for writing is *active*.
///
/// # Errors
/// [`Error::Open`], or if the device cannot be read.
pub fn in_use_path(path: &Path) -> Result<Option<InUse>, Error> {
    let found = in_use(&*device::open(path, Access::Read)?)?;
    if let Some(InUse::Pool { name, guid, leaf, .. }) = &found
        && device::is_busy(path)
    {
        return Ok(Some(InUse::Pool { name: name.clone(), guid: *guid, leaf: *leaf, state: "active" }));
    }
    Ok(found)
}

/// OpenZFS: `zpool_in_use`.
fn in_pool(device: &dyn Device) -> Option<InUse> {
    let labels = (0..LABELS).filter_map(|index| read_label(device, index).ok());
    let is_aux = |state: Option<u64>| matches!(state, Some(3 | 4));
    let written = labels.filter(|label| is_aux(label.config.get_u64(key::POOL_STATE)) || label.txg() != Txg(0));
    let label = written.max_by_key(crate::label::Label::txg)?;
    let leaf = label.guid()?;
    let state = label.config.get_u64(key::POOL_STATE)?;
    let pool = |state| {
        let name = label.config.get_str(key::POOL_NAME).unwrap_or_default().to_owned();
        Some(InUse::Pool { name, guid: label.pool_guid()?, leaf, state })
    };
    match (state, PoolState::from_number(state)) {
        (_, Some(PoolState::Active)) => pool("potentially active"),
        (_, Some(PoolState::Exported)) => pool("exported"),
        (3, _) => Some(InUse::Spare { leaf }),
        (4, _) => Some(InUse::L2cache { leaf }),
        // a destroyed pool leaves its devices to whoever wants them
        _ => None,
    }
}

/// A mark that a file system or a volume manager leaves at a fixed place.
struct Mark {
    name: &'static str,
    offset: u64,
    bytes: &'static [u8],
}

const fn mark(name: &'static str, offset: u64, bytes: &'static [u8]) -> Mark {
    Mark { name, offset, bytes }
}

/// Marks by themselves enough. Names are those of `blkid`.
const MARKS: [Mark; 22] = [
    mark("xfs", 0, b"XFSB"),
    mark("btrfs", 0x10040, b"_BHRfS_M"),
    mark("ntfs", 3, b"NTFS    "),
    mark("exfat", 3, b"EXFAT   "),
    mark("vfat", 0x52, b"FAT32   "),
    mark("vfat", 0x36, b"FAT16   "),
    mark("vfat", 0x36, b"FAT12   "),
    mark("LVM2_member", 0x218, b"LVM2 001"),
    mark("LVM2_member", 0x18, b"LVM2 001"),
    mark("linux_raid_member", 0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    mark("linux_raid_member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    mark("crypto_LUKS", 0, b"LUKS\xba\xbe"),
    mark("swap", 0xff6, b"SWAPSPACE2"),
    mark("swap", 0xff6, b"SWAP-SPACE"),
    mark("swap", 0x3ff6, b"SWAPSPACE2"),
    mark("swap", 0xfff6, b"SWAPSPACE2"),
    mark("f2fs", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    mark("squashfs", 0, b"hsqs"),
    mark("iso9660", 0x8001, b"CD001"),
    mark("bcache", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    mark("ReIsErFs", 0x10034, b"ReIsEr2Fs"),
    mark("jfs", 0x8000, b"JFS1"),
];

/// Bytes that are looked at, from the front.
const FRONT: u64 = 0x11000;
/// The offset of an ext file system's superblock.
const EXT_SUPERBLOCK: usize = 0x400;

fn foreign(device: &dyn Device) -> Result<Option<InUse>, Error> {
    let size = device.size();
    let mut front = vec![0; size.min(FRONT) as usize];
    let len = front.len() as u64;
    device.read_at(0, &mut front).map_err(|source| Error::Io { device: device.name(), offset: 0, len, source })?;
    if let Some(name) = ext(&front) {
        return Ok(Some(InUse::Foreign(name)));
    }
    let at = |offset: u64, bytes: &[u8]| {
        let from = offset as usize;
        front.get(from..from + bytes.len()) == Some(bytes)
    };
    if let Some(found) = MARKS.iter().find(|mark| at(mark.offset, mark.bytes)) {
        return Ok(Some(InUse::Foreign(found.name)));
    }
    if raid_at_end(device) {
        return Ok(Some(InUse::Foreign("linux_raid_member")));
    }
    if at(512, b"EFI PART") || at(4096, b"EFI PART") {
        return Ok(Some(InUse::Partitions("gpt")));
    }
    Ok(has_partitions(&front).then_some(InUse::Partitions("dos")))
}

/// Which of the ext family it is: by the features that only the younger ones know.
fn ext(front: &[u8]) -> Option<&'static str> {
    use base::{Endian, bytes};
    let word = |offset| bytes::u32(front, EXT_SUPERBLOCK + offset, Endian::Little).unwrap_or(0);
    if bytes::u16(front, EXT_SUPERBLOCK + 0x38, Endian::Little)? != 0xef53 {
        return None;
    }
    let (compatible, incompatible, read_only) = (word(0x5c), word(0x60), word(0x64));
    const HAS_JOURNAL: u32 = 4;
    const JOURNAL_DEVICE: u32 = 8;
    // filetype, needs recovery, meta_bg; sparse superblocks, large files, directories as B-trees
    const INCOMPATIBLE_OF_EXT3: u32 = 0x2 | 0x4 | 0x10;
    const READ_ONLY_OF_EXT3: u32 = 0x1 | 0x2 | 0x4;
    if incompatible & JOURNAL_DEVICE != 0 {
        return Some("jbd");
    }
    if incompatible & !INCOMPATIBLE_OF_EXT3 != 0 || read_only & !READ_ONLY_OF_EXT3 != 0 {
        return Some("ext4");
    }
    Some(if compatible & HAS_JOURNAL != 0 { "ext3" } else { "ext2" })
}

/// Whether the old formats of `md` are there, whose mark is near the end of the device.
fn raid_at_end(device: &dyn Device) -> bool {
    let size = device.size();
    let places = [(size & !0xffff).checked_sub(0x10000), (size & !0xfff).checked_sub(0x2000)];
    places.into_iter().flatten().any(|place| {
        let mut magic = [0; 4];
        device.read_at(place, &mut magic).is_ok() && magic == [0xfc, 0x4e, 0x2b, 0xa9]
    })
}

/// Whether there is a table of partitions of the old kind, with a partition in it.
fn has_partitions(front: &[u8]) -> bool {
    let entries = front.get(0x1be..0x1fe).unwrap_or(&[]).as_chunks::<16>().0;
    let plausible = entries.iter().all(|entry| matches!(entry[0], 0 | 0x80));
    let used = entries.iter().any(|entry| entry[4] != 0 && entry[12..] != [0; 4]);
    front.get(0x1fe..0x200) == Some(&[0x55, 0xaa]) && plausible && used
}
