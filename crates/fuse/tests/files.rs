//! Files and names through a mount, and what the engine has of them.
#![allow(clippy::unwrap_used)]

mod lab;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::time::Duration;

use base::{Env, ObjectId};
use lab::Lab;
use rustix::fs::{AtFlags, CWD, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use zpl::Kind;
use zpl::create::FsProps;
use zpl::live::Cred;

#[test]
fn files_are_made_written_read_and_removed() {
    let Some(lab) = Lab::new(&[]) else { return };
    let (data, zfs) = (Env::noise(1, 3 << 20), lab.zfs());
    fs::create_dir_all(lab.path("a/b/c")).unwrap();
    fs::write(lab.path("a/b/c/f"), &data).unwrap();
    assert_eq!(fs::read(lab.path("a/b/c/f")).unwrap(), data);
    // the number is the object's, and the engine has the bytes already
    let meta = fs::metadata(lab.path("a/b/c/f")).unwrap();
    let mut seen = vec![0; data.len() + 1];
    assert_eq!(zfs.read(ObjectId(meta.ino()), 0, &mut seen).unwrap(), data.len());
    assert_eq!(seen[..data.len()], data);
    assert_eq!(fs::metadata(lab.path("")).unwrap().ino(), zfs.fs().root().0);
    assert_eq!((meta.nlink(), meta.blksize(), meta.mode() & 0o7777), (1, 128 << 10, 0o644));
    lab.spa().sync().unwrap();
    fs::hard_link(lab.path("a/b/c/f"), lab.path("a/g")).unwrap();
    let meta = fs::metadata(lab.path("a/g")).unwrap();
    assert!(meta.nlink() == 2 && meta.blocks() * 512 >= 3 << 20, "{}", meta.blocks());
    fs::rename(lab.path("a/g"), lab.path("h")).unwrap();
    symlink("a/b", lab.path("link")).unwrap();
    assert_eq!(fs::read_link(lab.path("link")).unwrap().to_str(), Some("a/b"));
    assert_eq!(fs::read(lab.path("link/c/f")).unwrap(), data);
    let mut names: Vec<_> = fs::read_dir(lab.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "h", "link"]);
    assert_eq!(fs::remove_dir(lab.path("a")).unwrap_err().raw_os_error(), Some(39));
    fs::remove_dir_all(lab.path("a")).unwrap();
    assert_eq!(fs::read(lab.path("h")).unwrap(), data);
    assert_eq!(fs::read(lab.path("link/c/f")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    drop(zfs);
    lab.close();
}

/// The space that a file uses is known when it is on disk; nobody tells the kernel when that is.
#[test]
fn the_space_of_a_file_is_seen_soon_after_it_is_on_disk() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), Env::noise(1, 1 << 20)).unwrap();
    // what is cached of it
    fs::metadata(lab.path("f")).unwrap();
    lab.spa().sync().unwrap();
    let begun = std::time::Instant::now();
    while fs::metadata(lab.path("f")).unwrap().blocks() * 512 < 1 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", fs::metadata(lab.path("f")).unwrap().blocks());
        std::thread::sleep(Duration::from_millis(20));
    }
    lab.close();
}

#[test]
fn a_file_is_used_after_its_last_name_is_gone() {
    let Some(lab) = Lab::new(&[]) else { return };
    let zfs = lab.zfs();
    let mut file = File::options().create_new(true).read(true).write(true).open(lab.path("f")).unwrap();
    fs::write(lab.path("g"), b"g").unwrap();
    let as_path = rustix::fs::OFlags::PATH.bits() as i32;
    let path_only = File::options().read(true).custom_flags(as_path).open(lab.path("g")).unwrap();
    let g = path_only.metadata().unwrap().ino();
    fs::remove_file(lab.path("f")).unwrap();
    fs::remove_file(lab.path("g")).unwrap();
    file.write_all(b"still here").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), file.metadata().unwrap().nlink()), ("still here", 0));
    // the kernel knows it, though nobody has it open
    assert_eq!(path_only.metadata().unwrap().nlink(), 0);
    assert_eq!((zfs.fs().delete_queue().unwrap().len(), zfs.getattr(ObjectId(g)).unwrap().links), (2, 0));
    // a removed directory is one for as long as it is somebody's
    fs::create_dir(lab.path("d")).unwrap();
    let dir = File::open(lab.path("d")).unwrap();
    fs::remove_dir(lab.path("d")).unwrap();
    assert_eq!(dir.metadata().unwrap().nlink(), 0);
    let made = rustix::fs::openat(&dir, "x", rustix::fs::OFlags::CREATE, 0o600.into());
    assert_eq!(made.unwrap_err(), rustix::io::Errno::NOENT);
    drop((file, path_only, dir));
    // the kernel forgets when it likes, and at the end of the mount
    drop(zfs);
    lab.close();
}

#[test]
fn appends_truncations_and_offsets() {
    let Some(lab) = Lab::new(&[]) else { return };
    let path = lab.path("f");
    let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    let mut other = OpenOptions::new().append(true).open(&path).unwrap();
    log.write_all(b"one ").unwrap();
    other.write_all(b"two ").unwrap();
    log.write_all(b"three").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one two three");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(4).unwrap();
    file.write_all_at(b"x", 300_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 300_001);
    let all = fs::read(&path).unwrap();
    assert!(all.starts_with(b"one \0") && all.ends_with(b"\0x") && all[4..300_000].iter().all(|b| *b == 0));
    // an open for writing that cuts
    let cut = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    assert_eq!((cut.metadata().unwrap().len(), fs::read(&path).unwrap().len()), (0, 0));
    // who may write has it open, whatever the mode says by now
    let sealed = OpenOptions::new().create_new(true).write(true).mode(0o400).open(lab.path("g")).unwrap();
    (&sealed).write_all(b"abcdef").unwrap();
    sealed.set_len(3).unwrap();
    assert_eq!(fs::read(lab.path("g")).unwrap(), b"abc");
    drop((log, other, file, cut, sealed));
    lab.close();
}

/// One append is in one piece, however many requests the kernel makes of it.
#[test]
fn long_direct_appends_are_in_order() {
    let Some(lab) = Lab::new(&[]) else { return };
    let data: Vec<u8> = (0..(8_u32 << 20) / 4).flat_map(u32::to_le_bytes).collect();
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut file = OpenOptions::new().create(true).append(true).custom_flags(direct).open(lab.path("f")).unwrap();
    for _ in 0..4 {
        file.set_len(0).unwrap();
        assert_eq!(file.write(&data).unwrap(), data.len());
        assert!(fs::read(lab.path("f")).unwrap() == data);
    }
    drop(file);
    lab.close();
}

/// The name of the control directory is taken, though nothing is there.
#[test]
fn the_control_directory_is_not_created() {
    let Some(lab) = Lab::new(&[]) else { return };
    for exclusive in [false, true] {
        let error = OpenOptions::new().append(true).create(true).create_new(exclusive).open(lab.path(".zfs"));
        assert_eq!(error.unwrap_err().raw_os_error(), Some(17), "{exclusive}");
    }
    lab.close();
}

/// An append goes to the end, wherever a command has put that behind the mount.
#[test]
fn appends_go_to_the_end_that_the_engine_knows() {
    let Some(lab) = Lab::new(&[]) else { return };
    let (zfs, path) = (lab.zfs(), lab.path("f"));
    let root = zfs.fs().root();
    let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    let dsync = rustix::fs::OFlags::DSYNC.bits() as i32;
    let mut synchronous = OpenOptions::new().append(true).custom_flags(dsync).open(&path).unwrap();
    log.write_all(b"one ").unwrap();
    let id = zfs.lookup(&Cred::ROOT, root, b"f").unwrap().0;
    let engine = || {
        let mut data = vec![0; 100];
        let len = zfs.read(id, 0, &mut data).unwrap();
        data.truncate(len);
        String::from_utf8(data).unwrap()
    };
    zfs.append(&Cred::ROOT, id, b"behind ").unwrap();
    log.write_all(b"two ").unwrap();
    assert_eq!(engine(), "one behind two ");
    zfs.truncate(&Cred::ROOT, id, 4).unwrap();
    log.write_all(b"three ").unwrap();
    assert_eq!(engine(), "one three ");
    zfs.append(&Cred::ROOT, id, b"again ").unwrap();
    synchronous.write_all(b"four").unwrap();
    assert_eq!(engine(), "one three again four");
    // the mount shows it as soon as the kernel has dropped what it had put elsewhere
    let shown = || fs::read(&path).unwrap() == engine().as_bytes();
    let later = || {
        std::thread::sleep(Duration::from_millis(20));
        shown()
    };
    assert!(shown() || (0..3000).any(|_| later()));
    drop((log, synchronous, zfs));
    lab.close();
}

#[test]
fn renames_of_each_kind() {
    let Some(lab) = Lab::new(&[]) else { return };
    let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, lab.path(from), CWD, lab.path(to), flags);
    fs::write(lab.path("a"), b"a").unwrap();
    fs::write(lab.path("b"), b"b").unwrap();
    fs::create_dir(lab.path("d")).unwrap();
    let is = |name: &str| fs::read(lab.path(name)).unwrap();
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((is("a"), is("b")), (b"b".to_vec(), b"a".to_vec()));
    rename("a", "d/a", RenameFlags::NOREPLACE).unwrap();
    rename("d/a", "b", RenameFlags::empty()).unwrap();
    assert_eq!(is("b"), b"b");
    fs::write(lab.path("taken"), b"taken").unwrap();
    let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    assert_eq!(rename("b", "taken", both), Err(rustix::io::Errno::EXIST));
    rename("b", "c", both).unwrap();
    rename("c", "taken", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::metadata(lab.path("c")).unwrap().rdev(), 0);
    let zfs = lab.zfs();
    let white = zfs.fs().resolve(b"b").unwrap();
    assert_eq!((white.kind(), white.attrs().device()), (Kind::CharDevice, Some((0, 0))));
    assert_eq!(fs::metadata(lab.path("b")).unwrap().rdev(), 0);
    assert_eq!(rename("d", "d/e", RenameFlags::empty()), Err(rustix::io::Errno::INVAL));
    drop((white, zfs));
    lab.close();
}

#[test]
fn large_directories_are_listed_once_and_whole() {
    const COUNT: usize = 5000;
    let Some(lab) = Lab::new(&[]) else { return };
    let dir = lab.path("d");
    fs::create_dir(&dir).unwrap();
    for n in 0..COUNT {
        File::create(dir.join(format!("a file with a name that is long enough {n:05}"))).unwrap();
    }
    let all: std::collections::BTreeSet<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!((all.len(), fs::metadata(&dir).unwrap().len()), (COUNT, COUNT as u64 + 2));
    // while it is listed, what is listed is removed
    let mut seen = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.metadata().unwrap().is_file());
        fs::remove_file(entry.path()).unwrap();
        seen += 1;
    }
    assert_eq!((seen, fs::read_dir(&dir).unwrap().count()), (COUNT, 0));
    lab.close();
}

#[test]
fn names_have_255_bytes_at_most() {
    let Some(lab) = Lab::new(&[]) else { return };
    let (longest, longer) = ("n".repeat(255), "n".repeat(256));
    fs::write(lab.path(&longest), b"x").unwrap();
    assert_eq!(fs::write(lab.path(&longer), b"x").unwrap_err().raw_os_error(), Some(36));
    assert_eq!(fs::metadata(lab.path(&longer)).unwrap_err().raw_os_error(), Some(36));
    assert_eq!(fs::read(lab.path(&longest)).unwrap(), b"x");
    lab.close();
}

/// Who removes an entry by another spelling removes it for all.
#[test]
fn spellings_of_a_name_are_one_file() {
    let fixed = FsProps { casesensitivity: 1, ..FsProps::default() };
    let Some(mut lab) = Lab::with(fixed, &[]) else { return };
    lab.mount(&fuse::Options::new("t"));
    fs::write(lab.path("Name"), b"x").unwrap();
    assert_eq!(fs::read(lab.path("NAME")).unwrap(), b"x");
    assert_eq!(fs::metadata(lab.path("name")).unwrap().ino(), fs::metadata(lab.path("Name")).unwrap().ino());
    fs::remove_file(lab.path("nAME")).unwrap();
    for name in ["Name", "NAME", "name"] {
        assert!(!lab.path(name).exists(), "{name}");
    }
    fs::write(lab.path("NAME"), b"y").unwrap();
    fs::rename(lab.path("name"), lab.path("other")).unwrap();
    assert!(!lab.path("Name").exists() && lab.path("OTHER").exists());
    lab.close();
}

#[test]
fn times_are_set_as_given() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    let set = |atime: Timespec, mtime: Timespec| {
        let times = Timestamps { last_access: atime, last_modification: mtime };
        rustix::fs::utimensat(CWD, lab.path("f"), &times, AtFlags::empty()).unwrap();
        let meta = fs::metadata(lab.path("f")).unwrap();
        ((meta.atime(), meta.atime_nsec()), (meta.mtime(), meta.mtime_nsec()))
    };
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    assert_eq!(set(at(5, 6), at(1 << 35, 999_999_999)), ((5, 6), (1 << 35, 999_999_999)));
    // before 1970, as with the kernel module
    assert_eq!(set(at(-5, 7), at(-1 << 40, 0)), ((-5, 7), (-1 << 40, 0)));
    let (_, mtime) = set(at(0, UTIME_OMIT), at(0, UTIME_NOW));
    let (atime, mtime_then) = set(at(0, UTIME_NOW), at(0, UTIME_OMIT));
    assert!(mtime == mtime_then && mtime.0 > 1_700_000_000 && atime >= mtime);
    // nor does a write touch the other one
    fs::write(lab.path("f"), b"y").unwrap();
    let meta = fs::metadata(lab.path("f")).unwrap();
    assert!((meta.atime(), meta.atime_nsec()) == atime && (meta.mtime(), meta.mtime_nsec()) > mtime);
    lab.close();
}

#[test]
fn device_files_have_their_numbers() {
    let Some(lab) = Lab::new(&[]) else { return };
    let dev = rustix::fs::makedev(259, 0x1_2345);
    let make = |name: &str, kind, dev| rustix::fs::mknodat(CWD, lab.path(name), kind, 0o640.into(), dev).unwrap();
    make("b", rustix::fs::FileType::BlockDevice, dev);
    make("p", rustix::fs::FileType::Fifo, 0);
    make("s", rustix::fs::FileType::Socket, 0);
    make("f", rustix::fs::FileType::RegularFile, 0);
    assert_eq!(fs::metadata(lab.path("b")).unwrap().rdev(), dev);
    let zfs = lab.zfs();
    assert_eq!(zfs.fs().resolve(b"b").unwrap().attrs().device(), Some((259, 0x1_2345)));
    for (name, kind) in [("p", Kind::Fifo), ("s", Kind::Socket), ("f", Kind::File)] {
        let file = zfs.fs().resolve(name.as_bytes()).unwrap();
        assert_eq!((file.kind(), file.attrs().mode & 0o777), (kind, 0o640));
    }
    drop(zfs);
    lab.close();
}

/// Synchronous writes and `fsync` come back when the intent log has them, from many threads at a time.
#[test]
fn synchronous_writes_of_many() {
    let Some(lab) = Lab::new(&[]) else { return };
    std::thread::scope(|scope| {
        for n in 0..24 {
            let path = lab.path(&format!("f{n}"));
            scope.spawn(move || {
                let flags = if n % 2 == 0 { rustix::fs::OFlags::DSYNC.bits() as i32 } else { 0 };
                let file = File::options().create(true).write(true).custom_flags(flags).open(path).unwrap();
                for at in 0..10 {
                    file.write_all_at(&[n; 5000], at * 5000).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    File::open(lab.path("")).unwrap().sync_all().unwrap();
    for n in 0..24 {
        assert_eq!(fs::read(lab.path(&format!("f{n}"))).unwrap(), vec![n; 50_000]);
    }
    lab.close();
}

#[test]
fn a_full_pool_ends_writes_short_and_files_whole() {
    let Some(lab) = Lab::new(&[("compression", 2)]) else { return };
    let (piece, file) = (Env::noise(3, 1 << 20), File::create(lab.path("big")).unwrap());
    let mut len = 0;
    let error = loop {
        match file.write_at(&piece, len) {
            Ok(n) => len += n as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(28));
    assert_eq!(file.metadata().unwrap().len(), len);
    let seen = fs::read(lab.path("big")).unwrap();
    assert!(seen.chunks(piece.len()).all(|part| part == &piece[..part.len()]));
    drop(file);
    fs::remove_file(lab.path("big")).unwrap();
    lab.spa().sync().unwrap();
    fs::write(lab.path("small"), &piece).unwrap();
    assert_eq!(fs::read(lab.path("small")).unwrap(), piece);
    lab.close();
}

/// The request for it is not known to the library that speaks with the kernel; programs then make a file with a name.
#[test]
fn a_file_that_never_had_a_name_is_not_supported() {
    use rustix::fs::{Mode, OFlags};
    let Some(lab) = Lab::new(&[]) else { return };
    // the second time the kernel does not ask
    for _ in 0..2 {
        let made = rustix::fs::open(lab.path(""), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR);
        assert_eq!(made.map(drop), Err(rustix::io::Errno::OPNOTSUPP));
    }
    fs::write(lab.path("f"), b"named").unwrap();
    lab.close();
}
