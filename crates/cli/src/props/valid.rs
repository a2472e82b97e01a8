//! Properties of datasets as users set them, checked against the dataset that gets them (OpenZFS:
//! `zfs_valid_proplist`).

use std::borrow::Cow;
use std::fmt;

use nvlist::NvList;
use pool::prop::{self, BLOCK_MAX, BadValue, FS, PropDef, SNAP, TypeMask, VOL, nicebytes};
use pool::{Kind, Value};

use super::Said;
use super::values::{self, Of};
use crate::columns::is_family;
use crate::users::{self, Who};

/// Names longer than this do not fit a ZAP (OpenZFS: `ZAP_MAXNAMELEN`).
const NAME_MAX: usize = 256;
/// The least number of iterations of PBKDF2.
const PBKDF2_MIN: u64 = 100_000;
/// The largest block without the feature `large_blocks` (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`).
const OLD_BLOCK_MAX: u64 = 128 << 10;
/// Property `encryption`: off.
const CRYPT_OFF: u64 = 2;
/// Families of quotas, with their numbers (OpenZFS: `zfs_userquota_prop_t`).
const QUOTAS: [(&str, u64); 6] = [
    ("userquota", 1),
    ("groupquota", 3),
    ("userobjquota", 5),
    ("groupobjquota", 7),
    ("projectquota", 9),
    ("projectobjquota", 11),
];

/// A dataset that exists, as far as its properties depend on those that it has.
pub(crate) trait Existing: fmt::Debug {
    /// A numeric property, or the number of a word; `None` if it does not have it, or it cannot be read.
    fn number(&self, name: &str) -> Option<u64>;
}

/// The dataset that gets the properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// Its kind, possibly that of a dataset to be created.
    pub(crate) kind: Kind,
    /// The dataset, if it exists.
    pub(crate) existing: Option<&'a dyn Existing>,
    /// Set if its pool allows blocks of more than 128 KiB.
    pub(crate) large_blocks: bool,
    /// Set if it belongs to a container.
    pub(crate) zoned: bool,
    /// Set if properties that describe a key may be set.
    pub(crate) key_params: bool,
}

impl Target<'_> {
    fn mask(&self) -> TypeMask {
        match self.kind {
            Kind::Volume => VOL,
            Kind::Snapshot => SNAP,
            _ => FS,
        }
    }

    /// A numeric property of the dataset, if it exists and can be read.
    fn number(&self, name: &str) -> Option<u64> {
        self.existing?.number(name)
    }

    fn is_encrypted(&self) -> bool {
        self.number("encryption").is_some_and(|n| n != CRYPT_OFF)
    }
}

/// Adds `name=value` to a list (OpenZFS: `parseprop`).
pub(crate) fn add_said(list: &mut Vec<Said>, said: &str) -> Result<(), String> {
    let Some((name, value)) = said.split_once('=') else {
        return Err("missing '=' for property=value argument".to_owned());
    };
    if list.iter().any(|(n, _)| n == name) {
        return Err(format!("property '{name}' specified multiple times"));
    }
    list.push((name.to_owned(), value.to_owned()));
    Ok(())
}

/// The parsed values as requests take them, or what is wrong with one.
pub(crate) fn valid(list: &[Said], target: &Target<'_>) -> Result<NvList, String> {
    let mut out = NvList::new();
    for (name, text) in list {
        match prop::find(name) {
            None if prop::is_user_property(name) => match name.len() {
                NAME_MAX.. => return Err(format!("property name '{name}' is too long")),
                _ => out.insert(name, text.as_str()),
            },
            _ if target.kind == Kind::Snapshot => {
                return Err("this property can not be modified for snapshots".to_owned());
            }
            None if is_family(name) => {
                let (name, quota) = quota(name, text)?;
                out.insert(name, quota.to_vec());
            }
            None => return Err(format!("invalid property '{name}'")),
            Some(def) => match native(def, name, text, target)? {
                Value::Number(n) => out.insert(def.name, n),
                Value::String(text) => out.insert(def.name, text),
            },
        }
    }
    match (out.get_u64("normalization"), out.get_u64("utf8only")) {
        (Some(1..), None) => out.insert("utf8only", 1u64),
        (Some(1..), Some(0)) => return Err("'utf8only' must be set 'on' if normalization chosen".to_owned()),
        (None, Some(0)) => out.insert("normalization", 0u64),
        _ => {}
    }
    Ok(out)
}

/// `userquota@root=1G`: the name with the id in place of the user's name, and the numbers that a request needs.
fn quota(name: &str, text: &str) -> Result<(String, [u64; 3]), String> {
    let (family, of) = name.split_once('@').unwrap_or((name, ""));
    let Some((_, number)) = QUOTAS.iter().find(|(f, _)| *f == family) else {
        return Err(format!("'{name}' is readonly"));
    };
    let (id, domain) = identity(family, of).ok_or_else(|| format!("'{name}' has an invalid user/group name"))?;
    let value = if text == "none" { 0 } else { values::number(text)? };
    Ok((format!("{family}@{id:x}-{domain}"), [*number, id, value]))
}

/// A user, group or project by name, number, or Windows identity (OpenZFS: `userquota_propname_decode`).
fn identity<'a>(family: &str, of: &'a str) -> Option<(u64, Cow<'a, str>)> {
    let who = match family {
        _ if family.starts_with("user") => Some(Who::User),
        _ if family.starts_with("group") => Some(Who::Group),
        _ => None,
    };
    if let Some(id) = who.and_then(|who| users::id_of(who, of)) {
        return Some((id, Cow::Borrowed("")));
    }
    if who.is_some() && of.starts_with("S-1-") {
        let (domain, last) = of.rsplit_once('-')?;
        return Some((last.parse().ok()?, Cow::Borrowed(domain)));
    }
    of.parse::<u32>().ok().map(|id| (id.into(), Cow::Borrowed("")))
}

fn native(def: &'static PropDef, name: &str, text: &str, target: &Target<'_>) -> Result<Value, String> {
    if !def.is_valid_for(target.mask()) {
        return Err(format!("'{name}' does not apply to datasets of this type"));
    }
    let when_made = def.is_set_once() && target.existing.is_none();
    let key_param = target.key_params && matches!(def.name, "keyformat" | "pbkdf2iters" | "pbkdf2salt");
    if def.is_read_only() && !when_made && !key_param {
        return Err(format!("'{name}' is readonly"));
    }
    if target.kind == Kind::Volume && def.name == "refreservation" && text == "auto" {
        return Ok(Value::Number(u64::MAX));
    }
    let value = values::parse(def, Of::Dataset, name, text)?;
    check(def, name, &value, target)?;
    Ok(value)
}

/// Checks the constraints of a property beyond its type.
fn check(def: &PropDef, name: &str, value: &Value, target: &Target<'_>) -> Result<(), String> {
    let (number, text) = (value.number().unwrap_or(0), value.text().unwrap_or(""));
    let most = if target.large_blocks { BLOCK_MAX } else { OLD_BLOCK_MAX };
    prop::check_value(def.name, value).map_err(|bad| words(bad, name, most))?;
    match def.name {
        "version" => match target.number("version").filter(|now| number < *now) {
            Some(now) => Err(format!("Can not downgrade; already at version {now}")),
            None => Ok(()),
        },
        "volblocksize" | "recordsize" if number > most => Err(words(BadValue::BlockSize, name, most)),
        "mountpoint" | "sharenfs" | "sharesmb" => {
            if target.zoned && !matches!(text, "none" | "legacy") {
                return Err(format!("'{name}' cannot be set on dataset in a non-global zone"));
            }
            match def.name == "mountpoint" || super::shares::are_options(def.name, text) {
                true => Ok(()),
                false => Err(format!("'{name}' cannot be set to invalid options")),
            }
        }
        "keylocation" => check_keylocation(text, target),
        "pbkdf2iters" if number < PBKDF2_MIN => Err(format!("minimum pbkdf2 iterations is {PBKDF2_MIN}")),
        "volsize" => check_volsize(name, number, target),
        "copies" if number > 2 && target.is_encrypted() => Err("encrypted datasets cannot have 3 copies".to_owned()),
        _ => Ok(()),
    }
}

/// The message for the rule that a value breaks, in a pool whose largest block is `most`.
fn words(bad: BadValue, name: &str, most: u64) -> String {
    match bad {
        BadValue::BlockSize => format!("'{name}' must be power of 2 from 512B to {}", nicebytes(most)),
        BadValue::AboveBlockSize => {
            format!("invalid '{name}' property: must be between zero and {}", nicebytes(BLOCK_MAX))
        }
        BadValue::Mountpoint => format!("'{name}' {}", bad.why()),
        BadValue::Label | BadValue::MountpointComponent => bad.why().to_owned(),
        _ => format!("'{name}': {}", bad.why()),
    }
}

/// OpenZFS: `zfs_prop_valid_keylocation`.
fn check_keylocation(text: &str, target: &Target<'_>) -> Result<(), String> {
    let schemes = ["file:///", "https://", "http://"];
    let is_uri = schemes.iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()));
    if !matches!(text, "none" | "prompt") && !is_uri {
        return Err("invalid keylocation".to_owned());
    }
    if target.existing.is_none() {
        return Ok(());
    }
    match (target.is_encrypted(), text == "none") {
        (false, false) => Err("keylocation must be 'none' for unencrypted datasets".to_owned()),
        (true, true) => Err("keylocation must not be 'none' for encrypted datasets".to_owned()),
        _ => Ok(()),
    }
}

/// Checks the size of an existing volume; that of a new one is rounded.
fn check_volsize(name: &str, size: u64, target: &Target<'_>) -> Result<(), String> {
    let Some(block) = target.number("volblocksize").filter(|n| *n != 0) else { return Ok(()) };
    if !size.is_multiple_of(block) {
        return Err(format!("'{name}' must be a multiple of volume block size ({})", nicebytes(block)));
    }
    if size == 0 { Err(format!("'{name}' cannot be zero")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: Kind, list: &[(&str, &str)]) -> Result<NvList, String> {
        let list: Vec<Said> = list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        valid(&list, &Target { kind, existing: None, large_blocks: true, zoned: false, key_params: true })
    }

    fn why(kind: Kind, name: &str, value: &str) -> String {
        run(kind, &[(name, value)]).err().unwrap_or_default()
    }

    #[test]
    fn each_kind_has_its_properties() {
        use Kind::{Filesystem, Snapshot, Volume};
        assert_eq!(why(Filesystem, "recordsize", "1M"), "");
        assert_eq!(why(Volume, "recordsize", "1M"), "'recordsize' does not apply to datasets of this type");
        assert_eq!(why(Filesystem, "volsize", "1M"), "'volsize' does not apply to datasets of this type");
        assert_eq!(why(Snapshot, "atime", "on"), "this property can not be modified for snapshots");
        assert_eq!(why(Snapshot, "a:b", "c"), "");
        assert_eq!(why(Filesystem, "used", "1"), "'used' is readonly");
        assert_eq!(why(Filesystem, "nope", "1"), "invalid property 'nope'");
        assert_eq!(why(Volume, "refreservation", "auto"), "");
        assert_eq!(why(Filesystem, "refreservation", "auto"), "'refreservation=auto' only allowed on volumes");
    }

    #[test]
    fn quotas_are_for_somebody() {
        let list =
            run(Kind::Filesystem, &[("userquota@root", "1M"), ("projectobjquota@7", "none")]).unwrap_or_default();
        assert_eq!(list.get_u64_array("userquota@0-"), Some([1, 0, 1 << 20].as_slice()));
        assert_eq!(list.get_u64_array("projectobjquota@7-"), Some([11, 7, 0].as_slice()));
        assert_eq!(
            why(Kind::Filesystem, "userquota@no-such-user", "1"),
            "'userquota@no-such-user' has an invalid user/group name"
        );
        assert_eq!(why(Kind::Filesystem, "groupused@0", "1"), "'groupused@0' is readonly");
        assert_eq!(why(Kind::Filesystem, "written@a", "1"), "'written@a' is readonly");
        let sid = run(Kind::Filesystem, &[("groupquota@S-1-5-21-9", "2")]).unwrap_or_default();
        assert_eq!(sid.get_u64_array("groupquota@9-S-1-5-21"), Some([3, 9, 2].as_slice()));
    }

    #[test]
    fn keys_are_at_known_places() {
        for good in ["prompt", "none", "file:///k", "https://x/k"] {
            assert_eq!(why(Kind::Filesystem, "keylocation", good), "", "{good}");
        }
        for bad in ["file://k", "ftp://x/k", "/k", ""] {
            assert_eq!(why(Kind::Filesystem, "keylocation", bad), "invalid keylocation", "{bad}");
        }
        assert_eq!(why(Kind::Filesystem, "pbkdf2iters", "1"), "minimum pbkdf2 iterations is 100000");
    }

    #[test]
    fn normalised_names_are_utf8() {
        let list = run(Kind::Filesystem, &[("normalization", "formD")]).unwrap_or_default();
        assert_eq!(list.get_u64("utf8only"), Some(1));
        let list = run(Kind::Filesystem, &[("utf8only", "off")]).unwrap_or_default();
        assert_eq!(list.get_u64("normalization"), Some(0));
        assert!(run(Kind::Filesystem, &[("normalization", "formC"), ("utf8only", "off")]).is_err());
    }
}
