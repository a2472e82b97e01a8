//! `zuse put`, `mkdir`, `rm`, `mv`, `ln`: single files of a file system, changed; and `put` into a volume.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use base::Errno;
use control::Caller;
use zpl::{Kind, Node};
use zuse::{CopyIn, Error, Files, Target, TargetObject, base_name, place_in};

use super::session::{Session, file_target, strerror};
use super::volume;
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::progress::Narrator;

/// The mode of a directory if none was given, without what the umask takes away.
const DIRECTORY_MODE: u32 = 0o777;
/// The owner may make files in the directories above the one that is asked for, whatever the umask.
const OWNER_MAY_ADD: u32 = 0o300;

/// A failure with the system's message for an error, after the path.
fn told(target: &Target, e: &Error) -> Failure {
    match e {
        Error::At { source, .. } => failed(format!("{target}: {}", strerror(source))),
        other => failed(format!("{target}: {other}")),
    }
}

/// Applies a function to each operand, and reports each that fails.
fn each(
    verb: &str,
    parsed: &Parsed,
    operands: &[OsString],
    work: impl Fn(&Files, &Target) -> Result<(), Error>,
) -> Outcome {
    if operands.is_empty() {
        return if verb == "rm" && parsed.has('f') { Ok(0) } else { Err(usage("missing target argument")) };
    }
    let targets = operands.iter().map(|o| file_target(o)).collect::<Result<Vec<_>, _>>()?;
    Session::run(parsed, |session| {
        let mut status = 0;
        for target in &targets {
            let done = session.files(target).and_then(|files| work(&files, target).map_err(|e| told(target, &e)));
            match done {
                Ok(()) => {}
                Err(Failure::Failed(message)) => {
                    eprintln!("zuse {verb}: {message}");
                    status = 1;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(status)
    })
}

pub(super) fn put(parsed: &Parsed) -> Outcome {
    let [operand] = parsed.operands.as_slice() else { return Err(usage("one target is expected")) };
    let target = Target::parse(operand.as_bytes()).map_err(|e| usage(e.to_string()))?;
    Session::run(parsed, |session| {
        if let Some(volume) = session.volume(&target)? {
            return volume::put(&volume, &target);
        }
        let target = file_target(operand)?;
        let files = session.files(&target)?;
        let input = console::raw_stdin();
        let written = match input.waits() {
            true => files.write_from(target.path(), input),
            false => files.write_file(target.path(), &input.file()?),
        };
        written.map_err(|e| told(&target, &e))?;
        Ok(0)
    })
}

pub(super) fn mkdir(parsed: &Parsed) -> Outcome {
    let (mode, umask) = match parsed.text('m') {
        None => (DIRECTORY_MODE, console::umask()),
        Some(text) => {
            let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o7777);
            (mode.ok_or_else(|| usage(format!("invalid mode '{text}': an octal number is expected")))?, 0)
        }
    };
    let parents = parsed.has('p');
    each("mkdir", parsed, &parsed.operands, |files, target| {
        let last = files.with_umask(umask);
        if !parents {
            return last.create_dir(target.path(), mode).map(drop);
        }
        let others = files.with_umask(console::umask() & !OWNER_MAY_ADD);
        others.create_dir_all(above(target.path()), DIRECTORY_MODE)?;
        last.create_dir_all(target.path(), mode).map(drop)
    })
}

pub(super) fn rm(parsed: &Parsed) -> Outcome {
    let (recursive, force) = (parsed.has('r') || parsed.has('R'), parsed.has('f'));
    each("rm", parsed, &parsed.operands, |files, target| {
        let removed = match recursive {
            true => files.remove_all(target.path()).map(drop),
            false => files.remove_file(target.path()),
        };
        match removed {
            Err(e) if force && e.errno() == Errno::ENOENT => Ok(()),
            done => done,
        }
    })
}

pub(super) fn mv(parsed: &Parsed) -> Outcome {
    let Some((dest, sources)) = parsed.operands.split_last().filter(|(_, s)| !s.is_empty()) else {
        return Err(usage("missing source or destination argument"));
    };
    let dest = file_target(dest)?;
    let sources = sources.iter().map(|o| file_target(o)).collect::<Result<Vec<_>, _>>()?;
    Session::run(parsed, |session| {
        let into = session.files(&dest)?;
        let into_dir = into.directory(dest.path()).is_ok();
        if sources.len() > 1 && !into_dir {
            return Err(failed(format!("{dest}: not a directory")));
        }
        let mut status = 0;
        for source in &sources {
            let mut to = dest.clone();
            if into_dir {
                let base = dest.path().strip_suffix(b"/").unwrap_or(dest.path());
                let parts: Vec<&[u8]> = [base].into_iter().filter(|part| !part.is_empty()).collect();
                let name = base_name(source);
                to.path = Some([parts, vec![name.as_slice()]].concat().join(&b'/'));
            }
            match move_one(session, source, &into, &to) {
                Ok(()) => {}
                Err(Failure::Failed(message)) => {
                    eprintln!("zuse mv: {message}");
                    status = 1;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(status)
    })
}

/// Renames within a file system; between two, copies and then removes.
fn move_one(session: &mut Session, source: &Target, into: &Files, to: &Target) -> Result<(), Failure> {
    let from = session.files(source)?;
    if source.path().is_empty() {
        return Err(failed(format!("{source}: the root of a file system cannot be moved")));
    }
    if source.dataset == to.dataset {
        return from.rename(source.path(), to.path()).map_err(|e| told(source, &e));
    }
    session.look_again(source.pool())?;
    let TargetObject::File(node) = session.find(source)? else {
        return Err(failed(format!("{source}: not a file")));
    };
    if to.path().ends_with(b"/") && node.kind() != Kind::Directory {
        return Err(failed(format!("{to}: Not a directory")));
    }
    if let Some(why) = in_the_way(&node, into, to) {
        return Err(failed(format!("{to}: {why}")));
    }
    let (dir, name) = place_in(into, to.path(), None).map_err(|e| super::cp_in::directory(to, e))?;
    let mut narrator = Narrator::new(0, true);
    let Caller { uid, gid, .. } = console::user();
    let mut copy_in = CopyIn::new(into.zfs(), dir, &mut narrator).owned_by(uid, gid);
    let copied = match source.pool() == to.pool() {
        true => copy_in.share(from.zfs(), *node, &name),
        false => copy_in.node(*node, &name),
    };
    let done = copied.and_then(|()| copy_in.finish());
    let whole = narrator.finish();
    let done = done.map_err(|e| told(to, &e))?;
    if done.failed > 0 {
        return Err(failed(format!("{source}: {} file(s) could not be copied; nothing was removed", done.failed)));
    }
    if !whole {
        return Err(failed(format!("{source}: not all of it was kept; nothing was removed")));
    }
    // the copy is on disk before the source is removed
    into.zfs().spa().sync().map_err(|e| failed(format!("{to}: {e}")))?;
    from.remove_all(source.path()).map(drop).map_err(|e| told(source, &e))
}

/// Why what already has the name cannot be replaced by `node`, as in a rename.
fn in_the_way(node: &Node, into: &Files, to: &Target) -> Option<&'static str> {
    let (_, there) = into.stat(to.path()).ok()?;
    match there.kind() {
        Kind::Directory => into.read_dir(to.path()).is_ok_and(|all| !all.is_empty()).then_some("Directory not empty"),
        _ => (node.kind() == Kind::Directory).then_some("Not a directory"),
    }
}

pub(super) fn ln(parsed: &Parsed) -> Outcome {
    let [from, new] = parsed.operands.as_slice() else { return Err(usage("a file and a name are expected")) };
    let link = file_target(new)?;
    let new = std::slice::from_ref(new);
    if parsed.has('s') {
        let text = from.as_bytes();
        return each("ln", parsed, new, |files, link| {
            let path = into_directory(files, link.path(), last_of(text));
            files.symlink(text, &path).map(drop)
        });
    }
    let first = file_target(from)?;
    if first.dataset != link.dataset {
        return Err(failed(format!("{link}: a link cannot lead to another dataset")));
    }
    each("ln", parsed, new, |files, link| {
        let path = into_directory(files, link.path(), last_of(first.path()));
        files.hard_link(first.path(), &path)
    })
}

/// The parent directory of a path.
fn above(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let path = path.get(..end).unwrap_or_default();
    path.iter().rposition(|b| *b == b'/').and_then(|at| path.get(..at)).unwrap_or_default()
}

/// The last name of a path.
fn last_of(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').find(|part| !part.is_empty()).unwrap_or(b"")
}

/// `path`, or `name` in it if it is a directory.
fn into_directory(files: &Files, path: &[u8], name: &[u8]) -> Vec<u8> {
    let base = path.strip_suffix(b"/").unwrap_or(path);
    match files.directory(path) {
        Ok(_) if base.is_empty() => name.to_vec(),
        Ok(_) => [base, b"/", name].concat(),
        Err(_) => path.to_vec(),
    }
}
