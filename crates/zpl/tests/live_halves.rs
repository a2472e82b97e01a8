//! Operations on names and attributes of which one step fails: nothing of them is left, neither in memory nor on disk, and the pool goes on.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // what is tested elsewhere
mod power;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use base::ObjectId;
use power::{ROOT, Rig, tree};
use vdev::testing::{Call, Tapped};
use vdev::{Device, MemoryDevice};
use zpl::live::{NewFile, RenameMode, SetAttr, XattrMode, Zfs};
use zpl::{Error, Kind, PosixAcl};

/// Bytes of the labels before the space of a device.
const LABELS: u64 = 4 << 20;

type Operation = fn(&Zfs, u64, u64) -> Result<(), Error>;

fn id(zfs: &Zfs, dir: ObjectId, name: &str) -> Result<ObjectId, Error> {
    Ok(zfs.lookup(&ROOT, dir, name.as_bytes())?.0)
}

fn set(zfs: &Zfs, dir: ObjectId, name: &str, set: SetAttr) -> Result<(), Error> {
    zfs.setattr(&ROOT, id(zfs, dir, name)?, &set).map(drop)
}

const OPERATIONS: [(&str, Operation); 26] = [
    ("create", |zfs, a, _| zfs.create(&ROOT, ObjectId(a), b"new", &NewFile::new(Kind::File, 0o644)).map(drop)),
    ("mkdir", |zfs, a, _| zfs.create(&ROOT, ObjectId(a), b"new", &NewFile::new(Kind::Directory, 0o755)).map(drop)),
    ("symlink", |zfs, a, _| {
        let target = [b't'; 900];
        zfs.create(&ROOT, ObjectId(a), b"new", &NewFile { target: &target, ..NewFile::new(Kind::Symlink, 0o777) })
            .map(drop)
    }),
    // the directory becomes a fat ZAP
    ("create a long name", |zfs, a, _| {
        zfs.create(&ROOT, ObjectId(a), &[b'n'; 200], &NewFile::new(Kind::File, 0o644)).map(drop)
    }),
    ("link", |zfs, a, b| zfs.link(&ROOT, id(zfs, ObjectId(a), "x")?, ObjectId(b), b"hard").map(drop)),
    ("unlink", |zfs, a, _| zfs.unlink(&ROOT, ObjectId(a), b"x")),
    ("unlink one of two names", |zfs, a, _| zfs.unlink(&ROOT, ObjectId(a), b"twice")),
    ("rmdir", |zfs, a, _| zfs.rmdir(&ROOT, ObjectId(a), b"dir")),
    ("rename", |zfs, a, b| zfs.rename(&ROOT, ObjectId(a), b"x", ObjectId(b), b"new", RenameMode::NoReplace)),
    ("rename in place", |zfs, a, _| zfs.rename(&ROOT, ObjectId(a), b"x", ObjectId(a), b"new", RenameMode::NoReplace)),
    ("rename a directory", |zfs, a, b| {
        zfs.rename(&ROOT, ObjectId(a), b"dir", ObjectId(b), b"new", RenameMode::NoReplace)
    }),
    ("replace", |zfs, a, b| zfs.rename(&ROOT, ObjectId(a), b"x", ObjectId(b), b"y", RenameMode::Replace)),
    ("replace a directory", |zfs, a, b| {
        zfs.rename(&ROOT, ObjectId(a), b"dir", ObjectId(b), b"dir", RenameMode::Replace)
    }),
    ("exchange", |zfs, a, b| zfs.rename(&ROOT, ObjectId(a), b"dir", ObjectId(b), b"y", RenameMode::Exchange)),
    ("whiteout", |zfs, a, b| zfs.rename(&ROOT, ObjectId(a), b"x", ObjectId(b), b"new", RenameMode::Whiteout)),
    ("whiteout and replace", |zfs, a, b| zfs.rename(&ROOT, ObjectId(a), b"x", ObjectId(b), b"y", RenameMode::Whiteout)),
    ("chmod", |zfs, a, _| set(zfs, ObjectId(a), "x", SetAttr { mode: Some(0o600), ..SetAttr::default() })),
    ("chown", |zfs, a, _| {
        set(zfs, ObjectId(a), "twice", SetAttr { uid: Some(7), gid: Some(8), mode: Some(0o604), ..SetAttr::default() })
    }),
    ("chown beside attributes", |zfs, a, _| {
        set(zfs, ObjectId(a), "x", SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() })
    }),
    ("set a project", |zfs, a, _| set(zfs, ObjectId(a), "old", SetAttr { projid: Some(5), ..SetAttr::default() })),
    ("set an attribute", |zfs, a, _| xattr(zfs, ObjectId(a), "x", 600)),
    ("set a first attribute", |zfs, a, _| xattr(zfs, ObjectId(a), "old", 3000)),
    ("set an attribute of a directory", |zfs, a, _| xattr(zfs, ObjectId(a), "dir", 20)),
    ("remove an attribute", |zfs, a, _| zfs.remove_xattr(&ROOT, id(zfs, ObjectId(a), "x")?, b"user.a")),
    ("set an ACL", |zfs, a, _| {
        zfs.set_xattr(&ROOT, id(zfs, ObjectId(a), "x")?, PosixAcl::ACCESS.as_bytes(), &acl(7), XattrMode::Set)
    }),
    ("create within a batch", |zfs, a, _| {
        zfs.batch(|zfs| zfs.create(&ROOT, ObjectId(a), b"new", &NewFile::new(Kind::Fifo, 0o644)).map(drop))
    }),
];

fn xattr(zfs: &Zfs, dir: ObjectId, name: &str, len: usize) -> Result<(), Error> {
    zfs.set_xattr(&ROOT, id(zfs, dir, name)?, b"user.a", &vec![9; len], XattrMode::Set)
}

/// A POSIX ACL with an entry for a user.
fn acl(user: u32) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, user), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)]
    {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Makes two directories. Returns their numbers.
fn prepare(zfs: &Zfs) -> (u64, u64) {
    let root = zfs.fs().root();
    let make = |dir, name: &str, kind| zfs.create(&ROOT, dir, name.as_bytes(), &NewFile::new(kind, 0o755)).unwrap().0;
    let (a, b) = (make(root, "a", Kind::Directory), make(root, "b", Kind::Directory));
    for name in ["x", "twice", "old"] {
        make(a, name, Kind::File);
    }
    make(b, "y", Kind::File);
    make(a, "dir", Kind::Directory);
    make(b, "dir", Kind::Directory);
    zfs.link(&ROOT, id(zfs, a, "twice").unwrap(), b, b"twice").unwrap();
    xattr(zfs, a, "x", 40).unwrap();
    if zfs.settings().acltype == 1 {
        let name = PosixAcl::ACCESS.as_bytes();
        zfs.set_xattr(&ROOT, id(zfs, a, "x").unwrap(), name, &acl(5), XattrMode::Set).unwrap();
        zfs.set_xattr(&ROOT, a, b"system.posix_acl_default", &acl(6), XattrMode::Set).unwrap();
    }
    (a.0, b.0)
}

/// Checks that sizes and links of directories, and links of files, are what the names say.
fn check_counts(zfs: &Zfs, what: &str) {
    let mut links: BTreeMap<u64, u64> = BTreeMap::new();
    let mut dirs = vec![zfs.fs().root()];
    while let Some(dir) = dirs.pop() {
        let (mut entries, mut below) = (0, 0);
        for entry in zfs.fs().read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            entries += 1;
            if zfs.getattr(entry.object).unwrap().kind() == Kind::Directory {
                below += 1;
                dirs.push(entry.object);
                assert_eq!(zfs.getattr(entry.object).unwrap().parent, dir, "{what}");
            } else {
                *links.entry(entry.object.0).or_default() += 1;
            }
        }
        let attrs = zfs.getattr(dir).unwrap();
        assert_eq!((attrs.size, attrs.links), (entries + 2, below + 2), "{what}, directory {dir}");
    }
    for (file, names) in links {
        assert_eq!(zfs.getattr(ObjectId(file)).unwrap().links, names, "{what}, file {file}");
    }
}

fn objects(zfs: &Zfs) -> BTreeSet<ObjectId> {
    zfs.fs().objset().objects().map(|object| object.unwrap().id()).collect()
}

/// Runs each operation again and again, with one more change before the one that fails, until it succeeds; each in a file system of its own.
fn sweep(props: &[(&str, u64)]) {
    let rig = Rig::new(&["a"]);
    let mut changed = Vec::new();
    for (nth, (name, operation)) in OPERATIONS.into_iter().enumerate() {
        let dataset = format!("t/{nth}");
        let zfs = rig.file_system(&dataset, props, false);
        let (a, b) = prepare(&zfs);
        if name == "set an ACL" && zfs.settings().acltype != 1 {
            continue;
        }
        rig.spa.sync().unwrap();
        let (before, made) = (tree(&zfs), objects(&zfs));
        for n in 0.. {
            let what = format!("{name}, change {n}");
            assert!(n < 200, "{name} never ends");
            let mut failed = false;
            let done = zfs.together(64 << 10, |zfs, tx| {
                tx.fail_once(n);
                let done = operation(zfs, a, b);
                failed = !tx.is_to_fail();
                done
            });
            if !failed {
                done.unwrap();
                assert!(n > 0, "{name} changes nothing");
                break;
            }
            assert!(done.is_err(), "{what}: no error");
            assert_eq!(tree(&zfs), before, "{what}");
            check_counts(&zfs, &what);
            // the next attempt is sometimes in the same txg
            if n % 3 == 0 {
                rig.spa.sync().unwrap();
                assert_eq!(objects(&zfs), made, "{what}");
            }
            if n == 3 {
                let after = rig.after_cut(&[], false);
                assert_eq!(tree(&after.open(&dataset)), before, "{what}, after a power cut");
            }
        }
        let now = tree(&zfs);
        assert_ne!(now, before, "{name}");
        check_counts(&zfs, name);
        changed.push((name, dataset, now));
    }
    rig.spa.sync().unwrap();
    let after = rig.after_cut(&[], false);
    for (name, dataset, tree_then) in changed {
        let found = after.open(&dataset);
        assert_eq!(tree(&found), tree_then, "{name}, after a power cut");
        check_counts(&found, name);
    }
    after.close();
}

#[test]
fn an_operation_is_done_or_undone() {
    sweep(&[("xattr", 2)]);
}

#[test]
fn an_operation_is_done_or_undone_with_lists_in_attributes() {
    sweep(&[("xattr", 2), ("acltype", 1), ("dnodesize", 1024)]);
}

#[test]
fn an_operation_is_done_or_undone_with_attributes_in_directories() {
    sweep(&[("xattr", 1), ("acltype", 1)]);
}

/// What a device does with reads: those of some stretches fail, after the first ones.
#[derive(Default)]
struct Faults {
    broken: Vec<Range<u64>>,
    /// Reads of the stretches that still succeed.
    left: u64,
    failed: u64,
}

fn broken_rig() -> (Rig, Arc<Mutex<Faults>>) {
    let faults = Arc::new(Mutex::new(Faults::default()));
    let wrap = |device: MemoryDevice| -> Arc<dyn Device> {
        let faults = faults.clone();
        let pass = move |call: &Call| {
            let mut faults = faults.lock().unwrap();
            if !matches!(call, Call::Read(_)) || !faults.broken.iter().any(|broken| call.meets(broken)) {
                return Ok(());
            }
            if let Some(left) = faults.left.checked_sub(1) {
                faults.left = left;
                return Ok(());
            }
            faults.failed += 1;
            Err(std::io::Error::other("it cannot be read"))
        };
        Arc::new(Tapped::new(Arc::new(device), pass))
    };
    (Rig::with(&["a"], &wrap), faults)
}

/// Returns where a block of an object is.
fn stretches(zfs: &Zfs, object: ObjectId, blkid: u64) -> Vec<Range<u64>> {
    let object = zfs.fs().objset().object(object).unwrap();
    let mut found = Vec::new();
    if let Some(bp) = object.blkptr(0, blkid).unwrap() {
        found.extend(bp.dvas().map(|dva| {
            let start = LABELS + dva.offset();
            start..start + dva.asize()
        }));
    }
    found
}

/// The names in some directories, and their attributes but for times.
fn names(zfs: &Zfs, dirs: &[ObjectId]) -> Vec<(BTreeSet<Vec<u8>>, u64, u64)> {
    let of = |dir: &ObjectId| {
        let all = zfs.fs().read_dir(*dir).unwrap().map(|entry| entry.unwrap().name).collect();
        let attrs = zfs.getattr(*dir).unwrap();
        (all, attrs.size, attrs.links)
    };
    dirs.iter().map(of).collect()
}

/// A leaf that becomes empty is joined with the one beside it; if that cannot be read, the entry is removed all the same.
#[test]
fn a_leaf_that_cannot_be_read_keeps_no_name_of_another() {
    let (rig, faults) = broken_rig();
    let zfs = rig.file_system("t/f", &[("primarycache", 0)], false);
    let dir = zfs.create(&ROOT, zfs.fs().root(), b"dir", &NewFile::new(Kind::Directory, 0o755)).unwrap().0;
    let names: Vec<String> = (0..600).map(|n| format!("{n:060}")).collect();
    for name in &names {
        zfs.create(&ROOT, dir, name.as_bytes(), &NewFile::new(Kind::Fifo, 0o755)).unwrap();
    }
    rig.spa.sync().unwrap();
    rig.spa.zio().arc().clear();
    let leaves = zfs.fs().objset().object(dir).unwrap().nblocks() - 1;
    assert!(leaves > 3, "{leaves} leaves");
    // the blocks are in the order of the object: the header, which has the table as well, and the leaves
    let broken = stretches(&zfs, dir, 2);
    *faults.lock().unwrap() = Faults { broken, left: 0, failed: 0 };
    let left: Vec<&String> = names.iter().filter(|name| zfs.unlink(&ROOT, dir, name.as_bytes()).is_err()).collect();
    assert!((10..300).contains(&left.len()), "{} names are left", left.len());
    *faults.lock().unwrap() = Faults::default();
    check_counts(&zfs, "one leaf");
    rig.spa.sync().unwrap();
    let after = rig.after_cut(&[], false);
    let found = after.open("t/f");
    check_counts(&found, "after a power cut");
    assert_eq!(found.getattr(dir).unwrap().size, left.len() as u64 + 2);
    for name in left {
        found.unlink(&ROOT, dir, name.as_bytes()).unwrap();
    }
    assert_eq!(found.getattr(dir).unwrap().size, 2);
    found.rmdir(&ROOT, found.fs().root(), b"dir").unwrap();
    drop(found);
    after.close();
}

/// Nothing is cached, so that every block is read when it is needed. A read later, each time, no block of the directories and of the unlinked set
/// can be read any more.
#[test]
fn blocks_that_cannot_be_read_leave_no_halves() {
    const FILES: u64 = 900;
    let operations: [(&str, Operation); 5] = [
        ("rename", |zfs, a, b| {
            zfs.rename(&ROOT, ObjectId(a), b"name 17", ObjectId(b), b"moved", RenameMode::NoReplace)
        }),
        ("replace", |zfs, a, b| {
            zfs.rename(&ROOT, ObjectId(a), b"name 18", ObjectId(b), b"name 19", RenameMode::Replace)
        }),
        ("unlink", |zfs, a, _| zfs.unlink(&ROOT, ObjectId(a), b"name 20")),
        ("link", |zfs, a, b| zfs.link(&ROOT, id(zfs, ObjectId(a), "name 21")?, ObjectId(b), b"linked").map(drop)),
        ("exchange", |zfs, a, b| {
            zfs.rename(&ROOT, ObjectId(a), b"name 22", ObjectId(b), b"name 23", RenameMode::Exchange)
        }),
    ];
    let (rig, faults) = broken_rig();
    let zfs = rig.file_system("t/f", &[("primarycache", 0)], false);
    let root = zfs.fs().root();
    let new = |kind| NewFile::new(kind, 0o755);
    let dirs = [b"a", b"b"].map(|name| zfs.create(&ROOT, root, name, &new(Kind::Directory)).unwrap().0);
    for dir in dirs {
        // too long for a micro ZAP
        zfs.create(&ROOT, dir, &[b'l'; 100], &new(Kind::File)).unwrap();
        for n in 0..FILES {
            zfs.create(&ROOT, dir, format!("name {n}").as_bytes(), &new(Kind::File)).unwrap();
        }
    }
    let master = dmu::Zap::open(zfs.fs().objset().object(ObjectId(1)).unwrap()).unwrap();
    let queue = master.lookup_u64("DELETE_QUEUE").unwrap().unwrap();
    let [a, b] = dirs;
    for (name, operation) in operations {
        let mut halves = 0;
        for left in 0.. {
            assert!(left < 100, "{name} never ends");
            rig.spa.sync().unwrap();
            rig.spa.zio().arc().clear();
            let before = names(&zfs, &dirs);
            let blocks =
                |id: ObjectId| (0..zfs.fs().objset().object(id).unwrap().nblocks()).map(move |blkid| (id, blkid));
            let all = [a, b, ObjectId(queue)].into_iter().flat_map(blocks);
            let broken = all.flat_map(|(object, blkid)| stretches(&zfs, object, blkid)).collect();
            *faults.lock().unwrap() = Faults { broken, left, failed: 0 };
            let mut used = false;
            let done = zfs.together(64 << 10, |zfs, tx| {
                let done = operation(zfs, a.0, b.0);
                used = tx.is_used();
                done
            });
            let failed = std::mem::take(&mut *faults.lock().unwrap()).failed;
            if failed == 0 {
                done.unwrap();
                break;
            }
            if done.is_ok() {
                continue;
            }
            halves += u64::from(used);
            assert_eq!(names(&zfs, &dirs), before, "{name}, after {left} reads");
            check_counts(&zfs, name);
        }
        assert!(halves > 0, "{name} read all that it needs before it changed anything");
        check_counts(&zfs, name);
    }
    rig.spa.sync().unwrap();
    let after = rig.after_cut(&[], false);
    let found = after.open("t/f");
    check_counts(&found, "after a power cut");
    assert_eq!(names(&found, &dirs), names(&zfs, &dirs));
    drop(found);
    after.close();
}
