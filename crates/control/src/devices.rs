//! The devices of new vdevs, as requests open them.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vdev::{Device, FileDevice};

/// Opens the devices that requests name by path.
pub trait Devices: Send + Sync {
    /// Opens all of these for writing, or none. What was on them is lost.
    ///
    /// # Errors
    /// When one cannot be opened or locked.
    fn open(&self, paths: &[PathBuf]) -> Result<Opened, vdev::Error>;
}

/// Devices that are open for writing.
pub struct Opened {
    /// The devices, by path.
    pub devices: Vec<(PathBuf, Arc<dyn Device>)>,
    /// What lasts until they belong to a pool.
    pub meanwhile: Box<dyn Any + Send>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices.iter().map(|(path, _)| path)).finish()
    }
}

impl Opened {
    pub(crate) fn device(&self, path: &str) -> Option<Arc<dyn Device>> {
        self.devices.iter().find(|(opened, _)| opened == Path::new(path)).map(|(_, device)| device.clone())
    }
}

/// Files and block devices of this machine, which another process may not have open.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Devices for Plain {
    fn open(&self, paths: &[PathBuf]) -> Result<Opened, vdev::Error> {
        let open = |path: &PathBuf| -> Result<(PathBuf, Arc<dyn Device>), vdev::Error> {
            Ok((path.clone(), Arc::new(FileDevice::open_read_write(path)?)))
        };
        Ok(Opened { devices: paths.iter().map(open).collect::<Result<_, _>>()?, meanwhile: Box::new(()) })
    }
}
