//! The files of a file system by path, as `std::fs` has those of the host.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::{Errno, ObjectId};
use zpl::live::{Cred, NewFile, Refusal, RenameMode, SetAttr, Vfs, Zfs};
use zpl::{Attrs, DirEntry, FileSystem, Follow, Kind};

use crate::Error;
use crate::copy_in::split;
use crate::host::Rest;
use crate::kept::Kept;
/// Bytes that are written at a time.
const PIECE: usize = 4 << 20;
/// As `access(2)` has it.
const MAY_READ: u8 = 4;
const MAY_SEARCH: u8 = 1;
/// Links that are followed one after another (Linux: `MAXSYMLINKS`).
const LINKS_MAX: u32 = 40;

/// A file system that is open for writing. Paths are relative to its root; symbolic links in a path are followed, except the last name's.
/// Changes are seen at once, and are on disk a few seconds later, or after [`Files::fsync`], [`Files::sync`] or [`crate::Pool::sync`], or when
/// the last handle of the [`Pool`](crate::Pool) goes, of which this is one. Cheap to clone.
///
/// ```
/// # fn main() -> Result<(), zuse::Error> {
/// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
/// let files = pool.files("tank")?;
/// files.create_dir_all(b"a/b", 0o755)?;
/// files.write(b"a/b/c", b"data")?;
/// files.rename(b"a/b/c", b"a/d")?;
/// files.symlink(b"d", b"a/link")?;
/// assert_eq!(files.read(b"a/d")?, b"data");
/// files.remove_all(b"a")?;
/// assert!(files.read_dir(b"")?.is_empty());
/// # pool.export()
/// # }
/// ```
#[derive(Clone)]
pub struct Files {
    zfs: Zfs,
    cred: Cred,
    /// The user and group that new files belong to, if not those of `cred`.
    owner: Option<(u32, u32)>,
    umask: Option<u32>,
    /// The pool, if it is one of the library's.
    _kept: Option<Arc<Kept>>,
}

impl Files {
    /// The files of an open file system; whoever calls may do all, and new files are root's. That the pool is synced in the end is for the caller to see to.
    #[must_use]
    pub fn new(zfs: Zfs) -> Files {
        Files { zfs, cred: Cred::ROOT, owner: None, umask: None, _kept: None }
    }

    pub(crate) fn of_pool(zfs: Zfs, kept: Arc<Kept>) -> Files {
        Files { _kept: Some(kept), ..Files::new(zfs) }
    }

    /// The same files for another user: he reads, lists and changes what modes and lists of the file system give him, and finds what is in
    /// directories that he may search. What [`Files::zfs`] and [`Files::fs`] give asks nobody.
    ///
    /// ```
    /// # fn main() -> Result<(), zuse::Error> {
    /// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
    /// use zuse::zpl::live::Cred;
    /// let files = pool.files("tank")?;
    /// files.create_dir(b"private", 0o700)?;
    /// files.write(b"private/file", b"secret")?;
    /// let other = files.as_user(Cred::user(1000, 1000, []));
    /// assert_eq!(other.read(b"private/file").map_err(|e| e.errno()), Err(zuse::Errno::EACCES));
    /// # pool.export()
    /// # }
    /// ```
    #[must_use]
    pub fn as_user(&self, cred: Cred) -> Files {
        Files { cred, owner: None, ..self.clone() }
    }

    /// The same files, with nothing else allowed or forbidden: what is made from now on belongs to a user and group, or to the group of a directory
    /// with the set-group-id bit.
    ///
    /// ```
    /// # fn main() -> Result<(), zuse::Error> {
    /// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
    /// let files = pool.files("tank")?.owned_by(1000, 100);
    /// files.write(b"file", b"data")?;
    /// let (_, attrs) = files.stat(b"file")?;
    /// assert_eq!((attrs.uid(), attrs.gid()), (1000, 100));
    /// # pool.export()
    /// # }
    /// ```
    #[must_use]
    pub fn owned_by(&self, uid: u32, gid: u32) -> Files {
        Files { owner: Some((uid, gid)), ..self.clone() }
    }

    /// The same files, for a caller with a umask: what is made from now on lacks these permissions, unless its directory has a default ACL. A new file of
    /// [`Files::write`] begins with mode 666 then, not 644.
    ///
    /// ```
    /// # fn main() -> Result<(), zuse::Error> {
    /// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
    /// let files = pool.files("tank")?.with_umask(0o027);
    /// files.write(b"file", b"data")?;
    /// let (_, attrs) = files.stat(b"file")?;
    /// assert_eq!(attrs.mode & 0o777, 0o640);
    /// # pool.export()
    /// # }
    /// ```
    #[must_use]
    pub fn with_umask(&self, umask: u32) -> Files {
        Files { umask: Some(umask), ..self.clone() }
    }

    /// The layer below: operations on object numbers.
    #[must_use]
    pub fn zfs(&self) -> &Zfs {
        &self.zfs
    }

    /// The reading half, unsynced changes included.
    #[must_use]
    pub fn fs(&self) -> &FileSystem {
        self.zfs.fs()
    }

    /// Object number and attributes of a file; a link is not followed.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EACCES.
    pub fn stat(&self, path: &[u8]) -> Result<(ObjectId, Attrs), Error> {
        self.stat_with(path, Follow::Parents)
    }

    fn stat_with(&self, path: &[u8], follow: Follow) -> Result<(ObjectId, Attrs), Error> {
        let node = self.zfs.resolve_as(&self.cred, self.fs().root(), path, follow).map_err(Error::at(path))?;
        Ok((node.id(), self.zfs.getattr(node.id()).map_err(Error::at(path))?))
    }

    /// Returns whether there is a file of that path.
    #[must_use]
    pub fn exists(&self, path: &[u8]) -> bool {
        self.stat(path).is_ok()
    }

    /// The whole contents of a file; links are followed.
    ///
    /// # Errors
    /// As [`Files::stat`]; EACCES, EISDIR; if memory does not suffice.
    pub fn read(&self, path: &[u8]) -> Result<Vec<u8>, Error> {
        let (id, _) = self.stat_with(path, Follow::Always)?;
        let open = self.zfs.open_file(&self.cred, id, MAY_READ).map_err(Error::at(path))?;
        let size = open.node().with_attrs(|attrs| attrs.size);
        let mut data = Vec::new();
        // a file may be larger than memory
        let len = usize::try_from(size).ok().filter(|len| data.try_reserve_exact(*len).is_ok());
        data.resize(len.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?, 0);
        let n = self.zfs.read(id, 0, &mut data).map_err(Error::at(path))?;
        data.truncate(n);
        Ok(data)
    }

    /// Makes `data` the contents of a file, which is made if it is not there.
    ///
    /// # Errors
    /// ENOENT if its directory is not there; EISDIR, ENOSPC, EDQUOT.
    pub fn write(&self, path: &[u8], data: &[u8]) -> Result<(), Error> {
        self.write_from(path, data).map(drop)
    }

    /// Makes what `input` gives the contents of a file; gives how many bytes that was.
    ///
    /// # Errors
    /// As [`Files::write`]; what the input says.
    pub fn write_from(&self, path: &[u8], mut input: impl Read) -> Result<u64, Error> {
        let id = self.emptied(path)?;
        let mut buf = Vec::new();
        let mut at = 0;
        loop {
            buf.clear();
            let n = input.by_ref().take(PIECE as u64).read_to_end(&mut buf)?;
            if n == 0 {
                return Ok(at);
            }
            self.zfs.write(&self.cred, id, at, &buf).map_err(Error::at(path))?;
            at += n as u64;
        }
    }

    /// As [`Files::write_from`], of an open file of the host from its position on: its holes are holes of the file then, and are not read.
    ///
    /// # Errors
    /// As [`Files::write_from`].
    pub fn write_file(&self, path: &[u8], input: &File) -> Result<u64, Error> {
        let Some(rest) = Rest::of(input) else { return self.write_from(path, input) };
        let id = self.emptied(path)?;
        let mut buf = vec![0; PIECE];
        let mut end = rest.len;
        'all: for (mut at, until) in rest.data {
            while at < until {
                let want = usize::try_from(until - at).unwrap_or(PIECE).min(PIECE);
                let n = match input.read_at(buf.get_mut(..want).unwrap_or_default(), rest.start + at) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                if n == 0 {
                    // it has become shorter
                    end = at;
                    break 'all;
                }
                self.zfs.write(&self.cred, id, at, buf.get(..n).unwrap_or_default()).map_err(Error::at(path))?;
                at += n as u64;
            }
        }
        let size = SetAttr { size: Some(end), ..SetAttr::default() };
        self.zfs.setattr(&self.cred, id, &size).map_err(Error::at(path))?;
        Ok(end)
    }

    /// Waits until a file's contents and attributes, and all names of the file system, are on stable storage; links are followed. They go to the
    /// intent log, which takes much less than a sync of the pool.
    ///
    /// # Errors
    /// As [`Files::stat`]; when the pool is suspended.
    pub fn fsync(&self, path: &[u8]) -> Result<(), Error> {
        let (id, _) = self.stat_with(path, Follow::Always)?;
        self.zfs.fsync(id).map_err(Error::at(path))
    }

    /// As [`Files::fsync`], for all files of the file system.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn sync(&self) -> Result<(), Error> {
        self.zfs.sync().map_err(Error::at(b""))
    }

    /// A file without contents: a new one, or one that is cut.
    fn emptied(&self, path: &[u8]) -> Result<ObjectId, Error> {
        match self.make(path, &NewFile::new(Kind::File, if self.umask.is_some() { 0o666 } else { 0o644 })) {
            Err(e) if e.errno() == Errno::EEXIST => {
                let (id, _) = self.stat_with(path, Follow::Always)?;
                let cut = SetAttr { size: Some(0), ..SetAttr::default() };
                self.zfs.setattr(&self.cred, id, &cut).map_err(Error::at(path))?;
                Ok(id)
            }
            made => made,
        }
    }

    /// Makes a file of any kind; gives its object number.
    ///
    /// # Errors
    /// EEXIST; ENOENT if its directory is not there; EISDIR or ENOTDIR if the path ends in a slash and what is made is no directory.
    pub fn make(&self, path: &[u8], new: &NewFile<'_>) -> Result<ObjectId, Error> {
        let (dir, name) = self.place(path)?;
        if new.kind != Kind::Directory {
            self.check_slash(path, dir, &name)?;
        }
        let new = NewFile { owner: new.owner.or(self.owner), umask: new.umask | self.umask.unwrap_or(0), ..*new };
        let made = self.zfs.create(&self.cred, dir, &name, &new);
        Ok(made.map_err(Error::at(path))?.0)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Files::make`].
    pub fn create_dir(&self, path: &[u8], mode: u32) -> Result<ObjectId, Error> {
        let dots = matches!(split(path.strip_suffix(b"/").unwrap_or(path)).1, b"" | b"." | b"..");
        if dots {
            let id = self.directory(path)?;
            return Err(Error::at(path)(Refusal::Exists.of(id)));
        }
        self.make(path, &NewFile::new(Kind::Directory, mode))
    }

    /// Makes a directory and those above it that are not there.
    ///
    /// # Errors
    /// ENOTDIR if something else is in the way.
    pub fn create_dir_all(&self, path: &[u8], mode: u32) -> Result<ObjectId, Error> {
        let ends = (0..path.len()).filter(|at| path.get(*at) == Some(&b'/')).chain([path.len()]);
        let mut id = self.fs().root();
        for part in ends.filter_map(|end| path.get(..end)).filter(|part| !part.is_empty() && !part.ends_with(b"/")) {
            id = match self.create_dir(part, mode) {
                // `.` and `..` too
                Err(e) if e.errno() == Errno::EEXIST => self.directory(part)?,
                made => made?,
            };
        }
        Ok(id)
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    ///
    /// # Errors
    /// As [`Files::make`].
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<ObjectId, Error> {
        self.make(path, &NewFile::symlink(target))
    }

    /// Gives the file at `path` the name `new` as well.
    ///
    /// # Errors
    /// As [`Files::make`]; EPERM for a directory.
    pub fn hard_link(&self, path: &[u8], new: &[u8]) -> Result<(), Error> {
        let (id, _) = self.stat(path)?;
        let (dir, name) = self.place(new)?;
        self.check_slash(new, dir, &name)?;
        self.zfs.link(&self.cred, id, dir, &name).map_err(Error::at(new))?;
        Ok(())
    }

    /// Renames a file; what has the new name goes.
    ///
    /// # Errors
    /// ENOENT; ENOTEMPTY, EISDIR, ENOTDIR by what is in the way; ENOTDIR if a path ends in a slash and what is renamed is no directory;
    /// EINVAL for a directory into itself.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Error> {
        let (dir, name) = self.place(from)?;
        let (to_dir, to_name) = self.place(to)?;
        if let Some(path) = [from, to].into_iter().find(|path| path.ends_with(b"/")) {
            let (_, attrs) = self.zfs.lookup(&self.cred, dir, &name).map_err(Error::at(from))?;
            if attrs.kind() != Kind::Directory {
                return Err(Error::at(path)(zpl::Error::NotDirectory { name: path.to_vec() }));
            }
        }
        let renamed = Vfs::rename(&self.zfs, &self.cred, dir, &name, to_dir, &to_name, RenameMode::Replace);
        renamed.map_err(Error::at(from))
    }

    /// Removes a file that is no directory. A link is removed, and not what it leads to.
    ///
    /// # Errors
    /// ENOENT, EISDIR; ENOTDIR if the path ends in a slash.
    pub fn remove_file(&self, path: &[u8]) -> Result<(), Error> {
        let (dir, name) = self.place(path)?;
        if path.ends_with(b"/") {
            let (id, attrs) = self.zfs.lookup(&self.cred, dir, &name).map_err(Error::at(path))?;
            return Err(Error::at(path)(match attrs.kind() {
                Kind::Directory => zpl::Error::IsDirectory { object: id },
                _ => zpl::Error::NotDirectory { name: path.to_vec() },
            }));
        }
        self.zfs.unlink(&self.cred, dir, &name).map_err(Error::at(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY.
    pub fn remove_dir(&self, path: &[u8]) -> Result<(), Error> {
        let (dir, name) = self.place(path)?;
        self.zfs.rmdir(&self.cred, dir, &name).map_err(Error::at(path))
    }

    /// Removes a file, or a directory with all in it; gives how many files that were. A link is removed, and not what it leads to.
    ///
    /// # Errors
    /// ENOENT; ENOTDIR if the path of something else than a directory ends in a slash; ELOOP where a damaged directory holds one that it is in.
    pub fn remove_all(&self, path: &[u8]) -> Result<u64, Error> {
        let (dir, name) = self.place(path)?;
        // what has the name: a path with a slash behind a link would lead past it
        let (id, attrs) = self.zfs.lookup(&self.cred, dir, &name).map_err(Error::at(path))?;
        if attrs.kind() != Kind::Directory {
            self.remove_file(path)?;
            return Ok(1);
        }
        let mut removed = 1;
        // a directory is removed when it comes up a second time: then it is empty
        let mut stack = vec![(dir, name, id, false)];
        let mut known = HashSet::from([id]);
        let mut above = dir;
        while known.insert(above) {
            above = self.zfs.getattr(above).map_err(Error::at(path))?.parent;
        }
        while let Some((dir, name, id, empty)) = stack.pop() {
            if empty {
                self.zfs.rmdir(&self.cred, dir, &name).map_err(Error::at(path))?;
                known.remove(&id);
                continue;
            }
            stack.push((dir, name, id, true));
            let entries = self.zfs.read_dir(&self.cred, id, 0).map_err(Error::at(path))?;
            let entries = entries.collect::<Result<Vec<DirEntry>, _>>().map_err(Error::at(path))?;
            removed += entries.len() as u64;
            let (dirs, files): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| e.kind == Kind::Directory);
            // nothing is taken out of a tree that has no end
            if let Some(again) = dirs.iter().find(|dir| !known.insert(dir.object)) {
                return Err(Error::at(path)(zpl::Error::Loop { name: again.name.clone() }));
            }
            let unlink = |zfs: &Zfs| files.iter().try_for_each(|file| zfs.unlink(&self.cred, id, &file.name));
            self.zfs.batch(unlink).map_err(Error::at(path))?;
            stack.extend(dirs.into_iter().map(|dir| (id, dir.name, dir.object, false)));
        }
        Ok(removed)
    }

    /// The entries of a directory, sorted by name.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn read_dir(&self, path: &[u8]) -> Result<Vec<DirEntry>, Error> {
        let dir = self.directory(path)?;
        let entries = self.zfs.read_dir(&self.cred, dir, 0).map_err(Error::at(path))?;
        let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(Error::at(path))?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// The object number of a directory; links are followed.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn directory(&self, path: &[u8]) -> Result<ObjectId, Error> {
        let (id, attrs) = self.stat_with(path, Follow::Always)?;
        match attrs.kind() {
            Kind::Directory => Ok(id),
            _ => Err(Error::at(path)(zpl::Error::NotDirectory { name: path.to_vec() })),
        }
    }

    /// Follows the links that begin with `name` in the directory `dir`, including the last one: returns a directory and a name, which may not
    /// exist.
    ///
    /// # Errors
    /// ELOOP; ENOENT, ENOTDIR on the way.
    pub fn end_of_links(&self, dir: ObjectId, name: &[u8]) -> Result<(ObjectId, Vec<u8>), Error> {
        let (mut dir, mut name) = (dir, name.to_vec());
        for _ in 0..LINKS_MAX {
            let at = |e| Error::at(&name)(e);
            self.zfs.access(&self.cred, dir, MAY_SEARCH).map_err(at)?;
            let Some(entry) = self.fs().lookup(dir, &name).map_err(at)? else { return Ok((dir, name)) };
            let node = self.fs().node(entry.object).map_err(Error::at(&name))?;
            if node.kind() != Kind::Symlink {
                return Ok((dir, name));
            }
            let target = node.target().map_err(Error::at(&name))?;
            let (parent, last) = split(target.strip_suffix(b"/").unwrap_or(&target));
            let start = if target.starts_with(b"/") { self.fs().root() } else { dir };
            let parent = self.zfs.resolve_as(&self.cred, start, parent, Follow::Always).map_err(Error::at(&name))?;
            if last.is_empty() || last == b"." || last == b".." {
                return Err(Error::at(&name)(zpl::Error::IsDirectory { object: parent.id() }));
            }
            (dir, name) = (parent.id(), last.to_vec());
        }
        Err(Error::at(&name)(zpl::Error::Loop { name: name.clone() }))
    }

    /// Checks that only a directory gets a name that ends in a slash.
    fn check_slash(&self, path: &[u8], dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        if !path.ends_with(b"/") {
            return Ok(());
        }
        let there = self.zfs.lookup(&self.cred, dir, name).ok();
        Err(Error::at(path)(match there {
            Some((_, attrs)) if attrs.kind() != Kind::Directory => zpl::Error::NotDirectory { name: path.to_vec() },
            _ => zpl::Error::IsDirectory { object: dir },
        }))
    }

    /// The directory in which a path's last name is, and that name.
    fn place(&self, path: &[u8]) -> Result<(ObjectId, Vec<u8>), Error> {
        let trimmed = path.strip_suffix(b"/").unwrap_or(path);
        let (parent, name) = split(trimmed);
        if name.is_empty() || name == b"." || name == b".." {
            let refusal = Refusal::Invalid("the path does not end in a name");
            return Err(Error::at(path)(refusal.of(self.fs().root())));
        }
        let dir = self.directory(parent)?;
        // who may not search it is not told what is in it
        self.zfs.access(&self.cred, dir, MAY_SEARCH).map_err(Error::at(path))?;
        Ok((dir, name.to_vec()))
    }
}
