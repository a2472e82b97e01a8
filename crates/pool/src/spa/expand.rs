//! Vdevs that grow, because their devices have (OpenZFS: `vdev_expand`, `ZFS_ONLINE_EXPAND`, the property `autoexpand`).
//!
//! A vdev grows by whole metaslabs, in one txg: the configuration gets its new size, and with the commit its devices get labels at their new ends. The new
//! metaslabs are allocated from when that txg is on disk; after a crash before that, the vdev is as large as before. Metaslabs have no object until something is
//! written to them, so that nothing else is changed.
//!
//! With `autoexpand` the sync thread looks for vdevs that can grow: the device may have grown by itself, or a smaller one beside it was replaced or detached.
//!
//! `vdev` knows the sizes of devices: [`VdevTree::grown`].

use std::sync::Arc;

use base::Guid;
use dmu::Tx;
use nvlist::NvList;
use ondisk::label::key;
use vdev::{Newcomers, VdevState, VdevTree};

use crate::Error;
use crate::spa::attach::top_of;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx, VdevRefusal};

/// The property.
const AUTOEXPAND: &str = "autoexpand";

impl Spa {
    /// As [`Spa::online_vdev`], and uses all of its devices from now on, however large they are. Its top-level vdev grows if its other devices are used that far,
    /// too.
    ///
    /// # Errors
    /// As [`Spa::online_vdev`]; [`Error::Vdevs`] with [`VdevRefusal::NotSupported`] for a cache, which is online then.
    pub fn expand_vdev(self: &Arc<Self>, guid: Guid) -> Result<VdevState, Error> {
        let state = self.online_vdev(guid)?;
        let _alone = self.vdev_change.lock();
        if self.tree().config().walk().all(|vdev| vdev.guid != guid) {
            return Err(Error::Vdevs(VdevRefusal::NotSupported));
        }
        self.tree().look();
        self.tree().use_whole_devices(Some(guid));
        let tree = self.tree();
        let own = top_of(&tree, guid).map(|top| top.id);
        let is_own = move |id: u64| own.is_none_or(|own| own == id);
        if !tree.grown().iter().any(|(id, _)| is_own(*id)) {
            // labels may have to be written at the new end nevertheless
            self.record_now()?;
            return Ok(state);
        }
        drop(tree);
        self.sync_task(move |cx| cx.grow_vdevs(&is_own))?;
        self.notify("config_sync", &NvList::new());
        Ok(state)
    }

    /// Whether `autoexpand` is set.
    fn is_autoexpand(&self, mos: &Mos) -> Result<bool, Error> {
        let Some(props) = mos.named_zap("pool_props")? else { return Ok(false) };
        Ok(props.lookup_u64(AUTOEXPAND)? == Some(1))
    }

    /// Whether a txg would let a vdev grow by itself.
    pub(crate) fn is_about_to_grow(&self) -> bool {
        let tree = self.tree();
        if !could_grow(&tree) || !self.live_mos().and_then(|mos| self.is_autoexpand(&mos)).unwrap_or(false) {
            return false;
        }
        tree.use_whole_devices(None);
        !self.space.within_limits(&tree, tree.grown()).is_empty()
    }

    /// Lets vdevs grow in the txg that is being synced, if `autoexpand` is set.
    pub(crate) fn grow_by_itself(self: &Arc<Self>, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        if !could_grow(&self.tree()) || !self.is_autoexpand(mos)? {
            return Ok(());
        }
        // who attaches a device has looked whether it is large enough for the vdev as it is
        let Some(_alone) = self.vdev_change.try_lock() else { return Ok(()) };
        self.tree().use_whole_devices(None);
        TaskCx { spa: self, mos, tx }.grow_vdevs(&|_| true)
    }
}

/// Whether a top-level vdev could grow if all of its devices were used.
fn could_grow(tree: &VdevTree) -> bool {
    tree.tops().iter().filter(|top| top.is_concrete()).any(|top| tree.growth(top, top.config()) > 0)
}

impl TaskCx<'_> {
    /// Lets those `wanted` vdevs, by number, grow whose devices are used that far.
    fn grow_vdevs(&self, wanted: &dyn Fn(u64) -> bool) -> Result<(), Error> {
        let (spa, mos) = (self.spa, self.mos);
        let mut grown = spa.space.within_limits(&spa.tree(), spa.tree().grown());
        grown.retain(|(id, _)| wanted(*id));
        if grown.is_empty() {
            return Ok(());
        }
        let config = spa.config_with(|tops| {
            for (id, asize) in &grown {
                let top = tops.iter_mut().find(|top| top.get_u64(key::ID) == Some(*id));
                if let Some(top) = top {
                    top.insert(key::ASIZE, *asize);
                }
            }
        });
        let tree = spa.tree_of(&config, &Newcomers::default())?;
        let histograms = spa.feature_enabled(mos, "spacemap_histogram")?;
        let mut more = Vec::new();
        for (id, _) in &grown {
            more.push(spa.space.metaslabs_of_growth(&tree, *id, histograms)?);
        }
        let added: u64 = more.iter().flat_map(|more| &more.metaslabs).map(|metaslab| metaslab.geometry().size).sum();
        let size = spa.space.size().saturating_add(added);
        let what = format!("pool '{}' size: {size}(+{added})", spa.name());
        spa.log_internal(mos, self.tx, "vdev online", &what)?;
        spa.space.grow_when_synced(more);
        spa.edit_config(|nv| *nv = config);
        spa.publish(tree);
        Ok(())
    }
}
