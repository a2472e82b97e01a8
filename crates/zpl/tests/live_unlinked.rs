//! Files without a name: they exist as long as a handle holds them, and after a crash until the file system is opened again.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // what is tested elsewhere
mod power;
mod scratch;

use base::{Errno, ObjectId};
use power::Rig;
use scratch::Scratch;
use zpl::Kind;
use zpl::live::{Cred, NewFile, Zfs};

const ROOT: Cred = Cred::ROOT;

fn file(zfs: &Zfs, name: &str) -> ObjectId {
    zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap().0
}

fn queue(zfs: &Zfs) -> Vec<ObjectId> {
    zfs.fs().delete_queue().unwrap()
}

#[test]
fn an_open_file_outlives_its_name() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let id = file(&zfs, "f");
    let (first, second) = (zfs.hold(id).unwrap(), zfs.hold(id).unwrap());
    zfs.unlink(&ROOT, root, b"f").unwrap();
    assert_eq!((zfs.getattr(id).unwrap().links, queue(&zfs)), (0, vec![id]));
    drop(first);
    assert_eq!(zfs.getattr(id).unwrap().links, 0);
    // an open file may be held again, but not get a name again
    drop(zfs.hold(id).unwrap());
    assert_eq!(zfs.link(&ROOT, id, root, b"g").unwrap_err().errno(), Errno::ENOENT);
    drop(second);
    assert_eq!(zfs.getattr(id).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(zfs.hold(id).unwrap_err().errno(), Errno::ENOENT);
    assert!(queue(&zfs).is_empty());
    drop(zfs);
    scratch.close();
}

#[test]
fn what_a_crash_leaves_in_the_set_is_freed_at_the_next_opening() {
    let rig = Rig::new(&["/a"]);
    let zfs = Zfs::open(&rig.spa, "t").unwrap();
    let root = zfs.fs().root();
    let id = file(&zfs, "f");
    // blocks on two levels, spread over more than one piece
    zfs.change(1 << 20, |tx| {
        let object = zfs.znode(id)?.object().clone();
        object.write_block(tx, 0, vec![1; 512])?;
        Ok(object.write_block(tx, 300 << 10, vec![2; 512])?)
    })
    .unwrap();
    let dir = zfs.create(&ROOT, root, b"d", &NewFile::new(Kind::Directory, 0o755)).unwrap().0;
    let mut held = Vec::new();
    zfs.change(1 << 20, |tx| {
        for (name, id) in [(&b"f"[..], id), (b"d", dir)] {
            held.push(zfs.hold(id)?);
            if id == dir { zfs.rmdir(&ROOT, root, name)? } else { zfs.unlink(&ROOT, root, name)? }
        }
        assert!(!tx.is_syncing());
        Ok(())
    })
    .unwrap();
    rig.spa.sync().unwrap();
    let after = rig.after_cut(&[], false);
    let view = after.spa.as_ref().unwrap().view().unwrap();
    let on_disk = zpl::FileSystem::open(&view.dataset("t").unwrap()).unwrap();
    let mut left = on_disk.delete_queue().unwrap();
    left.sort_unstable();
    assert_eq!(left, [id.min(dir), id.max(dir)]);
    drop((view, on_disk));
    let again = after.open("t");
    assert!(queue(&again).is_empty());
    assert_eq!(again.getattr(id).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(again.getattr(dir).unwrap_err().errno(), Errno::ENOENT);
    drop(again);
    after.close();
}

#[test]
fn many_files_in_a_batch_take_few_places() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let assigned = || scratch.spa().txgs().stats.assigned.get();
    let before = assigned();
    zfs.batch(|zfs| {
        for n in 0..2000 {
            file(zfs, &format!("n{n}"));
        }
        Ok(())
    })
    .unwrap();
    assert!(assigned() - before < 100, "{} places", assigned() - before);
    assert_eq!(zfs.getattr(root).unwrap().size, 2002);
    zfs.batch(|zfs| (0..2000).step_by(2).try_for_each(|n| zfs.unlink(&ROOT, root, format!("n{n}").as_bytes())))
        .unwrap();
    assert!(queue(&zfs).is_empty());
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert_eq!(zfs.read_dir(&ROOT, root, 0).unwrap().count(), 1000);
}
