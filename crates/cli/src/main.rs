//! The `zuse` binary: one command, with the console of the process ([`zuse_cli`]).
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // it is the process

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use zuse_cli::Console;

/// The global allocator. Blocks are allocated by one thread and freed by another, many thousands a second: with the C
/// library's allocator the two wait for its locks, and a large block's memory is returned to the system each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The KiB from which on the allocator gives freed memory back to the system at once; it reads them when a process begins.
const RETURNED: (&str, &str) = ("MIMALLOC_ARENA_MAX_OBJECT_SIZE", "16384");

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    begin_server(&argv);
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

/// Begins this program once more, with [`RETURNED`], if it is a server. The buffers of a mount's threads, 16 MiB each, are filled with zeros when they are
/// made. Of memory that is new that takes nothing; of memory that a former mount had, each page would be in use from then on.
fn begin_server(argv: &[OsString]) {
    let (name, kib) = RETURNED;
    let verb = argv.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let program = std::env::current_exe().ok();
    // which is the loader where that was told to run this program
    let is_loader =
        program.as_deref().and_then(Path::file_name).is_none_or(|name| name.as_encoded_bytes().starts_with(b"ld"));
    if std::env::var_os(name).is_some() || verb.is_none_or(|verb| verb != "serve") || is_loader {
        return;
    }
    let mut command = Command::new("/proc/self/exe");
    command.args(argv.get(1..).unwrap_or_default()).env(name, kib);
    if let Some(program) = argv.first() {
        command.arg0(program);
    }
    // it only uses more memory otherwise
    let _not_begun = command.exec();
}
