//! NFSv4 access control lists (OpenZFS: `zfs_acl.c`).
//!
//! There are two forms on disk. The old one (ZPL versions 1 and 2) has entries of 12 bytes: who, mask, flags, type. The newer one
//! has entries of varying size: type, flags, mask, and, unless the entry is for the owner, the group or everyone, a FUID; object
//! entries, which only file servers set, have two more GUIDs. In ZPL version 5 the list is the attribute `ZPL_DACL_ACES`; before,
//! up to 72 bytes are stored in `ZPL_ZNODE_ACL`, and a longer list in an object of its own.

pub(crate) mod access;
pub(crate) mod modes;
pub(crate) mod permit;
pub(crate) mod posix;
pub(crate) mod posix_modes;
pub(crate) mod xdr;

use std::fmt;

use base::{Endian, ObjectId, bytes};
use dmu::sa::Attr;

use crate::{Error, FileFlags, Fuid, FuidTable, Node};

/// The maximum number of entries of a list (OpenZFS: `MAX_ACL_ENTRIES`).
const MAX_ENTRIES: u64 = 1024;
/// The largest entry, an object entry.
const MAX_ACE_SIZE: u64 = 48;

const OWNER: u16 = 0x1000;
const GROUP: u16 = 0x2000;
const EVERYONE: u16 = 0x4000;
const IDENTIFIER_GROUP: u16 = 0x40;
const TYPE_FLAGS: u16 = OWNER | GROUP | EVERYONE | IDENTIFIER_GROUP;
const OWNING_GROUP: u16 = GROUP | IDENTIFIER_GROUP;

/// The letters of the mask, in the order in which `ls -V` and `getfacl` print them.
const MASK_LETTERS: [(char, u32); 14] = [
    ('r', 0x1),
    ('w', 0x2),
    ('x', 0x20),
    ('p', 0x4),
    ('D', 0x40),
    ('d', 0x1_0000),
    ('a', 0x80),
    ('A', 0x100),
    ('R', 0x8),
    ('W', 0x10),
    ('c', 0x2_0000),
    ('C', 0x4_0000),
    ('o', 0x8_0000),
    ('s', 0x10_0000),
];
/// Letters of the flags.
const FLAG_LETTERS: [(char, u16); 7] =
    [('f', 0x1), ('d', 0x2), ('i', 0x8), ('n', 0x4), ('S', 0x10), ('F', 0x20), ('I', 0x80)];

/// The type of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AceType {
    /// Grants permissions.
    Allow,
    /// Denies permissions.
    Deny,
    /// Logs the access.
    Audit,
    /// Raises an alarm.
    Alarm,
    /// One of the types of file servers (5 to 8 carry GUIDs), or an unknown number.
    Other(u16),
}

impl AceType {
    const fn from_number(n: u16) -> AceType {
        match n {
            0 => AceType::Allow,
            1 => AceType::Deny,
            2 => AceType::Audit,
            3 => AceType::Alarm,
            n => AceType::Other(n),
        }
    }
}

/// The subject of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Who {
    /// The owner of the file.
    Owner,
    /// The group of the file.
    Group,
    /// Everyone.
    Everyone,
    /// A user.
    User(Fuid),
    /// A group.
    NamedGroup(Fuid),
}

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ace {
    /// Its type.
    pub kind: AceType,
    /// All flags: inheritance, audit, and the kind of subject.
    pub flags: u16,
    /// The permissions (OpenZFS: `ACE_READ_DATA` …).
    pub mask: u32,
    /// The subject.
    pub who: Who,
    /// The object type and the inherited object type of an object entry.
    pub object_types: Option<[[u8; 16]; 2]>,
}

impl Ace {
    fn who(flags: u16, id: impl FnOnce() -> Result<Fuid, Error>) -> Result<Who, Error> {
        Ok(match flags & TYPE_FLAGS {
            OWNER => Who::Owner,
            OWNING_GROUP => Who::Group,
            EVERYONE => Who::Everyone,
            f if f & IDENTIFIER_GROUP != 0 => Who::NamedGroup(id()?),
            _ => Who::User(id()?),
        })
    }

    /// Formats the entry as `ls -V` prints it: `owner@:rw-p--aARWcCos:-------:allow`.
    #[must_use]
    pub fn show(&self, fuids: &FuidTable) -> String {
        let who = match self.who {
            Who::Owner => "owner@".to_owned(),
            Who::Group => "group@".to_owned(),
            Who::Everyone => "everyone@".to_owned(),
            Who::User(id) => format!("user:{}", fuids.show(id)),
            Who::NamedGroup(id) => format!("group:{}", fuids.show(id)),
        };
        let mask: String = MASK_LETTERS.iter().map(|(c, bit)| if self.mask & bit != 0 { *c } else { '-' }).collect();
        let flags: String = FLAG_LETTERS.iter().map(|(c, bit)| if self.flags & bit != 0 { *c } else { '-' }).collect();
        format!("{who}:{mask}:{flags}:{}", self.kind)
    }
}

impl fmt::Display for AceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AceType::Allow => f.write_str("allow"),
            AceType::Deny => f.write_str("deny"),
            AceType::Audit => f.write_str("audit"),
            AceType::Alarm => f.write_str("alarm"),
            AceType::Other(n) => write!(f, "type {n}"),
        }
    }
}

/// An NFSv4 access control list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Acl {
    /// The entries, in order.
    pub aces: Vec<Ace>,
    /// True if it grants exactly what the mode grants.
    pub is_trivial: bool,
}

impl Acl {
    /// Decodes `count` entries of the old form: who, mask, flags, type, 12 bytes each.
    ///
    /// # Errors
    /// [`Error::BadAcl`] if there are fewer bytes, or too many entries.
    pub fn decode_old(buf: &[u8], count: u64, e: Endian) -> Result<Vec<Ace>, Error> {
        let bad = |why| Error::BadAcl { object: ObjectId::NONE, why };
        if count > MAX_ENTRIES {
            return Err(bad("too many entries"));
        }
        let mut aces = Vec::new();
        for raw in buf.as_chunks::<12>().0.iter().take(count as usize) {
            let field = |at| bytes::u32(raw, at, e).unwrap_or(0);
            let half = |at| bytes::u16(raw, at, e).unwrap_or(0);
            let flags = half(8);
            let who = Ace::who(flags, || Ok(Fuid(field(0).into())))?;
            aces.push(Ace { kind: AceType::from_number(half(10)), flags, mask: field(4), who, object_types: None });
        }
        if (aces.len() as u64) < count { Err(bad("shorter than its entries")) } else { Ok(aces) }
    }

    /// Decodes `count` entries in the form of callers and of the intent log: as the old form, with two more GUIDs in object
    /// entries (OpenZFS: `ace_t`, `ace_object_t`).
    ///
    /// # Errors
    /// [`Error::BadAcl`] if there are fewer bytes, or too many entries.
    pub(crate) fn decode_given(buf: &[u8], count: u64, e: Endian) -> Result<Vec<Ace>, Error> {
        let mut rest = buf;
        let mut aces = Vec::new();
        for _ in 0..count.min(MAX_ENTRIES + 1) {
            let mut ace = *Acl::decode_old(rest, 1, e)?
                .first()
                .ok_or(Error::BadAcl { object: ObjectId::NONE, why: "no entry" })?;
            let object_entry = matches!(ace.kind, AceType::Other(5..=8));
            if object_entry {
                ace.object_types =
                    bytes::array(rest, 12).zip(bytes::array(rest, 28)).map(|(own, inherited)| [own, inherited]);
            }
            rest = rest
                .get(if object_entry { 44 } else { 12 }..)
                .ok_or(Error::BadAcl { object: ObjectId::NONE, why: "shorter than its entries" })?;
            aces.push(ace);
        }
        if count > MAX_ENTRIES {
            Err(Error::BadAcl { object: ObjectId::NONE, why: "too many entries" })
        } else {
            Ok(aces)
        }
    }

    /// Decodes `count` entries of the newer form.
    ///
    /// # Errors
    /// [`Error::BadAcl`] if there are fewer bytes, or too many entries.
    pub fn decode(buf: &[u8], count: u64, e: Endian) -> Result<Vec<Ace>, Error> {
        let bad = |why| Error::BadAcl { object: ObjectId::NONE, why };
        if count > MAX_ENTRIES {
            return Err(bad("too many entries"));
        }
        let mut aces = Vec::new();
        let mut rest = buf;
        for _ in 0..count {
            let short = || bad("shorter than its entries");
            let (kind, flags) = (bytes::u16(rest, 0, e).ok_or_else(short)?, bytes::u16(rest, 2, e).ok_or_else(short)?);
            let mask = bytes::u32(rest, 4, e).ok_or_else(short)?;
            let abstract_who = matches!(flags & TYPE_FLAGS, OWNER | OWNING_GROUP | EVERYONE);
            let size = match kind {
                5..=8 => 48,
                0 | 1 if abstract_who => 8,
                _ => 16,
            };
            let who = Ace::who(flags, || Ok(Fuid(bytes::u64(rest, 8, e).ok_or_else(short)?)))?;
            let object_types = match (size, bytes::array(rest, 16), bytes::array(rest, 32)) {
                (48, Some(own), Some(inherited)) => Some([own, inherited]),
                _ => None,
            };
            rest = rest.get(size..).ok_or_else(short)?;
            aces.push(Ace { kind: AceType::from_number(kind), flags, mask, who, object_types });
        }
        Ok(aces)
    }

    /// Formats the list as `ls -V` prints it, one entry per line.
    #[must_use]
    pub fn show(&self, fuids: &FuidTable) -> String {
        self.aces.iter().map(|ace| ace.show(fuids) + "\n").collect()
    }
}

/// Reads the list of a file, from any of its locations and forms.
pub(crate) fn read(node: &Node) -> Result<Acl, Error> {
    let id = node.id();
    let aces = if let Some(raw) = node.sa_attr(Attr::DaclAces)? {
        let count = node.sa().u64(Attr::DaclCount).ok_or(Error::Missing { object: id, what: "ACL count" })?;
        Acl::decode(raw, count, Endian::NATIVE)
    } else if let Some(raw) = node.sa_attr(Attr::ZnodeAcl)? {
        read_znode_acl(node, raw)
    } else {
        return Err(Error::Missing { object: id, what: "ACL" });
    };
    let aces = aces.map_err(|e| match e {
        Error::BadAcl { why, .. } => Error::BadAcl { object: id, why },
        e => e,
    })?;
    Ok(Acl { aces, is_trivial: node.attrs().flags.has(FileFlags::ACL_TRIVIAL) })
}

/// Decodes `ZPL_ZNODE_ACL`: external object @0, then by version @12: 0, count u32 @8; 1, bytes u32 @8 and count u16 @14; entries
/// @16.
fn read_znode_acl(node: &Node, raw: &[u8]) -> Result<Vec<Ace>, Error> {
    let short = || Error::BadAcl { object: node.id(), why: "shorter than its head" };
    // the whole attribute is in the byte order of the dnode: its fields have different sizes
    let e = Endian::NATIVE;
    let external = bytes::u64(raw, 0, e).map(ObjectId).ok_or_else(short)?;
    let head = bytes::u32(raw, 8, e).ok_or_else(short)?;
    let version = bytes::u16(raw, 12, e).ok_or_else(short)?;
    let (count, len) = match version {
        0 => (u64::from(head), u64::from(head).saturating_mul(12)),
        _ => (bytes::u16(raw, 14, e).ok_or_else(short)?.into(), head.into()),
    };
    if len > MAX_ENTRIES * MAX_ACE_SIZE {
        return Err(Error::BadAcl { object: node.id(), why: "too long" });
    }
    let (data, order) = if external.is_none() {
        (raw.get(16..).ok_or_else(short)?.to_vec(), e)
    } else {
        let object = node.fs().objset().object(external)?;
        (object.read_vec(0, len as usize)?, object.endian_of(0)?.unwrap_or(e))
    };
    let data = data.get(..len as usize).ok_or_else(short)?;
    if version == 0 { Acl::decode_old(data, count, order) } else { Acl::decode(data, count, order) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ace(kind: u16, flags: u16, mask: u32, tail: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &flags.to_be_bytes(), &mask.to_be_bytes(), tail].concat()
    }

    #[test]
    fn both_forms_and_their_text() {
        let mut new = ace(0, OWNER, 0x1601bf, &[]);
        new.extend(ace(1, IDENTIFIER_GROUP | 3, 2, &(2u64 << 32 | 500).to_be_bytes()));
        new.extend(ace(5, 0, 1, &[&7u64.to_be_bytes()[..], &[1; 16], &[2; 16]].concat()));
        new.extend(ace(0, EVERYONE, 0x20_0000, &[]));
        let aces = Acl::decode(&new, 4, Endian::Big).unwrap();
        let text: Vec<_> = aces.iter().map(|a| a.show(&FuidTable::default())).collect();
        assert_eq!(text[0], "owner@:rwxp--aARWcC-s:-------:allow");
        assert_eq!(text[1], "group:?2-500:-w------------:fd-----:deny");
        assert_eq!(aces[2].object_types, Some([[1; 16], [2; 16]]));
        assert_eq!(aces[3].who, Who::Everyone);
        for len in 0..new.len() {
            assert!(Acl::decode(&new[..len], 4, Endian::Big).is_err());
        }
        let mut old =
            [&501u32.to_be_bytes()[..], &1u32.to_be_bytes(), &0u16.to_be_bytes(), &0u16.to_be_bytes()].concat();
        old.extend([0xff; 4]);
        old.extend([&6u32.to_be_bytes()[..], &OWNING_GROUP.to_be_bytes(), &1u16.to_be_bytes()].concat());
        let aces = Acl::decode_old(&old, 2, Endian::Big).unwrap();
        assert_eq!((aces[0].who, aces[1].who, aces[1].kind), (Who::User(Fuid(501)), Who::Group, AceType::Deny));
        assert!(Acl::decode_old(&old, 3, Endian::Big).is_err());
        assert!(Acl::decode(&old, u64::MAX, Endian::Big).is_err());
    }
}
