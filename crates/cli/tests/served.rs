//! Commands that a server carries out do, print and answer what they do where there is none.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/lines.rs"]
mod lines;

#[path = "support/terminal.rs"]
mod terminal;

#[path = "support/until.rs"]
mod until;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use terminal::{await_words, echoes, terminal};
use until::{until, until_served};

/// A state folder, and a folder with images where commands run.
struct World {
    dir: tempfile::TempDir,
    server: Option<Child>,
}

/// What a command line left.
#[derive(Debug, PartialEq)]
struct Ran {
    status: Option<i32>,
    out: String,
    err: String,
}

impl World {
    fn new() -> World {
        let world = World { dir: tempfile::tempdir().unwrap(), server: None };
        for folder in ["state", "here", "bin"] {
            std::fs::create_dir(world.path(folder)).unwrap();
        }
        for tool in ["zfs", "zpool", "zuse"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_zuse"), world.path("bin").join(tool)).unwrap();
        }
        for image in ["disk.img", "log.img"] {
            std::fs::File::create(world.path("here").join(image)).unwrap().set_len(128 << 20).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command.env("ZUSE_STATE", self.path("state")).env("TZ", "UTC").env("PATH", path).current_dir(self.path("here"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Begins to serve; ends with the world.
    fn serve(&mut self) {
        self.serve_with(&[]);
    }

    fn serve_with(&mut self, options: &[&str]) {
        self.serve_as(&[&["serve"], options].concat());
    }

    fn serve_as(&mut self, words: &[&str]) {
        let mut command = self.command(env!("CARGO_BIN_EXE_zuse"));
        let child = command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(child.spawn().unwrap());
        until_served(&self.path("state").join("server.socket"));
    }

    /// Runs a line of the shell.
    fn run(&self, line: &str, input: &str) -> Ran {
        let mut child = self.command("sh").arg("-c").arg(line).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // a command that ends early does not read it
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let done = child.wait_with_output().unwrap();
        let here = self.dir.path().canonicalize().unwrap().display().to_string();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&here, "WORLD");
        Ran { status: done.status.code(), out: text(&done.stdout), err: text(&done.stderr) }
    }

    /// A served world with a pool `t`, and the stream of a snapshot `t/fs@one` of a few megabytes.
    fn with_stream() -> (World, Vec<u8>) {
        let mut world = World::new();
        world.serve();
        world.ok("zpool create -O mountpoint=none t disk.img && zfs create t/fs");
        world.ok("head -c 6000000 /dev/urandom | zuse put t/fs:/f && zfs snapshot t/fs@one && zfs send t/fs@one > one");
        let stream = std::fs::read(world.path("here").join("one")).unwrap();
        assert!(stream.len() > 6_000_000);
        (world, stream)
    }

    /// Begins a tool, without a shell.
    fn begin(&self, tool: &str, args: &[&str]) -> Child {
        self.command(self.path("bin").join(tool).to_str().unwrap()).args(args).spawn().unwrap()
    }

    /// Begins to receive `t/copy`, of which half a stream has come.
    fn half_received(&self, stream: &[u8]) -> Child {
        let mut receive = self.begin("zfs", &["receive", "t/copy"]);
        receive.stdin.as_mut().unwrap().write_all(&stream[..stream.len() / 2]).unwrap();
        receive
    }

    fn ok(&self, line: &str) -> String {
        let ran = self.run(line, "");
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{line}: {ran:?}");
        ran.out
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(Pid::from_child(&server), Signal::TERM);
            let _ = server.wait();
        }
    }
}

/// A text without its numbers, which are those of a pool.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' | '.' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            ' ' if out.ends_with(' ') => {}
            c => out.push(c),
        }
    }
    // sizes with and without a unit
    ["K", "M", "G", "B"].iter().fold(out, |out, unit| out.replace(&format!("#{unit}"), "#"))
}

#[test]
fn each_command_is_what_it_is_without_a_server() {
    let (alone, mut served) = (World::new(), World::new());
    served.serve();
    for (n, (line, input)) in lines::ALL.iter().enumerate() {
        let (before, after) = (alone.run(line, input), served.run(line, input));
        assert!(before.status.is_some_and(|status| status < 100 || status == 255), "line {n}: {line}: {before:?}");
        let shown = |ran: &Ran| (ran.status, without_numbers(&ran.out), without_numbers(&ran.err));
        assert_eq!(shown(&after), shown(&before), "line {n}: {line}");
    }
    assert!(served.server.as_mut().unwrap().try_wait().unwrap().is_none(), "the server has ended");
}

/// Ends a program by a signal; the signal that it died of, or its status.
fn end(child: &mut Child, signal: Signal) -> (Option<i32>, Option<i32>) {
    kill_process(Pid::from_child(child), signal).unwrap();
    let status = child.wait().unwrap();
    (status.signal(), status.code())
}

#[test]
fn a_receive_keeps_nobody_waiting() {
    let (world, stream) = World::with_stream();
    let mut receive = world.half_received(&stream);
    for n in 0..5 {
        world.ok(&format!("zfs snapshot t/fs@{n} && zfs list -H -t snapshot -o name t/fs@{n}"));
    }
    world.ok("zuse put t/fs:/g < one; zfs set a:b=c t/fs; zpool status t");
    let busy = world.run("zpool export t", "");
    assert_eq!((busy.status, busy.err.as_str()), (Some(1), "cannot export 't': pool is busy\n"));
    assert!(receive.try_wait().unwrap().is_none(), "it still receives");
    let mut stdin = receive.stdin.take().unwrap();
    stdin.write_all(&stream[stream.len() / 2..]).unwrap();
    drop(stdin);
    assert!(receive.wait().unwrap().success());
    world.ok("zfs list t/copy@one && zfs diff t/copy@one && zpool export t");
}

#[test]
fn a_signal_ends_a_command_and_its_client() {
    let (world, stream) = World::with_stream();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut receive = world.half_received(&stream);
        // it has begun
        until("the start of a receive", || world.run("zfs list t/copy", "").status == Some(0));
        assert_eq!(end(&mut receive, signal), (Some(signal.as_raw()), None));
        let mut watch = world.begin("zpool", &["iostat", "t", "1"]);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(end(&mut watch, signal), (Some(signal.as_raw()), None));
    }
    // a client that is gone without a word
    let mut receive = world.half_received(&stream);
    until("the start of a receive", || world.run("zfs list t/copy", "").status == Some(0));
    assert_eq!(end(&mut receive, Signal::KILL), (Some(9), None));
    // nothing of them is left, and nothing has the pool
    until("the end of a receive", || world.run("zfs list t/copy", "").status == Some(1));
    let mut watch = world.begin("zpool", &["iostat", "t", "1"]);
    std::thread::sleep(Duration::from_millis(200));
    world.ok("zpool export t");
    assert_eq!(watch.wait().unwrap().code(), Some(1), "it sees that the pool is gone");
}

#[test]
fn a_server_that_is_killed_loses_nothing_that_was_answered() {
    let (mut world, stream) = World::with_stream();
    let receive = world.half_received(&stream);
    world.ok("zfs snapshot t/fs@kept");
    let mut server = world.server.take().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let done = receive.wait_with_output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(err.starts_with("the server ended before it answered"), "{err}");
    // its socket is left, and nobody listens
    assert!(world.path("state").join("server.socket").exists());
    world.ok("zfs list t/fs@kept && zfs snapshot t/fs@embedded");
    world.serve();
    world.ok("zfs list t/fs@embedded && zfs destroy t/fs@kept");
}

#[test]
fn a_scrub_goes_on_in_the_next_server() {
    let (mut world, _) = World::with_stream();
    let stop = |world: &mut World| {
        world.ok("zuse serve --stop");
        assert!(world.server.take().unwrap().wait().unwrap().success());
    };
    stop(&mut world);
    world.serve_as(&["-o", "vdev_latency_ms=50", "-o", "vdev_latency_depth=1", "serve"]);
    world.ok("zpool scrub t");
    stop(&mut world);
    world.serve();
    world.ok("timeout 60 zpool wait -t scrub t");
    let status = world.ok("zpool status t");
    assert!(status.contains("scrub repaired 0B") && status.contains("with 0 errors"), "{status}");
}

/// Listens in the place of a server, says `hello` to each client, and answers a command line with a status.
fn pretend(socket: &std::path::Path, hello: Vec<u8>, status: u64) {
    use serve::frame::Kind;
    use serve::message::{Answer, Bounds};
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let answer_all = move || {
        for stream in listener.incoming().map(Result::unwrap) {
            // a client may be gone
            let _sent = (&stream).write_all(&hello);
            if let Ok(frame) = serve::wire::receive(&stream, Bounds::OWNER.body, None) {
                let mut out = nvlist::NvList::new();
                out.insert("status", status);
                let body = Answer::done(out).encode().unwrap();
                let _sent = serve::wire::send(&stream, Kind::Answer, frame.header.id, &body, &[]);
            }
        }
    };
    std::thread::Builder::new().spawn(answer_all).unwrap();
}

#[test]
fn a_server_of_another_version_is_told_of() {
    use serve::frame::{Header, Kind};
    let own = env!("CARGO_PKG_VERSION");
    let body = serve::message::Hello { version: "9.8.7".to_owned(), process: 1 }.encode().unwrap();
    let header = Header { kind: Kind::Hello as u8, descriptors: 0, id: 0, len: body.len() as u32 }.encode();
    let hello = [&header[..], &body].concat();
    // it speaks the same protocol: it carries commands out, and a failure may be its version's
    for (status, note) in [(0, ""), (2, "note: the server carried this out, which is zuse 9.8.7; this is zuse ")] {
        let world = World::new();
        pretend(&world.path("state").join("server.socket"), hello.clone(), status);
        let ran = world.run("zfs list", "");
        assert!(ran.status == Some(status as i32) && ran.err.starts_with(note), "{ran:?}");
        assert_eq!((ran.err.is_empty(), ran.err.contains(own)), (note.is_empty(), !note.is_empty()), "{ran:?}");
    }
    // it speaks another one: it has the pools, and nobody goes past it
    let mut other = hello;
    other[4] += 1;
    let world = World::new();
    pretend(&world.path("state").join("server.socket"), other, 0);
    for line in ["zfs list", "zfs mount -a", "zuse serve --stop"] {
        let ran = world.run(line, "");
        let says = format!(
            " speaks version 2 of its protocol, and zuse {own} speaks version 1; end it with the 'zuse serve --stop' of"
        );
        assert!(ran.status == Some(1) && ran.err.contains(&says), "{line}: {ran:?}");
        assert!(ran.err.contains(&format!("(process {})", std::process::id())), "{ran:?}");
    }
}

#[test]
fn a_server_of_another_user_is_passed_over_also_if_it_is_of_another_version() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let open = |path: PathBuf, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let (world, none) = (World::new(), World::new());
    let socket = world.path("state").join("server.socket");
    // a header of another version
    pretend(&socket, [&b"ZSRV\x07"[..], &[0; 19]].concat(), 0);
    open(socket, 0o777);
    let mut ran = Vec::new();
    for world in [&world, &none] {
        for folder in ["", "state", "here", "bin"] {
            open(world.path(folder), 0o755);
        }
        ran.push(world.run("setpriv --reuid 65534 --regid 65534 --clear-groups zfs list", ""));
    }
    // as where there is none
    assert_eq!(ran[0], ran[1]);
    // it is root's own
    assert!(world.run("zfs list", "").err.contains(" speaks version 7 of its protocol, and zuse "));
}

#[test]
fn clients_work_at_once() {
    let (world, _) = World::with_stream();
    std::thread::scope(|scope| {
        for client in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for n in 0..10 {
                    world.ok(&format!("zfs snapshot t/fs@{client}-{n}; zfs list -H -o name -t snapshot -r t"));
                }
            });
        }
    });
    assert_eq!(world.ok("zfs list -H -o name -t snapshot -r t").lines().count(), 41);
    assert_eq!(world.ok("zpool history t").lines().filter(|line| line.contains("zfs snapshot")).count(), 41);
}

#[test]
fn a_key_is_asked_for_at_the_clients_terminal() {
    let (world, _) = World::with_stream();
    let (mut person, program) = terminal();
    let side = || Stdio::from(program.try_clone().unwrap());
    let mut command = world.command(world.path("bin").join("zfs").to_str().unwrap());
    command.args(["create", "-o", "encryption=on", "-o", "keyformat=passphrase", "t/sealed"]);
    let mut create = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    await_words(&mut person, "Enter new passphrase:");
    assert!(!echoes(&program));
    assert_eq!(end(&mut create, Signal::INT), (Some(2), None));
    until("what is typed is shown again", || echoes(&program));
    let mut create = command.spawn().unwrap();
    for question in ["Enter new passphrase:", "Re-enter new passphrase:"] {
        await_words(&mut person, question);
        person.write_all(b"a long word\n").unwrap();
    }
    assert!(create.wait().unwrap().success());
    assert_eq!(world.ok("zfs get -H -o value keystatus t/sealed"), "available\n");
    world.ok("zfs unload-key t/sealed");
}

#[test]
fn a_server_ends_when_told_or_when_nobody_needs_it() {
    let (mut world, _) = World::with_stream();
    world.ok("zuse serve --stop");
    assert!(world.server.take().unwrap().wait().unwrap().success());
    let none = world.run("zuse serve --stop", "");
    assert_eq!((none.status, none.err.as_str()), (Some(1), "zuse serve: there is no server\n"));
    let elsewhere = world.path("elsewhere").display().to_string();
    world.serve_with(&["--on-demand"]);
    let mut other = world.command(env!("CARGO_BIN_EXE_zuse"));
    let mut other = other.args(["serve", "--state", &elsewhere]).spawn().unwrap();
    until_served(&world.path("elsewhere").join("server.socket"));
    world.ok("zfs list t/fs");
    assert!(world.server.take().unwrap().wait().unwrap().success(), "nobody needs it any more");
    world.ok(&format!("zuse serve --stop --state {elsewhere}"));
    assert!(other.wait().unwrap().success());
}
