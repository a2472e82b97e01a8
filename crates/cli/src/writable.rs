//! Imported pools, opened for a change.
//!
//! A command that changes a pool locks its devices, opens it for writing, does its work, writes its command line into
//! the pool's history, and closes the pool, which stays imported on this machine. Two such commands wait for each
//! other, for as long as the tunable `busy_wait` says, and on a terminal a message names the process that is waited
//! for; commands that only read need no lock, and see the pool as its last synced txg left it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::tunable::BUSY_WAIT;
use control::{Caller, Control, Ioc};
use nvlist::NvList;
use pool::{Hooks, ImportOptions, OpenOptions, Spa};
use vdev::import::Candidate;
use vdev::{Access, Device, device};
use zpl::UsedByBonus;
use zuse::CaughtUp;

use crate::error::{Failure, failed};
use crate::long_holds::OtherCommands;
use crate::readers::OtherReaders;
use crate::state::Imported;
use crate::{iostats, left, pools};

/// Interval at which a waiting command checks whether the other one is done with the pool.
const LOOK: Duration = Duration::from_millis(20);
/// Delay after which a terminal shows what the command waits for.
const SILENT: Duration = Duration::from_secs(1);

/// A device with the path that it was opened by.
type Opened = (PathBuf, Arc<dyn Device>);

/// The callbacks through which this crate takes part in pools that are written.
pub(crate) fn hooks() -> Hooks {
    let held_elsewhere = Some(Arc::new(OtherCommands::default()) as _);
    let readers = Some(Arc::new(OtherReaders) as _);
    let synced = Some(Arc::new(left::note) as _);
    Hooks { used_by: Some(Arc::new(UsedByBonus)), held_elsewhere, readers, synced, ..Hooks::default() }
}

/// The user whom requests to a pool come from, and new files belong to.
pub(crate) fn caller() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// Opens a remembered pool for a change. `doing` begins the message of a failure: `cannot export 'tank'`. Devices that
/// missed writes are brought up to date.
pub(crate) fn open(record: &Imported, doing: &str) -> Result<Arc<Spa>, Failure> {
    let spa = open_as_it_is(record, doing)?;
    catch_up(&spa);
    Ok(spa)
}

/// Brings devices that missed writes up to date, if that does not take long; reports it if it would.
pub(crate) fn catch_up(spa: &Arc<Spa>) {
    let name = spa.name();
    match zuse::catch_up(spa) {
        Ok(CaughtUp::Yes) => {}
        Ok(CaughtUp::No) => eprintln!(
            "warning: devices of '{name}' have missed writes and are not up to date: use 'zpool resilver {name}' or 'zpool scrub {name}'"
        ),
        Err(e) => eprintln!("warning: devices of '{name}' have missed writes and cannot be resilvered: {e}"),
    }
}

/// As [`open`], with devices left as they are.
pub(crate) fn open_as_it_is(record: &Imported, doing: &str) -> Result<Arc<Spa>, Failure> {
    if record.readonly {
        return Err(failed(format!("{doing}: pool is read-only")));
    }
    let candidate = lock(&pools::candidate(record)?).map_err(|e| busy(&record.name, &e))?;
    pools::remember_devices(record, &candidate);
    // a permanent name is on the devices since the import; a temporary one must not be written there
    let temporary_name = record.name != record.name_on_disk;
    let name = temporary_name.then(|| record.name.clone());
    let open = OpenOptions { name, ..pools::options(record) };
    let options = ImportOptions { open, temporary_name, again: true, ..ImportOptions::default() };
    Spa::import(&candidate, &options, hooks()).map_err(|e| match e {
        pool::Error::Closed => failed(format!(
            "{doing}: it was exported or destroyed by another system or user ('zpool export {}' forgets it)",
            record.name
        )),
        e => failed(format!("{doing}: {}", pools::why_not(record, &e))),
    })
}

/// Ends a change: the command line is written to the history, and everything to the devices.
pub(crate) fn close(spa: &Arc<Spa>, doing: &str) -> Result<(), Failure> {
    log(spa).and_then(|()| spa.close()).map_err(|e| failed(format!("{doing}: {}", why(&e))))
}

/// Opens a pool, sends it one request, and closes it.
pub(crate) fn request(record: &Imported, doing: &str, ioc: Ioc, input: &NvList) -> Result<NvList, Failure> {
    let spa = open(record, doing)?;
    let out = ask(&spa, doing, ioc, input)?;
    close(&spa, doing)?;
    Ok(out)
}

/// Sends one request to an open pool.
pub(crate) fn ask(spa: &Arc<Spa>, doing: &str, ioc: Ioc, input: &NvList) -> Result<NvList, Failure> {
    let done = Control::new(Arc::clone(spa), caller()).call(ioc, spa.name(), input);
    done.map_err(|e| failed(format!("{doing}: {}", why_failed(&e))))
}

/// Opens a pool, and exports or destroys it; the command line is written to its history first.
pub(crate) fn leave(record: &Imported, doing: &str, ioc: Ioc) -> Result<(), Failure> {
    let mut input = NvList::new();
    input.insert("message", command_line().as_str());
    ask(&open(record, doing)?, doing, ioc, &input).map(drop)
}

/// Writes the command line into the pool's history.
pub(crate) fn log(spa: &Arc<Spa>) -> Result<(), pool::Error> {
    spa.log_history(&command_line())
}

/// The command line as the history has it: the tool, its verb, its arguments (OpenZFS: `zfs_save_arguments`).
fn command_line() -> String {
    let args: Vec<OsString> = std::env::args_os().collect();
    let name = |arg: &OsStr| Path::new(arg).file_name().map(|name| name.to_string_lossy().into_owned());
    let is_tool = |arg: &OsString| matches!(name(arg).as_deref(), Some("zpool" | "zfs"));
    let from = args.iter().position(is_tool).unwrap_or(0);
    let words = args.iter().skip(from).enumerate();
    let words = words.map(|(n, arg)| match n {
        0 => name(arg).unwrap_or_default(),
        _ => arg.to_string_lossy().into_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The pool again with the devices of its vdevs open for writing, and locked ([`Candidate::lock`]); waits for another writer to be done.
pub(crate) fn lock(found: &Candidate) -> Result<Candidate, vdev::Error> {
    let again = patiently(|| found.lock())?;
    iostats::watch(&again);
    Ok(again)
}

/// Opens devices for writing, all of them or none; waits for another writer to be done.
pub(crate) fn lock_paths(paths: &[PathBuf]) -> Result<Vec<Opened>, vdev::Error> {
    let mut sorted = paths.to_vec();
    sorted.sort();
    let mut seen = HashSet::new();
    sorted.retain(|path| seen.insert(path.clone()));
    patiently(|| try_lock(&sorted))
}

/// Retries until no other writer has a device, or until it took too long; on a terminal a message names the writer
/// that is waited for.
fn patiently<R>(lock: impl Fn() -> Result<R, vdev::Error>) -> Result<R, vdev::Error> {
    let (begun, patience) = (Instant::now(), Duration::from_secs(BUSY_WAIT.get()));
    let mut told = !std::io::stderr().is_terminal();
    loop {
        match lock() {
            Err(vdev::Error::Busy { path, holder }) if begun.elapsed() < patience => {
                if !told && begun.elapsed() >= SILENT {
                    eprintln!("waiting: {path} is in use{holder}");
                    told = true;
                }
                std::thread::sleep(LOOK);
            }
            done => return done,
        }
    }
}

/// Returns whether another process has the pool open for a change.
pub(crate) fn is_used(record: &Imported) -> bool {
    let devices = record.devices.iter().filter(|path| path.exists());
    devices.into_iter().any(|path| device::is_busy(path))
}

fn try_lock(paths: &[PathBuf]) -> Result<Vec<Opened>, vdev::Error> {
    let open =
        |path: &PathBuf| -> Result<Opened, vdev::Error> { Ok((path.clone(), device::open(path, Access::Write)?)) };
    paths.iter().map(open).collect()
}

/// The message for devices that cannot be opened or locked.
pub(crate) fn busy(pool: &str, e: &vdev::Error) -> Failure {
    match e {
        vdev::Error::Busy { path, holder } => {
            failed(format!("cannot open '{pool}': pool is busy\n{path} is in use{holder}"))
        }
        vdev::Error::Open { path, source } => {
            failed(format!("cannot open '{pool}': {path}: {}", crate::error::cause(source)))
        }
        other => failed(format!("cannot open '{pool}': {other}")),
    }
}

/// As [`why`], for a request.
pub(crate) fn why_failed(failed: &control::Failed) -> String {
    match &*failed.error {
        control::Error::Pool(e) => why(e),
        other => other.to_string(),
    }
}

/// An error in OpenZFS's words, where it has some (OpenZFS: `zpool_standard_error_fmt`).
pub(crate) fn why(e: &pool::Error) -> String {
    match e {
        pool::Error::NoSpace => "out of space".to_owned(),
        pool::Error::Suspended(cause) => format!("pool I/O is currently suspended: {cause}"),
        other => other.to_string(),
    }
}
