//! Typed keys, kept from one command to the next.
//!
//! In OpenZFS the kernel keeps loaded keys. Here a process does, the agent: one for each user of a state folder. It is
//! started with the first key, and ends with the last. `zfs load-key`, and any command that creates an encryption root
//! whose key is not in a file, gives it the wrapping key (32 bytes, never what was typed); every command that opens
//! the pool asks it; `zfs unload-key`, and an export, remove keys. A key is identified by the guid of its pool and by
//! the object number of its encryption root's directory, which stays the same when the root is renamed.
//!
//! Protection of the keys: they are in memory only, which is not swapped where the system allows that, never in a core
//! dump, and wiped when they are removed. The socket has mode 0600, in a folder of mode 0700 that must be the user's
//! own; and both sides ask the system who the peer is (`SO_PEERCRED`): the agent answers only its own user, and a
//! command gives keys only to a process of its own user. Messages have a fixed form, a bound, and a time limit
//! ([`wire`]).
//!
//! A command that starts an agent, or removes a key, holds the lock of the folder meanwhile. The command creates the
//! listening socket and hands it down, so that there is no time in which the agent does not listen yet; the agent
//! removes the socket before it answers the command that removed the last key. An agent that was killed leaves a
//! socket that nobody listens to: the next command that brings a key replaces it.

mod server;
mod wire;

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use base::{Guid, ObjectId};
use codec::crypt::{WrappingKey, Zeroizing};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

pub use server::run;

use crate::state;
use wire::{Answer, Op, Request};

/// The argument that makes the program an agent.
pub(crate) const VERB: &str = "key-agent";

/// Gives the agent a key; it is started if there is none.
///
/// # Errors
/// When it cannot be started or asked, or keeps as many keys as it may.
pub fn put(pool: Guid, root: ObjectId, key: &WrappingKey) -> io::Result<()> {
    let folder = Folder::make()?;
    let _alone = folder.lock()?;
    let request = Request { op: Op::Put, pool, root, key: Zeroizing::new(*key.as_bytes()) };
    if let Ok(agent) = folder.connect() {
        return ask(agent, &request).map(drop);
    }
    folder.start()?;
    ask(folder.connect()?, &request).map(drop)
}

/// The keys of a pool, by the directories of their encryption roots. None if there is no agent.
#[must_use]
pub fn get(pool: Guid) -> Vec<(ObjectId, WrappingKey)> {
    let agent = Folder::find().and_then(|folder| folder.connect());
    let answer = agent.and_then(|agent| ask(agent, &Request::of(Op::Get, pool, ObjectId::NONE)));
    let keys = answer.map(|answer| answer.keys).unwrap_or_default();
    keys.iter().filter_map(|(root, key)| Some((*root, WrappingKey::from_raw(key.as_slice()).ok()?))).collect()
}

/// Removes a key. Returns whether it was there.
pub fn drop_key(pool: Guid, root: ObjectId) -> bool {
    take(&Request::of(Op::Drop, pool, root))
}

/// Removes all keys of a pool. Returns whether there was one.
pub fn drop_pool(pool: Guid) -> bool {
    take(&Request::of(Op::DropPool, pool, ObjectId::NONE))
}

fn take(request: &Request) -> bool {
    let Ok(folder) = Folder::find() else { return false };
    let Ok(_alone) = folder.lock() else { return false };
    let answer = folder.connect().and_then(|agent| ask(agent, request));
    answer.is_ok_and(|answer| answer.done)
}

fn ask(agent: UnixStream, request: &Request) -> io::Result<Answer> {
    request.send(&agent)?;
    let answer = Answer::receive(&agent)?;
    match answer.done || request.op != Op::Put {
        true => Ok(answer),
        false => Err(io::Error::other("the agent keeps as many keys as it may")),
    }
}

/// Checks that the peer of a connection is a process of this user.
fn is_own(stream: &UnixStream) -> io::Result<()> {
    match socket_peercred(stream)?.uid == geteuid() {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// The agent's folder. It is held open: a socket's address has no room for a long path.
struct Folder(state::Folder);

/// The socket in the folder.
const SOCKET: &str = "socket";

impl Folder {
    fn name() -> String {
        format!("agent.{}", geteuid().as_raw())
    }

    fn find() -> io::Result<Folder> {
        state::Folder::open()?.own_sub(&Folder::name()).map(Folder)
    }

    fn make() -> io::Result<Folder> {
        state::Folder::make()?.make_own_sub(&Folder::name()).map(Folder)
    }

    /// Waits until no other command starts an agent or removes a key.
    fn lock(&self) -> io::Result<File> {
        let file = self.0.shared_file("lock")?;
        file.lock()?;
        Ok(file)
    }

    fn address(&self) -> String {
        self.0.address(SOCKET)
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(self.address())?;
        is_own(&stream)?;
        Ok(stream)
    }

    /// Starts an agent; every command that connects from now on is answered.
    fn start(&self) -> io::Result<()> {
        self.0.remove(SOCKET)?;
        let listener = UnixListener::bind(self.address())?;
        fs::set_permissions(self.address(), fs::Permissions::from_mode(0o600))?;
        let socket = std::path::absolute(self.0.path())?.join(SOCKET);
        // this very program, though its file may have been replaced
        let mut command = Command::new("/proc/self/exe");
        command.arg0("zuse").arg(VERB).arg(&socket).env_clear().current_dir(Path::new("/"));
        command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(Stdio::null()).stderr(Stdio::null());
        // it outlives this process, which does not wait for it, and keeps nothing open that this one was given: no lock, no end of a pipe
        close_fds::set_fds_cloexec(3, &[]);
        command.spawn().map(drop)
    }
}
