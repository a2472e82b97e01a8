//! Mounting and unmounting, options, snapshots, and changes behind the mount.
#![allow(clippy::unwrap_used)]

mod lab;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Errno, ObjectId};
use fuse::{Mount, Options, Unmount};
use lab::{Lab, execute, umount, unmount};
use zpl::live::{Cred, NewFile, SetAttr, Still};
use zpl::{FileFlags, Kind};

const ROOT: Cred = Cred::ROOT;

fn table(lab: &Lab) -> Option<String> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap();
    let at = lab.path("").display().to_string();
    text.lines().find(|line| line.split(' ').nth(1) == Some(&at)).map(str::to_owned)
}

#[test]
fn the_mount_table_names_dataset_type_and_options() {
    let Some(mut lab) = Lab::unmounted(&[]) else { return };
    let options = |change: &dyn Fn(&mut Options)| {
        let mut options = Options::new("t");
        change(&mut options);
        options
    };
    lab.mount(&options(&|_| {}));
    let line = table(&lab).unwrap();
    assert!(line.starts_with("t ") && line.contains(" fuse.zfs rw,") && line.contains("allow_other"), "{line}");
    assert!(!line.contains("nosuid") && !line.contains("nodev") && line.contains("default_permissions"), "{line}");
    fs::write(lab.path("f"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(lab.path("f"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert!(execute(&lab.path("f")).unwrap().success());
    lab.unmount();
    assert_eq!((table(&lab), fs::read_dir(lab.path("")).unwrap().count()), (None, 0));
    let strict = options(&|options| {
        (options.read_only, options.exec, options.setuid, options.devices) = (true, false, false, false);
        options.atime = Some(false);
    });
    lab.mount(&strict);
    let line = table(&lab).unwrap();
    for word in ["ro", "noexec", "nosuid", "nodev", "noatime"] {
        assert!(line.split([' ', ',']).any(|other| other == word), "{word}: {line}");
    }
    assert_eq!(fs::write(lab.path("f"), b"").unwrap_err().raw_os_error(), Some(30));
    assert!(execute(&lab.path("f")).is_err());
    // it is the mount that is read-only, for the engine as well
    let zfs = lab.zfs();
    assert_eq!(
        zfs.create(&ROOT, zfs.fs().root(), b"g", &NewFile::new(Kind::File, 0)).unwrap_err().errno(),
        Errno::EROFS
    );
    lab.unmount();
    zfs.create(&ROOT, zfs.fs().root(), b"g", &NewFile::new(Kind::File, 0)).unwrap();
    drop(zfs);
    lab.close();
    // where the kernel does not check who opens a device, nobody does
    let Some(lab) = Lab::new(&[("acltype", 2)]) else { return };
    let line = table(&lab).unwrap();
    assert!(line.contains("nodev") && !line.contains("default_permissions"), "{line}");
    lab.close();
}

#[test]
fn a_busy_mount_stays_unless_it_is_forced() {
    let Some(mut lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    let open = File::open(lab.path("f")).unwrap();
    assert_eq!(lab.mounted().unmount(Unmount::Idle).unwrap_err().errno(), Errno::EBUSY);
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"x");
    // lazily: out of the tree, and there for who has it
    lab.mounted().unmount(Unmount::Lazy).unwrap();
    assert!(!lab.path("f").exists() && !lab.mounted().has_ended());
    let mut byte = [0];
    assert_eq!(open.read_at(&mut byte, 0).unwrap(), 1);
    drop(open);
    lab.mounted().wait().unwrap();
    lab.mount(&Options::new("t"));
    let open = File::open(lab.path("f")).unwrap();
    lab.mounted().unmount(Unmount::Forced).unwrap();
    assert!(!lab.path("f").exists() && lab.mounted().has_ended());
    assert!(open.metadata().is_err());
    drop(open);
    lab.close();
}

#[test]
fn who_waits_learns_that_somebody_else_unmounted() {
    let Some(mut lab) = Lab::new(&[]) else { return };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lab.mounted().wait());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        umount(&lab.path(""));
        waiter.join().unwrap().unwrap();
    });
    assert!(lab.mounted().has_ended());
    // another mount at the same place is not ours to unmount
    let tmpfs = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(lab.path("")).status().unwrap();
    assert!(tmpfs.success());
    lab.mounted().unmount(Unmount::Idle).unwrap();
    lab.unmount();
    assert!(table(&lab).unwrap().contains("tmpfs"));
    umount(&lab.path(""));
    lab.close();
}

/// If only the connection ends, nothing is left in the tree that nobody answers.
#[test]
fn a_broken_connection_ends_the_mount() {
    let Some(mut lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    let control = lab.path("").with_file_name("control");
    fs::create_dir(&control).unwrap();
    let fusectl = Command::new("mount").args(["-t", "fusectl", "none"]).arg(&control).status().unwrap();
    if !fusectl.success() {
        eprintln!("no fusectl here: skipped");
        return lab.close();
    }
    let device = rustix::fs::minor(fs::metadata(lab.path("")).unwrap().dev());
    fs::write(control.join(device.to_string()).join("abort"), b"1").unwrap();
    let _ = lab.mounted().wait();
    assert_eq!((table(&lab), lab.mounted().has_ended()), (None, true));
    umount(&control);
    lab.unmount();
    lab.mount(&Options::new("t"));
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"x");
    lab.close();
}

/// A mount is unmounted wherever it is by now.
#[test]
fn a_mount_whose_path_has_changed_is_found() {
    let Some(lab) = Lab::unmounted(&[]) else { return };
    let beside = |name: &str| lab.path("").with_file_name(name);
    fs::create_dir_all(beside("a/b")).unwrap();
    std::os::unix::fs::symlink(beside("a"), beside("link")).unwrap();
    let mount = Mount::new(Arc::new(lab.zfs()), &beside("link/b"), &Options::new("t")).unwrap();
    assert_eq!(mount.path(), beside("a/b").canonicalize().unwrap());
    fs::write(beside("a/b/f"), b"x").unwrap();
    fs::rename(beside("a"), beside("c")).unwrap();
    assert_eq!(fs::read(beside("c/b/f")).unwrap(), b"x");
    unmount(&mount);
    assert!(mount.has_ended() && !beside("c/b/f").exists());
    drop(mount);
    lab.close();
}

/// The kernel gives a mount the numbers of another one as soon as that is gone, before its end is seen here.
#[test]
fn a_mount_that_ends_takes_no_other_along() {
    let labs: Vec<Lab> = (0..2).map_while(|_| Lab::unmounted(&[])).collect();
    std::thread::scope(|scope| {
        for lab in &labs {
            scope.spawn(|| {
                for _ in 0..60 {
                    let mount = Mount::new(Arc::new(lab.zfs()), &lab.path(""), &Options::new("t")).unwrap();
                    fs::metadata(lab.path("")).unwrap();
                    assert!(table(lab).is_some() && !mount.has_ended());
                    unmount(&mount);
                }
            });
        }
    });
    labs.into_iter().for_each(Lab::close);
}

#[test]
fn bad_mount_points_are_refused() {
    let Some(mut lab) = Lab::unmounted(&[]) else { return };
    let mount = |path: &str, source: &str| {
        let path = lab.path("").parent().unwrap().join(path);
        Mount::new(Arc::new(lab.zfs()), &path, &Options::new(source)).unwrap_err().errno()
    };
    assert_eq!(mount("missing", "t"), Errno::ENOENT);
    assert_eq!(mount("pool/a", "t"), Errno::ENOTDIR);
    assert_eq!(mount("mnt", "a,b"), Errno::EINVAL);
    lab.mount(&Options::new("t"));
    // a file system is mounted once, whatever handle is used; its options stay those of the mount
    let mut options = Options::new("t");
    options.read_only = true;
    let again = Mount::new(Arc::new(lab.zfs()), &lab.path(""), &options);
    assert_eq!(again.unwrap_err().errno(), Errno::EBUSY);
    fs::write(lab.path("f"), b"x").unwrap();
    // one over the other
    lab.spa().snapshot(&["t@s".to_owned()], &[]).unwrap();
    let snapshot = lab.spa().view().unwrap().dataset("t@s").unwrap();
    let upper = Mount::new(Arc::new(Still::open(&snapshot).unwrap()), &lab.path(""), &Options::new("t@s")).unwrap();
    drop(snapshot);
    assert_eq!(lab.mounted().unmount(Unmount::Idle).unwrap_err().errno(), Errno::EBUSY);
    unmount(&upper);
    drop(upper);
    lab.close();
}

#[test]
fn a_snapshot_is_mounted_as_it_is() {
    let Some(mut lab) = Lab::new(&[]) else { return };
    fs::create_dir(lab.path("d")).unwrap();
    fs::write(lab.path("d/f"), vec![9; 300_000]).unwrap();
    rustix::fs::setxattr(lab.path("d/f"), "user.a", b"b", rustix::fs::XattrFlags::empty()).unwrap();
    lab.spa().snapshot(&["t@s".to_owned()], &[]).unwrap();
    fs::remove_dir_all(lab.path("d")).unwrap();
    lab.unmount();
    let snapshot = lab.spa().view().unwrap().dataset("t@s").unwrap();
    let mut options = Options::new("t@s");
    options.read_only = true;
    lab.mount_vfs(Arc::new(Still::open(&snapshot).unwrap()), &options);
    assert!(table(&lab).unwrap().starts_with("t@s "));
    assert_eq!(fs::read(lab.path("d/f")).unwrap(), vec![9; 300_000]);
    let mut value = [0; 10];
    assert_eq!(rustix::fs::getxattr(lab.path("d/f"), "user.a", &mut value).unwrap(), 1);
    assert_eq!(fs::write(lab.path("new"), b"").unwrap_err().raw_os_error(), Some(30));
    assert_eq!(fs::read_dir(lab.path("")).unwrap().count(), 1);
    assert!(fs::metadata(lab.path("")).unwrap().ino() > 1 << 40, "the number of a snapshot");
    drop(snapshot);
    lab.close();
}

/// What a command changes behind the mount is seen once it is told.
#[test]
fn changes_behind_the_mount_are_seen() {
    let Some(lab) = Lab::new(&[]) else { return };
    let (zfs, tell) = (lab.zfs(), lab.mounted().notifier().clone());
    fs::write(lab.path("f"), b"old").unwrap();
    fs::create_dir(lab.path("d")).unwrap();
    fs::write(lab.path("d/g"), b"g").unwrap();
    let id = ObjectId(fs::metadata(lab.path("f")).unwrap().ino());
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"old");
    let keep = File::open(lab.path("f")).unwrap();
    zfs.write(&ROOT, id, 0, b"new and longer").unwrap();
    tell.changed(id).unwrap();
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"new and longer");
    let mut seen = [0; 3];
    keep.read_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"new");
    drop(keep);
    zfs.unlink(&ROOT, zfs.fs().root(), b"f").unwrap();
    tell.renamed(zfs.fs().root(), b"f").unwrap();
    assert!(!lab.path("f").exists());
    // all at once; the number of `f` is used again, by another file
    fs::write(lab.path("h"), b"h").unwrap();
    let dir = ObjectId(fs::metadata(lab.path("d")).unwrap().ino());
    // both names of a file
    fs::write(lab.path("first"), b"l").unwrap();
    fs::hard_link(lab.path("first"), lab.path("second")).unwrap();
    assert!(lab.path("first").exists() && lab.path("second").exists());
    for name in [&b"first"[..], b"second"] {
        zfs.unlink(&ROOT, zfs.fs().root(), name).unwrap();
    }
    zfs.unlink(&ROOT, dir, b"g").unwrap();
    zfs.rename(&ROOT, zfs.fs().root(), b"h", dir, b"moved", Default::default()).unwrap();
    tell.all_changed().unwrap();
    assert!(!lab.path("d/g").exists() && !lab.path("h").exists());
    assert!(!lab.path("first").exists() && !lab.path("second").exists());
    assert_eq!(fs::read(lab.path("d/moved")).unwrap(), b"h");
    drop(zfs);
    lab.close();
}

/// A change that is told holds for who looked the file up just before, too.
#[test]
fn a_change_is_told_during_lookups() {
    let Some(lab) = Lab::new(&[]) else { return };
    let (zfs, tell) = (lab.zfs(), lab.mounted().notifier().clone());
    let (root, round) = (zfs.fs().root(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    match round.load(Ordering::Relaxed) {
                        usize::MAX => break,
                        n => drop(fs::metadata(lab.path(&format!("f{n}")))),
                    }
                }
            });
        }
        let mut stale = Vec::new();
        for n in 1..1500 {
            let name = format!("f{n}");
            round.store(n, Ordering::Relaxed);
            let id = zfs.create(&ROOT, root, name.as_bytes(), &NewFile::new(Kind::File, 0o666)).unwrap().0;
            std::hint::black_box((0..n % 50 * 200).sum::<usize>());
            zfs.setattr(&ROOT, id, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
            tell.changed(id).unwrap();
            if fs::metadata(lab.path(&name)).unwrap().mode() & 0o777 != 0o600 {
                stale.push(n);
            }
        }
        round.store(usize::MAX, Ordering::Relaxed);
        assert!(stale.is_empty(), "{stale:?}");
    });
    drop(zfs);
    lab.close();
}

/// A number that is used again is not taken for the file that had it, even if nobody tells.
#[test]
fn a_number_that_is_used_again_is_another_file() {
    let Some(lab) = Lab::new(&[]) else { return };
    let zfs = lab.zfs();
    fs::write(lab.path("f"), b"first").unwrap();
    let id = ObjectId(fs::metadata(lab.path("f")).unwrap().ino());
    let root = zfs.fs().root();
    zfs.unlink(&ROOT, root, b"f").unwrap();
    let again = (0..2000).any(|n| {
        lab.spa().sync().unwrap();
        zfs.create(&ROOT, root, format!("{n}").as_bytes(), &NewFile::new(Kind::File, 0o600)).unwrap().0 == id
    });
    if again {
        // the cached name leads to nothing, and then to nothing at all
        assert_eq!(fs::read(lab.path("f")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
    drop(zfs);
    lab.close();
}

#[test]
fn access_times_follow_the_mount() {
    let Some(mut lab) = Lab::new(&[]) else { return };
    let path = lab.path("f");
    let atime = || fs::metadata(&path).map(|meta| (meta.atime(), meta.atime_nsec())).unwrap();
    fs::write(&path, b"x").unwrap();
    let first = atime();
    fs::read(&path).unwrap();
    assert!(atime() > first, "relatime: it changed since");
    lab.unmount();
    let mut options = Options::new("t");
    options.atime = Some(false);
    lab.mount(&options);
    fs::write(&path, b"yy").unwrap();
    let second = atime();
    fs::read(&path).unwrap();
    assert_eq!(atime(), second);
    assert!(lab.zfs().getattr(ObjectId(fs::metadata(&path).unwrap().ino())).unwrap().flags.has(FileFlags::ARCHIVE));
    lab.close();
}
