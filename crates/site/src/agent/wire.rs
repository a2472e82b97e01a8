//! The protocol between commands and the agent: one request and one answer per connection. A request has a fixed size;
//! an answer has a count of keys, which is bounded. A peer that does not finish in time is disconnected.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use base::{Guid, ObjectId};
use codec::crypt::Zeroizing;

/// The magic number that begins every request.
const MAGIC: [u8; 8] = *b"zusekey1";
/// Bytes of a key.
const KEY: usize = 32;
/// Bytes of a request: magic number, operation, pool, encryption root, key.
const REQUEST: usize = MAGIC.len() + 1 + 8 + 8 + KEY;
/// Bytes of an answer before its keys: whether it was done, and the number of keys.
const HEAD: usize = 3;
/// Bytes of a key in an answer: its encryption root, and the key.
const ENTRY: usize = 8 + KEY;
/// How many keys an agent keeps.
pub(super) const KEYS_MAX: usize = 1024;
/// Time limit of each side for the other.
const PATIENCE: Duration = Duration::from_secs(5);

/// The operation that is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Put = 1,
    Get = 2,
    Drop = 3,
    DropPool = 4,
}

#[derive(PartialEq, Eq)]
pub(super) struct Request {
    pub(super) op: Op,
    /// The pool's guid.
    pub(super) pool: Guid,
    /// The directory of the encryption root.
    pub(super) root: ObjectId,
    /// The key that is given.
    pub(super) key: Zeroizing<[u8; KEY]>,
}

/// The agent's answer.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// Set if the key asked for was there, or there was room for the key given.
    pub(super) done: bool,
    /// The keys of the pool.
    pub(super) keys: Vec<(ObjectId, Zeroizing<[u8; KEY]>)>,
}

impl Request {
    pub(super) fn of(op: Op, pool: Guid, root: ObjectId) -> Request {
        Request { op, pool, root, key: Zeroizing::default() }
    }

    pub(super) fn send(&self, to: &UnixStream) -> io::Result<()> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(REQUEST));
        bytes.extend_from_slice(&MAGIC);
        bytes.push(self.op as u8);
        bytes.extend_from_slice(&self.pool.0.to_le_bytes());
        bytes.extend_from_slice(&self.root.0.to_le_bytes());
        bytes.extend_from_slice(self.key.as_slice());
        send(to, &bytes)
    }

    pub(super) fn receive(from: &UnixStream) -> io::Result<Request> {
        let mut bytes = Zeroizing::new([0; REQUEST]);
        receive(from, bytes.as_mut_slice())?;
        let mut at = bytes.as_slice();
        if take::<8>(&mut at) != MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let op = match take::<1>(&mut at) {
            [1] => Op::Put,
            [2] => Op::Get,
            [3] => Op::Drop,
            [4] => Op::DropPool,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let pool = Guid(u64::from_le_bytes(take(&mut at)));
        let root = ObjectId(u64::from_le_bytes(take(&mut at)));
        Ok(Request { op, pool, root, key: Zeroizing::new(take(&mut at)) })
    }
}

impl Answer {
    pub(super) fn send(&self, to: &UnixStream) -> io::Result<()> {
        let count = u16::try_from(self.keys.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(HEAD + self.keys.len() * ENTRY));
        bytes.push(self.done.into());
        bytes.extend_from_slice(&count.to_le_bytes());
        for (root, key) in &self.keys {
            bytes.extend_from_slice(&root.0.to_le_bytes());
            bytes.extend_from_slice(key.as_slice());
        }
        send(to, &bytes)
    }

    pub(super) fn receive(from: &UnixStream) -> io::Result<Answer> {
        let mut head = [0; HEAD];
        receive(from, &mut head)?;
        let mut at = head.as_slice();
        let done = take::<1>(&mut at) == [1];
        let count = usize::from(u16::from_le_bytes(take(&mut at)));
        if count > KEYS_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Zeroizing::new(vec![0; count * ENTRY]);
        receive(from, &mut bytes)?;
        let mut at = bytes.as_slice();
        let entry = |_| (ObjectId(u64::from_le_bytes(take(&mut at))), Zeroizing::new(take(&mut at)));
        Ok(Answer { done, keys: (0..count).map(entry).collect() })
    }
}

/// The next `N` bytes; zeros past the end.
fn take<const N: usize>(at: &mut &[u8]) -> [u8; N] {
    let Some((first, rest)) = at.split_first_chunk() else { return [0; N] };
    *at = rest;
    *first
}

fn send(mut to: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    to.set_write_timeout(Some(PATIENCE))?;
    to.write_all(bytes)
}

/// Fills `into` completely, within the time limit.
fn receive(mut from: &UnixStream, into: &mut [u8]) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut got = 0;
    while let Some(rest) = into.get_mut(got..).filter(|rest| !rest.is_empty()) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        from.set_read_timeout(Some(left))?;
        match from.read(rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let (a, b) = UnixStream::pair().unwrap();
        for op in [Op::Put, Op::Get, Op::Drop, Op::DropPool] {
            let said = Request { op, pool: Guid(1 << 63), root: ObjectId(7), key: Zeroizing::new([9; KEY]) };
            said.send(&a).unwrap();
            assert!(Request::receive(&b).unwrap() == said);
        }
        for count in [0, 1, KEYS_MAX] {
            let keys = (0..count as u64).map(|n| (ObjectId(n), Zeroizing::new([n as u8; KEY]))).collect();
            let said = Answer { done: count == 1, keys };
            std::thread::scope(|scope| {
                scope.spawn(|| said.send(&a).unwrap());
                assert!(Answer::receive(&b).unwrap() == said);
            });
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let heard = |bytes: &[u8]| {
            let (mut a, b) = UnixStream::pair().unwrap();
            a.write_all(bytes).unwrap();
            drop(a);
            Request::receive(&b).map(drop).map_err(|e| e.kind())
        };
        let mut good = [MAGIC.as_slice(), &[2], &[0; 48]].concat();
        assert_eq!(heard(&good), Ok(()));
        assert_eq!(heard(&good[..REQUEST - 1]), Err(io::ErrorKind::UnexpectedEof));
        good[8] = 5;
        assert_eq!(heard(&good), Err(io::ErrorKind::InvalidData));
        assert_eq!(heard(&[0; REQUEST]), Err(io::ErrorKind::InvalidData));
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&[1, 0xff, 0xff]).unwrap();
        assert_eq!(Answer::receive(&b).map(drop).map_err(|e| e.kind()), Err(io::ErrorKind::InvalidData));
    }
}
