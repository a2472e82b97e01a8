//! Mounts, as commands make them in a server: `zfs mount` and its like, and mounts that follow what other commands do.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod mounted;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use mounted::{World, until};

#[test]
fn file_systems_are_mounted_when_they_are_created_and_listed() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create -p t/a/b && zfs create -u t/u && zfs create -o mountpoint=none t/n");
    world.ok(
        "zfs create -o mountpoint=legacy t/l && zfs create -o canmount=noauto t/na && zfs create -o canmount=off t/off",
    );
    assert_eq!(world.mounted(), ["t ROOT/t", "t/a ROOT/t/a", "t/a/b ROOT/t/a/b"]);
    assert_eq!(world.ok("zfs get -Ho value mounted t/a t/u"), "yes\nno\n");
    assert!(world.ok("zfs mount -j").contains("\"t/a/b\":{\"filesystem\":\"t/a/b\",\"mountpoint\":\"ROOT/t/a/b\"}"));
    world.ok("zfs snapshot t/a@s && zfs clone t/a@s t/c && zfs clone -u t/a@s t/d");
    assert_eq!(world.mounted()[3..], ["t/c ROOT/t/c"]);
    // a path names the file system that is mounted there
    assert_eq!(
        world.ok("zfs list -Ho name $R/t/a/b; mkdir $R/t/a/d; cd $R/t/a && zfs list -Ho name ./d"),
        "t/a/b\nt/a\n"
    );
    world.fails("zfs list /proc", 1, "'/proc': not a ZFS filesystem");
    // but none to be changed: what is meant may be a directory there
    for line in
        ["zfs destroy -r $R/t/a/d", "zfs destroy $R/t/a/d@%", "zfs set a:b=c $R/t/a/d", "zfs snapshot $R/t/a/d@x"]
    {
        let ran = world.run(line);
        assert!(ran.status != Some(0) && world.path("root/t/a/d").is_dir(), "{line}: {ran:?}");
    }
    world.ok("zfs list t/a t/a/b t/a@s");
    world.fails("zfs mount t/a", 1, "cannot mount 't/a': filesystem already mounted");
    world.fails("zfs mount t/n", 1, "cannot mount 't/n': no mountpoint set");
    world.fails("zfs mount t/l", 1, "cannot mount 't/l': legacy mountpoint\nuse mount(8) to mount this filesystem");
    world.fails("zfs mount t/off", 1, "cannot mount 't/off': 'canmount' property is set to 'off'");
    world.fails("zfs unmount t/u", 1, "cannot unmount 't/u': not currently mounted");
    world.fails(
        "zfs unmount t/l",
        1,
        "cannot unmount 't/l': legacy mountpoint\nuse umount(8) to unmount this filesystem",
    );
    world.fails("zfs unmount $R/t/a/d", 1, "cannot unmount 'ROOT/t/a/d': not a mountpoint");
    world.fails("zfs unmount /proc", 1, "cannot unmount '/proc': not a ZFS filesystem");
    world.fails("zfs mount -o bogus t/u", 1, "cannot mount 't/u': Invalid argument");
    world.ok("zfs mount t/na && zfs unmount t/na && zfs mount t/u && zfs unmount $R/t/u");
    world.ok("zfs unmount t/a");
    assert_eq!(world.mounted(), ["t ROOT/t", "t/c ROOT/t/c"]);
    world.ok("zfs mount -R t/a");
    assert_eq!(world.mounted()[2..], ["t/a ROOT/t/a", "t/a/b ROOT/t/a/b"]);
    world.ok("zfs umount -a");
    assert_eq!((world.mounted(), world.in_kernel()), (vec![], vec![]));
    world.ok("zfs mount -a -v");
    let mut all = world.mounted();
    all.sort();
    assert_eq!(all, ["t ROOT/t", "t/a ROOT/t/a", "t/a/b ROOT/t/a/b", "t/c ROOT/t/c", "t/d ROOT/t/d", "t/u ROOT/t/u"]);
    world.check();
}

#[test]
fn options_and_properties_of_mounts() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create -u t/a && zfs create -u t/a/b && zfs mount -o ro,noexec,nosuid t/a");
    let got = "zfs get -Ho property,value,source readonly,exec,setuid,devices t/a";
    let expected = "readonly\ton\ttemporary\nexec\toff\ttemporary\nsetuid\toff\ttemporary\ndevices\ton\tdefault\n";
    assert_eq!(world.ok(got), expected);
    assert!(world.run("touch $R/t/a/f").err.contains("Read-only file system"));
    world.ok("zfs set readonly=off t/a && touch $R/t/a/f");
    assert_eq!(world.ok("zfs get -Ho value,source readonly t/a"), "off\tlocal\n");
    world.ok("zfs mount -o remount,ro t/a");
    assert!(world.run("touch $R/t/a/f").err.contains("Read-only file system"));
    world.ok("zfs inherit readonly t/a && touch $R/t/a/f");
    // those below follow what they inherit
    world.ok("zfs mount t/a/b && zfs set readonly=on t/a");
    assert!(world.run("touch $R/t/a/b/f").err.contains("Read-only file system"));
    world.ok("zfs inherit readonly t/a && touch $R/t/a/b/f");
    world.ok("zfs set exec=off t/a && cp /bin/true $R/t/a/b/true");
    assert_eq!(world.run("$R/t/a/b/true").status, Some(126));
    world.ok("zfs set exec=on t/a && $R/t/a/b/true");
    // the kernel refuses to make it read-only, as OpenZFS does not
    let open = File::options().write(true).open(world.path("root/t/a/f")).unwrap();
    open.write_all_at(b"x", 0).unwrap();
    drop(open);
    // a mount point that is not empty
    world.ok("zfs unmount t/a && touch $R/t/a/hidden && zfs set overlay=off t/a");
    world.fails("zfs mount t/a", 1, "cannot mount 'ROOT/t/a': directory is not empty");
    world.ok("zfs mount -O t/a && zfs unmount t/a && zfs set overlay=on t/a && zfs mount t/a");
    world.ok("zfs unmount t/a && rm $R/t/a/hidden && rmdir $R/t/a && echo x > $R/t/a");
    world.fails("zfs mount t/a", 1, "cannot mount 't/a': Not a directory");
    world.ok("rm $R/t/a && zfs mount t/a && test -d $R/t/a");
    world.check();
}

#[test]
fn busy_file_systems_are_left_as_they_are() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create -p t/a/b && zfs create t/c");
    let file = File::create(world.path("root/t/a/b/f")).unwrap();
    let before = world.mounted();
    world.fails("zfs unmount t/a/b", 1, "cannot unmount 'ROOT/t/a/b': pool or dataset is busy");
    world.fails("zfs unmount t/a", 1, "cannot unmount 'ROOT/t/a/b': pool or dataset is busy");
    world.fails("zfs rename t/a t/x", 1, "cannot unmount 'ROOT/t/a/b': pool or dataset is busy");
    world.fails("zfs destroy t/a/b", 1, "cannot unmount 'ROOT/t/a/b': pool or dataset is busy");
    world.fails("zfs set mountpoint=/x t/a", 255, "cannot unmount 'ROOT/t/a/b': pool or dataset is busy");
    assert_eq!((world.mounted(), world.ok("zfs get -Ho value mountpoint t/a")), (before, "ROOT/t/a\n".to_owned()));
    world.fails("zpool export t", 1, "cannot unmount 'ROOT/t/a/b': pool or dataset is busy");
    world.fails(
        "zpool destroy t",
        1,
        "cannot unmount 'ROOT/t/a/b': pool or dataset is busy\ncould not destroy 't': could not unmount datasets",
    );
    file.write_all_at(b"still", 0).unwrap();
    assert_eq!(world.ok("zfs list -Ho name -r t"), "t\nt/a\nt/a/b\nt/c\n");
    world.ok("zfs mount -a");
    // by force
    world.ok("zfs unmount -f t/a/b && zfs mount t/a/b");
    assert!(file.write_all_at(b"x", 0).is_err());
    let file = File::open(world.path("root/t/a/b/f")).unwrap();
    world.ok("zfs destroy -rf t/a");
    drop(file);
    let file = File::create(world.path("root/t/c/f")).unwrap();
    world.ok("zpool export -f t");
    assert_eq!(world.in_kernel(), [] as [String; 0]);
    drop(file);
    // what was made for mounts has gone with them
    assert_eq!(world.ok("ls $R"), "");
    world.ok("zpool import -d $D -R $R t");
    world.check();
}

#[test]
fn mounts_follow_names_and_mount_points() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create -p t/a/b && zfs create -o mountpoint=/apart t/a/c && zfs create t/a/c/d");
    world.ok("for f in a a/b; do echo $f > $R/t/$f/f; done; echo d > $R/apart/d/f");
    world.ok("zfs rename t/a t/x");
    let mut mounted = world.mounted();
    mounted.sort();
    assert_eq!(mounted, ["t ROOT/t", "t/x ROOT/t/x", "t/x/b ROOT/t/x/b", "t/x/c ROOT/apart", "t/x/c/d ROOT/apart/d"]);
    assert_eq!(world.ok("cat $R/t/x/f $R/t/x/b/f $R/apart/d/f; ls $R/t"), "a\na/b\nd\nx\n");
    // it stays where it is
    world.ok("zfs rename -u t/x t/y");
    assert!(world.mounted().contains(&"t/y/b ROOT/t/x/b".to_owned()));
    assert_eq!(world.ok("cat $R/t/x/b/f"), "a/b\n");
    world.ok("zfs unmount t/y && zfs mount -a");
    assert_eq!(world.ok("cat $R/t/y/b/f"), "a/b\n");
    world.ok("zfs set mountpoint=/moved t/y");
    assert_eq!(world.ok("cat $R/moved/b/f $R/apart/d/f; ls $R"), "a/b\nd\napart\nmoved\nt\n");
    world.ok("zfs set -u mountpoint=/later t/y");
    assert!(world.mounted().contains(&"t/y ROOT/moved".to_owned()));
    world.ok("zfs inherit mountpoint t/y");
    assert_eq!(world.ok("cat $R/t/y/b/f"), "a/b\n");
    world.ok("zfs set mountpoint=none t/y");
    assert!(!world.mounted().iter().any(|line| line.starts_with("t/y ") || line.starts_with("t/y/b ")));
    world.ok("zfs set mountpoint=/back t/y");
    assert_eq!(world.ok("cat $R/back/b/f"), "a/b\n");
    world.ok("zfs set canmount=off t/y/b");
    assert!(!world.mounted().iter().any(|line| line.starts_with("t/y/b ")));
    // it is not mounted by that, and can be from then on
    world.ok("zfs set canmount=on t/y/b && zfs mount t/y/b");
    world.ok("zfs snapshot t/y/b@s && zfs clone t/y/b@s t/p && zfs promote t/p && cat $R/t/p/f $R/back/b/f");
    world.ok("zfs destroy -R t/p@s");
    assert!(!world.path("root/back/b").exists());
    world.check();
}

#[test]
fn what_cannot_be_mounted_again_is_a_failure() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create -p t/a/b && zfs set overlay=off t/a && mkdir -p $R/full/x $R/t/new/x");
    let why = |at: &str, then: &str| format!("cannot mount '{at}': directory is not empty\n{then}");
    let said = "property may be set but unable to remount filesystem";
    world.fails("zfs set mountpoint=/full t/a", 255, &why("ROOT/full", said));
    // the rest is mounted nevertheless
    assert_eq!(world.ok("zfs get -Ho value mountpoint t/a"), "ROOT/full\n");
    assert!(world.mounted().contains(&"t/a/b ROOT/full/b".to_owned()));
    world.ok("zfs unmount t/a/b && rm -r $R/full && zfs inherit mountpoint t/a && test -d $R/t/a/b");
    let renamed = "renamed, but not all file systems could be mounted";
    world.fails("zfs rename t/a t/new", 1, &why("ROOT/t/new", renamed));
    assert_eq!(world.ok("zfs list -Ho name t/new/b"), "t/new/b\n");
    world.ok("zfs unmount t/new/b && rm -r $R/t/new && zfs mount -a");
    world.check();
}

#[test]
fn a_package_is_received_whole_where_a_mount_of_it_fails() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create -p t/a/b && zfs snapshot -r t/a@1 && zfs send -R t/a@1 | zfs receive t/r");
    world.ok("zfs rename t/a/b t/a/c && zfs snapshot -r t/a@2 && zfs set overlay=off t/r && mkdir -p $R/t/r/c/x");
    let why = "cannot mount 'ROOT/t/r/c': directory is not empty\nrenamed, but not all file systems could be mounted";
    world.fails("zfs send -R -i @1 t/a@2 | zfs receive -F t/r", 1, why);
    assert_eq!(world.ok("zfs list -Ho name -t snapshot -r t/r | sort"), "t/r/c@1\nt/r/c@2\nt/r@1\nt/r@2\n");
    world.check();
}

#[test]
fn contents_that_are_replaced_are_seen_at_once() {
    let Some(world) = World::new() else { return };
    world
        .ok("zfs create t/a && echo one > $R/t/a/f && zfs snapshot t/a@1 && echo two > $R/t/a/f && zfs snapshot t/a@2");
    // a read sets no time, which would be a change
    world.ok("zfs send t/a@1 | zfs receive -o atime=off t/b");
    assert_eq!(world.ok("cat $R/t/b/f"), "one\n");
    let file = File::open(world.path("root/t/b/f")).unwrap();
    world.ok("zfs send -i @1 t/a@2 | zfs receive t/b");
    assert_eq!(world.ok("cat $R/t/b/f"), "two\n");
    let mut text = [0; 4];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"two\n");
    world.ok("echo mine > $R/t/b/f; touch $R/t/b/more");
    world.fails("zfs send -i @2 t/a@3 2> /dev/null | zfs receive t/b", 1, "cannot receive: failed to read from stream");
    world.ok("echo three > $R/t/a/f && zfs snapshot t/a@3");
    assert_eq!(world.run("zfs send -i @2 t/a@3 | zfs receive t/b").status, Some(1));
    world.ok("zfs send -i @2 t/a@3 | zfs receive -F t/b");
    assert_eq!(world.ok("cat $R/t/b/f; ls $R/t/b"), "three\nf\n");
    world.ok("zfs rollback -r t/b@1");
    assert_eq!(world.ok("cat $R/t/b/f"), "one\n");
    drop(file);
    // a full stream over what is there, and a package
    world.ok("zfs create t/full && touch $R/t/full/old && zfs send t/a@1 | zfs receive -F t/full");
    assert_eq!(world.ok("ls $R/t/full"), "f\n");
    world.ok(
        "zfs create t/a/sub && echo s > $R/t/a/sub/f && zfs snapshot -r t/a@4 && zfs send -R t/a@4 | zfs receive t/r",
    );
    assert_eq!(world.ok("cat $R/t/r/f $R/t/r/sub/f"), "three\ns\n");
    world.ok("zfs send -R t/a@4 | zfs receive -u t/q");
    assert!(!world.mounted().iter().any(|line| line.starts_with("t/q")));
    world.check();
}

#[test]
fn imports_mount_and_a_dead_server_is_no_obstacle() {
    let Some(mut world) = World::new() else { return };
    world.ok("zfs create -p t/a/b && echo x > $R/t/a/b/f && sync $R/t/a/b/f && zpool export t");
    assert_eq!(world.in_kernel(), [] as [String; 0]);
    world.ok("zpool import -N -d $D -R $R t");
    assert_eq!(world.mounted(), [] as [String; 0]);
    world.ok("zpool export t && zpool import -o ro -d $D -R $R t");
    assert_eq!(world.ok("zfs get -Ho value,source readonly t/a/b; cat $R/t/a/b/f"), "on\ttemporary\nx\n");
    world.ok("zpool export t && zpool import -o readonly=on -d $D -R $R t");
    assert_eq!(world.ok("cat $R/t/a/b/f"), "x\n");
    assert!(world.run("touch $R/t/a/f").err.contains("Read-only file system"));
    world.ok("zpool export t && zpool import -d $D -R $R t");
    world.kill();
    assert!(world.run("ls $R/t").err.contains("Transport endpoint is not connected"));
    assert_eq!(world.in_kernel().len(), 3);
    assert_eq!(world.ok("zfs list -Ho name,mounted -r t"), "t\tno\nt/a\tno\nt/a/b\tno\n");
    assert_eq!(world.in_kernel(), [] as [String; 0]);
    // one is started on demand
    world.ok("zfs mount -a");
    assert_eq!((world.ok("cat $R/t/a/b/f"), world.mounted().len()), ("x\n".to_owned(), 3));
    // it stays as long as something is mounted
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(world.ok("zfs unmount t/a; cat $R/t/a/b/f 2> /dev/null || echo gone"), "gone\n");
    world.ok("zfs unmount -a");
    // who asks whether it is there keeps it for a while
    let socket = world.path("state/server.socket");
    until("it ends", || {
        std::thread::sleep(Duration::from_secs(4));
        std::os::unix::net::UnixStream::connect(&socket).is_err()
    });
    assert_eq!(world.mounted(), [] as [String; 0]);
    world.ok("zpool import -N t 2> /dev/null || true");
    world.check();
}

#[test]
fn many_file_systems_are_mounted_at_once() {
    let Some(world) = World::new() else { return };
    world.ok("for i in $(seq 20); do zfs create -u t/$i; for j in $(seq 9); do zfs create -u t/$i/$j; done; done");
    let begun = Instant::now();
    world.ok("zfs mount -a");
    println!("200 file systems mounted in {:?}", begun.elapsed());
    assert_eq!(world.mounted().len(), 201);
    world.ok("echo x > $R/t/20/9/f");
    let begun = Instant::now();
    world.ok("zfs unmount -a");
    println!("and unmounted in {:?}", begun.elapsed());
    assert_eq!(world.in_kernel(), [] as [String; 0]);
    world.check();
}

#[test]
fn the_helper_of_mount_takes_legacy_mount_points() {
    let Some(world) = World::new() else { return };
    world.ok("zfs create -o mountpoint=legacy t/l && zfs create t/a && mkdir $D/at");
    world.ok("mount.zfs t/l $D/at -o rw,noatime && touch $D/at/f");
    assert!(
        world
            .ok("grep fuse.zfs /proc/self/mounts")
            .lines()
            .any(|line| line.starts_with("t/l ") && line.contains("noatime"))
    );
    world.ok(
        "zfs snapshot t/l@s && mkdir $D/snap && mount.zfs -o ro t/l@s $D/snap && test -e $D/snap/f && umount $D/snap",
    );
    world.fails(
        "zfs unmount t/l",
        1,
        "cannot unmount 't/l': legacy mountpoint\nuse umount(8) to unmount this filesystem",
    );
    // it stays where it is under any name
    world.ok("zfs rename t/l t/m && test -e $D/at/f");
    // also below what is renamed
    world.ok(
        "zfs create -o mountpoint=none t/top && zfs rename t/m t/top/m && zfs rename t/top t/other && test -e $D/at/f",
    );
    world.ok("zfs rename t/other/m t/m && zfs destroy t/other && umount $D/at");
    // and one with a path of its own, which is the same below any name, and may be in use
    world.ok("zfs create -o mountpoint=legacy t/p && zfs create -o mountpoint=/own t/p/c");
    world.ok("cd $R/own && zfs rename t/p t/q && zfs list t/q/c");
    world.ok("zfs destroy -r t/q");
    assert_eq!(world.mounted(), ["t ROOT/t", "t/a ROOT/t/a"]);
    world.fails(
        "mount.zfs t/a $D/at",
        1,
        "filesystem 't/a' cannot be mounted using 'mount'.\nUse 'zfs set mountpoint=legacy' or 'zfs mount t/a'.\n\
         See zfs(8) for more information.",
    );
    world.fails("mount.zfs t/m", 1, "missing mountpoint argument\nusage: mount <dataset> <mountpoint>");
    world.fails(
        "mount.zfs t/nothing $D/at",
        1,
        "cannot open 't/nothing': dataset does not exist\nfilesystem 't/nothing' cannot be mounted, unable to open the dataset",
    );
    world.fails(
        "mount.zfs -o what t/m $D/at",
        1,
        "filesystem 't/m' cannot be mounted due to invalid option 'what'.\nUse the '-s' option to ignore the bad mount option.",
    );
    world.check();
}

#[test]
fn keys_are_loaded_for_mounts_and_stay_while_there_are_some() {
    let Some(world) = World::new() else { return };
    world.ok("head -c 32 /dev/zero > $D/key && zfs create -o encryption=on -o keyformat=raw -o keylocation=file://$D/key t/e");
    world.ok("zfs create t/e/in && touch $R/t/e/in/f");
    world.fails("zfs unload-key t/e", 255, "Key unload error: 't/e' is busy.");
    world.ok("zfs unmount -u t/e");
    assert_eq!(world.ok("zfs get -Ho value keystatus t/e"), "unavailable\n");
    world.fails("zfs mount t/e", 1, "cannot mount 't/e': encryption key not loaded");
    world.ok("zfs mount -a");
    assert_eq!(world.mounted(), ["t ROOT/t"]);
    world.ok("zfs mount -l t/e && zfs mount -a && test -e $R/t/e/in/f");
    world.check();
}

/// The buffers of a mount's threads, 64 MiB, are address space that is used as far as requests need it, also where a former mount had its own.
#[test]
fn mounts_take_little_memory_when_others_were_there_before() {
    const MOUNTS: u64 = 10;
    let Some(world) = World::new() else { return };
    for n in 0..MOUNTS {
        world.ok(&format!("zfs create t/fs{n}"));
    }
    let used = || world.memory_kib();
    let before = used();
    for _ in 0..2 {
        world.ok("zfs unmount -a && zfs mount -a");
    }
    let after = used();
    assert!(after < before + MOUNTS * (16 << 10), "{before} KiB before, {after} KiB after");
    world.check();
}
