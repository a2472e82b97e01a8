//! What commands print as they go.
//!
//! The macros of the standard library panic where nobody reads what they print, or the disk behind it is full: in the middle of a change of
//! a pool. These go on, and the exit status tells.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

/// Why standard output could not be written the first time.
static BROKEN: OnceLock<io::Error> = OnceLock::new();

macro_rules! print {
    ($($text:tt)*) => { $crate::out::print(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::out::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::out::complain(format_args!($($text)*)) };
}

macro_rules! eprintln {
    () => { $crate::out::complain(format_args!("\n")) };
    ($($text:tt)*) => { $crate::out::complain(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints to standard output; [`finish`] tells if that cannot be.
pub(crate) fn print(text: Arguments<'_>) {
    if BROKEN.get().is_none() {
        note(io::stdout().write_fmt(text));
    }
}

/// Prints to standard error. If that cannot be, there is nobody to tell.
pub(crate) fn complain(text: Arguments<'_>) {
    let _told = io::stderr().write_fmt(text);
}

/// The exit status of a command that ends with `status`: not 0 if not all could be printed.
pub(crate) fn finish(status: u8) -> u8 {
    note(io::stdout().flush());
    let Some(e) = BROKEN.get() else { return status };
    // else something was said already
    if status == 0 && e.kind() != io::ErrorKind::BrokenPipe {
        eprintln!("cannot write: {e}");
    }
    status.max(1)
}

fn note(done: io::Result<()>) {
    if let Err(e) = done {
        BROKEN.get_or_init(|| e);
    }
}
