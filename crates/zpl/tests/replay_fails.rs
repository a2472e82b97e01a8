//! A log record that cannot be carried out ends the replay: all before it is there, nothing of it, and nothing behind it (OpenZFS: `zil_replay_error`).
//! It is told, and the file system goes on.
#![allow(clippy::unwrap_used, dead_code)]

mod power;

use std::collections::BTreeMap;
use std::sync::Arc;

use base::ObjectId;
use ondisk::BlkPtr;
use ondisk::zil::{AclPart, AttrPart, Create, Record, Rename, SetAttr, TxType, Whiteout, Write};
use pool::{PropSource, Spa, Value};
use power::{ROOT, Rig, bytes, tree};
use zil::write::{Itx, ItxData};
use zpl::Kind;
use zpl::live::{NewFile, Zfs};

const BLOCK: u64 = 4096;
/// Objects that are free.
const FREE: [ObjectId; 3] = [ObjectId(100), ObjectId(101), ObjectId(102)];

fn create<'a>(doid: ObjectId, foid: ObjectId, name: &'a [u8]) -> Create<'a> {
    let (crtime, uid, gid) = ([1, 0], 0, 0);
    let (mode, slots, generation, rdev) = (0o100_644, 1, 1, 0);
    let (attrs, acl, domains, link) = (None, None, Vec::new(), None);
    Create { doid, foid, slots, mode, uid, gid, generation, crtime, rdev, attrs, acl, domains, name, link }
}

fn rename<'a>(from: (ObjectId, &'a [u8]), to: (ObjectId, &'a [u8]), whiteout: Option<Whiteout>) -> Record<'a> {
    Record::Rename(Rename { sdoid: from.0, src: from.1, tdoid: to.0, dst: to.1, whiteout })
}

/// The files that each file system has.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Files {
    root: ObjectId,
    dir: ObjectId,
    file: ObjectId,
    /// A directory with many names.
    large: ObjectId,
}

fn prepare(rig: &Rig, dataset: &str) -> (Zfs, Files) {
    let zfs = rig.file_system(dataset, &[("recordsize", BLOCK)], false);
    let root = zfs.fs().root();
    let make = |dir, name: &[u8], kind| zfs.create(&ROOT, dir, name, &NewFile::new(kind, 0o755)).unwrap().0;
    let (dir, file, large) =
        (make(root, b"dir", Kind::Directory), make(root, b"file", Kind::File), make(root, b"large", Kind::Directory));
    make(dir, b"in", Kind::File);
    make(large, &[b'n'; 100], Kind::File);
    zfs.write(&ROOT, file, 0, &bytes(3 * BLOCK as usize, 1)).unwrap();
    (zfs, Files { root, dir, file, large })
}

/// Puts records into the log of a file system, which knows nothing of them.
fn log(spa: &Arc<Spa>, zfs: &Zfs, records: &[(TxType, Record<'_>)]) {
    let zil = spa.zil(zfs.fs().objset());
    for (kind, record) in records {
        let itx = Itx { record: record.encode(*kind), object: None, sync: true, data: ItxData::InRecord };
        zil.assign(&spa.tx(1 << 10).unwrap(), itx);
    }
    zil.commit(None).unwrap();
}

/// What the history says of replays of this file system that ended early.
fn told(spa: &Arc<Spa>, dataset: &str) -> Vec<String> {
    let all = spa.view().unwrap().history().unwrap();
    let all = all.iter().filter_map(|record| record.list.get_str("history internal str").map(str::to_owned));
    all.filter(|text| text.contains(&format!("log of {dataset} ended"))).collect()
}

/// The files of a file system, but for when they were made.
fn timeless(zfs: &Zfs) -> BTreeMap<String, String> {
    let without = |told: String| {
        let (front, back) = told.split_once(" born ").unwrap();
        format!("{front} {}", back.split_once(" flags ").unwrap().1)
    };
    tree(zfs).into_iter().map(|(path, told)| (path, without(told))).collect()
}

#[test]
fn a_record_that_fails_ends_the_replay_and_leaves_nothing_half_done() {
    let rig = Rig::new(&["/a"]);
    let (control, files) = prepare(&rig, "t/control");
    let Files { root, dir, file, large } = files;
    let whiteout =
        Whiteout { foid: FREE[1], slots: 256, mode: 0, uid: 0, gid: 0, generation: 1, crtime: [1, 0], rdev: 0 };
    let scanstamp = [0xff; 32];
    let bad_project =
        AttrPart { bitmap: vec![0x4_0000 | 0x10, 0, 0], attrs: 0x10, crtime: [0, 0], scanstamp: &scanstamp };
    let setattr = SetAttr {
        foid: file,
        mask: 0x3 | 1 << 31,
        mode: 0o600,
        uid: 77,
        gid: 0,
        size: 0,
        atime: [0, 0],
        mtime: [0, 0],
        attrs: Some(bad_project),
        domains: Vec::new(),
    };
    let short_list = || AclPart { count: 3, flags: 0, aces: &[0; 8], fuids: Vec::new(), domains: Vec::new() };
    let write = Write { foid: file, offset: 1 << 63, length: 4, blkptr: BlkPtr::HOLE, data: Some(b"data") };
    let records = [
        (TxType::Create, Record::Create(create(root, FREE[1], b"file"))),
        (TxType::Mkdir, Record::Create(Create { mode: 0o040_755, ..create(root, FREE[1], b"dir") })),
        (TxType::Create, Record::Create(create(root, file, b"new"))),
        (TxType::Create, Record::Create(create(file, FREE[1], b"new"))),
        (TxType::CreateAcl, Record::Create(Create { acl: Some(short_list()), ..create(root, FREE[1], b"new") })),
        (TxType::Mkxattr, Record::Create(create(FREE[1], FREE[2], b""))),
        (TxType::Remove, Record::Remove { doid: root, name: b"none" }),
        (TxType::Remove, Record::Remove { doid: large, name: &[b'n'; 100] }),
        (TxType::Rmdir, Record::Remove { doid: root, name: b"dir" }),
        (TxType::Link, Record::Link { doid: root, link_obj: FREE[1], name: b"new" }),
        (TxType::Link, Record::Link { doid: root, link_obj: file, name: b"dir" }),
        (TxType::Rename, rename((root, b"none"), (dir, b"new"), None)),
        (TxType::Rename, rename((root, b"dir"), (root, b"file"), None)),
        (TxType::RenameExchange, rename((root, b"file"), (dir, b"none"), None)),
        (TxType::RenameWhiteout, rename((root, b"file"), (dir, b"new"), Some(whiteout))),
        (TxType::Setattr, Record::SetAttr(setattr)),
        (TxType::Acl, Record::Acl { foid: file, acl: short_list() }),
        (TxType::Write, Record::Write(write)),
    ];
    let made: Vec<_> = (0..records.len()).map(|n| prepare(&rig, &format!("t/f{n}"))).collect();
    rig.spa.sync().unwrap();
    // the chains begin, which takes a txg
    for (zfs, own) in made.iter().map(|(zfs, own)| (zfs, own)).chain([(&control, &files)]) {
        assert_eq!(*own, files);
        zfs.write(&ROOT, file, 0, &bytes(100, 1)).unwrap();
        zfs.fsync(file).unwrap();
    }
    rig.spa.sync().unwrap();
    let before = || (TxType::Create, Record::Create(create(root, FREE[0], b"before")));
    let behind = || (TxType::Create, Record::Create(create(root, FREE[2], b"behind")));
    log(&rig.spa, &control, &[before()]);
    for ((zfs, _), record) in made.iter().zip(&records) {
        log(&rig.spa, zfs, &[before(), record.clone(), behind()]);
    }
    // a device returns other bytes for the names of one directory
    let damaged =
        records.iter().position(|(_, record)| matches!(record, Record::Remove { doid, .. } if *doid == large));
    let leaf = made[damaged.unwrap()].0.fs().objset().object(large).unwrap().blkptr(0, 1).unwrap().unwrap();
    leaf.dvas().for_each(|dva| rig.damage("/a", dva.offset(), dva.asize()));

    let after = rig.after_cut(&[], false);
    drop((made, control));
    let spa = after.spa.as_ref().unwrap();
    let wanted = timeless(&after.open("t/control"));
    assert!(told(spa, "t/control").is_empty() && wanted.contains_key("/before"));
    for (n, (kind, record)) in records.iter().enumerate() {
        let name = format!("t/f{n}");
        let zfs = after.open(&name);
        let what = format!("{name}, {kind:?}, {record:?}");
        assert_eq!(told(spa, &name).len(), 1, "{what}");
        // nobody can list the damaged directory
        let is_damaged = Some(n) == damaged;
        if !is_damaged {
            assert_eq!(timeless(&zfs), wanted, "{what}");
        }
        assert!(zfs.lookup(&ROOT, root, b"before").is_ok() && zfs.lookup(&ROOT, root, b"behind").is_err(), "{what}");
        let object = |id: ObjectId| zfs.fs().objset().object(id).is_ok();
        assert_eq!(FREE.map(object), [true, false, false], "{what}");
        // and it goes on
        zfs.create(&ROOT, root, b"later", &NewFile::new(Kind::File, 0o644)).unwrap();
        assert_eq!(zfs.fs().objset().phys().zil_header.flags & zil::claim::REPLAY_NEEDED, 0);
        drop(zfs);
        if is_damaged {
            spa.destroy_head(&name).unwrap();
        }
    }
    after.close();
}

/// What was promised is replayed though others have reserved all space meanwhile: a replay may use what is kept back for frees.
#[test]
fn a_replay_does_not_end_for_what_others_have_reserved() {
    let rig = Rig::new(&["/a"]);
    let (zfs, files) = prepare(&rig, "t/f");
    drop(rig.file_system("t/other", &[], false));
    rig.spa.sync().unwrap();
    zfs.write(&ROOT, files.file, 0, &bytes(100, 1)).unwrap();
    zfs.fsync(files.file).unwrap();
    rig.spa.sync().unwrap();
    let data = bytes(32 << 10, 9);
    let len = data.len() as u64;
    let of = |n: u64| {
        let write = Write { foid: files.file, offset: n * len, length: len, blkptr: BlkPtr::HOLE, data: Some(&data) };
        (TxType::Write, Record::Write(write))
    };
    let new = || (TxType::Create, Record::Create(create(files.root, FREE[0], b"new")));
    let records: Vec<_> = (0..256).map(of).chain([new()]).collect();
    log(&rig.spa, &zfs, &records);
    drop(zfs);
    let after = rig.after_cut(&[], false);
    let spa = after.spa.as_ref().unwrap();
    let space = spa.view().unwrap().dataset("t/other").unwrap().prop("available").unwrap().unwrap().value;
    let most = Value::Number(space.number().unwrap() - (1 << 20));
    spa.set_props("t/other", &[("reservation".to_owned(), most)], PropSource::Local).unwrap();
    let zfs = after.open("t/f");
    assert!(told(spa, "t/f").is_empty());
    zfs.lookup(&ROOT, files.root, b"new").unwrap();
    let mut read = vec![0; 256 * data.len()];
    assert_eq!(zfs.read(files.file, 0, &mut read).unwrap(), read.len());
    assert!(read.chunks_exact(data.len()).all(|chunk| chunk == data));
    drop(zfs);
    after.close();
}
