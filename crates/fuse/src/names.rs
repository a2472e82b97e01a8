//! Requests about names: lookups, creation, removal, renames, listings.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use base::{Errno, ObjectId};
use fuser::{FopenFlags, Generation, INodeNo, RenameFlags, ReplyDirectory, ReplyDirectoryPlus, Request};
use zpl::live::{Cred, Handle, NewFile, RenameMode, Stat};
use zpl::{Attrs, DirEntry, Kind};

use crate::convert::{device, file_attr, file_type};
use crate::known::Nameless;
use crate::pinned::{Pinned, Subject};
use crate::served::{Answer, Entry, Opened, Served, stat, ttl};

/// The type in a mode.
const TYPE_SHIFT: u32 = 12;
const S_ISGID: u32 = 0o2000;
const MAY_READ: u8 = 4;
/// Offsets of a listing: behind `.`, and behind `..`. No cookie of an entry is that small.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOTS: u64 = 2;

/// The name of the control directory in the root (OpenZFS: `ZFS_CTLDIR_NAME`), which a `Vfs` may have; see [`zpl::live::Ctldir`].
const CONTROL_DIR: &str = ".zfs";

/// An entry of a listing.
struct Listed {
    id: ObjectId,
    kind: Kind,
    name: Vec<u8>,
    /// The offset behind it.
    next: u64,
}

impl Served {
    /// Looks up a name. Those of the directory itself and of the one above are for file handles of NFS, the first also of files.
    pub(crate) fn lookup(&self, req: &Request, dir: INodeNo, name: &OsStr) -> Answer<Entry> {
        match self.find(req, dir, name) {
            // whatever else the kernel is told it takes for a name that is gone, and unmounts what is there
            Err(error) if error != Errno::ENOENT && self.has_mounts(dir, name) => Err(Errno::ENOMEM),
            found => found,
        }
    }

    /// True if a name leads to mounts inside of this one.
    fn has_mounts(&self, dir: INodeNo, name: &OsStr) -> bool {
        self.below.inner().are_behind(self.open_file(dir), name.as_bytes())
    }

    fn find(&self, req: &Request, dir: INodeNo, name: &OsStr) -> Answer<Entry> {
        let (pinned, dir) = self.pin_file(dir)?;
        match name.as_bytes() {
            b"." => self.entry(&pinned, dir, None),
            b".." => self.entry(&pinned, pinned.attrs(dir).map_err(|error| error.errno())?.parent, None),
            name => {
                let (id, _) = pinned.lookup(&self.caller(req), dir, name).map_err(|error| error.errno())?;
                self.entry(&pinned, id, Some((dir, name)))
            }
        }
    }

    /// Creates a file of any kind.
    pub(crate) fn make(&self, req: &Request, dir: INodeNo, name: &OsStr, new: &NewFile<'_>) -> Answer<Entry> {
        let (pinned, dir) = self.pin_dir(dir)?;
        self.make_in(&pinned, req, dir, name, new)
    }

    fn make_in(&self, pinned: &Pinned, req: &Request, dir: ObjectId, name: &OsStr, new: &NewFile<'_>) -> Answer<Entry> {
        let name = name.as_bytes();
        let caller = match pinned.is_told(dir) {
            // whether the bit may be set depends on the caller's groups
            true if new.mode & S_ISGID != 0 => self.own_groups(req),
            _ => self.changer_in(pinned, req, dir),
        };
        let (id, _) = pinned.create(&caller, dir, name, new).map_err(|error| error.errno())?;
        self.entry(pinned, id, Some((dir, name)))
    }

    /// Returns the caller of a change in a directory. In one of whose changes nobody tells it is a command (`.zfs/snapshot`), and who may give it
    /// does not depend on what the kernel has decided about files.
    fn changer_in(&self, pinned: &Pinned, req: &Request, dir: ObjectId) -> Cred {
        if pinned.is_told(dir) { self.caller(req) } else { self.real_caller(req) }
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
        let (pinned, dir) = self.pin_file(dir)?;
        match self.make_in(&pinned, req, dir, name, &new) {
            Ok(entry) => {
                // its maker may write it whatever its mode is
                let id = ObjectId(entry.attr.ino.0);
                let opened = pinned.open(&Cred::ROOT, id, 0).map_err(|error| {
                    // the kernel is not told of it
                    let _held = self.known.forgotten(id, 1);
                    error.errno()
                });
                Ok((entry, self.keep_file(&pinned, opened?, flags)))
            }
            // somebody made it meanwhile: the kernel looks it up again, and checks who may open it
            Err(Errno::EEXIST) if flags & crate::contents::O_EXCL == 0 && !self.is_reserved(dir, name) => {
                Err(Errno::ESTALE)
            }
            Err(error) => Err(error),
        }
    }

    /// True if no file can have a name, though it is not found either.
    fn is_reserved(&self, dir: ObjectId, name: &OsStr) -> bool {
        dir == self.root && name == CONTROL_DIR
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
        let (dir, name) = (self.known_file(dir), name.as_bytes());
        let (pinned, id) = self.pin_file(file)?;
        dir.check(&pinned)?;
        let dir = dir.id;
        pinned.link(&self.caller(req), id, dir, name).map_err(|error| error.errno())?;
        self.entry(&pinned, id, Some((dir, name)))
    }

    pub(crate) fn unlink(&self, req: &Request, dir: INodeNo, name: &OsStr) -> Answer<()> {
        let ((pinned, dir), name) = (self.pin_file(dir)?, name.as_bytes());
        let victim = self.hold_known(&pinned, dir, name);
        pinned.unlink(&self.caller(req), dir, name).map_err(|error| error.errno())?;
        self.removed(&pinned, victim, dir, name);
        Ok(())
    }

    pub(crate) fn rmdir(&self, req: &Request, dir: INodeNo, name: &OsStr) -> Answer<()> {
        let ((pinned, dir), name) = (self.pin_dir(dir)?, name.as_bytes());
        let victim = self.hold_known(&pinned, dir, name);
        pinned.rmdir(&self.changer_in(&pinned, req, dir), dir, name).map_err(|error| error.errno())?;
        self.removed(&pinned, victim, dir, name);
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        req: &Request,
        (dir, name): (INodeNo, &OsStr),
        (to_dir, to_name): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Answer<()> {
        let (name, to_name, target) = (name.as_bytes(), to_name.as_bytes(), self.known_file(to_dir));
        let (pinned, dir) = self.pin_dir(dir)?;
        target.check(&pinned)?;
        let to_dir = target.id;
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            RenameFlags::RENAME_WHITEOUT => RenameMode::Whiteout,
            flags if flags == RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_WHITEOUT => {
                RenameMode::NoReplaceWhiteout
            }
            _ => return Err(Errno::EINVAL),
        };
        let (source, target) = (self.hold_known(&pinned, dir, name), self.hold_known(&pinned, to_dir, to_name));
        let caller = self.changer_in(&pinned, req, dir);
        pinned.rename(&caller, dir, name, to_dir, to_name, mode).map_err(|error| error.errno())?;
        if let Some(source) = &source {
            self.known.renamed(source.id(), (dir, name), Some((to_dir, to_name)));
        }
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                self.known.renamed(target.id(), (to_dir, to_name), Some((dir, name)));
            }
            target => self.removed(&pinned, target, to_dir, to_name),
        }
        Ok(())
    }

    /// Holds the file of a name that is going to lose it, if the kernel knows it. One that cannot be held is not there, or cannot be read.
    fn hold_known(&self, pinned: &Pinned, dir: ObjectId, name: &[u8]) -> Option<Handle> {
        let (id, _) = pinned.lookup(&Cred::ROOT, dir, name).ok()?;
        self.known.generation(id)?;
        pinned.open(&Cred::ROOT, id, 0).ok()
    }

    /// Notes that a file has lost a name, and holds it on if that was the last.
    fn removed(&self, pinned: &Pinned, victim: Option<Handle>, dir: ObjectId, name: &[u8]) {
        let Some(victim) = victim else { return };
        self.known.renamed(victim.id(), (dir, name), None);
        match pinned.attrs(victim.id()) {
            Ok(attrs) if attrs.links == 0 => {
                self.known.hold(victim.id(), Nameless { handle: victim, len: attrs.size });
            }
            _ => {}
        }
    }

    pub(crate) fn readlink(&self, link: INodeNo) -> Answer<Vec<u8>> {
        let (pinned, id) = self.pin_file(link)?;
        pinned.readlink(id).map_err(|error| error.errno())
    }

    pub(crate) fn opendir(&self, req: &Request, dir: INodeNo) -> Answer<Opened> {
        let (pinned, id) = self.pin_file(dir)?;
        let handle = pinned.open(&self.caller(req), id, MAY_READ).map_err(|error| error.errno())?;
        Ok(self.keep(handle, FopenFlags::empty(), false))
    }

    /// Lists a directory from an offset on, until `add` returns that there is no room. An error is told only if nothing was added: it comes
    /// again with the next request.
    fn list(&self, dir: &Subject, offset: u64, mut add: impl FnMut(&Pinned, Listed) -> bool) -> Answer<()> {
        let mut added = false;
        let mut listed = |pinned: &Pinned, entry| {
            let full = add(pinned, entry);
            added |= !full;
            full
        };
        match self.list_to(dir, offset, &mut listed) {
            Err(_) if added => Ok(()),
            done => done,
        }
    }

    fn list_to(&self, subject: &Subject, offset: u64, add: &mut dyn FnMut(&Pinned, Listed) -> bool) -> Answer<()> {
        // also while entries are read one by one
        let (dir, pinned) = (subject.id, subject.pin()?);
        let own = |id, name: &[u8], next| Listed { id, kind: Kind::Directory, name: name.to_vec(), next };
        if offset < BEHIND_DOT && add(&pinned, own(dir, b".", BEHIND_DOT)) {
            return Ok(());
        }
        if offset < BEHIND_DOTS {
            let parent = pinned.attrs(dir).map_err(|error| error.errno())?.parent;
            if add(&pinned, own(parent, b"..", BEHIND_DOTS)) {
                return Ok(());
            }
        }
        let cookie = if offset <= BEHIND_DOTS { 0 } else { offset };
        // who lists it was checked when it was opened
        let entries = pinned.read_dir(&Cred::ROOT, dir, cookie).map_err(|error| error.errno())?;
        for entry in entries {
            let DirEntry { name, object: id, kind, next_cookie: next } = entry.map_err(|error| error.errno())?;
            if add(&pinned, Listed { id, kind, name, next }) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the inode number that a listing shows.
    fn shown(&self, pinned: &Pinned, id: ObjectId) -> u64 {
        let of_root = || stat(&**pinned, id).map_or(id.0, |stat| stat.inode);
        if id == self.root { of_root() } else { id.0 }
    }

    pub(crate) fn readdir(&self, dir: &Subject, offset: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        self.list(dir, offset, |pinned, entry| {
            // old pools do not have the type in the entry
            let kind = match entry.kind {
                Kind::Other(_) => pinned.attrs(entry.id).map_or(entry.kind, |attrs| attrs.kind()),
                kind => kind,
            };
            let name = OsStr::from_bytes(&entry.name);
            reply.add(INodeNo(self.shown(pinned, entry.id)), entry.next, file_type(kind), name)
        })
    }

    pub(crate) fn readdirplus(&self, dir: &Subject, offset: u64, reply: &mut ReplyDirectoryPlus) -> Answer<()> {
        self.list(dir, offset, |pinned, entry| {
            let Listed { id, kind, name, next } = entry;
            let os_name = OsStr::from_bytes(&name);
            let Ok(stat) = pinned.getattr_listed(id) else {
                // the kernel learns the name and the type of a file without a number; whoever asks for more gets the error
                let attr = file_attr(&unreadable(id, kind), 0);
                return reply.add(INodeNo(0), next, os_name, &Duration::ZERO, &attr, Generation(0));
            };
            let generation = Generation(stat.attrs.generation);
            if next <= BEHIND_DOTS {
                // the kernel does not look up these two, and shows the number
                let attr = file_attr(&stat, stat.inode);
                return reply.add(attr.ino, next, os_name, &Duration::ZERO, &attr, generation);
            }
            let cached = self.looked_up(id, &stat.attrs, Some((dir.id, &name))) && pinned.is_told(id);
            let ttl = if cached { ttl(self.attr_ttl, &stat).min(self.name_ttl) } else { Duration::ZERO };
            let attr = file_attr(&stat, self.node(id));
            let full = reply.add(attr.ino, next, os_name, &ttl, &attr, generation);
            if full {
                let _held = self.known.forgotten(id, 1);
            }
            full
        })
    }
}

/// Returns what is known of a file whose attributes cannot be read.
fn unreadable(id: ObjectId, kind: Kind) -> Stat {
    let attrs = Attrs {
        mode: u32::from(kind.number()) << TYPE_SHIFT,
        owner: zpl::Fuid::default(),
        group: zpl::Fuid::default(),
        size: 0,
        links: 1,
        generation: 0,
        parent: ObjectId::NONE,
        atime: zpl::Time::default(),
        mtime: zpl::Time::default(),
        ctime: zpl::Time::default(),
        crtime: zpl::Time::default(),
        flags: zpl::FileFlags::default(),
        projid: None,
        rdev: None,
        xattr_dir: ObjectId::NONE,
        seq: None,
    };
    Stat { attrs, inode: id.0, blocks: 0, is_settled: true, block_size: 512 }
}
