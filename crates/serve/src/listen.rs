//! The socket that a server listens to: its own, or one that systemd hands over (`LISTEN_FDS`, `sd_listen_fds`).

use std::io;
use std::os::unix::net::UnixListener;

use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// The first descriptor that is handed over (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;

/// The socket that was handed over to this process; `None` if there is none.
///
/// # Errors
/// When there are several, or one that is no Unix socket.
pub(crate) fn inherited() -> io::Result<Option<UnixListener>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    match (number("LISTEN_PID"), number("LISTEN_FDS")) {
        (Some(pid), Some(count)) if Some(getpid()) == Pid::from_raw(pid) && count > 0 => match count {
            1 => taken().map(Some),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{count} sockets were handed over, and not one"),
            )),
        },
        _ => Ok(None),
    }
}

/// The socket, under another number.
fn taken() -> io::Result<UnixListener> {
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    let socket = pidfd_getfd(process, FIRST, PidfdGetfdFlags::empty())?;
    // no program that this one starts gets the one that was handed over
    close_fds::set_fds_cloexec(FIRST, &[]);
    if socket_type(&socket)? != SocketType::STREAM || !socket_acceptconn(&socket)? {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the socket that was handed over is no listening stream",
        ));
    }
    let listener = UnixListener::from(socket);
    listener.local_addr()?;
    Ok(listener)
}
