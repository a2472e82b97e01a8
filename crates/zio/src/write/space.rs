//! The interface between the write pipeline and the space allocator.

use base::Txg;
use ondisk::{Dva, ObjectType};

use crate::Bookmark;

/// The reason why no space was allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No contiguous range of this size in any class that the block may be in (OpenZFS: `ENOSPC`). A smaller one may
    /// exist.
    #[error("no space")]
    NoSpace,
    /// The space maps cannot be read, or the address is impossible.
    #[error("{0}")]
    Failed(String),
}

/// One copy of one block to be allocated (OpenZFS: the arguments of `metaslab_alloc` and `spa_preferred_class`).
#[derive(Debug, Clone, Copy)]
pub struct AllocRequest<'a> {
    /// The type by which the allocation class is chosen: that of the object, or its declared storage type.
    pub object_type: ObjectType,
    /// Level of the block.
    pub level: u8,
    /// Bytes to be stored, before parity and rounding.
    pub psize: u64,
    /// Bytes of the logical block.
    pub lsize: u64,
    /// The index of this copy, from 0.
    pub copies_index: u8,
    /// The txg that is being written.
    pub txg: Txg,
    /// The logical address of the block.
    pub bm: Bookmark,
    /// The addresses of the block's other copies: this one goes to another vdev if possible, else far away.
    pub avoid: &'a [Dva],
    /// A piece of a gang block.
    pub gang_child: bool,
    /// The header of a gang block; `psize` is 512, the allocation must have the vdev's smallest size.
    pub gang_header: bool,
    /// A block of the intent log.
    pub slog: bool,
    /// Data blocks up to this many bytes may go to the special class (`special_small_blocks`).
    pub special_small: u64,
}

/// Allocates and frees the space of a pool. Thread safe. Helper of [`Zio::write`](crate::Zio::write); OpenZFS:
/// `metaslab.c`.
pub trait SpaceSource: Send + Sync {
    /// Allocates one copy: the address has the allocated size, without the gang bit.
    ///
    /// # Errors
    /// [`AllocError`].
    fn allocate(&self, req: &AllocRequest<'_>) -> Result<Dva, AllocError>;

    /// Allocates a run of copies of different blocks, in order; stops at the first failure. Takes one lock for many.
    fn allocate_many(&self, reqs: &[AllocRequest<'_>]) -> Vec<Result<Dva, AllocError>> {
        let mut got = Vec::with_capacity(reqs.len());
        for req in reqs {
            let one = self.allocate(req);
            let failed = one.is_err();
            got.push(one);
            if failed {
                break;
            }
        }
        got
    }

    /// Frees an address that [`SpaceSource::allocate`] returned in this very txg and that nothing points to.
    fn release(&self, dva: &Dva, txg: Txg);

    /// Frees one address of a block born (physically) in `birth`. For the header of a gang block the size is that of the
    /// header alone, without the gang bit.
    fn free(&self, txg: Txg, dva: &Dva, birth: Txg);

    /// Allocates the given address, which the intent log uses and the space maps do not know of.
    ///
    /// # Errors
    /// If it is in use already, or impossible.
    fn claim(&self, txg: Txg, dva: &Dva) -> Result<(), AllocError> {
        let _ = (txg, dva);
        Err(AllocError::Failed("space cannot be claimed here".to_owned()))
    }

    /// Bytes allocated for `psize` bytes on top-level vdev `vdev`, now.
    fn asize(&self, vdev: u64, psize: u64) -> u64;
}
