//! Where a server is reached: a Unix socket, or a port of TCP.
//!
//! A Unix socket is for its user alone (mode 0600), from the moment on at which it has a name. One that a killed server has left is replaced; one that somebody listens to, or what is no socket, is not. Two
//! servers that begin at once do not replace each other's, as they lock the directory for it.

use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

use crate::socket::Socket;

/// The port that NBD has.
pub const PORT: u16 = 10809;
/// The mode of a Unix socket.
const MODE: u32 = 0o600;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// The time for which another server is waited for that makes or removes a socket in the same directory, and the interval of looks.
const LOCK_TIME: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);
/// The time after which it is looked whether a client that is silent is still there, and the interval of further looks.
const KEEPALIVE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The time after which a client is taken for gone that has answered no look, or has taken nothing of what was sent, in milliseconds.
const GONE_MS: u32 = 120_000;

/// Where a server is reached.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Unix(UnixSocket),
    Tcp(TcpListener),
}

/// A socket with a name, which it loses when this is dropped.
#[derive(Debug)]
struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the name: another socket that has taken it since stays.
    identity: (u64, u64),
}

impl Listener {
    /// Listens on a Unix socket of this name.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another program listens to it, or it is no socket; what the system says.
    pub fn unix(path: &Path) -> io::Result<Listener> {
        let _lock = lock_directory(path)?;
        make_way(path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // the name gets the mode of the socket
        fchmod(&socket, Mode::from_raw_mode(MODE))?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, BACKLOG)?;
        let made = path.symlink_metadata()?;
        let listener = UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        Ok(Listener(Kind::Unix(UnixSocket { listener, path: path.to_owned(), identity: (made.dev(), made.ino()) })))
    }

    /// Listens on a port of TCP; port 0 stands for any that is free.
    ///
    /// # Errors
    /// What the system says.
    pub fn tcp(address: SocketAddr) -> io::Result<Listener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Listener(Kind::Tcp(listener)))
    }

    /// Returns the address of a port of TCP that others than this machine may reach.
    #[must_use]
    pub fn public_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().ok().filter(|address| !address.ip().is_loopback()),
            Kind::Unix(_) => None,
        }
    }

    /// Returns the URI by which clients find it, with TLS if it `needs_tls`.
    ///
    /// # Errors
    /// What the system says.
    pub fn uri(&self, needs_tls: bool) -> io::Result<String> {
        let scheme = if needs_tls { "nbds" } else { "nbd" };
        match &self.0 {
            Kind::Tcp(listener) => Ok(format!("{scheme}://{}", listener.local_addr()?)),
            Kind::Unix(socket) => {
                let mut uri = format!("{scheme}+unix:///?socket=");
                for byte in std::path::absolute(&socket.path)?.as_os_str().as_bytes() {
                    match byte {
                        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                            uri.push(char::from(*byte));
                        }
                        byte => write!(uri, "%{byte:02X}").map_err(io::Error::other)?,
                    }
                }
                Ok(uri)
            }
        }
    }

    /// Accepts a connection; an error if there is none at present.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        match &self.0 {
            Kind::Unix(socket) => Ok(socket.listener.accept()?.0.into()),
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                prepare(&stream)?;
                Ok(stream.into())
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Unix(socket) => socket.listener.as_fd(),
            Kind::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Small replies go at once, and a client that has vanished is noticed.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEPALIVE)?;
    set_tcp_keepintvl(stream, LOOK_AGAIN)?;
    // it takes the place of the number of looks, too
    set_tcp_user_timeout(stream, GONE_MS)?;
    Ok(())
}

/// Locks the directory of a socket against other servers that make or remove theirs. `None`: somebody has it locked for long, who may be anybody that can read it, and is not waited for.
fn lock_directory(path: &Path) -> io::Result<Option<File>> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(directory)?;
    let begun = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(Some(directory)),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_TIME => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
}

/// Removes a socket that nobody listens to.
fn make_way(path: &Path) -> io::Result<()> {
    let in_use = |why: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
        Ok(found) if !found.file_type().is_socket() => return in_use("it exists, and is no socket"),
        Ok(_) => {}
    }
    // one whose queue is full is in use, and is not waited for
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        _ => in_use("another program listens to it"),
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _lock = lock_directory(&self.path);
        let is_own = self.path.symlink_metadata().is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if is_own {
            // one that stays is replaced by the next server
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b");
        let first = Listener::unix(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, MODE);
        assert!(first.uri(false).unwrap().ends_with("/a%20b"));
        let refused = Listener::unix(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        // it is as a killed server leaves it
        let Listener(Kind::Unix(UnixSocket { listener, .. })) = &first else { panic!() };
        let stale = listener.try_clone().unwrap();
        std::fs::rename(&path, dir.path().join("kept")).unwrap();
        drop((first, stale));
        std::fs::rename(dir.path().join("kept"), &path).unwrap();
        assert!(UnixStream::connect(&path).is_err());
        let second = Listener::unix(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        // one that has taken the name since stays
        std::fs::remove_file(&path).unwrap();
        let third = Listener::unix(&path).unwrap();
        drop(second);
        assert!(path.exists());
        drop(third);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_whose_queue_is_full_is_in_use_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let other = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&other, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&other, 0).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut waiting = Vec::new();
        loop {
            let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            match connect(&client, &SocketAddrUnix::new(&path).unwrap()) {
                Ok(()) => waiting.push(client),
                Err(e) => break assert_eq!(e, Errno::WOULDBLOCK),
            }
        }
        assert_eq!(Listener::unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn a_client_of_tcp_that_has_vanished_is_noticed() {
        use rustix::net::sockopt::{socket_keepalive, tcp_keepidle, tcp_user_timeout};
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(listener.public_address(), None);
        let Kind::Tcp(inner) = &listener.0 else { panic!() };
        let client = TcpStream::connect(inner.local_addr().unwrap()).unwrap();
        let (server, _) = inner.accept().unwrap();
        prepare(&server).unwrap();
        assert!(socket_keepalive(&server).unwrap());
        assert_eq!((tcp_keepidle(&server).unwrap(), tcp_user_timeout(&server).unwrap()), (KEEPALIVE, GONE_MS));
        drop(client);
        assert!(Listener::tcp("0.0.0.0:0".parse().unwrap()).unwrap().public_address().is_some());
    }

    #[test]
    fn a_directory_that_somebody_has_locked_keeps_no_server_from_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let other = File::open(dir.path()).unwrap();
        other.lock().unwrap();
        drop(Listener::unix(&dir.path().join("socket")).unwrap());
        assert!(!dir.path().join("socket").exists());
    }

    #[test]
    fn what_is_no_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "kept").unwrap();
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        for name in ["file", "link"] {
            let refused = Listener::unix(&dir.path().join(name)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        assert!(Listener::unix(&dir.path().join("missing/socket")).is_err());
    }
}
