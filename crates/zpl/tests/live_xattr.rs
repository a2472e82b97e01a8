//! Extended attributes in all their locations.
#![allow(clippy::unwrap_used)]

mod scratch;

use base::{Errno, ObjectId};
use scratch::Scratch;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, SetAttr, XattrMode, Zfs};
use zpl::{Ace, AceType, Fuid, Kind, Time, Who};

const ROOT: Cred = Cred::ROOT;
const SA: u64 = 2;
const DIR: u64 = 1;

fn file(zfs: &Zfs, name: &str, mode: u32) -> ObjectId {
    zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, mode)).unwrap().0
}

fn set(zfs: &Zfs, id: ObjectId, name: &str, value: &[u8]) {
    zfs.set_xattr(&ROOT, id, name.as_bytes(), value, XattrMode::Set).unwrap();
}

fn errno<T: std::fmt::Debug>(result: Result<T, zpl::Error>) -> Errno {
    result.unwrap_err().errno()
}

fn names(zfs: &Zfs, cred: &Cred, id: ObjectId) -> Vec<String> {
    let mut all: Vec<_> =
        zfs.list_xattrs(cred, id).unwrap().into_iter().map(|name| String::from_utf8(name).unwrap()).collect();
    all.sort();
    all
}

#[test]
fn values_of_all_sizes_find_their_place_and_come_back() {
    for kind in [SA, DIR] {
        let mut scratch = Scratch::with(FsProps::default(), &[("xattr", kind)]);
        let zfs = scratch.zfs();
        let id = file(&zfs, "f", 0o644);
        let sizes = [0usize, 1, 50, 700, 5000, 30_000, 32_768, 32_769, 65_536];
        let value = |size: usize| -> Vec<u8> { (0..size).map(|n| (n * 7 + size) as u8).collect() };
        for size in sizes {
            set(&zfs, id, &format!("user.{size}"), &value(size));
        }
        set(&zfs, id, "trusted.t", b"t");
        set(&zfs, id, "security.s", b"s");
        assert_eq!(errno(zfs.set_xattr(&ROOT, id, b"user.big", &[0; 65_537], XattrMode::Set)), Errno::E2BIG);
        drop(zfs);
        scratch.again();
        let zfs = scratch.zfs();
        assert_eq!(names(&zfs, &ROOT, id).len(), sizes.len() + 2);
        for size in sizes {
            assert_eq!(zfs.get_xattr(&ROOT, id, format!("user.{size}").as_bytes()).unwrap(), value(size), "{size}");
        }
        let node = zfs.fs().node(id).unwrap();
        let packed = node.sa_xattrs().unwrap().len();
        if kind == SA {
            assert!(packed > 4 && packed < sizes.len() + 2, "the large ones are in the hidden directory");
        } else {
            assert_eq!(packed, 0);
        }
        // a smaller value moves back from the directory, a larger one moves there: it is never in both
        set(&zfs, id, "user.65536", b"small");
        set(&zfs, id, "user.1", &value(60_000));
        assert_eq!(names(&zfs, &ROOT, id).len(), sizes.len() + 2);
        assert_eq!(zfs.get_xattr(&ROOT, id, b"user.65536").unwrap(), b"small");
        assert_eq!(zfs.get_xattr(&ROOT, id, b"user.1").unwrap(), value(60_000));
        for name in names(&zfs, &ROOT, id) {
            zfs.remove_xattr(&ROOT, id, name.as_bytes()).unwrap();
        }
        assert!(names(&zfs, &ROOT, id).is_empty());
        assert_eq!(errno(zfs.remove_xattr(&ROOT, id, b"user.1")), Errno::ENODATA);
        set(&zfs, id, "user.again", b"x");
        zfs.unlink(&ROOT, zfs.fs().root(), b"f").unwrap();
        drop(zfs);
        scratch.close();
    }
}

#[test]
fn create_and_replace_are_told_apart() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = file(&zfs, "f", 0o644);
    let put = |name: &str, mode| zfs.set_xattr(&ROOT, id, name.as_bytes(), b"v", mode);
    assert_eq!(errno(put("user.a", XattrMode::Replace)), Errno::ENODATA);
    put("user.a", XattrMode::Create).unwrap();
    assert_eq!(errno(put("user.a", XattrMode::Create)), Errno::EEXIST);
    put("user.a", XattrMode::Replace).unwrap();
    assert_eq!(errno(put("system.other", XattrMode::Set)), Errno::ENOTSUP);
    assert_eq!(errno(put(&format!("user.{}", "x".repeat(251)), XattrMode::Set)), Errno::ERANGE);
    drop(zfs);
    scratch.close();
}

#[test]
fn name_spaces_have_their_guards() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let user = Cred::user(5, 5, []);
    let (open, shut) = (file(&zfs, "open", 0o666), file(&zfs, "shut", 0o600));
    for name in ["user.u", "trusted.t", "security.s"] {
        set(&zfs, open, name, b"v");
        set(&zfs, shut, name, b"v");
    }
    assert_eq!(names(&zfs, &user, open), ["security.s", "user.u"]);
    assert_eq!(zfs.get_xattr(&user, open, b"user.u").unwrap(), b"v");
    assert_eq!(errno(zfs.get_xattr(&user, shut, b"user.u")), Errno::EACCES);
    assert_eq!(errno(zfs.get_xattr(&user, open, b"trusted.t")), Errno::ENODATA);
    assert_eq!(zfs.get_xattr(&user, shut, b"security.s").unwrap(), b"v");
    zfs.set_xattr(&user, open, b"user.u", b"w", XattrMode::Set).unwrap();
    assert_eq!(errno(zfs.set_xattr(&user, shut, b"user.u", b"w", XattrMode::Set)), Errno::EACCES);
    for name in [&b"trusted.t"[..], b"security.s"] {
        assert_eq!(errno(zfs.set_xattr(&user, open, name, b"w", XattrMode::Set)), Errno::EPERM);
    }
    let root = zfs.fs().root();
    let link = zfs.create(&ROOT, root, b"l", &NewFile::symlink(b"open")).unwrap().0;
    assert_eq!(errno(zfs.set_xattr(&ROOT, link, b"user.u", b"w", XattrMode::Set)), Errno::EPERM);
    set(&zfs, link, "trusted.t", b"v");
    drop(zfs);
    scratch.close();
}

#[test]
fn a_program_that_changes_or_gets_another_owner_loses_its_capabilities() {
    const NAME: &str = "security.capability";
    let user = Cred::user(1000, 1000, [1001]);
    for kind in [SA, DIR] {
        let mut scratch = Scratch::with(FsProps::default(), &[("xattr", kind)]);
        let zfs = scratch.zfs();
        let (id, other) = (file(&zfs, "f", 0o777), file(&zfs, "g", 0o777));
        for file in [id, other] {
            zfs.write(&ROOT, file, 0, &[7; 300_000]).unwrap();
            set(&zfs, file, "security.other", b"o");
        }
        let attr = |set: SetAttr| zfs.setattr(&ROOT, id, &set).map(drop).unwrap();
        let changes: [(&str, &dyn Fn()); 8] = [
            ("write", &|| zfs.write(&user, id, 5, b"x").unwrap()),
            ("write of root", &|| zfs.write(&ROOT, id, 5, b"x").unwrap()),
            ("append", &|| assert!(zfs.append(&user, id, b"x").is_ok())),
            ("truncate", &|| attr(SetAttr { size: Some(200_000), ..SetAttr::default() })),
            ("punch", &|| zfs.punch(&user, id, 0..1000).unwrap()),
            ("copy", &|| assert!(zfs.copy_range(&user, (other, 0), (id, 0), 300_000).is_ok())),
            ("chown", &|| attr(SetAttr { uid: Some(1000), ..SetAttr::default() })),
            ("chgrp", &|| attr(SetAttr { gid: Some(1001), ..SetAttr::default() })),
        ];
        for (what, change) in changes {
            set(&zfs, id, NAME, b"cap");
            change();
            assert_eq!(names(&zfs, &ROOT, id), ["security.other"], "{what}");
            // again, now that it is known to have none
            change();
        }
        // a new mode, new times and reads keep it; and so does being the source of a copy
        set(&zfs, id, NAME, b"cap");
        attr(SetAttr { mode: Some(0o755), mtime: Some(Time { sec: 1, nsec: 2 }), ..SetAttr::default() });
        zfs.read(id, 0, &mut [0; 10]).unwrap();
        zfs.copy_range(&ROOT, (id, 0), (other, 0), 1000).unwrap();
        zfs.write(&ROOT, id, 0, b"").unwrap();
        assert_eq!(zfs.get_xattr(&ROOT, id, NAME.as_bytes()).unwrap(), b"cap");
        drop(zfs);
        scratch.again();
        scratch.close();
    }
}

/// Makes the spill block of a file unreadable, and returns its places: to invert them again mends it.
fn spoil_spill(scratch: &mut Scratch, id: ObjectId) -> Vec<u64> {
    scratch.again();
    let spill = scratch.zfs().fs().node(id).unwrap().object().phys().spill.unwrap();
    let places: Vec<u64> = spill.dvas().map(|dva| dva.offset()).collect();
    assert!(!places.is_empty());
    scratch.again();
    scratch.invert(&places);
    places
}

/// Attributes in a spill block that cannot be read are not taken for missing ones, neither then nor after it can be read again:
/// what was removed stayed, and a second hidden directory took the place of the first.
#[test]
fn attributes_that_cannot_be_read_are_not_missing() {
    let mut scratch = Scratch::with(FsProps::default(), &[("xattr", SA)]);
    let zfs = scratch.zfs();
    let id = file(&zfs, "f", 0o755);
    // it does not compress, or else the block would be in its pointer
    let packed: Vec<u8> = (0..350u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()[..2].to_vec()).collect();
    set(&zfs, id, "user.packed", &packed);
    set(&zfs, id, "user.hidden", &[2; 40_000]);
    drop(zfs);
    let places = spoil_spill(&mut scratch, id);

    let zfs = scratch.zfs();
    assert_eq!(zfs.getattr(id).unwrap().size, 0);
    let lost = |result: Result<(), zpl::Error>| assert_eq!(errno(result), Errno::ECKSUM);
    lost(zfs.list_xattrs(&ROOT, id).map(drop));
    for name in [&b"user.packed"[..], b"user.hidden", b"user.none"] {
        lost(zfs.get_xattr(&ROOT, id, name).map(drop));
        lost(zfs.remove_xattr(&ROOT, id, name));
        lost(zfs.set_xattr(&ROOT, id, name, b"new", XattrMode::Set));
    }
    // as on Linux a write goes on, though a capability may be among them
    zfs.write(&ROOT, id, 0, b"program").unwrap();
    scratch.invert(&places);
    set(&zfs, id, "user.second", &[3; 50_000]);
    assert_eq!(names(&zfs, &ROOT, id), ["user.hidden", "user.packed", "user.second"]);
    assert!(zfs.get_xattr(&ROOT, id, b"user.hidden").unwrap() == [2; 40_000]);
    drop(zfs);
    scratch.close();
}

/// Whether an ACL lets a caller take a file is not known if it cannot be read: that is no refusal.
#[test]
fn an_acl_that_cannot_be_read_refuses_nothing() {
    let mut scratch = Scratch::with(FsProps::default(), &[("acltype", 2)]);
    let zfs = scratch.zfs();
    let id = file(&zfs, "f", 0o644);
    let named = |n: u32| {
        let who = Who::User(Fuid((n.wrapping_mul(0x9e37_79b9) >> 1).into()));
        Ace { kind: AceType::Allow, flags: 0, mask: n.wrapping_mul(0x85eb_ca6b) & 0x1ff, who, object_types: None }
    };
    zfs.set_acl(&ROOT, id, (1..100).map(named).collect()).unwrap();
    drop(zfs);
    let places = spoil_spill(&mut scratch, id);
    let zfs = scratch.zfs();
    let user = Cred::user(5, 5, []);
    let take = SetAttr { uid: Some(5), ..SetAttr::default() };
    assert_eq!(errno(zfs.setattr(&user, id, &take)), Errno::ECKSUM);
    scratch.invert(&places);
    assert_eq!(errno(zfs.setattr(&user, id, &take)), Errno::EPERM);
    drop(zfs);
    scratch.close();
}
