//! Output of commands.
//!
//! The macros of the standard library panic if nobody reads the output, or the disk behind it is full: possibly in the
//! middle of a change of a pool. These continue, and the exit status reports the failure. Whatever a terminal would
//! interpret is escaped ([`shown`](crate::shown)), except in tables for scripts (`-H`), which are printed exactly as
//! they are.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{Running, current, stdout_is_terminal};
use crate::shown::{Shown, text};

macro_rules! print {
    ($($text:tt)*) => { $crate::console::print(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::console::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::console::print(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::console::complain(format_args!($($text)*)) };
}

macro_rules! eprintln {
    () => { $crate::console::complain(format_args!("\n")) };
    ($($text:tt)*) => { $crate::console::complain(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes a line over the last one, on standard error: our own words and numbers only.
macro_rules! progress {
    ($($text:tt)*) => { $crate::console::over(format_args!($($text)*)) };
}

/// Prints to standard output; the end of the command reports if that failed.
pub(crate) fn print(what: Arguments<'_>) {
    let running = current();
    if running.broken.get().is_none() {
        let what = what.to_string();
        let what = if is_exact() { what.into() } else { text(&what) };
        let done = Stdout(running.clone()).write_all(what.as_bytes());
        note(&running, done);
    }
}

/// Prints values exactly as they are from now on, unless standard output is a terminal.
pub(crate) fn for_scripts() {
    current().exact.store(!stdout_is_terminal(), Ordering::Relaxed);
}

/// Returns whether values are printed exactly as they are.
pub(crate) fn is_exact() -> bool {
    current().exact.load(Ordering::Relaxed)
}

/// Standard output of a command.
pub(crate) struct Stdout(pub(super) Arc<Running>);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.stdout.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.stdout.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.stdout.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// Standard output: exact, or escaped.
pub(crate) enum Out {
    Exact(Stdout),
    Shown(Shown<Stdout>),
}

impl Out {
    /// Standard output in the form that the command's options ask for.
    pub(crate) fn new() -> Out {
        let out = Stdout(current());
        if is_exact() { Out::Exact(out) } else { Out::Shown(Shown::new(out)) }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Out::Exact(out) => out.write(bytes),
            Out::Shown(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::Exact(out) => out.flush(),
            Out::Shown(out) => out.flush(),
        }
    }
}

/// Prints to standard error. A failure to do so is ignored: it could not be reported.
pub(crate) fn complain(what: Arguments<'_>) {
    let what = without_numbers(&what.to_string());
    let _told = super::stderr().write_all(text(&what).as_bytes());
}

/// Prints text that moves the cursor to standard error.
pub(crate) fn over(what: Arguments<'_>) {
    let _told = super::stderr().write_fmt(what);
}

/// A message without the numbers that Rust puts behind what the system says: `No such file or directory (os error 2)`.
fn without_numbers(message: &str) -> String {
    const MARK: &str = " (os error ";
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    while let Some((before, after)) = rest.split_once(MARK) {
        out.push_str(before);
        let digits = after.trim_start_matches(|c: char| c.is_ascii_digit());
        match digits.strip_prefix(')') {
            Some(end) if digits.len() < after.len() => rest = end,
            _ => {
                out.push_str(MARK);
                rest = after;
            }
        }
    }
    out + rest
}

/// The exit status of a command that ends with `status`: not 0 if some output could not be written.
pub(super) fn finish(status: u8) -> u8 {
    let running = current();
    let done = Stdout(running.clone()).flush();
    note(&running, done);
    let Some(e) = running.broken.get() else { return status };
    // otherwise an error was already printed
    if status == 0 && e.kind() != io::ErrorKind::BrokenPipe {
        eprintln!("cannot write: {e}");
    }
    status.max(1)
}

fn note(running: &Running, done: io::Result<()>) {
    if let Err(e) = done {
        running.broken.get_or_init(|| e);
    }
}

#[cfg(test)]
mod tests {
    use super::without_numbers;

    #[test]
    fn numbers_of_errors_are_left_out() {
        let e = std::io::Error::from_raw_os_error(2);
        let words = e.to_string().replace(" (os error 2)", "");
        assert_eq!(without_numbers(&format!("/a: {e}\n/b: {e}: more")), format!("/a: {words}\n/b: {words}: more"));
        for text in ["plain", "x (os error )", "x (os error 2", "a (os error b) c", ""] {
            assert_eq!(without_numbers(text), text);
        }
    }
}
