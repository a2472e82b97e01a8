//! `-O DATASET PATH` shows the object of a file, `-r` copies it out.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use base::{Errno, ObjectId};
use dmu::sa::Attr;
use dmu::{Object, Zap};
use ondisk::ObjectType;
use pool::Pool;

use super::select::Types;
use super::subject::Subject;
use super::{Cx, object, open_dataset};
use crate::console;
use crate::error::{Failure, Outcome, cause, failed};
use crate::zdb::options::{Options, number};

/// `-O` shows as much as this many further `-v`.
const MORE: u32 = 3;
/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

/// `zdb -O DATASET PATH`: the object of the file or directory. The exit status is the errno, as zdb's is.
pub(in crate::zdb) fn show(
    out: &mut dyn Write,
    options: &Options,
    pool: &Arc<Pool>,
    name: &str,
    path: &str,
) -> Outcome {
    let mut cx = Cx::new(out, options, pool);
    cx.verbosity = options.verbose + MORE;
    let (mut subject, _key) = match open_dataset(&mut cx, name) {
        Ok(opened) => opened,
        Err(errno) => return Ok(status(errno)),
    };
    match find(&subject, name, path) {
        Ok(found) => {
            object::show(&mut cx, &mut subject, &found, &mut true, Types::ALL)?;
            Ok(cx.status())
        }
        Err(errno) => Ok(status(errno)),
    }
}

/// `zdb -r DATASET PATH FILE`, or with `-O` too `DATASET OBJECT FILE`.
pub(in crate::zdb) fn copy(
    out: &mut dyn Write,
    options: &Options,
    pool: &Arc<Pool>,
    name: &str,
    [which, to]: [&str; 2],
) -> Outcome {
    let mut cx = Cx::new(out, options, pool);
    let fatal = |errno: Errno| failed(format!("zdb: internal error: {}", words(errno)));
    let (subject, _key) = open_dataset(&mut cx, name).map_err(fatal)?;
    let found = if options.has('O') {
        let id = number(which).map_or(ObjectId::NONE, ObjectId);
        subject.objset.object(id).map_err(|_| fatal(Errno::ENOENT))?
    } else {
        find(&subject, name, which).map_err(fatal)?
    };
    match write_out(&mut cx, &subject, &found, to)? {
        Ok(()) => Ok(0),
        Err(errno) => Ok(status(errno)),
    }
}

fn words(errno: Errno) -> String {
    cause(&io::Error::from(errno))
}

fn errno_of(e: dmu::Error) -> Errno {
    pool::Error::from(e).errno()
}

fn status(errno: Errno) -> u8 {
    u8::try_from(errno.raw()).unwrap_or(1)
}

/// The object at the end of a path. Errors are printed on standard error.
fn find(subject: &Subject, name: &str, path: &str) -> Result<Object, Errno> {
    let objset = &subject.objset;
    let entry = |dir: ObjectId, name: &str| -> Result<u64, Errno> {
        let found = objset.object(dir).and_then(Zap::open).and_then(|zap| zap.lookup_u64(name));
        found.map_err(errno_of)?.ok_or(Errno::ENOENT)
    };
    let mut dir = entry(ObjectId::MASTER_NODE, "ROOT").map(ObjectId).map_err(|errno| {
        eprintln!("can't lookup root znode: {}", words(errno));
        Errno::EINVAL
    })?;
    let mut seen = format!("dataset={name} path=/");
    let mut rest = path;
    loop {
        let (part, behind) = rest.split_once('/').unwrap_or((rest, ""));
        seen += part;
        let found = entry(dir, part).inspect_err(|errno| eprintln!("failed to lookup {seen}: {}", words(*errno)));
        let id = ObjectId::of_entry(found?);
        let found = objset.object(id).map_err(|e| {
            eprintln!("failed to get SA dbuf for obj {id}: {}", words(errno_of(e)));
            Errno::EINVAL
        })?;
        let (kind, bonus) = (found.phys().object_type, found.phys().bonus_type);
        if bonus != ObjectType::SA && bonus != ObjectType::ZNODE {
            eprintln!("invalid bonus type {} for obj {id}", bonus.0);
            return Err(Errno::EINVAL);
        }
        seen += "/";
        match kind {
            ObjectType::DIRECTORY_CONTENTS if !behind.is_empty() => (dir, rest) = (id, behind),
            ObjectType::DIRECTORY_CONTENTS | ObjectType::PLAIN_FILE_CONTENTS => return Ok(found),
            other => {
                eprintln!("object {dir} has non-file/directory type {}", other.0);
                return Err(Errno::EINVAL);
            }
        }
    }
}

/// Copies the contents of a file; returns the errno if it cannot be read or written.
fn write_out(cx: &mut Cx<'_>, subject: &Subject, object: &Object, to: &str) -> Result<Result<(), Errno>, Failure> {
    let id = object.id();
    writeln!(cx.out, "Copying object {id} to file {to}")?;
    let attrs = subject.fs.as_ref().map(|fs| fs.sa().attrs(object));
    let Some(Ok(attrs)) = attrs else {
        writeln!(cx.out, "Failed to get handle for SA znode")?;
        return Ok(Err(if subject.locked { Errno::EACCES } else { Errno::EINVAL }));
    };
    let Some(size) = attrs.u64(Attr::Size) else { return Ok(Err(Errno::ENOENT)) };
    writeln!(cx.out, "Object {id} is {size} bytes")?;
    if size == 0 {
        return Ok(Err(Errno::EINVAL));
    }
    let errno = |e: &io::Error| Errno::of_io(e, Errno::EIO);
    let mut file = match File::create(console::path(to)) {
        Ok(file) => file,
        Err(e) => return Ok(Err(errno(&e))),
    };
    let mut buffer = vec![0; size.min(PIECE) as usize];
    let mut offset = 0;
    while offset < size {
        let len = (size - offset).min(PIECE);
        let piece = buffer.get_mut(..len as usize).unwrap_or_default();
        if let Err(e) = object.read(offset, piece) {
            let errno = errno_of(e);
            writeln!(cx.out, "got error {errno} from dmu_read")?;
            return Ok(Err(errno));
        }
        if cx.options.verbose > 3 {
            writeln!(cx.out, "Read offset={offset} size={len} error=0")?;
        }
        if let Err(e) = file.write_all(piece) {
            return Ok(Err(errno(&e)));
        }
        offset += len;
    }
    Ok(Ok(()))
}
