#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Weak;
use std::time::Duration;

use base::tunable;
use ondisk::ObjsetType;
use parking_lot::Mutex;
use pool::{NewDataset, PropSource, Value};

use super::snapshots::{OPEN_MAX, take_idle};
use super::*;
use crate::create::{FsProps, create_fs};
use crate::live::{Handle, NewFile, RenameMode, SetAttr, Suspendable, XattrMode, Zfs};

const ROOT: Cred = Cred::ROOT;
const READ: u8 = 4;

/// What was asked of an admin, who does it for root.
struct Asked {
    spa: Arc<Spa>,
    asked: Mutex<Vec<String>>,
}

impl Asked {
    fn note(&self, cred: &Cred, what: String) -> Result<(), Errno> {
        self.asked.lock().push(what);
        if cred.uid == 0 { Ok(()) } else { Err(Errno::EPERM) }
    }
}

fn errno_of(done: Result<(), pool::Error>) -> Result<(), Errno> {
    done.map_err(|error| error.errno())
}

impl SnapshotAdmin for Asked {
    fn create(&self, cred: &Cred, name: &str) -> Result<(), Errno> {
        self.note(cred, format!("create {name}"))?;
        errno_of(self.spa.snapshot(&[name.to_owned()], &[]))
    }

    fn destroy(&self, cred: &Cred, name: &str) -> Result<(), Errno> {
        self.note(cred, format!("destroy {name}"))?;
        errno_of(self.spa.destroy_snapshots(&[name.to_owned()], false))
    }

    fn rename(&self, cred: &Cred, from: &str, to: &str) -> Result<(), Errno> {
        self.note(cred, format!("rename {from} {to}"))?;
        let ((fs, from), (_, to)) = (from.split_once('@').unwrap(), to.split_once('@').unwrap());
        errno_of(self.spa.rename_snapshot(fs, from, to, false))
    }
}

/// A pool in memory with the file systems `t/a` and `t/b`, of which the first is shown.
struct Lab {
    spa: Arc<Spa>,
    dir: Ctldir,
    asked: Arc<Asked>,
}

impl Lab {
    fn new() -> Lab {
        let (spa, _) = pool::testing::in_memory("d0", 1);
        for name in ["t/a", "t/b"] {
            let new = NewDataset::inheriting(name, ObjsetType::Zfs);
            spa.create_dataset(new, Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default()))).unwrap();
        }
        let live = Arc::new(Suspendable::new(Zfs::open(&spa, "t/a").unwrap()));
        let id = spa.view().unwrap().dataset("t/a").unwrap().id();
        let asked = Arc::new(Asked { spa: spa.clone(), asked: Mutex::default() });
        let dir = Ctldir::new(live, PoolSource::Live(spa.clone()), id, Some(asked.clone()));
        Lab { spa, dir, asked }
    }

    fn snapshot(&self, name: &str) {
        self.spa.snapshot(&[name.to_owned()], &[]).unwrap();
    }

    fn destroy(&self, name: &str) -> Result<(), Errno> {
        errno_of(self.spa.destroy_snapshots(&[name.to_owned()], false))
    }

    fn set_snapdir(&self, value: u64) {
        self.spa.set_props("t/a", &[("snapdir".to_owned(), Value::Number(value))], PropSource::Local).unwrap();
    }

    fn write(&self, name: &str, text: &str) -> ObjectId {
        let found = self.dir.lookup(&ROOT, self.dir.root(), name.as_bytes());
        let new = NewFile::new(Kind::File, 0o644);
        let id = found.unwrap_or_else(|_| self.dir.create(&ROOT, self.dir.root(), name.as_bytes(), &new).unwrap()).0;
        self.dir.write(&ROOT, id, Some(0), text.as_bytes()).unwrap();
        id
    }

    /// The number of a file, by its path from the root.
    fn find(&self, path: &str) -> Result<ObjectId, Errno> {
        let step = |dir, name: &str| self.dir.lookup(&ROOT, dir, name.as_bytes()).map(|(id, _)| id);
        path.split('/').try_fold(self.dir.root(), step).map_err(|error| error.errno())
    }

    fn read(&self, id: ObjectId) -> Result<String, Errno> {
        let mut text = [0; 100];
        let len = self.dir.read(id, 0, &mut text).map_err(|error| error.errno())?;
        Ok(String::from_utf8(text[..len].to_vec()).unwrap())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let dir = if path.is_empty() { self.dir.root() } else { self.find(path).unwrap() };
        let entries = self.dir.read_dir(&ROOT, dir, 0).unwrap().map(Result::unwrap);
        entries.map(|entry| String::from_utf8(entry.name).unwrap()).collect()
    }

    fn id(&self, snapshot: &str) -> SnapshotId {
        self.spa.view().unwrap().dataset(snapshot).unwrap().snapshot_id().unwrap()
    }

    fn open_count(&self) -> usize {
        self.dir.snapshots.state().open.len()
    }
}

fn errno<T>(done: Result<T, Error>) -> Errno {
    done.err().unwrap().errno()
}

#[test]
fn the_property_says_who_finds_it() {
    let lab = Lab::new();
    lab.write("f", "x");
    assert_eq!((lab.names(""), lab.names(".zfs")), (vec!["f".to_owned()], vec!["snapshot".into(), "shares".into()]));
    let links = || lab.dir.getattr(lab.dir.root()).unwrap().attrs.links;
    let hidden = links();
    lab.set_snapdir(SNAPDIR_VISIBLE);
    assert_eq!((lab.names(""), links()), (vec![".zfs".to_owned(), "f".to_owned()], hidden + 1));
    // a listing goes on behind each entry
    let from =
        |cookie| lab.dir.read_dir(&ROOT, lab.dir.root(), cookie).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    let (all, behind) = (from(0), from(BEHIND_ROOT));
    assert_eq!((&all[1..], all[0].next_cookie, from(all[1].next_cookie)), (&behind[..], BEHIND_ROOT, vec![]));
    lab.set_snapdir(SNAPDIR_DISABLED);
    let inner = ControlDir::Root.id();
    assert_eq!((lab.names(""), lab.find(".zfs")), (vec!["f".to_owned()], Err(Errno::ENOENT)));
    assert_eq!(errno(lab.dir.lookup(&ROOT, inner, b"snapshot")), Errno::ENOENT);
    assert_eq!(lab.dir.read_dir(&ROOT, inner, 0).err().unwrap().errno(), Errno::ENOENT);
    lab.set_snapdir(SNAPDIR_HIDDEN);
    assert_eq!(lab.find(".zfs").unwrap().0, 0xffff_ffff_ffff);
    // no file gets the name, and nobody takes it away
    let root = lab.dir.root();
    assert_eq!(errno(lab.dir.create(&ROOT, root, b".zfs", &NewFile::new(Kind::File, 0))), Errno::EEXIST);
    assert_eq!(errno(lab.dir.rmdir(&ROOT, root, b".zfs")), Errno::EEXIST);
    assert_eq!(errno(lab.dir.rename(&ROOT, root, b".zfs", root, b"x", RenameMode::Replace)), Errno::EEXIST);
}

#[test]
fn control_directories_have_the_attributes_of_openzfs() {
    let lab = Lab::new();
    lab.snapshot("t/a@1");
    lab.snapshot("t/a@2");
    let stat = |path: &str| lab.dir.getattr(lab.find(path).unwrap()).unwrap();
    let shown = |path: &str| {
        let Stat { attrs, inode, blocks, block_size, .. } = stat(path);
        (attrs.mode, attrs.uid(), attrs.links, attrs.size, inode, blocks, block_size)
    };
    assert_eq!(shown(".zfs"), (0o40777, 0, 1, 0, 0xffff_ffff_ffff, 0, 512));
    assert_eq!(shown(".zfs/shares"), (0o40777, 0, 2, 2, 0xffff_ffff_fffe, 0, 512));
    assert_eq!(shown(".zfs/snapshot"), (0o40777, 0, 4, 2, 0xffff_ffff_fffd, 0, 512));
    let dataset = lab.spa.view().unwrap().dataset("t/a@1").unwrap();
    assert_eq!(stat(".zfs/snapshot/1").inode, 0xffff_ffff_fffc - dataset.id().0);
    let (sec, nsec) = dataset.dir().snapshots_changed().unwrap().unwrap();
    let changed = Time { sec: sec.cast_signed(), nsec: nsec as u32 };
    assert_eq!((stat(".zfs/snapshot").attrs.mtime, stat(".zfs/snapshot").attrs.ctime), (changed, changed));
    // up
    for (path, up) in [("", ""), (".zfs", ""), (".zfs/snapshot", ".zfs"), (".zfs/snapshot/1", ".zfs/snapshot")] {
        let id = |path: &str| if path.is_empty() { lab.dir.root() } else { lab.find(path).unwrap() };
        assert_eq!(lab.dir.attrs(id(path)).unwrap().parent, id(up), "{path}");
        assert_eq!(lab.dir.lookup(&ROOT, id(path), b"..").unwrap().0, id(up), "{path}");
    }
    for path in [".zfs", ".zfs/snapshot", ".zfs/shares"] {
        let id = lab.find(path).unwrap();
        assert_eq!(errno(lab.dir.setattr(&ROOT, id, &SetAttr { mode: Some(0), ..SetAttr::default() })), Errno::EPERM);
        assert_eq!(errno(lab.dir.create(&ROOT, id, b"f", &NewFile::new(Kind::File, 0))), Errno::EACCES);
        assert_eq!(errno(lab.dir.create(&ROOT, id, b"l", &NewFile::symlink(b"x"))), Errno::EPERM);
        assert_eq!(errno(lab.dir.unlink(&ROOT, id, b"f")), Errno::EPERM);
        assert_eq!(errno(lab.dir.set_xattr(&ROOT, id, b"user.a", b"", XattrMode::Set)), Errno::ENOTSUP);
        let list = |name: &str| errno(lab.dir.get_xattr(&ROOT, id, name.as_bytes()));
        assert_eq!((list("system.posix_acl_access"), list("user.a")), (Errno::ENODATA, Errno::ENOTSUP));
        assert_eq!((errno(lab.dir.read(id, 0, &mut [0])), errno(lab.dir.fsync(id))), (Errno::EISDIR, Errno::EINVAL));
        assert!(!lab.dir.is_told(id) && lab.dir.list_xattrs(&ROOT, id).unwrap().is_empty());
    }
    assert_eq!((lab.find(".zfs/shares/x"), lab.find(".zfs/x")), (Err(Errno::ENOTSUP), Err(Errno::ENOENT)));
    assert_eq!(lab.names(".zfs/shares"), [] as [String; 0]);
}

#[test]
fn a_snapshot_is_below_its_name_and_cannot_be_changed() {
    let lab = Lab::new();
    let file = lab.write("f", "old");
    let sub = lab.dir.create(&ROOT, lab.dir.root(), b"d", &NewFile::new(Kind::Directory, 0o755)).unwrap().0;
    lab.dir.create(&ROOT, sub, b"l", &NewFile::symlink(b"../f")).unwrap();
    lab.spa.sync().unwrap();
    lab.snapshot("t/a@1");
    lab.write("f", "new");
    lab.snapshot("t/a@2");
    let path = |n, name: &str| lab.find(&format!(".zfs/snapshot/{n}/{name}")).unwrap();
    let old = path(1, "f");
    assert_eq!((lab.read(old).unwrap(), lab.read(path(2, "f")).unwrap()), ("old".into(), "new".into()));
    assert_eq!((old.0 & 0xffff_ffff_ffff, old.0 >> 48), (file.0, 1));
    let stat = lab.dir.getattr(old).unwrap();
    let phys = lab.spa.view().unwrap().dataset("t/a@1").unwrap().phys().clone();
    let generation = phys.guid.0 ^ phys.creation_txg.0;
    assert_eq!((stat.inode, stat.attrs.generation, stat.attrs.size), (old.0, generation, 3));
    // each file has one number
    let root = lab.find(".zfs/snapshot/1").unwrap();
    assert_eq!((stat.attrs.parent, lab.dir.attrs(path(1, "d")).unwrap().parent), (root, root));
    assert_eq!(lab.dir.lookup(&ROOT, path(1, "d"), b"..").unwrap().0, root);
    assert_eq!(lab.dir.readlink(path(1, "d/l")).unwrap(), b"../f");
    let mut listed = lab.dir.read_dir(&ROOT, root, 0).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(listed.iter().map(|entry| entry.object).collect::<Vec<_>>(), [path(1, "d"), old]);
    assert!(lab.dir.is_told(old) && !lab.dir.is_told(root));
    assert_eq!(lab.find(".zfs/snapshot/1/.zfs"), Err(Errno::ENOENT));
    let new = NewFile::new(Kind::File, 0o644);
    let rename = |from, name: &[u8], to| lab.dir.rename(&ROOT, from, name, to, b"n", RenameMode::Replace);
    let (live, other) = (lab.dir.root(), lab.find(".zfs/snapshot/2").unwrap());
    let refused = [
        errno(lab.dir.write(&ROOT, old, Some(0), b"x")),
        errno(lab.dir.truncate(&ROOT, old, 0)),
        errno(lab.dir.setattr(&ROOT, old, &SetAttr { mode: Some(0), ..SetAttr::default() })),
        errno(lab.dir.create(&ROOT, root, b"n", &new)),
        errno(lab.dir.unlink(&ROOT, root, b"f")),
        errno(lab.dir.rmdir(&ROOT, root, b"d")),
        errno(lab.dir.link(&ROOT, file, root, b"n")),
        errno(lab.dir.open(&ROOT, old, 2)),
        errno(lab.dir.copy_range(&ROOT, (file, 0), (old, 0), 1)),
        errno(rename(root, b"f", root)),
    ];
    assert_eq!(refused, [Errno::EROFS; 10]);
    let across = [
        errno(lab.dir.link(&ROOT, old, live, b"n")),
        errno(lab.dir.copy_range(&ROOT, (old, 0), (file, 0), 1)),
        errno(rename(root, b"f", live)),
        errno(rename(live, b"f", root)),
        errno(rename(root, b"f", other)),
        errno(rename(live, b"f", lab.find(".zfs/snapshot").unwrap())),
    ];
    assert_eq!(across, [Errno::EXDEV; 6]);
    // who may do what is as in the file system
    let user = Cred::user(7, 7, []);
    assert!(lab.dir.open(&user, old, READ).is_ok());
    lab.dir.setattr(&ROOT, lab.dir.root(), &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
    lab.snapshot("t/a@3");
    let closed = lab.find(".zfs/snapshot/3").unwrap();
    assert_eq!(errno(lab.dir.lookup(&user, closed, b"f")), Errno::EACCES);
    assert_eq!(errno(lab.dir.lookup(&user, lab.dir.root(), b".zfs")), Errno::EACCES);
    // its space
    assert!(lab.dir.statfs_at(old).unwrap().blocks > 0);
    assert_eq!(errno(lab.dir.lookup(&ROOT, ControlDir::Snapshots.id(), &[b'n'; 256])), Errno::ENAMETOOLONG);
    for missing in ["nope", "\u{e4}", "1@2"] {
        assert_eq!(lab.find(&format!(".zfs/snapshot/{missing}")), Err(Errno::ENOENT));
    }
}

#[test]
fn snapshots_come_and_go_with_their_names() {
    let lab = Lab::new();
    lab.write("f", "x");
    assert_eq!(lab.names(".zfs/snapshot"), [] as [String; 0]);
    for n in [3, 1, 2] {
        lab.snapshot(&format!("t/a@{n}"));
    }
    let sorted = || {
        let mut names = lab.names(".zfs/snapshot");
        names.sort();
        names
    };
    assert_eq!(sorted(), ["1", "2", "3"]);
    let (root, file) = (lab.find(".zfs/snapshot/1").unwrap(), lab.find(".zfs/snapshot/1/f").unwrap());
    lab.spa.rename_snapshot("t/a", "1", "one", false).unwrap();
    lab.spa.rename("t/a", "t/c").unwrap();
    assert_eq!(
        (sorted(), lab.find(".zfs/snapshot/1")),
        (vec!["2".into(), "3".into(), "one".into()], Err(Errno::ENOENT))
    );
    assert_eq!((lab.find(".zfs/snapshot/one"), lab.read(file)), (Ok(root), Ok("x".to_owned())));
    lab.destroy("t/c@one").unwrap();
    assert_eq!((sorted(), lab.read(file)), (vec!["2".to_owned(), "3".into()], Err(Errno::ESTALE)));
    assert_eq!((errno(lab.dir.getattr(root)), errno(lab.dir.attrs(file))), (Errno::ESTALE, Errno::ESTALE));
    // one that gets the name, and perhaps the number, is another
    lab.write("f", "y");
    lab.snapshot("t/c@one");
    let again = lab.find(".zfs/snapshot/one/f").unwrap();
    assert_eq!((lab.read(again), lab.read(file)), (Ok("y".to_owned()), Err(Errno::ESTALE)));
    assert_ne!(again, file);
}

#[test]
fn a_snapshot_in_use_is_not_destroyed() {
    let lab = Lab::new();
    lab.write("f", "x");
    lab.snapshot("t/a@s");
    let file = lab.find(".zfs/snapshot/s/f").unwrap();
    let handle: Handle = lab.dir.open(&ROOT, file, READ).unwrap().synchronous();
    assert_eq!((handle.id(), lab.destroy("t/a@s")), (file, Err(Errno::EBUSY)));
    let second = lab.dir.open(&ROOT, file, READ).unwrap();
    drop(handle);
    assert_eq!(lab.destroy("t/a@s"), Err(Errno::EBUSY));
    drop(second);
    // a listing
    let entries = lab.dir.read_dir(&ROOT, lab.find(".zfs/snapshot/s").unwrap(), 0).unwrap();
    assert_eq!(lab.destroy("t/a@s"), Err(Errno::EBUSY));
    drop(entries);
    // what a mount holds of files that lose their names is nothing here
    let held = lab.dir.open(&ROOT, file, 0).unwrap();
    // neither does what is open in memory, which a rename leaves so
    assert_eq!((lab.open_count(), lab.destroy("t/a@s")), (1, Ok(())));
    assert_eq!((errno(lab.dir.open(&ROOT, file, READ)), lab.read(file)), (Errno::ESTALE, Err(Errno::ESTALE)));
    drop(held);
    assert_eq!(lab.open_count(), 0);
    // deferred until it is not in use
    lab.snapshot("t/a@d");
    let tags = [("t/a@d".to_owned(), "tag".to_owned())];
    lab.spa.hold(&tags).unwrap();
    lab.spa.destroy_snapshots(&["t/a@d".to_owned()], true).unwrap();
    let file = lab.find(".zfs/snapshot/d/f").unwrap();
    let handle = lab.dir.open(&ROOT, file, READ).unwrap();
    assert_eq!(lab.spa.release(&tags).unwrap_err().errno(), Errno::EBUSY);
    assert_eq!(lab.read(file), Ok("x".to_owned()));
    drop(handle);
    lab.spa.release(&tags).unwrap();
    assert_eq!((lab.read(file), lab.names(".zfs/snapshot")), (Err(Errno::ESTALE), vec![]));
}

/// One that is received again has the guid, and perhaps the object, of the former.
#[test]
fn a_snapshot_is_not_taken_for_another_in_its_object() {
    let lab = Lab::new();
    lab.write("f", "x");
    lab.snapshot("t/a@s");
    let (id, file) = (lab.id("t/a@s"), lab.find(".zfs/snapshot/s/f").unwrap());
    let hold = |id: &SnapshotId| lab.spa.long_hold_snapshot(id);
    assert!(hold(&id).is_ok());
    let others = [
        SnapshotId { guid: base::Guid(id.guid.0 ^ 1), ..id },
        SnapshotId { creation_txg: base::Txg(id.creation_txg.0 - 1), ..id },
        SnapshotId { dir: lab.spa.view().unwrap().dataset("t/b").unwrap().dir().id(), ..id },
        // a directory, a list of names, nothing
        SnapshotId { object: id.dir, ..id },
        SnapshotId { object: ObjectId(1), ..id },
        SnapshotId { object: ObjectId(1 << 40), ..id },
    ];
    for other in others {
        assert!(hold(&other).unwrap_err().is_not_found(), "{other:?}");
        // what is open stays
        lab.dir.snapshots.close(&other);
    }
    assert_eq!((lab.open_count(), lab.read(file)), (1, Ok("x".to_owned())));
    assert_ne!(generation(&others[1]) as u32, generation(&id) as u32);
    assert_eq!(lab.destroy("t/a@s"), Ok(()));
}

#[test]
fn a_snapshot_leaves_with_a_promoted_clone() {
    let lab = Lab::new();
    lab.write("f", "x");
    lab.snapshot("t/a@s");
    let file = lab.find(".zfs/snapshot/s/f").unwrap();
    lab.spa.clone_dataset("t/a@s", "t/c", vec![]).unwrap();
    let handle = lab.dir.open(&ROOT, file, READ).unwrap();
    assert_eq!(lab.spa.promote("t/c").unwrap_err().errno(), Errno::EBUSY);
    drop(handle);
    assert_eq!((lab.spa.promote("t/c").is_ok(), lab.open_count()), (true, 1));
    assert_eq!((lab.read(file), lab.find(".zfs/snapshot/s")), (Err(Errno::ESTALE), Err(Errno::ENOENT)));
    assert_eq!(lab.open_count(), 0);
}

/// As the kernel tells of the end of a use after the program has closed its file.
#[test]
fn a_snapshot_is_destroyed_when_its_last_use_ends_a_moment_later() {
    let lab = Lab::new();
    lab.write("f", "x");
    lab.snapshot("t/a@s");
    let handle = lab.dir.open(&ROOT, lab.find(".zfs/snapshot/s/f").unwrap(), READ).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            drop(handle);
        });
        assert_eq!(lab.destroy("t/a@s"), Ok(()));
    });
}

#[test]
fn numbers_that_lead_nowhere_are_stale() {
    let lab = Lab::new();
    lab.write("f", "x");
    lab.snapshot("t/a@s");
    lab.snapshot("t/b@s");
    let view = lab.spa.view().unwrap();
    let root = |name: &str| ids::snapshot_root(view.dataset(name).unwrap().id()).unwrap();
    // a file system, and a snapshot of another one
    for id in [root("t/a"), root("t/b@s"), ids::snapshot_root(ObjectId(1 << 40)).unwrap()] {
        assert_eq!(errno(lab.dir.getattr(id)), Errno::ESTALE, "{id}");
        assert_eq!(errno(lab.dir.read_dir(&ROOT, id, 0).map(|_| ())), Errno::ESTALE, "{id}");
        assert!(lab.dir.getattr_listed(id).is_err());
    }
    assert!(lab.dir.getattr(root("t/a@s")).is_ok());
    assert_eq!(errno(lab.dir.getattr(ids::in_snapshot(900, ObjectId(34)).unwrap())), Errno::ESTALE);
    for object in [0, 1, 1 << 40].map(ObjectId) {
        assert!(lab.dir.getattr(ids::in_snapshot(1, object).unwrap()).is_err(), "{object}");
    }
}

#[test]
fn few_of_many_snapshots_are_open_and_none_for_long() {
    let lab = Lab::new();
    lab.write("f", "x");
    let names: Vec<String> = (0..3 * OPEN_MAX).map(|n| format!("t/a@{n}")).collect();
    for name in &names {
        lab.snapshot(name);
    }
    let dir = lab.find(".zfs/snapshot").unwrap();
    let mut seen = HashSet::new();
    let mut cookie = 0;
    // in pieces, with others that come and go between them
    while let Some(entry) = lab.dir.read_dir(&ROOT, dir, cookie).unwrap().next() {
        let entry = entry.unwrap();
        let stat = lab.dir.getattr_listed(entry.object).unwrap();
        assert_eq!((stat.inode, stat.attrs.kind()), (entry.object.0, Kind::Directory));
        assert!(seen.insert(entry.name));
        cookie = entry.next_cookie;
        if seen.len() % 50 == 0 {
            lab.snapshot("t/a@new");
            lab.destroy("t/a@new").unwrap();
        }
    }
    let whole = names.iter().all(|name| seen.contains(name.split_once('@').unwrap().1.as_bytes()));
    assert!(whole && lab.open_count() == 0);
    // what a listing says of one is what a look says, as far as it goes
    let files: Vec<ObjectId> = (0..names.len()).map(|n| lab.find(&format!(".zfs/snapshot/{n}/f")).unwrap()).collect();
    assert_eq!((lab.open_count(), files.iter().collect::<HashSet<_>>().len()), (OPEN_MAX, names.len()));
    let root = lab.find(".zfs/snapshot/0").unwrap();
    let generation = |stat: Stat| (stat.inode, stat.attrs.generation);
    let opened = generation(lab.dir.getattr(root).unwrap());
    lab.dir.snapshots.close(&lab.id("t/a@0"));
    assert_eq!(generation(lab.dir.getattr_listed(root).unwrap()), opened);
    // those that were closed are found by their numbers
    assert!(files.iter().all(|file| lab.read(*file).as_deref() == Ok("x")));
    let handle = lab.dir.open(&ROOT, files[5], READ).unwrap();
    let idle = Duration::from_secs(300);
    let now = lab.spa.env().instant();
    let take = |now| take_idle(&mut lab.dir.snapshots.state().open, now, idle).len();
    assert_eq!((take(now), take(now + 2 * idle), lab.open_count()), (0, OPEN_MAX, 1));
    drop(handle);
    assert_eq!((take(lab.spa.env().instant() + 2 * idle), lab.open_count()), (1, 0));
}

#[test]
fn no_more_are_open_when_many_are_not_in_use_any_more() {
    let lab = Lab::new();
    lab.write("f", "x");
    let open = |n: usize| {
        lab.snapshot(&format!("t/a@{n}"));
        let file = lab.find(&format!(".zfs/snapshot/{n}/f")).unwrap();
        lab.dir.open(&ROOT, file, READ).unwrap()
    };
    let handles: Vec<Handle> = (0..OPEN_MAX + 9).map(open).collect();
    assert_eq!(lab.open_count(), OPEN_MAX + 9);
    let (first, last) = (handles[0].id(), handles[OPEN_MAX + 8].id());
    let mut handles = handles.into_iter();
    handles.by_ref().take(5).for_each(drop);
    // one more, which is idle
    lab.snapshot("t/a@one");
    assert!(lab.find(".zfs/snapshot/one/f").is_ok());
    assert_eq!(lab.open_count(), OPEN_MAX + 10);
    handles.for_each(drop);
    assert_eq!(lab.open_count(), OPEN_MAX);
    assert_eq!((lab.read(first), lab.read(last), lab.open_count()), (Ok("x".into()), Ok("x".into()), OPEN_MAX));
}

/// Blocks that are freed are not used again while a view of the pool is kept.
#[test]
fn an_open_snapshot_keeps_no_view() {
    let lab = Lab::new();
    lab.write("f", "x");
    lab.snapshot("t/a@s");
    let file = lab.find(".zfs/snapshot/s/f").unwrap();
    let handle = lab.dir.open(&ROOT, file, READ).unwrap();
    let view: Weak<Pool> = Arc::downgrade(&lab.spa.view().unwrap());
    lab.write("f", "y");
    lab.spa.sync().unwrap();
    lab.spa.view().unwrap();
    assert!(view.upgrade().is_none() && lab.open_count() == 1);
    assert_eq!(lab.read(file).unwrap(), "x");
    assert!(lab.dir.statfs_at(file).unwrap().blocks > 0);
    drop(handle);
}

#[test]
fn snapshots_are_made_destroyed_and_renamed() {
    let lab = Lab::new();
    lab.write("f", "x");
    let (dir, new) = (ControlDir::Snapshots.id(), NewFile::new(Kind::Directory, 0o755));
    let make = |name: &[u8]| lab.dir.create(&ROOT, dir, name, &new);
    let rename = |from: &[u8], to: &[u8], mode| lab.dir.rename(&ROOT, dir, from, dir, to, mode);
    assert_eq!((errno(make(b"s")), errno(lab.dir.rmdir(&ROOT, dir, b"s"))), (Errno::EACCES, Errno::EACCES));
    assert_eq!(errno(rename(b"s", b"r", RenameMode::Replace)), Errno::EACCES);
    tunable::ZFS_ADMIN_SNAPSHOT.set(1);
    let (root, attrs) = make(b"s").unwrap();
    assert_eq!((lab.find(".zfs/snapshot/s"), attrs.kind()), (Ok(root), Kind::Directory));
    assert_eq!(lab.read(lab.find(".zfs/snapshot/s/f").unwrap()).unwrap(), "x");
    assert_eq!((errno(make(b"s")), errno(make(b"a%b"))), (Errno::EEXIST, Errno::EILSEQ));
    assert_eq!((errno(make(&[b'n'; 252])), errno(make(&[b'n'; 256]))), (Errno::ENAMETOOLONG, Errno::EILSEQ));
    rename(b"s", b"r", RenameMode::Replace).unwrap();
    assert_eq!((lab.find(".zfs/snapshot/r"), lab.find(".zfs/snapshot/s")), (Ok(root), Err(Errno::ENOENT)));
    make(b"q").unwrap();
    assert_eq!(errno(rename(b"r", b"q", RenameMode::Replace)), Errno::EEXIST);
    assert_eq!(errno(rename(b"r", b"p", RenameMode::NoReplace)), Errno::EINVAL);
    assert_eq!(errno(rename(b"none", b"p", RenameMode::Replace)), Errno::ENOENT);
    rename(b"r", b"r", RenameMode::Replace).unwrap();
    let away = |to| lab.dir.rename(&ROOT, dir, b"r", to, b"x", RenameMode::Replace);
    assert_eq!((errno(away(lab.dir.root())), errno(away(ControlDir::Root.id()))), (Errno::EINVAL, Errno::EINVAL));
    let handle = lab.dir.open(&ROOT, lab.find(".zfs/snapshot/r/f").unwrap(), READ).unwrap();
    assert_eq!(errno(lab.dir.rmdir(&ROOT, dir, b"r")), Errno::EBUSY);
    drop(handle);
    lab.dir.rmdir(&ROOT, dir, b"r").unwrap();
    assert_eq!((errno(lab.dir.rmdir(&ROOT, dir, b"r")), lab.names(".zfs/snapshot")), (Errno::ENOENT, vec!["q".into()]));
    // only directories, and only there
    assert_eq!(errno(lab.dir.create(&ROOT, dir, b"f", &NewFile::new(Kind::File, 0o644))), Errno::EACCES);
    assert_eq!(errno(lab.dir.create(&ROOT, ControlDir::Root.id(), b"d", &new)), Errno::EPERM);
    assert_eq!(errno(lab.dir.rmdir(&ROOT, ControlDir::Root.id(), b"snapshot")), Errno::EPERM);
    let user = Cred::user(7, 7, []);
    assert_eq!(errno(lab.dir.create(&user, dir, b"u", &new)), Errno::EPERM);
    assert_eq!(errno(lab.dir.rmdir(&user, dir, b"q")), Errno::EPERM);
    let asked = std::mem::take(&mut *lab.asked.asked.lock());
    assert_eq!(asked[..3], ["create t/a@s", "create t/a@s", "rename t/a@s t/a@r"]);
    // nobody does it in a pool that is only read
    let live = Arc::new(Zfs::open(&lab.spa, "t/a").unwrap());
    let id = lab.spa.view().unwrap().dataset("t/a").unwrap().id();
    let still = Ctldir::new(live, PoolSource::Still(lab.spa.view().unwrap()), id, None);
    assert_eq!(errno(still.create(&ROOT, dir, b"s", &new)), Errno::EROFS);
    assert_eq!(still.lookup(&ROOT, dir, b"q").unwrap().0, lab.find(".zfs/snapshot/q").unwrap());
    tunable::ZFS_ADMIN_SNAPSHOT.set(0);
}
