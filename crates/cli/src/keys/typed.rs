//! Keys that are loaded from where the user says: a file, or typed.

use codec::crypt::WrappingKey;
use pool::KeyFormat;
use site::Query;
use site::keys::{Root, Secret, no_core_dumps, of_file, read_key};

use super::prompt;
use crate::console;
use crate::error::{Failure, failed};

/// How often a key may be mistyped.
const ATTEMPTS: u32 = 3;

/// Loads the key of encryption root `root`, from `location` or where its property says. Interactive if that is `prompt`.
pub(crate) fn load(query: &Query, root: &str, location: Option<&str>) -> Result<WrappingKey, Failure> {
    with_material(query, root, location, |root, bytes| root.load(bytes))
}

/// As [`load`], but only checks the key.
pub(crate) fn check(query: &Query, root: &str, location: Option<&str>) -> Result<WrappingKey, Failure> {
    with_material(query, root, location, |root, bytes| root.check(bytes))
}

fn with_material(
    query: &Query,
    root: &str,
    location: Option<&str>,
    take: impl Fn(&Root<'_>, &Secret) -> Result<WrappingKey, String>,
) -> Result<WrappingKey, Failure> {
    let key_error = |why: String| failed(format!("Key load error: {why}"));
    let wanted = Root::find(query, root).map_err(key_error)?;
    let location = location.unwrap_or(&wanted.location);
    let interactive = location == "prompt" && console::stdin_is_terminal();
    let mut attempt = 0;
    loop {
        attempt += 1;
        match material(root, location, wanted.format).and_then(|bytes| take(&wanted, &bytes)) {
            Ok(key) => return Ok(key),
            Err(why) if interactive && attempt < ATTEMPTS && wanted.format != KeyFormat::Raw => {
                eprintln!("Key load error: {why}");
            }
            Err(why) => return Err(key_error(why)),
        }
    }
}

/// The bytes at a location.
pub(super) fn material(root: &str, location: &str, format: KeyFormat) -> Result<Secret, String> {
    if location != "prompt" {
        return of_file(console::location(location), format);
    }
    no_core_dumps();
    if !console::stdin_is_terminal() {
        return read_key(console::raw_stdin(), format);
    }
    if format == KeyFormat::Raw {
        return Err("Cannot enter raw keys on the terminal".to_owned());
    }
    let what = if format == KeyFormat::Hex { "hex key" } else { "passphrase" };
    prompt::ask(&format!("Enter {what} for '{root}':"), format)
}
