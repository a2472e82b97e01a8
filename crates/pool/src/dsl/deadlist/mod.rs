//! Deadlists: which blocks a dataset no longer has that the snapshot before it had (OpenZFS: `dsl_deadlist.c`).
//!
//! A deadlist is a list of lists, by the birth of the blocks: the list under key T holds blocks born after T and up to the next
//! key. So the blocks that die with a snapshot, or were born since one, are whole lists, and their space is known without
//! reading them. Before version 26 a deadlist was a single list.
//!
//! A clone may have a livelist as well: of the same form, with what the clone wrote (ALLOC) and freed again (FREE) since its
//! creation, so that it can be destroyed without reading its block tree.

pub(in crate::dsl) mod livelist;
#[cfg(test)]
mod tests;
pub(in crate::dsl) mod write;

use base::{ObjectId, Txg};
use ondisk::dsl::DslDatasetPhys;
use ondisk::dsl::{DeadlistPhys, dir_keys};
use ondisk::{BlkPtr, ObjectType};

use crate::spa::bpobj::{Bpobj, Space};
use crate::spa::mos::Mos;
use crate::{Dataset, Dir, Error, Pool};

/// A deadlist or livelist.
#[derive(Clone, Debug)]
pub struct Deadlist {
    pub(in crate::dsl) mos: Mos,
    pub(in crate::dsl) id: ObjectId,
    pub(in crate::dsl) body: Body,
}

#[derive(Clone, Debug)]
pub(in crate::dsl) enum Body {
    /// One list.
    Old(Bpobj),
    /// Lists by lowest birth: (blocks born after this txg, object), ascending.
    Keyed { phys: DeadlistPhys, lists: Vec<(Txg, ObjectId)> },
}

impl Deadlist {
    pub(in crate::dsl) fn open(mos: &Mos, id: ObjectId) -> Result<Deadlist, Error> {
        let object = mos.object(id)?;
        if object.phys().object_type == ObjectType::BPOBJ {
            return Ok(Deadlist { mos: mos.clone(), id, body: Body::Old(Bpobj::open(mos, id)?) });
        }
        let phys = Mos::bonus(&object, DeadlistPhys::decode)?;
        let zap = mos.zap(id)?;
        let mut lists = Vec::new();
        zap.for_each_number(&mut |key: &[u8], list| {
            let txg = str::from_utf8(key).ok().and_then(|key| u64::from_str_radix(key, 16).ok());
            let broken = || Error::corrupt(id, format!("deadlist key '{}' is no number", key.escape_ascii()));
            lists.push((Txg(txg.ok_or_else(broken)?), ObjectId(list)));
            Ok::<(), Error>(())
        })?;
        lists.sort_unstable();
        Ok(Deadlist { mos: mos.clone(), id, body: Body::Keyed { phys, lists } })
    }

    /// Its object in the MOS.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The lists: lowest birth (exclusive) and object. An old deadlist is one list of all births.
    #[must_use]
    pub fn lists(&self) -> Vec<(Txg, ObjectId)> {
        match &self.body {
            Body::Old(list) => vec![(Txg(0), list.id())],
            Body::Keyed { lists, .. } => lists.clone(),
        }
    }

    /// The list in object `id`, which [`Deadlist::lists`] gave.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn list(&self, id: ObjectId) -> Result<Bpobj, Error> {
        Bpobj::open(&self.mos, id)
    }

    /// The space of all blocks.
    #[must_use]
    pub fn space(&self) -> Space {
        match &self.body {
            Body::Old(list) => list.space(),
            Body::Keyed { phys, .. } => Space { used: phys.used, comp: phys.comp, uncomp: phys.uncomp },
        }
    }

    /// The space of the blocks born after `after` and not after `until`; both are txgs of snapshots (or 0 and the end).
    ///
    /// # Errors
    /// When a list cannot be read.
    pub fn space_range(&self, after: Txg, until: Txg) -> Result<Space, Error> {
        let mut space = Space::default();
        let deflate = self.mos.number("deflate")?.unwrap_or(0) != 0;
        match &self.body {
            Body::Old(list) => list.for_each(&mut |bp| {
                if bp.birth() > after && bp.birth() <= until {
                    space.add(Space::of(&self.mos, bp, deflate));
                }
                Ok(())
            })?,
            Body::Keyed { lists, .. } => {
                for (_, id) in lists.iter().filter(|(txg, _)| *txg >= after && *txg < until) {
                    space.add(Bpobj::open(&self.mos, *id)?.space());
                }
            }
        }
        Ok(space)
    }

    /// Visits every pointer. In a livelist [`ondisk::bpobj::livelist_entry_is_free`] tells what it means.
    ///
    /// # Errors
    /// When a list cannot be read, or what `visit` gives.
    pub fn for_each(&self, visit: &mut dyn FnMut(&BlkPtr) -> Result<(), Error>) -> Result<(), Error> {
        match &self.body {
            Body::Old(list) => list.for_each(visit),
            Body::Keyed { lists, .. } => {
                lists.iter().try_for_each(|(_, id)| Bpobj::open(&self.mos, *id)?.for_each(visit))
            }
        }
    }
}

impl Pool {
    pub(in crate::dsl) fn deadlist_of(&self, phys: &DslDatasetPhys) -> Result<Option<Deadlist>, Error> {
        match phys.deadlist_obj {
            ObjectId::NONE => Ok(None),
            id => Deadlist::open(&self.mos, id).map(Some),
        }
    }
}

impl Dataset {
    /// The blocks of the previous snapshot that this dataset no longer has. `None` for OpenZFS's own datasets without one.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn deadlist(&self) -> Result<Option<Deadlist>, Error> {
        match self.phys().deadlist_obj {
            ObjectId::NONE => Ok(None),
            id => Deadlist::open(&self.pool().mos, id).map(Some),
        }
    }
}

impl Dir {
    /// The livelist of a clone, if it keeps one.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn livelist(&self) -> Result<Option<Deadlist>, Error> {
        self.field_id(dir_keys::LIVELIST)?.map(|id| Deadlist::open(&self.pool.mos, id)).transpose()
    }
}
