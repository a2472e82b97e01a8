//! The label: the positions of its parts, and the names in its configuration (OpenZFS: `vdev_label_t`, `vdev_phys_t`).
//!
//! Each leaf device has four labels of 256 KiB, two at the front and two at the end, so that a torn update leaves one pair intact. A label
//! holds a pad for a partition table, the boot environment, the configuration (a packed nvlist) and a ring of uberblocks. Configuration,
//! boot environment and each uberblock end with a trailer whose checksum is seeded with their offset on the device
//! (`codec::embedded::verify_label`).

use base::bytes;

use crate::Error;

/// Labels of a device.
pub const LABELS: usize = 4;
/// Bytes of one label.
pub const LABEL_SIZE: u64 = 256 << 10;
/// Offset of the boot environment in a label.
pub const BOOTENV_OFFSET: u64 = 8 << 10;
/// Bytes of the boot environment block, including the trailer.
pub const BOOTENV_SIZE: usize = 8 << 10;
/// Offset of the configuration in a label.
pub const CONFIG_OFFSET: u64 = 16 << 10;
/// Bytes of the configuration, including the trailer (OpenZFS: `VDEV_PHYS_SIZE`).
pub const CONFIG_SIZE: usize = 112 << 10;
/// Offset of the uberblock ring in a label.
pub const RING_OFFSET: u64 = 128 << 10;
/// Bytes of the ring of uberblocks.
pub const RING_SIZE: usize = 128 << 10;
/// Bytes of the trailer of each part.
pub const TRAILER_SIZE: usize = 40;
/// Bytes between the front labels and the data, available to boot loaders and for the scratch area of a RAID-Z expansion.
pub const BOOT_REGION_SIZE: u64 = 7 << 19;
/// The smallest device that OpenZFS accepts (64 MiB).
pub const MIN_DEVICE_SIZE: u64 = 64 << 20;

/// The offset of label `index` (0 to 3) on a device of `size` bytes; `None` if the device is too small to have it.
#[must_use]
pub fn offset(size: u64, index: usize) -> Option<u64> {
    let aligned = size & !(LABEL_SIZE - 1);
    if aligned < LABEL_SIZE * LABELS as u64 || index >= LABELS {
        return None;
    }
    let place = index as u64 * LABEL_SIZE;
    Some(if index < 2 { place } else { aligned - LABELS as u64 * LABEL_SIZE + place })
}

/// log2 of the size of an uberblock slot on a top-level vdev with this ashift.
#[must_use]
pub fn uberblock_shift(ashift: u64) -> u32 {
    ashift.clamp(10, 13) as u32
}

/// Number of slots in the ring of a vdev with this ashift.
#[must_use]
pub fn uberblock_count(ashift: u64) -> usize {
    RING_SIZE >> uberblock_shift(ashift)
}

/// The contents of a label's boot environment block (OpenZFS: `vdev_boot_envblock_t`). Its version is always big-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootEnv {
    /// Version 0: bytes up to the first NUL, for GRUB.
    Raw(Vec<u8>),
    /// Version 1: a packed nvlist (with the rest of the block after it).
    NvList(Vec<u8>),
    /// Any other version.
    Unknown {
        /// The version.
        version: u64,
    },
}

impl BootEnv {
    /// Decodes a boot environment block whose trailer was checked.
    ///
    /// # Errors
    /// [`Error::Truncated`] if `block` is shorter than a boot environment block.
    pub fn decode(block: &[u8]) -> Result<BootEnv, Error> {
        let short = || Error::short("boot environment", BOOTENV_SIZE, block.len());
        let version = bytes::u64(block, 0, base::Endian::Big).ok_or_else(short)?;
        let payload = block.get(8..BOOTENV_SIZE - TRAILER_SIZE).ok_or_else(short)?;
        Ok(match version {
            0 => BootEnv::Raw(bytes::until_nul(payload).to_vec()),
            1 => BootEnv::NvList(payload.to_vec()),
            version => BootEnv::Unknown { version },
        })
    }
}

/// The names in the configuration of a label and of the MOS (OpenZFS: `ZPOOL_CONFIG_*`).
#[allow(missing_docs, reason = "each constant is its own name")]
pub mod key {
    pub const VERSION: &str = "version";
    pub const POOL_NAME: &str = "name";
    pub const POOL_STATE: &str = "state";
    pub const POOL_TXG: &str = "txg";
    pub const POOL_GUID: &str = "pool_guid";
    pub const ERRATA: &str = "errata";
    pub const HOSTID: &str = "hostid";
    pub const HOSTNAME: &str = "hostname";
    pub const COMMENT: &str = "comment";
    pub const COMPATIBILITY: &str = "compatibility";
    pub const TOP_GUID: &str = "top_guid";
    pub const GUID: &str = "guid";
    pub const IS_SPARE: &str = "is_spare";
    pub const IS_LOG: &str = "is_log";
    pub const VDEV_CHILDREN: &str = "vdev_children";
    pub const HOLE_ARRAY: &str = "hole_array";
    pub const VDEV_TREE: &str = "vdev_tree";
    pub const FEATURES_FOR_READ: &str = "features_for_read";
    pub const SPLIT: &str = "splitcfg";
    pub const TYPE: &str = "type";
    pub const ID: &str = "id";
    pub const PATH: &str = "path";
    pub const DEVID: &str = "devid";
    pub const PHYS_PATH: &str = "phys_path";
    pub const WHOLE_DISK: &str = "whole_disk";
    pub const NOT_PRESENT: &str = "not_present";
    pub const NPARITY: &str = "nparity";
    pub const METASLAB_ARRAY: &str = "metaslab_array";
    pub const METASLAB_SHIFT: &str = "metaslab_shift";
    pub const ASHIFT: &str = "ashift";
    pub const ASIZE: &str = "asize";
    pub const MIN_ALLOC: &str = "min_alloc";
    pub const MAX_ALLOC: &str = "max_alloc";
    pub const DTL: &str = "DTL";
    pub const CREATE_TXG: &str = "create_txg";
    pub const OFFLINE: &str = "offline";
    pub const FAULTED: &str = "faulted";
    pub const DEGRADED: &str = "degraded";
    pub const REMOVED: &str = "removed";
    pub const AUX_STATE: &str = "aux_state";
    pub const RESILVER_TXG: &str = "resilver_txg";
    pub const REBUILD_TXG: &str = "rebuild_txg";
    pub const REMOVING: &str = "removing";
    pub const NON_ALLOCATING: &str = "non_allocating";
    pub const ALLOCATION_BIAS: &str = "alloc_bias";
    pub const VDEV_TOP_ZAP: &str = "com.delphix:vdev_zap_top";
    pub const VDEV_LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";
    pub const VDEV_ROOT_ZAP: &str = "com.klarasystems:vdev_zap_root";
    pub const RAIDZ_EXPANDING: &str = "raidz_expanding";
    pub const RAIDZ_EXPAND_TXGS: &str = "raidz_expand_txgs";
    pub const DRAID_NDATA: &str = "draid_ndata";
    pub const DRAID_NSPARES: &str = "draid_nspares";
    pub const DRAID_NGROUPS: &str = "draid_ngroups";
    pub const DRAID_NCHILDREN: &str = "draid_nchildren";
    pub const INDIRECT_OBJECT: &str = "com.delphix:indirect_object";
    pub const INDIRECT_BIRTHS: &str = "com.delphix:indirect_births";
    pub const PREV_INDIRECT_VDEV: &str = "com.delphix:prev_indirect_vdev";
    pub const SPARE_ID: &str = "spareid";
    pub const CHILDREN: &str = "children";
    pub const SPARES: &str = "spares";
    pub const L2CACHE: &str = "l2cache";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_lie_at_both_ends_of_the_aligned_size() {
        let size = (64 << 20) + 12345;
        let places: Vec<_> = (0..LABELS).map(|n| offset(size, n)).collect();
        assert_eq!(places, [Some(0), Some(256 << 10), Some((64 << 20) - (512 << 10)), Some((64 << 20) - (256 << 10))]);
        assert_eq!(offset((1 << 20) - 1, 0), None);
        assert_eq!(offset(size, 4), None);
        assert_eq!((uberblock_shift(9), uberblock_count(9)), (10, 128));
        assert_eq!((uberblock_shift(16), uberblock_count(16)), (13, 16));
    }

    #[test]
    fn a_boot_environment_tells_its_version() {
        let mut block = vec![0; BOOTENV_SIZE];
        block[8..12].copy_from_slice(b"abc\0");
        assert_eq!(BootEnv::decode(&block), Ok(BootEnv::Raw(b"abc".to_vec())));
        block[7] = 1;
        assert!(matches!(BootEnv::decode(&block), Ok(BootEnv::NvList(_))));
        block[7] = 9;
        assert_eq!(BootEnv::decode(&block), Ok(BootEnv::Unknown { version: 9 }));
        assert!(BootEnv::decode(&block[..100]).is_err());
    }
}
