//! Permission checks on files in use, with the list that applies.

use std::ops::Deref;

use base::ObjectId;

use crate::acl::access::{self, Guarded, List, Perms};
use crate::live::{Caps, Cred, Refusal, Zfs, Znode};
use crate::{Acl, Attrs, Error, FileFlags, Follow, Kind, Node, PosixAcl};

/// Values of the property `acltype`.
pub(crate) const ACLTYPE_POSIX: u64 = 1;
pub(crate) const ACLTYPE_NFSV4: u64 = 2;

/// The attributes of a file and the list that determines access to it.
pub(crate) struct Rights {
    attrs: Attrs,
    posix: Option<PosixAcl>,
    nfs4: Option<Acl>,
}

impl Rights {
    /// Returns what determines the access of `cred` to a file. The list is read, from `file`, only if it can make a difference.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub(crate) fn of<N: Deref<Target = Node>>(
        acltype: u64,
        cred: &Cred,
        attrs: Attrs,
        file: impl FnOnce() -> Result<N, Error>,
    ) -> Result<Rights, Error> {
        let mut rights = Rights { attrs, posix: None, nfs4: None };
        if needs_list(acltype, &rights.attrs, cred) {
            let file = file()?;
            match acltype {
                ACLTYPE_POSIX => rights.posix = file.posix_acl()?,
                _ => rights.nfs4 = Some(file.acl()?),
            }
        }
        Ok(rights)
    }

    pub(crate) fn guarded(&self) -> Guarded<'_> {
        let list = match (&self.nfs4, &self.posix) {
            (Some(acl), _) => List::Nfs4(acl),
            (None, Some(acl)) => List::Posix(acl),
            (None, None) => List::Mode,
        };
        Guarded { attrs: &self.attrs, list }
    }
}

/// True if `wanted` changes a file that is in a read-only file system: what is written to a device does not.
pub(crate) fn changes_file(kind: Kind, wanted: Perms) -> bool {
    let device = matches!(kind, Kind::CharDevice | Kind::BlockDevice | Kind::Fifo | Kind::Socket);
    wanted.changes() && (!device || wanted.changes_attributes())
}

/// True if an ACL must be read for this caller: a POSIX ACL binds neither the owner nor one who may override it.
fn needs_list(acltype: u64, attrs: &Attrs, cred: &Cred) -> bool {
    match acltype {
        ACLTYPE_POSIX => {
            let binds = cred.uid != attrs.uid() && !cred.has(Caps::DAC_OVERRIDE);
            attrs.kind() != Kind::Symlink && attrs.mode & 0o070 != 0 && binds
        }
        ACLTYPE_NFSV4 => !attrs.flags.has(FileFlags::ACL_TRIVIAL),
        _ => false,
    }
}

impl Zfs {
    fn rights(&self, cred: &Cred, node: &Znode) -> Result<Rights, Error> {
        Rights::of(self.settings().acltype, cred, node.attrs(), || self.fs().node(node.id()).map(Box::new))
    }

    /// Returns whether the intent log is being replayed: what it holds was checked when it was logged, and flags that had been changed before
    /// may not be in it.
    pub(crate) fn is_replaying(&self) -> bool {
        !self.log().has_begun()
    }

    /// Checks that `cred` has all of `wanted` on a file (OpenZFS: `zfs_zaccess`).
    ///
    /// # Errors
    /// EACCES, EPERM; EROFS for changes of a read-only file system.
    pub(crate) fn check(&self, cred: &Cred, node: &Znode, wanted: Perms) -> Result<(), Error> {
        if self.is_replaying() {
            return Ok(());
        }
        if self.settings().readonly && changes_file(node.kind(), wanted) {
            return Err(Refusal::ReadOnly.of(node.id()));
        }
        let rights = self.rights(cred, node)?;
        let Guarded { attrs, list } = rights.guarded();
        access::check(cred, attrs, list, wanted).map_err(|why| why.of(node.id()))
    }

    /// Checks that `cred` may remove `file` from `dir` (OpenZFS: `zfs_zaccess_delete`).
    ///
    /// # Errors
    /// EACCES, EPERM.
    pub(crate) fn check_delete(&self, cred: &Cred, dir: &Znode, file: &Znode) -> Result<(), Error> {
        if self.is_replaying() {
            return Ok(());
        }
        let (of_dir, of_file) = (self.rights(cred, dir)?, self.rights(cred, file)?);
        access::check_delete(cred, of_dir.guarded(), of_file.guarded()).map_err(|why| why.of(file.id()))
    }

    /// Checks whether the caller may read (4), write (2), execute (1) a file.
    ///
    /// # Errors
    /// ENOENT, EACCES, EPERM for an immutable file, EROFS.
    pub fn access(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<(), Error> {
        let node = self.znode(id)?;
        self.check(cred, &node, Perms::from_rwx(mask))
    }

    /// Returns the file at `path` below the directory `dir` (below the root, if it begins with `/`), for a caller who must be
    /// allowed to search each directory on the path.
    ///
    /// # Errors
    /// As [`FileSystem::resolve_from`](crate::FileSystem::resolve_from); EACCES.
    pub fn resolve_as(&self, cred: &Cred, dir: ObjectId, path: &[u8], follow: Follow) -> Result<Node, Error> {
        // such a caller may search everything that is not in quarantine, and directories cannot be
        if cred.has(Caps::DAC_OVERRIDE) {
            return self.fs().resolve_from(dir, path, follow);
        }
        self.fs().resolve_if(dir, path, follow, &|dir| self.check(cred, &*self.znode(dir)?, Perms::EXECUTE))
    }
}
