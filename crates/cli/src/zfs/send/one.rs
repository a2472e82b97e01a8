//! `zfs send` of one snapshot, or of a file system or volume as it is (OpenZFS: `zfs_send_one`).

use std::io::Write;
use std::sync::Arc;

use base::Txg;
use control::Ioc;
use nvlist::NvList;
use site::Query;
use stream::package::{Gathered, Head, Snap, What, conclusion, header};

use super::facts::{self, Asked};
use super::stream::{NOT_EARLIER, Options, Stream, held, line, looking, open, tell, total};
use crate::console;
use crate::error::{Failure, Outcome, failed};
use crate::names::Types;
use crate::zfs::select::told;

pub(super) fn run(options: Options, name: &str) -> Outcome {
    let from = options.from.as_deref().map(|from| full_name(from, name));
    let looking = looking(&options, name);
    let found = open(name, Types::ALL)?;
    let to = facts::one(found.source(), name).map_err(|e| failed(told(&e, name)))?;
    let (source, to) = &held(looking, found.source(), to)?;
    // a head is sent in a later state: no other is kept for it
    drop(found);
    let start = from.as_deref().map(|from| start(source, from, to)).transpose()?;
    let package = options.props || options.holds || options.backup;
    let opening = if package { Some(opening(&options, source, to)?) } else { None };
    let stream = Stream { source, to: &to.name, from: start.as_deref(), flags: &options.stream };
    let mut size = 0;
    if options.verbosity > 0 {
        size = stream.estimate(0)?;
        if options.progress || options.parsable {
            tell(&options, &line(&to.name, from.as_deref(), size, options.parsable))?;
            tell(&options, &total(size, options.parsable, false))?;
        }
    }
    if options.dry {
        return Ok(0);
    }
    let mut out = console::raw_stdout();
    out.write_all(opening.as_deref().unwrap_or_default())?;
    stream.send(&out, &options, size, "dataset key must be loaded")?;
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

/// The start of a stream, of which `from` is the full name.
fn start(source: &Query, from: &str, to: &Snap) -> Result<String, Failure> {
    let cannot = |why: &str| failed(format!("warning: cannot send '{}': {why}", to.name));
    if let Some((head, short)) = from.split_once('#') {
        let gone = || cannot(&format!("incremental source ({from}) does not exist"));
        // its redaction list is not read, which may be damaged
        let mut keys = NvList::new();
        ["guid", "createtxg"].into_iter().for_each(|key| keys.insert(key, ()));
        let marks = source.call(Ioc::GetBookmarks, head, &keys).map_err(|_| gone())?;
        let mark = marks.get_nvlist(short).ok_or_else(gone)?;
        let number = |key: &str| mark.get_nvlist(key).and_then(|prop| prop.get_u64("value"));
        let (Some(guid), Some(txg)) = (number("guid"), number("createtxg")) else { return Err(gone()) };
        let earlier = facts::is_before(source, (head, Txg(txg)), to).map_err(|e| failed(told(&e, from)))?;
        // from a redaction bookmark of the snapshot itself: sends what the redacted send left out
        let is_good = earlier || (guid == to.guid.0 && facts::is_redaction(source, from));
        return if is_good { Ok(from.to_owned()) } else { Err(cannot(NOT_EARLIER)) };
    }
    if open(from, Types::ALL)?.source().guid() != source.guid() {
        return Err(cannot(NOT_EARLIER));
    }
    let from = facts::one(source, from).map_err(|e| failed(told(&e, from)))?;
    let Some((head, _)) = from.name.split_once('@') else { return Err(cannot(NOT_EARLIER)) };
    match facts::is_before(source, (head, from.txg), to).map_err(|e| failed(told(&e, &from.name)))? {
        true => Ok(from.name),
        false => Err(cannot(NOT_EARLIER)),
    }
}

/// The record before a stream with properties or holds.
fn opening(options: &Options, source: &Arc<Query>, to: &Snap) -> Result<Vec<u8>, Failure> {
    let (top, snap) = to.name.split_once('@').unwrap_or((&to.name, ""));
    let cannot = |e: &dyn std::fmt::Display| failed(format!("{e}\nwarning: cannot send '{}': backup failed", to.name));
    let what = What {
        to: snap.to_owned(),
        raw: options.stream.raw,
        backup: options.backup,
        holds: options.holds,
        props: options.props,
        unencrypted: options.unencrypted,
        ..What::default()
    };
    let head = facts::one(source, top).map_err(|e| cannot(&e))?;
    let head = Head { name: head.name, guid: head.guid, txg: head.txg };
    let asked = Asked { source, received: options.backup };
    let gathered = Gathered::new(&asked, &head, what).map_err(|e| cannot(&e))?;
    gathered.notes.iter().for_each(|note| eprintln!("{note}"));
    header(top, snap, options.holds, Some(&gathered)).map_err(|e| cannot(&e))
}
