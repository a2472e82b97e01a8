//! The context of a sync: the txg, the write policy, and the recipient of births and deaths of blocks.

use base::{Endian, ObjectId, Txg};
use ondisk::{BlkPtr, ObjectType};

use crate::WritePolicy;

/// One call of [`Objset::sync`](crate::Objset::sync).
#[derive(Clone, Copy)]
pub struct SyncCx<'a> {
    /// The txg that is synced.
    pub txg: Txg,
    /// The pass of its sync, from 1.
    pub pass: u32,
    /// The recipient of births and deaths of blocks.
    pub owner: &'a dyn BlockOwner,
    /// The rules by which blocks are written.
    pub policy: &'a WritePolicy,
    /// The owners of objects, if space is accounted by user, group and project.
    pub used: Option<&'a dyn UsedBy>,
    /// Whether blocks wait for the end of the sync ([`zio::Zio::write_late`]), which the caller brings about: those that the next pass writes again.
    pub late: bool,
}

/// The recipient of births and deaths of a dataset's blocks (OpenZFS: `dsl_dataset_block_born`,
/// `dsl_dataset_block_kill`). Called by the sync thread. Never called for holes, nor for a block that was overwritten in
/// place; embedded blocks are reported, as in OpenZFS, though they take no space.
pub trait BlockOwner {
    /// A block became part of the dataset.
    fn born(&self, bp: &BlkPtr);
    /// A block is no longer part of the dataset.
    fn killed(&self, bp: &BlkPtr);
    /// An unreadable block of pointers is freed: the blocks below it are no longer part of the dataset, and stay
    /// allocated.
    fn stranded(&self, _: &BlkPtr) {}
    /// A dnode of more than one slot was written: feature `large_dnode` is in use.
    fn large_dnode(&self) {}
    /// An object was written: its dnode, its bonus buffer or its blocks are no longer those of the sync before. Called when the whole set is
    /// written, for objects that were made or freed too.
    fn changed(&self, _object: ObjectId) {}
    /// The space of a block that counts against its object, in bytes: with raidz less than the allocated size (OpenZFS:
    /// `bp_get_dsize_sync`).
    fn dsize(&self, bp: &BlkPtr) -> u64 {
        bp.asize()
    }
}

/// A [`BlockOwner`] that ignores all notifications.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOwner;

impl BlockOwner for NoOwner {
    fn born(&self, _: &BlkPtr) {}
    fn killed(&self, _: &BlkPtr) {}
}

/// The user, group and project to which an object is accounted (OpenZFS: `zfs_file_info_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// User, an FUID.
    pub uid: u64,
    /// Group, an FUID.
    pub gid: u64,
    /// Project, 0 for none.
    pub projid: u64,
}

/// Finds an object's owner in its bonus buffer (OpenZFS: `zpl_get_file_info`).
pub trait UsedBy {
    /// The owner; `None` if the object is not accounted.
    fn owner(&self, bonus_type: ObjectType, bonus: &[u8], endian: Endian) -> Option<Owner>;
    /// Returns whether objects are counted as well (feature `userobj_accounting`).
    fn counts_objects(&self) -> bool {
        true
    }
    /// Returns whether projects are accounted (feature `project_quota`).
    fn projects(&self) -> bool {
        true
    }
}

/// The parameters of a new object (OpenZFS: the arguments of `dmu_object_alloc_dnsize`). Zeros take the defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NewObject {
    /// Its type.
    pub object_type: ObjectType,
    /// Bytes of a data block, rounded up to 512; 0 for 512.
    pub block_size: u64,
    /// log2 of the size of indirect blocks, 12 to 17; 0 for 17.
    pub indirect_shift: u8,
    /// Type of the bonus buffer.
    pub bonus_type: ObjectType,
    /// Bytes of the bonus buffer, zeros at first.
    pub bonus_len: usize,
    /// Slots of 512 bytes for the dnode, 1 to 32; 0 for 1.
    pub slots: usize,
    /// Number of the compression; 0 inherits.
    pub compress: u8,
    /// Number of the checksum; 0 inherits.
    pub checksum: u8,
    /// The initial number of levels of the tree; 0 for as few as it needs.
    pub nlevels: u8,
    /// Pointers in the dnode, 1 to 3; 0 for as many as fit beside the bonus buffer.
    pub nblkptr: u8,
}
