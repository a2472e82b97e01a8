//! The console of a client's command line, made of what the client has sent ([`serve::Command`]).

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::control::CancelToken;
use mounts::Mounts;
use rustix::fs::{fstat, stat};
use serve::{Command, Runner, is_taken};
use signal_hook::consts::{SIGUSR1, SIGWINCH};
use site::Machine;

use super::{ClientSignals, Console, Signals};

/// The interval at which it is asked whether a command is to end.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Carries out command lines of clients, in the pools that their server has open.
pub(crate) struct CommandLines {
    /// What this process has mounted.
    pub(crate) mounts: Option<Arc<Mounts>>,
    /// Set once what a former server has left mounted is unmounted: until then commands wait, as they may mount something there.
    pub(crate) is_clear: Arc<OnceLock<()>>,
}

impl Runner for CommandLines {
    fn run(&self, command: Command, machine: &Machine) -> u8 {
        self.is_clear.wait();
        let Ok(error) = command.error.try_clone() else { return 1 };
        match Console::of_client(command, machine, self.mounts.clone()) {
            Ok((console, args)) => crate::run(console, &args),
            Err(e) => {
                // nobody is told where even that cannot be written
                let _told = rustix::io::write(&error, format!("{e}\n").as_bytes());
                1
            }
        }
    }
}

impl Console {
    /// The console of a client's command line, with its words.
    fn of_client(
        command: Command,
        machine: &Machine,
        mounts: Option<Arc<Mounts>>,
    ) -> io::Result<(Console, Vec<OsString>)> {
        let Command { args, environment, input, output, error, directory, umask, caller, signals, cancel } = command;
        let client = Arc::new(ClientSignals::new()?);
        let told = client.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || pass_on(&told, &signals, &cancel))?;
        // what is not the client's is the server's
        let own = std::env::vars_os().filter(|(name, _)| !is_taken(name));
        let console = Console {
            stdin: input,
            stdout: output,
            stderr: error,
            directory: Some(path_of(directory)?),
            environment: own.chain(environment).collect(),
            user: caller,
            umask,
            signals: Signals::OfClient(client),
            machine: Some(machine.clone()),
            mounts,
        };
        Ok((console, args))
    }
}

/// The path of a directory. One that has none any more, or none here, has a path at which nothing is found.
fn path_of(directory: impl AsFd) -> io::Result<PathBuf> {
    let directory = directory.as_fd();
    let path = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let is_it = match (fstat(directory), stat(&path)) {
        (Ok(known), Ok(found)) => identity(known) == identity(found),
        _ => false,
    };
    Ok(if is_it { path } else { PathBuf::from("/proc/self/fd/-1") })
}

/// Does to a command what signals do to a process, until it has ended.
fn pass_on(client: &ClientSignals, signals: &Receiver<i32>, cancel: &CancelToken) {
    loop {
        match signals.recv_timeout(ASK_EVERY) {
            Ok(SIGUSR1) => client.ask(),
            // the size of a terminal is asked for when it is needed
            Ok(SIGWINCH) => {}
            Ok(_) => client.interrupt(),
            Err(RecvTimeoutError::Timeout) if !cancel.is_cancelled() => {}
            Err(RecvTimeoutError::Timeout) => client.interrupt(),
            // it has ended, or its client is gone
            Err(RecvTimeoutError::Disconnected) => return client.interrupt(),
        }
    }
}
