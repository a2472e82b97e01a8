//! What the pipeline needs of whoever hands out space.

use base::Txg;
use ondisk::{Dva, ObjectType};

use crate::Bookmark;

/// Why no space was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// There is no contiguous range of this size in any class that the block may lie in (OpenZFS: `ENOSPC`). A smaller one may
    /// be there.
    #[error("no space")]
    NoSpace,
    /// The space maps cannot be read, or the address cannot be.
    #[error("{0}")]
    Failed(String),
}

/// One copy of one block that wants a place (OpenZFS: the arguments of `metaslab_alloc` and `spa_preferred_class`).
#[derive(Debug, Clone, Copy)]
pub struct AllocRequest<'a> {
    /// The type by which the allocation class is chosen: that of the object, or what it says it stores.
    pub object_type: ObjectType,
    /// Level of the block.
    pub level: u8,
    /// Bytes to be stored, before parity and rounding.
    pub psize: u64,
    /// Bytes of the logical block.
    pub lsize: u64,
    /// Which copy this is, from 0.
    pub copies_index: u8,
    /// The txg that is being written.
    pub txg: Txg,
    /// Which block.
    pub bm: Bookmark,
    /// Where the other copies of the block are: on another vdev if it can be, else far away.
    pub avoid: &'a [Dva],
    /// A piece of a gang block.
    pub gang_child: bool,
    /// The header of a gang block; `psize` is 512, the place must hold the vdev's smallest allocation.
    pub gang_header: bool,
    /// A block of the intent log.
    pub slog: bool,
    /// Data blocks up to this many bytes may go to the special class (`special_small_blocks`).
    pub special_small: u64,
}

/// Hands out and takes back the space of a pool. Thread safe. Helper of [`Zio::write`](crate::Zio::write); OpenZFS: `metaslab.c`.
pub trait SpaceSource: Send + Sync {
    /// A place for one copy: the address has the allocated size, without the gang bit.
    ///
    /// # Errors
    /// [`AllocError`].
    fn allocate(&self, req: &AllocRequest<'_>) -> Result<Dva, AllocError>;

    /// Places for a run of copies of different blocks, in order; stops at the first that gets none. One lock for many.
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

    /// Gives back a place that [`SpaceSource::allocate`] gave in this very txg and that nobody points to.
    fn release(&self, dva: &Dva, txg: Txg);

    /// Frees one place of a block born (physically) in `birth`. For the header of a gang block the size is that of the header alone, and
    /// the gang bit is gone.
    fn free(&self, txg: Txg, dva: &Dva, birth: Txg);

    /// Takes a place that the intent log uses and that the space maps do not know of.
    ///
    /// # Errors
    /// If it is in use already, or cannot be.
    fn claim(&self, txg: Txg, dva: &Dva) -> Result<(), AllocError> {
        let _ = (txg, dva);
        Err(AllocError::Failed("space cannot be claimed here".to_owned()))
    }

    /// Bytes allocated for `psize` bytes on top-level vdev `vdev`, now.
    fn asize(&self, vdev: u64, psize: u64) -> u64;
}
