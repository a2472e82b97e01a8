//! Asks for a key on the terminal, without an echo (OpenZFS: `get_key_interactive`).
//!
//! The echo is restored however the question ends: with an answer, an error, or a signal that ends the command. For
//! the latter a thread waits for signals from the first question on. It restores the terminal and lets the signal take
//! its effect; a command cannot be stopped (Ctrl-Z) while it asks.

use std::io::{self, Write};
use std::sync::{Arc, PoisonError};

use pool::KeyFormat;
use rustix::termios::{self, LocalModes, OptionalActions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals as Caught;
use signal_hook::low_level::emulate_default_handler;

use site::keys::{Secret, read_key};

use crate::console::{self, Running, Signals};

/// The signals that end or stop a command from its terminal or by name.
const SIGNALS: [i32; 5] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP];

/// Asks, and reads a line.
pub(super) fn ask(prompt: &str, format: KeyFormat) -> Result<Secret, String> {
    let running = console::current();
    running.question_watch.get_or_init(|| watch(&running).map_err(|e| e.to_string())).clone()?;
    let quiet = Quiet::begin().map_err(|e| e.to_string())?;
    print!("{prompt}");
    drop(console::stdout().flush());
    let key = read_key(console::raw_stdin(), format);
    drop(quiet);
    println!();
    key
}

/// A terminal without echo, until dropped.
struct Quiet;

impl Quiet {
    fn begin() -> io::Result<Quiet> {
        let running = console::current();
        let mut before = running.before_question.lock().unwrap_or_else(PoisonError::into_inner);
        let old = termios::tcgetattr(console::raw_stdin())?;
        let mut quiet = old.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ECHOK | LocalModes::ECHONL;
        *before = Some(old);
        termios::tcsetattr(console::raw_stdin(), OptionalActions::Flush, &quiet)?;
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
    let running = console::current();
    let before = running.before_question.lock().unwrap_or_else(PoisonError::into_inner).take();
    before.is_some_and(|old| {
        // a terminal that no longer exists needs no echo
        let _ = termios::tcsetattr(console::raw_stdin(), OptionalActions::Flush, &old);
        true
    })
}

fn is_asking() -> bool {
    let running = console::current();
    let before = running.before_question.lock().unwrap_or_else(PoisonError::into_inner);
    before.is_some()
}

/// Starts to wait for signals of the process. Signals that were ignored when the command was started stay ignored. A client's signals end the reading of
/// an answer, and need no thread.
fn watch(running: &Arc<Running>) -> io::Result<()> {
    if let Signals::OfClient(_) = console::signals() {
        return Ok(());
    }
    let running = running.clone();
    let mut signals = Caught::new(console::not_ignored(&SIGNALS))?;
    let work = move || {
        running.enter(|| {
            for signal in signals.forever() {
                if signal == SIGTSTP && is_asking() {
                    continue;
                }
                if put_back() {
                    println!();
                    drop(console::stdout().flush());
                }
                let _ = emulate_default_handler(signal);
            }
        })
    };
    std::thread::Builder::new().name("key-prompt".to_owned()).spawn(work).map(drop)
}
