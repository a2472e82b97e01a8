//! Imported pools, opened for a change.
//!
//! A command that changes a pool opens it for writing, does its work, writes its command line into the pool's history,
//! and closes the pool. The [`site`] waits for other processes that have it. In a server the pool is open already, and stays so.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use control::Ioc;
use nvlist::NvList;
use pool::{Activity, Spa};
use site::{Imported, records};

use crate::console::here;
use crate::error::{Failure, failed};
use crate::{console, messages};

/// Opens a remembered pool for a change. `doing` begins the message of a failure: `cannot export 'tank'`. Devices that
/// missed writes are brought up to date.
pub(crate) fn open(record: &Imported, doing: &str) -> Result<Arc<Spa>, Failure> {
    let spa = open_as_it_is(record, doing)?;
    here().make_ready(&spa);
    Ok(spa)
}

/// As [`open`], with devices left as they are.
pub(crate) fn open_as_it_is(record: &Imported, doing: &str) -> Result<Arc<Spa>, Failure> {
    here().write(record).map_err(|e| match e {
        site::Error::ReadOnly { .. } => failed(format!("{doing}: pool is read-only")),
        site::Error::Open { source: pool::Error::Closed, .. } => failed(format!(
            "{doing}: it was exported or destroyed by another system or user ('zpool export {}' forgets it)",
            record.name
        )),
        site::Error::Open { source, .. } => failed(format!("{doing}: {}", messages::why_not(&record.name, &source))),
        site::Error::Devices { name, source } => messages::busy(&name, &source),
        other => other.into(),
    })
}

/// Ends a change: the command line is written to the history, and everything to the devices.
pub(crate) fn close(spa: &Arc<Spa>, doing: &str) -> Result<(), Failure> {
    log_and_close(spa).map_err(|e| failed(format!("{doing}: {}", messages::why(&e))))
}

/// Opens a pool, sends it one request, and closes it.
pub(crate) fn request(record: &Imported, doing: &str, ioc: Ioc, input: &NvList) -> Result<NvList, Failure> {
    let spa = open(record, doing)?;
    let out = ask(&spa, doing, ioc, input)?;
    close(&spa, doing)?;
    Ok(out)
}

/// Waits until an activity of an open pool has ended: the pool is closed with the command.
pub(crate) fn wait(spa: &Arc<Spa>, doing: &str, activity: Activity) -> Result<(), Failure> {
    let mut input = NvList::new();
    input.insert("wait_activity", activity as i32);
    ask(spa, doing, Ioc::Wait, &input).map(drop)
}

/// Sends one request to an open pool.
pub(crate) fn ask(spa: &Arc<Spa>, doing: &str, ioc: Ioc, input: &NvList) -> Result<NvList, Failure> {
    let done = console::control(Arc::clone(spa)).call(ioc, spa.name(), input);
    done.map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e))))
}

/// Opens a pool, exports or destroys it, and forgets it; the command line is written to its history first.
pub(crate) fn leave(record: &Imported, doing: &str, ioc: Ioc) -> Result<(), Failure> {
    let mut input = NvList::new();
    input.insert("message", command_line().as_str());
    match here().leave_pool(record, ioc, &input, console::user()) {
        Some(left) => left.map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e)))),
        None => {
            ask(&open(record, doing)?, doing, ioc, &input)?;
            Ok(records::forget(record.guid)?)
        }
    }
}

/// Writes the command line into the pool's history, and ends the change. A pool that is closed has it on disk then; where the pool stays open it comes there with the next
/// txg, as in OpenZFS, and the requests themselves are on disk since they were answered.
pub(crate) fn log_and_close(spa: &Arc<Spa>) -> Result<(), pool::Error> {
    let who = console::user().real_uid;
    if here().is_of_machine() {
        let mut record = NvList::new();
        record.insert("history command", command_line().as_str());
        spa.log_request(who, record)?;
    } else {
        spa.log_history(who, &command_line())?;
    }
    here().close_synced(spa)
}

/// The command line as the history has it: the tool, its verb, its arguments (OpenZFS: `zfs_save_arguments`).
pub(crate) fn command_line() -> String {
    let args = console::argv();
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
