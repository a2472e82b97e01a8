//! The control directory `.zfs` of mounted file systems, as programs see it through the kernel.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod mounted;

use std::fs::{self, File};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use mounted::World;

/// A user without rights.
const USER: u32 = 61_234;

fn errno<T>(done: Result<T, Error>) -> Option<i32> {
    done.err().and_then(|error| error.raw_os_error())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
fn snapshots_are_seen_below_the_control_directory() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create t/a && cd $R/t/a && mkdir -p d/e && echo old > d/e/f && ln -s d/e/f l && zfs snapshot t/a@1");
    world.ok("cd $R/t/a && echo new > d/e/f && echo more > g && zfs snapshot t/a@2");
    let (root, control) = (world.path("root/t/a"), world.path("root/t/a/.zfs"));
    // hidden, and there
    assert_eq!(
        (names(&root), names(&control)),
        (vec!["d".into(), "g".into(), "l".into()], vec!["shares".into(), "snapshot".into()])
    );
    assert_eq!(world.ok("zfs set snapdir=visible t/a && ls -A $R/t/a"), ".zfs\nd\ng\nl\n");
    assert_eq!(world.ok("zfs set snapdir=disabled t/a && ls -A $R/t/a"), "d\ng\nl\n");
    assert_eq!(errno(fs::metadata(&control)), Some(2));
    assert_eq!(errno(fs::metadata(control.join("snapshot/1/d"))), Some(2));
    // as a file system below inherits it
    world.ok("zfs inherit snapdir t/a && zfs set snapdir=visible t");
    assert_eq!((names(&root)[0].as_str(), names(&world.path("root/t"))[0].as_str()), (".zfs", ".zfs"));
    assert_eq!(errno(fs::metadata(root.join("d/.zfs"))), Some(2));
    let snapshot = control.join("snapshot");
    assert_eq!((names(&snapshot), names(&control.join("shares"))), (vec!["1".to_owned(), "2".into()], vec![]));
    let stat = fs::metadata(&snapshot).unwrap();
    assert_eq!((stat.mode(), stat.uid(), stat.gid(), stat.nlink(), stat.ino()), (0o40777, 0, 0, 4, 0xffff_ffff_fffd));
    assert_eq!((fs::metadata(&control).unwrap().ino(), fs::metadata(&control).unwrap().nlink()), (0xffff_ffff_ffff, 1));
    let read = |path: &str| fs::read_to_string(snapshot.join(path)).unwrap();
    assert_eq!(
        (read("1/d/e/f"), read("2/d/e/f"), read("1/l"), read("2/g")),
        ("old\n".into(), "new\n".into(), "old\n".into(), "more\n".into())
    );
    assert_eq!(
        (names(&snapshot.join("1")), names(&snapshot.join("1/d/e"))),
        (vec!["d".to_owned(), "l".into()], vec!["f".to_owned()])
    );
    // listings and stat agree, and no two files have one number
    let found = world.ok("cd $R/t/a/.zfs && find . -printf '%p %i\\n' | sort");
    let numbers: std::collections::HashSet<&str> = found.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!((found.lines().count(), numbers.len()), (14, 14), "{found}");
    for entry in fs::read_dir(snapshot.join("2")).unwrap().chain(fs::read_dir(&snapshot).unwrap()).map(Result::unwrap) {
        use std::os::unix::fs::DirEntryExt;
        assert_eq!(entry.ino(), fs::symlink_metadata(entry.path()).unwrap().ino(), "{entry:?}");
    }
    // up, from inside, and with everything that walks
    assert_eq!(
        world.ok("cd $R/t/a/.zfs/snapshot/1/d && pwd -P && cd ../.. && ls && cd ../.. && ls"),
        "ROOT/t/a/.zfs/snapshot/1/d\n1\n2\nd\ng\nl\n"
    );
    assert_eq!(
        world.ok("cd $R/t/a/.zfs/snapshot/1/d/e && cat ./f ../../../2/g ../../../../../g && diff -r ../.. ../../../1"),
        "old\nmore\nmore\n"
    );
    assert_eq!(world.run("diff -rq $R/t/a/.zfs/snapshot/1 $R/t/a/.zfs/snapshot/2").out.lines().count(), 3);
    assert_eq!(world.ok("tar -C $R/t/a/.zfs/snapshot/1 -cf - . | tar -tf - | wc -l"), "5\n");
    // a copy out of it, also by the kernel's means
    world.ok("cp -a $R/t/a/.zfs/snapshot/1/d/e/f $R/t/a/back && cmp $R/t/a/back $R/t/a/.zfs/snapshot/1/d/e/f");
    assert!(world.ok("df --output=iused $R/t/a/.zfs/snapshot/1 $R/t/a").lines().count() == 3);
    // nothing can be changed
    let inside = snapshot.join("1/d");
    let changes = [
        errno(File::create(inside.join("n"))),
        errno(File::options().write(true).open(inside.join("e/f"))),
        errno(fs::create_dir(inside.join("n"))),
        errno(fs::remove_file(inside.join("e/f"))),
        errno(fs::remove_dir(inside.join("e"))),
        errno(fs::rename(inside.join("e"), inside.join("n"))),
        errno(fs::set_permissions(inside.join("e/f"), fs::Permissions::from_mode(0o600))),
        errno(fs::hard_link(root.join("g"), inside.join("n"))),
    ];
    assert_eq!(changes, [Some(30); 8]);
    assert_eq!(errno(fs::rename(root.join("g"), inside.join("n"))), Some(18));
    assert_eq!(errno(fs::hard_link(inside.join("e/f"), root.join("n"))), Some(18));
    assert_eq!(errno(fs::create_dir(control.join("n"))), Some(1));
    assert_eq!(errno(File::create(snapshot.join("n"))), Some(13));
    assert_eq!(errno(File::create(root.join(".zfs"))), Some(21));
    assert_eq!((errno(fs::remove_dir(&control)), errno(fs::rename(&control, root.join("x")))), (Some(17), Some(17)));
    assert_eq!(errno(fs::metadata(snapshot.join("n".repeat(256)))), Some(36));
    assert_eq!(errno(fs::metadata(snapshot.join("3"))), Some(2));
    world.check();
}

#[test]
fn snapshots_come_and_go_and_are_kept_by_who_uses_them() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create -p t/a/b && echo one > $R/t/a/f && mkdir $R/t/a/d && zfs snapshot t/a@1");
    let snapshot = world.path("root/t/a/.zfs/snapshot");
    assert_eq!(fs::read_to_string(snapshot.join("1/f")).unwrap(), "one\n");
    // looked at is not in use
    world.ok("ls -lR $R/t/a/.zfs && zfs destroy t/a@1");
    assert_eq!((names(&snapshot), errno(fs::metadata(snapshot.join("1/f")))), (vec![], Some(2)));
    world.ok("echo two > $R/t/a/f && zfs snapshot t/a@1");
    assert_eq!(fs::read_to_string(snapshot.join("1/f")).unwrap(), "two\n");
    let open = File::open(snapshot.join("1/f")).unwrap();
    world.fails("zfs destroy t/a@1", 1, "cannot destroy snapshot t/a@1: dataset is busy");
    world.fails("zfs unmount t/a", 1, "cannot unmount 'ROOT/t/a': pool or dataset is busy");
    world.fails("zpool export t", 1, "cannot unmount 'ROOT/t/a': pool or dataset is busy");
    // names are others, and it is the same file
    world.ok("zfs rename t/a@1 t/a@uno && zfs rename -u t/a t/x");
    let mut text = [0; 4];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!((&text, names(&snapshot)), (b"two\n", vec!["uno".to_owned()]));
    assert_eq!(open.metadata().unwrap().ino(), fs::metadata(snapshot.join("uno/f")).unwrap().ino());
    assert_eq!(errno(fs::metadata(snapshot.join("1"))), Some(2));
    // a rollback behind it, with what is newer
    world.ok("echo three > $R/t/a/f && zfs snapshot t/x@2");
    assert_eq!(fs::read_to_string(snapshot.join("2/f")).unwrap(), "three\n");
    world.ok("zfs rollback -r t/x@uno");
    assert_eq!(
        (names(&snapshot), fs::read_to_string(world.path("root/t/a/f")).unwrap()),
        (vec!["uno".to_owned()], "two\n".to_owned())
    );
    assert_eq!(fs::read_to_string(snapshot.join("uno/f")).unwrap(), "two\n");
    drop(open);
    // a working directory does not keep it, and is stale then
    let out =
        world.run("cd $R/t/a/.zfs/snapshot/uno/d && zfs destroy t/x@uno && ls . ; cat ../f; cd ../../../.. && ls");
    assert!(out.status == Some(0) && out.out == "b\nd\nf\n" && !out.err.is_empty(), "{out:?}");
    // a received one, and clones
    world.ok("zfs snapshot t/x@3 && zfs send t/x@3 | zfs receive t/r && cat $R/t/r/.zfs/snapshot/3/f");
    world.ok("zfs clone t/x@3 t/c && zfs promote t/c");
    assert_eq!((world.ok("ls $R/t/c/.zfs/snapshot"), names(&snapshot)), ("3\n".to_owned(), vec![]));
    assert_eq!(errno(fs::metadata(snapshot.join("3"))), Some(2));
    world.ok("zfs destroy -R t/c@3");
    world.check();
}

#[test]
fn mkdir_rmdir_and_mv_change_snapshots_where_they_may() {
    let Some(world) = World::tuned("zfs_admin_snapshot=1,zfs_expire_snapshot=1") else { return };
    world.ok("zfs create t/a && echo x > $R/t/a/f");
    let snapshot = world.path("root/t/a/.zfs/snapshot");
    world.ok("mkdir $R/t/a/.zfs/snapshot/s && zfs list t/a@s && cat $R/t/a/.zfs/snapshot/s/f");
    assert_eq!(fs::create_dir(snapshot.join("s")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(
        (errno(fs::create_dir(snapshot.join("a%b"))), errno(fs::create_dir(snapshot.join("n".repeat(253))))),
        (Some(84), Some(36))
    );
    world.ok("mv $R/t/a/.zfs/snapshot/s $R/t/a/.zfs/snapshot/r && zfs list t/a@r && mkdir $R/t/a/.zfs/snapshot/q");
    assert_eq!(names(&snapshot), ["q", "r"]);
    assert_eq!(errno(fs::rename(snapshot.join("r"), snapshot.join("q"))), Some(17));
    assert_eq!(errno(fs::rename(snapshot.join("r"), world.path("root/t/a/r"))), Some(22));
    let open = File::open(snapshot.join("r/f")).unwrap();
    assert_eq!(errno(fs::remove_dir(snapshot.join("r"))), Some(16));
    drop(open);
    world.ok("zfs hold tag t/a@r");
    assert_eq!(errno(fs::remove_dir(snapshot.join("r"))), Some(16));
    world.ok("zfs release tag t/a@r && ls $R/t/a/.zfs/snapshot/r && rmdir $R/t/a/.zfs/snapshot/r");
    assert_eq!(
        (names(&snapshot), world.ok("zfs list -Ho name -t snapshot")),
        (vec!["q".to_owned()], "t/a@q\n".to_owned())
    );
    // another user may look, and not more
    world.ok("chmod 755 $D $D/root");
    let as_user =
        |line: &str| world.run(&format!("setpriv --reuid {USER} --regid {USER} --clear-groups sh -c '{line}'"));
    assert_eq!(as_user("cat $R/t/a/.zfs/snapshot/q/f").out, "x\n");
    for line in [
        "mkdir $R/t/a/.zfs/snapshot/u",
        "rmdir $R/t/a/.zfs/snapshot/q",
        "mv $R/t/a/.zfs/snapshot/q $R/t/a/.zfs/snapshot/u",
    ] {
        let ran = as_user(line);
        assert!(ran.status == Some(1) && ran.err.contains("Operation not permitted"), "{line}: {ran:?}");
    }
    // neither may root without the capability, as of a container
    for line in [
        "mkdir $R/t/a/.zfs/snapshot/u",
        "rmdir $R/t/a/.zfs/snapshot/q",
        "mv $R/t/a/.zfs/snapshot/q $R/t/a/.zfs/snapshot/u",
    ] {
        let ran = world.run(&format!("setpriv --bounding-set -sys_admin {line}"));
        assert!(ran.status == Some(1) && ran.err.contains("Operation not permitted"), "{line}: {ran:?}");
    }
    assert_eq!(names(&snapshot), ["q"]);
    world.check();
    let Some(world) = World::new() else { return };
    let snapshot = world.path("root/t/.zfs/snapshot");
    world.ok("zfs snapshot t@s");
    let refused = [
        errno(fs::create_dir(snapshot.join("n"))),
        errno(fs::remove_dir(snapshot.join("s"))),
        errno(fs::rename(snapshot.join("s"), snapshot.join("n"))),
    ];
    assert_eq!((refused, names(&snapshot)), ([Some(13); 3], vec!["s".to_owned()]));
    world.check();
}

#[test]
fn many_snapshots_are_listed_and_read() {
    let Some(world) = World::tuned("zfs_admin_snapshot=1") else { return };
    world.ok("echo x > $R/t/f && cd $R/t/.zfs/snapshot && mkdir $(seq 1 1000)");
    assert_eq!(world.ok("ls $R/t/.zfs/snapshot | wc -l; ls -f $R/t/.zfs/snapshot | sort -u | wc -l"), "1000\n1002\n");
    assert_eq!(world.ok("cat $R/t/.zfs/snapshot/*/f | sort | uniq -c | tr -s ' '"), " 1000 x\n");
    assert_eq!(
        world.ok("find $R/t/.zfs/snapshot -name f | wc -l; zfs list -Ho name -t snapshot | wc -l"),
        "1000\n1000\n"
    );
    world.ok("zfs destroy t@%");
    assert_eq!(world.ok("ls $R/t/.zfs/snapshot | wc -l"), "0\n");
    world.check();
}

#[test]
fn snapshots_of_other_pools_and_kinds() {
    let Some(world) = World::new() else { return };
    // encrypted, with ACLs, with names that ignore case
    world.ok("head -c 32 /dev/zero > $D/key && zfs create -o encryption=on -o keyformat=raw -o keylocation=file://$D/key t/e");
    world.ok("zfs create -o acltype=nfsv4 t/n && zfs create -o casesensitivity=insensitive t/i && zfs create -o acltype=posix t/p");
    world.ok("for f in e n i p; do echo $f > $R/t/$f/File; mkdir $R/t/$f/shut; chmod 700 $R/t/$f/shut; done; zfs snapshot -r t@Snap");
    world.ok("chmod 755 $D $D/root");
    for fs in ["e", "n", "i", "p"] {
        let path = format!("$R/t/{fs}/.zfs/snapshot/Snap");
        assert_eq!(world.ok(&format!("cat {path}/File && ls {path}")), format!("{fs}\nFile\nshut\n"));
        let user = format!("setpriv --reuid {USER} --regid {USER} --clear-groups");
        assert_eq!(world.ok(&format!("{user} cat {path}/File")), format!("{fs}\n"));
        assert!(world.run(&format!("{user} ls {path}/shut")).err.contains("Permission denied"), "{fs}");
        world.ok(&format!("{user} ls {path} $R/t/{fs}/.zfs"));
    }
    assert_eq!(
        world.ok("cat $R/t/i/.zfs/snapshot/Snap/fILE && rm $R/t/i/File && ls $R/t/i/.zfs/snapshot/Snap"),
        "i\nFile\nshut\n"
    );
    world.fails("zfs unload-key t/e", 255, "Key unload error: 't/e' is busy.");
    world.ok("zfs unmount -u t/e && zfs mount -l t/e && cat $R/t/e/.zfs/snapshot/Snap/File");
    // one that is only read, and a snapshot that is mounted, which has no such directory
    world.ok("mkdir $D/snap && mount.zfs t/p@Snap $D/snap && test ! -e $D/snap/.zfs && umount $D/snap");
    world.ok("zpool export t && zpool import -o readonly=on -d $D -R $R t && cat $R/t/p/.zfs/snapshot/Snap/File && ls -lR $R/t/p/.zfs");
    assert_eq!(errno(fs::create_dir(world.path("root/t/p/.zfs/snapshot/n"))), Some(30));
    world.ok("zpool export t && zpool import -d $D -R $R t");
    world.check();
}
