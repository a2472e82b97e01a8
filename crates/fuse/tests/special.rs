//! Attributes, flags, holes and clones through a mount.
#![allow(clippy::unwrap_used)]

mod lab;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Env, ObjectId, tunable};
use lab::{Lab, USER};
use rustix::fs::{FallocateFlags, IFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use zpl::live::Cred;

fn names(lab: &Lab, name: &str) -> Vec<String> {
    let mut all = vec![0; 4096];
    let len = rustix::fs::listxattr(lab.path(name), &mut all).unwrap();
    let mut names: Vec<_> = String::from_utf8_lossy(&all[..len]).split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn extended_attributes_of_each_space() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    symlink("f", lab.path("l")).unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(lab.path("f"), name, value, flags);
    let get = |name: &str| {
        let mut value = vec![0; 70_000];
        rustix::fs::getxattr(lab.path("f"), name, &mut value).map(|len| value[..len].to_vec())
    };
    let large = Env::noise(5, 60_000);
    for (name, value) in [("user.a", &b"value"[..]), ("user.large", &large), ("trusted.t", b""), ("security.s", b"s")] {
        set(name, value, XattrFlags::CREATE).unwrap();
        assert_eq!(get(name).unwrap(), value);
    }
    assert_eq!(names(&lab, "f"), ["security.s", "trusted.t", "user.a", "user.large"]);
    assert_eq!(set("user.a", b"", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.b", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(set("system.unknown", b"", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::getxattr(lab.path("f"), "user.large", &mut [0; 10][..]), Err(Errno::RANGE));
    rustix::fs::removexattr(lab.path("f"), "user.large").unwrap();
    assert_eq!(get("user.large"), Err(Errno::NODATA));
    // users neither see nor set those of the system
    fs::set_permissions(lab.path("f"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let python = |code: &str| lab.run_as(USER, &[], &format!("python3 -c 'import os; {code}'"));
    let out = python("print(sorted(os.listxattr(\"f\")))");
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "['security.s', 'user.a']");
    assert!(python("os.setxattr(\"f\", \"user.c\", b\"1\")").status.success());
    assert!(!python("os.setxattr(\"f\", \"trusted.c\", b\"1\")").status.success());
    let zfs = lab.zfs();
    let id = fs::metadata(lab.path("f")).unwrap().ino();
    assert_eq!(zfs.get_xattr(&Cred::ROOT, ObjectId(id), b"user.c").unwrap(), b"1");
    drop(zfs);
    lab.close();
}

/// A write ends the capabilities of a program.
#[test]
fn a_written_program_has_no_capabilities() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    let caps = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(lab.path("f"), "security.capability", &caps, XattrFlags::empty()).unwrap();
    assert_eq!(names(&lab, "f"), ["security.capability"]);
    fs::write(lab.path("f"), b"y").unwrap();
    assert!(names(&lab, "f").is_empty());
    // nor does one that is extended
    for flags in [FallocateFlags::empty(), FallocateFlags::ZERO_RANGE] {
        let file = File::options().write(true).open(lab.path("f")).unwrap();
        let size = file.metadata().unwrap().len();
        rustix::fs::setxattr(lab.path("f"), "security.capability", &caps, XattrFlags::empty()).unwrap();
        rustix::fs::fallocate(&file, flags, size, 100).unwrap();
        assert!(names(&lab, "f").is_empty(), "{flags:?}");
    }
    lab.close();
}

#[test]
fn holes_are_made_and_found() {
    const K: u64 = 1024;
    let Some(lab) = Lab::new(&[("compression", 2)]) else { return };
    let file = File::options().create_new(true).read(true).write(true).open(lab.path("f")).unwrap();
    let data = Env::noise(2, 1 << 20);
    file.write_all_at(&data, 0).unwrap();
    // one that may be mapped for writing has no holes
    drop(file);
    let file = File::options().write(true).open(lab.path("f")).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 128 * K, 256 * K).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    file.sync_all().unwrap();
    lab.spa().sync().unwrap();
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(128 * K));
    assert_eq!(seek(SeekFrom::Data(128 * K)), Ok(384 * K));
    assert_eq!(seek(SeekFrom::Hole(384 * K)), Ok(1 << 20));
    assert_eq!(seek(SeekFrom::Data(1 << 20)), Err(Errno::NXIO));
    let zeros = vec![0; 256 << 10];
    let mut want = data.clone();
    want[128 << 10..384 << 10].copy_from_slice(&zeros);
    assert!(fs::read(lab.path("f")).unwrap() == want);
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 1000 * K, 100 * K).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 1000 * K, 100 * K).unwrap();
    want.resize(1100 << 10, 0);
    want[1000 << 10..].fill(0);
    assert!(fs::read(lab.path("f")).unwrap() == want);
    // space is looked for, not taken; as in OpenZFS
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 2 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1100 * K);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    assert_eq!(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 40), Err(Errno::NOSPC));
    assert_eq!(rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    drop(file);
    lab.close();
}

/// Runs a Python program in the mount, which prints `ok` at its end.
fn python(lab: &Lab, code: &str) {
    let code = format!("import mmap, os, subprocess\n{code}\nprint('ok')");
    let out = Command::new("python3").args(["-c", &code]).current_dir(lab.path("")).output().unwrap();
    let told = (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned());
    assert!(told.0.trim() == "ok", "{told:?}");
}

/// A file whose pages may be changed in a mapping has no holes as long as they may.
#[test]
fn data_in_a_mapping_is_found() {
    let Some(lab) = Lab::new(&[]) else { return };
    python(
        &lab,
        "fd = os.open('f', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
seen = os.open('f', os.O_RDONLY)
m = mmap.mmap(fd, 1 << 20)
os.close(fd)
m[600000:600003] = b'abc'
assert os.lseek(seen, 0, os.SEEK_DATA) == 0 and os.lseek(seen, 5, os.SEEK_DATA) == 5
assert os.lseek(seen, 5, os.SEEK_HOLE) == 1 << 20
for how in (os.SEEK_DATA, os.SEEK_HOLE):
    try:
        os.lseek(seen, 1 << 20, how)
        assert False
    except OSError as error:
        assert error.errno == 6, error
m.close()
at = os.lseek(seen, 0, os.SEEK_DATA)
assert 0 < at <= 600000 < os.lseek(seen, at, os.SEEK_HOLE), at",
    );
    lab.close();
}

/// Also where the times of before are cached.
#[test]
fn a_change_in_a_mapping_is_one_of_the_times() {
    let Some(lab) = Lab::new(&[]) else { return };
    python(
        &lab,
        "fd = os.open('f', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
m = mmap.mmap(fd, 4096)
os.utime('f', (1, 1))
before = os.stat('f')
assert before.st_mtime == 1
m[0] = 7
m.flush()
after = os.stat('f')
assert after.st_mtime > 1 and after.st_ctime_ns > before.st_ctime_ns, (before, after)",
    );
    lab.close();
}

/// If there is no space for all pages of a mapping, `msync` tells.
#[test]
fn a_mapping_on_a_full_pool_fails() {
    let Some(lab) = Lab::new(&[("compression", 2)]) else { return };
    fs::write(lab.path("small"), Env::noise(1, 600 << 10)).unwrap();
    lab.spa().sync().unwrap();
    let (piece, file, mut len) = (Env::noise(3, 1 << 20), File::create(lab.path("big")).unwrap(), 0);
    while let Ok(n) = file.write_at(&piece, len) {
        len += n as u64;
    }
    fs::remove_file(lab.path("small")).unwrap();
    for _ in 0..4 {
        lab.spa().sync().unwrap();
    }
    python(
        &lab,
        "size = 1 << 20
fd = os.open('m', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, size)
m = mmap.mmap(fd, size)
data = os.urandom(size)
m[:] = data
try:
    m.flush()
    assert False, 'it fits'
except OSError as error:
    assert error.errno in (5, 28), error",
    );
    drop(file);
    fs::remove_file(lab.path("big")).unwrap();
    lab.close();
}

/// Readers of a file that can only be appended to see what is appended, and no zeros in its place.
#[test]
fn what_is_appended_to_a_file_with_a_flag_is_read() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), b"xxxxxxxxxx").unwrap();
    let seen = File::open(lab.path("f")).unwrap();
    rustix::fs::ioctl_setflags(&seen, IFlags::APPEND).unwrap();
    let mut log = File::options().append(true).open(lab.path("f")).unwrap();
    let (end, zeros) = (AtomicU64::new(10), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut byte = [0];
                while end.load(Ordering::Relaxed) < u64::MAX {
                    // what is cached is the whole page
                    let _ = seen.read_at(&mut byte, end.load(Ordering::Relaxed).saturating_sub(1));
                }
            });
        }
        for _ in 0..2000 {
            log.write_all(&[b'x'; 700]).unwrap();
            let mut last = [0; 700];
            seen.read_exact_at(&mut last, end.fetch_add(700, Ordering::Relaxed)).unwrap();
            zeros.fetch_add(u64::from(last != [b'x'; 700]), Ordering::Relaxed);
        }
        end.store(u64::MAX, Ordering::Relaxed);
    });
    assert_eq!(zeros.into_inner(), 0);
    assert!(fs::read(lab.path("f")).unwrap() == vec![b'x'; 10 + 2000 * 700]);
    rustix::fs::ioctl_setflags(&seen, IFlags::empty()).unwrap();
    drop((seen, log));
    lab.close();
}

/// Flags bind those who change a file through a mapping, if they are there when it is made.
#[test]
fn mappings_of_files_with_flags() {
    let Some(lab) = Lab::new(&[]) else { return };
    python(
        &lab,
        "open('f', 'wb').write(bytes(8192))
subprocess.run(['chattr', '+a', 'f'], check=True)
fd = os.open('f', os.O_RDWR | os.O_APPEND)
try:
    mmap.mmap(fd, 4096)
    assert False
except OSError:
    pass
assert mmap.mmap(os.open('f', os.O_RDONLY), 4096, prot=mmap.PROT_READ)[0] == 0
os.write(fd, b'end')
assert open('f', 'rb').read()[8190:] == bytes(2) + b'end'
subprocess.run(['chattr', '-a', 'f'], check=True)
m = mmap.mmap(os.open('f', os.O_RDWR), 4096)
m[0:3] = b'abc'
subprocess.run(['chattr', '+i', 'f'], check=True)
m.flush()
subprocess.run(['chattr', '-i', 'f'], check=True)",
    );
    let zfs = lab.zfs();
    let mut data = [0; 3];
    zfs.read(zfs.fs().resolve(b"f").unwrap().id(), 0, &mut data).unwrap();
    assert_eq!(&data, b"abc");
    drop(zfs);
    lab.close();
}

#[test]
fn copies_share_blocks() {
    let Some(lab) = Lab::new(&[]) else { return };
    let data = Env::noise(4, 8 << 20);
    fs::write(lab.path("a"), &data).unwrap();
    lab.spa().sync().unwrap();
    let (from, to) = (File::open(lab.path("a")).unwrap(), File::create(lab.path("b")).unwrap());
    let (mut at, mut to_at) = (0, 0);
    while at < data.len() as u64 {
        let left = data.len() - at as usize;
        assert!(rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left).unwrap() > 0);
    }
    assert!(fs::read(lab.path("b")).unwrap() == data);
    lab.spa().sync().unwrap();
    let stats = lab.spa().view().unwrap().brt_stats().unwrap();
    assert_eq!(stats.saved, 8 << 20, "both have the same blocks");
    drop((from, to));
    lab.close();
}

/// A long copy is made in several calls, so that none of them takes a thread for long.
#[test]
fn copies_are_bounded() {
    const MIB: u64 = 1 << 20;
    let Some(lab) = Lab::new(&[]) else { return };
    let (from, to) = (File::create_new(lab.path("a")).unwrap(), File::create_new(lab.path("b")).unwrap());
    from.set_len(100 * MIB).unwrap();
    drop(from);
    let (from, mut at, mut to_at) = (File::open(lab.path("a")).unwrap(), 0, 0);
    let mut copied = Vec::new();
    while at < 100 * MIB {
        let n = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), 200 << 20).unwrap();
        copied.push(n as u64 / MIB);
    }
    assert_eq!(copied, [64, 36]);
    assert_eq!(to.metadata().unwrap().len(), 100 * MIB);
    drop((from, to));
    lab.close();
}

#[test]
fn flags_and_projects_by_ioctl() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    fs::create_dir(lab.path("d")).unwrap();
    let file = File::open(lab.path("f")).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&file), Ok(IFlags::empty()));
    rustix::fs::ioctl_setflags(&file, IFlags::NODUMP | IFlags::APPEND).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&file), Ok(IFlags::NODUMP | IFlags::APPEND));
    assert_eq!(fs::write(lab.path("f"), b"y").unwrap_err().raw_os_error(), Some(1));
    rustix::fs::ioctl_setflags(&file, IFlags::empty()).unwrap();
    assert_eq!(rustix::fs::ioctl_setflags(&file, IFlags::NOATIME), Err(Errno::OPNOTSUPP));
    let run = |words: &str| {
        let mut words = words.split(' ');
        let out = Command::new(words.next().unwrap()).args(words).current_dir(lab.path("")).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    run("chattr -p 77 f");
    run("chattr -p 78 d");
    run("chattr +P d");
    assert!(run("lsattr -p f").trim_start().starts_with("77 "));
    assert!(run("lsattr -pd d").contains('P'));
    fs::write(lab.path("d/g"), b"x").unwrap();
    let zfs = lab.zfs();
    assert_eq!(zfs.fs().resolve(b"d/g").unwrap().attrs().projid, Some(78));
    assert_eq!(fs::rename(lab.path("f"), lab.path("d/f")).unwrap_err().raw_os_error(), Some(18));
    // users may not
    fs::set_permissions(lab.path("f"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    assert!(!lab.run_as(USER, &[], "chattr +d f").status.success());
    assert!(!lab.run_as(USER, &[], "chattr -p 5 f").status.success());
    drop((file, zfs));
    lab.close();
}

/// Numbers, generations and the other figures of `stat` are those of the objects.
#[test]
fn what_stat_shows_is_what_the_objects_are() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), vec![7; 700]).unwrap();
    lab.spa().sync().unwrap();
    let (meta, zfs) = (fs::metadata(lab.path("f")).unwrap(), lab.zfs());
    let file = zfs.fs().resolve(b"f").unwrap();
    assert_eq!((meta.ino(), meta.blocks()), (file.id().0, file.blocks()));
    assert_eq!((meta.ctime(), meta.ctime_nsec()), (file.attrs().ctime.sec, file.attrs().ctime.nsec.into()));
    let all = rustix::fs::statvfs(lab.path("")).unwrap();
    let of_engine = zfs.statfs().unwrap();
    assert_eq!((all.f_blocks, all.f_namemax), (of_engine.blocks, 255));
    assert!(tunable::ZFS_FALLOCATE_RESERVE_PERCENT.get() == 110);
    drop((file, zfs));
    lab.close();
}
