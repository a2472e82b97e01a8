//! Keys of encrypted datasets that a command is given: typed (a terminal, or standard input if that is not a terminal),
//! in files, and of new datasets. [`site::keys`] finds those of earlier commands.

mod given;
mod new;
mod places;
mod prompt;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use pool::{KeyFormat, Pool};
use site::keys::{Root, Secret, no_core_dumps, of_file, read_key};

use crate::error::{Failure, failed};

pub(crate) use given::{give, load_given};
pub(crate) use new::{Material, for_new, for_new_pool, material_for, number_of};
pub(crate) use places::{keep, remember_change, remember_new};

/// How often a key may be mistyped.
const ATTEMPTS: u32 = 3;

/// Loads the key of encryption root `root`, from `location` or where its property says. Interactive if that is `prompt`.
pub(crate) fn load(pool: &Arc<Pool>, root: &str, location: Option<&str>) -> Result<WrappingKey, Failure> {
    let key_error = |why: String| failed(format!("Key load error: {why}"));
    let wanted = Root::find(pool, root).map_err(key_error)?;
    let location = location.unwrap_or(&wanted.location);
    let interactive = location == "prompt" && io::stdin().is_terminal();
    let mut attempt = 0;
    loop {
        attempt += 1;
        match material(root, location, wanted.format).and_then(|bytes| wanted.load(&bytes)) {
            Ok(key) => return Ok(key),
            Err(why) if interactive && attempt < ATTEMPTS && wanted.format != KeyFormat::Raw => {
                eprintln!("Key load error: {why}");
            }
            Err(why) => return Err(key_error(why)),
        }
    }
}

/// The bytes at a location.
fn material(root: &str, location: &str, format: KeyFormat) -> Result<Secret, String> {
    if location != "prompt" {
        return of_file(location, format);
    }
    no_core_dumps();
    if !io::stdin().is_terminal() {
        return read_key(stdin()?, format);
    }
    if format == KeyFormat::Raw {
        return Err("Cannot enter raw keys on the terminal".to_owned());
    }
    let what = if format == KeyFormat::Hex { "hex key" } else { "passphrase" };
    prompt::ask(&format!("Enter {what} for '{root}':"), format)
}

/// Standard input without a buffer: a buffer would keep the key, and the next key could not be read.
fn stdin() -> Result<File, String> {
    io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(|e| e.to_string())
}
