//! `zfs send -R` and `-I`: a package (OpenZFS: `zfs_send`).

use std::io::Write;

use pool::Dataset;
use site::long_holds::Looking;
use stream::package::{Gathered, Plan, Step, What, conclusion, header};

use super::stream::{Options, Start, Stream, line, looking, open, output, stream_to, tell, total};
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;
use crate::zfs::select;

pub(super) fn run(mut options: Options, name: &str) -> Outcome {
    if options.from.as_deref().is_some_and(|from| from.contains('#')) {
        return Err(failed("Error: multiple snapshots cannot be sent from a bookmark."));
    }
    let Some((fs, snap)) = name.split_once('@') else {
        return Err(failed("Error: Unsupported flag with filesystem or bookmark."));
    };
    let looking = looking(&options, name);
    let head = open(fs, Types::HEADS)?;
    let from_origin = shorten(&mut options, &head)?;
    if options.replicate && options.from.is_none() {
        options.all = true;
    }
    if options.from.as_deref() == Some("") {
        return Err(failed(format!("cannot send '{fs}': zero-length incremental source")));
    }
    if let Some(from) = &options.from {
        select::find(&format!("{fs}@{from}"), Types::SNAPSHOTS)?;
    }
    select::find(name, Types::SNAPSHOTS)?;
    let what = What {
        from: options.from.clone(),
        to: snap.to_owned(),
        replicate: options.replicate,
        all: options.all,
        raw: options.stream.raw,
        backup: options.backup,
        holds: options.holds,
        props: options.props,
        skip_missing: options.skip_missing,
        unencrypted: options.unencrypted || !(options.replicate || options.props || options.holds),
        exclude: options.exclude.clone(),
        from_origin,
    };
    send(&options, &head, what, looking)
}

/// Shortens the start to the part after the `@`; returns whether it is the origin of the clone that is sent.
fn shorten(options: &mut Options, head: &Dataset) -> Result<bool, Failure> {
    let Some(from) = options.from.take() else { return Ok(false) };
    let Some((fs, snap)) = from.split_once('@') else {
        options.from = Some(from);
        return Ok(false);
    };
    let origin = head.origin().map_err(|e| failed(select::said(&e, head.name())))?;
    if origin.is_some_and(|origin| origin.name() == from) {
        return Ok(true);
    }
    if !fs.is_empty() && fs != head.name() {
        return Err(usage("incremental source must be in same filesystem"));
    }
    if snap.contains(['@', '/']) {
        return Err(usage("invalid incremental source"));
    }
    options.from = Some(snap.to_owned());
    Ok(false)
}

fn send(options: &Options, head: &Dataset, what: What, looking: Option<Looking>) -> Outcome {
    let (top, to) = (head.name().to_owned(), what.to.clone());
    let cannot = |e: &dyn std::fmt::Display| failed(format!("{e}\nwarning: cannot send '{top}@{to}': backup failed"));
    let listed = options.replicate || options.props || options.holds;
    let gathered = Gathered::new(head, what).map_err(|e| cannot(&e))?;
    for note in gathered.notes.iter().filter(|note| listed && (options.verbosity > 0 || !note.is_verbose())) {
        eprintln!("{note}");
    }
    let opening = header(&top, &to, options.holds, listed.then_some(&gathered)).map_err(|e| cannot(&e))?;
    let plan = gathered.steps().map_err(|e| cannot(&e))?;
    let _held = looking.and_then(|looking| {
        looking.hold(plan.steps.iter().flat_map(|step| step.from.iter().chain([&step.to])).map(Dataset::id))
    });
    plan.unsent.iter().for_each(|unsent| eprintln!("{unsent}"));
    let sizes = if options.verbosity > 0 { announce(options, &plan)? } else { Vec::new() };
    if plan.steps.is_empty() {
        return Err(failed(""));
    }
    let status = u8::from(!plan.unsent.is_empty());
    if options.dry {
        return Ok(status);
    }
    let mut out = output()?;
    out.write_all(&opening)?;
    let sizes = sizes.into_iter().chain(std::iter::repeat(0));
    let sent = plan.steps.iter().zip(sizes).try_for_each(|(step, size)| {
        let (start, key) = (start(step), "source key must be loaded");
        stream_to(&mut out, &Stream { to: &step.to, start: &start, flags: &options.stream, size, key }, options)
    });
    // also after a failure: the streams before it are complete
    let closed = out.write_all(&conclusion());
    sent?;
    closed?;
    Ok(status)
}

fn start(step: &Step) -> Start {
    step.from.clone().map_or(Start::Nothing, Start::Snapshot)
}

/// Prints, and returns, the sizes of all streams. As in OpenZFS, the first stream of a clone is shown as a full one.
fn announce(options: &Options, plan: &Plan) -> Result<Vec<u64>, Failure> {
    let mut sizes = Vec::new();
    for step in &plan.steps {
        let start = if step.from_origin { Start::Nothing } else { start(step) };
        let size = start.estimate(&step.to, &options.stream, 0)?;
        let from = step.from.as_ref().filter(|_| !step.from_origin).map(Dataset::short_name);
        tell(options, &line(step.to.name(), from, size, options.parsable))?;
        sizes.push(size);
    }
    tell(options, &total(sizes.iter().copied().fold(0, u64::saturating_add), options.parsable, true))?;
    Ok(sizes)
}
