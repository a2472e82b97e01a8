//! `zuse cp` into a pool: from the host, from another dataset, from another pool.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use control::Caller;
use zpl::{Kind, Node};
use zuse::{CopyIn, Imported, Origins, Target, base_name};

use super::flags::DATASETS;
use super::session::Session;
use super::session::strerror;
use super::session::{Found, file_target, is_target};
use super::volume;
use crate::args::Parsed;
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::progress::Narrator;
use crate::writable;

/// The source of a file.
enum Source<'a> {
    Host(&'a Path),
    Pool(Target, Box<Node>),
}

impl Source<'_> {
    /// The last name, used for the copy in a directory; `None` for an operand that stands for its contents: `DIR/.`,
    /// or the root of a file system.
    fn name(&self) -> Option<Vec<u8>> {
        match self {
            Source::Pool(target, _) if target.path().is_empty() => None,
            Source::Pool(target, _) => Some(base_name(target)),
            Source::Host(path) => {
                let bytes = path.as_os_str().as_bytes();
                let contents = bytes == b"." || bytes.ends_with(b"/.") || bytes.ends_with(b"/..") || bytes == b"..";
                path.file_name().filter(|_| !contents).map(|name| name.as_bytes().to_vec())
            }
        }
    }

    /// The dataset that it is in, if it is in one.
    fn dataset(&self) -> Option<&str> {
        match self {
            Source::Host(_) => None,
            Source::Pool(target, _) => Some(&target.dataset),
        }
    }

    fn is_dir(&self) -> bool {
        match self {
            Source::Host(path) => std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) || self.name().is_none(),
            Source::Pool(_, node) => node.kind() == Kind::Directory,
        }
    }

    /// Returns whether it is a file with contents.
    fn is_data(&self) -> bool {
        match self {
            Source::Host(path) => std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file()),
            Source::Pool(_, node) => node.kind() == Kind::File,
        }
    }

    /// Returns whether this is the very file that already has the name.
    fn is_at(&self, files: &zuse::Files, dest: &Target, dir: u64, name: &[u8]) -> bool {
        let Source::Pool(target, node) = self else { return false };
        let there = match name {
            b"" => Some(dir),
            name => files.fs().lookup(dir, name).ok().flatten().map(|entry| entry.object),
        };
        target.dataset == dest.dataset && there == Some(node.id())
    }

    fn shown(&self) -> String {
        match self {
            Source::Host(path) => path.display().to_string(),
            Source::Pool(target, _) => target.to_string(),
        }
    }
}

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
        let into_dir = files.directory(dest.path()).is_ok();
        if sources.len() > 1 && !into_dir {
            return Err(failed(format!("{dest}: not a directory")));
        }
        let recursive = ['a', 'r', 'R'].iter().any(|flag| parsed.has(*flag));
        let (found, mut status, total) = find(session, sources, &dest, recursive)?;
        let mut narrator = Narrator::new(total, parsed.has('q'));
        let Caller { uid, gid, .. } = writable::caller();
        let mut copy_in = CopyIn::new(files.zfs(), files.fs().root(), &mut narrator).owned_by(uid, gid);
        let mut origins = Origins::default();
        for source in found {
            let (dir, name) = place(&files, &dest, source.name().filter(|_| into_dir))?;
            let shown = source.shown();
            if !into_dir && !source.is_dir() && dest.path().ends_with(b"/") {
                return Err(failed(format!("{dest}: not a directory")));
            }
            // the file that a link leads to is replaced, and the link stays
            let end = if source.is_data() { files.end_of_links(dir, &name).map(Some) } else { Ok(None) };
            let (dir, name) = match end {
                Ok(end) => end.unwrap_or((dir, name)),
                Err(e) => {
                    eprintln!("zuse cp: {dest}: {}", why(&e));
                    status = 1;
                    continue;
                }
            };
            if source.is_at(&files, &dest, dir, &name) {
                eprintln!("zuse cp: {shown} and the destination are the same file");
                status = 1;
                continue;
            }
            let ready = copy_in.go_to(dir).and_then(|()| copy_in.come_from(origins.number(source.dataset())));
            let copied = match source {
                _ if ready.is_err() => ready,
                Source::Host(path) => copy_in.host(path, &name),
                Source::Pool(target, node) if shares(&target, &dest) => {
                    let from = session.files(&target)?;
                    copy_in.share(from.zfs(), *node, &name)
                }
                Source::Pool(_, node) => copy_in.node(*node, &name),
            };
            // what was copied before a failure stays
            let finished = copy_in.finish();
            if let Err(e) = copied.and(finished.map(drop)) {
                eprintln!("zuse cp: {shown}: {}", why(&e));
                status = 1;
            }
        }
        let done = copy_in.done();
        narrator.finish();
        Ok(summary("cp", parsed, &done).max(status))
    })
}

/// The message for an operand's error; the operand is named already.
pub(super) fn why(e: &zuse::Error) -> String {
    match e {
        zuse::Error::Host { source, .. } => cause(source),
        other => other.to_string(),
    }
}

/// Returns whether blocks can be shared: within a pool, and with a file system that is open for changes too.
fn shares(source: &Target, dest: &Target) -> bool {
    source.pool() == dest.pool() && !source.dataset.contains('@')
}

/// The sources that exist, and an estimate of their bytes.
fn find<'a>(
    session: &mut Session,
    sources: &'a [OsString],
    dest: &Target,
    recursive: bool,
) -> Result<(Vec<Source<'a>>, u8, u64), Failure> {
    let (mut found, mut status, mut total) = (Vec::new(), 0, 0);
    for operand in sources {
        let source = if is_target(operand) {
            let target = file_target(operand)?;
            let ready = match shares(&target, dest) {
                true => session.files(&target).and_then(|_| session.look_again(target.pool())),
                false => Ok(()),
            };
            let node = ready.and_then(|()| session.find(&target)).and_then(|found| match found {
                Found::File(node) => Ok(node),
                Found::Volume(_) => Err(failed(format!("{target} is a volume"))),
                Found::Control(_) => {
                    Err(failed(format!("{target}: name a snapshot (FS@SNAP), not the control directory")))
                }
            });
            match node {
                Ok(node) => {
                    total += if node.kind() == Kind::Directory {
                        session.dataset(&target)?.phys().uncompressed_bytes
                    } else {
                        node.size()
                    };
                    Ok(Source::Pool(target, node))
                }
                Err(e) => Err(e),
            }
        } else {
            Ok(Source::Host(Path::new(operand)))
        };
        match source {
            Ok(source) if source.is_dir() && !recursive => {
                eprintln!("zuse cp: {} is a directory (-a copies it)", source.shown());
                status = 1;
            }
            Ok(source) => found.push(source),
            Err(Failure::Failed(message)) => {
                eprintln!("zuse cp: {message}");
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    // the size of a tree of the host is not known before it is walked
    if found.iter().any(|source| matches!(source, Source::Host(_))) {
        total = 0;
    }
    Ok((found, status, total))
}

/// The directory that a source is copied to, and its name there: `name` in the destination, or else what the
/// destination says. An empty name is the directory itself.
pub(super) fn place(files: &zuse::Files, dest: &Target, name: Option<Vec<u8>>) -> Result<(u64, Vec<u8>), Failure> {
    let cannot = |e: zuse::Error| match e {
        zuse::Error::At { path, source } => {
            failed(format!("{}:/{}: {}", dest.dataset, crate::shown::name(&path), strerror(&source)))
        }
        e => failed(format!("{dest}: {e}")),
    };
    let path = dest.path();
    let path = path.strip_suffix(b"/").unwrap_or(path);
    if name.is_some() || files.directory(path).is_ok() {
        return Ok((files.directory(path).map_err(cannot)?, name.unwrap_or_default()));
    }
    let (parent, last) = match path.iter().rposition(|b| *b == b'/') {
        Some(at) => path.split_at(at),
        None => (&b""[..], path),
    };
    Ok((files.directory(parent).map_err(cannot)?, last.strip_prefix(b"/").unwrap_or(last).to_vec()))
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
