//! One stream of a command: its options, what is printed about it, and its requests.

use std::io::{self, Write};
use std::sync::Arc;

use base::Errno;
use control::{Failed, Ioc};
use nvlist::NvList;
use pool::KeyStatus;
use pool::prop::{nicebytes, nicenum};
use site::Query;
use site::long_holds::Looking;
use stream::package::Snap;
use stream::send::{self, Progress, SendFlags};

use super::facts;
use crate::answers;
use crate::console::{self, here};
use crate::error::{Failure, cause, failed};
use crate::names::Types;
use crate::zfs::listed::Listed;
use crate::zfs::progress;
use crate::zfs::select::{self, told};
use crate::zfs::words::of_errno;

/// The number of the file that streams are sent to.
const OUTPUT: i32 = 1;
/// OpenZFS's message for a start that is not in the past of what is sent.
pub(super) const NOT_EARLIER: &str = "not an earlier snapshot from the same fs";
/// OpenZFS's message for a head that somebody has open.
const BUSY: &str = "target is busy; if a filesystem, it must not be mounted";

/// The options of the command (OpenZFS: `sendflags_t`).
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) stream: SendFlags,
    pub(super) verbosity: usize,
    pub(super) parsable: bool,
    pub(super) progress: bool,
    pub(super) title: bool,
    pub(super) dry: bool,
    pub(super) replicate: bool,
    pub(super) all: bool,
    pub(super) skip_missing: bool,
    pub(super) props: bool,
    pub(super) backup: bool,
    pub(super) holds: bool,
    pub(super) saved: bool,
    pub(super) unencrypted: bool,
    pub(super) exclude: Vec<String>,
    pub(super) from: Option<String>,
}

/// One stream to be sent.
#[derive(Clone, Copy)]
pub(super) struct Stream<'a> {
    /// The pool.
    pub(super) source: &'a Query,
    /// The dataset or snapshot.
    pub(super) to: &'a str,
    /// The snapshot or bookmark to start from.
    pub(super) from: Option<&'a str>,
    pub(super) flags: &'a SendFlags,
}

impl Stream<'_> {
    /// The form of the stream, as requests have it.
    fn form(&self) -> NvList {
        let flags = self.flags;
        let mut input = NvList::new();
        let allowed = [
            ("largeblockok", flags.large_block),
            ("embedok", flags.embed),
            ("compressok", flags.compress),
            ("rawok", flags.raw),
            ("savedok", flags.saved.is_some()),
        ];
        allowed.into_iter().filter(|(_, on)| *on).for_each(|(key, _)| input.insert(key, ()));
        if let Some(at) = &flags.resume {
            input.insert("resume_object", at.object.0);
            input.insert("resume_offset", at.offset);
        }
        input
    }

    /// Estimates the length of the stream, of which `sent` bytes were sent before. Where no accounting covers it, the blocks are counted.
    pub(super) fn estimate(&self, sent: u64) -> Result<u64, Failure> {
        let cannot = |e: &dyn std::fmt::Display| failed(format!("warning: cannot send '{}': {e}", self.to));
        let mut input = self.form();
        if let Some(from) = self.from {
            input.insert("from", from);
        }
        input.insert("bytes", sent);
        let answer = self.source.call(Ioc::SendSpace, self.to, &input).map_err(|e| cannot(&e))?;
        answer.get_u64("space").ok_or_else(|| cannot(&"the answer about its size has none"))
    }

    /// Sends it; a failure is in OpenZFS's words, with those for a key that is not loaded. `size` is what was estimated, 0 if it was not asked for.
    pub(super) fn send(&self, out: &console::Stream, options: &Options, size: u64, key: &str) -> Result<(), Failure> {
        let name = self.to;
        let cannot = |why: &str| failed(format!("warning: cannot send '{name}': {why}"));
        // before its progress is shown; a property that cannot be read is told by the stream
        let status = answers::prop(self.source, name, "keystatus").ok().flatten();
        let locked = status.and_then(|status| status.number()) == Some(KeyStatus::Unavailable.number());
        if locked && !self.flags.raw {
            return Err(cannot(key));
        }
        let progress = Arc::<Progress>::default();
        let caller = console::user();
        caller.files.output(OUTPUT, Box::new(out.clone()), progress.clone());
        let query = self.source.clone().of(&caller);
        let style = progress::Style {
            lines: options.progress,
            title: options.title,
            parsable: options.parsable,
            verbosity: options.verbosity,
            size,
        };
        let mut input = self.form();
        input.insert("fd", OUTPUT);
        if let Some(from) = self.from {
            input.insert("fromsnap", from);
        }
        let sent = progress::shown(style, name, &progress, || query.call(Ioc::SendNew, name, &input));
        sent.map(drop).map_err(|e| match (&*e.error, e.errno) {
            (control::Error::Send(send::Error::LargeMicrozap { .. } | send::Error::OldKeys { .. }), _) => {
                cannot(&e.to_string())
            }
            (control::Error::Send(send::Error::Output(source)), _) => cannot(&cause(source)),
            (_, Errno::EACCES) => cannot(key),
            (_, Errno::EBUSY) if !name.contains('@') => cannot(BUSY),
            (_, Errno::EXDEV) => cannot(NOT_EARLIER),
            (_, n @ Errno::EIO) => cannot(&format!("{} ({e})", cause(&io::Error::from(n)))),
            (_, n) => cannot(&of_errno(n)),
        })
    }
}

/// Prints a line: to standard output if no stream is written there, else to standard error.
pub(super) fn tell(options: &Options, line: &str) -> Result<(), Failure> {
    if options.dry {
        console::stdout().write_all(line.as_bytes())?;
    } else {
        eprint!("{line}");
    }
    Ok(())
}

/// One line for one stream (OpenZFS: `send_print_verbose`).
pub(super) fn line(to: &str, from: Option<&str>, size: u64, parsable: bool) -> String {
    match (parsable, from) {
        (true, Some(from)) => format!("incremental\t{from}\t{to}\t{size}\n"),
        (true, None) => format!("full\t{to}\t{size}\n"),
        (false, from) => {
            let what = match from {
                Some(from) if from.contains(['@', '#']) => format!("send from {from} to {to}"),
                Some(from) => format!("send from @{from} to {to}"),
                None => format!("full send of {to}"),
            };
            let size = if size == 0 { String::new() } else { format!(" estimated size is {}", nicebytes(size)) };
            format!("{what}{size}\n")
        }
    }
}

/// The line for all of them. The size of a single stream is a number, that of a package is in bytes.
pub(super) fn total(size: u64, parsable: bool, package: bool) -> String {
    match (parsable, package) {
        (true, _) => format!("size\t{size}\n"),
        (false, true) => format!("total estimated size is {}\n", nicebytes(size)),
        (false, false) => format!("total estimated size is {}\n", nicenum(size)),
    }
}

/// Announces, before a dataset is looked up, that it will be held: nothing is destroyed until then. A dry run holds nothing.
pub(super) fn looking(options: &Options, dataset: &str) -> Option<Looking> {
    if options.dry { None } else { Looking::at(dataset, &**here().front()) }
}

/// Holds what was looked up. A head is looked up again, for it may have changed until it was held.
pub(super) fn held(looking: Option<Looking>, source: &Arc<Query>, to: Snap) -> Result<(Arc<Query>, Snap), Failure> {
    let Some(looking) = looking else { return Ok((unheld(source), to)) };
    let cannot = |e: &Failed| match e.errno {
        Errno::EBUSY => failed(format!("warning: cannot send '{}': {BUSY}", to.name)),
        _ => failed(told(e, &to.name)),
    };
    let held = Arc::new(source.hold(looking, [to.name.as_str()]).map_err(|e| cannot(&e))?);
    if to.name.contains('@') {
        return Ok((held, to));
    }
    let now = facts::one(&held, &to.name).map_err(|e| cannot(&e))?;
    match now.guid == to.guid {
        true => Ok((held, now)),
        false => Err(failed(format!("cannot open '{}': dataset does not exist", to.name))),
    }
}

/// The pool of a command that holds nothing: it could not, or only shows what it would send.
pub(super) fn unheld(source: &Arc<Query>) -> Arc<Query> {
    Arc::new(Query::clone(source).without_holds())
}

/// Finds the dataset that a command sends, or sends from.
pub(super) fn open(name: &str, accepted: Types) -> Result<Listed, Failure> {
    let found = select::find(name, accepted)?;
    if found.is_bookmark() {
        return Err(select::bad_type(name));
    }
    Ok(found)
}
