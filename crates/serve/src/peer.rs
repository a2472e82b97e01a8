//! Who is at the other end of a connection.
//!
//! The system tells it (`SO_PEERCRED`): the user and group that the process had in force when it connected. A program that connects, and then hands the connection to another, or gives up its
//! rights, has asked all the same. Its other groups are not taken from anywhere: what `/proc` tells of a process may be that of another one by now, and they could only add to what it may do.

use std::io;
use std::os::unix::net::UnixStream;

use control::Caller;
use rustix::net::sockopt::socket_peercred;

/// The user that administers every machine.
const ROOT: u32 = 0;

/// The peer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// The group of that.
    pub gid: u32,
    /// Its process.
    pub process: u32,
}

/// Finds out who a peer is.
pub type Identify = fn(&UnixStream) -> io::Result<Peer>;

impl Peer {
    /// The peer as the system tells of it.
    ///
    /// # Errors
    /// When it does not.
    pub fn of(stream: &UnixStream) -> io::Result<Peer> {
        let found = socket_peercred(stream)?;
        let process = u32::try_from(found.pid.as_raw_nonzero().get()).unwrap_or(0);
        Ok(Peer { uid: found.uid.as_raw(), gid: found.gid.as_raw(), process })
    }

    /// Whether it may do all with the pools of this user.
    #[must_use]
    pub fn is_owner(self, owner: u32) -> bool {
        [ROOT, owner].contains(&self.uid)
    }

    /// The peer as a caller of requests.
    pub(crate) fn caller(self) -> Caller {
        Caller { uid: self.uid, gid: self.gid, real_uid: self.uid, process: self.process, ..Caller::default() }
    }
}
