//! Descriptors of a client that streams are read from and written to. One that blocks does so only for its request, and not beyond its end.
//!
//! A read that waits in the system cannot be called back. So none does: a pipe is opened once more, with a description of its own that does not wait, which changes nothing for the
//! client; sockets are told for each transfer; of all others it is asked whether they are ready. While they are not, it is asked whether the request was ended. A file of a file system that
//! does not answer is waited for.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use control::CancelToken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// The interval at which it is asked whether the request was ended.
const ASK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// As much as something that is ready to be written takes at least (`PIPE_BUF`).
const SAFE: usize = 4096;

/// The direction of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// It is read.
    In,
    /// It is written.
    Out,
}

impl Direction {
    fn ready(self) -> PollFlags {
        match self {
            Direction::In => PollFlags::IN,
            Direction::Out => PollFlags::OUT,
        }
    }

    /// Whether a file that was opened with these flags is one for it.
    fn is_of(self, flags: OFlags) -> bool {
        let mode = flags & OFlags::RWMODE;
        let other = match self {
            Direction::In => OFlags::WRONLY,
            Direction::Out => OFlags::RDONLY,
        };
        mode != other && !flags.contains(OFlags::PATH)
    }

    /// Opens a pipe once more, as one that does not wait.
    fn open_again(self, pipe: &OwnedFd) -> Option<OwnedFd> {
        let mode = match self {
            Direction::In => OFlags::RDONLY,
            Direction::Out => OFlags::WRONLY,
        };
        let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
        rustix::fs::open(path, mode | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}

/// How it is seen to that a transfer does not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The description says so.
    NonBlocking,
    /// Each transfer says so.
    Socket,
    /// It takes and gives what there is.
    File,
    /// Only what is ready is read or written.
    Other,
}

/// A descriptor of a client, for one request.
#[derive(Debug)]
pub(crate) struct Stream {
    fd: OwnedFd,
    kind: Kind,
    direction: Direction,
    cancel: CancelToken,
}

impl Stream {
    /// Takes a descriptor.
    ///
    /// # Errors
    /// EBADF if the client may not use it in this direction.
    pub(crate) fn new(fd: OwnedFd, direction: Direction, cancel: &CancelToken) -> io::Result<Stream> {
        // what this process may open again the client perhaps may not
        if !direction.is_of(fcntl_getfl(&fd)?) {
            return Err(Errno::BADF.into());
        }
        let (fd, kind) = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
            FileType::Fifo => match direction.open_again(&fd) {
                Some(again) => (again, Kind::NonBlocking),
                None => (fd, Kind::Other),
            },
            FileType::Socket => (fd, Kind::Socket),
            FileType::RegularFile => (fd, Kind::File),
            _ => (fd, Kind::Other),
        };
        Ok(Stream { fd, kind, direction, cancel: cancel.clone() })
    }

    /// Transfers something, once that is possible, unless the request is ended.
    fn transfer(&self, mut some: impl FnMut(&Stream) -> Result<usize, Errno>) -> io::Result<usize> {
        loop {
            self.cancel.go_on()?;
            if self.kind == Kind::Other && !self.is_ready()? {
                continue;
            }
            match some(self) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => drop(self.is_ready()?),
                done => return Ok(done?),
            }
        }
    }

    /// Waits for a moment. Returns whether it is ready.
    fn is_ready(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.fd, self.direction.ready())];
        match poll(&mut fds, Some(&ASK_EVERY)) {
            Err(Errno::INTR) => Ok(false),
            ready => Ok(ready? > 0),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.transfer(|stream| match stream.kind {
            Kind::Socket => rustix::net::recv(&stream.fd, &mut *buf, RecvFlags::DONTWAIT).map(|(got, _)| got),
            Kind::NonBlocking | Kind::File | Kind::Other => rustix::io::read(&stream.fd, &mut *buf),
        })
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.transfer(|stream| match stream.kind {
            Kind::Socket => rustix::net::send(&stream.fd, buf, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Kind::NonBlocking | Kind::File => rustix::io::write(&stream.fd, buf),
            Kind::Other => rustix::io::write(&stream.fd, buf.get(..SAFE).unwrap_or(buf)),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use control::Canceller;

    use super::*;

    /// All that can be written to somebody who reads nothing, until the request is ended.
    fn clogged(fd: OwnedFd) -> usize {
        let canceller = Canceller::default();
        let mut stream = Stream::new(fd, Direction::Out, &canceller.token()).unwrap();
        thread::scope(|scope| {
            let writing = scope.spawn(move || {
                let mut sum = 0;
                loop {
                    match stream.write(&[7; 100_000]) {
                        Ok(n) => sum += n,
                        Err(e) => break (sum, e.kind()),
                    }
                }
            });
            thread::sleep(Duration::from_millis(300));
            assert!(!writing.is_finished());
            drop(canceller);
            let (sum, kind) = writing.join().unwrap();
            assert_eq!(kind, io::ErrorKind::Other);
            sum
        })
    }

    #[test]
    fn what_nobody_reads_ends_with_its_request_and_waits_again_for_the_client() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(clogged(OwnedFd::from(writer.try_clone().unwrap())) >= SAFE);
        assert!(!fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK), "the client's own has changed");
        drop((reader, writer));
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(clogged(socket.into()) >= SAFE);
    }

    #[test]
    fn what_nobody_writes_ends_with_its_request() {
        let (reader, _writer) = io::pipe().unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        for fd in [OwnedFd::from(reader), OwnedFd::from(socket)] {
            let canceller = Canceller::default();
            let mut stream = Stream::new(fd, Direction::In, &canceller.token()).unwrap();
            thread::scope(|scope| {
                let reading = scope.spawn(move || stream.read(&mut [0; 9]).map_err(|e| e.kind()));
                thread::sleep(Duration::from_millis(150));
                assert!(!reading.is_finished());
                canceller.cancel();
                assert_eq!(reading.join().unwrap(), Err(io::ErrorKind::Other));
            });
        }
    }

    #[test]
    fn bytes_pass_through_pipes_sockets_and_files() {
        let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| n as u8).collect();
        let none = CancelToken::default();
        let pass = |from: OwnedFd, to: OwnedFd| {
            let (none, sent) = (&none, &bytes);
            thread::scope(|scope| {
                scope.spawn(move || Stream::new(to, Direction::Out, none).unwrap().write_all(sent).unwrap());
                let mut got = Vec::new();
                Stream::new(from, Direction::In, none).unwrap().read_to_end(&mut got).unwrap();
                assert!(got == *sent);
            });
        };
        let (reader, writer) = io::pipe().unwrap();
        pass(reader.into(), writer.into());
        let (a, b) = UnixStream::pair().unwrap();
        pass(a.into(), b.into());
        let file = tempfile::NamedTempFile::new().unwrap();
        Stream::new(file.reopen().unwrap().into(), Direction::Out, &none).unwrap().write_all(&bytes).unwrap();
        let mut got = Vec::new();
        Stream::new(file.reopen().unwrap().into(), Direction::In, &none).unwrap().read_to_end(&mut got).unwrap();
        assert!(got == bytes);
    }

    #[test]
    fn an_end_of_a_pipe_is_used_in_its_direction_only() {
        let (reader, writer) = io::pipe().unwrap();
        let none = CancelToken::default();
        let refused = |fd: OwnedFd, direction| Stream::new(fd, direction, &none).unwrap_err().raw_os_error();
        assert_eq!(refused(reader.into(), Direction::Out), Some(9));
        assert_eq!(refused(writer.into(), Direction::In), Some(9));
    }
}
