//! Keys of encrypted datasets: where they come from. The pool decides what they unlock.
//!
//! A key location is `prompt` (a terminal, or standard input if that is not a terminal) or a URI. For a key in a file
//! the location is remembered, and each command reads the file again; a typed key is kept by the
//! [`agent`](crate::agent). Key material is wiped once it has been used, and a process that has seen a key leaves no
//! core dump.

mod kept;
mod new;
mod places;
mod prompt;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::sync::Arc;

use codec::crypt::{WrappingKey, Zeroizing};
use pool::{KeyFormat, Pool};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Failure, failed};

pub(crate) use kept::{give, give_up, keep, load_kept, settle};
pub(crate) use new::{Material, for_new, for_new_pool, material_for, number_of};
pub(crate) use places::{remember_change, remember_new};

/// Limit on the bytes read from a key file: longer than any key.
const KEY_MAX: usize = 4096;
/// How often a key may be mistyped.
const ATTEMPTS: u32 = 3;

/// The material a key is made of.
type Secret = Zeroizing<Vec<u8>>;

/// Loads the key of encryption root `root`, from `location` or where its property says. Interactive if that is `prompt`.
pub(crate) fn load(pool: &Arc<Pool>, root: &str, location: Option<&str>) -> Result<WrappingKey, Failure> {
    let key_error = |why: String| failed(format!("Key load error: {why}"));
    let dataset = pool.dataset(root).map_err(|e| failed(e.to_string()))?;
    let info = dataset.crypto().map_err(|e| key_error(e.to_string()))?;
    let Some((info, format)) = info.and_then(|info| info.keyformat.map(|format| (info, format))) else {
        return Err(key_error(format!("'{root}' is not encrypted.")));
    };
    let stored = dataset.prop("keylocation").map_err(|e| key_error(e.to_string()))?.map(|p| p.value.to_string());
    let location = location.map(str::to_owned).or(stored).unwrap_or_default();

    let interactive = location == "prompt" && io::stdin().is_terminal();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let tried = material(root, &location, format)
            .and_then(|bytes| wrapping_key(&bytes, format, info.pbkdf2_salt, info.pbkdf2_iters))
            .and_then(|key| pool.load_key(root, &key).map(|_| key).map_err(|e| refused(&e, root)));
        match tried {
            Ok(key) => return Ok(key),
            Err(why) if interactive && attempt < ATTEMPTS && format != KeyFormat::Raw => {
                eprintln!("Key load error: {why}");
            }
            Err(why) => return Err(key_error(why)),
        }
    }
}

fn refused(e: &pool::Error, root: &str) -> String {
    match e {
        pool::Error::Key { source: codec::Error::WrongKey, .. } => {
            format!("Incorrect key provided for '{root}'.")
        }
        pool::Error::NotEncryptionRoot { name, root } => {
            format!("Keys must be loaded for encryption root of '{name}' ({root}).")
        }
        other => other.to_string(),
    }
}

fn wrapping_key(bytes: &[u8], format: KeyFormat, salt: u64, iters: u64) -> Result<WrappingKey, String> {
    let wrong = |e: codec::Error| e.to_string();
    let expect = |what: &str, len: usize| match bytes.len() {
        n if n < len => Err(format!("{what} key too short (expected {len}).")),
        n if n > len => Err(format!("{what} key too long (expected {len}).")),
        _ => Ok(()),
    };
    match format {
        KeyFormat::Raw => {
            expect("Raw", 32)?;
            WrappingKey::from_raw(bytes).map_err(wrong)
        }
        KeyFormat::Hex => {
            expect("Hex", 64)?;
            let text = std::str::from_utf8(bytes).unwrap_or("");
            WrappingKey::from_hex(text).map_err(|_| "Invalid hex character detected.".to_owned())
        }
        KeyFormat::Passphrase => WrappingKey::from_passphrase(bytes, salt, iters).map_err(wrong),
    }
}

/// Returns whether a key location exists and is not a regular file: a pipe, a terminal, or a device, from which a read
/// may block for ever. Such a location is opened only for a caller that asked for it.
pub(crate) fn waits(location: &str) -> bool {
    let path = location.strip_prefix("file://").map(std::fs::metadata);
    path.is_some_and(|found| found.is_ok_and(|found| !found.is_file()))
}

/// The bytes at a location.
fn material(root: &str, location: &str, format: KeyFormat) -> Result<Secret, String> {
    no_core_dumps();
    if location == "prompt" {
        if !io::stdin().is_terminal() {
            return read_key(stdin()?, format);
        }
        if format == KeyFormat::Raw {
            return Err("Cannot enter raw keys on the terminal".to_owned());
        }
        let what = if format == KeyFormat::Hex { "hex key" } else { "passphrase" };
        return prompt::ask(&format!("Enter {what} for '{root}':"), format);
    }
    match location.split_once("://") {
        Some(("file", path)) => {
            let opened = File::open(path);
            let file = opened.map_err(|e| format!("Failed to open key material file: {}", crate::error::cause(&e)))?;
            read_key(file, format)
        }
        Some((scheme @ ("http" | "https"), _)) => Err(format!("No keylocation={scheme}:// back-end.")),
        Some(_) => Err("URI scheme is not supported".to_owned()),
        None => Err("Invalid keylocation.".to_owned()),
    }
}

/// Standard input without a buffer: a buffer would keep the key, and the next key could not be read.
fn stdin() -> Result<File, String> {
    io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(|e| e.to_string())
}

/// Reads a key: a raw key is all of the input, any other key is one line.
fn read_key(mut input: impl Read, format: KeyFormat) -> Result<Secret, String> {
    // allocated for the whole key: a buffer that grows leaves copies
    let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_MAX));
    let mut byte = Zeroizing::new([0; 1]);
    while bytes.len() < KEY_MAX {
        match input.read(byte.as_mut_slice()) {
            Ok(0) => break,
            Ok(_) if format != KeyFormat::Raw && byte[0] == b'\n' => break,
            Ok(_) => bytes.push(byte[0]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(format!("Failed to read key material: {}", crate::error::cause(&e))),
        }
    }
    Ok(bytes)
}

/// Makes the process leave no core dump from now on: keys would be in it.
pub(crate) fn no_core_dumps() {
    // less than any dump needs; and 1, unlike 0, is respected where dumps are piped to a program
    let maximum = getrlimit(Resource::Core).maximum;
    let none = Some(maximum.map_or(1, |maximum| maximum.min(1)));
    // a process that may not lower the limit has it this low already
    let _ = setrlimit(Resource::Core, Rlimit { current: none, maximum: none });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_line_and_what_follows_is_left() {
        let mut input = io::Cursor::new(b"first\nsecond\n\nlast".to_vec());
        for want in ["first", "second", "", "last", ""] {
            assert_eq!(read_key(&mut input, KeyFormat::Passphrase).unwrap().as_slice(), want.as_bytes());
        }
        assert_eq!(read_key(&b"a\nb"[..], KeyFormat::Raw).unwrap().as_slice(), b"a\nb");
        assert_eq!(read_key(io::repeat(7), KeyFormat::Hex).unwrap().len(), KEY_MAX);
    }
}
