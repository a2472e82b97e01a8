//! `cp -a` out of a pool: owner, mode, times, links, holes, extended attributes and ACLs, past damage.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::ObjectId;
use rustix::fs::FileType;
use zpl::{Kind, Node, Time, Zvol};

use crate::descent::Descent;
use crate::dest::{self, HostId, Meta, NotKept};
use crate::operands::Origins;
use crate::report::Report;
use crate::salvage::{Chunk, Contents, read_past_damage};
use crate::walk::{Go, Step, walk};

/// The result of a copy.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Files, directories, links and devices that were made and are whole.
    pub files: u64,
    /// Bytes of their data (holes not counted).
    pub bytes: u64,
    /// Files that are incomplete or missing.
    pub damaged: u64,
}

/// The copy of a file with several names: the root and the path of its first name, its identity, and whether it is whole.
type Named = (Arc<OwnedFd>, Vec<u8>, HostId, bool);

/// Copies trees and files to the host. Hard links are kept among all files that one `Copier` copies; if they come from several file systems,
/// [`Copier::come_from`] tells which one the next are of.
pub struct Copier<'a> {
    report: &'a mut dyn Report,
    /// The file systems that files came from, and the number of the one that they come from now.
    origins: Origins,
    origin: u32,
    /// Files with several names, and the other way round.
    links: HashMap<(u32, ObjectId), Named>,
    linked: HashMap<HostId, (u32, ObjectId)>,
    /// The directory of the host below which no link is followed.
    base: Option<PathBuf>,
    /// The directory into which the last single file was copied.
    dir: Option<(PathBuf, Arc<OwnedFd>)>,
    done: Copied,
}

impl<'a> Copier<'a> {
    /// A copier that tells `report` what happens.
    pub fn new(report: &'a mut dyn Report) -> Self {
        let (links, linked) = (HashMap::new(), HashMap::new());
        Copier {
            report,
            origins: Origins::default(),
            origin: 0,
            links,
            linked,
            base: None,
            dir: None,
            done: Copied::default(),
        }
    }

    /// The counts so far.
    #[must_use]
    pub fn done(&self) -> Copied {
        self.done
    }

    /// From now on files come from this dataset: only files of one dataset are names of each other.
    pub fn come_from(&mut self, dataset: &str) {
        self.origin = self.origins.number(Some(dataset));
    }

    /// From now on no link is followed between `base`, if there is one, and destinations below it: what an earlier copy made there may belong to
    /// somebody else.
    pub fn stay_below(&mut self, base: Option<&Path>) {
        self.base = base.map(Path::to_owned);
    }

    /// Opens a directory of the host, which is made if its parent is there.
    fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        let below = self.base.as_ref().and_then(|base| Some((base, path.strip_prefix(base).ok()?)));
        let Some((base, below)) = below else { return dest::open_root(path) };
        let names = below.iter().map(OsStrExt::as_bytes);
        names.fold(dest::open_root(base), |dir, name| dest::make_dir(dir?.as_fd(), name))
    }

    /// Copies the contents of the directory `from` into `to`, which is made if it is not there and gets the attributes of
    /// `from`.
    ///
    /// # Errors
    /// What the host says of `to` itself, or that it is full; trouble with single files goes to the report.
    pub fn copy_tree(&mut self, from: Node, to: &Path) -> io::Result<Copied> {
        self.tree(from, self.directory(to)?)?;
        Ok(self.done)
    }

    /// Copies one file that is no directory to `name` in the directory `dir`.
    ///
    /// # Errors
    /// What the host says of `dir`, or that it is full.
    pub fn copy_file(&mut self, from: &Node, dir: &Path, name: &[u8]) -> io::Result<Copied> {
        // many single files go to one directory, which is opened once
        let root = match self.dir.take() {
            Some((path, root)) if path == dir => root,
            _ => Arc::new(self.directory(dir)?),
        };
        self.dir = Some((dir.to_owned(), root.clone()));
        self.leaf(&root, root.as_fd(), name, name, from)?;
        Ok(self.done)
    }

    /// Copies a directory to a new directory `name` in `dir`.
    ///
    /// # Errors
    /// As [`Copier::copy_tree`].
    pub fn copy_dir(&mut self, from: Node, dir: &Path, name: &[u8]) -> io::Result<Copied> {
        let parent = self.directory(dir)?;
        self.tree(from, dest::make_dir(parent.as_fd(), name)?)?;
        Ok(self.done)
    }

    /// Copies a volume to the file `name` in `dir`, with holes where the volume has them.
    ///
    /// # Errors
    /// What the host says.
    pub fn copy_volume(&mut self, from: &Zvol, dir: &Path, name: &[u8]) -> io::Result<Copied> {
        let root = self.directory(dir)?;
        self.displace(root.as_fd(), name)?;
        let file = dest::make_file(root.as_fd(), name)?;
        self.report.file(name);
        file.set_len(from.size())?;
        match self.fill(&file, name, from)? {
            Some(bytes) => self.count(bytes),
            None => self.done.damaged += 1,
        }
        Ok(self.done)
    }

    fn tree(&mut self, from: Node, root: OwnedFd) -> io::Result<()> {
        let root = Arc::new(root);
        let mut dirs = Descent::new(root.clone());
        walk(from, false, &mut |step| {
            match step {
                Step::Enter { path: b"", .. } => {}
                Step::Enter { path, node } => {
                    let parent = dirs.lowest().as_fd();
                    self.report.file(path);
                    if node.kind() != Kind::Directory {
                        self.leaf(&root, parent, path, last_name(path), node)?;
                        return Ok(Go::Over);
                    }
                    match dest::make_dir(parent, last_name(path)).and_then(|fd| dirs.enter(Arc::new(fd))) {
                        Ok(()) => {}
                        Err(e) => {
                            self.trouble(path, &e)?;
                            return Ok(Go::Over);
                        }
                    }
                }
                Step::Leave { path, node } => {
                    // upwards first: the new mode of the lower one may forbid to go through it
                    let dir = dirs.leave().map_err(|e| named(path, &e))?;
                    self.finish(dir.as_ref().unwrap_or(&root).as_fd(), path, node, Some(0))?;
                }
                Step::Lost { path, why } => self.lose(path, &why.to_string()),
                Step::Refused { path, why } => self.lose(path, why),
            }
            Ok(Go::In)
        })
    }

    fn leaf(
        &mut self,
        root: &Arc<OwnedFd>,
        parent: BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
        node: &Node,
    ) -> io::Result<()> {
        if let Err(e) = self.displace(parent, name) {
            return self.trouble(path, &e);
        }
        let several = node.attrs().links > 1;
        if several && let Some((root, first, id, whole)) = self.links.get(&(self.origin, node.id())) {
            match dest::make_link((root.as_fd(), first, *id), parent, name) {
                Ok(true) => {
                    self.done.files += u64::from(*whole);
                    return Ok(());
                }
                // another program has moved the first one away
                Ok(false) => {}
                // another file system of the host, or one name too many: a file of its own
                Err(e) if matches!(e.kind(), io::ErrorKind::CrossesDevices | io::ErrorKind::TooManyLinks) => {}
                Err(e) => return self.trouble(path, &e),
            }
        }
        let made = match node.kind() {
            Kind::File => self.data(parent, path, name, node),
            Kind::Symlink => match node.target() {
                Ok(target) => dest::make_symlink(parent, name, &target).map(|fd| (fd, Some(0))),
                Err(why) => {
                    self.lose(path, &why.to_string());
                    return Ok(());
                }
            },
            kind => dest::make_special(parent, name, file_type(kind), node.attrs().device().unwrap_or((0, 0)))
                .map(|fd| (fd, Some(0))),
        };
        let (made, bytes) = match made {
            Ok(made) => made,
            Err(e) => return self.trouble(path, &e),
        };
        if several && let Ok(id) = dest::identity(made.as_fd()) {
            let file = (self.origin, node.id());
            self.links.insert(file, (root.clone(), path.to_vec(), id, bytes.is_some()));
            self.linked.insert(id, file);
        }
        self.finish(made.as_fd(), path, node, bytes)
    }

    /// Removes the file that has the name: if it was copied before, later names are no longer linked to it.
    fn displace(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        if self.linked.is_empty() {
            return Ok(());
        }
        match dest::identity_at(parent, name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
            Ok(id) => {
                if let Some(file) = self.linked.remove(&id) {
                    self.links.remove(&file);
                }
                Ok(())
            }
        }
    }

    /// Makes a file with its data, and gives it open. How many bytes; `None` if some are lost.
    fn data(
        &mut self,
        parent: BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
        node: &Node,
    ) -> io::Result<(OwnedFd, Option<u64>)> {
        let file = dest::make_file(parent, name)?;
        let bytes = self.fill(&file, path, node)?;
        self.done.damaged += u64::from(bytes.is_none());
        file.set_len(node.size())?;
        Ok((file.into(), bytes))
    }

    /// Writes data where it was, and nothing where holes were. How many bytes; `None` if some are lost.
    fn fill(&mut self, file: &File, path: &[u8], from: &dyn Contents) -> io::Result<Option<u64>> {
        let (mut written, mut damaged) = (0, false);
        read_past_damage(from, &mut |chunk| {
            match chunk {
                Chunk::Data { offset, bytes } => {
                    dest::write_at(file, bytes, offset)?;
                    written += bytes.len() as u64;
                    self.report.bytes(bytes.len() as u64);
                }
                Chunk::Lost { range, why } => {
                    damaged = true;
                    self.report.lost(path, &format!("bytes {}-{}: {why}", range.start, range.end - 1));
                }
            }
            Ok(())
        })?;
        Ok((!damaged).then_some(written))
    }

    /// Counts a file that is there now, with all its data.
    fn count(&mut self, bytes: u64) {
        self.done.files += 1;
        self.done.bytes += bytes;
    }

    /// Gives what was made its attributes, and counts it if it is whole, with so many bytes of data.
    fn finish(&mut self, made: BorrowedFd<'_>, path: &[u8], node: &Node, mut bytes: Option<u64>) -> io::Result<()> {
        let attrs = node.attrs();
        let xattrs = node.xattrs().unwrap_or_else(|why| {
            self.lose(path, &format!("extended attributes: {why}"));
            bytes = None;
            Vec::new()
        });
        let time = |t: Time| (t.sec, t.nsec);
        let meta = Meta {
            uid: attrs.uid(),
            gid: attrs.gid(),
            mode: attrs.mode,
            atime: time(attrs.atime),
            mtime: time(attrs.mtime),
            xattrs,
        };
        match dest::apply(made, file_type(node.kind()), &meta) {
            Ok(not_kept) => {
                if let Some(bytes) = bytes {
                    self.count(bytes);
                }
                for what in not_kept {
                    let text = match what {
                        NotKept::Xattr(name, why) => format!("attribute {}: {why}", String::from_utf8_lossy(&name)),
                        NotKept::Owner(why) => format!("owner: {why}"),
                    };
                    self.report.not_kept(path, &text);
                }
                Ok(())
            }
            Err(e) => self.trouble(path, &e),
        }
    }

    fn lose(&mut self, path: &[u8], why: &str) {
        self.done.damaged += 1;
        self.report.lost(path, why);
    }

    /// Trouble of the host with one file is reported; a full or failing disk ends the work.
    fn trouble(&mut self, path: &[u8], e: &io::Error) -> io::Result<()> {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        if matches!(e.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) {
            return Err(named(path, e));
        }
        self.lose(path, &e.to_string());
        Ok(())
    }
}

fn named(path: &[u8], e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", String::from_utf8_lossy(path)))
}

fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::Other(_) => FileType::Unknown,
    }
}
