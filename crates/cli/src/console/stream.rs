//! The descriptors of a console, read and written as the standard library does with those of a process, and given up once the command is interrupted.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl};
use rustix::{process, termios};

use super::{Running, Signals};

/// The bytes that can be written to a terminal, or a pipe that cannot be opened anew, without a wait once it is ready (`PIPE_BUF`).
const PIECE: usize = 4096;

/// A descriptor of a console. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Stream {
    file: Arc<File>,
    signals: Signals,
    /// Set if a write may wait for a reader.
    waits: bool,
    /// Set if it is the terminal that a server was started in.
    of_server: bool,
    /// A pipe opened anew, in which a write takes what there is room for and does not wait.
    roomy: Option<Arc<File>>,
    /// Set if a descriptor that is not open for reading or writing is an empty or bottomless file, as standard input and output of a process are.
    lenient: bool,
}

impl Stream {
    pub(super) fn new(fd: OwnedFd, signals: Signals) -> Stream {
        let kind = rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let waits = matches!(signals, Signals::OfClient(_)) && kind != Ok(FileType::RegularFile);
        let of_server = waits && termios::tcgetsid(&fd).is_ok_and(|session| process::getsid(None) == Ok(session));
        let roomy = if waits && kind == Ok(FileType::Fifo) { opened_anew(&fd) } else { None };
        Stream { file: Arc::new(File::from(fd)), signals, waits, of_server, roomy: roomy.map(Arc::new), lenient: true }
    }

    /// The same, where it is an error that the descriptor is not open for what is done.
    pub(crate) fn strict(&self) -> Stream {
        Stream { lenient: false, ..self.clone() }
    }

    /// The descriptor as a file of its own, whose reads and writes are not interrupted.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Fails where a read or a change of the terminal would stop the process, a server, with all that it does: in the background of the terminal that it was started in.
    pub(crate) fn check_foreground(&self) -> io::Result<()> {
        let is_background = || termios::tcgetpgrp(&*self.file).is_ok_and(|group| group != process::getpgrp());
        match self.of_server && is_background() {
            true => Err(io::Error::other(
                "the server was started in the background of this terminal, and cannot read from it",
            )),
            false => Ok(()),
        }
    }

    /// Whether a read or write may wait for somebody else, which [`Stream::file`] does not give up when the command is interrupted.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// The result of an operation; `otherwise` where the descriptor is not open for it.
    fn if_open(&self, done: io::Result<usize>, otherwise: usize) -> io::Result<usize> {
        match done {
            Err(e) if self.lenient && e.raw_os_error() == Some(rustix::io::Errno::BADF.raw_os_error()) => Ok(otherwise),
            done => done,
        }
    }
}

/// Opens a pipe anew for writing, if it is open for that, and its user lets this process.
fn opened_anew(fd: &OwnedFd) -> Option<File> {
    let is_to_write = fcntl_getfl(fd).is_ok_and(|flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR));
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()).ok();
    is_to_write.then(open).flatten().map(File::from)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.signals.ready(self.file.as_fd(), PollFlags::IN)?;
        self.check_foreground()?;
        let done = (&*self.file).read(buf);
        self.if_open(done, 0)
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.signals.check()?;
        let mut piece = buf;
        if self.waits {
            self.signals.ready(self.file.as_fd(), PollFlags::OUT)?;
            while let Some(pipe) = &self.roomy {
                match (&**pipe).write(buf) {
                    // another writer was first
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
                self.signals.ready(self.file.as_fd(), PollFlags::OUT)?;
            }
            piece = buf.get(..PIECE).unwrap_or(buf);
        }
        let done = (&*self.file).write(piece);
        self.if_open(done, buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard input of a command, with the buffer that all its readers share.
pub(crate) struct Input(pub(super) Arc<Running>);

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.stdin.lock().unwrap_or_else(PoisonError::into_inner).read(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::ClientSignals;

    #[test]
    fn a_clients_pipe_takes_what_it_has_room_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        let client = Arc::new(ClientSignals::new().unwrap());
        let mut stream = Stream::new(writer.into(), Signals::OfClient(client.clone()));
        let data = vec![7; 1 << 20];
        let first = stream.write(&data).unwrap();
        assert!(first > PIECE, "{first}");
        // it is full
        std::thread::scope(|scope| {
            let rest = data.get(first..).unwrap();
            let writing = scope.spawn(|| stream.write_all(rest));
            let mut read = vec![0; data.len()];
            reader.read_exact(&mut read).unwrap();
            assert!(read == data && writing.join().unwrap().is_ok());
        });
        let ended = std::thread::scope(|scope| {
            let writing = scope.spawn(|| stream.write_all(&data));
            client.interrupt();
            writing.join().unwrap()
        });
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
