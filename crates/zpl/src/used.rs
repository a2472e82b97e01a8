//! The owner of an object, read from its bonus buffer alone, as space accounting needs it (OpenZFS: `zpl_get_file_info`).

use base::{Endian, bytes};
use dmu::{Owner, UsedBy};
use ondisk::ObjectType;
use ondisk::sa::SaHeader;

use crate::FileFlags;

/// The offsets of these attributes, in bytes after the header, which are the same in all layouts of files (OpenZFS:
/// `SA_UID_OFFSET` etc.).
const SA_UID: usize = 24;
const SA_GID: usize = 32;
const SA_FLAGS: usize = 48;
const SA_PROJID: usize = 128;
/// The same in an old znode, in bytes from its start.
const ZNODE_UID: usize = 128;
const ZNODE_GID: usize = 136;

/// Determines the owner of a file from its attributes, of either kind. Objects that are not files have none.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsedByBonus;

impl UsedBy for UsedByBonus {
    fn owner(&self, bonus_type: ObjectType, bonus: &[u8], endian: Endian) -> Option<Owner> {
        match bonus_type {
            ObjectType::ZNODE => {
                let word = |offset| bytes::u64(bonus, offset, endian);
                Some(Owner { uid: word(ZNODE_UID)?, gid: word(ZNODE_GID)?, projid: 0 })
            }
            ObjectType::SA => of_attributes(bonus),
            _ => None,
        }
    }
}

fn of_attributes(bonus: &[u8]) -> Option<Owner> {
    // a new file without attributes yet counts for root
    let Some(header) = SaHeader::decode(bonus).ok()? else { return Some(Owner::default()) };
    if header.size < size_of::<u64>() {
        return None;
    }
    let word = |offset| bytes::u64(bonus, header.size.checked_add(offset)?, header.endian);
    let has_project = FileFlags(word(SA_FLAGS)?).has(FileFlags::PROJID);
    let projid = if has_project { word(SA_PROJID)? } else { 0 };
    Some(Owner { uid: word(SA_UID)?, gid: word(SA_GID)?, projid })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn attributes(flags: FileFlags) -> Vec<u8> {
        let mut bonus = vec![0; 168];
        bonus[..4].copy_from_slice(&ondisk::sa::SA_MAGIC.to_le_bytes());
        // layout 2, 8 bytes of header
        bonus[4..6].copy_from_slice(&(1u16 << 10 | 2).to_le_bytes());
        for (offset, value) in [(SA_UID, 1000), (SA_GID, 100), (SA_FLAGS, flags.0), (SA_PROJID, 7)] {
            bonus[8 + offset..16 + offset].copy_from_slice(&value.to_le_bytes());
        }
        bonus
    }

    #[test]
    fn attributes_tell_user_group_and_project() {
        let owner = |bonus: &[u8]| UsedByBonus.owner(ObjectType::SA, bonus, Endian::Big);
        assert_eq!(owner(&attributes(FileFlags(0))), Some(Owner { uid: 1000, gid: 100, projid: 0 }));
        assert_eq!(owner(&attributes(FileFlags::PROJID)), Some(Owner { uid: 1000, gid: 100, projid: 7 }));
        assert_eq!(owner(&[0; 168]), Some(Owner::default()));
        assert_eq!(owner(&attributes(FileFlags::PROJID)[..100]), None);
        assert_eq!(owner(&[1; 168]), None);
    }

    #[test]
    fn old_znodes_tell_user_and_group() {
        let mut bonus = vec![0; 264];
        bonus[ZNODE_UID + 7] = 5;
        bonus[ZNODE_GID + 7] = 6;
        let owner = UsedByBonus.owner(ObjectType::ZNODE, &bonus, Endian::Big);
        assert_eq!(owner, Some(Owner { uid: 5, gid: 6, projid: 0 }));
        assert_eq!(UsedByBonus.owner(ObjectType::OBJECT_DIRECTORY, &bonus, Endian::Big), None);
    }
}
