//! Quotas of users, groups and projects, and their usage.
#![allow(clippy::unwrap_used)]

mod scratch;

use base::{Errno, ObjectId};
use pool::SpaceKind;
use scratch::Scratch;
use zpl::Kind;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, SetAttr, Zfs};

const ROOT: Cred = Cred::ROOT;

fn file_of(zfs: &Zfs, name: &str, uid: u32) -> Result<ObjectId, zpl::Error> {
    let id = zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644))?.0;
    zfs.setattr(&ROOT, id, &SetAttr { uid: Some(uid), gid: Some(uid), ..SetAttr::default() })?;
    Ok(id)
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn errno<T: std::fmt::Debug>(result: Result<T, zpl::Error>) -> Errno {
    result.unwrap_err().errno()
}

#[test]
fn a_user_writes_up_to_his_limit() {
    let mut scratch = Scratch::with(FsProps::default(), &[("compression", 2)]);
    let zfs = scratch.zfs();
    let id = file_of(&zfs, "f", 10).unwrap();
    let free = file_of(&zfs, "free", 11).unwrap();
    zfs.set_quota(SpaceKind::UserQuota, 10, 1 << 20).unwrap();
    assert_eq!(zfs.quota(SpaceKind::UserQuota, 10).unwrap(), 1 << 20);
    zfs.write(&ROOT, id, 0, &noise(2 << 20)).unwrap();
    zfs.fsync(id).unwrap();
    // usage is counted by the sync
    assert_eq!(errno(zfs.append(&ROOT, id, b"more")), Errno::EDQUOT);
    zfs.write(&ROOT, free, 0, &noise(2 << 20)).unwrap();
    assert_eq!(errno(zfs.setattr(&ROOT, free, &SetAttr { uid: Some(10), ..SetAttr::default() })), Errno::EDQUOT);
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert_eq!(errno(zfs.append(&ROOT, id, b"more")), Errno::EDQUOT);
    let view = zfs.spa().view().unwrap();
    let dataset = view.dataset("t").unwrap();
    assert_eq!(dataset.userspace_one(SpaceKind::UserQuota, 10).unwrap(), Some(1 << 20));
    assert!(dataset.userspace_one(SpaceKind::UserUsed, 10).unwrap().unwrap() > 2 << 20);
    drop((dataset, view));
    zfs.set_quota(SpaceKind::UserQuota, 10, 0).unwrap();
    zfs.append(&ROOT, id, b"more").unwrap();
    assert_eq!(errno(zfs.set_quota(SpaceKind::UserUsed, 10, 5)), Errno::EINVAL);
    drop(zfs);
    scratch.close();
}

#[test]
fn defaults_bind_those_without_a_limit_and_objects_are_counted() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    for n in 0..3 {
        file_of(&zfs, &format!("f{n}"), 20).unwrap();
    }
    let id = file_of(&zfs, "g", 21).unwrap();
    zfs.fsync(id).unwrap();
    zfs.set_default_quota(SpaceKind::UserObjQuota, 3).unwrap();
    let give = |uid| zfs.setattr(&ROOT, id, &SetAttr { uid: Some(uid), ..SetAttr::default() });
    assert_eq!(errno(give(20)), Errno::EDQUOT);
    zfs.set_quota(SpaceKind::UserObjQuota, 20, 10).unwrap();
    give(20).unwrap();
    zfs.set_quota(SpaceKind::GroupQuota, 21, 1).unwrap();
    assert_eq!(errno(zfs.append(&ROOT, id, b"x")), Errno::EDQUOT);
    drop(zfs);
    scratch.close();
}
