//! The table of a tool's commands; each has its synopsis, its options and the function that runs it.
//!
//! Commands that this version does not implement are in the tables too: their options are checked and their usage is
//! shown, because scripts probe for both (`zfs send -L` against exit status 2); then they say that they are not
//! implemented.

use std::ffi::OsString;
use std::io::{self, Write};

use crate::args::{self, Bad, Long, Parsed};
use crate::console;
use crate::error::{Failure, Outcome, failed};

/// One verb of a tool.
pub(crate) struct Command {
    /// The verb.
    pub(crate) name: &'static str,
    /// Its synopsis, as lines that begin with a tab.
    pub(crate) usage: &'static str,
    /// The getopt string.
    pub(crate) options: &'static str,
    /// Long options.
    pub(crate) longs: &'static [Long],
    /// The function that runs it; `None`: not in this version.
    pub(crate) run: Option<fn(&Call<'_>) -> Outcome>,
}

impl Command {
    /// Returns whether its option `-c` runs scripts.
    fn runs_scripts(&self) -> bool {
        self.options.starts_with("c:")
    }
}

/// A call of a command.
pub(crate) struct Call<'a> {
    /// The command that is called.
    pub(crate) command: &'a Command,
    /// The tool's name.
    pub(crate) tool: &'static str,
    /// The options and operands.
    pub(crate) args: Parsed,
}

/// A tool: `zfs`, `zpool`.
pub(crate) struct Tool {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its commands, in groups that the usage text sets apart.
    pub(crate) groups: &'static [&'static [Command]],
    /// Verbs that are another's name.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// Lists the scripts of a command whose option `-c` runs some: `-c` alone asks for them.
    pub(crate) list_scripts: Option<fn(&str) -> Outcome>,
    /// Prints the end of the usage text, given the command if there is one.
    pub(crate) epilogue: fn(Option<&str>, &mut dyn Write) -> io::Result<()>,
}

impl Tool {
    /// Runs the tool with the arguments after its name; the exit status.
    pub(crate) fn main(&self, args: &[OsString]) -> u8 {
        let Some((verb, rest)) = args.split_first() else {
            eprintln!("missing command");
            return self.usage(None, false);
        };
        let verb = verb.to_string_lossy();
        match &*verb {
            "-?" | "--help" => return self.usage(None, true),
            "-V" | "--version" => return version(),
            "help" => {
                let command = rest.first().map(|w| w.to_string_lossy().into_owned());
                return self.usage(command.and_then(|name| self.find(&name)), true);
            }
            _ => {}
        }
        let name = self.verb(&verb);
        let Some(command) = self.find(name) else {
            eprintln!("unrecognized command '{name}'");
            return self.usage(None, false);
        };
        match self.call(command, rest) {
            Ok(status) => status,
            Err(Failure::Usage(message)) => {
                if !message.is_empty() {
                    eprintln!("{message}");
                }
                self.usage(Some(command), false)
            }
            Err(failure) => report(&failure),
        }
    }

    /// The verb and arguments of a command line that can be carried out; `None` for one that is misused, asks for help, or is not in this version.
    pub(crate) fn parse(&self, args: &[OsString]) -> Option<(&'static str, Parsed)> {
        let (verb, rest) = args.split_first()?;
        let command = self.find(self.verb(verb.to_str()?))?;
        command.run?;
        Some((command.name, args::parse(command.options, command.longs, rest).ok()?))
    }

    /// The verb that a word stands for.
    fn verb<'a>(&self, word: &'a str) -> &'a str {
        let name = self.aliases.iter().find(|(alias, _)| *alias == word).map_or(word, |(_, name)| name);
        if name.contains('=') { "set" } else { name }
    }

    fn find(&self, name: &str) -> Option<&'static Command> {
        self.groups.iter().flat_map(|group| group.iter()).find(|c| c.name == name)
    }

    fn call(&self, command: &'static Command, rest: &[OsString]) -> Outcome {
        let parsed = args::parse(command.options, command.longs, rest);
        if let Some(list) = self.list_scripts.filter(|_| command.runs_scripts())
            && parsed.as_ref().is_err_and(|bad| *bad == Bad::Unknown("c".to_owned()))
        {
            return list(command.name);
        }
        let args = parsed.map_err(|bad| match bad {
            // whichever option lacks its argument
            Bad::NoValue(_) if command.name == "create" && self.name == "zfs" => {
                Failure::Usage("missing size argument".to_owned())
            }
            bad => bad.into(),
        })?;
        match command.run {
            Some(run) => run(&Call { command, tool: self.name, args }),
            None if rest.is_empty() => Err(Failure::Usage(String::new())),
            None => Err(failed(format!("'{} {}' is not in this version of Zuse", self.name, command.name))),
        }
    }

    /// Prints the usage of the tool or of one command. Exit status: 0 if it was asked for, else 2.
    fn usage(&self, command: Option<&Command>, requested: bool) -> u8 {
        let printed = if requested {
            self.print_usage(command, &mut console::stdout())
        } else {
            self.print_usage(command, &mut console::stderr())
        };
        match printed {
            Ok(()) if requested => 0,
            _ => 2,
        }
    }

    fn print_usage(&self, command: Option<&Command>, out: &mut dyn Write) -> io::Result<()> {
        match command {
            Some(command) => write!(out, "usage:\n{}", command.usage)?,
            None => {
                write!(out, "usage: {} command args ...\nwhere 'command' is one of the following:\n\n", self.name)?;
                for (n, group) in self.groups.iter().enumerate() {
                    if n > 0 {
                        writeln!(out)?;
                    }
                    for command in *group {
                        write!(out, "{}", command.usage)?;
                    }
                }
            }
        }
        (self.epilogue)(command.map(|c| c.name), out)
    }
}

/// Prints why a command failed; returns its exit status.
pub(crate) fn report(failure: &Failure) -> u8 {
    match failure {
        Failure::Usage(message) => {
            eprintln!("{message}");
            2
        }
        Failure::Failed(message) => {
            if !message.is_empty() {
                eprintln!("{message}");
            }
            1
        }
        Failure::Output(e) if e.kind() == io::ErrorKind::BrokenPipe => 1,
        Failure::Output(e) => {
            eprintln!("cannot write: {e}");
            1
        }
    }
}

/// Prints the version line; the form is OpenZFS's, name and number.
pub(crate) fn version() -> u8 {
    println!("{}", version_text());
    0
}

/// The version of OpenZFS whose commands these are, and ours.
pub(crate) fn version_text() -> String {
    format!("zfs-2.4.4-zuse{}", env!("CARGO_PKG_VERSION"))
}
