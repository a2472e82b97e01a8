//! Keys of encrypted datasets: where they come from. The pool decides what they unlock.
//!
//! A key location is `prompt` or a URI. For a key in a file the location is remembered, and each process reads the file
//! again; a typed key is kept by the [`agent`](crate::agent). To ask for keys is the front end's matter. Key material
//! is wiped once it has been used, and a process that has seen a key leaves no core dump.

mod kept;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use codec::crypt::{WrappingKey, Zeroizing};
use control::{Failed, Ioc};
use nvlist::{NvList, Value};
use pool::KeyFormat;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use kept::{forget, keep, load_kept, loaded, settle, unload, unloaded};

use crate::Query;

/// Limit on the bytes read from a key file: longer than any key.
const KEY_MAX: usize = 4096;

/// The key in a request, in the part that is never written to the history.
const HIDDEN: &str = "hidden_args";
const WKEYDATA: &str = "wkeydata";

/// The material a key is made of.
pub type Secret = Zeroizing<Vec<u8>>;

/// An encryption root whose key is to be loaded.
#[derive(Debug)]
pub struct Root<'a> {
    query: &'a Query,
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
    pub fn find(query: &'a Query, name: &'a str) -> Result<Root<'a>, String> {
        let mut input = NvList::new();
        let props = ["keyformat", "keylocation", "pbkdf2salt", "pbkdf2iters"];
        input.insert("props", Value::StringArray(props.iter().map(|prop| (*prop).into()).collect()));
        let props = query.call(Ioc::ObjsetStats, name, &input).map_err(|e| e.to_string())?;
        let number = |prop: &str| props.get_nvlist(prop).and_then(|prop| prop.get_u64("value")).unwrap_or(0);
        let format = KeyFormat::of_number(number("keyformat")).ok_or_else(|| format!("'{name}' is not encrypted."))?;
        let location = props.get_nvlist("keylocation").and_then(|prop| prop.get_str("value"));
        let location = location.unwrap_or_default().to_owned();
        Ok(Root { query, name, salt: number("pbkdf2salt"), iters: number("pbkdf2iters"), format, location })
    }

    /// Loads the key that is made of this material.
    ///
    /// # Errors
    /// As [`Root::find`].
    pub fn load(&self, material: &Secret) -> Result<WrappingKey, String> {
        self.try_on(material, false)
    }

    /// Checks that the key that is made of this material is the right one, whether it is loaded or not.
    ///
    /// # Errors
    /// As [`Root::find`].
    pub fn check(&self, material: &Secret) -> Result<WrappingKey, String> {
        self.try_on(material, true)
    }

    fn try_on(&self, material: &Secret, only_check: bool) -> Result<WrappingKey, String> {
        let key = wrapping_key(material, self.format, self.salt, self.iters)?;
        load(self.query, self.name, &key, only_check).map_err(|e| refused(&e, self.name))?;
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
pub fn of_file(location: impl AsRef<OsStr>, format: KeyFormat) -> Result<Secret, String> {
    no_core_dumps();
    let location = location.as_ref();
    match location.to_string_lossy().split_once("://") {
        Some(("file", _)) => {
            let opened = File::open(path_of(location).unwrap_or(Path::new("")));
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

/// Loads a key by a request, or only checks it, and wipes it out of that.
fn load(query: &Query, root: &str, key: &WrappingKey, only_check: bool) -> Result<(), Failed> {
    let (mut input, mut hidden) = (NvList::new(), NvList::new());
    if only_check {
        input.insert("noop", ());
    }
    hidden.insert(WKEYDATA, Value::Uint8Array(key.as_bytes().to_vec()));
    input.insert(HIDDEN, hidden);
    let done = query.call(Ioc::LoadKey, root, &input).map(drop);
    wipe(&mut input);
    done
}

/// Wipes the key out of a request that has one.
pub fn wipe(input: &mut NvList) {
    if let Some(Value::Uint8Array(bytes)) = input.get_nvlist_mut(HIDDEN).and_then(|hidden| hidden.remove(WKEYDATA)) {
        drop(Zeroizing::new(bytes));
    }
}

fn refused(failed: &Failed, root: &str) -> String {
    match &*failed.error {
        control::Error::Pool(pool::Error::Key { source: codec::Error::WrongKey, .. }) => {
            format!("Incorrect key provided for '{root}'.")
        }
        control::Error::Pool(pool::Error::NotEncryptionRoot { name, root }) => {
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
pub fn waits(location: impl AsRef<OsStr>) -> bool {
    let found = path_of(location.as_ref()).map(std::fs::metadata);
    found.is_some_and(|found| found.is_ok_and(|found| !found.is_file()))
}

/// The path of a location that is a file. It need not be text.
fn path_of(location: &OsStr) -> Option<&Path> {
    location.as_bytes().strip_prefix(b"file://").map(|path| Path::new(OsStr::from_bytes(path)))
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

/// Keeps the memory of the process from being swapped out, from now on, where the system sets no limit for that: keys are in it. Memory is locked as it is used. With a limit nothing is
/// locked: what it does not allow could not be allocated any more. Returns whether it is locked.
pub fn lock_memory() -> bool {
    if setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).is_err() {
        let maximum = getrlimit(Resource::Memlock).maximum;
        // it stays as it is otherwise
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
    let is_unlimited = getrlimit(Resource::Memlock).current.is_none() || may_lock_all();
    is_unlimited && mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).is_ok()
}

/// Whether the limit does not count for this process (`CAP_IPC_LOCK`).
fn may_lock_all() -> bool {
    const IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> IPC_LOCK & 1 == 1)
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
