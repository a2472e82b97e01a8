//! `zuse cp` out of a pool, to the host.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pool::{Kind, ListOptions};
use zpl::Kind as FileKind;
use zuse::{Copier, Origins, Target, name_in_directory};

use super::flags::DATASETS;
use super::session::Session;
use super::session::{Found, is_dir, is_target};
use crate::args::Parsed;
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
    let dest = PathBuf::from(dest);
    let parse = |s: &std::ffi::OsString| Target::parse(s.as_bytes()).map_err(|e| usage(e.to_string()));
    let sources: Vec<Target> = sources.iter().map(parse).collect::<Result<_, _>>()?;
    let recursive = ['a', 'r', 'R', DATASETS].iter().any(|flag| parsed.has(*flag));
    let mut jobs = Vec::new();
    let mut status = 0;
    for source in sources {
        if parsed.has(DATASETS) {
            jobs.extend(datasets(&mut session, &source, &dest)?);
        } else {
            let to = place(&source, &dest);
            jobs.push(Job { source, to, is_named: true });
        }
    }
    let mut total = 0;
    for job in &jobs {
        total += session.dataset(&job.source).map_or(0, |ds| ds.phys().uncompressed_bytes);
    }
    let mut narrator = Narrator::new(total, parsed.has('q'));
    let mut copier = Copier::new(&mut narrator);
    if parsed.has(DATASETS) {
        copier.stay_below(&dest);
    }
    let mut origins = Origins::default();
    for job in jobs {
        copier.come_from(origins.number(Some(&job.source.dataset)));
        match copy(&mut session, &job, recursive, &mut copier) {
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

struct Job {
    source: Target,
    to: PathBuf,
    /// Whether the user named this place, or a directory for it.
    is_named: bool,
}

/// The destination path of a source: in an existing directory, its own name; otherwise the destination itself. A
/// dataset's root (a target that ends in `:/`) becomes the destination in any case, as `cp -a root/. dest` would.
fn place(source: &Target, dest: &Path) -> PathBuf {
    match name_in_directory(source).filter(|_| is_dir(dest)) {
        Some(name) => dest.join(std::ffi::OsStr::from_bytes(&name)),
        None => dest.to_owned(),
    }
}

/// The path a file is written to: an existing file is replaced, at the end of a link. A device or pipe is left alone.
fn settle(to: &Path) -> Result<PathBuf, Failure> {
    // nothing there, or a dangling link
    let Ok(there) = std::fs::metadata(to) else { return Ok(to.to_owned()) };
    if !there.is_file() && !there.is_dir() {
        let shown = to.display();
        return Err(failed(format!("{shown}: neither a file nor a directory ('zuse cat' writes to standard output)")));
    }
    match to.is_symlink() {
        true => to.canonicalize().map_err(|e| failed(format!("{}: {e}", to.display()))),
        false => Ok(to.to_owned()),
    }
}

/// A job for the dataset and each below it; snapshots are copied only if they are named.
fn datasets(session: &mut Session, source: &Target, dest: &Path) -> Result<Vec<Job>, Failure> {
    let cannot = |e: pool::Error| failed(format!("{source}: {e}"));
    let pool = session.pool(source.pool())?;
    let top = session.dataset(source)?;
    if top.is_snapshot() || source.path.as_ref().is_some_and(|p| !p.is_empty()) {
        return Err(usage("--datasets takes datasets, not snapshots or paths"));
    }
    let mut jobs = Vec::new();
    for entry in pool.list(top.name(), &ListOptions::DATASETS).map_err(cannot)? {
        let Some(dataset) = entry.dataset() else { continue };
        let below = dataset.name().get(top.name().len()..).unwrap_or("").trim_start_matches('/');
        let volume = dataset.head_kind().map_err(cannot)? == Kind::Volume;
        let mut to = if below.is_empty() { dest.to_owned() } else { dest.join(below) };
        if volume {
            to.as_mut_os_string().push(".img");
        }
        let name = format!("{}{}", source.pool(), dataset.name().get(pool.name().len()..).unwrap_or(""));
        jobs.push(Job { source: Target { dataset: name, path: None }, to, is_named: false });
    }
    Ok(jobs)
}

fn copy(session: &mut Session, job: &Job, recursive: bool, copier: &mut Copier<'_>) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| failed(format!("{}: {}", job.to.display(), cause(&e)));
    let found = session.find(&job.source)?;
    let kind = match &found {
        Found::File(node) => node.kind(),
        _ => FileKind::File,
    };
    if kind != FileKind::Directory && job.to.as_os_str().as_bytes().ends_with(b"/") {
        return Err(failed(format!("{}: not a directory", job.to.display())));
    }
    let to = match kind == FileKind::File {
        true => settle(&job.to).map(|end| if job.is_named { end } else { job.to.clone() })?,
        false => job.to.clone(),
    };
    let (parent, name) = split(&to)?;
    if !is_dir(&parent) {
        return Err(failed(format!("{}: no such directory", parent.display())));
    }
    match found {
        Found::Volume(volume) => copier.copy_volume(&volume, &parent, &name).map(drop).map_err(cannot),
        Found::Control(_) => {
            Err(failed(format!("{}: name a snapshot (FS@SNAP), not the control directory", job.source)))
        }
        Found::File(node) if node.kind() != FileKind::Directory => {
            copier.copy_file(&node, &parent, &name).map(drop).map_err(cannot)
        }
        Found::File(_) if !recursive => Err(failed(format!("{} is a directory (-a copies it)", job.source))),
        Found::File(node) => copier.copy_tree(*node, &job.to).map(drop).map_err(cannot),
    }
}

/// The directory and the name of a path of the host.
fn split(path: &Path) -> Result<(PathBuf, Vec<u8>), Failure> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        Some(_) => PathBuf::from("."),
        None => path.to_owned(),
    };
    match path.file_name() {
        Some(name) => Ok((parent, name.as_bytes().to_vec())),
        // `.`, `..` or `/`: only a tree can be copied there
        None => Ok((path.to_owned(), b".".to_vec())),
    }
}
