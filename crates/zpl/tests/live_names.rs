//! Names created, removed, found and changed in file systems that are open for writing.
#![allow(clippy::unwrap_used)]

mod scratch;

use base::{Errno, ObjectId};
use dmu::Zap;
use scratch::Scratch;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, RenameMode, SetAttr, XattrMode, Zfs};
use zpl::{FileFlags, Kind};

const ROOT: Cred = Cred::ROOT;

fn user(uid: u32) -> Cred {
    Cred::user(uid, uid, [500])
}

fn file(zfs: &Zfs, dir: ObjectId, name: &str) -> ObjectId {
    zfs.create(&ROOT, dir, name.as_bytes(), &NewFile::new(Kind::File, 0o644)).unwrap().0
}

fn mkdir(zfs: &Zfs, dir: ObjectId, name: &str) -> ObjectId {
    zfs.create(&ROOT, dir, name.as_bytes(), &NewFile::new(Kind::Directory, 0o755)).unwrap().0
}

fn errno<T: std::fmt::Debug>(result: Result<T, zpl::Error>) -> Errno {
    result.unwrap_err().errno()
}

fn mv(zfs: &Zfs, from: (ObjectId, &str), to: (ObjectId, &str), mode: RenameMode) -> Result<(), zpl::Error> {
    zfs.rename(&ROOT, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode)
}

/// Returns the names, kinds and objects of a directory, by name.
fn list(zfs: &Zfs, dir: ObjectId) -> Vec<(String, Kind, ObjectId)> {
    let entries = zfs.read_dir(&ROOT, dir, 0).unwrap().map(Result::unwrap);
    let mut all: Vec<_> = entries.map(|e| (String::from_utf8(e.name).unwrap(), e.kind, e.object)).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn names(zfs: &Zfs, dir: ObjectId) -> Vec<String> {
    list(zfs, dir).into_iter().map(|(name, ..)| name).collect()
}

#[test]
fn every_kind_of_file_is_made_and_comes_back() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let dir = mkdir(&zfs, root, "d");
    let target = b"../where/it/points";
    let all = [
        ("file", NewFile::new(Kind::File, 0o4751)),
        ("fifo", NewFile::new(Kind::Fifo, 0o600)),
        ("socket", NewFile::new(Kind::Socket, 0o666)),
        ("char", NewFile::device(Kind::CharDevice, 0o620, 5, 300)),
        ("block", NewFile::device(Kind::BlockDevice, 0o660, 8, 17)),
        ("link", NewFile::symlink(target)),
    ];
    for (name, new) in &all {
        zfs.create(&user(1000), root, name.as_bytes(), new).unwrap_err();
        zfs.create(&ROOT, dir, name.as_bytes(), new).unwrap();
    }
    zfs.link(&ROOT, zfs.lookup(&ROOT, dir, b"file").unwrap().0, root, b"second").unwrap();
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    let (dir, of_dir) = zfs.lookup(&ROOT, root, b"d").unwrap();
    assert_eq!((of_dir.size, of_dir.links, of_dir.mode), (8, 2, 0o40755));
    assert_eq!((zfs.getattr(root).unwrap().size, zfs.getattr(root).unwrap().links), (4, 3));
    for (name, new) in &all {
        let (id, attrs) = zfs.lookup(&ROOT, dir, name.as_bytes()).unwrap();
        let listed = list(&zfs, dir).into_iter().find(|(other, ..)| other == name).unwrap();
        assert_eq!((attrs.kind(), listed.1, listed.2), (new.kind, new.kind, id), "{name}");
        assert_eq!(attrs.mode & 0o7777, new.mode, "{name}");
        assert_eq!(attrs.size, new.target.len() as u64, "{name}");
    }
    let device = zfs.lookup(&ROOT, dir, b"char").unwrap().1;
    assert_eq!(device.device(), Some((5, 300)));
    assert_eq!(zfs.readlink(zfs.lookup(&ROOT, dir, b"link").unwrap().0).unwrap(), target);
    assert_eq!(zfs.lookup(&ROOT, root, b"second").unwrap().1.links, 2);
    drop(zfs);
    scratch.close();
    if let Some(objects) = scratch.objects() {
        for word in ["char = 6 (type: Character Device)", "link = 8 (type: Symbolic Link)", "mode\t104751"] {
            assert!(objects.contains(word), "{word}: {objects}");
        }
    }
}

#[test]
fn names_that_cannot_be() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let made =
        |name: &[u8]| zfs.create(&ROOT, root, name, &NewFile::new(Kind::File, 0o644)).map_err(|e| e.errno()).err();
    file(&zfs, root, "there");
    for (name, why) in [
        (&b"there"[..], Errno::EEXIST),
        (b".", Errno::EEXIST),
        (b"..", Errno::EEXIST),
        (b".zfs", Errno::EEXIST),
        (b"", Errno::ENOENT),
        (b"a/b", Errno::EINVAL),
        (b"a\0", Errno::EINVAL),
    ] {
        assert_eq!(made(name), Some(why), "{name:?}");
    }
    assert_eq!(made(&[b'n'; 256]), Some(Errno::ENAMETOOLONG));
    assert_eq!(made(&[b'n'; 255]), None);
    assert_eq!(made(b"\xff\xfe"), None);
    let plain = zfs.lookup(&ROOT, root, b"there").unwrap().0;
    assert_eq!(errno(zfs.create(&ROOT, plain, b"x", &NewFile::new(Kind::File, 0o644))), Errno::ENOTDIR);
    assert_eq!(errno(zfs.lookup(&ROOT, plain, b"x")), Errno::ENOTDIR);
    assert_eq!(errno(zfs.lookup(&ROOT, root, b"x")), Errno::ENOENT);
}

#[test]
fn long_names_need_the_property() {
    let mut scratch = Scratch::with(FsProps::default(), &[("longname", 1)]);
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let name = "x".repeat(1023);
    let id = file(&zfs, root, &name);
    assert_eq!(errno(zfs.create(&ROOT, root, &[b'x'; 1024], &NewFile::new(Kind::File, 0o644))), Errno::ENAMETOOLONG);
    drop(zfs);
    scratch.again();
    assert!(scratch.spa().view().unwrap().dataset("t").unwrap().feature_active("longname").unwrap());
    let zfs = scratch.zfs();
    assert_eq!(zfs.lookup(&ROOT, root, name.as_bytes()).unwrap().0, id);
    zfs.unlink(&ROOT, root, name.as_bytes()).unwrap();
    assert!(names(&zfs, root).is_empty());
}

#[test]
fn case_that_does_not_count() {
    let mut scratch = Scratch::with(FsProps { casesensitivity: 1, ..FsProps::default() }, &[]);
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let id = file(&zfs, root, "Readme");
    assert_eq!(zfs.lookup(&ROOT, root, b"rEADME").unwrap().0, id);
    assert_eq!(errno(zfs.create(&ROOT, root, b"README", &NewFile::new(Kind::File, 0o644))), Errno::EEXIST);
    mv(&zfs, (root, "README"), (root, "README"), RenameMode::Replace).unwrap();
    assert_eq!(names(&zfs, root), ["README"]);
    let other = file(&zfs, root, "other");
    mv(&zfs, (root, "OTHER"), (root, "readme"), RenameMode::Replace).unwrap();
    assert_eq!(list(&zfs, root), [("readme".to_string(), Kind::File, other)]);
    assert_eq!(errno(zfs.getattr(id)), Errno::ENOENT);
    zfs.unlink(&ROOT, root, b"ReadMe").unwrap();
    assert_eq!(zfs.getattr(root).unwrap().size, 2);
    drop(zfs);
    scratch.close();
}

#[test]
fn case_that_counts_for_some_and_forms_of_unicode() {
    let scratch = Scratch::with(FsProps { casesensitivity: 2, normalization: 0x10, ..FsProps::default() }, &[]);
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let (upper, lower) = (file(&zfs, root, "A"), file(&zfs, root, "a"));
    assert_ne!(upper, lower);
    assert_eq!(zfs.lookup(&ROOT, root, b"a").unwrap().0, lower);
    // é as one character and as two
    let composed = file(&zfs, root, "\u{e9}");
    assert_eq!(zfs.lookup(&ROOT, root, "e\u{301}".as_bytes()).unwrap().0, composed);
    assert_eq!(errno(zfs.create(&ROOT, root, "e\u{301}".as_bytes(), &NewFile::new(Kind::File, 0o644))), Errno::EEXIST);
    assert_eq!(errno(zfs.create(&ROOT, root, b"\xff", &NewFile::new(Kind::File, 0o644))), Errno::EILSEQ);
    assert_eq!(errno(zfs.create(&ROOT, root, b"l", &NewFile::symlink(b"\xff"))), Errno::EILSEQ);
    assert_eq!(errno(zfs.rename(&ROOT, root, b"a", root, b"\xff", RenameMode::Replace)), Errno::EILSEQ);
}

#[test]
fn groups_and_their_bit_come_from_the_directory() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let maker = Cred::user(0, 500, []);
    let shared = zfs.create(&maker, root, b"shared", &NewFile::new(Kind::Directory, 0o2777)).unwrap().0;
    let made =
        |cred: &Cred, name: &[u8], kind, mode| zfs.create(cred, shared, name, &NewFile::new(kind, mode)).unwrap().1;
    let dir = made(&user(7), b"d", Kind::Directory, 0o755);
    assert_eq!((dir.gid(), dir.uid(), dir.mode & 0o7777), (500, 7, 0o2755));
    let file = made(&user(7), b"f", Kind::File, 0o2755);
    assert_eq!((file.gid(), file.mode & 0o7777), (500, 0o2755));
    let stranger = Cred::user(8, 8, []);
    assert_eq!(made(&stranger, b"g", Kind::File, 0o2755).mode & 0o7777, 0o755);
}

#[test]
fn removal_asks_who_and_what() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let tmp = zfs.create(&ROOT, root, b"tmp", &NewFile::new(Kind::Directory, 0o1777)).unwrap().0;
    zfs.create(&user(1), tmp, b"mine", &NewFile::new(Kind::File, 0o644)).unwrap();
    assert_eq!(errno(zfs.unlink(&user(2), tmp, b"mine")), Errno::EPERM);
    assert_eq!(errno(zfs.unlink(&user(1), root, b"tmp")), Errno::EISDIR);
    assert_eq!(errno(zfs.rmdir(&user(1), root, b"tmp")), Errno::EACCES);
    assert_eq!(errno(zfs.rmdir(&ROOT, root, b"tmp")), Errno::ENOTEMPTY);
    assert_eq!(errno(zfs.rmdir(&ROOT, tmp, b"mine")), Errno::ENOTDIR);
    assert_eq!(errno(zfs.rmdir(&ROOT, tmp, b".")), Errno::EINVAL);
    assert_eq!(errno(zfs.unlink(&ROOT, tmp, b"none")), Errno::ENOENT);
    zfs.unlink(&user(1), tmp, b"mine").unwrap();
    zfs.rmdir(&ROOT, root, b"tmp").unwrap();
    assert_eq!(errno(zfs.create(&ROOT, tmp, b"late", &NewFile::new(Kind::File, 0o644))), Errno::ENOENT);
    let of_root = zfs.getattr(root).unwrap();
    assert_eq!((of_root.size, of_root.links), (2, 2));
}

#[test]
fn links_are_counted() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let (a, d) = (file(&zfs, root, "a"), mkdir(&zfs, root, "d"));
    assert_eq!(zfs.link(&ROOT, a, d, b"b").unwrap().links, 2);
    assert_eq!(zfs.getattr(a).unwrap().parent, d);
    assert_eq!(errno(zfs.link(&ROOT, d, root, b"e")), Errno::EPERM);
    assert_eq!(errno(zfs.link(&user(3), a, root, b"e")), Errno::EPERM);
    assert_eq!(errno(zfs.link(&ROOT, a, d, b"b")), Errno::EEXIST);
    zfs.unlink(&ROOT, root, b"a").unwrap();
    assert_eq!(zfs.getattr(a).unwrap().links, 1);
    zfs.unlink(&ROOT, d, b"b").unwrap();
    assert_eq!(errno(zfs.getattr(a)), Errno::ENOENT);
}

#[test]
fn renames_do_what_they_may() {
    use RenameMode::{Exchange, NoReplace, NoReplaceWhiteout, Replace, Whiteout};
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let (d, e) = (mkdir(&zfs, root, "d"), mkdir(&zfs, root, "e"));
    let below = mkdir(&zfs, d, "below");
    let (f, g) = (file(&zfs, root, "f"), file(&zfs, e, "g"));
    let refused = |from, to, mode| errno(mv(&zfs, from, to, mode));
    assert_eq!(refused((root, "d"), (below, "x"), Replace), Errno::EINVAL);
    assert_eq!(refused((root, "d"), (d, "x"), Replace), Errno::EINVAL);
    assert_eq!(refused((root, "d"), (root, "f"), Replace), Errno::ENOTDIR);
    assert_eq!(refused((root, "f"), (root, "d"), Replace), Errno::EISDIR);
    assert_eq!(refused((d, "below"), (root, "e"), Replace), Errno::ENOTEMPTY);
    assert_eq!(refused((root, "f"), (e, "g"), NoReplace), Errno::EEXIST);
    assert_eq!(refused((root, "f"), (e, "g"), NoReplaceWhiteout), Errno::EEXIST);
    assert_eq!(refused((root, "f"), (e, "none"), Exchange), Errno::ENOENT);
    assert_eq!(refused((root, "none"), (e, "x"), Replace), Errno::ENOENT);
    assert_eq!(refused((root, ".."), (e, "x"), Replace), Errno::EINVAL);
    assert_eq!(refused((d, "below"), (root, "d"), Exchange), Errno::EINVAL);
    mv(&zfs, (root, "f"), (root, "f"), Replace).unwrap();
    zfs.link(&ROOT, f, e, b"again").unwrap();
    mv(&zfs, (root, "f"), (e, "again"), Replace).unwrap();
    assert_eq!((names(&zfs, root), zfs.getattr(f).unwrap().links), (vec!["d".into(), "e".into(), "f".into()], 2));
    // a directory replaces an empty one elsewhere: link counts follow
    mkdir(&zfs, e, "empty");
    mv(&zfs, (d, "below"), (e, "empty"), Replace).unwrap();
    let links = |id| zfs.getattr(id).unwrap().links;
    assert_eq!((links(d), links(e), zfs.getattr(below).unwrap().parent), (2, 3, e));
    mv(&zfs, (e, "empty"), (root, "f"), Exchange).unwrap();
    assert_eq!((links(root), links(e), zfs.getattr(below).unwrap().parent), (5, 2, root));
    assert_eq!(zfs.lookup(&ROOT, e, b"empty").unwrap().0, f);
    mv(&zfs, (e, "g"), (d, "g"), NoReplaceWhiteout).unwrap();
    mv(&zfs, (d, "g"), (e, "g"), Whiteout).unwrap();
    mv(&zfs, (e, "g"), (d, "g"), Whiteout).unwrap();
    let left = zfs.lookup(&ROOT, e, b"g").unwrap().1;
    assert_eq!(
        (left.kind(), left.device(), zfs.lookup(&ROOT, d, b"g").unwrap().0),
        (Kind::CharDevice, Some((0, 0)), g)
    );
    assert_eq!((zfs.getattr(d).unwrap().size, zfs.getattr(e).unwrap().size), (3, 5));
    assert!(zfs.getattr(g).unwrap().flags.has(FileFlags::AV_MODIFIED));
    drop(zfs);
    scratch.again();
    let zfs = scratch.zfs();
    assert_eq!(names(&zfs, e), ["again", "empty", "g"]);
}

#[test]
fn a_directory_that_hands_on_its_project_takes_files_of_it_alone() {
    use RenameMode::{Exchange, Replace};
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let set = |id, projid, flags| zfs.setattr(&ROOT, id, &SetAttr { projid, flags, ..SetAttr::default() }).unwrap();
    let with = |id, flag: FileFlags| Some(FileFlags(zfs.getattr(id).unwrap().flags.0 | flag.0));
    let stranger = file(&zfs, root, "stranger");
    let d = mkdir(&zfs, root, "d");
    let early = file(&zfs, d, "early");
    set(d, Some(7), with(d, FileFlags::PROJINHERIT));
    let own = file(&zfs, d, "own");
    assert_eq!(errno(mv(&zfs, (root, "stranger"), (d, "x"), Replace)), Errno::EXDEV);
    assert_eq!(errno(mv(&zfs, (root, "stranger"), (d, "own"), Exchange)), Errno::EXDEV);
    // a rename within the directory is allowed, whatever the file's project
    mv(&zfs, (d, "early"), (d, "renamed"), Replace).unwrap();
    // any file may move out of it, and an exchange does not check the file that comes in for it; that file inherits the project
    // flag
    mv(&zfs, (d, "own"), (root, "out"), Replace).unwrap();
    mv(&zfs, (root, "out"), (d, "own"), Replace).unwrap();
    assert!(zfs.getattr(own).unwrap().flags.has(FileFlags::PROJINHERIT));
    mv(&zfs, (d, "renamed"), (root, "stranger"), Exchange).unwrap();
    let found = |dir, name: &str| zfs.lookup(&ROOT, dir, name.as_bytes()).unwrap().0;
    assert_eq!((found(root, "stranger"), found(d, "renamed")), (early, stranger));
    let other = file(&zfs, root, "other");
    set(other, Some(7), None);
    mv(&zfs, (root, "other"), (d, "x"), Replace).unwrap();
    set(other, None, with(other, FileFlags::AV_QUARANTINED));
    assert_eq!(errno(mv(&zfs, (d, "x"), (d, "y"), Replace)), Errno::EACCES);
}

#[test]
fn a_listing_goes_on_while_the_directory_changes() {
    let scratch = Scratch::new();
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    zfs.batch(|zfs| {
        for n in 0..3000 {
            file(zfs, root, &format!("file-{n}"));
        }
        Ok(())
    })
    .unwrap();
    let (mut seen, mut cookie) = (std::collections::HashSet::new(), 0);
    loop {
        let some: Vec<_> = zfs.read_dir(&ROOT, root, cookie).unwrap().take(100).map(Result::unwrap).collect();
        let Some(last) = some.last() else { break };
        cookie = last.next_cookie;
        for entry in &some {
            assert!(seen.insert(entry.name.clone()));
            if entry.name.ends_with(b"7") {
                zfs.unlink(&ROOT, root, &entry.name).unwrap();
            }
        }
        file(&zfs, root, &format!("new-{}", seen.len()));
    }
    assert!((0..3000).all(|n| seen.contains(format!("file-{n}").as_bytes())));
    assert_eq!(zfs.getattr(root).unwrap().size as usize, names(&zfs, root).len() + 2);
}

/// OpenZFS's buffer for the normal form of a name is as large as that for the name: if it is too small, OpenZFS answers Errno::ENOTSUP
/// to all operations on the name, and ends the replay of a log.
#[test]
fn names_that_openzfs_could_not_find_are_not_given() {
    let decomposed = FsProps { normalization: 0x10, utf8only: true, ..FsProps::default() };
    let mut scratch = Scratch::with(decomposed, &[("xattr", 1)]);
    let zfs = scratch.zfs();
    let root = zfs.fs().root();
    let (good, bad) = ("ö".repeat(85), "ö".repeat(110));
    let (good, bad) = (good.as_bytes(), bad.as_bytes());
    let file = NewFile::new(Kind::File, 0o644);
    let (id, _) = zfs.create(&ROOT, root, good, &file).unwrap();
    for new in [file, NewFile::new(Kind::Directory, 0o755), NewFile::symlink(b"x")] {
        assert_eq!(errno(zfs.create(&ROOT, root, bad, &new)), Errno::ENOTSUP, "{:?}", new.kind);
    }
    assert_eq!(errno(zfs.link(&ROOT, id, root, bad)), Errno::ENOTSUP);
    assert_eq!(errno(zfs.rename(&ROOT, root, good, root, bad, RenameMode::Replace)), Errno::ENOTSUP);
    let attribute = "user.".to_owned() + &"ö".repeat(86);
    assert_eq!(errno(zfs.set_xattr(&ROOT, id, attribute.as_bytes(), b"1", XattrMode::Set)), Errno::ENOTSUP);
    assert_eq!(zfs.list_xattrs(&ROOT, id).unwrap().len(), 0);

    // names created by an older version are found, renamed and removed
    let names = Zap::open(zfs.fs().objset().object(root).unwrap()).unwrap();
    let old = "ü".repeat(110);
    let word = names.lookup_u64(good).unwrap().unwrap();
    zfs.change(64 << 10, |tx| {
        names.remove(tx, good)?;
        Ok(names.add_u64(tx, old.as_bytes(), word)?)
    })
    .unwrap();
    assert_eq!(zfs.lookup(&ROOT, root, old.as_bytes()).unwrap().0, id);
    zfs.rename(&ROOT, root, old.as_bytes(), root, b"short", RenameMode::Replace).unwrap();
    zfs.change(64 << 10, |tx| {
        names.remove(tx, b"short")?;
        Ok(names.add_u64(tx, old.as_bytes(), word)?)
    })
    .unwrap();
    zfs.unlink(&ROOT, root, old.as_bytes()).unwrap();
    assert_eq!(errno(zfs.lookup(&ROOT, root, old.as_bytes()).map(drop)), Errno::ENOENT);
    drop((names, zfs));
    scratch.close();
}

#[test]
fn a_name_that_is_too_long_is_too_long_for_all_that_is_asked_of_it() {
    let mut scratch = Scratch::new();
    let zfs = scratch.zfs();
    let (root, long) = (zfs.fs().root(), [b'n'; 256]);
    zfs.create(&ROOT, root, &[b'n'; 255], &NewFile::new(Kind::File, 0o644)).unwrap();
    assert_eq!(errno(zfs.create(&ROOT, root, &long, &NewFile::new(Kind::File, 0o644)).map(drop)), Errno::ENAMETOOLONG);
    assert_eq!(errno(zfs.lookup(&ROOT, root, &long).map(drop)), Errno::ENAMETOOLONG);
    assert_eq!(errno(zfs.unlink(&ROOT, root, &long)), Errno::ENAMETOOLONG);
    assert_eq!(errno(zfs.rmdir(&ROOT, root, &long)), Errno::ENAMETOOLONG);
    assert_eq!(errno(zfs.rename(&ROOT, root, &long, root, b"x", RenameMode::Replace)), Errno::ENAMETOOLONG);
    assert_eq!(errno(zfs.lookup(&ROOT, root, b"").map(drop)), Errno::ENOENT, "no name is not the directory itself");
    drop(zfs);
    scratch.close();
}
