//! The frame of an archive: headers, what stands before them, and the maps of sparse files.

use std::collections::HashMap;
use std::io::{self, Read};

use base64::Engine;
use tar::{EntryType, Header};
use zpl::{PosixAce, PosixAcl, PosixTag};

use crate::users::{Who, id_of};

/// Names and values of extended attributes.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A map of a sparse file longer than this is nonsense.
const SEGMENTS_MAX: usize = 1 << 20;
/// So are more records that hold for all entries.
const GLOBAL_MAX: usize = 1024;
/// So is a header with more to say.
const EXTENSION_MAX: u64 = 64 << 20;
const BLOCK: usize = 512;
/// The place of a header's own sum, which counts as blanks.
const CKSUM: std::ops::Range<usize> = 148..156;

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("archive: malformed {what}"))
}

fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "archive: unexpected end")
}

/// Reads as much as there is room for.
pub(super) fn fill(input: &mut impl Read, buf: &mut [u8]) -> io::Result<()> {
    input.read_exact(buf).map_err(|e| if e.kind() == io::ErrorKind::UnexpectedEof { cut_short() } else { e })
}

/// A header, with what the entries before it say about it.
pub(super) struct Entry {
    pub(super) header: Header,
    pub(super) records: Records,
    /// GNU's entries for long names.
    long_path: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    /// The further blocks of the map of a sparse file of old GNU archives.
    map: Vec<(u64, u64)>,
}

/// The next entry that is a file; `None` at the end. `global` is what holds for all entries from where it stands.
pub(super) fn next_entry(input: &mut impl Read, global: &mut Records) -> io::Result<Option<Entry>> {
    let (mut records, mut long_path, mut long_link) = (Records::default(), None, None);
    loop {
        let mut header = Header::new_old();
        if !read_block(input, header.as_mut_bytes())? || header.as_bytes().iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum: u32 = header
            .as_bytes()
            .iter()
            .enumerate()
            .map(|(n, b)| if CKSUM.contains(&n) { 32 } else { u32::from(*b) })
            .sum();
        if header.cksum().ok() != Some(sum) {
            return Err(malformed("header"));
        }
        match header.entry_type() {
            EntryType::XHeader => records = Records::parse(&extension(input, &header)?)?,
            EntryType::XGlobalHeader => global.add(Records::parse(&extension(input, &header)?)?)?,
            EntryType::GNULongName => long_path = Some(until_nul(extension(input, &header)?)),
            EntryType::GNULongLink => long_link = Some(until_nul(extension(input, &header)?)),
            _ => {
                let map = gnu_map(input, &header)?;
                return Ok(Some(Entry { header, records: records.over(global), long_path, long_link, map }));
            }
        }
    }
}

/// Fills a block; `false` if the input ends before it.
fn read_block(input: &mut impl Read, block: &mut [u8; BLOCK]) -> io::Result<bool> {
    let mut done = 0;
    while let Some(rest) = block.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) if done == 0 => return Ok(false),
            Ok(0) => return Err(cut_short()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// The contents of an entry that tells about the next one.
fn extension(input: &mut impl Read, header: &Header) -> io::Result<Vec<u8>> {
    let size = header.entry_size()?;
    if size > EXTENSION_MAX {
        return Err(malformed("extended header"));
    }
    let mut data = vec![0; size as usize];
    fill(input, &mut data)?;
    skip(input, padding(size))?;
    Ok(data)
}

fn until_nul(mut name: Vec<u8>) -> Vec<u8> {
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    name.truncate(end);
    name
}

pub(super) fn padding(len: u64) -> u64 {
    len.next_multiple_of(BLOCK as u64) - len
}

pub(super) fn skip(input: &mut impl Read, len: u64) -> io::Result<()> {
    match io::copy(&mut input.take(len), &mut io::sink())? {
        n if n == len => Ok(()),
        _ => Err(cut_short()),
    }
}

/// The map of a sparse file of old GNU archives: part of it in the header, the rest in blocks behind it.
fn gnu_map(input: &mut impl Read, header: &Header) -> io::Result<Vec<(u64, u64)>> {
    let mut map = Vec::new();
    let Some(gnu) = header.as_gnu().filter(|_| header.entry_type() == EntryType::GNUSparse) else { return Ok(map) };
    let add = |sparse: &tar::GnuSparseHeader, map: &mut Vec<_>| -> io::Result<()> {
        if !sparse.is_empty() {
            map.push((sparse.offset()?, sparse.length()?));
        }
        Ok(())
    };
    gnu.sparse.iter().try_for_each(|sparse| add(sparse, &mut map))?;
    let mut more = gnu.is_extended();
    while more {
        let mut block = tar::GnuExtSparseHeader::new();
        if map.len() > SEGMENTS_MAX || !read_block(input, block.as_mut_bytes())? {
            return Err(malformed("sparse map"));
        }
        block.sparse().iter().try_for_each(|sparse| add(sparse, &mut map))?;
        more = block.is_extended();
    }
    Ok(map)
}

impl Entry {
    /// Bytes that follow the header. Some archives tell the size of a directory or of a link's target, and none follow.
    pub(super) fn stored(&self) -> io::Result<u64> {
        use EntryType::{Block, Char, Directory, Fifo, Symlink};
        if matches!(self.header.entry_type(), Directory | Symlink | Char | Block | Fifo) {
            return Ok(0);
        }
        let size = match self.records.number("size")? {
            Some(size) => size,
            None => self.header.entry_size()?,
        };
        if i64::try_from(size).is_err() {
            return Err(malformed("size"));
        }
        Ok(size)
    }

    /// The path: of a sparse file it has a record of its own.
    pub(super) fn path(&self) -> Vec<u8> {
        let records = self.records.get("GNU.sparse.name").or(self.records.get("path")).map(<[u8]>::to_vec);
        records.or(self.long_path.clone()).unwrap_or_else(|| self.header.path_bytes().into_owned())
    }

    pub(super) fn link(&self) -> Vec<u8> {
        let record = self.records.get("linkpath").map(<[u8]>::to_vec);
        let field = || self.header.link_name_bytes().map(|name| name.into_owned()).unwrap_or_default();
        record.or(self.long_link.clone()).unwrap_or_else(field)
    }

    /// The size of the file, and the stretches of it that follow.
    pub(super) fn segments(&self, data: &mut impl Read) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let (records, stored) = (&self.records, self.stored()?);
        if let Some(gnu) = self.header.as_gnu().filter(|_| self.header.entry_type() == EntryType::GNUSparse) {
            return Ok((gnu.real_size()?, self.map.clone()));
        }
        if records.number("GNU.sparse.major")? == Some(1) {
            let size = records.number("GNU.sparse.realsize")?.ok_or_else(|| malformed("sparse file"))?;
            return Ok((size, sparse_map(data)?));
        }
        let size = match records.number("GNU.sparse.realsize")? {
            Some(size) => Some(size),
            None => records.number("GNU.sparse.size")?,
        };
        let Some(size) = size else { return Ok((stored, vec![(0, stored)])) };
        let numbers: Vec<u64> = match records.get("GNU.sparse.map") {
            Some(map) => map.split(|b| *b == b',').map(|n| decimal(n, "sparse map")).collect::<io::Result<_>>()?,
            None => {
                let of = |key: &[u8]| key == b"GNU.sparse.offset" || key == b"GNU.sparse.numbytes";
                let all = records.0.iter().filter(|(key, _)| of(key));
                all.map(|(_, value)| decimal(value, "sparse map")).collect::<io::Result<_>>()?
            }
        };
        Ok((size, numbers.as_chunks::<2>().0.iter().map(|[start, len]| (*start, *len)).collect()))
    }
}

/// The records of a PAX header.
#[derive(Default)]
pub(super) struct Records(pub(super) Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    /// Each record is its own length in decimal, a space, `name=value`, a newline; a value may hold anything.
    fn parse(mut data: &[u8]) -> io::Result<Records> {
        let bad = || malformed("extended header");
        let mut all = Vec::new();
        while let Some(blank) = data.iter().position(|b| *b == b' ') {
            let len = decimal(data.get(..blank).ok_or_else(bad)?, "extended header")?;
            let len = usize::try_from(len).ok().filter(|len| *len <= data.len()).ok_or_else(bad)?;
            let (record, rest) = data.split_at(len);
            let record = record.get(blank + 1..).and_then(|record| record.strip_suffix(b"\n")).ok_or_else(bad)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(bad)?;
            let (name, value) = record.split_at(equals);
            all.push((name.to_vec(), value.get(1..).unwrap_or_default().to_vec()));
            data = rest;
        }
        Ok(Records(all))
    }

    /// Takes in what a later header for all entries says.
    fn add(&mut self, later: Records) -> io::Result<()> {
        for (name, value) in later.0 {
            self.0.retain(|(known, _)| *known != name);
            self.0.push((name, value));
        }
        match self.0.len() {
            0..=GLOBAL_MAX => Ok(()),
            _ => Err(malformed("global header")),
        }
    }

    /// These records, and where they say nothing, what holds for all entries; an empty value there is none.
    fn over(self, global: &Records) -> Records {
        let told = |name: &[u8]| self.0.iter().any(|(known, _)| known == name);
        let all = global.0.iter().filter(|(name, value)| !value.is_empty() && !told(name));
        let mut over: Vec<_> = all.cloned().collect();
        over.extend(self.0);
        Records(over)
    }

    /// The value of the last record of that name.
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().rev().find(|(key, _)| key == name.as_bytes()).map(|(_, value)| value.as_slice())
    }

    pub(super) fn number(&self, name: &str) -> io::Result<Option<u64>> {
        self.get(name).map(|value| decimal(value, name)).transpose()
    }

    pub(super) fn time(&self, name: &str) -> io::Result<Option<(i64, u32)>> {
        self.get(name).map(|value| time(value).ok_or_else(|| malformed(name))).transpose()
    }

    /// POSIX lists, by the attributes that hold them; `None` for one that makes no sense.
    pub(super) fn lists(&self) -> Vec<(&'static str, Option<NamedAcl>)> {
        let lists = [("SCHILY.acl.access", PosixAcl::ACCESS), ("SCHILY.acl.default", PosixAcl::DEFAULT)];
        let found = lists.into_iter().filter_map(|(record, name)| Some((name, self.get(record)?)));
        found.filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name, NamedAcl::parse(text))).collect()
    }

    /// Whether there is an NFSv4 list, as tar writes it on systems that have them.
    pub(super) fn has_nfs4_list(&self) -> bool {
        self.get("SCHILY.acl.ace").is_some_and(|text| !text.is_empty())
    }

    /// The extended attributes, and the names of those whose values cannot be understood.
    pub(super) fn xattrs(&self) -> (Xattrs, Vec<Vec<u8>>) {
        // what two programs recorded twice is there once
        let mut all: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut broken = Vec::new();
        for (key, value) in &self.0 {
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                // GNU tar writes a name with `=` in it so
                all.insert(percent_decoded(name), value.clone());
            } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                let name = percent_decoded(name);
                match base64::engine::general_purpose::STANDARD_NO_PAD.decode(trim(value)) {
                    Ok(value) => drop(all.entry(name).or_insert(value)),
                    Err(_) => broken.push(name),
                }
            }
        }
        broken.retain(|name| !all.contains_key(name));
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort();
        (all, broken)
    }
}

/// The map at the head of the data of a sparse file of format 1.0: numbers, a line each, filled up to a block.
fn sparse_map(input: &mut impl Read) -> io::Result<Vec<(u64, u64)>> {
    let mut lines = Lines { input, block: [0; BLOCK], at: BLOCK };
    let count = lines.number()?;
    if count > SEGMENTS_MAX as u64 {
        return Err(malformed("sparse map"));
    }
    (0..count).map(|_| Ok((lines.number()?, lines.number()?))).collect()
}

/// Numbers out of blocks; what follows the last one in its block is filling.
struct Lines<'a, R> {
    input: &'a mut R,
    block: [u8; BLOCK],
    at: usize,
}

impl<R: Read> Lines<'_, R> {
    fn number(&mut self) -> io::Result<u64> {
        let mut digits = Vec::new();
        loop {
            if self.at == BLOCK {
                fill(&mut self.input, &mut self.block)?;
                self.at = 0;
            }
            let byte = self.block.get(self.at).copied().unwrap_or(b'\n');
            self.at += 1;
            match byte {
                b'\n' => return decimal(&digits, "sparse map"),
                _ if digits.len() > 20 => return Err(malformed("sparse map")),
                digit => digits.push(digit),
            }
        }
    }
}

fn trim(text: &[u8]) -> &[u8] {
    text.trim_ascii().strip_suffix(b"==").or(text.trim_ascii().strip_suffix(b"=")).unwrap_or(text.trim_ascii())
}

fn decimal(text: &[u8], what: &str) -> io::Result<u64> {
    std::str::from_utf8(text).ok().and_then(|t| t.trim().parse().ok()).ok_or_else(|| malformed(what))
}

/// Seconds with a fraction; before 1970 the fraction counts downwards, a time's nanoseconds count upwards.
pub(super) fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sec: i64 = if whole == "-" || whole.is_empty() { 0 } else { whole.parse().ok()? };
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nsec: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nsec > 0 {
        return Some((sec.checked_sub(1)?, 1_000_000_000 - nsec));
    }
    Some((sec, nsec))
}

pub(super) fn percent_decoded(name: &[u8]) -> Vec<u8> {
    let hex = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16));
    let mut out = Vec::with_capacity(name.len());
    let mut at = 0;
    while let Some(byte) = name.get(at) {
        match (byte, hex(name.get(at + 1)), hex(name.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

/// A POSIX list in its text form.
pub(super) struct NamedAcl {
    /// The list; who is not known here has no number that anybody has.
    pub(super) acl: PosixAcl,
    /// The names of users and groups that are not known here.
    pub(super) unknown: Vec<String>,
}

impl NamedAcl {
    /// Parses a list; a user or group without a number is looked up among those of the host.
    fn parse(text: &[u8]) -> Option<NamedAcl> {
        const NOBODY: u32 = u32::MAX;
        let text = std::str::from_utf8(text).ok()?;
        let (mut aces, mut unknown) = (Vec::new(), Vec::new());
        for line in text.split([',', '\n']) {
            let entry = line.split('#').next().unwrap_or("").trim();
            if entry.is_empty() {
                continue;
            }
            let mut fields = entry.split(':').map(str::trim);
            let (tag, who, perm, number) = (fields.next()?, fields.next()?, fields.next()?, fields.next());
            let mut id = |kind: Who| {
                let told = number.unwrap_or(who).parse::<u32>().ok().filter(|id| *id != NOBODY);
                let found = told.or_else(|| u32::try_from(id_of(kind, who)?).ok());
                found.unwrap_or_else(|| {
                    unknown.push(who.to_owned());
                    NOBODY
                })
            };
            let tag = match (tag, who) {
                ("user" | "u", "") => PosixTag::UserObj,
                ("user" | "u", _) => PosixTag::User(id(Who::User)),
                ("group" | "g", "") => PosixTag::GroupObj,
                ("group" | "g", _) => PosixTag::Group(id(Who::Group)),
                ("mask" | "m", _) => PosixTag::Mask,
                ("other" | "o", _) => PosixTag::Other,
                _ => return None,
            };
            let bit = |letter, bit| if perm.contains(letter) { bit } else { 0u16 };
            aces.push(PosixAce { tag, perm: bit('r', 4) | bit('w', 2) | bit('x', 1) });
        }
        Some(NamedAcl { acl: PosixAcl(aces), unknown })
    }
}
