//! A chunk: 1 MiB of the stream. Records are laid out as they will be written, a worker reads the payloads into place, and the
//! writer fills in the checksums at the end.
//!
//! The stream's fletcher4 covers everything, including the checksums stored in records, and so is serial. But the sums of
//! adjacent spans can be combined: workers sum each record and each payload on their own, and the writer only joins them. A block
//! that was just verified against a fletcher4 in its pointer needs no second pass: that checksum is the sum of its span.

use base::{Endian, tunable};
use codec::ChecksumKind;
use codec::fletcher::{Fletcher4, fletcher4};
use ondisk::send::{CHECKSUM_OFFSET, RECORD_SIZE, RecordType};
use ondisk::{BlkPtr, byteswap};
use vdev::{AheadSource, IoClass, ReadCx, ReadMode};
use zio::{Bookmark, Stage, Zio};

use super::{Error, OURS};

/// Bytes of a chunk, if no single record is longer.
pub(super) const CHUNK: usize = 1 << 20;
/// Replaces data that cannot be read, if that is requested (OpenZFS: "zfs badd bloc").
const BAD_BLOCK: u64 = 0x02f5_badd_b10c;
const WORD: u64 = 4;

/// A payload that is still to be read.
#[derive(Debug)]
pub(super) struct Fill {
    bp: BlkPtr,
    bm: Bookmark,
    stage: Stage,
    /// The offset within the block, if the payload is part of a split block.
    part: Option<u64>,
}

impl Fill {
    pub(super) fn whole(bp: &BlkPtr, bm: Bookmark, stage: Stage) -> Fill {
        Fill { bp: *bp, bm, stage, part: None }
    }

    pub(super) fn part(bp: &BlkPtr, bm: Bookmark, first: u64) -> Fill {
        Fill { bp: *bp, bm, stage: Stage::Logical, part: Some(first) }
    }

    /// Returns its location on the devices: neighbouring blocks are read together.
    fn place(&self) -> (u64, u64) {
        let dva = self.bp.dva(0);
        (dva.vdev(), dva.offset())
    }

    /// Returns the sum of the payload, if reading the block has verified it.
    fn proved(&self) -> Option<[u64; 4]> {
        let bp = &self.bp;
        let same_bytes = self.part.is_none() && (self.stage != Stage::Logical || bp.psize() == bp.lsize());
        let plain = !bp.uses_crypt() && !bp.is_gang() && !bp.is_embedded() && bp.endian() == Endian::Little;
        (same_bytes && plain && bp.checksum() == ChecksumKind::Fletcher4 as u8).then(|| bp.cksum())
    }
}

#[derive(Debug)]
struct Piece {
    /// The offset of the record in the stream.
    at: usize,
    /// Bytes of its payload.
    len: usize,
    fill: Option<Fill>,
    /// Sum of the record up to its checksum.
    head: [u64; 4],
    /// Sum of the payload.
    body: [u64; 4],
}

/// A chunk of the stream; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    buf: Vec<u8>,
    used: usize,
    pieces: Vec<Piece>,
    /// The pieces in the order on the devices.
    order: Vec<usize>,
}

/// The state that a worker keeps from chunk to chunk.
#[derive(Default)]
pub(super) struct Worker {
    /// The content of a block that is sent in parts.
    split: Vec<u8>,
    /// The pointer of that block: the next part may belong to another block if this worker does not get all chunks.
    split_of: Option<BlkPtr>,
}

impl Chunk {
    /// Empties the chunk and keeps its memory, unless a large block made it exceed twice the chunk size.
    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.pieces.clear();
        if self.buf.len() > 2 * CHUNK {
            self.buf = Vec::new();
        }
    }

    /// Returns the bytes that it occupies in memory.
    pub(super) fn memory(&self) -> u64 {
        self.buf.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the number of stream bytes.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// True if `bytes` more bytes fit. An empty chunk accepts any number.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.used == 0 || self.used.saturating_add(bytes) <= CHUNK
    }

    /// Appends a record and a payload of `len` bytes: `payload`, or the data that `fill` will read.
    pub(super) fn put(&mut self, header: &[u8; RECORD_SIZE], payload: &[u8], fill: Option<Fill>, len: usize) {
        // the buffer has bytes of earlier chunks: all of the payload is either given or read; and sums are over words
        assert!(payload.len() == if fill.is_some() { 0 } else { len }, "{} bytes of a payload of {len}", payload.len());
        assert!(len.is_multiple_of(8), "a payload of {len} bytes is not padded");
        let at = self.used;
        let end = at + RECORD_SIZE + len;
        if self.buf.len() < end {
            self.buf.resize(end.max(CHUNK), 0);
        }
        self.copy(at, header);
        self.copy(at + RECORD_SIZE, payload);
        self.used = end;
        self.pieces.push(Piece { at, len, fill, head: [0; 4], body: [0; 4] });
    }

    fn copy(&mut self, at: usize, bytes: &[u8]) {
        let place = self.buf.get_mut(at..at + bytes.len());
        place.expect("the buffer was made large enough").copy_from_slice(bytes);
    }

    /// Lets the devices begin to read the payloads, through `ahead`.
    pub(super) fn begin(&mut self, zio: &Zio, ahead: &AheadSource) {
        let fill = |n: &usize| self.pieces.get(*n).and_then(|piece| piece.fill.as_ref());
        let mut order: Vec<usize> = (0..self.pieces.len()).collect();
        order.sort_by_cached_key(|n| fill(n).map(Fill::place));
        let blocks = order.iter().filter_map(fill).map(|fill| &fill.bp);
        let plain = blocks.filter(|bp| !bp.is_gang() && !bp.is_embedded() && !bp.is_hole());
        let planned = plain.map(|bp| (bp.dva(0), bp.psize(), bp.birth_physical()));
        ahead.plan(&zio.tree(), ReadMode::Normal, IoClass::AsyncRead, planned);
        self.order = order;
    }

    /// Reads all payloads, in disk order, and sums everything. `ahead` has what [`Chunk::begin`] began.
    pub(super) fn fill(&mut self, zio: &Zio, ahead: AheadSource, worker: &mut Worker) -> Result<(), Error> {
        let order = std::mem::take(&mut self.order);
        assert!(order.len() == self.pieces.len(), "{} of {} pieces would be filled", order.len(), self.pieces.len());
        for n in order {
            let piece = self.pieces.get_mut(n).expect("the order is one of all pieces");
            let (head, body) = self.buf.get_mut(piece.at..).unwrap_or_default().split_at_mut(RECORD_SIZE);
            assert!(piece.len <= body.len(), "a payload of {} bytes has {} in its chunk", piece.len, body.len());
            let body = body.get_mut(..piece.len).unwrap_or_default();
            let proved = match &piece.fill {
                Some(fill) => fill.read(zio, worker, &ahead, body)?,
                None => None,
            };
            piece.head = sum_of_record(head.get(..CHECKSUM_OFFSET).unwrap_or_default());
            piece.body = proved.unwrap_or_else(|| fletcher4(body, OURS));
        }
        Ok(())
    }

    /// Stores the running checksum in each record; returns the bytes that are ready to be written.
    pub(super) fn seal(&mut self, sum: &mut Fletcher4) -> &[u8] {
        for piece in &self.pieces {
            sum.append(piece.head, CHECKSUM_OFFSET as u64 / WORD);
            let tail = piece.at + CHECKSUM_OFFSET..piece.at + RECORD_SIZE;
            let kind = base::bytes::u32(&self.buf, piece.at, OURS);
            if let Some(tail) = self.buf.get_mut(tail) {
                // in BEGIN these bytes are the end of the name
                if kind != Some(RecordType::Begin as u32) {
                    for (place, word) in tail.as_chunks_mut::<8>().0.iter_mut().zip(sum.value()) {
                        *place = OURS.put_u64(word);
                    }
                }
                sum.update(tail, OURS);
            }
            sum.append(piece.body, piece.len as u64 / WORD);
        }
        self.buf.get(..self.used).unwrap_or_default()
    }
}

/// Returns the sum of a record up to its checksum. Most records are shorter than their slot, and zeros need no summing.
fn sum_of_record(head: &[u8]) -> [u64; 4] {
    let words = head.as_chunks::<8>().0;
    let zeros = words.iter().rev().take_while(|word| **word == [0; 8]).count();
    let mut sum = Fletcher4::new();
    sum.update(words.get(..words.len() - zeros).unwrap_or_default().as_flattened(), OURS);
    sum.append([0; 4], 2 * zeros as u64);
    sum.value()
}

impl Fill {
    fn read(
        &self,
        zio: &Zio,
        worker: &mut Worker,
        ahead: &AheadSource,
        body: &mut [u8],
    ) -> Result<Option<[u64; 4]>, Error> {
        match self.read_good(zio, worker, ahead, body) {
            Ok(()) => Ok(self.proved()),
            Err(_) if tunable::ZFS_SEND_CORRUPT_DATA.get() != 0 => {
                for word in body.as_chunks_mut::<8>().0 {
                    *word = BAD_BLOCK.to_le_bytes();
                }
                Ok(None)
            }
            Err(error) => Err(Error::Unreadable(error)),
        }
    }

    /// Byte-swaps blocks written by a machine of the other byte order: a stream has one byte order, unless it is raw.
    fn turn(&self, block: &mut [u8]) -> Result<(), zio::Error> {
        if self.stage != Stage::Logical {
            return Ok(());
        }
        byteswap::to_little(self.bp.object_type(), self.bp.endian(), block)
            .map_err(|source| zio::Error::BadPointer { bm: self.bm, source })
    }

    fn read_good(
        &self,
        zio: &Zio,
        worker: &mut Worker,
        ahead: &AheadSource,
        body: &mut [u8],
    ) -> Result<(), zio::Error> {
        let Worker { split, split_of } = worker;
        let cx = ReadCx { source: ahead, class: IoClass::AsyncRead, ..ReadCx::NORMAL };
        let Some(first) = self.part else {
            zio.read_into(&self.bp, &self.bm, self.stage, &cx, body)?;
            return self.turn(body);
        };
        // parts come in order, and mostly in one chunk
        if *split_of != Some(self.bp) {
            *split_of = None;
            split.resize(usize::try_from(self.bp.lsize()).unwrap_or(0), 0);
            zio.read_into(&self.bp, &self.bm, self.stage, &cx, split)?;
            self.turn(split)?;
            *split_of = Some(self.bp);
        }
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let part = split.get(first..first.saturating_add(body.len()));
        body.copy_from_slice(part.ok_or(zio::Error::Bug { bm: self.bm, what: "a record is not within its block" })?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_at_the_end_of_a_record_count() {
        let mut record = [0; CHECKSUM_OFFSET];
        assert_eq!(sum_of_record(&record), fletcher4(&record, OURS));
        for last in [0, 7, 100, CHECKSUM_OFFSET - 1] {
            record[last] = 5;
            assert_eq!(sum_of_record(&record), fletcher4(&record, OURS));
        }
    }
}
