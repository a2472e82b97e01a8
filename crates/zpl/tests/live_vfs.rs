//! The interface of a mount: file systems that change and such that do not, behind the same trait.
#![allow(clippy::unwrap_used)]

mod scratch;

use std::sync::Arc;

use base::{Env, Errno, ObjectId, tunable};
use pool::{Spa, SpaceKind};
use scratch::Scratch;
use zpl::create::FsProps;
use zpl::live::{AclKind, Caps, Cred, NewFile, RenameMode, SetAttr, Still, Temporary, Vfs, Wrote, XattrMode, Zfs};
use zpl::{Error, Kind, Time};

const ROOT: Cred = Cred::ROOT;
const MIB: u64 = 1 << 20;

fn errno<T>(result: Result<T, Error>) -> Errno {
    result.err().unwrap().errno()
}

fn make(vfs: &dyn Vfs, name: &str, mode: u32) -> ObjectId {
    vfs.create(&ROOT, vfs.root(), name.as_bytes(), &NewFile::new(Kind::File, mode)).unwrap().0
}

fn still(spa: &Arc<Spa>, name: &str) -> Still {
    Still::open(&spa.view().unwrap().dataset(name).unwrap()).unwrap()
}

#[test]
fn a_snapshot_is_a_file_system_that_stays() {
    let mut scratch = Scratch::with(FsProps::default(), &[("acltype", 1)]);
    let zfs = scratch.zfs();
    let live: &dyn Vfs = &zfs;
    let file = make(live, "f", 0o640);
    live.write(&ROOT, file, Some(0), &Env::noise(1, 300_000)).unwrap();
    live.setattr(&ROOT, file, &SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() }).unwrap();
    live.set_xattr(&ROOT, file, b"user.a", b"b", XattrMode::Set).unwrap();
    live.set_xattr(&ROOT, file, b"trusted.t", b"t", XattrMode::Set).unwrap();
    live.create(&ROOT, live.root(), b"l", &NewFile::symlink(b"target")).unwrap();
    scratch.spa().sync().unwrap();
    scratch.spa().snapshot(&["t@s".to_owned()], &[]).unwrap();
    let before = live.getattr(file).unwrap();
    live.truncate(&ROOT, file, 5).unwrap();
    live.unlink(&ROOT, live.root(), b"l").unwrap();
    let snapshot = still(scratch.spa(), "t@s");
    let still: &dyn Vfs = &snapshot;
    assert_eq!((still.getattr(file).unwrap(), still.root()), (before, live.root()));
    assert!(still.getattr(still.root()).unwrap().inode > 1 << 40);
    let mut data = vec![0; 400_000];
    assert_eq!(still.read(file, 0, &mut data).unwrap(), 300_000);
    assert_eq!(data[..300_000], Env::noise(1, 300_000));
    let user = |uid| Cred::user(uid, 100, []);
    assert_eq!(still.lookup(&user(1), still.root(), b"f").unwrap().0, file);
    assert_eq!(errno(still.lookup(&ROOT, still.root(), &[b'n'; 256])), Errno::ENAMETOOLONG);
    assert_eq!(errno(still.lookup(&ROOT, still.root(), b"n")), Errno::ENOENT);
    assert_eq!(errno(still.lookup(&ROOT, file, b"n")), Errno::ENOTDIR);
    let link = still.lookup(&ROOT, still.root(), b"l").unwrap().0;
    assert_eq!(still.readlink(link).unwrap(), b"target");
    let names: Vec<_> = still.read_dir(&ROOT, still.root(), 0).unwrap().map(|e| e.unwrap().name).collect();
    assert_eq!(names.len(), 2);
    // the same rules for the same callers
    for vfs in [live, still] {
        assert_eq!(errno(vfs.access(&user(1), file, 4)), Errno::EACCES);
        assert!(vfs.access(&user(7), file, 4).is_ok() && vfs.open(&user(7), file, 4).is_ok());
        assert_eq!(errno(vfs.get_xattr(&user(1), file, b"user.a")), Errno::EACCES);
        assert_eq!(vfs.get_xattr(&user(7), file, b"user.a").unwrap(), b"b");
        assert_eq!(errno(vfs.get_xattr(&user(7), file, b"trusted.t")), Errno::ENODATA);
        assert_eq!(vfs.list_xattrs(&user(7), file).unwrap(), [b"user.a"]);
        assert_eq!(vfs.list_xattrs(&ROOT, file).unwrap().len(), 2);
        assert_eq!((vfs.acl_kind(), vfs.statfs().unwrap().bsize), (AclKind::Posix, 128 << 10));
    }
    assert_eq!(still.seek_data(file, 5).unwrap(), 5);
    assert_eq!(errno(still.seek_hole(file, 300_000)), Errno::ENXIO);
    // nobody changes it
    let refused = [
        errno(still.write(&ROOT, file, Some(0), b"x")),
        errno(still.write_sync(&ROOT, file, None, b"x")),
        errno(still.truncate(&ROOT, file, 0)),
        errno(still.punch(&ROOT, file, 0..1, true)),
        errno(still.allocate(&ROOT, file, 0..1, true)),
        errno(still.setattr(&ROOT, file, &SetAttr { touch: true, ..SetAttr::default() })),
        errno(still.create(&ROOT, still.root(), b"x", &NewFile::new(Kind::File, 0))),
        errno(still.link(&ROOT, file, still.root(), b"x")),
        errno(still.unlink(&ROOT, still.root(), b"f")),
        errno(still.rmdir(&ROOT, still.root(), b"f")),
        errno(still.rename(&ROOT, still.root(), b"f", still.root(), b"g", RenameMode::Replace)),
        errno(still.set_xattr(&ROOT, file, b"user.a", b"", XattrMode::Set)),
        errno(still.remove_xattr(&ROOT, file, b"user.a")),
        errno(still.copy_range(&ROOT, (file, 0), (file, MIB), 1)),
        errno(still.open(&ROOT, file, 2)),
        errno(still.access(&ROOT, file, 2)),
    ];
    assert_eq!(refused, [Errno::EROFS; 16]);
    assert!(still.fsync(file).is_ok() && still.sync().is_ok());
    drop((snapshot, zfs));
    scratch.close();
}

/// What a write has written before it failed is told, and the rest is as if it had not been asked for.
#[test]
fn a_write_that_fails_midway_says_how_far_it_came() {
    let mut scratch = Scratch::with(FsProps::default(), &[("compression", 2), ("recordsize", 128 << 10)]);
    let zfs = scratch.zfs();
    let vfs: &dyn Vfs = &zfs;
    let file = make(vfs, "f", 0o600);
    let data = Env::noise(3, 32 << 20);
    let mut len = 0;
    let (short, error) = loop {
        let Wrote { at, len: wrote } = vfs.write(&ROOT, file, Some(len), &data).unwrap();
        assert_eq!(at, len);
        len += wrote as u64;
        if wrote < data.len() {
            break (wrote, errno(vfs.write(&ROOT, file, Some(len), &data)));
        }
    };
    assert!(short > 0 && error == Errno::ENOSPC, "{short}");
    assert_eq!(vfs.attrs(file).unwrap().size, len);
    let mut seen = vec![0; short];
    assert_eq!(vfs.read(file, len - short as u64, &mut seen).unwrap(), short);
    assert!(seen == data[..short]);
    // pages of a mapping are written whole, or not
    vfs.truncate(&ROOT, file, len - MIB).unwrap();
    for _ in 0..4 {
        scratch.spa().sync().unwrap();
    }
    let begin = len - MIB;
    assert_eq!(errno(vfs.write_back(&ROOT, file, begin, &data)), Errno::ENOSPC);
    assert!(vfs.attrs(file).unwrap().size > begin, "the test has no short write");
    drop(zfs);
    scratch.close();
}

#[test]
fn a_quota_ends_writes_likewise() {
    let mut scratch = Scratch::with(FsProps::default(), &[("compression", 2)]);
    let zfs = scratch.zfs();
    let vfs: &dyn Vfs = &zfs;
    zfs.set_quota(SpaceKind::UserQuota, 9, MIB).unwrap();
    let file = make(vfs, "f", 0o600);
    vfs.setattr(&ROOT, file, &SetAttr { uid: Some(9), ..SetAttr::default() }).unwrap();
    assert_eq!(vfs.write(&ROOT, file, Some(0), &Env::noise(1, 2 << 20)).unwrap(), Wrote { at: 0, len: 2 << 20 });
    scratch.spa().sync().unwrap();
    assert_eq!(errno(vfs.write(&ROOT, file, None, b"x")), Errno::EDQUOT);
    assert_eq!(errno(vfs.write_sync(&ROOT, file, None, b"x")), Errno::EDQUOT);
    assert_eq!(vfs.write(&ROOT, file, None, b"").unwrap(), Wrote { at: 2 << 20, len: 0 });
    drop(zfs);
    scratch.close();
}

/// One of the two times becomes now, the other stays; that is for the owner.
#[test]
fn one_time_is_set_to_now() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let vfs: &dyn Vfs = &zfs;
    let file = make(vfs, "f", 0o666);
    let (old, none) = (Time { sec: 5, nsec: 6 }, SetAttr::default());
    vfs.setattr(&ROOT, file, &SetAttr { atime: Some(old), mtime: Some(old), ..none }).unwrap();
    let attrs = vfs.setattr(&ROOT, file, &SetAttr { mtime_now: true, ..none }).unwrap();
    assert!(attrs.atime == old && attrs.mtime > old && attrs.ctime == attrs.mtime);
    let late = Time { sec: 1 << 40, nsec: 0 };
    let attrs = vfs.setattr(&ROOT, file, &SetAttr { atime_now: true, mtime: Some(late), ..none }).unwrap();
    assert!(attrs.atime > old && attrs.mtime == late);
    let other = Cred::user(5, 5, []);
    assert_eq!(errno(vfs.setattr(&other, file, &SetAttr { mtime_now: true, ..none })), Errno::EPERM);
    assert!(vfs.setattr(&other, file, &SetAttr { touch: true, ..none }).is_ok());
    // and both are in the log
    zfs.fsync(file).unwrap();
    let billion = Time { sec: 0, nsec: 1_000_000_000 };
    assert_eq!(errno(vfs.setattr(&ROOT, file, &SetAttr { mtime: Some(billion), ..none })), Errno::EINVAL);
    drop(zfs);
    scratch.close();
}

#[test]
fn space_is_looked_for_and_ranges_are_zeroed() {
    let mut scratch = Scratch::with(FsProps::default(), &[("compression", 2)]);
    let zfs = scratch.zfs();
    let vfs: &dyn Vfs = &zfs;
    let file = make(vfs, "f", 0o600);
    let size = || vfs.attrs(file).unwrap().size;
    vfs.allocate(&ROOT, file, 0..MIB, true).unwrap();
    assert_eq!(size(), 0);
    vfs.allocate(&ROOT, file, MIB..2 * MIB, false).unwrap();
    vfs.allocate(&ROOT, file, 0..MIB, false).unwrap();
    assert_eq!(size(), 2 * MIB);
    assert_eq!(errno(vfs.allocate(&ROOT, file, 0..1 << 40, true)), Errno::ENOSPC);
    assert_eq!(errno(vfs.allocate(&ROOT, file, 0..u64::MAX, true)), Errno::EFBIG);
    assert_eq!(errno(vfs.allocate(&ROOT, vfs.root(), 0..1, true)), Errno::EISDIR);
    vfs.write(&ROOT, file, Some(0), &vec![1; 2 << 20]).unwrap();
    vfs.punch(&ROOT, file, MIB..3 * MIB, true).unwrap();
    assert_eq!((size(), vfs.seek_hole(file, 0).unwrap()), (2 * MIB, MIB));
    vfs.punch(&ROOT, file, MIB / 2..3 * MIB, false).unwrap();
    assert_eq!((size(), vfs.seek_hole(file, 0).unwrap()), (3 * MIB, MIB / 2));
    assert_eq!(errno(vfs.punch(&ROOT, file, 0..u64::MAX, false)), Errno::EFBIG);
    assert_eq!(tunable::ZFS_FALLOCATE_RESERVE_PERCENT.get(), 110);
    drop(zfs);
    scratch.close();
}

#[test]
fn options_of_a_mount_take_the_place_of_properties() {
    let mut scratch = Scratch::with(FsProps::default(), &[("relatime", 0)]);
    let zfs = scratch.zfs();
    let vfs: &dyn Vfs = &zfs;
    let file = make(vfs, "f", 0o600);
    vfs.write(&ROOT, file, Some(0), b"x").unwrap();
    let read = |zfs: &Zfs| {
        zfs.read(file, 0, &mut [0]).unwrap();
        zfs.getattr(file).unwrap().atime
    };
    let first = read(&zfs);
    let mounted = vfs.mounted(Temporary { atime: Some(false), ..Temporary::default() }).unwrap();
    assert_eq!(read(&zfs), first);
    assert_eq!(errno(vfs.mounted(Temporary::default())), Errno::EBUSY);
    drop(mounted);
    let mounted = vfs.mounted(Temporary { readonly: Some(true), ..Temporary::default() }).unwrap();
    // another handle is the same file system
    assert_eq!(errno(scratch.zfs().write(&ROOT, file, 0, b"y")), Errno::EROFS);
    assert_eq!(read(&zfs), first);
    // a property that changes meanwhile does not end it
    scratch.spa().set_props("t", &[("recordsize".into(), pool::Value::Number(4096))], pool::PropSource::Local).unwrap();
    assert_eq!(errno(vfs.write(&ROOT, file, Some(0), b"y")), Errno::EROFS);
    drop(mounted);
    vfs.write(&ROOT, file, Some(0), b"y").unwrap();
    assert!(read(&zfs) > first);
    drop(zfs);
    scratch.close();
}

/// A caller whom another has checked may do what ordinary checks forbid, and no more.
#[test]
fn capabilities_are_what_they_are_for() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let vfs: &dyn Vfs = &zfs;
    let file = make(vfs, "f", 0o600);
    let none = SetAttr::default();
    let with = |caps| Cred::user(5, 5, []).with_caps(caps);
    assert_eq!(errno(vfs.open(&with(Caps::FOWNER), file, 6)), Errno::EACCES);
    assert!(vfs.open(&with(Caps::DAC_OVERRIDE), file, 6).is_ok());
    assert!(vfs.open(&with(Caps::DAC_READ_SEARCH), file, 4).is_ok());
    let give = SetAttr { uid: Some(6), ..none };
    assert_eq!(errno(vfs.setattr(&with(Caps::FOWNER), file, &give)), Errno::EPERM);
    vfs.setattr(&with(Caps::CHOWN), file, &give).unwrap();
    let bits = SetAttr { mode: Some(0o6777), ..none };
    assert_eq!(errno(vfs.setattr(&with(Caps::CHOWN), file, &bits)), Errno::EPERM);
    assert_eq!(vfs.setattr(&with(Caps::FOWNER), file, &bits).unwrap().mode & 0o7777, 0o4777);
    assert_eq!(vfs.setattr(&with(Caps::FOWNER.and(Caps::FSETID)), file, &bits).unwrap().mode & 0o7777, 0o6777);
    vfs.write(&with(Caps::FSETID), file, Some(0), b"x").unwrap();
    assert_eq!(vfs.attrs(file).unwrap().mode & 0o7777, 0o6777);
    vfs.write(&with(Caps::NONE), file, Some(0), b"x").unwrap();
    assert_eq!(vfs.attrs(file).unwrap().mode & 0o7777, 0o777);
    let set = |caps| vfs.set_xattr(&with(caps), file, b"trusted.t", b"", XattrMode::Set);
    assert_eq!(errno(set(Caps::DAC_OVERRIDE)), Errno::EPERM);
    set(Caps::SYS_ADMIN).unwrap();
    // root without capabilities is a user like others
    let root = Cred::ROOT.with_caps(Caps::NONE);
    assert_eq!(errno(vfs.setattr(&root, file, &bits)), Errno::EPERM);
    drop(zfs);
    scratch.close();
}
