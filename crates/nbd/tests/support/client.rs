//! A client that sends what it is told to, byte by byte.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const EXPORT_NAME: u32 = 1;
pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const STARTTLS: u32 = 5;
pub const INFO: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED_REPLY: u32 = 8;
pub const LIST_META_CONTEXT: u32 = 9;
pub const SET_META_CONTEXT: u32 = 10;

pub const ACK: u32 = 1;
pub const ERR: u32 = 1 << 31;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

/// A string behind its length.
pub fn text(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat()
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub fn ask(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = text(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|wanted| data.extend(wanted.to_be_bytes()));
    data
}

/// The end of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Done,
    Failed(u32),
    /// Chunks of a read, or simple data: offset (of simple data 0), bytes, and whether they came as a hole.
    Data(Vec<(u64, Vec<u8>, bool)>),
    Status(Vec<(u32, u32)>),
}

pub struct Client<S = UnixStream> {
    pub stream: S,
    pub structured: bool,
}

impl Client {
    /// A client that has not said anything.
    pub fn connect(path: &Path) -> Client {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { stream, structured: false }
    }

    /// A client that has chosen an export.
    pub fn of(path: &Path, name: &str, structured: bool) -> Client {
        let mut client = Client::connect(path);
        client.greet(3);
        client.choose(name, structured);
        client
    }

    /// Asserts that the server has closed the connection, and says nothing more.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0)) || self.stream.peer_addr().is_err()
    }
}

impl<S: Read + Write> Client<S> {
    /// Chooses an export.
    pub fn choose(&mut self, name: &str, structured: bool) {
        if structured {
            assert_eq!(self.option(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
            self.structured = true;
            let set = [&text(name)[..], &1u32.to_be_bytes(), &text("base:allocation")].concat();
            let selected = [&1u32.to_be_bytes()[..], b"base:allocation"].concat();
            assert_eq!(self.option(SET_META_CONTEXT, &set), [(4, selected), (ACK, vec![])]);
        }
        assert_eq!(self.option(GO, &ask(name, &[])).last(), Some(&(ACK, vec![])));
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    pub fn greet(&mut self, flags: u32) {
        assert_eq!(self.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&flags.to_be_bytes());
    }

    pub fn send_option(&mut self, number: u32, len: u32, data: &[u8]) {
        self.send(&[b"IHAVEOPT", &number.to_be_bytes()[..], &len.to_be_bytes(), data].concat());
    }

    /// Sends an option; its replies, up to the last.
    pub fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(number, data.len() as u32, data);
        self.replies(number)
    }

    pub fn replies(&mut self, number: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            assert_eq!((self.u64(), self.u32()), (0x0003_e889_0455_65a9, number));
            let (kind, len) = (self.u32(), self.u32());
            let data = self.take(len as usize);
            let is_last = kind == ACK || kind & ERR != 0;
            // the message of an error is for people
            replies.push((kind, if kind & ERR != 0 { Vec::new() } else { data }));
            if is_last {
                return replies;
            }
        }
    }

    pub fn request(&mut self, (kind, flags): (u16, u16), cookie: u64, offset: u64, len: u32, payload: &[u8]) {
        let header = [&0x2560_9513u32.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
        let range = [&cookie.to_be_bytes()[..], &offset.to_be_bytes(), &len.to_be_bytes()].concat();
        self.send(&[&header, &range, payload].concat());
    }

    /// The next reply, with its cookie; `read` is the length of simple data.
    pub fn reply(&mut self, read: Option<u32>) -> (u64, Reply) {
        let mut chunks = Vec::new();
        loop {
            match self.u32() {
                0x6744_6698 => {
                    let (error, cookie) = (self.u32(), self.u64());
                    assert!(!self.structured || read.is_none(), "a read has a simple reply");
                    return match (error, read) {
                        (0, Some(len)) => (cookie, Reply::Data(vec![(0, self.take(len as usize), false)])),
                        (0, None) => (cookie, Reply::Done),
                        (error, _) => (cookie, Reply::Failed(error)),
                    };
                }
                0x668e_33ef => {
                    assert!(self.structured);
                    let (flags, kind, cookie, len) = (self.u16(), self.u16(), self.u64(), self.u32());
                    let is_last = flags & 1 != 0;
                    match kind {
                        0 => assert!(is_last && len == 0),
                        1 => {
                            let at = self.u64();
                            chunks.push((at, self.take(len as usize - 8), false));
                        }
                        2 => {
                            assert_eq!(len, 12);
                            let (at, hole) = (self.u64(), self.u32());
                            chunks.push((at, vec![0; hole as usize], true));
                        }
                        5 => {
                            assert!(is_last && self.u32() == 1);
                            let extents = (0..(len - 4) / 8).map(|_| (self.u32(), self.u32())).collect();
                            return (cookie, Reply::Status(extents));
                        }
                        0x8001 => {
                            let (error, said) = (self.u32(), self.u16());
                            let _why = self.take(said.into());
                            assert!(is_last && len == 6 + u32::from(said));
                            return (cookie, Reply::Failed(error));
                        }
                        other => panic!("a chunk of type {other}"),
                    }
                    if is_last {
                        return (cookie, if read.is_some() { Reply::Data(chunks) } else { Reply::Done });
                    }
                }
                other => panic!("{other:#x} begins no reply"),
            }
        }
    }

    /// Sends a request and waits for its reply.
    pub fn call(&mut self, kind: (u16, u16), offset: u64, len: u32, payload: &[u8]) -> Reply {
        self.request(kind, 42, offset, len, payload);
        let (cookie, reply) = self.reply((kind.0 == READ).then_some(len));
        assert_eq!(cookie, 42);
        reply
    }

    /// Reads a range, however it comes.
    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let Reply::Data(chunks) = self.call((READ, 0), offset, len, &[]) else { panic!("the read failed") };
        let mut at = if self.structured { offset } else { 0 };
        for (begin, bytes, _) in &chunks {
            assert_eq!(*begin, at);
            at += bytes.len() as u64;
        }
        chunks.into_iter().flat_map(|(_, bytes, _)| bytes).collect()
    }
}
