//! Tells the kernel what a command has changed behind the mount.
//!
//! The kernel locks the directory of a name that it is told of, and may wait for requests about it that are under way: none of this may be called
//! with a transaction or a lock of the engine held, nor by a thread that answers requests.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use base::{Errno, ObjectId};
use fuser::INodeNo;
use parking_lot::Mutex;

use crate::Error;
use crate::known::{Known, Name};

/// The connection by which the kernel is told: there is none before the mount is there, and after its end.
#[derive(Default)]
pub(crate) struct Line(Mutex<Option<fuser::Notifier>>);

impl Line {
    pub(crate) fn open(&self, notifier: fuser::Notifier) {
        *self.0.lock() = Some(notifier);
    }

    /// Gives up the connection, whose last user ends it.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn get(&self) -> Option<fuser::Notifier> {
        self.0.lock().clone()
    }
}

/// Tells the kernel of changes. Cheap to clone; once the mount has ended nothing needs to be told, and all succeeds.
#[derive(Clone)]
pub struct Notifier {
    pub(crate) line: Arc<Line>,
    pub(crate) known: Arc<Known>,
    pub(crate) root: ObjectId,
}

impl Notifier {
    /// Tells that the contents or the attributes of a file changed.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn changed(&self, id: ObjectId) -> Result<(), Error> {
        if id != self.root && self.known.generation(id).is_none() {
            return Ok(());
        }
        self.tell(|notifier| notifier.inval_inode(self.node(id), 0, 0))
    }

    /// Tells that a name in a directory appeared, disappeared, or names another file.
    ///
    /// # Errors
    /// If the kernel does not take it.
    pub fn renamed(&self, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.changed(dir)?;
        self.tell(|notifier| notifier.inval_entry(self.node(dir), OsStr::from_bytes(name)))
    }

    /// Tells that any file may have changed. A file that the kernel does not take does not keep the others from it.
    ///
    /// # Errors
    /// The first of those of the kernel.
    pub fn all_changed(&self) -> Result<(), Error> {
        let mut done = self.tell(|notifier| notifier.inval_inode(INodeNo::ROOT, 0, 0));
        for Name { id, name } in self.known.names() {
            if let Some((dir, name)) = name {
                let told = self.tell(|notifier| notifier.inval_entry(self.node(dir), OsStr::from_bytes(&name)));
                done = done.and(told);
            }
            done = done.and(self.tell(|notifier| notifier.inval_inode(self.node(id), 0, 0)));
        }
        done
    }

    fn node(&self, id: ObjectId) -> INodeNo {
        if id == self.root { INodeNo::ROOT } else { INodeNo(id.0) }
    }

    fn tell(&self, what: impl FnOnce(&fuser::Notifier) -> io::Result<()>) -> Result<(), Error> {
        let Some(notifier) = self.line.get() else { return Ok(()) };
        match what(&notifier) {
            Err(error) if !has_ended(&error) => Err(Error::Notify(error)),
            _ => Ok(()),
        }
    }
}

/// True if the mount is no more.
fn has_ended(error: &io::Error) -> bool {
    [Errno::ENODEV.raw(), Errno::ENOTCONN.raw()].contains(&error.raw_os_error().unwrap_or(0))
}
