//! Files that lost their last name before the pool was closed are freed when it is imported, as a mount does it in OpenZFS.
#![allow(clippy::unwrap_used)]

mod scratch;

use base::tunable;
use scratch::Scratch;
use zpl::Kind;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, Refusal, XattrMode, Zfs, replay_all};

const ROOT: Cred = Cred::ROOT;

fn queue(zfs: &Zfs) -> usize {
    zfs.fs().delete_queue().unwrap().len()
}

/// Returns the objects in use.
fn objects(zfs: &Zfs) -> u64 {
    let stat = zfs.statfs().unwrap();
    stat.files - stat.ffree
}

#[test]
fn an_import_frees_what_has_no_name() {
    // extended attributes are files of hidden directories
    let mut scratch = Scratch::with(FsProps::default(), &[("xattr", 1)]);
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    scratch.spa().sync().unwrap();
    let before = objects(&zfs);
    tunable::ZFS_UNLINK_SUSPEND_PROGRESS.set(1);
    for name in [&b"plain"[..], b"with attributes"] {
        let id = zfs.create(&ROOT, root, name, &NewFile::new(Kind::File, 0o644)).unwrap().0;
        zfs.write(&ROOT, id, 0, &vec![7; 700_000]).unwrap();
        if name.len() > 5 {
            for attr in [&b"user.a"[..], b"user.b"] {
                zfs.set_xattr(&ROOT, id, attr, b"value", XattrMode::Set).unwrap();
            }
        }
        zfs.unlink(&ROOT, root, name).unwrap();
    }
    let dir = zfs.create(&ROOT, root, b"dir", &NewFile::new(Kind::Directory, 0o755)).unwrap().0;
    zfs.rmdir(&ROOT, root, b"dir").unwrap();
    assert_eq!(queue(&zfs), 3);
    drop(zfs);
    scratch.again();
    assert!(replay_all(scratch.spa(), &mut |_| ()).unwrap().is_empty(), "it must not");
    let zfs = scratch.zfs();
    assert_eq!(queue(&zfs), 3, "an opening neither");
    drop(zfs);

    tunable::ZFS_UNLINK_SUSPEND_PROGRESS.set(0);
    scratch.again();
    let mut most = 0;
    let opened = replay_all(scratch.spa(), &mut |progress| most = progress.logs.max(most)).unwrap();
    assert_eq!(opened.into_iter().map(|(name, done)| done.map(|()| name).unwrap()).collect::<Vec<_>>(), ["t"]);
    assert_eq!(most, 0, "no log is told of");
    scratch.spa().sync().unwrap();
    let on_disk = zpl::FileSystem::open(&scratch.spa().view().unwrap().dataset("t").unwrap()).unwrap();
    assert!(on_disk.delete_queue().unwrap().is_empty());
    drop(on_disk);
    let zfs = scratch.zfs();
    assert_eq!(objects(&zfs), before, "hidden directories and what is in them, too");
    assert_eq!(zfs.getattr(dir).unwrap_err().errno(), Refusal::Gone.errno());
    drop(zfs);
    scratch.close();
}
