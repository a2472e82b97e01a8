//! Maximum sizes: dnodes, records, copies, names; and the state after a write that finds no space.
#![allow(clippy::unwrap_used)]

mod scratch;

use base::{Errno, ObjectId};
use pool::{PropSource, SpaceKind, Value};
use scratch::Scratch;
use zpl::Kind;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, RenameMode, SetAttr, XattrMode, Zfs};

const ROOT: Cred = Cred::ROOT;
const MIB: usize = 1 << 20;

fn noise(len: usize) -> Vec<u8> {
    base::Env::noise(7, len)
}

fn errno<T: std::fmt::Debug>(result: Result<T, zpl::Error>) -> Errno {
    result.unwrap_err().errno()
}

fn make(zfs: &Zfs, name: &str) -> ObjectId {
    zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap().0
}

fn set(scratch: &Scratch, prop: &str, value: u64) {
    scratch.spa().set_props("t", &[(prop.to_string(), Value::Number(value))], PropSource::Local).unwrap();
}

fn all(zfs: &Zfs, id: ObjectId) -> Vec<u8> {
    let mut data = vec![0; usize::try_from(zfs.getattr(id).unwrap().size).unwrap()];
    assert_eq!(zfs.read(id, 0, &mut data).unwrap(), data.len());
    data
}

/// Extended attributes fill the dnode, then the spill block, then a hidden directory; and move when the property changes.
#[test]
fn large_dnodes_hold_many_attributes_which_may_move() {
    for slots in [1u64, 16384] {
        let mut scratch = Scratch::with(FsProps::default(), &[("dnodesize", slots), ("xattr", 2)]);
        let zfs = scratch.zfs();
        let id = make(&zfs, "f");
        let name = |n: usize| format!("user.{n:03}");
        let value = |n: usize, len: usize| -> Vec<u8> { (0..len).map(|at| (at + n) as u8).collect() };
        for n in 0..300 {
            zfs.set_xattr(&ROOT, id, name(n).as_bytes(), &value(n, 300), XattrMode::Set).unwrap();
        }
        assert_eq!(zfs.list_xattrs(&ROOT, id).unwrap().len(), 300);
        drop(zfs);
        scratch.again();
        set(&scratch, "xattr", 1);
        let zfs = scratch.zfs();
        for n in 0..300 {
            assert_eq!(zfs.get_xattr(&ROOT, id, name(n).as_bytes()).unwrap(), value(n, 300), "{n}");
        }
        for n in (0..300).step_by(2) {
            zfs.set_xattr(&ROOT, id, name(n).as_bytes(), &value(n, 10), XattrMode::Replace).unwrap();
        }
        for n in (0..300).step_by(3) {
            zfs.remove_xattr(&ROOT, id, name(n).as_bytes()).unwrap();
        }
        drop(zfs);
        scratch.again();
        set(&scratch, "xattr", 2);
        let zfs = scratch.zfs();
        let left: Vec<usize> = (0..300).filter(|n| n % 3 != 0).collect();
        assert_eq!(zfs.list_xattrs(&ROOT, id).unwrap().len(), left.len());
        for n in &left {
            let len = if n % 2 == 0 { 10 } else { 300 };
            assert_eq!(zfs.get_xattr(&ROOT, id, name(*n).as_bytes()).unwrap(), value(*n, len), "{n}");
            zfs.set_xattr(&ROOT, id, name(*n).as_bytes(), &value(*n, 5), XattrMode::Replace).unwrap();
        }
        assert_eq!(zfs.fs().node(id).unwrap().sa_xattrs().unwrap().len(), left.len());
        drop(zfs);
        scratch.close();
    }
}

#[test]
fn three_copies_of_records_of_sixteen_mebibytes() {
    let mut scratch = Scratch::sized(512 << 20);
    for (prop, value) in
        [("recordsize", 16 << 20), ("copies", 3), ("compression", 2), ("special_small_blocks", 16 << 20)]
    {
        set(&scratch, prop, value);
    }
    let zfs = scratch.zfs();
    let id = make(&zfs, "f");
    let mut data = noise(17 * MIB + 12345);
    zfs.write(&ROOT, id, 0, &data).unwrap();
    zfs.write(&ROOT, id, 16 * MIB as u64 - 3, b"across").unwrap();
    data[16 * MIB - 3..16 * MIB + 3].copy_from_slice(b"across");
    assert_eq!(zfs.seek_hole(id, 0).unwrap(), data.len() as u64);
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert!(all(&zfs, id) == data);
    zfs.setattr(&ROOT, id, &SetAttr { size: Some(16 * MIB as u64 + 1), ..SetAttr::default() }).unwrap();
    zfs.punch(&ROOT, id, 0..16 * MIB as u64).unwrap();
    assert_eq!(zfs.seek_data(id, 0).unwrap(), 16 * MIB as u64);
    drop(zfs);
    scratch.close();
}

/// The written part of a write that ran out of space exists, as far as the size says; nothing of the rest shows when the file
/// grows.
#[test]
fn a_large_write_that_finds_no_room_leaves_a_whole_file() {
    let mut scratch = Scratch::with(FsProps::default(), &[("compression", 2)]);
    let zfs = scratch.zfs();
    let id = make(&zfs, "f");
    let data = noise(150 * MIB);
    assert_eq!(errno(zfs.write(&ROOT, id, 1000, &data)), Errno::ENOSPC);
    let size = usize::try_from(zfs.getattr(id).unwrap().size).unwrap();
    assert!(size > 20 * MIB && size < 96 * MIB, "{size}");
    // the remaining space would not have held many more records
    scratch.spa().sync().unwrap();
    let left = zfs.statfs().unwrap();
    assert!(left.bfree * left.frsize < 2 << 20, "{left:?}");
    let is_whole = |zfs: &Zfs| {
        let there = all(zfs, id);
        there[..1000].iter().all(|byte| *byte == 0)
            && there[1000..size] == data[..size - 1000]
            && there[size..].iter().all(|byte| *byte == 0)
    };
    assert!(is_whole(&zfs));
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert_eq!(zfs.getattr(id).unwrap().size, size as u64);
    zfs.setattr(&ROOT, id, &SetAttr { size: Some(size as u64 + 300_000), ..SetAttr::default() }).unwrap();
    assert!(is_whole(&zfs));
    zfs.unlink(&ROOT, zfs.fs().root(), b"f").unwrap();
    make(&zfs, "g");
    drop(zfs);
    scratch.close();
}

/// Long names that are compared case-insensitively and in one normal form of Unicode, which is longer than the stored name.
#[test]
fn long_names_fold_as_short_ones_do() {
    let fixed = FsProps { casesensitivity: 1, normalization: 0x10, ..FsProps::default() };
    let mut scratch = Scratch::with(fixed, &[("longname", 1)]);
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let (small, large) = ("\u{e9}x".repeat(250), "\u{c9}X".repeat(250));
    // the normal form is a third longer, and does not fit where the name just fits
    let unfit = zfs.create(&ROOT, root, "\u{e9}x".repeat(341).as_bytes(), &NewFile::new(Kind::File, 0o644));
    assert_eq!(errno(unfit), Errno::ENOTSUP);
    let id = make(&zfs, &small);
    assert_eq!(zfs.lookup(&ROOT, root, large.as_bytes()).unwrap().0, id);
    assert_eq!(errno(zfs.create(&ROOT, root, large.as_bytes(), &NewFile::new(Kind::File, 0o644))), Errno::EEXIST);
    let apart = "e\u{301}x".repeat(255);
    let other = make(&zfs, &apart);
    zfs.rename(&ROOT, root, small.as_bytes(), root, large.as_bytes(), RenameMode::NoReplace).unwrap();
    zfs.rename(&ROOT, root, b"nothing", root, large.as_bytes(), RenameMode::Replace).unwrap_err();
    zfs.link(&ROOT, id, root, "l".repeat(1000).as_bytes()).unwrap();
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    let names: Vec<Vec<u8>> = zfs.fs().read_dir(root).unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(names.len(), 3);
    assert!(names.contains(&large.clone().into_bytes()) && names.contains(&apart.clone().into_bytes()));
    assert_eq!(zfs.lookup(&ROOT, root, "\u{c9}X".repeat(255).as_bytes()).unwrap().0, other);
    // without the property the existing ones can still be used
    set(&scratch, "longname", 0);
    let later = zfs.create(&ROOT, root, "n".repeat(256).as_bytes(), &NewFile::new(Kind::File, 0o644));
    assert_eq!(errno(later), Errno::ENAMETOOLONG);
    zfs.rename(&ROOT, root, small.as_bytes(), root, b"short", RenameMode::Replace).unwrap();
    zfs.unlink(&ROOT, root, "L".repeat(1000).as_bytes()).unwrap();
    assert_eq!(zfs.getattr(id).unwrap().links, 1);
    drop(zfs);
    scratch.close();
}

/// All operations on names in a case-insensitive file system.
#[test]
fn renames_that_change_nothing_but_case() {
    for case in [1, 2] {
        let mut scratch = Scratch::with(FsProps { casesensitivity: case, ..FsProps::default() }, &[]);
        let zfs = scratch.zfs();
        let root = zfs.fs().root();
        let mv = |from: &str, to: &str, mode| zfs.rename(&ROOT, root, from.as_bytes(), root, to.as_bytes(), mode);
        let list = || -> Vec<String> {
            let mut names: Vec<String> =
                zfs.fs().read_dir(root).unwrap().map(|entry| String::from_utf8(entry.unwrap().name).unwrap()).collect();
            names.sort();
            names
        };
        let id = make(&zfs, "name");
        mv("name", "NAME", RenameMode::NoReplace).unwrap();
        assert_eq!(list(), ["NAME"]);
        mv("NAME", "Name", RenameMode::Replace).unwrap();
        assert_eq!((list(), zfs.getattr(root).unwrap().size), (vec!["Name".to_string()], 3));
        assert_eq!(zfs.getattr(id).unwrap().links, 1);
        // a directory, which may contain others
        let dir = zfs.create(&ROOT, root, b"Dir", &NewFile::new(Kind::Directory, 0o755)).unwrap().0;
        mv("Dir", "dIR", RenameMode::Replace).unwrap();
        let inner = zfs.create(&ROOT, dir, b"X", &NewFile::new(Kind::File, 0o644)).unwrap().0;
        zfs.rename(&ROOT, dir, b"X", root, b"x", RenameMode::Replace).unwrap();
        assert_eq!(zfs.lookup(&ROOT, root, b"x").unwrap().0, inner);
        assert_eq!((zfs.getattr(root).unwrap().links, zfs.getattr(root).unwrap().size), (3, 5));
        // a link whose name differs only in case is the same name, or another one
        let linked = zfs.link(&ROOT, inner, root, b"X").map(|_| ());
        match case {
            1 => assert_eq!(errno(linked), Errno::EEXIST),
            _ => {
                linked.unwrap();
                assert_eq!(list(), ["Name", "X", "dIR", "x"]);
                mv("x", "X", RenameMode::Replace).unwrap();
                assert_eq!(zfs.getattr(inner).unwrap().links, 2);
            }
        }
        drop(zfs);
        scratch.close();
    }
}

/// A user over a quota creates no files of any kind, and gets none from others; existing files can be made smaller.
#[test]
fn who_has_used_up_a_limit_makes_and_gets_nothing() {
    let mut scratch = Scratch::with(FsProps::default(), &[("compression", 2), ("acltype", 1)]);
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    zfs.setattr(&ROOT, root, &SetAttr { mode: Some(0o777), ..SetAttr::default() }).unwrap();
    let user = Cred::user(30, 31, [32]);
    let id = zfs.create(&user, root, b"mine", &NewFile::new(Kind::File, 0o644)).unwrap().0;
    zfs.write(&user, id, 0, &noise(MIB)).unwrap();
    zfs.fsync(id).unwrap();
    scratch.spa().sync().unwrap();
    for (kind, who) in [(SpaceKind::UserQuota, 30), (SpaceKind::GroupQuota, 31), (SpaceKind::UserObjQuota, 30)] {
        zfs.set_quota(kind, who, 1).unwrap();
        for new in [
            NewFile::new(Kind::File, 0o644),
            NewFile::new(Kind::Directory, 0o755),
            NewFile::symlink(b"target"),
            NewFile::new(Kind::Fifo, 0o644),
        ] {
            assert_eq!(errno(zfs.create(&user, root, b"new", &new)), Errno::EDQUOT, "{kind:?}");
        }
        let gets = SetAttr { uid: Some(30), gid: Some(31), ..SetAttr::default() };
        let other = make(&zfs, "other");
        assert_eq!(errno(zfs.setattr(&ROOT, other, &gets)), Errno::EDQUOT, "{kind:?}");
        assert_eq!(zfs.getattr(other).unwrap().uid(), 0);
        zfs.unlink(&ROOT, root, b"other").unwrap();
        let bytes = kind != SpaceKind::UserObjQuota;
        assert_eq!(
            zfs.append(&user, id, b"more").map_err(|e| e.errno()).err(),
            bytes.then_some(Errno::EDQUOT),
            "{kind:?}"
        );
        // existing files may be renamed, get another mode, and be truncated
        zfs.rename(&user, root, b"mine", root, b"still", RenameMode::Replace).unwrap();
        zfs.link(&user, id, root, b"mine").unwrap();
        zfs.unlink(&user, root, b"still").unwrap();
        zfs.setattr(&user, id, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        let size = zfs.getattr(id).unwrap().size - 1000;
        zfs.setattr(&user, id, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        zfs.punch(&user, id, 0..4096).unwrap();
        zfs.set_quota(kind, who, 0).unwrap();
        zfs.append(&user, id, b"more").unwrap();
    }
    drop(zfs);
    scratch.close();
}
