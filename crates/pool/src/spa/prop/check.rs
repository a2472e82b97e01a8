//! Rules for the values of properties, whoever sets them (OpenZFS: `zfs_valid_proplist`, `zfs_set_prop_nvlist`, `spa_prop_validate`).
//!
//! The same rules apply to commands, requests, streams, clones, new datasets and pools, and programs: the type in the table, its words, and
//! constraints on the value alone. `crate::dsl::props` decides whether a property can be set at all, and whether a value fits the dataset.

use super::def::{Attr, PropDef, PropKind};
use super::{DATASET, Value, find_pool, is_user_property};
use crate::spa::feature;

/// The smallest block (OpenZFS: `SPA_MINBLOCKSIZE`).
pub const BLOCK_MIN: u64 = 512;
/// The largest block (OpenZFS: `SPA_MAXBLOCKSIZE`).
pub const BLOCK_MAX: u64 = 16 << 20;
/// The longest component of a mount point.
const COMPONENT_MAX: usize = 255;
/// The longest comment (OpenZFS: `ZPROP_MAX_COMMENT`).
const COMMENT_MAX: usize = 32;
/// Sizes of sectors, as powers of two (OpenZFS: `ASHIFT_MIN`, `ASHIFT_MAX`).
const ASHIFTS: std::ops::RangeInclusive<u64> = 9..=vdev::ASHIFT_MAX;

/// The rule that a value breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadValue {
    /// Unknown property.
    Unknown,
    /// It is computed, or fixed.
    ReadOnly,
    /// Text where a number belongs, or a number where text does.
    Type,
    /// A number that stands for none of the property's words.
    Word,
    /// No size of blocks: a power of two from 512 bytes to 16 MiB.
    BlockSize,
    /// More than the largest block.
    AboveBlockSize,
    /// Neither an absolute path nor one of the two words.
    Mountpoint,
    /// A mount point with a component that no file system has.
    MountpointComponent,
    /// Sensitivity labels are not supported.
    Label,
    /// Text with a NUL.
    Nul,
    /// No size of sectors.
    Ashift,
    /// A comment with characters that are not printed.
    CommentCharacter,
    /// A comment that is too long.
    CommentLength,
}

impl BadValue {
    /// The rule in words.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            BadValue::Unknown => "invalid property",
            BadValue::ReadOnly => "property is readonly",
            BadValue::Type => "value is not of the property's type",
            BadValue::Word => "value is none of the property's",
            BadValue::BlockSize => "must be power of 2 from 512B to 16M",
            BadValue::AboveBlockSize => "must be between zero and 16M",
            BadValue::Mountpoint => "must be an absolute path, 'none', or 'legacy'",
            BadValue::MountpointComponent => "component of 'mountpoint' is too long",
            BadValue::Label => "mlslabels are unsupported",
            BadValue::Nul => "value with a NUL",
            BadValue::Ashift => "only values between 9 and 16 are allowed",
            BadValue::CommentCharacter => "comment may only have printable characters",
            BadValue::CommentLength => "comment must not exceed 32 characters",
        }
    }
}

/// Checks that `value` can be that of property `name` of a dataset, a user property or a native one by its own name.
///
/// # Errors
/// [`BadValue`].
pub fn check_value(name: &str, value: &Value) -> Result<(), BadValue> {
    let Some(def) = DATASET.iter().find(|def| def.name == name) else {
        return check_user(name, value);
    };
    check_kind(def, value)?;
    let (number, text) = (value.number().unwrap_or(0), value.text().unwrap_or(""));
    match name {
        "recordsize" | "volblocksize" if !(BLOCK_MIN..=BLOCK_MAX).contains(&number) || !number.is_power_of_two() => {
            Err(BadValue::BlockSize)
        }
        "special_small_blocks" if number > BLOCK_MAX => Err(BadValue::AboveBlockSize),
        "mountpoint" => check_mountpoint(text),
        "mlslabel" => Err(BadValue::Label),
        _ => Ok(()),
    }
}

/// Checks that `value` can be that of property `name` of a pool; `bootfs` may be an object's number, as it is stored.
///
/// # Errors
/// [`BadValue`].
pub fn check_pool_value(name: &str, value: &Value) -> Result<(), BadValue> {
    if let Some(feature) = name.strip_prefix("feature@") {
        return match feature::by_name(feature) {
            Some(_) => Ok(()),
            None => Err(BadValue::Unknown),
        };
    }
    let Some(def) = find_pool(name).filter(|def| def.name == name) else {
        return check_user(name, value);
    };
    if matches!(def.attr, Attr::ReadOnly | Attr::OneTime) {
        return Err(BadValue::ReadOnly);
    }
    if name == "bootfs" && value.number().is_some() {
        return Ok(());
    }
    check_kind(def, value)?;
    let (number, text) = (value.number().unwrap_or(0), value.text().unwrap_or(""));
    match name {
        "ashift" if number != 0 && !ASHIFTS.contains(&number) => Err(BadValue::Ashift),
        "comment" if text.bytes().any(|b| !(b' '..=b'~').contains(&b)) => Err(BadValue::CommentCharacter),
        "comment" if text.len() > COMMENT_MAX => Err(BadValue::CommentLength),
        _ => Ok(()),
    }
}

/// Checks that a value has the property's type, and is one of its words.
///
/// # Errors
/// [`BadValue::Type`], [`BadValue::Word`], [`BadValue::Nul`].
pub fn check_kind(def: &PropDef, value: &Value) -> Result<(), BadValue> {
    match (&def.kind, value) {
        (PropKind::Number { .. }, Value::Number(_)) => Ok(()),
        (PropKind::Index { .. }, Value::Number(number)) => match def.index_name(*number) {
            Some(_) => Ok(()),
            None => Err(BadValue::Word),
        },
        (PropKind::String { .. }, Value::String(text)) => check_text(text),
        _ => Err(BadValue::Type),
    }
}

fn check_user(name: &str, value: &Value) -> Result<(), BadValue> {
    match value {
        _ if !is_user_property(name) => Err(BadValue::Unknown),
        Value::Number(_) => Err(BadValue::Type),
        Value::String(text) => check_text(text),
    }
}

fn check_text(text: &str) -> Result<(), BadValue> {
    if text.contains('\0') { Err(BadValue::Nul) } else { Ok(()) }
}

fn check_mountpoint(text: &str) -> Result<(), BadValue> {
    if matches!(text, "none" | "legacy") {
        return Ok(());
    }
    if !text.starts_with('/') {
        return Err(BadValue::Mountpoint);
    }
    if text.split('/').any(|component| component.len() > COMPONENT_MAX) {
        return Err(BadValue::MountpointComponent);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(name: &str, n: u64) -> Result<(), BadValue> {
        check_value(name, &Value::Number(n))
    }

    fn text(name: &str, text: &str) -> Result<(), BadValue> {
        check_value(name, &Value::String(text.to_owned()))
    }

    #[test]
    fn values_are_of_their_type_and_range() {
        for (name, good, bad) in [
            ("compression", 400, 9999),
            ("checksum", 8, 777),
            ("dedup", 264, 4242),
            ("copies", 3, 9),
            ("sync", 2, 3),
            ("readonly", 1, 7),
            ("dnodesize", 16384, 12345),
            ("encryption", 8, 9),
            ("keyformat", 3, 4),
        ] {
            assert_eq!((number(name, good), number(name, bad)), (Ok(()), Err(BadValue::Word)), "{name}");
            assert_eq!(text(name, "on"), Err(BadValue::Type), "{name}");
        }
        for good in [512, 128 << 10, 16 << 20] {
            assert_eq!(number("recordsize", good), Ok(()));
        }
        for bad in [0, 1, 256, 3000, 32 << 20, u64::MAX] {
            assert_eq!(number("recordsize", bad), Err(BadValue::BlockSize));
            assert_eq!(number("volblocksize", bad), Err(BadValue::BlockSize));
        }
        assert_eq!(number("special_small_blocks", u64::MAX), Err(BadValue::AboveBlockSize));
        assert_eq!(number("quota", u64::MAX), Ok(()));
        assert_eq!(text("quota", "1G"), Err(BadValue::Type));
        assert_eq!(number("mountpoint", 5), Err(BadValue::Type));
        assert_eq!(text("mountpoint", "a/b"), Err(BadValue::Mountpoint));
        assert_eq!(text("mountpoint", &format!("/{}", "x".repeat(256))), Err(BadValue::MountpointComponent));
        assert_eq!((text("mountpoint", "/a/b"), text("mountpoint", "legacy")), (Ok(()), Ok(())));
    }

    #[test]
    fn user_properties_are_text() {
        assert_eq!(text("a:b", "c"), Ok(()));
        assert_eq!(text("a:b", "c\0d"), Err(BadValue::Nul));
        assert_eq!(number("a:b", 1), Err(BadValue::Type));
        assert_eq!(text("nonsense", "1"), Err(BadValue::Unknown));
        // the heading of a column is no name
        assert_eq!(number("compress", 15), Err(BadValue::Unknown));
    }

    #[test]
    fn pools_have_rules_too() {
        let check = |name: &str, value: Value| check_pool_value(name, &value);
        assert_eq!(check("ashift", Value::Number(8)), Err(BadValue::Ashift));
        assert_eq!(check("failmode", Value::Number(3)), Err(BadValue::Word));
        assert_eq!(check("comment", Value::String("\u{7}".to_owned())), Err(BadValue::CommentCharacter));
        assert_eq!(check("comment", Value::String("x".repeat(33))), Err(BadValue::CommentLength));
        assert_eq!(check("size", Value::Number(1)), Err(BadValue::ReadOnly));
        assert_eq!(check("feature@nope", Value::String("enabled".to_owned())), Err(BadValue::Unknown));
        assert_eq!(check("bootfs", Value::Number(54)), Ok(()));
    }
}
