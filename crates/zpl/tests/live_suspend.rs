//! A file system that stays mounted while its contents are replaced: what becomes of files that are open, and that a refusal changes nothing.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // what is tested elsewhere
mod power;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Errno, ObjectId};
use pool::{KeptObject, Suspend};
use power::{ROOT, Rig};
use zpl::Kind;
use zpl::live::{Contents, Handle, NewFile, Suspendable, Vfs, Zfs};

const FS: &str = "t/f";

fn mounted(rig: &Rig) -> Suspendable {
    Suspendable::new(rig.file_system(FS, &[], false))
}

fn file(live: &Suspendable, name: &str, data: &[u8]) -> ObjectId {
    let (id, _) = live.create(&ROOT, live.root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap();
    live.write(&ROOT, id, Some(0), data).unwrap();
    id
}

/// A file without a name that is open.
fn nameless(live: &Suspendable, data: &[u8]) -> Handle {
    let handle = live.open(&ROOT, file(live, "nameless", data), 6).unwrap();
    live.unlink(&ROOT, live.root(), b"nameless").unwrap();
    handle
}

fn read(live: &Suspendable, id: ObjectId) -> Vec<u8> {
    let mut data = vec![0; 64];
    let len = live.read(id, 0, &mut data).unwrap();
    data.truncate(len);
    data
}

fn snapshot(rig: &Rig, name: &str) {
    rig.spa.snapshot(&[format!("{FS}@{name}")], &[]).unwrap();
}

/// Somebody else who is told of suspensions, when the file system has let go of what it has open.
struct Witness {
    dataset: ObjectId,
    /// Closed then.
    closes: Mutex<Option<Handle>>,
    told: Mutex<Sender<()>>,
}

impl Suspend for Witness {
    fn dataset(&self) -> ObjectId {
        self.dataset
    }

    fn kept(&self) -> Vec<KeptObject> {
        Vec::new()
    }

    fn suspend(&self) {
        drop(self.closes.lock().unwrap().take());
        let _ = self.told.lock().unwrap().send(());
    }

    fn resume(&self, _replaced: bool) {}
}

#[test]
fn a_refused_rollback_leaves_files_without_names_as_they_are() {
    let rig = Rig::new(&["/a"]);
    let live = mounted(&rig);
    snapshot(&rig, "a");
    snapshot(&rig, "b");
    let (handle, closed) = (nameless(&live, b"held"), nameless(&live, b"closed"));
    let (id, closed_id) = (handle.id(), closed.id());
    assert!(rig.spa.rollback(FS, Some("t/f@a")).is_err());
    assert!(!handle.is_stale() && !closed.is_stale());
    assert_eq!((read(&live, id), read(&live, closed_id)), (b"held".to_vec(), b"closed".to_vec()));
    // somebody else has it open, and does not open it again
    let other = Zfs::open(&rig.spa, FS).unwrap();
    assert!(rig.spa.rollback(FS, Some("t/f@b")).is_err());
    drop(other);
    assert_eq!(read(&live, id), b"held");
    // one that is closed meanwhile is freed
    let dataset = rig.spa.view().unwrap().dataset(FS).unwrap().id();
    let witness = Arc::new(Witness { dataset, closes: Mutex::new(Some(closed)), told: Mutex::new(channel().0) });
    let user: std::sync::Weak<Witness> = Arc::downgrade(&witness);
    rig.spa.suspend_with(user);
    assert!(rig.spa.rollback(FS, Some("t/f@a")).is_err());
    assert_eq!(read(&live, id), b"held");
    assert_eq!(live.attrs(closed_id).unwrap_err().errno(), Errno::ENOENT);
    // and the other with its handle
    drop(handle);
    assert_eq!(live.attrs(id).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(Zfs::open(&rig.spa, FS).unwrap().fs().delete_queue().unwrap(), []);
}

#[test]
fn files_that_are_let_go_of_together_are_freed_together() {
    let rig = Rig::new(&["/a"]);
    let live = mounted(&rig);
    let held = nameless(&live, b"held");
    let mut handles: Vec<Handle> = (0..100).map(|_| nameless(&live, b"gone")).collect();
    let gone: Vec<ObjectId> = handles.iter().map(Handle::id).collect();
    handles.push(live.open(&ROOT, held.id(), 6).unwrap());
    let queue = || Zfs::open(&rig.spa, FS).unwrap().fs().delete_queue().unwrap();
    assert_eq!(queue().len(), 101);
    let assigned = || rig.spa.txgs().stats.assigned.get();
    let before = assigned();
    Handle::release_all(handles);
    assert!(assigned() - before <= 4, "{} transactions", assigned() - before);
    assert!(gone.iter().all(|id| live.attrs(*id).unwrap_err().errno() == Errno::ENOENT));
    assert_eq!((queue(), read(&live, held.id())), (vec![held.id()], b"held".to_vec()));
    Handle::release_all(vec![held]);
    assert_eq!(queue(), []);
}

#[test]
fn a_rollback_keeps_what_the_snapshot_has_and_tells_of_the_rest() {
    let rig = Rig::new(&["/a"]);
    let live = mounted(&rig);
    let (named, without) = (file(&live, "f", b"before"), nameless(&live, b"held"));
    let kept = live.open(&ROOT, named, 6).unwrap();
    snapshot(&rig, "a");
    live.write(&ROOT, named, Some(0), b"after.").unwrap();
    live.write(&ROOT, without.id(), Some(0), b"more").unwrap();
    let new = live.open(&ROOT, file(&live, "new", b"new"), 6).unwrap();
    let told: Arc<Mutex<Vec<Contents>>> = Arc::default();
    let all = told.clone();
    live.tell_contents(Some(Box::new(move |contents| all.lock().unwrap().push(contents))));
    rig.spa.rollback(FS, None).unwrap();
    assert_eq!(*told.lock().unwrap(), [Contents::Replaced, Contents::Resumed]);
    assert_eq!((kept.is_stale(), without.is_stale(), new.is_stale()), (false, false, true));
    assert_eq!((read(&live, named), read(&live, without.id())), (b"before".to_vec(), b"held".to_vec()));
    // a refusal is not told
    snapshot(&rig, "b");
    assert!(rig.spa.rollback(FS, Some("t/f@a")).is_err());
    assert_eq!(told.lock().unwrap().len(), 2);
    // the number is another file's, which nobody takes for the one that is gone
    let again = (0..1000).map(|n| file(&live, &format!("n{n}"), b"other")).find(|id| *id == new.id()).unwrap();
    let other = live.open(&ROOT, again, 6).unwrap();
    assert!(new.is_stale() && !other.is_stale());
    drop(new);
    assert_eq!(read(&live, again), b"other");
    let freed = without.id();
    drop((kept, without, other));
    assert_eq!(live.attrs(freed).unwrap_err().errno(), Errno::ENOENT);
    live.tell_contents(None);
}

#[test]
fn a_rollback_waits_for_listings_and_pins() {
    let rig = Rig::new(&["/a"]);
    let live = mounted(&rig);
    for n in 0..50 {
        file(&live, &format!("f{n}"), b"x");
    }
    snapshot(&rig, "a");
    let dataset = rig.spa.view().unwrap().dataset(FS).unwrap().id();
    let (told, is_told) = channel();
    let first = Arc::new(Witness { dataset, closes: Mutex::new(None), told: Mutex::new(told) });
    for pinned in [false, true] {
        // it is told behind the mounted one in the list, and so only once that has let go
        let listing = live.read_dir(&ROOT, live.root(), 0).unwrap();
        let pin = pinned.then(|| live.pin().unwrap().unwrap());
        let user: std::sync::Weak<Witness> = Arc::downgrade(&first);
        if !pinned {
            rig.spa.suspend_with(user);
        }
        std::thread::scope(|scope| {
            let rollback = scope.spawn(|| rig.spa.rollback(FS, None).map(drop));
            assert_eq!(listing.collect::<Result<Vec<_>, _>>().unwrap().len(), 50);
            if let Some(pin) = pin {
                // nothing of it is let go of
                assert!(is_told.try_recv().is_err());
                assert!(pin.getattr(pin.root()).is_ok());
                drop(pin);
            }
            rollback.join().unwrap().unwrap();
        });
        is_told.recv().unwrap();
    }
}

#[test]
fn a_mount_that_begins_beside_a_rollback_does_not_make_it_busy() {
    let rig = Rig::new(&["/a"]);
    drop(mounted(&rig));
    snapshot(&rig, "a");
    let dataset = rig.spa.view().unwrap().dataset(FS).unwrap().id();
    let (told, is_told) = channel();
    let witness = Arc::new(Witness { dataset, closes: Mutex::new(None), told: Mutex::new(told) });
    let user: std::sync::Weak<Witness> = Arc::downgrade(&witness);
    rig.spa.suspend_with(user);
    let (opened, is_opened) = channel();
    std::thread::scope(|scope| {
        // the rollback is not carried out before this ends
        let tx = rig.spa.tx(1 << 16).unwrap();
        let rollback = scope.spawn(|| rig.spa.rollback(FS, None).map(drop));
        is_told.recv().unwrap();
        let spa = &rig.spa;
        scope.spawn(move || opened.send(Suspendable::open(spa, FS)));
        // where it does not wait it has the head open now
        let early = is_opened.recv_timeout(Duration::from_millis(200)).ok();
        drop(tx);
        rollback.join().unwrap().unwrap();
        let live = early.unwrap_or_else(|| is_opened.recv().unwrap()).unwrap();
        assert_eq!(live.lookup(&ROOT, live.root(), b"none").unwrap_err().errno(), Errno::ENOENT);
    });
}

#[test]
fn a_file_below_a_block_that_cannot_be_read_stays_when_others_are_freed_together() {
    let rig = Rig::new(&["/a"]);
    let live = Suspendable::new(rig.file_system(FS, &[("recordsize", 512), ("compression", 2)], false));
    let broken = file(&live, "broken", &base::Env::noise(1, 20 << 10));
    let mut handles = vec![live.open(&ROOT, broken, 6).unwrap()];
    handles.extend((0..10).map(|_| nameless(&live, b"gone")));
    let gone: Vec<ObjectId> = handles[1..].iter().map(Handle::id).collect();
    live.unlink(&ROOT, live.root(), b"broken").unwrap();
    rig.spa.sync().unwrap();
    let on_disk = || rig.spa.view().unwrap().dataset(FS).unwrap().objset().unwrap();
    let object = on_disk().object(broken).unwrap();
    assert_eq!(object.phys().nlevels, 2);
    for dva in object.phys().blkptr.iter().flat_map(|block| block.dvas().collect::<Vec<_>>()) {
        rig.damage("/a", dva.offset(), dva.asize());
    }
    drop(object);
    rig.spa.zio().arc().clear();
    Handle::release_all(handles);
    assert!(gone.iter().all(|id| live.attrs(*id).unwrap_err().errno() == Errno::ENOENT));
    rig.spa.sync().unwrap();
    // what lies below is not lost: it can be freed once the block can be read
    assert_eq!(Zfs::open(&rig.spa, FS).unwrap().fs().delete_queue().unwrap(), [broken]);
    assert_eq!(on_disk().object(broken).unwrap().phys().nlevels, 2);
}
