//! Extended attributes: in the hidden directory of a file, or packed in its system attributes, or in both.
//!
//! Names are stored with their name space (`trusted.x`, `security.x`, `system.posix_acl_access`). User attributes are stored with
//! `user.` or, by other systems or with `zfs_xattr_compat`, without it; Linux shows the latter as `user.` too. Names of FreeBSD's
//! system name space are not shown, nor are POSIX ACLs if property `acltype` has another value.

pub(crate) mod hidden_dir;
pub(crate) mod write;

use std::collections::HashSet;

use base::ObjectId;
use dmu::sa::Attr;
use nvlist::{NvList, Value};

use crate::{Error, Kind, Node, PosixAcl};

/// The largest value that is returned in one piece. Linux allows 64 KiB; other systems have no limit: a larger value must be read
/// as the file that holds it.
pub const MAX_XATTR_SIZE: u64 = 16 << 20;

/// An extended attribute: name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Returns the name that Linux shows for the stored name `stored`; `None` if it does not show it.
#[must_use]
pub fn linux_name(stored: &[u8]) -> Option<Vec<u8>> {
    let known = [&b"user."[..], b"trusted.", b"security."].iter().any(|prefix| stored.starts_with(prefix));
    let acl = stored == PosixAcl::ACCESS.as_bytes() || stored == PosixAcl::DEFAULT.as_bytes();
    if known || acl {
        Some(stored.to_vec())
    } else if stored.starts_with(b"freebsd:") {
        None
    } else {
        Some([b"user.", stored].concat())
    }
}

/// Decodes the packed list of the attribute `ZPL_DXATTR` to stored names and values, in order.
///
/// # Errors
/// If it is not a packed list. Values other than byte arrays are skipped, since OpenZFS cannot have written them.
pub fn decode_dxattr(packed: &[u8]) -> Result<Vec<Xattr>, nvlist::Error> {
    let list = NvList::unpack(packed)?;
    let value = |v: &Value| match v {
        Value::ByteArray(bytes) => Some(bytes.to_vec()),
        _ => None,
    };
    Ok(list.iter_bytes().filter_map(|(name, v)| Some((name.to_vec(), value(v)?))).collect())
}

impl Node {
    /// Returns all extended attributes with the names that Linux shows, those in the system attributes first. Of two with the
    /// same name the first wins.
    ///
    /// # Errors
    /// When one is unreadable, or larger than [`MAX_XATTR_SIZE`].
    pub fn xattrs(&self) -> Result<Vec<Xattr>, Error> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for (stored, value) in self.sa_xattrs()? {
            if let Some(name) = self.shown_name(&stored).filter(|name| seen.insert(name.clone())) {
                all.push((name, value));
            }
        }
        for (stored, object) in self.dir_xattrs()? {
            if let Some(name) = self.shown_name(&stored).filter(|name| seen.insert(name.clone())) {
                all.push((name, self.dir_value(object)?));
            }
        }
        Ok(all)
    }

    /// Returns the names of [`Node::xattrs`], as `listxattr` does.
    ///
    /// # Errors
    /// When the list or the hidden directory is unreadable.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>, Error> {
        let mut seen = HashSet::new();
        let stored = self.sa_xattrs()?.into_iter().map(|(name, _)| name);
        let stored = stored.chain(self.dir_xattrs()?.into_iter().map(|(name, _)| name));
        Ok(stored.filter_map(|name| self.shown_name(&name)).filter(|name| seen.insert(name.clone())).collect())
    }

    /// Returns the value of the attribute that Linux shows as `name`.
    ///
    /// # Errors
    /// As [`Node::xattrs`].
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let is_it = |stored: &[u8]| self.shown_name(stored).is_some_and(|shown| shown == name);
        if let Some((_, value)) = self.sa_xattrs()?.into_iter().find(|(stored, _)| is_it(stored)) {
            return Ok(Some(value));
        }
        match self.dir_xattrs()?.into_iter().find(|(stored, _)| is_it(stored)) {
            Some((_, object)) => self.dir_value(object).map(Some),
            None => Ok(None),
        }
    }

    fn shown_name(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let acl = stored == PosixAcl::ACCESS.as_bytes() || stored == PosixAcl::DEFAULT.as_bytes();
        if acl && !self.fs().shows_posix_acls() { None } else { linux_name(stored) }
    }

    /// Returns the extended attributes in the system attributes, by stored name.
    ///
    /// # Errors
    /// When the packed list is malformed.
    pub fn sa_xattrs(&self) -> Result<Vec<Xattr>, Error> {
        let Some(packed) = self.sa_attr(Attr::Dxattr)?.filter(|packed| !packed.is_empty()) else {
            return Ok(Vec::new());
        };
        decode_dxattr(packed).map_err(|source| Error::NvList { object: self.id(), what: "extended attributes", source })
    }

    /// Returns the extended attributes in the hidden directory: stored names and the objects of their values.
    ///
    /// # Errors
    /// When the hidden directory is unreadable.
    pub fn dir_xattrs(&self) -> Result<Vec<(Vec<u8>, ObjectId)>, Error> {
        match self.attrs().xattr_dir {
            // it may be among attributes that cannot be read
            ObjectId::NONE => self.sa_attr(Attr::Xattr).map(|_| Vec::new()),
            dir => self.fs().read_dir(dir)?.map(|entry| entry.map(|e| (e.name, e.object))).collect(),
        }
    }

    fn dir_value(&self, object: ObjectId) -> Result<Vec<u8>, Error> {
        let node = self.fs().node(object)?;
        let size = node.size();
        if size > MAX_XATTR_SIZE {
            return Err(Error::TooLarge { object, size });
        }
        if node.kind() != Kind::File {
            return Err(Error::NotA { object, wanted: "regular file" });
        }
        Ok(node.object().read_vec(0, size as usize)?)
    }

    /// Returns the POSIX ACL of the file, if it has one in addition to its mode.
    ///
    /// # Errors
    /// When it is unreadable or malformed.
    pub fn posix_acl(&self) -> Result<Option<PosixAcl>, Error> {
        self.xattr(PosixAcl::ACCESS.as_bytes())?.map(|value| PosixAcl::decode(&value)).transpose()
    }

    /// Returns the default POSIX ACL for new files in this directory.
    ///
    /// # Errors
    /// When it is unreadable or malformed.
    pub fn posix_default_acl(&self) -> Result<Option<PosixAcl>, Error> {
        self.xattr(PosixAcl::DEFAULT.as_bytes())?.map(|value| PosixAcl::decode(&value)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::linux_name;

    #[test]
    fn names_as_linux_shows_them() {
        for (stored, shown) in [
            ("user.a", Some("user.a")),
            ("a", Some("user.a")),
            ("user.", Some("user.")),
            ("trusted.t", Some("trusted.t")),
            ("system.posix_acl_access", Some("system.posix_acl_access")),
            ("system.other", Some("user.system.other")),
            ("freebsd:system:x", None),
        ] {
            assert_eq!(linux_name(stored.as_bytes()).as_deref(), shown.map(str::as_bytes), "{stored}");
        }
    }
}
