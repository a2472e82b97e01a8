//! Names in directories: validity and lookup (OpenZFS: `zfs_match_find`, `zfs_dirent`, `zfs_dirent_lock`).

use base::ObjectId;
use dmu::{MatchMode, ZapValue};

use super::{Refusal, Zfs, Znode};
use crate::{CaseSensitivity, DirEntry, Error, FileFlags, Kind};

/// Longest name without the property `longname`.
pub(super) const NAME_MAX: usize = 255;
/// Longest name with it (OpenZFS: `ZAP_MAXNAMELEN_NEW`, minus the NUL).
pub(super) const NAME_MAX_LONG: usize = 1023;
/// The control directory in the root directory, with the snapshots; no file can have this name there.
const CONTROL_DIR: &[u8] = b".zfs";

/// Returns the value of an entry: the object 48@0, its type 4@60 (OpenZFS: `zfs_dirent`).
pub(crate) fn entry_word(object: ObjectId, kind: Kind) -> u64 {
    object.0 & (ObjectId::END.0 - 1) | u64::from(kind.number()) << 60
}

/// True if the name is `.` or `..`, which are not stored.
pub(super) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl Zfs {
    /// Returns the entry of a name in a directory, compared as the file system compares names; it carries the name as stored.
    ///
    /// # Errors
    /// ENOTDIR, ENAMETOOLONG; when the directory cannot be read.
    pub(super) fn find(&self, dir: &Znode, name: &[u8]) -> Result<Option<DirEntry>, Error> {
        if name.len() > NAME_MAX_LONG {
            return Err(Error::NameTooLong { len: name.len() });
        }
        let zap = dir.dir()?;
        let case = self.fs().case_sensitivity();
        if self.fs().names_are_exact() {
            let Some(word) = zap.lookup_u64(name)? else { return Ok(None) };
            return DirEntry::decode(dir.id(), name.to_vec(), &ZapValue::from_u64(word), 0).map(Some);
        }
        let mode = match case {
            CaseSensitivity::Mixed => MatchMode::NormalizeMatchCase,
            _ => MatchMode::Normalize,
        };
        let found = zap.lookup_norm(name, mode)?;
        found.map(|found| DirEntry::decode(dir.id(), found.name, &found.value, 0)).transpose()
    }

    /// As [`Zfs::find`]; ENOENT if the name does not exist, ENAMETOOLONG if it cannot exist.
    pub(super) fn must_find(&self, dir: &Znode, name: &[u8]) -> Result<DirEntry, Error> {
        self.find(dir, name)?.ok_or_else(|| self.is_not_there(name))
    }

    /// Returns the error for a name that is not found.
    pub(super) fn is_not_there(&self, name: &[u8]) -> Error {
        if name.len() > self.longest_name() { Error::NameTooLong { len: name.len() } } else { Error::not_found(name) }
    }

    /// Refuses invalid names in `dir`.
    pub(super) fn check_new_name(&self, dir: &Znode, name: &[u8]) -> Result<(), Error> {
        let refused = |why: Refusal| Err(why.of(dir.id()));
        if name.is_empty() {
            return Err(Error::not_found(name));
        }
        if is_dots(name) || (name == CONTROL_DIR && dir.id() == self.fs().root()) {
            return refused(Refusal::Exists);
        }
        if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return refused(Refusal::Invalid("the name contains a slash or a NUL"));
        }
        if name.len() > self.longest_name() {
            return Err(Error::NameTooLong { len: name.len() });
        }
        if self.fs().utf8_only() && std::str::from_utf8(name).is_err() {
            return refused(Refusal::NotUtf8);
        }
        self.check_normal_form(dir, name)
    }

    /// Refuses a new name that OpenZFS could neither find nor remove because its normal form is too long. Existing ones are
    /// found.
    pub(crate) fn check_normal_form(&self, dir: &Znode, name: &[u8]) -> Result<(), Error> {
        match self.fs().is_in_reach(name) {
            true => Ok(()),
            false => Err(Refusal::Unsupported("the normal form of the name is too long").of(dir.id())),
        }
    }

    /// Returns the maximum length of names.
    pub(crate) fn longest_name(&self) -> usize {
        if self.settings().longname { NAME_MAX_LONG } else { NAME_MAX }
    }

    /// Refuses to move or link a file into a hidden directory of extended attributes, or out of one.
    pub(super) fn check_same_space(&self, dir: &Znode, file_flags: FileFlags) -> Result<(), Error> {
        let hidden = dir.with_attrs(|attrs| attrs.flags.has(FileFlags::XATTR));
        if hidden != file_flags.has(FileFlags::XATTR) {
            return Err(
                Refusal::Invalid("files cannot be moved into or out of a hidden attribute directory").of(dir.id())
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_tells_object_and_type() {
        assert_eq!(entry_word(ObjectId(0x1234), Kind::Directory), 0x4000_0000_0000_1234);
        assert_eq!(entry_word(ObjectId(u64::MAX), Kind::File), 0x8000_ffff_ffff_ffff);
        assert!(is_dots(b".") && is_dots(b"..") && !is_dots(b"...") && !is_dots(b""));
    }
}
