//! Power cuts while a log device is added to a pool and removed from it.
//!
//! A run works on files as in [`fsynced`](crate::fsynced), and from time to time a log device is added to the pool or removed; sometimes
//! the process is killed before, so that a log waits for replay meanwhile. The state after a cut is imported in one of two ways:
//!
//! * With all devices. The import must succeed without `-m`, and nothing is lost, whether the change had completed or not.
//! * Without the log device. If the pool had been promised to have none, nothing is lost. If it had been promised to have one, the import
//!   must require `-m`, and may lose what only the log had. When the device comes back, the pool accepts it.

use std::path::PathBuf;
use std::sync::Arc;

use control::{Caller, Control, Devices, Ioc, NewVdevs, Opened};
use nvlist::NvList;
use pool::Spa;
use vdev::Device;
use vdev::create::VdevSpec;

use crate::compare::{Context, Result};
use crate::fsynced::{Journal, Promised, Slog, Work, check_files, enter, import};
use crate::pools::{Shape, open, open_without_log, verify_all};
use crate::storage::Storage;
use crate::{Recording, Rng, State, Tape};

/// Number of operations between two changes.
const STEPS: u64 = 14;
/// Number of additions and removals.
const CHANGES: u64 = 4;
/// Percentage of changes before which the process is killed.
const KILLED_PCT: u64 = 40;
/// Percentage of cuts after which the log device is missing.
const GONE_PCT: u64 = 40;

/// A pool and the log device that is added to it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The initial pool.
    pub shape: Shape,
    /// The log vdev to add, in the syntax of `zpool add`.
    pub log: &'static str,
}

/// The devices of a recording, by their names.
struct Recorded(Vec<Arc<dyn Device>>);

impl Devices for Recorded {
    fn open(&self, paths: &[PathBuf]) -> std::result::Result<Opened, vdev::Error> {
        let named = |path: &PathBuf| self.0.iter().find(|device| *device.name() == *path.to_string_lossy());
        let devices = paths.iter().filter_map(|path| Some((path.clone(), named(path)?.clone())));
        Ok(Opened { devices: devices.collect(), meanwhile: Box::new(()) })
    }
}

impl Setting {
    fn spec(&self) -> Result<VdevSpec> {
        let words: Vec<String> = self.log.split_whitespace().map(str::to_owned).collect();
        VdevSpec::parse(&words).context(|| self.log.to_string())
    }

    fn is_log(&self, device: &str) -> Result<bool> {
        Ok(self.spec()?.paths().any(|(path, _)| path == device))
    }

    fn add(&self, spa: &Arc<Spa>, devices: &[Arc<dyn Device>]) -> Result<()> {
        let new = NewVdevs { spec: self.spec()?, ashift: Some(self.shape.ashift), shared: Vec::new() };
        let mut input = NvList::new();
        input.insert("config", new.to_list());
        let control = Control::new(spa.clone(), Caller::default()).on(Arc::new(Recorded(devices.to_vec())));
        control.call(Ioc::VdevAdd, spa.name(), &input).map(drop).map_err(|e| format!("add: {}", e.error))
    }

    /// Adds the log device if there is none, else removes it.
    fn change(&self, spa: &Arc<Spa>, devices: &[Arc<dyn Device>]) -> Result<()> {
        let Some(guid) = spa.tree().tops().iter().find(|top| top.config().is_log).map(|top| top.guid()) else {
            return self.add(spa, devices);
        };
        let mut input = NvList::new();
        input.insert("guid", guid.0);
        let control = Control::new(spa.clone(), Caller::default());
        control.call(Ioc::VdevRemove, spa.name(), &input).map(drop).map_err(|e| format!("remove: {}", e.error))
    }
}

/// Runs on a pool while its log device is added and removed, recording a tape. The tape ends while the pool is open.
///
/// # Errors
/// The first failure.
pub fn record(setting: &Setting, seed: u64) -> Result<(Tape<Promised>, Journal)> {
    let shape = &setting.shape;
    let mut disks = shape.disks()?;
    disks.extend(setting.spec()?.paths().map(|(path, _)| (path.to_owned(), shape.size)));
    let recording = Recording::new(&disks, 512 << 20);
    let mut work = Work::begin(shape, Storage::default(), &recording, seed)?;
    for round in 0..=CHANGES {
        if round > 0 {
            work =
                change(setting, work, &recording, seed + round).context(|| format!("seed {seed}, change {round}"))?;
        }
        for step in 0..STEPS {
            work.step(&recording).context(|| format!("{}, seed {seed}, {round}, step {step}", shape.name))?;
        }
    }
    Ok((recording.finish(), work.into_journal()))
}

fn change(setting: &Setting, mut work: Work, recording: &Recording<Promised>, seed: u64) -> Result<Work> {
    let killed = work.book.rng.percent(KILLED_PCT);
    if killed {
        work.commit(recording).context(|| "commit".to_string())?;
    }
    let Work { zfs, mut book } = work;
    let (spa, open) = if killed {
        drop(zfs);
        (import(&recording.devices(), seed | 1 << 62, false)?, None)
    } else {
        // the file system stays open over the change
        (zfs.spa().clone(), Some(zfs))
    };
    let adds = book.promised.slog == Slog::Out;
    book.promised.slog = Slog::Changing;
    let begin = recording.events();
    recording.promise(0, book.promised.clone());
    setting.change(&spa, &recording.devices())?;
    book.promised.slog = if adds { Slog::In } else { Slog::Out };
    if !(adds && killed) {
        // no log remains
        book.synced();
    }
    recording.promise(0, book.promised.clone());
    book.journal.changes.push(begin..recording.events());
    let zfs = match open {
        Some(zfs) => zfs,
        None => enter(&spa)?,
    };
    Ok(Work { zfs, book })
}

/// Checks the state after a cut.
///
/// # Errors
/// The loss or damage found.
pub fn check(state: &State<'_, Promised>, setting: &Setting, journal: &Journal) -> Result<()> {
    let Some(promised) = state.promised.map(|promise| &promise.payload) else {
        // the pool was still being created
        return Ok(());
    };
    let rng = Rng::new(state.cut.seed);
    let devices = state.devices();
    if rng.percent(GONE_PCT) {
        without(state, setting, journal, promised).context(|| "without the log device".to_string())?;
        // the log device comes back
        let spa = import(&devices, state.cut.seed, false)?;
        drop(enter(&spa)?);
        return leave(&spa, &devices).context(|| "the log device is back".to_string());
    }
    let spa = import(&devices, state.cut.seed, false)?;
    check_files(&spa, journal, &promised.kept, state.cut.at)?;
    if rng.percent(50) {
        return leave(&spa, &devices);
    }
    setting.change(&spa, &devices)?;
    check_files(&spa, journal, &promised.kept, state.cut.at)?;
    leave(&spa, &devices).context(|| "after another change".to_string())
}

fn leave(spa: &Arc<Spa>, devices: &[Arc<dyn Device>]) -> Result<()> {
    spa.export().context(|| "export".to_string())?;
    verify_all(&open(devices)?).map(drop)
}

fn without(state: &State<'_, Promised>, setting: &Setting, journal: &Journal, promised: &Promised) -> Result<()> {
    let mut devices = state.devices();
    let mut gone = Vec::new();
    for device in &devices {
        gone.push(setting.is_log(&device.name())?);
    }
    let mut gone = gone.into_iter();
    devices.retain(|_| gone.next() == Some(false));
    let (spa, kept) = match (import(&devices, state.cut.seed, false), promised.slog) {
        (Ok(_), Slog::In) => return Err("the pool was imported without -m".to_string()),
        (Ok(spa), _) => (spa, &promised.kept),
        (Err(why), Slog::Out) => return Err(why),
        (Err(_), _) => (import(&devices, state.cut.seed, true).context(|| "with -m".to_string())?, &promised.synced),
    };
    check_files(&spa, journal, kept, state.cut.at)?;
    spa.export().context(|| "export".to_string())?;
    verify_all(&open_without_log(&devices)?).map(drop)
}
