//! Requests about names: lookups, creation, removal, renames, listings.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use base::Errno;
use fuser::{FopenFlags, Generation, INodeNo, RenameFlags, ReplyDirectory, ReplyDirectoryPlus, Request};
use zpl::live::{Cred, Handle, NewFile, RenameMode, Stat};
use zpl::{Attrs, DirEntry, Kind};

use crate::convert::{device, file_attr, file_type};
use crate::served::{Answer, Entry, Opened, Served};

/// The type in a mode.
const TYPE_SHIFT: u32 = 12;
const S_ISGID: u32 = 0o2000;
const MAY_READ: u8 = 4;
/// Offsets of a listing: behind `.`, and behind `..`. No cookie of an entry is that small.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOTS: u64 = 2;

/// An entry of a listing.
struct Listed {
    id: u64,
    kind: Kind,
    name: Vec<u8>,
    /// The offset behind it.
    next: u64,
}

impl Served {
    /// Looks up a name. Those of the directory itself and of the one above are for file handles of NFS, the first also of files.
    pub(crate) fn lookup(&self, req: &Request, dir: INodeNo, name: &OsStr) -> Answer<Entry> {
        let (dir, name) = (self.file(dir)?, name.as_bytes());
        match name {
            b"." => self.entry(dir, None),
            b".." => self.entry(self.vfs.attrs(dir).map_err(|error| error.errno())?.parent, None),
            name => {
                let (id, _) = self.vfs.lookup(&self.caller(req), dir, name).map_err(|error| error.errno())?;
                self.entry(id, Some((dir, name)))
            }
        }
    }

    /// Creates a file of any kind.
    pub(crate) fn make(&self, req: &Request, dir: INodeNo, name: &OsStr, new: &NewFile<'_>) -> Answer<Entry> {
        let (dir, name) = (self.file(dir)?, name.as_bytes());
        // whether the bit may be set depends on the caller's groups
        let caller = if new.mode & S_ISGID == 0 { self.caller(req) } else { self.own_groups(req) };
        let (id, _) = self.vfs.create(&caller, dir, name, new).map_err(|error| error.errno())?;
        self.entry(id, Some((dir, name)))
    }

    /// Returns the caller with the groups that he has, and without the capability to set bits for others.
    pub(crate) fn own_groups(&self, req: &Request) -> Cred {
        let (decided, real) = (self.caller(req), self.real_caller(req));
        let caps = decided.caps.without(zpl::live::Caps::FSETID).and(real.caps);
        real.with_caps(caps)
    }

    /// Creates and opens a file.
    pub(crate) fn create(
        &self,
        req: &Request,
        dir: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        flags: i32,
    ) -> Answer<(Entry, Opened)> {
        let new = NewFile { umask, ..NewFile::new(Kind::File, mode) };
        match self.make(req, dir, name, &new) {
            Ok(entry) => {
                // its maker may write it whatever its mode is
                let id = entry.attr.ino.0;
                let handle = self.vfs.open(&Cred::ROOT, id, 0).map_err(|error| error.errno())?;
                Ok((entry, self.keep_file(handle)))
            }
            // it was made meanwhile, and that is no error
            Err(Errno::EEXIST) if flags & crate::contents::O_EXCL == 0 => {
                let entry = self.lookup(req, dir, name)?;
                let opened = self.open(req, entry.attr.ino, flags)?;
                Ok((entry, opened))
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn mknod(
        &self,
        req: &Request,
        dir: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        rdev: u32,
    ) -> Answer<Entry> {
        let kind = Kind::from_number((mode >> TYPE_SHIFT) as u8 & 0xf);
        // the system call takes no type for that of a file
        let kind = if kind == Kind::Other(0) { Kind::File } else { kind };
        let (major, minor) = device(rdev);
        self.make(req, dir, name, &NewFile { umask, ..NewFile::device(kind, mode, major, minor) })
    }

    pub(crate) fn link(&self, req: &Request, file: INodeNo, dir: INodeNo, name: &OsStr) -> Answer<Entry> {
        let (id, dir, name) = (self.file(file)?, self.file(dir)?, name.as_bytes());
        self.vfs.link(&self.caller(req), id, dir, name).map_err(|error| error.errno())?;
        self.entry(id, Some((dir, name)))
    }

    pub(crate) fn unlink(&self, req: &Request, dir: INodeNo, name: &OsStr) -> Answer<()> {
        let (dir, name) = (self.file(dir)?, name.as_bytes());
        let victim = self.hold_known(dir, name);
        self.vfs.unlink(&self.caller(req), dir, name).map_err(|error| error.errno())?;
        self.removed(victim);
        Ok(())
    }

    pub(crate) fn rmdir(&self, req: &Request, dir: INodeNo, name: &OsStr) -> Answer<()> {
        let (dir, name) = (self.file(dir)?, name.as_bytes());
        let victim = self.hold_known(dir, name);
        self.vfs.rmdir(&self.caller(req), dir, name).map_err(|error| error.errno())?;
        self.removed(victim);
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        req: &Request,
        (dir, name): (INodeNo, &OsStr),
        (to_dir, to_name): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Answer<()> {
        let (dir, name) = (self.file(dir)?, name.as_bytes());
        let (to_dir, to_name) = (self.file(to_dir)?, to_name.as_bytes());
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            RenameFlags::RENAME_WHITEOUT => RenameMode::Whiteout,
            _ => return Err(Errno::EINVAL),
        };
        let (source, target) = (self.hold_known(dir, name), self.hold_known(to_dir, to_name));
        let caller = self.caller(req);
        self.vfs.rename(&caller, dir, name, to_dir, to_name, mode).map_err(|error| error.errno())?;
        if let Some(source) = &source {
            self.known.renamed(source.id(), to_dir, to_name);
        }
        match target {
            Some(target) if mode == RenameMode::Exchange => self.known.renamed(target.id(), dir, name),
            target => self.removed(target),
        }
        Ok(())
    }

    /// Holds the file of a name that is going to lose it, if the kernel knows it. One that cannot be held is not there, or cannot be read.
    fn hold_known(&self, dir: u64, name: &[u8]) -> Option<Handle> {
        let (id, _) = self.vfs.lookup(&Cred::ROOT, dir, name).ok()?;
        self.known.generation(id)?;
        self.vfs.open(&Cred::ROOT, id, 0).ok()
    }

    /// Holds a file on if that was its last name.
    fn removed(&self, victim: Option<Handle>) {
        let Some(victim) = victim else { return };
        let is_nameless = |attrs: Attrs| attrs.links == 0;
        if self.vfs.attrs(victim.id()).is_ok_and(is_nameless) {
            self.known.hold(victim.id(), victim);
        }
    }

    pub(crate) fn readlink(&self, link: INodeNo) -> Answer<Vec<u8>> {
        self.vfs.readlink(self.file(link)?).map_err(|error| error.errno())
    }

    pub(crate) fn opendir(&self, req: &Request, dir: INodeNo) -> Answer<Opened> {
        let id = self.file(dir)?;
        let handle = self.vfs.open(&self.caller(req), id, MAY_READ).map_err(|error| error.errno())?;
        Ok(self.keep(handle, FopenFlags::empty()))
    }

    /// Lists a directory from an offset on, until `add` returns that there is no room. An error is told only if nothing was added: it comes
    /// again with the next request.
    fn list(&self, dir: u64, offset: u64, mut add: impl FnMut(Listed) -> bool) -> Answer<()> {
        let mut added = false;
        let mut listed = |entry| {
            let full = add(entry);
            added |= !full;
            full
        };
        match self.list_to(dir, offset, &mut listed) {
            Err(_) if added => Ok(()),
            done => done,
        }
    }

    fn list_to(&self, dir: u64, offset: u64, add: &mut dyn FnMut(Listed) -> bool) -> Answer<()> {
        let own = |id, name: &[u8], next| Listed { id, kind: Kind::Directory, name: name.to_vec(), next };
        if offset < BEHIND_DOT && add(own(dir, b".", BEHIND_DOT)) {
            return Ok(());
        }
        if offset < BEHIND_DOTS {
            let parent = self.vfs.attrs(dir).map_err(|error| error.errno())?.parent;
            if add(own(parent, b"..", BEHIND_DOTS)) {
                return Ok(());
            }
        }
        let cookie = if offset <= BEHIND_DOTS { 0 } else { offset };
        // who lists it was checked when it was opened
        let entries = self.vfs.read_dir(&Cred::ROOT, dir, cookie).map_err(|error| error.errno())?;
        for entry in entries {
            let DirEntry { name, object: id, kind, next_cookie: next } = entry.map_err(|error| error.errno())?;
            if add(Listed { id, kind, name, next }) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the inode number that a listing shows.
    fn shown(&self, id: u64) -> u64 {
        let of_root = || self.stat(id).map_or(id, |stat| stat.inode);
        if id == self.root { of_root() } else { id }
    }

    pub(crate) fn readdir(&self, dir: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        self.list(self.open_file(dir), offset, |entry| {
            // old pools do not have the type in the entry
            let kind = match entry.kind {
                Kind::Other(_) => self.vfs.attrs(entry.id).map_or(entry.kind, |attrs| attrs.kind()),
                kind => kind,
            };
            let name = OsStr::from_bytes(&entry.name);
            reply.add(INodeNo(self.shown(entry.id)), entry.next, file_type(kind), name)
        })
    }

    pub(crate) fn readdirplus(&self, dir: INodeNo, offset: u64, reply: &mut ReplyDirectoryPlus) -> Answer<()> {
        let dir = self.open_file(dir);
        self.list(dir, offset, |entry| {
            let Listed { id, kind, name, next } = entry;
            let is_own = next <= BEHIND_DOTS;
            let stat = self.stat(id);
            // one that cannot be read has its name and its type; whoever asks for more gets the error
            let ttl = if stat.is_ok() { self.attr_ttl.min(self.name_ttl) } else { std::time::Duration::ZERO };
            let stat = stat.unwrap_or_else(|_| unreadable(id, kind));
            let generation = stat.attrs.generation;
            // the kernel does not look up these two, and shows the number
            let node = if is_own { stat.inode } else { self.node(id) };
            let attr = file_attr(&stat, node);
            let os_name = OsStr::from_bytes(&name);
            let full = reply.add(INodeNo(node), next, os_name, &ttl, &attr, Generation(generation));
            if !full && !is_own {
                self.known.looked_up(id, generation, Some((dir, &name)));
            }
            full
        })
    }
}

/// Returns what is known of a file whose attributes cannot be read.
fn unreadable(id: u64, kind: Kind) -> Stat {
    let attrs = Attrs {
        mode: u32::from(kind.number()) << TYPE_SHIFT,
        owner: zpl::Fuid::default(),
        group: zpl::Fuid::default(),
        size: 0,
        links: 1,
        generation: 0,
        parent: 0,
        atime: zpl::Time::default(),
        mtime: zpl::Time::default(),
        ctime: zpl::Time::default(),
        crtime: zpl::Time::default(),
        flags: zpl::FileFlags::default(),
        projid: None,
        rdev: None,
        xattr_dir: 0,
        seq: None,
    };
    Stat { attrs, inode: id, blocks: 0, block_size: 512 }
}
