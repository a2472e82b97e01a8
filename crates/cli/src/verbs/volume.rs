//! Volumes that `zuse put` and `cp` write: an image from its first byte on. What is behind its end stays as it is.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zpl::live::Volume;
use zuse::Target;

use super::Session;
use super::progress::bar;
use super::session::{Found, file_target, is_target};
use crate::args::Parsed;
use crate::error::{Failure, Outcome, failed, usage};

/// Bytes that are moved at a time: whole blocks of any volume.
const PIECE: usize = 4 << 20;

/// Writes what `read` gives for each offset; `told` hears of each piece. Gives the bytes.
fn fill(
    volume: &Volume,
    target: &Target,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, Failure>,
    mut told: impl FnMut(u64),
) -> Result<u64, Failure> {
    let (mut at, mut buf) = (0, vec![0; PIECE]);
    loop {
        let mut len = 0;
        while let Some(rest) = buf.get_mut(len..).filter(|rest| !rest.is_empty()) {
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

fn check_fits(volume: &Volume, target: &Target, len: u64) -> Result<(), Failure> {
    match volume.size() {
        size if len > size => Err(failed(format!("{target}: the volume has {size} bytes, which is too few"))),
        _ => Ok(()),
    }
}

/// `put`: standard input.
pub(super) fn put(volume: &Volume, target: &Target) -> Outcome {
    let mut stdin = std::io::stdin().lock();
    let mut read = |buf: &mut [u8]| loop {
        match stdin.read(buf) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            done => return done.map_err(|e| failed(format!("standard input: {e}"))),
        }
    };
    fill(volume, target, |_, buf| read(buf), |_| {})?;
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
    let (len, read) = open(session, source)?;
    check_fits(volume, target, len)?;
    let bar = bar(len, parsed.has('q'));
    let done = fill(volume, target, read, |n| bar.inc(n));
    bar.finish_and_clear();
    let bytes = done?;
    if !parsed.has('q') {
        eprintln!("copied {bytes} bytes of data");
    }
    Ok(0)
}

type ReadAt = Box<dyn FnMut(u64, &mut [u8]) -> Result<usize, Failure>>;

/// How many bytes a source has, and how they are read.
fn open(session: &mut Session, source: &OsString) -> Result<(u64, ReadAt), Failure> {
    if !is_target(source) {
        let path = Path::new(source);
        let shown = path.display().to_string();
        let cannot = move |e: std::io::Error| failed(format!("{shown}: {}", crate::error::cause(&e)));
        let file = File::open(path).map_err(&cannot)?;
        let meta = file.metadata().map_err(&cannot)?;
        if meta.is_dir() {
            return Err(failed(format!("{}: a directory cannot become a volume", path.display())));
        }
        // a device has no length of its own here: its end is found
        return Ok((meta.len(), Box::new(move |at, buf| file.read_at(buf, at).map_err(&cannot))));
    }
    let from = file_target(source)?;
    let cannot = {
        let shown = from.to_string();
        move |e: zpl::Error| failed(format!("{shown}: {e}"))
    };
    match session.find(&from)? {
        Found::Volume(volume) => Ok((volume.size(), Box::new(move |at, buf| volume.read(at, buf).map_err(&cannot)))),
        Found::File(node) if node.kind() == zpl::Kind::File => {
            Ok((node.size(), Box::new(move |at, buf| node.read(at, buf).map_err(&cannot))))
        }
        _ => Err(failed(format!("{from} is neither a file nor a volume"))),
    }
}
