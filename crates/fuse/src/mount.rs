//! A mounted file system: from mounting it until it is mounted no more.

use std::io;
use std::path::Path;
use std::sync::Arc;

use fuser::{Config, Session, SessionACL};
use parking_lot::{Condvar, Mutex};
use zpl::live::{Temporary, Vfs};

use crate::kernel::{self, Place};
use crate::served::Served;
use crate::{Error, Notifier, Options};

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

/// Whether the mount has ended, and how.
#[derive(Default)]
struct End {
    done: Mutex<Option<Result<(), Arc<io::Error>>>>,
    ended: Condvar,
}

/// A mounted file system. See [the crate](crate). It is unmounted when this is dropped, lazily if somebody uses it.
pub struct Mount {
    place: Place,
    notifier: Notifier,
    end: Arc<End>,
}

impl Mount {
    /// Mounts a file system.
    ///
    /// # Errors
    /// If the mount point is missing or not a directory, the kernel refuses, or this user may not mount there.
    pub fn new(vfs: Arc<dyn Vfs>, point: &Path, options: &Options) -> Result<Mount, Error> {
        let served = Served::new(vfs.clone(), options);
        let (device, place) = kernel::mount(point, options, served.kernel_decides())?;
        vfs.set_temporary(options.temporary());
        let (notifier, known, root) = (served.notifier.clone(), served.known.clone(), served.root);
        let mut config = Config::default();
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = kernel::open_device().is_ok();
        let end = Arc::new(End::default());
        let begun = Session::from_fd(served, device, config.acl, config.clone()).and_then(|session| {
            // it is the first
            let _ = notifier.set(session.notifier());
            serve(session, vfs.clone(), end.clone())
        });
        if let Err(source) = begun {
            vfs.set_temporary(Temporary::default());
            let path = place.path.clone();
            kernel::unmount(&place, Unmount::Lazy)?;
            return Err(Error::Session { path, source });
        }
        tracing::info!(target: "zuse::fuse", source = options.source, at = %place.path.display(), "mounted");
        Ok(Mount { place, notifier: Notifier { notifier, known, root }, end })
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

    /// Unmounts. Except after a lazy unmount, the mount has ended on return. Nothing is done if it has ended already.
    ///
    /// # Errors
    /// EBUSY if somebody uses it, or another mount is on top of it.
    pub fn unmount(&self, how: Unmount) -> Result<(), Error> {
        if self.has_ended() {
            return Ok(());
        }
        kernel::unmount(&self.place, how)?;
        if how != Unmount::Lazy {
            // how it ended is for those who wait for it
            let _ = self.wait();
        }
        Ok(())
    }

    /// Returns whether the mount has ended, by whomever.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end.done.lock().is_some()
    }

    /// Waits until the mount has ended: by [`Mount::unmount`], by anybody else, or because the connection to the kernel broke.
    ///
    /// # Errors
    /// If the connection broke.
    pub fn wait(&self) -> Result<(), Error> {
        let mut done = self.end.done.lock();
        loop {
            match &*done {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => {
                    let source = io::Error::new(error.kind(), error.to_string());
                    return Err(Error::Session { path: self.place.path.clone(), source });
                }
                None => self.end.ended.wait(&mut done),
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.unmount(Unmount::Idle).is_err()
            && let Err(error) = self.unmount(Unmount::Lazy)
        {
            tracing::warn!(target: "zuse::fuse", %error, "left mounted");
        }
    }
}

/// Answers requests in threads until the mount ends.
fn serve(session: Session<Served>, vfs: Arc<dyn Vfs>, end: Arc<End>) -> io::Result<()> {
    let run = move || {
        let done = session.run();
        vfs.set_temporary(Temporary::default());
        // the file system is released before anybody hears of the end
        drop(vfs);
        tracing::info!(target: "zuse::fuse", ?done, "unmounted");
        *end.done.lock() = Some(done.map_err(Arc::new));
        end.ended.notify_all();
    };
    std::thread::Builder::new().name("fuse".to_owned()).spawn(run).map(|_| ())
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mount at {}", self.place.path.display())
    }
}
