//! Creation, removal and lookup of names (OpenZFS: `zfs_create`, `zfs_mkdir`, `zfs_symlink`, `zfs_link`, `zfs_remove`,
//! `zfs_rmdir`, `zfs_lookup`, `zfs_link_create`, `zfs_link_destroy`).

use std::sync::Arc;

use base::ObjectId;
use dmu::Tx;

use super::names::{NAME_MAX, entry_word, is_dots};
use super::steps::Steps;
use super::znode::{content_modified, state_changed};
use super::{Cred, NewFile, Open, Refusal, SMALL_CHANGE, SetAttr, Zfs, Znode};
use crate::acl::access::{self, Perms};
use crate::{Attrs, DirEntry, Error, FileFlags, Kind, ReadDir, Time};

/// Maximum number of links of a file: what fits in Linux's link count.
const LINKS_MAX: u64 = u32::MAX as u64;
/// Bits of an access mask (Linux: the same).
const MAY_WRITE: u8 = 2;
const MAY_APPEND: u8 = 8;

/// The change of a directory's counts when its entries change.
#[derive(Clone, Copy, Default)]
pub(super) struct Delta {
    /// Change of the number of entries.
    pub(super) entries: i64,
    /// Change of the number of subdirectories.
    pub(super) dirs: i64,
}

impl Delta {
    /// One more entry.
    pub(super) fn plus(kind: Kind) -> Delta {
        Delta { entries: 1, dirs: i64::from(kind == Kind::Directory) }
    }

    /// One entry fewer.
    pub(super) fn minus(kind: Kind) -> Delta {
        Delta { entries: -1, dirs: -i64::from(kind == Kind::Directory) }
    }

    /// The sum of both.
    pub(super) fn and(self, other: Delta) -> Delta {
        Delta { entries: self.entries + other.entries, dirs: self.dirs + other.dirs }
    }
}

impl Zfs {
    /// Looks up a name, including `.` and `..`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EACCES, ENAMETOOLONG.
    pub fn lookup(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(ObjectId, Attrs), Error> {
        let dir = self.znode(dir)?;
        if dir.kind() != Kind::Directory {
            return Err(Error::NotDirectory { name: name.to_vec() });
        }
        self.check(cred, &dir, Perms::EXECUTE)?;
        let id = match name {
            b"" => return Err(Error::not_found(name)),
            b"." => dir.id(),
            b".." => dir.with_attrs(|attrs| attrs.parent),
            name => self.must_find(&dir, name)?.object,
        };
        Ok((id, self.znode(id)?.attrs()))
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// ENOENT; EINVAL if the object is not a file.
    pub fn getattr(&self, id: ObjectId) -> Result<Attrs, Error> {
        Ok(self.znode(id)?.attrs())
    }

    /// Returns the entries of a directory from a cookie on, without `.` and `..`. Cookies stay valid while entries are added and
    /// removed.
    ///
    /// # Errors
    /// ENOTDIR, EACCES.
    pub fn read_dir(&self, cred: &Cred, dir: ObjectId, cookie: u64) -> Result<ReadDir, Error> {
        let node = self.znode(dir)?;
        node.dir()?;
        self.check(cred, &node, Perms::READ_DATA)?;
        self.fs().read_dir_from(dir, cookie)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL if it is not a symbolic link.
    pub fn readlink(&self, id: ObjectId) -> Result<Vec<u8>, Error> {
        self.fs().node(id)?.target()
    }

    /// Holds a file open, if the caller has the permissions in `mask` (4 read, 2 write, 1 execute; with 8, all writes will append).
    ///
    /// # Errors
    /// ENOENT, EACCES; EPERM to write an append-only file elsewhere than at its end.
    pub fn open_file(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Open, Error> {
        let open = self.hold(id)?;
        self.check(cred, open.node(), Perms::from_rwx(mask))?;
        let overwrites = mask & (MAY_WRITE | MAY_APPEND) == MAY_WRITE;
        if overwrites && open.node().with_attrs(|attrs| attrs.flags.has(FileFlags::APPENDONLY)) {
            return Err(Refusal::NotPermitted.of(id));
        }
        Ok(open)
    }

    /// Creates a file of any kind.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR, EACCES, EINVAL, EILSEQ, ENAMETOOLONG, EMLINK, EDQUOT, ENOSPC.
    pub fn create(
        &self,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        new: &NewFile<'_>,
    ) -> Result<(ObjectId, Attrs), Error> {
        self.change_some(SMALL_CHANGE, &[dir], |tx| {
            let dir = self.directory(dir)?;
            self.check_new_name(&dir, name)?;
            let _names = dir.names.write();
            self.check_has_room(&dir, new.kind)?;
            if self.find(&dir, name)?.is_some() {
                return Err(Refusal::Exists.of(dir.id()));
            }
            self.check(cred, &dir, to_add(new.kind))?;
            let new = &self.masked(&dir, new)?;
            let birth = self.plan_new(cred, &dir, new)?;
            self.whole(tx, |steps| {
                let node = steps.make(&birth)?;
                node.set_nascent(true);
                self.init_posix_acl(steps, cred, &dir, &node)?;
                let xattrs = self.first_xattrs(&node)?;
                self.entries_changed(steps, &dir, Delta::plus(new.kind), self.now())?;
                // last: from here on others see the file, and their changes of it are logged behind its record
                steps.add(&dir, name, entry_word(node.id(), new.kind))?;
                self.note_long_name(tx, name);
                node.set_nascent(false);
                self.log_create(tx, &dir, &node, name, new.target, birth.list());
                self.log_first_xattrs(tx, &node, &xattrs);
                if let Some((atime, mtime)) = new.times {
                    let set = SetAttr { atime: Some(atime), mtime: Some(mtime), ..SetAttr::default() };
                    self.log_setattr(tx, &node, &set, &node.attrs());
                }
                Ok((node.id(), node.attrs()))
            })
        })
    }

    /// Adds a name to a file.
    ///
    /// # Errors
    /// As [`Zfs::create`]; EPERM for a directory or another user's file, EXDEV into another project, EINVAL out of a hidden
    /// directory.
    pub fn link(&self, cred: &Cred, id: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attrs, Error> {
        self.change_some(SMALL_CHANGE, &[dir, id], |tx| {
            let dir = self.directory(dir)?;
            let node = self.znode(id)?;
            self.check_new_name(&dir, name)?;
            let _names = dir.names.write();
            self.check_has_room(&dir, Kind::File)?;
            if self.find(&dir, name)?.is_some() {
                return Err(Refusal::Exists.of(dir.id()));
            }
            self.check_link(cred, &dir, &node)?;
            self.check(cred, &dir, to_add(Kind::File))?;
            let now = self.now();
            self.whole(tx, |steps| {
                self.entries_changed(steps, &dir, Delta::plus(Kind::File), now)?;
                steps.add(&dir, name, entry_word(id, node.kind()))?;
                // last: if it were undone, a name that is removed from another directory meanwhile would not be the last one
                steps.edit(&node, |attrs| {
                    // its last name may have been removed from another directory meanwhile
                    if attrs.links == 0 {
                        return Err(Refusal::Gone.of(id));
                    }
                    attrs.links += 1;
                    attrs.parent = dir.id();
                    state_changed(attrs, now);
                    Ok(())
                })?;
                self.note_long_name(tx, name);
                self.log_link(tx, &dir, &node, name);
                Ok(node.attrs())
            })
        })
    }

    fn check_link(&self, cred: &Cred, dir: &Znode, node: &Znode) -> Result<(), Error> {
        let (of_dir, attrs) = (dir.attrs(), node.attrs());
        let fixed = attrs.flags.has(FileFlags::IMMUTABLE) || attrs.flags.has(FileFlags::APPENDONLY);
        if attrs.kind() == Kind::Directory || fixed && !self.is_replaying() || !access::owns(cred, &attrs) {
            return Err(Refusal::NotPermitted.of(node.id()));
        }
        self.check_same_project(&of_dir, &attrs, node.id())?;
        self.check_same_space(dir, attrs.flags)?;
        match attrs.links {
            0 => Err(Refusal::Gone.of(node.id())),
            links if links >= LINKS_MAX => Err(Refusal::TooManyLinks.of(node.id())),
            _ => Ok(()),
        }
    }

    /// Refuses a name for a file of another project in a directory that passes on its project.
    pub(super) fn check_same_project(&self, dir: &Attrs, file: &Attrs, id: ObjectId) -> Result<(), Error> {
        let other = dir.projid.unwrap_or(0) != file.projid.unwrap_or(0);
        if dir.flags.has(FileFlags::PROJINHERIT) && other && !self.is_replaying() {
            return Err(Refusal::CrossDevice.of(id));
        }
        Ok(())
    }

    /// Removes a name of a file that is not a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EACCES, EPERM.
    pub fn unlink(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.change_freeing(SMALL_CHANGE, &[dir], |tx| {
            let dir = self.directory(dir)?;
            if is_dots(name) {
                return Err(Error::IsDirectory { object: dir.id() });
            }
            let _names = dir.names.write();
            let entry = self.must_find(&dir, name)?;
            let node = self.znode(entry.object)?;
            if node.kind() == Kind::Directory {
                return Err(Error::IsDirectory { object: node.id() });
            }
            self.check_delete(cred, &dir, &node)?;
            self.claim_removed(tx, &node)?;
            self.remove_locked(tx, &dir, &entry, &node)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EACCES, EPERM, EINVAL.
    pub fn rmdir(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.change_freeing(SMALL_CHANGE, &[dir], |tx| {
            let dir = self.directory(dir)?;
            match name {
                b"." => return Err(Refusal::Invalid("'.' cannot be removed").of(dir.id())),
                b".." => return Err(Refusal::NotEmpty.of(dir.id())),
                _ => {}
            }
            loop {
                let entry = self.must_find(&dir, name)?;
                let node = self.znode(entry.object)?;
                if node.kind() != Kind::Directory {
                    return Err(Error::NotDirectory { name: name.to_vec() });
                }
                let both = in_order([&dir, &node]);
                let _names: Vec<_> = both.iter().map(|dir| dir.names.write()).collect();
                // it may have been renamed before the locks were taken
                if self.must_find(&dir, name)? != entry {
                    continue;
                }
                self.check_delete(cred, &dir, &node)?;
                if node.dir()?.count() != 0 {
                    return Err(Refusal::NotEmpty.of(node.id()));
                }
                self.claim_removed(tx, &node)?;
                return self.remove_locked(tx, &dir, &entry, &node);
            }
        })
    }

    fn remove_locked(&self, tx: &Tx, dir: &Arc<Znode>, entry: &DirEntry, node: &Arc<Znode>) -> Result<(), Error> {
        self.whole(tx, |steps| {
            let kind = node.kind();
            self.entries_changed(steps, dir, Delta::minus(kind), self.now())?;
            steps.remove(dir, &entry.name, entry_word(entry.object, entry.kind))?;
            self.drop_link(steps, node)?;
            let (dir, node, name) = (dir.clone(), node.clone(), entry.name.clone());
            steps.at_end(move |zfs, tx| zfs.log_remove(tx, &dir, &node, &name));
            Ok(())
        })
    }

    /// Returns a directory.
    pub(super) fn directory(&self, id: ObjectId) -> Result<Arc<Znode>, Error> {
        let dir = self.znode(id)?;
        dir.dir()?;
        Ok(dir)
    }

    /// Refuses a new entry in a directory that is removed, or full.
    pub(super) fn check_has_room(&self, dir: &Znode, kind: Kind) -> Result<(), Error> {
        if dir.is_unlinked() {
            return Err(Refusal::Gone.of(dir.id()));
        }
        if kind == Kind::Directory && dir.with_attrs(|attrs| attrs.links) >= LINKS_MAX {
            return Err(Refusal::TooManyLinks.of(dir.id()));
        }
        Ok(())
    }

    /// Updates the counts of a directory: its size is the number of entries plus 2, its link count the number of subdirectories
    /// plus 2.
    pub(super) fn entries_changed(
        &self,
        steps: &Steps<'_>,
        dir: &Arc<Znode>,
        delta: Delta,
        now: Time,
    ) -> Result<(), Error> {
        steps.edit(dir, |attrs| {
            attrs.size = attrs.size.saturating_add_signed(delta.entries);
            attrs.links = attrs.links.saturating_add_signed(delta.dirs);
            content_modified(attrs, now);
            Ok(())
        })
    }

    /// Activates the feature `longname` for the dataset with the first name that needs it.
    pub(super) fn note_long_name(&self, tx: &Tx, name: &[u8]) {
        if name.len() > NAME_MAX {
            self.0.spa.use_dataset_feature(tx, self.fs().objset().id(), "longname");
        }
    }
}

/// Returns the permissions required in a directory to add a file of a kind.
pub(super) fn to_add(kind: Kind) -> Perms {
    let add = if kind == Kind::Directory { Perms::APPEND_DATA } else { Perms::WRITE_DATA };
    add.and(Perms::EXECUTE)
}

/// Returns directories in the order in which their names are locked, each once.
pub(super) fn in_order<'a>(dirs: impl IntoIterator<Item = &'a Arc<Znode>>) -> Vec<&'a Arc<Znode>> {
    let mut dirs: Vec<&Arc<Znode>> = dirs.into_iter().collect();
    dirs.sort_unstable_by_key(|dir| dir.id());
    dirs.dedup_by_key(|dir| dir.id());
    dirs
}
