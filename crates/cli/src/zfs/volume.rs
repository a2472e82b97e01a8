//! Sizes of volumes: blocks that waste little, and the space of a full volume.

use control::Failed;
use ondisk::label::key;
use site::Query;
use vdev::{ASHIFT_MAX, VdevConfig, VdevType};

use super::listed::Listed;
use crate::pools;

/// Default size of a volume's blocks, and the least without a warning (OpenZFS: `ZVOL_DEFAULT_BLOCKSIZE`).
pub(super) const BLOCK_SIZE: u64 = 16 << 10;
/// The block size at which space on parity groups is counted (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`).
const TYPICAL_BLOCK: u64 = 128 << 10;
/// Block pointers in an indirect block.
const POINTERS: u64 = 1024;
/// Bytes of an indirect block.
const INDIRECT: u64 = 128 << 10;
/// Levels of the dnodes' own object.
const METADNODE_LEVELS: u64 = 7;
/// Copies of indirect blocks.
const METADATA_COPIES: u64 = 2;

/// The top-level vdevs of a pool, on which volumes take their space.
pub(super) struct Tops(Vec<VdevConfig>);

impl Tops {
    /// Asks for those of a pool.
    pub(super) fn of(source: &Query) -> Result<Tops, Failed> {
        let config = pools::brief_stats(source)?;
        let root = config.get_nvlist(key::VDEV_TREE).map(VdevConfig::parse).transpose()?;
        Ok(Tops(root.map(|root| root.children).unwrap_or_default()))
    }

    /// The size of a volume's blocks, of which parity and padding take less than half: `said`, or the best (OpenZFS:
    /// `default_volblocksize`). Warns of a size that wastes much.
    pub(super) fn block_size(&self, said: Option<u64>) -> u64 {
        let unit = self.0.iter().filter(|top| has_blocks(top)).map(allocation_unit).max().unwrap_or(512);
        let mut best = BLOCK_SIZE;
        while best * 2 <= unit {
            best *= 2;
        }
        let Some(said) = said else { return best };
        if said < BLOCK_SIZE {
            eprintln!(
                "Warning: volblocksize ({said}) is less than the default minimum block size ({BLOCK_SIZE}).\n\
                 To reduce wasted space a volblocksize of {best} is recommended."
            );
        } else if said < best {
            eprintln!(
                "Warning: volblocksize ({said}) is much less than the minimum allocation\n\
                 unit ({unit}), which wastes at least {}% of space. To reduce wasted space,\n\
                 use a larger volblocksize ({best} is recommended), fewer dRAID data disks\n\
                 per group, or smaller sector size (ashift).",
                100 * (unit - said) / unit
            );
        }
        said
    }

    /// The space that a full volume takes, in bytes (OpenZFS: `zvol_volsize_to_reservation`).
    pub(super) fn reservation(&self, volsize: u64, block: u64) -> u64 {
        let mut blocks = volsize / block.max(1);
        let data = self.data_size(blocks, block);
        let mut metadata = METADNODE_LEVELS;
        while blocks > 1 {
            blocks = blocks.div_ceil(POINTERS);
            metadata += blocks;
        }
        data.saturating_add(metadata * METADATA_COPIES * INDIRECT)
    }

    /// The space that the data of a volume takes, as the pool counts space, on the worst of its vdevs (OpenZFS:
    /// `volsize_from_vdevs`).
    fn data_size(&self, blocks: u64, block: u64) -> u64 {
        let on = |top: &VdevConfig| {
            let asize = |psize| top.striped_asize(psize);
            let typical = asize(TYPICAL_BLOCK)? >> 9;
            let sectors = blocks.saturating_mul(asize(block)?) / typical.max(1);
            Some(sectors.saturating_mul(TYPICAL_BLOCK >> 9))
        };
        self.0.iter().filter_map(on).max().unwrap_or_else(|| blocks.saturating_mul(block))
    }

    /// The space that a volume takes when it is full, of its own size or another one.
    pub(super) fn full(&self, volume: &Listed, other_size: Option<u64>) -> Result<u64, Failed> {
        let size = other_size.map_or_else(|| known(volume, "volsize"), Ok)?;
        Ok(self.reservation(size, known(volume, "volblocksize")?))
    }

    /// The reservation that a volume of another size needs, if it has now the one that its size needs; `None` if not
    /// (OpenZFS: `zfs_add_synthetic_resv`).
    pub(super) fn follow(&self, volume: &Listed, new_size: u64) -> Result<Option<u64>, Failed> {
        let fits = volume.number("refreservation")? == Some(self.full(volume, None)?);
        fits.then(|| self.full(volume, Some(new_size))).transpose()
    }
}

/// A property that each volume has. One that cannot be read counts as nothing else: a reservation would be gone without a word.
fn known(volume: &Listed, prop: &str) -> Result<u64, Failed> {
    let unknown = || control::Error::Invalid(format!("'{prop}' of '{}' cannot be read", volume.name()));
    Ok(volume.number(prop)?.ok_or_else(unknown)?)
}

/// Whether blocks can lie on a vdev: it was not removed.
fn has_blocks(top: &VdevConfig) -> bool {
    !matches!(top.kind, VdevType::Hole | VdevType::Missing | VdevType::Indirect)
}

/// The smallest allocation on a vdev, in bytes (OpenZFS: `vdev_get_min_alloc`).
fn allocation_unit(top: &VdevConfig) -> u64 {
    let sector = 1u64 << top.ashift.min(ASHIFT_MAX);
    match top.kind {
        VdevType::Raidz => (top.nparity + 1) * sector,
        VdevType::Draid => top.draid_ndata.max(1) * sector,
        _ => sector,
    }
}
