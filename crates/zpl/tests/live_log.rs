//! Everything that a commit of the intent log acknowledged exists after a power failure.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // what is tested elsewhere
mod power;

use std::collections::BTreeMap;

use base::{Errno, ObjectId};
use power::{ROOT, Rig, bytes, tree};
use zpl::live::{Cred, NewFile, RenameMode, SetAttr, Volume, XattrMode, Zfs};
use zpl::{Ace, AceType, FileFlags, Fuid, Kind, PosixAce, PosixAcl, PosixTag, Time, Who};

fn make(zfs: &Zfs, dir: ObjectId, name: &str, new: &NewFile<'_>) -> ObjectId {
    zfs.create(&ROOT, dir, name.as_bytes(), new).unwrap().0
}

fn file(zfs: &Zfs, dir: ObjectId, name: &str, data: &[u8]) -> ObjectId {
    let id = make(zfs, dir, name, &NewFile::new(Kind::File, 0o644));
    zfs.write(&ROOT, id, 0, data).unwrap();
    id
}

fn dir(zfs: &Zfs, above: ObjectId, name: &str) -> ObjectId {
    make(zfs, above, name, &NewFile::new(Kind::Directory, 0o755))
}

fn set(zfs: &Zfs, id: ObjectId, set: SetAttr) {
    zfs.setattr(&ROOT, id, &set).unwrap();
}

/// Creates the state on disk before the log begins: some files, and a chain that has begun.
fn prepare(zfs: &Zfs) {
    let root = zfs.fs().root();
    let old = dir(zfs, root, "old");
    for (n, len) in [(0, 100), (1, 300_000), (2, 5000), (3, 131_072), (4, 10)] {
        file(zfs, old, &format!("f{n}"), &bytes(len, n));
    }
    dir(zfs, old, "gone");
    zfs.fsync(old).unwrap();
}

/// Performs some operations of every kind.
fn operate(zfs: &Zfs) {
    let root = zfs.fs().root();
    let id = |path: &[u8]| zfs.fs().resolve_from(root, path, zpl::Follow::Parents).unwrap().id();
    let old = id(b"old");
    // new files of all kinds
    let d = dir(zfs, root, "d");
    let e = dir(zfs, d, "e");
    file(zfs, d, "small", b"some words");
    file(zfs, d, "empty", b"");
    let large = file(zfs, d, "large", &bytes(700_000, 10));
    zfs.write(&ROOT, large, 1_000_000, &bytes(50_000, 11)).unwrap();
    zfs.append(&ROOT, large, &bytes(70_000, 12)).unwrap();
    make(zfs, e, "link", &NewFile::symlink(b"../small"));
    make(zfs, e, "pipe", &NewFile::new(Kind::Fifo, 0o600));
    make(zfs, e, "null", &NewFile::device(Kind::CharDevice, 0o666, 1, 3));
    let times = (Time { sec: 5, nsec: 6 }, Time { sec: 7, nsec: 8 });
    make(zfs, e, "dated", &NewFile { times: Some(times), ..NewFile::new(Kind::File, 0o640) });
    let user = Cred::user(1000, 100, []);
    set(zfs, e, SetAttr { mode: Some(0o2777), gid: Some(55), ..SetAttr::default() });
    zfs.create(&user, e, b"users", &NewFile::new(Kind::File, 0o600)).unwrap();
    zfs.create(&user, e, b"users-dir", &NewFile::new(Kind::Directory, 0o700)).unwrap();
    // names
    zfs.link(&ROOT, id(b"old/f0"), d, b"hard").unwrap();
    zfs.unlink(&ROOT, old, b"f4").unwrap();
    zfs.rmdir(&ROOT, old, b"gone").unwrap();
    file(zfs, d, "short-lived", b"not for long");
    zfs.unlink(&ROOT, d, b"short-lived").unwrap();
    zfs.rename(&ROOT, old, b"f2", d, b"small", RenameMode::Replace).unwrap();
    file(zfs, e, "x", b"x");
    zfs.rename(&ROOT, e, b"x", old, b"f3", RenameMode::Exchange).unwrap();
    file(zfs, e, "y", b"y");
    zfs.rename(&ROOT, e, b"y", e, b"z", RenameMode::Whiteout).unwrap();
    zfs.rename(&ROOT, d, b"e", root, b"E", RenameMode::NoReplace).unwrap();
    // contents
    let shared = file(zfs, d, "shared", b"");
    let source = id(b"old/f1");
    assert_eq!(zfs.copy_range(&ROOT, (source, 0), (shared, 0), 262_144).unwrap(), 262_144);
    let f1 = id(b"old/f1");
    zfs.write(&ROOT, f1, 5, b"five").unwrap();
    zfs.punch(&ROOT, f1, 10_000..200_000).unwrap();
    set(zfs, f1, SetAttr { size: Some(150_000), ..SetAttr::default() });
    set(zfs, f1, SetAttr { size: Some(400_000), ..SetAttr::default() });
    // attributes
    let small = id(b"d/small");
    set(zfs, small, SetAttr { mode: Some(0o4755), uid: Some(7), gid: Some(8), ..SetAttr::default() });
    zfs.write(&Cred::user(7, 8, []), small, 0, b"no more setuid").unwrap();
    let flags = FileFlags(zfs.getattr(small).unwrap().flags.0 | FileFlags::NODUMP.0);
    let (crtime, mtime) = (Some(Time { sec: 1, nsec: 2 }), Some(Time { sec: 3, nsec: 4 }));
    set(zfs, small, SetAttr { flags: Some(flags), crtime, mtime, ..SetAttr::default() });
    set(zfs, d, SetAttr { projid: Some(77), ..SetAttr::default() });
    // a change of owners that is not in the log yet comes there behind the attributes made after it, and takes those with it when it is replayed, as in
    // OpenZFS (`itx_sync`)
    [small, d].into_iter().for_each(|id| zfs.fsync(id).unwrap());
    // extended attributes: small, replaced, removed, too large for the packed list
    for (name, len) in [("user.a", 10), ("user.b", 300), ("user.c", 20), ("trusted.big", 40_000), ("user.b", 301)] {
        zfs.set_xattr(&ROOT, small, name.as_bytes(), &bytes(len, 20), XattrMode::Set).unwrap();
    }
    zfs.remove_xattr(&ROOT, small, b"user.c").unwrap();
    zfs.set_xattr(&ROOT, d, b"user.gone", &bytes(35_000, 1), XattrMode::Set).unwrap();
    zfs.set_xattr(&ROOT, d, b"user.gone", b"small now", XattrMode::Set).unwrap();
    // an open file without a name does not exist afterwards
    let nameless = file(zfs, d, "nameless", b"nobody");
    let open = zfs.hold(nameless).unwrap();
    zfs.unlink(&ROOT, d, b"nameless").unwrap();
    zfs.write(&ROOT, nameless, 0, &bytes(100_000, 3)).unwrap();
    zfs.sync().unwrap();
    drop(open);
}

fn posix_lists(zfs: &Zfs) {
    let list = |perm| {
        let ace = |tag, perm| PosixAce { tag, perm };
        let tags = [(PosixTag::UserObj, 7), (PosixTag::User(5), perm), (PosixTag::GroupObj, 5), (PosixTag::Mask, 7)];
        PosixAcl(tags.into_iter().chain([(PosixTag::Other, 0)]).map(|(tag, perm)| ace(tag, perm)).collect()).encode()
    };
    let d = dir(zfs, zfs.fs().root(), "lists");
    zfs.set_xattr(&ROOT, d, b"system.posix_acl_default", &list(6), XattrMode::Set).unwrap();
    let id = file(zfs, d, "heir", b"of the directory");
    dir(zfs, d, "heirs");
    zfs.set_xattr(&ROOT, id, b"system.posix_acl_access", &list(4), XattrMode::Set).unwrap();
    set(zfs, id, SetAttr { mode: Some(0o640), ..SetAttr::default() });
}

fn nfs4_lists(zfs: &Zfs) {
    let d = dir(zfs, zfs.fs().root(), "lists");
    let ace = |who, flags, mask| Ace { kind: AceType::Allow, flags, mask, who, object_types: None };
    let aces = vec![
        ace(Who::User(Fuid(1000)), 0x3, 0x1f_01ff),
        ace(Who::NamedGroup(Fuid(100)), 0x40 | 0x1, 0x1),
        ace(Who::Owner, 0x1000, 0x1f_01ff),
        ace(Who::Everyone, 0x4000, 0x12_0088),
    ];
    zfs.set_acl(&ROOT, d, aces).unwrap();
    let id = file(zfs, d, "heir", b"of the directory");
    dir(zfs, d, "heirs");
    set(zfs, id, SetAttr { mode: Some(0o600), ..SetAttr::default() });
}

/// Returns the differences between two trees.
fn differences(before: &Zfs, after: &Zfs) -> Vec<String> {
    let (before, after) = (tree(before), tree(after));
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differ = paths.into_iter().filter(|path| before.get(*path) != after.get(*path));
    differ.map(|path| format!("{path}:\n  {:?}\n  {:?}", before.get(path), after.get(path))).collect()
}

/// Name, properties, whether it is encrypted.
type Sort = (&'static str, &'static [(&'static str, u64)], bool);

const KINDS: [Sort; 6] = [
    ("t/posix", &[("acltype", 1), ("xattr", 2), ("dnodesize", 2048)], false),
    ("t/dirs", &[("xattr", 1), ("acltype", 1), ("atime", 0)], false),
    ("t/nfs4", &[("acltype", 2), ("aclinherit", 3), ("aclmode", 3)], false),
    ("t/secret", &[("compression", 15)], true),
    ("t/through", &[("logbias", 1), ("recordsize", 16 << 10)], false),
    ("t/always", &[("sync", 1)], false),
];

fn all_operations(words: &[&str]) {
    let rig = Rig::new(words);
    let all: Vec<Zfs> = KINDS.iter().map(|(name, props, key)| rig.file_system(name, props, *key)).collect();
    let off = rig.file_system("t/off", &[("sync", 2)], false);
    all.iter().chain([&off]).for_each(prepare);
    rig.spa.sync().unwrap();
    let synced = rig.spa.txgs().synced();
    for zfs in &all {
        match zfs.settings().acltype {
            1 => posix_lists(zfs),
            2 => nfs4_lists(zfs),
            _ => {}
        }
        operate(zfs);
    }
    operate(&off);
    let later = rig.spa.txgs().synced();
    let after = rig.after_cut(&["t/secret"], true);
    if let Some(logs) = &after.logs {
        for kind in [
            "TX_CLONE_RANGE",
            "TX_CREATE ",
            "TX_RENAME_WHITEOUT",
            "TX_SETSAXATTR",
            "TX_MKXATTR",
            "TX_ACL_ACL",
            "TX_WRITE ",
        ] {
            assert!(logs.contains(kind), "{kind}: {logs}");
        }
    }
    for (zfs, (name, ..)) in all.iter().zip(KINDS) {
        let found = differences(zfs, &after.open(name));
        assert!(found.is_empty(), "{name}: {}", found.join("\n"));
    }
    assert_eq!(later, synced, "commits go to the log alone");
    // without a log the state is that on disk
    assert!(after.open("t/off").fs().lookup(off.fs().root(), b"d").unwrap().is_none());
    after.close();
}

#[test]
fn every_operation_is_replayed() {
    all_operations(&["/a"]);
}

#[test]
fn every_operation_is_replayed_from_log_devices() {
    all_operations(&["/a", "log", "/b"]);
}

#[test]
fn a_commit_of_one_file_brings_its_data_and_all_names() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[], false);
    prepare(&zfs);
    rig.spa.sync().unwrap();
    let root = zfs.fs().root();
    let (one, other) = (file(&zfs, root, "one", &bytes(40_000, 1)), file(&zfs, root, "other", &bytes(40_000, 2)));
    zfs.fsync(one).unwrap();
    zfs.write(&ROOT, one, 0, b"not waited for").unwrap();
    // a file that is written synchronously, per write and through a synchronous handle
    let third = file(&zfs, root, "third", b"");
    zfs.write_sync(&ROOT, third, Some(0), &bytes(9000, 3)).unwrap();
    let fourth = file(&zfs, root, "fourth", b"");
    let held = zfs.hold(fourth).unwrap().synchronous();
    zfs.write(&ROOT, fourth, 0, b"in the next commit").unwrap();
    drop(held);
    zfs.write_sync(&ROOT, third, None, b"appended").unwrap();
    let after = rig.after_cut(&[], false);
    let found = after.open("t/f");
    let read = |name: &[u8]| {
        let id = found.fs().lookup(root, name).unwrap().unwrap().object;
        let mut data = vec![0; 100_000];
        let len = found.read(id, 0, &mut data).unwrap();
        data.truncate(len);
        data
    };
    assert!(read(b"one") == bytes(40_000, 1) && read(b"other").is_empty());
    assert!(read(b"third") == [&bytes(9000, 3)[..], b"appended"].concat());
    assert_eq!(read(b"fourth"), b"in the next commit");
    assert_eq!(other, found.fs().lookup(root, b"other").unwrap().unwrap().object);
    drop(found);
    after.close();
}

#[test]
fn a_commit_within_a_batch_gives_the_place_back() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[("sync", 1)], false);
    let root = zfs.fs().root();
    let id = zfs
        .batch(|zfs| {
            let (id, _) = zfs.create(&ROOT, root, b"a", &NewFile::new(Kind::File, 0o644))?;
            zfs.write(&ROOT, id, 0, b"first")?;
            zfs.fsync(id)?;
            zfs.write(&ROOT, id, 0, b"again")?;
            rig.spa.txgs().synced();
            Ok(id)
        })
        .unwrap();
    let busy = zfs.together(1000, |zfs, _| zfs.fsync(id));
    assert_eq!(busy.unwrap_err().errno(), Errno::EBUSY);
    let after = rig.after_cut(&[], false);
    assert!(differences(&zfs, &after.open("t/f")).is_empty());
}

/// OpenZFS commits once, at the end of a write, however long.
#[test]
fn a_long_write_waits_once_with_sync_always() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[("sync", 1)], false);
    let id = make(&zfs, zfs.fs().root(), "long", &NewFile::new(Kind::File, 0o644));
    rig.volume("t/v", 32 << 20, 16 << 10);
    rig.spa.set_props("t/v", &[("sync".to_string(), pool::Value::Number(1))], pool::PropSource::Local).unwrap();
    let volume = Volume::open(&rig.spa, "t/v").unwrap();
    let commits = || {
        let kstats = rig.spa.kstats();
        kstats.iter().find(|k| k.name == "zil").and_then(|k| k.get("zil_commit_count")).unwrap()
    };
    let before = commits();
    zfs.write(&ROOT, id, 1000, &bytes(13 << 20, 1)).unwrap();
    assert_eq!(commits() - before, 1);
    volume.write(5000, &bytes(13 << 20, 2)).unwrap();
    assert_eq!(commits() - before, 2);
    zfs.batch(|zfs| zfs.write(&ROOT, id, 0, &bytes(9 << 20, 3))).unwrap();
    assert_eq!(commits() - before, 3);
    let after = rig.after_cut(&[], false);
    assert!(differences(&zfs, &after.open("t/f")).is_empty());
    let found = Volume::open(after.spa.as_ref().unwrap(), "t/v").unwrap();
    let mut read = vec![0; 13 << 20];
    found.read(5000, &mut read).unwrap();
    assert!(read == bytes(13 << 20, 2));
    drop(found);
    after.close();
}

/// What is free already may be so in memory alone, by another one whose discard is not answered yet.
#[test]
fn a_discard_of_a_hole_waits_with_sync_always() {
    let rig = Rig::new(&["/a"]);
    rig.volume("t/v", 1 << 20, 16 << 10);
    let volume = Volume::open(&rig.spa, "t/v").unwrap();
    let commits = || {
        let kstats = rig.spa.kstats();
        kstats.iter().find(|k| k.name == "zil").and_then(|k| k.get("zil_commit_count")).unwrap()
    };
    let before = commits();
    volume.discard(0, 1 << 20).unwrap();
    assert_eq!(commits(), before);
    rig.spa.set_props("t/v", &[("sync".to_string(), pool::Value::Number(1))], pool::PropSource::Local).unwrap();
    volume.discard(0, 1 << 20).unwrap();
    assert_eq!(commits(), before + 1);
}

#[test]
fn what_the_log_cannot_have_waits_for_the_txg() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[("xattr", 2)], false);
    let id = file(&zfs, zfs.fs().root(), "a", b"data");
    zfs.set_xattr(&ROOT, id, b"user.flag", b"", XattrMode::Set).unwrap();
    zfs.fsync(id).unwrap();
    let off = rig.file_system("t/off", &[("sync", 2)], false);
    file(&off, off.fs().root(), "before", b"unlogged");
    rig.spa.set_props("t/off", &[("sync".to_string(), pool::Value::Number(0))], pool::PropSource::Local).unwrap();
    let later = file(&off, off.fs().root(), "later", b"logged");
    off.fsync(later).unwrap();
    let after = rig.after_cut(&[], false);
    assert!(differences(&zfs, &after.open("t/f")).is_empty());
    assert!(differences(&off, &after.open("t/off")).is_empty());
}

#[test]
fn what_the_log_cannot_have_is_waited_for_by_those_who_open_the_file_again() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[("xattr", 2)], false);
    let root = zfs.fs().root();
    let id = file(&zfs, root, "a", b"data");
    zfs.sync().unwrap();
    rig.spa.sync().unwrap();
    zfs.set_xattr(&ROOT, id, b"user.flag", b"", XattrMode::Set).unwrap();
    // so many other files are used that this one is forgotten
    let below = dir(&zfs, root, "below");
    for n in 0..17_000 {
        make(&zfs, below, &format!("{n}"), &NewFile::new(Kind::File, 0o600));
    }
    zfs.fsync(id).unwrap();
    assert!(differences(&zfs, &rig.after_cut(&[], false).open("t/f")).is_empty());
    // the file system is closed and opened again within the txg
    zfs.set_xattr(&ROOT, id, b"user.other", b"", XattrMode::Set).unwrap();
    drop(zfs);
    let zfs = Zfs::open(&rig.spa, "t/f").unwrap();
    zfs.fsync(id).unwrap();
    assert!(differences(&zfs, &rig.after_cut(&[], false).open("t/f")).is_empty());
}

/// Changes of names are part of every commit: with the name of a hidden file an attribute leaves its directory, and must have arrived
/// among the system attributes by then.
#[test]
fn an_attribute_that_moves_is_in_one_of_its_places_after_a_crash() {
    let (in_dir, in_sa) = (1, 2);
    for (from, to, new) in [(in_dir, in_sa, &b"new"[..]), (in_dir, in_sa, b""), (in_sa, in_dir, b"new")] {
        let rig = Rig::new(&["/a"]);
        let zfs = rig.file_system("t/f", &[("xattr", from)], false);
        let root = zfs.fs().root();
        let (id, other) = (file(&zfs, root, "a", b"data"), file(&zfs, root, "other", b"data"));
        zfs.set_xattr(&ROOT, id, b"user.a", b"old", XattrMode::Set).unwrap();
        let xattr = [("xattr".to_string(), pool::Value::Number(to))];
        rig.spa.set_props("t/f", &xattr, pool::PropSource::Local).unwrap();
        zfs.write(&ROOT, other, 0, b"begins the log").unwrap();
        zfs.fsync(other).unwrap();
        rig.spa.sync().unwrap();
        zfs.set_xattr(&ROOT, id, b"user.a", new, XattrMode::Set).unwrap();
        zfs.write(&ROOT, other, 0, b"more").unwrap();
        zfs.fsync(other).unwrap();
        let after = rig.after_cut(&[], false);
        let found = after.open("t/f").get_xattr(&ROOT, id, b"user.a");
        assert!(found.as_ref().is_ok_and(|found| found == new || found == b"old"), "{from} to {to}: {found:?}");
        zfs.fsync(id).unwrap();
        let after = rig.after_cut(&[], false);
        let found = after.open("t/f");
        assert_eq!(found.get_xattr(&ROOT, id, b"user.a").unwrap(), new, "{from} to {to}");
        assert_eq!(found.list_xattrs(&ROOT, id).unwrap(), [b"user.a"]);
    }
}

/// OpenZFS replays a block that is pointed at as a whole: if the write has not moved the end of the file, but the end lies in the
/// block, it moves to the block's end. So such a write is not logged by a pointer.
#[test]
fn a_write_before_the_end_of_the_file_is_not_pointed_at_if_the_end_is_in_its_block() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[("logbias", 1), ("recordsize", 16 << 10)], false);
    let root = zfs.fs().root();
    let (one, many) = (file(&zfs, root, "one", &bytes(5000, 1)), file(&zfs, root, "many", &bytes(40_000, 2)));
    zfs.sync().unwrap();
    rig.spa.sync().unwrap();
    let pointed = |id, offset, len: usize| {
        let count = || {
            let kstats = rig.spa.kstats();
            let figure = |name: &str| kstats.iter().find(|k| k.name == "zil").and_then(|k| k.get(name)).unwrap();
            (figure("zil_itx_indirect_count"), figure("zil_itx_needcopy_count"))
        };
        let before = count();
        zfs.write(&ROOT, id, offset, &bytes(len, 3)).unwrap();
        zfs.fsync(id).unwrap();
        (count().0 - before.0, count().1 - before.1)
    };
    assert_eq!(pointed(one, 0, 10), (0, 1));
    assert_eq!(pointed(one, 4000, 1000), (0, 1), "it ends where the file ends");
    assert_eq!(pointed(one, 4000, 1001), (1, 0), "the file grows");
    assert_eq!(pointed(many, 33_000, 100), (0, 1));
    assert_eq!(pointed(many, 16_384, 20_000), (1, 1), "a whole block, and a part of the last one");
    assert_eq!(pointed(many, 39_000, 20_000), (2, 0));
    let after = rig.after_cut(&[], false);
    assert!(differences(&zfs, &after.open("t/f")).is_empty());
}

#[test]
fn volumes_have_what_was_flushed() {
    let rig = Rig::new(&["/a"]);
    let (size, block) = (4u64 << 20, 16u64 << 10);
    rig.volume("t/v", size, block);
    let volume = Volume::open(&rig.spa, "t/v").unwrap();
    volume.write(0, &bytes(size as usize, 1)).unwrap();
    volume.flush().unwrap();
    rig.spa.sync().unwrap();
    let synced = rig.spa.txgs().synced();
    volume.write(1000, &bytes(3000, 2)).unwrap();
    volume.write(block * 8, &bytes(block as usize * 20, 3)).unwrap();
    volume.discard(block * 3, block * 2 + 700).unwrap();
    volume.write(block * 4, b"in the hole").unwrap();
    volume.flush().unwrap();
    volume.write_sync(size - 9, b"the end.\n").unwrap();
    assert_eq!(rig.spa.txgs().synced(), synced);
    let mut wanted = vec![0; size as usize];
    volume.read(0, &mut wanted).unwrap();
    let after = rig.after_cut(&[], true);
    let found = Volume::open(after.spa.as_ref().unwrap(), "t/v").unwrap();
    let mut got = vec![0; size as usize];
    found.read(0, &mut got).unwrap();
    assert!(got == wanted);
    drop(found);
    after.close();
}

/// The expected content of a file, and whether all of it was committed.
#[derive(Clone, Default)]
struct Promise {
    data: Vec<u8>,
    kept: bool,
}

#[test]
fn whatever_is_done_what_was_committed_is_there() {
    for seed in 1..=5u64 {
        let rig = Rig::new(&["/a"]);
        let zfs = rig.file_system("t/f", &[("recordsize", 16 << 10)], false);
        prepare(&zfs);
        rig.spa.sync().unwrap();
        let dirs = [zfs.fs().root(), dir(&zfs, zfs.fs().root(), "sub")];
        let mut now: BTreeMap<(ObjectId, String), Promise> = BTreeMap::new();
        let mut committed = BTreeMap::new();
        let dice = bytes(600, seed);
        for roll in dice.as_chunks::<6>().0 {
            let [what, which, a, b, c, d] = roll.map(usize::from);
            let key = (dirs[which % 2], format!("n{}", which / 2 % 5));
            let other = (dirs[a % 2], format!("n{}", a / 2 % 5));
            let id = |(dir, name): &(ObjectId, String)| zfs.fs().lookup(*dir, name.as_bytes()).unwrap().unwrap().object;
            match (what % 16, now.contains_key(&key)) {
                (_, false) => {
                    file(&zfs, key.0, &key.1, b"");
                    now.insert(key, Promise::default());
                }
                (0..8, true) => {
                    let data = bytes(b * 300 + 1, (c * d) as u64);
                    zfs.write(&ROOT, id(&key), (c * 100) as u64, &data).unwrap();
                    let file = now.get_mut(&key).unwrap();
                    let end = c * 100 + data.len();
                    file.data.resize(file.data.len().max(end), 0);
                    file.data[c * 100..end].copy_from_slice(&data);
                    file.kept = false;
                }
                (8, true) => {
                    set(&zfs, id(&key), SetAttr { size: Some((b * 200) as u64), ..SetAttr::default() });
                    let file = now.get_mut(&key).unwrap();
                    file.data.resize(b * 200, 0);
                    file.kept = false;
                }
                (9, true) => {
                    zfs.unlink(&ROOT, key.0, key.1.as_bytes()).unwrap();
                    now.remove(&key);
                }
                (10, true) if key != other => {
                    zfs.rename(&ROOT, key.0, key.1.as_bytes(), other.0, other.1.as_bytes(), RenameMode::Replace)
                        .unwrap();
                    let file = now.remove(&key).unwrap();
                    now.insert(other, file);
                }
                _ => {
                    zfs.fsync(id(&key)).unwrap();
                    now.get_mut(&key).unwrap().kept = true;
                    committed = now.clone();
                }
            }
        }
        let after = rig.after_cut(&[], false);
        let found = after.open("t/f");
        for dir in dirs {
            let names = found.fs().read_dir(dir).unwrap().map(|entry| entry.unwrap().name);
            let mut names: Vec<_> = names.filter(|name| name.starts_with(b"n")).collect();
            names.sort();
            let wanted: Vec<_> =
                committed.keys().filter(|key| key.0 == dir).map(|key| key.1.clone().into_bytes()).collect();
            assert_eq!(names, wanted, "seed {seed}");
        }
        for ((dir, name), file) in committed.iter().filter(|(_, file)| file.kept) {
            let id = found.fs().lookup(*dir, name.as_bytes()).unwrap().unwrap().object;
            let mut data = vec![0; 200_000];
            let len = found.read(id, 0, &mut data).unwrap();
            assert!(data[..len] == file.data, "seed {seed}: {name}: {len} of {} bytes", file.data.len());
        }
    }
}

/// Rewriting dirty data needs no new space: a small pool lasts as long with one txg as a large one.
#[test]
fn many_small_writes_to_the_same_blocks_need_no_txg() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/fs", &[], false);
    let id = file(&zfs, zfs.fs().root(), "f", &bytes(1 << 20, 1));
    zfs.fsync(id).unwrap();
    rig.spa.sync().unwrap();
    let synced = rig.spa.txgs().synced();
    for n in 0..1000u64 {
        zfs.write(&ROOT, id, n % 256 * 4096, &bytes(4096, n)).unwrap();
        zfs.fsync(id).unwrap();
    }
    assert_eq!(rig.spa.txgs().synced(), synced);
    // eight blocks, with their indirect blocks, and the log's own
    assert!(rig.spa.txgs().reserved() < 8 << 20, "{}", rig.spa.txgs().reserved());
}
