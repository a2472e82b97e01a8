//! The treatment of names by `zuse cp`, `mv`, `ln`, `put`, `mkdir` and `tar -x`, as users of the host's commands of
//! these names expect it.
#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use oracle::judge;
use serde_json::Value;
use support::Session;

/// A pool `t` with file systems `t/a` and `t/b`, on a file in `dir`.
fn pool(dir: &Path) -> Session {
    let session = Session::empty();
    let image = dir.join("device");
    std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    session.ok(&["zpool", "create", "-m", "none", "t", image.to_str().unwrap()]);
    session.ok(&["zfs", "create", "t/a"]);
    session.ok(&["zfs", "create", "t/b"]);
    session
}

fn judged(session: &Session, dir: &Path) {
    session.ok(&["zpool", "export", "t"]);
    judge::no_leaks(dir, "t");
}

/// Creates a file of a pool with this text.
fn put(s: &Session, target: &str, text: &str) {
    assert_eq!(s.feed(&["put", target], text.as_bytes()).code, 0, "{target}");
}

/// A field of `zuse stat`.
fn field(s: &Session, target: &str, name: &str) -> String {
    let told = s.ok(&["stat", target]);
    let (_, rest) = told.split_once(&format!("{name}: ")).unwrap();
    rest.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn links_hold_among_all_operands_whatever_stands_between() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let at = |name: &str| dir.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    std::fs::create_dir(at("x")).unwrap();
    std::fs::write(at("x/one"), "host").unwrap();
    std::fs::hard_link(at("x/one"), at("two")).unwrap();
    std::fs::hard_link(at("x/one"), at("three")).unwrap();
    for fs in ["t/a", "t/b"] {
        put(&s, &format!("{fs}:/{}1", &fs[2..]), fs);
        for n in ["2", "3"] {
            let name = |n: &str| format!("{fs}:/{}{n}", &fs[2..]);
            s.ok(&["ln", &name("1"), &name(n)]);
        }
    }
    // the two file systems have the same object numbers
    assert_eq!(field(&s, "t/a:/a1", "Inode"), field(&s, "t/b:/b1", "Inode"));
    let inode = |target: &str| (field(&s, target, "Inode"), field(&s, target, "Links"));
    s.ok(&["mkdir", "t:/in"]);
    let (x, two, three) = (path("x/."), path("two"), path("three"));
    let operands = [x.as_str(), "t/a:/a1", &two, "t/b:/b1", "t/b:/b2", "t/a:/a2", &three, "t/b:/b3", "t/a:/a3"];
    let copy = |to: &str| {
        let run = s.run(&[&["cp", "-aq"][..], &operands, &[to]].concat());
        assert_eq!(run.code, 0, "{run:?}");
    };
    copy("t:/in");
    for names in [["one", "two", "three"], ["a1", "a2", "a3"], ["b1", "b2", "b3"]] {
        let all = names.map(|name| inode(&format!("t:/in/{name}")));
        assert!(all.iter().all(|one| *one == all[0] && one.1 == "3"), "{names:?} {all:?}");
    }
    let text = |name: &str| s.ok(&["cat", &format!("t:/in/{name}")]);
    assert_eq!([text("three"), text("a3"), text("b3")], ["host", "t/a", "t/b"]);

    // and to the host: over names that are there, and between file systems of equal object numbers
    std::fs::create_dir(at("out")).unwrap();
    for _ in 0..2 {
        s.ok(&["cp", "-q", "t/a:/a1", "t/b:/b1", "t/a:/a2", "t/b:/b2", "t/a:/a3", "t/b:/b3", &path("out")]);
        for fs in ["a", "b"] {
            let all = ["1", "2", "3"].map(|n| at(&format!("out/{fs}{n}")).metadata().unwrap());
            assert!(all.iter().all(|one| one.ino() == all[0].ino() && one.nlink() == 3), "{all:?}");
            assert_eq!(std::fs::read_to_string(at(&format!("out/{fs}3"))).unwrap(), format!("t/{fs}"));
        }
    }
    judged(&s, dir.path());
}

/// Deeper than a process may have files open, and than a path may be long, out of a pool and into one; a file is the same under names far apart.
#[test]
fn a_tree_is_as_deep_as_it_likes() {
    const DEPTH: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let deep = "directory-01/".repeat(DEPTH);
    s.ok(&["mkdir", "-p", &format!("t/a:/{deep}")]);
    put(&s, &format!("t/a:/{deep}file"), "bottom");
    for name in ["top", &format!("{}middle", &deep[..deep.len() / 2])] {
        s.ok(&["ln", &format!("t/a:/{deep}file"), &format!("t/a:/{name}")]);
    }
    let out = dir.path().join("out");
    let out = out.to_str().unwrap();
    for operands in [format!("t/a:/ {out}"), format!("{out}/. t/b:/")] {
        let script = format!("ulimit -n 200; exec \"$0\" cp -aq {operands}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_zuse")]).env("ZUSE_STATE", s.state());
        let ran = command.output().unwrap();
        let told = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{operands}: {}", told.get(..200).unwrap_or(&told));
    }
    let files = |fs: &str| {
        let told = s.ok(&["ls", "-lR", "--json", "--sha256", &format!("{fs}:/")]);
        let of = |line: &str| {
            let file: Value = serde_json::from_str(line).unwrap();
            ["path", "type", "mode", "nlink", "mtime", "sha256"].map(|key| file[key].clone())
        };
        told.lines().map(of).collect::<Vec<_>>()
    };
    let (copied, there) = (files("t/b"), files("t/a"));
    assert_eq!(there.len(), DEPTH + 4);
    assert!(copied == there);
    judged(&s, dir.path());
}

#[test]
fn what_was_replaced_meanwhile_is_nobodys_other_name() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let at = |name: &str| dir.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    s.ok(&["mkdir", "t/a:/d", "t/b:/d"]);
    put(&s, "t/a:/d/f", "a");
    s.ok(&["ln", "t/a:/d/f", "t/a:/g"]);
    put(&s, "t/b:/d/f", "b");
    for to in ["t:/".to_owned(), path("out")] {
        std::fs::create_dir_all(at("out")).unwrap();
        // `d/f` of the first is replaced by that of the second; `g` is the first all the same
        s.run(&["cp", "-aq", "t/a:/d", "t/b:/d", "t/a:/g", "t/a:/g", &to]);
    }
    let inside = |name: &str| s.ok(&["cat", &format!("t:/{name}")]);
    assert_eq!((inside("d/f"), inside("g")), ("b".into(), "a".into()));
    let outside = |name: &str| std::fs::read_to_string(at("out").join(name)).unwrap();
    assert_eq!((outside("d/f"), outside("g")), ("b".into(), "a".into()));
    judged(&s, dir.path());
}

#[test]
fn a_directory_takes_no_files_place() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("tree/d/e")).unwrap();
    for name in ["tree/d/e/f", "tree/d/f", "tree/z"] {
        std::fs::write(at(name), "new").unwrap();
    }
    std::fs::write(at("tree/d/large"), vec![1; 1 << 20]).unwrap();
    let tree = at("tree").to_str().unwrap().to_owned();
    put(&s, "t/a:/tree", "old");
    let run = s.run(&["cp", "-a", &tree, "t/a:/tree"]);
    assert!(run.code == 1 && run.err.contains("1 file(s) are incomplete"), "{run:?}");
    assert_eq!(s.ok(&["cat", "t/a:/tree"]), "old");
    // further down: the other entries are copied
    s.ok(&["mkdir", "t/b:/tree"]);
    put(&s, "t/b:/tree/d", "old");
    let run = s.run(&["cp", "-a", &tree, "t/b:/"]);
    assert!(run.code == 1 && run.err.contains("not copied: tree/d: ") && run.err.contains("1 file(s)"), "{run:?}");
    assert_eq!((s.ok(&["cat", "t/b:/tree/d"]), s.ok(&["cat", "t/b:/tree/z"])), ("old".into(), "new".into()));
    // nor does a file replace a directory
    s.ok(&["mkdir", "-p", "t/a:/d/z"]);
    s.fails(&["cp", at("tree/z").to_str().unwrap(), "t/a:/d"], 1, "not copied: z: a directory has this name");
    judged(&s, dir.path());
}

#[test]
fn a_slash_behind_a_name_wants_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let out = dir.path().join("out/").to_str().unwrap().to_owned();
    put(&s, "t/a:/f", "f");
    s.ok(&["mkdir", "t/a:/d"]);
    let host = dir.path().join("f");
    std::fs::write(&host, "f").unwrap();
    let host = host.to_str().unwrap();
    for args in [
        &["mv", "t/a:/f/", "t/a:/x"][..],
        &["mv", "t/a:/f", "t/a:/x/"],
        &["mv", "t/a:/f", "t/b:/x/"],
        &["cp", host, "t/a:/x/"],
        &["cp", host, "t/a:/f/"],
        &["cp", "t/a:/f", &out],
        &["ln", "t/a:/f", "t/a:/x/"],
        &["ln", "-s", "f", "t/a:/x/"],
    ] {
        let run = s.run(args);
        assert_eq!(run.code, 1, "{args:?}: {run:?}");
        let (a, b) = (s.ok(&["ls", "t/a"]), s.ok(&["ls", "t/b"]));
        assert_eq!((a.as_str(), b.as_str()), ("d\nf\n", ""), "{args:?}");
    }
    let run = s.feed(&["put", "t/a:/x/"], b"");
    assert!(run.code == 1 && run.err.contains("t/a:/x/: Is a directory"), "{run:?}");
    assert!(!Path::new(out.trim_end_matches('/')).exists());
    // a trailing slash is accepted for a directory
    s.ok(&["mv", "t/a:/d/", "t/a:/e/"]);
    assert_eq!(s.ok(&["ls", "t/a"]), "e\nf\n");
    judged(&s, dir.path());
}

#[test]
fn links_go_into_directories_and_dots_are_no_names() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    put(&s, "t/a:/f", "f");
    s.ok(&["mkdir", "t/a:/d"]);
    s.ok(&["ln", "t/a:/f", "t/a:/d"]);
    s.ok(&["ln", "-s", "../g", "t/a:/d/"]);
    s.run(&["ln", "-s", "up/there", "t/a:/d"]);
    assert_eq!(s.ok(&["cat", "t/a:/d/f"]), "f");
    assert_eq!((field(&s, "t/a:/f", "Links"), field(&s, "t/a:/d/g", "Links")), ("2".into(), "1".into()));
    assert!(s.ok(&["ls", "-l", "t/a:/d"]).contains("there -> up/there"));
    s.ok(&["mkdir", "-p", "t/a:/d/../p/./q/."]);
    assert_eq!(s.ok(&["ls", "t/a:/p"]), "q\n");
    s.ok(&["mkdir", "-p", "t/a:/"]);
    s.fails(&["mkdir", "t/a:/"], 1, "t/a:/: File exists");
    s.fails(&["mkdir", "t/a:/d/.."], 1, "t/a:/d/..: File exists");
    s.fails(&["rm", "-r", "t/a:/"], 1, "t/a:/: Invalid argument");
    s.fails(&["rm", "-r", "t/a:/d/."], 1, "t/a:/d/.: Invalid argument");
    s.fails(&["mv", "t/a:/f", "t/a:/d/f/."], 1, "zuse mv: t/a:/f: ");
    // with -f, a missing operand is not an error
    s.ok(&["rm", "-f"]);
    judged(&s, dir.path());
}

#[test]
fn a_link_as_destination_stays_and_leads_to_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let at = |name: &str| dir.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    std::fs::write(at("new"), "new").unwrap();
    symlink("new", at("link")).unwrap();
    s.ok(&["mkdir", "-p", "t/a:/d/e"]);
    put(&s, "t/a:/d/f", "old");
    s.ok(&["ln", "-s", "e/../f", "t/a:/d/two"]);
    s.ok(&["ln", "-s", "/d/two", "t/a:/one"]);
    s.ok(&["cp", "-q", &path("new"), "t/a:/one"]);
    assert_eq!(s.ok(&["cat", "t/a:/d/f"]), "new");
    assert!(s.ok(&["ls", "-l", "t/a:/"]).contains("one -> /d/two"));
    // a link replaces a link, in the pool and on the host
    s.ok(&["cp", "-aq", &path("link"), "t/a:/one"]);
    assert!(s.ok(&["ls", "-l", "t/a:/"]).contains("one -> new"));
    std::fs::write(at("kept"), "kept").unwrap();
    symlink("kept", at("out")).unwrap();
    s.ok(&["cp", "-aq", "t/a:/d/two", &path("out")]);
    assert_eq!(at("out").read_link().unwrap(), Path::new("e/../f"));
    assert_eq!(std::fs::read(at("kept")).unwrap(), b"kept");
    // and a circle of links ends
    s.ok(&["ln", "-s", "b", "t/b:/a"]);
    s.ok(&["ln", "-s", "a", "t/b:/b"]);
    s.fails(&["cp", "-q", &path("new"), "t/b:/a"], 1, "symbolic links");
    judged(&s, dir.path());
}

#[test]
fn holes_are_no_bytes_of_data() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let sparse = dir.path().join("sparse");
    let file = std::fs::File::create(&sparse).unwrap();
    file.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 32 << 20).unwrap();
    let bytes = |args: &[&str]| {
        let run = s.run(args);
        assert_eq!(run.code, 0, "{run:?}");
        run.err.split(", ").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(bytes(&["cp", sparse.to_str().unwrap(), "t/a:/"]), 4096);
    // within a pool whole blocks are shared
    assert_eq!(bytes(&["cp", "t/a:/sparse", "t/b:/"]), 128 << 10);
    judged(&s, dir.path());
}

#[test]
fn holes_stay_holes_into_other_blocks_ciphers_and_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("key"), [7; 32]).unwrap();
    s.ok(&["zfs", "create", "-o", "compression=off", "t/plain"]);
    s.ok(&["zfs", "create", "-o", "compression=off", "-o", "recordsize=4K", "t/small"]);
    let location = format!("keylocation=file://{}", path("key"));
    s.ok(&[
        "zfs",
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &location,
        "-o",
        "compression=off",
        "t/key",
    ]);
    let sparse = |name: &str, size: u64, at: u64| {
        let file = std::fs::File::create(path(name)).unwrap();
        file.set_len(size).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", at).unwrap();
    };
    // more than the pool has room for, and too large to be read in reasonable time
    for (name, size, at) in [("large", 1 << 30, 30_000_000), ("vast", 8 << 40, 7_000_000_000_000)] {
        sparse(name, size, at);
        s.ok(&["cp", "-aq", &path(name), "t/a:/"]);
        for to in ["t/a:/copy", "t/b:/", "t/plain:/", "t/small:/", "t/key:/"] {
            let to = if to.ends_with("copy") { format!("{to}-{name}") } else { format!("{to}{name}") };
            let run = s.run(&["cp", "-a", &format!("t/a:/{name}"), &to]);
            assert!(run.code == 0 && run.err.starts_with("copied 1 files, 131072 bytes"), "{to}: {run:?}");
            assert_eq!(field(&s, &to, "Size"), size.to_string());
            let blocks: u64 = field(&s, &to, "Blocks").parse().unwrap();
            assert!(blocks < 2048, "{to}: {blocks} blocks of 512 bytes");
        }
        // volumes: from a file, from each other, and out
        for volume in ["v", "w"] {
            let volume = format!("t/{volume}{name}");
            s.ok(&["zfs", "create", "-s", "-V", &size.to_string(), "-o", "compression=off", &volume]);
            // old data where the source has a hole is removed
            assert_eq!(s.feed(&["put", &volume], &[1; 1 << 20]).code, 0);
        }
        // standard input, from its position on
        for to in [format!("t/plain:/put-{name}"), format!("t/v{name}:/")] {
            let mut input = std::fs::File::open(path(name)).unwrap();
            std::io::Seek::seek(&mut input, std::io::SeekFrom::Start(1 << 20)).unwrap();
            let run = std::process::Command::new(env!("CARGO_BIN_EXE_zuse"))
                .args(["put", &to])
                .env("ZUSE_STATE", s.state())
                .stdin(input)
                .output()
                .unwrap();
            assert!(run.status.success(), "{to}: {run:?}");
        }
        let put = format!("t/plain:/put-{name}");
        assert_eq!(field(&s, &put, "Size"), (size - (1 << 20)).to_string());
        assert!(field(&s, &put, "Blocks").parse::<u64>().unwrap() < 2048);
        s.ok(&["cp", "-q", &format!("t/key:/{name}"), &format!("t/v{name}:/")]);
        s.ok(&["cp", "-q", &format!("t/v{name}:/"), &format!("t/w{name}:/")]);
        s.ok(&["cp", "-q", &path(name), &format!("t/v{name}:/")]);
        s.ok(&["cp", "-q", &format!("t/w{name}:/"), &path("out")]);
        let out = std::fs::File::open(path("out")).unwrap();
        let segments = zuse::host::data_segments(&out, size).unwrap();
        assert!(segments.len() == 1 && segments[0].0 <= at && segments[0].1 > at, "{segments:?}");
        assert!(segments[0].1 - segments[0].0 <= 128 << 10, "{segments:?}");
        let mut data = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&out, &mut data, at).unwrap();
        assert_eq!(&data, b"data");
        for volume in ["t/v", "t/w"] {
            let used = s.ok(&["zfs", "get", "-Hpo", "value", "referenced", &format!("{volume}{name}")]);
            assert!(used.trim().parse::<u64>().unwrap() < 2 << 20, "{volume}{name}: {used}");
        }
    }
    judged(&s, dir.path());
}

/// A header of an archive.
fn header(kind: tar::EntryType, name: &str, set: impl FnOnce(&mut tar::Header)) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_path(name).unwrap();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    set(&mut header);
    header.set_cksum();
    header
}

#[test]
fn archives_say_some_things_once_for_all_and_some_that_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let mut made = tar::Builder::new(Vec::new());
    let records = b"11 uid=777\n19 SCHILY.dev=1234\n";
    let global = header(tar::EntryType::XGlobalHeader, "g", |h| h.set_size(records.len() as u64));
    made.append(&global, records.as_slice()).unwrap();
    made.append(&header(tar::EntryType::Regular, "one", |_| {}), b"".as_slice()).unwrap();
    made.append_pax_extensions([("uid", b"5".as_slice())]).unwrap();
    made.append(&header(tar::EntryType::Regular, "two", |_| {}), b"".as_slice()).unwrap();
    let link = header(tar::EntryType::Symlink, "link", |h| h.set_link_name("one").unwrap());
    made.append(&link, b"".as_slice()).unwrap();
    // a uid that is too large must not become root's
    made.append_pax_extensions([("uid", b"4294967296".as_slice())]).unwrap();
    made.append(&header(tar::EntryType::Regular, "large", |_| {}), b"".as_slice()).unwrap();
    let run = s.feed(&["tar", "-x", "t/a:/"], &made.into_inner().unwrap());
    assert!(run.code == 1 && run.err.contains("not copied: large: "), "{run:?}");
    assert_eq!((field(&s, "t/a:/one", "Uid"), field(&s, "t/a:/two", "Uid")), ("777".into(), "5".into()));
    let listing = s.ok(&["ls", "-l", "t/a:/"]);
    assert!(listing.contains("lrwxrwxrwx 1 777 ") && !listing.contains("large"), "{listing}");
    judged(&s, dir.path());
}

#[test]
fn what_goes_wrong_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    std::fs::write(dir.path().join("f"), "f").unwrap();
    for (args, words) in [
        (&["ls", "t/none:/"][..], "zuse ls: cannot open 't/none': dataset does not exist\n"),
        (&["cat", "t/a:/none"], "zuse cat: t/a:/none: No such file or directory\n"),
        (&["cp", "-q", "/none/such", "t/a:/"], "zuse cp: /none/such: No such file or directory\n"),
        (&["cp", "-q", "/dev/null", "t/a:/no/dir"], "zuse cp: t/a:/no: No such file or directory\n"),
        (&["mv", "t/a:/x", "t/a:/y", "t/a:/z"], "zuse mv: t/a:/z: not a directory\n"),
    ] {
        let run = s.run(args);
        assert_eq!((run.code, run.err.as_str()), (1, words), "{args:?}");
    }
    judged(&s, dir.path());
}

#[test]
fn cat_follows_links() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    put(&s, "t/a:/f", "text");
    s.ok(&["mkdir", "t/a:/d"]);
    let links = [("one", "f"), ("d/two", "../one"), ("d/dir", ".."), ("none", "nowhere"), ("loop", "loop")];
    for (link, target) in links {
        let at = dir.path().join("link");
        symlink(target, &at).unwrap();
        s.ok(&["cp", "-aq", at.to_str().unwrap(), &format!("t/a:/{link}")]);
        std::fs::remove_file(&at).unwrap();
    }
    for link in ["one", "d/two", "d/dir/d/dir/one"] {
        assert_eq!(s.ok(&["cat", &format!("t/a:/{link}")]), "text", "{link}");
    }
    for (link, why) in [
        ("none", "No such file or directory"),
        ("loop", "Too many levels of symbolic links"),
        ("d/dir", "is a directory"),
        ("one/", "Not a directory"),
    ] {
        let run = s.run(&["cat", &format!("t/a:/{link}")]);
        assert_eq!((run.code, run.err), (1, format!("zuse cat: t/a:/{link}: {why}\n")));
    }
    // `stat` shows the link itself
    assert!(s.ok(&["stat", "t/a:/one"]).contains("one -> f"));
    judged(&s, dir.path());
}

/// The summary line of a copy.
fn counted(s: &Session, args: &[&str]) -> String {
    let run = s.run(args);
    assert_eq!(run.code, 1, "{run:?}");
    run.err.lines().find(|line| line.starts_with("copied ")).unwrap().to_owned()
}

#[test]
fn what_failed_is_not_counted_as_copied() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // out of a damaged pool: one file of several blocks, some of them lost, with two names
    let lost = support::Session::imported("lost-a");
    let out = counted(&lost, &["cp", "losta/fs:/victim", &path("victim")]);
    assert_eq!(out, "copied 0 files, 0 bytes of data");
    // into another pool
    let images = lost.images();
    let device = path("device");
    let at = [dir.path().to_str().unwrap(), &images];
    s.ok(&["zpool", "export", "t"]);
    let into = counted(&s, &["cp", "-d", at[0], "-d", at[1], "losta/fs:/victim", "t:/victim"]);
    assert_eq!(into, out, "{device}");
    s.ok(&["zpool", "import", "-d", at[0], "t"]);

    // names that a file system refuses; their directory is created
    s.ok(&["zfs", "create", "-o", "utf8only=on", "t/u"]);
    std::fs::create_dir(path("tree")).unwrap();
    let odd = dir.path().join("tree").join(std::os::unix::ffi::OsStrExt::from_bytes(&b"\xff"[..]) as &std::ffi::OsStr);
    std::fs::write(&odd, vec![1; 3 << 20]).unwrap();
    std::fs::hard_link(&odd, dir.path().join("tree/fine")).unwrap();
    std::fs::write(dir.path().join("tree/other"), "seven b").unwrap();
    let bytes = (3 << 20) + 7;
    assert_eq!(counted(&s, &["cp", "-a", &path("tree"), "t/u:/"]), format!("copied 3 files, {bytes} bytes of data"));

    // the pool is full in the middle of a file
    std::fs::write(dir.path().join("tree/other"), vec![2; 9 << 20]).unwrap();
    s.ok(&["zfs", "create", "-o", "quota=4M", "-o", "compression=off", "t/q"]);
    let full = counted(&s, &["cp", &path("tree/other"), "t/q:/"]);
    assert_eq!(full, "copied 0 files, 0 bytes of data");
    // a directory is in the way
    s.ok(&["mkdir", "t/a:/other"]);
    assert_eq!(counted(&s, &["cp", &path("tree/other"), "t/b:/none", "t/a:/"]), "copied 0 files, 0 bytes of data");
    judged(&s, dir.path());
}

#[test]
fn a_mode_is_for_the_last_directory_alone() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let mode = |target: &str| field(&s, target, "Access");
    s.ok(&["mkdir", "-p", "-m", "500", "t/a:/x/y/z/"]);
    let modes = ["t/a:/x", "t/a:/x/y", "t/a:/x/y/z"].map(mode);
    assert!(modes[0].contains("755") && modes[1] == modes[0] && modes[2].contains("500"), "{modes:?}");
    s.ok(&["mkdir", "-p", "-m", "700", "t/a:/x/y/z", "t/a:/one"]);
    assert!(mode("t/a:/x/y/z").contains("500") && mode("t/a:/one").contains("700"));
    judged(&s, dir.path());
}

/// Files of sysfs report a size of one page, and have one line, like a file that has been truncated meanwhile.
#[test]
fn an_image_that_becomes_shorter_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path());
    let image = "/sys/kernel/uevent_seqnum";
    let end = std::fs::read(image).unwrap().len();
    s.ok(&["zfs", "create", "-s", "-V", "1M", "t/v"]);
    let says = format!("{image}: it has become shorter while it was read: no data at byte {end}\n");
    s.fails(&["cp", "-q", image, "t/v:/"], 1, &says);
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(["put", "t/v"])
        .env("ZUSE_STATE", s.state())
        .stdin(std::fs::File::open(image).unwrap())
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    judged(&s, dir.path());
}

#[test]
fn help_names_what_a_verb_takes() {
    let s = Session::empty();
    for (verb, takes) in [("verify", false), ("mkdir", false), ("ls", true), ("cat", true), ("cp", true)] {
        assert_eq!(s.ok(&[verb, "--help"]).contains("--with-log\t"), takes, "{verb}");
    }
}
