//! `zfs send`.
//!
//! One snapshot ([`one`]), a package of several ([`many`]), the rest of a stream that was interrupted, and what was received of one
//! ([`resume`]).

mod facts;
mod many;
mod one;
mod resume;
mod stream;

use ::stream::send::SendFlags;

use crate::command::Call;
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::{self, Types};
use stream::Options;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let options = options(call)?;
    let operands = call.args.names();
    let token = call.args.text('t');
    check(call, &options, token.is_some(), &operands)?;
    if !options.dry && console::stdout_is_terminal() {
        return Err(failed("Error: Stream can not be written to a terminal.\nYou must redirect standard output."));
    }
    match (operands.first(), token) {
        (Some(name), token) if options.saved => resume::saved(&options, name, token.as_deref()),
        (_, Some(token)) => resume::run(&options, &token),
        (Some(name), None) if options.replicate || options.all => many::run(options, name),
        (Some(name), None) => one::run(options, name),
        (None, None) => Err(usage("missing snapshot argument")),
    }
}

fn options(call: &Call<'_>) -> Result<Options, Failure> {
    let args = &call.args;
    let raw = args.has('w');
    if args.count('i') + args.count('I') > 1 {
        return Err(usage(""));
    }
    let mut exclude = Vec::new();
    for value in args.values('X') {
        for name in value.to_string_lossy().split(',') {
            if names::check(name, Types::ALL).is_err() || !name.contains('/') {
                return Err(usage(format!("-X {name}: not a valid non-root dataset name.")));
            }
            exclude.push(name.to_owned());
        }
    }
    if args.has('D') {
        eprint!(
            "WARNING: deduplicated send is no longer supported.  A regular,\n\
             non-deduplicated stream will be generated.\n\n"
        );
    }
    let told = usize::from(args.has('P') || args.has('V'));
    Ok(Options {
        stream: SendFlags {
            embed: args.has('e') || raw,
            large_block: args.has('L') || raw,
            compress: args.has('c') || raw,
            raw,
            resume: None,
            saved: None,
        },
        verbosity: args.count('v').max(told),
        parsable: args.has('P'),
        progress: args.has('v'),
        title: args.has('V'),
        dry: args.has('n'),
        replicate: args.has('R'),
        all: args.has('I'),
        skip_missing: args.has('s'),
        props: args.has('p'),
        backup: args.has('b'),
        holds: args.has('h'),
        saved: args.has('S'),
        unencrypted: args.has('U'),
        exclude,
        from: args.text('i').or_else(|| args.text('I')),
    })
}

/// Checks that the options can be combined.
fn check(call: &Call<'_>, options: &Options, token: bool, operands: &[String]) -> Result<(), Failure> {
    let many = options.replicate || options.props || options.backup || options.holds;
    let redact = call.args.has('d');
    if !options.exclude.is_empty() && !options.replicate {
        return Err(failed("Cannot specify dataset exclusion (-X) on a non-recursive send."));
    }
    if token && !options.saved {
        if options.from.is_some() || many || redact {
            return Err(usage("invalid flags combined with -t"));
        }
        if !operands.is_empty() {
            return Err(usage("too many arguments"));
        }
    } else {
        match operands.len() {
            0 => return Err(usage("missing snapshot argument")),
            1 => {}
            _ => return Err(usage("too many arguments")),
        }
    }
    let stream = &options.stream;
    if options.saved {
        let shaped = stream.large_block || stream.embed || stream.compress || stream.raw;
        if options.from.is_some() || many || options.all || shaped || redact {
            return Err(usage("incompatible flags combined with saved send flag"));
        }
        if operands.iter().any(|name| name.contains('@')) {
            return Err(usage("saved send must specify the dataset with partially-received state"));
        }
    }
    if redact {
        return Err(failed(match stream.raw {
            true => "Error: raw sends may not be redacted.",
            false => "making redacted streams is not in this version of Zuse",
        }));
    }
    if options.skip_missing && !options.replicate && !options.saved && !token {
        return Err(usage("skip-missing flag can only be used in conjunction with replicate"));
    }
    Ok(())
}
