//! Properties of pools (OpenZFS: `add_prop_list`, `zpool_valid_proplist`).

use std::path::Path;

use pool::prop::{self, Attr, PropDef};
use pool::{Value, feature};

use super::Said;
use super::compat::Compat;
use super::values::{self, Of, TEXT_MAX};

/// The occasion on which properties are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    Create,
    Import,
    /// Later.
    Set,
}

/// The version of pools with features.
const VERSION_FEATURES: u64 = 5000;
/// The newest version before them.
pub(crate) const VERSION_BEFORE: u64 = 28;
/// Names longer than this do not fit a ZAP (OpenZFS: `ZAP_MAXNAMELEN`).
const NAME_MAX: usize = 256;

/// Adds a property of an option `-o` to a list, or says what is wrong with it.
pub(crate) fn add(list: &mut Vec<Said>, name: &str, value: &str) -> Result<(), String> {
    let def = prop::find_pool(name);
    if def.is_none() && !is_feature(name) {
        return Err(format!("property '{name}' is not a valid pool or vdev property"));
    }
    let own = def.map_or(name, |def| def.name);
    let has = |name: &str| list.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    if (is_feature(own) && has("version").is_some())
        || (own == "version" && list.iter().any(|(name, _)| is_feature(name)))
    {
        return Err("'feature@' and 'version' properties cannot be specified together".to_owned());
    }
    if (own == "compatibility" && value != "legacy" && has("version").is_some())
        || (own == "version" && has("compatibility").is_some_and(|compat| compat != "legacy"))
    {
        return Err("when 'version' is specified, the 'compatibility' feature may only be set to 'legacy'".to_owned());
    }
    if let Some(place) = list.iter().position(|(n, _)| n == own) {
        if own != "cachefile" {
            return Err(format!("property '{name}' specified multiple times"));
        }
        list.remove(place);
    }
    list.push((own.to_owned(), value.to_owned()));
    Ok(())
}

/// Returns whether it is the name of a feature, known or not.
pub(crate) fn is_feature(name: &str) -> bool {
    name.strip_prefix("feature@").is_some()
}

/// Checks properties and gives their values. Features stay text. `version` is the pool's, 1 for a new one.
pub(crate) fn check(list: &[Said], when: When, pool: &str, version: u64) -> Result<Vec<(String, Value)>, String> {
    list.iter().map(|(name, text)| check_one(name, text, when, pool, version)).collect()
}

fn check_one(name: &str, text: &str, when: When, pool: &str, version: u64) -> Result<(String, Value), String> {
    if let Some(feature) = name.strip_prefix("feature@") {
        check_feature(name, feature, text, when)?;
        return Ok((name.to_owned(), Value::String(text.to_owned())));
    }
    let Some(def) = prop::find_pool(name) else {
        if !prop::is_user_property(name) {
            return Err(format!("invalid property '{name}'"));
        }
        if name.len() >= NAME_MAX {
            return Err(format!("property name '{name}' is too long"));
        }
        if text.len() >= TEXT_MAX {
            return Err(format!("property value '{text}' is too long"));
        }
        return Ok((name.to_owned(), Value::String(text.to_owned())));
    };
    if def.attr == Attr::ReadOnly {
        return Err(format!("'{name}' is readonly"));
    }
    if when != When::Create && def.attr == Attr::OneTime {
        return Err(format!("property '{name}' can only be set at creation time"));
    }
    let value = values::parse(def, Of::Pool, name, text)?;
    check_value(def, &value, when, pool, version)?;
    Ok((def.name.to_owned(), value))
}

fn check_feature(name: &str, feature: &str, text: &str, when: When) -> Result<(), String> {
    if feature::by_name(feature).is_none() {
        return Err(format!("feature '{feature}' unsupported by kernel"));
    }
    if !matches!(text, "enabled" | "disabled") {
        return Err(format!("property '{name}' can only be set to 'enabled' or 'disabled'"));
    }
    if when != When::Create && text == "disabled" {
        return Err(format!("property '{name}' can only be set to 'disabled' at creation time"));
    }
    Ok(())
}

/// Checks the constraints of a property beyond its type.
fn check_value(def: &PropDef, value: &Value, when: When, pool: &str, version: u64) -> Result<(), String> {
    let name = def.name;
    let (number, text) = (value.number().unwrap_or(0), value.text().unwrap_or(""));
    match name {
        "version" if number < version || !is_version(number) => {
            Err(format!("property '{name}' number {number} is invalid."))
        }
        "ashift" if number != 0 && !(9..=16).contains(&number) => {
            Err(format!("property '{name}' number {number} is invalid, only values between 9 and 16 are allowed."))
        }
        "bootfs" if when != When::Set => Err(format!("property '{name}' cannot be set at creation or import time")),
        "bootfs" if !is_in_pool(text, pool) => Err(format!("'{text}' is an invalid name")),
        "altroot" if when == When::Set => {
            Err(format!("property '{name}' can only be set during pool creation or import"))
        }
        "altroot" if !text.starts_with('/') => Err(format!("bad alternate root '{text}'")),
        "cachefile" => check_cachefile(text),
        "compatibility" => Compat::load(text).map(drop),
        "comment" => prop::check_pool_value(name, value).map_err(|bad| bad.why().to_owned()),
        "readonly" if when != When::Import => Err(format!("property '{name}' can only be set at import time")),
        "multihost" if site::hostid::id() == 0 => Err("requires a non-zero system hostid".to_owned()),
        "dedupditto" => {
            println!("Note: property '{name}' no longer has any effect");
            Ok(())
        }
        _ => Ok(()),
    }
}

const fn is_version(n: u64) -> bool {
    matches!(n, 1..=VERSION_BEFORE | VERSION_FEATURES)
}

/// Returns whether `dataset` can be the value of `bootfs`: a dataset or snapshot in `pool`, or empty for none.
fn is_in_pool(dataset: &str, pool: &str) -> bool {
    let rest = dataset.strip_prefix(pool);
    let within = dataset.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']));
    within && (dataset.is_empty() || crate::names::check(dataset, crate::names::Types::DATASETS).is_ok())
}

fn check_cachefile(text: &str) -> Result<(), String> {
    if matches!(text, "" | "none") {
        return Ok(());
    }
    if !text.starts_with('/') {
        return Err("property 'cachefile' must be empty, an absolute path, or 'none'".to_owned());
    }
    if text.ends_with('/') || text.ends_with("/.") || text.ends_with("/..") {
        return Err(format!("'{text}' is not a valid file"));
    }
    match Path::new(text).parent() {
        Some(folder) if !folder.is_dir() => Err(format!("'{}' is not a valid directory", folder.display())),
        _ => Ok(()),
    }
}

/// Features of later versions than the one whose commands these are: a pool gets them when it needs them, or when the
/// user names them.
pub(crate) const LATER: [&str; 1] = ["draid_failure_domains"];

/// Returns whether a property applies only while the pool is open, and is not stored in it.
pub(crate) fn is_transient(name: &str) -> bool {
    control::TRANSIENT.contains(&name) || matches!(name, "version" | "tname" | "dedupditto")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(name: &str, value: &str, when: When) -> String {
        check(&[(name.to_owned(), value.to_owned())], when, "tank", 1).err().unwrap_or_default()
    }

    #[test]
    fn values_are_held_against_their_bounds() {
        let create = |name: &str, value: &str| why(name, value, When::Create);
        assert_eq!(
            create("ashift", "8"),
            "property 'ashift' number 8 is invalid, only values between 9 and 16 are allowed."
        );
        assert!(!create("ashift", "17").is_empty());
        assert_eq!(create("ashift", "0") + &create("ashift", "12"), "");
        assert_eq!(create("comment", &"x".repeat(32)), "");
        assert_eq!(create("comment", &"x".repeat(33)), "comment must not exceed 32 characters");
        assert_eq!(create("comment", "\u{7}"), "comment may only have printable characters");
        assert_eq!(create("failmode", "explode"), "'failmode' must be one of 'wait | continue | panic'");
        assert_eq!(create("size", "1"), "'size' is readonly");
        assert_eq!(create("readonly", "on"), "property 'readonly' can only be set at import time");
        assert_eq!(create("feature@nope", "enabled"), "feature 'nope' unsupported by kernel");
        assert_eq!(
            create("feature@lz4_compress", "active"),
            "property 'feature@lz4_compress' can only be set to 'enabled' or 'disabled'"
        );
        assert_eq!(create("cachefile", "/no/such/place/file"), "'/no/such/place' is not a valid directory");
        assert_eq!(create("version", "29"), "property 'version' number 29 is invalid.");
        assert_eq!(create("bootfs", "tank"), "property 'bootfs' cannot be set at creation or import time");
    }

    #[test]
    fn some_can_only_be_set_at_their_time() {
        let set = |name: &str, value: &str| why(name, value, When::Set);
        assert_eq!(
            set("feature@lz4_compress", "disabled"),
            "property 'feature@lz4_compress' can only be set to 'disabled' at creation time"
        );
        assert_eq!(set("altroot", "/x"), "property 'altroot' can only be set during pool creation or import");
        assert_eq!(set("bootfs", "tank/root") + &set("bootfs", ""), "");
        assert_eq!(set("bootfs", "tanker"), "'tanker' is an invalid name");
        assert_eq!(set("nope", "1"), "invalid property 'nope'");
        assert_eq!(set("a:b", "1"), "");
    }

    #[test]
    fn a_list_has_each_property_once() {
        let mut list = Vec::new();
        assert_eq!(add(&mut list, "ashift", "9"), Ok(()));
        assert_eq!(add(&mut list, "ashift", "9"), Err("property 'ashift' specified multiple times".to_owned()));
        assert_eq!(add(&mut list, "cachefile", "none"), Ok(()));
        assert_eq!(add(&mut list, "cachefile", "/x"), Ok(()));
        assert!(add(&mut list, "a:b", "1").is_err());
        assert_eq!(add(&mut list, "feature@edonr", "enabled"), Ok(()));
        assert!(add(&mut list, "version", "28").is_err_and(|e| e.contains("cannot be specified together")));
        assert_eq!(list.len(), 3);
    }
}
