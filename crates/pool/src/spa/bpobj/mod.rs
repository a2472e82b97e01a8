//! Lists of block pointers in the MOS, and walking them (OpenZFS: `bpobj.c`, `bptree.c`).

pub(crate) mod write;

use std::collections::HashSet;

use base::ObjectId;
use dmu::Object;
use ondisk::bpobj::{BpobjPhys, BptreeEntry, BptreePhys};
use ondisk::{BLKPTR_SIZE, BlkPtr, ObjectType};

use crate::Error;
use crate::spa::mos::Mos;

/// Lists within lists that are followed; OpenZFS makes two or three levels.
pub(crate) const DEPTH_MAX: usize = 16;
/// Lists that one list may have below it.
pub(crate) const SUBOBJS_MAX: u64 = 1 << 24;

/// Space that a list of blocks stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Bytes as users are charged: all copies, parity evened out.
    pub used: u64,
    /// Compressed bytes.
    pub comp: u64,
    /// Uncompressed bytes.
    pub uncomp: u64,
}

impl Space {
    /// Adds `other`.
    pub fn add(&mut self, other: Space) {
        self.used = self.used.wrapping_add(other.used);
        self.comp = self.comp.wrapping_add(other.comp);
        self.uncomp = self.uncomp.wrapping_add(other.uncomp);
    }

    /// Takes `other` away.
    pub fn sub(&mut self, other: Space) {
        self.used = self.used.wrapping_sub(other.used);
        self.comp = self.comp.wrapping_sub(other.comp);
        self.uncomp = self.uncomp.wrapping_sub(other.uncomp);
    }

    /// The weight of a block (OpenZFS: `bp_get_dsize`, `BP_GET_PSIZE`, `BP_GET_UCSIZE`).
    pub(crate) fn of(mos: &Mos, bp: &BlkPtr, deflate: bool) -> Space {
        let comp = if bp.is_embedded() { 0 } else { bp.psize() };
        let metadata = bp.level() > 0 || bp.object_type().is_metadata();
        let lsize = if bp.is_redacted() { 0 } else { bp.lsize() };
        Space { used: mos.dsize(bp, deflate), comp, uncomp: if metadata { comp } else { lsize } }
    }
}

/// Sums over blocks, in bytes; differences may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) used: i64,
    pub(crate) comp: i64,
    pub(crate) uncomp: i64,
}

impl Delta {
    pub(crate) fn of(mos: &Mos, bp: &BlkPtr) -> Delta {
        let space = Space::of(mos, bp, true);
        Delta { used: space.used as i64, comp: space.comp as i64, uncomp: space.uncomp as i64 }
    }

    pub(crate) fn add(&mut self, other: Delta) {
        self.used = self.used.wrapping_add(other.used);
        self.comp = self.comp.wrapping_add(other.comp);
        self.uncomp = self.uncomp.wrapping_add(other.uncomp);
    }

    pub(crate) fn minus(self, other: Delta) -> Delta {
        Delta {
            used: self.used.wrapping_sub(other.used),
            comp: self.comp.wrapping_sub(other.comp),
            uncomp: self.uncomp.wrapping_sub(other.uncomp),
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        self == Delta::default()
    }
}

/// A list of block pointers, with lists below it (OpenZFS: `bpobj_t`). A handle is as of its making.
#[derive(Clone, Debug)]
pub struct Bpobj {
    pub(crate) mos: Mos,
    pub(crate) object: Object,
    pub(crate) phys: BpobjPhys,
}

impl Bpobj {
    pub(crate) fn open(mos: &Mos, id: ObjectId) -> Result<Bpobj, Error> {
        let object = mos.object(id)?;
        if object.phys().object_type != ObjectType::BPOBJ {
            return Err(Error::corrupt(
                id,
                format!("a list of block pointers was expected, not {:?}", object.phys().object_type),
            ));
        }
        let phys = Mos::bonus(&object, BpobjPhys::decode)?;
        Ok(Bpobj { mos: mos.clone(), object, phys })
    }

    /// Its object in the MOS.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// Its header.
    #[must_use]
    pub fn phys(&self) -> &BpobjPhys {
        &self.phys
    }

    /// The space of all pointers, lists below included.
    #[must_use]
    pub fn space(&self) -> Space {
        Space { used: self.phys.bytes, comp: self.phys.comp, uncomp: self.phys.uncomp }
    }

    /// The objects of the lists directly below.
    ///
    /// # Errors
    /// When they cannot be read, or are more than there can be.
    pub fn subobjs(&self) -> Result<Vec<ObjectId>, Error> {
        if self.phys.subobjs.is_none() || self.phys.num_subobjs == 0 {
            return Ok(Vec::new());
        }
        let list = self.mos.object(self.phys.subobjs)?;
        let stored = list.most_bytes() / 8;
        if self.phys.num_subobjs > stored.min(SUBOBJS_MAX) {
            return Err(Error::corrupt(self.id(), format!("list claims {} lists below it", self.phys.num_subobjs)));
        }
        Ok(list.read_u64s(0, self.phys.num_subobjs as usize)?.into_iter().map(ObjectId).collect())
    }

    /// Visits every pointer of this list and of those below it. Each list is visited once, whatever points to it.
    ///
    /// # Errors
    /// When a block of a list cannot be read, or what `visit` gives.
    pub fn for_each(&self, visit: &mut dyn FnMut(&BlkPtr) -> Result<(), Error>) -> Result<(), Error> {
        let mut seen = HashSet::from([self.id()]);
        self.visit_below(visit, &mut seen, 0)
    }

    fn visit_below(
        &self,
        visit: &mut dyn FnMut(&BlkPtr) -> Result<(), Error>,
        seen: &mut HashSet<ObjectId>,
        depth: usize,
    ) -> Result<(), Error> {
        self.visit_own(visit)?;
        if depth >= DEPTH_MAX {
            return Err(Error::corrupt(self.id(), "lists of block pointers are nested too deeply"));
        }
        for id in self.subobjs()? {
            if seen.insert(id) {
                Bpobj::open(&self.mos, id)?.visit_below(visit, seen, depth + 1)?;
            }
        }
        Ok(())
    }

    pub(crate) fn visit_own(&self, visit: &mut dyn FnMut(&BlkPtr) -> Result<(), Error>) -> Result<(), Error> {
        let per_block = self.object.block_size() / BLKPTR_SIZE as u64;
        let mut left = self.phys.num_blkptrs;
        if per_block == 0 || left.div_ceil(per_block) > self.object.most_blocks() {
            if left == 0 {
                return Ok(());
            }
            return Err(Error::corrupt(self.id(), format!("list claims {left} block pointers")));
        }
        for blkid in 0..left.div_ceil(per_block) {
            let here = left.min(per_block);
            left -= here;
            // a block that was never written holds no pointers, though the count says so
            let Some((block, endian)) = self.object.block_with_endian(blkid)? else { continue };
            for raw in block.as_chunks::<BLKPTR_SIZE>().0.iter().take(here as usize) {
                visit(&BlkPtr::from_bytes(raw, endian))?;
            }
        }
        Ok(())
    }
}

/// The trees of blocks that are being destroyed in the background.
///
/// # Errors
/// When the object cannot be read.
pub(crate) fn bptree_entries(mos: &Mos, id: ObjectId) -> Result<Vec<BptreeEntry>, Error> {
    let object = mos.object(id)?;
    let phys = Mos::bonus(&object, BptreePhys::decode)?;
    let stored = object.most_bytes() / BptreeEntry::SIZE as u64;
    // each has a root block of its own
    let most = mos.objset.zio().most_blocks();
    if phys.begin > phys.end || phys.end > stored || phys.end - phys.begin > most {
        return Err(Error::corrupt(
            id,
            format!("entries {} to {} of {stored} are to be destroyed", phys.begin, phys.end),
        ));
    }
    let words = BptreeEntry::SIZE / 8;
    (phys.begin..phys.end)
        .map(|n| {
            // entries straddle blocks, and each block has its own byte order: words are the unit
            let raw: Vec<u8> =
                object.read_u64s(n * words as u64, words)?.iter().flat_map(|w| w.to_le_bytes()).collect();
            BptreeEntry::decode(&raw, base::Endian::Little).map_err(|source| Error::Format { object: id, source })
        })
        .collect()
}
