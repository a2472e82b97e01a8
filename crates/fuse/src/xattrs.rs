//! Requests about extended attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use base::{Errno, ObjectId};
use fuser::{INodeNo, Request};
use zpl::PosixAcl;
use zpl::live::{AclKind, Cred, XattrMode};

use crate::caller::Callers;
use crate::served::{Answer, Served};

/// Flags of `setxattr`.
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// The name space of attributes that mean something to a file system.
const SYSTEM: &[u8] = b"system.";
/// The name spaces for whose attributes the kernel asks for capabilities, whoever decides about others.
const DECIDED: [&[u8]; 2] = [b"security.", b"trusted."];
/// The attribute that is an NFSv4 ACL.
const NFS4_ACL: &[u8] = b"system.nfs4_acl_xdr";

/// A value or a list of names, of which the caller may only want the length.
pub(crate) enum Value {
    Length(u32),
    Bytes(Vec<u8>),
}

/// Returns what a caller with a buffer of `size` bytes gets.
fn fitting(bytes: Vec<u8>, size: u32) -> Answer<Value> {
    match u32::try_from(bytes.len()) {
        Ok(len) if size == 0 => Ok(Value::Length(len)),
        Ok(len) if len <= size => Ok(Value::Bytes(bytes)),
        _ => Err(Errno::ERANGE),
    }
}

impl Served {
    pub(crate) fn getxattr(&self, req: &Request, file: INodeNo, name: &OsStr, size: u32) -> Answer<Value> {
        let ((pinned, id), name) = (self.pin_file(file)?, name.as_bytes());
        let caller = self.user_of(req, name)?;
        let value = pinned.get_xattr(&caller, id, name).map_err(|error| error.errno())?;
        fitting(value, size)
    }

    pub(crate) fn setxattr(&self, req: &Request, file: INodeNo, name: &OsStr, value: &[u8], flags: i32) -> Answer<()> {
        let mode = match flags {
            0 => XattrMode::Set,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let ((pinned, id), name) = (self.pin_file(file)?, name.as_bytes());
        let caller = self.changer(req, name)?;
        pinned.set_xattr(&caller, id, name, value, mode).map_err(|error| error.errno())?;
        drop(pinned);
        self.mode_follows(id, name);
        Ok(())
    }

    pub(crate) fn removexattr(&self, req: &Request, file: INodeNo, name: &OsStr) -> Answer<()> {
        let ((pinned, id), name) = (self.pin_file(file)?, name.as_bytes());
        let caller = self.changer(req, name)?;
        pinned.remove_xattr(&caller, id, name).map_err(|error| error.errno())?;
        drop(pinned);
        self.mode_follows(id, name);
        Ok(())
    }

    /// Tells the kernel of the mode that follows from an NFSv4 ACL, which it does not know to be one.
    fn mode_follows(&self, id: ObjectId, name: &[u8]) {
        if name == NFS4_ACL {
            self.stale(id).tell();
        }
    }

    /// Returns the caller who changes an attribute: with his groups for an ACL, which may cost the file its set-group-id bit.
    fn changer(&self, req: &Request, name: &[u8]) -> Answer<Cred> {
        let is_list = self.acls == AclKind::Posix && name == PosixAcl::ACCESS.as_bytes();
        if is_list { Ok(self.own_groups(req)) } else { self.user_of(req, name) }
    }

    /// Returns the caller who uses an attribute. Of those of the system the kernel checks POSIX ACLs alone, and only where there are any; NFSv4 ACLs
    /// are not for it to decide, whatever the engine would say.
    fn user_of(&self, req: &Request, name: &[u8]) -> Answer<Cred> {
        let is_posix = [PosixAcl::ACCESS, PosixAcl::DEFAULT].iter().any(|list| name == list.as_bytes());
        if name == NFS4_ACL && self.kernel_decides() {
            return Err(Errno::ENOTSUP);
        }
        if DECIDED.iter().any(|space| name.starts_with(space)) {
            return Ok(Callers::decided(req));
        }
        let checked = !name.starts_with(SYSTEM) || (is_posix && self.acls == AclKind::Posix);
        Ok(if checked { self.caller(req) } else { self.real_caller(req) })
    }

    pub(crate) fn listxattr(&self, req: &Request, file: INodeNo, size: u32) -> Answer<Value> {
        // the kernel does not choose those that the caller may see
        let caller = self.real_caller(req);
        let (pinned, id) = self.pin_file(file)?;
        let names = pinned.list_xattrs(&caller, id).map_err(|error| error.errno())?;
        fitting(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect(), size)
    }
}
