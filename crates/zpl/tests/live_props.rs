//! Properties of datasets apply to writers of files: quotas, record sizes, waits for the disk, visible ACLs.
#![allow(clippy::unwrap_used)]

mod scratch;

use std::sync::Barrier;

use base::{Errno, ObjectId};
use dmu::Zap;
use pool::{PropSource, Value};
use scratch::Scratch;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, SetAttr, XattrMode, Zfs};
use zpl::{FileSystem, Kind, PosixAce, PosixAcl, PosixTag};

const ROOT: Cred = Cred::ROOT;
const MIB: usize = 1 << 20;

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
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

#[test]
fn a_file_system_takes_no_more_than_its_quota() {
    let mut scratch = Scratch::with(FsProps::default(), &[("compression", 2)]);
    let zfs = scratch.zfs();
    for quota in ["refquota", "quota"] {
        set(&scratch, quota, 8 << 20);
        let mut made = Vec::new();
        // a write that reaches the quota may exceed it, the next one fails
        let refused = (0..40).find_map(|n| {
            let id = make_in(&zfs, &format!("{quota}{n}"), &mut made)?;
            zfs.write(&ROOT, id, 0, &noise(MIB)).err()
        });
        assert_eq!(refused.unwrap().errno(), Errno::EDQUOT, "{quota}");
        assert!((7..=11).contains(&made.len()), "{quota}: {}", made.len());
        assert_eq!(errno(zfs.create(&ROOT, zfs.fs().root(), b"x", &NewFile::new(Kind::File, 0o644))), Errno::EDQUOT);
        // the same in a batch
        let batch = zfs.batch(|zfs| zfs.create(&ROOT, zfs.fs().root(), b"x", &NewFile::new(Kind::File, 0o644)));
        assert_eq!(errno(batch), Errno::EDQUOT);
        // a full dataset can be emptied, and then be filled again
        for name in &made {
            zfs.unlink(&ROOT, zfs.fs().root(), name.as_bytes()).unwrap();
        }
        scratch.spa().sync().unwrap();
        make(&zfs, quota);
        set(&scratch, quota, 0);
    }
    drop(zfs);
    scratch.close();
}

/// Creates a file if there is space.
fn make_in(zfs: &Zfs, name: &str, made: &mut Vec<String>) -> Option<ObjectId> {
    match zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)) {
        Ok((id, _)) => {
            made.push(name.to_string());
            Some(id)
        }
        Err(_) => {
            // writes to existing files fail with the same error
            Some(zfs.lookup(&ROOT, zfs.fs().root(), made.last()?.as_bytes()).unwrap().0)
        }
    }
}

#[test]
fn records_are_as_large_as_the_pool_can_have_them() {
    let large = |features: bool| {
        // one feature requires the other
        let scratch = Scratch::tuned(FsProps::default(), &[("recordsize", 1 << 20)], |create| {
            if !features {
                create.features.retain(|name| !matches!(*name, "large_blocks" | "large_microzap"));
            }
        });
        let zfs = scratch.zfs();
        let id = make(&zfs, "f");
        zfs.write(&ROOT, id, 0, &noise(3 * MIB)).unwrap();
        let size = zfs.fs().node(id).unwrap().block_size();
        (zfs.settings().recordsize, size)
    };
    assert_eq!(large(true), (1 << 20, 1 << 20));
    assert_eq!(large(false), (128 << 10, 128 << 10));
}

#[test]
fn nobody_waits_where_sync_is_disabled() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = make(&zfs, "f");
    scratch.spa().sync().unwrap();
    let synced = || scratch.spa().uberblock().txg;
    let waits = || {
        zfs.append(&ROOT, id, b"x").unwrap();
        let before = synced();
        zfs.fsync(id).unwrap();
        synced() > before
    };
    assert!(waits());
    set(&scratch, "sync", 2);
    assert!(!waits());
    set(&scratch, "sync", 0);
    assert!(waits());
}

/// Properties apply at once to an open file system, including those of its ancestors.
#[test]
fn a_file_system_that_is_open_knows_what_its_properties_became() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = make(&zfs, "f");
    set(&scratch, "recordsize", 8192);
    assert_eq!(zfs.settings().recordsize, 8192);
    set(&scratch, "readonly", 1);
    assert_eq!(zfs.append(&ROOT, id, b"x").unwrap_err().errno(), Errno::EROFS);
    scratch.spa().inherit_prop("t", "readonly", false).unwrap();
    zfs.append(&ROOT, id, b"x").unwrap();
}

#[test]
fn whoever_writes_a_file_may_stamp_it_with_the_present() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = make(&zfs, "f");
    let chmod = |mode| zfs.setattr(&ROOT, id, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
    let old = Some(zpl::Time { sec: 5, nsec: 0 });
    zfs.setattr(&ROOT, id, &SetAttr { atime: old, mtime: old, ..SetAttr::default() }).unwrap();
    chmod(0o622);
    let other = Cred::user(7, 7, []);
    let touch = SetAttr { touch: true, ..SetAttr::default() };
    // the current time, but no other
    assert_eq!(errno(zfs.setattr(&other, id, &SetAttr { mtime: old, ..SetAttr::default() })), Errno::EPERM);
    let now = zfs.setattr(&other, id, &touch).unwrap();
    assert!(now.atime.sec > 5 && now.mtime == now.atime && now.ctime == now.mtime);
    chmod(0o644);
    assert_eq!(errno(zfs.setattr(&other, id, &touch)), Errno::EACCES);
    let fixed = SetAttr { flags: Some(zpl::FileFlags::IMMUTABLE), ..SetAttr::default() };
    zfs.setattr(&ROOT, id, &fixed).unwrap();
    assert_eq!(errno(zfs.setattr(&ROOT, id, &touch)), Errno::EPERM);
}

#[test]
fn posix_lists_are_seen_only_where_they_count() {
    let scratch = Scratch::with(FsProps::default(), &[("acltype", 1)]);
    let zfs = scratch.zfs();
    let id = make(&zfs, "f");
    let perms = [(PosixTag::UserObj, 7), (PosixTag::User(5), 6), (PosixTag::GroupObj, 5), (PosixTag::Mask, 6)];
    let mut list = PosixAcl(perms.map(|(tag, perm)| PosixAce { tag, perm }).to_vec());
    list.0.push(PosixAce { tag: PosixTag::Other, perm: 0 });
    zfs.set_xattr(&ROOT, id, PosixAcl::ACCESS.as_bytes(), &list.encode(), XattrMode::Set).unwrap();
    zfs.set_xattr(&ROOT, id, b"user.a", b"1", XattrMode::Set).unwrap();
    let seen = |acltype: u64| {
        set(&scratch, "acltype", acltype);
        let view = scratch.spa().view().unwrap();
        let node = FileSystem::open(&view.dataset("t").unwrap()).unwrap().node(id).unwrap();
        let names = node.xattr_names().unwrap().len();
        assert_eq!(node.xattrs().unwrap().len(), names);
        assert_eq!(node.xattr(PosixAcl::ACCESS.as_bytes()).unwrap().is_some(), node.posix_acl().unwrap().is_some());
        (names, node.posix_acl().unwrap())
    };
    assert_eq!(seen(1), (2, Some(list.clone())));
    assert_eq!(seen(0), (1, None));
    assert_eq!(seen(2), (1, None));
    assert_eq!(seen(1), (2, Some(list)));
}

#[test]
fn a_hidden_directory_compares_names_as_its_file_system_does() {
    let fixed = FsProps { casesensitivity: 1, ..FsProps::default() };
    let mut scratch = Scratch::with(fixed, &[("xattr", 1)]);
    let zfs = scratch.zfs();
    let id = make(&zfs, "f");
    zfs.set_xattr(&ROOT, id, b"user.a", b"one", XattrMode::Set).unwrap();
    zfs.set_xattr(&ROOT, id, b"user.a", b"two", XattrMode::Set).unwrap();
    assert_eq!(zfs.get_xattr(&ROOT, id, b"user.a").unwrap(), b"two");
    let hidden = zfs.getattr(id).unwrap().xattr_dir;
    let normflags = |id: ObjectId| Zap::open(zfs.fs().objset().object(id).unwrap()).unwrap().normflags();
    assert_eq!(normflags(hidden), normflags(zfs.fs().root()));
    zfs.remove_xattr(&ROOT, id, b"user.a").unwrap();
    assert_eq!(errno(zfs.get_xattr(&ROOT, id, b"user.a")), Errno::ENODATA);
    drop(zfs);
    scratch.close();
}

#[test]
fn a_name_given_while_the_last_one_goes_is_good_or_refused() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let dir = |name: &str| {
        zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::Directory, 0o755)).unwrap().0
    };
    let (a, b) = (dir("a"), dir("b"));
    for n in 0..100 {
        let name = format!("{n}");
        let id = zfs.create(&ROOT, a, name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap().0;
        let both = Barrier::new(2);
        let linked = std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                zfs.unlink(&ROOT, a, name.as_bytes()).unwrap();
            });
            both.wait();
            zfs.link(&ROOT, id, b, name.as_bytes())
        });
        match linked {
            Ok(_) => assert_eq!(zfs.lookup(&ROOT, b, name.as_bytes()).unwrap().1.links, 1),
            Err(error) => {
                assert_eq!(
                    (error.errno(), errno(zfs.lookup(&ROOT, b, name.as_bytes()))),
                    (Errno::ENOENT, Errno::ENOENT)
                );
            }
        }
    }
    assert_eq!(zfs.getattr(a).unwrap().size, 2);
    assert_eq!(zfs.getattr(b).unwrap().size, 2 + zfs.fs().read_dir(b).unwrap().count() as u64);
    assert_eq!(zfs.fs().delete_queue().unwrap().len(), 0);
    drop(zfs);
    scratch.close();
}
