//! The attributes of one file.

use base::{Endian, bytes};
use ondisk::sa::SaHeader;
use ondisk::znode;

use super::{Attr, SaTable};
use crate::{Error, Object};

/// Longest target of a symbolic link that is read from a file system before ZPL 5.
const MAX_TARGET: u64 = 64 << 10;
const S_IFMT: u64 = 0o170_000;
const S_IFLNK: u64 = 0o120_000;

/// The attributes of one file, in the byte order of this machine. Returned by [`SaTable::attrs`].
#[derive(Debug)]
pub struct SaAttrs {
    /// The bonus buffer, then the spill block.
    data: Vec<u8>,
    /// The position of each attribute in `data`: start and length.
    places: [Option<(u32, u32)>; Attr::ALL.len()],
    spill_error: Option<Box<Error>>,
    spilled: bool,
}

impl SaAttrs {
    /// The value of an attribute, its integers in the byte order of this machine; `None` if the file does not have it.
    #[must_use]
    pub fn get(&self, attr: Attr) -> Option<&[u8]> {
        let (start, len) = (*self.places.get(attr as usize)?)?;
        self.data.get(start as usize..)?.get(..len as usize)
    }

    /// The first word of an attribute.
    #[must_use]
    pub fn u64(&self, attr: Attr) -> Option<u64> {
        bytes::u64(self.get(attr)?, 0, Endian::NATIVE)
    }

    /// All words of an attribute; empty if the file does not have it.
    #[must_use]
    pub fn u64s(&self, attr: Attr) -> Vec<u64> {
        bytes::u64s(self.get(attr).unwrap_or(&[]), Endian::NATIVE).collect()
    }

    /// The seconds and nanoseconds of a timestamp.
    #[must_use]
    pub fn time(&self, attr: Attr) -> Option<(i64, u64)> {
        let value = self.get(attr)?;
        Some((bytes::u64(value, 0, Endian::NATIVE)?.cast_signed(), bytes::u64(value, 8, Endian::NATIVE)?))
    }

    /// The attributes that the file has.
    pub fn present(&self) -> impl Iterator<Item = Attr> + '_ {
        Attr::ALL.iter().copied().filter(|attr| self.get(*attr).is_some())
    }

    /// The reason why the spill block could not be read or decoded: its attributes are then missing.
    #[must_use]
    pub fn spill_error(&self) -> Option<&Error> {
        self.spill_error.as_deref()
    }

    /// True if some of the attributes came from a spill block.
    #[must_use]
    pub fn has_spill(&self) -> bool {
        self.spilled
    }

    fn empty() -> SaAttrs {
        SaAttrs { data: Vec::new(), places: [None; Attr::ALL.len()], spill_error: None, spilled: false }
    }

    fn put(&mut self, attr: Attr, start: usize, len: usize) {
        if let (Some(place), Ok(start), Ok(len)) =
            (self.places.get_mut(attr as usize), start.try_into(), len.try_into())
        {
            *place = Some((start, len));
        }
    }

    pub(super) fn from_bonus(table: &SaTable, object: &Object) -> Result<SaAttrs, Error> {
        let mut attrs = SaAttrs::empty();
        attrs.add_buffer(table, object, object.bonus())?;
        Ok(attrs)
    }

    pub(super) fn add_spill(&mut self, table: &SaTable, object: &Object) {
        let added = match object.spill() {
            Ok(Some(spill)) => self.add_buffer(table, object, &spill).map(|()| self.spilled = true),
            Ok(None) => Ok(()),
            Err(err) => Err(err),
        };
        self.spill_error = added.err().map(Box::new);
    }

    /// Adds the attributes of a buffer that begins with a header. An attribute already present is kept: the bonus buffer
    /// comes first.
    fn add_buffer(&mut self, table: &SaTable, object: &Object, buf: &[u8]) -> Result<(), Error> {
        let Some(header) = SaHeader::decode(buf).map_err(|source| object.format(source))? else { return Ok(()) };
        let layout = table
            .layout(header.layout)
            .ok_or_else(|| object.corrupt("attribute layout, not registered,", header.layout.into()))?;
        let base = self.data.len();
        self.data.extend_from_slice(buf);
        for place in layout.places(&header, buf) {
            let (field, place) = place.map_err(|len| object.corrupt("length of an attribute", len as u64))?;
            let (at, len) = (base + place.start, place.len());
            if let Some(value) = self.data.get_mut(at..at + len) {
                field.swap.to_native(value, header.endian);
            }
            if let Some(attr) = field.attr.filter(|attr| self.get(*attr).is_none()) {
                self.put(attr, at, len);
            }
        }
        Ok(())
    }

    /// The attributes of a file of a ZPL version before 5.
    pub(super) fn from_znode(object: &Object) -> Result<SaAttrs, Error> {
        let mut attrs = SaAttrs::empty();
        let len = object.bonus().len();
        if len < znode::ZNODE_PHYS_SIZE {
            return Err(object.format(ondisk::Error::short("znode", znode::ZNODE_PHYS_SIZE, len)));
        }
        attrs.data = object.bonus().to_vec();
        znode::znode_to_native(&mut attrs.data, object.endian());
        let words = [
            (0, 16),
            (16, 16),
            (32, 16),
            (48, 16),
            (64, 8),
            (72, 8),
            (80, 8),
            (88, 8),
            (96, 8),
            (104, 8),
            (112, 8),
            (120, 8),
            (128, 8),
            (136, 8),
            (144, 32),
        ];
        let acl = (znode::ZNODE_ACL_OFFSET, znode::ZNODE_ACL_SIZE);
        for (attr, (start, len)) in Attr::ALL.iter().zip(words.into_iter().chain([acl])) {
            attrs.put(*attr, start, len);
        }
        let size = attrs.u64(Attr::Size).unwrap_or(0);
        let flags = attrs.u64(Attr::Flags).unwrap_or(0);
        if attrs.u64(Attr::Mode).unwrap_or(0) & S_IFMT == S_IFLNK {
            attrs.add_target(object, size)?;
        } else if flags & znode::ZNODE_BONUS_SCANSTAMP != 0 && len >= znode::ZNODE_PHYS_SIZE + znode::SCANSTAMP_SIZE {
            attrs.put(Attr::Scanstamp, znode::ZNODE_PHYS_SIZE, znode::SCANSTAMP_SIZE);
        }
        Ok(attrs)
    }

    /// Adds the target of a symbolic link: after the znode structure if there is room, else in the object's first block.
    fn add_target(&mut self, object: &Object, size: u64) -> Result<(), Error> {
        let room = self.data.len() - znode::ZNODE_PHYS_SIZE;
        let len = usize::try_from(size).ok().filter(|_| size <= MAX_TARGET);
        let len = len.ok_or_else(|| object.corrupt("length of a symbolic link", size))?;
        if len > room {
            let target = object.read_vec(0, len)?;
            self.put(Attr::Symlink, self.data.len(), len);
            self.data.extend_from_slice(&target);
        } else {
            self.put(Attr::Symlink, znode::ZNODE_PHYS_SIZE, len);
        }
        Ok(())
    }
}
