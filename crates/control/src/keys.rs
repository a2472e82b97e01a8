//! Keys of encrypted datasets.

use codec::crypt::{Suite, WrappingKey};
use nvlist::{NvList, Value as Nv};
use pool::{ChangeKey, Error as PoolError, KeyFormat, KeyStatus, NewKey, Refusal, WithoutKey};

use crate::decode::{Props, require_list};
use crate::{Control, Error, Failed, ReadOnlyControl};

/// Values of property `encryption`: the usual cipher, and none.
const CRYPT_ON: u64 = 1;
const CRYPT_OFF: u64 = 2;
/// The command for a key (OpenZFS: `dcp_cmd_t`).
const CMD_NONE: u64 = 0;
const CMD_NEW_KEY: u64 = 2;
const CMD_INHERIT: u64 = 3;
const CMD_FORCE_NEW_KEY: u64 = 4;
const CMD_FORCE_INHERIT: u64 = 5;

/// The key of a new dataset, and how it is encrypted without one. Takes what says so out of the properties.
pub(crate) fn new_key(props: &mut Props, hidden: Option<&NvList>) -> Result<(Option<NewKey>, WithoutKey), Error> {
    let said = props.take_number("encryption");
    let cipher = match said {
        None | Some(CRYPT_OFF) => None,
        Some(CRYPT_ON) => Some(Suite::Aes256Gcm),
        Some(n) => Some(Suite::from_u64(n).ok_or_else(|| Error::Invalid(format!("cipher {n} is not known")))?),
    };
    let without = match (said, cipher) {
        (Some(CRYPT_OFF), _) => WithoutKey::Off,
        (_, Some(cipher)) => WithoutKey::Cipher(cipher),
        _ => WithoutKey::Inherit,
    };
    let Some(wrapping) = wrapping_key(hidden)? else {
        return match props.values.iter().find(|(name, _)| is_key_prop(name)) {
            Some((name, _)) => Err(Error::Invalid(format!("'{name}' without a key"))),
            None => Ok((None, without)),
        };
    };
    if said == Some(CRYPT_OFF) {
        return Err(Error::Invalid("a key for what is not encrypted".to_owned()));
    }
    Ok((Some(key_of(cipher.unwrap_or(Suite::Aes256Gcm), wrapping, props)?), without))
}

impl ReadOnlyControl {
    /// Loads a key into a state that was opened for reading: nothing is changed on disk.
    pub(crate) fn load_key(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let key = key_to_load(input)?;
        if input.contains("noop") {
            self.view.check_key(name, &key)?;
            return Ok(NvList::new());
        }
        self.view.encryption_root(name)?;
        if self.view.dataset(name)?.key_status()? == KeyStatus::Available {
            return Err(PoolError::Refused { name: name.to_owned(), why: Refusal::KeyLoaded }.into());
        }
        self.view.load_key(name, &key)?;
        Ok(NvList::new())
    }

    /// Forgets a key that was loaded into a state that was opened for reading.
    pub(crate) fn unload_key(&self, name: &str) -> Result<NvList, Failed> {
        self.view.encryption_root(name)?;
        if self.view.dataset(name)?.key_status()? != KeyStatus::Available {
            return Err(PoolError::Refused { name: name.to_owned(), why: Refusal::KeyUnavailable }.into());
        }
        self.view.unload_key(name)?;
        Ok(NvList::new())
    }
}

impl Control {
    pub(crate) fn load_key(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let key = key_to_load(input)?;
        let done = match input.contains("noop") {
            true => self.spa.view()?.check_key(name, &key),
            false => self.spa.load_key(name, &key).map(drop),
        };
        self.done(done)
    }

    pub(crate) fn unload_key(&self, name: &str) -> Result<NvList, Failed> {
        self.done(self.spa.unload_key(name))
    }

    pub(crate) fn change_key(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let change = match input.get_u64("crypt_cmd").unwrap_or(CMD_NONE) {
            CMD_NONE | CMD_NEW_KEY => {
                let mut props = Props::of_dataset(input.get_nvlist("props"))?;
                let key = wrapping_key(input.get_nvlist("hidden_args"))?;
                let key = key.ok_or_else(|| Error::Invalid("no key is given".to_owned()))?;
                // the cipher is the dataset's, whatever is said
                let key = key_of(Suite::Aes256Gcm, key, &mut props)?;
                if let Some((name, _)) = props.values.iter().find(|(name, _)| !pool::prop::is_user_property(name)) {
                    return Err(Error::Invalid(format!("'{name}' cannot be set with a key")).into());
                }
                self.spa.change_key(name, ChangeKey::NewRoot(key))?;
                if !props.values.is_empty() {
                    self.spa.set_props(name, &props.values, pool::PropSource::Local)?;
                }
                return Ok(NvList::new());
            }
            CMD_INHERIT => ChangeKey::Inherit,
            CMD_FORCE_NEW_KEY => ChangeKey::ForceNew,
            CMD_FORCE_INHERIT => ChangeKey::ForceInherit,
            n => return Err(Error::Invalid(format!("crypt_cmd {n} is not known")).into()),
        };
        self.done(self.spa.change_key(name, change))
    }
}

fn is_key_prop(name: &str) -> bool {
    matches!(name, "keyformat" | "pbkdf2iters" | "pbkdf2salt") || name == "keylocation"
}

/// The key that a request gives.
fn key_to_load(input: &NvList) -> Result<WrappingKey, Error> {
    wrapping_key(Some(require_list(input, "hidden_args")?))?.ok_or_else(|| Error::Invalid("no key is given".to_owned()))
}

/// The key among what no history may hold: 32 bytes.
fn wrapping_key(hidden: Option<&NvList>) -> Result<Option<WrappingKey>, Error> {
    match hidden.and_then(|hidden| hidden.get("wkeydata")) {
        None => Ok(None),
        Some(Nv::Uint8Array(bytes)) => match WrappingKey::from_raw(bytes) {
            Ok(key) => Ok(Some(key)),
            Err(e) => Err(Error::Invalid(e.to_string())),
        },
        Some(_) => Err(Error::KeyType { ioc: "hidden_args", key: "wkeydata".to_owned() }),
    }
}

/// A key with what the properties say of it.
fn key_of(cipher: Suite, wrapping: WrappingKey, props: &mut Props) -> Result<NewKey, Error> {
    let keyformat = props.take_number("keyformat").and_then(KeyFormat::of_number);
    let keyformat = keyformat.ok_or_else(|| Error::Invalid("a new key needs a keyformat".to_owned()))?;
    Ok(NewKey {
        cipher,
        keyformat,
        keylocation: props.take_text("keylocation").unwrap_or_else(|| "prompt".to_owned()),
        wrapping,
        pbkdf2_iters: props.take_number("pbkdf2iters").unwrap_or(0),
        salt: props.take_number("pbkdf2salt").unwrap_or(0),
    })
}
