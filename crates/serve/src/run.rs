//! Command lines of a client, which this process carries out as if they were its own.
//!
//! They open files with the rights of this process: only its own user and root may have one run, whatever others were allowed.
//!
//! # What of the client a command has
//! * Its words, and as descriptors, in this order: standard input, output and error, and its directory. The size of a terminal is asked of the descriptor.
//! * Its umask. Files of the host that a command makes lack what the umask of the server says, too.
//! * Of its environment what changes how words are read and something is shown ([`is_taken`]). What changes where pools are looked for, what runs, or how the engine works (`ZUSE_STATE`, `HOME`, `PATH`, `ZUSE_TUNABLES`) is
//!   that of the server.
//! * Signals that the client passes on (`Signal`), each of those in [`SIGNALS`]: the runner does what the signal would do to a process.
//!
//! A connection that is closed ends a command as a terminal does that hangs up: its [`Command::cancel`] says so, and no more signals come.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use base::Errno;
use control::{Caller, CancelToken};
use nvlist::NvList;
use rustix::fs::{FileType, fstat};
use site::Machine;

use crate::connection::{Connection, Work};
use crate::message::{Answer, BadBody, Run};

/// The signals that a client may pass on: HUP, INT, QUIT, USR1, TERM, WINCH.
pub const SIGNALS: [i32; 6] = [1, 2, 3, 10, 15, 28];

/// Variables that are taken from a client.
const TAKEN: [&str; 9] =
    ["TERM", "COLUMNS", "LINES", "LANG", "TZ", "NO_COLOR", "POSIXLY_CORRECT", "ZPOOL_IMPORT_PATH", "ZDB_NO_ZLE"];
/// The beginning of more of them.
const TAKEN_PREFIX: &str = "LC_";

/// A command line of a client.
#[derive(Debug)]
pub struct Command {
    /// Its words, the name of the program first.
    pub args: Vec<OsString>,
    /// The variables of its environment that are taken.
    pub environment: Vec<(OsString, OsString)>,
    /// Standard input.
    pub input: OwnedFd,
    /// Standard output.
    pub output: OwnedFd,
    /// Standard error.
    pub error: OwnedFd,
    /// The directory that relative paths begin at.
    pub directory: OwnedFd,
    /// The permissions that new files lack.
    pub umask: u32,
    /// Who asks.
    pub caller: Caller,
    /// The signals that come for it.
    pub signals: Receiver<i32>,
    /// Whether it is to end.
    pub cancel: CancelToken,
}

/// Carries out command lines.
pub trait Runner: Send + Sync {
    /// Carries one out, in the pools of the server; the exit status.
    fn run(&self, command: Command, machine: &Machine) -> u8;
}

/// Whether a variable is taken from a client.
#[must_use]
pub fn is_taken(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| TAKEN.contains(&name) || name.starts_with(TAKEN_PREFIX))
}

/// Decodes a command line.
pub(crate) fn prepare(
    connection: &Arc<Connection>,
    body: &[u8],
    descriptors: Vec<OwnedFd>,
    signals: Receiver<i32>,
) -> Result<Work, BadBody> {
    if !connection.peer().is_owner(connection.core().owner) {
        return Ok(Box::new(|_| Answer::failed(Errno::EPERM, "permission denied")));
    }
    let Some(runner) = connection.core().runner.clone() else {
        return Ok(Box::new(|_| Answer::failed(Errno::ENOTSUP, "this server runs no command lines")));
    };
    let Run { args, mut environment, umask } = Run::decode(body, connection.bounds())?;
    let Ok([input, output, error, directory]) = <[OwnedFd; 4]>::try_from(descriptors) else {
        return Err(BadBody::Missing("descriptors"));
    };
    if !fstat(&directory).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
        return Ok(Box::new(|_| Answer::failed(Errno::ENOTDIR, "the fourth descriptor is no directory")));
    }
    environment.retain(|(name, _)| is_taken(name));
    let caller = connection.peer().caller();
    let connection = connection.clone();
    Ok(Box::new(move |cancel| {
        let cancel = cancel.clone();
        let command = Command { args, environment, input, output, error, directory, umask, caller, signals, cancel };
        let mut out = NvList::new();
        out.insert("status", u64::from(runner.run(command, &connection.core().machine)));
        Answer::done(out)
    }))
}
