//! The pool's space as a whole, and what of it datasets may use (OpenZFS: `spa_update_dspace`, `spa_get_slop_space`,
//! `dsl_pool_adjustedsize`, `metaslab_class_*`).

use std::collections::BTreeMap;

use ondisk::label::key;
use vdev::TopVdev;

use crate::spa::metaslab::{AllocClass, MetaslabInfo};
use crate::{Bpobj, Error, Pool};

/// A pool keeps back 1/32 of its space (OpenZFS: `spa_slop_shift`) …
const SLOP_SHIFT: u32 = 5;
/// … but at least this (or half of a tiny pool) …
const MIN_SLOP: u64 = 128 << 20;
/// … and at most this.
const MAX_SLOP: u64 = 128 << 30;

/// The space of a class of metaslabs, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClassSpace {
    /// All of it, parity included.
    pub space: u64,
    /// Allocated bytes.
    pub alloc: u64,
    /// All of it as datasets count it: without parity.
    pub dspace: u64,
    /// Allocated bytes, as datasets count them.
    pub dalloc: u64,
}

impl ClassSpace {
    fn add(&mut self, top: &TopVdev, metaslab: &MetaslabInfo) {
        // space is counted by the slice, also where a dRAID cuts off a piece
        self.space = self.space.saturating_add(metaslab.size);
        self.alloc = self.alloc.saturating_add(metaslab.allocated);
        self.dspace = self.dspace.saturating_add(top.deflated(metaslab.size));
        self.dalloc = self.dalloc.saturating_add(top.deflated(metaslab.allocated));
    }
}

/// The pool's space. Bytes, parity included, unless said.
#[derive(Clone, Debug, Default)]
pub struct SpaceStats {
    /// All space but that of log devices.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Free bytes.
    pub free: u64,
    /// Percent allocated.
    pub capacity: u64,
    /// How fragmented the free space of normal vdevs is, in percent; `None` if it is not known.
    pub fragmentation: Option<u64>,
    /// Bytes by which devices have grown, which `zpool online -e` would add.
    pub expandsize: u64,
    /// Bytes that only the checkpoint holds.
    pub checkpoint: u64,
    /// Bytes that are being freed in the background, without parity.
    pub freeing: u64,
    /// Bytes that could not be freed, without parity.
    pub leaked: u64,
    /// By class.
    pub classes: BTreeMap<AllocClass, ClassSpace>,
    /// Bytes that datasets may use before slop, without parity (OpenZFS: `spa_dspace`).
    pub dspace: u64,
    /// Bytes that are kept back, without parity.
    pub slop: u64,
}

impl SpaceStats {
    /// A class; zeros if there is none such.
    #[must_use]
    pub fn class(&self, class: AllocClass) -> ClassSpace {
        self.classes.get(&class).copied().unwrap_or_default()
    }
}

impl Pool {
    /// The pool's space now.
    ///
    /// With [`OpenOptions::space_maps`](crate::OpenOptions::space_maps) off, nothing counts as allocated, as in a read-only
    /// import by OpenZFS.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn space(&self) -> Result<SpaceStats, Error> {
        let mut stats = SpaceStats { classes: self.classes()?, ..SpaceStats::default() };
        for (_, class) in stats.classes.iter().filter(|(class, _)| **class != AllocClass::Log) {
            stats.size = stats.size.saturating_add(class.space);
            stats.allocated = stats.allocated.saturating_add(class.alloc);
        }
        stats.free = stats.size.saturating_sub(stats.allocated);
        stats.capacity = (u128::from(stats.allocated) * 100).checked_div(stats.size.into()).unwrap_or(0) as u64;
        stats.fragmentation = self.fragmentation()?;
        stats.expandsize = self.expandsize();
        stats.checkpoint = self.checkpoint_held()?;
        stats.freeing = self.special_dir_used("$FREE")?;
        stats.leaked = self.special_dir_used("$LEAK")?;
        let rdspace = stats.class(AllocClass::Normal).dspace.saturating_sub(self.nonallocating_dspace()?);
        stats.dspace = self.dspace(&stats, rdspace)?;
        stats.slop = slop(&stats, rdspace);
        Ok(stats)
    }

    fn classes(&self) -> Result<BTreeMap<AllocClass, ClassSpace>, Error> {
        let mut classes: BTreeMap<AllocClass, ClassSpace> = BTreeMap::new();
        for top in self.tree().tops() {
            for metaslab in self.metaslabs(top.id())? {
                classes.entry(metaslab.class).or_default().add(top, metaslab);
            }
        }
        if !self.options.space_maps {
            classes.values_mut().for_each(|c| (c.alloc, c.dalloc) = (0, 0));
        }
        Ok(classes)
    }

    /// The space that datasets may use: normal space, the data that special and dedup vdevs hold already, the savings of dedup and cloning.
    fn dspace(&self, stats: &SpaceStats, rdspace: u64) -> Result<u64, Error> {
        let dedup = self.dedup_total()?;
        let mut dspace = rdspace;
        for more in [
            stats.class(AllocClass::Special).dalloc,
            stats.class(AllocClass::Dedup).dalloc,
            dedup.ref_dsize.wrapping_sub(dedup.dsize),
            self.brt_stats()?.saved,
        ] {
            dspace = dspace.wrapping_add(more);
        }
        Ok(dspace)
    }

    /// The size of the pool as its root directory sees it (OpenZFS: `dsl_pool_adjustedsize`).
    pub(crate) fn adjusted_size(&self) -> Result<u64, Error> {
        if let Some(size) = self.adjusted.get() {
            return Ok(*size);
        }
        let stats = self.space()?;
        let deferred = match self.mos.id_of("sync_bplist")? {
            Some(id) if id.is_some() => Bpobj::open(&self.mos, id)?.space().used,
            _ => 0,
        };
        let space = stats.dspace.saturating_sub(stats.checkpoint).saturating_sub(deferred);
        Ok(*self.adjusted.get_or_init(|| space.saturating_sub(stats.slop)))
    }

    /// Space of vdevs from which nothing is allocated any more: they are being removed, or are set so.
    fn nonallocating_dspace(&self) -> Result<u64, Error> {
        let mut sum = 0u64;
        for top in self.tree().tops().iter().filter(|top| top.is_concrete()) {
            let config = top.config();
            if config.removing || config.raw.get_u64(key::NON_ALLOCATING).unwrap_or(0) != 0 {
                let metaslabs = self.metaslabs(top.id())?;
                sum = metaslabs.iter().fold(sum, |sum, m| sum.saturating_add(top.deflated(m.size)));
            }
        }
        Ok(sum)
    }

    pub(crate) fn checkpoint_held(&self) -> Result<u64, Error> {
        let mut sum = 0u64;
        for top in self.tree().tops() {
            if let Some(map) = self.checkpoint_map(top.id())? {
                sum = sum.wrapping_add(map.header.alloc.wrapping_neg() as u64);
            }
        }
        Ok(sum)
    }

    fn special_dir_used(&self, name: &str) -> Result<u64, Error> {
        let root: ondisk::dsl::DslDirPhys =
            crate::spa::mos::Mos::bonus(&self.mos.object(self.root_dir_obj)?, ondisk::dsl::DslDirPhys::decode)?;
        let Some(children) = self.mos.zap_if(root.child_dir_zapobj)? else { return Ok(0) };
        let Some(id) = children.lookup_id(name)? else { return Ok(0) };
        let dir = crate::spa::mos::Mos::bonus(&self.mos.object(id)?, ondisk::dsl::DslDirPhys::decode)?;
        Ok(dir.used_bytes)
    }

    /// How fragmented the free space of normal vdevs is, in percent (OpenZFS: `metaslab_class_fragmentation`).
    fn fragmentation(&self) -> Result<Option<u64>, Error> {
        let (mut weighted, mut space) = (0u128, 0u128);
        if !self.options.space_maps {
            return Ok(Some(0));
        }
        for top in self.tree().tops().iter().filter(|top| self.vdev_class(top) == AllocClass::Normal) {
            let metaslabs: Vec<_> =
                self.metaslabs(top.id())?.iter().filter(|m| m.class == AllocClass::Normal).collect();
            if metaslabs.is_empty() {
                continue;
            }
            let Some(group) = group_fragmentation(&metaslabs) else { return Ok(None) };
            let size: u128 = metaslabs.iter().map(|m| u128::from(m.size)).sum();
            weighted += u128::from(group) * size;
            space += size;
        }
        Ok(weighted.checked_div(space).map(|n| n as u64))
    }

    /// Returns the fragmentation of one vdev, in percent.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn vdev_fragmentation(&self, top: u64) -> Result<Option<u64>, Error> {
        let metaslabs: Vec<_> = self.metaslabs(top)?.iter().filter(|m| m.class != AllocClass::EmbeddedLog).collect();
        Ok(group_fragmentation(&metaslabs))
    }

    fn expandsize(&self) -> u64 {
        let normal = self.tree().tops().iter().filter(|t| t.is_concrete() && self.vdev_class(t) == AllocClass::Normal);
        normal.map(|top| self.growth(top.id())).fold(0, u64::saturating_add)
    }

    /// The growth of the devices of a top-level vdev, in whole metaslabs.
    pub(crate) fn growth(&self, top: u64) -> u64 {
        self.tree().top(top).map_or(0, |top| self.tree().growth(top, top.config()))
    }
}

fn group_fragmentation(metaslabs: &[&MetaslabInfo]) -> Option<u64> {
    let known: Vec<_> = metaslabs.iter().filter_map(|m| Some((m.fragmentation?, m.free() / 512))).collect();
    let free: u128 = known.iter().map(|(_, free)| u128::from(*free)).sum();
    if known.len() < metaslabs.len().div_ceil(2) || free == 0 {
        return None;
    }
    let weighted: u128 = known.iter().map(|(frag, free)| u128::from(*frag) * u128::from(*free)).sum();
    Some((weighted / free) as u64)
}

fn slop(stats: &SpaceStats, rdspace: u64) -> u64 {
    let mut slop = (rdspace >> SLOP_SHIFT).min(MAX_SLOP);
    let embedded =
        stats.class(AllocClass::EmbeddedLog).dspace.saturating_add(stats.class(AllocClass::SpecialEmbeddedLog).dspace);
    slop -= embedded.min(slop >> 1);
    slop.max((rdspace >> 1).min(MIN_SLOP))
}
