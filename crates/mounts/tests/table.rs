//! Mounts of a table: what their datasets can be used for meanwhile, and what becomes of open files when contents are replaced.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Env, Errno};
use mounts::{Flag, How, Mounts, Source, Unmount};
use ondisk::ObjsetType;
use pool::{CreateOptions, Hooks, NewDataset, Spa};
use tempfile::TempDir;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::create::{FsProps, create_fs};

/// No wait of these tests is as long.
const LONG: Duration = Duration::from_secs(60);

/// A pool `t` with file systems `t/a` and `t/a/b`, and a table of mounts, which are undone whatever happens.
struct Lab {
    dir: TempDir,
    spa: Arc<Spa>,
    table: Mounts,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.table.unmount_all();
        let _ = self.spa.close();
    }
}

fn can_mount() -> bool {
    let may = File::options().read(true).write(true).open("/dev/fuse").is_ok() && rustix::process::geteuid().is_root();
    assert!(may || std::env::var_os("ZUSE_FUSE").is_none_or(|word| word != "require"), "nothing can be mounted here");
    may
}

impl Lab {
    fn new() -> Option<Lab> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let hooks = Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() };
        let spec = VdevSpec::parse(&[dir.path().join("disk").display().to_string()]).unwrap();
        let open = |path: &str| -> Option<Arc<dyn Device>> {
            Some(Arc::new(FileDevice::create(Path::new(path), 128 << 20).unwrap()))
        };
        let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
        let new = layout(&spec, &open, options, &hooks.env).unwrap();
        let mut create = CreateOptions::new("t");
        create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
        let spa = Spa::create(new, create, hooks).unwrap();
        for name in ["t/a", "t/a/b"] {
            let new = NewDataset::inheriting(name, ObjsetType::Zfs);
            spa.create_dataset(new, Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default()))).unwrap();
        }
        Some(Lab { dir, spa, table: Mounts::default() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn mount(&self, dataset: &str, at: &str, how: How) -> Result<PathBuf, mounts::Error> {
        let path = self.path(at);
        mounts::make_point(&path)?;
        self.table.mount(&Source::Live(self.spa.clone()), dataset, &path, how)?;
        Ok(path)
    }

    fn snapshot(&self, name: &str) {
        self.spa.snapshot(&[name.to_owned()], &[]).unwrap();
    }
}

/// Does what fails while something is in use that nobody uses: a child of another test has the descriptors of this process until it runs its program, also
/// of files that are closed here by now. That may take long where the machine is busy.
fn when_idle<T: std::fmt::Debug>(work: impl Fn() -> T, is_busy: impl Fn(&T) -> bool) -> T {
    let begun = Instant::now();
    loop {
        let done = work();
        if !is_busy(&done) {
            return done;
        }
        assert!(begun.elapsed() < LONG, "it stays in use: {done:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Changes a mount that nobody uses.
fn idle(work: impl Fn() -> Result<(), mounts::Error>) {
    when_idle(work, |done| done.as_ref().is_err_and(|e| e.errno() == Errno::EBUSY)).unwrap();
}

/// Unmounts what nobody uses, as somebody else does.
fn umount(path: &Path) {
    let gone = || rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty());
    when_idle(gone, |done| *done == Err(rustix::io::Errno::BUSY)).unwrap();
}

fn errno(done: Result<impl Sized, mounts::Error>) -> Errno {
    done.err().unwrap().errno()
}

fn os_error<T>(done: std::io::Result<T>) -> Option<i32> {
    done.err().and_then(|e| e.raw_os_error())
}

#[test]
fn a_mounted_dataset_is_in_use_until_it_is_unmounted() {
    let Some(lab) = Lab::new() else { return };
    let path = lab.mount("t/a", "m", How::default()).unwrap();
    let inner = lab.mount("t/a/b", "m/inner", How::default()).unwrap();
    assert_eq!(errno(lab.mount("t/a", "n", How::default())), Errno::EBUSY);
    fs::write(inner.join("f"), "x").unwrap();
    let names = |mounts: Vec<Arc<mounts::Entry>>| mounts.iter().map(|one| one.name()).collect::<Vec<_>>();
    assert_eq!(names(lab.table.below("t")), ["t/a/b", "t/a"]);
    assert_eq!(names(lab.table.below("t/a/b")), ["t/a/b"]);
    let entry = lab.table.of("t/a").unwrap();
    assert_eq!(errno(lab.table.unmount(&entry, Unmount::Idle)), Errno::EBUSY);
    assert!(lab.spa.has_users() && lab.spa.destroy_head("t/a/b").is_err());
    // the name follows a rename
    lab.spa.rename("t/a/b", "t/a/c").unwrap();
    assert!(lab.table.of("t/a/b").is_none() && lab.table.of("t/a/c").unwrap().path() == inner);
    let held = File::open(inner.join("f")).unwrap();
    let entry = lab.table.of("t/a/c").unwrap();
    assert_eq!(errno(lab.table.unmount(&entry, Unmount::Idle)), Errno::EBUSY);
    lab.table.unmount(&entry, Unmount::Forced).unwrap();
    assert!((&held).read(&mut [0]).is_err());
    drop((held, entry));
    lab.spa.destroy_head("t/a/c").unwrap();
    // by somebody else
    umount(&path);
    when_idle(|| lab.spa.has_users(), |has_users| *has_users);
    assert!(lab.table.is_empty());
}

/// `umount` returns before this side knows of it.
#[test]
fn what_somebody_has_unmounted_is_mounted_again_at_once() {
    let Some(lab) = Lab::new() else { return };
    for _ in 0..50 {
        let path = lab.mount("t/a", "m", How::default()).unwrap();
        fs::write(path.join("f"), "x").unwrap();
        umount(&path);
    }
    let path = lab.mount("t/a", "m", How::default()).unwrap();
    assert_eq!(errno(lab.mount("t/a", "n", How::default())), Errno::EBUSY);
    assert_eq!(fs::read(path.join("f")).unwrap(), b"x");
}

#[test]
fn files_stay_open_over_a_rollback() {
    let Some(lab) = Lab::new() else { return };
    let path = lab.mount("t/a", "m", How::default()).unwrap();
    fs::write(path.join("kept"), "before").unwrap();
    fs::create_dir(path.join("dir")).unwrap();
    lab.snapshot("t/a@s");
    let kept = File::options().read(true).write(true).open(path.join("kept")).unwrap();
    kept.write_all_at(b"after.", 0).unwrap();
    fs::write(path.join("new"), "gone").unwrap();
    let new = File::open(path.join("new")).unwrap();
    fs::rename(path.join("dir"), path.join("moved")).unwrap();
    assert_eq!(fs::read(path.join("kept")).unwrap(), b"after.");
    assert_eq!(lab.spa.rollback("t/a", Some("t/a@s")).unwrap(), "t/a@s");
    // what the kernel has cached is not shown
    assert_eq!(fs::read(path.join("kept")).unwrap(), b"before");
    assert!(path.join("dir").is_dir() && !path.join("moved").exists() && !path.join("new").exists());
    let mut text = String::new();
    let mut reader = &kept;
    reader.seek(SeekFrom::Start(0)).unwrap();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before");
    kept.write_all_at(b"again!", 0).unwrap();
    kept.sync_all().unwrap();
    assert_eq!(fs::read(path.join("kept")).unwrap(), b"again!");
    // a file that is not there any more
    let code = os_error(new.read_at(&mut [0; 4], 0));
    assert!(code == Some(Errno::ESTALE.raw()) || code == Some(Errno::EIO.raw()), "{code:?}");
    // another file may have its number by now, and is not taken for it
    for n in 0..64 {
        let other = path.join(format!("other{n}"));
        fs::write(&other, "other").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"other");
        let other = File::options().read(true).write(true).open(&other).unwrap();
        other.write_all_at(b"again", 0).unwrap();
        other.sync_all().unwrap();
    }
    assert!(os_error(new.read_at(&mut [0; 4], 0)).is_some());
    drop(new);
    // and it is still one that can be unmounted, and then destroyed
    drop(kept);
    idle(|| lab.table.unmount(&lab.table.of("t/a").unwrap(), Unmount::Idle));
    assert!(!lab.spa.has_users());
}

#[test]
fn a_refused_rollback_has_no_effect_on_open_files() {
    let Some(lab) = Lab::new() else { return };
    let path = lab.mount("t/a", "m", How::default()).unwrap();
    lab.snapshot("t/a@1");
    lab.snapshot("t/a@2");
    fs::write(path.join("f"), "held").unwrap();
    let file = File::options().read(true).write(true).open(path.join("f")).unwrap();
    fs::remove_file(path.join("f")).unwrap();
    lab.spa.rollback("t/a", Some("t/a@1")).unwrap_err();
    let mut text = [0; 4];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"held");
    file.write_all_at(b"more", 4).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8);
}

/// A program that has changed a file in a mapping, without writing it, goes on when it gets a line.
fn mapping(file: &Path) -> std::process::Child {
    let code = "import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 4096)
m[0:5] = b'dirty'
print('ready', flush=True)
sys.stdin.readline()
try:
    m.flush()
    print('written', flush=True)
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
print(m[0:5].decode(), flush=True)
m[0:5] = b'later'
m.flush()
";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", code]).arg(file).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    python.spawn().unwrap()
}

#[test]
fn what_was_changed_in_a_mapping_before_a_rollback_is_rolled_back() {
    use std::io::{BufRead, BufReader};
    let Some(lab) = Lab::new() else { return };
    let path = lab.mount("t/a", "m", How::default()).unwrap();
    for (snapshot, refused) in [("t/a@1", false), ("t/a@2", true)] {
        fs::write(path.join("f"), [b"first".as_slice(), &[b'x'; 4091]].concat()).unwrap();
        lab.snapshot(snapshot);
        let mut program = mapping(&path.join("f"));
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        if refused {
            lab.spa.rollback("t/a", Some("t/a@1")).unwrap_err();
        } else {
            lab.spa.rollback("t/a", Some("t/a@1")).unwrap();
            assert_eq!(fs::read(path.join("f")).unwrap()[..5], *b"first");
        }
        program.stdin.take().unwrap().write_all(b"go\n").unwrap();
        // whoever has it written is told that it was not
        let expected = if refused { ["written", "dirty"] } else { ["EIO", "first"] };
        assert_eq!([lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()], expected);
        assert!(program.wait().unwrap().success());
        assert_eq!(fs::read(path.join("f")).unwrap()[..5], *b"later");
    }
}

/// Ends the threads that look at it when it is dropped.
struct StopAtEnd<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_rollback_among_many_writers() {
    let Some(lab) = Lab::new() else { return };
    let path = lab.mount("t/a", "m", How::default()).unwrap();
    for n in 0..4 {
        fs::write(path.join(format!("f{n}")), "start").unwrap();
    }
    lab.snapshot("t/a@s");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let wrote = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (path, stop, wrote) = (&path, &stop, &wrote);
            scope.spawn(move || {
                let mut file = File::options().write(true).open(path.join(format!("f{n}"))).unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    file.write_all(b"more").unwrap();
                    file.seek(SeekFrom::Start(0)).unwrap();
                    // it may be gone before it is written
                    let _ = fs::write(path.join(format!("x{n}")), "y");
                    wrote.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        // they end whatever happens here
        let _stop = StopAtEnd(&stop);
        for _ in 0..10 {
            let before = wrote.load(std::sync::atomic::Ordering::Relaxed);
            lab.spa.rollback("t/a", None).unwrap();
            let begun = Instant::now();
            while wrote.load(std::sync::atomic::Ordering::Relaxed) < before + 8 {
                assert!(begun.elapsed() < LONG, "the writers do not go on");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    lab.spa.rollback("t/a", None).unwrap();
    for n in 0..4 {
        assert_eq!(fs::read(path.join(format!("f{n}"))).unwrap(), b"start");
        assert!(!path.join(format!("x{n}")).exists());
    }
}

#[test]
fn a_rollback_among_readers_of_a_directory() {
    let Some(lab) = Lab::new() else { return };
    let path = lab.mount("t/a", "m", How::default()).unwrap();
    for n in 0..500 {
        fs::write(path.join(format!("f{n}")), "").unwrap();
    }
    lab.snapshot("t/a@s");
    let (stop, listed) = (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (path, stop, listed) = (&path, &stop, &listed);
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(fs::read_dir(path).unwrap().filter(|entry| entry.is_ok()).count(), 500);
                    listed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        for _ in 0..20 {
            let before = listed.load(std::sync::atomic::Ordering::Relaxed);
            lab.spa.rollback("t/a", None).unwrap();
            let begun = Instant::now();
            while listed.load(std::sync::atomic::Ordering::Relaxed) < before + 3 {
                assert!(begun.elapsed() < LONG, "the readers do not go on");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

#[test]
fn options_change_while_it_is_mounted() {
    let Some(lab) = Lab::new() else { return };
    let mut how = How::default();
    how.set_option(Flag::ReadOnly, true);
    let path = lab.mount("t/a", "m", how).unwrap();
    assert_eq!(os_error(fs::write(path.join("f"), "x")), Some(Errno::EROFS.raw()));
    let entry = lab.table.of("t/a").unwrap();
    assert_eq!(entry.how().temporary(Flag::ReadOnly), Some(true));
    // the property is set to what it was: over the option
    lab.table.set(&entry, Flag::ReadOnly, false).unwrap();
    assert_eq!(entry.how().temporary(Flag::ReadOnly), None);
    fs::write(path.join("f"), "#!/bin/sh\nexit 7\n").unwrap();
    fs::set_permissions(path.join("f"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let is_busy = |done: &std::io::Result<_>| done.as_ref().is_err_and(|e| e.kind() == ErrorKind::ExecutableFileBusy);
    let run = || when_idle(|| std::process::Command::new(path.join("f")).status(), is_busy);
    assert_eq!(run().unwrap().code(), Some(7));
    lab.table.set(&entry, Flag::Exec, false).unwrap();
    assert_eq!(os_error(run()), Some(Errno::EACCES.raw()));
    let open = File::options().write(true).open(path.join("f")).unwrap();
    assert_eq!(errno(lab.table.set(&entry, Flag::ReadOnly, true)), Errno::EBUSY);
    drop(open);
    idle(|| lab.table.set(&entry, Flag::ReadOnly, true));
    assert_eq!(os_error(fs::write(path.join("f"), "x")), Some(Errno::EROFS.raw()));
    // access times are this side's alone
    lab.table.set(&entry, Flag::ReadOnly, false).unwrap();
    let mut how = entry.how();
    how.set_option(Flag::Atime, true);
    how.set_option(Flag::Relatime, false);
    lab.table.remount(&entry, how).unwrap();
    let before = fs::metadata(path.join("f")).unwrap().atime_nsec();
    lab.table.changed("t/a").unwrap();
    fs::read(path.join("f")).unwrap();
    lab.table.changed("t/a").unwrap();
    assert_ne!(fs::metadata(path.join("f")).unwrap().atime_nsec(), before);
}

#[test]
fn a_mounted_snapshot_is_kept() {
    let Some(lab) = Lab::new() else { return };
    let path = lab.mount("t/a", "m", How::default()).unwrap();
    fs::write(path.join("f"), "old").unwrap();
    lab.snapshot("t/a@s");
    fs::write(path.join("f"), "new").unwrap();
    let snap = lab.mount("t/a@s", "s", How::default()).unwrap();
    assert_eq!(fs::read(snap.join("f")).unwrap(), b"old");
    assert_eq!(os_error(fs::write(snap.join("f"), "x")), Some(Errno::EROFS.raw()));
    assert!(lab.spa.destroy_snapshots(&["t/a@s".to_owned()], false).is_err());
    idle(|| lab.table.unmount(&lab.table.at(&snap).unwrap(), Unmount::Idle));
    lab.spa.destroy_snapshots(&["t/a@s".to_owned()], false).unwrap();
}
