//! The attributes of ZPL versions before 5, and access control lists (OpenZFS: `znode_phys_t`, `zfs_acl_phys_t`).
//!
//! The bonus buffer of type ZNODE is a fixed structure of 264 bytes: words, then an embedded ACL. The rest of the bonus buffer holds the
//! target of a short symbolic link, or a virus scanner's stamp. The words are those that later became system attributes 0 to 14, in the
//! same order; the ACL is attribute 15.

use base::{Endian, ObjectId, bytes};

use crate::Error;

/// Size of the structure.
pub const ZNODE_PHYS_SIZE: usize = 264;
/// Offset of the embedded ACL.
pub const ZNODE_ACL_OFFSET: usize = 176;
/// Size of the embedded ACL.
pub const ZNODE_ACL_SIZE: usize = 88;
/// Offset of the mode.
pub const ZNODE_MODE_OFFSET: usize = 72;
/// Offset of the size.
pub const ZNODE_SIZE_OFFSET: usize = 80;
/// Offset of the flags.
pub const ZNODE_FLAGS_OFFSET: usize = 120;
/// A virus scanner's stamp: 32 bytes after the structure, if [`ZNODE_BONUS_SCANSTAMP`] is set in the flags.
pub const SCANSTAMP_SIZE: usize = 32;
/// See [`SCANSTAMP_SIZE`].
pub const ZNODE_BONUS_SCANSTAMP: u64 = 0x80;
/// Version of an ACL of FUIDs; 0 is the older one of plain ids.
pub const ACL_VERSION_FUID: u16 = 1;

const ACE_DATA: usize = 16;
const ACE_HEADER: usize = 8;
const ACE_SIZE: usize = 16;
const OBJECT_ACE_SIZE: usize = ACE_SIZE + 32;
const OLD_ACE_SIZE: usize = 12;
const ACE_OWNER: u16 = 0x1000;
const ACE_GROUP: u16 = 0x2000;
const ACE_EVERYONE: u16 = 0x4000;
const ACE_IDENTIFIER_GROUP: u16 = 0x0040;
const ACE_TYPE_FLAGS: u16 = ACE_OWNER | ACE_GROUP | ACE_EVERYONE | ACE_IDENTIFIER_GROUP;

/// The header of an embedded ACL (OpenZFS: `zfs_acl_phys_t`, `zfs_acl_phys_v0_t`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZnodeAcl {
    /// The object that holds the entries, if there are too many to embed; else 0.
    pub extern_obj: ObjectId,
    /// Bytes of all entries.
    pub size: u32,
    /// 0: entries of 12 bytes with plain ids; 1: entries with FUIDs.
    pub version: u16,
    /// Number of entries.
    pub count: u32,
    /// Space for embedded entries, in the byte order of the structure it was decoded from.
    pub ace_data: [u8; ZNODE_ACL_SIZE - ACE_DATA],
}

impl ZnodeAcl {
    /// Decodes 88 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let raw: [u8; ZNODE_ACL_SIZE] = bytes::array(buf, 0).ok_or(Error::short("ACL", ZNODE_ACL_SIZE, buf.len()))?;
        let size_or_count = bytes::u32(&raw, 8, e).unwrap_or(0);
        let version = bytes::u16(&raw, 12, e).unwrap_or(0);
        let (size, count) = if version == 0 {
            (size_or_count.saturating_mul(OLD_ACE_SIZE as u32), size_or_count)
        } else {
            (size_or_count, bytes::u16(&raw, 14, e).unwrap_or(0).into())
        };
        let ace_data = bytes::array(&raw, ACE_DATA).unwrap_or([0; ZNODE_ACL_SIZE - ACE_DATA]);
        Ok(ZnodeAcl { extern_obj: ObjectId(bytes::u64(&raw, 0, e).unwrap_or(0)), size, version, count, ace_data })
    }
}

fn swap(buf: &mut [u8], at: usize, width: usize) {
    if let Some(field) = at.checked_add(width).and_then(|end| buf.get_mut(at..end)) {
        field.reverse();
    }
}

/// Converts a bonus buffer of type ZNODE from byte order `from` to the order of this machine, in place. The contents after the structure
/// are bytes and stay unchanged.
pub fn znode_to_native(bonus: &mut [u8], from: Endian) {
    if !from.is_native() {
        turn_znode(bonus, from);
    }
}

/// Converts a bonus buffer of type ZNODE from byte order `from` to the other, in place.
pub fn turn_znode(bonus: &mut [u8], from: Endian) {
    let version = bytes::u16(bonus, ZNODE_ACL_OFFSET + 12, from);
    for at in (0..=ZNODE_ACL_OFFSET).step_by(8) {
        swap(bonus, at, 8);
    }
    for (at, width) in [(8, 4), (12, 2), (14, 2)] {
        swap(bonus, ZNODE_ACL_OFFSET + at, width);
    }
    if let Some(aces) = bonus.get_mut(ZNODE_ACL_OFFSET + ACE_DATA..ZNODE_PHYS_SIZE) {
        match version {
            Some(ACL_VERSION_FUID) => turn_acl(aces, from),
            _ => turn_old_acl(aces),
        }
    }
}

/// Converts access control entries (ZPL 3 and later; OpenZFS: `zfs_ace_t`) to the byte order of this machine, in place.
pub fn acl_to_native(aces: &mut [u8], from: Endian) {
    if !from.is_native() {
        turn_acl(aces, from);
    }
}

/// Converts access control entries from byte order `from` to the other, in place. Entries vary in size: those for owner, group and everyone
/// have no id.
pub fn turn_acl(aces: &mut [u8], from: Endian) {
    let mut rest = aces;
    while rest.len() >= ACE_HEADER {
        let ace_type = bytes::u16(rest, 0, from).unwrap_or(0);
        let flags = bytes::u16(rest, 2, from).unwrap_or(0);
        for (at, width) in [(0, 2), (2, 2), (4, 4)] {
            swap(rest, at, width);
        }
        let size = ace_size(ace_type, flags);
        if size > ACE_HEADER {
            swap(rest, ACE_HEADER, 8);
        }
        rest = rest.get_mut(size..).unwrap_or_default();
    }
}

/// Bytes of an access control entry of this type and flags.
#[must_use]
pub const fn ace_size(ace_type: u16, flags: u16) -> usize {
    const GROUP: u16 = ACE_IDENTIFIER_GROUP | ACE_GROUP;
    match (flags & ACE_TYPE_FLAGS, ace_type) {
        (ACE_OWNER | ACE_EVERYONE | GROUP, _) => ACE_HEADER,
        (_, 5..=8) => OBJECT_ACE_SIZE,
        _ => ACE_SIZE,
    }
}

/// Converts access control entries of ZPL before 3 (OpenZFS: `zfs_oldace_t`) to the byte order of this machine, in place.
pub fn old_acl_to_native(aces: &mut [u8], from: Endian) {
    if !from.is_native() {
        turn_old_acl(aces);
    }
}

/// Swaps access control entries of ZPL before 3 to the other byte order, in place.
pub fn turn_old_acl(aces: &mut [u8]) {
    for ace in aces.as_chunks_mut::<OLD_ACE_SIZE>().0 {
        for (at, width) in [(0, 4), (4, 4), (8, 2), (10, 2)] {
            swap(ace, at, width);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_their_own_sizes() {
        assert_eq!(ace_size(0, ACE_OWNER), 8);
        assert_eq!(ace_size(0, ACE_IDENTIFIER_GROUP | ACE_GROUP), 8);
        assert_eq!(ace_size(0, ACE_IDENTIFIER_GROUP), 16);
        assert_eq!(ace_size(5, 0), 48);
    }

    #[test]
    fn swapping_finds_each_field_and_stays_inside() {
        let other = Endian::NATIVE.swapped();
        let mut aces = Vec::new();
        for (ace_type, flags, mask, id) in [(0u16, ACE_OWNER, 7u32, None), (1, 0, 9, Some(1000u64))] {
            aces.extend(other.put_u16(ace_type));
            aces.extend(other.put_u16(flags));
            aces.extend(other.put_u32(mask));
            aces.extend(id.map(|id| other.put_u64(id)).iter().flatten());
        }
        acl_to_native(&mut aces, other);
        assert_eq!(bytes::u32(&aces, 4, Endian::NATIVE), Some(7));
        assert_eq!(bytes::u64(&aces, 16, Endian::NATIVE), Some(1000));
        for len in 0..64 {
            acl_to_native(&mut vec![0xff; len], other);
            old_acl_to_native(&mut vec![0xff; len], other);
            znode_to_native(&mut vec![0xff; len * 5], other);
        }
    }

    #[test]
    fn an_old_acl_counts_entries_where_a_new_one_counts_bytes() {
        let e = Endian::Big;
        let mut raw = [0; ZNODE_ACL_SIZE];
        raw[8..12].copy_from_slice(&e.put_u32(3));
        let acl = ZnodeAcl::decode(&raw, e).unwrap();
        assert_eq!((acl.count, acl.size), (3, 36));
        raw[12..14].copy_from_slice(&e.put_u16(1));
        raw[14..16].copy_from_slice(&e.put_u16(2));
        let acl = ZnodeAcl::decode(&raw, e).unwrap();
        assert_eq!((acl.count, acl.size), (2, 3));
    }
}
