//! Operations on names that fail after their first change: no half of them reaches the disk.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // what is tested elsewhere
mod power;

use base::Errno;
use dmu::sa::{Attr, SaTable, words};
use power::{ROOT, Rig, tree};
use zpl::Kind;
use zpl::live::{NewFile, RenameMode, Zfs};

type Operation = fn(&Zfs, u64, u64) -> Result<(), zpl::Error>;

const OPERATIONS: [(&str, Operation); 8] = [
    ("create", |zfs, a, _| zfs.create(&ROOT, a, b"new", &NewFile::new(Kind::File, 0o644)).map(drop)),
    ("mkdir", |zfs, a, _| zfs.create(&ROOT, a, b"new", &NewFile::new(Kind::Directory, 0o755)).map(drop)),
    ("link", |zfs, a, b| zfs.link(&ROOT, zfs.lookup(&ROOT, a, b"x")?.0, b, b"hard").map(drop)),
    ("unlink", |zfs, a, _| zfs.unlink(&ROOT, a, b"x")),
    ("rmdir", |zfs, a, _| zfs.rmdir(&ROOT, a, b"dir")),
    ("replace", |zfs, a, b| zfs.rename(&ROOT, a, b"x", b, b"y", RenameMode::Replace)),
    ("exchange", |zfs, a, b| zfs.rename(&ROOT, a, b"dir", b, b"y", RenameMode::Exchange)),
    ("whiteout", |zfs, a, b| zfs.rename(&ROOT, a, b"x", b, b"y", RenameMode::Whiteout)),
];

/// Returns a pool with two directories, and their numbers.
fn prepared() -> (Rig, Zfs, u64, u64) {
    let rig = Rig::new(&["a"]);
    let zfs = Zfs::open(&rig.spa, "t").unwrap();
    let root = zfs.fs().root();
    let make = |dir, name: &str, kind| zfs.create(&ROOT, dir, name.as_bytes(), &NewFile::new(kind, 0o755)).unwrap().0;
    let (a, b) = (make(root, "a", Kind::Directory), make(root, "b", Kind::Directory));
    make(a, "x", Kind::File);
    make(a, "dir", Kind::Directory);
    make(b, "y", Kind::File);
    rig.spa.sync().unwrap();
    (rig, zfs, a, b)
}

#[test]
fn half_of_an_operation_is_not_committed() {
    for (name, operation) in OPERATIONS {
        for changes in 0.. {
            assert!(changes < 50, "{name} never ends");
            let (rig, zfs, a, b) = prepared();
            let before = tree(&zfs);
            let done = zfs.together(64 << 10, |zfs, tx| {
                tx.fail_after(changes);
                operation(zfs, a, b)
            });
            let synced = rig.spa.sync();
            if done.is_ok() {
                synced.unwrap();
                assert_ne!(tree(&zfs), before, "{name}");
                break;
            }
            if changes == 0 {
                synced.unwrap();
            }
            drop(zfs);
            let after = rig.after_cut(&[], false);
            assert_eq!(tree(&after.open("t")), before, "{name}, after {changes} changes");
        }
    }
}

/// Link counts that are too low on disk: they became 0, which makes a directory one without a name.
#[test]
fn a_link_count_that_cannot_be_is_not_made_up() {
    let (rig, zfs, a, b) = prepared();
    let x = zfs.lookup(&ROOT, a, b"x").unwrap().0;
    let objset = zfs.fs().objset().clone();
    let master = dmu::Zap::open(objset.object(1).unwrap()).unwrap();
    let table = SaTable::load(&objset, master.lookup_u64("SA_ATTRS").unwrap().unwrap()).unwrap();
    zfs.change(64 << 10, |tx| {
        for (id, links) in [(a, 2), (x, 0)] {
            table.update(tx, &objset.object(id)?, &[(Attr::Links, words(&[links]).into())])?;
        }
        Ok(())
    })
    .unwrap();
    rig.spa.sync().unwrap();
    drop((zfs, objset, master));
    let after = rig.after_cut(&[], false);
    let zfs = after.open("t");
    let before = tree(&zfs);
    let errno = |done: Result<(), zpl::Error>| done.unwrap_err().errno();
    assert_eq!(errno(zfs.rmdir(&ROOT, a, b"dir")), Errno::EIO);
    assert_eq!(errno(zfs.rename(&ROOT, a, b"dir", b, b"dir", RenameMode::Replace)), Errno::EIO);
    assert_eq!(errno(zfs.unlink(&ROOT, a, b"x")), Errno::EIO);
    after.spa.as_ref().unwrap().sync().unwrap();
    assert_eq!(tree(&zfs), before);
}
