//! Keys of encrypted datasets: where they come from. What is done with them is the pool's matter.
//!
//! A key location is `prompt` (a terminal, or standard input if that is none) or a URI. There is no daemon that keeps keys: a
//! key lives as long as the command, and only the location of a file is remembered.

mod new;
mod places;

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::sync::Arc;

use codec::crypt::WrappingKey;
use pool::{KeyFormat, Pool};
use rustix::termios::{self, LocalModes, OptionalActions};

use crate::error::{Failure, failed};

pub(crate) use new::{Material, for_new, for_new_pool, material_for, number_of};
pub(crate) use places::{RootKey, follow, remember_change, remember_new};

/// Longer than any key: what a file may make us read.
const KEY_MAX: u64 = 4096;
/// How often a key may be mistyped.
const ATTEMPTS: u32 = 3;

/// Loads the key of encryption root `root`, from `location` or where its property says. Interactive if that is `prompt`.
pub(crate) fn load(pool: &Arc<Pool>, root: &str, location: Option<&str>) -> Result<(), Failure> {
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
            .and_then(|key| pool.load_key(root, &key).map_err(|e| refused(&e, root)));
        match tried {
            Ok(_) => return Ok(()),
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

/// The bytes at a location.
fn material(root: &str, location: &str, format: KeyFormat) -> Result<Vec<u8>, String> {
    if location == "prompt" {
        if !io::stdin().is_terminal() {
            return read_key(io::stdin().lock(), format);
        }
        if format == KeyFormat::Raw {
            return Err("Cannot enter raw keys on the terminal".to_owned());
        }
        let what = if format == KeyFormat::Hex { "hex key" } else { "passphrase" };
        return ask(&format!("Enter {what} for '{root}':"), format);
    }
    match location.split_once("://") {
        Some(("file", path)) => {
            let opened = File::open(path);
            let file = opened.map_err(|e| format!("Failed to open key material file: {}", crate::error::cause(&e)))?;
            read_key(BufReader::new(file), format)
        }
        Some((scheme @ ("http" | "https"), _)) => Err(format!("No keylocation={scheme}:// back-end.")),
        Some(_) => Err("URI scheme is not supported".to_owned()),
        None => Err("Invalid keylocation.".to_owned()),
    }
}

/// A raw key is all there is; any other one is a line.
fn read_key(input: impl BufRead, format: KeyFormat) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut input = input.take(KEY_MAX);
    let read =
        if format == KeyFormat::Raw { input.read_to_end(&mut bytes) } else { input.read_until(b'\n', &mut bytes) };
    read.map_err(|e| format!("Failed to read key material: {}", crate::error::cause(&e)))?;
    if format != KeyFormat::Raw && bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(bytes)
}

/// Asks on the terminal, without an echo.
fn ask(prompt: &str, format: KeyFormat) -> Result<Vec<u8>, String> {
    print!("{prompt}");
    drop(io::stdout().flush());
    let stdin = io::stdin();
    let old = termios::tcgetattr(&stdin).map_err(|e| e.to_string())?;
    let mut quiet = old.clone();
    quiet.local_modes -= LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ECHOK | LocalModes::ECHONL;
    termios::tcsetattr(&stdin, OptionalActions::Flush, &quiet).map_err(|e| e.to_string())?;
    let key = read_key(stdin.lock(), format);
    let _ = termios::tcsetattr(&stdin, OptionalActions::Flush, &old);
    println!();
    key
}
