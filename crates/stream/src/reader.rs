//! The walk over the records of a stream.

use std::io::Read;

use base::{Endian, tunable};
use codec::fletcher::Fletcher4;
use ondisk::SPA_MAXBLOCKSIZE;
use ondisk::send::{Begin, CHECKSUM_OFFSET, DMU_BACKUP_MAGIC, DRR_NUMTYPES, Header, RECORD_SIZE, Record, RecordType};
use zio::Buf;

use crate::Error;
use crate::ahead::Ahead;

/// Reads the records of a stream, one after the other.
///
/// ```no_run
/// # fn main() -> Result<(), stream::Error> {
/// let mut reader = stream::Reader::new(std::io::stdin().lock());
/// while let Some(entry) = reader.next_record()? {
///     println!("{:?}, {} bytes", entry.header.record.kind(), entry.payload.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Reader<R> {
    input: Ahead<R>,
    /// Known from the first record on.
    endian: Option<Endian>,
    verify: bool,
    sum: Fletcher4,
    /// Bytes taken last that are not yet checksummed: the checksum field of a record, its payload and the next record are summed
    /// in one go.
    unsummed: usize,
    /// Bytes of whole records and payloads that were read, including the record that ended the walk.
    offset: u64,
    /// True inside a substream: an end of input there is premature.
    open: bool,
}

/// A record with its payload. The payload is valid until the next record is taken.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The offset of the record in the stream.
    pub offset: u64,
    /// The record.
    pub header: Header,
    /// The payload, as stored.
    pub payload: &'a [u8],
}

/// The result of a step of the lenient walk.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // nearly every one is the large one
pub(crate) enum Step {
    /// A record; its payload can be read.
    Record(StreamRecord),
    /// The input ended, after `torn` bytes of an incomplete record.
    Eof { offset: u64, torn: u64, open: bool },
    /// The checksum in a record is not that of the bytes before it: the walk ends here.
    Mismatch { offset: u64, computed: [u64; 4], found: [u64; 4] },
    /// An unknown record type: the walk ends here.
    UnknownType { offset: u64, kind: u32 },
}

#[derive(Debug)]
pub(crate) struct StreamRecord {
    pub(crate) offset: u64,
    pub(crate) header: Header,
    /// Bytes of payload that the record claims.
    pub(crate) need: usize,
    /// Bytes of payload that are present. If fewer than `need`, the stream is truncated.
    pub(crate) have: usize,
    /// In END, the right checksum if another one is stored.
    pub(crate) end_mismatch: Option<[u64; 4]>,
}

impl<R: Read> Reader<R> {
    /// Creates a reader that verifies checksums. It reads in large pieces: `input` need not be buffered.
    pub fn new(input: R) -> Self {
        let (input, sum) = (Ahead::new(input), Fletcher4::new());
        Reader { input, endian: None, verify: true, sum, unsummed: 0, offset: 0, open: false }
    }

    /// Creates a reader that takes no more from `input` than it has to: the bytes after a stream stay there. It reads in small pieces.
    pub fn exact(input: R) -> Self {
        let mut reader = Reader::new(input);
        reader.input.read_exactly();
        reader
    }

    /// Begins a stream whose BEGIN record was read elsewhere; returns it with its payload, which is read here.
    ///
    /// # Errors
    /// As [`Reader::next_record`]; [`Error::BadMagic`] if `record` is no BEGIN record.
    pub fn begin(&mut self, record: &[u8]) -> Result<(Begin, Vec<u8>), Error> {
        let begin = begin_record(record)?;
        self.input.push(record);
        let payload = self.next_record()?.map(|entry| entry.payload.to_vec());
        Ok((begin, payload.unwrap_or_default()))
    }

    /// Turns off the verification of checksums.
    #[must_use]
    pub fn without_checksums(mut self) -> Self {
        self.verify = false;
        self
    }

    /// Returns the byte order of the stream, once the first record was read.
    pub fn endian(&self) -> Option<Endian> {
        self.endian
    }

    /// Returns the bytes of whole records and payloads read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next record, verified; `None` at the end of the stream.
    ///
    /// # Errors
    /// [`Error::BadMagic`] if this is not a stream; [`Error::Checksum`], [`Error::Truncated`], [`Error::UnknownType`],
    /// [`Error::TooLarge`] if it is damaged; [`Error::Io`].
    pub fn next_record(&mut self) -> Result<Option<Entry<'_>>, Error> {
        let StreamRecord { offset, header, need, have, end_mismatch } = match self.step()? {
            Step::Record(found) => found,
            Step::Eof { torn: 0, open: false, .. } => return Ok(None),
            Step::Eof { offset, torn, .. } => {
                return Err(Error::Truncated { offset, need: RECORD_SIZE as u64, have: torn });
            }
            Step::Mismatch { offset, computed, found } => return Err(Error::Checksum { offset, computed, found }),
            Step::UnknownType { offset, kind } => return Err(Error::UnknownType { offset, kind }),
        };
        if have < need {
            return Err(Error::Truncated { offset, need: need as u64, have: have as u64 });
        }
        if let (Some(computed), Record::End(end)) = (end_mismatch, &header.record) {
            return Err(Error::Checksum { offset, computed, found: end.checksum });
        }
        Ok(Some(Entry { offset, header, payload: self.input.around(need, 0) }))
    }

    /// Returns the payload of the current record.
    pub(crate) fn payload(&self, found: &StreamRecord) -> &[u8] {
        self.input.around(found.have, 0)
    }

    /// Returns the payload of the last record, `len` bytes, to be kept: it is not copied if much of the input is kept.
    pub(crate) fn kept(&mut self, len: usize) -> Buf {
        self.input.taken(len)
    }

    /// Performs one step of the lenient walk; returns an error only where no reader could continue.
    pub(crate) fn step(&mut self) -> Result<Step, Error> {
        let offset = self.offset;
        let have = self.want(RECORD_SIZE)?;
        let Some(buf) = self.input.around(0, have).first_chunk::<RECORD_SIZE>() else {
            // OpenZFS reads a record in two parts, and counts the first one if it is complete
            self.offset += if have >= CHECKSUM_OFFSET { CHECKSUM_OFFSET as u64 } else { 0 };
            self.take(have);
            return Ok(Step::Eof { offset, torn: have as u64, open: self.open });
        };
        let e = match self.endian {
            Some(e) => e,
            None => byte_order(buf)?,
        };
        let first = self.endian.replace(e).is_none();

        let kind = Header::record_type(buf, e).map_err(|source| Error::Record { offset, source })?;
        if first && kind != 0 {
            return Err(Error::BadMagic { found: kind.into() });
        }
        self.offset += RECORD_SIZE as u64;
        let header = Header::decode(buf, e);
        // END carries the checksum of the bytes before it
        let before = (self.verify && kind == RecordType::End as u32).then(|| self.sum_up(e));
        let mismatch = self.sum_record(kind, e);
        self.input.take(RECORD_SIZE);
        self.unsummed = if self.verify { RECORD_SIZE - CHECKSUM_OFFSET } else { 0 };
        if let Some((computed, found)) = mismatch {
            return Ok(Step::Mismatch { offset, computed, found });
        }
        if kind >= DRR_NUMTYPES {
            return Ok(Step::UnknownType { offset, kind });
        }
        let header = header.map_err(|source| Error::Record { offset, source })?;
        let need = payload_limit(&header, offset)?;
        let have = self.want(need)?;
        self.take(have);
        if have == need {
            self.offset += need as u64;
            if !need.is_multiple_of(4) {
                // the checksum is over words, and the next record starts a new word
                self.sum_up(e);
            }
        }

        let mut end_mismatch = None;
        match &header.record {
            Record::Begin(_) => self.open = true,
            Record::End(end) => {
                self.open = false;
                end_mismatch = before.filter(|before| end.checksum != *before);
                (self.sum, self.unsummed) = (Fletcher4::new(), 0);
            }
            _ => {}
        }
        Ok(Step::Record(StreamRecord { offset, header, need, have, end_mismatch }))
    }

    /// Adds the next record to the running checksum, except the checksum that it carries. Returns (computed, found) on a
    /// mismatch.
    fn sum_record(&mut self, kind: u32, e: Endian) -> Option<([u64; 4], [u64; 4])> {
        if !self.verify {
            return None;
        }
        let bytes = self.input.around(self.unsummed, RECORD_SIZE);
        let (before, stored) = bytes.split_at_checked(self.unsummed + CHECKSUM_OFFSET)?;
        self.sum.update(before, e);
        let computed = self.sum.value();
        let mut found = [0; 4];
        for (to, from) in found.iter_mut().zip(base::bytes::u64s(stored, e)) {
            *to = from;
        }
        // In BEGIN these bytes belong to the name; a record without a sum is not verified, as by OpenZFS.
        (kind != 0 && found != [0; 4] && found != computed).then_some((computed, found))
    }

    /// Returns the checksum of everything taken so far.
    fn sum_up(&mut self, e: Endian) -> [u64; 4] {
        self.sum.update(self.input.around(self.unsummed, 0), e);
        self.unsummed = 0;
        self.sum.value()
    }

    /// Reads until `need` bytes can be taken; returns how many of them there are, fewer only at the end of the input.
    fn want(&mut self, need: usize) -> Result<usize, Error> {
        if self.input.len() < need
            && let Some(e) = self.endian
        {
            // bytes already taken may be gone after the next read
            self.sum_up(e);
        }
        let read = self.input.want(need);
        read.map_err(|source| Error::Io { offset: self.offset + self.input.len() as u64, source })
    }

    fn take(&mut self, n: usize) {
        self.input.take(n);
        if self.verify {
            self.unsummed += n;
        }
    }
}

/// Decodes a BEGIN record of either byte order.
///
/// # Errors
/// [`Error::BadMagic`] if it is none.
pub fn begin_record(record: &[u8]) -> Result<Begin, Error> {
    let header = Header::decode(record, byte_order(record)?).map_err(|source| Error::Record { offset: 0, source })?;
    match header.record {
        Record::Begin(begin) => Ok(begin),
        other => Err(Error::BadMagic { found: other.kind() as u64 }),
    }
}

/// Returns the byte order that follows from the magic number of the first record.
fn byte_order(buf: &[u8]) -> Result<Endian, Error> {
    match base::bytes::u64(buf, 8, Endian::Little).unwrap_or(0) {
        DMU_BACKUP_MAGIC => Ok(Endian::Little),
        n if n == DMU_BACKUP_MAGIC.swap_bytes() => Ok(Endian::Big),
        found => Err(Error::BadMagic { found }),
    }
}

/// Returns the payload length of a record, if it is within the limit for its type.
fn payload_limit(header: &Header, offset: u64) -> Result<usize, Error> {
    let limit = match header.record {
        Record::Begin(_) => tunable::ZFS_MAX_NVLIST_BYTES.get(),
        _ => SPA_MAXBLOCKSIZE,
    };
    let claimed = header.payload_size();
    let too_large = Error::TooLarge { offset, claimed, limit };
    if claimed > limit { Err(too_large) } else { usize::try_from(claimed).map_err(|_| too_large) }
}
