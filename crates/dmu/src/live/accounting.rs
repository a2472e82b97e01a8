//! Space and objects by user, group and project (OpenZFS: `dmu_objset_do_userquota_updates`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use base::{ObjectId, Txg};
use ondisk::{DNODE_SIZE, DnodePhys, ObjectType};

use super::{Owner, Tx, UsedBy};
use crate::{Error, NewZap, Objset, Special, Zap};

/// The prefix of the id in names under which objects are counted (OpenZFS: `DMU_OBJACCT_PREFIX`).
const OBJECTS_PREFIX: &str = "obj-";

/// What is counted of a user, a group or a project.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    Bytes,
    Objects,
}

/// The changes of a sync to the accounting objects.
pub(crate) struct Deltas<'a> {
    used: &'a dyn UsedBy,
    by_id: BTreeMap<(ObjectId, Counted, u64), i64>,
}

impl<'a> Deltas<'a> {
    pub(crate) fn new(used: &'a dyn UsedBy) -> Deltas<'a> {
        Deltas { used, by_id: BTreeMap::new() }
    }

    /// Counts one object, with its old and its new dnode.
    pub(crate) fn count(&mut self, old: &DnodePhys, new: &DnodePhys) {
        for (dn, sign) in [(old, -1), (new, 1)] {
            if dn.object_type == ObjectType::NONE {
                continue;
            }
            let Some(owner) = self.used.owner(dn.bonus_type, &dn.bonus, dn.endian) else { continue };
            if dn.flags & DnodePhys::FLAG_USERUSED_ACCOUNTED != 0 {
                // modulo 2^64, as the counters: what is taken away is what was added, whatever the dnode says
                let bytes = (DNODE_SIZE as u64).wrapping_add(dn.used_bytes()) as i64;
                self.add(&owner, Counted::Bytes, bytes.wrapping_mul(sign));
            }
            if dn.flags & DnodePhys::FLAG_USEROBJUSED_ACCOUNTED != 0 {
                self.add(&owner, Counted::Objects, sign);
            }
        }
    }

    fn add(&mut self, owner: &Owner, what: Counted, delta: i64) {
        let mut add = |which: Special, id: u64| {
            let sum = self.by_id.entry((which.id(), what, id)).or_default();
            *sum = sum.wrapping_add(delta);
        };
        add(Special::UserUsed, owner.uid);
        add(Special::GroupUsed, owner.gid);
        if self.used.projects() {
            add(Special::ProjectUsed, owner.projid);
        }
    }

    /// Applies the deltas to the accounting objects, which are created if they do not exist.
    pub(crate) fn apply(self, objset: &Arc<Objset>, txg: Txg) -> Result<(), Error> {
        let tx = Tx::syncing(txg);
        let mut open = BTreeMap::new();
        for ((object, what, id), delta) in self.by_id.into_iter().filter(|(_, delta)| *delta != 0) {
            let zap = match open.entry(object) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(place) => place.insert(accounts(objset, object, &tx)?),
            };
            let name = match what {
                Counted::Bytes => format!("{id:x}"),
                Counted::Objects => format!("{OBJECTS_PREFIX}{id:x}"),
            };
            zap.increment(&tx, name, delta)?;
        }
        Ok(())
    }
}

/// The accounting object `id`, created if it does not exist.
fn accounts(objset: &Arc<Objset>, id: ObjectId, tx: &Tx) -> Result<Zap, Error> {
    match objset.object(id) {
        Ok(object) => Zap::open(object),
        Err(err) if err.is_not_found() => {
            let object_type = ObjectType::USERGROUP_USED;
            Zap::create_with(tx, objset, &NewZap { object_type, id: Some(id), ..NewZap::default() })
        }
        Err(err) => Err(err),
    }
}
