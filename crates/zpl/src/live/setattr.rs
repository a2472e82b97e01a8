//! Changes of attributes by users (OpenZFS: `zfs_setattr`, `zfs_setattr_dir`; Linux: `setattr_prepare`, `notify_change`).
//!
//! Everything is checked first. The size is changed first and by itself, since it may take many transactions; the rest is one
//! change, which checks again with the file's `rights` held: a caller who was the owner at the first check may not be any more,
//! and the mode that he sets would then apply to another owner's file. A new mode rewrites the ACL by `aclmode`, and the POSIX
//! ACL with it, and new owners and a new project apply to the hidden directory of extended attributes with its files: all of this is done or
//! nothing. Where that directory has more than [`HIDDEN_AT_ONCE`] files, the others follow, each with a transaction of its own (OpenZFS:
//! `zfs_setattr` changes the directory, and then `zfs_setattr_dir` each file by itself). Beside a POSIX ACL that is malformed the mode changes
//! all the same, and the error is returned (OpenZFS: `zpl_setattr` calls `zpl_chmod_acl` when `zfs_setattr` is done).

use std::borrow::Cow;
use std::sync::Arc;

use base::{Errno, ObjectId};
use dmu::Tx;
use dmu::sa::{Attr, SaValue, words};

use super::steps::Steps;
use super::znode::state_changed;
use super::{Caps, Cred, Refusal, SMALL_CHANGE, SetAttr, Zfs, Znode};
use crate::acl::access::{self, Perms};
use crate::acl::modes::{self as acl, NewAcl, Owners};
use crate::acl::permit::{ACLTYPE_NFSV4, ACLTYPE_POSIX};
use crate::node::attr_of;
use crate::{Ace, Attrs, Error, FileFlags, Fuid, Kind, PosixAcl, Time};

const NSEC_PER_SEC: u32 = 1_000_000_000;
const S_IFMT: u32 = 0o170_000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
/// Files of a hidden directory of extended attributes that change in the transaction of their file.
const HIDDEN_AT_ONCE: usize = 64;
/// The largest project number; the next one is invalid (OpenZFS: `ZFS_INVALID_PROJID`), and so is everything above 32 bits.
const PROJID_MAX: u64 = u32::MAX as u64 - 1;

/// Flags that users can set (OpenZFS: `zfs_xvattr_set`): all except those of the ACL, and of the project itself.
const SETTABLE: u64 = FileFlags::READONLY.0
    | FileFlags::HIDDEN.0
    | FileFlags::SYSTEM.0
    | FileFlags::ARCHIVE.0
    | FileFlags::IMMUTABLE.0
    | FileFlags::NOUNLINK.0
    | FileFlags::APPENDONLY.0
    | FileFlags::NODUMP.0
    | FileFlags::OPAQUE.0
    | FileFlags::AV_QUARANTINED.0
    | FileFlags::AV_MODIFIED.0
    | FileFlags::REPARSE.0
    | FileFlags::OFFLINE.0
    | FileFlags::SPARSE.0
    | FileFlags::PROJINHERIT.0;
/// The flags that only root can change (Linux: `CAP_LINUX_IMMUTABLE`).
const ROOTS: u64 = FileFlags::IMMUTABLE.0 | FileFlags::APPENDONLY.0 | FileFlags::NOUNLINK.0;

/// The result of a checked change.
struct Plan {
    /// The new mode, with the file's type.
    mode: Option<u32>,
    owners: Option<Owners>,
    flags: Option<u64>,
}

impl Zfs {
    /// Changes attributes of a file; returns the new ones.
    ///
    /// # Errors
    /// EPERM, EACCES, EISDIR, EINVAL, EFBIG, EDQUOT, ENOTSUP, EROFS, ENOSPC.
    pub fn setattr(&self, cred: &Cred, id: ObjectId, set: &SetAttr) -> Result<Attrs, Error> {
        let node = self.znode(id)?;
        let plan = self.plan(cred, &node, set)?;
        if let Some(size) = set.size {
            self.check(cred, &node, Perms::WRITE_DATA)?;
            self.set_length(cred, &node, size)?;
        }
        let rest = SetAttr { size: None, ..*set };
        if plan.owners.is_some() && node.kind() == Kind::File {
            self.end_capability(&node)?;
        }
        let (hidden, mut posix_error) = (self.hidden_changes(&node, set)?, None);
        if rest != SetAttr::default() {
            posix_error = self.change_some((2 + hidden) * SMALL_CHANGE, &[id], |tx| {
                let _rights = node.rights.lock();
                self.claim_hidden(tx, &node)?;
                let plan = self.plan(cred, &node, &rest)?;
                let (posix, malformed) = match self.posix_acl_of(&node, &rest)? {
                    Ok(posix) => (posix, None),
                    Err(malformed) => (None, Some(malformed)),
                };
                // as long as its changes are not in the log; and no attribute leaves the hidden directory before all of it is done
                let _content = (posix.is_some() || changes_hidden(&rest)).then(|| node.content.write());
                self.whole(tx, |steps| {
                    self.set_now(steps, &node, &rest, &plan, posix.clone())?;
                    self.set_hidden(steps, &node, &rest)
                })?;
                Ok(malformed)
            })?;
        }
        if changes_hidden(set) {
            self.set_hidden_rest(&node)?;
        }
        posix_error.map_or_else(|| Ok(node.attrs()), Err)
    }

    /// Truncates or extends a file that the caller has open for writing: his permission was checked then. Returns the new attributes.
    ///
    /// # Errors
    /// EISDIR, EINVAL if it is not a file; EPERM for an immutable or append-only file; EFBIG, EDQUOT, EROFS, ENOSPC.
    pub fn truncate(&self, cred: &Cred, id: ObjectId, size: u64) -> Result<Attrs, Error> {
        let node = self.znode(id)?;
        self.plan(cred, &node, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        self.set_length(cred, &node, size)?;
        Ok(node.attrs())
    }

    /// Checks everything, and computes the new flags and modes.
    fn plan(&self, cred: &Cred, node: &Arc<Znode>, set: &SetAttr) -> Result<Plan, Error> {
        let attrs = node.attrs();
        let refused = |why: Refusal| Err(why.of(node.id()));
        match attrs.kind() {
            Kind::Directory if set.size.is_some() => return Err(Error::IsDirectory { object: node.id() }),
            kind if set.size.is_some() && kind != Kind::File => {
                return refused(Refusal::Invalid("only files have a size that can be set"));
            }
            _ => {}
        }
        // values from a log were checked when they were logged
        let given = [set.atime, set.mtime, set.crtime];
        if !self.is_replaying() && given.iter().flatten().any(|time| time.nsec >= NSEC_PER_SEC) {
            return refused(Refusal::Invalid("a time has a billion nanoseconds or more"));
        }
        let fixed = attrs.flags.has(FileFlags::IMMUTABLE) || attrs.flags.has(FileFlags::APPENDONLY);
        let changes = set.size.is_some() || set.uid.is_some() || set.gid.is_some() || set.mode.is_some();
        let now = set.atime_now || set.mtime_now;
        let times = now || set.mtime.is_some() || set.atime.is_some() || set.crtime.is_some();
        let touches_fixed = set.touch && attrs.flags.has(FileFlags::IMMUTABLE);
        if fixed && (changes || times) || touches_fixed {
            return refused(Refusal::NotPermitted);
        }
        if self.settings().readonly {
            return refused(Refusal::ReadOnly);
        }
        if (times || set.mode.is_some() || set.flags.is_some() || set.projid.is_some())
            && !self.may_as_owner(cred, node, &attrs, set)?
        {
            return refused(Refusal::NotPermitted);
        }
        if set.touch && !access::owns(cred, &attrs) {
            self.check(cred, node, Perms::WRITE_DATA)?;
        }
        let owners = self.plan_owners(cred, node, &attrs, set)?;
        let flags = plan_flags(cred, &attrs, set).map_err(|why| why.of(node.id()))?;
        self.check_project(node, &attrs, set)?;
        if set.mode.is_some() && self.settings().aclmode == acl::rule::RESTRICTED {
            let trivial = attrs.flags.has(FileFlags::ACL_TRIVIAL);
            if !trivial {
                return refused(Refusal::NotPermitted);
            }
        }
        Ok(Plan { mode: plan_mode(cred, &attrs, set, owners), owners, flags })
    }

    /// True if the caller is the owner, or an ACL grants him the owner's rights.
    fn may_as_owner(&self, cred: &Cred, node: &Znode, attrs: &Attrs, set: &SetAttr) -> Result<bool, Error> {
        if access::owns(cred, attrs) {
            return Ok(true);
        }
        self.grants(cred, node, if set.mode.is_some() { Perms::WRITE_ACL } else { Perms::WRITE_ATTRIBUTES })
    }

    /// True if the file grants the caller these permissions; an error if that cannot be read.
    fn grants(&self, cred: &Cred, node: &Znode, wanted: Perms) -> Result<bool, Error> {
        match self.check(cred, node, wanted) {
            Ok(()) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Determines the new owners: root may give files away, an owner may only change the group to one that he is in.
    fn plan_owners(&self, cred: &Cred, node: &Znode, attrs: &Attrs, set: &SetAttr) -> Result<Option<Owners>, Error> {
        if set.uid.is_none() && set.gid.is_none() {
            return Ok(None);
        }
        let (uid, gid) = (set.uid.unwrap_or(attrs.uid()), set.gid.unwrap_or(attrs.gid()));
        if !cred.has(Caps::CHOWN) {
            let takes = cred.uid == uid && (set.gid.is_none() || cred.in_group(gid));
            let own = cred.uid == attrs.uid() && uid == attrs.uid() && (gid == attrs.gid() || cred.in_group(gid));
            let may = own || (takes && self.grants(cred, node, Perms::WRITE_OWNER)?);
            if !may {
                return Err(Refusal::NotPermitted.of(node.id()));
            }
        }
        // an unchanged id keeps its domain
        let of = |id: u32, now: Fuid| if now.posix_id() == id { now } else { Fuid(id.into()) };
        let new = Owners { uid: of(uid, attrs.owner), gid: of(gid, attrs.group) };
        self.check_new_owners(node, attrs, new)?;
        Ok(Some(new))
    }

    fn check_project(&self, node: &Znode, attrs: &Attrs, set: &SetAttr) -> Result<(), Error> {
        let inherit = set.flags.is_some_and(|new| (new.0 ^ attrs.flags.0) & FileFlags::PROJINHERIT.0 != 0);
        if set.projid.is_none() && !inherit {
            return Ok(());
        }
        if !self.has_projects() || !matches!(attrs.kind(), Kind::File | Kind::Directory) {
            return Err(Refusal::Unsupported("the file cannot have a project").of(node.id()));
        }
        match set.projid {
            Some(projid) if projid > PROJID_MAX => Err(Refusal::Invalid("invalid project number").of(node.id())),
            Some(projid) => self.check_new_project(node, projid),
            None => Ok(()),
        }
    }

    /// Changes what was planned. `posix` is the file's POSIX ACL, which changes with the mode; then `content` is held.
    fn set_now(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Znode>,
        set: &SetAttr,
        plan: &Plan,
        posix: Option<PosixAcl>,
    ) -> Result<(), Error> {
        let before = node.attrs();
        let owners = plan.owners.unwrap_or(Owners { uid: before.owner, gid: before.group });
        let mut others: Vec<SaValue<'_>> = Vec::new();
        let mut acl_flags = None;
        let mut mode = plan.mode.unwrap_or(before.mode);
        if set.mode.is_some() {
            let old = self.fs().node(node.id())?.acl()?;
            let new = acl::of_chmod(&self.settings(), &old, before.flags.0, before.kind(), mode, owners);
            acl_flags = Some(new.flags);
            others.extend(acl_values(&new));
        } else if plan.owners.is_some() && !before.flags.has(FileFlags::ACL_TRIVIAL) {
            let old = self.fs().node(node.id())?.acl()?;
            let (computed, flags) = acl::of_chown(&old, before.flags.0, mode, owners);
            (mode, acl_flags) = (computed & 0o777 | mode & !0o777, Some(flags & acl::ACL_WIDE));
        }
        let now = self.now();
        steps.edit_with(node, &others, |attrs| {
            attrs.mode = mode;
            (attrs.owner, attrs.group) = (owners.uid, owners.gid);
            let given = |now_too: bool, given: Option<Time>| given.or((set.touch || now_too).then_some(now));
            attrs.atime = given(set.atime_now, set.atime).unwrap_or(attrs.atime);
            attrs.mtime = given(set.mtime_now, set.mtime).unwrap_or(attrs.mtime);
            attrs.crtime = set.crtime.unwrap_or(attrs.crtime);
            attrs.projid = set.projid.or(attrs.projid);
            if set.mode.is_some() {
                state_changed(attrs, now);
            } else {
                attrs.ctime = now;
                attrs.seq = attrs.seq.map(|seq| seq.wrapping_add(1));
            }
            if let Some(flags) = acl_flags {
                attrs.flags.0 = attrs.flags.0 & !acl::ACL_WIDE | flags;
            }
            if let Some(flags) = plan.flags {
                attrs.flags.0 = attrs.flags.0 & !SETTABLE | flags;
            }
            if set.projid.is_some() {
                attrs.flags.0 |= FileFlags::PROJID.0;
            }
            Ok(())
        })?;
        let (changed, set) = (node.clone(), *set);
        steps.at_end(move |zfs, tx| zfs.log_setattr(tx, &changed, &set, &before));
        match posix {
            Some(acl) => self.chmod_posix(steps, node, acl, mode),
            None => Ok(()),
        }
    }

    /// Returns the POSIX ACL of a file whose mode changes, or the error if it is malformed. In a log it has separate records, which may be replayed
    /// at the same time.
    fn posix_acl_of(&self, node: &Znode, set: &SetAttr) -> Result<Result<Option<PosixAcl>, Error>, Error> {
        let changes = self.settings().acltype == ACLTYPE_POSIX && !self.is_replaying() && node.kind() != Kind::Symlink;
        if set.mode.is_none() || !changes {
            return Ok(Ok(None));
        }
        let stored = self.fs().node(node.id())?.xattr(PosixAcl::ACCESS.as_bytes())?;
        let acl = match stored.map(|stored| PosixAcl::decode(&stored)).transpose() {
            Ok(acl) => acl.filter(|acl| !acl.0.is_empty()),
            Err(_) => return Ok(Err(Refusal::Invalid("the POSIX ACL is malformed").of(node.id()))),
        };
        let why = "no entry for the group, and no mask";
        let is_whole = acl.as_ref().is_none_or(PosixAcl::has_group);
        Ok(if is_whole { Ok(acl) } else { Err(Error::BadAcl { object: node.id(), why }) })
    }

    /// Sets the NFSv4 ACL of a file; the mode follows from it (OpenZFS: `zfs_setacl`).
    ///
    /// # Errors
    /// ENOTSUP unless `acltype=nfsv4`; EPERM, EACCES; EINVAL for invalid entries.
    pub fn set_acl(&self, cred: &Cred, id: ObjectId, aces: Vec<Ace>) -> Result<Attrs, Error> {
        let node = self.znode(id)?;
        if self.settings().acltype != ACLTYPE_NFSV4 {
            return Err(Refusal::Unsupported("NFSv4 ACLs are off").of(id));
        }
        self.change_some(2 * SMALL_CHANGE, &[id], |tx| {
            let _rights = node.rights.lock();
            let before = node.attrs();
            if before.flags.has(FileFlags::IMMUTABLE) {
                return Err(Refusal::NotPermitted.of(id));
            }
            self.check(cred, &node, Perms::WRITE_ACL)?;
            let owners = Owners { uid: before.owner, gid: before.group };
            let new = acl::of_list(aces.clone(), before.flags.0, before.kind(), before.mode, owners);
            let new = new.map_err(|_| Refusal::Invalid("not a valid ACL").of(id))?;
            let now = self.now();
            node.edit_with(self, tx, &acl_values(&new), |attrs| {
                attrs.mode = new.mode;
                attrs.flags.0 = attrs.flags.0 & !acl::ACL_WIDE | new.flags;
                state_changed(attrs, now);
                Ok(())
            })?;
            self.log_acl(tx, &node, &new);
            Ok(())
        })?;
        Ok(node.attrs())
    }

    /// Changes attributes of a file that had no project yet and now gets one: the attribute must be at the offset where accounting reads it, which
    /// requires a new layout (OpenZFS: `sa_add_projid`).
    pub(super) fn add_project(&self, tx: &Tx, node: &Znode, changes: &[SaValue<'_>]) -> Result<(), Error> {
        const FRONT: [Attr; 12] = [
            Attr::Mode,
            Attr::Size,
            Attr::Gen,
            Attr::Uid,
            Attr::Gid,
            Attr::Parent,
            Attr::Flags,
            Attr::Atime,
            Attr::Mtime,
            Attr::Ctime,
            Attr::Crtime,
            Attr::Links,
        ];
        let sa = node.sa(self)?;
        // those of a spill block that cannot be read would be lost
        if sa.spill_error().is_some() {
            attr_of(node.id(), &sa, Attr::Projid)?;
        }
        let mut order: Vec<Attr> = FRONT.into_iter().chain([Attr::Projid]).collect();
        for attr in sa.present().chain(changes.iter().map(|(attr, _)| *attr)) {
            if !order.contains(&attr) {
                order.push(attr);
            }
        }
        let changed = |attr: &Attr| changes.iter().find(|(changed, _)| changed == attr).cloned();
        let stored = |attr: &Attr| Some((*attr, Cow::Owned(sa.get(*attr)?.to_vec())));
        let values: Vec<SaValue<'_>> = order.iter().filter_map(|attr| changed(attr).or_else(|| stored(attr))).collect();
        // if the change is undone the project stays
        let undone = |attr: &Attr| if *attr == Attr::Projid { changed(attr) } else { stored(attr) };
        let undone: Vec<SaValue<'_>> = order.iter().filter_map(undone).collect();
        self.fs().sa().enter_layouts(tx, node.object(), &undone)?;
        Ok(self.fs().sa().replace_all(tx, node.object(), &values)?)
    }

    /// Returns the number of files that change with this one, the hidden directory included.
    fn hidden_changes(&self, node: &Znode, set: &SetAttr) -> Result<u64, Error> {
        let dir = node.with_attrs(|attrs| attrs.xattr_dir);
        if dir.is_none() || !changes_hidden(set) {
            return Ok(0);
        }
        Ok(1 + self.znode(dir)?.with_attrs(|attrs| attrs.size).min(HIDDEN_AT_ONCE as u64))
    }

    /// Sets the owners and project of the hidden directory of extended attributes, and of its first files, to those of the file.
    fn set_hidden(&self, steps: &Steps<'_>, node: &Znode, set: &SetAttr) -> Result<(), Error> {
        let attrs = node.attrs();
        if attrs.xattr_dir.is_none() || !changes_hidden(set) {
            return Ok(());
        }
        let change = |id: ObjectId| {
            steps.edit(&self.znode(id)?, |own| {
                follow(own, &attrs);
                Ok(())
            })
        };
        change(attrs.xattr_dir)?;
        let mut files = self.fs().read_dir(attrs.xattr_dir)?.take(HIDDEN_AT_ONCE);
        files.try_for_each(|entry| change(entry?.object))
    }

    /// The same for the other files of the hidden directory.
    fn set_hidden_rest(&self, node: &Znode) -> Result<(), Error> {
        let attrs = node.attrs();
        if attrs.xattr_dir.is_none() {
            return Ok(());
        }
        for entry in self.fs().read_dir(attrs.xattr_dir)?.skip(HIDDEN_AT_ONCE) {
            let id = entry?.object;
            let hidden = match self.znode(id) {
                Ok(hidden) => hidden,
                // it was removed meanwhile
                Err(err) if err.errno() == Errno::ENOENT => continue,
                Err(err) => return Err(err),
            };
            self.change_some(SMALL_CHANGE, &[id], |tx| {
                hidden.edit(self, tx, |own| {
                    follow(own, &attrs);
                    Ok(())
                })
            })?;
        }
        Ok(())
    }
}

/// Returns whether a change also applies to the hidden directory of extended attributes.
fn changes_hidden(set: &SetAttr) -> bool {
    set.uid.is_some() || set.gid.is_some() || set.projid.is_some()
}

/// Gives what holds the extended attributes of a file the owners and the project of the file.
fn follow(own: &mut Attrs, file: &Attrs) {
    (own.owner, own.group, own.ctime) = (file.owner, file.group, file.ctime);
    if file.projid.is_some() {
        (own.projid, own.flags.0) = (file.projid, own.flags.0 | FileFlags::PROJID.0);
    }
}

/// Returns the attributes that hold an ACL.
pub(crate) fn acl_values(new: &NewAcl) -> [SaValue<'static>; 2] {
    [(Attr::DaclCount, Cow::Owned(words(&[new.aces.len() as u64]))), (Attr::DaclAces, Cow::Owned(new.bytes()))]
}

/// Returns the new mode: a chmod by a caller outside the group drops the set-group-id bit, a chown drops the set-id bits of
/// programs.
fn plan_mode(cred: &Cred, attrs: &Attrs, set: &SetAttr, owners: Option<Owners>) -> Option<u32> {
    let mut mode = attrs.mode;
    if let Some(new) = set.mode {
        mode = attrs.mode & S_IFMT | new & 0o7777;
        let gid = owners.map_or(attrs.gid(), |owners| owners.gid.posix_id());
        if !access::may_set_gid_bit(cred, gid) {
            mode &= !S_ISGID;
        }
    } else if owners.is_some() && attrs.kind() != Kind::Directory {
        mode &= !(S_ISUID | if mode & 0o010 != 0 { S_ISGID } else { 0 });
    }
    (mode != attrs.mode || set.mode.is_some()).then_some(mode)
}

/// Returns the new flags, of those that can be set.
fn plan_flags(cred: &Cred, attrs: &Attrs, set: &SetAttr) -> Result<Option<u64>, Refusal> {
    let Some(new) = set.flags else { return Ok(None) };
    let changed = (new.0 ^ attrs.flags.0) & SETTABLE;
    if changed & ROOTS != 0 && !cred.has(Caps::LINUX_IMMUTABLE) {
        return Err(Refusal::NotPermitted);
    }
    if changed & FileFlags::REPARSE.0 != 0 {
        return Err(Refusal::NotPermitted);
    }
    if changed & new.0 & FileFlags::AV_QUARANTINED.0 != 0 && attrs.kind() != Kind::File {
        return Err(Refusal::Invalid("only files can be quarantined"));
    }
    Ok(Some(new.0 & SETTABLE))
}
