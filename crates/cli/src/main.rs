//! The `zuse` binary: one command, with the console of the process ([`zuse_cli`]).
#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods)] // it is the process

mod allocator;

use std::ffi::OsString;
use std::process::ExitCode;

use zuse_cli::Console;

/// The global allocator. Blocks are allocated by one thread and freed by another, many thousands a second: with the C
/// library's allocator the two wait for its locks, and a large block's memory is returned to the system each time.
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    if let Some(status) = site::agent::run(argv.get(1..).unwrap_or_default()) {
        return ExitCode::from(status);
    }
    if let Some(status) = zuse_cli::by_server(&argv) {
        return ExitCode::from(status);
    }
    let console = match Console::of_process() {
        Ok(console) => console,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    ExitCode::from(match zuse_cli::settings() {
        Ok(()) => zuse_cli::run(console, &argv),
        Err(message) => zuse_cli::refuse(console, &message),
    })
}
