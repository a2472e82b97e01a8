//! The place of the process that serves the pools of this site to others: `server.socket` and `server.lock` in the state folder.
//!
//! Who serves holds the lock ([`Seat`]) for as long as it lives; the system releases it however the process ends. Only the holder makes or removes the socket, so
//! that one that is left from a killed process is replaced, and nobody removes the socket of another. The lock file stays: one that is removed could be locked twice.
//!
//! A new socket is bound beside the name, gets its mode, and takes the name in one step: whoever connects meets the old one or the new one, never one with another mode.
//!
//! A client trusts a server of root and of its own user. That of the folder's owner it trusts as well, unless it is root: who may put a socket there is then no better than
//! the caller, and a request has keys and open files in it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::Error;
use crate::records::{self, ROOT};
use crate::state::{Folder, is_locked};

const SOCKET: &str = "server.socket";
const NEW_SOCKET: &str = ".server.socket";
const LOCK: &str = "server.lock";
const LOG: &str = "server.log";
/// Modes of the socket: for the owner, and for everybody.
const OWN_MODE: u32 = 0o600;
const OPEN_MODE: u32 = 0o666;

/// The right to serve the pools of this site: no other process has it.
#[derive(Debug)]
pub struct Seat {
    folder: Folder,
    _lock: File,
    /// Device and inode of the socket that it has made.
    socket: OnceLock<(u64, u64)>,
}

impl Seat {
    /// Takes it; the state folder is made if it is not there.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] with the name of the process that has it; what the system says.
    pub fn take() -> io::Result<Seat> {
        let folder = Folder::make()?;
        let lock = folder.shared_file(LOCK)?;
        match lock.try_lock() {
            Ok(()) => Ok(Seat { folder, _lock: lock, socket: OnceLock::new() }),
            Err(TryLockError::WouldBlock) => {
                let holder = vdev::device::lock_holder(&lock);
                let why = format!("the pools of '{}' are already served{holder}", folder.path().display());
                Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
            }
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    /// Listens on the socket, which replaces one that is left; with `open` all users may connect.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen(&self, open: bool) -> io::Result<UnixListener> {
        self.folder.remove(NEW_SOCKET)?;
        let listener = UnixListener::bind(self.folder.address(NEW_SOCKET))?;
        let made = self.folder.set_socket_mode(NEW_SOCKET, if open { OPEN_MODE } else { OWN_MODE })?;
        self.folder.rename(NEW_SOCKET, SOCKET)?;
        self.socket.get_or_init(|| made);
        Ok(listener)
    }

    /// Removes the socket that it made: whoever connects from now on meets no server. One that has taken its name since stays (systemd replaces a socket that is in use).
    ///
    /// # Errors
    /// What the system says.
    pub fn leave(&self) -> io::Result<()> {
        let own = |found| self.socket.get() == Some(&found);
        match self.folder.identity(SOCKET) {
            Ok(found) if own(found) => self.folder.remove(SOCKET),
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Returns whether a process has the seat.
#[must_use]
pub fn is_taken() -> bool {
    let lock = Folder::open().and_then(|folder| folder.file(LOCK));
    lock.is_ok_and(|lock| is_locked(&lock))
}

/// The absolute path of the state folder, which is made if it is not there, and the file for the messages of a server that is started in the background; what was in it is gone.
///
/// # Errors
/// What the system says.
pub fn log() -> io::Result<(PathBuf, File)> {
    let folder = Folder::make()?;
    let log = folder.shared_file(LOG)?;
    if !is_taken() {
        log.set_len(0)?;
    }
    Ok((std::path::absolute(folder.path())?, log))
}

/// Connects to the socket; `None` if there is none, or nobody listens to it.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] if it is another user's and may not be trusted; what the system says.
pub fn connect() -> io::Result<Option<UnixStream>> {
    let folder = match Folder::open() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let stream = match UnixStream::connect(folder.address(SOCKET)) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => return Ok(None),
        connected => connected?,
    };
    let server = socket_peercred(&stream)?.uid.as_raw();
    match is_trusted(server, folder.owner(), geteuid().as_raw()) {
        true => Ok(Some(stream)),
        false => {
            let why = format!("the server at '{}' is user {server}'s", folder.path().display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
        }
    }
}

fn is_trusted(server: u32, owner: u32, me: u32) -> bool {
    [ROOT, me].contains(&server) || (me != ROOT && server == owner)
}

/// The path of the socket, for messages and units.
///
/// # Errors
/// [`Error::NoFolder`].
pub fn path() -> Result<PathBuf, Error> {
    Ok(records::folder()?.join(SOCKET))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_socket_that_another_put_in_its_place_stays() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let seat = || {
            let folder = Folder::own(dir.path()).unwrap();
            let lock = folder.shared_file(LOCK).unwrap();
            Seat { folder, _lock: lock, socket: OnceLock::new() }
        };
        let (first, second) = (seat(), seat());
        let _listeners = [first.listen(false).unwrap(), second.listen(false).unwrap()];
        first.leave().unwrap();
        assert!(dir.path().join(SOCKET).exists());
        second.leave().unwrap();
        second.leave().unwrap();
        assert!(!dir.path().join(SOCKET).exists());
    }

    #[test]
    fn a_file_that_takes_the_place_of_the_socket_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let folder = Folder::own(dir.path()).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "secret").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        symlink(&file, dir.path().join("link")).unwrap();
        let _listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        symlink(dir.path().join("socket"), dir.path().join("link-to-socket")).unwrap();
        for other in ["file", "link", "link-to-socket"] {
            let refused = folder.set_socket_mode(other, OPEN_MODE).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{other}");
        }
        assert_eq!(mode("file"), 0o600);
        folder.set_socket_mode("socket", OPEN_MODE).unwrap();
        assert_eq!(mode("socket"), OPEN_MODE);
        std::fs::hard_link(dir.path().join("socket"), dir.path().join("second")).unwrap();
        assert!(folder.set_socket_mode("socket", OWN_MODE).is_err());
    }

    #[test]
    fn root_trusts_no_server_of_another_user() {
        assert!(is_trusted(0, 0, 0) && is_trusted(0, 5, 0) && !is_trusted(5, 5, 0));
        assert!(is_trusted(0, 5, 7) && is_trusted(7, 5, 7) && is_trusted(5, 5, 7) && !is_trusted(6, 5, 7));
    }
}
