//! Sizes of volumes: blocks that waste little, and the space of a full volume.

use pool::{Dataset, Pool};
use vdev::{TopVdev, VdevType};

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

/// The size of a volume's blocks, of which parity and padding take less than half: `said`, or the best (OpenZFS:
/// `default_volblocksize`). Warns of a size that wastes much.
pub(super) fn block_size(pool: &Pool, said: Option<u64>) -> u64 {
    let unit = pool.tree().tops().iter().filter(|top| top.is_concrete()).map(allocation_unit).max().unwrap_or(512);
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

/// The smallest allocation on a vdev, in bytes (OpenZFS: `vdev_get_min_alloc`).
fn allocation_unit(top: &TopVdev) -> u64 {
    let sector = 1u64 << top.ashift();
    match top.config().kind {
        VdevType::Raidz => (top.config().nparity + 1) * sector,
        VdevType::Draid => top.config().draid_ndata.max(1) * sector,
        _ => sector,
    }
}

/// The space that a full volume takes, in bytes (OpenZFS: `zvol_volsize_to_reservation`).
pub(super) fn reservation(pool: &Pool, volsize: u64, block: u64) -> u64 {
    let mut blocks = volsize / block.max(1);
    let data = data_size(pool, blocks, block);
    let mut metadata = METADNODE_LEVELS;
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        metadata += blocks;
    }
    data.saturating_add(metadata * METADATA_COPIES * INDIRECT)
}

/// The space that the data of a volume takes, as the pool counts space, on the worst of its vdevs (OpenZFS:
/// `volsize_from_vdevs`).
fn data_size(pool: &Pool, blocks: u64, block: u64) -> u64 {
    let has_parity = |top: &&TopVdev| matches!(top.config().kind, VdevType::Raidz | VdevType::Draid);
    let on = |top: &TopVdev| {
        let typical = top.psize_to_asize(TYPICAL_BLOCK) >> 9;
        let sectors = blocks.saturating_mul(top.psize_to_asize(block)) / typical.max(1);
        sectors.saturating_mul(TYPICAL_BLOCK >> 9)
    };
    pool.tree().tops().iter().filter(has_parity).map(on).max().unwrap_or_else(|| blocks.saturating_mul(block))
}

/// The reservation that a volume of another size needs, if it has now the one that its size needs; `None` if not
/// (OpenZFS: `zfs_add_synthetic_resv`).
pub(super) fn follow(volume: &Dataset, new_size: u64) -> Option<u64> {
    let number = |name: &str| volume.prop(name).ok()??.value.number();
    let block = number("volblocksize")?;
    let fits = reservation(volume.pool(), number("volsize")?, block) == number("refreservation")?;
    fits.then(|| reservation(volume.pool(), new_size, block))
}
