//! A directory of devices, and what somebody has open of it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use base::Errno;
use fuser::{FileAttr, FileHandle, FileType, INodeNo, OpenAccMode, OpenFlags, ReplyDirectory};
use parking_lot::Mutex;

use super::nodes::{Nodes, ROOT};
use super::{Device, Devices, Entry, Found, Identity, Kind};

/// The number of an entry of a directory that the kernel has not looked up (as libfuse has it).
const UNKNOWN: u64 = 0xffff_ffff;
/// Bytes of the unit of `blocks` in attributes.
const SECTOR: u64 = 512;
/// Modes of `fallocate`.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
/// Kinds of `lseek` that the kernel leaves to us.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// A directory of devices.
pub(super) struct Tree {
    devices: Arc<dyn Devices>,
    nodes: Mutex<Nodes>,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
    owner: (u32, u32),
}

/// What somebody has open.
pub(super) enum Open {
    Directory(Arc<Vec<(String, FileType)>>),
    Device(OpenDevice),
}

/// A device that somebody has open.
#[derive(Clone)]
pub(super) struct OpenDevice {
    /// The number of its file.
    node: u64,
    /// The lane of its requests.
    pub(super) lane: Arc<str>,
    pub(super) device: Arc<dyn Device>,
}

pub(super) type Answer<T> = Result<T, Errno>;

/// Returns the lane of the requests about a path: what is below one name of the root, a pool, waits together.
pub(super) fn lane_of(path: &str) -> &str {
    path.split(['/', '@']).next().unwrap_or_default()
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Device { .. } => FileType::RegularFile,
    }
}

impl Tree {
    pub(super) fn new(devices: Arc<dyn Devices>) -> Tree {
        Tree {
            devices,
            nodes: Mutex::default(),
            open: Mutex::default(),
            next: AtomicU64::new(1),
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        }
    }

    /// The path of a node, and what was there.
    fn place(&self, node: INodeNo) -> Answer<(String, Option<Identity>)> {
        match node.0 {
            ROOT => Ok((String::new(), None)),
            number => {
                let (path, identity) = self.nodes.lock().path(number).ok_or(Errno::ESTALE)?;
                Ok((path, Some(identity)))
            }
        }
    }

    /// The path of a node.
    ///
    /// # Errors
    /// ESTALE if it is not known.
    pub(super) fn path(&self, node: INodeNo) -> Answer<String> {
        self.place(node).map(|(path, _)| path)
    }

    /// The path of a name in a directory.
    ///
    /// # Errors
    /// ENOENT for a name that is none; ESTALE if the directory is not known.
    pub(super) fn path_below(&self, parent: INodeNo, name: &OsStr) -> Answer<String> {
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        let mut path = self.path(parent)?;
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(name);
        Ok(path)
    }

    /// What a node is by now.
    ///
    /// # Errors
    /// ESTALE if it is not where it was.
    fn now(&self, node: INodeNo) -> Answer<Found> {
        let (path, identity) = self.place(node)?;
        match self.devices.find(&path) {
            Ok(found) if identity.is_none_or(|identity| found.identity == identity) => Ok(found),
            Ok(_) | Err(Errno::ENOENT) => Err(Errno::ESTALE),
            Err(error) => Err(error),
        }
    }

    fn attr(&self, node: u64, kind: Kind) -> FileAttr {
        let (perm, size, block_size, nlink) = match kind {
            Kind::Directory => (0o755, 0, SECTOR, 2),
            Kind::Device { size, block_size, read_only } => {
                (if read_only { 0o400 } else { 0o600 }, size, block_size, 1)
            }
        };
        FileAttr {
            ino: INodeNo(node),
            size,
            blocks: size.div_ceil(SECTOR),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: file_type(kind),
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: u32::try_from(block_size).unwrap_or(u32::MAX),
            flags: 0,
        }
    }

    /// The attributes of a node. Of a device that somebody has open they are known whatever its name is by now.
    pub(super) fn attributes(&self, node: INodeNo) -> Answer<FileAttr> {
        let is_it = |open: &Open| match open {
            Open::Device(open) if open.node == node.0 => Some(open.device.clone()),
            _ => None,
        };
        let device = self.open.lock().values().find_map(is_it);
        let kind = match device {
            Some(device) => {
                Kind::Device { size: device.size(), block_size: device.block_size(), read_only: device.is_read_only() }
            }
            None => self.now(node)?.kind,
        };
        Ok(self.attr(node.0, kind))
    }

    pub(super) fn look_up(&self, path: String) -> Answer<FileAttr> {
        let found = self.devices.find(&path)?;
        let node = self.nodes.lock().looked_up(path, found.identity);
        Ok(self.attr(node, found.kind))
    }

    pub(super) fn forget(&self, node: INodeNo, lookups: u64) {
        self.nodes.lock().forgotten(node.0, lookups);
    }

    fn keep(&self, open: Open) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(number, open);
        FileHandle(number)
    }

    /// Takes what is no longer open. The last user of a device closes it when it drops that, which takes time.
    pub(super) fn release(&self, handle: FileHandle) -> Option<Open> {
        self.open.lock().remove(&handle.0)
    }

    /// Takes everything that is open.
    pub(super) fn release_all(&self) -> Vec<Open> {
        self.open.lock().drain().map(|(_, open)| open).collect()
    }

    pub(super) fn device(&self, handle: FileHandle) -> Answer<OpenDevice> {
        match self.open.lock().get(&handle.0) {
            Some(Open::Device(open)) => Ok(open.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// Opens the device that a node is; another one that has taken its name is not opened.
    pub(super) fn open_device(&self, node: INodeNo, flags: OpenFlags) -> Answer<FileHandle> {
        let (path, Some(identity)) = self.place(node)? else { return Err(Errno::EISDIR) };
        let device = self.devices.open(&path, identity).map_err(|error| match error {
            Errno::ENOENT => Errno::ESTALE,
            error => error,
        })?;
        if flags.acc_mode() != OpenAccMode::O_RDONLY && device.is_read_only() {
            return Err(Errno::EROFS);
        }
        Ok(self.keep(Open::Device(OpenDevice { node: node.0, lane: lane_of(&path).into(), device })))
    }

    pub(super) fn open_directory(&self, node: INodeNo) -> Answer<FileHandle> {
        let path = self.path(node)?;
        let dots = [".", ".."].map(|name| (name.to_owned(), FileType::Directory));
        let found = self.devices.list(&path)?.into_iter().map(|(name, entry)| match entry {
            Entry::Directory => (name, FileType::Directory),
            Entry::Device => (name, FileType::RegularFile),
        });
        Ok(self.keep(Open::Directory(Arc::new(dots.into_iter().chain(found).collect()))))
    }

    pub(super) fn read_directory(&self, handle: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        let entries = match self.open.lock().get(&handle.0) {
            Some(Open::Directory(entries)) => entries.clone(),
            _ => return Err(Errno::EBADF),
        };
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, kind)) in entries.iter().enumerate().skip(begin) {
            if reply.add(INodeNo(UNKNOWN), place as u64 + 1, *kind, name) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the part of a request's range that is within a device; `None` if there is none.
fn within(device: &dyn Device, offset: u64, len: u64) -> Option<u64> {
    device.size().checked_sub(offset).map(|left| left.min(len)).filter(|len| *len > 0)
}

/// Writes what fits, and returns how much that is.
pub(super) fn write(device: &dyn Device, offset: u64, data: &[u8], durable: bool) -> Answer<u32> {
    if data.is_empty() {
        return Ok(0);
    }
    // as Linux has it for block devices
    let len = within(device, offset, data.len() as u64).ok_or(Errno::ENOSPC)?;
    device.write(offset, data.get(..len as usize).unwrap_or_default(), durable)?;
    // a request is never that long
    Ok(len as u32)
}

/// Frees a range.
pub(super) fn free(device: &dyn Device, offset: u64, len: u64, mode: i32) -> Answer<()> {
    if mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 || mode & (PUNCH_HOLE | ZERO_RANGE) == 0 {
        return Err(Errno::ENOTSUP);
    }
    let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
    if mode & KEEP_SIZE == 0 && end > device.size() {
        return Err(Errno::ENOSPC);
    }
    match within(device, offset, len) {
        Some(len) => device.discard(offset, len),
        None => Ok(()),
    }
}

/// Looks for data or a hole.
pub(super) fn seek(device: &dyn Device, offset: i64, whence: i32) -> Answer<i64> {
    let at = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
    let end = device.size();
    if at >= end {
        return Err(Errno::ENXIO);
    }
    let found = match whence {
        SEEK_DATA => device.seek(at, true)?.ok_or(Errno::ENXIO)?,
        // there is one behind the end
        SEEK_HOLE => device.seek(at, false)?.unwrap_or(end),
        _ => return Err(Errno::EINVAL),
    };
    Ok(found.cast_signed())
}
