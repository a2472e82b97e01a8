//! Attributes of files: by layout, from the spill block, from the structure before ZPL 5, in both byte orders.

use base::{Endian, ObjectId};
use ondisk::sa::SA_MAGIC;
use ondisk::znode::{ZNODE_MODE_OFFSET, ZNODE_PHYS_SIZE, ZNODE_SIZE_OFFSET, ZnodeAcl};
use ondisk::{DnodePhys, ObjectType};

use super::zaps::{fat, micro};
use crate::Object;
use crate::sa::{Attr, SaAttrs, SaTable};
use crate::testing::{Disk, Rng, dnode_with_bonus};

const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];

fn header(e: Endian, layout: u16, lengths: &[u16]) -> Vec<u8> {
    let size = (6 + 2 * lengths.len()).next_multiple_of(8);
    let mut raw = e.put_u32(SA_MAGIC).to_vec();
    raw.extend(e.put_u16(((size / 8) as u16) << 10 | layout));
    raw.extend(lengths.iter().flat_map(|len| e.put_u16(*len)));
    raw.resize(size, 0);
    raw
}

/// An object set in which object 10 is the file, 1 the attribute master with registry 2 and layouts 3.
fn open(mut disk: Disk, file: DnodePhys) -> (SaTable, Object) {
    let e = disk.endian;
    let reg = |number: u64, length: u64, swap: u64| length << 24 | swap << 16 | number;
    let master = micro(e, 0, &[("REGISTRY", 2, 0), ("LAYOUTS", 3, 0)]);
    // numbers differ from OpenZFS's usual ones on purpose
    let registry = micro(
        e,
        0,
        &[
            ("ZPL_MODE", reg(40, 8, 0), 0),
            ("ZPL_MTIME", reg(41, 16, 0), 0),
            ("ZPL_SYMLINK", reg(42, 0, 3), 0),
            ("ZPL_DXATTR", reg(43, 0, 3), 0),
            ("ZPL_DACL_ACES", reg(44, 0, 4), 0),
            ("com.example:other", reg(45, 8, 0), 0),
        ],
    );
    let layouts = fat(e, 0, &[(b"2\0", &[40, 45, 42, 41, 44]), (b"3\0", &[43, 6])]);
    let layouts: Vec<_> = layouts.into_iter().map(Some).collect();
    let objects = [
        (ObjectId(1), disk.object(ObjectType::SA_MASTER_NODE, &[Some(master)], 17, 1)),
        (ObjectId(2), disk.object(ObjectType::SA_ATTR_REGISTRATION, &[Some(registry)], 17, 1)),
        (ObjectId(3), disk.object(ObjectType::SA_ATTR_LAYOUTS, &layouts, 17, 1)),
        (ObjectId(10), file),
    ];
    let root = disk.objset(&objects);
    let os = disk.open(&root);
    (SaTable::load(&os, ObjectId(1)).unwrap(), os.object(ObjectId(10)).unwrap())
}

/// Mode, an attribute of somebody else, a target of 5 bytes, a time, an access control entry with an id.
fn bonus(e: Endian) -> Vec<u8> {
    let mut raw = header(e, 2, &[5, 16]);
    raw.extend(e.put_u64(0o120_777));
    raw.extend(e.put_u64(1));
    raw.extend(b"there\0\0\0");
    raw.extend([1u64 << 40, 999].iter().flat_map(|v| e.put_u64(*v)));
    raw.extend(e.put_u16(0));
    raw.extend(e.put_u16(0));
    raw.extend(e.put_u32(0xff));
    raw.extend(e.put_u64(1001));
    raw
}

fn check(attrs: &SaAttrs) {
    assert_eq!(attrs.u64(Attr::Mode), Some(0o120_777));
    assert_eq!(attrs.get(Attr::Symlink), Some(&b"there"[..]));
    assert_eq!(attrs.time(Attr::Mtime), Some((1 << 40, 999)));
    assert_eq!(attrs.u64s(Attr::DaclAces).get(1), Some(&1001));
    assert_eq!(attrs.u64(Attr::Uid), None);
}

#[test]
fn attributes_follow_their_layout_whoever_wrote_them() {
    for dnode_order in ORDERS {
        for attr_order in ORDERS {
            let file = dnode_with_bonus(ObjectType::PLAIN_FILE_CONTENTS, ObjectType::SA, bonus(attr_order));
            let (table, object) = open(Disk::new(dnode_order), file);
            let attrs = table.attrs(&object).unwrap();
            check(&attrs);
            assert_eq!(attrs.present().count(), 4);
        }
    }
}

#[test]
fn a_spill_block_adds_to_the_bonus() {
    for e in ORDERS {
        let mut disk = Disk::new(e);
        let mut spill = header(e, 3, &[3]);
        spill.extend(b"xyz\0\0\0\0\0");
        spill.extend(e.put_u64(77));
        spill.resize(512, 0);
        let mut file = dnode_with_bonus(ObjectType::PLAIN_FILE_CONTENTS, ObjectType::SA, bonus(e));
        file.flags |= DnodePhys::FLAG_SPILL_BLKPTR;
        file.spill = Some(disk.write(&spill, ObjectType::SA, 0, 1));
        let (table, object) = open(disk, file);
        let attrs = table.attrs(&object).unwrap();
        check(&attrs);
        assert!(attrs.has_spill() && attrs.spill_error().is_none());
        assert_eq!(attrs.get(Attr::Dxattr), Some(&b"xyz"[..]));
        assert_eq!(attrs.u64(Attr::Size), Some(77), "number 6 needs no registration");
        let without = table.attrs_without_spill(&object).unwrap();
        check(&without);
        assert_eq!(without.get(Attr::Dxattr), None);
    }
}

#[test]
fn a_broken_spill_block_costs_only_itself() {
    let mut disk = Disk::new(Endian::Little);
    let mut file = dnode_with_bonus(ObjectType::PLAIN_FILE_CONTENTS, ObjectType::SA, bonus(Endian::Little));
    file.flags |= DnodePhys::FLAG_SPILL_BLKPTR;
    file.spill = Some(disk.write(&[0xee; 512], ObjectType::SA, 0, 1));
    let (table, object) = open(disk, file);
    let attrs = table.attrs(&object).unwrap();
    check(&attrs);
    assert!(attrs.spill_error().is_some());
}

#[test]
fn a_file_before_zpl_5_has_the_same_attributes() {
    for e in ORDERS {
        for (target, in_bonus) in [(&b"short"[..], true), (&[b'l'; 200][..], false)] {
            let mut disk = Disk::new(e);
            let mut raw = vec![0; ZNODE_PHYS_SIZE];
            raw[ZNODE_MODE_OFFSET..][..8].copy_from_slice(&e.put_u64(0o120_777));
            raw[ZNODE_SIZE_OFFSET..][..8].copy_from_slice(&e.put_u64(target.len() as u64));
            raw[128..136].copy_from_slice(&e.put_u64(1000));
            raw[176 + 8..176 + 12].copy_from_slice(&e.put_u32(36));
            raw[176 + 12..176 + 14].copy_from_slice(&e.put_u16(1));
            raw[176 + 14..176 + 16].copy_from_slice(&e.put_u16(3));
            let mut block = target.to_vec();
            block.resize(512, 0);
            let mut file = disk.object(ObjectType::PLAIN_FILE_CONTENTS, &[Some(block)], 17, 1);
            if in_bonus {
                raw.extend(target);
            }
            (file.bonus_type, file.bonus) = (ObjectType::ZNODE, raw);
            let (_, object) = open(disk, file);
            let attrs = SaTable::default().attrs(&object).unwrap();
            assert_eq!(attrs.get(Attr::Symlink), Some(target));
            assert_eq!((attrs.u64(Attr::Uid), attrs.u64(Attr::Mode)), (Some(1000), Some(0o120_777)));
            let acl = ZnodeAcl::decode(attrs.get(Attr::ZnodeAcl).unwrap(), Endian::NATIVE).unwrap();
            assert_eq!((acl.size, acl.count, acl.version), (36, 3, 1));
        }
    }
}

#[test]
fn mutated_attributes_do_no_harm() {
    let mut rng = Rng(77);
    let file = dnode_with_bonus(ObjectType::PLAIN_FILE_CONTENTS, ObjectType::SA, bonus(Endian::Little));
    let (table, object) = open(Disk::new(Endian::Little), file);
    for round in 0..4000 {
        let mut phys = object.phys().clone();
        rng.mutate(&mut phys.bonus);
        phys.bonus.truncate(rng.below(phys.bonus.len() + 20));
        if round % 5 == 0 {
            phys.bonus_type = ObjectType::ZNODE;
            phys.bonus.resize(rng.below(320), 3);
        }
        if let Ok(attrs) = table.attrs(&Object::new(object.objset().clone(), ObjectId(10), phys)) {
            let _ = attrs.present().map(|attr| attrs.u64s(attr).len()).sum::<usize>();
        }
    }
}
