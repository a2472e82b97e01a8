//! Frames over a Unix stream socket, with the descriptors that belong to them.
//!
//! A frame is sent by one `sendmsg` at least, whose first byte is the first of the header, and which has the descriptors (`SCM_RIGHTS`). They come with the bytes of the header; what
//! is sent with a byte of a body is closed by the system. Descriptors that come are closed when an exec is made.
//!
//! # Bounds
//! * Nothing is allocated for a length that is only claimed: memory grows with the bytes that have come.
//! * Whoever begins a frame ends it in [`FRAME_TIME`]; between frames there is no limit.
//! * A peer that does not take what is sent to it is given up after [`FRAME_TIME`].

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use codec::crypt::Zeroizing;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::frame::{BadHeader, DESCRIPTORS_MAX, HEADER, Header, Kind};

/// The time for all of a frame.
pub const FRAME_TIME: Duration = Duration::from_secs(30);
/// Bytes of a body that are allocated before they have come.
const AHEAD: usize = 64 << 10;

/// The bytes of a body. They are wiped, as there may be a key in them.
pub type Body = Zeroizing<Vec<u8>>;

/// A frame that has come.
#[derive(Debug)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    /// Its body.
    pub body: Body,
    /// Its descriptors, as many as the header says.
    pub descriptors: Vec<OwnedFd>,
}

/// Why no frame has come. Nothing more can be read from the peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer has closed the connection between two frames.
    #[error("the connection was closed")]
    Closed,
    /// It has closed it within one, or taken too long, or the system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It does not speak this protocol.
    #[error(transparent)]
    Header(#[from] BadHeader),
    /// A body that is longer than this peer may send.
    #[error("a frame of {len} bytes is longer than {max}")]
    TooLong {
        /// Bytes of the body.
        len: u32,
        /// Bytes that it may have.
        max: u32,
    },
    /// Another number of descriptors has come than the header says; this process may have too many open.
    #[error("{found} descriptors have come of {said}")]
    Descriptors {
        /// As the header says.
        said: usize,
        /// As many have come.
        found: usize,
    },
}

/// Sends a frame.
///
/// # Errors
/// When the peer is gone, or does not take it in time. Half a frame may have been sent: the connection is of no use any more.
pub fn send(stream: &UnixStream, kind: Kind, id: u64, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let too_much = || io::Error::from(io::ErrorKind::InvalidInput);
    let len = u32::try_from(body.len()).map_err(|_| too_much())?;
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(too_much());
    }
    let header = Header { kind: kind as u8, descriptors: descriptors.len(), id, len }.encode();
    let until = Instant::now() + FRAME_TIME;
    let mut sent = 0;
    while sent < HEADER + body.len() {
        let (head, rest) = (header.get(sent..).unwrap_or(&[]), body.get(sent.saturating_sub(HEADER)..).unwrap_or(&[]));
        stream.set_write_timeout(Some(left(until)?))?;
        let with = if sent == 0 { descriptors } else { &[] };
        sent += send_some(stream, [IoSlice::new(head), IoSlice::new(rest)], with)?;
    }
    Ok(())
}

fn send_some(stream: &UnixStream, bytes: [IoSlice<'_>; 2], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let _fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = rustix::io::retry_on_intr(|| sendmsg(stream, &bytes, &mut control, SendFlags::NOSIGNAL));
    match sent {
        Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        sent => Ok(sent?),
    }
}

/// The time that is left of a limit.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Receives a frame with a body of at most `max` bytes; the first byte is waited for at most for `patience`, without one as long as it takes.
///
/// # Errors
/// As [`Error`] says.
pub fn receive(stream: &UnixStream, max: u32, patience: Option<Duration>) -> Result<Frame, Error> {
    receive_with(stream, max, DESCRIPTORS_MAX, patience)
}

/// As [`receive`], but takes no descriptors: the system drops them without a call to whatever is behind them. To close one may wait forever for a program of the peer's (FUSE), and
/// not even the end of the process would end that.
///
/// # Errors
/// As [`Error`] says; [`io::ErrorKind::InvalidData`] if descriptors came.
pub fn receive_without_descriptors(stream: &UnixStream, max: u32, patience: Option<Duration>) -> Result<Frame, Error> {
    receive_with(stream, max, 0, patience)
}

fn receive_with(
    stream: &UnixStream,
    max: u32,
    descriptors_max: usize,
    patience: Option<Duration>,
) -> Result<Frame, Error> {
    let mut bytes = [0; HEADER];
    let mut descriptors = Vec::new();
    stream.set_read_timeout(patience)?;
    let mut got = receive_some(stream, &mut bytes, descriptors_max, &mut descriptors)?;
    if got == 0 {
        return Err(Error::Closed);
    }
    let until = Instant::now() + FRAME_TIME;
    while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
        stream.set_read_timeout(Some(left(until)?))?;
        match receive_some(stream, rest, descriptors_max, &mut descriptors)? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            more => got += more,
        }
    }
    let header = Header::decode(&bytes)?;
    if header.len > max {
        return Err(Error::TooLong { len: header.len, max });
    }
    if header.descriptors != descriptors.len() {
        return Err(Error::Descriptors { said: header.descriptors, found: descriptors.len() });
    }
    let body = receive_body(stream, header.len as usize, until)?;
    Ok(Frame { header, body, descriptors })
}

fn receive_some(
    stream: &UnixStream,
    into: &mut [u8],
    descriptors_max: usize,
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = match descriptors_max {
        0 => RecvAncillaryBuffer::default(),
        _ => RecvAncillaryBuffer::new(&mut space),
    };
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let got = match got {
        Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
        got => got?,
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    // the system has closed those that were too many
    match got.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > descriptors_max {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors: they are not taken")),
        false => Ok(got.bytes),
    }
}

/// Reads a body. A buffer that grows is wiped where it was.
fn receive_body(mut stream: &UnixStream, len: usize, until: Instant) -> io::Result<Body> {
    let mut body = Zeroizing::new(Vec::new());
    while body.len() < len {
        if body.len() == body.capacity() {
            let room = (2 * body.capacity()).clamp(AHEAD, len.max(AHEAD));
            let mut grown = Zeroizing::new(Vec::with_capacity(room));
            grown.extend_from_slice(&body);
            body = grown;
        }
        stream.set_read_timeout(Some(left(until)?))?;
        let (had, room) = (body.len(), body.capacity().min(len) - body.len());
        body.resize(had + room, 0);
        let got = match stream.read(body.get_mut(had..).unwrap_or_default()) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) => return Err(e),
        };
        body.truncate(had + got);
    }
    Ok(body)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn what_is_sent_is_what_comes() {
        let (a, b) = pair();
        let file = tempfile::tempfile().unwrap();
        (&file).write_all(b"x").unwrap();
        for len in [0, 1, AHEAD, 3 * AHEAD + 5] {
            let body: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let sent = body.clone();
            std::thread::scope(|scope| {
                let files = vec![file.as_fd(); len.min(DESCRIPTORS_MAX)];
                let a = &a;
                scope.spawn(move || send(a, Kind::Call, 7, &sent, &files).unwrap());
                let frame = receive(&b, u32::MAX, None).unwrap();
                assert_eq!((frame.header.kind, frame.header.id, frame.body.as_slice()), (2, 7, body.as_slice()));
                let lens = frame.descriptors.into_iter().map(|fd| File::from(fd).metadata().unwrap().len());
                assert_eq!(lens.collect::<Vec<_>>(), vec![1; len.min(DESCRIPTORS_MAX)]);
            });
        }
        drop(a);
        assert!(matches!(receive(&b, 9, None), Err(Error::Closed)));
    }

    #[test]
    fn what_is_too_long_or_ends_early_is_refused() {
        let heard = |bytes: &[u8], max| {
            let (mut a, b) = pair();
            a.write_all(bytes).unwrap();
            drop(a);
            receive(&b, max, None).map(drop).unwrap_err()
        };
        let header = Header { kind: 2, descriptors: 0, id: 1, len: 100 }.encode();
        assert!(matches!(heard(&header, 99), Error::TooLong { len: 100, max: 99 }));
        let early = |error: Error| matches!(error, Error::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof);
        assert!(early(heard(&header, 100)) && early(heard(&header[..5], 100)));
        assert!(matches!(heard(&[7; HEADER], 100), Error::Header(BadHeader::Magic)));
        let with = Header { kind: 2, descriptors: 1, id: 1, len: 0 }.encode();
        assert!(matches!(heard(&with, 100), Error::Descriptors { said: 1, found: 0 }));
    }

    #[test]
    fn descriptors_that_are_too_many_are_closed() {
        let (a, b) = pair();
        let (mut reader, writer) = io::pipe().unwrap();
        let many = vec![writer.as_fd(); DESCRIPTORS_MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX + 1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let header = Header { kind: 2, descriptors: DESCRIPTORS_MAX, id: 1, len: 0 }.encode();
        sendmsg(&a, &[IoSlice::new(&header)], &mut control, SendFlags::empty()).unwrap();
        drop(writer);
        assert!(matches!(receive(&b, 9, None), Err(Error::Io(e)) if e.kind() == io::ErrorKind::InvalidData));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "one is still open");
    }

    #[test]
    fn where_none_are_taken_one_is_too_many() {
        let (a, b) = pair();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&a, Kind::Call, 1, b"x", &[]).unwrap();
        assert_eq!(receive_without_descriptors(&b, 9, None).unwrap().body.as_slice(), b"x");
        send(&a, Kind::Call, 2, &[], &[writer.as_fd()]).unwrap();
        drop(writer);
        let refused = receive_without_descriptors(&b, 9, None);
        assert!(matches!(refused, Err(Error::Io(e)) if e.kind() == io::ErrorKind::InvalidData));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it is still open");
    }
}
