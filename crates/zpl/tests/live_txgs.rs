//! Transactions that last: writers of other files go on, those of the same file wait.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod scratch;

use std::sync::mpsc::channel;
use std::time::Duration;

use base::ObjectId;
use dmu::{Tx, TxObjects};
use scratch::Scratch;
use zpl::Kind;
use zpl::live::{Cred, NewFile, RenameMode, SetAttr, XattrMode, Zfs};

const ROOT: Cred = Cred::ROOT;
/// Longer than anything takes that does not wait.
const LONG: Duration = Duration::from_secs(60);
const WRITERS: u8 = 8;

fn make(zfs: &Zfs, dir: ObjectId, name: &str, kind: Kind) -> ObjectId {
    zfs.create(&ROOT, dir, name.as_bytes(), &NewFile::new(kind, 0o755)).unwrap().0
}

/// A transaction that may change these files, and lasts until it is dropped.
fn hold(zfs: &Zfs, files: &[ObjectId]) -> Tx {
    let objset = zfs.fs().objset();
    zfs.spa().dataset_tx_for(objset, 1 << 16, false, TxObjects::of(objset.id(), files)).unwrap()
}

/// Returns when the txg of the transaction is closed.
fn await_closed(zfs: &Zfs, tx: &Tx) {
    while zfs.spa().txgs().open() == tx.txg() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All kinds of changes to files of one's own.
fn work(zfs: &Zfs, dir: ObjectId, n: u8) {
    for round in 0..5u8 {
        let file = make(zfs, dir, &format!("f{round}"), Kind::File);
        zfs.write(&ROOT, file, 0, &[n; 200_000]).unwrap();
        zfs.append(&ROOT, file, &[round; 1000]).unwrap();
        zfs.setattr(&ROOT, file, &SetAttr { size: Some(150_000), mode: Some(0o600), ..SetAttr::default() }).unwrap();
        zfs.set_xattr(&ROOT, file, b"user.a", &[n; 100], XattrMode::Set).unwrap();
        zfs.punch(&ROOT, file, 1000..5000).unwrap();
        zfs.link(&ROOT, file, dir, b"link").unwrap();
        zfs.rename(&ROOT, dir, b"link", dir, b"gone", RenameMode::Replace).unwrap();
        zfs.unlink(&ROOT, dir, b"gone").unwrap();
        let below = make(zfs, dir, "d", Kind::Directory);
        make(zfs, below, "x", Kind::Fifo);
        zfs.unlink(&ROOT, below, b"x").unwrap();
        zfs.rmdir(&ROOT, dir, b"d").unwrap();
    }
}

#[test]
fn writers_of_other_files_do_not_wait_for_a_transaction_that_lasts() {
    // so large that no transaction waits for space
    let mut scratch = Scratch::sized(2 << 30);
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let held = make(&zfs, root, "held", Kind::File);
    let dirs: Vec<ObjectId> = (0..WRITERS).map(|n| make(&zfs, root, &format!("d{n}"), Kind::Directory)).collect();
    zfs.spa().sync().unwrap();
    let slow = hold(&zfs, &[held]);
    let slow_txg = slow.txg();
    std::thread::scope(|scope| {
        let syncer = scope.spawn(|| zfs.spa().sync());
        await_closed(&zfs, &slow);
        let (tell, told) = channel();
        for (n, dir) in (0..).zip(&dirs) {
            let (zfs, tell) = (&zfs, tell.clone());
            scope.spawn(move || {
                work(zfs, *dir, n);
                tell.send(()).unwrap();
            });
        }
        let (tell_same, told_same) = channel();
        let zfs = &zfs;
        scope.spawn(move || {
            zfs.write(&ROOT, held, 0, b"after it").unwrap();
            tell_same.send(()).unwrap();
        });
        let all = (0..WRITERS).all(|_| told.recv_timeout(LONG).is_ok());
        let txgs = zfs.spa().txgs();
        let (open, synced) = (txgs.open(), txgs.synced());
        let same = told_same.try_recv().is_ok();
        drop(slow);
        assert!(all, "a writer of another file waited");
        assert!(open.0 == slow_txg.0 + 1 && synced < slow_txg, "open {open}, synced {synced}");
        assert!(!same, "a writer of the same file did not wait");
        told_same.recv_timeout(LONG).unwrap();
        syncer.join().unwrap().unwrap();
    });
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    for (n, dir) in (0..WRITERS).zip(&dirs) {
        assert_eq!(zfs.getattr(*dir).unwrap().size, 7);
        for round in 0..5 {
            let (file, attrs) = zfs.lookup(&ROOT, *dir, format!("f{round}").as_bytes()).unwrap();
            assert_eq!((attrs.size, attrs.links, attrs.mode & 0o7777), (150_000, 1, 0o600));
            let mut data = vec![1; 150_000];
            zfs.read(file, 0, &mut data).unwrap();
            assert!(data[..1000].iter().chain(&data[5000..]).all(|byte| *byte == n));
            assert!(data[1000..5000].iter().all(|byte| *byte == 0));
            assert_eq!(zfs.get_xattr(&ROOT, file, b"user.a").unwrap(), vec![n; 100]);
        }
    }
    drop(zfs);
    scratch.close();
}

#[test]
fn an_operation_that_needs_a_file_of_the_txg_before_begins_again() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let (a, b) = (make(&zfs, root, "a", Kind::File), make(&zfs, root, "b", Kind::File));
    let dir = make(&zfs, root, "dir", Kind::Directory);
    // which files a name stands for is found under the locks, with a transaction of the next txg
    let ops: [(&[ObjectId], &(dyn Fn() + Sync)); 3] = [
        (&[a], &|| zfs.unlink(&ROOT, root, b"a").unwrap()),
        (&[b], &|| zfs.rename(&ROOT, root, b"b", dir, b"c", RenameMode::Replace).unwrap()),
        (&[dir], &|| zfs.unlink(&ROOT, dir, b"c").unwrap()),
    ];
    for (files, op) in ops {
        let slow = hold(&zfs, files);
        std::thread::scope(|scope| {
            let syncer = scope.spawn(|| zfs.spa().sync());
            await_closed(&zfs, &slow);
            let (tell, told) = channel();
            scope.spawn(move || {
                op();
                tell.send(()).unwrap();
            });
            let early = told.recv_timeout(Duration::from_millis(50)).is_ok();
            drop(slow);
            assert!(!early, "it changed a file of the txg before");
            told.recv_timeout(LONG).unwrap();
            syncer.join().unwrap().unwrap();
        });
    }
    assert_eq!(zfs.getattr(root).unwrap().size, 3);
    assert_eq!(zfs.getattr(dir).unwrap().size, 2);
    drop(zfs);
    scratch.close();
}
