//! Quotas of users, groups and projects (OpenZFS: `zfs_quota.c`).
//!
//! Each kind of quota has a ZAP, named in the master node and created with the first quota: from an id, in hexadecimal, to bytes
//! or objects. Usage is counted by the sync; a quota is therefore enforced some seconds late, as in OpenZFS. Without any quotas a
//! check only reads a flag.

use base::ObjectId;
use dmu::{Special, Zap};
use ondisk::{ObjectType, ObjsetPhys};
use parking_lot::RwLock;
use pool::SpaceKind;

use super::{Refusal, SMALL_CHANGE, Zfs, Znode};
use crate::acl::modes::Owners;
use crate::{Attrs, Error};

/// The prefix of object counts among the amounts of space (OpenZFS: `DMU_OBJACCT_PREFIX`).
const OBJECTS_PREFIX: &str = "obj-";
/// The project of files that belong to no project; it has no quotas (OpenZFS: `ZFS_DEFAULT_PROJID`).
const DEFAULT_PROJID: u64 = 0;

/// The subject of a quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Party {
    User(u64),
    Group(u64),
    Project(u64),
}

impl Party {
    const fn id(self) -> u64 {
        match self {
            Party::User(id) | Party::Group(id) | Party::Project(id) => id,
        }
    }

    /// Returns the quotas that apply: of bytes, of objects.
    const fn kinds(self) -> [SpaceKind; 2] {
        match self {
            Party::User(_) => [SpaceKind::UserQuota, SpaceKind::UserObjQuota],
            Party::Group(_) => [SpaceKind::GroupQuota, SpaceKind::GroupObjQuota],
            Party::Project(_) => [SpaceKind::ProjectQuota, SpaceKind::ProjectObjQuota],
        }
    }

    const fn used(self) -> Special {
        match self {
            Party::User(_) => Special::UserUsed,
            Party::Group(_) => Special::GroupUsed,
            Party::Project(_) => Special::ProjectUsed,
        }
    }
}

/// One kind of quota in a file system.
#[derive(Clone, Default)]
struct Limits {
    /// By id; `None` if no id has a quota of its own.
    own: Option<Zap>,
    /// For ids without a quota of their own; 0 for none.
    default: u64,
}

/// All quotas of a file system.
#[derive(Default)]
pub(super) struct Quotas(RwLock<[Limits; 6]>);

/// Returns the index of a kind among the quotas.
fn place(kind: SpaceKind) -> Option<usize> {
    SpaceKind::ALL.into_iter().filter(|kind| kind.is_quota()).position(|one| one == kind)
}

impl Quotas {
    fn get(&self, kind: SpaceKind) -> Limits {
        place(kind).and_then(|n| self.0.read().get(n).cloned()).unwrap_or_default()
    }

    fn any(&self) -> bool {
        self.0.read().iter().any(|limits| limits.own.is_some() || limits.default != 0)
    }
}

impl Zfs {
    /// Reads the quotas from the master node.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn load_quotas(&self) -> Result<(), Error> {
        let master = Zap::open(self.fs().objset().object(ObjectId::MASTER_NODE)?)?;
        let mut all: [Limits; 6] = Default::default();
        for kind in SpaceKind::ALL.into_iter().filter(|kind| kind.is_quota()) {
            let own = match master.lookup_id(format!("{}@", kind.prefix()))? {
                Some(object) if object.is_some() => Some(Zap::open(self.fs().objset().object(object)?)?),
                _ => None,
            };
            let default = master.lookup_u64(format!("default{}", kind.prefix()))?.unwrap_or(0);
            if let Some(limits) = place(kind).and_then(|n| all.get_mut(n)) {
                *limits = Limits { own, default };
            }
        }
        *self.0.quotas.0.write() = all;
        Ok(())
    }

    /// Sets the quota of a user, group or project; 0 removes it (OpenZFS: `zfs_set_userquota`).
    ///
    /// # Errors
    /// EINVAL for a kind that is not a quota; ENOTSUP for projects in a file system that does not account for them.
    pub fn set_quota(&self, kind: SpaceKind, id: u64, limit: u64) -> Result<(), Error> {
        let refused = |why: Refusal| Err(why.of(ObjectId::MASTER_NODE));
        if !kind.is_quota() {
            return refused(Refusal::Invalid("not a quota, but usage"));
        }
        if kind.is_project() && !self.has_projects() {
            return refused(Refusal::Unsupported("the file system has no project accounting"));
        }
        let limits = self.0.quotas.get(kind);
        self.change(2 * SMALL_CHANGE, |tx| {
            let zap = match limits.own {
                Some(zap) => zap,
                None if limit == 0 => return Ok(()),
                None => {
                    let master = Zap::open(self.fs().objset().object(ObjectId::MASTER_NODE)?)?;
                    let name = format!("{}@", kind.prefix());
                    Zap::create_link(tx, &master, &name, ObjectType::USERGROUP_QUOTA)?
                }
            };
            if limit == 0 {
                zap.remove(tx, format!("{id:x}"))?;
            } else {
                zap.update_u64(tx, format!("{id:x}"), limit)?;
            }
            Ok(())
        })?;
        self.load_quotas()
    }

    /// Sets the default quota, for ids without a quota of their own (`defaultuserquota` etc.); 0 for none.
    ///
    /// # Errors
    /// As [`Zfs::set_quota`].
    pub fn set_default_quota(&self, kind: SpaceKind, limit: u64) -> Result<(), Error> {
        if !kind.is_quota() {
            return Err(Refusal::Invalid("not a quota, but usage").of(ObjectId::MASTER_NODE));
        }
        self.change(SMALL_CHANGE, |tx| {
            let master = Zap::open(self.fs().objset().object(ObjectId::MASTER_NODE)?)?;
            Ok(master.update_u64(tx, format!("default{}", kind.prefix()), limit)?)
        })?;
        self.load_quotas()
    }

    /// Returns the quota that applies to an id: its own, or the default; 0 for none.
    ///
    /// # Errors
    /// If the quotas cannot be read.
    pub fn quota(&self, kind: SpaceKind, id: u64) -> Result<u64, Error> {
        let limits = self.0.quotas.get(kind);
        let own = match &limits.own {
            Some(zap) => zap.lookup_u64(format!("{id:x}"))?,
            None => None,
        };
        Ok(own.unwrap_or(limits.default))
    }

    /// Returns the usage of an id as of the last sync: bytes, and objects.
    ///
    /// # Errors
    /// When the accounts cannot be read.
    pub(crate) fn used(&self, party: Party) -> Result<(u64, u64), Error> {
        let Some(accounts) = self.fs().objset().special(party.used()) else { return Ok((0, 0)) };
        let zap = Zap::open(accounts)?;
        let id = party.id();
        let number = |name: String| zap.lookup_u64(name).map(|n| n.unwrap_or(0));
        Ok((number(format!("{id:x}"))?, number(format!("{OBJECTS_PREFIX}{id:x}"))?))
    }

    /// True if a party has reached a quota: of bytes, or with `objects` of either kind.
    fn is_over(&self, party: Party, objects: bool) -> Result<bool, Error> {
        let [bytes_kind, objects_kind] = party.kinds();
        let counts = self.fs().objset().phys().flags & ObjsetPhys::FLAG_USEROBJACCOUNTING != 0;
        let bytes_limit = self.quota(bytes_kind, party.id())?;
        let objects_limit = if objects && counts { self.quota(objects_kind, party.id())? } else { 0 };
        if bytes_limit == 0 && objects_limit == 0 {
            return Ok(false);
        }
        let (bytes, objects) = self.used(party)?;
        Ok((bytes_limit != 0 && bytes >= bytes_limit) || (objects_limit != 0 && objects >= objects_limit))
    }

    fn refuse_over(&self, object: ObjectId, parties: &[Party], objects: bool) -> Result<(), Error> {
        for party in parties {
            let default = matches!(party, Party::Project(DEFAULT_PROJID));
            if !default && self.is_over(*party, objects)? {
                return Err(Refusal::Quota.of(object));
            }
        }
        Ok(())
    }

    /// Refuses more data in a file if its user, group or project has reached its byte quota (OpenZFS: `zfs_id_overblockquota`).
    ///
    /// # Errors
    /// EDQUOT.
    pub(crate) fn check_block_quota(&self, node: &Znode) -> Result<(), Error> {
        if !self.0.quotas.any() {
            return Ok(());
        }
        let (uid, gid, projid) =
            node.with_attrs(|attrs| (attrs.owner.0, attrs.group.0, attrs.projid.unwrap_or(DEFAULT_PROJID)));
        self.refuse_over(node.id(), &[Party::User(uid), Party::Group(gid), Party::Project(projid)], false)
    }

    /// Refuses a new file of owners that have reached a quota (OpenZFS: `zfs_acl_ids_overquota`).
    ///
    /// # Errors
    /// EDQUOT.
    pub(crate) fn check_new_file_quota(&self, dir: ObjectId, uid: u64, gid: u64, projid: u64) -> Result<(), Error> {
        if !self.0.quotas.any() {
            return Ok(());
        }
        self.refuse_over(dir, &[Party::User(uid), Party::Group(gid), Party::Project(projid)], true)
    }

    /// Refuses to give a file to owners that have reached a quota.
    pub(super) fn check_new_owners(&self, node: &Znode, old: &Attrs, new: Owners) -> Result<(), Error> {
        if !self.0.quotas.any() {
            return Ok(());
        }
        let user = (new.uid != old.owner).then_some(Party::User(new.uid.0));
        let group = (new.gid != old.group).then_some(Party::Group(new.gid.0));
        let parties: Vec<Party> = user.into_iter().chain(group).collect();
        self.refuse_over(node.id(), &parties, true)
    }

    /// Refuses to give a file to a project that has reached a quota.
    pub(super) fn check_new_project(&self, node: &Znode, projid: u64) -> Result<(), Error> {
        let same = node.with_attrs(|attrs| attrs.projid == Some(projid));
        if same || !self.0.quotas.any() {
            return Ok(());
        }
        self.refuse_over(node.id(), &[Party::Project(projid)], true)
    }
}
