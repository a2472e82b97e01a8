//! New files: the object and its attributes (OpenZFS: `zfs_mknode`, `zfs_acl_ids_create`, `zfs_inherit_projid`).
//!
//! The order of the attributes is that of the kernel module: accounting reads owner, group, flags and project at fixed offsets,
//! and files made by either share layouts.

use std::borrow::Cow;
use std::sync::Arc;

use base::ObjectId;
use dmu::sa::{Attr, SaValue, words};
use dmu::{NewObject, NewZap, Tx, Zap};
use ondisk::{DNODE_SIZE, ObjectType};

use super::znode::time_value;
use super::{Cred, NewFile, Refusal, Zfs, Znode};
use crate::acl::modes::{self as acl, NewAcl, Owners};
use crate::{Attrs, CaseSensitivity, Error, FileFlags, Fuid, Kind, Time};

/// The bytes of a dnode that are not bonus buffer: its own fields and one block pointer.
const DNODE_FIXED: usize = 64 + 128;
/// Names fold to upper case (OpenZFS: `U8_TEXTPREP_TOUPPER`).
const TOUPPER: u64 = 0x2;
const S_ISGID: u32 = 0o2000;
/// Maximum number of slots of a dnode.
pub(super) const MAX_SLOTS: usize = 32;
/// Longest target of a symbolic link (Linux: `PATH_MAX`, minus the NUL).
const TARGET_MAX: usize = 4095;

/// The checked attributes of a new file.
pub(crate) struct Birth<'a> {
    new: &'a NewFile<'a>,
    parent: ObjectId,
    owners: Owners,
    acl: NewAcl,
    flags: u64,
    projid: Option<u64>,
    now: Time,
    recorded: Option<Recorded>,
}

/// The facts about a new file that the intent log records in addition to the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    /// The object's number.
    pub(super) id: ObjectId,
    /// Slots of its dnode.
    pub(super) slots: usize,
    /// The txg in which it was created.
    pub(super) generation: u64,
    /// The time of creation.
    pub(super) crtime: Time,
}

impl Zfs {
    /// Determines the attributes of a new file in `dir`.
    ///
    /// # Errors
    /// EINVAL for a kind that cannot be created there, ENAMETOOLONG for a target, EDQUOT.
    pub(super) fn plan_new<'a>(&self, cred: &Cred, dir: &Znode, new: &'a NewFile<'a>) -> Result<Birth<'a>, Error> {
        let parent = dir.attrs();
        let hidden = parent.flags.has(FileFlags::XATTR);
        if matches!(new.kind, Kind::Other(_)) || (hidden && new.kind != Kind::File) {
            return Err(Refusal::Invalid("a file of this kind cannot be created here").of(dir.id()));
        }
        if new.kind == Kind::Symlink {
            self.check_target(dir.id(), new.target)?;
        }
        let (owners, mode) = owners_and_mode(cred, &parent, new);
        let inherits = parent.flags.has(FileFlags::INHERIT_ACE) && !hidden;
        let list = if inherits { Some(self.fs().node(dir.id())?.acl()?) } else { None };
        let acl = acl::of_new_file(&self.settings(), list.as_ref(), new.kind, mode, owners);
        let (given, projid) = self.given_on(&parent, new.kind, hidden);
        let flags = given | acl.flags;
        self.check_new_file_quota(dir.id(), owners.uid.0, owners.gid.0, projid.unwrap_or(0))?;
        Ok(Birth { new, parent: dir.id(), owners, acl, flags, projid, now: self.now(), recorded: None })
    }

    /// Determines the attributes of the hidden directory of extended attributes of `above` or, if `above` is that directory, of a
    /// value in it. Quotas are not checked.
    pub(crate) fn plan_hidden<'a>(&self, above: &Znode, new: &'a NewFile<'a>, owners: Owners) -> Birth<'a> {
        let mode = u32::from(new.kind.number()) << 12 | new.mode & 0o7777;
        let acl = acl::of_new_file(&self.settings(), None, new.kind, mode, owners);
        let (given, projid) = self.given_on(&above.attrs(), new.kind, true);
        let flags = given | acl.flags;
        Birth { new, parent: above.id(), owners, acl, flags, projid, now: self.now(), recorded: None }
    }

    /// Returns the flags and the project that a new file inherits from its directory.
    fn given_on(&self, parent: &Attrs, kind: Kind, hidden: bool) -> (u64, Option<u64>) {
        let mut flags = FileFlags::ARCHIVE.0 | FileFlags::AV_MODIFIED.0;
        if hidden {
            flags |= FileFlags::XATTR.0;
        }
        // no release gives other kinds a project of their own
        let takes_part = matches!(kind, Kind::File | Kind::Directory);
        let heir = takes_part && parent.flags.has(FileFlags::PROJINHERIT);
        if heir {
            flags |= FileFlags::PROJINHERIT.0;
        }
        let inherited = if heir { parent.projid.unwrap_or(0) } else { 0 };
        let projid = (takes_part && self.has_projects()).then_some(inherited);
        if projid.is_some() {
            flags |= FileFlags::PROJID.0;
        }
        (flags, projid)
    }

    fn check_target(&self, dir: ObjectId, target: &[u8]) -> Result<(), Error> {
        if target.is_empty() || target.contains(&0) {
            return Err(Refusal::Invalid("the target of a symbolic link is empty or contains a NUL").of(dir));
        }
        if target.len() > TARGET_MAX {
            return Err(Error::NameTooLong { len: target.len() });
        }
        if self.fs().utf8_only() && std::str::from_utf8(target).is_err() {
            return Err(Refusal::NotUtf8.of(dir));
        }
        Ok(())
    }

    /// Creates the file. It has no name yet.
    ///
    /// # Errors
    /// If the object cannot be created.
    pub(super) fn make_node(&self, tx: &Tx, birth: &Birth<'_>) -> Result<Arc<Znode>, Error> {
        let slots = birth.recorded.map_or(self.settings().dnode_slots, |recorded| recorded.slots).clamp(1, MAX_SLOTS);
        let bonus_len = slots * DNODE_SIZE - DNODE_FIXED;
        let id = birth.recorded.map(|recorded| recorded.id);
        let objset = self.fs().objset();
        let (object, zap) = if birth.new.kind == Kind::Directory {
            let fold = if self.fs().case_sensitivity() == CaseSensitivity::Sensitive { 0 } else { TOUPPER };
            let new = NewZap {
                object_type: ObjectType::DIRECTORY_CONTENTS,
                normflags: self.fs().normalization() | fold,
                bonus_type: ObjectType::SA,
                bonus_len,
                slots,
                id,
                ..NewZap::default()
            };
            let zap = Zap::create_with(tx, objset, &new)?;
            (zap.object().clone(), Some(zap))
        } else {
            let new = NewObject {
                object_type: ObjectType::PLAIN_FILE_CONTENTS,
                bonus_type: ObjectType::SA,
                bonus_len,
                slots,
                ..NewObject::default()
            };
            let object = match id {
                Some(id) => objset.claim_object(tx, id, &new)?,
                None => objset.alloc_object(tx, &new)?,
            };
            (object, None)
        };
        let attrs = birth.attrs(birth.recorded.map_or(tx.txg().0, |recorded| recorded.generation));
        let written = self.fs().sa().replace_all(tx, &object, &birth.values(&attrs));
        if let Err(error) = written {
            if let Err(left) = objset.free_object(tx, object.id()) {
                tx.break_txg(&left);
            }
            return Err(error.into());
        }
        // the handle is one of the dnode with the attributes, of which there is no other copy then
        let node = Znode::new(object.reload().unwrap_or(object), attrs);
        if let Some(zap) = zap {
            node.set_dir(zap);
        }
        Ok(self.0.nodes.insert(node))
    }

    /// Removes a created file that has no name.
    pub(super) fn unmake_node(&self, tx: &Tx, node: &Znode) -> Result<(), Error> {
        self.0.nodes.remove(node.id());
        Ok(self.fs().objset().free_object(tx, node.id())?)
    }
}

/// Returns owner, group and mode of a new file: a directory with the set-group-id bit passes on its group, and the bit to
/// directories; other files lose the bit if their creator is not in the group.
fn owners_and_mode(cred: &Cred, parent: &Attrs, new: &NewFile<'_>) -> (Owners, u32) {
    let group_from_dir = parent.mode & S_ISGID != 0;
    let (uid, own_gid) = new.owner.unwrap_or((cred.uid, cred.gid));
    let gid = if group_from_dir { parent.group } else { Fuid(own_gid.into()) };
    let mut mode = u32::from(new.kind.number()) << 12 | new.mode & 0o7777;
    if group_from_dir && new.kind == Kind::Directory {
        mode |= S_ISGID;
    } else if mode & S_ISGID != 0 && !crate::acl::access::may_set_gid_bit(cred, gid.posix_id()) {
        mode &= !S_ISGID;
    }
    (Owners { uid: Fuid(uid.into()), gid }, mode)
}

impl Birth<'_> {
    /// Returns the ACL, if it is not equivalent to the mode.
    pub(super) fn list(&self) -> Option<&NewAcl> {
        Some(&self.acl).filter(|acl| acl.flags & FileFlags::ACL_TRIVIAL.0 == 0)
    }

    /// Uses the number, time and generation that a log has recorded.
    pub(crate) fn recorded_as(self, recorded: Recorded) -> Self {
        Birth { now: recorded.crtime, recorded: Some(recorded), ..self }
    }

    fn attrs(&self, txg: u64) -> Attrs {
        let kind = self.new.kind;
        let (size, links) = match kind {
            Kind::Directory => (2, 2),
            Kind::Symlink => (self.new.target.len() as u64, 1),
            _ => (0, 1),
        };
        let (atime, mtime) = self.new.times.unwrap_or((self.now, self.now));
        Attrs {
            mode: self.acl.mode,
            owner: self.owners.uid,
            group: self.owners.gid,
            size,
            links,
            generation: txg,
            parent: self.parent,
            atime,
            mtime,
            ctime: self.now,
            crtime: self.now,
            flags: FileFlags(self.flags),
            projid: self.projid,
            rdev: matches!(kind, Kind::BlockDevice | Kind::CharDevice).then_some(self.new.rdev),
            xattr_dir: ObjectId::NONE,
            seq: None,
        }
    }

    /// Returns the attributes in the order of the kernel module.
    fn values(&self, attrs: &Attrs) -> Vec<SaValue<'_>> {
        let one = |attr, word: u64| (attr, Cow::Owned(words(&[word])));
        let mut all = Vec::with_capacity(17);
        all.extend([
            one(Attr::Mode, attrs.mode.into()),
            one(Attr::Size, attrs.size),
            one(Attr::Gen, attrs.generation),
            one(Attr::Uid, attrs.owner.0),
            one(Attr::Gid, attrs.group.0),
            one(Attr::Parent, attrs.parent.0),
            one(Attr::Flags, attrs.flags.0),
            time_value(Attr::Atime, attrs.atime),
            time_value(Attr::Mtime, attrs.mtime),
            time_value(Attr::Ctime, attrs.ctime),
            time_value(Attr::Crtime, attrs.crtime),
            one(Attr::Links, attrs.links),
        ]);
        all.extend(attrs.projid.map(|projid| one(Attr::Projid, projid)));
        all.extend(attrs.rdev.map(|rdev| one(Attr::Rdev, rdev)));
        all.push(one(Attr::DaclCount, self.acl.aces.len() as u64));
        all.push((Attr::DaclAces, Cow::Owned(self.acl.bytes())));
        if self.new.kind == Kind::Symlink {
            all.push((Attr::Symlink, Cow::Borrowed(self.new.target)));
        }
        all
    }
}
