//! Volumes that `zuse put` and `cp` write.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;

use zpl::live::Volume;
use zuse::{Contents, ImageError, ImageIn, Target, TargetObject};

use super::session::{Session, file_target, is_target};
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::progress::bar;

/// `put`: standard input.
pub(super) fn put(volume: &Volume, target: &Target) -> Outcome {
    let input = console::raw_stdin();
    let image = ImageIn::new(volume, &|_| {});
    let written = if input.waits() { image.stream(input) } else { image.file(&input.file()?) };
    written.map_err(|e| why(target, "standard input", &e))?;
    Ok(0)
}

/// `cp`: an image of the host, or a file or volume of a pool.
pub(super) fn copy(
    session: &mut Session,
    parsed: &Parsed,
    sources: &[OsString],
    target: &Target,
    volume: &Volume,
) -> Outcome {
    let [source] = sources else { return Err(usage("one source is expected where a volume is the destination")) };
    let (source, shown) = open(session, source)?;
    let bar = bar(source.len(), parsed.has('q'));
    let moved = |n| bar.inc(n);
    let image = ImageIn::new(volume, &moved);
    let mut is_whole = true;
    let done = image.check(source.len()).and_then(|()| match &source {
        Source::Host { file, .. } => image.file(file),
        Source::Pool(from) => image.contents(&**from, |what| {
            is_whole = false;
            bar.suspend(|| eprintln!("lost: {shown}: {what}"));
        }),
    });
    bar.finish_and_clear();
    let bytes = done.map_err(|e| why(target, &shown, &e))?;
    if !parsed.has('q') {
        eprintln!("copied {bytes} bytes of data");
    }
    if !is_whole {
        eprintln!("zuse cp: {target} is incomplete: it has zeros in place of what is lost");
        session.tell_changes();
    }
    Ok(u8::from(!is_whole))
}

/// The message for an image that is not written, or not all of it.
fn why(target: &Target, source: &str, e: &ImageError) -> Failure {
    match e {
        ImageError::Source(e) => failed(format!("{source}: {}", cause(e))),
        ImageError::Shrunk { .. } => failed(format!("{source}: {e}")),
        e => failed(format!("{target}: {e}")),
    }
}

/// The source of a volume's contents.
enum Source {
    /// A file of the host, and its length.
    Host { file: File, len: u64 },
    /// A file or volume of a pool.
    Pool(Box<dyn Contents>),
}

impl Source {
    fn len(&self) -> u64 {
        match self {
            Source::Host { len, .. } => *len,
            Source::Pool(from) => from.size(),
        }
    }
}

/// Opens a source. Returns it with its name for messages.
fn open(session: &mut Session, source: &OsString) -> Result<(Source, String), Failure> {
    if !is_target(source) {
        let path = Path::new(source);
        let shown = path.display().to_string();
        let cannot = |e: io::Error| failed(format!("{shown}: {}", cause(&e)));
        let file = File::open(console::path(path)).map_err(cannot)?;
        let meta = file.metadata().map_err(cannot)?;
        if meta.is_dir() {
            return Err(failed(format!("{shown}: a directory cannot become a volume")));
        }
        return Ok((Source::Host { file, len: meta.len() }, shown));
    }
    let target = file_target(source)?;
    let shown = target.to_string();
    match session.find(&target)? {
        TargetObject::Volume(volume) => Ok((Source::Pool(Box::new(volume)), shown)),
        TargetObject::File(node) if node.kind() == zpl::Kind::File => Ok((Source::Pool(node), shown)),
        _ => Err(failed(format!("{shown} is neither a file nor a volume"))),
    }
}
