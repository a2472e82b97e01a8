//! `zstream drop_record`, `decompress`, `recompress`, `redup`: read a stream and write a changed one.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};

use base::ObjectId;
use codec::Compress;
use stream::edit::{self, Fate, Part};

use super::common::{READ_BYTES, usage};
use crate::args;
use crate::console;
use crate::error::{Failure, Outcome, cause, failed};

/// Copies standard input, or `input`, to standard output.
fn run(input: Option<File>, change: &mut dyn FnMut(&mut Part) -> Result<Fate, stream::Error>) -> Outcome {
    let input: Box<dyn Read> = match input {
        Some(file) => Box::new(file),
        None if console::stdin_is_terminal() => {
            return Err(failed(
                "Error: The send stream is a binary format and can not be read from a\n\
                 terminal.  Standard input must be redirected.",
            ));
        }
        None => Box::new(console::stdin()),
    };
    if console::stdout_is_terminal() {
        return Err(failed("Error: Stream can not be written to a terminal.\nYou must redirect standard output."));
    }
    let mut out = BufWriter::with_capacity(READ_BYTES, console::stdout());
    match edit::rewrite(BufReader::with_capacity(READ_BYTES, input), &mut out, change) {
        Ok(()) => {}
        Err(stream::Error::Output(e)) => return Err(e.into()),
        Err(e) => return Err(failed(e.to_string())),
    }
    out.flush()?;
    Ok(0)
}

/// Object and offset of a record.
type RecordPosition = (ObjectId, u64);

/// `OBJECT,OFFSET`, and an optional rest.
fn place(text: &str) -> Result<(RecordPosition, Option<&str>), Option<Failure>> {
    let mut fields = text.splitn(3, ',');
    let (Some(object), Some(offset)) = (fields.next(), fields.next()) else { return Err(None) };
    let number = |text: &str, what: &str| {
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| Some(failed(format!("invalid value for {what}"))))
    };
    Ok(((ObjectId(number(object, "object")?), number(offset, "offset")?), fields.next()))
}

/// The options and operands of a tool; after a usage error, its exit status.
fn parse(spec: &str, args: &[OsString]) -> Result<args::Parsed, u8> {
    args::parse(spec, &[], args).map_err(|bad| {
        eprintln!("{bad}");
        usage()
    })
}

pub(super) fn drop_record(args: &[OsString]) -> Outcome {
    let parsed = match parse("v", args) {
        Ok(parsed) => parsed,
        Err(status) => return Ok(status),
    };
    let mut places = HashSet::new();
    for name in parsed.names() {
        match place(&name) {
            Ok((at, None)) => drop(places.insert(at)),
            Ok((_, Some(_))) | Err(None) => return Ok(usage()),
            Err(Some(failure)) => return Err(failure),
        }
    }
    let mut change = edit::drop_writes(&places);
    let verbose = parsed.has('v');
    run(None, &mut |part| {
        let fate = change(part)?;
        if verbose && fate == Fate::Dropped {
            eprintln!("dropping {:?} record at {}", part.header.record.kind(), part.offset);
        }
        Ok(fate)
    })
}

pub(super) fn decompress(args: &[OsString]) -> Outcome {
    let parsed = match parse("v", args) {
        Ok(parsed) => parsed,
        Err(status) => return Ok(status),
    };
    let mut places = HashMap::new();
    for name in parsed.names() {
        let (at, kind) = match place(&name) {
            Ok(found) => found,
            Err(None) => return Ok(usage()),
            Err(Some(failure)) => return Err(failure),
        };
        let kind = match kind {
            None => None,
            Some(word) => match kind_of(word) {
                Some(kind) => Some(kind),
                None => {
                    eprintln!(
                        "invalid compression type {word}. Supported types are off, lz4, lzjb, gzip, zle, and zstd"
                    );
                    return Ok(2);
                }
            },
        };
        places.insert(at, kind);
    }
    let verbose = parsed.has('v');
    let mut tell = |object: ObjectId, offset: u64, worked: bool| match worked {
        true if verbose => eprintln!("Successfully decompressed ino {object} offset {offset}"),
        true => {}
        false => eprintln!("decompression failed for ino {object} offset {offset}"),
    };
    run(None, &mut edit::decompress_writes(&places, &mut tell))
}

fn kind_of(word: &str) -> Option<Compress> {
    Some(match word {
        "off" => Compress::Off,
        "lz4" => Compress::Lz4,
        "lzjb" => Compress::Lzjb,
        "gzip" => Compress::Gzip1,
        "zle" => Compress::Zle,
        "zstd" => Compress::Zstd,
        _ => return None,
    })
}

pub(super) fn recompress(args: &[OsString]) -> Outcome {
    let parsed = match parse("l:t:", args) {
        Ok(parsed) => parsed,
        Err(status) => return Ok(status),
    };
    let [word] = parsed.names().try_into().unwrap_or([const { String::new() }]);
    let level = match parsed.text('l').map(|text| text.parse::<i16>()) {
        None => None,
        Some(Ok(level)) => Some(level),
        Some(Err(_)) => return Err(failed("failed to parse level")),
    };
    match recompressed_as(&word, level) {
        Some(kind) => run(None, &mut edit::recompress(kind, level)),
        None if word.is_empty() => Ok(usage()),
        None => Err(failed(format!("invalid compression type: {word}"))),
    }
}

/// The compression that a word names. Each level of gzip is an algorithm of its own: `gzip-9`, or `gzip` with a
/// separate level.
fn recompressed_as(word: &str, level: Option<i16>) -> Option<Compress> {
    let gzip = |level: i16| (1..=9).contains(&level).then(|| u8::try_from(level + 4).ok()).flatten();
    match word.strip_prefix("gzip-") {
        Some(digit) if digit.len() == 1 => gzip(digit.parse().ok()?).and_then(Compress::from_u8),
        Some(_) => None,
        None if word == "gzip" => gzip(level.unwrap_or(6)).and_then(Compress::from_u8),
        None => kind_of(word),
    }
}

pub(super) fn redup(args: &[OsString]) -> Outcome {
    let parsed = match parse("v", args) {
        Ok(parsed) => parsed,
        Err(status) => return Ok(status),
    };
    let [path] = parsed.operands.as_slice() else { return Ok(usage()) };
    let open = || {
        File::open(console::path(path))
            .map_err(|e| failed(format!("unable to open {}: {}", path.to_string_lossy(), cause(&e))))
    };
    run(Some(open()?), &mut edit::reduplicate(open()?))
}
