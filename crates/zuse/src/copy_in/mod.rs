//! Copies files into a file system of a pool, with all their attributes: from the host, from an archive, from another file system.
//!
//! # What it is
//! A [`CopyIn`] takes files one after another, by paths relative to one directory, and creates them there: type, owner, mode, times, hard links,
//! extended attributes, ACLs, devices, holes. An existing file of the same path is replaced as soon as the new file is whole: until then the new
//! one has a temporary name (`aside`), and if it does not become whole, the existing file stays. An existing directory is kept, and gets the
//! attributes.
//!
//! # Speed
//! Small files wait in a queue, and a queue is written at once: all of it shares places in a txg, and none is held while the copy waits
//! for its source. Large files go past the queue, in pieces of megabytes.
//!
//! # Trouble
//! A file that cannot be put goes to the [`Report`], and the work goes on. A full or suspended pool ends it. The attributes of a directory come
//! last, when all is in it. A crash may leave a file under its other name, and nothing else that is not as it was.
//!
//! # Memory
//! Does not grow with the depth of a tree: of directories it is known which object they are and what they get, and of a few where they are.

mod replace;
mod sources;

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{Errno, ObjectId};
use zpl::live::{Cred, NewFile, SetAttr, XattrMode, Zfs};
use zpl::{Kind, PosixAcl, Time};

use crate::Error;
use crate::dest::{Meta, check_name};
use crate::item::{Item, LinkId, stored_device};
use crate::operands::Origins;
use crate::report::Report;
use replace::Replacement;

/// A queue with so many files, or so many bytes, is written.
const QUEUE_FILES: usize = 1024;
const QUEUE_BYTES: usize = 8 << 20;
/// Bytes of paths of directories that are remembered: all of them in usual trees, few in those that are very deep.
const PATHS_BYTES: usize = 4 << 20;
/// The message when a file does not replace an existing one.
const STAYS: &str = "what has this name stays";
/// The same for a hard link.
const LINK_STAYS: &str = "the file, copied under another name, is not whole; what has this name stays";
/// Owner, group and others may look into a directory that nobody described.
const DIRECTORY_MODE: u32 = 0o755;

/// The result of an import of files.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Imported {
    /// Files of all kinds that were made and are whole, links included.
    pub files: u64,
    /// Bytes of their data, written or shared with the source; holes not counted.
    pub bytes: u64,
    /// Files that are not there, or not whole.
    pub failed: u64,
}

/// An entry of the queue.
enum Waiting {
    File(Box<Item>, Vec<u8>),
    Link(Vec<u8>),
    Leave,
}

/// Puts files below a directory of a file system.
///
/// ```
/// # fn main() -> Result<(), zuse::Error> {
/// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
/// use zuse::dest::Meta;
/// use zuse::zpl::Kind;
/// use zuse::{CopyIn, Item, Silent};
///
/// let files = pool.files("tank")?;
/// let mut report = Silent;
/// let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut report);
/// let meta = Meta { mode: 0o640, uid: 1000, mtime: (1, 5), ..Meta::default() };
/// copy_in.put(b"dir/file", Item { size: 4, ..Item::new(Kind::File, meta) }, b"data".to_vec())?;
/// assert_eq!(copy_in.finish()?.failed, 0);
/// assert_eq!(files.read(b"dir/file")?, b"data");
/// assert_eq!(files.stat(b"dir/file")?.1.uid(), 1000);
/// # drop(files);
/// # pool.export()
/// # }
/// ```
pub struct CopyIn<'a> {
    zfs: Zfs,
    root: ObjectId,
    cred: Cred,
    /// The user and group that directories belong to which nobody described.
    owner: (u32, u32),
    report: &'a mut dyn Report,
    /// Directories that were met last, by path.
    dirs: Paths,
    /// The attributes that directories get when they are complete.
    unfinished: BTreeMap<ObjectId, Unfinished>,
    /// The sources of files, and the number of the present one: files of different origins are never hard links of each other.
    origins: Origins,
    origin: u32,
    /// The objects of files with several names.
    links: HashMap<(u32, LinkId), ObjectId>,
    linked: HashMap<ObjectId, (u32, LinkId)>,
    /// Files that are there and not whole, by whatever name.
    broken: HashSet<ObjectId>,
    /// A directory takes the place of another file.
    displaces: bool,
    /// A directory that could not be made: what is in it is passed over.
    refused: Option<Vec<u8>>,
    /// The file system, in the same pool, with whose files blocks are shared.
    shared: Option<Zfs>,
    queue: Vec<(Vec<u8>, Waiting)>,
    queued_bytes: usize,
    done: Imported,
}

/// Which objects the directories at some paths are.
#[derive(Default)]
struct Paths {
    known: HashMap<Vec<u8>, ObjectId>,
    bytes: usize,
}

impl Paths {
    fn get(&self, path: &[u8]) -> Option<ObjectId> {
        self.known.get(path).copied()
    }

    fn insert(&mut self, path: &[u8], id: ObjectId) {
        if self.bytes + path.len() > PATHS_BYTES {
            *self = Paths::default();
        }
        if self.known.insert(path.to_vec(), id).is_none() {
            self.bytes += path.len();
        }
    }
}

/// A directory that may get more files.
struct Unfinished {
    meta: Meta,
    /// It was not there before.
    fresh: bool,
}

/// A file that was made.
struct Made {
    id: ObjectId,
    /// It was not there before.
    fresh: bool,
    /// It has owner, mode and times already: its directory gave it no other group or mode.
    as_told: bool,
    /// Something else has its name still.
    aside: Option<Replacement>,
}

/// A large file that is being written.
#[derive(Debug)]
pub struct Streaming {
    path: Vec<u8>,
    id: ObjectId,
    item: Item,
    /// Behind the last byte that was written.
    end: u64,
    /// Bytes of data so far.
    bytes: u64,
    /// It will not be whole.
    spoiled: bool,
    /// Something else has its name still.
    aside: Option<Replacement>,
}

impl<'a> CopyIn<'a> {
    /// A copy that puts files below directory `root` of `zfs`, and may do all.
    #[must_use]
    pub fn new(zfs: &Zfs, root: ObjectId, report: &'a mut dyn Report) -> CopyIn<'a> {
        CopyIn {
            zfs: zfs.clone(),
            root,
            cred: Cred::ROOT,
            owner: (0, 0),
            report,
            dirs: Paths::default(),
            unfinished: BTreeMap::new(),
            origins: Origins::default(),
            origin: 0,
            links: HashMap::new(),
            linked: HashMap::new(),
            broken: HashSet::new(),
            displaces: false,
            refused: None,
            shared: None,
            queue: Vec::new(),
            queued_bytes: 0,
            done: Imported::default(),
        }
    }

    /// The same, whose directories on the way to a file that nobody described belong to a user and group, and not to root.
    #[must_use]
    pub fn owned_by(self, uid: u32, gid: u32) -> CopyIn<'a> {
        CopyIn { owner: (uid, gid), ..self }
    }

    /// From now on puts files below directory `root`; what was put so far is finished. Files that come again under another name become hard
    /// links of what they became before, if that is there still.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn go_to(&mut self, root: ObjectId) -> Result<(), Error> {
        self.finish()?;
        self.root = root;
        self.dirs = Paths::default();
        self.refused = None;
        Ok(())
    }

    /// From now on files come from this dataset, or from the host (`None`): only files of one origin are names of each other.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn come_from(&mut self, dataset: Option<&str>) -> Result<(), Error> {
        self.flush()?;
        self.origin = self.origins.number(dataset);
        Ok(())
    }

    /// Puts a file with all its data; a directory or other file without data has none.
    ///
    /// # Errors
    /// What ends the work: a full pool, a quota, a pool that cannot be written.
    pub fn put(&mut self, path: &[u8], item: Item, data: Vec<u8>) -> Result<(), Error> {
        let xattrs: usize = item.meta.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.queued_bytes += data.len() + xattrs + item.target.len();
        self.wait(path, Waiting::File(Box::new(item), data))
    }

    /// Gives the file at path `to` the name `path` as well.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn link(&mut self, path: &[u8], to: &[u8]) -> Result<(), Error> {
        self.queued_bytes += to.len();
        self.wait(path, Waiting::Link(to.to_vec()))
    }

    /// Tells that all is in a directory.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn leave(&mut self, path: &[u8]) -> Result<(), Error> {
        self.wait(path, Waiting::Leave)
    }

    /// Begins a file whose data come in pieces. `None`: it cannot be made, as the report says, or was there under another name already.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn begin(&mut self, path: &[u8], item: Item) -> Result<Option<Streaming>, Error> {
        self.flush()?;
        self.report.file(path);
        let made = self.make(path, &item);
        let made = self.tolerate(path, made)?.flatten();
        let spoiled = item.trouble.is_some();
        let begun = |made: Made| {
            let (id, aside) = (made.id, made.aside);
            Streaming { path: path.to_vec(), id, item, end: 0, bytes: 0, spoiled, aside }
        };
        Ok(made.map(begun))
    }

    /// Writes a piece of a file that was begun. Pieces come in order; what lies between them is a hole.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn write(&mut self, file: &mut Streaming, offset: u64, data: &[u8]) -> Result<(), Error> {
        if let Err(e) = self.zfs.write(&self.cred, file.id, offset, data) {
            self.give_up(file);
            return Err(Error::at(&file.path)(e));
        }
        file.end = offset + data.len() as u64;
        file.bytes += data.len() as u64;
        self.report.bytes(data.len() as u64);
        Ok(())
    }

    /// Ends a file that was begun: it gets its size and attributes, and its name if something else has it and it is whole.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn end(&mut self, mut file: Streaming) -> Result<(), Error> {
        if file.spoiled && self.give_up(&mut file) {
            self.report.failed(&file.path, STAYS);
            return Ok(());
        }
        let cut = if file.end == file.item.size { None } else { Some(file.item.size) };
        let done = self.batch(|this| {
            if let Some(size) = cut {
                this.zfs.setattr(&this.cred, file.id, &SetAttr { size: Some(size), ..SetAttr::default() })?;
            }
            this.attributes(&file.path, file.id, &file.item, false)?;
            this.settle(file.id, file.aside.take())
        });
        if done.is_err() {
            self.give_up(&mut file);
        }
        match self.tolerate(&file.path, done)? {
            Some(()) if !file.spoiled => self.count(file.bytes),
            _ => drop(self.broken.insert(file.id)),
        }
        Ok(())
    }

    /// Notes that a file that was begun will not be whole.
    fn spoil(&mut self, file: &mut Streaming, why: &str) {
        file.spoiled = true;
        self.failed(&file.path, why);
    }

    /// Counts a file that is there now, with all its data.
    fn count(&mut self, bytes: u64) {
        self.done.files += 1;
        self.done.bytes += bytes;
    }

    /// Writes what waits, and gives all directories their attributes.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn finish(&mut self) -> Result<Imported, Error> {
        self.flush()?;
        let mut left = std::mem::take(&mut self.unfinished).into_iter();
        loop {
            let mut end = Ok(());
            let some: Vec<(ObjectId, Unfinished)> = left.by_ref().take(QUEUE_FILES).collect();
            if some.is_empty() {
                return Ok(self.done);
            }
            self.batch(|this| {
                end = some.into_iter().try_for_each(|(id, left)| this.finish_left(id, left));
                Ok(())
            })?;
            end?;
        }
    }

    /// Runs operations that share transactions: all that go through `zfs` meanwhile.
    fn batch<R>(&mut self, work: impl FnOnce(&mut Self) -> Result<R, zpl::Error>) -> Result<R, zpl::Error> {
        let zfs = self.zfs.clone();
        let done = zfs.batch(|shared| {
            self.zfs = shared.clone();
            work(self)
        });
        self.zfs = zfs;
        done
    }

    /// The counts so far.
    #[must_use]
    pub fn done(&self) -> Imported {
        self.done
    }

    /// Notes that a file could not be read where it comes from.
    pub fn failed(&mut self, path: &[u8], why: &str) {
        self.done.failed += 1;
        self.report.failed(path, why);
    }

    fn wait(&mut self, path: &[u8], what: Waiting) -> Result<(), Error> {
        self.queued_bytes += path.len();
        self.queue.push((path.to_vec(), what));
        if self.queue.len() >= QUEUE_FILES || self.queued_bytes >= QUEUE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the queue.
    fn flush(&mut self) -> Result<(), Error> {
        let queue = std::mem::take(&mut self.queue);
        self.queued_bytes = 0;
        if queue.is_empty() {
            return Ok(());
        }
        let mut end = Ok(());
        self.batch(|this| {
            for (path, what) in queue {
                let done = this.one(&path, what);
                if let Err(e) = this.tolerate(&path, done) {
                    end = Err(e);
                    break;
                }
            }
            Ok(())
        })?;
        end
    }

    fn one(&mut self, path: &[u8], what: Waiting) -> Result<(), zpl::Error> {
        match what {
            Waiting::Leave => self.finish_directory(path),
            Waiting::Link(to) => {
                self.report.file(path);
                let id = self.find(&to)?;
                self.link_to(path, id)
            }
            Waiting::File(item, data) => {
                self.report.file(path);
                let Some(made) = self.make(path, &item)? else { return Ok(()) };
                if item.kind == Kind::Directory {
                    let before = self.unfinished.get(&made.id).is_some_and(|before| before.fresh);
                    let fresh = item.trouble.is_none() && (made.fresh || before);
                    self.unfinished.insert(made.id, Unfinished { meta: item.meta, fresh });
                    return Ok(());
                }
                self.complete(path, &item, &data, made)
            }
        }
    }

    /// Gives a file that was made its data and attributes, and its name if something else has it.
    fn complete(&mut self, path: &[u8], item: &Item, data: &[u8], made: Made) -> Result<(), zpl::Error> {
        let Made { id, as_told, mut aside, .. } = made;
        let whole = item.trouble.is_none();
        if let Some(aside) = aside.take_if(|_| !whole) {
            self.drop_aside(id, &aside);
            self.report.failed(path, STAYS);
            return Ok(());
        }
        let filled = self.fill(path, id, item, data, as_told);
        match (filled, aside) {
            (Ok(()), aside) => self.settle(id, aside)?,
            (Err(e), Some(aside)) => {
                self.drop_aside(id, &aside);
                return Err(e);
            }
            (Err(e), None) => {
                self.broken.insert(id);
                return Err(e);
            }
        }
        match whole {
            true => self.count(data.len() as u64),
            false => drop(self.broken.insert(id)),
        }
        Ok(())
    }

    fn fill(&mut self, path: &[u8], id: ObjectId, item: &Item, data: &[u8], as_told: bool) -> Result<(), zpl::Error> {
        if !data.is_empty() {
            self.zfs.write(&self.cred, id, 0, data)?;
            self.report.bytes(data.len() as u64);
        }
        self.attributes(path, id, item, as_told && data.is_empty())
    }

    /// Reports an error of a single file; returns one that all files would meet, which ends the work.
    fn tolerate<R>(&mut self, path: &[u8], done: Result<R, zpl::Error>) -> Result<Option<R>, Error> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(e) if ends_all(&e) => Err(Error::at(path)(e)),
            Err(zpl::Error::IsDirectory { .. }) => {
                self.failed(path, "a directory has this name");
                Ok(None)
            }
            Err(e) => {
                self.failed(path, &e.to_string());
                Ok(None)
            }
        }
    }

    /// Returns whether a path lies in a directory that was refused.
    fn is_passed_over(&self, path: &[u8]) -> bool {
        let below = |top: &Vec<u8>| path.strip_prefix(top.as_slice()).is_some_and(|rest| rest.starts_with(b"/"));
        self.refused.as_ref().is_some_and(below)
    }

    /// Makes a file without its data and attributes. `None` if it is there under another name and now has this one too.
    fn make(&mut self, path: &[u8], item: &Item) -> Result<Option<Made>, zpl::Error> {
        if path.is_empty() {
            let kind = self.zfs.getattr(self.root)?.kind();
            return if item.kind == Kind::Directory && kind == Kind::Directory {
                Ok(Some(Made { id: self.root, fresh: false, as_told: false, aside: None }))
            } else {
                Err(zpl::Error::NotDirectory { name: b"/".to_vec() })
            };
        }
        if self.is_passed_over(path) {
            return Ok(None);
        }
        let link = item.link.map(|link| (self.origin, link));
        if let Some(id) = link.and_then(|link| self.links.get(&link)).copied() {
            self.link_to(path, id)?;
            return Ok(None);
        }
        let time = |(sec, nsec): (i64, u32)| Time { sec, nsec };
        let new = NewFile {
            rdev: stored_device(item.device),
            target: &item.target,
            times: Some((time(item.meta.atime), time(item.meta.mtime))),
            ..NewFile::new(item.kind, item.meta.mode)
        };
        let made = match item.kind {
            Kind::Directory => {
                let (id, fresh) = self.directory(path, &new)?;
                self.dirs.insert(path, id);
                Made { id, fresh, as_told: false, aside: None }
            }
            _ => {
                let create = |zfs: &Zfs, cred: &Cred, dir, name: &[u8]| zfs.create(cred, dir, name, &new);
                let ((id, attrs), aside) = self.name(path, create)?;
                let (is, told) = ((attrs.uid(), attrs.gid(), attrs.mode & 0o7777), &item.meta);
                Made { id, fresh: true, as_told: is == (told.uid, told.gid, told.mode & 0o7777), aside }
            }
        };
        if let Some(link) = link {
            self.links.insert(link, made.id);
            self.linked.insert(made.id, link);
        }
        Ok(Some(made))
    }

    /// Gives a file that is there the name `path` too; it may have it already.
    fn link_to(&mut self, path: &[u8], id: ObjectId) -> Result<(), zpl::Error> {
        let (dir, name) = self.place(path)?;
        if self.zfs.getattr(id)?.kind() == Kind::Directory {
            return Err(zpl::Error::IsDirectory { object: id });
        }
        let there = self.zfs.lookup(&self.cred, dir, name).ok().map(|(there, _)| there);
        if there.is_some_and(|there| there != id) && self.broken.contains(&id) {
            self.failed(path, LINK_STAYS);
            return Ok(());
        }
        if there != Some(id) {
            let ((), aside) = self.name(path, |zfs, cred, dir, name| zfs.link(cred, id, dir, name).map(drop))?;
            self.settle(id, aside)?;
        }
        if !self.broken.contains(&id) {
            self.count(0);
        }
        Ok(())
    }

    /// Makes a directory, or takes the one that is there.
    fn directory(&mut self, path: &[u8], new: &NewFile<'_>) -> Result<(ObjectId, bool), zpl::Error> {
        let (dir, name) = self.place(path)?;
        match self.zfs.create(&self.cred, dir, name, new) {
            Ok((id, _)) => Ok((id, true)),
            Err(e) if e.errno() == Errno::EEXIST => {
                let (id, attrs) = self.zfs.lookup(&self.cred, dir, name)?;
                if attrs.kind() == Kind::Directory {
                    return Ok((id, false));
                }
                if !self.displaces {
                    self.refused = Some(path.to_vec());
                    return Err(zpl::Error::NotDirectory { name: name.to_vec() });
                }
                self.displace(dir, name, id, attrs.links)?;
                Ok((self.zfs.create(&self.cred, dir, name, new)?.0, true))
            }
            Err(e) => Err(e),
        }
    }

    /// The directory of a path, made if it is not there, and the last name.
    fn place<'p>(&mut self, path: &'p [u8]) -> Result<(ObjectId, &'p [u8]), zpl::Error> {
        let (parent, name) = split(path);
        let impossible = |_| zpl::Error::NotFound { name: path.to_vec() };
        check_name(name).map_err(impossible)?;
        if let Some(id) = self.dirs.get(parent) {
            return Ok((id, name));
        }
        let mut at = self.root;
        for part in parent.split(|b| *b == b'/').filter(|_| !parent.is_empty()) {
            check_name(part).map_err(impossible)?;
            at = match self.zfs.lookup(&self.cred, at, part) {
                Ok((_, attrs)) if attrs.kind() != Kind::Directory => {
                    return Err(zpl::Error::NotDirectory { name: parent.to_vec() });
                }
                Ok((id, _)) => id,
                Err(e) if e.errno() == Errno::ENOENT => {
                    let new = NewFile { owner: Some(self.owner), ..NewFile::new(Kind::Directory, DIRECTORY_MODE) };
                    self.zfs.create(&self.cred, at, part, &new)?.0
                }
                Err(e) => return Err(e),
            };
        }
        self.dirs.insert(parent, at);
        Ok((at, name))
    }

    /// The file at a path that was put or was there.
    fn find(&self, path: &[u8]) -> Result<ObjectId, zpl::Error> {
        let mut at = self.root;
        for part in path.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
            at = self.zfs.lookup(&self.cred, at, part)?.0;
        }
        Ok(at)
    }

    fn finish_directory(&mut self, path: &[u8]) -> Result<(), zpl::Error> {
        let id = match self.dirs.get(path) {
            Some(id) => id,
            None => match self.find(path) {
                Ok(id) => id,
                // it was not made, and that is told
                Err(e) if matches!(e.errno(), Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
                Err(e) => return Err(e),
            },
        };
        if !path.is_empty() {
            // who leaves a directory goes on in the one above
            self.dirs.insert(split(path).0, self.zfs.getattr(id)?.parent);
        }
        match self.unfinished.remove(&id) {
            Some(left) => self.finish_as(path, id, left),
            None => Ok(()),
        }
    }

    fn finish_as(&mut self, path: &[u8], id: ObjectId, left: Unfinished) -> Result<(), zpl::Error> {
        self.attributes(path, id, &Item::new(Kind::Directory, left.meta), false)?;
        if left.fresh {
            self.count(0);
        }
        Ok(())
    }

    /// Gives a directory that nobody has left its attributes.
    fn finish_left(&mut self, id: ObjectId, left: Unfinished) -> Result<(), Error> {
        let zfs = self.zfs.clone();
        let path = || zfs.fs().path_of(id).unwrap_or_default().split_off(1);
        // where it is matters only where there is something to tell
        let told = if left.meta.xattrs.is_empty() { Vec::new() } else { path() };
        match self.finish_as(&told, id, left) {
            Ok(()) => Ok(()),
            Err(e) => self.tolerate(&path(), Err::<(), _>(e)).map(drop),
        }
    }

    /// Gives a file its extended attributes, owner, mode and times; the last in the end, since each of the others changes them. A file
    /// that is `finished` needs attributes only.
    fn attributes(&mut self, path: &[u8], id: ObjectId, item: &Item, finished: bool) -> Result<(), zpl::Error> {
        let meta = &item.meta;
        // a new owner ends what a program may do beyond its caller
        let (last, first): (Vec<_>, Vec<_>) = meta.xattrs.iter().partition(|(name, _)| name == b"security.capability");
        let listed = self.xattrs(path, id, &first)?;
        if finished && meta.xattrs.is_empty() {
            return Ok(());
        }
        let time = |(sec, nsec): (i64, u32)| Some(Time { sec, nsec });
        let set = SetAttr {
            mode: (item.kind != Kind::Symlink).then_some(if listed { meta.mode } else { without_list(meta) }),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            atime: time(meta.atime),
            mtime: time(meta.mtime),
            ..SetAttr::default()
        };
        self.zfs.setattr(&self.cred, id, &set)?;
        self.xattrs(path, id, &last).map(drop)
    }

    /// Gives a file extended attributes; tells whether its list of permissions is one of those that it has, if there is one.
    fn xattrs(&mut self, path: &[u8], id: ObjectId, xattrs: &[&(Vec<u8>, Vec<u8>)]) -> Result<bool, zpl::Error> {
        let mut listed = true;
        for (name, value) in xattrs {
            match self.zfs.set_xattr(&self.cred, id, name, value, XattrMode::Set) {
                Err(e) if ends_all(&e) => return Err(e),
                Err(e) => {
                    // without the number of the file: what many files meet is told once
                    let why = std::io::Error::from(e.errno());
                    let what = format!("attribute {}: {why}", String::from_utf8_lossy(name));
                    self.report.not_kept(path, &what);
                    listed &= name != PosixAcl::ACCESS.as_bytes();
                }
                Ok(()) => {}
            }
        }
        Ok(listed)
    }
}

/// The mode of a file that does not get its list: nobody may more than with it.
fn without_list(meta: &Meta) -> u32 {
    let list = meta.xattrs.iter().find(|(name, _)| name == PosixAcl::ACCESS.as_bytes());
    let allowed = list.and_then(|(_, value)| PosixAcl::decode(value).ok()).map(|acl| acl.mode_without_names());
    meta.mode & !0o777 | meta.mode & allowed.unwrap_or(0o700)
}

/// Returns whether the next file would meet the same error.
fn ends_all(e: &zpl::Error) -> bool {
    let stopped = |e: &pool::Error| matches!(e, pool::Error::Suspended(_) | pool::Error::Closed);
    matches!(e.errno(), Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS) || matches!(e, zpl::Error::Pool(e) if stopped(e))
}

/// The directory and the last name of a path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_are_remembered_have_a_bound() {
        let mut paths = Paths::default();
        for n in 1..5000u64 {
            paths.insert(&b"a/".repeat(n as usize), ObjectId(n));
            assert!(paths.known.keys().map(Vec::len).sum::<usize>() <= PATHS_BYTES);
        }
        assert_eq!(paths.get(&b"a/".repeat(4999)), Some(ObjectId(4999)));
    }
}
