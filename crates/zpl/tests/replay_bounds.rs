//! Sizes in a log record that no file can have end the replay at that record: they are not stored as the nearest possible value.
#![allow(clippy::unwrap_used, dead_code)]

mod power;

use base::ObjectId;
use ondisk::BlkPtr;
use ondisk::zil::{Create, Record, TxType};
use power::{ROOT, Rig, bytes};
use zil::write::{Itx, ItxData};
use zpl::Kind;
use zpl::live::NewFile;

const BLOCK: u64 = 4096;

fn clone_range<'a>(foid: ObjectId, offset: u64, length: u64, blocks: usize) -> (TxType, Record<'a>) {
    let bps = vec![BlkPtr::HOLE; blocks];
    (TxType::CloneRange, Record::CloneRange { foid, offset, length, blksz: BLOCK, bps })
}

fn create<'a>(doid: ObjectId, foid: ObjectId, slots: u64) -> (TxType, Record<'a>) {
    let (mode, crtime) = (0o100_644, [1, 0]);
    let (uid, gid, generation, rdev) = (0, 0, 1, 0);
    let domains = Vec::new();
    let new = Create {
        doid,
        foid,
        slots,
        mode,
        uid,
        gid,
        generation,
        crtime,
        rdev,
        attrs: None,
        acl: None,
        domains,
        name: b"new",
        link: None,
    };
    (TxType::Create, Record::Create(new))
}

#[test]
fn sizes_that_no_file_can_have_end_a_replay() {
    let rig = Rig::new(&["/a"]);
    let prepare = |n: usize| {
        let zfs = rig.file_system(&format!("t/f{n}"), &[("recordsize", BLOCK)], false);
        let file = zfs.create(&ROOT, zfs.fs().root(), b"file", &NewFile::new(Kind::File, 0o644)).unwrap().0;
        zfs.write(&ROOT, file, 0, &bytes(3 * BLOCK as usize, 1)).unwrap();
        (file, zfs)
    };
    let made: Vec<_> = (0..6).map(prepare).collect();
    rig.spa.sync().unwrap();
    let (root, file) = (made[0].1.fs().root(), made[0].0);
    let truncate = |offset, length| (TxType::Truncate, Record::Truncate { foid: file, offset, length });
    let records = [
        truncate(BLOCK, u64::MAX - BLOCK),
        truncate(1 << 63, 1),
        clone_range(file, 0, BLOCK, 2),
        clone_range(file, (1 << 63) - BLOCK, BLOCK, 1),
        create(root, ObjectId(100), 256),
        create(root, ObjectId(100), 33),
    ];
    // the chains begin, which takes a txg
    for (id, zfs) in &made {
        assert_eq!((*id, zfs.fs().root()), (file, root));
        zfs.write(&ROOT, file, 0, &bytes(100, 1)).unwrap();
        zfs.fsync(file).unwrap();
    }
    for ((_, zfs), (kind, record)) in made.iter().zip(&records) {
        let zil = rig.spa.zil(zfs.fs().objset());
        let itx = Itx { record: record.encode(*kind), object: Some(file), sync: true, data: ItxData::InRecord };
        zil.assign(&rig.spa.tx(1 << 10).unwrap(), itx);
        zil.commit(None).unwrap();
    }

    let after = rig.after_cut(&[], false);
    drop(made);
    let spa = after.spa.as_ref().unwrap();
    for (n, (kind, _)) in records.iter().enumerate() {
        let name = format!("t/f{n}");
        let zfs = after.open(&name);
        let told = spa.view().unwrap().history().unwrap();
        let told = told.iter().filter_map(|record| record.list.get_str("history internal str"));
        let told: Vec<&str> = told.filter(|text| text.contains(&format!("log of {name} ended"))).collect();
        assert_eq!(told.len(), 1, "{name}, {kind:?}");
        assert_eq!(zfs.getattr(file).unwrap().size, 3 * BLOCK);
        let mut read = vec![0; 3 * BLOCK as usize];
        zfs.read(file, 0, &mut read).unwrap();
        assert!(read == bytes(3 * BLOCK as usize, 1), "{name}, {kind:?}");
        assert!(zfs.lookup(&ROOT, root, b"new").is_err());
    }
    after.close();
}
