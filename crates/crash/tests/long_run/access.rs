//! The two ways to the files of a directory: the engine's operations, and system calls in a mounted file system.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use zuse::base::ObjectId;
use zuse::zpl::Kind;
use zuse::zpl::live::{Cred, NewFile, RenameMode, SetAttr, Zfs};

use crate::world::failed;

/// A directory whose files are changed. All names are of files in it.
pub trait Access: Send {
    fn create(&self, name: &str) -> Result<(), String>;
    /// Writes; with `sync` the data is safe on return.
    fn write(&self, name: &str, offset: u64, data: &[u8], sync: bool) -> Result<(), String>;
    fn append(&self, name: &str, data: &[u8]) -> Result<(), String>;
    fn truncate(&self, name: &str, size: u64) -> Result<(), String>;
    fn punch(&self, name: &str, range: Range<u64>) -> Result<(), String>;
    /// Reads from the beginning, and returns how much was read.
    fn read(&self, name: &str, buf: &mut [u8]) -> Result<usize, String>;
    fn rename(&self, from: &str, to: &str) -> Result<(), String>;
    fn remove(&self, name: &str) -> Result<(), String>;
    fn fsync(&self, name: &str) -> Result<(), String>;
}

/// A directory by its object.
pub struct ByEngine<'a> {
    pub zfs: &'a Zfs,
    pub dir: ObjectId,
}

impl ByEngine<'_> {
    fn id(&self, name: &str) -> Result<ObjectId, String> {
        Ok(self.zfs.lookup(&Cred::ROOT, self.dir, name.as_bytes()).map_err(failed("lookup"))?.0)
    }
}

impl Access for ByEngine<'_> {
    fn create(&self, name: &str) -> Result<(), String> {
        let made = self.zfs.create(&Cred::ROOT, self.dir, name.as_bytes(), &NewFile::new(Kind::File, 0o644));
        made.map(drop).map_err(failed("create"))
    }

    fn write(&self, name: &str, offset: u64, data: &[u8], sync: bool) -> Result<(), String> {
        let id = self.id(name)?;
        match sync {
            true => self.zfs.write_sync(&Cred::ROOT, id, Some(offset), data).map(drop),
            false => self.zfs.write(&Cred::ROOT, id, offset, data),
        }
        .map_err(failed("write"))
    }

    fn append(&self, name: &str, data: &[u8]) -> Result<(), String> {
        self.zfs.append(&Cred::ROOT, self.id(name)?, data).map(drop).map_err(failed("append"))
    }

    fn truncate(&self, name: &str, size: u64) -> Result<(), String> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.zfs.setattr(&Cred::ROOT, self.id(name)?, &set).map(drop).map_err(failed("truncate"))
    }

    fn punch(&self, name: &str, range: Range<u64>) -> Result<(), String> {
        self.zfs.punch(&Cred::ROOT, self.id(name)?, range).map_err(failed("punch"))
    }

    fn read(&self, name: &str, buf: &mut [u8]) -> Result<usize, String> {
        self.zfs.read(self.id(name)?, 0, buf).map_err(failed("read"))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let renamed = self.zfs.rename(&Cred::ROOT, self.dir, from, self.dir, to, RenameMode::Replace);
        renamed.map_err(failed("rename"))
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        self.zfs.unlink(&Cred::ROOT, self.dir, name.as_bytes()).map_err(failed("unlink"))
    }

    fn fsync(&self, name: &str) -> Result<(), String> {
        self.zfs.fsync(self.id(name)?).map_err(failed("fsync"))
    }
}

/// A directory by its path in a mounted file system.
pub struct Mounted {
    pub dir: PathBuf,
}

impl Mounted {
    fn open(&self, name: &str, flags: OFlags) -> Result<File, String> {
        let flags = i32::try_from(flags.bits()).map_err(failed("flags"))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags);
        options.open(self.dir.join(name)).map_err(failed(format!("open {name} in {}", self.dir.display())))
    }
}

impl Access for Mounted {
    fn create(&self, name: &str) -> Result<(), String> {
        File::create_new(self.dir.join(name)).map(drop).map_err(failed("creat(2)"))
    }

    fn write(&self, name: &str, offset: u64, data: &[u8], sync: bool) -> Result<(), String> {
        let file = self.open(name, if sync { OFlags::DSYNC } else { OFlags::empty() })?;
        file.write_all_at(data, offset).map_err(failed("pwrite(2)"))
    }

    fn append(&self, name: &str, data: &[u8]) -> Result<(), String> {
        self.open(name, OFlags::APPEND)?.write_all(data).map_err(failed("write(2), appending"))
    }

    fn truncate(&self, name: &str, size: u64) -> Result<(), String> {
        self.open(name, OFlags::empty())?.set_len(size).map_err(failed("ftruncate(2)"))
    }

    fn punch(&self, name: &str, range: Range<u64>) -> Result<(), String> {
        let file = self.open(name, OFlags::empty())?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, range.start, range.end - range.start).map_err(failed("fallocate(2)"))
    }

    fn read(&self, name: &str, buf: &mut [u8]) -> Result<usize, String> {
        let file = self.open(name, OFlags::empty())?;
        let mut done = 0;
        loop {
            match file.read_at(&mut buf[done..], done as u64).map_err(failed("pread(2)"))? {
                0 => return Ok(done),
                read => done += read,
            }
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        fs::rename(self.dir.join(from), self.dir.join(to)).map_err(failed("rename(2)"))
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        fs::remove_file(self.dir.join(name)).map_err(failed("unlink(2)"))
    }

    fn fsync(&self, name: &str) -> Result<(), String> {
        self.open(name, OFlags::empty())?.sync_all().map_err(failed("fsync(2)"))
    }
}
