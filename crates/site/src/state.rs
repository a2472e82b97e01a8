//! The state folder and its files, as every part of this crate opens them.
//!
//! Root may work with the state folder of another user (`sudo` keeps `HOME` on some systems), who can put anything there, at any moment: links to
//! files of the system, pipes that nobody reads, folders in the place of others. So:
//!
//! * The state folder itself may be reached through links; below it none is followed. A name is looked up in a folder that is open, never by its path.
//! * Only regular files are used, and opening one never waits. In a folder of another user none is written that has a name elsewhere, too.
//! * Files have mode 0600 and folders 0700: whoever could open one could lock it, and stop the commands that wait for it.
//! * What a superuser makes for other commands is given to the owner of the state folder, through the descriptor that it was made with.
//!
//! Locks that others hold are waited for with a bound ([`Patience`]).

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{self, AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::{Front, Silent, patience, records};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Folders and files are for their owner only.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The permissions of all but the owner.
const OTHERS: u32 = 0o077;
/// No file of the state is longer.
const FILE_MAX: u64 = 64 << 20;
/// Limit on making or opening a file that other commands remove and make.
const TRIES: u32 = 10;
/// The time that a command waits for another one that has a file of the state for a moment.
const MOMENT: Duration = Duration::from_secs(1);

/// The state folder, or one in it, open.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    /// The user whom files in it are made for: the owner of the state folder.
    owner: (Uid, Gid),
}

impl Folder {
    /// Opens the state folder.
    pub(crate) fn open() -> io::Result<Folder> {
        Folder::at(records::folder().map_err(|_| io::ErrorKind::NotFound)?)
    }

    fn at(path: PathBuf) -> io::Result<Folder> {
        let fd = fs::open(&path, FOLDER, Mode::empty())?;
        let stat = fs::fstat(&fd)?;
        Ok(Folder { fd, path, owner: (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)) })
    }

    /// Opens the state folder; it is made if it is not there, with those above it, and stays after a crash.
    pub(crate) fn make() -> io::Result<Folder> {
        let path = records::folder().map_err(|_| io::ErrorKind::NotFound)?;
        let new: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
        if !new.is_empty() {
            std::fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&path)?;
            new.iter().try_for_each(|made| vdev::sync_names(made))?;
        }
        Folder::at(path)
    }

    /// Opens a folder of the state folder.
    pub(crate) fn sub(&self, name: &str) -> io::Result<Folder> {
        let fd = fs::openat(&self.fd, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Folder { fd, path: self.path.join(name), owner: self.owner })
    }

    /// Opens a folder of the state folder that all commands use; it is made if it is not there.
    pub(crate) fn make_sub(&self, name: &str) -> io::Result<Folder> {
        let is_new = self.make_dir(name)?;
        let sub = self.sub(name)?;
        let stat = fs::fstat(&sub.fd)?;
        // another folder may have its name by now; an empty one can be given away
        if is_new && self.is_foreign() && sub.names()?.is_empty() {
            fs::fchown(&sub.fd, Some(self.owner.0), Some(self.owner.1))?;
        } else if stat.st_uid == geteuid().as_raw() && stat.st_mode & OTHERS != 0 {
            // made by version 0.1
            fs::fchmod(&sub.fd, Mode::from_raw_mode(FOLDER_MODE))?;
        }
        Ok(sub)
    }

    /// Opens a folder of the state folder that is this user's alone; it is made if it is not there.
    pub(crate) fn make_own_sub(&self, name: &str) -> io::Result<Folder> {
        self.make_dir(name)?;
        self.own_sub(name)
    }

    /// Opens a folder of the state folder that is this user's alone.
    pub(crate) fn own_sub(&self, name: &str) -> io::Result<Folder> {
        self.sub(name)?.if_own()
    }

    /// Opens a folder that is this user's alone, by its path.
    pub(crate) fn own(path: &Path) -> io::Result<Folder> {
        let fd = fs::open(path, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        Folder { fd, path: path.to_owned(), owner: (geteuid(), getegid()) }.if_own()
    }

    fn if_own(self) -> io::Result<Folder> {
        let stat = fs::fstat(&self.fd)?;
        if stat.st_uid != geteuid().as_raw() || stat.st_mode & OTHERS != 0 {
            let why = format!("'{}' is not a folder that only its owner may use", self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Folder { owner: (geteuid(), getegid()), ..self })
    }

    /// Makes a folder in it. Returns whether it was not there.
    fn make_dir(&self, name: &str) -> io::Result<bool> {
        match fs::mkdirat(&self.fd, name, Mode::from_raw_mode(FOLDER_MODE)) {
            Err(Errno::EXIST) => Ok(false),
            made => Ok(made.map(|()| true)?),
        }
    }

    /// Whether the state folder belongs to another user.
    fn is_foreign(&self) -> bool {
        self.owner.0 != geteuid()
    }

    /// The user that it belongs to.
    pub(crate) fn owner(&self) -> u32 {
        self.owner.0.as_raw()
    }

    /// Its path, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The address of a socket in it. It goes by the descriptor, as an address has no room for a long path.
    pub(crate) fn address(&self, socket: &str) -> String {
        format!("/proc/self/fd/{}/{socket}", self.fd.as_raw_fd())
    }

    /// Sets the mode of a socket of this user's; gives its device and inode. What another user has put in its place is left alone.
    pub(crate) fn set_socket_mode(&self, socket: &str, mode: u32) -> io::Result<(u64, u64)> {
        let found = fs::openat(&self.fd, socket, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fs::fstat(&found)?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if !is_socket || stat.st_uid != geteuid().as_raw() || stat.st_nlink > 1 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not the socket that was made"));
        }
        fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::from_raw_mode(mode))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The device and inode of what has this name, and not of where a link leads.
    pub(crate) fn identity(&self, name: &str) -> io::Result<(u64, u64)> {
        let stat = fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Opens a file for reading.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        self.file_as(name, OFlags::RDONLY)
    }

    /// Opens a file for reading and writing.
    pub(crate) fn file_to_write(&self, name: &str) -> io::Result<File> {
        self.file_as(name, OFlags::RDWR)
    }

    fn file_as(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let file = File::from(fs::openat(&self.fd, name, flags | FILE, Mode::empty())?);
        let stat = fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
        if flags.contains(OFlags::RDWR) && self.is_foreign() && stat.st_nlink > 1 {
            let why = "a file with several names, in a folder of another user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(file)
    }

    /// Opens a file that all commands with this state folder write; it is made if it is not there.
    pub(crate) fn shared_file(&self, name: &str) -> io::Result<File> {
        for _ in 0..TRIES {
            match self.new_shared_file(name) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                done => return done,
            }
            match self.file_to_write(name) {
                // removed meanwhile
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Makes a new file for all commands with this state folder, which is filled and locked before another one can find it.
    pub(crate) fn locked_file(&self, name: &str, fill: impl FnOnce(&File) -> io::Result<()>) -> io::Result<File> {
        let new = format!(".{name}");
        // of a process that had the same number
        self.remove(&new)?;
        let file = self.new_shared_file(&new)?;
        let done = file.lock().and_then(|()| fill(&file)).and_then(|()| self.rename(&new, name));
        done.inspect_err(|_| drop(self.remove(&new)))?;
        Ok(file)
    }

    /// Makes a new file that all commands with this state folder may write and remove.
    fn new_shared_file(&self, name: &str) -> io::Result<File> {
        let file = self.new_file(name)?;
        if self.is_foreign() {
            fs::fchown(&file, Some(self.owner.0), Some(self.owner.1))?;
        }
        Ok(file)
    }

    /// Makes a new file, of this user's.
    fn new_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        Ok(fs::openat(&self.fd, name, flags, Mode::from_raw_mode(FILE_MODE))?.into())
    }

    /// Reads a file.
    pub(crate) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        read_all(&self.file(name)?)
    }

    /// Replaces a file as a whole, by one for all commands with this state folder: who reads it sees the old one or the new one.
    pub(crate) fn replace_shared(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.replace(name, Folder::new_shared_file, |mut file| file.write_all(bytes))
    }

    /// Replaces a file as a whole, by one of this user's, which stays after a crash.
    pub(crate) fn replace_own(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.replace(name, Folder::new_file, |mut file| file.write_all(bytes).and_then(|()| file.sync_all()))?;
        self.sync()
    }

    fn replace(
        &self,
        name: &str,
        make: impl FnOnce(&Folder, &str) -> io::Result<File>,
        fill: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        // threads have names of their own as well
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let new = format!(".{name}.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // of a process that had this number before
        self.remove(&new)?;
        let made = make(self, &new).and_then(|file| fill(&file)).and_then(|()| self.rename(&new, name));
        made.inspect_err(|_| drop(self.remove(&new)))
    }

    /// Returns whether there is something with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Gives a file another name; what had it is replaced.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Makes the names in it durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match fs::fsync(&self.fd) {
            // file systems that cannot
            Err(Errno::INVAL | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => Ok(()),
            done => Ok(done?),
        }
    }

    /// The names in it.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            // no name that we give needs more than ASCII
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }
}

/// Reads a file from its beginning.
pub(crate) fn read_all(mut file: &File) -> io::Result<Vec<u8>> {
    use std::io::Seek;
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns whether another process has the file locked; if the lock cannot be queried it counts as locked.
pub(crate) fn is_locked(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            drop(file.unlock());
            false
        }
        Err(_) => true,
    }
}

/// A kind of lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lock {
    /// For reading.
    Shared,
    /// For writing.
    Exclusive,
}

/// How long the lock of a file is waited for.
pub(crate) enum Patience<'a> {
    /// A second: others have it for a moment. A process that was stopped while it has it does not stop others for long.
    Moment,
    /// As long as devices are waited for (`busy_wait`): others have it while they work. The front is told who has it.
    Work {
        /// The path of the file, for messages.
        path: &'a Path,
        /// The front.
        front: &'a dyn Front,
    },
}

/// Waits for the lock of a file, with a bound.
pub(crate) fn lock(file: &File, lock: Lock, patience: Patience<'_>) -> io::Result<()> {
    let (front, path, time) = match patience {
        Patience::Moment => (&Silent as &dyn Front, Path::new(""), MOMENT),
        Patience::Work { path, front } => (front, path, patience::busy_wait()),
    };
    let shown = || path.display().to_string();
    let attempt = || match lock {
        Lock::Shared => file.try_lock_shared(),
        Lock::Exclusive => file.try_lock(),
    };
    let attempt = || match attempt() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(vdev::Error::Busy { path: shown(), holder: vdev::device::lock_holder(file) })
        }
        Err(TryLockError::Error(source)) => Err(vdev::Error::Open { path: shown(), source }),
    };
    patience::patiently(front, time, attempt).map_err(|e| match e {
        vdev::Error::Busy { holder, .. } => io::Error::new(io::ErrorKind::ResourceBusy, format!("in use{holder}")),
        vdev::Error::Open { source, .. } => source,
        other => io::Error::other(other),
    })
}
