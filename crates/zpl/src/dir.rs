//! Directories: ZAPs from a name to an object number and a type.

use base::ObjectId;
use dmu::{Entries, MatchMode, Zap, ZapEntry, ZapValue};
use ondisk::ObjectType;

use crate::live::Pin;
use crate::{CaseSensitivity, Error, FileSystem, Kind};

/// The maximum length of a name with the feature `longname` (OpenZFS: `ZAP_MAXNAMELEN_NEW`, which counts the NUL).
const NAME_MAX: usize = 1023;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name as stored, without NUL. It need not be UTF-8.
    pub name: Vec<u8>,
    /// The object that it names.
    pub object: ObjectId,
    /// The kind of that object according to the entry (it may be [`Kind::Other`]`(0)`, unknown, in old pools).
    pub kind: Kind,
    /// The cookie from which a listing continues after this entry; see [`FileSystem::read_dir_from`].
    pub next_cookie: u64,
}

impl DirEntry {
    /// Decodes an entry. Its value holds the object 48@0 and the type 4@60; further words are ignored.
    pub(crate) fn decode(dir: ObjectId, name: Vec<u8>, value: &ZapValue, next_cookie: u64) -> Result<DirEntry, Error> {
        let word = if value.int_size == 8 { value.u64s().first().copied() } else { None };
        let word = word.ok_or(Error::corrupt(dir, "integer size of a directory entry", value.int_size.into()))?;
        Ok(DirEntry {
            name,
            object: ObjectId::of_entry(word),
            kind: Kind::from_number((word >> 60) as u8),
            next_cookie,
        })
    }
}

impl FileSystem {
    /// Looks up a name in a directory, comparing as the file system does. The entry carries the stored name. `.` and `..` are not
    /// stored: see [`FileSystem::resolve`].
    ///
    /// # Errors
    /// If `dir` is not a directory or is unreadable, or the name is too long.
    pub fn lookup(&self, dir: ObjectId, name: &[u8]) -> Result<Option<DirEntry>, Error> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong { len: name.len() });
        }
        self.lookup_in(&self.dir_zap(dir)?, dir, name)
    }

    /// Looks a name up in the ZAP of the directory `dir`.
    pub(crate) fn lookup_in(&self, zap: &Zap, dir: ObjectId, name: &[u8]) -> Result<Option<DirEntry>, Error> {
        if self.names_are_exact() {
            let found = zap.lookup(name)?;
            return found.map(|value| DirEntry::decode(dir, name.to_vec(), &value, 0)).transpose();
        }
        let mode = match self.case_sensitivity() {
            CaseSensitivity::Mixed => MatchMode::NormalizeMatchCase,
            _ => MatchMode::Normalize,
        };
        let found = zap.lookup_norm(name, mode)?;
        found.map(|m| DirEntry::decode(dir, m.name, &m.value, 0)).transpose()
    }

    /// Returns all entries of a directory in the order of `readdir`, without `.` and `..`.
    ///
    /// # Errors
    /// If `dir` is not a directory or its first block is unreadable.
    pub fn read_dir(&self, dir: ObjectId) -> Result<ReadDir, Error> {
        Ok(ReadDir::of(Entered::Zap { dir, entries: self.dir_zap(dir)?.entries()? }))
    }

    /// Returns the entries after a [`DirEntry::next_cookie`], which stays valid while entries are added and removed.
    ///
    /// # Errors
    /// As [`FileSystem::read_dir`].
    pub fn read_dir_from(&self, dir: ObjectId, cookie: u64) -> Result<ReadDir, Error> {
        Ok(ReadDir::of(Entered::Zap { dir, entries: self.dir_zap(dir)?.entries_from(cookie)? }))
    }

    pub(crate) fn dir_zap(&self, dir: ObjectId) -> Result<Zap, Error> {
        let object = self.objset().object(dir)?;
        if object.phys().object_type != ObjectType::DIRECTORY_CONTENTS {
            return Err(Error::NotDirectory { name: format!("object {dir}").into_bytes() });
        }
        Ok(Zap::open(object)?)
    }
}

/// An iterator over the entries of a directory. See [`FileSystem::read_dir`].
pub struct ReadDir {
    entered: Entered,
    /// What keeps the file system as it is; dropped behind the entries.
    _pin: Option<Pin>,
}

/// The source of the entries.
enum Entered {
    Zap {
        dir: ObjectId,
        entries: Entries,
    },
    /// A directory that has no ZAP, or whose entries are shown otherwise.
    Made(Box<dyn Iterator<Item = Result<DirEntry, Error>> + Send>),
}

impl ReadDir {
    const fn of(entered: Entered) -> ReadDir {
        ReadDir { entered, _pin: None }
    }

    /// Returns the entries that an iterator gives.
    pub(crate) fn made(entries: impl Iterator<Item = Result<DirEntry, Error>> + Send + 'static) -> ReadDir {
        ReadDir::of(Entered::Made(Box::new(entries)))
    }

    /// Has the file system kept as it is until the end of the listing.
    pub(crate) fn pinned(self, pin: Pin) -> ReadDir {
        ReadDir { _pin: Some(pin), ..self }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let (dir, entry): (_, Result<ZapEntry, _>) = match &mut self.entered {
            Entered::Zap { dir, entries } => (*dir, entries.next()?),
            Entered::Made(entries) => return entries.next(),
        };
        Some(entry.map_err(Error::from).and_then(|e| DirEntry::decode(dir, e.name, &e.value, e.next_cookie)))
    }
}
