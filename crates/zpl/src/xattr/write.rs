//! Changes of extended attributes (OpenZFS: `zpl_xattr.c`, `zfs_sa_set_xattr`).
//!
//! With `xattr=sa` an attribute is stored in the packed list among the system attributes; with `xattr=dir`, or if it is too large
//! for that, in a file of a hidden directory ([`xattr_dir`](crate::xattr::hidden_dir)). It is never in both: setting it in one location
//! removes it from the other. (It stays in the directory if the intent log could record that it leaves, but not that it arrives.) While
//! attributes of a file change its `content` is locked.
//!
//! User attributes are stored with the prefix `user.`; a name without it, written by another system, counts as the same and is
//! removed when it is set again.

use std::borrow::Cow;
use std::sync::Arc;

use base::{Endian, ObjectId};
use dmu::Tx;
use dmu::sa::Attr;
use nvlist::{Encoding, NvList, Value};

use crate::acl::access::{self, Perms};
use crate::acl::permit::{ACLTYPE_NFSV4, ACLTYPE_POSIX};
use crate::acl::{modes, xdr};
use crate::live::steps::Steps;
use crate::live::znode::state_changed;
use crate::live::{Caps, Cred, NewFile, Refusal, SMALL_CHANGE, XattrMode, Zfs, Znode};
use crate::node::attr_of;
use crate::{Attrs, Error, FileFlags, Kind, PosixAcl, Xattr, decode_dxattr, linux_name};

/// The largest value (Linux: `XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 64 << 10;
/// The longest name (Linux: `XATTR_NAME_MAX`).
const NAME_MAX: usize = 255;
/// The largest value in the packed list (OpenZFS: `DXATTR_MAX_ENTRY_SIZE`).
const SA_VALUE_MAX: usize = 32 << 10;
/// The largest packed list (OpenZFS: `SA_ATTR_MAX_LEN`).
const SA_LIST_MAX: usize = u16::MAX as usize;
/// Value of the property `xattr`: attributes are off.
const XATTR_OFF: u64 = 0;
/// Value of the property `xattr`: in system attributes.
const XATTR_SA: u64 = 2;

/// The attribute that gives a program capabilities beyond its caller's.
const CAPABILITY: &[u8] = b"security.capability";

/// A name space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    User,
    Trusted,
    Security,
    PosixAccess,
    PosixDefault,
    Nfs4Acl,
}

impl Space {
    pub(crate) fn of(name: &[u8]) -> Option<Space> {
        let spaces = [(&b"user."[..], Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)];
        let begins =
            |(prefix, space): (&[u8], Space)| (name.starts_with(prefix) && name.len() > prefix.len()).then_some(space);
        match name {
            _ if name == PosixAcl::ACCESS.as_bytes() => Some(Space::PosixAccess),
            _ if name == PosixAcl::DEFAULT.as_bytes() => Some(Space::PosixDefault),
            xdr::NAME => Some(Space::Nfs4Acl),
            _ => spaces.into_iter().find_map(begins),
        }
    }

    /// True if the attributes of this name space of a file of this kind exist for a caller.
    pub(crate) fn is_shown(self, cred: &Cred, kind: Kind) -> bool {
        match self {
            Space::Trusted => cred.has(Caps::SYS_ADMIN),
            Space::User => matches!(kind, Kind::File | Kind::Directory),
            _ => true,
        }
    }
}

/// Returns the name space of a name, if it is supported under these properties.
pub(crate) fn space_of(acltype: u64, xattr: u64, name: &[u8]) -> Result<Space, Refusal> {
    if name.len() > NAME_MAX {
        return Err(Refusal::TooSmall);
    }
    match Space::of(name) {
        None => Err(Refusal::Unsupported("unknown name space of extended attributes")),
        Some(Space::User) if xattr == XATTR_OFF => Err(Refusal::Unsupported("extended attributes are off")),
        Some(Space::PosixAccess | Space::PosixDefault) if acltype != ACLTYPE_POSIX => {
            Err(Refusal::Unsupported("POSIX ACLs are off"))
        }
        Some(Space::Nfs4Acl) if acltype != ACLTYPE_NFSV4 => Err(Refusal::Unsupported("NFSv4 ACLs are off")),
        Some(space) => Ok(space),
    }
}

/// True if the caller sees a name among those of a file.
pub(crate) fn is_listed(cred: &Cred, acltype: u64, xattr: u64, name: &[u8]) -> bool {
    match Space::of(name) {
        Some(Space::Trusted) => cred.has(Caps::SYS_ADMIN),
        Some(Space::PosixAccess | Space::PosixDefault) => acltype == ACLTYPE_POSIX,
        Some(Space::Nfs4Acl) => false,
        Some(Space::Security) => true,
        Some(Space::User) | None => xattr != XATTR_OFF,
    }
}

/// Returns the name of the NFSv4 ACL of a file, if it is not equivalent to the mode.
pub(crate) fn nfs4_name(acltype: u64, attrs: &Attrs) -> Option<Vec<u8>> {
    let shown = acltype == ACLTYPE_NFSV4 && !attrs.flags.has(FileFlags::ACL_TRIVIAL);
    shown.then(|| xdr::NAME.to_vec())
}

impl Zfs {
    /// Returns an extended attribute, by the name that Linux shows.
    ///
    /// # Errors
    /// ENODATA, EACCES, ENOTSUP for a name space that is off or unknown.
    pub fn get_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, Error> {
        let node = self.znode(id)?;
        let missing = || Refusal::NoAttribute.of(id);
        let space = self.space_of(&node, name)?;
        let attrs = node.attrs();
        match space {
            Space::Nfs4Acl => {
                self.check(cred, &node, Perms::READ_ACL)?;
                return Ok(xdr::encode(&self.fs().node(id)?.acl()?, &attrs));
            }
            space if !space.is_shown(cred, attrs.kind()) => return Err(missing()),
            Space::User => self.check(cred, &node, Perms::READ_DATA)?,
            _ => {}
        }
        let _content = node.content.read();
        self.fs().node(id)?.xattr(name)?.ok_or_else(missing)
    }

    /// Returns the names of the extended attributes that the caller may see.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn list_xattrs(&self, cred: &Cred, id: ObjectId) -> Result<Vec<Vec<u8>>, Error> {
        let node = self.znode(id)?;
        let settings = self.settings();
        let _content = node.content.read();
        let file = self.fs().node(id)?;
        let mut names = file.xattr_names()?;
        names.retain(|name| is_listed(cred, settings.acltype, settings.xattr, name));
        names.extend(nfs4_name(settings.acltype, file.attrs()));
        Ok(names)
    }

    /// Sets an extended attribute. POSIX ACLs are `system.posix_acl_access` and `system.posix_acl_default`: an access ACL changes
    /// the mode, and one that is equivalent to the mode is not stored. An NFSv4 ACL is `system.nfs4_acl_xdr`; every file has one.
    ///
    /// # Errors
    /// EEXIST, ENODATA by `mode`; EACCES, EPERM; ENOTSUP; E2BIG and ERANGE if it is too long; EINVAL for an invalid ACL.
    pub fn set_xattr(
        &self,
        cred: &Cred,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Error> {
        if value.len() > VALUE_MAX {
            return Err(Error::TooLarge { object: id, size: value.len() as u64 });
        }
        let node = self.znode(id)?;
        let space = self.may_change_xattr(cred, &node, name)?;
        match space {
            Space::PosixAccess => {
                let acl = self.decode_list(&node, value)?;
                self.set_posix_access(cred, &node, acl.as_ref())
            }
            Space::PosixDefault => {
                let acl = self.decode_list(&node, value)?;
                self.set_posix_default(cred, &node, acl.as_ref())
            }
            Space::Nfs4Acl if mode == XattrMode::Create => Err(Refusal::Exists.of(id)),
            Space::Nfs4Acl => {
                let aces = xdr::decode(value).ok_or_else(|| Refusal::Invalid("not a valid NFSv4 ACL").of(id))?;
                self.set_acl(cred, id, aces).map(|_| ())
            }
            _ => self.change_some(SMALL_CHANGE + 2 * value.len() as u64, &[id], |tx| {
                let _content = node.content.write();
                self.claim_hidden(tx, &node)?;
                self.whole(tx, |steps| self.put_xattr(steps, cred, &node, name, value, mode))
            }),
        }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA, EACCES, EPERM, ENOTSUP.
    pub fn remove_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<(), Error> {
        let node = self.znode(id)?;
        match self.may_change_xattr(cred, &node, name)? {
            Space::PosixAccess => self.set_posix_access(cred, &node, None),
            Space::PosixDefault => self.set_posix_default(cred, &node, None),
            Space::Nfs4Acl => {
                let (kind, mode) = node.with_attrs(|attrs| (attrs.kind(), attrs.mode));
                self.set_acl(cred, id, modes::aces_of_mode(kind, mode)).map(|_| ())
            }
            _ => self.change_some(SMALL_CHANGE, &[id], |tx| {
                let _content = node.content.write();
                self.claim_hidden(tx, &node)?;
                let gone = self.whole(tx, |steps| self.drop_xattr(steps, &node, name))?;
                if gone { Ok(()) } else { Err(Refusal::NoAttribute.of(id)) }
            }),
        }
    }

    /// Returns the name space of a name, if it is supported.
    fn space_of(&self, node: &Znode, name: &[u8]) -> Result<Space, Error> {
        let settings = self.settings();
        space_of(settings.acltype, settings.xattr, name).map_err(|why| why.of(node.id()))
    }

    /// Checks that the caller may change an attribute (Linux: `xattr_permission`, `cap_inode_setxattr`).
    fn may_change_xattr(&self, cred: &Cred, node: &Znode, name: &[u8]) -> Result<Space, Error> {
        let space = self.space_of(node, name)?;
        let attrs = node.attrs();
        let fixed = attrs.flags.has(FileFlags::IMMUTABLE) || attrs.flags.has(FileFlags::APPENDONLY);
        let forbidden = match space {
            Space::Trusted | Space::Security => !cred.has(Caps::SYS_ADMIN),
            // checked when it is set
            Space::Nfs4Acl => return Ok(space),
            Space::PosixAccess | Space::PosixDefault => !access::owns(cred, &attrs),
            Space::User => {
                let sticky_dir = attrs.kind() == Kind::Directory && attrs.mode & 0o1000 != 0;
                !matches!(attrs.kind(), Kind::File | Kind::Directory) || (sticky_dir && !access::owns(cred, &attrs))
            }
        };
        if fixed || forbidden {
            return Err(Refusal::NotPermitted.of(node.id()));
        }
        if space == Space::User {
            self.check(cred, node, Perms::WRITE_DATA)?;
        }
        Ok(space)
    }

    /// Returns the decoded packed list of a file: stored names and values in order.
    pub(crate) fn packed_xattrs(&self, node: &Znode) -> Result<Vec<Xattr>, Error> {
        let sa = node.sa(self)?;
        match attr_of(node.id(), &sa, Attr::Dxattr)?.filter(|packed| !packed.is_empty()) {
            None => Ok(Vec::new()),
            Some(packed) => decode_dxattr(packed).map_err(|source| Error::NvList {
                object: node.id(),
                what: "extended attributes",
                source,
            }),
        }
    }

    /// Claims all files if a file has a hidden directory of extended attributes, whose files change with it.
    pub(crate) fn claim_hidden(&self, tx: &Tx, node: &Znode) -> Result<(), Error> {
        node.complete(self)?;
        match node.with_attrs(|attrs| attrs.xattr_dir) {
            ObjectId::NONE => Ok(()),
            _ => Ok(self.fs().objset().claim_all(tx)?),
        }
    }

    /// Stores an attribute in the right location. `content` is held.
    fn put_xattr(
        &self,
        steps: &Steps<'_>,
        cred: &Cred,
        node: &Arc<Znode>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Error> {
        let mut packed = self.packed_xattrs(node)?;
        let in_dir = self.hidden_names(node, name)?;
        let is_it = |stored: &[u8]| linux_name(stored).is_some_and(|shown| shown == name);
        let in_list = packed.iter().any(|(stored, _)| is_it(stored));
        match mode {
            XattrMode::Create if in_list || !in_dir.is_empty() => return Err(Refusal::Exists.of(node.id())),
            XattrMode::Replace if !in_list && in_dir.is_empty() => return Err(Refusal::NoAttribute.of(node.id())),
            _ => {}
        }
        if in_dir.is_empty() {
            // it may become a file
            self.check_normal_form(node, name)?;
        }
        let gone: Vec<Vec<u8>> = packed.extract_if(.., |(stored, _)| is_it(stored)).map(|(stored, _)| stored).collect();
        let rest = packed.len();
        packed.push((name.to_vec(), value.to_vec()));
        let bytes = pack(node, &packed)?;
        let fits = value.len() <= SA_VALUE_MAX && bytes.len() <= SA_LIST_MAX;
        // the log may end after any record: the new place is logged before the old one goes, or else it stays where it is
        let may_move = in_dir.is_empty() || self.is_unlogged(node) || self.can_log_sa_xattr(name, Some(value));
        if self.settings().xattr == XATTR_SA && fits && may_move {
            self.set_packed(steps, node, bytes)?;
            let (set, name, value, moves) = (node.clone(), name.to_vec(), value.to_vec(), !in_dir.is_empty());
            steps.log(node, move |zfs, tx| {
                zfs.log_sa_xattr(tx, &set, &name, Some(&value), moves);
                zfs.log_gone(tx, &set, gone.iter().filter(|stored| **stored != name), false);
            });
            return in_dir.iter().try_for_each(|stored| self.remove_hidden(steps, node, stored));
        }
        self.write_hidden(steps, cred, node, name, value)?;
        for stored in in_dir.iter().filter(|stored| *stored != name) {
            self.remove_hidden(steps, node, stored)?;
        }
        if in_list {
            packed.truncate(rest);
            let bytes = pack(node, &packed)?;
            self.set_packed(steps, node, bytes)?;
            let changed = node.clone();
            steps.log(node, move |zfs, tx| zfs.log_gone(tx, &changed, gone.iter(), true));
            return Ok(());
        }
        self.changed(steps, node)
    }

    /// Removes a program's capabilities before it is written, truncated or given another owner, whoever the caller is (Linux:
    /// `file_remove_privs`, `ATTR_KILL_PRIV`, `cap_inode_killpriv`).
    pub(crate) fn end_capability(&self, node: &Arc<Znode>) -> Result<(), Error> {
        if node.is_plain() {
            return Ok(());
        }
        {
            let _content = node.content.read();
            match self.has_capability(node) {
                Ok(true) => {}
                Ok(false) => {
                    node.set_plain(true);
                    return Ok(());
                }
                // Linux goes on as well
                Err(Error::Spill { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.change_some(SMALL_CHANGE, &[node.id()], |tx| {
            let _content = node.content.write();
            self.claim_hidden(tx, node)?;
            self.whole(tx, |steps| self.drop_xattr(steps, node, CAPABILITY).map(|_| ()))
        })
    }

    fn has_capability(&self, node: &Znode) -> Result<bool, Error> {
        let packed = self.packed_xattrs(node)?.iter().any(|(stored, _)| stored == CAPABILITY);
        Ok(packed || !self.hidden_names(node, CAPABILITY)?.is_empty())
    }

    /// Logs the removal of attributes from the packed list, which perhaps `moves` them to the hidden directory.
    fn log_gone<'a>(&self, tx: &Tx, node: &Znode, names: impl Iterator<Item = &'a Vec<u8>>, moves: bool) {
        names.for_each(|stored| self.log_sa_xattr(tx, node, stored, None, moves));
    }

    /// Removes an attribute from all locations; returns true if it existed. `content` is held.
    fn drop_xattr(&self, steps: &Steps<'_>, node: &Arc<Znode>, name: &[u8]) -> Result<bool, Error> {
        let mut packed = self.packed_xattrs(node)?;
        let in_dir = self.hidden_names(node, name)?;
        let is_it = |stored: &[u8]| linux_name(stored).is_some_and(|shown| shown == name);
        let gone: Vec<Vec<u8>> = packed.extract_if(.., |(stored, _)| is_it(stored)).map(|(stored, _)| stored).collect();
        let any = !gone.is_empty() || !in_dir.is_empty();
        for stored in &in_dir {
            self.remove_hidden(steps, node, stored)?;
        }
        if !gone.is_empty() {
            let bytes = pack(node, &packed)?;
            self.set_packed(steps, node, bytes)?;
            let changed = node.clone();
            steps.log(node, move |zfs, tx| zfs.log_gone(tx, &changed, gone.iter(), false));
        } else if !in_dir.is_empty() {
            self.changed(steps, node)?;
        }
        Ok(any)
    }

    fn set_packed(&self, steps: &Steps<'_>, node: &Arc<Znode>, bytes: Vec<u8>) -> Result<(), Error> {
        node.set_plain(false);
        let now = self.now();
        steps.edit_with(node, &[(Attr::Dxattr, Cow::Owned(bytes))], |attrs| {
            state_changed(attrs, now);
            Ok(())
        })
    }

    fn changed(&self, steps: &Steps<'_>, node: &Arc<Znode>) -> Result<(), Error> {
        let now = self.now();
        steps.edit(node, |attrs| {
            attrs.ctime = now;
            attrs.seq = attrs.seq.map(|seq| seq.wrapping_add(1));
            Ok(())
        })
    }

    /// Decodes an ACL that is being set; `None` if it is empty.
    fn decode_list(&self, node: &Znode, value: &[u8]) -> Result<Option<PosixAcl>, Error> {
        let invalid = |_| Refusal::Invalid("not a valid POSIX ACL").of(node.id());
        let acl = PosixAcl::decode(value).map_err(invalid)?;
        if acl.0.is_empty() {
            return Ok(None);
        }
        acl.validate().map_err(invalid)?;
        Ok(Some(acl))
    }

    fn set_posix_access(&self, cred: &Cred, node: &Arc<Znode>, acl: Option<&PosixAcl>) -> Result<(), Error> {
        if node.kind() == Kind::Symlink {
            return Err(Refusal::Unsupported("a symbolic link cannot have an ACL").of(node.id()));
        }
        self.change_some(2 * SMALL_CHANGE, &[node.id()], |tx| {
            // this changes the mode: the caller's permission is checked again
            let _rights = node.rights.lock();
            self.may_change_xattr(cred, node, PosixAcl::ACCESS.as_bytes())?;
            let _content = node.content.write();
            self.claim_hidden(tx, node)?;
            self.whole(tx, |steps| self.put_posix_access(steps, cred, node, acl))
        })
    }

    /// Sets the ACL of a file and the mode that follows from it. `content` is held.
    fn put_posix_access(
        &self,
        steps: &Steps<'_>,
        cred: &Cred,
        node: &Arc<Znode>,
        acl: Option<&PosixAcl>,
    ) -> Result<(), Error> {
        let name = PosixAcl::ACCESS.as_bytes();
        if let Some(acl) = acl {
            let (now, before) = (self.now(), node.attrs());
            steps.edit(node, |attrs| {
                let mode = mode_with(attrs, acl, cred);
                if mode != attrs.mode {
                    (attrs.mode, attrs.ctime) = (mode, now);
                }
                Ok(())
            })?;
            let changed = node.clone();
            steps.log(node, move |zfs, tx| zfs.log_mode(tx, &changed, &before));
        }
        match acl.filter(|acl| !acl.mode().1) {
            Some(acl) => self.put_xattr(steps, cred, node, name, &acl.encode(), XattrMode::Set),
            None => self.drop_xattr(steps, node, name).map(|_| ()),
        }
    }

    fn set_posix_default(&self, cred: &Cred, node: &Arc<Znode>, acl: Option<&PosixAcl>) -> Result<(), Error> {
        if node.kind() != Kind::Directory {
            return if acl.is_some() { Err(Refusal::Denied.of(node.id())) } else { Ok(()) };
        }
        self.change_some(2 * SMALL_CHANGE, &[node.id()], |tx| {
            let _rights = node.rights.lock();
            self.may_change_xattr(cred, node, PosixAcl::DEFAULT.as_bytes())?;
            let _content = node.content.write();
            self.claim_hidden(tx, node)?;
            let name = PosixAcl::DEFAULT.as_bytes();
            self.whole(tx, |steps| match acl {
                Some(acl) => self.put_xattr(steps, cred, node, name, &acl.encode(), XattrMode::Set),
                None => self.drop_xattr(steps, node, name).map(|_| ()),
            })
        })
    }

    /// Updates the POSIX ACL, which was `acl`, after a change of the mode (OpenZFS: `zpl_chmod_acl`). `content` is held.
    pub(crate) fn chmod_posix(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Znode>,
        mut acl: PosixAcl,
        mode: u32,
    ) -> Result<(), Error> {
        acl.chmod(mode);
        self.put_posix_access(steps, &Cred::ROOT, node, Some(&acl))
    }

    /// The default ACL of a directory, if it has a say in the mode of a new file of this kind.
    fn default_acl(&self, dir: &Znode, kind: Kind) -> Result<Option<PosixAcl>, Error> {
        if self.settings().acltype != ACLTYPE_POSIX || kind == Kind::Symlink {
            return Ok(None);
        }
        self.fs().node(dir.id())?.posix_default_acl()
    }

    /// A new file without the permissions that the umask takes away; a default ACL of its directory takes the umask's place.
    pub(crate) fn masked<'a>(&self, dir: &Znode, new: &NewFile<'a>) -> Result<NewFile<'a>, Error> {
        let spared = new.umask == 0 || new.kind == Kind::Symlink || self.default_acl(dir, new.kind)?.is_some();
        Ok(NewFile { mode: if spared { new.mode } else { new.mode & !(new.umask & 0o777) }, ..*new })
    }

    /// Gives a new file the ACL and mode of its directory's default ACL (OpenZFS: `zpl_init_acl`). No other thread knows the file
    /// yet.
    ///
    /// # Errors
    /// When the lists cannot be read or written.
    pub(crate) fn init_posix_acl(
        &self,
        steps: &Steps<'_>,
        cred: &Cred,
        dir: &Znode,
        node: &Arc<Znode>,
    ) -> Result<(), Error> {
        let Some(default) = self.default_acl(dir, node.kind())? else { return Ok(()) };
        if node.kind() == Kind::Directory {
            let name = PosixAcl::DEFAULT.as_bytes();
            self.put_xattr(steps, cred, node, name, &default.encode(), XattrMode::Set)?;
        }
        let (mode, acl) = default.for_new_file(node.with_attrs(|attrs| attrs.mode));
        steps.edit(node, |attrs| {
            attrs.mode = mode;
            Ok(())
        })?;
        match acl {
            Some(acl) => {
                let name = PosixAcl::ACCESS.as_bytes();
                self.put_xattr(steps, cred, node, name, &acl.encode(), XattrMode::Set)
            }
            None => Ok(()),
        }
    }
}

/// Returns the mode of a file that gets an ACL (Linux: `posix_acl_update_mode`).
fn mode_with(attrs: &Attrs, acl: &PosixAcl, cred: &Cred) -> u32 {
    let mode = attrs.mode & !0o777 | acl.mode().0;
    if access::may_set_gid_bit(cred, attrs.gid()) { mode } else { mode & !0o2000 }
}

/// Packs the list as OpenZFS does: XDR, each name once.
fn pack(node: &Znode, list: &[Xattr]) -> Result<Vec<u8>, Error> {
    let mut packed = NvList::new();
    for (name, value) in list {
        packed.insert(name, Value::ByteArray(value.clone()));
    }
    let what = "extended attributes";
    packed.pack(Encoding::Xdr, Endian::Little).map_err(|source| Error::NvList { object: node.id(), what, source })
}
