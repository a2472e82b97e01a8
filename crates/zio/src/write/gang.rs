//! Writing gang blocks: when no range is large enough, a block is written in pieces, with a header that points at them.
//! Pieces are as large as space allows; a piece becomes a gang again when there is no space for it and the header has no
//! pointers left for smaller ones. That is noted, as larger headers may help (feature `dynamic_gang_header`, which the
//! pool may activate). OpenZFS: `zio_write_gang_block`.

use std::sync::atomic::Ordering;

use base::Endian;
use base::bytes;
use codec::{ChecksumKind, Compress, embedded};
use ondisk::gang::{GANG_HEADER_SIZE, GangHeader};
use ondisk::{BlkPtr, Dva, ObjectType};
use vdev::ReadCx;

use super::place::{From, Placer, Planned, copies};
use super::pointer::{self, Shape};
use super::prepare::Prepared;
use super::{AllocError, AllocRequest};
use crate::Error;
use crate::checksum::uses_mac;
use crate::gang::{MAX_DEPTH, header_size, largest_header, read_header, size_of};

/// A part of a block: where it begins, how many bytes.
#[derive(Clone, Copy)]
struct Part {
    from: usize,
    len: usize,
}

impl Placer<'_> {
    /// Places a block in pieces; its pointer then leads to the gang header.
    pub(crate) fn place_gang(&mut self, block: Box<Prepared>) -> Result<BlkPtr, Error> {
        let mut bp = block.bp;
        self.split(&block, &mut bp, Part { from: 0, len: block.stored.len() }, 0)?;
        self.keep(block, &bp, false);
        Ok(bp)
    }

    /// Makes `bp`, whose bytes are `part` of the block, a gang: header, pieces, and their addresses in `bp`.
    fn split(&mut self, block: &Prepared, bp: &mut BlkPtr, part: Part, depth: u32) -> Result<(), Error> {
        let no_space = Error::NoSpace { bm: block.bm, psize: part.len as u64 };
        if part.len <= self.batch.grain.min || depth >= MAX_DEPTH {
            return Err(no_space);
        }
        let most = if block.bp.is_encrypted() { 2 } else { 3 };
        let header_copies = block.props.gang_copies.max(copies(block)).min(most);
        let mut home = self.homes(block, GANG_HEADER_SIZE, header_copies, Role::Header)?.ok_or(no_space)?;
        for (n, dva) in home.iter().enumerate() {
            pointer::set_dva(bp, n, Dva::new(dva.vdev(), dva.offset(), dva.asize(), true));
        }
        let source = self.batch.zio.source(&ReadCx::NORMAL);
        let size = header_size(&source, bp);
        let could_grow = size < largest_header(&source, bp);
        let capacity = GangHeader::capacity(size);
        let mut header = GangHeader { blkptrs: Vec::with_capacity(capacity) };
        let (mut rest, mut most) = (part, part.len);
        while rest.len > 0 {
            let left = capacity.checked_sub(header.blkptrs.len()).filter(|left| *left > 0);
            let left = left.ok_or_else(|| bug(block, "a gang header has fewer places than its block has pieces"))?;
            let least = self.batch.grain.round_up(rest.len.div_ceil(left).next_multiple_of(512)).min(rest.len);
            let piece = match self.largest_piece(block, rest, least, &mut most)? {
                Some(piece) => piece,
                None => {
                    self.batch.zio.write.outgrown.fetch_or(could_grow, Ordering::Relaxed);
                    self.nested(block, Part { from: rest.from, len: least }, depth + 1)?
                }
            };
            let len = usize::try_from(piece.psize()).ok().filter(|len| (1..=rest.len).contains(len));
            let len = len.ok_or_else(|| bug(block, "a piece of a gang block is larger than what is left of it"))?;
            for (whole, dva) in home.iter_mut().zip(piece.dvas()) {
                *whole = Dva::new(whole.vdev(), whole.offset(), whole.asize().saturating_add(dva.asize()), true);
            }
            header.blkptrs.push(piece);
            rest = Part { from: rest.from + len, len: rest.len - len };
        }
        for (n, dva) in home.iter().enumerate() {
            pointer::set_dva(bp, n, Dva::new(dva.vdev(), dva.offset(), dva.asize(), true));
        }
        self.put_header(block, bp, &header, size)
    }

    /// The largest piece at the front of `rest` that can be allocated: sizes are halved from below `most`, the size that
    /// failed, down to `least`. `None` if that fails too.
    fn largest_piece(
        &mut self,
        block: &Prepared,
        rest: Part,
        least: usize,
        most: &mut usize,
    ) -> Result<Option<BlkPtr>, Error> {
        loop {
            let half = self.batch.grain.round_up((*most / 2).next_multiple_of(512));
            let part = Part { from: rest.from, len: half.min(rest.len).max(least) };
            if let Some(home) = self.homes(block, part.len, copies(block), Role::Piece)? {
                return Ok(Some(self.piece(block, part, &home)?));
            }
            if part.len == least {
                return Ok(None);
            }
            *most = part.len;
        }
    }

    /// The pointer to a piece with the addresses `home`.
    fn piece(&mut self, block: &Prepared, part: Part, home: &[Dva]) -> Result<BlkPtr, Error> {
        let mut bp = self.piece_pointer(block, part)?;
        let at = self.chunk.blocks.len();
        for (n, dva) in home.iter().enumerate() {
            pointer::set_dva(&mut bp, n, *dva);
            self.chunk.writes.push(Planned { dva: *dva, from: From::Block(at, part.from, part.len) });
        }
        Ok(bp)
    }

    /// The pointer to a piece that is a gang again.
    fn nested(&mut self, block: &Prepared, part: Part, depth: u32) -> Result<BlkPtr, Error> {
        let mut bp = self.piece_pointer(block, part)?;
        self.split(block, &mut bp, part, depth)?;
        Ok(bp)
    }

    /// The pointer to a piece, without addresses: raw bytes of no type.
    fn piece_pointer(&self, block: &Prepared, part: Part) -> Result<BlkPtr, Error> {
        let checksum = ChecksumKind::from_u8(block.bp.checksum());
        let checksum = checksum.ok_or_else(|| bug(block, "a block was prepared with an unknown checksum"))?;
        let shape = Shape {
            object_type: ObjectType::NONE,
            level: 0,
            lsize: part.len,
            psize: part.len,
            compress: Compress::Off,
            checksum,
            endian: Endian::Little,
        };
        let mut bp = shape.pointer(0);
        pointer::set_birth(&mut bp, self.batch.cx.txg, self.batch.cx.txg);
        let data = block.stored.get(part.from..part.from + part.len);
        let data = data.ok_or_else(|| bug(block, "a piece of a gang block lies beyond it"))?;
        let sum = self.sums.compute(checksum, data, Endian::Little);
        let sum = sum.map_err(|source| Error::Encode { bm: block.bm, source })?;
        pointer::set_cksum(&mut bp, checksum, sum, false);
        Ok(bp)
    }

    /// Addresses for `copies` copies of `psize` bytes, or none at all.
    fn homes(&mut self, block: &Prepared, psize: usize, copies: u8, role: Role) -> Result<Option<Vec<Dva>>, Error> {
        let mut home = Vec::with_capacity(copies.into());
        for copy in 0..copies {
            let request = AllocRequest {
                psize: psize as u64,
                gang_child: role == Role::Piece,
                gang_header: role == Role::Header,
                ..self.request(block, copy, &home)
            };
            match self.space.allocate(&request) {
                Ok(dva) => {
                    self.undo.dvas.push(dva);
                    home.push(dva);
                }
                Err(AllocError::NoSpace) => {
                    self.give_back(&home);
                    return Ok(None);
                }
                Err(AllocError::Failed(reason)) => return Err(Error::Space { bm: block.bm, reason }),
            }
        }
        Ok(Some(home))
    }

    /// Seals a header and records the writes of its copies.
    fn put_header(&mut self, block: &Prepared, bp: &BlkPtr, header: &GangHeader, size: usize) -> Result<(), Error> {
        let encoded = header.encode(size, Endian::Little);
        let mut raw = encoded.map_err(|source| Error::BadPointer { bm: block.bm, source })?;
        seal_header(&mut raw, bp);
        let at = self.chunk.headers.len();
        self.chunk.headers.push(raw);
        let writes = bp.dvas().map(|dva| Planned { dva, from: From::Header(at) });
        self.chunk.writes.extend(writes);
        Ok(())
    }

    /// Overwrites the gang block at `bp`, born in this txg, with the bytes of `block`: pieces in place, headers with new
    /// checksums.
    pub(crate) fn rewrite_gang(&mut self, block: &Prepared, bp: &BlkPtr) -> Result<(), Error> {
        self.rewrite_part(block, bp, Part { from: 0, len: block.stored.len() }, 0)
    }

    fn rewrite_part(&mut self, block: &Prepared, bp: &BlkPtr, part: Part, depth: u32) -> Result<(), Error> {
        let impossible = Error::BadRequest { bm: block.bm, what: "the gang block that it replaces is broken" };
        if depth >= MAX_DEPTH {
            return Err(impossible);
        }
        let (mut header, size) = self.header_of(block, bp)?;
        let mut from = part.from;
        for slot in header.blkptrs.iter_mut().filter(|piece| !piece.is_hole()) {
            let len = usize::try_from(slot.psize()).unwrap_or(usize::MAX);
            if from.checked_add(len).is_none_or(|end| end > part.from + part.len) {
                return Err(impossible);
            }
            let piece = Part { from, len };
            let mut new = self.piece_pointer(block, piece)?;
            for n in 0..3 {
                pointer::set_dva(&mut new, n, slot.dva(n));
            }
            if new.is_gang() {
                self.rewrite_part(block, &new, piece, depth + 1)?;
            } else {
                let at = self.chunk.blocks.len();
                let writes = new.dvas().map(|dva| Planned { dva, from: From::Block(at, from, len) });
                self.chunk.writes.extend(writes);
            }
            *slot = new;
            from += len;
        }
        if from != part.from + part.len {
            return Err(impossible);
        }
        self.put_header(block, bp, &header, size)
    }

    /// The header that `bp` leads to, as it is on the devices, and its size.
    fn header_of(&self, block: &Prepared, bp: &BlkPtr) -> Result<(GangHeader, usize), Error> {
        let source = self.batch.zio.source(&ReadCx::NORMAL);
        let mut raw = vec![0; header_size(&source, bp)];
        let mut found = None;
        let read = source.first_good(bp, |dva| {
            let (report, header) = read_header(&source, bp, dva, &mut raw)?;
            found = Some(header);
            Ok(report)
        });
        read.map_err(|copies| Error::unreadable(&block.bm, copies))?;
        let header = found.ok_or_else(|| bug(block, "a gang header was found good and not read"))?;
        let size = size_of(&header, raw.len());
        Ok((header, size))
    }
}

/// A broken invariant of this program's: nothing of the block is written.
fn bug(block: &Prepared, what: &'static str) -> Error {
    Error::Bug { bm: block.bm, what }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Header,
    Piece,
}

/// Computes the checksum of a header for all its copies: its verifier is the address of the first. The checksum of an
/// encrypted block's header is truncated to half, as all checksums of such blocks are.
fn seal_header(raw: &mut [u8], bp: &BlkPtr) {
    let (first, birth) = (bp.dva(0), bp.birth_physical().0);
    embedded::seal_gang(raw, first.vdev(), first.offset(), birth, Endian::Little);
    if !uses_mac(bp) {
        return;
    }
    let at = raw.len().saturating_sub(32);
    let word = |n: usize| bytes::u64(raw, at + 8 * n, Endian::Little).unwrap_or(0);
    let half = ChecksumKind::GangHeader.truncate([word(0), word(1), word(2), word(3)]);
    for (place, word) in raw.get_mut(at..).unwrap_or_default().as_chunks_mut::<8>().0.iter_mut().zip(half) {
        *place = word.to_le_bytes();
    }
}
