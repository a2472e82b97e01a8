//! `zstream`: looks into send streams and resume tokens, and changes streams ([`edit`]).

mod common;
mod edit;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};

use nvlist::JsonStyle;
use stream::dump::{Dumper, Options, Outcome as Walk, json_lines};

use crate::args;
use crate::command::report;
use crate::console::{self, Out};
use crate::error::{Outcome, cause, failed};
pub(crate) use common::USAGE;
use common::{READ_BYTES, usage};

/// Runs `zstream` with the arguments after its name; the exit status.
pub(crate) fn main(args: &[OsString]) -> u8 {
    let Some((verb, rest)) = args.split_first() else {
        return usage();
    };
    let done = match verb.to_str() {
        Some("dump") => dump(rest),
        Some("token") => token(rest),
        Some("-V" | "--version") => return crate::command::version(),
        Some("decompress") => edit::decompress(rest),
        Some("drop_record") => edit::drop_record(rest),
        Some("recompress") => edit::recompress(rest),
        Some("redup") => edit::redup(rest),
        Some("raw") => Err(failed("zstream raw: not in this version of Zuse")),
        _ => return usage(),
    };
    done.unwrap_or_else(|failure| report(&failure))
}

/// Runs `zstreamdump`, the old name of `zstream dump`.
pub(crate) fn main_dump(args: &[OsString]) -> u8 {
    dump(args).unwrap_or_else(|failure| report(&failure))
}

fn dump(args: &[OsString]) -> Outcome {
    let parsed = match args::parse(":vCdj", &[("json", 'j')], args) {
        Ok(parsed) => parsed,
        Err(bad) => {
            eprintln!("{bad}");
            return Ok(usage());
        }
    };
    let data = parsed.has('d');
    let json = parsed.has('j');
    let options = Options {
        verbose: data || parsed.has('v'),
        checksums: data || parsed.count('v') > 1,
        data,
        ignore_checksums: parsed.has('C'),
    };
    match parsed.operands.first() {
        Some(path) => {
            let name = path.to_string_lossy();
            let file = File::open(console::path(path))
                .map_err(|e| failed(format!("Error while opening file '{name}': {}", cause(&e))))?;
            dump_from(file, &options, json)
        }
        None if console::stdin_is_terminal() => Err(failed(
            "Error: The send stream is a binary format and can not be read from a\n\
             terminal.  Standard input must be redirected, or a file must be\n\
             specified as a command-line argument.",
        )),
        None => dump_from(console::stdin(), &options, json),
    }
}

/// Dumps a stream. The exit status is OpenZFS's, with one exception: a bad checksum is 1 (in 2.4 it is 0, in the
/// version after it 1). A truncated stream only gets a remark, as in the version after 2.4: dumps of truncated streams
/// are needed for debugging. With `json` all records are printed, one per line.
fn dump_from(input: impl Read, options: &Options, json: bool) -> Outcome {
    let input = BufReader::with_capacity(READ_BYTES, input);
    if json {
        console::for_scripts();
    }
    let mut out = BufWriter::with_capacity(READ_BYTES, Out::new());
    let walked = match json {
        true => json_lines(input, options.ignore_checksums, &mut out),
        false => Dumper::new(&mut out, console::stderr(), options).run(input),
    };
    out.flush()?;
    match walked {
        Ok(Walk::UnknownType | Walk::BadChecksum) => Ok(1),
        Ok(Walk::CutOff) => {
            eprintln!("the stream is cut off");
            Ok(0)
        }
        Ok(_) => Ok(0),
        Err(stream::Error::Output(e)) => Err(e.into()),
        Err(e) => Err(failed(e.to_string())),
    }
}

fn token(args: &[OsString]) -> Outcome {
    let parsed = match args::parse(":j", &[("json", 'j')], args) {
        Ok(parsed) => parsed,
        Err(bad) => {
            eprintln!("{bad}");
            return Ok(usage());
        }
    };
    let Some(token) = parsed.operands.first() else {
        eprintln!("Need to pass the resume token");
        return Ok(usage());
    };
    let list = stream::token::decode(&token.to_string_lossy())
        .map_err(|e| failed(format!("Unable to parse resume token: {e}")))?;
    let text = match parsed.has('j') {
        true => list.to_json_style(JsonStyle::Plain) + "\n",
        false => list.dump_escaped(5),
    };
    print!("{text}");
    Ok(0)
}
