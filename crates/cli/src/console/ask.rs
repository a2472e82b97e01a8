//! Command lines that the server of the state folder carries out, in the place of this process.
//!
//! What this process has goes there: words, descriptors, directory, umask, variables, and the signals that come meanwhile. It ends as the command does: with its status, or by the signal
//! that ended it. A second signal ends it at once, whatever the command does; and so does a command that does not end soon after the first. Where there is no server, or one that does not serve this user, the command is
//! carried out here.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use base::Errno;
use nvlist::NvList;
use rustix::fs::{CWD, Mode, OFlags, openat};
use serve::{Client, Error, Request, SIGNALS};
use signal_hook::consts::{SIGUSR1, SIGWINCH};
use signal_hook::iterator::Signals as Caught;
use signal_hook::low_level::emulate_default_handler;

use super::{Console, Running, not_ignored};

/// The time after which signals are passed on. Until then one ends this process, and the server ends the command of a client that is gone.
const SOON: Duration = Duration::from_millis(20);

/// The time that a command has to end after a signal. One that goes on, as what it waits for cannot be interrupted, does so without its client.
const GRACE: Duration = Duration::from_secs(2);
/// The time for which a server that has too many requests is asked again.
const BUSY: Duration = Duration::from_secs(30);
/// The interval at which a signal is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Has a server carry out the command `argv`, if there is one that does. Returns the exit status; `None` if the command is to be carried out here: nothing of it
/// was done.
#[must_use]
pub fn by_server(argv: &[OsString]) -> Option<u8> {
    let console = Console::of_process().ok()?;
    let umask = console.umask;
    let running = Running::new(console, argv);
    if !running.enter(|| crate::asked::is_asked(argv)) {
        return None;
    }
    let until = Instant::now() + BUSY;
    let mut answer = ask(&running, argv, umask)?;
    while is_busy(&answer.0) && Instant::now() < until {
        std::thread::sleep(LOOK);
        answer = ask(&running, argv, umask)?;
    }
    let (answer, version) = answer;
    let why = match answer.as_ref().map(status) {
        Ok(Some(status)) => {
            if let Some(version) = version.filter(|_| status != 0) {
                // what is wrong may be right in this version
                let own = env!("CARGO_PKG_VERSION");
                let _told = writeln!(
                    io::stderr(),
                    "note: the server carried this out, which is zuse {version}; this is zuse {own} ('zuse serve --stop' ends the server)"
                );
            }
            return Some(status);
        }
        Ok(None) => "the server is not understood".to_owned(),
        // refused before it was begun
        Err(Error::Failed(failed)) if [Errno::EPERM, Errno::ENOTSUP, Errno::ECANCELED].contains(&failed.errno) => {
            return None;
        }
        Err(why) => why.to_string(),
    };
    // there is nothing else that it could be told to
    let _told = writeln!(io::stderr(), "{why}");
    Some(1)
}

/// What came of a command line, and the version of the server if that is another one.
type Answered = (Result<NvList, Error>, Option<String>);

/// Asks for the command line once; `None` if there is nobody to ask.
fn ask(running: &Arc<Running>, argv: &[OsString], umask: u32) -> Option<Answered> {
    match running.enter(|| begin(argv, umask)) {
        Ok(Some((request, version))) => Some((request.wait_for(SOON).unwrap_or_else(|| wait(&request)), version)),
        Ok(None) => {
            running.enter(super::unmount_dead);
            None
        }
        Err(Error::Failed(failed)) if failed.errno == Errno::EAGAIN => Some((Err(Error::Failed(failed)), None)),
        // it has the pools of this user, and is not understood
        Err(other @ Error::OtherVersion { of_this_user: true, .. }) => Some((Err(other), None)),
        Err(_) => None,
    }
}

/// Whether the server has too many requests: it has not begun this one.
fn is_busy(answer: &Result<NvList, Error>) -> bool {
    matches!(answer, Err(Error::Failed(failed)) if failed.errno == Errno::EAGAIN)
}

/// Begins the command line; `None` if there is no server of this user: another's carries out none for him. One that mounts starts one.
fn begin(argv: &[OsString], umask: u32) -> Result<Option<(Request, Option<String>)>, Error> {
    let client = match crate::asked::needs_server(argv) {
        true => Some(serve::start()?),
        false => Client::connect()?,
    };
    let Some(client) = client.filter(Client::is_of_this_user) else { return Ok(None) };
    let directory = openat(CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = directory.map_err(|e| Error::Unsendable(e.to_string()))?;
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let three = [input.as_fd(), output.as_fd(), error.as_fd()];
    let version = client.other_version().map(str::to_owned);
    Ok(Some((client.begin_run(argv.to_vec(), three, directory, umask)?, version)))
}

/// Waits for the end of a command, and passes signals on to it. One that was to end the command ends this process then.
fn wait(request: &Request) -> Result<NvList, Error> {
    let ending = Arc::new(AtomicI32::new(0));
    if let Ok(mut caught) = Caught::new(not_ignored(&SIGNALS)) {
        let (signals, first) = (request.signals(), ending.clone());
        let pass_on = move || {
            for signal in caught.forever() {
                let ends = ![SIGUSR1, SIGWINCH].contains(&signal);
                if ends && first.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                    let _ = emulate_default_handler(signal);
                }
                signals.pass(signal);
            }
        };
        if std::thread::Builder::new().name("signals".to_owned()).spawn(pass_on).is_err() {
            // it cannot be interrupted, but it ends
        }
    }
    let mut ended = None;
    loop {
        let answer = request.wait_for(LOOK);
        let signal = ending.load(Ordering::SeqCst);
        match answer {
            Some(answer) if signal == 0 => return answer,
            None if signal == 0 => {}
            None if ended.get_or_insert_with(Instant::now).elapsed() < GRACE => {}
            _ => {
                let _ = emulate_default_handler(signal);
            }
        }
    }
}

fn status(out: &NvList) -> Option<u8> {
    out.get_u64("status").and_then(|status| u8::try_from(status).ok())
}
