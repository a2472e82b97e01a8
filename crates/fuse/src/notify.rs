//! Tells the kernel what a command has changed behind the mount.
//!
//! The kernel locks the directory of a name that it is told of, and may wait for requests about it that are under way: none of this may be called
//! with a transaction or a lock of the engine held, nor by a thread that answers requests.
//!
//! What was read for an answer before the change may be sent behind it. So such answers are waited for ([`under_way`](crate::under_way)); and a
//! file that the kernel has just been told of, but that it does not know yet, is told of again.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::ObjectId;
use fuser::INodeNo;
use parking_lot::Mutex;

use crate::Error;
use crate::below::{Below, Inner};
use crate::known::{Known, Name};
use crate::mapped::Mapped;
use crate::served::Served;
use crate::under_way::UnderWay;

/// The messages to the kernel (Linux: `fuse_notify_code`).
const INVAL_INODE: u32 = 2;
const INVAL_ENTRY: u32 = 3;
/// The name is looked up again, and stays until then, with what is mounted there.
const EXPIRE_ONLY: u32 = 1;
/// Bytes of the head of a message: its length, its code, and a number that is 0.
const HEAD: usize = 16;

/// How often, and in what intervals, the kernel is told again of a file that it does not know yet.
const AGAIN: usize = 1000;
const INTERVAL: Duration = Duration::from_millis(1);

/// The connection by which the kernel is told: there is none before the mount is there, and after its end.
#[derive(Default)]
pub(crate) struct Line {
    device: Mutex<Option<Arc<OwnedFd>>>,
    /// The kernel knows [`EXPIRE_ONLY`].
    expires: AtomicBool,
}

impl Line {
    pub(crate) fn open(&self, device: OwnedFd) {
        *self.device.lock() = Some(Arc::new(device));
    }

    /// Gives up the connection.
    pub(crate) fn close(&self) {
        *self.device.lock() = None;
    }

    pub(crate) fn kernel_expires(&self, expires: bool) {
        self.expires.store(expires, Ordering::Relaxed);
    }

    /// Tells that the attributes of a file changed. Returns whether the kernel knows it, as the others do.
    pub(crate) fn attributes_changed(&self, node: u64) -> io::Result<bool> {
        self.inode(node, -1)
    }

    /// Tells that the contents of a file changed as well.
    pub(crate) fn contents_changed(&self, node: u64) -> io::Result<bool> {
        self.inode(node, 0)
    }

    fn inode(&self, node: u64, offset: i64) -> io::Result<bool> {
        // to the end
        let len = 0_i64;
        self.send(INVAL_INODE, [node.to_ne_bytes(), offset.to_ne_bytes(), len.to_ne_bytes()].concat())
    }

    /// Tells that a name changed; if mounts are behind it, it has to be looked up, for which not all kernels can be told.
    fn name_changed(&self, dir: u64, name: &[u8], has_mounts: bool) -> io::Result<bool> {
        if has_mounts && !self.expires.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let flags = if has_mounts { EXPIRE_ONLY } else { 0 };
        let len = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let words = [len.to_ne_bytes(), flags.to_ne_bytes()].concat();
        self.send(INVAL_ENTRY, [&dir.to_ne_bytes(), &words[..], name, &[0]].concat())
    }

    fn send(&self, code: u32, body: Vec<u8>) -> io::Result<bool> {
        let Some(device) = self.device.lock().clone() else { return Ok(true) };
        let len = u32::try_from(HEAD + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let message = [&len.to_ne_bytes(), &code.to_ne_bytes(), &[0; 8][..], &body].concat();
        match rustix::io::retry_on_intr(|| rustix::io::write(&device, &message)) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            // the mount is no more
            Err(rustix::io::Errno::NODEV | rustix::io::Errno::NOTCONN) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Tells the kernel of changes. Cheap to clone; once the mount has ended nothing needs to be told, and all succeeds.
#[derive(Clone)]
pub struct Notifier {
    line: Arc<Line>,
    known: Arc<Known>,
    under_way: Arc<UnderWay>,
    below: Arc<Below>,
    mapped: Arc<Mapped>,
    root: ObjectId,
}

impl Notifier {
    pub(crate) fn of(served: &Served) -> Notifier {
        Notifier {
            line: served.line.clone(),
            known: served.known.clone(),
            under_way: served.under_way.clone(),
            below: served.below.clone(),
            mapped: served.mapped.clone(),
            root: served.root,
        }
    }

    /// Tells that the contents or the attributes of a file changed.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn changed(&self, id: ObjectId) -> Result<(), Error> {
        self.under_way.wait();
        let mut again = AGAIN;
        self.file_changed(id, &mut again)
    }

    /// Tells that a name in a directory appeared, disappeared, or names another file. If other file systems are mounted behind it, the kernel looks it
    /// up again when it is used next; Linux before 6.2 when it has been cached for [`Options::cache`](crate::Options::cache).
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn renamed(&self, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.changed(dir)?;
        self.name_changed(&self.below.inner(), dir, name)
    }

    /// Notes that the contents of the file system were replaced, before requests go on: what the kernel writes of pages that were changed in mappings
    /// is refused until [`Notifier::all_changed`], as they are of the former contents.
    pub fn replaced(&self) {
        self.mapped.replaced();
    }

    /// Tells that any file may have changed. A file that the kernel does not take does not keep the others from it. For names behind which other
    /// file systems are mounted see [`Notifier::renamed`].
    ///
    /// # Errors
    /// The first of those of the kernel.
    pub fn all_changed(&self) -> Result<(), Error> {
        let (epoch, mut refused) = (self.mapped.epoch(), HashSet::new());
        self.under_way.wait();
        let (inner, mut again) = (self.below.inner(), AGAIN);
        let mut done = self.file_changed(self.root, &mut again);
        for Name { id, name } in self.known.names() {
            if let Some((dir, name)) = name {
                done = done.and(self.name_changed(&inner, dir, &name));
            }
            let told = self.file_changed(id, &mut again);
            if told.is_ok() {
                self.mapped.forgotten(id, epoch);
            } else {
                refused.insert(id);
            }
            done = done.and(told);
        }
        self.mapped.all_forgotten(epoch, &refused);
        done
    }

    fn name_changed(&self, inner: &Inner<'_>, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        let told = self.line.name_changed(self.node(dir), name, inner.are_behind(dir, name));
        told.map(|_| ()).map_err(Error::Notify)
    }

    /// Tells that a file changed, if the kernel knows it or is going to: the answer that tells of it may be sent, and not read yet. One that it has
    /// forgotten is not known here either as soon as that is told. `again` is how often more may be waited for that.
    fn file_changed(&self, id: ObjectId, again: &mut usize) -> Result<(), Error> {
        while id == self.root || self.known.generation(id).is_some() {
            let is_known = self.line.contents_changed(self.node(id)).map_err(Error::Notify)?;
            if is_known || *again == 0 {
                break;
            }
            *again -= 1;
            std::thread::sleep(INTERVAL);
        }
        Ok(())
    }

    fn node(&self, id: ObjectId) -> u64 {
        if id == self.root { INodeNo::ROOT.0 } else { id.0 }
    }
}
