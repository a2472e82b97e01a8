//! Changes of attributes by users, and their permissions.
#![allow(clippy::unwrap_used)]

mod scratch;

use std::sync::atomic::{AtomicBool, Ordering};

use base::{Errno, ObjectId};
use scratch::Scratch;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, SetAttr, Vfs, XattrMode, Zfs};
use zpl::{FileFlags, Kind, Time};

const ROOT: Cred = Cred::ROOT;

fn user(uid: u32) -> Cred {
    Cred::user(uid, uid, [500])
}

fn file_of(zfs: &Zfs, name: &str, uid: u32, mode: u32) -> ObjectId {
    let id = zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, mode)).unwrap().0;
    zfs.setattr(&ROOT, id, &SetAttr { uid: Some(uid), gid: Some(uid), ..SetAttr::default() }).unwrap();
    id
}

fn errno<T: std::fmt::Debug>(result: Result<T, zpl::Error>) -> Errno {
    result.unwrap_err().errno()
}

#[test]
fn owners_change_what_is_theirs() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10, 0o666);
    let none = SetAttr::default();
    let mode = |mode| SetAttr { mode: Some(mode), ..none };
    assert_eq!(errno(zfs.setattr(&user(11), id, &mode(0o600))), Errno::EPERM);
    let attrs = zfs.setattr(&user(10), id, &mode(0o2640)).unwrap();
    assert_eq!(attrs.mode, 0o102_640);
    // the ACL is equivalent to the mode, so that other implementations agree
    let acl = zfs.fs().node(id).unwrap().acl().unwrap();
    assert_eq!((acl.aces.len(), acl.is_trivial), (3, true));
    // users may not give files away, but may change the group to one that they are in
    assert_eq!(errno(zfs.setattr(&user(10), id, &SetAttr { uid: Some(11), ..none })), Errno::EPERM);
    assert_eq!(errno(zfs.setattr(&user(10), id, &SetAttr { gid: Some(11), ..none })), Errno::EPERM);
    assert_eq!(zfs.setattr(&user(10), id, &SetAttr { gid: Some(500), ..none }).unwrap().gid(), 500);
    let time = Time { sec: -5, nsec: 7 };
    let set = SetAttr { mtime: Some(time), atime: Some(time), crtime: Some(time), ..none };
    assert_eq!(errno(zfs.setattr(&user(11), id, &set)), Errno::EPERM);
    let attrs = zfs.setattr(&user(10), id, &set).unwrap();
    assert_eq!((attrs.mtime, attrs.atime, attrs.crtime), (time, time, time));
    assert!(attrs.ctime > time);
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert_eq!(zfs.getattr(id).unwrap(), attrs);
    assert_eq!(zfs.fs().node(id).unwrap().attrs(), &attrs);
    drop(zfs);
    scratch.close();
}

/// The values of a hidden directory change with their file, while another thread removes them.
#[test]
fn a_chown_meets_attributes_that_leave() {
    const ROUNDS: u32 = 300;
    let names: [&[u8]; 4] = [b"user.a", b"user.b", b"user.c", b"user.d"];
    let mut scratch = Scratch::with(FsProps::default(), &[("xattr", 1)]);
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10, 0o644);
    let set = |name| zfs.set_xattr(&ROOT, id, name, b"value", XattrMode::Set).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for uid in 0..ROUNDS {
                let change = SetAttr { uid: Some(uid), ..SetAttr::default() };
                assert_eq!(zfs.setattr(&ROOT, id, &change).unwrap().uid(), uid);
            }
        });
        for _ in 0..ROUNDS {
            names.into_iter().for_each(set);
            names.into_iter().for_each(|name| zfs.remove_xattr(&ROOT, id, name).unwrap());
        }
    });
    drop(zfs);
    scratch.close();
}

/// A caller who was the owner at the first check may not be at the change: he sets no set-user-id bit on root's file.
#[test]
fn a_mode_is_set_by_who_owns_the_file_then() {
    const ROUNDS: usize = 1000;
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "program", 10, 0o755);
    let none = SetAttr::default();
    let give = |uid| zfs.setattr(&ROOT, id, &SetAttr { uid: Some(uid), ..none }).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = zfs.setattr(&user(10), id, &SetAttr { mode: Some(0o4755), ..none });
            }
        });
        let won = (0..ROUNDS).find(|_| {
            give(10);
            std::thread::yield_now();
            give(0);
            (0..4).any(|_| {
                std::thread::yield_now();
                let attrs = zfs.getattr(id).unwrap();
                attrs.uid() == 0 && attrs.mode & 0o4000 != 0
            })
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(won, None, "root's, and set-user-id by another");
    });
    // nor does a change of the mode undo one of the owner, or the other way round
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..ROUNDS).for_each(|n| {
                let mode = 0o600 | (n as u32 % 64);
                zfs.setattr(&ROOT, id, &SetAttr { mode: Some(mode), ..none }).unwrap();
                assert_eq!(zfs.getattr(id).unwrap().mode & 0o777, mode);
            })
        });
        scope.spawn(|| {
            (0..ROUNDS as u32).for_each(|uid| {
                give(uid);
                assert_eq!(zfs.getattr(id).unwrap().uid(), uid);
            })
        });
    });
    drop(zfs);
    scratch.close();
}

/// `open` checks, and what is open can be used: a file that is made with mode 444 is written, and cut, by who made it.
#[test]
fn an_open_file_is_cut_whatever_its_mode_is_by_then() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10, 0o444);
    zfs.write(&user(10), id, 0, b"abcdef").unwrap();
    assert_eq!(errno(zfs.setattr(&user(10), id, &SetAttr { size: Some(3), ..SetAttr::default() })), Errno::EACCES);
    assert_eq!(Vfs::truncate(&zfs, &user(10), id, 3).unwrap().size, 3);
    assert_eq!(Vfs::truncate(&zfs, &user(10), id, 1 << 20).unwrap().size, 1 << 20);
    assert_eq!(errno(Vfs::truncate(&zfs, &user(10), id, u64::MAX)), Errno::EFBIG);
    assert_eq!(errno(Vfs::truncate(&zfs, &ROOT, zfs.fs().root(), 0)), Errno::EISDIR);
    zfs.setattr(&ROOT, id, &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    assert_eq!(Vfs::truncate(&zfs, &user(10), id, 5).unwrap().mode, 0o100_755);
    zfs.setattr(&ROOT, id, &SetAttr { flags: Some(FileFlags::APPENDONLY), ..SetAttr::default() }).unwrap();
    assert_eq!(errno(Vfs::truncate(&zfs, &ROOT, id, 0)), Errno::EPERM);
}

#[test]
fn a_chown_ends_the_set_id_bits_of_a_program() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10, 0o755);
    zfs.setattr(&ROOT, id, &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    let attrs = zfs.setattr(&ROOT, id, &SetAttr { uid: Some(11), ..SetAttr::default() }).unwrap();
    assert_eq!((attrs.mode, attrs.uid(), attrs.gid()), (0o100_755, 11, 10));
    // a chmod by a caller outside the group does not set the set-group-id bit
    zfs.setattr(&ROOT, id, &SetAttr { gid: Some(99), ..SetAttr::default() }).unwrap();
    let attrs = zfs.setattr(&user(11), id, &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    assert_eq!(attrs.mode, 0o104_755);
    drop(zfs);
    scratch.close();
}

#[test]
fn flags_bind_everybody_until_root_clears_them() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10, 0o666);
    let flags = |new: FileFlags| SetAttr { flags: Some(new), ..SetAttr::default() };
    let now = zfs.getattr(id).unwrap().flags;
    assert_eq!(errno(zfs.setattr(&user(10), id, &flags(FileFlags(now.0 | FileFlags::IMMUTABLE.0)))), Errno::EPERM);
    let nodump = FileFlags(now.0 | FileFlags::NODUMP.0);
    assert!(zfs.setattr(&user(10), id, &flags(nodump)).unwrap().flags.has(FileFlags::NODUMP));
    zfs.setattr(&ROOT, id, &flags(FileFlags::IMMUTABLE)).unwrap();
    assert_eq!(errno(zfs.write(&ROOT, id, 0, b"x")), Errno::EPERM);
    assert_eq!(errno(zfs.punch(&ROOT, id, 0..1)), Errno::EPERM);
    assert_eq!(errno(zfs.setattr(&ROOT, id, &SetAttr { mode: Some(0o777), ..SetAttr::default() })), Errno::EPERM);
    assert_eq!(errno(zfs.setattr(&ROOT, id, &SetAttr { size: Some(0), ..SetAttr::default() })), Errno::EPERM);
    assert_eq!(errno(zfs.set_xattr(&ROOT, id, b"user.a", b"b", XattrMode::Set)), Errno::EPERM);
    // users cannot change the flags of the ACL
    let attrs = zfs.setattr(&ROOT, id, &flags(FileFlags::APPENDONLY)).unwrap();
    assert!(attrs.flags.has(FileFlags::ACL_TRIVIAL) && attrs.flags.has(FileFlags::APPENDONLY));
    assert!(!attrs.flags.has(FileFlags::IMMUTABLE));
    // whoever would overwrite learns it when he opens
    assert_eq!(errno(Vfs::open(&zfs, &ROOT, id, 6)), Errno::EPERM);
    assert_eq!(errno(Vfs::open(&zfs, &user(10), id, 2)), Errno::EPERM);
    drop((Vfs::open(&zfs, &user(10), id, 10).unwrap(), Vfs::open(&zfs, &user(10), id, 4).unwrap()));
    zfs.append(&ROOT, id, b"abc").unwrap();
    zfs.append(&ROOT, id, b"def").unwrap();
    assert_eq!(errno(zfs.write(&ROOT, id, 2, b"x")), Errno::EPERM);
    assert_eq!(errno(zfs.setattr(&ROOT, id, &SetAttr { size: Some(0), ..SetAttr::default() })), Errno::EPERM);
    drop(zfs);
    scratch.close();
}

#[test]
fn a_project_is_given_to_files_and_what_hides_behind_them() {
    let mut scratch = Scratch::with(FsProps::default(), &[("xattr", 1)]);
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10, 0o666);
    zfs.set_xattr(&ROOT, id, b"user.a", b"value", XattrMode::Set).unwrap();
    let attrs = zfs.setattr(&ROOT, id, &SetAttr { projid: Some(77), uid: Some(12), ..SetAttr::default() }).unwrap();
    assert_eq!((attrs.projid, attrs.uid()), (Some(77), 12));
    let hidden = zfs.getattr(attrs.xattr_dir).unwrap();
    assert_eq!((hidden.projid, hidden.uid()), (Some(77), 12));
    assert_eq!(errno(zfs.setattr(&ROOT, id, &SetAttr { projid: Some(u64::MAX), ..SetAttr::default() })), Errno::EINVAL);
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert_eq!(zfs.getattr(id).unwrap().projid, Some(77));
    assert_eq!(zfs.get_xattr(&ROOT, id, b"user.a").unwrap(), b"value");
    drop(zfs);
    scratch.close();
}

#[test]
fn reads_stamp_the_time_of_access_as_the_properties_say() {
    let mut scratch = Scratch::with(FsProps::default(), &[("relatime", 1)]);
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10, 0o666);
    zfs.write(&ROOT, id, 0, b"abc").unwrap();
    let before = zfs.getattr(id).unwrap();
    zfs.read(id, 0, &mut [0]).unwrap();
    let first = zfs.getattr(id).unwrap();
    assert!(first.atime > before.atime && first.ctime == before.ctime);
    zfs.read(id, 0, &mut [0]).unwrap();
    assert_eq!(zfs.getattr(id).unwrap().atime, first.atime);
    drop(zfs);
    scratch.close();
    let mut scratch = Scratch::with(FsProps::default(), &[("atime", 0)]);
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10, 0o666);
    zfs.write(&ROOT, id, 0, b"abc").unwrap();
    let before = zfs.getattr(id).unwrap();
    zfs.read(id, 0, &mut [0]).unwrap();
    assert_eq!(zfs.getattr(id).unwrap(), before);
    drop(zfs);
    scratch.close();
}
