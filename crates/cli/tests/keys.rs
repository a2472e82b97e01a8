//! Typed keys: asked for without an echo, kept from one command to the next, and removed.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;
#[path = "support/terminal.rs"]
mod terminal;

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::Session;
use terminal::{await_words, echoes, terminal};

const PASS: &[u8] = b"correct horse\n";

/// A pool with an encrypted file system that has a prompted passphrase; its key is kept.
fn pool() -> (Session, tempfile::TempDir) {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let device = dir.path().join("a");
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", device.to_str().unwrap()]);
    create(&session, "tank/e");
    (session, dir)
}

fn create(session: &Session, name: &str) {
    let words =
        ["zfs", "create", "-o", "encryption=on", "-o", "keyformat=passphrase", "-o", "pbkdf2iters=100000", name];
    let made = session.feed(&words, PASS);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
}

fn status(session: &Session, name: &str) -> String {
    session.ok(&["zfs", "get", "-H", "-o", "value", "keystatus", name]).trim_end().to_owned()
}

fn socket(session: &Session) -> PathBuf {
    session.state().join(format!("agent.{}", rustix::process::geteuid().as_raw())).join("socket")
}

#[test]
fn a_key_that_was_typed_is_there_until_it_is_unloaded() {
    let (session, dir) = pool();
    assert_eq!(status(&session, "tank/e"), "available");
    session.feed(&["put", "tank/e:/f"], b"secret");
    assert_eq!(session.ok(&["cat", "tank/e:/f"]), "secret");
    session.ok(&["zfs", "snapshot", "tank/e@s"]);
    session.ok(&["zfs", "rename", "tank/e", "tank/other"]);
    assert_eq!(session.ok(&["cat", "tank/other:/f"]), "secret");

    let meta = |path: PathBuf| std::fs::metadata(path).unwrap();
    let at = meta(socket(&session));
    assert!(at.file_type().is_socket() && at.mode() & 0o777 == 0o600, "{:o}", at.mode());
    assert_eq!(meta(socket(&session).parent().unwrap().to_owned()).mode() & 0o777, 0o700);

    session.ok(&["zfs", "unload-key", "tank/other"]);
    assert!(!socket(&session).exists(), "nobody is left with nothing to keep");
    assert_eq!(status(&session, "tank/other"), "unavailable");
    session.fails(&["cat", "tank/other:/f"], 1, "key not loaded");
    session.fails(&["zfs", "unload-key", "tank/other"], 255, "Key already unloaded for 'tank/other'.");
    let wrong = session.feed(&["zfs", "load-key", "tank/other"], b"wrong horse\n");
    assert!(wrong.code == 255 && wrong.err.contains("Incorrect key provided for 'tank/other'."), "{wrong:?}");
    assert!(!socket(&session).exists());
    let checked = session.feed(&["zfs", "load-key", "-n", "tank/other"], PASS);
    assert_eq!((checked.code, checked.out.as_str()), (0, "1 / 1 key(s) successfully verified\n"));
    assert_eq!(status(&session, "tank/other"), "unavailable");
    let loaded = session.feed(&["zfs", "load-key", "tank/other"], PASS);
    assert_eq!((loaded.code, loaded.err.as_str()), (0, ""));
    assert_eq!(session.ok(&["cat", "tank/other:/f"]), "secret");
    session.fails(&["zfs", "load-key", "tank/other"], 255, "Key already loaded for 'tank/other'.");
    // what was done is in the history, as in OpenZFS, and no key is
    let history = session.ok(&["zpool", "history", "-i", "tank"]);
    let lines = |end: &str| history.lines().filter(|line| line.ends_with(end)).count();
    let commands = ["zfs unload-key tank/other", "zfs load-key -n tank/other", "zfs load-key tank/other"];
    assert_eq!(commands.map(lines), [1, 1, 1], "{history}");
    assert_eq!((lines(" ioctl load-key"), lines(" ioctl unload-key")), (2, 1), "{history}");
    assert!(!history.contains("wkeydata"));

    // an export removes the keys
    session.ok(&["zpool", "export", "tank"]);
    assert!(!socket(&session).exists());
    session.ok(&["zpool", "import", "-d", dir.path().to_str().unwrap(), "tank"]);
    assert_eq!(status(&session, "tank/other"), "unavailable");
    session.ok(&["zpool", "export", "tank"]);
    let imported = session.feed(&["zpool", "import", "-l", "-d", dir.path().to_str().unwrap(), "tank"], PASS);
    assert_eq!((imported.code, imported.err.as_str()), (0, ""));
    assert_eq!(session.ok(&["cat", "tank/other:/f"]), "secret");
    session.ok(&["zpool", "export", "tank"]);
}

#[test]
fn a_key_follows_its_root_and_changes_with_it() {
    let (session, _dir) = pool();
    create(&session, "tank/second");
    session.ok(&["zfs", "snapshot", "tank/e@s"]);
    session.ok(&["zfs", "clone", "tank/e@s", "tank/c"]);
    session.ok(&["zfs", "promote", "tank/c"]);
    for name in ["tank/c", "tank/e", "tank/second"] {
        assert_eq!(status(&session, name), "available", "{name}");
    }
    let changed = session.feed(&["zfs", "change-key", "tank/second"], b"battery staple\n");
    assert_eq!((changed.code, changed.err.as_str()), (0, ""));
    assert_eq!(status(&session, "tank/second"), "available");
    session.ok(&["zfs", "unload-key", "tank/second"]);
    let old = session.feed(&["zfs", "load-key", "tank/second"], PASS);
    assert_eq!(old.code, 255);
    // both keys come over one standard input
    session.ok(&["zfs", "unload-key", "-a"]);
    let both = [PASS, b"battery staple\n"].concat();
    let loaded = session.feed(&["zfs", "load-key", "-a"], &both);
    assert_eq!((loaded.code, loaded.out.as_str()), (0, "2 / 2 key(s) successfully loaded\n"), "{}", loaded.err);
    session.ok(&["zpool", "destroy", "tank"]);
    assert!(!socket(&session).exists());
}

#[test]
fn an_unloaded_key_is_not_taken_from_its_file_again() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("key"), [7; 32]).unwrap();
    let key = format!("file://{}", path("key"));
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", &path("a")]);
    let location = format!("keylocation={key}");
    session.ok(&["zfs", "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", &location, "tank/e"]);
    session.feed(&["put", "tank/e:/f"], b"secret");
    session.ok(&["zfs", "snapshot", "tank/e@s"]);
    session.ok(&["zfs", "unload-key", "tank/e"]);
    session.fails(&["cat", "tank/e:/f"], 1, "key not loaded");
    session.fails(&["zfs", "send", "tank/e@s"], 1, "key must be loaded");
    // a command that is given the key has it, for itself alone
    assert_eq!(session.ok(&["cat", "-L", &key, "tank/e:/f"]), "secret");
    let sent = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(["-L", &key, "zfs", "send", "tank/e@s"])
        .env("ZUSE_STATE", session.state())
        .output()
        .unwrap();
    assert!(sent.status.success() && sent.stdout.windows(6).any(|part| part == b"secret"), "{sent:?}");
    assert_eq!(status(&session, "tank/e"), "unavailable");
    assert_eq!(session.ok(&["-L", "keylocation", "cat", "tank/e:/f"]), "secret");
    session.ok(&["zfs", "load-key", "tank/e"]);
    assert_eq!(session.ok(&["cat", "tank/e:/f"]), "secret");
    assert!(!socket(&session).exists(), "a key in a file needs nobody to keep it");
    // on devices nobody's key is taken unasked, wherever in the command it is given
    session.ok(&["zpool", "export", "tank"]);
    let folder = path("");
    session.fails(&["cat", "-d", &folder, "tank/e:/f"], 1, "key not loaded");
    for given in [&key, "keylocation"] {
        assert_eq!(session.ok(&["-L", given, "cat", "-d", &folder, "tank/e:/f"]), "secret");
        assert_eq!(session.ok(&["cat", "-L", given, "-d", &folder, "tank/e:/f"]), "secret");
    }
}

#[test]
fn a_prompt_does_not_take_a_line_of_what_the_command_is_about() {
    let (session, _dir) = pool();
    session.ok(&["zfs", "create", "tank/plain"]);
    session.ok(&["zfs", "unload-key", "tank/e"]);
    let put = session.feed(&["-L", "keylocation", "put", "tank/plain:/f"], b"one\ntwo\nthree\n");
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    assert_eq!(session.ok(&["cat", "tank/plain:/f"]), "one\ntwo\nthree\n");
    assert_eq!(status(&session, "tank/e"), "unavailable");
}

#[test]
fn nonsense_and_silence_do_not_end_the_agent() {
    let (session, _dir) = pool();
    let connect = || UnixStream::connect(socket(&session)).unwrap();
    let silent = connect();
    drop(connect());
    let mut bad = connect();
    std::io::Write::write_all(&mut bad, &[0xff; 4096]).unwrap();
    drop(silent);
    assert_eq!(status(&session, "tank/e"), "available");
    session.ok(&["zfs", "unload-key", "tank/e"]);
}

/// Returns whether this process was started to ignore a signal (as in the background, or by `nohup`): its children
/// then ignore it as well.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (signal.as_raw() - 1) != 0
}

#[test]
fn the_echo_comes_back_whatever_ends_the_question() {
    let (session, _dir) = pool();
    let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
    for signal in signals.into_iter().filter(|signal| !is_ignored(*signal)).map(Some).chain([None]) {
        let (mut seen, own) = terminal();
        assert!(echoes(&own));
        let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
            .args(["zfs", "create", "-o", "encryption=on", "-o", "keyformat=passphrase", "tank/x"])
            .env("ZUSE_STATE", session.state())
            .stdin(Stdio::from(own.try_clone().unwrap()))
            .stdout(Stdio::from(own.try_clone().unwrap()))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        await_words(&mut seen, "passphrase:");
        assert!(!echoes(&own));
        match signal {
            Some(signal) => kill_process(Pid::from_child(&child), signal).unwrap(),
            // too short
            None => std::io::Write::write_all(&mut seen, b"x\r").unwrap(),
        }
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), signal.map(Signal::as_raw), "{ended:?}");
        assert!(echoes(&own), "after {signal:?}");
    }
    assert_eq!(session.ok(&["zfs", "list", "-H", "-o", "name"]), "tank\ntank/e\n");
    session.ok(&["zpool", "destroy", "tank"]);
}

/// A pool `t` on the file `a`, with `t/e`, whose key is in the file `key`.
fn key_in_a_file() -> (tempfile::TempDir, Session) {
    let (dir, s) = (tempfile::tempdir().unwrap(), Session::empty());
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("key"), [7; 32]).unwrap();
    let location = format!("keylocation=file://{}", path("key"));
    s.ok(&["zpool", "create", "-m", "none", "--size", "96M", "t", &path("a")]);
    s.ok(&["zfs", "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", &location, "t/e"]);
    (dir, s)
}

/// A pool may name a pipe without a writer as the location of its key: commands that did not ask for the key do not
/// block on it.
#[test]
fn a_key_in_a_pipe_keeps_nobody_waiting_who_did_not_ask_for_it() {
    let (dir, s) = key_in_a_file();
    let path = |name: &str| dir.path().join(name).display().to_string();
    assert_eq!(s.feed(&["put", "t/e:/f"], b"secret").code, 0);
    s.ok(&["zpool", "export", "t"]);
    std::fs::remove_file(path("key")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path("key")).status().unwrap().success());
    s.ok(&["zpool", "import", "-d", &path("a"), "t"]);
    for verb in ["ls", "cat"] {
        let mut look = std::process::Command::new("timeout");
        look.args(["60", env!("CARGO_BIN_EXE_zuse"), verb, "t/e:/f"]).env("ZUSE_STATE", s.state());
        let looked = look.output().unwrap();
        assert_eq!((looked.status.code(), &*looked.stdout), (Some(1), &b""[..]), "{verb}: {looked:?}");
    }
    // a command that asks for the key reads it
    let given = std::thread::spawn({
        let key = path("key");
        move || std::fs::write(key, [7; 32]).unwrap()
    });
    s.ok(&["zfs", "load-key", "t/e"]);
    given.join().unwrap();
    assert_eq!(s.ok(&["cat", "t/e:/f"]), "secret");
}

/// The location of a key does not depend on the current name of its root: a command may be killed between a rename, or
/// a promotion, and the record of it.
#[test]
fn a_key_is_found_under_a_new_name_and_a_new_root() {
    let (_dir, s) = key_in_a_file();
    s.ok(&["zfs", "snapshot", "t/e@s"]);
    s.ok(&["zfs", "clone", "t/e@s", "t/c"]);
    let record = || {
        let files = std::fs::read_dir(s.state()).unwrap().map(|entry| entry.unwrap().path());
        files.into_iter().find(|path| path.extension().is_some_and(|e| e == "json")).unwrap()
    };
    let before = std::fs::read(record()).unwrap();
    s.ok(&["zfs", "promote", "t/c"]);
    s.ok(&["zfs", "rename", "t/e", "t/f"]);
    std::fs::write(record(), before).unwrap();
    for name in ["t/c", "t/f"] {
        assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "keystatus", name]), "available\n");
    }
    // unloaded, it is unloaded
    s.ok(&["zfs", "unload-key", "t/c"]);
    assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "keystatus", "t/f"]), "unavailable\n");
}

#[test]
fn a_key_that_another_process_uses_is_not_unloaded() {
    let (session, dir) = pool();
    let other = vdev::FileDevice::open_read_write(&dir.path().join("a")).unwrap();
    session.fails(&["-o", "busy_wait=1", "zfs", "unload-key", "tank/e"], 255, "pool is busy");
    assert_eq!(status(&session, "tank/e"), "available");
    // a check only warns that it is not in the history
    let checked = session.feed(&["zfs", "load-key", "-n", "tank/e"], PASS);
    assert!(
        checked.code == 0 && checked.err.contains("the history of 'tank' does not tell of its keys"),
        "{checked:?}"
    );
    drop(other);
    session.ok(&["zfs", "unload-key", "tank/e"]);
    // one of two fails: the command has no place in the history, and what was done has
    create(&session, "tank/second");
    session.ok(&["zfs", "unload-key", "tank/second"]);
    let loaded = session.feed(&["zfs", "load-key", "-a"], &[PASS, b"wrong horse\n"].concat());
    assert_eq!(loaded.code, 255);
    let history = session.ok(&["zpool", "history", "-i", "tank"]);
    let lines = |end: &str| history.lines().filter(|line| line.ends_with(end)).count();
    assert_eq!((lines("zfs load-key -a"), lines(" ioctl load-key")), (0, 1), "{history}");
}
