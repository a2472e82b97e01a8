//! Keys of new encryption roots (OpenZFS: `zfs_crypto_create`, `populate_create_encryption_params_nvlists`).

use base::Env;
use codec::crypt::WrappingKey;
use nvlist::{NvList, Value};
use pool::KeyFormat;

use site::keys::{Secret, no_core_dumps, wrapping_key};

use super::prompt::ask;
use super::typed::material;
use crate::console;
use crate::{answers, pools};

/// Property `encryption`: off.
const CRYPT_OFF: u64 = 2;
/// Rounds of PBKDF2 by default (OpenZFS: `DEFAULT_PBKDF2_ITERATIONS`).
const PBKDF2_ITERS: u64 = 350_000;
/// Lengths of a passphrase.
const PASSPHRASE: std::ops::RangeInclusive<usize> = 8..=512;

/// A key as a request takes it: 32 bytes.
#[derive(Debug)]
pub(crate) struct Material(WrappingKey);

impl Material {
    /// The key itself.
    pub(super) fn wrapping_key(&self) -> &WrappingKey {
        &self.0
    }

    /// The key as a request takes it: in the part that is never written to the history.
    pub(crate) fn hidden(&self) -> NvList {
        let mut hidden = NvList::new();
        hidden.insert("wkeydata", Value::Uint8Array(self.0.as_bytes().to_vec()));
        hidden
    }
}

/// The key of a new dataset, if it is to have one of its own. What follows from its properties is added to them.
pub(crate) fn for_new(name: &str, props: &mut NvList) -> Result<Option<Material>, String> {
    let missing = "Failed to lookup parent.";
    let source = pools::of_dataset(name).ok().flatten().ok_or(missing)?;
    let (parent, _) = name.rsplit_once('/').ok_or(missing)?;
    answers::prop(&source, parent, "name").map_err(|_| missing)?;
    let cipher = answers::prop(&source, parent, "encryption").map_err(|e| e.to_string())?;
    let above = cipher.and_then(|cipher| cipher.number()).is_some_and(|cipher| cipher != CRYPT_OFF);
    choose(props, pools::has_feature(&source, "encryption").map_err(|e| e.to_string())?, above)
}

/// The key of the root file system of a new pool, if it is to have one.
pub(crate) fn for_new_pool(props: &mut NvList, feature_enabled: bool) -> Result<Option<Material>, String> {
    choose(props, feature_enabled, false)
}

/// Decides on a key; `above` says whether the parent is encrypted.
fn choose(props: &mut NvList, feature_enabled: bool, above: bool) -> Result<Option<Material>, String> {
    let said_crypt = props.get_u64("encryption");
    let location = props.get_str("keylocation").map(str::to_owned);
    let format = props.get_u64("keyformat").filter(|format| *format != 0);
    let wanted = said_crypt.is_some_and(|crypt| crypt != CRYPT_OFF)
        || location.as_deref().is_some_and(|location| location != "none")
        || props.contains("keyformat")
        || props.contains("pbkdf2iters");
    if !feature_enabled {
        return if wanted { Err("Encryption feature not enabled.".to_owned()) } else { Ok(None) };
    }
    if said_crypt == Some(CRYPT_OFF) || (said_crypt.is_none() && !above) {
        return match wanted {
            true => Err("Encryption must be turned on to set encryption properties.".to_owned()),
            false => Ok(None),
        };
    }
    if format.is_none() && (location.is_some() || !above) {
        return Err("Keyformat required for new encryption root.".to_owned());
    }
    if format.is_none() {
        // the key is the parent's
        return Ok(None);
    }
    if location.is_none() {
        props.insert("keylocation", "prompt");
    }
    material_for("", props).map(Some)
}

/// Loads the key that `keylocation` names. The salt and rounds of a passphrase are added to the properties. The prompt
/// names `root` if it is not empty; a new key is asked for without a name.
pub(crate) fn material_for(root: &str, props: &mut NvList) -> Result<Material, String> {
    let location = props.get_str("keylocation").unwrap_or("prompt").to_owned();
    let format = props.get_u64("keyformat").and_then(KeyFormat::of_number).ok_or("Invalid keyformat.")?;
    let bytes = match location == "prompt" && console::stdin_is_terminal() {
        true => twice(root, format)?,
        false => material(root, &location, format)?,
    };
    let said_iters = props.get_u64("pbkdf2iters");
    let (mut salt, mut iters) = (0, 0);
    if format == KeyFormat::Passphrase {
        check_length(&bytes)?;
        salt = Env::system().random_u64();
        iters = said_iters.unwrap_or(PBKDF2_ITERS);
        props.insert("pbkdf2salt", salt);
        props.insert("pbkdf2iters", iters);
    } else if said_iters.is_some() {
        return Err("Cannot specify pbkdf2iters with a non-passphrase keyformat.".to_owned());
    }
    wrapping_key(&bytes, format, salt, iters).map(Material)
}

fn check_length(passphrase: &[u8]) -> Result<(), String> {
    match passphrase.len() {
        n if n > *PASSPHRASE.end() => Err(format!("Passphrase too long (max {}).", PASSPHRASE.end())),
        n if n < *PASSPHRASE.start() => Err(format!("Passphrase too short (min {}).", PASSPHRASE.start())),
        _ => Ok(()),
    }
}

/// Asks for a new key, twice.
fn twice(root: &str, format: KeyFormat) -> Result<Secret, String> {
    no_core_dumps();
    let what = if format == KeyFormat::Hex { "hex key" } else { "passphrase" };
    let (new, of) = match root {
        "" => (format!("Enter new {what}:"), String::new()),
        root => (format!("Enter new {what} for '{root}':"), format!(" for '{root}'")),
    };
    if format == KeyFormat::Raw {
        return Err("Cannot enter raw keys on the terminal".to_owned());
    }
    let first = ask(&new, format)?;
    if format == KeyFormat::Passphrase {
        check_length(&first)?;
    }
    let second = ask(&format!("Re-enter new {what}{of}:"), format)?;
    if first == second { Ok(first) } else { Err("Provided keys do not match.".to_owned()) }
}
