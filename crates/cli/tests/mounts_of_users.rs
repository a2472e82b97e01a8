//! Mounts of a user who is not root: by `fusermount3`, in a mount namespace in which he may.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod mounted;

use mounted::{World, until};

const ALLOWED: &str = "user_allow_other\n";

#[test]
fn a_user_mounts_for_himself() {
    let Some(mut world) = World::of_user("") else { return };
    assert_eq!(world.mounted(), ["t ROOT/t"]);
    let got = "zfs get -Ho property,value,source exec,setuid,devices t";
    // fusermount3 mounts nothing else
    assert_eq!(world.ok(got), "exec\ton\tdefault\nsetuid\toff\ttemporary\ndevices\toff\ttemporary\n");
    world.ok("echo a >$R/t/f && mkdir $R/t/d && mkfifo $R/t/d/pipe && zfs snapshot t@s && echo b >$R/t/f");
    assert_eq!(world.ok("cat $R/t/.zfs/snapshot/s/f; ls $R/t/.zfs/snapshot"), "a\ns\n");
    assert_eq!(world.ok("stat -c %U $R/t $R/t/f"), "nobody\nnobody\n");
    assert_eq!(world.run("chown root $R/t/f").status, Some(1));
    assert_ne!(world.run_by_root("ls $R/t").status, Some(0), "root sees what is for the user alone");
    // what the file system itself sees to
    world.ok("zfs set atime=off t");
    world.ok("zfs set setuid=off t && zfs set setuid=on t");
    assert_eq!(world.ok("zfs get -Ho value,source setuid,atime t"), "off\ttemporary\noff\tlocal\n");
    // and what only root could have the kernel do
    world.fails("zfs set exec=off t", 255, "cannot remount 'ROOT/t': Operation not permitted");
    world.fails("zfs set readonly=on t", 255, "cannot remount 'ROOT/t': Operation not permitted");
    world.run("zfs inherit readonly t");
    world.ok("touch $R/t/f");
    world.ok("zfs unmount t && zfs mount -o ro,exec t && ! touch $R/t/f 2>&-");
    world.fails("zfs mount -o remount,rw t", 1, "cannot mount 't': Insufficient privileges");
    world.kill();
    assert_ne!(world.run("ls $R/t").status, Some(0));
    world.serve();
    until("what the dead server left is unmounted", || world.in_kernel().is_empty());
    world.ok("zfs mount -a && cat $R/t/f && zfs rollback t@s");
    assert_eq!(world.ok("cat $R/t/f"), "a\n");
    world.check();
}

#[test]
fn what_a_user_uses_is_busy() {
    let Some(world) = World::of_user("") else { return };
    let busy = "cannot unmount 'ROOT/t': pool or dataset is busy";
    world.ok("echo a >$R/t/f");
    world.fails("exec 3<$R/t/f; zfs unmount t", 1, busy);
    world.fails("exec 3<$R/t/f; zpool export t", 1, busy);
    world.ok("exec 3<$R/t/f; zfs unmount -f t; ! cat <&3 2>$D/said && grep -q 'not connected\\|aborted' $D/said");
    world.ok("zfs mount t; exec 3<$R/t/f; zpool export -f t && zpool import -d $D -R $R t");
    assert_eq!(world.ok("cat $R/t/f"), "a\n");
    world.check();
}

#[test]
fn mounts_inside_of_a_users_mount_need_leave_for_root() {
    let Some(world) = World::of_user("# user_allow_other\n") else { return };
    world.fails(
        "zfs create t/a",
        1,
        "cannot mount 't/a': Insufficient privileges (fusermount3: failed to access mountpoint ROOT/t/a: Permission denied)\n\
         fusermount3 works as root, and may not be let into the mount of 't': set 'user_allow_other' in /etc/fuse.conf and mount 't' again with \
         '-o allow_other', or set canmount=off for 't'\nfilesystem successfully created, but not mounted",
    );
    // it is in no other mount then
    world.ok("zfs set canmount=off t && zfs mount t/a && zfs create t/b");
    assert_eq!(world.mounted(), ["t/a ROOT/t/a", "t/b ROOT/t/b"]);
    world.fails(
        "zfs unmount t/b && zfs mount -o allow_other t/b",
        1,
        "cannot mount 't/b': Insufficient privileges (fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf)",
    );
    drop(world);
    let Some(world) = World::of_user(ALLOWED) else { return };
    world.ok("zfs unmount t && zfs mount -o allow_other t && zfs create t/a && echo a >$R/t/a/f && chmod 644 $R/t/a/f");
    assert_eq!(world.mounted(), ["t ROOT/t", "t/a ROOT/t/a"]);
    let by_other = "setpriv --reuid 61234 --clear-groups cat $R/t/a/f";
    assert_eq!((world.run_by_root("cat $R/t/a/f").out, world.run_by_root(by_other).out), ("".into(), "".into()));
    world.ok("zfs unmount t/a && zfs mount -o allow_other t/a && zfs create t/a/b");
    assert_eq!((world.run_by_root("cat $R/t/a/f").out, world.run_by_root(by_other).out), ("a\n".into(), "a\n".into()));
    assert_eq!(world.in_kernel().len(), 3);
    world.check();
}
