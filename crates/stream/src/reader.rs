//! The walk over the records of a stream.

use std::io::{self, Read};

use base::{Endian, tunable};
use codec::fletcher::Fletcher4;
use ondisk::SPA_MAXBLOCKSIZE;
use ondisk::send::{CHECKSUM_OFFSET, DMU_BACKUP_MAGIC, DRR_NUMTYPES, Header, RECORD_SIZE, Record};

use crate::Error;

/// Takes the records of a stream, one after the other.
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
    input: R,
    /// Known from the first record on.
    endian: Option<Endian>,
    verify: bool,
    sum: Fletcher4,
    /// The sum at the end of the record before.
    before: [u64; 4],
    /// Bytes of whole records and payloads that were read, the record that ended the walk included.
    offset: u64,
    payload: Vec<u8>,
    /// Substreams that have begun and not ended: what makes an end of input an early one.
    open: bool,
}

/// A record with its payload. The payload is valid until the next record is taken.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Where the record begins in the stream.
    pub offset: u64,
    /// The record.
    pub header: Header,
    /// What follows it, as stored.
    pub payload: &'a [u8],
}

/// What the lenient walk met.
#[derive(Debug)]
pub(crate) enum Step {
    /// A record; its payload is in the buffer.
    Record(Box<Found>),
    /// The input ended: `torn` bytes of a record that is not whole came first.
    Eof { offset: u64, torn: u64, open: bool },
    /// The sum in a record is not that of what came before: the walk ends here.
    Mismatch { offset: u64, computed: [u64; 4], found: [u64; 4] },
    /// A type that no record has: the walk ends here.
    UnknownType { offset: u64, kind: u32 },
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) offset: u64,
    pub(crate) header: Header,
    /// Bytes of payload that the record claims; the buffer holds as many.
    pub(crate) need: usize,
    /// Bytes of payload that were there. Fewer than `need`: the stream is cut off.
    pub(crate) have: usize,
    /// In END, the sum that should stand there if another does.
    pub(crate) end_mismatch: Option<[u64; 4]>,
}

impl<R: Read> Reader<R> {
    /// A reader that verifies checksums. `input` need not be buffered for payloads, but records are small: a
    /// [`io::BufReader`] around a file or socket pays.
    pub fn new(input: R) -> Self {
        Reader {
            input,
            endian: None,
            verify: true,
            sum: Fletcher4::new(),
            before: [0; 4],
            offset: 0,
            payload: Vec::new(),
            open: false,
        }
    }

    /// Leaves the checksums unverified.
    #[must_use]
    pub fn without_checksums(mut self) -> Self {
        self.verify = false;
        self
    }

    /// The byte order of the stream, once the first record was taken.
    pub fn endian(&self) -> Option<Endian> {
        self.endian
    }

    /// Bytes of whole records and payloads taken so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next record, verified; `None` at the end of the stream.
    ///
    /// # Errors
    /// [`Error::BadMagic`] if this is no stream; [`Error::Checksum`], [`Error::Truncated`], [`Error::UnknownType`],
    /// [`Error::TooLarge`] if it is broken; [`Error::Io`].
    pub fn next_record(&mut self) -> Result<Option<Entry<'_>>, Error> {
        let found = match self.step()? {
            Step::Record(found) => found,
            Step::Eof { torn: 0, open: false, .. } => return Ok(None),
            Step::Eof { offset, torn, .. } => {
                return Err(Error::Truncated { offset, need: RECORD_SIZE as u64, have: torn });
            }
            Step::Mismatch { offset, computed, found } => return Err(Error::Checksum { offset, computed, found }),
            Step::UnknownType { offset, kind } => return Err(Error::UnknownType { offset, kind }),
        };
        let Found { offset, header, need, have, end_mismatch } = *found;
        if have < need {
            return Err(Error::Truncated { offset, need: need as u64, have: have as u64 });
        }
        if let (Some(computed), Record::End(end)) = (end_mismatch, &header.record) {
            return Err(Error::Checksum { offset, computed, found: end.checksum });
        }
        Ok(Some(Entry { offset, header, payload: self.payload.get(..need).unwrap_or(&[]) }))
    }

    /// The payload buffer as far as the record at hand claims; bytes that were not there are those of an earlier one.
    pub(crate) fn payload(&self, need: usize) -> &[u8] {
        self.payload.get(..need).unwrap_or(&[])
    }

    /// One record of the lenient walk: errors are only what stops any reader.
    pub(crate) fn step(&mut self) -> Result<Step, Error> {
        let offset = self.offset;
        let mut buf = [0; RECORD_SIZE];
        let have = self.fill(&mut buf)?;
        if have < RECORD_SIZE {
            // OpenZFS reads a record in two parts, and counts the first one where it is whole
            self.offset += if have >= CHECKSUM_OFFSET { CHECKSUM_OFFSET as u64 } else { 0 };
            return Ok(Step::Eof { offset, torn: have as u64, open: self.open });
        }
        let e = match self.endian {
            Some(e) => e,
            None => byte_order(&buf)?,
        };
        let first = self.endian.replace(e).is_none();

        let kind = Header::record_type(&buf, e).map_err(|source| Error::Record { offset, source })?;
        if first && kind != 0 {
            return Err(Error::BadMagic { found: kind.into() });
        }
        self.offset += RECORD_SIZE as u64;
        if let Some((computed, found)) = self.sum_record(&buf, kind, e) {
            return Ok(Step::Mismatch { offset, computed, found });
        }
        if kind >= DRR_NUMTYPES {
            return Ok(Step::UnknownType { offset, kind });
        }
        let header = Header::decode(&buf, e).map_err(|source| Error::Record { offset, source })?;
        let need = payload_limit(&header, offset)?;
        let have = self.take_payload(need, e)?;

        let mut end_mismatch = None;
        match &header.record {
            Record::Begin(_) => self.open = true,
            Record::End(end) => {
                self.open = false;
                end_mismatch = (self.verify && end.checksum != self.before).then_some(self.before);
                self.sum = Fletcher4::new();
            }
            _ => {}
        }
        self.before = self.sum.value();
        Ok(Step::Record(Box::new(Found { offset, header, need, have, end_mismatch })))
    }

    /// Takes a record into the running sum. A mismatch gives (computed, found).
    fn sum_record(&mut self, buf: &[u8; RECORD_SIZE], kind: u32, e: Endian) -> Option<([u64; 4], [u64; 4])> {
        if !self.verify {
            return None;
        }
        let (fields, stored) = buf.split_at(CHECKSUM_OFFSET);
        self.sum.update(fields, e);
        let computed = self.sum.value();
        self.sum.update(stored, e);
        let mut found = [0; 4];
        for (to, from) in found.iter_mut().zip(base::bytes::u64s(stored, e)) {
            *to = from;
        }
        // In BEGIN these bytes belong to the name; a record without a sum is not verified, as by OpenZFS.
        (kind != 0 && found != [0; 4] && found != computed).then_some((computed, found))
    }

    fn take_payload(&mut self, need: usize, e: Endian) -> Result<usize, Error> {
        if need > self.payload.len() {
            self.grow(need)
        } else {
            let mut buf = std::mem::take(&mut self.payload);
            let have = buf.get_mut(..need).map_or(Ok(0), |to| self.fill(to));
            self.payload = buf;
            have
        }
        .inspect(|have| {
            if *have == need {
                self.offset += need as u64;
                if self.verify {
                    self.sum.update(self.payload.get(..need).unwrap_or(&[]), e);
                }
            }
        })
    }

    /// Reads a payload larger than any before: memory is taken as the bytes come, not as the header claims.
    fn grow(&mut self, need: usize) -> Result<usize, Error> {
        const STEP: usize = 1 << 20;
        let mut have = 0;
        while have < need {
            let end = need.min(have + STEP);
            let mut buf = std::mem::take(&mut self.payload);
            if buf.len() < end {
                buf.resize(end, 0);
            }
            let want = end - have;
            let got = buf.get_mut(have..end).map_or(Ok(0), |to| self.fill(to));
            self.payload = buf;
            let got = got?;
            have += got;
            if got < want {
                // the dump shows the whole claimed length
                self.payload.resize(need.max(self.payload.len()), 0);
                break;
            }
        }
        Ok(have)
    }

    /// Fills `buf` as far as the input goes.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let mut have = 0;
        while let Some(rest) = buf.get_mut(have..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { offset: self.offset + have as u64, source }),
            }
        }
        Ok(have)
    }
}

/// The byte order that the magic number of a first record tells.
fn byte_order(buf: &[u8]) -> Result<Endian, Error> {
    match base::bytes::u64(buf, 8, Endian::Little).unwrap_or(0) {
        DMU_BACKUP_MAGIC => Ok(Endian::Little),
        n if n == DMU_BACKUP_MAGIC.swap_bytes() => Ok(Endian::Big),
        found => Err(Error::BadMagic { found }),
    }
}

/// The payload length of a record, if it is below the limit for its type.
fn payload_limit(header: &Header, offset: u64) -> Result<usize, Error> {
    let limit = match header.record {
        Record::Begin(_) => tunable::ZFS_MAX_NVLIST_BYTES.get(),
        _ => SPA_MAXBLOCKSIZE,
    };
    let claimed = header.payload_size();
    let too_large = Error::TooLarge { offset, claimed, limit };
    if claimed > limit { Err(too_large) } else { usize::try_from(claimed).map_err(|_| too_large) }
}
