//! Another identity for a pool (OpenZFS: `spa_change_guid`).
//!
//! A sync task changes the guid in the configuration, and that of the root vdev; the labels and the sum of guids follow with the commit of its txg. It is the
//! pool's identity for who finds it on its devices. [`Spa::guid`] stays what it was until the pool is closed: what this process and the layers above know of the pool goes by it.
//!
//! A crash in the middle of the commit leaves devices that have labels of both identities: `vdev::import` knows from their uberblocks which one counts.

use std::sync::Arc;

use base::Guid;
use nvlist::NvList;
use ondisk::label::key;
use vdev::{Newcomers, VdevState};

use crate::Error;
use crate::spa::{Spa, TaskCx, VdevRefusal};

impl Spa {
    /// Gives the pool the identity `guid`, or a new one. It is to be closed afterwards, and opened under that. Returns it.
    ///
    /// # Errors
    /// [`Error::Vdevs`], and nothing was done: [`VdevRefusal::BadValue`] for 0, [`VdevRefusal::SameGuid`] for the identity that it has,
    /// [`VdevRefusal::Checkpoint`], [`VdevRefusal::Unavailable`] if a device is not well; [`Error::Suspended`].
    pub fn change_guid(self: &Arc<Self>, guid: Option<Guid>) -> Result<Guid, Error> {
        let _alone = self.vdev_change.lock();
        let new = guid.unwrap_or_else(|| self.new_guid());
        let known = self.tree().config().guid;
        match new {
            Guid(0) => return Err(Error::Vdevs(VdevRefusal::BadValue)),
            new if self.tree().config().walk().any(|vdev| vdev.guid == new) => {
                return Err(Error::Vdevs(VdevRefusal::SameGuid));
            }
            _ => {}
        }
        self.sync_task(move |cx| cx.change_guid(known, new))?;
        self.notify("pool_reguid", &NvList::new());
        Ok(new)
    }
}

impl TaskCx<'_> {
    fn change_guid(&self, old: Guid, new: Guid) -> Result<(), Error> {
        let spa = self.spa;
        if spa.feature_active(self.mos, "zpool_checkpoint")? {
            return Err(Error::Vdevs(VdevRefusal::Checkpoint));
        }
        if spa.tree().status().state != VdevState::Healthy {
            return Err(Error::Vdevs(VdevRefusal::Unavailable));
        }
        let (mut config, _) = spa.config_with_tree(|root| root.insert(key::GUID, new.0));
        config.insert(key::POOL_GUID, new.0);
        let tree = spa.tree_of(&config, &Newcomers::default())?;
        spa.log_internal(self.mos, self.tx, "guid change", &format!("old={} new={}", old.0, new.0))?;
        spa.edit_config(|nv| *nv = config);
        spa.publish(tree);
        Ok(())
    }
}
