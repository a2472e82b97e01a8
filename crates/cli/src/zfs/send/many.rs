//! `zfs send -R` and `-I`: a package (OpenZFS: `zfs_send`).

use std::io::Write;
use std::sync::Arc;

use site::Query;
use site::long_holds::Looking;
use stream::package::{Gathered, Head, Plan, Snap, Step, What, conclusion, header};

use super::facts::{self, Asked};
use super::stream::{Options, Stream, line, looking, open, tell, total, unheld};
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;
use crate::zfs::select::{self, told};

pub(super) fn run(mut options: Options, name: &str) -> Outcome {
    if options.from.as_deref().is_some_and(|from| from.contains('#')) {
        return Err(failed("Error: multiple snapshots cannot be sent from a bookmark."));
    }
    let Some((fs, snap)) = name.split_once('@') else {
        return Err(failed("Error: Unsupported flag with filesystem or bookmark."));
    };
    let looking = looking(&options, name);
    let found = open(fs, Types::HEADS)?;
    let source = found.source();
    let head = facts::one(source, fs).map_err(|e| failed(told(&e, fs)))?;
    let head = Head { name: head.name, guid: head.guid, txg: head.txg };
    let from_origin = shorten(&mut options, source, &head.name)?;
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
    send(&options, source, &head, what, looking)
}

/// Shortens the start to the part after the `@`; returns whether it is the origin of the clone that is sent.
fn shorten(options: &mut Options, source: &Query, head: &str) -> Result<bool, Failure> {
    let Some(from) = options.from.take() else { return Ok(false) };
    let Some((fs, snap)) = from.split_once('@') else {
        options.from = Some(from);
        return Ok(false);
    };
    let origin = facts::origin(source, head).map_err(|e| failed(told(&e, head)))?;
    if origin.is_some_and(|origin| origin.name == from) {
        return Ok(true);
    }
    if !fs.is_empty() && fs != head {
        return Err(usage("incremental source must be in same filesystem"));
    }
    if snap.contains(['@', '/']) {
        return Err(usage("invalid incremental source"));
    }
    options.from = Some(snap.to_owned());
    Ok(false)
}

fn send(options: &Options, source: &Arc<Query>, head: &Head, what: What, looking: Option<Looking>) -> Outcome {
    let (top, to) = (head.name.clone(), what.to.clone());
    let cannot = |e: &dyn std::fmt::Display| failed(format!("{e}\nwarning: cannot send '{top}@{to}': backup failed"));
    let listed = options.replicate || options.props || options.holds;
    let asked = Asked { source, received: what.backup };
    let gathered = Gathered::new(&asked, head, what).map_err(|e| cannot(&e))?;
    for note in gathered.notes.iter().filter(|note| listed && (options.verbosity > 0 || !note.is_verbose())) {
        eprintln!("{note}");
    }
    let opening = header(&top, &to, options.holds, listed.then_some(&gathered)).map_err(|e| cannot(&e))?;
    let plan = gathered.steps();
    let sent = plan.steps.iter().flat_map(|step| step.from.iter().chain([&step.to])).map(|snap| snap.name.as_str());
    let source = &match looking {
        Some(looking) => Arc::new(source.hold(looking, sent).map_err(|e| cannot(&e))?),
        None => unheld(source),
    };
    plan.unsent.iter().for_each(|unsent| eprintln!("{unsent}"));
    let sizes = if options.verbosity > 0 { announce(options, source, &plan)? } else { Vec::new() };
    if plan.steps.is_empty() {
        return Err(failed(""));
    }
    let status = u8::from(!plan.unsent.is_empty());
    if options.dry {
        return Ok(status);
    }
    let mut out = console::raw_stdout();
    out.write_all(&opening)?;
    let sizes = sizes.into_iter().chain(std::iter::repeat(0));
    let sent = plan.steps.iter().zip(sizes).try_for_each(|(step, size)| {
        stream(options, source, step).send(&out, options, size, "source key must be loaded")
    });
    // also after a failure: the streams before it are complete
    let closed = out.write_all(&conclusion());
    sent?;
    closed?;
    Ok(status)
}

fn stream<'a>(options: &'a Options, source: &'a Query, step: &'a Step) -> Stream<'a> {
    let from = step.from.as_ref().map(|from| from.name.as_str());
    Stream { source, to: &step.to.name, from, flags: &options.stream }
}

/// Prints, and returns, the sizes of all streams. As in OpenZFS, the first stream of a clone is shown as a full one.
fn announce(options: &Options, source: &Query, plan: &Plan) -> Result<Vec<u64>, Failure> {
    let mut sizes = Vec::new();
    for step in &plan.steps {
        let stream = stream(options, source, step);
        let size = Stream { from: stream.from.filter(|_| !step.from_origin), ..stream }.estimate(0)?;
        let from = step.from.as_ref().filter(|_| !step.from_origin).map(Snap::short_name);
        tell(options, &line(&step.to.name, from, size, options.parsable))?;
        sizes.push(size);
    }
    tell(options, &total(sizes.iter().copied().fold(0, u64::saturating_add), options.parsable, true))?;
    Ok(sizes)
}
