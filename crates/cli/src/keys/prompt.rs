//! Asks for a key on the terminal, without an echo (OpenZFS: `get_key_interactive`).
//!
//! The echo is restored however the question ends: with an answer, an error, or a signal that ends the command. For
//! the latter a thread waits for signals from the first question on. It restores the terminal and lets the signal take
//! its effect; a command cannot be stopped (Ctrl-Z) while it asks.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use pool::KeyFormat;
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use site::keys::{Secret, read_key};

/// The signals that end or stop a command from its terminal or by name.
const SIGNALS: [i32; 5] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP];

/// The state of the terminal before the question that is being asked.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
/// Set once the thread that waits for signals was started, with its error if that failed.
static WATCH: OnceLock<Result<(), String>> = OnceLock::new();

/// Standard input without a buffer: a buffer would keep the key, and the next key could not be read.
pub(super) fn stdin() -> Result<File, String> {
    io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(|e| e.to_string())
}

/// Asks, and reads a line.
pub(super) fn ask(prompt: &str, format: KeyFormat) -> Result<Secret, String> {
    WATCH.get_or_init(|| watch().map_err(|e| e.to_string())).clone()?;
    let quiet = Quiet::begin().map_err(|e| e.to_string())?;
    print!("{prompt}");
    drop(io::stdout().flush());
    let key = read_key(stdin()?, format);
    drop(quiet);
    println!();
    key
}

/// A terminal without echo, until dropped.
struct Quiet;

impl Quiet {
    fn begin() -> io::Result<Quiet> {
        let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
        let old = termios::tcgetattr(io::stdin())?;
        let mut quiet = old.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ECHOK | LocalModes::ECHONL;
        *before = Some(old);
        termios::tcsetattr(io::stdin(), OptionalActions::Flush, &quiet)?;
        Ok(Quiet)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        put_back();
    }
}

/// Restores the terminal. Returns whether there was a state to restore.
fn put_back() -> bool {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    before.is_some_and(|old| {
        // a terminal that no longer exists needs no echo
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Flush, &old);
        true
    })
}

fn is_asking() -> bool {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Starts to wait for signals. Signals that were ignored when the command was started stay ignored.
fn watch() -> io::Result<()> {
    let ignored = ignored();
    let mut signals = Signals::new(SIGNALS.iter().filter(|signal| ignored >> (*signal - 1) & 1 == 0))?;
    let work = move || {
        for signal in signals.forever() {
            if signal == SIGTSTP && is_asking() {
                continue;
            }
            if put_back() {
                println!();
                drop(io::stdout().flush());
            }
            let _ = emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("key-prompt".to_owned()).spawn(work).map(drop)
}

/// The signals that this process ignores, as a bit mask from 1 on.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
