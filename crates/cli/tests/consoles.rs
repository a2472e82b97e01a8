//! Commands with consoles of their own, run at once in threads of one process: each prints what the program prints for the same command line.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/terminal.rs"]
mod terminal;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::termios::{Winsize, tcsetwinsize};
use terminal::{await_words, echoes, terminal};
use zuse_cli::{ClientSignals, Console, Signals, run};

/// How often commands meet.
const ROUNDS: usize = 20;

/// A folder of state, one of images, and one for each client.
struct World {
    dir: tempfile::TempDir,
}

/// What a command left.
#[derive(Debug, PartialEq)]
struct Ran {
    status: i32,
    out: String,
    err: String,
}

/// A command line, with what it is given.
#[derive(Clone)]
struct Asked {
    args: Vec<OsString>,
    dir: PathBuf,
    environment: BTreeMap<OsString, OsString>,
    input: Vec<u8>,
    /// Nobody reads standard output.
    unread: bool,
}

/// Runs a test again in a process of its own whose site is a folder of its own: the site is the process's. Returns whether this is that process.
fn in_own_site(name: &str) -> bool {
    if std::env::var_os("ZUSE_STATE").is_some_and(|state| Path::new(&state).ends_with("consoles.state")) {
        return true;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([name, "--exact", "--nocapture"]).env("ZUSE_STATE", dir.path().join("consoles.state"));
    again.env("TZ", "UTC").env_remove("POSIXLY_CORRECT");
    assert!(again.status().unwrap().success(), "{name} failed in its own process");
    false
}

impl World {
    /// A pool `t` with some files and properties.
    fn new() -> World {
        let world = World { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(world.folder("a")).unwrap();
        std::fs::create_dir(world.folder("b")).unwrap();
        File::create(world.folder("a").join("disk.img")).unwrap().set_len(128 << 20).unwrap();
        for line in [
            "zpool create -O mountpoint=none t disk.img",
            "zfs create -o mountpoint=none t/fs",
            "zfs set a:b=one\x1b[31mtwo t/fs",
        ] {
            let ran = world.embedded(&world.asked("a", line));
            assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{line}");
        }
        let put = Asked { input: vec![b'x'; 300_000], ..world.asked("a", "put t/fs:/big") };
        assert_eq!(world.embedded(&put).status, 0);
        std::fs::write(world.folder("a").join("in"), "from a").unwrap();
        std::fs::write(world.folder("b").join("in"), "from b").unwrap();
        world
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command line in a client's folder.
    fn asked(&self, folder: &str, line: &str) -> Asked {
        let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        environment.insert("TERM".into(), "xterm".into());
        Asked {
            args: line.split(' ').map(OsString::from).collect(),
            dir: self.folder(folder),
            environment,
            input: Vec::new(),
            unread: false,
        }
    }

    /// Runs the program.
    fn embedded(&self, asked: &Asked) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
        command.args(&asked.args).current_dir(&asked.dir).env_clear().envs(&asked.environment);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        command.stdout(if asked.unread { Stdio::from(pipe().unwrap().1) } else { Stdio::piped() });
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(&asked.input).unwrap();
        let done = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { status: done.status.code().unwrap(), out: text(done.stdout), err: text(done.stderr) }
    }
}

/// Reads all that comes.
fn reader<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    mut from: impl Read + Send + 'scope,
) -> ScopedJoinHandle<'scope, String> {
    scope.spawn(move || {
        let mut all = String::new();
        from.read_to_string(&mut all).unwrap();
        all
    })
}

fn console(asked: &Asked, stdin: OwnedFd, stdout: OwnedFd, stderr: OwnedFd, signals: &Arc<ClientSignals>) -> Console {
    let process = Console::of_process().unwrap();
    Console {
        stdin,
        stdout,
        stderr,
        directory: Some(asked.dir.clone()),
        environment: asked.environment.clone(),
        user: process.user,
        umask: process.umask,
        signals: Signals::OfClient(signals.clone()),
        machine: None,
        mounts: None,
    }
}

fn argv(asked: &Asked) -> Vec<OsString> {
    std::iter::once(OsString::from("zuse")).chain(asked.args.clone()).collect()
}

/// Runs a command line in this process.
fn served(asked: &Asked) -> Ran {
    thread::scope(|scope| {
        let ((input, mut feed), (from_out, out), (from_err, err)) = (pipe().unwrap(), pipe().unwrap(), pipe().unwrap());
        let given = asked.input.clone();
        scope.spawn(move || feed.write_all(&given));
        let said = Some(from_out).filter(|_| !asked.unread).map(|from_out| reader(scope, from_out));
        let complained = reader(scope, from_err);
        let signals = Arc::new(ClientSignals::new().unwrap());
        let status = run(console(asked, input.into(), out.into(), err.into(), &signals), &argv(asked));
        let out = said.map_or(String::new(), |said| said.join().unwrap());
        Ran { status: status.into(), out, err: complained.join().unwrap() }
    })
}

#[test]
fn commands_at_once_print_what_each_prints_alone() {
    if !in_own_site("commands_at_once_print_what_each_prints_alone") {
        return;
    }
    let world = World::new();
    let mut zone = world.asked("b", "ls -l t/fs:/");
    zone.environment.insert("TZ".into(), "EST5".into());
    let mut short = world.asked("a", "zpool status -c upath t");
    short.environment.insert("ZPOOL_SCRIPTS_ENABLED".into(), "0".into());
    let mut named = world.asked("b", "zpool status t");
    named.environment.insert("ZPOOL_VDEV_NAME_GUID".into(), "1".into());
    let unread = Asked { unread: true, ..world.asked("a", "zfs get all t/fs") };
    let lines = [
        zone,
        short,
        named,
        unread,
        world.asked("a", "ls -l t/fs:/"),
        world.asked("a", "zfs get -H a:b t/fs"),
        world.asked("b", "zfs get a:b t/fs"),
        world.asked("a", "zdb -l disk.img"),
        world.asked("b", "zdb -l disk.img"),
        world.asked("a", "zpool labelclear disk.img"),
        world.asked("b", "zpool labelclear in"),
        world.asked("b", "cat t/fs:/big"),
        world.asked("b", "cp t/fs:/none out"),
        world.asked("b", "cp t/fs:/big none/out"),
        world.asked("b", "tar -f none/out t/fs:/"),
        world.asked("a", "ls -d disk.img t/fs:/"),
        world.asked("b", "zstream dump in"),
        world.asked("b", "zfs nonsense"),
        world.asked("b", "zpool create -n u none.img"),
        world.asked("a", "help zfs"),
    ];
    let alone: Vec<Ran> = lines.iter().map(|asked| world.embedded(asked)).collect();
    assert_ne!(alone[0].out, alone[4].out, "a zone is seen");
    assert!(alone[5].out.contains('\x1b') && !alone[6].out.contains('\x1b'));
    assert_eq!((alone[3].status, alone[3].err.as_str()), (1, ""));
    for (asked, alone) in lines.iter().zip(&alone) {
        assert_eq!(served(asked), *alone, "{:?}", asked.args);
    }
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for first in 0..4 {
            let (lines, alone, start) = (&lines, &alone, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    let n = (first * 5 + round) % lines.len();
                    assert_eq!(served(&lines[n]), alone[n], "{:?}", lines[n].args);
                }
            });
        }
    });
}

#[test]
fn paths_and_changes_are_each_clients_own() {
    if !in_own_site("paths_and_changes_are_each_clients_own") {
        return;
    }
    let world = World::new();
    let ok = |folder: &str, line: &str| {
        let ran = served(&world.asked(folder, line));
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{line}");
        ran.out
    };
    thread::scope(|scope| {
        for folder in ["a", "b"] {
            scope.spawn(move || {
                for n in 0..4 {
                    ok(folder, &format!("zfs create t/{folder}{n}"));
                    ok(folder, &format!("cp -q in t/{folder}{n}:/copy"));
                    ok(folder, &format!("cp -q t/{folder}{n}:/copy out{n}"));
                    ok(folder, &format!("tar -q -f out.tar t/{folder}{n}:/"));
                }
            });
        }
    });
    for folder in ["a", "b"] {
        let at = |name: &str| world.folder(folder).join(name);
        for n in 0..4 {
            assert_eq!(std::fs::read_to_string(at(&format!("out{n}"))).unwrap(), format!("from {folder}"));
        }
        assert!(at("out.tar").metadata().unwrap().len() > 512);
    }
    let history = ok("a", "zpool history t");
    assert!(history.contains("zfs create t/a3\n") && history.contains("zfs create t/b3\n"), "{history}");
    // what is remembered of a device is its full path
    File::create(world.folder("b").join("more.img")).unwrap().set_len(128 << 20).unwrap();
    ok("b", "zpool create -O mountpoint=none u more.img");
    assert!(ok("a", "zpool status -P u").contains(world.folder("b").join("more.img").to_str().unwrap()));
    ok("a", "zpool export u");
    let missing = served(&world.asked("a", "zpool import -d more.img u"));
    assert_eq!((missing.status, missing.err.as_str()), (1, "cannot import 'u': no such pool available\n"));
    ok("b", "zpool import -d more.img u");
    // another process exports it and imports it again: what is noted of it is noted for all
    for line in ["zpool export u", "zpool import -d more.img u"] {
        assert_eq!(world.embedded(&world.asked("b", line)).status, 0);
    }
    let guid = ok("a", "zpool get -H -o value guid u");
    let noted = || {
        std::fs::read(Path::new(&std::env::var_os("ZUSE_STATE").unwrap()).join(format!("{}.left", guid.trim())))
            .unwrap()
    };
    let before = noted();
    ok("a", "zfs create u/later");
    assert_ne!(noted(), before);
    assert!(ok("a", "zpool status -P u").contains(world.folder("b").join("more.img").to_str().unwrap()));
}

#[test]
fn an_interrupt_ends_one_command_alone() {
    if !in_own_site("an_interrupt_ends_one_command_alone") {
        return;
    }
    let world = World::new();
    for line in ["zpool iostat t 1000", "zpool events -f", "zfs receive t/new", "put t/fs:/new"] {
        let asked = world.asked("a", line);
        let ((input, feed), (from_out, out), (from_err, err)) = (pipe().unwrap(), pipe().unwrap(), pipe().unwrap());
        let signals = Arc::new(ClientSignals::new().unwrap());
        let console = console(&asked, input.into(), out.into(), err.into(), &signals);
        // a file that is read as it is, is not interrupted
        let hears = line != "put t/fs:/new";
        thread::scope(|scope| {
            let command = scope.spawn(|| run(console, &argv(&asked)));
            thread::sleep(Duration::from_millis(500));
            assert!(!command.is_finished(), "{line}");
            let begun = Instant::now();
            signals.interrupt();
            assert_eq!(served(&world.asked("b", "zfs list -H -o name t")).out, "t\n");
            if !hears {
                drop(feed);
            }
            command.join().unwrap();
            assert!(begun.elapsed() < Duration::from_secs(60), "{line}");
        });
        let mut said = String::new();
        (from_err, from_out).0.read_to_string(&mut said).unwrap();
        assert_eq!(said, "", "{line}");
    }
}

/// The same with a window.
fn window() -> (File, OwnedFd) {
    let (person, program) = terminal();
    tcsetwinsize(&person, Winsize { ws_row: 30, ws_col: 70, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (person, program.into())
}

/// All that comes to a terminal until its programs have left.
fn drawn(mut person: File) -> String {
    let (mut all, mut piece) = (Vec::new(), [0; 4096]);
    // a terminal without programs is an error
    while let Ok(n @ 1..) = person.read(&mut piece) {
        all.extend_from_slice(&piece[..n]);
    }
    String::from_utf8(all).unwrap()
}

/// The kinds of escapes, and what follows the last: how often a bar is drawn differs from run to run, and so does the speed that it tells.
fn kinds(drawn: &str) -> (Vec<String>, String) {
    let mut kinds: Vec<String> = drawn.split('\x1b').skip(1).map(|part| part.chars().take(3).collect()).collect();
    kinds.sort();
    kinds.dedup();
    (kinds, drawn.rsplit('\x1b').next().unwrap_or_default().to_owned())
}

#[test]
fn a_bar_is_drawn_on_the_clients_terminal() {
    if !in_own_site("a_bar_is_drawn_on_the_clients_terminal") {
        return;
    }
    let world = World::new();
    let asked = world.asked("a", "cp t/fs:/big out");
    let (person, program) = window();
    let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
    command.args(&asked.args).current_dir(&asked.dir).env_clear().envs(&asked.environment);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(program).status().unwrap();
    // the command still has the descriptor
    drop(command);
    assert!(status.success());
    let embedded = drawn(person);
    let (person, program) = window();
    let null = || OwnedFd::from(File::options().read(true).write(true).open("/dev/null").unwrap());
    let signals = Arc::new(ClientSignals::new().unwrap());
    assert_eq!(run(console(&asked, null(), null(), program, &signals), &argv(&asked)), 0);
    let served = drawn(person);
    assert!(embedded.contains("\x1b[2K") && embedded.contains("copied 1 files, 300000 bytes of data"), "{embedded:?}");
    assert_eq!(kinds(&served), kinds(&embedded), "{served:?}\n{embedded:?}");
    // a terminal that cannot move its cursor has no bar
    let mut dumb = world.asked("a", "cp t/fs:/big out");
    dumb.environment.insert("TERM".into(), "dumb".into());
    let (person, program) = window();
    assert_eq!(run(console(&dumb, null(), null(), program, &signals), &argv(&dumb)), 0);
    assert_eq!(drawn(person), "copied 1 files, 300000 bytes of data\r\n");
}

#[test]
fn a_key_is_typed_at_the_clients_terminal() {
    if !in_own_site("a_key_is_typed_at_the_clients_terminal") {
        return;
    }
    let world = World::new();
    let asked = world.asked("a", "zfs create -o encryption=on -o keyformat=passphrase t/locked");
    for interrupted in [true, false] {
        let (mut person, program) = terminal();
        let side = || OwnedFd::from(program.try_clone().unwrap());
        let signals = Arc::new(ClientSignals::new().unwrap());
        let console = console(&asked, side(), side(), side(), &signals);
        thread::scope(|scope| {
            let command = scope.spawn(|| run(console, &argv(&asked)));
            await_words(&mut person, "Enter new passphrase:");
            assert!(!echoes(&program));
            match interrupted {
                true => signals.interrupt(),
                false => {
                    person.write_all(b"correct horse\n").unwrap();
                    await_words(&mut person, "Re-enter new passphrase:");
                    person.write_all(b"correct horse\n").unwrap();
                }
            }
            assert_eq!(command.join().unwrap(), u8::from(interrupted));
        });
        assert!(echoes(&program));
        let there = served(&world.asked("b", "zfs list -H -o name t/locked"));
        assert_eq!(there.status, i32::from(interrupted), "{there:?}");
    }
}
