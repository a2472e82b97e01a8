//! The file system during a request: its contents are not replaced between a check and what was checked.
//!
//! Nothing that waits for the kernel, or for another request, may be done while it is pinned: a rollback waits for the pin, and requests for the rollback.

use std::ops::Deref;
use std::sync::Arc;

use base::{Errno, ObjectId};
use zpl::live::{Cred, Handle, Pin, Vfs};

use crate::served::Answer;

/// The file system, with the contents that it has until this is dropped.
pub(crate) struct Pinned {
    vfs: Arc<dyn Vfs>,
    pin: Option<Pin>,
}

impl Pinned {
    pub(crate) fn new(vfs: &Arc<dyn Vfs>) -> Answer<Pinned> {
        let pin = vfs.pin().map_err(|error| error.errno())?;
        Ok(Pinned { vfs: vfs.clone(), pin })
    }

    /// The file system, whose contents may be replaced meanwhile: each operation takes what is there.
    pub(crate) fn unpinned(vfs: &Arc<dyn Vfs>) -> Pinned {
        Pinned { vfs: vfs.clone(), pin: None }
    }

    /// As [`Vfs::open`]; the handle is one that can become stale.
    pub(crate) fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, zpl::Error> {
        match &self.pin {
            Some(pin) => pin.open(cred, id, mask),
            None => self.vfs.open(cred, id, mask),
        }
    }

    /// Checks that a file is still the one with a generation.
    ///
    /// # Errors
    /// ESTALE.
    pub(crate) fn check_generation(&self, id: ObjectId, generation: u64) -> Answer<()> {
        match self.attrs(id) {
            Ok(attrs) if attrs.generation == generation => Ok(()),
            Ok(_) => Err(Errno::ESTALE),
            Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ESTALE) => Err(Errno::ESTALE),
            // what cannot be read fails by itself
            Err(_) => Ok(()),
        }
    }
}

impl Deref for Pinned {
    type Target = dyn Vfs;

    fn deref(&self) -> &(dyn Vfs + 'static) {
        match &self.pin {
            Some(pin) => &**pin,
            None => &*self.vfs,
        }
    }
}

/// What tells whether a file is still the one that a request is about.
#[derive(Clone)]
pub(crate) enum Known {
    /// The generation that the kernel was told, if it knows the file.
    By(Option<u64>),
    /// The handle by which it is open; without one there is nothing to check.
    Open(Option<Arc<Handle>>),
}

/// A file that a request is about, for steps that are not all done at once, nor by one thread.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) id: ObjectId,
    pub(crate) known: Known,
}

impl Subject {
    /// Pins the file system, in which the file is still the same.
    ///
    /// # Errors
    /// ESTALE if it is not there any more; EIO if the file system is not.
    pub(crate) fn pin(&self) -> Answer<Pinned> {
        let pinned = Pinned::new(&self.vfs)?;
        self.check(&pinned)?;
        Ok(pinned)
    }

    /// Checks that the file is still the same.
    ///
    /// # Errors
    /// ESTALE.
    pub(crate) fn check(&self, pinned: &Pinned) -> Answer<()> {
        match &self.known {
            Known::By(Some(told)) => pinned.check_generation(self.id, *told),
            Known::Open(Some(handle)) if handle.is_stale() => Err(Errno::ESTALE),
            Known::By(None) | Known::Open(_) => Ok(()),
        }
    }
}
