//! Ownership of the files that a command creates: they belong to the user who runs it, as on a mounted file system.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use support::Session;

const MODE_SETGID: u32 = 0o2775;

/// The user who runs the commands, never root: another user if the test itself runs as root.
fn somebody(dir: &Path) -> (u32, u32) {
    let me = dir.metadata().unwrap();
    if me.uid() == 0 { (1000, 1001) } else { (me.uid(), me.gid()) }
}

/// Gives everything below a directory to a user.
fn give(path: &Path, (uid, gid): (u32, u32)) {
    chown(path, Some(uid), Some(gid)).unwrap();
    if path.is_dir() {
        std::fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path(), (uid, gid)));
    }
}

/// Runs a command as a user, with a file as its input.
fn run_as(s: &Session, (uid, gid): (u32, u32), args: &[&str], input: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
    command.args(args).env("ZUSE_STATE", s.state()).stdin(std::fs::File::open(input).unwrap()).stdout(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(uid).gid(gid);
    }
    let out = command.output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// As a POSIX program makes them: 666 and 777 without the umask, and a mode that is given as it is given.
#[test]
fn new_files_lack_what_the_umask_takes_away() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("device");
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let s = Session::empty();
    s.ok(&["zpool", "create", "-m", "none", "t", image.to_str().unwrap()]);
    let run = |umask: &str, line: &str| {
        let script = format!("umask {umask}; exec \"$0\" {line} </dev/null");
        let out = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_zuse")])
            .env("ZUSE_STATE", s.state())
            .output()
            .unwrap();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    };
    let mode = |path: &str| {
        let told = s.ok(&["stat", path]);
        told.split_once("Access: (").unwrap().1[..4].to_owned()
    };
    for (umask, file, made) in [("022", "0644", "0755"), ("077", "0600", "0700"), ("002", "0664", "0775")] {
        run(umask, &format!("put t:/f{umask}"));
        run(umask, &format!("mkdir t:/d{umask}"));
        assert_eq!((mode(&format!("t:/f{umask}")), mode(&format!("t:/d{umask}"))), (file.into(), made.into()));
    }
    // who writes into a file leaves its mode; who makes directories can go on below them
    run("000", "put t:/f077");
    run("077", "mkdir -m 777 t:/all");
    run("777", "mkdir -p t:/x/y/z");
    let modes = ["t:/f077", "t:/all", "t:/x", "t:/x/y", "t:/x/y/z"].map(mode);
    assert_eq!(modes, ["0600", "0777", "0300", "0300", "0000"]);
    s.ok(&["zpool", "export", "t"]);
}

#[test]
fn a_list_that_says_more_than_the_mode_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("device");
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let s = Session::empty();
    s.ok(&["zpool", "create", "-m", "none", "-O", "acltype=posix", "t", image.to_str().unwrap()]);
    let mut archive = tar::Builder::new(Vec::new());
    let list = b"user::rw-,user:7:---,group::---,mask::rw-,other::---\n";
    archive.append_pax_extensions([("SCHILY.acl.access", list.as_slice())]).unwrap();
    for name in ["listed", "plain"] {
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o660);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, name, &b"data"[..]).unwrap();
    }
    let run = s.feed(&["tar", "-xq", "t:/"], &archive.into_inner().unwrap());
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let told = s.ok(&["ls", "-l", "t:/"]);
    let modes: Vec<&str> = told.lines().filter(|line| line.starts_with('-')).map(|line| &line[..12]).collect();
    assert_eq!(modes, ["-rw-rw----+ ", "-rw-rw----  "], "{told}");
    s.ok(&["zpool", "export", "t"]);
}

#[test]
fn new_files_belong_to_who_runs_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let image = at("device");
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let s = Session::empty();
    s.ok(&["zpool", "create", "-m", "none", "t", image.to_str().unwrap()]);
    std::fs::create_dir(at("shared")).unwrap();
    let (uid, gid) = somebody(dir.path());
    let other = if rustix::process::geteuid().is_root() { 5 } else { gid };
    chown(at("shared"), None, Some(other)).unwrap();
    std::fs::set_permissions(at("shared"), std::fs::Permissions::from_mode(MODE_SETGID)).unwrap();
    let run = s.run(&["cp", "-aq", at("shared").to_str().unwrap(), "t:/shared"]);
    assert_eq!(run.code, 0, "{run:?}");
    // two directories in the path that the archive does not list
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o640);
    header.set_uid(77);
    header.set_gid(78);
    archive.append_data(&mut header, "x/y/file", &b"data"[..]).unwrap();
    std::fs::write(at("tar"), archive.into_inner().unwrap()).unwrap();
    give(dir.path(), (uid, gid));
    give(s.state(), (uid, gid));

    let user = (uid, gid);
    for target in ["t:/put", "t:/shared/put"] {
        run_as(&s, user, &["put", target], &at("tar"));
    }
    run_as(&s, user, &["mkdir", "-p", "t:/d/e", "t:/shared/dir"], &at("tar"));
    run_as(&s, user, &["ln", "-s", "put", "t:/link"], &at("tar"));
    run_as(&s, user, &["tar", "-xq", "t:/"], &at("tar"));
    // existing files keep their owner
    run_as(&s, user, &["cp", "-q", "t:/x/y/file", "t:/copy"], &at("tar"));
    run_as(&s, user, &["put", "t:/x/y/file"], &at("tar"));

    let owner = |target: &str| {
        let told = s.ok(&["stat", target]);
        let number = |name: &str| {
            let (_, rest) = told.split_once(name).unwrap();
            rest.split(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty()).unwrap().parse::<u32>().unwrap()
        };
        (number("Uid: "), number("Gid: "))
    };
    for target in ["t:/put", "t:/d", "t:/d/e", "t:/link", "t:/x", "t:/x/y"] {
        assert_eq!(owner(target), user, "{target}");
    }
    // the group is that of the directory
    for target in ["t:/shared/put", "t:/shared/dir"] {
        assert_eq!(owner(target), (uid, other), "{target}");
    }
    for target in ["t:/x/y/file", "t:/copy"] {
        assert_eq!(owner(target), (77, 78), "{target}");
    }
    assert!(s.ok(&["ls", "-l", "t:/shared"]).contains("drwxr-sr-x"), "the directory gives its bit on");
}
