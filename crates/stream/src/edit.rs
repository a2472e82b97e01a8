//! Stream filters: records dropped, decompressed, recompressed, or deduplicated records expanded (OpenZFS: `cmd/zstream`).
//!
//! A filter is a function on records; [`rewrite`] walks the stream, and computes the checksums of the output. The byte order is
//! unchanged.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Seek, SeekFrom, Write};

use base::{Endian, Guid, ObjectId};
use codec::fletcher::Fletcher4;
use codec::{Compress, compress, decompress};
use ondisk::send::{CHECKSUM_OFFSET, Header, RECORD_SIZE, Record, feature};

use crate::{Error, Reader};

/// The decision of a filter about a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is written, as it is now.
    Kept,
    /// It is dropped.
    Dropped,
}

/// A record and its payload, both of which a filter may change.
#[derive(Clone, Debug)]
pub struct Part {
    /// The offset of the record in the stream.
    pub offset: u64,
    /// The record.
    pub header: Header,
    /// The payload that follows it.
    pub payload: Vec<u8>,
}

/// Copies a stream, with `change` applied to each record.
///
/// # Errors
/// Errors of the stream; [`Error::Output`]; errors of `change`.
pub fn rewrite<R: Read, W: Write>(
    input: R,
    out: &mut W,
    change: &mut dyn FnMut(&mut Part) -> Result<Fate, Error>,
) -> Result<(), Error> {
    let mut reader = Reader::new(input);
    let mut sum = Fletcher4::new();
    loop {
        let Some(entry) = reader.next_record()? else { return Ok(()) };
        let mut part = Part { offset: entry.offset, header: entry.header, payload: entry.payload.to_vec() };
        if change(&mut part)? == Fate::Dropped {
            continue;
        }
        let endian = reader.endian().unwrap_or(Endian::NATIVE);
        put(out, endian, &mut sum, part)?;
    }
}

fn put<W: Write>(out: &mut W, endian: Endian, sum: &mut Fletcher4, part: Part) -> Result<(), Error> {
    let Part { mut header, payload, .. } = part;
    // the END of a package's header and that of the package carry no checksum
    let is_summed = header.checksum != [0; 4];
    let is_begin = matches!(header.record, Record::Begin(_));
    let is_end = match &mut header.record {
        Record::Begin(_) => {
            *sum = Fletcher4::new();
            header.payloadlen = payload.len() as u32;
            false
        }
        Record::End(end) => {
            end.checksum = if end.checksum == [0; 4] { [0; 4] } else { sum.value() };
            true
        }
        _ => false,
    };
    let mut bytes = header.encode(endian);
    sum.update(bytes.get(..CHECKSUM_OFFSET).unwrap_or_default(), endian);
    if is_summed && !is_begin {
        header.checksum = sum.value();
        bytes = header.encode(endian);
    }
    sum.update(bytes.get(CHECKSUM_OFFSET..).unwrap_or_default(), endian);
    sum.update(&payload, endian);
    if is_end {
        *sum = Fletcher4::new();
    }
    out.write_all(&bytes).and_then(|()| out.write_all(&payload)).map_err(Error::Output)
}

/// Drops the WRITE records at these positions: (object, offset).
pub fn drop_writes(places: &HashSet<(ObjectId, u64)>) -> impl FnMut(&mut Part) -> Result<Fate, Error> {
    move |part| {
        let place = match &part.header.record {
            Record::Write(write) => Some((write.object, write.offset)),
            Record::WriteEmbedded(write) => Some((write.object, write.offset)),
            _ => None,
        };
        Ok(if place.is_some_and(|place| places.contains(&place)) { Fate::Dropped } else { Fate::Kept })
    }
}

/// Decompresses the WRITE records at these positions, with the given compression or else with the record's. [`Compress::Off`]
/// says that the block never was compressed. `tell` is called for each one with (object, offset, whether it worked).
pub fn decompress_writes<'a>(
    places: &'a HashMap<(ObjectId, u64), Option<Compress>>,
    tell: &'a mut dyn FnMut(ObjectId, u64, bool),
) -> impl FnMut(&mut Part) -> Result<Fate, Error> + 'a {
    move |part| {
        let Part { header, payload, .. } = part;
        let Record::Write(write) = &mut header.record else { return Ok(Fate::Kept) };
        let Some(said) = places.get(&(write.object, write.offset)) else { return Ok(Fate::Kept) };
        let kind = said.or_else(|| Compress::from_u8(write.compressiontype));
        if write.compressiontype == 0 || kind == Some(Compress::Off) {
            write.logical_size = payload.len() as u64;
            (write.compressiontype, write.compressed_size) = (0, 0);
            tell(write.object, write.offset, true);
            return Ok(Fate::Kept);
        }
        // one of an unknown type cannot be expanded
        let plain = kind.and_then(|kind| expand(kind, payload, write.logical_size));
        tell(write.object, write.offset, plain.is_some());
        if let Some(plain) = plain {
            *payload = plain;
            (write.compressiontype, write.compressed_size) = (0, 0);
        }
        Ok(Fate::Kept)
    }
}

/// Decompresses the block of a WRITE record; `None` if that fails, or if the size exceeds that of any block.
fn expand(kind: Compress, payload: &[u8], size: u64) -> Option<Vec<u8>> {
    let mut plain = vec![0; usize::try_from(size).ok().filter(|_| size <= ondisk::SPA_MAXBLOCKSIZE)?];
    decompress(kind, payload, &mut plain).ok()?;
    Some(plain)
}

/// Recompresses every block; with [`Compress::Off`] none is compressed. Blocks that do not become smaller stay uncompressed.
///
/// # Errors
/// The filter refuses raw streams, whose blocks are ciphertext, with [`Error::Unfit`].
pub fn recompress(kind: Compress, level: Option<i16>) -> impl FnMut(&mut Part) -> Result<Fate, Error> {
    move |part| {
        let Part { offset, header, payload } = part;
        match &mut header.record {
            Record::Begin(begin) if begin.hdrtype() == 1 => {
                let features = begin.features();
                if features & feature::RAW != 0 {
                    return Err(Error::Unfit { offset: *offset, why: "the stream is raw: its blocks are encrypted" });
                }
                // embedded blocks are left as they are, and may be compressed with these
                let kept = match features & feature::EMBED_DATA {
                    0 => features & !(feature::COMPRESSED | feature::LZ4 | feature::ZSTD),
                    _ => features & !feature::COMPRESSED,
                };
                let added = match kind {
                    Compress::Off => 0,
                    Compress::Zstd => feature::COMPRESSED | feature::ZSTD,
                    Compress::Lz4 => feature::COMPRESSED | feature::LZ4,
                    _ => feature::COMPRESSED,
                };
                begin.versioninfo = u64::from(begin.hdrtype()) | (kept | added) << 2;
            }
            Record::Write(write) => {
                if write.compressiontype != 0 {
                    let old = Compress::from_u8(write.compressiontype);
                    let plain = old.and_then(|old| expand(old, payload, write.logical_size));
                    let broken = Error::Unfit { offset: *offset, why: "the block does not decompress" };
                    *payload = plain.ok_or(broken)?;
                    (write.compressiontype, write.compressed_size) = (0, 0);
                }
                // the rule for stored blocks: at least one sector must be saved
                let limit = payload.len().saturating_sub(payload.len() / 8);
                if let Some(mut small) = compress(kind, level, payload, limit) {
                    small.resize(small.len().next_multiple_of(SECTOR), 0);
                    if small.len() < payload.len() {
                        (write.compressiontype, write.compressed_size) = (kind as u8, small.len() as u64);
                        *payload = small;
                    }
                }
            }
            _ => {}
        }
        Ok(Fate::Kept)
    }
}

/// Payloads are stored in whole sectors.
const SECTOR: usize = 512;

/// Expands a deduplicated stream: each WRITE_BYREF becomes the WRITE that it refers to, read again from `file`, which holds the
/// same stream.
pub fn reduplicate<F: Read + Seek>(mut file: F) -> impl FnMut(&mut Part) -> Result<Fate, Error> {
    let mut written: HashMap<(Guid, ObjectId, u64), u64> = HashMap::new();
    move |part| {
        let offset = part.offset;
        match &mut part.header.record {
            Record::Begin(begin) => {
                let features = begin.features() & !(feature::DEDUP | feature::DEDUPPROPS);
                begin.versioninfo = u64::from(begin.hdrtype()) | features << 2;
            }
            Record::Write(write) => {
                written.insert((write.toguid, write.object, write.offset), offset);
            }
            Record::WriteByref(byref) => {
                let unknown = Error::Unfit {
                    offset,
                    why: "a WRITE_BYREF record refers to a block that the stream has not written",
                };
                let at = *written.get(&(byref.refguid, byref.refobject, byref.refoffset)).ok_or(unknown)?;
                let (mut header, payload) = read_at(&mut file, at)?;
                let Record::Write(write) = &mut header.record else {
                    return Err(Error::Unfit {
                        offset: at,
                        why: "the file does not hold the stream that is being read",
                    });
                };
                (write.object, write.offset, write.toguid) = (byref.object, byref.offset, byref.toguid);
                written.insert((byref.toguid, byref.object, byref.offset), at);
                (part.header, part.payload) = (header, payload);
            }
            _ => {}
        }
        Ok(Fate::Kept)
    }
}

/// Reads a record and its payload from a file.
fn read_at<F: Read + Seek>(file: &mut F, offset: u64) -> Result<(Header, Vec<u8>), Error> {
    let io = |source| Error::Io { offset, source };
    let mut bytes = [0; RECORD_SIZE];
    file.seek(SeekFrom::Start(offset)).map_err(io)?;
    file.read_exact(&mut bytes).map_err(io)?;
    // a record's type is a small number in the byte order of the stream
    let endian = if bytes.first() == Some(&0) { Endian::Big } else { Endian::Little };
    let header = Header::decode(&bytes, endian).map_err(|source| Error::Record { offset, source })?;
    let claimed = header.payload_size();
    let limit = ondisk::SPA_MAXBLOCKSIZE;
    if claimed > limit {
        return Err(Error::TooLarge { offset, claimed, limit });
    }
    let mut payload = vec![0; claimed as usize];
    file.read_exact(&mut payload).map_err(io)?;
    Ok((header, payload))
}

#[cfg(test)]
mod tests {
    use ondisk::send::Write as WriteRecord;

    use super::*;

    #[test]
    fn a_block_of_an_unknown_compression_is_not_taken_for_a_plain_one() {
        let write = |compressiontype| WriteRecord {
            object: ObjectId(5),
            object_type: 19,
            offset: 0,
            logical_size: 512,
            toguid: Guid(1),
            checksumtype: 7,
            flags: 0,
            compressiontype,
            key: Default::default(),
            compressed_size: 8,
            crypt: Default::default(),
        };
        let places = HashMap::from([((ObjectId(5), 0), None)]);
        let mut told = Vec::new();
        let mut tell = |_, _, worked| told.push(worked);
        let record = Record::Write(write(99));
        let header = Header { payloadlen: 0, checksum: [0; 4], record };
        let mut part = Part { offset: 0, header, payload: vec![1; 8] };
        assert_eq!(decompress_writes(&places, &mut tell)(&mut part).ok(), Some(Fate::Kept));
        let Record::Write(now) = &part.header.record else { panic!("a write") };
        assert_eq!((now.compressiontype, now.compressed_size, now.logical_size), (99, 8, 512));
        assert_eq!(told, [false]);
    }
}
