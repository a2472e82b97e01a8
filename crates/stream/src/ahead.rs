//! Reading ahead: the input is read in large pieces; a caller that keeps a part of a piece shares its memory with the reader.
//!
//! A kept part pins its whole piece in memory. So parts are shared only while at least half of the previous piece was kept;
//! otherwise they are copied out. Whatever the mix of kept and discarded bytes in a stream, the memory of the pieces is thus at
//! most about four times that of the parts: for each piece of which little is kept there is one of which half was.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;

use zio::Buf;

/// Bytes of the first piece.
const FIRST: usize = 64 << 10;
/// Maximum size of a piece in bytes, unless one payload is longer.
const MOST: usize = 1 << 20;
/// Maximum number of spare pieces, which are refilled once no part of them is held any more: as many as a receive has under way. Memory that is
/// given back instead is cleared by the system each time that it comes again.
const SPARE: usize = 512;

/// The input and the bytes of it that are read but not yet taken, in one piece.
#[derive(Debug)]
pub(crate) struct Ahead<R> {
    input: R,
    piece: Buf,
    /// Start of the bytes that are not yet taken; they reach up to `end`.
    at: usize,
    end: usize,
    /// The length of the next piece. It follows the size of recent reads; otherwise a slow pipe would leave most of each piece
    /// empty.
    next: usize,
    spare: VecDeque<Buf>,
    /// Bytes of the piece that were kept, as shared parts or as copies.
    kept: usize,
    /// True if at least half of the previous piece was kept: then parts of this one are shared.
    shares: bool,
    /// True if no more is read than is wanted.
    exact: bool,
}

impl<R: Read> Ahead<R> {
    pub(crate) fn new(input: R) -> Self {
        let (piece, spare) = (Buf::zeros(0), VecDeque::new());
        Ahead { input, piece, at: 0, end: 0, next: FIRST, spare, kept: 0, shares: true, exact: false }
    }

    /// From now on reads no more than is wanted.
    pub(crate) fn read_exactly(&mut self) {
        self.exact = true;
    }

    /// Puts bytes behind those that can be taken, as if they had been read.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.turn(self.len() + bytes.len());
        let to = self.end..self.end + bytes.len();
        let room = self.piece.get_mut().and_then(|piece| piece.get_mut(to));
        room.expect("a new piece has room for it").copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Number of bytes that can be taken without reading.
    pub(crate) fn len(&self) -> usize {
        self.end - self.at
    }

    /// Reads until `need` bytes can be taken; returns how many of them there are, fewer only at the end of the input. Memory
    /// grows with the bytes that arrive, not with what `need` claims.
    pub(crate) fn want(&mut self, need: usize) -> io::Result<usize> {
        while self.len() < need {
            let outgrown = self.at > 0 && need > self.piece.len() - self.at;
            if self.end == self.piece.len() || outgrown || self.piece.get_mut().is_none() {
                self.turn(need);
            }
            let room = self.piece.get_mut().and_then(|piece| piece.get_mut(self.end..));
            let room = room.expect("a piece that nobody holds");
            let most = if self.exact { need - (self.end - self.at) } else { room.len() };
            let (room, _) = room.split_at_mut(most.min(room.len()));
            let full = room.len();
            match self.input.read(room) {
                Ok(0) => break,
                Ok(n) => {
                    self.end += n;
                    if n == full {
                        self.next = (self.next * 2).min(MOST);
                    } else if n < full / 4 {
                        self.next = (self.next / 2).max(FIRST);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(need.min(self.len()))
    }

    /// Switches to another piece, and moves the bytes that are not yet taken there.
    fn turn(&mut self, need: usize) {
        let have = self.len();
        let size = need.min(2 * have).max(self.next);
        let again = self.spare.iter_mut().rposition(|piece| piece.len() >= size && piece.get_mut().is_some());
        let mut piece = again.and_then(|n| self.spare.remove(n)).unwrap_or_else(|| Buf::zeros(size));
        let to = piece.get_mut().and_then(|piece| piece.get_mut(..have));
        to.expect("a piece that nobody holds has room for them").copy_from_slice(self.around(0, have));
        (self.at, self.end) = (0, have);
        self.shares = std::mem::take(&mut self.kept) >= self.piece.len() / 2;
        let before = std::mem::replace(&mut self.piece, piece);
        if (FIRST..=MOST).contains(&before.len()) && self.spare.len() < SPARE {
            self.spare.push_back(before);
        }
    }

    /// Takes `n` of the available bytes.
    pub(crate) fn take(&mut self, n: usize) {
        assert!(n <= self.len(), "{n} bytes are taken of {}", self.len());
        self.at += n;
    }

    /// Returns the last `behind` bytes taken and the next `before` bytes. Only bytes of the current piece can be returned: bytes
    /// taken before the last read may be gone.
    pub(crate) fn around(&self, behind: usize, before: usize) -> &[u8] {
        self.piece.get(self.span(behind, before)).expect("bytes of the current piece")
    }

    /// Returns the last `n` bytes taken, to be kept: they share the memory of their piece if most of the previous one was kept,
    /// and are copied otherwise.
    pub(crate) fn taken(&mut self, n: usize) -> Buf {
        self.kept = self.kept.saturating_add(n);
        let part = if self.shares { self.piece.part(self.span(n, 0)) } else { None };
        part.unwrap_or_else(|| Buf::from(self.around(n, 0).to_vec()))
    }

    fn span(&self, behind: usize, before: usize) -> Range<usize> {
        // fewer bytes than were asked for would pass for a shorter payload
        assert!(
            behind <= self.at && before <= self.len(),
            "{behind} bytes back of {}, {before} of {}",
            self.at,
            self.len()
        );
        self.at - behind..self.at + before
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Returns at most `.1` bytes per read.
    struct Drip(io::Cursor<Vec<u8>>, usize);

    impl Read for Drip {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let n = buf.len().min(self.1);
            self.0.read(buf.get_mut(..n).unwrap_or(&mut []))
        }
    }

    fn bytes(n: usize) -> Vec<u8> {
        (0..n as u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect()
    }

    #[test]
    fn all_comes_in_order_and_what_is_kept_does_not_change() {
        let all = bytes(2 << 20);
        for drip in [1 << 12, 70_000, usize::MAX] {
            let mut ahead = Ahead::new(Drip(io::Cursor::new(all.clone()), drip));
            let (mut at, mut kept) = (0, Vec::new());
            for n in 0.. {
                let need = [312, 5000, 0, 2560, 200_000, 312, 3 << 20].get(n % 7).copied().unwrap_or(0);
                let have = ahead.want(need).unwrap();
                assert_eq!(have, need.min(all.len() - at));
                assert_eq!(ahead.around(0, have), &all[at..at + have]);
                ahead.take(have);
                at += have;
                if n % 3 == 0 {
                    kept.push((at, ahead.taken(have)));
                }
                if kept.len() > 9 {
                    kept.remove(n % 7);
                }
                assert!(kept.iter().all(|(end, part)| part[..] == all[end - part.len()..*end]));
                if have < need {
                    break;
                }
            }
            assert_eq!((at, ahead.want(1).unwrap()), (all.len(), 0));
        }
    }

    /// Keeps a part of 2,500 bytes every `every` bytes. Returns the percentage that was copied, and the number of pieces in use.
    fn keeping(every: &[usize]) -> (usize, usize) {
        let mut ahead = Ahead::new(io::Cursor::new(bytes(16 << 20)));
        let (mut kept, mut copied) = (Vec::new(), 0);
        for every in every.iter().cycle() {
            let need = every - 2500;
            if ahead.want(need).unwrap() < need {
                break;
            }
            ahead.take(need);
            if ahead.want(2500).unwrap() < 2500 {
                break;
            }
            ahead.take(2500);
            copied += usize::from(!ahead.shares);
            kept.push(ahead.taken(2500));
        }
        ahead.spare.iter_mut().for_each(|piece| assert!(piece.len() <= MOST));
        let pinned = ahead.spare.iter_mut().filter_map(|piece| if piece.get_mut().is_none() { Some(()) } else { None });
        (copied * 100 / kept.len(), pinned.count())
    }

    #[test]
    fn a_piece_is_not_kept_for_a_small_part_of_it() {
        // one kept block per piece: 64 blocks must not pin 64 pieces
        let (copied, pinned) = keeping(&[1 << 20]);
        assert!(copied > 90 && pinned <= 2, "{copied} % copied, {pinned} pieces");
        // blocks and their records: nothing is copied
        assert_eq!(keeping(&[2812]).0, 0);
        // the same if as many bytes beside them are not kept
        assert_eq!(keeping(&[4000]).0, 0);
        let (copied, pinned) = keeping(&[5100, 10_000, 8000]);
        assert!(copied > 90 && pinned <= 2, "{copied} % copied, {pinned} pieces");
    }

    #[test]
    fn a_claim_takes_no_memory_and_pieces_are_filled_again() {
        let mut ahead = Ahead::new(io::Cursor::new(bytes(1000)));
        assert_eq!(ahead.want(1 << 30).unwrap(), 4000);
        assert!(ahead.piece.len() <= FIRST);
        let mut ahead = Ahead::new(io::Cursor::new(bytes(16 << 20)));
        for _ in 0..(60 << 20) / 100_000 {
            ahead.want(100_000).unwrap();
            ahead.take(100_000);
            drop(ahead.taken(100_000));
        }
        assert!(ahead.spare.len() < 9, "{}", ahead.spare.len());
    }
}
