//! Volumes over NBD where a server has their pools: `zuse serve --nbd`, and `zuse nbd` beside other commands.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../../nbd/tests/support/certificates.rs"]
mod certificates;
#[path = "../../nbd/tests/support/client.rs"]
mod client;
#[path = "support/server.rs"]
mod server;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;

use client::{ACK, BLOCK_STATUS, Client, ERR, FLUSH, GO, INFO, LIST, READ, Reply, TRIM, WRITE, ask, text};
use rustix::process::{Pid, Signal, kill_process};
use server::{World, program, until};

const FUA: u16 = 1;
const UNKNOWN: u32 = ERR + 6;
/// The numbers of EPERM and EINVAL.
const EPERM: Reply = Reply::Failed(1);
const EINVAL: Reply = Reply::Failed(22);

/// The names of the exports of a socket.
fn names(socket: &Path) -> Vec<String> {
    let mut client = Client::connect(socket);
    client.greet(3);
    let mut listed = client.option(LIST, &[]);
    assert_eq!(listed.pop(), Some((ACK, vec![])));
    let name = |(_, entry): (u32, Vec<u8>)| {
        let len = u32::from_be_bytes(entry[..4].try_into().unwrap()) as usize;
        String::from_utf8(entry[4..4 + len].to_vec()).unwrap()
    };
    listed.into_iter().map(name).collect()
}

/// What a client is told that asks for an export: its size, or the error.
fn size(socket: &Path, name: &str) -> Result<u64, u32> {
    let mut client = Client::connect(socket);
    client.greet(3);
    let told = client.option(INFO, &ask(name, &[]));
    match told.first() {
        Some((3, about)) => Ok(u64::from_be_bytes(about[2..10].try_into().unwrap())),
        other => Err(other.unwrap().0),
    }
}

#[test]
fn volumes_of_a_server_are_exports_that_come_and_go() {
    let mut world = World::new(256);
    let socket = world.path("nbd");
    world.ok("zfs create t/fs");
    for name in ["t/v", "t/fs/w"] {
        world.ok(&format!("zfs create -s -V 4M {name}"));
    }
    world.ok("zfs snapshot -r t@s");
    world.serve(&["--nbd", socket.to_str().unwrap()], 1);
    until("the pool is open", || names(&socket) == ["t/fs/w", "t/v"]);
    world.ok("zfs set snapdev=visible t/v");
    assert_eq!(names(&socket), ["t/fs/w", "t/v", "t/v@s"]);
    world.ok("zfs set volmode=none t/fs");
    world.ok("zfs create -s -V 1M t/new");
    assert_eq!(names(&socket), ["t/new", "t/v", "t/v@s"]);
    assert_eq!(
        (size(&socket, "t/fs/w"), size(&socket, "t/v"), size(&socket, "t/new")),
        (Err(UNKNOWN), Ok(4 << 20), Ok(1 << 20))
    );
    for none in
        ["", "t", "t/fs", "t@s", "t/fs/w@s", "t/none", "none", "none/v", "t/v@none", "t/%recv", "a b/", "\u{e9}"]
    {
        assert_eq!(size(&socket, none), Err(UNKNOWN), "{none:?}");
    }

    // nobody uses it who has only asked
    until("nobody uses it", || world.run("zfs destroy t/new").status == Some(0));
    let (mut client, mut snapshot) = (Client::of(&socket, "t/v", true), Client::of(&socket, "t/v@s", true));
    assert_eq!(client.call((WRITE, FUA), 5, 6, b"inside"), Reply::Done);
    assert!(snapshot.read(0, 4 << 20).iter().all(|byte| *byte == 0));
    assert_eq!(snapshot.call((WRITE, 0), 0, 1, b"x"), EPERM);
    world.fails("zfs destroy -r t/v", 1, "dataset is busy");
    world.fails("zfs destroy t/v@s", 1, "dataset is busy");
    world.fails("zpool export t", 1, "pool is busy");
    // beside it all else goes on
    world.ok("zfs snapshot t/v@two");
    assert!(Client::of(&socket, "t/v@two", true).read(5, 6) == b"inside");

    world.ok("zfs set readonly=on t/v");
    assert_eq!(client.call((WRITE, 0), 0, 1, b"x"), EPERM);
    assert_eq!(client.call((TRIM, 0), 0, 512, &[]), EPERM);
    world.ok("zfs set readonly=off t/v");
    assert_eq!(client.call((WRITE, 0), 0, 1, b"x"), Reply::Done);

    world.ok("zfs set volsize=8M t/v");
    assert_eq!(size(&socket, "t/v"), Ok(8 << 20));
    assert_eq!(client.call((READ, 0), 4 << 20, 1, &[]), EINVAL, "it was told of another size");
    let mut larger = Client::of(&socket, "t/v", true);
    assert_eq!(larger.call((WRITE, FUA), (8 << 20) - 3, 3, b"end"), Reply::Done);
    world.ok("zfs set volsize=2M t/v");
    assert_eq!(larger.call((READ, 0), 4 << 20, 1, &[]), EINVAL);
    assert_eq!(larger.call((WRITE, 0), 4 << 20, 1, b"x"), EINVAL);
    assert!(larger.read(5, 6) == b"inside");

    world.ok("zfs rename t/v t/moved");
    assert_eq!((size(&socket, "t/v"), size(&socket, "t/moved")), (Err(UNKNOWN), Ok(2 << 20)));
    assert!(client.read(5, 6) == b"inside", "it is the one that it was");
    world.fails("zfs destroy -r t/moved", 1, "dataset is busy");
    drop((client, larger, snapshot));
    until("nobody uses it", || world.run("zfs destroy -r t/moved").status == Some(0));
    assert_eq!(names(&socket), [] as [&str; 0]);
    world.ok("zpool export t");
    assert_eq!(size(&socket, "t/fs/w"), Err(UNKNOWN));
    world.ok(&format!("zpool import -d {} t", world.path("pool").display()));
    world.ok("zfs inherit volmode t/fs");
    assert_eq!(names(&socket), ["t/fs/w"]);

    // it ends with a client that stays
    let mut stays = Client::of(&socket, "t/fs/w", true);
    assert_eq!(stays.call((WRITE, 0), 0, 4, b"last"), Reply::Done);
    world.stop();
    assert!(!socket.exists() && stays.is_closed());
    assert_eq!(&world.ok("cat t/fs/w")[..4], "last");
    world.judge();
}

#[test]
fn a_pool_that_is_only_read_and_keys_that_are_not_loaded() {
    let mut world = World::new(256);
    let (socket, key) = (world.path("nbd"), world.path("key"));
    std::fs::write(&key, [7; 32]).unwrap();
    world.ok("zfs create -s -V 1M t/v");
    world.ok(&format!(
        "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{} -s -V 1M t/secret",
        key.display()
    ));
    world.serve(&["--nbd", socket.to_str().unwrap()], 1);
    let _loaded = world.run("zfs load-key t/secret");
    until("the pool is open", || names(&socket) == ["t/secret", "t/v"]);
    world.ok("zfs unload-key t/secret");
    assert_eq!((names(&socket), size(&socket, "t/secret")), (vec!["t/v".to_owned()], Err(UNKNOWN)));
    world.ok("zfs load-key t/secret");
    assert_eq!(Client::of(&socket, "t/secret", true).call((WRITE, FUA), 0, 3, b"abc"), Reply::Done);
    until("nobody uses it", || world.run("zpool export t").status == Some(0));
    world.ok(&format!("zpool import -o readonly=on -d {} t", world.path("pool").display()));
    let mut client = Client::of(&socket, "t/v", true);
    assert_eq!((client.call((WRITE, 0), 0, 1, b"x"), client.call((FLUSH, 0), 0, 0, &[])), (EPERM, Reply::Done));
    assert!(client.read(0, 1 << 20).iter().all(|byte| *byte == 0));
    world.fails("zpool export t", 1, "pool is busy");
    drop(client);
    until("nobody uses it", || world.run("zpool export t").status == Some(0));
    world.end();
    oracle::judge::no_leaks(&world.path("pool"), "t");
}

/// `zuse nbd`, carried out by the server.
fn nbd(world: &World, words: &[&str]) -> Child {
    let mut child = world.command(&[&["nbd"], words].concat()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("nbd+unix:///?socket="), "{said:?} {:?}", child.wait_with_output());
    child
}

#[test]
fn the_command_is_carried_out_beside_others() {
    let mut world = World::new(256);
    world.ok("zfs create -s -V 4M t/v");
    world.ok("zfs snapshot t/v@s");
    world.serve(&[], 0);
    let (writes, reads) = (world.path("writes"), world.path("reads"));
    // relative to the directory of the command
    let writer = nbd(&world, &["--unix", "writes", "t/v"]);
    let reader = nbd(&world, &["-r", "--unix", "reads", "t/v", "t/v@s"]);
    let (mut client, mut other) = (Client::of(&writes, "", true), Client::of(&reads, "t/v", true));
    for n in 0..4u8 {
        assert_eq!(client.call((WRITE, 0), 9, 4, &[n; 4]), Reply::Done);
        assert!(other.read(9, 4) == [n; 4], "it is the volume, and no state of it");
        world.ok(&format!("zfs snapshot t/v@{n}"));
    }
    assert_eq!(other.call((WRITE, 0), 9, 4, &[0; 4]), EPERM);
    assert!(Client::of(&reads, "t/v@s", true).read(9, 4) == [0; 4]);
    world.fails("zfs destroy -r t/v", 1, "dataset is busy");
    world.fails("zpool export t", 1, "pool is busy");
    world.fails("nbd --unix x t/none", 1, "cannot open 't/none'");
    world.fails("nbd --unix x t", 1, "t: not a volume");
    assert!(!world.path("x").exists());
    drop((client, other));
    for (child, signal) in [(writer, Signal::TERM), (reader, Signal::INT)] {
        kill_process(Pid::from_child(&child), signal).unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(done.stderr.is_empty(), "{done:?}");
    }
    until("the sockets are gone", || !writes.exists() && !reads.exists());
    until("nobody uses it", || world.run("zfs destroy -r t/v").status == Some(0));
    world.end();
    world.judge();
}

#[test]
fn a_client_of_the_command_that_is_gone_ends_it() {
    let mut world = World::new(128);
    world.ok("zfs create -s -V 4M t/v");
    world.serve(&[], 0);
    let mut child = nbd(&world, &["--unix", "socket", "t/v"]);
    let mut client = Client::of(&world.path("socket"), "t/v", true);
    assert_eq!(client.call((WRITE, 0), 0, 4, b"kept"), Reply::Done);
    child.kill().unwrap();
    child.wait().unwrap();
    until("it has ended", || !world.path("socket").exists());
    assert!(client.is_closed());
    // and with the server
    let child = nbd(&world, &["--unix", "socket", "t/v"]);
    assert!(Client::of(&world.path("socket"), "t/v", true).read(0, 4) == b"kept");
    world.stop();
    child.wait_with_output().unwrap();
    assert!(!world.path("socket").exists());
    world.judge();
}

#[test]
fn a_kill_after_a_flush_loses_nothing_and_the_next_server_has_the_socket() {
    let mut world = World::new(256);
    world.ok("zfs create -s -V 4M t/v");
    let socket = world.path("nbd");
    for n in 1..4u8 {
        world.serve(&["--nbd", socket.to_str().unwrap()], 1);
        let mut client = Client::of(&socket, "t/v", true);
        assert!(client.read(0, 1 << 20) == [n - 1; 1 << 20]);
        assert_eq!(client.call((WRITE, 0), 0, 1 << 20, &[n; 1 << 20]), Reply::Done);
        assert_eq!(Client::of(&socket, "t/v", true).call((FLUSH, 0), 0, 0, &[]), Reply::Done);
        world.kill();
        assert!(socket.exists());
    }
    world.judge();
}

#[test]
fn block_status_of_a_long_range_is_told_in_parts() {
    let mut world = World::new(256);
    world.ok("zfs create -s -V 3G t/v");
    let socket = world.path("nbd");
    world.serve(&["--nbd", socket.to_str().unwrap()], 1);
    let mut client = Client::of(&socket, "t/v", true);
    let all = 3u32 << 30;
    assert_eq!(client.call((BLOCK_STATUS, 0), 0, all, &[]), Reply::Status(vec![(all, 3)]), "holes are passed over");
    // a block in each piece of 128 MiB
    for n in 0..24u64 {
        assert_eq!(client.call((WRITE, 0), n << 27, 4, b"here"), Reply::Done);
    }
    assert_eq!(client.call((FLUSH, 0), 0, 0, &[]), Reply::Done);
    let (mut at, mut data, mut calls) = (0, 0, 0);
    while at < u64::from(all) {
        let len = (u64::from(all) - at) as u32;
        let Reply::Status(extents) = client.call((BLOCK_STATUS, 0), at, len, &[]) else { panic!() };
        assert!(!extents.is_empty());
        at += extents.iter().map(|(len, _)| u64::from(*len)).sum::<u64>();
        data += extents.iter().filter(|(_, kind)| *kind == 0).count();
        calls += 1;
    }
    assert_eq!((data, at), (24, u64::from(all)));
    assert!(calls >= 3, "all was looked at in one request");
    // one extent, which goes over the ends of pieces
    assert_eq!(client.call((BLOCK_STATUS, 8), 1 << 20, 1 << 27, &[]), Reply::Status(vec![((1 << 27) - (1 << 20), 3)]));
    assert_eq!(client.call((TRIM, FUA), 0, all, &[]), Reply::Done);
    assert_eq!(client.call((BLOCK_STATUS, 8), 0, all, &[]), Reply::Status(vec![(all, 3)]));
    world.end();
    world.judge();
}

#[test]
fn clients_of_tcp_have_to_show_their_certificates() {
    let mut world = World::new(256);
    let (good, bad) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if !certificates::make(good.path()) || !certificates::make(bad.path()) {
        return;
    }
    world.ok("zfs create -s -V 16M t/v");
    let dir = |dir: &tempfile::TempDir| dir.path().to_str().unwrap().to_owned();
    let tls = ["--nbd", "127.0.0.1:0", "--tls-certificates", &dir(&good), "--tls-verify-peer"];
    let said = world.serve(&tls, 1);
    let port = said[0].strip_prefix("nbds://127.0.0.1:").unwrap();
    let uri = |dir: &str| format!("nbds://127.0.0.1:{port}/t/v?tls-certificates={dir}");
    let Some(found) = program("nbdinfo", &["--json", &uri(&dir(&good))]) else { return };
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["TLS"], &found["exports"][0]["export-size"]), (&true.into(), &(16 << 20).into()), "{found:#}");
    let image: Vec<u8> = (0..16 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let [source, back] = ["source", "back"].map(|name| world.path(name).to_str().unwrap().to_owned());
    std::fs::write(&source, &image).unwrap();
    program("nbdcopy", &["--flush", &source, &uri(&dir(&good))]);
    program("nbdcopy", &[&uri(&dir(&good)), &back]);
    assert!(std::fs::read(&back).unwrap() == image);
    // without, with another's, and one that knows another authority
    let refused = |uri: &str| {
        let done = std::process::Command::new("nbdinfo").args(["--size", uri]).output().unwrap();
        assert!(!done.status.success(), "{uri}: {done:?}");
    };
    refused(&format!("nbd://127.0.0.1:{port}/t/v"));
    refused(&uri(&dir(&bad)));
    let bare = tempfile::tempdir().unwrap();
    std::fs::copy(good.path().join("ca-cert.pem"), bare.path().join("ca-cert.pem")).unwrap();
    refused(&uri(&dir(&bare)));
    world.end();

    // offered: with and without
    let said = world.serve(&["--nbd", "127.0.0.1:0", "--tls=on", "--tls-certificates", &dir(&good)], 1);
    let port = said[0].strip_prefix("nbd://127.0.0.1:").unwrap();
    for uri in
        [format!("nbd://127.0.0.1:{port}/t/v"), format!("nbds://127.0.0.1:{port}/t/v?tls-certificates={}", dir(&bare))]
    {
        assert_eq!(program("nbdinfo", &["--size", &uri]).unwrap().trim(), (16 << 20).to_string());
    }
    world.end();
    world.judge();
}

#[test]
fn options_are_checked() {
    let world = World::new(96);
    world.fails("serve --nbd x --tls maybe", 2, "--tls maybe: off, on or require is expected");
    world.fails("serve --nbd 127.0.0.1:0 --tls on", 2, "--tls-certificates DIR is expected");
    // nobody is served without what was counted on
    let expected = "--tls-verify-peer: --tls-certificates DIR is expected";
    world.fails("serve --nbd 127.0.0.1:0 --tls-verify-peer", 2, expected);
    world.fails("nbd -l 127.0.0.1:0 --tls-verify-peer t/v", 2, expected);
    world.fails("serve --nbd 127.0.0.1:0 --tls off --tls-verify-peer", 2, "--tls off: without TLS");
    world.fails("serve --nbd 127.0.0.1:0 --tls off --tls-certificates none", 2, "--tls off: there is no TLS");
    world.fails("serve --nbd 127.0.0.1:0 --tls-certificates none", 1, "no TLS: ");
    world.fails("serve --nbd /none/socket", 1, "cannot listen on '/none/socket'");
    world.fails("serve --nbd 256.1.1.1:x", 1, "cannot listen on '256.1.1.1:x'");
    world.fails("nbd -u s -c 0 t/v", 2, "--connections 0: a number is expected");
    world.fails("nbd --nbd s t/v", 2, "invalid option '--nbd'");
    assert!(world.ok("help serve").contains("--nbd ADDR[:PORT]|PATH"));
    let mut world = world;
    world.ok("zfs create -s -V 1M t/v");
    let said = world.serve(&["--nbd", "0.0.0.0:0", "--nbd", "./socket"], 2);
    assert!(said[0].starts_with("nbd://0.0.0.0:") && said[1].ends_with("/socket"), "{said:?}");
    let mut client = Client::connect(&world.path("socket"));
    client.greet(3);
    assert_eq!(client.option(GO, &[&text("t/v")[..], &[0, 0]].concat()).last(), Some(&(ACK, vec![])));
    assert!(world.warned().contains("whoever reaches 0.0.0.0:"));
}
