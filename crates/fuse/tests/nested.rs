//! Other file systems that are mounted inside of a mount.
#![allow(clippy::unwrap_used)]

mod lab;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use base::ObjectId;
use fuse::Options;
use lab::{Lab, USER, umount};
use zpl::live::{Cred, SetAttr};

const ROOT: Cred = Cred::ROOT;

/// A tmpfs in a directory of the mount, with a file `inside`.
struct Inner(PathBuf);

impl Inner {
    fn new(lab: &Lab, dir: &str) -> Inner {
        fs::create_dir_all(lab.path(dir)).unwrap();
        let inner = Inner(lab.path(dir));
        assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&inner.0).status().unwrap().success());
        fs::write(inner.0.join("inside"), b"x").unwrap();
        inner
    }

    fn is_there(&self) -> bool {
        self.0.join("inside").exists()
    }

    fn close(self) {
        umount(&self.0);
    }
}

/// What is told of the directories above leaves a mount where it is; the rest is told.
#[test]
fn changes_that_are_told_leave_mounts() {
    let Some(lab) = Lab::new(&[]) else { return };
    let (zfs, tell) = (lab.zfs(), lab.mounted().notifier().clone());
    let root = zfs.fs().root();
    let inner = Inner::new(&lab, "d/e");
    fs::write(lab.path("d/f"), b"x").unwrap();
    fs::create_dir_all(lab.path("g/e")).unwrap();
    let d = zfs.lookup(&ROOT, root, b"d").unwrap().0;
    tell.all_changed().unwrap();
    assert!(inner.is_there(), "all changed");
    for (dir, name) in [(root, &b"d"[..]), (d, b"e")] {
        tell.renamed(dir, name).unwrap();
        assert!(inner.is_there(), "{name:?}");
    }
    // beside it all is new
    zfs.unlink(&ROOT, d, b"f").unwrap();
    let g = zfs.lookup(&ROOT, root, b"g").unwrap().0;
    zfs.rename(&ROOT, g, b"e", g, b"moved", Default::default()).unwrap();
    zfs.setattr(&ROOT, d, &SetAttr { mode: Some(0o711), ..SetAttr::default() }).unwrap();
    tell.all_changed().unwrap();
    assert!(inner.is_there() && !lab.path("d/f").exists());
    assert!(!lab.path("g/e").exists() && lab.path("g/moved").exists());
    assert_eq!(fs::metadata(lab.path("d")).unwrap().permissions().mode() & 0o777, 0o711);
    inner.close();
    // as soon as it is gone
    zfs.rename(&ROOT, d, b"e", root, b"elsewhere", Default::default()).unwrap();
    tell.renamed(d, b"e").unwrap();
    assert!(!lab.path("d/e").exists() && lab.path("elsewhere").exists());
    drop(zfs);
    lab.close();
}

/// Who may not search the directory above cannot take a mount away by trying.
#[test]
fn who_may_not_pass_leaves_mounts() {
    for acltype in [0, 2] {
        let Some(mut lab) = Lab::unmounted(&[("acltype", acltype)]) else { return };
        let mut options = Options::new("t");
        options.cache = std::time::Duration::ZERO;
        lab.mount(&options);
        let inner = Inner::new(&lab, "d/e");
        for (closed, path) in [("", "d"), ("", "d/e"), ("d", "d/e"), ("d", "d/e/inside")] {
            fs::set_permissions(lab.path(closed), Permissions::from_mode(0o700)).unwrap();
            assert!(!lab.run_as(USER, &[], &format!("stat {path}")).status.success());
            fs::set_permissions(lab.path(closed), Permissions::from_mode(0o755)).unwrap();
            assert!(inner.is_there(), "{acltype}: {closed:?} {path}");
            assert!(lab.run_as(USER, &[], "stat d/e/inside").status.success());
        }
        // others learn why
        fs::create_dir_all(lab.path("x/e")).unwrap();
        fs::set_permissions(lab.path("x"), Permissions::from_mode(0o700)).unwrap();
        let out = lab.run_as(USER, &[], "stat x/e");
        assert!(String::from_utf8_lossy(&out.stderr).contains("Permission denied"));
        inner.close();
        lab.close();
    }
}

/// A mount in a directory that has lost its name is taken away; another file by the same name is none of its business.
#[test]
fn a_directory_that_is_gone_takes_its_mounts_along() {
    let Some(mut lab) = Lab::unmounted(&[]) else { return };
    let mut options = Options::new("t");
    options.cache = std::time::Duration::ZERO;
    lab.mount(&options);
    let inner = Inner::new(&lab, "d");
    let zfs = lab.zfs();
    let id: ObjectId = zfs.lookup(&ROOT, zfs.fs().root(), b"d").unwrap().0;
    zfs.rename(&ROOT, zfs.fs().root(), b"d", zfs.fs().root(), b"new", Default::default()).unwrap();
    assert!(!lab.path("d").exists() && !inner.is_there());
    assert_eq!(zfs.lookup(&ROOT, zfs.fs().root(), b"new").unwrap().0, id);
    drop(zfs);
    lab.close();
}
