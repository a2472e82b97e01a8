//! LZ4: the length of the compressed bytes as a big-endian u32, then one LZ4 block.
//!
//! A block is a row of sequences. A sequence is a token (literal count in the high four bits, match length − 4 in the low
//! ones; 15 means that more bytes of 255 and a last one follow and are added), the literals, the match's distance back
//! as a little-endian u16, and more length. The last sequence ends after its literals.
//!
//! Both directions copy short runs as whole 16-byte pieces wherever there is room, writing more than needed: what
//! follows overwrites it. That is where the speed is; every access is checked all the same.

use std::cell::RefCell;

const MATCH_MIN: usize = 4;
/// A piece that is copied whole.
const PIECE: usize = 16;

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    let (head, body) = src.split_first_chunk::<4>().ok_or("no length")?;
    let length = usize::try_from(u32::from_be_bytes(*head)).map_err(|_| "impossible length")?;
    expand(body.get(..length).ok_or("length beyond the block")?, dst)
}

const SHORT: &str = "LZ4 block ends too early";
const LONG: &str = "LZ4 block goes beyond its size";

/// Expands one LZ4 block into exactly `dst`.
fn expand(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    let (mut at, mut out) = (0, 0);
    loop {
        if let Some((taken, made)) = short_sequence(src, at, dst, out) {
            at += taken;
            out += made;
            continue;
        }
        let token = usize::from(*src.get(at).ok_or(SHORT)?);
        at += 1;
        let mut literals = token >> 4;
        if literals == 15 {
            literals += more_length(src, &mut at)?;
        }
        let from = src.get(at..).and_then(|s| s.get(..literals)).ok_or(SHORT)?;
        let to = dst.get_mut(out..).and_then(|d| d.get_mut(..literals)).ok_or(LONG)?;
        to.copy_from_slice(from);
        at += literals;
        out += literals;
        if at == src.len() {
            return if out == dst.len() { Ok(()) } else { Err("LZ4 block of another size") };
        }

        let distance = src.get(at..).and_then(|d| d.first_chunk()).ok_or(SHORT)?;
        let distance = usize::from(u16::from_le_bytes(*distance));
        at += 2;
        let mut length = token & 15;
        if length == 15 {
            length += more_length(src, &mut at)?;
        }
        length += MATCH_MIN;
        if distance == 0 || distance > out {
            return Err("LZ4 match before the start");
        }
        copy_match(dst, out, distance, length)?;
        out += length;
    }
}

/// Most sequences: lengths in the token itself, the match wholly before what is being written, far enough from the ends
/// of both buffers. Then the lengths are bounded, and whole pieces are copied without a look at them. Gives the bytes
/// taken and made; `None` if the sequence is another one.
#[inline(always)]
fn short_sequence(src: &[u8], at: usize, dst: &mut [u8], out: usize) -> Option<(usize, usize)> {
    const MOST: usize = 14 + MATCH_MIN;
    let from: &[u8; 1 + PIECE + 2] = src.get(at..)?.first_chunk()?;
    let token = from[0];
    let literals = usize::from(token >> 4);
    let length = usize::from(token & 15) + MATCH_MIN;
    if literals == 15 || length > MOST {
        return None;
    }
    let distance = usize::from(u16::from_le_bytes([from[1 + literals], from[2 + literals]]));
    let (made, to) = dst.split_at_mut_checked(out)?;
    let to: &mut [u8; PIECE + MOST] = to.first_chunk_mut()?;
    let again: &[u8; MOST] = made.get((out + literals).checked_sub(distance)?..)?.first_chunk()?;
    to[..PIECE].copy_from_slice(&from[1..1 + PIECE]);
    to[literals..literals + MOST].copy_from_slice(again);
    Some((1 + literals + 2, literals + length))
}

/// The bytes that lengthen a run.
#[inline(always)]
fn more_length(src: &[u8], at: &mut usize) -> Result<usize, &'static str> {
    let mut n = 0;
    loop {
        let b = usize::from(*src.get(*at).ok_or(SHORT)?);
        *at += 1;
        // The sum stays below 255 times the length of `src`.
        n += b;
        if b != 255 {
            return Ok(n);
        }
    }
}

/// Copies `length` bytes from `distance` before `out`, which has been checked to be within; they may overlap.
#[inline(always)]
fn copy_match(dst: &mut [u8], out: usize, distance: usize, length: usize) -> Result<(), &'static str> {
    let from = out - distance;
    if distance >= PIECE && length <= 4 * PIECE && out + 4 * PIECE <= dst.len() {
        // In pieces, each of which reads only what stands.
        let mut done = 0;
        while done < length {
            let piece: [u8; PIECE] = *dst.get(from + done..).and_then(|d| d.first_chunk()).ok_or(LONG)?;
            *dst.get_mut(out + done..).and_then(|d| d.first_chunk_mut()).ok_or(LONG)? = piece;
            done += PIECE;
        }
        return Ok(());
    }
    let end = out.checked_add(length).filter(|end| *end <= dst.len()).ok_or(LONG)?;
    if distance == 1 {
        let byte = *dst.get(from).ok_or(LONG)?;
        dst.get_mut(out..end).ok_or(LONG)?.fill(byte);
        return Ok(());
    }
    // What is copied lengthens what can be copied at once.
    let mut at = out;
    while at < end {
        let n = (at - from).min(end - at);
        dst.copy_within(from..from + n, at);
        at += n;
    }
    Ok(())
}

/// Bits of a hash. The C library has 12 for large blocks: 13 save some percent of space at the same speed.
const HASH_BITS: u32 = 13;
/// The last bytes of a block are always literals, and matches do not begin near the end.
const LAST_LITERALS: usize = 5;
const NO_MATCH_TAIL: usize = 12;
/// Positions that are tried in vain before the steps grow, as a power of two.
const SKIP_TRIGGER: u32 = 6;

/// What a compressor needs, kept one a thread.
struct Workspace {
    /// Where each hash was last seen.
    seen: [u32; 1 << HASH_BITS],
    out: Vec<u8>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = const { RefCell::new(Workspace { seen: [0; 1 << HASH_BITS], out: Vec::new() }) };
}

pub(super) fn compress(src: &[u8], limit: usize) -> Option<Vec<u8>> {
    WORKSPACE.with_borrow_mut(|w| {
        let n = pack(src, limit.checked_sub(4)?, w)?;
        let mut out = Vec::with_capacity(n + 4);
        out.extend(u32::try_from(n).ok()?.to_be_bytes());
        out.extend(w.out.get(..n)?);
        Some(out)
    })
}

/// Whether `src` gets into `limit` bytes.
pub(super) fn fits(src: &[u8], limit: usize) -> bool {
    WORKSPACE.with_borrow_mut(|w| limit.checked_sub(4).and_then(|limit| pack(src, limit, w)).is_some())
}

/// Compresses `src` into the workspace as one LZ4 block of at most `limit` bytes; gives its length.
fn pack(src: &[u8], limit: usize, w: &mut Workspace) -> Option<usize> {
    // Positions are u32, and blocks end at 16 MiB.
    u32::try_from(src.len()).ok()?;
    // Room for what is written beyond the end of a run.
    w.out.resize(w.out.len().max(limit + 2 * PIECE), 0);
    w.seen.fill(0);
    let mut out = Output { buf: &mut w.out, at: 0, limit };
    let mut anchor = 0;
    let search_end = src.len().saturating_sub(NO_MATCH_TAIL);
    let mut at = 1;
    'blocks: while at < search_end {
        // Look for four bytes that were seen before, with growing steps while nothing is found.
        let mut tries = 1usize << SKIP_TRIGGER;
        let mut from;
        loop {
            let here = eight(src, at)?;
            let slot = w.seen.get_mut(hash(here))?;
            from = std::mem::replace(slot, at as u32) as usize;
            if at - from <= usize::from(u16::MAX) && four(src, from)? == here as u32 {
                break;
            }
            at += tries >> SKIP_TRIGGER;
            tries += 1;
            if at >= search_end {
                break 'blocks;
            }
        }
        // It may begin earlier.
        while at > anchor && from > 0 && src.get(at - 1) == src.get(from - 1) {
            at -= 1;
            from -= 1;
        }
        let end = src.len() - LAST_LITERALS;
        let length = MATCH_MIN + common(src, from + MATCH_MIN, at + MATCH_MIN, end);
        out.sequence(src, anchor..at, at - from, length)?;
        at += length;
        anchor = at;
        if at < search_end {
            // The position before the last is worth remembering too.
            let near = at - 2;
            *w.seen.get_mut(hash(eight(src, near)?))? = near as u32;
        }
    }
    out.last_literals(src.get(anchor..)?)?;
    Some(out.at)
}

#[inline(always)]
fn four(src: &[u8], at: usize) -> Option<u32> {
    src.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

#[inline(always)]
fn eight(src: &[u8], at: usize) -> Option<u64> {
    src.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// The hash of the first five bytes, so that in a large block chance matches of four do not crowd out longer ones.
#[inline(always)]
fn hash(eight: u64) -> usize {
    ((eight << 24).wrapping_mul(889_523_592_379) >> (64 - HASH_BITS)) as usize
}

/// How many bytes from `a` and from `b` (the later one) are the same, before `end`.
#[inline(always)]
fn common(src: &[u8], a: usize, b: usize, end: usize) -> usize {
    let (Some(x), Some(y)) = (src.get(a..), src.get(b..end)) else { return 0 };
    let mut n = 0;
    for (x, y) in x.as_chunks::<8>().0.iter().zip(y.as_chunks::<8>().0) {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return n + (differ.trailing_zeros() / 8) as usize;
        }
        n += 8;
    }
    let rest = x.iter().zip(y).skip(n);
    n + rest.take_while(|(x, y)| x == y).count()
}

/// Where sequences are written; none is begun that would go beyond the limit.
struct Output<'a> {
    /// Longer than the limit by two pieces.
    buf: &'a mut [u8],
    at: usize,
    limit: usize,
}

impl Output<'_> {
    /// Literals, then a match.
    #[inline(always)]
    fn sequence(&mut self, src: &[u8], literals: std::ops::Range<usize>, distance: usize, length: usize) -> Option<()> {
        let more = length - MATCH_MIN;
        let (n, start) = (literals.len(), literals.start);
        if self.at + 1 + n + n / 255 + 1 + 2 + more / 255 + 1 > self.limit {
            return None;
        }
        *self.buf.get_mut(self.at)? = (n.min(15) << 4 | more.min(15)) as u8;
        self.at += 1;
        let piece = src.get(start..start + PIECE);
        if let (true, Some(piece)) = (n < 15, piece) {
            self.buf.get_mut(self.at..self.at + PIECE)?.copy_from_slice(piece);
        } else {
            self.more_length(n)?;
            self.buf.get_mut(self.at..self.at + n)?.copy_from_slice(src.get(literals)?);
        }
        self.at += n;
        self.buf.get_mut(self.at..self.at + 2)?.copy_from_slice(&(distance as u16).to_le_bytes());
        self.at += 2;
        self.more_length(more)
    }

    fn last_literals(&mut self, literals: &[u8]) -> Option<()> {
        let n = literals.len();
        if self.at + 1 + n + n / 255 + 1 > self.limit + usize::from(n < 15) {
            return None;
        }
        *self.buf.get_mut(self.at)? = (n.min(15) << 4) as u8;
        self.at += 1;
        self.more_length(n)?;
        self.buf.get_mut(self.at..self.at + n)?.copy_from_slice(literals);
        self.at += n;
        Some(())
    }

    /// The bytes that lengthen a run of `n`, if a token cannot say it.
    #[inline(always)]
    fn more_length(&mut self, n: usize) -> Option<()> {
        let Some(mut rest) = n.checked_sub(15) else { return Some(()) };
        while rest >= 255 {
            *self.buf.get_mut(self.at)? = 255;
            self.at += 1;
            rest -= 255;
        }
        *self.buf.get_mut(self.at)? = rest as u8;
        self.at += 1;
        Some(())
    }
}
