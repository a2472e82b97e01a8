//! A mounted directory of devices.

use std::io;
use std::path::Path;
use std::sync::Arc;

use base::Errno;
use fuser::{Config, Session};

use super::Devices;
use super::requests::Requests;
use crate::end::End;
use crate::kernel::{self, DEVICES, Place};
use crate::{Error, Options, Unmount};

/// Threads that read requests. What touches a pool is handed to others, by their lanes.
const THREADS: usize = 8;

/// A mounted directory of block devices. See [the module](super). It is unmounted when this is dropped, lazily if somebody uses it.
pub struct DeviceDirectory {
    place: Arc<Place>,
    end: Arc<End>,
}

impl std::fmt::Debug for DeviceDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "devices at {}", self.place.path.display())
    }
}

impl DeviceDirectory {
    /// Mounts it; the mount table shows `source`.
    ///
    /// # Errors
    /// If the mount point is missing or not a directory, the kernel refuses, or this user may not mount there.
    pub fn mount(devices: Arc<dyn Devices>, point: &Path, source: &str) -> Result<DeviceDirectory, Error> {
        let options = Options {
            exec: false,
            setuid: false,
            devices: false,
            // for those who work for others, as the threads of loop devices do; modes say that the owner alone may open them
            allow_other: rustix::process::geteuid().is_root(),
            ..Options::new(source)
        };
        let (device, place) = kernel::mount(point, DEVICES, &options, true)?;
        let (place, end) = (Arc::new(place), Arc::new(End::default()));
        let mut config = Config::default();
        config.acl = options.acl();
        config.n_threads = Some(THREADS);
        config.clone_fd = kernel::open_device().is_ok();
        let (of_thread, told) = (place.clone(), end.clone());
        let begun = Session::from_fd(Requests::new(devices), device, config.acl, config.clone()).and_then(|session| {
            let run = move || {
                let served = session.run();
                // only the connection may have ended: nobody answers there any more
                let left = kernel::unmount(&of_thread, Unmount::Forced);
                told.tell(served, left.is_ok());
            };
            std::thread::Builder::new().name("fuse".to_owned()).spawn(run).map(drop)
        });
        if let Err(source) = begun {
            let path = place.path.clone();
            kernel::unmount(&place, Unmount::Lazy)?;
            return Err(Error::Session { path, source });
        }
        tracing::info!(target: "zuse::fuse", source, at = %place.path.display(), "mounted");
        Ok(DeviceDirectory { place, end })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Returns whether it has ended, by whomever.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end.has_come()
    }

    /// Unmounts. Except after a lazy unmount, it has ended on return. Nothing is done if it has ended already.
    ///
    /// # Errors
    /// EBUSY if somebody uses it, or another mount is on top of it; ETIMEDOUT if it is in no tree any more, but is still used.
    pub fn unmount(&self, how: Unmount) -> Result<(), Error> {
        if self.end.is_gone() {
            return Ok(());
        }
        kernel::unmount(&self.place, how)?;
        // how it ended does not matter
        if how == Unmount::Lazy || self.end.wait_awhile().is_some() {
            return Ok(());
        }
        let source = io::Error::from_raw_os_error(Errno::ETIMEDOUT.raw());
        Err(Error::Unmount { path: self.place.path.clone(), source })
    }
}

impl Drop for DeviceDirectory {
    fn drop(&mut self) {
        if !self.end.is_gone() && self.unmount(Unmount::Idle).is_err() && self.unmount(Unmount::Lazy).is_err() {
            tracing::warn!(target: "zuse::fuse", at = %self.place.path.display(), "left mounted");
        }
    }
}
