//! `zuse cp` into a pool: from the host, from another dataset, from another pool.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use control::Caller;
use zpl::Kind;
use zuse::{CopyIn, Imported, InDest, InError, InOperand, Target};

use super::flags::DATASETS;
use super::session::{Session, file_target, is_target, strerror};
use super::volume;
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::progress::Narrator;

pub(super) fn run(parsed: &Parsed, sources: &[OsString], dest: &OsStr) -> Outcome {
    if parsed.has(DATASETS) {
        return Err(usage(
            "--datasets copies out of a pool; 'zfs send' and 'zfs receive' take datasets from pool to pool",
        ));
    }
    let dest = file_target(dest)?;
    Session::run(parsed, |session| {
        if let Some(volume) = session.volume(&dest)? {
            return volume::copy(session, parsed, sources, &dest, &volume);
        }
        let files = session.files(&dest)?;
        let into = InDest::new(&files, &dest, sources.len()).map_err(|e| refused(&dest, "", e))?;
        let recursive = ['a', 'r', 'R'].iter().any(|flag| parsed.has(*flag));
        let (operands, mut status, total) = find(session, sources, &dest, recursive)?;
        let mut narrator = Narrator::new(total, parsed.has('q'));
        let Caller { uid, gid, .. } = console::user();
        let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut narrator).owned_by(uid, gid);
        for Operand { operand, shown } in operands {
            match into.copy(operand, &mut copy_in) {
                Ok(()) => {}
                Err(e) if e.is_of_all() => return Err(refused(&dest, &shown, e)),
                Err(e) => status = report(refused(&dest, &shown, e))?,
            }
        }
        let done = copy_in.done();
        narrator.finish();
        Ok(summary("cp", parsed, &done).max(status))
    })
}

/// The message for an operand that is not copied.
fn refused(dest: &Target, operand: &str, e: InError) -> Failure {
    match e {
        InError::NotDirectory => failed(format!("{dest}: not a directory")),
        InError::Destination(e) => directory(dest, e),
        InError::Link(e) => failed(format!("{dest}: {}", why(&e))),
        InError::SameFile => failed(format!("{operand} and the destination are the same file")),
        InError::Volume => failed(format!("{operand} is a volume")),
        InError::Control => failed(format!("{operand}: name a snapshot (FS@SNAP), not the control directory")),
        InError::Copy(e) => failed(format!("{operand}: {}", why(&e))),
        e => failed(format!("{operand}: {e}")),
    }
}

/// Prints the message for an operand; the work goes on with the next. Returns the exit status.
fn report(failure: Failure) -> Outcome {
    match failure {
        Failure::Failed(message) => {
            eprintln!("zuse cp: {message}");
            Ok(1)
        }
        other => Err(other),
    }
}

/// The message for a destination whose directory cannot be used.
pub(super) fn directory(dest: &Target, e: zuse::Error) -> Failure {
    match e {
        zuse::Error::At { path, source } => {
            failed(format!("{}:/{}: {}", dest.dataset, crate::shown::name(&path), strerror(&source)))
        }
        e => failed(format!("{dest}: {e}")),
    }
}

/// The message for an operand's error; the operand is named already.
fn why(e: &zuse::Error) -> String {
    match e {
        zuse::Error::Host { source, .. } => cause(source),
        other => other.to_string(),
    }
}

/// A source, with its name for messages.
struct Operand {
    operand: InOperand,
    shown: String,
}

/// The sources that exist, the exit status so far, and an estimate of their bytes.
fn find(
    session: &mut Session,
    sources: &[OsString],
    dest: &Target,
    recursive: bool,
) -> Result<(Vec<Operand>, u8, u64), Failure> {
    let (mut found, mut status, mut total) = (Vec::new(), 0, 0);
    for source in sources {
        let operand = match is_target(source) {
            true => in_pool(session, file_target(source)?, dest, &mut total),
            false => Ok(InOperand::Host(console::path(source))),
        };
        let shown = |operand: &InOperand| match operand {
            InOperand::Host(path) => console::as_said(Path::new(source), path).display().to_string(),
            operand => operand.to_string(),
        };
        match operand {
            Ok(operand) if operand.is_directory() && !recursive => {
                status = report(failed(format!("{} is a directory (-a copies it)", shown(&operand))))?;
            }
            Ok(operand) => {
                let shown = shown(&operand);
                found.push(Operand { operand, shown });
            }
            Err(failure) => status = report(failure)?,
        }
    }
    // the size of a tree of the host is not known before it is walked
    if found.iter().any(|found| matches!(found.operand, InOperand::Host(_))) {
        total = 0;
    }
    Ok((found, status, total))
}

/// The file that a target leads to; its bytes are added to `total`.
fn in_pool(session: &mut Session, target: Target, dest: &Target, total: &mut u64) -> Result<InOperand, Failure> {
    let live = match InDest::shares_blocks(&target, dest) {
        true => {
            let files = session.files(&target)?;
            session.look_again(target.pool())?;
            Some(files.zfs().clone())
        }
        false => None,
    };
    let found = session.find(&target)?;
    let operand = InOperand::found(target.clone(), found, live);
    let operand = operand.map_err(|e| refused(dest, &target.to_string(), e))?;
    if let InOperand::Pool { node, .. } = &operand {
        *total += match node.kind() {
            Kind::Directory => session.dataset(&target)?.phys().uncompressed_bytes,
            _ => node.size(),
        };
    }
    Ok(operand)
}

/// Prints a summary; returns the exit status.
pub(super) fn summary(verb: &str, parsed: &Parsed, done: &Imported) -> u8 {
    if !parsed.has('q') {
        eprintln!("copied {} files, {} bytes of data", done.files, done.bytes);
    }
    if done.failed > 0 {
        eprintln!("zuse {verb}: {} file(s) are incomplete or missing", done.failed);
    }
    u8::from(done.failed > 0)
}
