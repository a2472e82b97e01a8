//! `zuse tar`.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};

use control::Caller;
use zuse::{Archiver, CopyIn, TargetObject, base_name};

use super::session::{Session, file_target, targets};
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::progress::Narrator;

pub(super) fn run(parsed: &Parsed) -> Outcome {
    if parsed.has('x') {
        return extract(parsed);
    }
    let mut session = Session::new(parsed)?;
    let targets = targets(parsed)?;
    let out: Box<dyn Write> = match parsed.value('f') {
        Some(path) if path != "-" => {
            Box::new(File::create(console::path(path)).map_err(|e| failed(format!("{}: {e}", path.to_string_lossy())))?)
        }
        _ if console::stdout_is_terminal() => return Err(usage("refusing to write an archive to a terminal")),
        _ => Box::new(console::stdout()),
    };
    let many = targets.len() > 1;
    let mut found = Vec::new();
    let mut status = 0;
    let mut total = 0;
    for target in &targets {
        match session.find(target) {
            Ok(TargetObject::File(node)) => {
                total += session.dataset(target)?.phys().uncompressed_bytes;
                found.push((target, *node));
            }
            Ok(TargetObject::Volume(_)) => {
                eprintln!("zuse tar: {target} is a volume; 'zuse cp' copies it");
                status = 1;
            }
            Ok(TargetObject::Control(_)) => {
                eprintln!("zuse tar: {target}: name a snapshot (FS@SNAP), not the control directory");
                status = 1;
            }
            Err(Failure::Failed(message)) => {
                eprintln!("zuse tar: {message}");
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    let mut narrator = Narrator::new(total, parsed.has('q'));
    let mut archiver = Archiver::new(BufWriter::with_capacity(1 << 20, out), &mut narrator);
    for (target, node) in found {
        // several trees are put side by side under their datasets' names
        let prefix = match (many, target.path()) {
            (false, b"") => Vec::new(),
            (false, _) => base_name(target),
            (true, b"") => target.dataset.as_bytes().to_vec(),
            (true, path) => [target.dataset.as_bytes(), b"/", path].concat(),
        };
        archiver.add_tree(node, &prefix)?;
    }
    let damaged = archiver.finish()?;
    narrator.finish();
    if damaged > 0 {
        eprintln!("zuse tar: {damaged} file(s) are incomplete or missing");
        session.tell_changes();
        status = 1;
    }
    Ok(status)
}

/// Bytes of an archive that are read at a time.
const INPUT: usize = 1 << 20;

/// `zuse tar -x`: extracts an archive below a directory of a file system.
fn extract(parsed: &Parsed) -> Outcome {
    let [operand] = parsed.operands.as_slice() else { return Err(usage("one target is expected")) };
    let target = file_target(operand)?;
    let (input, total): (Box<dyn Read>, u64) = match parsed.value('f') {
        Some(path) if path != "-" => {
            let cannot = |e: io::Error| failed(format!("{}: {}", path.to_string_lossy(), crate::error::cause(&e)));
            let file = File::open(console::path(path)).map_err(cannot)?;
            let size = file.metadata().map_or(0, |m| m.len());
            (Box::new(file), size)
        }
        _ if console::stdin_is_terminal() => return Err(usage("refusing to read an archive from a terminal")),
        _ => (Box::new(console::stdin()), 0),
    };
    Session::run(parsed, |session| {
        let files = session.files(&target)?;
        let dir = files.directory(target.path()).map_err(|e| failed(format!("{}:/{e}", target.dataset)))?;
        let mut narrator = Narrator::new(total, parsed.has('q'));
        let Caller { uid, gid, .. } = console::user();
        let mut copy_in = CopyIn::new(files.zfs(), dir, &mut narrator).owned_by(uid, gid);
        let extracted = copy_in.tar(BufReader::with_capacity(INPUT, input), b"");
        // what was extracted before a failure stays
        let finished = copy_in.finish();
        let done = copy_in.done();
        narrator.finish();
        let status = super::cp_in::summary("tar", parsed, &done);
        extracted.and(finished.map(drop)).map_err(|e| failed(format!("{target}: {e}")))?;
        Ok(status)
    })
}
