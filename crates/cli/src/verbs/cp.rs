//! `zuse cp` out of a pool, to the host.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use zuse::{Copier, OutError, OutOperand, Target};

use super::flags::DATASETS;
use super::session::{Session, is_target};
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::progress::Narrator;

pub(super) fn run(parsed: &Parsed) -> Outcome {
    let mut session = Session::new(parsed)?;
    let Some((dest, sources)) = parsed.operands.split_last().filter(|(_, s)| !s.is_empty()) else {
        return Err(usage("missing source or destination argument"));
    };
    if is_target(dest) {
        return super::cp_in::run(parsed, sources, dest);
    }
    let parse = |s: &std::ffi::OsString| Target::parse(s.as_bytes()).map_err(|e| usage(e.to_string()));
    let sources: Vec<Target> = sources.iter().map(parse).collect::<Result<_, _>>()?;
    let recursive = ['a', 'r', 'R', DATASETS].iter().any(|flag| parsed.has(*flag));
    let refused = |e| refused(Path::new(dest), e);
    let operands = operands(&mut session, sources, &console::path(dest), parsed.has(DATASETS), &refused)?;
    let mut total = 0;
    for operand in &operands {
        total += session.dataset(operand.source()).map_or(0, |ds| ds.phys().uncompressed_bytes);
    }
    let mut narrator = Narrator::new(total, parsed.has('q'));
    let mut copier = Copier::new(&mut narrator);
    let mut status = 0;
    for operand in operands {
        let found = session.find(operand.source());
        match found.and_then(|found| operand.copy(found, recursive, &mut copier).map_err(refused)) {
            Ok(()) => {}
            Err(Failure::Failed(message)) => {
                eprintln!("zuse cp: {message}");
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    let done = copier.done();
    narrator.finish();
    if !parsed.has('q') {
        eprintln!("copied {} files, {} bytes of data", done.files, done.bytes);
    }
    if done.damaged > 0 {
        eprintln!("zuse cp: {} file(s) are incomplete or missing", done.damaged);
        session.tell_changes();
        status = 1;
    }
    Ok(status)
}

/// The copies that are asked for: of the targets, or with `--datasets` of all datasets below them.
fn operands(
    session: &mut Session,
    sources: Vec<Target>,
    dest: &Path,
    datasets: bool,
    refused: &dyn Fn(OutError) -> Failure,
) -> Result<Vec<OutOperand>, Failure> {
    if !datasets {
        return Ok(sources.into_iter().map(|source| OutOperand::new(source, dest)).collect());
    }
    let mut operands = Vec::new();
    for source in sources {
        let top = session.dataset(&source)?;
        operands.extend(OutOperand::datasets(&source, &top, dest).map_err(refused)?);
    }
    Ok(operands)
}

/// The message for an operand that is not copied.
fn refused(dest: &Path, mut e: OutError) -> Failure {
    use OutError::{Host, NoDirectory, NotDirectory, Special};
    if let Special { to: path } | NotDirectory { to: path } | Host { to: path, .. } | NoDirectory { dir: path } = &mut e
    {
        *path = console::as_said(dest, path);
    }
    match &e {
        OutError::Special { .. } => failed(format!("{e} ('zuse cat' writes to standard output)")),
        OutError::Directory { .. } => failed(format!("{e} (-a copies it)")),
        OutError::Control { operand } => {
            failed(format!("{operand}: name a snapshot (FS@SNAP), not the control directory"))
        }
        OutError::NotDataset { .. } => usage("--datasets takes datasets, not snapshots or paths"),
        OutError::Host { to, source } => failed(format!("{}: {}", to.display(), cause(source))),
        _ => failed(e.to_string()),
    }
}
