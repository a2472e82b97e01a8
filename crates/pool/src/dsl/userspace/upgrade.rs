//! Accounts the objects of a file system to their owners where this has not been done (OpenZFS: `dmu_objset_userspace_upgrade`): a raw receive
//! cannot do it, as owners are encrypted.

use std::sync::Arc;

use base::ObjectId;
use dmu::Objset;
use ondisk::{ObjsetPhys, ObjsetType};

use crate::Error;
use crate::spa::Spa;

/// Objects that one transaction counts.
const AT_ONCE: usize = 1000;

impl Spa {
    /// Counts the objects of a file system that was received raw and is opened with its key for the first time. Whatever is written is counted from
    /// then on.
    ///
    /// # Errors
    /// When an object cannot be read, or there is no space.
    pub fn upgrade_accounting(self: &Arc<Self>, objset: &Arc<Objset>) -> Result<(), Error> {
        let phys = objset.phys();
        let counted = phys.flags & ObjsetPhys::FLAG_USERACCOUNTING != 0;
        if counted || phys.os_type != ObjsetType::Zfs || !self.hooks_used_by() {
            return Ok(());
        }
        let flags = self.accounting_flags(&self.live_mos()?)?;
        let mut at = ObjectId::NONE;
        loop {
            let tx = self.dataset_tx(objset, (AT_ONCE * ondisk::DNODE_SIZE) as u64, true)?;
            for _ in 0..AT_ONCE {
                let Some(id) = objset.next_object(at)? else {
                    for name in ["userobj_accounting", "project_quota"] {
                        if self.feature_enabled(&self.live_mos()?, name)? {
                            self.use_dataset_feature(&tx, objset.id(), name);
                        }
                    }
                    return Ok(objset.set_flags(&tx, phys.flags | flags)?);
                };
                // a dnode that is written is counted
                let object = objset.object(id)?;
                object.set_checksum(&tx, object.phys().checksum)?;
                at = id;
            }
        }
    }
}
