//! Archives as they come in: PAX, GNU and ustar, with what each can hold beyond names and data.
//!
//! The `tar` crate frames the entries, and knows long names and GNU's old sparse files. Here its records become an [`Item`]: ids and times in
//! full, extended attributes (`SCHILY.xattr.`, `LIBARCHIVE.xattr.`), POSIX ACLs (`SCHILY.acl.`), and the three forms in which PAX archives
//! hold sparse files. Owners are numbers; names of users are not looked up.

use std::collections::HashMap;
use std::io::{self, Read};

use base64::Engine;
use tar::{Archive, Entry, EntryType};
use zpl::{Kind, PosixAcl};

use crate::dest::Meta;
use crate::item::Item;

/// A map of a sparse file longer than this is nonsense.
const SEGMENTS_MAX: usize = 1 << 20;
const BLOCK: usize = 512;

/// What an entry of an archive is.
#[derive(Debug)]
pub enum Entered {
    /// A file of any kind.
    Item(Box<Item>),
    /// Another name of the file that came under this path.
    Link(Vec<u8>),
    /// Something that no file system holds.
    Foreign(&'static str),
}

/// The data of a file of an archive.
pub struct TarData<'a> {
    input: &'a mut dyn Read,
    /// The stretches that are stored: start and length.
    segments: std::vec::IntoIter<(u64, u64)>,
    at: u64,
    end: u64,
}

impl TarData<'_> {
    /// Reads a piece into `buf`: where it stands in the file, and its length. `None` at the end.
    ///
    /// # Errors
    /// What the input says; `UnexpectedEof` if the archive is cut short.
    pub fn read(&mut self, buf: &mut [u8]) -> io::Result<Option<(u64, usize)>> {
        while self.at == self.end {
            let Some((start, len)) = self.segments.next() else { return Ok(None) };
            self.at = start;
            self.end = start.checked_add(len).ok_or_else(|| malformed("sparse map"))?;
        }
        let want = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buf.len());
        self.input.read_exact(buf.get_mut(..want).unwrap_or_default())?;
        let offset = self.at;
        self.at += want as u64;
        Ok(Some((offset, want)))
    }
}

/// Reads an archive and gives each entry, in order, with its path and data, to `visit`. Paths have no leading, empty or `.` components; one
/// with `..` is given as [`Entered::Foreign`]. An empty path is the folder that the archive was made of.
///
/// # Errors
/// What `visit` gives; what the input says, or `InvalidData` if it is no archive.
pub fn read_tar<E: From<io::Error>>(
    input: impl Read,
    visit: &mut dyn FnMut(&[u8], Entered, &mut TarData<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut archive = Archive::new(input);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let records = Records::read(&mut entry)?;
        let Some(path) = clean(&records.path(&entry)) else {
            let shown = entry.path_bytes().into_owned();
            let mut none = TarData { input: &mut io::empty(), segments: Vec::new().into_iter(), at: 0, end: 0 };
            visit(&shown, Entered::Foreign("the path leads out of the archive"), &mut none)?;
            continue;
        };
        let entered = match entry.header().entry_type() {
            EntryType::XGlobalHeader => continue,
            EntryType::Link => match entry.link_name_bytes().and_then(|to| clean(&to)) {
                Some(to) => Entered::Link(to),
                None => Entered::Foreign("a link that leads out of the archive"),
            },
            kind => item(kind, &entry, &records)?,
        };
        let (size, segments) = records.segments(&mut entry)?;
        let entered = match entered {
            Entered::Item(mut item) => {
                item.size = if item.kind == Kind::File { size } else { 0 };
                Entered::Item(item)
            }
            other => other,
        };
        let mut data = TarData { input: &mut entry, segments: segments.into_iter(), at: 0, end: 0 };
        visit(&path, entered, &mut data)?;
    }
    Ok(())
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("archive: malformed {what}"))
}

/// A path with its empty and `.` components gone; `None` if one is `..`, or cannot be a name.
fn clean(path: &[u8]) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    let good = parts.iter().all(|part| *part != b".." && !part.contains(&0));
    good.then(|| parts.join(&b'/'))
}

fn item<R: Read>(kind: EntryType, entry: &Entry<'_, R>, records: &Records) -> io::Result<Entered> {
    let header = entry.header();
    let kind = match kind {
        // before ustar a slash at the end made a directory
        EntryType::Regular if entry.path_bytes().ends_with(b"/") => Kind::Directory,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink,
        EntryType::Char => Kind::CharDevice,
        EntryType::Block => Kind::BlockDevice,
        EntryType::Fifo => Kind::Fifo,
        _ => return Ok(Entered::Foreign("an entry of a kind that is no file")),
    };
    let id = |name: &str, stored: io::Result<u64>| match records.number(name)? {
        Some(id) => Ok(id as u32),
        None => stored.map(|id| id as u32),
    };
    let mtime = match records.time("mtime")? {
        Some(mtime) => mtime,
        None => (header.mtime()?.cast_signed(), 0),
    };
    let meta = Meta {
        uid: id("uid", header.uid())?,
        gid: id("gid", header.gid())?,
        mode: header.mode()? & 0o7777,
        atime: records.time("atime")?.unwrap_or(mtime),
        mtime,
        xattrs: records.xattrs(),
    };
    let mut item = Item::new(kind, meta);
    match kind {
        Kind::Symlink => item.target = entry.link_name_bytes().map(|to| to.into_owned()).unwrap_or_default(),
        Kind::CharDevice | Kind::BlockDevice => {
            item.device = (header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
        }
        _ => {}
    }
    Ok(Entered::Item(Box::new(item)))
}

/// The records of a PAX header.
struct Records(Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    fn read<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Records> {
        let Some(extensions) = entry.pax_extensions()? else { return Ok(Records(Vec::new())) };
        let pair = |record: io::Result<tar::PaxExtension<'_>>| {
            record.map(|record| (record.key_bytes().to_vec(), record.value_bytes().to_vec()))
        };
        Ok(Records(extensions.map(pair).collect::<io::Result<_>>()?))
    }

    /// The value of the last record of that name.
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().rev().find(|(key, _)| key == name.as_bytes()).map(|(_, value)| value.as_slice())
    }

    fn number(&self, name: &str) -> io::Result<Option<u64>> {
        self.get(name).map(|value| decimal(value, name)).transpose()
    }

    fn time(&self, name: &str) -> io::Result<Option<(i64, u32)>> {
        self.get(name).map(|value| time(value).ok_or_else(|| malformed(name))).transpose()
    }

    /// The path: of a sparse file it has a record of its own.
    fn path<R: Read>(&self, entry: &Entry<'_, R>) -> Vec<u8> {
        self.get("GNU.sparse.name").map_or_else(|| entry.path_bytes().into_owned(), <[u8]>::to_vec)
    }

    fn xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        // what two programs recorded twice is there once
        let mut all: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for (key, value) in &self.0 {
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                all.insert(name.to_vec(), value.clone());
            } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                let Ok(value) = base64::engine::general_purpose::STANDARD_NO_PAD.decode(trim(value)) else { continue };
                all.entry(percent_decoded(name)).or_insert(value);
            } else if let Some(name) = match key.as_slice() {
                b"SCHILY.acl.access" => Some(PosixAcl::ACCESS),
                b"SCHILY.acl.default" => Some(PosixAcl::DEFAULT),
                _ => None,
            } && let Some(value) = acl_value(value)
            {
                all.insert(name.as_bytes().to_vec(), value);
            }
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort();
        all
    }

    /// The size of the file, and the stretches of it that follow.
    fn segments<R: Read>(&self, entry: &mut Entry<'_, R>) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let stored = entry.size();
        if self.number("GNU.sparse.major")? == Some(1) {
            let size = self.number("GNU.sparse.realsize")?.ok_or_else(|| malformed("sparse file"))?;
            return Ok((size, sparse_map(entry)?));
        }
        let size = match self.number("GNU.sparse.realsize")? {
            Some(size) => Some(size),
            None => self.number("GNU.sparse.size")?,
        };
        let Some(size) = size else { return Ok((stored, vec![(0, stored)])) };
        let numbers: Vec<u64> = match self.get("GNU.sparse.map") {
            Some(map) => map.split(|b| *b == b',').map(|n| decimal(n, "sparse map")).collect::<io::Result<_>>()?,
            None => {
                let of = |key: &[u8]| key == b"GNU.sparse.offset" || key == b"GNU.sparse.numbytes";
                let all = self.0.iter().filter(|(key, _)| of(key));
                all.map(|(_, value)| decimal(value, "sparse map")).collect::<io::Result<_>>()?
            }
        };
        Ok((size, numbers.as_chunks::<2>().0.iter().map(|[start, len]| (*start, *len)).collect()))
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
                self.input.read_exact(&mut self.block)?;
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
fn time(text: &[u8]) -> Option<(i64, u32)> {
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

fn percent_decoded(name: &[u8]) -> Vec<u8> {
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

/// A POSIX ACL in its text form as the value of its attribute. `None` for one that names users whose numbers it does not tell.
fn acl_value(text: &[u8]) -> Option<Vec<u8>> {
    const NOBODY: u32 = u32::MAX;
    let text = std::str::from_utf8(text).ok()?;
    let mut out = 2u32.to_le_bytes().to_vec();
    for line in text.split([',', '\n']) {
        let entry = line.split('#').next().unwrap_or("").trim();
        if entry.is_empty() {
            continue;
        }
        let mut fields = entry.split(':').map(str::trim);
        let (tag, who, perm, number) = (fields.next()?, fields.next()?, fields.next()?, fields.next());
        let id = || number.unwrap_or(who).parse::<u32>().ok();
        let (tag, id) = match (tag, who) {
            ("user" | "u", "") => (0x01u16, NOBODY),
            ("user" | "u", _) => (0x02, id()?),
            ("group" | "g", "") => (0x04, NOBODY),
            ("group" | "g", _) => (0x08, id()?),
            ("mask" | "m", _) => (0x10, NOBODY),
            ("other" | "o", _) => (0x20, NOBODY),
            _ => return None,
        };
        let bit = |letter, bit| if perm.contains(letter) { bit } else { 0u16 };
        let perm = bit('r', 4) | bit('w', 2) | bit('x', 1);
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    Some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::pax;

    type Read = Vec<(String, Entered, Vec<(u64, Vec<u8>)>)>;

    fn read(bytes: &[u8]) -> Read {
        let mut all = Vec::new();
        read_tar::<io::Error>(bytes, &mut |path, entered, data| {
            let mut pieces = Vec::new();
            let mut buf = [0; 1000];
            while let Some((at, len)) = data.read(&mut buf)? {
                pieces.push((at, buf[..len].to_vec()));
            }
            all.push((String::from_utf8(path.to_vec()).unwrap(), entered, pieces));
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn what_the_archiver_writes_is_read() {
        let acl = "user::rw-,user:1000:r--,group::r--,mask::r--,other::---";
        let entry = pax::Entry {
            path: vec![b'n'; 200],
            mode: 0o4755,
            uid: 3_000_000_000,
            gid: 7,
            mtime: (-2, 250_000_000),
            atime: Some((5, 6)),
            xattrs: vec![(b"user.a=b".to_vec(), vec![0, 255, b'\n'])],
            acls: (Some(acl.into()), None),
            ..pax::Entry::default()
        };
        let mut archive = pax::Archive::new(Vec::new());
        let total = archive.begin_file(&entry, 5, &[(0, 5)]).unwrap();
        archive.write(b"hello").unwrap();
        archive.finish_file(total).unwrap();
        let sparse = pax::Entry { path: b"./s".to_vec(), ..pax::Entry::default() };
        let total = archive.begin_file(&sparse, 1 << 30, &[(4096, 3), (1 << 20, 2)]).unwrap();
        archive.write(b"abcde").unwrap();
        archive.finish_file(total).unwrap();
        let link = pax::Entry { path: b"l".to_vec(), link: b"./s".to_vec(), ..pax::Entry::default() };
        archive.add(EntryType::Link, &link).unwrap();
        let device = pax::Entry { path: b"d".to_vec(), device: (8, 1), ..pax::Entry::default() };
        archive.add(EntryType::Block, &device).unwrap();
        let all = read(&archive.finish().unwrap());

        let (path, Entered::Item(item), data) = &all[0] else { panic!("{all:?}") };
        assert_eq!((path.len(), item.kind, item.size), (200, Kind::File, 5));
        let meta = &item.meta;
        assert_eq!(
            (meta.uid, meta.gid, meta.mode, meta.mtime, meta.atime),
            (3_000_000_000, 7, 0o4755, (-2, 250_000_000), (5, 6))
        );
        let decoded = PosixAcl::decode(&meta.xattrs[0].1).unwrap().to_string();
        assert_eq!(decoded.trim_end().replace('\n', ","), acl);
        assert_eq!(meta.xattrs[1], (b"user.a=b".to_vec(), vec![0, 255, b'\n']));
        assert_eq!(data, &[(0, b"hello".to_vec())]);

        let (path, Entered::Item(item), data) = &all[1] else { panic!("{all:?}") };
        assert_eq!((path.as_str(), item.size), ("s", 1 << 30));
        assert_eq!(data, &[(4096, b"abc".to_vec()), (1 << 20, b"de".to_vec())]);
        assert!(matches!(&all[2].1, Entered::Link(to) if to == b"s"));
        assert!(matches!(&all[3].1, Entered::Item(item) if item.kind == Kind::BlockDevice && item.device == (8, 1)));
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        assert_eq!(clean(b"/a//./b/").unwrap(), b"a/b");
        assert_eq!(clean(b"./").unwrap(), b"");
        assert_eq!(clean(b"a/../../b"), None);
        let mut archive = pax::Archive::new(Vec::new());
        archive.add(EntryType::Fifo, &pax::Entry { path: b"../x".to_vec(), ..pax::Entry::default() }).unwrap();
        assert!(matches!(read(&archive.finish().unwrap())[0].1, Entered::Foreign(_)));
    }

    #[test]
    fn times_and_records_of_others() {
        assert_eq!(time(b"-1.750000000"), Some((-2, 250_000_000)));
        assert_eq!((time(b"5"), time(b"5.5"), time(b"-2")), (Some((5, 0)), Some((5, 500_000_000)), Some((-2, 0))));
        assert_eq!((time(b"x"), time(b"1.-5")), (None, None));
        assert_eq!(percent_decoded(b"user.a%3Db%"), b"user.a=b%");
        let records = Records(vec![(b"LIBARCHIVE.xattr.user.x".to_vec(), b"YWI=".to_vec())]);
        assert_eq!(records.xattrs(), [(b"user.x".to_vec(), b"ab".to_vec())]);
        assert_eq!(acl_value(b"user:bob:r--"), None);
        assert!(acl_value(b"u:bob:r--:1000").is_some());
    }

    #[test]
    fn an_archive_cut_short_is_an_error() {
        let mut archive = pax::Archive::new(Vec::new());
        let entry = pax::Entry { path: b"f".to_vec(), ..pax::Entry::default() };
        let total = archive.begin_file(&entry, 3000, &[(0, 3000)]).unwrap();
        archive.write(&[1; 3000]).unwrap();
        archive.finish_file(total).unwrap();
        let bytes = archive.finish().unwrap();
        let drain = |bytes: &[u8]| {
            read_tar::<io::Error>(bytes, &mut |_, _, data| {
                let mut buf = [0; 512];
                while data.read(&mut buf)?.is_some() {}
                Ok(())
            })
        };
        assert!(drain(&bytes).is_ok());
        assert!(drain(&bytes[..bytes.len() - 2048]).is_err());
        assert!(drain(&[b'x'; 2048]).is_err());
    }
}
