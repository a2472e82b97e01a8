//! Devices that fail and return, a log device that comes and goes, and scrubs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crash::Rng;
use zuse::pool::{Error, ScrubRange};
use zuse::vdev::create::{VdevSpec, layout};
use zuse::vdev::testing::{Call, Tapped};
use zuse::vdev::{Device, FileDevice, VdevState, VdevStatus};

use crate::world::{World, failed};

/// Linux's `EIO`.
const EIO: i32 = 5;
/// The longest time that a device is away, and between two times, in milliseconds.
const AWAY_MS: u64 = 4000;
/// Bytes of the log device.
const LOG: u64 = 128 << 20;
/// Times that a device that was away is brought up to date before the run fails.
const ATTEMPTS: u32 = 50;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

/// A device that can be switched off.
#[derive(Debug)]
pub struct Faulty {
    device: Arc<dyn Device>,
    down: Arc<AtomicBool>,
}

impl Faulty {
    pub fn new(device: FileDevice) -> Faulty {
        let down = Arc::new(AtomicBool::new(false));
        let is_down = down.clone();
        let pass = move |_: &Call| match is_down.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(EIO)),
            false => Ok(()),
        };
        Faulty { device: Arc::new(Tapped::new(Arc::new(device), pass)), down }
    }

    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}

/// Clears the errors of devices that are back and resilvers them.
///
/// # Errors
/// If the pool is not whole after many attempts.
pub fn bring_back(world: &World) -> Result<(), String> {
    let spa = world.spa();
    for _ in 0..ATTEMPTS {
        spa.clear(None).map_err(failed("clear"))?;
        spa.sync().map_err(failed("sync"))?;
        if spa.resilver(true).map_err(failed("resilver"))? {
            spa.scan_wait(&mut |_| {}).map_err(failed("resilver"))?;
        }
        let whole = |vdev: &VdevStatus| vdev.state == VdevState::Healthy && !vdev.is_stale;
        if spa.tree().status().walk().all(whole) {
            return Ok(());
        }
        std::thread::sleep(BETWEEN_ATTEMPTS);
    }
    Err(format!("devices do not catch up: {:?}", spa.tree().status()))
}

/// Switches one device of each vdev off, for a while, at random; then the next.
pub fn fail_and_return(world: &World, seed: u64) -> impl FnMut() -> Result<(), String> {
    let rng = Rng::new(seed ^ 0xdead);
    move || {
        world.rest(Duration::from_millis(rng.below(AWAY_MS)));
        // the mirror's devices are the first two
        let (mirror, raidz) = (rng.index(2), 2 + rng.index(3));
        let away = [mirror, raidz];
        let away = if rng.percent(50) { &away[..] } else { &away[rng.index(2)..][..1] };
        away.iter().for_each(|n| world.devices[*n].set_down(true));
        world.rest(Duration::from_millis(rng.below(AWAY_MS)));
        away.iter().for_each(|n| world.devices[*n].set_down(false));
        bring_back(world)
    }
}

/// Scrubs the pool again and again; a resilver takes precedence.
pub fn scrub(world: &World) -> impl FnMut() -> Result<(), String> {
    move || {
        world.rest(Duration::from_secs(1));
        match world.spa().scrub(ScrubRange::default()) {
            Ok(_) => world.spa().scan_wait(&mut |_| {}).map(drop).map_err(failed("scrub")),
            Err(Error::Resilvering) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Adds a log device, and removes it again.
pub fn log_comes_and_goes(world: &World) -> impl FnMut() -> Result<(), String> {
    let log = || world.spa().tree().tops().iter().find(|top| top.config().is_log).map(|top| top.guid());
    move || {
        world.rest(Duration::from_secs(2));
        let Some(guid) = log() else {
            let path = world.folder().join(format!("log{}", world.serial()));
            let spec = VdevSpec::parse(&["log".to_owned(), path.display().to_string()]).map_err(failed("log"))?;
            let device: Arc<dyn Device> = Arc::new(FileDevice::create(&path, LOG).map_err(failed("create"))?);
            let options = world.spa().layout_options(None);
            let new = layout(&spec, &|_| Some(device.clone()), options, world.spa().env()).map_err(failed("layout"))?;
            return world.spa().add_vdevs(new, false).map_err(failed("add"));
        };
        world.spa().remove_vdev(guid).map_err(failed("remove"))
    }
}
