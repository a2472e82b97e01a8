//! The space of an existing pool, from the MOS.
//!
//! Maps are read when their metaslabs are first used. Logs are read all at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use base::{ObjectId, Txg, pump};
use ondisk::label::key;
use ondisk::spacemap::SpaceMapHeader;
use space::flush::LogSpace;
use space::log::{Unflushed, UnflushedMetaslab, VdevChanges};
use space::{Class, Held, Layout, MapGeometry, MapInfo, Metaslab, RangeTree, Recent, TopSpace};
use vdev::{TopVdev, VdevConfig, VdevType};

use super::store::{TopObjects, UNFLUSHED_TXGS};
use crate::spa::metaslab::log;
use crate::spa::metaslab::spacemap::SpaceMap;
use crate::spa::mos::Mos;
use crate::{Error, Pool};

/// Upper bound of the metaslabs of a vdev.
pub(super) const METASLABS_MAX: u64 = 1 << 18;
/// Upper bound of the metaslabs of a pool: each takes some hundred bytes of memory.
const POOL_METASLABS_MAX: u64 = 1 << 21;

/// The geometry of blocks on a vdev.
struct VdevLayout(TopVdev);

impl Layout for VdevLayout {
    fn asize(&self, psize: u64, txg: Txg) -> u64 {
        self.0.psize_to_asize_at(psize, txg)
    }

    fn deflated(&self, asize: u64) -> u64 {
        self.0.deflated(asize)
    }
}

/// The stored state of a vdev's metaslabs, from the MOS.
#[derive(Default)]
pub(super) struct Stored {
    maps: Vec<Option<MapInfo>>,
    unflushed: Vec<UnflushedMetaslab>,
    unflushed_txgs: Vec<Txg>,
}

/// Returns the number of metaslabs of a vdev.
pub(super) fn metaslab_count(config: &VdevConfig) -> Result<u64, Error> {
    let count = match u32::try_from(config.ms_shift) {
        Ok(shift) if shift > 0 => config.asize.checked_shr(shift).unwrap_or(0),
        _ => 0,
    };
    if count > METASLABS_MAX {
        return Err(Error::corrupt(ObjectId::NONE, format!("vdev {} has {count} metaslabs", config.id)));
    }
    Ok(count)
}

fn geometry(top: &TopVdev, id: u64) -> Result<MapGeometry, Error> {
    let config = top.config();
    let whole = MapGeometry::metaslab(id, config.ms_shift as u32, top.ashift());
    let cut = whole.and_then(|g| match config.kind {
        VdevType::Draid => g.in_groups((config.draid_ndata.saturating_add(config.nparity)) << top.ashift()),
        _ => Ok(g),
    });
    cut.map_err(|source| Error::Space { object: config.ms_array, source })
}

/// Returns the class of a vdev that is being made.
pub(super) fn class_of(top: &TopVdev) -> Class {
    match top.config().alloc_bias.as_deref() {
        Some("log") => Class::Log,
        Some("special") => Class::Special,
        Some("dedup") => Class::Dedup,
        _ if top.config().is_log => Class::Log,
        _ => Class::Normal,
    }
}

/// Returns a vdev with its metaslabs, for the space manager, from their stored state and the txg of that state.
pub(super) fn top_space(
    top: &TopVdev,
    class: Class,
    (stored, opened): (Stored, Txg),
    histograms: bool,
) -> Result<TopSpace, Error> {
    let config = top.config();
    let count = metaslab_count(top.config())?;
    let (mut maps, mut unflushed) = (stored.maps.into_iter(), stored.unflushed.into_iter());
    let mut metaslabs = Vec::with_capacity(count as usize);
    for id in 0..count {
        let (map, unflushed) = (maps.next().flatten(), unflushed.next().unwrap_or_default());
        let metaslab = Metaslab::new(id as u32, geometry(top, id)?, map, unflushed.changes, histograms);
        metaslabs.push(metaslab.opened(opened, unflushed.held));
    }
    let children = config.children.len() as u64;
    let data_children = match config.kind {
        VdevType::Raidz | VdevType::Draid => children.saturating_sub(config.nparity),
        _ => 1,
    };
    Ok(TopSpace {
        id: number(top)?,
        class,
        ms_shift: config.ms_shift as u32,
        metaslabs,
        data_children,
        allocatable: !config.removing && config.raw.get_u64(key::NON_ALLOCATING).unwrap_or(0) == 0,
        layout: Arc::new(VdevLayout(top.clone())),
    })
}

pub(super) fn number(top: &TopVdev) -> Result<u32, Error> {
    u32::try_from(top.id()).map_err(|_| Error::corrupt(ObjectId::NONE, format!("vdev {} cannot be", top.id())))
}

/// Returns the objects of a vdev, as its configuration names them.
pub(super) fn objects(top: &TopVdev) -> TopObjects {
    let config = top.config();
    TopObjects {
        ms_array: config.ms_array,
        top_zap: config.top_zap,
        unflushed: ObjectId::NONE,
        asize: config.asize,
        ashift: top.ashift(),
    }
}

/// Reads all that the MOS records of the pool's space: per vdev, and the logs. Blocks freed later than `released` are held.
pub(super) fn read(pool: &Pool, mos: &Mos, released: Txg) -> Result<(BTreeMap<u32, Stored>, LogSpace), Error> {
    let mut vdevs = BTreeMap::new();
    let tops = || pool.tree().tops().iter().filter(|top| top.is_concrete());
    let metaslabs = tops().try_fold(0, |sum, top| Ok::<u64, Error>(sum + metaslab_count(top.config())?))?;
    if metaslabs > POOL_METASLABS_MAX {
        return Err(Error::corrupt(ObjectId::NONE, format!("the pool has {metaslabs} metaslabs")));
    }
    let mut changes = Vec::new();
    for top in tops() {
        let mut stored = read_top(mos, top)?;
        let txgs = std::mem::take(&mut stored.unflushed_txgs);
        changes.push((number(top)?, VdevChanges::new(top.config().ms_shift as u32, top.ashift(), txgs)));
        vdevs.insert(number(top)?, stored);
    }
    let began = Instant::now();
    let mut unflushed = Unflushed::new(changes).holding(released);
    let logs = log::read(pool, mos, &mut unflushed)?;
    let (seconds, bytes) = (began.elapsed().as_secs_f64(), logs.iter().map(|log| log.bytes).sum());
    for (id, changes) in unflushed.into_vdevs() {
        if let Some(stored) = vdevs.get_mut(&id) {
            stored.unflushed = changes.into_metaslabs();
        }
    }

    let users = vdevs.iter().flat_map(|(vdev, stored)| {
        let each = stored.unflushed.iter().zip(0u32..).filter(|(ms, _)| ms.txg.0 != 0);
        each.map(|(ms, id)| ((*vdev, id), ms.txg, ms.is_dirty()))
    });
    let logs = logs.into_iter().map(|log| (log.txg, log.object, log.blocks));
    let mut space = LogSpace::load(physical_memory(), logs, users);
    let memory: u64 = vdevs.values().flat_map(|s| &s.unflushed).map(|ms| ms.changes.memory()).sum();
    space.memory_changed(memory as i64);
    space.measured(bytes, seconds);
    Ok((vdevs, space))
}

fn read_top(mos: &Mos, top: &TopVdev) -> Result<Stored, Error> {
    let count = metaslab_count(top.config())?;
    let config = top.config();
    let mut ids = match config.ms_array {
        ObjectId::NONE => Vec::new(),
        id => mos.ids(id, count)?,
    };
    ids.resize(count as usize, ObjectId::NONE);
    let opened = pump::all(ids, |id| id.is_some().then(|| SpaceMap::open(mos, *id)).transpose());
    let info = |map: SpaceMap| MapInfo { object: map.object.id(), block: map.object.block_size(), header: map.header };
    let maps: Result<Vec<_>, Error> = opened.into_iter().map(|map| Ok(map?.map(info))).collect();
    let mut txgs = Vec::new();
    if let Some(zap) = mos.zap_if(config.top_zap)?
        && let Some(id) = zap.lookup_id(UNFLUSHED_TXGS)?
    {
        txgs = mos.words(id, count)?;
    }
    txgs.resize(count as usize, 0);
    Ok(Stored { maps: maps?, unflushed: Vec::new(), unflushed_txgs: txgs.into_iter().map(Txg).collect() })
}

/// Returns the bytes of memory of this machine; 4 GiB if they cannot be determined.
pub(super) fn physical_memory() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").ok();
    let line = told.as_deref().and_then(|text| text.lines().find_map(|l| l.strip_prefix("MemTotal:")));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.map_or(4 << 30, |kib| kib << 10)
}

/// Reads the map of a metaslab, as it is now, and its frees of the `recent` txgs.
pub(super) fn load_map(
    objset: &std::sync::Arc<dmu::Objset>,
    map: &MapInfo,
    geometry: MapGeometry,
    recent: Recent,
) -> Result<(RangeTree, Held), Error> {
    let header = SpaceMapHeader { histogram: None, ..map.header.clone() };
    SpaceMap { object: objset.object(map.object)?, header }.load_recent(geometry, recent)
}
