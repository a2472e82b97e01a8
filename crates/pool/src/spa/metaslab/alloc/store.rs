//! Space map objects in the MOS.
//!
//! Small writes are collected over a pass: words of metaslab arrays and unflushed txgs are written vdev by vdev at the end, and a feature's
//! refcount is changed by the sum.

use std::collections::BTreeMap;

use base::{ObjectId, Txg, tunable};
use dmu::{NewObject, Tx};
use ondisk::ObjectType;
use ondisk::spacemap::{Action, SPACE_MAP_HEADER_SIZE, SPACE_MAP_HEADER_V0_SIZE, SpaceMapHeader};
use space::flush::{MetaslabId, log_block_size};
use space::{Encoder, MapGeometry, MapInfo, MapStore, RangeTree};

use crate::Error;
use crate::spa::Spa;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::remove_int_present;

/// The ZAP of logs, in the MOS directory.
pub(super) const LOG_SPACEMAP_ZAP: &str = "com.delphix:log_spacemap_zap";
/// Keys of a vdev's top ZAP.
pub(super) const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
const CHECKPOINT_SM: &str = "com.delphix:pool_checkpoint_sm";
const OBSOLETE_SM: &str = "com.delphix:indirect_obsolete_sm";

/// log2 of the indirect blocks of space maps (`space_map_ibs`).
const INDIRECT_SHIFT: u8 = 14;
/// Block size of the unflushed txgs of a vdev (`SPA_OLD_MAXBLOCKSIZE`).
const UNFLUSHED_BLOCK: u64 = 128 << 10;
/// Block size of other space maps of vdevs (`zfs_vdev_standard_sm_blksz`).
const VDEV_MAP_BLOCK: u64 = 128 << 10;

/// Objects that record a vdev's space; 0 if absent.
#[derive(Clone, Debug, Default)]
pub(super) struct TopObjects {
    /// Space map objects by metaslab.
    pub(super) ms_array: ObjectId,
    /// The vdev's own ZAP.
    pub(super) top_zap: ObjectId,
    /// Unflushed txgs by metaslab.
    pub(super) unflushed: ObjectId,
    /// Bytes of the vdev, and log2 of its smallest allocation.
    pub(super) asize: u64,
    pub(super) ashift: u32,
}

/// The states of the pool's features that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    pub(super) logs: bool,
    pub(super) histograms: bool,
    pub(super) two_words: bool,
}

/// The objects of a pass.
pub(super) struct Store<'a> {
    pub(super) mos: &'a Mos,
    pub(super) tx: &'a Tx,
    pub(super) spa: &'a Spa,
    pub(super) features: Features,
    pub(super) tops: &'a mut BTreeMap<u32, TopObjects>,
    /// Entries to write to the vdevs' metaslab arrays.
    arrays: BTreeMap<MetaslabId, ObjectId>,
    unflushed: BTreeMap<MetaslabId, Txg>,
    /// Number of space maps with a histogram made, less those destroyed.
    histograms: i64,
}

impl<'a> Store<'a> {
    pub(super) fn new(
        mos: &'a Mos,
        tx: &'a Tx,
        spa: &'a Spa,
        features: Features,
        tops: &'a mut BTreeMap<u32, TopObjects>,
    ) -> Self {
        Store { mos, tx, spa, features, tops, arrays: BTreeMap::new(), unflushed: BTreeMap::new(), histograms: 0 }
    }

    /// Makes the metaslab array of a vdev with `count` metaslabs.
    pub(super) fn metaslab_array(mos: &Mos, tx: &Tx, count: u64) -> Result<ObjectId, Error> {
        let block_size = (count * 8).next_power_of_two().clamp(512, UNFLUSHED_BLOCK);
        let new = NewObject { object_type: ObjectType::OBJECT_ARRAY, block_size, ..NewObject::default() };
        Ok(mos.objset.alloc_object(tx, &new)?.id())
    }

    fn block_size(&self) -> u64 {
        let tunable = if self.features.logs {
            &tunable::ZFS_METASLAB_SM_BLKSZ_WITH_LOG
        } else {
            &tunable::ZFS_METASLAB_SM_BLKSZ_NO_LOG
        };
        tunable.get().clamp(512, 16 << 20).next_power_of_two()
    }

    fn new_map(&mut self, block_size: u64) -> Result<MapInfo, Error> {
        let histograms = self.features.histograms;
        let header = SpaceMapHeader { histogram: histograms.then_some([0; 32]), ..SpaceMapHeader::default() };
        let new = NewObject {
            object_type: ObjectType::SPACE_MAP,
            block_size,
            indirect_shift: INDIRECT_SHIFT,
            bonus_type: ObjectType::SPACE_MAP_HEADER,
            bonus_len: if histograms { SPACE_MAP_HEADER_SIZE } else { SPACE_MAP_HEADER_V0_SIZE },
            ..NewObject::default()
        };
        let object = self.mos.objset.alloc_object(self.tx, &new)?;
        self.histograms += i64::from(histograms);
        Ok(MapInfo { object: object.id(), header: SpaceMapHeader { object: object.id(), ..header }, block: block_size })
    }

    fn destroy(&mut self, id: ObjectId) -> Result<(), Error> {
        let object = self.mos.object(id)?;
        self.histograms -= i64::from(self.features.histograms && object.bonus().len() != SPACE_MAP_HEADER_V0_SIZE);
        self.mos.objset.free_object(self.tx, id)?;
        Ok(())
    }

    fn top(&mut self, vdev: u32) -> Result<&mut TopObjects, Error> {
        self.tops.get_mut(&vdev).ok_or_else(|| Error::corrupt(ObjectId::NONE, format!("vdev {vdev} has no space")))
    }

    /// Returns the object that a vdev's ZAP names; makes it if there is none.
    fn unflushed_object(&mut self, vdev: u32) -> Result<ObjectId, Error> {
        let (mos, tx) = (self.mos, self.tx);
        let top = self.top(vdev)?;
        if top.unflushed.is_none() {
            let zap = mos.zap(top.top_zap)?;
            top.unflushed = match zap.lookup_id(UNFLUSHED_TXGS)? {
                Some(id) => id,
                None => {
                    let new = NewObject {
                        object_type: ObjectType::OTN_UINT64_METADATA,
                        block_size: UNFLUSHED_BLOCK,
                        ..NewObject::default()
                    };
                    let id = mos.objset.alloc_object(tx, &new)?.id();
                    zap.add_id(tx, UNFLUSHED_TXGS, id)?;
                    id
                }
            };
        }
        Ok(top.unflushed)
    }

    /// Returns the space map that a vdev's own ZAP names, and true if it was made because there was none.
    fn vdev_map(&mut self, zap: ObjectId, name: &str) -> Result<(MapInfo, bool), Error> {
        let zap = self.mos.zap(zap)?;
        if let Some(id) = zap.lookup_id(name)? {
            let object = self.mos.object(id)?;
            let header = Mos::bonus(&object, SpaceMapHeader::decode)?;
            return Ok((MapInfo { object: id, header, block: object.block_size() }, false));
        }
        let map = self.new_map(VDEV_MAP_BLOCK)?;
        zap.add_id(self.tx, name, map.object)?;
        Ok((map, true))
    }

    /// Records ranges of a removed vdev that are no longer referenced (OpenZFS: `vdev_indirect_sync_obsolete`).
    pub(super) fn obsolete(&mut self, vdev: u32, ranges: &RangeTree, pass: u32) -> Result<(), Error> {
        let top = self.top(vdev)?.clone();
        let (mut map, made) = self.vdev_map(top.top_zap, OBSOLETE_SM)?;
        if made {
            self.spa.feature_increment(self.mos, self.tx, "obsolete_counts")?;
        }
        let geometry = MapGeometry { start: 0, size: top.asize, shift: 0 };
        let mut encoder = Encoder::new(geometry, map.header.length, map.block, self.features.two_words);
        encoder.batch(Action::Alloc, pass, self.tx.txg(), ranges, None);
        let (bytes, delta) = encoder.finish();
        let at = map.header.length;
        map.header.length += bytes.len() as u64;
        map.header.alloc += delta;
        self.append(&map, at, bytes)?;
        self.write_header(&map)
    }

    /// Writes the collected changes.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        for (vdev, words) in by_vdev(std::mem::take(&mut self.arrays).into_iter().map(|(id, map)| (id, map.0))) {
            let id = self.top(vdev)?.ms_array;
            self.write_words(id, &words)?;
        }
        for (vdev, words) in by_vdev(std::mem::take(&mut self.unflushed).into_iter().map(|(id, txg)| (id, txg.0))) {
            let id = self.unflushed_object(vdev)?;
            self.write_words(id, &words)?;
        }
        let name = "spacemap_histogram";
        for _ in 0..self.histograms.max(0) {
            self.spa.feature_increment(self.mos, self.tx, name)?;
        }
        for _ in self.histograms.min(0)..0 {
            self.spa.feature_decrement(self.mos, self.tx, name)?;
        }
        Ok(())
    }

    /// Writes words at their indices, each run of adjacent ones at once.
    fn write_words(&self, id: ObjectId, words: &[(u32, u64)]) -> Result<(), Error> {
        let object = self.mos.object(id)?;
        for row in words.chunk_by(|a, b| a.0 + 1 == b.0) {
            let Some((first, _)) = row.first() else { continue };
            let bytes: Vec<u8> = row.iter().flat_map(|(_, word)| word.to_le_bytes()).collect();
            object.write(self.tx, u64::from(*first) * 8, &bytes)?;
        }
        Ok(())
    }
}

fn by_vdev(words: impl Iterator<Item = (MetaslabId, u64)>) -> BTreeMap<u32, Vec<(u32, u64)>> {
    let mut vdevs: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
    for ((vdev, ms), word) in words {
        vdevs.entry(vdev).or_default().push((ms, word));
    }
    vdevs
}

impl MapStore for Store<'_> {
    type Error = Error;

    fn create(&mut self, id: MetaslabId) -> Result<MapInfo, Error> {
        let map = self.new_map(self.block_size())?;
        self.arrays.insert(id, map.object);
        Ok(map)
    }

    fn truncate(&mut self, id: MetaslabId, map: &MapInfo) -> Result<MapInfo, Error> {
        let object = self.mos.object(map.object)?;
        let wrong_bonus = self.features.histograms && object.bonus().len() != SPACE_MAP_HEADER_SIZE;
        if wrong_bonus || object.block_size() != self.block_size() || object.phys().indblkshift != INDIRECT_SHIFT {
            self.destroy(map.object)?;
            return self.create(id);
        }
        object.free_range(self.tx, 0, u64::MAX)?;
        let histogram = map.header.histogram.map(|_| [0; 32]);
        let header = SpaceMapHeader { object: map.object, length: 0, alloc: 0, histogram };
        Ok(MapInfo { object: map.object, header, block: map.block })
    }

    fn append(&mut self, map: &MapInfo, at: u64, bytes: Vec<u8>) -> Result<(), Error> {
        Ok(self.mos.object(map.object)?.write(self.tx, at, &bytes)?)
    }

    fn write_header(&mut self, map: &MapInfo) -> Result<(), Error> {
        let object = self.mos.object(map.object)?;
        let header = SpaceMapHeader { object: map.object, ..map.header.clone() };
        Ok(object.set_bonus(self.tx, &header.encode(crate::spa::mos::edit::OURS))?)
    }

    fn create_log(&mut self, txg: Txg) -> Result<MapInfo, Error> {
        let zap = match self.mos.root_zap()?.lookup_id(LOG_SPACEMAP_ZAP)? {
            Some(id) => id,
            None => {
                let id = self.mos.new_zap(self.tx, ObjectType::OTN_ZAP_METADATA)?;
                self.mos.root_zap()?.add_id(self.tx, LOG_SPACEMAP_ZAP, id)?;
                self.spa.feature_increment(self.mos, self.tx, "log_spacemap")?;
                id
            }
        };
        let map = self.new_map(log_block_size())?;
        self.mos.zap(zap)?.add_int(self.tx, txg.0, map.object.0)?;
        Ok(map)
    }

    fn destroy_log(&mut self, txg: Txg, object: ObjectId) -> Result<(), Error> {
        self.destroy(object)?;
        let logs = self.mos.root_zap()?.lookup_id(LOG_SPACEMAP_ZAP)?;
        let logs = logs.ok_or_else(|| Error::corrupt(object, "a log of space changes that no list names"))?;
        remove_int_present(self.tx, &self.mos.zap(logs)?, txg.0)
    }

    fn set_unflushed(&mut self, id: MetaslabId, txg: Txg) -> Result<(), Error> {
        self.unflushed.insert(id, txg);
        Ok(())
    }

    fn checkpoint(&mut self, vdev: u32) -> Result<(MapInfo, MapGeometry), Error> {
        let top = self.top(vdev)?.clone();
        let (map, _) = self.vdev_map(top.top_zap, CHECKPOINT_SM)?;
        Ok((map, MapGeometry { start: 0, size: top.asize, shift: top.ashift }))
    }
}
