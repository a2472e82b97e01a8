//! The text of `zstream dump`.
//!
//! The output is byte for byte that of OpenZFS 2.4, damaged streams included: a truncated stream is printed up to its end, with a
//! summary; a record whose checksum is wrong ends the walk, and so does an unknown type, which has no summary. Where OpenZFS 2.4
//! is silent (truncation) or sets no exit status (a bad checksum), [`Outcome`] reports it.

mod json;

use std::io::{Read, Write};

use nvlist::NvList;
use ondisk::send::{Begin, CryptParams, Object, Record, RecordType, Spill, Write as WriteRecord, WriteByref};

use crate::nvprint;
use crate::reader::{Step, StreamRecord};
use crate::{Error, Header, Reader};

pub use json::json_lines;

/// Options of the output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `-v`: every record.
    pub verbose: bool,
    /// `-vv`: also the checksum that it carries.
    pub checksums: bool,
    /// `-d`: also the data.
    pub data: bool,
    /// `-C`: checksums are not verified.
    pub ignore_checksums: bool,
}

/// The way in which the walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// At the end of a whole stream.
    Complete,
    /// The input ended before END.
    CutOff,
    /// At a record whose checksum is wrong, or at the end of a stream with a wrong END.
    BadChecksum,
    /// At a record of no known type; no summary was printed.
    UnknownType,
}

/// The record types in the order of the summary; the two types that are missing here are counted only in the totals.
const SUMMARY: [(RecordType, &str); 9] = [
    (RecordType::Begin, "BEGIN"),
    (RecordType::End, "END"),
    (RecordType::Object, "OBJECT"),
    (RecordType::FreeObjects, "FREEOBJECTS"),
    (RecordType::Write, "WRITE"),
    (RecordType::WriteByref, "WRITE_BYREF"),
    (RecordType::WriteEmbedded, "WRITE_EMBEDDED"),
    (RecordType::Free, "FREE"),
    (RecordType::Spill, "SPILL"),
];

/// Prints streams.
#[derive(Debug)]
pub struct Dumper<'a, O, E> {
    out: O,
    err: E,
    options: &'a Options,
    /// (records, bytes of payload) by type.
    counts: [(u64, u64); 11],
}

impl<'a, O: Write, E: Write> Dumper<'a, O, E> {
    /// Creates a dumper that prints to `out` and reports errors to `err`.
    pub fn new(out: O, err: E, options: &'a Options) -> Self {
        Dumper { out, err, options, counts: [(0, 0); 11] }
    }

    /// Prints one stream, and the summary.
    ///
    /// # Errors
    /// [`Error::BadMagic`] if it is not a stream; [`Error::TooLarge`]; [`Error::Io`]; [`Error::Output`].
    pub fn run<R: Read>(&mut self, input: R) -> Result<Outcome, Error> {
        let mut reader = Reader::new(input);
        if self.options.ignore_checksums {
            reader = reader.without_checksums();
        }
        let (mut bad_end, mut stale) = (false, Stale::default());
        let outcome = loop {
            match reader.step()? {
                Step::Record(found) => {
                    bad_end |= found.end_mismatch.is_some();
                    self.record(&found, stale.take(reader.payload(&found), found.need)).map_err(Error::Output)?;
                }
                Step::Eof { torn: 0, open: false, .. } if bad_end => break Outcome::BadChecksum,
                Step::Eof { torn: 0, open: false, .. } => break Outcome::Complete,
                Step::Eof { .. } => break Outcome::CutOff,
                Step::Mismatch { computed, .. } => {
                    self.mismatch(computed).map_err(Error::Output)?;
                    break Outcome::BadChecksum;
                }
                Step::UnknownType { kind, .. } => {
                    write!(self.out, "INVALID record found: type {kind:#x}\nAborting.\n").map_err(Error::Output)?;
                    return Ok(Outcome::UnknownType);
                }
            }
        };
        self.summary(reader.offset()).map_err(Error::Output)?;
        Ok(outcome)
    }

    fn mismatch(&mut self, computed: [u64; 4]) -> std::io::Result<()> {
        writeln!(self.err, "invalid checksum")?;
        writeln!(self.out, "Incorrect checksum in record header.\nExpected checksum = {}", words(computed))
    }

    fn record(&mut self, found: &StreamRecord, payload: &[u8]) -> std::io::Result<()> {
        let header = &found.header;
        if let Some(count) = self.counts.get_mut(header.record.kind() as usize) {
            count.0 += 1;
            count.1 += found.need as u64;
        }
        match &header.record {
            Record::Begin(begin) => self.begin(header, begin, payload)?,
            Record::End(end) => {
                if let Some(computed) = found.end_mismatch {
                    writeln!(self.out, "Expected checksum differs from checksum in stream.")?;
                    writeln!(self.out, "Expected checksum = {}", words(computed))?;
                }
                writeln!(self.out, "END checksum = {}", words(end.checksum))?;
            }
            record if self.options.verbose => self.fields(record, found.need)?,
            _ => {}
        }
        let has_data = match &header.record {
            Record::Object(object) => object.bonuslen > 0,
            Record::Write(_) | Record::Spill(_) | Record::WriteEmbedded(_) => true,
            _ => false,
        };
        if self.options.data && has_data {
            self.data(payload)?;
        }
        if self.options.checksums && !matches!(header.record, Record::Begin(_)) {
            writeln!(self.out, "    checksum = {}", words(header.checksum))?;
        }
        Ok(())
    }

    fn begin(&mut self, header: &Header, begin: &Begin, payload: &[u8]) -> std::io::Result<()> {
        let out = &mut self.out;
        writeln!(out, "BEGIN record")?;
        writeln!(out, "\thdrtype = {}", begin.hdrtype())?;
        writeln!(out, "\tfeatures = {:x}", begin.features())?;
        writeln!(out, "\tmagic = {:x}", begin.magic)?;
        writeln!(out, "\tcreation_time = {:x}", begin.creation_time)?;
        writeln!(out, "\ttype = {}", begin.objset_type)?;
        writeln!(out, "\tflags = {:#x}", begin.flags)?;
        writeln!(out, "\ttoguid = {:x}", begin.toguid.0)?;
        writeln!(out, "\tfromguid = {:x}", begin.fromguid.0)?;
        out.write_all(b"\ttoname = ")?;
        out.write_all(begin.name())?;
        writeln!(out, "\n\tpayloadlen = {}", header.payloadlen)?;
        if self.options.verbose {
            writeln!(out)?;
        }
        if header.payloadlen == 0 {
            return Ok(());
        }
        match NvList::unpack(payload) {
            Ok(list) => nvprint::print(out, &list),
            Err(e) => writeln!(self.err, "BEGIN nvlist: {e}"),
        }
    }

    fn fields(&mut self, record: &Record, size: usize) -> std::io::Result<()> {
        let out = &mut self.out;
        match record {
            Record::Object(r) => object(out, r),
            Record::FreeObjects(r) => {
                writeln!(out, "FREEOBJECTS firstobj = {} numobjs = {}", r.firstobj, r.numobjs)
            }
            Record::Write(r) => write_record(out, r, size),
            Record::WriteByref(r) => write_byref(out, r),
            Record::Free(r) => {
                writeln!(out, "FREE object = {} offset = {} length = {}", r.object, r.offset, r.length as i64)
            }
            Record::Spill(r) => spill(out, r, size),
            Record::WriteEmbedded(r) => writeln!(
                out,
                "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} psize = {}",
                r.object, r.offset, r.length, r.toguid.0, r.compression, r.etype, r.lsize, r.psize
            ),
            Record::ObjectRange(r) => writeln!(
                out,
                "OBJECT_RANGE firstobj = {} numslots = {} flags = {} {}",
                r.firstobj,
                r.numslots,
                r.flags,
                crypt(&r.crypt)
            ),
            Record::Redact(r) => {
                writeln!(out, "REDACT object = {} offset = {} length = {}", r.object, r.offset, r.length)
            }
            Record::Begin(_) | Record::End(_) => Ok(()),
        }
    }

    /// Prints sixteen bytes per line, in groups of four, with their characters.
    fn data(&mut self, payload: &[u8]) -> std::io::Result<()> {
        let mut line = String::with_capacity(80);
        for bytes in payload.chunks(16) {
            line.clear();
            for (n, b) in bytes.iter().enumerate() {
                if n % 4 == 0 {
                    line.push(' ');
                }
                line.push(hex_digit(b >> 4));
                line.push(hex_digit(b & 15));
                line.push(' ');
            }
            line.extend(std::iter::repeat_n(' ', 54_usize.saturating_sub(line.len()).max(1)));
            for (n, b) in bytes.iter().enumerate() {
                if n != 0 && n % 4 == 0 {
                    line.push(' ');
                }
                line.push(if matches!(b, b' '..=b'~') { char::from(*b) } else { '.' });
            }
            line.push('\n');
            self.out.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    fn summary(&mut self, stream_len: u64) -> std::io::Result<()> {
        let out = &mut self.out;
        writeln!(out, "SUMMARY:")?;
        for (kind, name) in SUMMARY {
            let (records, bytes) = self.counts.get(kind as usize).copied().unwrap_or_default();
            writeln!(out, "\tTotal DRR_{name} records = {records} ({bytes} bytes)")?;
        }
        let records: u64 = self.counts.iter().map(|c| c.0).sum();
        let payload: u64 = self.counts.iter().map(|c| c.1).sum();
        let overhead = records * ondisk::send::RECORD_SIZE as u64;
        writeln!(out, "\tTotal records = {records}")?;
        writeln!(out, "\tTotal payload size = {payload} ({payload:#x})")?;
        writeln!(out, "\tTotal header overhead = {overhead} ({overhead:#x})")?;
        writeln!(out, "\tTotal stream length = {stream_len} ({stream_len:#x})")?;
        out.flush()
    }
}

fn words([a, b, c, d]: [u64; 4]) -> String {
    format!("{a:x}/{b:x}/{c:x}/{d:x}")
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(nibble.into(), 16).unwrap_or('0')
}

fn hex(data: &[u8]) -> String {
    data.iter().flat_map(|b| [hex_digit(b >> 4), hex_digit(b & 15)]).collect()
}

fn crypt(c: &CryptParams) -> String {
    format!("salt = {} iv = {} mac = {}", hex(&c.salt), hex(&c.iv), hex(&c.mac))
}

fn object(out: &mut impl Write, r: &Object) -> std::io::Result<()> {
    write!(
        out,
        "OBJECT object = {} type = {} bonustype = {} blksz = {} ",
        r.object, r.object_type, r.bonus_type, r.blksz
    )?;
    write!(out, "bonuslen = {} dn_slots = {} raw_bonuslen = {} ", r.bonuslen, r.dn_slots, r.raw_bonuslen)?;
    write!(out, "flags = {} maxblkid = {} indblkshift = {} ", r.flags, r.maxblkid, r.indblkshift)?;
    writeln!(out, "nlevels = {} nblkptr = {}", r.nlevels, r.nblkptr)
}

fn write_record(out: &mut impl Write, r: &WriteRecord, size: usize) -> std::io::Result<()> {
    write!(out, "WRITE object = {} type = {} checksum type = {} ", r.object, r.object_type, r.checksumtype)?;
    write!(out, "compression type = {} flags = {} offset = {} ", r.compressiontype, r.flags, r.offset)?;
    write!(out, "logical_size = {} compressed_size = {} payload_size = {size} ", r.logical_size, r.compressed_size)?;
    writeln!(out, "props = {:x} {}", r.key.prop, crypt(&r.crypt))
}

fn write_byref(out: &mut impl Write, r: &WriteByref) -> std::io::Result<()> {
    write!(out, "WRITE_BYREF object = {} checksum type = {} props = {:x} ", r.object, r.checksumtype, r.key.prop)?;
    write!(out, "offset = {} length = {} toguid = {:x} ", r.offset, r.length, r.toguid.0)?;
    writeln!(out, "refguid = {:x} refobject = {} refoffset = {}", r.refguid.0, r.refobject, r.refoffset)
}

fn spill(out: &mut impl Write, r: &Spill, size: usize) -> std::io::Result<()> {
    write!(out, "SPILL block for object = {} length = {} flags = {} ", r.object, r.length, r.flags)?;
    write!(out, "compression type = {} compressed_size = {} ", r.compressiontype, r.compressed_size)?;
    writeln!(out, "payload_size = {size} {}", crypt(&r.crypt))
}

/// OpenZFS's payload buffer: where a stream is truncated, the rest of the printed payload comes from earlier records.
#[derive(Default)]
struct Stale(Vec<u8>);

impl Stale {
    /// Stores a payload of `need` bytes of which only `have` are present; returns the buffer.
    fn take(&mut self, have: &[u8], need: usize) -> &[u8] {
        if self.0.len() < need {
            self.0.resize(need, 0);
        }
        if let Some(to) = self.0.get_mut(..have.len()) {
            to.copy_from_slice(have);
        }
        self.0.get(..need).unwrap_or(&[])
    }
}
