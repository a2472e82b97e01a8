//! Requests over a socket, on an export in memory.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use base::Errno;
use nbd::memory::Memory;
use nbd::{Export, Extent, Failed, Options, Stopped, Zero};
use support::*;

const SIZE: u64 = (1 << 20) + 512;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;

fn served(export: &Arc<impl Export + 'static>) -> Served {
    Served::new(&[("x", export.clone() as Arc<dyn Export>)], Options::default())
}

#[test]
fn an_export_is_a_vector_of_bytes() {
    let memory = Arc::new(Memory::new(SIZE));
    let served = served(&memory);
    let mut clients = [served.client("x", true), served.client("x", false)];
    let mut model = vec![0u8; SIZE as usize];
    let mut random = 7u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for n in 0..600u64 {
        let client = &mut clients[below(2) as usize];
        let len = below(90_000);
        let offset = below(SIZE - len);
        let range = offset as usize..(offset + len) as usize;
        let flags = if n % 7 == 0 { FUA } else { 0 };
        match below(4) {
            0 => {
                let data: Vec<u8> = (0..len).map(|at| (at * (n + 1)) as u8).collect();
                assert_eq!(client.call((WRITE, flags), offset, len as u32, &data), Reply::Done);
                model[range].copy_from_slice(&data);
            }
            1 => {
                let flags = flags | if below(2) == 0 { NO_HOLE } else { FAST_ZERO };
                assert_eq!(client.call((WRITE_ZEROES, flags), offset, len as u32, &[]), Reply::Done);
                model[range].fill(0);
            }
            2 => {
                assert_eq!(client.call((TRIM, flags), offset, len as u32, &[]), Reply::Done);
                model[range].fill(0);
            }
            _ => assert!(client.read(offset, len as u32) == model[range]),
        }
    }
    for client in &mut clients {
        assert!(client.read(0, SIZE as u32) == model);
        assert_eq!(client.call((CACHE, 0), 0, SIZE as u32, &[]), Reply::Done);
        // a fast zero that is none changes nothing
        assert_eq!(client.call((WRITE_ZEROES, FAST_ZERO | NO_HOLE), 0, 4096, &[]), Reply::Failed(95));
        assert!(client.read(0, 4096) == model[..4096]);
        client.request((DISC, 0), 0, 0, 0, &[]);
        assert!(client.is_closed());
    }
}

#[test]
fn holes_are_told() {
    let memory = Arc::new(Memory::new(SIZE));
    let served = served(&memory);
    let mut client = served.client("x", true);
    assert_eq!(client.call((WRITE, 0), 512 << 10, 3, b"abc"), Reply::Done);
    let (hole, data) = (3, 0);
    let (before, after) = (512 << 10, SIZE as u32 - (516 << 10));
    let all = Reply::Status(vec![(before, hole), (4096, data), (after, hole)]);
    assert_eq!(client.call((BLOCK_STATUS, 0), 0, SIZE as u32, &[]), all);
    let one = client.call((BLOCK_STATUS, REQ_ONE), 1000, SIZE as u32 - 1000, &[]);
    assert_eq!(one, Reply::Status(vec![(before - 1000, hole)]));
    assert_eq!(client.call((BLOCK_STATUS, 0), 0, 0, &[]), Reply::Failed(22));
    let Reply::Data(chunks) = client.call((READ, 0), 0, SIZE as u32, &[]) else { panic!() };
    let shape: Vec<_> = chunks.iter().map(|(at, bytes, is_hole)| (*at, bytes.len() >> 10, *is_hole)).collect();
    assert_eq!(shape, [(0, 512, true), (512 << 10, 32, false), (544 << 10, 480, true)]);
    let Reply::Data(chunks) = client.call((READ, DF), 0, SIZE as u32, &[]) else { panic!() };
    assert_eq!(chunks.len(), 1, "it came in pieces");
    assert!(!chunks[0].2 && chunks[0].1.len() == SIZE as usize);
}

#[test]
fn a_flush_covers_what_was_answered_on_all_connections() {
    let memory = Arc::new(Memory::new(SIZE));
    let served = served(&memory);
    let (mut first, mut second) = (served.client("x", true), served.client("x", false));
    assert_eq!(first.call((WRITE, 0), 0, 3, b"abc"), Reply::Done);
    assert_eq!(memory.flushes(), 0);
    assert_eq!(second.call((FLUSH, 0), 0, 0, &[]), Reply::Done);
    assert_eq!(memory.flushes(), 1);
    for (kind, payload) in [(WRITE, &b"abc"[..]), (TRIM, &[]), (WRITE_ZEROES, &[])] {
        assert_eq!(second.call((kind, FUA), 0, 3, payload), Reply::Done);
    }
    assert_eq!(memory.flushes(), 4);
}

#[test]
fn invalid_requests_are_answered_and_others_follow() {
    let memory = Arc::new(Memory::new(SIZE));
    let served = served(&memory);
    for structured in [true, false] {
        let mut client = served.client("x", structured);
        for (kind, flags, offset, len, error) in [
            (READ, 0, SIZE, 1, 22),
            (READ, 0, u64::MAX, 2, 22),
            (READ, NO_HOLE, 0, 1, 22),
            (WRITE, 0, SIZE - 3, 4, 28),
            (WRITE, 1 << 5, 0, 4, 22),
            (TRIM, 0, SIZE, 4, 22),
            (WRITE_ZEROES, 0, 1, SIZE as u32, 28),
            (FLUSH, 0, 0, 1, 22),
            (8, 0, 0, 0, 22),
            (0xffff, 0, 0, 0xffff_ffff, 22),
        ] {
            let payload = if kind == WRITE { vec![9; len as usize] } else { Vec::new() };
            let failed = client.call((kind, flags), offset, len, &payload);
            assert_eq!(failed, Reply::Failed(error), "{kind} {flags} {offset} {len}");
        }
        // the bytes of a write that is refused are no request
        assert_eq!(client.call((WRITE, 0), u64::MAX, 32 << 20, &vec![7; 32 << 20]), Reply::Failed(28));
        assert!(client.read(0, 8) == [0; 8]);
    }
    let mut client = served.client("x", true);
    client.request((WRITE, 0), 1, 0, (32 << 20) + 1, &[]);
    assert!(client.is_closed(), "a payload that is too long");
    let mut client = served.client("x", true);
    client.send(&[0x25; 28]);
    assert!(client.is_closed(), "another magic number");
    // half a request changes nothing
    let mut client = served.client("x", true);
    client.request((WRITE, 0), 1, 0, 100, &[9; 99]);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(client.is_closed());
    assert!(served.client("x", false).read(0, 8) == [0; 8]);
    assert!(served.end());
}

/// An export that holds reads of its first byte until they are released, and fails at others. Zeros that are no hole take long.
struct Odd {
    memory: Memory,
    released: Mutex<bool>,
    changed: Condvar,
    waits: AtomicBool,
    /// Zeros to be written that have begun.
    zeros: AtomicUsize,
}

impl Odd {
    fn new() -> Arc<Odd> {
        let (released, changed) = (Mutex::new(false), Condvar::new());
        Arc::new(Odd {
            memory: Memory::new(SIZE),
            released,
            changed,
            waits: AtomicBool::new(false),
            zeros: AtomicUsize::new(0),
        })
    }

    fn release(&self) {
        *self.released.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Export for Odd {
    fn size(&self) -> u64 {
        SIZE
    }
    fn block_size(&self) -> u64 {
        512
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failed> {
        match offset {
            0 => {
                self.waits.store(true, Ordering::SeqCst);
                let released = self.released.lock().unwrap();
                let wait = self.changed.wait_timeout_while(released, Duration::from_secs(60), |released| !*released);
                assert!(*wait.unwrap().0);
            }
            1 => return Err(Failed { errno: Errno::EDQUOT, why: "no room".to_owned() }),
            2 => panic!("a bug of the export"),
            _ => {}
        }
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Failed> {
        self.memory.write(offset, data, durable)
    }
    fn zero(&self, offset: u64, len: u64, how: Zero, durable: bool, stopped: Stopped<'_>) -> Result<(), Failed> {
        if !how.hole {
            // it takes longer than any test
            self.zeros.fetch_add(1, Ordering::SeqCst);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(20) {
                if stopped() {
                    return Err(Failed::stopped());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.memory.zero(offset, len, how, durable, stopped)
    }
    fn trim(&self, offset: u64, len: u64, durable: bool, stopped: Stopped<'_>) -> Result<(), Failed> {
        self.memory.trim(offset, len, durable, stopped)
    }
    fn flush(&self) -> Result<(), Failed> {
        self.memory.flush()
    }
    fn extents(&self, offset: u64, len: u64, max: usize, stopped: Stopped<'_>) -> Result<Vec<Extent>, Failed> {
        self.memory.extents(offset, len, max, stopped)
    }
    fn cache(&self, offset: u64, len: u64, stopped: Stopped<'_>) -> Result<(), Failed> {
        self.memory.cache(offset, len, stopped)
    }
}

#[test]
fn requests_of_one_connection_run_at_once_and_failures_are_their_own() {
    let odd = Odd::new();
    let served = served(&odd);
    let mut client = served.client("x", true);
    client.request((READ, 0), 1, 0, 10, &[]);
    // many more than there are threads
    for n in 2..100 {
        client.request((WRITE, 0), n, 100, 4, b"abcd");
        assert_eq!(client.reply(None), (n, Reply::Done));
    }
    assert_eq!(client.call((READ, 0), 1, 1, &[]), Reply::Failed(28));
    assert_eq!(client.call((READ, 0), 2, 1, &[]), Reply::Failed(5), "a panic");
    odd.release();
    assert!(matches!(client.reply(Some(10)), (1, Reply::Data(_))));
    assert!(client.read(100, 4) == b"abcd");
}

#[test]
fn a_server_that_ends_answers_what_it_has_taken() {
    let odd = Odd::new();
    let served = served(&odd);
    let mut client = served.client("x", true);
    client.request((READ, 0), 7, 0, 10, &[]);
    while !odd.waits.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let path = served.path();
    served.stop();
    while path.exists() {
        std::thread::yield_now();
    }
    odd.release();
    assert_eq!(client.reply(Some(10)).0, 7);
    assert!(client.is_closed());
    assert!(served.end());
}

#[test]
fn a_client_that_takes_no_replies_does_not_keep_the_server_from_ending() {
    let memory = Arc::new(Memory::new(64 << 20)) as Arc<dyn Export>;
    let served = Served::new(&[("x", memory)], Options { grace: Duration::from_millis(300), ..Options::default() });
    let mut client = served.client("x", false);
    for n in 0..8 {
        client.request((READ, 0), n, 0, 32 << 20, &[]);
    }
    // the others are served meanwhile
    assert!(served.client("x", true).read(0, 8) == [0; 8]);
    assert!(served.end());
    let mut rest = Vec::new();
    let _broken = client.stream.read_to_end(&mut rest);
    assert!(rest.len() < 8 * (32 << 20));
}

/// A client of which 50 requests that take long were taken, some of which have begun.
fn with_long_requests(odd: &Odd, served: &Served) -> Client {
    let mut client = served.client("x", true);
    for n in 0..50 {
        client.request((WRITE_ZEROES, NO_HOLE), n, 0, SIZE as u32, &[]);
    }
    while odd.zeros.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    client
}

#[test]
fn what_nobody_is_told_of_stops() {
    let odd = Odd::new();
    let served =
        Served::new(&[("x", odd.clone() as Arc<dyn Export>)], Options { connections: 1, ..Options::default() });
    let begun = Instant::now();
    drop(with_long_requests(&odd, &served));
    // its place is free again
    let refused = || UnixStream::connect(served.path()).unwrap().read(&mut [0]).is_ok_and(|read| read == 0);
    while refused() {
        assert!(begun.elapsed() < Duration::from_secs(10), "requests are carried out for nobody");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(odd.zeros.load(Ordering::SeqCst) <= 16, "what waited was begun");
    assert!(served.end());
}

#[test]
fn the_end_of_the_grace_stops_what_takes_long() {
    let odd = Odd::new();
    let options = Options { grace: Duration::from_millis(200), ..Options::default() };
    let served = Served::new(&[("x", odd.clone() as Arc<dyn Export>)], options);
    let _client = with_long_requests(&odd, &served);
    assert!(served.end(), "requests run on");
    assert!(odd.zeros.load(Ordering::SeqCst) <= 16);
}
