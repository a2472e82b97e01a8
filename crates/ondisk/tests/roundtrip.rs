//! The structures of the core, decoded and encoded in both byte orders.
#![allow(clippy::unwrap_used)]

use base::Endian;
use ondisk::{BlkPtr, DnodePhys, Dva, ObjectType, ObjsetPhys, ObjsetType, Uberblock};
use proptest::prelude::*;

fn sample_pointer() -> BlkPtr {
    let mut bp = BlkPtr::HOLE;
    let dva = Dva::new(5, 0x1234_5600, 0x6000, false);
    bp.words[0] = dva.word0;
    bp.words[1] = dva.word1;
    // lsize 128 KiB, psize 20 KiB, lz4, fletcher4, plain file, level 0, little-endian
    bp.words[6] = 255 | (39 << 16) | (15 << 32) | (7 << 40) | (19 << 48) | (1 << 63);
    bp.words[10] = 77;
    bp.words[11] = 1;
    bp.words[12..].copy_from_slice(&[1, 2, 3, 4]);
    bp
}

#[test]
fn a_pointer_reads_as_it_was_written_in_either_order() {
    for e in [Endian::Little, Endian::Big] {
        let bp = BlkPtr::decode(&sample_pointer().encode(e), e).unwrap();
        assert_eq!(bp, sample_pointer());
        assert_eq!((bp.lsize(), bp.psize(), bp.asize()), (128 << 10, 20 << 10, 0x6000));
        assert_eq!((bp.compression(), bp.checksum(), bp.level()), (15, 7, 0));
        assert_eq!(bp.object_type(), ObjectType::PLAIN_FILE_CONTENTS);
        assert_eq!((bp.dva(0).vdev(), bp.dva(0).offset()), (5, 0x1234_5600));
        assert_eq!((bp.birth_logical().0, bp.birth_physical().0, bp.birth().0), (77, 77, 77));
        assert_eq!(bp.endian(), Endian::Little);
        assert_eq!(bp.dvas().count(), 1);
        assert!(bp.validate().is_ok() && !bp.is_hole() && !bp.is_embedded());
    }
    assert!(BlkPtr::decode(&[0; 127], Endian::Little).is_err());
}

#[test]
fn an_embedded_pointer_yields_its_payload_in_order() {
    let mut bp = BlkPtr::HOLE;
    let payload: Vec<u8> = (1..=112).collect();
    let places = (0..16).filter(|n| *n != 6 && *n != 10);
    for (n, chunk) in places.zip(payload.chunks(8)) {
        bp.words[n] = u64::from_le_bytes(chunk.try_into().unwrap());
    }
    bp.words[6] = 511 | (99 << 25) | (15 << 32) | (1 << 39) | (19 << 48) | (1 << 63);
    assert!(bp.is_embedded() && !bp.is_hole());
    assert_eq!((bp.lsize(), bp.psize()), (512, 100));
    assert_eq!(&bp.embedded_payload()[..], &payload[..]);
    assert_eq!(bp.dvas().count(), 0);
    for e in [Endian::Little, Endian::Big] {
        assert_eq!(BlkPtr::decode(&bp.encode(e), e).unwrap().embedded_payload(), bp.embedded_payload());
    }
}

fn sample_dnode(endian: Endian, extra_slots: u8) -> DnodePhys {
    DnodePhys {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        indblkshift: 17,
        nlevels: 2,
        bonus_type: ObjectType::SA,
        checksum: 0,
        compress: 0,
        flags: DnodePhys::FLAG_USED_BYTES | DnodePhys::FLAG_SPILL_BLKPTR,
        datablkszsec: 256,
        extra_slots,
        maxblkid: 9,
        used: 4096,
        blkptr: vec![sample_pointer()],
        bonus: (0..168).collect(),
        spill: Some(sample_pointer()),
        pad: [7; 35],
        endian,
    }
}

#[test]
fn a_dnode_reads_as_it_was_written_in_either_order_and_size() {
    for e in [Endian::Little, Endian::Big] {
        for slots in [0, 1, 31] {
            let dn = sample_dnode(e, slots);
            let bytes = dn.encode();
            assert_eq!(bytes.len(), 512 * (usize::from(slots) + 1));
            assert_eq!(DnodePhys::decode(&bytes, e).unwrap(), dn);
            assert!(DnodePhys::decode(&bytes[..bytes.len() - 1], e).is_err());
        }
        // an object of one block may get indirect ones later, so their size must be valid
        for (indblkshift, nlevels) in [(0, 1), (9, 1), (10, 1), (17, 1), (18, 1), (255, 1), (9, 2), (18, 2)] {
            let dn = DnodePhys { indblkshift, nlevels, ..sample_dnode(e, 0) };
            assert_eq!(DnodePhys::decode(&dn.encode(), e).is_ok(), (10..=17).contains(&indblkshift), "{indblkshift}");
        }
    }
}

#[test]
fn an_object_set_reads_in_each_of_its_sizes() {
    for e in [Endian::Little, Endian::Big] {
        let mut block = vec![0; 4096];
        let dn = sample_dnode(e, 0).encode();
        for at in [0, 1024, 2048] {
            block[at..at + 512].copy_from_slice(&dn);
        }
        block[704..712].copy_from_slice(&e.put_u64(2));
        let whole = ObjsetPhys::decode(&block, e).unwrap();
        assert_eq!(whole.os_type, ObjsetType::Zfs);
        assert!(whole.userused.is_some() && whole.groupused.is_none() && whole.projectused.is_some());
        let old = ObjsetPhys::decode(&block[..1024], e).unwrap();
        assert!(old.userused.is_none() && old.projectused.is_none());
        assert!(ObjsetPhys::decode(&block[..1000], e).is_err());
    }
}

proptest! {
    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1200), little in any::<bool>()) {
        let e = if little { Endian::Little } else { Endian::Big };
        if let Ok(bp) = BlkPtr::decode(&bytes, e) {
            let _ = (bp.validate(), bp.lsize(), bp.psize(), bp.asize(), bp.iv(), bp.mac(), format!("{bp:?}"));
            prop_assert_eq!(&bp.encode(e)[..], &bytes[..128]);
        }
        let _ = DnodePhys::decode(&bytes, e);
        let _ = ObjsetPhys::decode(&bytes, e);
        let _ = Uberblock::decode(&bytes);
    }
}

#[test]
fn payload_of_an_embedded_pointer_is_no_mark_of_a_rewrite() {
    let mut bp = BlkPtr::HOLE;
    bp.words[6] = 1 << 39;
    bp.words[7] = u64::MAX;
    bp.words[10] = 77;
    assert!(bp.is_embedded() && !bp.is_rewritten());
    assert_eq!(bp.birth().0, 77);
}
