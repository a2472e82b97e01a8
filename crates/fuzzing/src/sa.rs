//! System attributes of files. First byte: bit 0 the byte order, bit 1 a file before ZPL 5; then the length of the bonus buffer (16 bits,
//! little-endian), the bonus buffer, the spill block.

use base::{Endian, ObjectId};
use dmu::Object;
use dmu::sa::{Attr, SaTable};
use ondisk::sa::SaRegistration;
use ondisk::{DnodePhys, ObjectType};

use crate::blocks;

const MAX_BONUS: usize = 16 << 10;

/// Decodes the attributes with OpenZFS's usual layouts.
///
/// # Panics
/// On a bug in the library: a present attribute has no value.
pub fn fuzz_sa(data: &[u8]) {
    let [how, low, high, rest @ ..] = data else { return };
    let endian = if how & 1 == 0 { Endian::Little } else { Endian::Big };
    let bonus_len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()).min(MAX_BONUS);
    let (bonus, spill) = rest.split_at(bonus_len);
    let mut dn = blocks::dnode(ObjectType::PLAIN_FILE_CONTENTS, Vec::new(), 512, endian);
    dn.bonus = bonus.to_vec();
    dn.bonus_type = if how & 2 == 0 { ObjectType::SA } else { ObjectType::ZNODE };
    let mut block = spill.to_vec();
    block.truncate(128 << 10);
    block.resize(block.len().next_multiple_of(512), 0);
    if !block.is_empty() {
        dn.flags |= DnodePhys::FLAG_SPILL_BLKPTR;
        dn.spill = Some(blocks::pointer(0, block.len(), ObjectType::SA, endian));
    }
    if let Ok(attrs) = table().attrs(&Object::new(blocks::objset(block), ObjectId(1), dn)) {
        for attr in attrs.present() {
            let words = attrs.u64s(attr).len();
            assert!(attrs.get(attr).is_some_and(|value| value.len() / 8 == words));
        }
        let _ = (attrs.u64(Attr::Mode), attrs.time(Attr::Mtime));
    }
}

/// The attribute registrations (numbers, lengths, byteswap kinds) and layouts that OpenZFS creates.
fn table() -> SaTable {
    let variable = |attr| matches!(attr, Attr::Symlink | Attr::DaclAces | Attr::Dxattr);
    let registry = Attr::ALL.iter().skip(16).enumerate().map(|(n, attr)| {
        let length = if variable(*attr) {
            0
        } else if *attr == Attr::Scanstamp {
            32
        } else {
            8
        };
        let swap = match attr {
            Attr::DaclAces => 4,
            Attr::Symlink | Attr::Scanstamp | Attr::Dxattr => 3,
            _ => 0,
        };
        (attr.name().as_bytes().to_vec(), SaRegistration { number: 16 + n as u16, length, swap })
    });
    let registry = registry.collect::<Vec<_>>();
    let file = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8];
    let with = |more: &[u16]| [&file[..], more].concat();
    let layouts = [
        with(&[16, 19]),
        with(&[17, 16, 19]),
        with(&[21, 16, 19]),
        with(&[20]),
        with(&[10, 9]),
        vec![20],
        vec![19, 20],
    ];
    let layouts: Vec<_> = layouts.into_iter().enumerate().map(|(n, attrs)| (n as u16 + 2, attrs)).collect();
    SaTable::from_parts(&registry, &layouts)
}
