//! The commands of the `zuse` binary. Under the names `zpool`, `zfs`, `zdb` and `zstream` (a link, or the first argument) it acts as
//! that tool, with its verbs, options, columns, messages and exit statuses; under its own name it has verbs of its
//! own.
//!
//! This crate is everything between a person or script and the library: options ([`args`], [`command`]), output
//! ([`columns`], [`json`]), messages ([`error`]), what it takes from its process
//! ([`console`]) and the list of imported pools ([`site`], [`pools`]). A command
//! opens the pool, does its work and closes it: there is no daemon, except one that keeps typed keys ([`site::agent`]), and `zuse serve`. What
//! a pool, property or stream *is* lives in the crates below.
#![forbid(unsafe_code)]

// its macros are for all modules that follow
#[macro_use]
mod console;

#[cfg(test)]
mod advice;
mod answers;
mod args;
mod asked;
mod columns;
mod command;
mod error;
mod json;
mod keys;
mod log;
mod messages;
mod names;
mod pools;
mod progress;
mod props;
mod replay;
mod shown;
mod users;
mod verbs;
mod version;
mod writable;
mod zdb;
mod zfs;
mod zpool;
mod zstream;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use console::Running;
pub use console::{ClientSignals, Console, Signals, by_server};

/// Runs the command `argv`, whose first word is the name that it is called by, with this console. Returns the exit status. Commands with different
/// consoles can run at once, in threads of one process.
#[must_use]
pub fn run(console: Console, argv: &[OsString]) -> u8 {
    let running = Running::new(console, argv);
    let (program, args) =
        argv.split_first().map_or((OsStr::new(""), argv), |(program, args)| (program.as_os_str(), args));
    let name = Path::new(program).file_name().unwrap_or(OsStr::new("zuse"));
    let status = running.enter(|| part_of(name, args).unwrap_or_else(|| zuse(args)));
    running.finish(status)
}

/// Prints why a process does not run its command. Returns the exit status.
#[must_use]
pub fn refuse(console: Console, why: &str) -> u8 {
    Running::new(console, &[]).enter(|| eprintln!("{why}"));
    2
}

/// Takes the settings of the whole process from its environment: `ZUSE_LOG`, `ZUSE_TUNABLES`.
///
/// # Errors
/// The message for a variable that cannot be read.
pub fn settings() -> Result<(), String> {
    log::begin().map_err(|why| format!("ZUSE_LOG: {why}"))?;
    tunables_from_environment().map_err(|why| format!("ZUSE_TUNABLES: {why}"))
}

/// Runs the tool of OpenZFS that is called `name`, if there is one.
fn part_of(name: &OsStr, args: &[OsString]) -> Option<u8> {
    match name.to_str()? {
        "zfs" => Some(zfs::main(args)),
        "zpool" => Some(zpool::main(args)),
        asked::MOUNT_HELPER => Some(zfs::mount_helper(args)),
        "zdb" => Some(zdb::main(args)),
        "zstream" => Some(zstream::main(args)),
        "zstreamdump" => Some(zstream::main_dump(args)),
        _ => None,
    }
}

/// `zuse [-o NAME=VALUE] [-L KEYLOCATION] VERB ...`.
fn zuse(mut args: &[OsString]) -> u8 {
    loop {
        match args {
            [flag, setting, rest @ ..] if flag == "-o" => {
                let setting = setting.to_string_lossy();
                if console::is_of_client() {
                    eprintln!("-o {setting}: the tunables of a server are not one command's");
                    return 2;
                }
                let set = setting.split_once('=').ok_or_else(|| format!("-o {setting}: NAME=VALUE is expected"));
                if let Err(message) = set.and_then(|(name, value)| base::tunable::set(name, value)) {
                    eprintln!("{message}");
                    return 2;
                }
                args = rest;
            }
            [flag, location, rest @ ..] if flag == "-L" => {
                console::give_key(location.to_string_lossy().into_owned());
                args = rest;
            }
            [] => return usage(false),
            [word, name, rest @ ..] if word == "help" => return help(name, rest),
            [word, ..] if word == "-?" || word == "-h" || word == "--help" || word == "help" => return usage(true),
            [word, ..] if word == "-V" || word == "--version" || word == "version" => return command::version(),
            [verb, rest @ ..] => {
                let own = || verb.to_str().and_then(|verb| verbs::run(verb, rest));
                return part_of(verb, rest).or_else(own).unwrap_or_else(|| {
                    eprintln!("unrecognized command '{}'", verb.to_string_lossy());
                    usage(false)
                });
            }
        }
    }
}

/// `zuse help VERB`, `zuse help zpool [VERB]`.
fn help(name: &OsStr, rest: &[OsString]) -> u8 {
    let text = match name.to_str() {
        Some("zpool" | "zfs") => {
            let words: Vec<OsString> = std::iter::once("help".into()).chain(rest.iter().cloned()).collect();
            return part_of(name, &words).unwrap_or_default();
        }
        Some("zdb") => Some(zdb::USAGE.to_owned()),
        Some("zstream") => Some(zstream::USAGE.to_owned()),
        verb => verb.and_then(verbs::help),
    };
    let Some(text) = text else {
        eprintln!("unrecognized command '{}'", name.to_string_lossy());
        return usage(false);
    };
    print!("{text}");
    0
}

fn usage(requested: bool) -> u8 {
    let text = format!(
        "usage: zuse [-o NAME=VALUE] ... [-L KEYLOCATION] ... command args ...\n\n\
         \tzuse zpool | zfs | zdb | zstream ...\n\t\tas OpenZFS's tool of that name\n{}\n\
         -o sets a tunable; so does the environment variable ZUSE_TUNABLES (NAME=VALUE,...).\n\
         -L gives the command keys of encrypted datasets (file:///PATH, prompt, or keylocation): each encryption root takes the one that fits.\n",
        verbs::summary()
    );
    if requested {
        print!("{text}");
        0
    } else {
        eprint!("{text}");
        2
    }
}

#[allow(clippy::disallowed_methods)] // they are the process's
fn tunables_from_environment() -> Result<(), String> {
    let Some(all) = std::env::var_os("ZUSE_TUNABLES") else {
        return Ok(());
    };
    for setting in all.to_string_lossy().split(',').filter(|s| !s.is_empty()) {
        let (name, value) = setting.split_once('=').ok_or_else(|| format!("'{setting}': NAME=VALUE is expected"))?;
        base::tunable::set(name, value)?;
    }
    Ok(())
}
