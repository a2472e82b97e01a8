//! Contents of files that are written, truncated, punched and read, compared with a vector of bytes.
#![allow(clippy::unwrap_used)]

mod scratch;

use std::collections::BTreeMap;

use base::{Errno, ObjectId};
use proptest::prelude::*;
use scratch::Scratch;
use zpl::Kind;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, SetAttr, Vfs, Zfs};

const ROOT: Cred = Cred::ROOT;

fn file(zfs: &Zfs, name: &str) -> ObjectId {
    zfs.create(&ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap().0
}

fn all(zfs: &Zfs, id: ObjectId) -> Vec<u8> {
    let size = zfs.getattr(id).unwrap().size as usize;
    let mut buf = vec![0xee; size + 10];
    assert_eq!(zfs.read(id, 0, &mut buf).unwrap(), size);
    buf.truncate(size);
    for at in (0..size).step_by(1777) {
        let end = size.min(at + 1500);
        if let Some(lent) = zfs.lend(id, at as u64, 1500).unwrap() {
            assert!(*lent == buf[at..end], "lent from {at}");
        }
    }
    buf
}

fn cut(zfs: &Zfs, id: ObjectId, size: u64) {
    zfs.setattr(&ROOT, id, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// Returns bytes that do not compress and identify their position.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut at = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (at >> 56) as u8
    };
    (0..len).map(step).collect()
}

#[test]
fn the_first_block_grows_with_the_file_up_to_the_record_size() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", 16 << 10), ("compression", 2)]);
    let zfs = scratch.zfs();
    let id = file(&zfs, "f");
    let block = |id| zfs.znode(id).unwrap().object().block_size();
    let mut model = Vec::new();
    for (len, wanted) in [(10usize, 512u64), (600, 1024), (2000, 3072), (9000, 11776), (9000, 16384), (9000, 16384)] {
        let data = noise(len as u64, len);
        assert_eq!(zfs.append(&ROOT, id, &data).unwrap(), model.len() as u64);
        model.extend(data);
        assert_eq!(block(id), wanted, "{} bytes", model.len());
    }
    // a file that starts large has the record size at once, and so has one that is only extended
    let large = file(&zfs, "large");
    zfs.write(&ROOT, large, 100_000, &[7]).unwrap();
    let extended = file(&zfs, "extended");
    cut(&zfs, extended, 1 << 40);
    assert_eq!((block(large), block(extended)), (16384, 16384));
    assert_eq!(all(&zfs, id), model);
    zfs.spa().sync().unwrap();
    assert_eq!(all(&zfs, id), model);
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert_eq!(all(&zfs, id), model);
    let mut last = [0; 4];
    assert_eq!(zfs.read(large, 99_998, &mut last).unwrap(), 3);
    assert_eq!(last, [0, 0, 7, 0]);
    drop(zfs);
    scratch.close();
}

#[test]
fn large_records_and_large_writes_come_back() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", 1 << 20)]);
    let zfs = scratch.zfs();
    let id = file(&zfs, "f");
    let data = noise(5, 9_000_001);
    zfs.write(&ROOT, id, 0, &data).unwrap();
    assert_eq!(zfs.znode(id).unwrap().object().block_size(), 1 << 20);
    // small reads with read-ahead, before and after the sync
    for _ in 0..2 {
        let mut back = Vec::new();
        let mut buf = vec![0; 70_000];
        while let Some(n) = Some(zfs.read(id, back.len() as u64, &mut buf).unwrap()).filter(|n| *n > 0) {
            back.extend_from_slice(&buf[..n]);
        }
        assert!(back == data);
        zfs.spa().sync().unwrap();
    }
    drop(zfs);
    scratch.again();
    assert!(all(&scratch.zfs(), id) == data);
    scratch.close();
}

#[test]
fn what_is_lent_stays_as_it_was() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", 4096)]);
    let zfs = scratch.zfs();
    let id = file(&zfs, "a");
    let first = noise(1, 10_000);
    zfs.write(&ROOT, id, 0, &first).unwrap();
    for synced in [false, true] {
        let lent = zfs.lend(id, 4096, 4096).unwrap().unwrap();
        assert!(*lent == first[4096..8192]);
        assert_eq!(zfs.lend(id, 4000, 200).unwrap(), None, "of two blocks");
        let end = zfs.lend(id, 8192, 4096).unwrap().unwrap();
        assert!(*end == first[8192..], "up to the end of the file");
        Zfs::write(&zfs, &ROOT, id, 5000, b"changed").unwrap();
        zfs.spa().sync().unwrap();
        assert!(*lent == first[4096..8192]);
        assert_eq!(zfs.lend(id, 5000, 7).unwrap().unwrap()[..], *b"changed");
        Zfs::write(&zfs, &ROOT, id, 5000, &first[5000..5007]).unwrap();
        if synced {
            zfs.spa().sync().unwrap();
        }
    }
    cut(&zfs, id, 100_000);
    assert_eq!(zfs.lend(id, 20_000, 10).unwrap(), None, "a hole is in no memory");
    drop(zfs);
    scratch.close();
}

#[test]
fn what_cannot_be_is_refused() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let id = file(&zfs, "f");
    let max = i64::MAX as u64;
    let errno = |result: Result<(), zpl::Error>| result.unwrap_err().errno();
    assert_eq!(errno(zfs.write(&ROOT, id, max, &[1])), Errno::EFBIG);
    zfs.write(&ROOT, id, max - 1, &[1]).unwrap();
    assert_eq!(errno(zfs.append(&ROOT, id, &[1]).map(|_| ())), Errno::EFBIG);
    assert_eq!(zfs.seek_data(id, 0).unwrap(), max - (max & 0x1_ffff));
    assert_eq!(errno(zfs.write(&ROOT, zfs.fs().root(), 0, &[1])), Errno::EISDIR);
    assert_eq!(errno(zfs.read(zfs.fs().root(), 0, &mut [0]).map(|_| ())), Errno::EISDIR);
    assert_eq!(errno(zfs.seek_data(id, max).map(|_| ())), Errno::ENXIO);
    let user = Cred::user(5, 5, []);
    // a set-user-id program loses the bit when another user writes to it
    zfs.setattr(&ROOT, id, &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    zfs.write(&ROOT, id, 0, &[1]).unwrap();
    assert_eq!(zfs.getattr(id).unwrap().mode, 0o106_755);
    zfs.write(&user, id, 0, &[1]).unwrap();
    assert_eq!(zfs.getattr(id).unwrap().mode, 0o100_755);
    drop(zfs);
    scratch.close();
}

#[test]
fn holes_are_found_before_and_after_the_sync() {
    let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", 4096)]);
    let zfs = scratch.zfs();
    let id = file(&zfs, "f");
    let data = noise(1, 40 * 4096);
    zfs.write(&ROOT, id, 0, &data).unwrap();
    zfs.punch(&ROOT, id, 4096..8 * 4096).unwrap();
    zfs.punch(&ROOT, id, 30 * 4096 + 100..41 * 4096).unwrap();
    let mut model = data;
    model[4096..8 * 4096].fill(0);
    model[30 * 4096 + 100..].fill(0);
    for _ in 0..2 {
        assert_eq!(zfs.seek_hole(id, 0).unwrap(), 4096);
        assert_eq!(zfs.seek_data(id, 4096).unwrap(), 8 * 4096);
        assert_eq!(zfs.seek_hole(id, 8 * 4096).unwrap(), 31 * 4096);
        assert_eq!(zfs.seek_data(id, 31 * 4096).unwrap_err().errno(), Errno::ENXIO);
        assert_eq!(zfs.getattr(id).unwrap().size, 40 * 4096);
        assert!(all(&zfs, id) == model);
        zfs.spa().sync().unwrap();
    }
    // dirty data counts as data at once
    zfs.write(&ROOT, id, 5 * 4096, &[1]).unwrap();
    assert_eq!(zfs.seek_data(id, 4096).unwrap(), 5 * 4096);
    drop(zfs);
    scratch.close();
}

#[test]
fn space_is_told_and_given_back() {
    let mut scratch = Scratch::with(FsProps::default(), &[("compression", 2)]);
    let zfs = scratch.zfs();
    let id = file(&zfs, "f");
    let before = zfs.statfs().unwrap();
    zfs.write(&ROOT, id, 0, &noise(3, 8 << 20)).unwrap();
    zfs.spa().sync().unwrap();
    let full = zfs.statfs().unwrap();
    assert!(full.bfree + 60 <= before.bfree && full.frsize == 128 << 10 && full.namelen == 255);
    assert!(full.files - full.ffree > before.files - before.ffree || full.files - full.ffree >= 1);
    cut(&zfs, id, 0);
    zfs.spa().sync().unwrap();
    zfs.spa().sync().unwrap();
    assert!(zfs.statfs().unwrap().bfree + 4 >= before.bfree);
    drop(zfs);
    scratch.close();
}

#[derive(Clone, Debug)]
enum Op {
    Write(usize, u64, usize),
    Append(usize, usize),
    Cut(usize, u64),
    Punch(usize, u64, u64),
    Copy(usize, usize, u64, u64, u64),
    Sync,
}

fn op() -> impl Strategy<Value = Op> {
    let (which, at) = (0..2usize, prop_oneof![0..3000u64, 0..60_000u64, (0..14u64).prop_map(|n| n * 4096)]);
    let len = prop_oneof![1..600usize, 1..20_000usize, (1..5usize).prop_map(|n| n * 4096)];
    prop_oneof![
        4 => (which.clone(), at.clone(), len.clone()).prop_map(|(f, at, len)| Op::Write(f, at, len)),
        2 => (which.clone(), len.clone()).prop_map(|(f, len)| Op::Append(f, len)),
        2 => (which.clone(), at.clone()).prop_map(|(f, size)| Op::Cut(f, size)),
        2 => (which.clone(), at.clone(), len.clone()).prop_map(|(f, at, len)| Op::Punch(f, at, len as u64)),
        2 => (which.clone(), which, at.clone(), at, len)
            .prop_map(|(f, t, from, to, len)| Op::Copy(f, t, from, to, len as u64)),
        1 => Just(Op::Sync),
    ]
}

fn grow(model: &mut Vec<u8>, end: usize) {
    if model.len() < end {
        model.resize(end, 0);
    }
}

/// Applies the same operation to a file and to a vector.
fn apply(zfs: &Zfs, ids: &[ObjectId], models: &mut [Vec<u8>], n: usize, op: &Op) {
    match *op {
        Op::Write(f, at, len) => {
            let data = noise(n as u64, len);
            zfs.write(&ROOT, ids[f], at, &data).unwrap();
            grow(&mut models[f], at as usize + len);
            models[f][at as usize..at as usize + len].copy_from_slice(&data);
        }
        Op::Append(f, len) => {
            let data = noise(n as u64, len);
            assert_eq!(zfs.append(&ROOT, ids[f], &data).unwrap(), models[f].len() as u64);
            models[f].extend(data);
        }
        Op::Cut(f, size) => {
            cut(zfs, ids[f], size);
            models[f].resize(size as usize, 0);
        }
        Op::Punch(f, at, len) => {
            zfs.punch(&ROOT, ids[f], at..at + len).unwrap();
            let end = models[f].len().min((at + len) as usize);
            if let Some(hole) = models[f].get_mut(at as usize..end) {
                hole.fill(0);
            }
        }
        Op::Copy(from, to, at, to_at, len) => {
            let copied = zfs.copy_range(&ROOT, (ids[from], at), (ids[to], to_at), len);
            let end = models[from].len().min((at + len) as usize);
            let data = models[from].get(at as usize..end).unwrap_or(&[]).to_vec();
            let overlap = from == to && at < to_at + data.len() as u64 && to_at < at + data.len() as u64;
            if overlap && !data.is_empty() {
                assert_eq!(copied.unwrap_err().errno(), Errno::EINVAL);
                return;
            }
            assert_eq!(copied.unwrap(), data.len() as u64);
            if !data.is_empty() {
                grow(&mut models[to], to_at as usize + data.len());
                models[to][to_at as usize..to_at as usize + data.len()].copy_from_slice(&data);
            }
        }
        Op::Sync => zfs.fsync(ids[0]).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn files_are_vectors_of_bytes(ops in prop::collection::vec(op(), 1..60)) {
        let mut scratch = Scratch::with(FsProps::default(), &[("recordsize", 4096)]);
        let zfs = scratch.zfs();
        let ids = [file(&zfs, "a"), file(&zfs, "b")];
        let mut models = [Vec::new(), Vec::new()];
        for (n, op) in ops.iter().enumerate() {
            apply(&zfs, &ids, &mut models, n, op);
            for (id, model) in ids.iter().zip(&models) {
                prop_assert!(all(&zfs, *id) == *model, "after {n}: {op:?}");
            }
        }
        drop(zfs);
        scratch.again();
        let zfs = scratch.zfs();
        let back: BTreeMap<ObjectId, Vec<u8>> = ids.iter().map(|id| (*id, all(&zfs, *id))).collect();
        for (id, model) in ids.iter().zip(&models) {
            prop_assert!(back[id] == *model);
        }
        drop(zfs);
        scratch.close();
    }
}
