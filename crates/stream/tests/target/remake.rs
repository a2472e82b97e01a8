//! Streams split into records and reassembled, with right checksums.

use base::{Endian, ObjectId};
use codec::fletcher::Fletcher4;
use ondisk::send::{CHECKSUM_OFFSET, RECORD_SIZE, feature};
use stream::{Header, Reader, Record};

pub(crate) type Part = (Header, Vec<u8>);

/// Returns the records of a stream.
pub(crate) fn parts(bytes: &[u8]) -> Vec<Part> {
    let mut reader = Reader::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = reader.next_record().unwrap() {
        let payload = entry.payload.to_vec();
        all.push((entry.header, payload));
    }
    all
}

/// Returns the offset at which each record begins.
pub(crate) fn boundaries(parts: &[Part]) -> Vec<usize> {
    let lengths = parts.iter().map(|(_, payload)| RECORD_SIZE + payload.len());
    lengths.scan(0, |at, len| Some(std::mem::replace(at, *at + len))).collect()
}

/// Returns a stream of these records.
pub(crate) fn stream_of(parts: &[Part]) -> Vec<u8> {
    stream_in(parts, Endian::Little)
}

/// Returns a stream of these records as a machine of byte order `e` writes it.
pub(crate) fn stream_in(parts: &[Part], e: Endian) -> Vec<u8> {
    let (mut out, mut sum) = (Vec::new(), Fletcher4::new());
    for (header, payload) in parts {
        let mut header = header.clone();
        if let Record::Begin(_) = &header.record {
            header.payloadlen = u32::try_from(payload.len()).unwrap();
        }
        if let Record::End(end) = &mut header.record {
            end.checksum = sum.value();
        }
        let mut buf = header.encode(e);
        sum.update(&buf[..CHECKSUM_OFFSET], e);
        if !matches!(header.record, Record::Begin(_)) {
            for (place, word) in buf[CHECKSUM_OFFSET..].chunks_mut(8).zip(sum.value()) {
                place.copy_from_slice(&e.put_u64(word));
            }
        }
        sum.update(&buf[CHECKSUM_OFFSET..], e);
        sum.update(payload, e);
        out.extend_from_slice(&buf);
        out.extend_from_slice(payload);
    }
    out
}

/// Returns what a sender writes when it resumes at (object, offset).
pub(crate) fn resumed_at(parts: &[Part], object: u64, offset: u64) -> Vec<u8> {
    let wanted = |record: &Record| match record {
        Record::Begin(_) | Record::End(_) => true,
        Record::Object(r) => r.object >= ObjectId(object),
        Record::FreeObjects(r) => r.firstobj >= ObjectId(object),
        Record::Write(r) => (r.object, r.offset) >= (ObjectId(object), offset),
        Record::WriteEmbedded(r) => (r.object, r.offset) >= (ObjectId(object), offset),
        Record::Free(r) => (r.object, r.offset) >= (ObjectId(object), offset),
        Record::Spill(r) => r.object >= ObjectId(object),
        // the dnode block that contains the object
        Record::ObjectRange(r) => r.firstobj.0 + r.numslots > object,
        _ => false,
    };
    let mut kept: Vec<Part> = parts.iter().filter(|(header, _)| wanted(&header.record)).cloned().collect();
    if let Record::Begin(begin) = &mut kept[0].0.record {
        begin.versioninfo |= feature::RESUMING << 2;
    }
    let before = &parts[0].1;
    let mut list = if before.is_empty() { nvlist::NvList::new() } else { nvlist::NvList::unpack(before).unwrap() };
    list.insert("resume_object", object);
    list.insert("resume_offset", offset);
    let mut packed = list.pack(nvlist::Encoding::Xdr, Endian::Little).unwrap();
    packed.resize(packed.len().next_multiple_of(8), 0);
    kept[0].1 = packed;
    stream_of(&kept)
}
