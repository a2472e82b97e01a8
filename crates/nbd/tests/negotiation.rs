//! Negotiations, of clients that keep to the protocol and of others.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nbd::memory::Memory;
use nbd::{Export, Options};
use support::*;

const SIZE: u64 = (1 << 20) + 512;
const UNSUP: u32 = ERR + 1;
const INVALID: u32 = ERR + 3;
const UNKNOWN: u32 = ERR + 6;
const TOO_BIG: u32 = ERR + 9;

fn served() -> Served {
    let exports: [(&str, Arc<dyn Export>); 2] =
        [("t/vol", Arc::new(Memory::new(SIZE))), ("t/vol@snap", Arc::new(Memory::new(SIZE).read_only()))];
    Served::new(&exports, Options::default())
}

/// The information about an export: its size and flags.
fn info(size: u64, flags: u16) -> (u32, Vec<u8>) {
    (3, [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat())
}

// has-flags, flush, FUA, multi-conn, cache; then trim, zeroes and fast zeroes, or read-only
const COMMON: u16 = 1 | 4 | 8 | 256 | 1024;
const WRITABLE: u16 = COMMON | 32 | 64 | 2048;

#[test]
fn a_client_learns_what_is_there_and_chooses() {
    let served = served();
    let mut client = served.connect();
    client.greet(3);
    let list = client.option(LIST, &[]);
    let entry = |name: &str| (2, [&text(name)[..], b"about ", name.as_bytes()].concat());
    assert_eq!(list, [entry("t/vol"), entry("t/vol@snap"), (ACK, vec![])]);
    assert_eq!(client.option(LIST, &[0]), [(INVALID, vec![])]);
    assert_eq!(client.option(STARTTLS, &[]), [(UNSUP, vec![])]);
    assert_eq!(client.option(4242, b"whatever"), [(UNSUP, vec![])]);

    // the default export is the first; everything that is asked for is told
    let about = client.option(INFO, &ask("", &[0, 1, 2, 3, 99]));
    let sizes = [&[0, 3][..], &1u32.to_be_bytes(), &4096u32.to_be_bytes(), &(32u32 << 20).to_be_bytes()].concat();
    let expected = [
        info(SIZE, WRITABLE),
        (3, b"\0\x01t/vol".to_vec()),
        (3, b"\0\x02about t/vol".to_vec()),
        (3, sizes),
        (ACK, vec![]),
    ];
    assert_eq!(about, expected);
    assert_eq!(client.option(INFO, &ask("t/none", &[])), [(UNKNOWN, vec![])]);
    assert_eq!(client.option(STRUCTURED_REPLY, &[1]), [(INVALID, vec![])]);
    assert_eq!(client.option(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
    client.structured = true;
    let read_only = info(SIZE, COMMON | 2 | 128);
    assert_eq!(client.option(GO, &ask("t/vol@snap", &[])), [read_only, (ACK, vec![])]);
    assert!(client.read(SIZE - 5, 5) == [0; 5]);
    assert_eq!(client.call((WRITE, 0), 0, 3, b"abc"), Reply::Failed(1));
    assert_eq!(client.call((FLUSH, 0), 0, 0, &[]), Reply::Done);
}

#[test]
fn older_clients_choose_by_name() {
    let served = served();
    for (flags, zeros) in [(1, 124), (3, 0), (0, 124)] {
        let mut client = served.connect();
        client.greet(flags);
        client.send_option(EXPORT_NAME, 5, b"t/vol");
        assert_eq!((client.u64(), client.u16()), (SIZE, WRITABLE));
        assert!(client.take(zeros).iter().all(|byte| *byte == 0));
        assert!(client.read(7, 9) == [0; 9]);
    }
    let mut client = served.connect();
    client.greet(3);
    client.send_option(EXPORT_NAME, 5, b"t/wol");
    assert!(client.is_closed());
}

#[test]
fn contexts_are_listed_and_selected() {
    let served = served();
    let mut client = served.connect();
    client.greet(3);
    let query = |name: &str, queries: &[&str]| {
        let queries_of: Vec<u8> = queries.iter().flat_map(|query| text(query)).collect();
        [&text(name)[..], &(queries.len() as u32).to_be_bytes(), &queries_of].concat()
    };
    let allocation = |id: u32| (4, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    let one = query("", &["base:allocation"]);
    assert_eq!(client.option(SET_META_CONTEXT, &one), [(INVALID, vec![])], "without structured replies");
    assert_eq!(client.option(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
    let ack = (ACK, vec![]);
    for all in [&[][..], &["base:"], &["qemu:", "base:allocation"]] {
        let listed = client.option(LIST_META_CONTEXT, &query("t/vol", all));
        assert_eq!(listed, [allocation(0), ack.clone()], "{all:?}");
    }
    for none in [&[][..], &["base:"], &["base:other"], &["x"], &["qemu:dirty-bitmap:x"]] {
        assert_eq!(client.option(SET_META_CONTEXT, &query("t/vol", none)), std::slice::from_ref(&ack), "{none:?}");
    }
    assert_eq!(client.option(LIST_META_CONTEXT, &query("t/none", &[])), [(UNKNOWN, vec![])]);
    // a number of queries, and a length, that lie
    let lies = [&text("")[..], &u32::MAX.to_be_bytes(), &text("base:")].concat();
    assert_eq!(client.option(SET_META_CONTEXT, &lies), [(INVALID, vec![])]);
    let lies = [&text("")[..], &1u32.to_be_bytes(), &u32::MAX.to_be_bytes(), b"base:"].concat();
    assert_eq!(client.option(LIST_META_CONTEXT, &lies), [(INVALID, vec![])]);
    // it is selected for one export, and the other is chosen
    assert_eq!(
        client.option(SET_META_CONTEXT, &query("t/vol@snap", &["base:allocation"])),
        [allocation(1), ack.clone()]
    );
    assert_eq!(client.option(GO, &ask("t/vol", &[])).last(), Some(&ack));
    client.structured = true;
    assert_eq!(client.call((BLOCK_STATUS, 0), 0, 512, &[]), Reply::Failed(22));
    let mut client = served.client("t/vol@snap", true);
    assert_eq!(client.call((BLOCK_STATUS, 0), 0, 512, &[]), Reply::Status(vec![(512, 3)]));
}

#[test]
fn malformed_options_are_refused_and_others_follow() {
    let served = served();
    let mut client = served.connect();
    client.greet(1);
    let good = ask("t/vol", &[0, 3]);
    for len in 0..good.len() {
        assert_eq!(client.option(INFO, &good[..len]), [(INVALID, vec![])], "{len}");
    }
    assert_eq!(client.option(GO, &[&good[..], &[0]].concat()), [(INVALID, vec![])]);
    let lies = [&u32::MAX.to_be_bytes()[..], b"t/vol", &[0, 0]].concat();
    assert_eq!(client.option(GO, &lies), [(INVALID, vec![])]);
    assert_eq!(client.option(INFO, &vec![0; (64 << 10) + 1]), [(TOO_BIG, vec![])]);
    assert_eq!(client.option(INFO, &good).last(), Some(&(ACK, vec![])));
    assert_eq!(client.option(ABORT, b"ignored"), [(ACK, vec![])]);
    assert!(client.is_closed());
}

#[test]
fn what_cannot_be_understood_ends_the_connection() {
    let served = served();
    let mut client = served.connect();
    client.greet(4);
    assert!(client.is_closed(), "a flag that is not known");
    let mut client = served.connect();
    client.greet(1);
    client.send(b"IHAVEOPX\0\0\0\x03\0\0\0\0");
    assert!(client.is_closed(), "another magic number");
    for (number, len) in [(INFO, (16 << 20) + 1), (4242, u32::MAX), (EXPORT_NAME, (64 << 10) + 1)] {
        let mut client = served.connect();
        client.greet(1);
        client.send_option(number, len, &[]);
        assert!(client.is_closed(), "{number} of {len} bytes");
    }
    assert!(served.client("t/vol", true).read(0, 4) == [0; 4]);
}

#[test]
fn a_client_that_is_one_too_many_is_closed_and_idle_strangers_shut_out_nobody() {
    let exports: [(&str, Arc<dyn Export>); 1] = [("x", Arc::new(Memory::new(SIZE)))];
    let time = Duration::from_secs(600);
    let options = Options { connections: 2, negotiations: 3, negotiation_time: time, ..Options::default() };
    let served = Served::new(&exports, options);
    let silent = |served: &Served| {
        let mut client = served.connect();
        client.take(18);
        client
    };
    let mut first = silent(&served);
    let mut strangers: Vec<_> = (0..9).map(|_| silent(&served)).collect();
    assert!(first.is_closed(), "there is no end of strangers");
    let mut one = served.client("x", true);
    assert!(one.read(0, 4) == [0; 4]);
    strangers.extend((0..9).map(|_| silent(&served)));
    let mut two = served.client("x", true);
    assert!(one.read(0, 4) == [0; 4] && two.read(0, 4) == [0; 4]);
    // it has no place, however long it would negotiate
    assert!(served.connect().is_closed());
    drop(one);
    let begun = Instant::now();
    while served.connect().is_closed() {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is no room again");
    }
    drop((two, strangers));
    assert!(served.end());
}

#[test]
fn a_client_that_is_slow_is_closed() {
    let exports: [(&str, Arc<dyn Export>); 1] = [("x", Arc::new(Memory::new(SIZE)))];
    let options = Options { connections: 2, negotiation_time: Duration::from_millis(300), ..Options::default() };
    let served = Served::new(&exports, options);
    let begun = Instant::now();
    let (mut silent, mut slow) = (served.connect(), served.connect());
    slow.greet(1);
    // each byte is in time for the one before
    let option = [b"IHAVEOPT", &[0, 0, 0, 3, 0, 0, 0, 200][..], &[0; 200]].concat();
    for byte in option {
        use std::io::Write;
        if slow.stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "it was waited for");
    silent.take(18);
    assert!(silent.is_closed());
    // there is room again, and after the negotiation there is no limit
    let mut client = served.client("x", true);
    std::thread::sleep(Duration::from_millis(600));
    assert!(client.read(0, 4) == [0; 4]);
    assert!(served.end());
}
