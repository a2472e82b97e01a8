//! The socket of a connection, and what is read and written through it: as it is, or with TLS.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::tls::Secured;

/// The socket of a connection.
#[derive(Debug)]
pub(crate) struct Socket {
    kind: Kind,
    /// The time at which reads and writes fail that have not ended.
    deadline: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum Kind {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket { kind: Kind::Unix(stream), deadline: Mutex::default() }
    }
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Socket {
        Socket { kind: Kind::Tcp(stream), deadline: Mutex::default() }
    }
}

impl Socket {
    /// Makes reads and writes fail that have not ended at this time; `None`: they wait as long as it takes.
    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
        *self.deadline.lock() = deadline;
        if deadline.is_none() { self.set_timeouts(None) } else { Ok(()) }
    }

    fn begin(&self) -> io::Result<()> {
        let Some(deadline) = *self.deadline.lock() else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { self.set_timeouts(Some(left)) }
    }

    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        match &self.kind {
            Kind::Unix(stream) => stream.set_read_timeout(timeout).and(stream.set_write_timeout(timeout)),
            Kind::Tcp(stream) => stream.set_read_timeout(timeout).and(stream.set_write_timeout(timeout)),
        }
    }

    /// Returns whether both directions are closed, by the client or by the server. A client that has closed its side alone may be answered.
    pub(crate) fn is_gone(&self) -> bool {
        let mut fds = [match &self.kind {
            Kind::Unix(stream) => PollFd::new(stream, PollFlags::empty()),
            Kind::Tcp(stream) => PollFd::new(stream, PollFlags::empty()),
        }];
        let ready = poll(&mut fds, Some(&Timespec::default()));
        ready.is_ok() && fds.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        // it may be closed already
        let _closed = match &self.kind {
            Kind::Unix(stream) => stream.shutdown(how),
            Kind::Tcp(stream) => stream.shutdown(how),
        };
    }
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.begin()?;
        match &self.kind {
            Kind::Unix(stream) => (&*stream).read(buf),
            Kind::Tcp(stream) => (&*stream).read(buf),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.begin()?;
        match &self.kind {
            Kind::Unix(stream) => (&*stream).write(buf),
            Kind::Tcp(stream) => (&*stream).write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.begin()?;
        match &self.kind {
            Kind::Unix(stream) => (&*stream).write_vectored(bufs),
            Kind::Tcp(stream) => (&*stream).write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a connection reads and writes through. One thread reads while others write.
pub(crate) enum Stream {
    Plain(Arc<Socket>),
    Secured(Box<Secured>),
}

impl Stream {
    /// Tells the client that nothing follows.
    pub(crate) fn finish(&self) {
        if let Stream::Secured(secured) = self {
            secured.finish();
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => (&**socket).read(buf),
            Stream::Secured(secured) => secured.read(buf),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => (&**socket).write_vectored(bufs),
            Stream::Secured(secured) => secured.write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_ends_reads_that_wait_and_those_that_dribble() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let socket = Socket::from(ours);
        socket.set_deadline(Some(Instant::now() + Duration::from_millis(30))).unwrap();
        theirs.write_all(b"a").unwrap();
        let mut buf = [0; 2];
        // one byte has come, the other never does
        assert!((&socket).read_exact(&mut buf).is_err());
        theirs.write_all(b"b").unwrap();
        assert_eq!((&socket).read(&mut buf).unwrap_err().kind(), io::ErrorKind::TimedOut);
        socket.set_deadline(None).unwrap();
        assert_eq!((&socket).read(&mut buf).unwrap(), 1);
    }
}
