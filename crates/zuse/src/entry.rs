//! One file as one line of JSON, with the field names of the truth in `fixtures/*/files.jsonl`.

use base64::Engine;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use zpl::{Kind, Node, Time};

use crate::salvage::{Chunk, read_past_damage};

/// Files larger than this are digested by their data segments.
const SEGMENTS_FROM: u64 = 64 << 20;

/// The optional parts of [`line()`] beyond the attributes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Options {
    /// The SHA-256 of the contents of regular files.
    pub sha256: bool,
}

/// The line of `node` at `path` (relative to the root of the file system, `.` for the root) of `dataset`.
///
/// Damage does not fail: what could not be read stands under `read_error`.
#[must_use]
pub fn line(dataset: &str, path: &[u8], node: &Node, options: Options) -> Value {
    let attrs = node.attrs();
    let mut out = Map::new();
    let mut errors = Vec::new();
    out.insert("dataset".into(), dataset.into());
    out.insert("path".into(), text(if path.is_empty() { b"." } else { path }));
    out.insert("type".into(), node.kind().letter().to_string().into());
    out.insert("mode".into(), format!("{:04o}", attrs.mode & 0o7777).into());
    out.insert("uid".into(), attrs.uid().into());
    out.insert("gid".into(), attrs.gid().into());
    out.insert("size".into(), node.size().into());
    out.insert("nlink".into(), attrs.links.into());
    out.insert("ino".into(), node.inode().into());
    for (name, at) in [("mtime", attrs.mtime), ("ctime", attrs.ctime), ("btime", attrs.crtime)] {
        out.insert(name.into(), time(at).into());
    }
    if let Some((major, minor)) = attrs.device() {
        out.insert("rdev".into(), json!([major, minor]));
    }
    match node.kind() {
        Kind::Symlink => match node.target() {
            Ok(target) => drop(out.insert("target".into(), text(&target))),
            Err(why) => errors.push(why.to_string()),
        },
        Kind::File => {
            out.insert("blocks".into(), node.blocks().into());
            if options.sha256 {
                errors.extend(contents(node, &mut out));
            }
        }
        _ => {}
    }
    match node.xattrs() {
        Ok(xattrs) if xattrs.is_empty() => {}
        Ok(mut xattrs) => {
            xattrs.sort();
            let pairs = xattrs.iter().map(|(k, v)| (String::from_utf8_lossy(k).into_owned(), base64(v).into()));
            out.insert("xattrs".into(), Value::Object(pairs.collect()));
        }
        Err(why) => errors.push(format!("extended attributes: {why}")),
    }
    let (id, xflags) = (attrs.projid.unwrap_or(0), attrs.flags.linux_xflags());
    if id != 0 || xflags != 0 {
        out.insert("projid".into(), id.into());
        out.insert("xflags".into(), xflags.into());
        out.insert("iflags".into(), attrs.flags.linux().into());
    }
    if !errors.is_empty() {
        out.insert("read_error".into(), errors.join("; ").into());
    }
    Value::Object(out)
}

/// Adds the digest of the contents; gives what could not be read.
fn contents(node: &Node, out: &mut Map<String, Value>) -> Vec<String> {
    let mut hash = Sha256::new();
    let mut errors = Vec::new();
    let by_segment = node.size() > SEGMENTS_FROM;
    if by_segment {
        match node.data_segments().collect::<Result<Vec<_>, _>>() {
            Err(why) => errors.push(why.to_string()),
            Ok(segments) => {
                out.insert("segments".into(), segments.iter().map(|s| json!([s.start, s.end])).collect());
                for segment in segments {
                    hash.update(segment.start.to_le_bytes());
                    hash.update(segment.end.to_le_bytes());
                    digest_range(node, segment.start, segment.end, &mut hash, &mut errors);
                }
            }
        }
    } else {
        let mut at = 0;
        let result = read_past_damage(node, &mut |chunk| {
            match chunk {
                Chunk::Data { offset, bytes } => {
                    zeros(&mut hash, offset - at);
                    hash.update(bytes);
                    at = offset + bytes.len() as u64;
                }
                Chunk::Lost { range, why } => errors.push(format!("bytes {}-{}: {why}", range.start, range.end - 1)),
            }
            Ok(())
        });
        errors.extend(result.err().map(|e| e.to_string()));
        zeros(&mut hash, node.size() - at);
    }
    if errors.is_empty() {
        let name = if by_segment { "sha256_segments" } else { "sha256" };
        out.insert(name.into(), hash.finalize().iter().map(|b| format!("{b:02x}")).collect::<String>().into());
    }
    errors
}

fn digest_range(node: &Node, start: u64, end: u64, hash: &mut Sha256, errors: &mut Vec<String>) {
    let mut buf = vec![0; 1 << 20];
    let mut at = start;
    while at < end {
        let len = (end - at).min(buf.len() as u64) as usize;
        match node.read(at, buf.get_mut(..len).unwrap_or_default()) {
            Ok(n) if n > 0 => {
                hash.update(buf.get(..n).unwrap_or(&[]));
                at += n as u64;
            }
            Ok(_) => return,
            Err(why) => return errors.push(why.to_string()),
        }
    }
}

fn zeros(hash: &mut Sha256, mut n: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while n > 0 {
        let len = n.min(ZEROS.len() as u64);
        hash.update(&ZEROS[..len as usize]);
        n -= len;
    }
}

/// Text as a string; what is no UTF-8 as `{"b64": …}`.
#[must_use]
pub fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "b64": base64(bytes) }),
    }
}

/// The seconds and nanoseconds as stored, before 1970 too.
#[must_use]
pub fn time(t: Time) -> String {
    format!("{}.{:09}", t.sec, t.nsec)
}

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
