//! `zuse nbd`, with the clients that people use and one that kills it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../../nbd/tests/support/client.rs"]
mod client;
mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use client::{BLOCK_STATUS, Client, FLUSH, READ, Reply, TRIM, WRITE};
use oracle::judge;
use rustix::process::{Pid, Signal, kill_process};
use support::Session;

const FUA: u16 = 1;
const BLOCK: usize = 4096;

/// A pool `t` on one device, with its folder.
struct Lab {
    session: Session,
    dir: tempfile::TempDir,
}

/// A process that serves volumes of it.
struct Served {
    child: Child,
    uris: Vec<String>,
}

impl Lab {
    fn new(mib: u64) -> Lab {
        let lab = Lab { session: Session::empty(), dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(lab.path("pool")).unwrap();
        let device = lab.path("pool/a");
        std::fs::File::create(&device).unwrap().set_len(mib << 20).unwrap();
        lab.session.ok(&["zpool", "create", "-m", "none", "t", device.to_str().unwrap()]);
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// Serves on the socket, once it can be connected to.
    fn serve(&self, args: &[&str]) -> Served {
        let socket = self.socket();
        self.serve_at(&[&["--unix", socket.to_str().unwrap()], args].concat(), 1)
    }

    fn serve_at(&self, args: &[&str], sockets: usize) -> Served {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
        command.arg("nbd").args(args).env("ZUSE_STATE", self.session.state());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let uris: Vec<String> = said.lines().take(sockets).map(Result::unwrap).collect();
        if uris.len() < sockets {
            panic!("{args:?}: {:?}", child.wait_with_output());
        }
        Served { child, uris }
    }

    fn client(&self, name: &str) -> Client {
        Client::of(&self.socket(), name, true)
    }

    /// Ends with the pool in order.
    fn judge(&self) {
        self.session.ok(&["zpool", "export", "t"]);
        judge::no_leaks(&self.path("pool"), "t");
    }
}

impl Served {
    fn uri(&self, export: &str) -> String {
        self.uris[0].replacen("///", &format!("///{export}"), 1)
    }

    /// Ends it by a signal; it says nothing.
    fn end(self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Runs a client, whose output is returned; `None` if it is not installed.
///
/// # Panics
/// If it fails, and in CI if it is not installed.
fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(args).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "{program} is missing; scripts/setup installs it");
            eprintln!("no {program} here: skipped");
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// An image whose second half begins with a hole.
fn image(path: &Path, mib: u64) -> Vec<u8> {
    let mut seed = mib;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed.to_be_bytes()
    };
    let mut image: Vec<u8> = (0..(mib << 20) / 8).flat_map(|_| next()).collect();
    let half = image.len() / 2;
    image[half..half + (8 << 20)].fill(0);
    std::fs::write(path, &image).unwrap();
    image
}

#[test]
fn images_go_in_and_out() {
    let lab = Lab::new(384);
    let [source, back, qcow] = ["source", "back", "qcow"].map(|name| lab.path(name).to_str().unwrap().to_owned());
    let content = image(Path::new(&source), 64);
    for name in ["t/v", "t/w"] {
        lab.session.ok(&["zfs", "create", "-s", "-V", "64M", name]);
    }
    let served = lab.serve(&["t/v", "t/w"]);
    let (v, w) = (served.uri(""), served.uri("t/w"));
    let Some(_) = run("nbdcopy", &["--flush", &source, &v]) else { return };
    run("nbdcopy", &[&v, &back]);
    assert!(std::fs::read(&back).unwrap() == content);
    // 32 MiB of data, 8 of a hole, data
    let map = run("nbdinfo", &["--map", &v]).unwrap();
    let words: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let rows: Vec<&[&str]> = words.iter().map(|row| &row[..4]).collect();
    let (data, hole) = (["0", "data"], ["3", "hole,zero"]);
    let expected = [("0", "33554432", data), ("33554432", "8388608", hole), ("41943040", "25165824", data)];
    let expected: Vec<[&str; 4]> = expected.iter().map(|(at, len, [kind, name])| [*at, *len, *kind, *name]).collect();
    assert_eq!(rows, expected, "{map}");
    let info: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", "--list", &v]).unwrap()).unwrap();
    let exports = info["exports"].as_array().unwrap();
    assert_eq!(
        exports.iter().map(|export| export["export-name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["t/v", "t/w"]
    );
    let first = &exports[0];
    assert_eq!(first["export-size"], 64 << 20);
    for flag in
        ["can_multi_conn", "can_fua", "can_flush", "can_trim", "can_zero", "can_fast_zero", "can_df", "can_cache"]
    {
        assert_eq!(first[flag], true, "{flag}: {info:#}");
    }
    assert_eq!((&first["is_read_only"], &first["block_size_preferred"]), (&false.into(), &16384.into()));

    run("qemu-img", &["convert", "-O", "qcow2", &v, &qcow]);
    run("qemu-img", &["compare", "-F", "qcow2", &source, &qcow]);
    run("qemu-img", &["convert", "-n", "-O", "raw", &qcow, &w]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &v, &w]);

    let mut client = lab.client("t/w");
    assert_eq!(client.call((TRIM, FUA), 0, 64 << 20, &[]), Reply::Done);
    assert_eq!(client.call((BLOCK_STATUS, 0), 0, 64 << 20, &[]), Reply::Status(vec![(64 << 20, 3)]));
    if run("mkfs.ext4", &["-q", "-F", "-d", "src", &back]).is_some() {
        run("nbdcopy", &["--flush", &back, &w]);
        std::fs::remove_file(&back).unwrap();
        run("nbdcopy", &[&w, &back]);
        run("e2fsck", &["-fn", &back]);
    }
    served.end(Signal::TERM);
    assert!(lab.session.run(&["zfs", "list", "-Ho", "name"]).out.contains("t/w"));
    assert!(!lab.socket().exists());
    lab.judge();
}

#[test]
fn fio_verifies_what_it_has_written() {
    let lab = Lab::new(256);
    lab.session.ok(&["zfs", "create", "-s", "-V", "32M", "t/v"]);
    let served = lab.serve(&["t/v"]);
    let uri = format!("--uri={}", served.uri(""));
    let common =
        ["--name=x", "--ioengine=nbd", &uri, "--size=32m", "--verify=crc32c", "--verify_fatal=1", "--iodepth=16"];
    let aux = format!("--aux-path={}", lab.dir.path().display());
    for job in [
        ["--rw=randwrite", "--bs=4k", "--io_size=8m", "--fsync=64"],
        ["--rw=randwrite", "--bs=12k", "--io_size=16m", "--fsync=16"],
    ] {
        run("fio", &[&common[..], &job, &[&aux]].concat());
    }
    served.end(Signal::INT);
    lab.judge();
}

/// Blocks that one thread writes, and what it was told of them.
struct Written {
    /// Versions of the blocks that were sent, and those that a flush has covered.
    sent: Vec<AtomicU64>,
    flushed: Vec<AtomicU64>,
}

impl Written {
    fn new(blocks: usize) -> Written {
        let zeros = || (0..blocks).map(|_| AtomicU64::new(0)).collect();
        Written { sent: zeros(), flushed: zeros() }
    }

    /// Writes versions of blocks `first..first+16`, with flushes in between, until the server is gone.
    fn write(&self, client: &mut Client, first: usize, flushes: &AtomicU64) {
        let mut step = || -> Option<()> {
            let mut round = Vec::new();
            for (n, sent) in self.sent.iter().enumerate().skip(first).take(16) {
                let version = sent.fetch_add(1, Ordering::SeqCst) + 1;
                let block = version.to_be_bytes().repeat(BLOCK / 8);
                // the last one is covered by its own flag alone
                let is_last = n == first + 15;
                let flags = if is_last { FUA } else { 0 };
                try_call(client, (WRITE, flags), (n * BLOCK) as u64, &block)?;
                round.push((n, version));
                if is_last {
                    self.flushed[n].store(version, Ordering::SeqCst);
                }
            }
            try_call(client, (FLUSH, 0), 0, &[])?;
            round.iter().for_each(|(n, version)| self.flushed[*n].store(*version, Ordering::SeqCst));
            flushes.fetch_add(1, Ordering::SeqCst);
            Some(())
        };
        while step().is_some() {}
    }
}

/// Sends a request; `None` if the server is gone.
fn try_call(client: &mut Client, kind: (u16, u16), offset: u64, payload: &[u8]) -> Option<()> {
    use std::io::{Read, Write};
    let header = [&0x2560_9513u32.to_be_bytes()[..], &kind.1.to_be_bytes(), &kind.0.to_be_bytes(), &[7; 8]].concat();
    let range = [&offset.to_be_bytes()[..], &(payload.len() as u32).to_be_bytes()].concat();
    client.stream.write_all(&[&header, &range, payload].concat()).ok()?;
    let mut reply = [0; 16];
    client.stream.read_exact(&mut reply).ok()?;
    assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "{kind:?} failed");
    Some(())
}

#[test]
fn a_kill_after_a_flush_that_was_answered_loses_nothing() {
    let lab = Lab::new(256);
    lab.session.ok(&["zfs", "create", "-V", "16M", "t/v"]);
    let (threads, per_thread) = (3, 16);
    let written = Written::new(threads * per_thread);
    for round in 0..4u64 {
        let served = lab.serve(&["t/v"]);
        let mut client = lab.client("t/v");
        for n in 0..threads * per_thread {
            let block = client.read((n * BLOCK) as u64, BLOCK as u32);
            let found = u64::from_be_bytes(block[..8].try_into().unwrap());
            assert!(block == found.to_be_bytes().repeat(BLOCK / 8), "block {n} is torn");
            let [flushed, sent] = [&written.flushed[n], &written.sent[n]].map(|version| version.load(Ordering::SeqCst));
            assert!((flushed..=sent).contains(&found), "round {round}, block {n}: {found} of {flushed}..={sent}");
        }
        if round == 3 {
            served.end(Signal::TERM);
            break;
        }
        let flushes = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (written, flushes, lab) = (&written, &flushes, &lab);
                scope.spawn(move || {
                    let mut client = Client::of(&lab.socket(), "t/v", false);
                    written.write(&mut client, thread * per_thread, flushes);
                });
            }
            while flushes.load(Ordering::SeqCst) < 20 + 7 * round {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            served.kill();
        });
    }
    lab.judge();
}

/// A write: when it was sent and when it was answered, by one clock.
#[derive(Clone, Copy)]
struct Interval(u64, u64);

#[test]
fn connections_write_one_volume_and_each_block_is_the_last_of_its_writes() {
    const BLOCKS: usize = 64;
    let lab = Lab::new(256);
    lab.session.ok(&["zfs", "create", "-V", "1M", "-b", "16k", "t/v"]);
    let served = lab.serve(&["t/v"]);
    let clock = AtomicU64::new(1);
    // for each block the writes of it, by their stamps
    let log: Vec<Mutex<Vec<(u64, Interval)>>> = (0..BLOCKS).map(|_| Mutex::default()).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = |thread: u64| {
            let mut client = lab.client("t/v");
            let mut random = thread;
            for n in 0..300u64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let count = (random >> 33) as usize % 12 + 1;
                let first = (random >> 40) as usize % (BLOCKS - count);
                let stamp = thread << 32 | (n + 1);
                let data = stamp.to_be_bytes().repeat(count * BLOCK / 8);
                let begun = clock.fetch_add(1, Ordering::SeqCst);
                let flags = if n % 50 == 0 { FUA } else { 0 };
                assert_eq!(client.call((WRITE, flags), (first * BLOCK) as u64, data.len() as u32, &data), Reply::Done);
                let ended = clock.fetch_add(1, Ordering::SeqCst);
                log[first..first + count]
                    .iter()
                    .for_each(|of| of.lock().unwrap().push((stamp, Interval(begun, ended))));
            }
        };
        let reader = || {
            let mut client = lab.client("t/v");
            while !done.load(Ordering::SeqCst) {
                for block in client.read(0, (BLOCKS * BLOCK) as u32).chunks(BLOCK) {
                    assert!(block == block[..8].repeat(BLOCK / 8), "a block is torn");
                }
            }
        };
        let reader = scope.spawn(reader);
        let writers: Vec<_> = (1..=2).map(|thread| scope.spawn(move || writer(thread))).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::SeqCst);
        reader.join().unwrap();
    });
    let check = |client: &mut Client| {
        for (n, of) in log.iter().enumerate() {
            let block = client.read((n * BLOCK) as u64, BLOCK as u32);
            assert!(block == block[..8].repeat(BLOCK / 8), "block {n} is torn");
            let found = u64::from_be_bytes(block[..8].try_into().unwrap());
            let writes = of.lock().unwrap();
            let Some((_, last)) = writes.iter().find(|(stamp, _)| *stamp == found) else {
                assert!(found == 0 && writes.is_empty(), "block {n}: {found:x}");
                continue;
            };
            assert!(writes.iter().all(|(_, other)| other.0 < last.1), "block {n}: a later write is lost");
        }
    };
    check(&mut lab.client("t/v"));
    served.end(Signal::HUP);
    let served = lab.serve(&["-r", "t/v"]);
    check(&mut lab.client("t/v"));
    served.end(Signal::TERM);
    lab.judge();
}

#[test]
fn a_snapshot_stays_while_its_volume_is_written() {
    let lab = Lab::new(256);
    lab.session.ok(&["zfs", "create", "-s", "-V", "4M", "t/v"]);
    assert_eq!(lab.session.feed(&["put", "t/v"], &vec![1; 4 << 20]).code, 0);
    lab.session.ok(&["zfs", "snapshot", "t/v@s"]);
    let served = lab.serve(&["t/v@s", "t/v"]);
    let (mut snapshot, mut volume) = (lab.client("t/v@s"), lab.client("t/v"));
    for n in 0..8u8 {
        let data = vec![2 + n; 1 << 20];
        assert_eq!(volume.call((WRITE, FUA), u64::from(n % 4) << 20, 1 << 20, &data), Reply::Done);
        assert!(snapshot.read(0, 4 << 20).iter().all(|byte| *byte == 1));
    }
    assert_eq!(snapshot.call((WRITE, 0), 0, 3, b"abc"), Reply::Failed(1));
    assert_eq!(snapshot.call((TRIM, 0), 0, 512, &[]), Reply::Failed(1));
    assert_eq!(volume.call((READ, 0), 4 << 20, 1, &[]), Reply::Failed(22));
    // the pool is taken, as by any command that writes it, and can be read
    let holder = format!("in use by process {}", served.child.id());
    lab.session.fails(&["-o", "busy_wait=0", "zfs", "destroy", "t/v@s"], 1, &holder);
    assert!(lab.session.ok(&["zfs", "list", "-Ho", "name"]).contains("t/v"));
    served.end(Signal::TERM);

    // for reading only, other commands write beside it
    for (args, readonly) in [(&["-r", "t/v"][..], "off"), (&["t/v"], "on"), (&["t/v@s"], "off")] {
        lab.session.ok(&["zfs", "set", &format!("readonly={readonly}"), "t/v"]);
        let served = lab.serve(args);
        let mut client = lab.client("");
        lab.session.ok(&["-o", "busy_wait=0", "zfs", "create", "t/beside"]);
        lab.session.ok(&["-o", "busy_wait=0", "zfs", "destroy", "t/beside"]);
        assert!(matches!(client.read(0, 1)[0], 1 | 6));
        assert_eq!(client.call((WRITE, 0), 0, 3, b"abc"), Reply::Failed(1));
        served.end(Signal::TERM);
    }
    lab.judge();
}

#[test]
fn a_full_pool_is_told_and_what_was_answered_stays() {
    let lab = Lab::new(96);
    lab.session.ok(&["zfs", "create", "-s", "-o", "compression=off", "-V", "1G", "t/v"]);
    let served = lab.serve(&["t/v"]);
    let mut client = lab.client("t/v");
    let stamp = |n: u64| (n + 1).to_be_bytes().repeat(1 << 17);
    let mut fits = 0;
    let full = loop {
        match client.call((WRITE, FUA), fits << 20, 1 << 20, &stamp(fits)) {
            Reply::Done => fits += 1,
            failed => break failed,
        }
    };
    assert!(full == Reply::Failed(28) && fits > 8, "{full:?} after {fits} MiB");
    for n in 0..fits {
        assert!(client.read(n << 20, 1 << 20) == stamp(n));
    }
    // freeing needs no room
    assert_eq!(client.call((TRIM, FUA), 0, 1 << 30, &[]), Reply::Done);
    assert_eq!(client.call((BLOCK_STATUS, 0), 0, 1 << 30, &[]), Reply::Status(vec![(1 << 30, 3)]));
    served.end(Signal::TERM);
    lab.judge();
}

#[test]
fn an_encrypted_volume_of_a_pool_that_is_not_imported_needs_its_key() {
    let lab = Lab::new(128);
    let (key, devices) = (lab.path("key"), lab.path("pool"));
    std::fs::write(&key, [7; 32]).unwrap();
    let location = format!("file://{}", key.display());
    let keylocation = format!("keylocation={location}");
    let encrypted = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", &keylocation, "-s", "-V", "1M", "t/v"];
    lab.session.ok(&[&["zfs", "create"], &encrypted[..]].concat());
    lab.session.ok(&["zpool", "export", "t"]);
    let (socket, devices) = (lab.socket(), devices.to_str().unwrap());
    let plain = ["nbd", "-u", socket.to_str().unwrap(), "-d", devices, "t/v"];
    lab.session.fails(&plain, 1, "key not loaded");
    let served = lab.serve(&["-d", devices, "-L", &location, "t/v"]);
    assert_eq!(lab.client("").call((WRITE, FUA), 5, 6, b"secret"), Reply::Done);
    served.kill();
    // the log of the killed server is what a reader sees with it
    let served = lab.serve(&["-r", "--with-log", "-d", devices, "-L", &location, "t/v"]);
    assert!(lab.client("t/v").read(5, 6) == b"secret");
    served.end(Signal::TERM);
    let served = lab.serve(&["-d", devices, "-L", &location, "t/v"]);
    assert!(lab.client("t/v").read(5, 6) == b"secret");
    served.end(Signal::TERM);
    judge::no_leaks(&lab.path("pool"), "t");
}

#[test]
fn sockets_and_operands_are_checked() {
    let lab = Lab::new(128);
    lab.session.ok(&["zfs", "create", "-s", "-V", "1M", "t/v"]);
    let socket = lab.socket().to_str().unwrap().to_owned();
    let fails = |args: &[&str], code, says: &str| lab.session.fails(&[&["nbd"], args].concat(), code, says);
    fails(&["t/v"], 2, "no socket is named");
    fails(&["-u", &socket], 2, "missing target argument");
    fails(&["-u", &socket, "-c", "0", "t/v"], 2, "--connections 0: a number is expected");
    fails(&["-u", &socket, "t"], 1, "t: not a volume");
    fails(&["-u", &socket, "t/v", "t/v"], 2, "'t/v' is named twice");
    fails(&["-u", &socket, "t/none"], 1, "cannot open 't/none'");
    fails(&["-u", &socket, "--with-log", "t/v"], 2, "can only be read");
    fails(&["-l", "256.1.1.1:x", "t/v"], 1, "cannot listen on '256.1.1.1:x'");
    assert!(!Path::new(&socket).exists(), "a socket is left");
    std::fs::write(lab.path("file"), "x").unwrap();
    fails(&["-u", lab.path("file").to_str().unwrap(), "t/v"], 1, "it exists, and is no socket");

    let served = lab.serve(&["t/v"]);
    assert_eq!(lab.socket().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    fails(&["-u", &socket, "-r", "t/v"], 1, "another program listens to it");
    served.kill();
    assert!(lab.socket().exists());
    let served = lab.serve_at(&["--unix", &socket, "--listen", "127.0.0.1:0", "--with-log", "-r", "-c", "4", "t/v"], 2);
    assert!(lab.client("").read(0, 1 << 20).iter().all(|byte| *byte == 0));
    assert!(served.uris[1].starts_with("nbd://127.0.0.1:"), "{:?}", served.uris);
    let _listed = run("nbdinfo", &["--size", &served.uris[1]]).map(|size| assert_eq!(size.trim(), "1048576"));
    served.end(Signal::TERM);
    assert!(lab.session.ok(&["help", "nbd"]).contains("zuse nbd [-r]"));
    lab.judge();
}
