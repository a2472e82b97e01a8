//! Describes a file in the format of `files.jsonl`.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use zpl::{Error, Kind, Node, Time};

/// Contents above this size are hashed by segments of data.
const BIG: u64 = 64 << 20;

/// Describes `node`; `truth` determines which digest is needed. Also returns the bytes read.
pub(crate) fn describe(node: &Node, truth: &Value, content: bool) -> Result<(Value, u64), Error> {
    let a = node.attrs();
    let mut out = json!({
        "type": node.kind().letter().to_string(),
        "mode": format!("{:04o}", a.mode & 0o7777),
        "uid": a.uid(),
        "gid": a.gid(),
        "size": a.size,
        "nlink": a.links,
        "ino": node.inode(),
        "mtime": time(a.mtime),
        "ctime": time(a.ctime),
        "btime": time(a.crtime),
    });
    let mut bytes = 0;
    let fields = out.as_object_mut().unwrap();
    match node.kind() {
        Kind::File => {
            fields.insert("blocks".into(), node.blocks().into());
            if content {
                bytes = digest(node, fields)?;
            }
        }
        Kind::Symlink => {
            fields.insert("target".into(), text(&node.target()?));
        }
        Kind::CharDevice | Kind::BlockDevice => {
            let (major, minor) = a.device().unwrap();
            fields.insert("rdev".into(), json!([major, minor]));
        }
        _ => {}
    }
    let xattrs = node.xattrs()?;
    if !xattrs.is_empty() {
        let named =
            xattrs.iter().map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), base64(value).into()));
        fields.insert("xattrs".into(), Value::Object(named.collect()));
    }
    // the list has flags and project only if one of them is set
    if truth.get("iflags").is_some() || a.linux_flags() != 0 || a.projid.unwrap_or(0) != 0 {
        fields.insert("iflags".into(), a.linux_flags().into());
        fields.insert("xflags".into(), a.flags.linux_xflags().into());
        fields.insert("projid".into(), a.projid.unwrap_or(0).into());
    }
    // every ACL can be read, and grants only what the kernel's checks need
    node.acl()?;
    node.posix_acl()?;
    node.posix_default_acl()?;
    Ok((out, bytes))
}

fn digest(node: &Node, fields: &mut Map<String, Value>) -> Result<u64, Error> {
    let mut sum = Sha256::new();
    let mut bytes = 0;
    if node.size() <= BIG {
        let mut reader = node.reader()?;
        while let Some(piece) = reader.next_piece()? {
            match piece.data() {
                Some(data) => sum.update(data),
                None => (0..piece.len.div_ceil(4096))
                    .for_each(|n| sum.update(&[0; 4096][..(piece.len - n * 4096).min(4096) as usize])),
            }
            bytes += piece.len;
        }
        assert_eq!(bytes, node.size());
        fields.insert("sha256".into(), hex(&sum.finalize()).into());
        return Ok(bytes);
    }
    let mut segments = Vec::new();
    for segment in node.data_segments() {
        let segment = segment?;
        segments.push(json!([segment.start, segment.end]));
        sum.update(segment.start.to_le_bytes());
        sum.update(segment.end.to_le_bytes());
        let mut reader = node.reader_range(segment.clone())?;
        while let Some(piece) = reader.next_piece()? {
            sum.update(piece.data().expect("no hole in a segment of data"));
            bytes += piece.len;
        }
    }
    fields.insert("segments".into(), segments.into());
    fields.insert("sha256_segments".into(), hex(&sum.finalize()).into());
    Ok(bytes)
}

/// Returns the fields that differ.
pub(crate) fn differing(ours: &Value, truth: &Value, content: bool, unmounted: bool) -> String {
    let (ours, truth) = (ours.as_object().unwrap(), truth.as_object().unwrap());
    let mut keys: Vec<_> = ours.keys().chain(truth.keys()).filter(|k| *k != "dataset" && *k != "path").collect();
    keys.sort();
    keys.dedup();
    if !content {
        keys.retain(|k| !matches!(k.as_str(), "sha256" | "read_error" | "sha256_segments" | "segments"));
    }
    if unmounted {
        keys.retain(|k| matches!(k.as_str(), "ino" | "type" | "uid" | "gid"));
    }
    let show = |v: Option<&Value>| v.map_or("nothing".to_owned(), |v| v.to_string().chars().take(120).collect());
    let unequal = keys.into_iter().filter(|k| ours.get(*k) != truth.get(*k));
    unequal.map(|k| format!("{k}: {} for {}; ", show(ours.get(k)), show(truth.get(k)))).collect()
}

/// Decodes a path of the list.
pub(crate) fn path_of(value: &Value) -> Vec<u8> {
    match value {
        Value::String(path) => path.clone().into_bytes(),
        other => unbase64(other["b64"].as_str().unwrap()),
    }
}

/// Encodes a string as the list does.
fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "b64": base64(bytes) }),
    }
}

fn time(t: Time) -> String {
    format!("{}.{:09}", t.sec, t.nsec)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().enumerate().fold(0u32, |w, (n, b)| w | u32::from(*b) << (16 - 8 * n));
        for n in 0..4 {
            let letter = ALPHABET[(word >> (18 - 6 * n) & 63) as usize];
            out.push(if n <= chunk.len() { letter.into() } else { '=' });
        }
    }
    out
}

fn unbase64(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let value = |b: &u8| ALPHABET.iter().position(|c| c == b).unwrap() as u32;
        let word = chunk.iter().enumerate().fold(0u32, |w, (n, b)| w | value(b) << (18 - 6 * n));
        out.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    out
}
