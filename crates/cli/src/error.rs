//! Failures of commands: the message that is printed, and the exit status.

use std::io;

/// The end of a command: its exit status, or why there is none.
pub(crate) type Outcome = Result<u8, Failure>;

/// A command that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Misused: the message, then the command's usage, exit status 2.
    Usage(String),
    /// The message, exit status 1. It is empty if everything was already printed.
    Failed(String),
    /// Writing to standard output failed; silent if nobody reads it any more.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Failure::Output(e)
    }
}

impl From<crate::args::Bad> for Failure {
    fn from(e: crate::args::Bad) -> Self {
        Failure::Usage(e.to_string())
    }
}

/// A failure with a message.
pub(crate) fn failed(message: impl Into<String>) -> Failure {
    Failure::Failed(message.into())
}

/// A failure with a message and the usage.
pub(crate) fn usage(message: impl Into<String>) -> Failure {
    Failure::Usage(message.into())
}

/// An error of the system in its words, without Rust's number behind them.
pub(crate) fn cause(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
