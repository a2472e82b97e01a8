//! Volumes that `zuse put` and `cp` write: an image from its first byte on. The volume past the end of the image stays
//! as it is. Holes of a file or volume become holes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zpl::live::Volume;
use zuse::host::Rest;
use zuse::{Chunk, Contents, Target, read_past_damage};

use super::session::Session;
use super::session::{Found, file_target, is_target};
use crate::args::Parsed;
use crate::error::{Failure, Outcome, failed, usage};
use crate::progress::bar;

/// Bytes that are moved at a time: whole blocks of any volume.
const PIECE: usize = 4 << 20;

/// Writes what `read` returns for each offset of `range`, until it returns nothing; `told` is called for each piece.
/// Returns the offset at which it ended.
fn fill(
    volume: &Volume,
    target: &Target,
    range: Range<u64>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, Failure>,
    mut told: impl FnMut(u64),
) -> Result<u64, Failure> {
    let (mut at, mut buf) = (range.start, vec![0; PIECE]);
    loop {
        let want = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(PIECE);
        let mut len = 0;
        while let Some(rest) = buf.get_mut(len..want).filter(|rest| !rest.is_empty()) {
            match read(at + len as u64, rest)? {
                0 => break,
                n => len += n.min(rest.len()),
            }
        }
        let data = buf.get(..len).unwrap_or_default();
        if data.is_empty() {
            return Ok(at);
        }
        check_fits(volume, target, at + len as u64)?;
        volume.write(at, data).map_err(|e| failed(format!("{target}: {e}")))?;
        at += len as u64;
        told(len as u64);
    }
}

/// Makes a hole where the source has one.
fn clear(volume: &Volume, target: &Target, hole: Range<u64>) -> Result<(), Failure> {
    if hole.is_empty() {
        return Ok(());
    }
    volume.discard(hole.start, hole.end - hole.start).map_err(|e| failed(format!("{target}: {e}")))
}

fn check_fits(volume: &Volume, target: &Target, len: u64) -> Result<(), Failure> {
    match volume.size() {
        size if len > size => Err(failed(format!("{target}: the volume has {size} bytes, which is too few"))),
        _ => Ok(()),
    }
}

/// `put`: standard input.
pub(super) fn put(volume: &Volume, target: &Target) -> Outcome {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    if let Some(rest) = Rest::of(&input) {
        check_fits(volume, target, rest.len)?;
        copy_host(volume, target, (&input, "standard input"), &rest, |_| {})?;
        return Ok(0);
    }
    let mut stdin = io::stdin().lock();
    let mut read = |buf: &mut [u8]| loop {
        match stdin.read(buf) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            done => return done.map_err(|e| failed(format!("standard input: {e}"))),
        }
    };
    fill(volume, target, 0..u64::MAX, |_, buf| read(buf), |_| {})?;
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
    let source = open(session, source)?;
    let len = source.len();
    check_fits(volume, target, len)?;
    let bar = bar(len, parsed.has('q'));
    let told = |n| bar.inc(n);
    let mut is_whole = true;
    let done = match source {
        Source::Host { file, shown, .. } => match Rest::of(&file) {
            Some(rest) => copy_host(volume, target, (&file, &shown), &rest, told),
            // a device reports no length: its end is found by reading
            None => fill(volume, target, 0..u64::MAX, read_host(&file, &shown, 0), told),
        },
        Source::Pool { from, shown } => {
            let lost = |what: &str| {
                is_whole = false;
                bar.suspend(|| eprintln!("lost: {shown}: {what}"));
            };
            copy_contents(volume, target, &*from, told, lost)
        }
    };
    bar.finish_and_clear();
    let bytes = done?;
    if !parsed.has('q') {
        eprintln!("copied {bytes} bytes of data");
    }
    if !is_whole {
        eprintln!("zuse cp: {target} is incomplete: it has zeros in place of what is lost");
        session.tell_changes();
    }
    Ok(u8::from(!is_whole))
}

/// The source of a volume's contents.
enum Source {
    /// A file of the host.
    Host { file: File, shown: String, len: u64 },
    /// A file or volume of a pool.
    Pool { from: Box<dyn Contents>, shown: String },
}

impl Source {
    fn len(&self) -> u64 {
        match self {
            Source::Host { len, .. } => *len,
            Source::Pool { from, .. } => from.size(),
        }
    }
}

fn open(session: &mut Session, source: &OsString) -> Result<Source, Failure> {
    if !is_target(source) {
        let path = Path::new(source);
        let shown = path.display().to_string();
        let cannot = |e: io::Error| failed(format!("{shown}: {}", crate::error::cause(&e)));
        let file = File::open(path).map_err(cannot)?;
        let meta = file.metadata().map_err(cannot)?;
        if meta.is_dir() {
            return Err(failed(format!("{shown}: a directory cannot become a volume")));
        }
        return Ok(Source::Host { file, shown, len: meta.len() });
    }
    let target = file_target(source)?;
    let shown = target.to_string();
    match session.find(&target)? {
        Found::Volume(volume) => Ok(Source::Pool { from: Box::new(volume), shown }),
        Found::File(node) if node.kind() == zpl::Kind::File => Ok(Source::Pool { from: node, shown }),
        _ => Err(failed(format!("{shown} is neither a file nor a volume"))),
    }
}

/// Copies a file of the host; returns the number of bytes that are not in holes.
fn copy_host(
    volume: &Volume,
    target: &Target,
    (file, shown): (&File, &str),
    rest: &Rest,
    told: impl Fn(u64),
) -> Result<u64, Failure> {
    let (mut at, mut bytes) = (0, 0);
    for &(start, end) in &rest.data {
        clear(volume, target, at..start)?;
        at = fill(volume, target, start..end, read_host(file, shown, rest.start), &told)?;
        bytes += at - start;
        if at < end {
            return Err(failed(format!(
                "{shown}: it has become shorter while it was read: no data at byte {}",
                rest.start + at
            )));
        }
    }
    clear(volume, target, at..rest.len)?;
    Ok(bytes)
}

/// Reads a file of the host, starting at byte `start`.
fn read_host(file: &File, shown: &str, start: u64) -> impl Fn(u64, &mut [u8]) -> Result<usize, Failure> {
    move |at, buf| loop {
        match file.read_at(buf, start + at) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => return read.map_err(|e| failed(format!("{shown}: {}", crate::error::cause(&e)))),
        }
    }
}

/// Copies a file or volume of a pool; what is lost becomes a hole, and is told to `lost`. Returns the number of bytes that are not in holes.
fn copy_contents(
    volume: &Volume,
    target: &Target,
    from: &dyn Contents,
    told: impl Fn(u64),
    mut lost: impl FnMut(&str),
) -> Result<u64, Failure> {
    let (mut at, mut bytes) = (0, 0);
    let mut failure = None;
    let copied = read_past_damage(from, &mut |chunk| {
        let (offset, data) = match chunk {
            Chunk::Data { offset, bytes } => (offset, bytes),
            Chunk::Lost { range, why } => {
                lost(&format!("bytes {}-{}: {why}", range.start, range.end - 1));
                return Ok(());
            }
        };
        let written = clear(volume, target, at..offset)
            .and_then(|()| volume.write(offset, data).map_err(|e| failed(format!("{target}: {e}"))));
        at = offset + data.len() as u64;
        bytes += data.len() as u64;
        told(data.len() as u64);
        written.map_err(|e| {
            failure = Some(e);
            io::Error::other("the copy ends")
        })
    });
    match failure {
        Some(failure) => Err(failure),
        None => copied.map_err(|e| failed(e.to_string())),
    }?;
    clear(volume, target, at..from.size())?;
    Ok(bytes)
}
