//! `zuse cat`.

use std::io::{self, Write};

use zpl::{Follow, Kind, Node};
use zuse::{Chunk, Contents, TargetObject, read_past_damage};

use super::session::{Session, targets};
use crate::args::Parsed;
use crate::console;
use crate::error::{Failure, Outcome};

pub(super) fn run(parsed: &Parsed) -> Outcome {
    let mut session = Session::new(parsed)?;
    let mut out = console::stdout();
    let mut status = 0;
    for target in targets(parsed)? {
        let trouble = match session.find_as(&target, Follow::Always) {
            Ok(TargetObject::File(node)) => file(&node, &mut out)?.map(|why| format!("{target}: {why}")),
            Ok(TargetObject::Volume(volume)) => contents(&volume, &mut out)?.map(|why| format!("{target}: {why}")),
            Ok(TargetObject::Control(_)) => Some(format!("{target}: is a directory")),
            Err(Failure::Failed(message)) => Some(message),
            Err(other) => return Err(other),
        };
        if let Some(message) = trouble {
            eprintln!("zuse cat: {message}");
            status = 1;
        }
    }
    out.flush()?;
    if status != 0 {
        session.tell_changes();
    }
    Ok(status)
}

/// Writes a file up to its first damage, which it returns: half a file should not look like a whole one.
fn file(node: &Node, out: &mut dyn Write) -> io::Result<Option<String>> {
    if node.kind() == Kind::Directory {
        return Ok(Some("is a directory".to_owned()));
    }
    if let Err(why) = node.reader() {
        return Ok(Some(why.to_string()));
    }
    contents(node, out)
}

/// As [`file()`], once it is known that the node has data.
fn contents(from: &dyn Contents, out: &mut dyn Write) -> io::Result<Option<String>> {
    let mut at = 0;
    let mut damage = None;
    read_past_damage(from, &mut |chunk| {
        match chunk {
            _ if damage.is_some() => {}
            Chunk::Data { offset, bytes } => {
                zeros(out, offset - at)?;
                out.write_all(bytes)?;
                at = offset + bytes.len() as u64;
            }
            Chunk::Lost { range, why } => damage = Some(format!("bytes {}-{}: {why}", range.start, range.end - 1)),
        }
        Ok(())
    })?;
    if damage.is_none() {
        zeros(out, from.size() - at)?;
    }
    Ok(damage)
}

fn zeros(out: &mut dyn Write, mut n: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while n > 0 {
        let len = n.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..len as usize])?;
        n -= len;
    }
    Ok(())
}
