//! One stream of a command: its options, its start, what is printed about it, and its request.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Errno;
use control::{Ioc, ReadOnlyControl};
use nvlist::NvList;
use pool::prop::{nicebytes, nicenum};
use pool::{Bookmark, Dataset, KeyStatus, Space};
use site::long_holds::{Held, Looking};
use stream::send::{self, Base, Progress, SendFlags};

use crate::error::{Failure, cause, failed};
use crate::here::here;
use crate::names::Types;
use crate::zfs::progress;
use crate::zfs::select::{self, said};
use crate::zfs::words::of_errno;
use crate::{pools, writable};

/// The number of the file that streams are sent to.
const OUTPUT: i32 = 1;

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

/// The start of a stream.
pub(super) enum Start {
    Nothing,
    Snapshot(Dataset),
    Mark(Bookmark),
}

impl Start {
    /// The request for the stream from here.
    fn request(&self, flags: &SendFlags) -> NvList {
        let mut input = NvList::new();
        input.insert("fd", OUTPUT);
        match self {
            Start::Nothing => {}
            Start::Snapshot(from) => input.insert("fromsnap", from.name()),
            Start::Mark(from) => input.insert("fromsnap", from.name()),
        }
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

    fn base(&self, to: &Dataset) -> Result<Option<Base>, Failure> {
        let base = match self {
            Start::Nothing => return Ok(None),
            Start::Snapshot(from) => Base::of_snapshot(from, to),
            Start::Mark(from) => Base::of_bookmark(from, to),
        };
        base.map(Some).map_err(|e| failed(format!("warning: cannot send '{}': {e}", to.name())))
    }

    /// Estimates the length of the stream. Where no accounting covers it, the blocks are counted.
    pub(super) fn estimate(&self, to: &Dataset, flags: &SendFlags, sent: u64) -> Result<u64, Failure> {
        let cannot = |e: &dyn std::fmt::Display| failed(format!("warning: cannot send '{}': {e}", to.name()));
        let written: Option<Space> = match self {
            Start::Nothing => None,
            Start::Snapshot(from) => Some(to.written_since(from).map_err(|e| cannot(&e))?),
            Start::Mark(from) => match to.written_since_bookmark(from) {
                // the accounting does not cover what a redacted send left out
                Ok(space) if from.phys().redaction_obj.is_none() => Some(space),
                _ => {
                    let base = self.base(to)?;
                    return stream::send::measure(to, base.as_ref(), flags).map_err(|e| cannot(&e));
                }
            },
        };
        let size = stream::send::estimate(to, written, flags).map_err(|e| cannot(&e))?;
        Ok(size.saturating_sub(sent))
    }
}

/// Announces, before a dataset is looked up, that it will be held so that nobody destroys it; a dry run holds nothing.
pub(super) fn looking(options: &Options, dataset: &str) -> Option<Looking> {
    if options.dry { None } else { Looking::at(dataset, &**here().front()) }
}

/// Holds the dataset that was looked up. A head that another command has open is not sent (OpenZFS:
/// `dsl_dataset_own`); otherwise it is looked up again, for it may have changed until it was held.
pub(super) fn held(looking: Option<Looking>, to: Dataset) -> Result<(Option<Held>, Dataset), Failure> {
    let held = looking.and_then(|looking| looking.hold([to.id()]));
    let Some(own) = held.as_ref().filter(|_| !to.is_snapshot()) else { return Ok((held, to)) };
    let name = to.name();
    if own.is_open_elsewhere(to.id()) {
        let why = "target is busy; if a filesystem, it must not be mounted";
        return Err(failed(format!("warning: cannot send '{name}': {why}")));
    }
    here().look_again();
    let gone = || failed(format!("cannot open '{name}': dataset does not exist"));
    let pool = pools::of_dataset(name)?.ok_or_else(gone)?;
    let now = pool.pool().dataset_by_id(to.id()).map_err(|e| failed(said(&e, name)))?;
    Ok((held, now))
}

/// Standard output without a buffer: it is written in pieces of megabytes.
pub(super) fn output() -> Result<File, Failure> {
    Ok(File::from(rustix::io::dup(io::stdout()).map_err(io::Error::from)?))
}

/// Prints a line: to standard output if no stream is written there, else to standard error.
pub(super) fn tell(options: &Options, line: &str) -> Result<(), Failure> {
    if options.dry {
        io::stdout().lock().write_all(line.as_bytes())?;
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

/// One stream to be sent.
#[derive(Clone, Copy)]
pub(super) struct Stream<'a> {
    pub(super) to: &'a Dataset,
    pub(super) start: &'a Start,
    pub(super) flags: &'a SendFlags,
    /// Its estimated bytes; 0 if they were not asked for.
    pub(super) size: u64,
    /// OpenZFS's message for a key that is not loaded.
    pub(super) key: &'static str,
}

/// Sends one stream; a failure is in OpenZFS's words.
///
/// The datasets of a stream are looked up when its turn comes, in the state of the pool that was opened. While the
/// streams before it were sent, that state may have been overwritten: then the pool is opened anew, where the held
/// datasets still exist.
pub(super) fn stream_to(out: &mut File, stream: &Stream<'_>, options: &Options) -> Result<(), Failure> {
    let progress = Arc::<Progress>::default();
    let failure = match attempt(out, stream, options, &progress) {
        Err(failure) if progress.bytes.load(Ordering::Relaxed) == 0 => failure,
        done => return done,
    };
    let Some((to, start)) = anew(stream) else { return Err(failure) };
    attempt(out, &Stream { to: &to, start: &start, ..*stream }, options, &progress)
}

/// The datasets of a stream in the current state of the pool; `None` if they are the same, or no longer exist.
fn anew(stream: &Stream<'_>) -> Option<(Dataset, Start)> {
    here().look_again();
    let pool = pools::of_dataset(stream.to.name()).ok()??;
    let pool = pool.pool();
    if pool.uberblock().txg == stream.to.pool().uberblock().txg {
        return None;
    }
    let start = match stream.start {
        Start::Nothing => Start::Nothing,
        Start::Snapshot(from) => Start::Snapshot(pool.dataset_by_id(from.id()).ok()?),
        Start::Mark(from) => Start::Mark(pool.bookmark(from.name()).ok()?),
    };
    Some((pool.dataset_by_id(stream.to.id()).ok()?, start))
}

fn attempt(out: &File, stream: &Stream<'_>, options: &Options, progress: &Arc<Progress>) -> Result<(), Failure> {
    let Stream { to, start, flags, size, key } = *stream;
    let name = to.name();
    let cannot = |why: &str| failed(format!("warning: cannot send '{name}': {why}"));
    let locked = to.key_status().map_err(|e| failed(said(&e, name)))? == KeyStatus::Unavailable;
    if locked && !flags.raw {
        return Err(cannot(key));
    }
    let caller = writable::caller();
    caller.files.output(OUTPUT, Box::new(out.try_clone()?), progress.clone());
    let query = ReadOnlyControl::new(Arc::clone(to.pool())).of(&caller);
    let style = progress::Style {
        lines: options.progress,
        title: options.title,
        parsable: options.parsable,
        verbosity: options.verbosity,
        size,
    };
    let input = start.request(flags);
    let sent = progress::shown(style, name, progress, || query.call(Ioc::SendNew, name, &input));
    sent.map(drop).map_err(|e| match (&*e.error, e.errno) {
        (control::Error::Send(send::Error::LargeMicrozap { .. } | send::Error::OldKeys { .. }), _) => {
            cannot(&e.to_string())
        }
        (control::Error::Send(send::Error::Output(source)), _) => cannot(&cause(source)),
        (_, Errno::EACCES) => cannot(key),
        (_, Errno::EXDEV) => cannot("not an earlier snapshot from the same fs"),
        (_, n @ Errno::EIO) => cannot(&format!("{} ({e})", cause(&io::Error::from(n)))),
        (_, n) => cannot(&of_errno(n)),
    })
}

/// Opens the dataset that a command sends, or sends from: what a stream holds is gathered from datasets themselves.
pub(super) fn open(name: &str, accepted: Types) -> Result<Dataset, Failure> {
    let found = select::find(name, accepted)?;
    if found.is_bookmark() {
        return Err(select::bad_type(name));
    }
    found.source().pool().dataset(name).map_err(|e| failed(said(&e, name)))
}

/// Opens the start of a stream; `from` is a full name.
pub(super) fn start(from: &str, to: &Dataset) -> Result<Start, Failure> {
    let cannot = |why: &str| failed(format!("warning: cannot send '{}': {why}", to.name()));
    if from.contains('#') {
        let mark = to.pool().bookmark(from);
        let mark = mark.map_err(|_| cannot(&format!("incremental source ({from}) does not exist")))?;
        let earlier = to.is_later_than_mark(&mark).map_err(|e| failed(said(&e, from)))?;
        // from a redaction bookmark of the snapshot itself: sends what the redacted send left out
        let completes = mark.phys().redaction_obj.is_some() && mark.phys().guid == to.guid();
        return if earlier || completes {
            Ok(Start::Mark(mark))
        } else {
            Err(cannot("not an earlier snapshot from the same fs"))
        };
    }
    let from = open(from, Types::ALL)?;
    let earlier = to.is_later_than(&from).map_err(|e| failed(said(&e, from.name())))?;
    if earlier { Ok(Start::Snapshot(from)) } else { Err(cannot("not an earlier snapshot from the same fs")) }
}
