//! Replies to requests. Each is sent as a whole, by the thread that has carried out the request.

use std::borrow::Cow;
use std::io::{self, IoSlice, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::Extent;
use crate::proto::{SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, allocation, chunk};

/// The length of the pieces of a read that are told as holes if they are zeros.
const PIECE: u64 = 32 << 10;
/// Bytes of a message for a person; the specification allows 4,096.
const MESSAGE_MAX: usize = 1024;
/// Zeros to compare with.
static ZEROS: [u8; 4 << 10] = [0; 4 << 10];

/// Sends replies.
pub(crate) struct Sender<W> {
    output: Mutex<W>,
    structured: bool,
    /// The client takes no more replies.
    broken: AtomicBool,
}

/// The bytes of a reply, in order.
type Parts<'a> = Vec<Cow<'a, [u8]>>;

impl<W: Write> Sender<W> {
    pub(crate) fn new(output: W, structured: bool) -> Sender<W> {
        Sender { output: Mutex::new(output), structured, broken: AtomicBool::new(false) }
    }

    /// Returns whether a reply could not be sent: nor can any other.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    fn send(&self, parts: &Parts<'_>) {
        let mut output = self.output.lock();
        // half a reply may have been sent
        if !self.is_broken() && write_all(&mut *output, parts).is_err() {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    /// The reply to a request that was carried out and has no data.
    pub(crate) fn done(&self, cookie: u64) {
        self.send(&vec![simple(cookie, 0).into()]);
    }

    /// The reply to a request that failed. The message is for a person.
    pub(crate) fn failed(&self, cookie: u64, number: u32, why: &str) {
        if !self.structured {
            return self.send(&vec![simple(cookie, number).into()]);
        }
        let why = beginning(why, MESSAGE_MAX).as_bytes();
        let payload = [&number.to_be_bytes()[..], &(why.len() as u16).to_be_bytes(), why].concat();
        self.send(&vec![head(chunk::DONE, chunk::ERROR, cookie, payload.len()).into(), payload.into()]);
    }

    /// The reply to a read; `whole`: in one chunk.
    pub(crate) fn data(&self, cookie: u64, offset: u64, data: &[u8], whole: bool) {
        if !self.structured {
            return self.send(&vec![simple(cookie, 0).into(), data.into()]);
        }
        let mut parts = Parts::new();
        for (at, piece, is_zero) in pieces(offset, data, whole) {
            let payload = match is_zero {
                true => [at.to_be_bytes().as_slice(), &(piece.len() as u32).to_be_bytes()].concat(),
                false => at.to_be_bytes().to_vec(),
            };
            let kind = if is_zero { chunk::OFFSET_HOLE } else { chunk::OFFSET_DATA };
            let len = payload.len() + if is_zero { 0 } else { piece.len() };
            parts.push([head(0, kind, cookie, len), payload].concat().into());
            if !is_zero {
                parts.push(piece.into());
            }
        }
        parts.push(head(chunk::DONE, chunk::NONE, cookie, 0).into());
        self.send(&parts);
    }

    /// The reply to a question for the block status.
    pub(crate) fn status(&self, cookie: u64, extents: &[Extent]) {
        let mut payload = allocation::ID.to_be_bytes().to_vec();
        for extent in extents {
            let status = if extent.is_hole { allocation::HOLE | allocation::ZERO } else { 0 };
            let len = u32::try_from(extent.len).unwrap_or(u32::MAX);
            payload.extend([len, status].map(u32::to_be_bytes).concat());
        }
        self.send(&vec![head(chunk::DONE, chunk::BLOCK_STATUS, cookie, payload.len()).into(), payload.into()]);
    }
}

/// Returns the beginning of a text that is at most `max` bytes, in whole characters.
fn beginning(text: &str, max: usize) -> &str {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= max).last();
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

fn simple(cookie: u64, number: u32) -> Vec<u8> {
    [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

/// The header of a chunk with a payload of `len` bytes.
fn head(flags: u16, kind: u16, cookie: u64, len: usize) -> Vec<u8> {
    let fields: [&[u8]; 5] = [
        &STRUCTURED_REPLY_MAGIC.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &(len as u32).to_be_bytes(),
    ];
    fields.concat()
}

/// Splits what was read into data and zeros.
fn pieces(offset: u64, data: &[u8], whole: bool) -> Vec<(u64, &[u8], bool)> {
    if data.is_empty() {
        return Vec::new();
    }
    if whole {
        return vec![(offset, data, is_zero(data))];
    }
    // the ends of runs of the same kind, from the beginning of the data on
    let mut runs: Vec<(usize, bool)> = Vec::new();
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        let into = offset.wrapping_add(done as u64) % PIECE;
        let len = rest.len().min((PIECE - into) as usize);
        let is_zero = rest.get(..len).is_some_and(is_zero);
        done += len;
        match runs.last_mut() {
            Some(last) if last.1 == is_zero => last.0 = done,
            _ => runs.push((done, is_zero)),
        }
    }
    let mut begin = 0;
    let piece = |(end, is_zero)| {
        let piece = (offset + begin as u64, data.get(begin..end).unwrap_or_default(), is_zero);
        begin = end;
        piece
    };
    runs.into_iter().map(piece).collect()
}

fn is_zero(data: &[u8]) -> bool {
    data.chunks(ZEROS.len()).all(|chunk| ZEROS.starts_with(chunk))
}

fn write_all(output: &mut impl Write, parts: &Parts<'_>) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = slices.as_mut_slice();
    // empty ones are passed over
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match output.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut left, written),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zeros_are_holes() {
        let mut data = vec![0; 4 * PIECE as usize];
        let shape = |offset, data: &[u8], whole| {
            let shape = |(at, piece, is_zero): (u64, &[u8], bool)| (at, piece.len() as u64, is_zero);
            pieces(offset, data, whole).into_iter().map(shape).collect::<Vec<_>>()
        };
        assert_eq!(shape(5, &data, false), [(5, 4 * PIECE, true)]);
        data[3 * PIECE as usize - 1] = 1;
        assert_eq!(shape(0, &data, false), [(0, 2 * PIECE, true), (2 * PIECE, PIECE, false), (3 * PIECE, PIECE, true)]);
        // pieces begin at their multiples, and not at the offset of the read
        assert_eq!(shape(1, &data, false), [(1, 3 * PIECE - 1, true), (3 * PIECE, PIECE, false), (4 * PIECE, 1, true)]);
        assert_eq!(shape(0, &data, true), [(0, 4 * PIECE, false)]);
        assert_eq!(shape(9, &[], false), []);
        assert_eq!(shape(9, &[0, 0], true), [(9, 2, true)]);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        assert_eq!([0, 1, 2, 3, 4, 9].map(|max| beginning("aéb", max)), ["", "a", "a", "aé", "aéb", "aéb"]);
    }

    #[test]
    fn a_writer_that_takes_little_gets_all() {
        struct Slow(Vec<u8>);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let some = bytes.len().min(3);
                self.0.extend(bytes.iter().take(some));
                Ok(some)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut slow = Slow(Vec::new());
        let parts: Parts<'_> =
            vec![b"".as_slice().into(), b"abcd".as_slice().into(), b"".as_slice().into(), b"efghij".as_slice().into()];
        assert!(write_all(&mut slow, &parts).is_ok() && slow.0 == b"abcdefghij");
    }
}
