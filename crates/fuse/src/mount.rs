//! A mounted file system: from mounting it until it is mounted no more.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, Session};
use parking_lot::Mutex;
use zpl::live::{Mounted, Vfs};

use crate::end::End;
use crate::kernel::{self, FILE_SYSTEM, Place};
use crate::notify::Line;
use crate::served::Served;
use crate::{Error, Notifier, Options};

/// Bytes of the buffer into which `fuser` 0.18 reads: each thread has one, and there is one for the first request, before there are threads.
const BUFFER: usize = (16 << 20) + 4096;
/// Locked from the first request of a mount until its buffer is [taken](Serving::spare).
static BEGINNING: Mutex<()> = Mutex::new(());

/// How to unmount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unmount {
    /// Fails with EBUSY if somebody uses it.
    #[default]
    Idle,
    /// Takes it out of the tree; it ends when nobody uses it any more.
    Lazy,
    /// Ends it: who uses it gets errors.
    Forced,
}

/// A mounted file system. See [the crate](crate). It is unmounted when this is dropped, lazily if somebody uses it.
pub struct Mount {
    place: Arc<Place>,
    notifier: Notifier,
    kernel_decides: bool,
    end: Arc<End>,
}

impl Mount {
    /// Mounts a file system. Until it is unmounted a live one cannot be mounted again.
    ///
    /// # Errors
    /// If the mount point is missing or not a directory, the kernel refuses, or this user may not mount there; EBUSY if it is mounted already.
    pub fn new(vfs: Arc<dyn Vfs>, point: &Path, options: &Options) -> Result<Mount, Error> {
        let acls = vfs.acl_kind();
        let mounted = vfs.mounted(options.temporary(acls)).map_err(|error| Error::Mount {
            path: point.to_owned(),
            source: io::Error::from_raw_os_error(error.errno().raw()),
        })?;
        let served = Served::new(vfs.clone(), acls, options);
        let kernel_decides = served.kernel_decides();
        let (device, place) = kernel::mount(point, FILE_SYSTEM, options, kernel_decides)?;
        let place = Arc::new(place);
        served.below.is_mounted(place.device());
        let notifier = Notifier::of(&served);
        let line = served.line.clone();
        let mut config = Config::default();
        config.acl = options.acl();
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = kernel::open_device().is_ok();
        let end = Arc::new(End::default());
        let begun = device.try_clone().and_then(|own| {
            let beginning = BEGINNING.lock();
            let session = Session::from_fd(served, device, config.acl, config.clone())?;
            let spare = Vec::with_capacity(BUFFER);
            drop(beginning);
            line.open(own);
            let (line, place, end) = (line.clone(), place.clone(), end.clone());
            Serving { vfs, mounted, line, place, end, spare }.begin(session)
        });
        if let Err(source) = begun {
            line.close();
            let path = place.path.clone();
            kernel::unmount(&place, Unmount::Lazy)?;
            return Err(Error::Session { path, source });
        }
        tracing::info!(target: "zuse::fuse", source = options.source, at = %place.path.display(), "mounted");
        Ok(Mount { place, notifier, kernel_decides, end })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Returns what tells the kernel of changes behind the mount.
    #[must_use]
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Returns whether `fusermount3` mounted it: then neither set-id bits nor device files have an effect, whatever the options say.
    #[must_use]
    pub fn is_by_helper(&self) -> bool {
        self.place.is_by_helper
    }

    /// Changes the options that the kernel heeds: `ro`, `exec`, `setuid`, `devices`, and whether it says `noatime`. What takes the place of properties on
    /// this side is the file system's to change.
    ///
    /// # Errors
    /// EPERM if this process is not root and more changes than access times; EBUSY if another mount is on top of it, or files are open for writing that is not to be.
    pub fn remount(&self, options: &Options) -> Result<(), Error> {
        kernel::remount(&self.place, options, self.kernel_decides)
    }

    /// Unmounts. Except after a lazy unmount, the mount has ended on return. Nothing is done if it has ended already.
    ///
    /// # Errors
    /// EBUSY if somebody uses it, or another mount is on top of it; ETIMEDOUT if it is in no tree any more, but is still used (as after a lazy
    /// unmount), or is there in another mount namespace.
    pub fn unmount(&self, how: Unmount) -> Result<(), Error> {
        if self.end.is_gone() {
            return Ok(());
        }
        if how == Unmount::Forced {
            // what was written through mmap is lost otherwise
            kernel::write_out(&self.place.path);
        }
        kernel::unmount(&self.place, how)?;
        // how it ended is for those who wait for it
        if how == Unmount::Lazy || self.end.wait_awhile().is_some() {
            return Ok(());
        }
        let source = io::Error::from_raw_os_error(base::Errno::ETIMEDOUT.raw());
        Err(Error::Unmount { path: self.place.path.clone(), source })
    }

    /// Returns whether the mount has ended, by whomever.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end.has_come()
    }

    /// Waits for the end of a mount that somebody has taken out of the tree, which is not at its end yet when `umount` returns. Returns whether it has
    /// ended; at once if it is still in the tree.
    #[must_use]
    pub fn wait_if_gone(&self, time: Duration) -> bool {
        (self.has_ended() || !kernel::is_in_tree(&self.place)) && self.end.comes_within(time)
    }

    /// Waits until the mount has ended: by [`Mount::unmount`], by anybody else, or because the connection to the kernel broke.
    ///
    /// # Errors
    /// If the connection broke.
    pub fn wait(&self) -> Result<(), Error> {
        loop {
            if let Some(ended) = self.end.wait_awhile() {
                return ended.map_err(|source| Error::Session { path: self.place.path.clone(), source });
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.end.is_gone() {
            return;
        }
        match kernel::unmount(&self.place, Unmount::Idle) {
            Ok(true) => {
                let _ = self.end.wait_awhile();
            }
            // it ends when the last user has gone
            Ok(false) => {}
            Err(_) => {
                if let Err(error) = kernel::unmount(&self.place, Unmount::Lazy) {
                    tracing::warn!(target: "zuse::fuse", %error, "left mounted");
                }
            }
        }
    }
}

/// What a mount holds as long as its requests are answered.
struct Serving {
    vfs: Arc<dyn Vfs>,
    mounted: Mounted,
    line: Arc<Line>,
    place: Arc<Place>,
    end: Arc<End>,
    /// Address space, nothing of which is written: the buffer of the first request, whose first page was. It would be the buffer of the first thread
    /// otherwise, which is filled with zeros, where memory that is new is not: 16 MiB in use for each mount.
    spare: Vec<u8>,
}

impl Serving {
    /// Answers requests in threads until the mount ends.
    fn begin(self, session: Session<Served>) -> io::Result<()> {
        let run = move || {
            let served = session.run();
            self.finish(served);
        };
        std::thread::Builder::new().name("fuse".to_owned()).spawn(run).map(|_| ())
    }

    /// Ends the mount if only the connection has ended, as nobody answers any more; then all is released before anybody hears of the end.
    fn finish(self, served: io::Result<()>) {
        let Serving { vfs, mounted, line, place, end, spare } = self;
        line.close();
        let left = kernel::unmount(&place, Unmount::Forced);
        drop((mounted, vfs, spare));
        tracing::info!(target: "zuse::fuse", ?served, ?left, "unmounted");
        end.tell(served, left.is_ok());
    }
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mount at {}", self.place.path.display())
    }
}
