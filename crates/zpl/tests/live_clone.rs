//! Copies that share blocks: references are counted correctly, whatever happens to the files.
#![allow(clippy::unwrap_used)]

mod scratch;

use base::{Errno, ObjectId};
use scratch::Scratch;
use zpl::Kind;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, SetAttr, Zfs};

const ROOT: Cred = Cred::ROOT;
const BLOCK: u64 = 16 << 10;

fn file(zfs: &Zfs, name: &str) -> ObjectId {
    zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap().0
}

fn noise(len: u64) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn all(zfs: &Zfs, id: ObjectId) -> Vec<u8> {
    let mut buf = vec![0; zfs.getattr(id).unwrap().size as usize];
    zfs.read(id, 0, &mut buf).unwrap();
    buf
}

fn saved(zfs: &Zfs) -> (u64, u64) {
    zfs.spa().sync().unwrap();
    let stats = zfs.spa().view().unwrap().brt_stats().unwrap();
    (stats.entries, stats.saved)
}

#[test]
fn a_copy_takes_no_room_and_outlives_its_source() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", BLOCK), ("compression", 2)]);
    let zfs = scratch.zfs();
    let (source, copy, third) = (file(&zfs, "source"), file(&zfs, "copy"), file(&zfs, "third"));
    let data = noise(20 * BLOCK + 100);
    zfs.write(&ROOT, source, 0, &data).unwrap();
    assert_eq!(zfs.copy_range(&ROOT, (source, 0), (copy, 0), u64::MAX).unwrap(), data.len() as u64);
    assert!(all(&zfs, copy) == data);
    assert_eq!(saved(&zfs), (21, 21 * BLOCK));
    assert!(all(&zfs, copy) == data);
    // a part in the middle, whose edges are copied
    zfs.copy_range(&ROOT, (copy, 0), (third, 0), 10 * BLOCK).unwrap();
    zfs.write(&ROOT, third, BLOCK + 5, b"changed before the sync").unwrap();
    zfs.setattr(&ROOT, third, &SetAttr { size: Some(8 * BLOCK), ..SetAttr::default() }).unwrap();
    let mut model = data[..8 * BLOCK as usize].to_vec();
    model[BLOCK as usize + 5..BLOCK as usize + 28].copy_from_slice(b"changed before the sync");
    assert_eq!(saved(&zfs), (21, 28 * BLOCK));
    zfs.unlink(&ROOT, zfs.fs().root(), b"source").unwrap();
    zfs.write(&ROOT, copy, 0, &[1]).unwrap();
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert!(all(&zfs, third) == model);
    assert!(all(&zfs, copy)[1..] == data[1..]);
    zfs.unlink(&ROOT, zfs.fs().root(), b"copy").unwrap();
    zfs.unlink(&ROOT, zfs.fs().root(), b"third").unwrap();
    assert_eq!(saved(&zfs), (0, 0));
    drop(zfs);
    scratch.close();
}

/// The second copy replaces each block by itself: it takes a reference and gives one back.
#[test]
fn a_copy_over_the_same_copy_keeps_no_block() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", BLOCK), ("compression", 2)]);
    let zfs = scratch.zfs();
    let (source, copy) = (file(&zfs, "source"), file(&zfs, "copy"));
    let data = noise(2 * BLOCK);
    zfs.write(&ROOT, source, 0, &data).unwrap();
    for _ in 0..3 {
        zfs.spa().sync().unwrap();
        assert_eq!(zfs.copy_range(&ROOT, (source, 0), (copy, 0), u64::MAX).unwrap(), 2 * BLOCK);
    }
    assert_eq!(saved(&zfs), (2, 2 * BLOCK));
    zfs.unlink(&ROOT, zfs.fs().root(), b"source").unwrap();
    assert_eq!(saved(&zfs), (0, 0));
    assert!(all(&zfs, copy) == data);
    zfs.unlink(&ROOT, zfs.fs().root(), b"copy").unwrap();
    drop(zfs);
    scratch.close();
}

#[test]
fn what_cannot_be_shared_is_copied() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", BLOCK), ("compression", 2)]);
    let zfs = scratch.zfs();
    let (source, copy) = (file(&zfs, "source"), file(&zfs, "copy"));
    let data = noise(5 * BLOCK);
    zfs.write(&ROOT, source, 0, &data).unwrap();
    assert_eq!(zfs.copy_range(&ROOT, (source, 3), (copy, 1), 2 * BLOCK).unwrap(), 2 * BLOCK);
    assert!(all(&zfs, copy)[1..] == data[3..3 + 2 * BLOCK as usize]);
    assert_eq!(saved(&zfs), (0, 0));
    let over = zfs.copy_range(&ROOT, (source, 0), (source, 5), 10);
    assert_eq!(over.unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(zfs.copy_range(&ROOT, (source, 5 * BLOCK), (copy, 0), 10).unwrap(), 0);
    // within one file, without overlap
    assert_eq!(zfs.copy_range(&ROOT, (source, 0), (source, 8 * BLOCK), 2 * BLOCK).unwrap(), 2 * BLOCK);
    assert_eq!(saved(&zfs), (2, 2 * BLOCK));
    drop(zfs);
    scratch.close();
}

#[test]
fn holes_are_copied_as_holes_however_long_they_are() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", BLOCK), ("compression", 2)]);
    let zfs = scratch.zfs();
    let sparse = |name: &str, size: u64, at: u64| {
        let id = file(&zfs, name);
        zfs.write(&ROOT, id, at, b"data").unwrap();
        zfs.setattr(&ROOT, id, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        id
    };
    let kib = |id: ObjectId| {
        zfs.spa().sync().unwrap();
        zfs.fs().node(id).unwrap().blocks() / 2
    };
    // unaligned ranges cannot be cloned
    let (part, over, fresh) = (sparse("part", 20 << 20, 10 << 20), file(&zfs, "over"), file(&zfs, "fresh"));
    zfs.write(&ROOT, over, 0, &noise(11 << 20)).unwrap();
    for copy in [over, fresh] {
        assert_eq!(zfs.copy_range(&ROOT, (part, 3), (copy, 1), u64::MAX).unwrap(), (20 << 20) - 3);
        assert!(kib(copy) < 256, "{} KiB", kib(copy));
        let data = all(&zfs, copy);
        assert_eq!((data.len(), data[0]), ((20 << 20) - 2, if copy == over { noise(1)[0] } else { 0 }));
        assert!(data[(10 << 20) - 2..][..4] == *b"data");
        assert_eq!(data[1..].iter().filter(|byte| **byte != 0).count(), 4);
    }
    // larger than could ever be read: cloned and copied
    let (size, at) = (1 << 60, 1 << 59);
    let (vast, none) = (sparse("vast", size, at), file(&zfs, "none"));
    zfs.setattr(&ROOT, none, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    zfs.write(&ROOT, vast, 5, b"first").unwrap();
    for (name, from) in [("cloned", 0), ("copied", 7)] {
        let copy = file(&zfs, name);
        assert_eq!(zfs.copy_range(&ROOT, (vast, from), (copy, from), u64::MAX).unwrap(), size - from);
        assert_eq!(zfs.getattr(copy).unwrap().size, size, "{name}");
        assert_eq!(zfs.seek_hole(copy, 0).unwrap(), BLOCK);
        assert_eq!((zfs.seek_data(copy, BLOCK).unwrap(), zfs.seek_hole(copy, at).unwrap()), (at, at + BLOCK));
        assert!(kib(copy) < 1024, "{name}: {} KiB", kib(copy));
        // the whole range becomes a hole
        assert_eq!(zfs.copy_range(&ROOT, (none, from), (copy, from), u64::MAX).unwrap(), size - from);
        assert!(zfs.seek_data(copy, BLOCK).is_err());
    }
    drop(zfs);
    scratch.close();
}
