//! Requests about extended attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use base::{Errno, ObjectId};
use fuser::{INodeNo, Request};
use zpl::PosixAcl;
use zpl::live::{Cred, XattrMode};

use crate::served::{Answer, Served};

/// Flags of `setxattr`.
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

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
        let (id, name) = (self.file(file)?, name.as_bytes());
        let value = self.vfs.get_xattr(&self.caller(req), id, name).map_err(|error| error.errno())?;
        fitting(value, size)
    }

    pub(crate) fn setxattr(&self, req: &Request, file: INodeNo, name: &OsStr, value: &[u8], flags: i32) -> Answer<()> {
        let mode = match flags {
            0 => XattrMode::Set,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let (id, name) = (self.file(file)?, name.as_bytes());
        let caller = self.changer(req, name);
        self.vfs.set_xattr(&caller, id, name, value, mode).map_err(|error| error.errno())?;
        self.mode_follows(id, name);
        Ok(())
    }

    pub(crate) fn removexattr(&self, req: &Request, file: INodeNo, name: &OsStr) -> Answer<()> {
        let (id, name) = (self.file(file)?, name.as_bytes());
        let caller = self.changer(req, name);
        self.vfs.remove_xattr(&caller, id, name).map_err(|error| error.errno())?;
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
    fn changer(&self, req: &Request, name: &[u8]) -> Cred {
        if name == PosixAcl::ACCESS.as_bytes() { self.own_groups(req) } else { self.caller(req) }
    }

    pub(crate) fn listxattr(&self, req: &Request, file: INodeNo, size: u32) -> Answer<Value> {
        // the kernel does not choose those that the caller may see
        let caller = self.real_caller(req);
        let names = self.vfs.list_xattrs(&caller, self.file(file)?).map_err(|error| error.errno())?;
        fitting(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect(), size)
    }
}
