//! A file of any kind: its object and attributes.

use std::fmt;
use std::ops::Range;

use base::ObjectId;
use dmu::Object;
use dmu::sa::{Attr, SaAttrs};
use ondisk::ObjectType;

use crate::{Acl, Attrs, Error, FileSystem, Kind, Reader};

/// A file, directory, link or device (OpenZFS: `znode_t`).
pub struct Node {
    fs: FileSystem,
    object: Object,
    attrs: Attrs,
    sa: SaAttrs,
}

impl Node {
    pub(crate) fn open(fs: &FileSystem, id: ObjectId) -> Result<Node, Error> {
        let object = fs.objset().object(id)?;
        if !matches!(object.phys().bonus_type, ObjectType::SA | ObjectType::ZNODE) {
            return Err(Error::NotA { object: id, wanted: "file" });
        }
        let sa = fs.sa().attrs(&object)?;
        let attrs = Attrs::decode(&object, &sa)?;
        Ok(Node { fs: fs.clone(), object, attrs, sa })
    }

    /// Returns the file system that contains it.
    #[must_use]
    pub fn fs(&self) -> &FileSystem {
        &self.fs
    }

    /// Returns the object number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// Returns the inode number that `stat` shows. See [`FileSystem::inode`].
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.fs.inode(self.id())
    }

    /// Returns the object.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Returns the attributes.
    #[must_use]
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
    }

    /// Returns the kind of the file.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.attrs.kind()
    }

    /// Returns the size in bytes; for a directory the number of entries.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.attrs.size
    }

    /// Returns `st_blocks`: space used, including the dnode, in units of 512 bytes.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        blocks_of(&self.object)
    }

    /// Returns `st_blksize`: the size of the file's data blocks.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.object.block_size()
    }

    /// Returns a system attribute as stored, words in native order; `None` if the file does not have it.
    #[must_use]
    pub fn raw_attr(&self, attr: Attr) -> Option<&[u8]> {
        self.sa.get(attr)
    }

    pub(crate) fn sa(&self) -> &SaAttrs {
        &self.sa
    }

    /// Returns an attribute that may be absent; an error if it is missing because the spill block that would hold it is
    /// unreadable.
    pub(crate) fn sa_attr(&self, attr: Attr) -> Result<Option<&[u8]>, Error> {
        attr_of(self.id(), &self.sa, attr)
    }

    /// True if the attributes have the form of ZPL version 5 (OpenZFS: `z_is_sa`).
    #[must_use]
    pub fn is_sa(&self) -> bool {
        self.object.phys().bonus_type == ObjectType::SA
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// If this is not a symbolic link, or its target is unreadable.
    pub fn target(&self) -> Result<Vec<u8>, Error> {
        if self.kind() != Kind::Symlink {
            return Err(Error::NotA { object: self.id(), wanted: "symbolic link" });
        }
        let target = self.sa_attr(Attr::Symlink)?.ok_or(Error::Missing { object: self.id(), what: "target" })?;
        let len = usize::try_from(self.size()).unwrap_or(usize::MAX);
        Ok(target.get(..len).unwrap_or(target).to_vec())
    }

    /// Reads file data from `offset`; returns the number of bytes, less than requested only at the end of the file.
    ///
    /// # Errors
    /// If a block cannot be read, or this is not a regular file.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.expect_file()?;
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let part = buf.get_mut(..len).unwrap_or_default();
        self.object.cursor().read_before(offset, part, self.size())?;
        Ok(len)
    }

    /// Returns a sequential reader of the whole file, with read-ahead.
    ///
    /// # Errors
    /// If this is not a regular file.
    pub fn reader(&self) -> Result<Reader, Error> {
        self.reader_range(0..self.size())
    }

    /// Returns a sequential reader of a part of the file.
    ///
    /// # Errors
    /// If this is not a regular file.
    pub fn reader_range(&self, range: Range<u64>) -> Result<Reader, Error> {
        self.expect_file()?;
        Ok(Reader::new(self.object.clone(), range.start..range.end.min(self.size())))
    }

    /// Returns the next byte of data at or after `offset` (`SEEK_DATA`); `None` if only a hole follows.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        if offset >= self.size() {
            return Ok(None);
        }
        Ok(self.object.next_data(offset)?.filter(|at| *at < self.size()))
    }

    /// Returns the next byte of a hole at or after `offset` (`SEEK_HOLE`); the end of the file counts as a hole.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_hole(&self, offset: u64) -> Result<u64, Error> {
        if offset >= self.size() {
            return Ok(self.size());
        }
        Ok(self.object.next_hole(offset)?.min(self.size()))
    }

    /// Returns the ranges of data between the holes, in order.
    pub fn data_segments(&self) -> impl Iterator<Item = Result<Range<u64>, Error>> + '_ {
        let mut at = Some(0);
        std::iter::from_fn(move || {
            let start = match self.next_data(at.take()?) {
                Ok(start) => start?,
                Err(e) => return Some(Err(e)),
            };
            Some(self.next_hole(start).map(|end| {
                // a hole that does not follow the data would be a contradiction: then the rest is one range
                let end = if end > start { end } else { self.size() };
                at = Some(end);
                start..end
            }))
        })
    }

    /// Returns the NFSv4 access control list; every file has one, which may be trivial (equivalent to the mode).
    ///
    /// # Errors
    /// When it is missing, unreadable or malformed.
    pub fn acl(&self) -> Result<Acl, Error> {
        crate::acl::read(self)
    }

    fn expect_file(&self) -> Result<(), Error> {
        match self.kind() {
            Kind::File => Ok(()),
            Kind::Directory => Err(Error::IsDirectory { object: self.id() }),
            _ => Err(Error::NotA { object: self.id(), wanted: "regular file" }),
        }
    }
}

/// Returns the space that an object uses, including the dnode, in units of 512 bytes (OpenZFS: `dmu_object_size_from_db`).
pub(crate) fn blocks_of(object: &Object) -> u64 {
    let phys = object.phys();
    (phys.used_bytes().saturating_add(256) >> 9).saturating_add(phys.slots() as u64)
}

/// Returns an attribute that may be absent; an error if the spill block that would hold it is unreadable.
pub(crate) fn attr_of(id: ObjectId, sa: &SaAttrs, attr: Attr) -> Result<Option<&[u8]>, Error> {
    match (sa.get(attr), sa.spill_error()) {
        (None, Some(why)) => {
            let (errno, unanswered) = (Error::dmu_errno(why), why.is_unanswered());
            Err(Error::Spill { object: id, why: why.to_string(), errno, unanswered })
        }
        (found, _) => Ok(found),
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("id", &self.id()).field("attrs", &self.attrs).finish()
    }
}
