//! Metaslabs: the slices of top-level vdevs, and which of their space is allocated (OpenZFS: `metaslab.c`,
//! `spa_log_spacemap.c` at import).
//!
//! What is allocated in a metaslab is what its own space map says, brought up to date by the logs that are not yet folded into
//! it. The logs are read once for the whole pool, in order ([`SpaceState`]); the maps when someone asks for a vdev's space.

pub(crate) mod alloc;
pub(crate) mod log;
pub(crate) mod spacemap;
pub(crate) mod stats;
pub(crate) mod vdev_stats;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::{ObjectId, Txg};
use ondisk::spacemap::SpaceMapHeader;
pub use space::Class as AllocClass;
use space::log::{MetaslabChanges, Unflushed, VdevChanges};
use space::{MapGeometry, RangeTree};
use vdev::{TopVdev, VdevType};

use crate::spa::metaslab::spacemap::SpaceMap;
use crate::spa::mos;
use crate::spa::open::AllocBias;
use crate::{Error, Pool};

/// More metaslabs than any vdev has (OpenZFS aims at 200 and makes at most 131 072).
const METASLABS_MAX: u64 = 1 << 18;
/// From how many metaslabs on a vdev sets one aside for the intent log (OpenZFS: `zfs_embedded_slog_min_ms`).
const EMBEDDED_SLOG_MIN_MS: usize = 64;
/// How fragmented free segments are, by size: 512 bytes, 1 KiB, … 512 MiB (OpenZFS: `zfs_frag_table`).
const FRAGMENTATION: [u64; 21] = [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// One metaslab (OpenZFS: `metaslab_t`). Sizes and offsets in bytes.
#[derive(Clone, Debug)]
pub struct MetaslabInfo {
    /// Its number on the vdev.
    pub id: u64,
    /// Its first byte.
    pub start: u64,
    /// Its size; all of 2^`metaslab_shift`, but for dRAID, where it is cut to whole rows.
    pub size: u64,
    /// The class of its blocks.
    pub class: AllocClass,
    /// Its space map object, 0 if nothing was ever allocated.
    pub sm_object: ObjectId,
    /// The header of its space map.
    pub header: Option<SpaceMapHeader>,
    /// Allocated bytes now: by its map and the logs.
    pub allocated: u64,
    /// The first txg whose log is not yet folded into its map; 0 if logs are not in use.
    pub unflushed_txg: Txg,
    /// Allocated by logs that are not folded in.
    pub unflushed_allocs: u64,
    /// Freed by logs that are not folded in.
    pub unflushed_frees: u64,
    /// How fragmented its free space is, in percent; `None` if its map keeps no histogram.
    pub fragmentation: Option<u64>,
}

impl MetaslabInfo {
    /// Free space.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.allocated)
    }

    /// Its bytes.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.size)
    }
}

/// The metaslabs of all vdevs, and the unflushed logs.
pub(crate) struct SpaceState {
    pub(crate) vdevs: BTreeMap<u64, Vec<MetaslabInfo>>,
    unflushed: Unflushed,
}

impl SpaceState {
    pub(crate) fn changes(&self, top: u64, metaslab: u64) -> Option<&MetaslabChanges> {
        self.unflushed.vdev(u32::try_from(top).ok()?)?.metaslab(metaslab)
    }
}

/// The bytes of metaslab `id`. Rows of a dRAID must not be cut, so its metaslabs begin and end on whole groups.
fn metaslab_range(top: &TopVdev, id: u64) -> Option<Range<u64>> {
    let config = top.config();
    let size = 1u64.checked_shl(u32::try_from(config.ms_shift).ok()?)?;
    let start = id.checked_mul(size)?;
    if config.kind != VdevType::Draid {
        return Some(start..start.checked_add(size)?);
    }
    let group = config.draid_ndata.checked_add(config.nparity)?.checked_shl(top.ashift())?;
    let aligned = start.checked_next_multiple_of(group)?;
    let whole = size.checked_sub(aligned - start)? / group * group;
    Some(aligned..aligned.checked_add(whole)?)
}

fn fragmentation(header: &SpaceMapHeader, shift: u32) -> Option<u64> {
    let (mut total, mut weighted) = (0u128, 0u128);
    for (n, count) in header.histogram.as_ref()?.iter().enumerate() {
        let index = (shift as usize).saturating_sub(9) + n;
        let space = u128::from(*count) << (n as u32 + shift);
        total += space;
        weighted += space * u128::from(FRAGMENTATION.get(index).copied().unwrap_or(0));
    }
    Some(weighted.checked_div(total).unwrap_or(0) as u64)
}

impl Pool {
    fn vdev_bias(&self, top: u64) -> AllocBias {
        usize::try_from(top).ok().and_then(|n| self.biases.get(n)).copied().unwrap_or(AllocBias::None)
    }

    /// The class of the blocks of a top-level vdev.
    #[must_use]
    pub fn vdev_class(&self, top: &TopVdev) -> AllocClass {
        match self.vdev_bias(top.id()) {
            AllocBias::Log => AllocClass::Log,
            AllocBias::Special => AllocClass::Special,
            AllocBias::Dedup => AllocClass::Dedup,
            AllocBias::None if top.config().is_log => AllocClass::Log,
            AllocBias::None => AllocClass::Normal,
        }
    }

    /// How many metaslabs a top-level vdev has.
    fn metaslab_count(top: &TopVdev) -> Result<u64, Error> {
        let config = top.config();
        if config.ms_shift == 0 {
            return Ok(0);
        }
        let count = u32::try_from(config.ms_shift).ok().and_then(|s| config.asize.checked_shr(s)).unwrap_or(0);
        if count > METASLABS_MAX {
            return Err(Error::corrupt(ObjectId::NONE, format!("vdev {} has {count} metaslabs", top.id())));
        }
        Ok(count)
    }

    pub(crate) fn space_state(&self) -> Result<&Arc<SpaceState>, Error> {
        if let Some(state) = self.space_state.get() {
            return Ok(state);
        }
        let loaded = Arc::new(self.load_space_state()?);
        Ok(self.space_state.get_or_init(|| loaded))
    }

    fn load_space_state(&self) -> Result<SpaceState, Error> {
        let concrete = || self.tree().tops().iter().filter(|top| top.is_concrete());
        let mut changes = Vec::new();
        for top in concrete() {
            let txgs = self.unflushed_txgs(top)?;
            let id = u32::try_from(top.id()).unwrap_or(u32::MAX);
            changes.push((id, VdevChanges::new(top.config().ms_shift as u32, top.ashift(), txgs)));
        }
        let mut unflushed = Unflushed::new(changes);
        log::read(self, &self.mos, &mut unflushed)?;
        let mut vdevs = BTreeMap::new();
        for top in concrete() {
            vdevs.insert(top.id(), self.load_metaslabs(top, &unflushed)?);
        }
        Ok(SpaceState { vdevs, unflushed })
    }

    /// The unflushed txg of each metaslab of a vdev; 0 where logs are not in use.
    fn unflushed_txgs(&self, top: &TopVdev) -> Result<Vec<Txg>, Error> {
        const KEY: &str = "com.delphix:ms_unflushed_phys_txgs";
        let count = Self::metaslab_count(top)? as usize;
        let mut txgs = vec![Txg(0); count];
        if let Some(zap) = self.mos.zap_if(top.config().top_zap)?
            && let Some(id) = zap.lookup_id(KEY)?
        {
            let words = self.mos.words(id, count as u64)?;
            txgs.iter_mut().zip(words).for_each(|(txg, word)| *txg = Txg(word));
        }
        Ok(txgs)
    }

    /// The logs of space changes: txg and object, in order.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn log_space_maps(&self) -> Result<Vec<(Txg, ObjectId)>, Error> {
        let Some(zap) = self.mos.named_zap("com.delphix:log_spacemap_zap")? else { return Ok(Vec::new()) };
        let id = zap.object().id();
        let mut logs = Vec::new();
        for (name, value) in mos::named_entries(&zap)? {
            let txg =
                u64::from_str_radix(&name, 16).map_err(|_| Error::corrupt(id, format!("log space map '{name}'")))?;
            logs.push((Txg(txg), value.id()));
        }
        logs.sort_unstable();
        Ok(logs)
    }

    fn load_metaslabs(&self, top: &TopVdev, unflushed: &Unflushed) -> Result<Vec<MetaslabInfo>, Error> {
        let count = Self::metaslab_count(top)?;
        let objects = match top.config().ms_array {
            ObjectId::NONE => Vec::new(),
            id => self.mos.ids(id, count)?,
        };
        let histograms = self.feature_enabled("spacemap_histogram");
        let changes = u32::try_from(top.id()).ok().and_then(|id| unflushed.vdev(id));
        let class = self.vdev_class(top);
        let mut all = Vec::with_capacity(count as usize);
        for id in 0..count {
            let range = metaslab_range(top, id).ok_or_else(|| {
                Error::corrupt(top.config().ms_array, format!("metaslab {id} of vdev {} is nowhere", top.id()))
            })?;
            let sm_object = objects.get(id as usize).copied().unwrap_or(ObjectId::NONE);
            let map = if sm_object.is_none() { None } else { Some(SpaceMap::open(&self.mos, sm_object)?) };
            let (allocs, frees) =
                changes.and_then(|c| c.metaslab(id)).map_or((0, 0), |c| (c.allocs.total(), c.frees.total()));
            let stored = map.as_ref().map_or(0, |m| u64::try_from(m.header.alloc).unwrap_or(0));
            let fragmentation = match &map {
                _ if !histograms => None,
                None => Some(0),
                Some(map) => fragmentation(&map.header, top.ashift()),
            };
            all.push(MetaslabInfo {
                id,
                start: range.start,
                size: range.end - range.start,
                class,
                sm_object,
                allocated: stored.saturating_add(allocs).saturating_sub(frees),
                unflushed_txg: changes.and_then(|c| c.unflushed_txgs().get(id as usize)).copied().unwrap_or(Txg(0)),
                unflushed_allocs: allocs,
                unflushed_frees: frees,
                fragmentation,
                header: map.map(|m| m.header),
            });
        }
        set_embedded_log(&mut all, class);
        Ok(all)
    }

    /// The metaslabs of top-level vdev `top`; none for one that is removed or missing.
    ///
    /// # Errors
    /// When the MOS cannot be read, or logs contradict each other.
    pub fn metaslabs(&self, top: u64) -> Result<&[MetaslabInfo], Error> {
        Ok(self.space_state()?.vdevs.get(&top).map_or(&[], Vec::as_slice))
    }

    /// The allocated bytes of one metaslab, by its own space map alone. zdb shows this: a read-only import does not read the logs.
    ///
    /// # Errors
    /// When its map cannot be read, or contradicts itself.
    pub fn metaslab_map(&self, top: u64, metaslab: u64) -> Result<RangeTree, Error> {
        let info = usize::try_from(metaslab).ok().and_then(|n| self.metaslabs(top).ok()?.get(n));
        let Some(info) = info.filter(|info| info.sm_object.is_some()) else { return Ok(RangeTree::new()) };
        let shift = self.tree().top(top).map_or(9, TopVdev::ashift);
        let geometry = MapGeometry { start: info.start, size: info.size, shift };
        SpaceMap::open(&self.mos, info.sm_object)?.load(geometry)
    }

    /// The allocated bytes of one metaslab: by its own map, brought up to date by the logs.
    ///
    /// # Errors
    /// When its map or the logs cannot be read, or contradict each other.
    pub fn metaslab_space(&self, top: u64, metaslab: u64) -> Result<RangeTree, Error> {
        let mut allocated = self.metaslab_map(top, metaslab)?;
        if let Some(changes) = self.space_state()?.changes(top, metaslab) {
            changes.update(&mut allocated).map_err(|source| Error::Space { object: ObjectId::NONE, source })?;
        }
        Ok(allocated)
    }

    /// The allocated bytes of a whole top-level vdev, by its space maps and the logs.
    ///
    /// # Errors
    /// As [`Pool::metaslab_space`].
    pub fn load_space(&self, top: u64) -> Result<RangeTree, Error> {
        let mut all = RangeTree::new();
        for id in 0..self.metaslabs(top)?.len() as u64 {
            let part = self.metaslab_space(top, id)?;
            for range in part.iter() {
                all.add(range).map_err(|source| Error::Space { object: ObjectId::NONE, source })?;
            }
        }
        Ok(all)
    }

    /// The space that only the checkpoint holds on a top-level vdev: freed since, and kept allocated.
    ///
    /// # Errors
    /// When its space map cannot be read.
    pub fn checkpoint_space(&self, top: u64) -> Result<RangeTree, Error> {
        let (Some(vdev), Some(map)) = (self.tree().top(top), self.checkpoint_map(top)?) else {
            return Ok(RangeTree::new());
        };
        let geometry = MapGeometry { start: 0, size: vdev.config().asize, shift: vdev.ashift() };
        // the map logs frees only
        let mut held = RangeTree::new();
        map.for_each_from(0, geometry, &mut |change| held.add(change.range).map_err(|e| map.error(e)))?;
        Ok(held)
    }

    pub(crate) fn checkpoint_map(&self, top: u64) -> Result<Option<SpaceMap>, Error> {
        const KEY: &str = "com.delphix:pool_checkpoint_sm";
        let Some(vdev) = self.tree().top(top).filter(|t| t.is_concrete()) else { return Ok(None) };
        let Some(zap) = self.mos.zap_if(vdev.config().top_zap)? else { return Ok(None) };
        match zap.lookup_id(KEY)? {
            Some(id) if id.is_some() => SpaceMap::open(&self.mos, id).map(Some),
            _ => Ok(None),
        }
    }
}

/// The emptiest metaslab of a vdev with many is set aside for the intent log.
fn set_embedded_log(all: &mut [MetaslabInfo], class: AllocClass) {
    let log = match class {
        AllocClass::Normal => AllocClass::EmbeddedLog,
        AllocClass::Special => AllocClass::SpecialEmbeddedLog,
        _ => return,
    };
    if all.len() <= EMBEDDED_SLOG_MIN_MS {
        return;
    }
    let stored = |m: &MetaslabInfo| m.header.as_ref().map_or(0, |h| h.alloc);
    if let Some(emptiest) = all.iter_mut().min_by_key(|m| (stored(m), m.id)) {
        emptiest.class = log;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_weighs_segments_by_size() {
        let mut header = SpaceMapHeader { histogram: Some([0; 32]), ..SpaceMapHeader::default() };
        assert_eq!(fragmentation(&header, 12), Some(0));
        if let Some(h) = header.histogram.as_mut() {
            h[0] = 16; // 64 KiB in pieces of 4 KiB
            h[4] = 1; // 64 KiB in one piece
        }
        assert_eq!(fragmentation(&header, 12), Some((93 + 71) / 2));
        header.histogram = None;
        assert_eq!(fragmentation(&header, 12), None);
    }
}
