//! Volumes as files of a directory (`zuse serve --zvol`).
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/loops.rs"]
mod loops;
#[path = "support/server.rs"]
mod server;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;

use base::Errno;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use server::{World, program, until};

/// Returns whether it can be mounted here; says so if not.
///
/// # Panics
/// If it cannot, and `ZUSE_FUSE=require`.
fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let required = std::env::var_os("ZUSE_FUSE").is_some_and(|word| word == "require");
    assert!(can || !required, "nothing can be mounted here");
    if !can {
        eprintln!("nothing can be mounted here: skipped (ZUSE_FUSE=require makes this a failure)");
    }
    can
}

fn serve(world: &mut World) {
    world.serve(&["--zvol", "zvol"], 0);
    until("it is there", || fs::read_dir(world.path("zvol")).is_ok_and(|mut entries| entries.next().is_some()));
}

fn names(world: &World, path: &str) -> Vec<String> {
    let entries = fs::read_dir(world.path("zvol").join(path)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn file(world: &World, path: &str) -> PathBuf {
    world.path("zvol").join(path)
}

fn open(world: &World, path: &str) -> File {
    OpenOptions::new().read(true).write(true).open(file(world, path)).unwrap()
}

/// Whether something is mounted at a path.
fn is_mounted(path: &std::path::Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

#[test]
fn volumes_are_files_that_come_and_go() {
    if !can_mount() {
        return;
    }
    let mut world = World::new(256);
    world.ok("zfs create -o canmount=off -p t/a/b");
    for name in ["t/v", "t/a/b/w"] {
        world.ok(&format!("zfs create -s -V 4M {name}"));
    }
    world.ok("zfs snapshot -r t@s");
    serve(&mut world);
    assert_eq!(
        (names(&world, ""), names(&world, "t"), names(&world, "t/a/b")),
        (vec!["t".into()], vec!["a".into(), "v".into()], vec!["w".into()])
    );
    assert!(!file(&world, "t/v@s").exists() && !file(&world, "t@s").exists());
    world.ok("zfs set snapdev=visible t/v");
    world.ok("zfs create -s -V 1M t/new");
    assert_eq!(names(&world, "t"), ["a", "new", "v", "v@s"]);
    world.ok("zfs set volmode=none t/new");
    assert_eq!(names(&world, "t"), ["a", "v", "v@s"]);
    assert!(!file(&world, "t/new").exists());
    let meta = |path: &str| fs::metadata(file(&world, path)).unwrap();
    assert_eq!((meta("t/v").len(), meta("t/v").blksize(), meta("t/v").mode()), (4 << 20, 16 << 10, 0o100_600));
    assert_eq!(meta("t/v@s").mode(), 0o100_400);

    let v = open(&world, "t/v");
    v.write_all_at(b"inside", 5).unwrap();
    v.sync_all().unwrap();
    let snapshot = File::open(file(&world, "t/v@s")).unwrap();
    let mut seen = [1; 6];
    snapshot.read_exact_at(&mut seen, 5).unwrap();
    assert_eq!(seen, [0; 6]);
    let read_only = |path: &str| OpenOptions::new().write(true).open(file(&world, path)).unwrap_err().raw_os_error();
    assert_eq!(read_only("t/v@s"), Some(Errno::EROFS.raw()));
    world.fails("zfs destroy -r t/v", 1, "dataset is busy");
    world.fails("zfs destroy t/v@s", 1, "dataset is busy");
    world.fails("zpool export t", 1, "pool is busy");
    world.ok("zfs set readonly=on t/v");
    assert_eq!(v.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(Errno::EROFS.raw()));
    assert_eq!((read_only("t/v"), meta("t/v").mode()), (Some(Errno::EROFS.raw()), 0o100_400));
    world.ok("zfs set readonly=off t/v");
    world.ok("zfs set volsize=8M t/v");
    assert_eq!((v.metadata().unwrap().len(), meta("t/v").len()), (8 << 20, 8 << 20));
    v.write_all_at(b"end", (8 << 20) - 3).unwrap();
    world.ok("zfs rename t/v t/moved");
    assert_eq!(
        (names(&world, "t"), v.metadata().unwrap().len()),
        (vec!["a".into(), "moved".into(), "moved@s".into()], 8 << 20)
    );
    v.read_exact_at(&mut seen, 5).unwrap();
    assert_eq!(&seen, b"inside");
    drop((v, snapshot));
    until("nobody uses it", || world.run("zfs destroy -r t/moved").status == Some(0));
    assert_eq!(names(&world, "t"), ["a"]);
    world.ok("zpool export t");
    assert_eq!(names(&world, ""), [] as [&str; 0]);
    world.ok(&format!("zpool import -d {} t", world.path("pool").display()));
    assert_eq!(names(&world, "t/a/b"), ["w"]);

    // it ends with a file that stays open
    let w = open(&world, "t/a/b/w");
    w.write_all_at(b"last", 0).unwrap();
    world.stop();
    assert!(w.read_at(&mut seen, 0).is_err() && !is_mounted(&world.path("zvol")));
    assert_eq!(&world.ok("cat t/a/b/w")[..4], "last");
    world.judge();
}

/// A pool in a volume of another one, by the directory of the very server that has both: its requests wait for others to that directory.
#[test]
fn a_pool_on_a_file_of_the_directory_is_served_by_it() {
    if !can_mount() {
        return;
    }
    let mut world = World::new(512);
    world.ok("zfs create -s -V 192M t/v");
    serve(&mut world);
    world.ok(&format!("zpool create u {}", file(&world, "t/v").display()));
    world.ok("zfs create -s -V 64M u/w");
    let path = file(&world, "u/w");
    let write = |n: u8| {
        let path = path.clone();
        let work = move || {
            let w = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let at = u64::from(n) << 21;
            for round in 0..4u8 {
                w.write_all_at(&vec![n ^ (round << 6); 1 << 20], at).unwrap();
                w.sync_data().unwrap();
            }
            let mut seen = vec![0; 1 << 20];
            w.read_exact_at(&mut seen, at).unwrap();
            assert!(seen.iter().all(|byte| *byte == n ^ 0xc0));
        };
        std::thread::Builder::new().spawn(work).unwrap()
    };
    let writers: Vec<_> = (0..24).map(write).collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    until("nobody uses it", || world.run("zpool export u").status == Some(0));
    world.end();
    world.judge();
}

/// A volume of a petabyte in which there is one block: its holes are passed over at once.
#[test]
fn holes_of_a_long_volume_are_passed_over() {
    if !can_mount() {
        return;
    }
    let mut world = World::new(256);
    world.ok("zfs create -s -V 1P t/long");
    serve(&mut world);
    let long = open(&world, "t/long");
    assert_eq!(seek(&long, SeekFrom::Data(0)).unwrap_err(), rustix::io::Errno::NXIO);
    let at = (1 << 50) - (256 << 10);
    long.write_all_at(b"here", at).unwrap();
    long.sync_all().unwrap();
    assert_eq!(seek(&long, SeekFrom::Data(5)).unwrap(), at);
    assert_eq!(seek(&long, SeekFrom::Hole(at + 1)).unwrap(), at + (16 << 10));
    assert_eq!(seek(&long, SeekFrom::Data(at + (16 << 10))).unwrap_err(), rustix::io::Errno::NXIO);
    drop(long);
    world.end();
    world.judge();
}

#[test]
fn a_file_system_is_made_and_checked_in_a_volume() {
    if !can_mount() {
        return;
    }
    let mut world = World::new(384);
    world.ok("zfs create -s -V 64M t/v");
    serve(&mut world);
    let path = file(&world, "t/v").to_str().unwrap().to_owned();
    if program("mke2fs", &["-q", "-t", "ext4", "-d", "src", &path]).is_none() {
        return;
    }
    program("e2fsck", &["-fn", &path]);
    let used = || world.ok("zfs get -Hpo value referenced t/v").trim().parse::<u64>().unwrap();
    world.ok("zpool sync t");
    let full = used();
    let v = open(&world, "t/v");
    let first = seek(&v, SeekFrom::Hole(0)).unwrap();
    assert!(first > 0 && first < 64 << 20 && seek(&v, SeekFrom::Data(0)).unwrap() == 0);
    fallocate(&v, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 32 << 20).unwrap();
    fallocate(&v, FallocateFlags::ZERO_RANGE, 32 << 20, 32 << 20).unwrap();
    assert_eq!(seek(&v, SeekFrom::Data(0)).unwrap_err(), rustix::io::Errno::NXIO);
    drop(v);
    world.ok("zpool sync t");
    assert!(4 * used() < full, "{} of {full} bytes are left", used());
    world.end();
    world.judge();
}

#[test]
fn fio_verifies_what_it_has_written() {
    if !can_mount() {
        return;
    }
    let mut world = World::new(256);
    world.ok("zfs create -s -V 32M t/v");
    serve(&mut world);
    let name = format!("--filename={}", file(&world, "t/v").display());
    let aux = format!("--aux-path={}", world.dir.path().display());
    for job in [
        &["--ioengine=psync", "--numjobs=1", "--bs=4k", "--io_size=8m", "--fsync=64"][..],
        &["--ioengine=libaio", "--direct=1", "--iodepth=16", "--bs=12k", "--io_size=16m", "--fdatasync=16"],
        &["--ioengine=psync", "--sync=1", "--bs=16k", "--io_size=1m"],
    ] {
        let common = ["--name=x", &name, "--size=32m", "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", &aux];
        if program("fio", &[&common[..], job].concat()).is_none() {
            return;
        }
    }
    world.end();
    world.judge();
}

#[test]
fn loop_devices_are_made_of_them() {
    if !can_mount() {
        return;
    }
    if let Some(why) = loops::Loop::missing() {
        eprintln!("{why}: skipped");
        return;
    }
    let mut world = World::new(384);
    world.ok("zfs create -s -V 64M t/v");
    serve(&mut world);
    fs::create_dir(world.path("mnt")).unwrap();
    let (path, mnt) = (file(&world, "t/v"), world.path("mnt"));
    let device = loops::Loop::of(&path);
    if program("mke2fs", &["-q", "-t", "ext4", device.path()]).is_none() {
        return;
    }
    let mnt = mnt.to_str().unwrap();
    program("mount", &["-t", "ext4", device.path(), mnt]);
    let data: Vec<u8> = (0..8 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(world.path("mnt/f"), &data).unwrap();
    world.fails("zfs destroy t/v", 1, "dataset is busy");
    world.ok("zfs snapshot t/v@s");
    program("umount", &[mnt]);
    program("mount", &["-t", "ext4", device.path(), mnt]);
    assert!(fs::read(world.path("mnt/f")).unwrap() == data);
    fs::remove_file(world.path("mnt/f")).unwrap();
    program("fstrim", &[mnt]);
    program("umount", &[mnt]);
    program("e2fsck", &["-fn", device.path()]);
    drop(device);
    world.ok("zpool sync t");
    let used = world.ok("zfs get -Hpo value referenced t/v").trim().parse::<u64>().unwrap();
    assert!(used < 8 << 20, "what was trimmed is stored: {used}");
    world.end();
    world.judge();
}

#[test]
fn a_kill_after_a_sync_loses_nothing_and_the_next_server_cleans_up() {
    if !can_mount() {
        return;
    }
    let mut world = World::new(256);
    world.ok("zfs create -s -V 4M t/v");
    for n in 1..4u8 {
        serve(&mut world);
        let v = open(&world, "t/v");
        let mut seen = vec![0; 1 << 20];
        v.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == [n - 1; 1 << 20]);
        v.write_all_at(&[n; 1 << 20], 0).unwrap();
        v.sync_data().unwrap();
        world.kill();
        assert!(v.read_at(&mut seen, 0).is_err() && is_mounted(&world.path("zvol")));
    }
    // another command does it as well
    world.ok("zfs list");
    assert!(!is_mounted(&world.path("zvol")));
    world.judge();
}

#[test]
fn the_directory_has_to_be_one_that_is_empty() {
    if !can_mount() {
        return;
    }
    let mut world = World::new(96);
    fs::create_dir(world.path("full")).unwrap();
    fs::write(world.path("full/file"), "").unwrap();
    world.fails("serve --zvol full", 1, "directory is not empty");
    fs::write(world.path("file"), "").unwrap();
    world.fails("serve --zvol file", 1, "--zvol ");
    assert!(!world.path("state/server.socket").exists());
    // none of it is left
    world.serve(&["--zvol", "made/by/it"], 0);
    until("it is mounted", || is_mounted(&world.path("made/by/it")));
    // who unmounts it ends it, and the server goes on
    let done = Command::new("umount").arg(world.path("made/by/it")).status().unwrap();
    assert!(done.success());
    world.ok("zfs list");
    world.end();
}
