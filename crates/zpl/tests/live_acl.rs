//! Access control lists: POSIX ACLs through extended attributes, NFSv4 ACLs through modes; and ACLs written by the kernel module.
#![allow(clippy::unwrap_used, dead_code)]

mod scratch;
mod support;

use base::{Errno, ObjectId};
use dmu::sa::Attr;
use scratch::Scratch;
use support::Fixture;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, SetAttr, XattrMode, Zfs};
use zpl::{FileFlags, Kind, PosixAce, PosixAcl, PosixTag};

const ROOT: Cred = Cred::ROOT;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn list(entries: &[(PosixTag, u16)]) -> PosixAcl {
    PosixAcl(entries.iter().map(|(tag, perm)| PosixAce { tag: *tag, perm: *perm }).collect())
}

fn some_list() -> PosixAcl {
    list(&[
        (PosixTag::UserObj, 7),
        (PosixTag::User(5), 6),
        (PosixTag::GroupObj, 5),
        (PosixTag::Mask, 6),
        (PosixTag::Other, 0),
    ])
}

fn errno<T: std::fmt::Debug>(result: Result<T, zpl::Error>) -> Errno {
    result.unwrap_err().errno()
}

fn make(zfs: &Zfs, dir: ObjectId, name: &str, kind: Kind, mode: u32) -> ObjectId {
    zfs.create(&ROOT, dir, name.as_bytes(), &NewFile::new(kind, mode)).unwrap().0
}

#[test]
fn posix_lists_and_modes_go_together() {
    let mut scratch = Scratch::with(FsProps::default(), &[("acltype", 1)]);
    let zfs = scratch.zfs();
    let id = make(&zfs, zfs.fs().root(), "f", Kind::File, 0o644);
    let user = Cred::user(5, 5, []);
    assert_eq!(errno(zfs.access(&user, id, 2)), Errno::EACCES);
    zfs.set_xattr(&ROOT, id, ACCESS, &some_list().encode(), XattrMode::Set).unwrap();
    assert_eq!(zfs.getattr(id).unwrap().mode, 0o100_760);
    zfs.access(&user, id, 6).unwrap();
    assert_eq!(errno(zfs.access(&user, id, 1)), Errno::EACCES);
    assert_eq!(errno(zfs.set_xattr(&user, id, ACCESS, &some_list().encode(), XattrMode::Set)), Errno::EPERM);
    // a chmod changes the mask
    zfs.setattr(&ROOT, id, &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    assert_eq!(errno(zfs.access(&user, id, 2)), Errno::EACCES);
    let now = PosixAcl::decode(&zfs.get_xattr(&ROOT, id, ACCESS).unwrap()).unwrap();
    assert_eq!(now.mode(), (0o640, false));
    // one that is equivalent to a mode is not stored
    let small = list(&[(PosixTag::UserObj, 6), (PosixTag::GroupObj, 4), (PosixTag::Other, 4)]);
    zfs.set_xattr(&ROOT, id, ACCESS, &small.encode(), XattrMode::Set).unwrap();
    assert_eq!(errno(zfs.get_xattr(&ROOT, id, ACCESS)), Errno::ENODATA);
    assert_eq!(zfs.getattr(id).unwrap().mode, 0o100_644);
    // if the attribute is removed rather than replaced, the mode stays as the mask made it; as in OpenZFS (`zpl_set_posix_acl`)
    let id = make(&zfs, zfs.fs().root(), "g", Kind::File, 0o604);
    zfs.set_xattr(&ROOT, id, ACCESS, &some_list().encode(), XattrMode::Set).unwrap();
    zfs.remove_xattr(&ROOT, id, ACCESS).unwrap();
    assert_eq!(errno(zfs.get_xattr(&ROOT, id, ACCESS)), Errno::ENODATA);
    assert_eq!(zfs.getattr(id).unwrap().mode, 0o100_760);
    zfs.remove_xattr(&ROOT, id, ACCESS).unwrap();
    assert_eq!(errno(zfs.set_xattr(&ROOT, id, ACCESS, b"no list", XattrMode::Set)), Errno::EINVAL);
    assert_eq!(errno(zfs.set_xattr(&ROOT, id, DEFAULT, &some_list().encode(), XattrMode::Set)), Errno::EACCES);
    drop(zfs);
    scratch.close();
}

/// As with the kernel module: the mode changes first, and then it turns out that the list cannot follow. One without entries is none.
#[test]
fn a_chmod_beside_a_malformed_list_changes_the_mode_and_says_so() {
    // lists are files in a hidden directory
    let mut scratch = Scratch::with(FsProps::default(), &[("acltype", 1), ("xattr", 1)]);
    let zfs = scratch.zfs();
    let chmod = |id, mode| zfs.setattr(&ROOT, id, &SetAttr { mode: Some(mode), ..SetAttr::default() });
    let lists: [(&[u8], Result<(), Errno>); 5] = [
        (&[2, 0, 0, 0, 1, 0, 6], Err(Errno::EINVAL)),
        (&[1, 0, 0, 0], Err(Errno::EINVAL)),
        (&[2, 0, 0, 0, 0x40, 0, 6, 0, 255, 255, 255, 255], Err(Errno::EINVAL)),
        (&[2, 0, 0, 0, 2, 0, 6, 0, 5, 0, 0, 0], Err(Errno::EIO)),
        (&[2, 0, 0, 0], Ok(())),
    ];
    for (n, (value, wanted)) in lists.into_iter().enumerate() {
        let id = make(&zfs, zfs.fs().root(), &format!("f{n}"), Kind::File, 0o644);
        zfs.set_xattr(&ROOT, id, ACCESS, &some_list().encode(), XattrMode::Set).unwrap();
        let hidden = zfs.getattr(id).unwrap().xattr_dir;
        let stored = zfs.fs().lookup(hidden, ACCESS).unwrap().unwrap().object;
        zfs.truncate(&ROOT, stored, value.len() as u64).unwrap();
        zfs.write(&ROOT, stored, 0, value).unwrap();
        let done = chmod(id, 0o600).map(drop).map_err(|error| error.errno());
        assert_eq!(done, wanted, "{value:?}");
        assert_eq!(zfs.getattr(id).unwrap().mode, 0o100_600, "{value:?}");
        assert_eq!(zfs.fs().node(id).unwrap().xattr(ACCESS).unwrap().as_deref(), Some(value));
    }
    drop(zfs);
    scratch.close();
}

#[test]
fn without_acltype_there_are_no_posix_lists() {
    let mut scratch = Scratch::with(FsProps::default(), &[("acltype", 0)]);
    let zfs = scratch.zfs();
    let id = make(&zfs, zfs.fs().root(), "f", Kind::File, 0o644);
    assert_eq!(errno(zfs.set_xattr(&ROOT, id, ACCESS, &some_list().encode(), XattrMode::Set)), Errno::ENOTSUP);
    assert_eq!(errno(zfs.get_xattr(&ROOT, id, ACCESS)), Errno::ENOTSUP);
    assert!(zfs.list_xattrs(&ROOT, id).unwrap().is_empty());
    drop(zfs);
    scratch.close();
}

#[test]
fn the_lists_of_the_kernel_are_those_of_the_modes() {
    let fixture = Fixture::open("posix-a");
    let mut seen = 0;
    for dataset in fixture.manifest["mountpoints"].as_object().unwrap().keys() {
        let fs = fixture.file_system(dataset);
        let mut dirs = vec![fs.root()];
        while let Some(dir) = dirs.pop() {
            for entry in fs.read_dir(dir).unwrap() {
                let node = fs.node(entry.unwrap().object).unwrap();
                if node.kind() == Kind::Directory {
                    dirs.push(node.id());
                }
                let posix = node.posix_acl().unwrap().is_some();
                let attrs = node.attrs();
                if posix || !attrs.flags.has(FileFlags::ACL_TRIVIAL) || node.kind() == Kind::Symlink {
                    continue;
                }
                let ours = zpl::live::list_of_mode(node.kind(), attrs.mode);
                if node.raw_attr(Attr::DaclAces) == Some(&ours[..]) {
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 20, "{seen}");
}
