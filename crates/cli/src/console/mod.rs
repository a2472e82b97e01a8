//! The console of a command: all that a command takes from the process that it runs in, as a value.
//!
//! The embedded binary makes one from itself ([`Console::of_process`]) and runs one command. A server makes one for each command line of a client, from
//! the descriptors, the directory, the environment and the user that the client has, and runs many at once, each in a thread of its own
//! ([`run`](crate::run)). The code of a command is the same in both.
//!
//! # How a command reaches it
//! The console is the current one of a thread. To hand it down as an argument would be cleaner where a dozen functions print; here about five hundred
//! places do, down to the callbacks that libraries call, and an argument that everything has says nothing. So [`run`](crate::run) enters the console in
//! the thread of the command, and the rules are:
//! * A thread that a command starts gets it handed over: [`current`] before it is started, [`Running::enter`] in it. The same holds for the items of
//!   `base::tasks`, if they print.
//! * What a pool calls from threads of its own (the [`Front`](site::Front) of its site) knows its console, and enters it.
//! * A thread that has none and asks for one panics: a message that is lost in a client's place, or that is written to the server's own standard error,
//!   would be found by nobody.
//!
//! Nothing else in this crate reads the descriptors, directory, environment, user or terminal of the process: `clippy.toml` forbids the calls, and but for
//! what begins a process (`main`, [`settings`](crate::settings)) this module alone allows them.
//!
//! # Paths
//! A relative path of the host is one from the directory of the console: [`path`] makes it absolute. Where the console is the process's own, a
//! relative path stays as it is, as the process's directory is the right one. A message names a path as the user did ([`as_said`]).
//!
//! # Signals
//! A signal that ends an embedded command ends its process, and the pool is as after any crash: nothing acknowledged is lost. A client's command shares its
//! process with others, so its signals come as a value ([`ClientSignals`]). An interrupted command can neither read nor write its descriptors any more, and
//! does not sleep, and the waits of its requests to pools are cancelled ([`control`]); so it ends where it does so the next time, like one whose reader has
//! left. What computes in a library meanwhile, or waits for a lock of another process, is not interrupted; nor is a file of the host that is copied as a
//! whole (`zuse put`).
//!
//! # State of the process
//! These remain the process's, and a server that runs commands should know of them:
//! * Tunables (`zuse -o`, `zdb -o`, `zdb -Y`), `ZUSE_LOG`, `ZUSE_TUNABLES`: a tunable that a client's command sets stays set for all.
//! * The folder of the site (`ZUSE_STATE`, `XDG_STATE_HOME`, `HOME` of the process): a client asks the server of its own folder.
//! * The counts of I/O in `site::iostats`, published at the end of each command, with what other commands of the process did since: that adds up. What
//!   `zpool iostat` itself reads is left out by an embedded command only.
//! * What `site` knows of pools by their guids (the notes of `left`, pools that are suspended here, published events): one truth for all commands.
//! * Limits on core dumps (none, once a key was seen), the agent that keeps typed keys (its own process), debug messages and events (rings).
//! * Rights on the host: files are opened with the server's; [`Console::user`] is what pools are asked as.
//! * `failmode=panic` ends the process.
//! * The name of the process (`zfs send -V`) is changed by an embedded command only.
//!
//! A command has a [`Site`](site::Site) of its own ([`here`]), so that what it has seen is not another's. Pools are those that the server has open ([`Console::machine`]), which stay open when
//! the command ends; without a machine the locks of devices between two commands are as between two processes.
#![allow(clippy::disallowed_methods)]

#[macro_use]
mod out;
mod ask;
mod client;
mod here;
mod signals;
mod stream;
mod terminal;
mod zone;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, IsTerminal, LineWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ::control::Caller;
use base::Guid;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use mounts::{How, Mounts};
use rustix::fs::Mode;
use rustix::termios::{Termios, Winsize};
use site::{Machine, Site};

pub use ask::by_server;
pub(crate) use client::CommandLines;
pub(crate) use here::{control, here};
pub(crate) use out::{Out, complain, for_scripts, is_exact, over, print};
pub use signals::{ClientSignals, Signals};
pub(crate) use signals::{Questions, not_ignored};
pub(crate) use stream::{Input, Stream};
pub(crate) use terminal::Screen;

/// Everything that a command takes from the process that it runs for.
#[derive(Debug)]
pub struct Console {
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
    /// The directory that relative paths of the host are resolved against, as an absolute path; `None`: that of this process.
    pub directory: Option<PathBuf>,
    /// The environment variables.
    pub environment: BTreeMap<OsString, OsString>,
    /// The user who asks.
    pub user: Caller,
    /// The permissions that new files lack.
    pub umask: u32,
    /// The signals that the command gets.
    pub signals: Signals,
    /// The machine whose open pools the command uses; `None`: it opens and closes its own.
    pub machine: Option<Machine>,
    /// The mounts of the process that owns the pools; `None`: nothing is mounted here.
    pub mounts: Option<Arc<Mounts>>,
}

impl Console {
    /// The console of this process.
    ///
    /// # Errors
    /// When a descriptor cannot be duplicated.
    pub fn of_process() -> io::Result<Console> {
        use rustix::process::{getegid, geteuid, getgroups, getuid};
        Ok(Console {
            stdin: io::stdin().as_fd().try_clone_to_owned()?,
            stdout: io::stdout().as_fd().try_clone_to_owned()?,
            stderr: io::stderr().as_fd().try_clone_to_owned()?,
            directory: None,
            environment: std::env::vars_os().collect(),
            user: Caller {
                uid: geteuid().as_raw(),
                gid: getegid().as_raw(),
                groups: getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw()).collect(),
                real_uid: getuid().as_raw(),
                process: std::process::id(),
                ..Caller::default()
            },
            umask: umask_of_process(),
            signals: Signals::OfProcess,
            machine: None,
            mounts: None,
        })
    }
}

/// The umask of this process. The call for it can only set it, and for a moment another thread would see that.
fn umask_of_process() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
    told.unwrap_or_else(|| {
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(umask);
        umask.as_raw_mode()
    })
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Running>>> = const { RefCell::new(None) };
}

/// A command that runs, with its console and what it remembers until its end.
pub(crate) struct Running {
    stdin: Mutex<BufReader<Stream>>,
    raw_stdin: Stream,
    stdout: Mutex<LineWriter<Stream>>,
    raw_stdout: Stream,
    stderr: Stream,
    directory: Option<PathBuf>,
    environment: BTreeMap<OsString, OsString>,
    user: Caller,
    umask: u32,
    signals: Signals,
    machine: Option<Machine>,
    mounts: Option<Arc<Mounts>>,
    /// How each file system was mounted when that was shown first, by name.
    shown_mounts: OnceLock<HashMap<String, How>>,
    argv: Vec<OsString>,
    /// The first error in writing standard output.
    broken: OnceLock<io::Error>,
    /// Set if a program reads standard output and wants values exactly as they are.
    exact: AtomicBool,
    /// Locations of keys that were given to the command.
    keys: Mutex<Vec<String>>,
    /// The pools and encryption roots whose keys were loaded for the command alone.
    own_keys: Mutex<Vec<(Guid, String)>>,
    site: OnceLock<Site>,
    /// The state of the terminal before the question that is being asked.
    pub(crate) before_question: Mutex<Option<Termios>>,
    /// Set once the thread that waits for signals at a question was started, with its error if that failed.
    pub(crate) question_watch: OnceLock<Result<(), String>>,
}

/// Puts the former console of a thread back when it is dropped.
struct Entered(Option<Arc<Running>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl Running {
    /// The command `argv`, whose first word is the name that it is called by.
    pub(crate) fn new(console: Console, argv: &[OsString]) -> Arc<Running> {
        let Console { stdin, stdout, stderr, directory, environment, user, umask, signals, machine, mounts } = console;
        let stream = |fd: OwnedFd| Stream::new(fd, signals.clone());
        let (stdin, stdout, stderr) = (stream(stdin), stream(stdout), stream(stderr));
        Arc::new(Running {
            stdin: Mutex::new(BufReader::new(stdin.clone())),
            raw_stdin: stdin.strict(),
            stdout: Mutex::new(LineWriter::new(stdout.clone())),
            raw_stdout: stdout.strict(),
            stderr,
            directory,
            environment,
            user,
            umask,
            signals,
            machine,
            mounts,
            shown_mounts: OnceLock::new(),
            argv: argv.to_vec(),
            broken: OnceLock::new(),
            exact: AtomicBool::new(false),
            keys: Mutex::default(),
            own_keys: Mutex::default(),
            site: OnceLock::new(),
            before_question: Mutex::default(),
            question_watch: OnceLock::new(),
        })
    }

    /// Runs `work`, in this thread, for this command.
    pub(crate) fn enter<R>(self: &Arc<Self>, work: impl FnOnce() -> R) -> R {
        let _former = Entered(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// Ends the command: pools are closed, counts published, and standard output is written out. Returns the exit status: not `status` if some
    /// output could not be written.
    pub(crate) fn finish(self: &Arc<Self>, status: u8) -> u8 {
        site::iostats::publish();
        if let Some(site) = self.site.get() {
            let keys = std::mem::take(&mut *self.own_keys.lock().unwrap_or_else(PoisonError::into_inner));
            self.enter(|| site.drop_keys(&keys));
            site.leave();
        }
        self.enter(|| out::finish(status))
    }
}

/// The command that this thread works for.
#[track_caller]
pub(crate) fn current() -> Arc<Running> {
    let current = CURRENT.with_borrow(Clone::clone);
    current.expect("a thread of a command has its console")
}

/// Standard input, with a buffer that all readers share.
pub(crate) fn stdin() -> Input {
    Input(current())
}

/// Standard input without a buffer.
pub(crate) fn raw_stdin() -> Stream {
    current().raw_stdin.clone()
}

/// Standard output without a buffer.
pub(crate) fn raw_stdout() -> Stream {
    current().raw_stdout.clone()
}

/// Standard error.
pub(crate) fn stderr() -> Stream {
    current().stderr.clone()
}

/// Standard output, exactly as it is written, with the buffer of a line that all writers share.
pub(crate) fn stdout() -> out::Stdout {
    out::Stdout(current())
}

/// Returns whether standard input is a terminal.
pub(crate) fn stdin_is_terminal() -> bool {
    current().raw_stdin.as_fd().is_terminal()
}

/// Returns whether standard output is a terminal.
pub(crate) fn stdout_is_terminal() -> bool {
    current().raw_stdout.as_fd().is_terminal()
}

/// Returns whether standard error is a terminal.
pub(crate) fn stderr_is_terminal() -> bool {
    current().stderr.as_fd().is_terminal()
}

/// The size of the terminal that standard output is, if it is one.
pub(crate) fn window() -> Option<Winsize> {
    rustix::termios::tcgetwinsize(&current().raw_stdout).ok()
}

/// An environment variable.
pub(crate) fn var(name: &str) -> Option<OsString> {
    current().environment.get(OsStr::new(name)).cloned()
}

/// A path of the host, from the directory of the console.
pub(crate) fn path(said: impl AsRef<Path>) -> PathBuf {
    let said = said.as_ref();
    match &current().directory {
        // the empty path leads nowhere, not to the directory
        Some(directory) if !said.as_os_str().is_empty() => directory.join(said),
        _ => said.to_owned(),
    }
}

/// The location of a key, with a relative path from the directory of the console.
pub(crate) fn location(said: &str) -> Cow<'_, OsStr> {
    match (&current().directory, said.strip_prefix("file://")) {
        (Some(directory), Some(file)) if !file.starts_with('/') => {
            let mut location = OsString::from("file://");
            location.push(directory.join(file));
            location.into()
        }
        _ => OsStr::new(said).into(),
    }
}

/// The absolute form of a path of the host; links and `..` stay.
///
/// # Errors
/// As [`std::path::absolute`].
pub(crate) fn absolute(said: impl AsRef<Path>) -> io::Result<PathBuf> {
    std::path::absolute(path(said))
}

/// A path that [`path`] has made of `said`, or one at it, as the user would name it.
pub(crate) fn as_said(said: &Path, path: &Path) -> PathBuf {
    let below = match &current().directory {
        Some(directory) if said.is_relative() => path.strip_prefix(directory).ok(),
        _ => None,
    };
    match below {
        Some(below) if below.as_os_str().is_empty() => PathBuf::from("."),
        Some(below) => below.to_owned(),
        None => path.to_owned(),
    }
}

/// Makes a program run in the directory of the console.
pub(crate) fn place(program: &mut std::process::Command) {
    if let Some(directory) = &current().directory {
        program.current_dir(directory);
    }
}

/// The user who asks, with no open files.
pub(crate) fn user() -> Caller {
    Caller { files: Default::default(), ..current().user.clone() }
}

/// The permissions that new files of the command lack.
pub(crate) fn umask() -> u32 {
    current().umask
}

/// The words of the command line.
pub(crate) fn argv() -> Vec<OsString> {
    current().argv.clone()
}

/// The signals of the command.
pub(crate) fn signals() -> Signals {
    current().signals.clone()
}

/// Waits, with no pool kept from being exported. Returns whether the command goes on: an interrupted one does not.
/// The mounts of this process, if it mounts anything.
pub(crate) fn mounts() -> Option<Arc<Mounts>> {
    current().mounts.clone()
}

/// Unmounts what a server that died has left mounted of the pools of this state folder.
pub(crate) fn unmount_dead() {
    if !fuse::all_mounts().is_empty() {
        fuse::unmount_dead(ours());
    }
}

/// Returns what says whether a mount is of the pools or volumes of this state folder, by whatever process.
pub(crate) fn ours() -> impl Fn(&fuse::Seen) -> bool + Send + 'static {
    // without the records nothing is known to be of these pools
    let pools: Vec<String> = here().all().unwrap_or_default().into_iter().map(|record| record.name).collect();
    let devices = devices_source();
    move |seen| {
        if seen.is_devices {
            return devices.as_ref() == Some(&seen.source);
        }
        let pool = seen.source.split(['/', '@']).next().unwrap_or_default();
        pools.iter().any(|name| name == pool)
    }
}

/// What the mount table shows as the source of a directory of volumes: the state folder, whose pools they are in.
pub(crate) fn devices_source() -> Option<String> {
    let folder = site::records::folder().ok()?;
    // these cannot be in the mount table
    Some(format!("zuse:{}", folder.display()).replace([',', '\\', '\n', '\0'], "_"))
}

/// How a file system is mounted, as the command shows it: each time as it was when it was asked first. `None` if it is not mounted.
pub(crate) fn shown_mount(name: &str) -> Option<How> {
    let running = current();
    let table = running.mounts.as_ref()?;
    let all = || table.list().iter().map(|mount| (mount.name(), mount.how())).collect();
    running.shown_mounts.get_or_init(all).get(name).copied()
}

/// Whether the command is to end.
pub(crate) fn is_interrupted() -> bool {
    current().signals.check().is_err()
}

/// Waits. Returns whether the command goes on: an interrupted one does not.
pub(crate) fn sleep(time: Duration) -> bool {
    let running = current();
    if let Some(site) = running.site.get() {
        site.rest();
    }
    running.signals.sleep(time)
}

/// Whether the command is a client's, beside others in this process.
pub(crate) fn is_of_client() -> bool {
    matches!(current().signals, Signals::OfClient(_))
}

/// The time zone of the user.
pub(crate) fn time_zone() -> TimeZone {
    let running = current();
    match running.signals {
        Signals::OfProcess => TimeZone::system(),
        Signals::OfClient(_) => zone::named(var("TZ").as_deref()),
    }
}

/// The time now, in the time zone of the user.
pub(crate) fn now() -> Zoned {
    Timestamp::now().to_zoned(time_zone())
}

/// Gives the command a key.
pub(crate) fn give_key(location: String) {
    current().keys.lock().unwrap_or_else(PoisonError::into_inner).push(location);
}

/// Notes that a key was loaded for the command alone. It goes with the pools that the command has open; one of a machine forgets it at the end of the command.
pub(crate) fn has_key(pool: Guid, root: &str) {
    let running = current();
    if running.machine.is_some() {
        running.own_keys.lock().unwrap_or_else(PoisonError::into_inner).push((pool, root.to_owned()));
    }
}

/// The keys that the command was given.
pub(crate) fn given_keys() -> Vec<String> {
    current().keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Makes what an embedded command reads not be added to the counts of I/O.
pub(crate) fn uncounted() {
    if let Signals::OfProcess = current().signals {
        site::iostats::keep_quiet();
    }
}

/// Runs a unit test's `work` with the console of the process.
#[cfg(test)]
pub(crate) fn in_test<R>(work: impl FnOnce() -> R) -> R {
    Running::new(Console::of_process().unwrap(), &[]).enter(work)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn in_directory(directory: impl Into<PathBuf>) -> Arc<Running> {
        let console = Console::of_process().unwrap();
        Running::new(Console { directory: Some(directory.into()), ..console }, &[])
    }

    #[test]
    fn a_thread_has_the_console_that_it_entered_last() {
        let there = || path("x").display().to_string();
        in_directory("/a").enter(|| {
            in_directory("/b").enter(|| assert_eq!(there(), "/b/x"));
            assert_eq!(there(), "/a/x");
            let handed = current();
            std::thread::scope(|scope| {
                assert_eq!(scope.spawn(|| handed.enter(there)).join().unwrap(), "/a/x");
                // one that was handed none prints nothing anywhere
                assert!(scope.spawn(|| eprintln!("lost")).join().is_err());
            });
        });
        assert!(std::panic::catch_unwind(there).is_err());
    }

    #[test]
    fn a_path_is_shown_as_it_was_said() {
        in_directory("/a").enter(|| {
            let shown = |said: &str| as_said(Path::new(said), &path(said)).display().to_string();
            assert_eq!(["x/y", "../x", "/a/x", "/z", ".", ""].map(shown), ["x/y", "../x", "/a/x", "/z", ".", ""]);
            assert_eq!(as_said(Path::new("x"), Path::new("/a")), Path::new("."));
            assert_eq!([path("x/"), path(""), path("/x")].map(|path| path.display().to_string()), ["/a/x/", "", "/x"]);
            assert_eq!(absolute("x").unwrap(), Path::new("/a/x"));
            let located = |said| location(said).to_str().unwrap().to_owned();
            assert_eq!(["file://k", "file:///k", "prompt"].map(located), ["file:///a/k", "file:///k", "prompt"]);
        });
        // a directory need not be text
        in_directory(OsStr::from_bytes(b"/a\xff")).enter(|| {
            assert_eq!(location("file://k").as_bytes(), b"file:///a\xff/k");
        });
    }
}
