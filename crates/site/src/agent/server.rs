//! The agent itself: keys by pool and encryption root, as long as there are any.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use base::{Guid, ObjectId};
use codec::crypt::Zeroizing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::MlockAllFlags;
use rustix::process::DumpableBehavior;

use super::wire::{Answer, KEYS_MAX, Op, Request};
use super::{SOCKET, VERB, is_own};
use crate::keys;
use crate::state::Folder;

/// Interval at which the agent checks that its socket still exists: without it nobody can remove the keys. Also its
/// time limit for the first key.
const LOOK: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Keys by pool and encryption root.
type Keys = BTreeMap<(Guid, ObjectId), Zeroizing<[u8; 32]>>;

/// Runs the agent, if the arguments of the program are those of one: its verb, and the path of the socket, which is
/// its standard input and already listened to.
#[must_use]
pub fn run(args: &[OsString]) -> Option<u8> {
    let [verb, socket] = args else { return None };
    if verb != VERB {
        return None;
    }
    let listener = io::stdin().as_fd().try_clone_to_owned().map(UnixListener::from).ok();
    // a caller of the verb without a socket gets nothing
    let listener = listener.filter(|listener| listener.local_addr().is_ok())?;
    Some(u8::from(serve(&listener, &PathBuf::from(socket)).is_err()))
}

fn serve(listener: &UnixListener, socket: &Path) -> io::Result<()> {
    // shown in lists of processes; nothing depends on any of these
    let _ = fs::write("/proc/self/comm", "zuse-key-agent");
    let _ = rustix::process::setsid();
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    keys::no_core_dumps();
    listener.set_nonblocking(true)?;
    let mut keys = Keys::new();
    loop {
        if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&LOOK)).is_ok_and(|ready| ready == 0) {
            if keys.is_empty() || !is_there(socket) {
                return remove(socket);
            }
            continue;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            Err(e) => return Err(e),
        };
        // an invalid request is not answered
        let _ = answer(&stream, &mut keys, socket);
        if keys.is_empty() && !is_there(socket) {
            return Ok(());
        }
    }
}

fn answer(stream: &UnixStream, keys: &mut Keys, socket: &Path) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    is_own(stream)?;
    let request = Request::receive(stream)?;
    let taken = matches!(request.op, Op::Drop | Op::DropPool);
    let answer = apply(request, keys);
    if taken && keys.is_empty() {
        // the command that brings the next key starts a new agent
        remove(socket)?;
    }
    answer.send(stream)
}

/// The folder of the socket: whoever owns the state folder may have put another one in its place.
fn folder(socket: &Path) -> io::Result<Folder> {
    Folder::own(socket.parent().unwrap_or(socket))
}

fn is_there(socket: &Path) -> bool {
    folder(socket).is_ok_and(|folder| folder.has(SOCKET))
}

fn remove(socket: &Path) -> io::Result<()> {
    folder(socket)?.remove(SOCKET)
}

fn apply(request: Request, keys: &mut Keys) -> Answer {
    let (pool, at) = (request.pool, (request.pool, request.root));
    let done = match request.op {
        Op::Put => {
            let room = keys.len() < KEYS_MAX || keys.contains_key(&at);
            if room {
                keys.insert(at, request.key);
            }
            room
        }
        Op::Get => {
            let of_pool = keys.range((pool, ObjectId(0))..=(pool, ObjectId(u64::MAX)));
            let found = of_pool.map(|((_, root), key)| (*root, key.clone())).collect();
            return Answer { done: true, keys: found };
        }
        Op::Drop => keys.remove(&at).is_some(),
        Op::DropPool => {
            let before = keys.len();
            keys.retain(|(of, _), _| *of != pool);
            keys.len() < before
        }
    };
    Answer { done, keys: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_by_pool_and_root_up_to_a_bound() {
        let mut keys = Keys::new();
        let put = |pool, root, byte| {
            let of = Request::of(Op::Put, Guid(pool), ObjectId(root));
            Request { key: Zeroizing::new([byte; 32]), ..of }
        };
        let mut ask = |request| apply(request, &mut keys);
        assert!(ask(put(1, 2, 3)).done && ask(put(1, 4, 5)).done && ask(put(2, 2, 6)).done && ask(put(1, 2, 7)).done);
        let found: Vec<_> =
            ask(Request::of(Op::Get, Guid(1), ObjectId(0))).keys.iter().map(|(root, key)| (*root, key[0])).collect();
        assert_eq!(found, [(ObjectId(2), 7), (ObjectId(4), 5)]);
        assert!(
            ask(Request::of(Op::Drop, Guid(1), ObjectId(2))).done
                && !ask(Request::of(Op::Drop, Guid(1), ObjectId(2))).done
        );
        assert!(
            ask(Request::of(Op::DropPool, Guid(1), ObjectId(0))).done
                && !ask(Request::of(Op::DropPool, Guid(1), ObjectId(0))).done
        );
        assert_eq!(ask(Request::of(Op::Get, Guid(2), ObjectId(0))).keys.len(), 1);
        let taken = (0..2 * KEYS_MAX as u64).filter(|root| ask(put(3, *root, 1)).done).count();
        assert_eq!(taken, KEYS_MAX - 1);
    }
}
