//! A stream as JSON, one line per record: `zstream dump -j`. OpenZFS has no such format; the field names are those of its records
//! (`drr_…`), numbers are decimal.

use std::io::{Read, Write};

use base::ObjectId;
use nvlist::{JsonStyle, NvList};
use ondisk::send::{Begin, CryptParams, Object, Record, RecordType, Spill, Write as WriteRecord, WriteByref};

use super::{Outcome, SUMMARY, Stale, hex};
use crate::reader::{Step, StreamRecord};
use crate::{Error, Reader};

/// Prints one stream: a line for each record with its `type`, its offset (`at`) and the length of its payload (`payload`), then a
/// line of type `SUMMARY` that says how the stream ended. A record whose checksum is wrong is not printed.
///
/// # Errors
/// [`Error::BadMagic`] if it is not a stream; [`Error::TooLarge`]; [`Error::Io`]; [`Error::Output`].
pub fn json_lines<R: Read>(input: R, ignore_checksums: bool, out: &mut impl Write) -> Result<Outcome, Error> {
    let mut reader = Reader::new(input);
    if ignore_checksums {
        reader = reader.without_checksums();
    }
    let (mut records, mut payload, mut bad_end, mut stale) = (0u64, 0u64, false, Stale::default());
    let mut print = |list: &NvList| writeln!(out, "{}", list.to_json_style(JsonStyle::Plain)).map_err(Error::Output);
    let outcome = loop {
        match reader.step()? {
            Step::Record(found) => {
                bad_end |= found.end_mismatch.is_some();
                records += 1;
                payload = payload.saturating_add(found.need as u64);
                print(&record(&found, stale.take(reader.payload(&found), found.need)))?;
            }
            Step::Eof { torn: 0, open: false, .. } if bad_end => break Outcome::BadChecksum,
            Step::Eof { torn: 0, open: false, .. } => break Outcome::Complete,
            Step::Eof { .. } => break Outcome::CutOff,
            Step::Mismatch { .. } => break Outcome::BadChecksum,
            Step::UnknownType { .. } => break Outcome::UnknownType,
        }
    };
    let mut summary = NvList::new();
    summary.insert("type", "SUMMARY");
    summary.insert("outcome", word(outcome));
    summary.insert("records", records);
    summary.insert("payload", payload);
    summary.insert("length", reader.offset());
    print(&summary)?;
    Ok(outcome)
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Complete => "complete",
        Outcome::CutOff => "cut off",
        Outcome::BadChecksum => "bad checksum",
        Outcome::UnknownType => "unknown record",
    }
}

fn kind(kind: RecordType) -> &'static str {
    match kind {
        RecordType::ObjectRange => "OBJECT_RANGE",
        RecordType::Redact => "REDACT",
        known => SUMMARY.iter().find(|(kind, _)| *kind == known).map_or("", |(_, name)| name),
    }
}

fn record(found: &StreamRecord, payload: &[u8]) -> NvList {
    let header = &found.header;
    let mut list = NvList::new();
    list.insert("type", kind(header.record.kind()));
    list.insert("at", found.offset);
    list.insert("payload", found.need as u64);
    match &header.record {
        Record::Begin(r) => begin(&mut list, r, payload),
        Record::Object(r) => object(&mut list, r),
        Record::FreeObjects(r) => numbers(&mut list, &[("firstobj", r.firstobj.0), ("numobjs", r.numobjs)]),
        Record::Write(r) => write(&mut list, r),
        Record::Free(r) => span(&mut list, r.object, r.offset, r.length),
        Record::End(r) => {
            list.insert("stream_checksum", r.checksum.to_vec());
            list.insert("toguid", r.toguid.0);
        }
        Record::WriteByref(r) => write_byref(&mut list, r),
        Record::Spill(r) => spill(&mut list, r),
        Record::WriteEmbedded(r) => {
            span(&mut list, r.object, r.offset, r.length);
            let sizes = [("lsize", r.lsize.into()), ("psize", r.psize.into())];
            numbers(&mut list, &[("compression", r.compression.into()), ("etype", r.etype.into())]);
            numbers(&mut list, &sizes);
        }
        Record::ObjectRange(r) => {
            let fields = [("firstobj", r.firstobj.0), ("numslots", r.numslots), ("flags", r.flags.into())];
            numbers(&mut list, &fields);
            crypt(&mut list, &r.crypt);
        }
        Record::Redact(r) => span(&mut list, r.object, r.offset, r.length),
    }
    // in BEGIN these bytes are the end of the name
    if !matches!(header.record, Record::Begin(_)) {
        list.insert("checksum", header.checksum.to_vec());
    }
    if let Some(right) = found.end_mismatch {
        list.insert("expected_checksum", right.to_vec());
    }
    list
}

fn numbers(list: &mut NvList, fields: &[(&str, u64)]) {
    fields.iter().for_each(|(name, value)| list.insert(*name, *value));
}

fn span(list: &mut NvList, object: ObjectId, offset: u64, length: u64) {
    numbers(list, &[("object", object.0), ("offset", offset), ("length", length)]);
}

fn crypt(list: &mut NvList, params: &CryptParams) {
    for (name, bytes) in [("salt", &params.salt[..]), ("iv", &params.iv), ("mac", &params.mac)] {
        if bytes.iter().any(|byte| *byte != 0) {
            list.insert(name, hex(bytes));
        }
    }
}

fn begin(list: &mut NvList, r: &Begin, payload: &[u8]) {
    list.insert("toname", String::from_utf8_lossy(r.name()).into_owned());
    let fields = [
        ("hdrtype", r.hdrtype().into()),
        ("features", r.features()),
        ("creation_time", r.creation_time),
        ("objset_type", r.objset_type.into()),
        ("flags", r.flags.into()),
        ("toguid", r.toguid.0),
        ("fromguid", r.fromguid.0),
    ];
    numbers(list, &fields);
    if !payload.is_empty() {
        match NvList::unpack(payload) {
            Ok(nested) => list.insert("nvlist", nested),
            Err(e) => list.insert("nvlist_error", e.to_string()),
        }
    }
}

fn object(list: &mut NvList, r: &Object) {
    let fields = [
        ("object", r.object.0),
        ("object_type", r.object_type.into()),
        ("bonus_type", r.bonus_type.into()),
        ("blksz", r.blksz.into()),
        ("bonuslen", r.bonuslen.into()),
        ("checksumtype", r.checksumtype.into()),
        ("compress", r.compress.into()),
        ("dn_slots", r.dn_slots.into()),
        ("flags", r.flags.into()),
        ("raw_bonuslen", r.raw_bonuslen.into()),
        ("indblkshift", r.indblkshift.into()),
        ("nlevels", r.nlevels.into()),
        ("nblkptr", r.nblkptr.into()),
        ("maxblkid", r.maxblkid),
    ];
    numbers(list, &fields);
}

fn write(list: &mut NvList, r: &WriteRecord) {
    let fields = [
        ("object", r.object.0),
        ("object_type", r.object_type.into()),
        ("offset", r.offset),
        ("logical_size", r.logical_size),
        ("compressed_size", r.compressed_size),
        ("compressiontype", r.compressiontype.into()),
        ("checksumtype", r.checksumtype.into()),
        ("flags", r.flags.into()),
    ];
    numbers(list, &fields);
    list.insert("key_cksum", r.key.cksum.to_vec());
    list.insert("key_prop", r.key.prop);
    crypt(list, &r.crypt);
}

fn write_byref(list: &mut NvList, r: &WriteByref) {
    span(list, r.object, r.offset, r.length);
    numbers(list, &[("refguid", r.refguid.0), ("refobject", r.refobject.0), ("refoffset", r.refoffset)]);
    numbers(list, &[("checksumtype", r.checksumtype.into()), ("flags", r.flags.into())]);
}

fn spill(list: &mut NvList, r: &Spill) {
    let fields = [
        ("object", r.object.0),
        ("length", r.length),
        ("flags", r.flags.into()),
        ("compressiontype", r.compressiontype.into()),
        ("compressed_size", r.compressed_size),
    ];
    numbers(list, &fields);
    crypt(list, &r.crypt);
}
