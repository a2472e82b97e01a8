//! Archives as they come in: PAX, GNU and ustar, with what each can hold beyond names and data.
//!
//! The `tar` crate decodes headers; its reader of entries takes records of text only, so the framing is here. What is read becomes an
//! [`Item`]: ids and times in full, extended attributes (`SCHILY.xattr.`, `LIBARCHIVE.xattr.`), POSIX ACLs (`SCHILY.acl.`), and the three forms in which PAX archives
//! hold sparse files. Owners are numbers; who stands in a list by name alone is looked up. A file whose list cannot be understood has a mode that
//! gives nobody more than it.

mod frame;
#[cfg(test)]
mod tests;

use std::io::{self, Read};

use tar::EntryType;
use zpl::{Kind, PosixAcl};

use crate::dest::Meta;
use crate::item::Item;
use frame::{Entry, Records, fill, malformed, next_entry, padding, skip};

/// A longer path is nonsense.
const PATH_MAX: usize = 1 << 20;

/// An entry of an archive.
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
        fill(&mut self.input, buf.get_mut(..want).unwrap_or_default())?;
        let offset = self.at;
        self.at += want as u64;
        Ok(Some((offset, want)))
    }
}

/// Takes an entry: its path, what it is, its data.
pub type Visit<'v, E> = dyn FnMut(&[u8], Entered, &mut TarData<'_>) -> Result<(), E> + 'v;

/// Reads an archive and gives each entry, in order, with its path and data, to `visit`. Paths have no leading, empty or `.` components; one
/// with `..` is given as [`Entered::Foreign`]. An empty path is the folder that the archive was made of.
///
/// # Errors
/// What `visit` gives; what the input says, or `InvalidData` if it is no archive.
pub fn read_tar<E: From<io::Error>>(mut input: impl Read, visit: &mut Visit<'_, E>) -> Result<(), E> {
    let mut global = Records::default();
    while let Some(entry) = next_entry(&mut input, &mut global)? {
        // what the visitor leaves is read past
        let stored = entry.stored()?;
        let mut data = (&mut input).take(stored);
        let (size, segments) = entry.segments(&mut data)?;
        let shown = entry.path();
        let (path, entered) = match clean(&shown) {
            Some(path) if path.len() > PATH_MAX => (path, Entered::Foreign("its path is too long")),
            Some(path) => (path, entry.entered(size)?),
            None => (shown, Entered::Foreign("the path leads out of the archive")),
        };
        visit(&path, entered, &mut TarData { input: &mut data, segments: segments.into_iter(), at: 0, end: 0 })?;
        let left = data.limit();
        skip(&mut input, left + padding(stored))?;
    }
    Ok(())
}

/// A path with its empty and `.` components gone; `None` if one is `..`, or cannot be a name.
fn clean(path: &[u8]) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    let good = parts.iter().all(|part| *part != b".." && !part.contains(&0));
    good.then(|| parts.join(&b'/'))
}

/// Gives a file its lists, or as little as it would have with those that cannot be understood.
fn add_lists(item: &mut Item, records: &Records) {
    let meta = &mut item.meta;
    for (name, list) in records.lists() {
        let allowed = match list {
            Some(list) if list.unknown.is_empty() => {
                meta.xattrs.retain(|(known, _)| known != name.as_bytes());
                meta.xattrs.push((name.as_bytes().to_vec(), list.acl.encode()));
                continue;
            }
            Some(list) => {
                item.trouble =
                    Some(format!("its access list names {}, whom this system does not know", list.unknown.join(", ")));
                if name == PosixAcl::ACCESS { list.acl.mode_without_names() } else { 0o700 }
            }
            None => {
                item.trouble = Some("its access list cannot be understood".to_owned());
                0o700
            }
        };
        meta.mode &= !0o777 | allowed;
    }
    if records.has_nfs4_list() {
        item.trouble = Some("its NFSv4 access list is not understood".to_owned());
        meta.mode &= !0o777 | 0o700;
    }
    meta.xattrs.sort();
}

impl Entry {
    fn entered(&self, size: u64) -> io::Result<Entered> {
        let (header, records) = (&self.header, &self.records);
        let kind = match header.entry_type() {
            EntryType::Link => {
                let to = clean(&self.link()).map(Entered::Link);
                return Ok(to.unwrap_or(Entered::Foreign("a link that leads out of the archive")));
            }
            // before ustar a slash at the end made a directory
            EntryType::Regular if self.path().ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Char => Kind::CharDevice,
            EntryType::Block => Kind::BlockDevice,
            EntryType::Fifo => Kind::Fifo,
            _ => return Ok(Entered::Foreign("an entry of a kind that is no file")),
        };
        let id = |name: &str, field: io::Result<u64>| match records.number(name)? {
            Some(id) => Ok::<u64, io::Error>(id),
            None => field,
        };
        // cut short they would be somebody else's, such as root's
        let (uid, gid) = (id("uid", header.uid())?, id("gid", header.gid())?);
        let (Ok(uid), Ok(gid)) = (u32::try_from(uid), u32::try_from(gid)) else {
            return Ok(Entered::Foreign("its owner has a number that no owner can have"));
        };
        let mtime = match records.time("mtime")? {
            Some(mtime) => mtime,
            None => (header.mtime()?.cast_signed(), 0),
        };
        let (xattrs, broken) = records.xattrs();
        let meta = Meta {
            uid,
            gid,
            // where there are links they have all the same
            mode: if kind == Kind::Symlink { 0o777 } else { header.mode()? & 0o7777 },
            atime: records.time("atime")?.unwrap_or(mtime),
            mtime,
            xattrs,
        };
        let mut item = Item::new(kind, meta);
        item.trouble = broken
            .first()
            .map(|name| format!("its extended attribute {} cannot be understood", String::from_utf8_lossy(name)));
        add_lists(&mut item, records);
        match kind {
            Kind::File => item.size = size,
            Kind::Symlink => item.target = self.link(),
            Kind::CharDevice | Kind::BlockDevice => {
                item.device = (header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
            }
            _ => {}
        }
        Ok(Entered::Item(Box::new(item)))
    }
}
