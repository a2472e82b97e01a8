//! The space of vdevs that are added to or removed from an open pool (OpenZFS: `vdev_metaslab_init`, `vdev_metaslab_fini`,
//! `vdev_remove_empty_log`, `vdev_destroy_unlink_zap`).

use std::collections::BTreeMap;

use base::{ObjectId, Txg};
use dmu::{Tx, Zap};
use ondisk::ObjectType;
use ondisk::label::key;
use ondisk::spacemap::SPACE_MAP_HEADER_V0_SIZE;
use space::{Class, TopSpace};
use vdev::{VdevConfig, VdevTree, VdevType};

use super::open::{self, METASLABS_MAX};
use super::store::{Store, UNFLUSHED_TXGS};
use super::{PoolSpace, State};
use crate::Error;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};

/// The ZAP of all ZAPs of vdevs.
pub(crate) const ALL_VDEV_ZAPS: &str = "com.delphix:vdev_zap_map";

impl PoolSpace {
    /// Returns the classes of those vdevs of `tree` that are not in the pool yet, by index.
    pub(crate) fn classes_of_new(&self, tree: &VdevTree) -> BTreeMap<u64, Class> {
        let known = self.tree.load();
        let new = tree.tops().iter().filter(|top| top.is_concrete() && known.top(top.id()).is_none());
        new.map(|top| (top.id(), open::class_of(top))).collect()
    }

    /// Makes the metaslab arrays of vdevs in the configuration that have none.
    pub(crate) fn make_arrays(&self, mos: &Mos, tx: &Tx, spa: &Spa) -> Result<(), Error> {
        let mut config = spa.config.lock();
        let tree = config.nv.get_nvlist_mut(key::VDEV_TREE);
        for top in tree.and_then(|tree| tree.get_nvlist_array_mut(key::CHILDREN)).into_iter().flatten() {
            let parsed = VdevConfig::parse(top)?;
            let has_space = !matches!(parsed.kind, VdevType::Hole | VdevType::Missing | VdevType::Indirect);
            if has_space && parsed.ms_array.is_none() {
                let array = Store::metaslab_array(mos, tx, open::metaslab_count(&parsed)?)?;
                top.insert(key::METASLAB_ARRAY, array.0);
            }
        }
        Ok(())
    }

    /// Makes the vdevs of `tree` that `classes` names allocatable, once the txg that is being synced is on disk.
    pub(crate) fn join_when_synced(
        &self,
        tree: &VdevTree,
        classes: &BTreeMap<u64, Class>,
        histograms: bool,
    ) -> Result<(), Error> {
        for (id, class) in classes {
            let top = tree.top(*id).ok_or_else(|| Error::Bug(format!("vdev {id}, which joins, is not in the tree")))?;
            let spec = open::top_space(top, *class, Default::default(), histograms)?;
            self.state.lock().tops.insert(spec.id, open::objects(top));
            self.joining.lock().push(spec);
        }
        Ok(())
    }

    /// Lets the vdevs that joined in `txg`, which is on disk now, and the metaslabs of those that grew, be allocated from.
    pub(super) fn join(&self, txg: Txg) {
        let joining = std::mem::take(&mut *self.joining.lock());
        joining.into_iter().for_each(|spec| self.manager.add_top(spec, txg));
        let growing = std::mem::take(&mut *self.growing.lock());
        growing.into_iter().for_each(|more| self.manager.grow_top(more.id, more.metaslabs));
    }

    /// Returns the sizes that vdevs are to have, cut to as many metaslabs as a vdev may have; those that would gain nothing are left out.
    pub(crate) fn within_limits(&self, tree: &VdevTree, grown: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        let within = |(id, asize): (u64, u64)| {
            let config = tree.top(id)?.config();
            let most = METASLABS_MAX.checked_shl(u32::try_from(config.ms_shift).ok()?)?;
            Some((id, asize.min(most))).filter(|(_, asize)| *asize > config.asize)
        };
        grown.into_iter().filter_map(within).collect()
    }

    /// Returns the metaslabs that vdev `id` has in `tree`, in which it has grown, and not in memory yet.
    pub(crate) fn metaslabs_of_growth(&self, tree: &VdevTree, id: u64, histograms: bool) -> Result<TopSpace, Error> {
        let top = tree.top(id).ok_or_else(|| Error::Bug(format!("vdev {id}, which grows, is not in the tree")))?;
        let mut spec = open::top_space(top, open::class_of(top), Default::default(), histograms)?;
        let same = |growing: &&TopSpace| growing.id == spec.id;
        let known = self.growing.lock().iter().filter(same).map(|growing| growing.metaslabs.len()).sum::<usize>();
        let known = known + self.manager.metaslab_count(spec.id);
        spec.metaslabs.drain(..known.min(spec.metaslabs.len()));
        if let Some(objects) = self.state.lock().tops.get_mut(&spec.id) {
            objects.asize = top.config().asize;
        }
        Ok(spec)
    }

    /// Gives vdevs these metaslabs once the txg that is being synced is on disk.
    pub(crate) fn grow_when_synced(&self, more: Vec<TopSpace>) {
        self.growing.lock().extend(more);
    }

    /// Returns the bytes of all metaslabs, but those of log devices.
    pub(crate) fn size(&self) -> u64 {
        let classes = Class::ALL.into_iter().filter(|class| *class != Class::Log);
        classes.map(|class| self.figures(class).space).fold(0, u64::saturating_add)
    }

    /// Stops allocation from a top-level vdev. Returns whether it was allocatable until now.
    pub(crate) fn retire(&self, top: u64) -> bool {
        u32::try_from(top).is_ok_and(|id| self.manager.retire(id))
    }

    /// Undoes [`PoolSpace::retire`].
    pub(crate) fn reinstate(&self, top: u64) {
        if let Ok(id) = u32::try_from(top) {
            self.manager.reinstate(id);
        }
    }

    /// Removes a top-level vdev, on which nothing is allocated, in the txg being synced.
    pub(crate) fn leave(&self, top: u64) -> Result<(), Error> {
        let id = u32::try_from(top).map_err(|_| space::AllocError::Nowhere { vdev: top, offset: 0 })?;
        let State { sync, tops, .. } = &mut *self.state.lock();
        sync.forget(id, self.manager.remove_top(id));
        tops.remove(&id);
        Ok(())
    }
}

/// Frees the metaslab array, the space maps, the DTLs and the ZAPs of a top-level vdev, on which nothing is allocated.
pub(crate) fn forget_vdev(cx: &TaskCx<'_>, top: &VdevConfig) -> Result<(), Error> {
    if top.ms_array.is_some() {
        let maps = cx.mos.ids(top.ms_array, METASLABS_MAX)?;
        maps.into_iter().filter(|map| map.is_some()).try_for_each(|map| free_map(cx, map))?;
        cx.mos.objset.free_object(cx.tx, top.ms_array)?;
    }
    if let Some(zap) = cx.mos.zap_if(top.top_zap)?
        && let Some(unflushed) = zap.lookup_id(UNFLUSHED_TXGS)?
    {
        cx.mos.objset.free_object(cx.tx, unflushed)?;
    }
    let zaps = top.walk().flat_map(|vdev| [vdev.top_zap, vdev.leaf_zap]);
    forget(cx, top.leaves().map(|leaf| leaf.dtl), zaps)
}

/// Frees the DTL and the ZAP of a leaf that leaves its siblings.
pub(crate) fn forget_leaf(cx: &TaskCx<'_>, leaf: &VdevConfig) -> Result<(), Error> {
    forget(cx, std::iter::once(leaf.dtl), std::iter::once(leaf.leaf_zap))
}

/// Frees DTLs and ZAPs. There are none where an id is 0.
fn forget(
    cx: &TaskCx<'_>,
    dtls: impl Iterator<Item = ObjectId>,
    zaps: impl Iterator<Item = ObjectId>,
) -> Result<(), Error> {
    // a configuration may say anything
    let is_map =
        |id: &ObjectId| cx.mos.object(*id).is_ok_and(|object| object.phys().object_type == ObjectType::SPACE_MAP);
    for dtl in dtls.filter(|dtl| dtl.is_some()).filter(is_map) {
        free_map(cx, dtl)?;
    }
    let all: Option<Zap> = cx.mos.named_zap(ALL_VDEV_ZAPS)?;
    // for a vdev without children both ZAPs are its own
    let zaps: BTreeMap<ObjectId, ()> = zaps.filter(|zap| zap.is_some()).map(|zap| (zap, ())).collect();
    for zap in zaps.into_keys() {
        let Some(all) = &all else { continue };
        if all.lookup_int(zap.0)?.is_none() {
            continue;
        }
        all.remove_int(cx.tx, zap.0)?;
        cx.mos.objset.free_object(cx.tx, zap)?;
    }
    Ok(())
}

fn free_map(cx: &TaskCx<'_>, id: ObjectId) -> Result<(), Error> {
    let object = cx.mos.object(id)?;
    if object.bonus().len() != SPACE_MAP_HEADER_V0_SIZE && cx.spa.feature_enabled(cx.mos, "spacemap_histogram")? {
        cx.spa.feature_decrement(cx.mos, cx.tx, "spacemap_histogram")?;
    }
    Ok(cx.mos.objset.free_object(cx.tx, id)?)
}
