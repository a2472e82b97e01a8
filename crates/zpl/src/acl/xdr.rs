//! NFSv4 ACLs as an extended attribute, `system.nfs4_acl_xdr`: the form of TrueNAS's OpenZFS, of nfs4xdr-acl-tools and of Samba.
//!
//! All numbers are 32 bits, big-endian: the flags of the list, the number of entries, then for each entry its type, flags, a second word of
//! flags, its mask, and its subject, which is an id or, by the second flags, one of the three abstract ones.

use base::{Endian, bytes};

use super::{Ace, AceType, Acl, EVERYONE, IDENTIFIER_GROUP, OWNER, OWNING_GROUP, Who};
use crate::{Attrs, FileFlags, Fuid, Kind};

/// Name of the attribute.
pub(crate) const NAME: &[u8] = b"system.nfs4_acl_xdr";

/// Bytes before the first entry, and of an entry.
const HEAD: usize = 8;
const ENTRY: usize = 20;
/// The maximum number of entries of a list that is set (OpenZFS: `MAX_ACL_ENTRIES`).
const MAX_ENTRIES: usize = 1024;
/// Flags of a list: those that a file server sets, by their flags of files, and two that tell about the file.
const LIST_FLAGS: [(u32, FileFlags); 3] =
    [(0x1, FileFlags::ACL_AUTO_INHERIT), (0x2, FileFlags::ACL_PROTECTED), (0x4, FileFlags::ACL_DEFAULTED)];
const IS_TRIVIAL: u32 = 0x1_0000;
const IS_DIR: u32 = 0x2_0000;
/// The flags of an entry that are not about its subject.
const ENTRY_FLAGS: u16 = 0xbf;
/// The subject is abstract.
const SPECIAL_WHO: u32 = 1;
const SPECIAL_OWNER: u32 = 1;
const SPECIAL_GROUP: u32 = 2;
const SPECIAL_EVERYONE: u32 = 3;

/// Encodes the list of a file.
pub(crate) fn encode(acl: &Acl, attrs: &Attrs) -> Vec<u8> {
    let given = |bit: u32, set: bool| if set { bit } else { 0 };
    let of_file = LIST_FLAGS.iter().fold(0, |all, (bit, flag)| all | given(*bit, attrs.flags.has(*flag)));
    let flags = of_file | given(IS_TRIVIAL, acl.is_trivial) | given(IS_DIR, attrs.kind() == Kind::Directory);
    let mut words = vec![flags, acl.aces.len() as u32];
    for ace in &acl.aces {
        let (group, special, who) = match ace.who {
            Who::Owner => (false, SPECIAL_WHO, SPECIAL_OWNER),
            Who::Group => (true, SPECIAL_WHO, SPECIAL_GROUP),
            Who::Everyone => (false, SPECIAL_WHO, SPECIAL_EVERYONE),
            Who::User(id) => (false, 0, id.posix_id()),
            Who::NamedGroup(id) => (true, 0, id.posix_id()),
        };
        let flags = u32::from(ace.flags & ENTRY_FLAGS) | given(IDENTIFIER_GROUP.into(), group);
        words.extend([number(ace.kind), flags, special, ace.mask, who]);
    }
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Decodes a list that is to be set; `None` if it is malformed, or has entries of types that cannot be set.
pub(crate) fn decode(value: &[u8]) -> Option<Vec<Ace>> {
    let word = |at| bytes::u32(value, at, Endian::Big);
    let count = usize::try_from(word(4)?).ok().filter(|count| (1..=MAX_ENTRIES).contains(count))?;
    if value.len() != HEAD + count * ENTRY {
        return None;
    }
    let entries = value.get(HEAD..)?.as_chunks::<ENTRY>().0;
    entries.iter().map(decode_entry).collect()
}

fn decode_entry(raw: &[u8; ENTRY]) -> Option<Ace> {
    let word = |n: usize| bytes::u32(raw, n * 4, Endian::Big);
    let (kind, flags, special, mask, id) = (word(0)?, word(1)?, word(2)?, word(3)?, word(4)?);
    let kind = match kind {
        0 => AceType::Allow,
        1 => AceType::Deny,
        2 => AceType::Audit,
        3 => AceType::Alarm,
        _ => return None,
    };
    let group = flags & u32::from(IDENTIFIER_GROUP) != 0;
    let (who, about) = match (special, id) {
        (0, id) if group => (Who::NamedGroup(Fuid(id.into())), IDENTIFIER_GROUP),
        (0, id) => (Who::User(Fuid(id.into())), 0),
        (SPECIAL_WHO, SPECIAL_OWNER) => (Who::Owner, OWNER),
        (SPECIAL_WHO, SPECIAL_GROUP) => (Who::Group, OWNING_GROUP),
        (SPECIAL_WHO, SPECIAL_EVERYONE) => (Who::Everyone, EVERYONE),
        _ => return None,
    };
    let flags = u16::try_from(flags & !u32::from(IDENTIFIER_GROUP)).ok().filter(|flags| flags & !ENTRY_FLAGS == 0)?;
    Some(Ace { kind, flags: flags | about, mask, who, object_types: None })
}

const fn number(kind: AceType) -> u32 {
    match kind {
        AceType::Allow => 0,
        AceType::Deny => 1,
        AceType::Audit => 2,
        AceType::Alarm => 3,
        AceType::Other(n) => n as u32,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn entries_of_each_kind_survive() {
        let value = words(&[
            0, 5, // flags of the list, entries
            0, 0, 1, 0x1601bf, 1, // the owner
            0, 0x40, 1, 0x1200a9, 2, // the group
            1, 0x3, 0, 0x2, 500, // a user, inherited by files and directories
            0, 0x4b, 0, 0x1, 600, // a group, only inherited
            0, 0, 1, 0x12_0088, 3, // everyone
        ]);
        let aces = decode(&value).unwrap();
        let subjects: Vec<Who> = aces.iter().map(|ace| ace.who).collect();
        let named = [Who::User(Fuid(500)), Who::NamedGroup(Fuid(600))];
        assert_eq!(subjects, [Who::Owner, Who::Group, named[0], named[1], Who::Everyone]);
        assert_eq!(aces[3].flags, 0x4b);
        let attrs = crate::acl::access::tests::attrs(0o100_644, FileFlags(0));
        assert_eq!(encode(&Acl { aces, is_trivial: false }, &attrs), value);
        let dir = crate::acl::access::tests::attrs(0o040_755, FileFlags::ACL_PROTECTED);
        assert_eq!(encode(&Acl { aces: Vec::new(), is_trivial: true }, &dir), words(&[0x3_0002, 0]));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let good = [0, 1, 0, 0, 1, 7, 3];
        assert!(decode(&words(&good)).is_some());
        for (at, word) in [(1, 0), (1, 2), (1, u32::MAX), (2, 5), (3, 0x100), (4, 2), (6, 4), (3, 0x1000)] {
            let mut bad = good;
            bad[at] = word;
            assert!(decode(&words(&bad)).is_none(), "{at} {word}");
        }
        for len in 0..28 {
            assert!(decode(&words(&good)[..len]).is_none());
        }
    }
}
