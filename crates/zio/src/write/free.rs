//! Freeing blocks, and claiming those that the intent log wrote.

use base::Txg;
use ondisk::gang::GANG_HEADER_SIZE;
use ondisk::{BlkPtr, Dva};

use super::{AllocError, SpaceSource};
use crate::{ArcKey, Bookmark, Error, Zio};

impl Zio {
    /// Frees a block in `txg`: drops it from the cache; if the dedup table or the clone table counts its references,
    /// drops one; else frees every address of it, gang headers and pieces included. Holes and embedded blocks have none.
    ///
    /// # Errors
    /// A gang header ([`Error::Checksum`], [`Error::Io`]) or a table ([`Error::Table`]) cannot be read: nothing is freed.
    pub fn free(&self, txg: Txg, bp: &BlkPtr) -> Result<(), Error> {
        self.free_of(txg, bp, &Bookmark::default())
    }

    /// As [`Zio::free`], with the bookmark for errors.
    ///
    /// # Errors
    /// As [`Zio::free`].
    pub fn free_of(&self, txg: Txg, bp: &BlkPtr, bm: &Bookmark) -> Result<(), Error> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let space = self.write.space().ok_or(Error::ReadOnly { bm: *bm })?;
        let failed = |source| Error::Table { bm: *bm, source };
        if bp.is_dedup() {
            let unknown = || Error::Space { bm: *bm, reason: "the dedup table is not open".to_owned() };
            if self.write.dedup().ok_or_else(unknown)?.release(txg, bp).map_err(failed)? {
                return Ok(());
            }
        }
        if let Some(table) = self.write.clones()
            && table.release(txg, bp).map_err(failed)?
        {
            return Ok(());
        }
        let members = self.gang_members(bp, bm)?;
        if let Some(key) = ArcKey::of(bp) {
            self.arc().remove(&key);
        }
        for block in std::iter::once(bp).chain(&members) {
            for dva in block.dvas() {
                space.free(txg, &self.own_place(&dva), block.birth_physical());
            }
        }
        Ok(())
    }

    /// Marks a block of the intent log as allocated, which the space maps do not know.
    ///
    /// # Errors
    /// An address is in use already, or impossible; a gang header cannot be read.
    pub fn claim(&self, txg: Txg, bp: &BlkPtr) -> Result<(), Error> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let bm = Bookmark::default();
        let space = self.write.space().ok_or(Error::ReadOnly { bm })?;
        let members = self.gang_members(bp, &bm)?;
        for block in std::iter::once(bp).chain(&members) {
            block.dvas().try_for_each(|dva| claim_one(&*space, txg, &self.own_place(&dva), &bm))?;
        }
        Ok(())
    }

    /// The space of an address alone: that of a gang block includes its pieces, though only the header is there.
    fn own_place(&self, dva: &Dva) -> Dva {
        if !dva.is_gang() {
            return *dva;
        }
        let header = GANG_HEADER_SIZE as u64;
        let asize = self.tree().top(dva.vdev()).map_or(header, |top| top.psize_to_asize_at(header, Txg(0)));
        Dva::new(dva.vdev(), dva.offset(), asize, false)
    }
}

fn claim_one(space: &dyn SpaceSource, txg: Txg, dva: &Dva, bm: &Bookmark) -> Result<(), Error> {
    space.claim(txg, dva).map_err(|e| match e {
        AllocError::NoSpace => Error::NoSpace { bm: *bm, psize: dva.asize() },
        AllocError::Failed(reason) => Error::Space { bm: *bm, reason },
    })
}
