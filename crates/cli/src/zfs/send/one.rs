//! `zfs send` of one snapshot, or of a file system or volume as it is (OpenZFS: `zfs_send_one`).

use std::io::Write;

use stream::package::{Gathered, What, conclusion, header};

use super::stream::{Options, Start, Stream, held, line, looking, open, output, start, stream_to, tell, total};
use crate::error::{Failure, Outcome, failed};
use crate::names::Types;

pub(super) fn run(options: Options, name: &str) -> Outcome {
    let from = options.from.as_deref().map(|from| full_name(from, name));
    let looking = looking(&options, name);
    let to = open(name, Types::ALL)?;
    let (_held, to) = held(looking, to)?;
    let start = match &from {
        Some(from) => start(from, &to)?,
        None => Start::Nothing,
    };
    let package = options.props || options.holds || options.backup;
    let opening = if package { Some(opening(&options, &to)?) } else { None };
    let mut size = 0;
    if options.verbosity > 0 {
        size = start.estimate(&to, &options.stream, 0)?;
        if options.progress || options.parsable {
            tell(&options, &line(to.name(), from.as_deref(), size, options.parsable))?;
            tell(&options, &total(size, options.parsable, false))?;
        }
    }
    if options.dry {
        return Ok(0);
    }
    let mut out = output()?;
    out.write_all(opening.as_deref().unwrap_or_default())?;
    let stream = Stream { to: &to, start: &start, flags: &options.stream, size, key: "dataset key must be loaded" };
    stream_to(&mut out, &stream, &options)?;
    if package {
        out.write_all(&conclusion())?;
    }
    Ok(0)
}

/// The full name of the start: `@snap` and `#mark` are in the same dataset.
fn full_name(from: &str, to: &str) -> String {
    let dataset = to.split('@').next().unwrap_or(to);
    if from.starts_with(['@', '#']) {
        return format!("{dataset}{from}");
    }
    if !from.contains(['@', '#']) {
        eprintln!(
            "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix to avoid ambiguity."
        );
        return format!("{dataset}@{from}");
    }
    from.to_owned()
}

/// The record before a stream with properties or holds.
fn opening(options: &Options, to: &pool::Dataset) -> Result<Vec<u8>, Failure> {
    let (top, snap) = to.name().split_once('@').unwrap_or((to.name(), ""));
    let cannot =
        |e: &dyn std::fmt::Display| failed(format!("{e}\nwarning: cannot send '{}': backup failed", to.name()));
    let what = What {
        to: snap.to_owned(),
        raw: options.stream.raw,
        backup: options.backup,
        holds: options.holds,
        props: options.props,
        unencrypted: options.unencrypted,
        ..What::default()
    };
    let head = to.head().map_err(|e| cannot(&e))?;
    let gathered = Gathered::new(&head, what).map_err(|e| cannot(&e))?;
    gathered.notes.iter().for_each(|note| eprintln!("{note}"));
    header(top, snap, options.holds, Some(&gathered)).map_err(|e| cannot(&e))
}
