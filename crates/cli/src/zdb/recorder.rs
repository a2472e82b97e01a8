//! `-x DIR`: everything that is read from a device is written to a file of its name in `DIR`, at the same offset. The
//! files are sparse; with them a pool can be inspected elsewhere, as far as it was read here.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use vdev::import::{Candidate, FoundDevice, scan_devices};
use vdev::{Device, DeviceKind};

use crate::console;
use crate::error::{Failure, cause, failed};

/// A device that keeps a copy of everything read from it.
#[derive(Debug)]
struct Recorder {
    device: Arc<dyn Device>,
    copy: File,
}

impl Recorder {
    fn new(found: &FoundDevice, dir: &Path) -> io::Result<Recorder> {
        let name = found.path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        // added to what an earlier call has left
        let copy = OpenOptions::new().create(true).truncate(false).write(true).open(console::path(dir).join(name))?;
        copy.set_len(found.device.size())?;
        Ok(Recorder { device: found.device.clone(), copy })
    }
}

impl Device for Recorder {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buf)?;
        self.copy.write_all_at(buf, offset)
    }

    fn kind(&self) -> DeviceKind {
        self.device.kind()
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

/// Opens the pool again on devices that are recorded, beginning with their labels.
pub(super) fn record(found: &Candidate, dir: &Path) -> Result<Candidate, Failure> {
    let all = [&found.devices, &found.stale, &found.spares, &found.l2cache].into_iter().flatten();
    let wrap = |device: &FoundDevice| -> Result<_, Failure> {
        let recorder = Recorder::new(device, dir).map_err(|e| {
            failed(format!("zdb: cannot dump '{}' to '{}': {}", device.path.display(), dir.display(), cause(&e)))
        })?;
        Ok((device.path.clone(), Arc::new(recorder) as Arc<dyn Device>))
    };
    let devices = all.map(wrap).collect::<Result<Vec<_>, _>>()?;
    let again = scan_devices(devices).into_iter().find(|candidate| candidate.guid == found.guid);
    again.ok_or_else(|| failed("zdb: the devices changed while they were opened"))
}
