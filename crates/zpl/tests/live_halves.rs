//! Operations on names that fail after their first change: no half of them reaches the disk.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // what is tested elsewhere
mod power;

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
