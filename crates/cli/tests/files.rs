//! Files into pools and within them, as an administrator would with `zuse cp`, `tar -x`, `put`, `mkdir`, `rm`, `mv`,
//! `ln`.
#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use oracle::judge;
use support::Session;

/// A pool `t` on a file in `dir`, imported, and a dataset in it.
fn pool(dir: &Path) -> Session {
    let session = Session::empty();
    let image = dir.join("a");
    std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    session.ok(&["zpool", "create", "-m", "none", "t", image.to_str().unwrap()]);
    session
}

/// Runs a command that succeeds; its output is ignored.
fn done(session: &Session, args: &[&str]) {
    let run = session.run(args);
    assert_eq!(run.code, 0, "{args:?}: {run:#?}");
}

fn cat(session: &Session, target: &str) -> String {
    session.ok(&["cat", target])
}

/// Exports the pool; zdb must find it in order.
fn judged(session: &Session, dir: &Path) {
    session.ok(&["zpool", "export", "t"]);
    judge::no_leaks(dir, "t");
}

#[test]
fn single_files() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let put = s.feed(&["put", "t:/hello"], b"Hello!\n");
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    assert_eq!(cat(&s, "t:/hello"), "Hello!\n");
    s.fails(&["mkdir", "t:/a/b"], 1, "t:/a/b: No such file or directory");
    s.ok(&["mkdir", "-p", "-m", "750", "t:/a/b/c"]);
    s.fails(&["mkdir", "t:/a"], 1, "t:/a: File exists");
    s.ok(&["mv", "t:/hello", "t:/a/b"]);
    s.ok(&["ln", "t:/a/b/hello", "t:/again"]);
    s.ok(&["ln", "-s", "a/b/hello", "t:/link"]);
    assert_eq!(cat(&s, "t:/again"), "Hello!\n");
    let listing = s.ok(&["ls", "-lR", "t"]);
    assert!(listing.contains("link -> a/b/hello") && listing.contains("drwxr-x---"), "{listing}");
    assert_eq!(s.feed(&["put", "t:/again"], b"short").code, 0);
    assert_eq!(cat(&s, "t:/a/b/hello"), "short");
    s.fails(&["rm", "t:/a"], 1, "t:/a: Is a directory");
    s.fails(&["rm", "t:/none"], 1, "No such file");
    s.ok(&["rm", "-f", "t:/none"]);
    s.ok(&["rm", "-r", "t:/a", "t:/link"]);
    assert_eq!(s.ok(&["ls", "t"]), "again\n");
    s.fails(&["rm", "-r", "t:/"], 1, "t:/");
    s.fails(&["mkdir", "t"], 2, "names no file");
    s.fails(&["put", "none:/x"], 1, "no such pool");
    judged(&s, dir.path());
}

#[test]
fn trees_in_and_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("pool")).unwrap();
    let s = pool(&dir.path().join("pool"));
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("sub")).unwrap();
    std::fs::write(tree.join("sub/file"), "contents").unwrap();
    std::fs::write(tree.join("large"), vec![5; 3 << 20]).unwrap();
    std::fs::hard_link(tree.join("large"), tree.join("sub/other")).unwrap();
    symlink("sub/file", tree.join("link")).unwrap();
    std::fs::set_permissions(tree.join("sub"), std::fs::Permissions::from_mode(0o2711)).unwrap();
    let host = tree.to_str().unwrap();

    s.fails(&["cp", host, "t:/copy"], 1, "is a directory (-a copies it)");
    let run = s.run(&["cp", "-a", host, "t:/copy"]);
    assert!(run.code == 0 && run.err.contains("copied 6 files"), "{run:?}");
    // into the existing directory, and its contents into the root
    done(&s, &["cp", "-aq", host, "t:/copy"]);
    done(&s, &["cp", "-aq", &format!("{host}/."), "t:/"]);
    assert_eq!(cat(&s, "t:/copy/tree/sub/file"), "contents");
    assert_eq!(cat(&s, "t:/sub/file"), "contents");
    // within the pool
    done(&s, &["cp", "-aq", "t:/copy", "t:/more"]);
    assert_eq!(cat(&s, "t:/more/tree/sub/file"), "contents");
    s.fails(&["cp", "-aq", "t:/more", "t:/"], 1, "the same file");
    // large files share their blocks, and stay unchanged when the source changes
    let used = || s.ok(&["zfs", "get", "-Hpo", "value", "used", "t"]).trim().parse::<u64>().unwrap();
    let before = used();
    done(&s, &["cp", "-q", "t:/large", "t:/shared"]);
    assert_eq!(s.feed(&["put", "t:/large"], b"now small").code, 0);
    assert_eq!(s.ok(&["cat", "t:/shared"]).len(), 3 << 20);
    assert!(used() < before + (1 << 20), "{} {before}", used());
    s.fails(&["cp", "-a", "t:/none", host, "t:/x"], 1, "not a directory");
    s.fails(&["cp", "-a", "/none/such", "t:/x"], 1, "/none/such");

    let back = dir.path().join("back");
    done(&s, &["cp", "-aq", "t:/copy/tree", back.to_str().unwrap()]);
    assert_eq!(std::fs::read(back.join("sub/other")).unwrap(), vec![5; 3 << 20]);
    let (one, two) = (back.join("large").metadata().unwrap(), back.join("sub/other").metadata().unwrap());
    assert_eq!((one.ino(), one.nlink()), (two.ino(), 2));
    let (sub, was) = (back.join("sub").metadata().unwrap(), tree.join("sub").metadata().unwrap());
    assert_eq!((sub.mode(), sub.mtime(), sub.mtime_nsec()), (was.mode(), was.mtime(), was.mtime_nsec()));
    assert_eq!(back.join("link").read_link().unwrap(), Path::new("sub/file"));
    judged(&s, &dir.path().join("pool"));

    // a pool that is not imported: it is imported for the time of the command
    let devices = dir.path().join("pool");
    done(&s, &["rm", "-d", devices.to_str().unwrap(), "-r", "t:/copy", "t:/more"]);
    let listing = s.ok(&["ls", "-d", devices.to_str().unwrap(), "t"]);
    assert!(listing.contains("sub") && !listing.contains("copy"), "{listing}");
}

#[test]
fn archives_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let mut made = tar::Builder::new(Vec::new());
    let mut add = |path: &str, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o640);
        header.set_uid(1234);
        header.set_gid(55);
        header.set_mtime(1_234_567_890);
        made.append_data(&mut header, path, data).unwrap();
    };
    add("a/short", b"short");
    add(&format!("{}/long", "d".repeat(120)), b"a long name");
    add("a/large", &vec![3; 2 << 20]);
    let bytes = made.into_inner().unwrap();
    s.ok(&["mkdir", "t:/in"]);
    let run = s.feed(&["tar", "-x", "t:/in"], &bytes);
    assert!(run.code == 0 && run.err.contains("copied 3 files"), "{run:?}");
    assert_eq!(cat(&s, &format!("t:/in/{}/long", "d".repeat(120))), "a long name");
    let stat = s.ok(&["stat", "t:/in/a/short"]);
    assert!(stat.contains("Uid: 1234") && stat.contains("Gid: 55") && stat.contains("0640"), "{stat}");
    let cut = s.feed(&["tar", "-x", "t:/in"], &bytes[..bytes.len() / 2]);
    assert_eq!(cut.code, 1, "{cut:?}");
    s.fails(&["tar", "-x", "t:/none"], 1, "t:/none");
    judged(&s, dir.path());
}

#[test]
fn a_copy_leaves_devices_alone_and_stays_where_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    assert_eq!(s.feed(&["put", "t:/f"], b"data").code, 0);
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let pipe = at("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink("pipe", at("to-pipe")).unwrap();
    s.fails(&["cp", "t:/f", &pipe], 1, "neither a file nor a directory");
    s.fails(&["cp", "t:/f", &at("to-pipe")], 1, "neither a file nor a directory");
    s.ok(&["zfs", "create", "-V", "1M", "t/v"]);
    s.fails(&["cp", "t/v", &pipe], 1, "neither a file nor a directory");
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&std::fs::symlink_metadata(&pipe).unwrap().file_type()));
    // the file that a link leads to is replaced, and the link stays
    std::fs::write(at("file"), "old").unwrap();
    symlink("file", at("to-file")).unwrap();
    done(&s, &["cp", "-q", "t:/f", &at("to-file")]);
    assert!(Path::new(&at("to-file")).is_symlink());
    assert_eq!(std::fs::read(at("file")).unwrap(), b"data");
    // the last name of `w/..` must not lead out of the destination
    s.ok(&["mkdir", "-p", "t:/q/w"]);
    std::fs::create_dir_all(at("dest/sub")).unwrap();
    done(&s, &["cp", "-aq", "t:/q/w/..", &at("dest/sub")]);
    assert!(Path::new(&at("dest/sub/w")).is_dir() && !Path::new(&at("dest/w")).exists());
    judged(&s, dir.path());
}

#[test]
fn a_link_with_a_slash_does_not_remove_what_it_leads_to() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    s.ok(&["mkdir", "t:/d"]);
    assert_eq!(s.feed(&["put", "t:/d/keep"], b"kept").code, 0);
    s.ok(&["ln", "-s", "d", "t:/link"]);
    s.fails(&["rm", "-r", "t:/link/"], 1, "Not a directory");
    s.fails(&["rm", "t:/link/"], 1, "Not a directory");
    s.fails(&["rm", "t:/d/"], 1, "Is a directory");
    assert_eq!(cat(&s, "t:/d/keep"), "kept");
    s.ok(&["rm", "-r", "t:/link"]);
    assert_eq!(cat(&s, "t:/d/keep"), "kept");
    s.ok(&["rm", "-r", "t:/d/"]);
    judged(&s, dir.path());
}

#[test]
fn a_move_to_another_dataset_does_not_mix_directories() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    for (name, text) in [("t/x", "new"), ("t/y", "old")] {
        s.ok(&["zfs", "create", "-u", name]);
        s.ok(&["mkdir", &format!("{name}:/d")]);
        assert_eq!(s.feed(&["put", &format!("{name}:/d/f")], text.as_bytes()).code, 0);
    }
    assert_eq!(s.feed(&["put", "t/y:/file"], b"file").code, 0);
    s.fails(&["mv", "t/x:/d", "t/y:/"], 1, "Directory not empty");
    s.fails(&["mv", "t/x:/d", "t/y:/file"], 1, "Not a directory");
    assert_eq!(cat(&s, "t/y:/file"), "file");
    assert_eq!((cat(&s, "t/x:/d/f"), cat(&s, "t/y:/d/f")), ("new".into(), "old".into()));
    s.ok(&["rm", "t/y:/d/f"]);
    s.ok(&["mv", "t/x:/d", "t/y:/"]);
    assert_eq!(cat(&s, "t/y:/d/f"), "new");
    judged(&s, dir.path());
}

#[test]
fn a_move_that_would_lose_attributes_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    s.ok(&["zfs", "create", "-u", "t/x"]);
    s.ok(&["zfs", "create", "-u", "-o", "xattr=off", "t/y"]);
    let mut made = tar::Builder::new(Vec::new());
    made.append_pax_extensions([("SCHILY.xattr.user.note", b"dear".as_slice())]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_path("f").unwrap();
    header.set_size(4);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    made.append(&header, b"data".as_slice()).unwrap();
    let run = s.feed(&["tar", "-x", "t/x:/"], &made.into_inner().unwrap());
    assert_eq!(run.code, 0, "{run:?}");
    let moved = s.run(&["mv", "t/x:/f", "t/y:/"]);
    assert!(moved.code == 1 && moved.err.contains("not kept (1 file): attribute user.note"), "{moved:?}");
    assert_eq!(cat(&s, "t/x:/f"), "data");
    s.ok(&["zfs", "set", "xattr=sa", "t/y"]);
    s.ok(&["mv", "t/x:/f", "t/y:/"]);
    assert_eq!((s.ok(&["ls", "t/x"]).as_str(), cat(&s, "t/y:/f").as_str()), ("", "data"));
    judged(&s, dir.path());
}

#[test]
fn archives_with_links_to_themselves_and_sizes_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let mut made = tar::Builder::new(Vec::new());
    let mut add = |path: &str, kind: tar::EntryType, size: u64, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(path).unwrap();
        header.set_size(size);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        if kind == tar::EntryType::Link {
            header.set_link_name(path).unwrap();
        }
        header.set_cksum();
        made.append(&header, data).unwrap();
    };
    add("a", tar::EntryType::Regular, 5, b"hello");
    add("a", tar::EntryType::Link, 0, b"");
    // no data follow, although the header has a size
    add("dir", tar::EntryType::Directory, 4096, b"");
    add("b", tar::EntryType::Regular, 3, b"abc");
    let run = s.feed(&["tar", "-x", "t:/"], &made.into_inner().unwrap());
    assert!(run.code == 0 && run.err.contains("copied 4 files"), "{run:?}");
    assert_eq!((cat(&s, "t:/a"), cat(&s, "t:/b")), ("hello".into(), "abc".into()));
    judged(&s, dir.path());
}

#[test]
fn owners_and_set_id_bits_are_those_of_the_source() {
    if std::process::Command::new("id").arg("-u").output().unwrap().stdout != b"0\n" {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let at = |name: &str| dir.path().join(name);
    let mode = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    // a directory passes its group on to files that a user creates in it, but not to copies
    std::fs::create_dir(at("shared")).unwrap();
    std::os::unix::fs::chown(at("shared"), None, Some(100)).unwrap();
    mode(&at("shared"), 0o2775);
    std::fs::write(at("empty"), "").unwrap();
    std::fs::write(at("tool"), "#!").unwrap();
    mode(&at("tool"), 0o6755);
    let (empty, tool) = (at("empty"), at("tool"));
    done(&s, &["cp", "-aq", at("shared").to_str().unwrap(), "t:/"]);
    done(&s, &["cp", "-aq", empty.to_str().unwrap(), tool.to_str().unwrap(), "t:/shared"]);
    let stat = s.ok(&["stat", "t:/shared/empty"]);
    assert!(stat.contains("Gid: 0"), "{stat}");
    assert!(s.ok(&["stat", "t:/shared/tool"]).contains("6755"));
    s.ok(&["zpool", "export", "t"]);
    // a user who cannot give a file its owner must not lend it his own rights (setuid)
    mode(dir.path(), 0o755);
    mode(&at("a"), 0o644);
    std::fs::create_dir(at("home")).unwrap();
    mode(&at("home"), 0o777);
    let zuse = dir.path().join("zuse");
    std::fs::copy(env!("CARGO_BIN_EXE_zuse"), &zuse).unwrap();
    let mut command = std::process::Command::new(&zuse);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    std::os::unix::process::CommandExt::gid(&mut command, 65534);
    let out = command.current_dir(at("home")).args(["cp", "-d"]).arg(at("a")).args(["t:/shared/tool", "."]).output();
    let (out, copied) = (out.unwrap(), at("home/tool").metadata());
    let copied = copied.unwrap_or_else(|e| panic!("{e}: {out:?}"));
    assert_eq!((copied.uid(), copied.mode() & 0o7777), (65534, 0o755));
}

#[test]
fn names_of_one_file_in_several_operands_stay_names_of_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let at = |name: &str| dir.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    for folder in ["x", "y", "z", "z/x"] {
        std::fs::create_dir(at(folder)).unwrap();
    }
    std::fs::write(at("x/one"), "one").unwrap();
    std::fs::hard_link(at("x/one"), at("y/two")).unwrap();
    std::fs::hard_link(at("x/one"), at("three")).unwrap();
    std::fs::write(at("z/x/one"), "another").unwrap();
    std::fs::hard_link(at("x/one"), at("z/four")).unwrap();
    let inode = |target: &str| {
        let told = s.ok(&["stat", target]);
        let (_, inode) = told.split_once("Inode: ").unwrap();
        inode.split_whitespace().next().unwrap().to_owned()
    };
    s.ok(&["mkdir", "t:/in"]);
    done(&s, &["cp", "-aq", &path("x"), &path("y"), &path("three"), "t:/in"]);
    let one = inode("t:/in/x/one");
    assert_eq!((inode("t:/in/y/two"), inode("t:/in/three")), (one.clone(), one));
    // a replaced file is no longer another name of any file
    s.ok(&["mkdir", "t:/over"]);
    done(&s, &["cp", "-aq", &path("x"), &path("z/x"), &path("z/four"), "t:/over"]);
    assert_eq!((cat(&s, "t:/over/x/one"), cat(&s, "t:/over/four")), ("another".into(), "one".into()));

    std::fs::create_dir(at("out")).unwrap();
    done(&s, &["cp", "-aq", "t:/in/x", "t:/in/three", "t:/in/y", &path("out")]);
    let inode = |name: &str| at(name).metadata().unwrap().ino();
    let one = inode("out/x/one");
    assert_eq!((inode("out/y/two"), inode("out/three")), (one, one));
    done(&s, &["cp", "-aq", "t:/in/x", "t:/over/x", "t:/in/three", &path("out")]);
    assert_eq!(std::fs::read(at("out/x/one")).unwrap(), b"another");
    assert_eq!(std::fs::read(at("out/three")).unwrap(), b"one");
    judged(&s, dir.path());
}

#[test]
fn files_that_say_they_are_empty_are_read_to_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    // the last is long, if the kernel has it
    let there =
        ["/proc/version", "/proc/filesystems", "/proc/kallsyms"].into_iter().filter(|path| Path::new(path).exists());
    let all: Vec<_> = there.map(|path| (path, std::fs::read(path).unwrap())).collect();
    assert!(all.len() >= 2 && all.iter().all(|(path, _)| std::fs::metadata(path).unwrap().len() == 0));
    for (path, right) in all {
        done(&s, &["cp", "-q", path, "t:/"]);
        let name = format!("t:/{}", path.rsplit('/').next().unwrap());
        assert!(s.ok(&["cat", &name]).as_bytes() == right, "{path}");
    }
    judged(&s, dir.path());
}
