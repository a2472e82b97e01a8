//! Keys of encrypted datasets: where they come from. The pool decides what they unlock.
//!
//! A key location is `prompt` or a URI. For a key in a file the location is remembered, and each process reads the file
//! again; a typed key is kept by the [`agent`](crate::agent). To ask for keys is the front end's matter. Key material
//! is wiped once it has been used, and a process that has seen a key leaves no core dump.

mod kept;

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use codec::crypt::{WrappingKey, Zeroizing};
use pool::{KeyFormat, Pool};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use kept::{give_up, keep, load_kept, settle};

/// Limit on the bytes read from a key file: longer than any key.
const KEY_MAX: usize = 4096;

/// The material a key is made of.
pub type Secret = Zeroizing<Vec<u8>>;

/// An encryption root whose key is to be loaded.
#[derive(Debug)]
pub struct Root<'a> {
    pool: &'a Arc<Pool>,
    name: &'a str,
    salt: u64,
    iters: u64,
    /// The form of its key.
    pub format: KeyFormat,
    /// Its property `keylocation`; empty if it has none.
    pub location: String,
}

impl<'a> Root<'a> {
    /// The encryption root of this name.
    ///
    /// # Errors
    /// The reason, in OpenZFS's words where it has some.
    pub fn find(pool: &'a Arc<Pool>, name: &'a str) -> Result<Root<'a>, String> {
        let dataset = pool.dataset(name).map_err(|e| e.to_string())?;
        let info = dataset.crypto().map_err(|e| e.to_string())?;
        let Some((info, format)) = info.and_then(|info| info.keyformat.map(|format| (info, format))) else {
            return Err(format!("'{name}' is not encrypted."));
        };
        let stored = dataset.prop("keylocation").map_err(|e| e.to_string())?.map(|p| p.value.to_string());
        let (salt, iters) = (info.pbkdf2_salt, info.pbkdf2_iters);
        Ok(Root { pool, name, salt, iters, format, location: stored.unwrap_or_default() })
    }

    /// Loads the key that is made of this material.
    ///
    /// # Errors
    /// As [`Root::find`].
    pub fn load(&self, material: &Secret) -> Result<WrappingKey, String> {
        let key = wrapping_key(material, self.format, self.salt, self.iters)?;
        self.pool.load_key(self.name, &key).map(|_| ()).map_err(|e| refused(&e, self.name))?;
        Ok(key)
    }

    /// Loads the key that is in the file at `location`.
    fn load_file(&self, location: &str) -> Result<WrappingKey, String> {
        self.load(&of_file(location, self.format)?)
    }
}

/// The material in the file that a location names.
///
/// # Errors
/// As [`Root::find`].
pub fn of_file(location: &str, format: KeyFormat) -> Result<Secret, String> {
    no_core_dumps();
    match location.split_once("://") {
        Some(("file", path)) => {
            let opened = File::open(path);
            let file = opened.map_err(|e| format!("Failed to open key material file: {}", cause(&e)))?;
            read_key(file, format)
        }
        Some((scheme @ ("http" | "https"), _)) => Err(format!("No keylocation={scheme}:// back-end.")),
        Some(_) => Err("URI scheme is not supported".to_owned()),
        None => Err("Invalid keylocation.".to_owned()),
    }
}

/// An error of the system in its words, without Rust's number behind them.
fn cause(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
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

/// The key that is made of this material.
///
/// # Errors
/// As [`Root::find`].
pub fn wrapping_key(bytes: &[u8], format: KeyFormat, salt: u64, iters: u64) -> Result<WrappingKey, String> {
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
#[must_use]
pub fn waits(location: &str) -> bool {
    let path = location.strip_prefix("file://").map(std::fs::metadata);
    path.is_some_and(|found| found.is_ok_and(|found| !found.is_file()))
}

/// Reads a key: a raw key is all of the input, any other key is one line.
///
/// # Errors
/// As [`Root::find`].
pub fn read_key(mut input: impl Read, format: KeyFormat) -> Result<Secret, String> {
    // allocated for the whole key: a buffer that grows leaves copies
    let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_MAX));
    let mut byte = Zeroizing::new([0; 1]);
    while bytes.len() < KEY_MAX {
        match input.read(byte.as_mut_slice()) {
            Ok(0) => break,
            Ok(_) if format != KeyFormat::Raw && byte[0] == b'\n' => break,
            Ok(_) => bytes.push(byte[0]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(format!("Failed to read key material: {}", cause(&e))),
        }
    }
    Ok(bytes)
}

/// Makes the process leave no core dump from now on: keys would be in it.
pub fn no_core_dumps() {
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
