//! A file system or volume that is opened a second time while it is in use: both handles are of one thing, and what either
//! commits exists after a power failure. And what a log could hold that a replay must not trip over.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // what is tested elsewhere
mod power;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use base::ObjectId;
use base::tunable::ZFS_BCLONE_WAIT_DIRTY;
use power::{ROOT, Rig, bytes};
use vdev::testing::{Call, Tapped};
use vdev::{Device, MemoryDevice};
use zpl::live::{NewFile, SetAttr, Volume, Zfs};
use zpl::{FileFlags, Kind};

fn file(zfs: &Zfs, name: &str, data: &[u8]) -> ObjectId {
    let new = NewFile::new(Kind::File, 0o644);
    let id = zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &new).unwrap().0;
    zfs.write(&ROOT, id, 0, data).unwrap();
    id
}

fn read(zfs: &Zfs, name: &str) -> Option<Vec<u8>> {
    let id = zfs.fs().lookup(zfs.fs().root(), name.as_bytes()).unwrap()?.object;
    let mut data = vec![0; zfs.getattr(id).unwrap().size as usize];
    zfs.read(id, 0, &mut data).unwrap();
    Some(data)
}

#[test]
fn a_second_handle_takes_nothing_from_the_first() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[], false);
    let (small, large) = (file(&zfs, "small", b"old"), file(&zfs, "large", b"old"));
    let nameless = file(&zfs, "nameless", b"held");
    let held = zfs.hold(nameless).unwrap();
    zfs.unlink(&ROOT, zfs.fs().root(), b"nameless").unwrap();
    rig.spa.sync().unwrap();
    // the chain begins
    zfs.write(&ROOT, small, 0, b"new").unwrap();
    zfs.fsync(small).unwrap();
    let again = Zfs::open(&rig.spa, "t/f").unwrap();
    again.write(&ROOT, small, 0, b"through the second").unwrap();
    assert_eq!(read(&zfs, "small").unwrap(), b"through the second");
    zfs.write(&ROOT, small, 18, b", and the first").unwrap();
    assert_eq!(again.getattr(small).unwrap().size, 33);
    drop(again);
    zfs.fsync(small).unwrap();
    zfs.write(&ROOT, large, 0, &bytes(300_000, 1)).unwrap();
    zfs.fsync(large).unwrap();
    // a file without a name is somebody's until it is let go
    let mut found = [0; 4];
    zfs.read(nameless, 0, &mut found).unwrap();
    assert_eq!(&found, b"held");
    drop(held);
    let after = rig.after_cut(&[], false);
    let found = after.open("t/f");
    assert_eq!(read(&found, "small").unwrap(), b"through the second, and the first");
    assert!(read(&found, "large").unwrap() == bytes(300_000, 1));
    drop(found);
    after.close();
}

#[test]
fn a_second_handle_of_a_volume_takes_nothing_from_the_first() {
    let rig = Rig::new(&["/a"]);
    rig.volume("t/v", 8 << 20, 16 << 10);
    let volume = Volume::open(&rig.spa, "t/v").unwrap();
    volume.write_sync(0, &bytes(1000, 1)).unwrap();
    drop(Volume::open(&rig.spa, "t/v").unwrap());
    volume.write(5000, &bytes(5000, 2)).unwrap();
    volume.flush().unwrap();
    volume.write(1 << 20, &bytes(400_000, 3)).unwrap();
    volume.flush().unwrap();
    let after = rig.after_cut(&[], false);
    let found = Volume::open(after.spa.as_ref().unwrap(), "t/v").unwrap();
    for (at, len, seed) in [(0, 1000, 1), (5000, 5000, 2), (1 << 20, 400_000, 3)] {
        let mut read = vec![0; len];
        found.read(at, &mut read).unwrap();
        assert!(read == bytes(len, seed), "{at}");
    }
    drop(found);
    after.close();
}

/// A change of flags waits for a commit of its file, and is forgotten with it; a removal is in every commit.
#[test]
fn what_was_allowed_when_it_was_logged_is_replayed() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[], false);
    let root = zfs.fs().root();
    let new = NewFile::new(Kind::Directory, 0o755);
    let dir = zfs.create(&ROOT, root, b"dir", &new).unwrap().0;
    let (fixed, linked) = (file(&zfs, "fixed", b"1"), file(&zfs, "linked", b"2"));
    zfs.create(&ROOT, dir, b"in", &NewFile::new(Kind::File, 0o644)).unwrap();
    let set = |id: ObjectId, add: FileFlags, remove: FileFlags| {
        let flags = FileFlags((zfs.getattr(id).unwrap().flags.0 | add.0) & !remove.0);
        zfs.setattr(&ROOT, id, &SetAttr { flags: Some(flags), ..SetAttr::default() }).unwrap();
    };
    let none = FileFlags(0);
    set(fixed, FileFlags::IMMUTABLE, none);
    set(linked, FileFlags::IMMUTABLE, none);
    set(dir, FileFlags::APPENDONLY, none);
    rig.spa.sync().unwrap();
    // the chain begins
    let begun = file(&zfs, "begun", b"");
    zfs.fsync(begun).unwrap();
    set(fixed, none, FileFlags::IMMUTABLE);
    zfs.unlink(&ROOT, root, b"fixed").unwrap();
    set(linked, none, FileFlags::IMMUTABLE);
    zfs.link(&ROOT, linked, root, b"second").unwrap();
    set(dir, none, FileFlags::APPENDONLY);
    zfs.unlink(&ROOT, dir, b"in").unwrap();
    let last = file(&zfs, "last", b"acknowledged");
    zfs.fsync(last).unwrap();
    let after = rig.after_cut(&[], false);
    let found = after.open("t/f");
    assert_eq!(read(&found, "last").as_deref(), Some(&b"acknowledged"[..]));
    assert_eq!((read(&found, "fixed"), read(&found, "second").as_deref()), (None, Some(&b"2"[..])));
    assert_eq!(found.fs().lookup(dir, b"in").unwrap(), None);
    drop(found);
    after.close();
}

/// A device that lets no uberblock through for some time.
fn slow(device: MemoryDevice, waits: &Arc<[AtomicBool; 2]>) -> Arc<dyn Device> {
    let waits = waits.clone();
    let pass = move |call: &Call| {
        let [closed, waiting] = &*waits;
        let is_label = matches!(call, Call::Write(bytes) if bytes.start < 512 << 10);
        while is_label && closed.load(Ordering::SeqCst) {
            waiting.store(true, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    Arc::new(Tapped::new(Arc::new(device), pass))
}

/// A block is in its place before the uberblock is written that knows of it. A reference to it in the log could not be claimed.
#[test]
fn a_file_copied_while_its_blocks_are_being_synced_is_there() {
    ZFS_BCLONE_WAIT_DIRTY.set(0);
    let waits: Arc<[AtomicBool; 2]> = Arc::default();
    let rig = Rig::with(&["/a"], &|device| slow(device, &waits));
    let zfs = rig.file_system("t/f", &[], false);
    let (target, other) = (file(&zfs, "target", b""), file(&zfs, "other", b""));
    rig.spa.sync().unwrap();
    // the chain begins
    zfs.write(&ROOT, other, 0, b"first").unwrap();
    zfs.fsync(other).unwrap();
    let source = file(&zfs, "source", &bytes(256 << 10, 1));
    let [closed, waiting] = &*waits;
    closed.store(true, Ordering::SeqCst);
    let after = thread::scope(|scope| {
        let synced = scope.spawn(|| rig.spa.sync());
        while !waiting.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        zfs.copy_range(&ROOT, (source, 0), (target, 0), 256 << 10).unwrap();
        zfs.fsync(target).unwrap();
        zfs.write(&ROOT, other, 0, b"later").unwrap();
        zfs.fsync(other).unwrap();
        let after = rig.after_cut(&[], false);
        closed.store(false, Ordering::SeqCst);
        synced.join().unwrap().unwrap();
        after
    });
    let found = after.open("t/f");
    assert_eq!(read(&found, "other").unwrap(), b"later");
    assert!(read(&found, "target").unwrap() == bytes(256 << 10, 1));
    drop(found);
    after.close();
}
