//! Files that are closed while a suspension waits.
#![allow(clippy::unwrap_used)]

use ondisk::ObjsetType;
use pool::NewDataset;

use super::*;
use crate::Kind;
use crate::create::{FsProps, create_fs};

#[test]
fn a_file_that_is_closed_beside_a_suspension_is_freed_when_it_is_over() {
    let (spa, _) = pool::testing::in_memory("d0", 1);
    let new = NewDataset::inheriting("t/a", ObjsetType::Zfs);
    spa.create_dataset(new, Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default()))).unwrap();
    let live = Suspendable::new(Zfs::open(&spa, "t/a").unwrap());
    let (id, _) = live.create(&Cred::ROOT, live.root(), b"f", &NewFile::new(Kind::File, 0o644)).unwrap();
    let handle = live.open(&Cred::ROOT, id, 6).unwrap();
    live.unlink(&Cred::ROOT, live.root(), b"f").unwrap();
    let pin = live.pin().unwrap().unwrap();
    std::thread::scope(|scope| {
        let suspension = scope.spawn(|| live.0.suspend());
        while !live.0.state.lock().suspended {
            std::thread::yield_now();
        }
        drop(handle);
        // freeing it would go on beside whatever replaces the contents
        assert!(pin.attrs(id).is_ok());
        drop(pin);
        suspension.join().unwrap();
    });
    assert_eq!(live.0.kept().len(), 1);
    live.0.resume(false);
    assert_eq!(live.attrs(id).unwrap_err().errno(), Errno::ENOENT);
    assert!(live.0.files.lock().slots.is_empty() && live.0.state.lock().users == 0);
}
