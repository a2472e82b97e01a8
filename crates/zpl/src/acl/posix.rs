//! POSIX access control lists: the value of `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! Linux stores them as extended attributes, in little-endian order on every machine: u32 version 2, then entries of {u16 tag,
//! u16 permissions, u32 id}. OpenZFS stores the bytes unchanged.

use std::fmt;

use base::{Endian, ObjectId, bytes};

use crate::Error;

/// The version with which the value begins.
const VERSION: u32 = 2;

/// The subject of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PosixTag {
    /// The owner.
    UserObj,
    /// A user.
    User(u32),
    /// The group.
    GroupObj,
    /// A group.
    Group(u32),
    /// The upper bound for named users, named groups and the owning group.
    Mask,
    /// All others.
    Other,
}

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PosixAce {
    /// The subject.
    pub tag: PosixTag,
    /// 4 read, 2 write, 1 execute.
    pub perm: u16,
}

/// A POSIX ACL; its `Display` is the output of `getfacl -n`, one entry per line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PosixAcl(pub Vec<PosixAce>);

impl PosixAcl {
    /// The attribute that holds the list of the file itself.
    pub const ACCESS: &'static str = "system.posix_acl_access";
    /// The attribute that holds the default list for new files in a directory.
    pub const DEFAULT: &'static str = "system.posix_acl_default";

    /// Decodes the value of the attribute.
    ///
    /// # Errors
    /// [`Error::BadAcl`].
    pub fn decode(value: &[u8]) -> Result<PosixAcl, Error> {
        let bad = |why| Error::BadAcl { object: ObjectId::NONE, why };
        if bytes::u32(value, 0, Endian::Little) != Some(VERSION) {
            return Err(bad("not a POSIX ACL of version 2"));
        }
        let (entries, rest) = value.get(4..).unwrap_or(&[]).as_chunks::<8>();
        if !rest.is_empty() {
            return Err(bad("not a whole number of entries"));
        }
        let decode = |raw: &[u8; 8]| {
            let id = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
            let tag = match u16::from_le_bytes([raw[0], raw[1]]) {
                0x01 => PosixTag::UserObj,
                0x02 => PosixTag::User(id),
                0x04 => PosixTag::GroupObj,
                0x08 => PosixTag::Group(id),
                0x10 => PosixTag::Mask,
                0x20 => PosixTag::Other,
                _ => return Err(bad("unknown kind of entry")),
            };
            Ok(PosixAce { tag, perm: u16::from_le_bytes([raw[2], raw[3]]) })
        };
        Ok(PosixAcl(entries.iter().map(decode).collect::<Result<_, _>>()?))
    }
}

impl PosixAcl {
    /// Returns permission bits that grant nobody more than this list does, for a file that cannot have the list: a permission
    /// denied to a named user or group is denied to group and others.
    #[must_use]
    pub fn mode_without_names(&self) -> u32 {
        let perm = |wanted: PosixTag| self.0.iter().find(|ace| ace.tag == wanted).map(|ace| ace.perm & 7);
        let mask = perm(PosixTag::Mask).unwrap_or(7);
        let named = self.0.iter().filter(|ace| matches!(ace.tag, PosixTag::User(_) | PosixTag::Group(_)));
        let all = named.fold(7, |all, ace| all & ace.perm & mask);
        let of = |tag| perm(tag).unwrap_or(0);
        let (group, other) = (of(PosixTag::GroupObj) & mask & all, of(PosixTag::Other) & all);
        u32::from(of(PosixTag::UserObj)) << 6 | u32::from(group) << 3 | u32::from(other)
    }
}

impl fmt::Display for PosixAcl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ace in &self.0 {
            match ace.tag {
                PosixTag::UserObj => write!(f, "user::")?,
                PosixTag::User(id) => write!(f, "user:{id}:")?,
                PosixTag::GroupObj => write!(f, "group::")?,
                PosixTag::Group(id) => write!(f, "group:{id}:")?,
                PosixTag::Mask => write!(f, "mask::")?,
                PosixTag::Other => write!(f, "other::")?,
            }
            for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
                write!(f, "{}", if ace.perm & bit != 0 { letter } else { '-' })?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn without_its_names_a_list_gives_nobody_more() {
        let mode = |aces: &[(PosixTag, u16)]| {
            PosixAcl(aces.iter().map(|(tag, perm)| PosixAce { tag: *tag, perm: *perm }).collect()).mode_without_names()
        };
        use PosixTag::*;
        // the group bits of the mode are the mask, not the rights of the group
        assert_eq!(mode(&[(UserObj, 6), (User(1), 6), (GroupObj, 0), (Mask, 6), (Other, 0)]), 0o600);
        // a named user who is denied access is not granted it among the others
        assert_eq!(mode(&[(UserObj, 7), (User(1), 0), (GroupObj, 5), (Mask, 7), (Other, 5)]), 0o700);
        assert_eq!(mode(&[(UserObj, 7), (Group(1), 4), (GroupObj, 6), (Mask, 6), (Other, 6)]), 0o744);
        assert_eq!(mode(&[(UserObj, 6), (GroupObj, 6), (Other, 4)]), 0o664);
    }

    #[test]
    fn a_list_from_linux() {
        // setfacl -m u:1000:rw,g:2094:r (fixture posix-a, dir/acl0)
        let value = [
            2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 232, 3, 0, 0, 2, 0, 0, 0, 184, 11, 0, 0, 4, 0, 4,
            0, 255, 255, 255, 255, 8, 0, 4, 0, 46, 8, 0, 0, 16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255,
            255, 255,
        ];
        let acl = PosixAcl::decode(&value).unwrap();
        let text = "user::rw-\nuser:1000:rw-\nuser:3000:---\ngroup::r--\ngroup:2094:r--\nmask::rw-\nother::r--\n";
        assert_eq!(acl.to_string(), text);
        assert!(PosixAcl::decode(&value[..value.len() - 1]).is_err());
        assert!(PosixAcl::decode(&[]).is_err());
    }
}
