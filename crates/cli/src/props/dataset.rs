//! Properties of datasets (OpenZFS: `zfs_valid_proplist`).

use pool::Value;
use pool::prop::{self, FS, PropDef, nicebytes};

use super::Said;
use super::values::{self, Of};

pub(crate) use control::feature_of;

/// The largest block (OpenZFS: `SPA_MAXBLOCKSIZE`).
pub(super) const BLOCK_MAX: u64 = 16 << 20;
/// The smallest block.
pub(super) const BLOCK_MIN: u64 = 512;
/// Names longer than this do not fit a ZAP (OpenZFS: `ZAP_MAXNAMELEN`).
const NAME_MAX: usize = 256;
/// The longest component of a mount point.
const COMPONENT_MAX: usize = 255;

/// What a new file system is to be like.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct NewFs {
    /// What is stored as properties.
    pub(crate) stored: Vec<(String, Value)>,
    /// What is part of the file system itself.
    pub(crate) zpl: ZplChoice,
}

/// What a file system has from its making on; `None`: as usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZplChoice {
    pub(crate) version: Option<u64>,
    pub(crate) utf8only: Option<u64>,
    pub(crate) normalization: Option<u64>,
    pub(crate) casesensitivity: Option<u64>,
}

/// Takes a property of an option `-O` into a list; what is wrong with it.
pub(crate) fn add(list: &mut Vec<Said>, name: &str, value: &str) -> Result<(), String> {
    let own = match prop::find(name).filter(|def| def.is_valid_for(FS)) {
        Some(def) => def.name,
        None if prop::is_user_property(name) || crate::columns::is_family(name) => name,
        None => return Err(format!("property '{name}' is not a valid filesystem property")),
    };
    if list.iter().any(|(n, _)| n == own) {
        return Err(format!("property '{name}' specified multiple times"));
    }
    list.push((own.to_owned(), value.to_owned()));
    Ok(())
}

/// Checks the properties of a new file system.
pub(crate) fn check_new_fs(list: &[Said]) -> Result<NewFs, String> {
    let mut fs = NewFs::default();
    for (name, text) in list {
        let Some(def) = prop::find(name) else {
            fs.stored.push(user_property(name, text)?);
            continue;
        };
        if def.attr == prop::Attr::ReadOnly {
            return Err(format!("'{name}' is readonly"));
        }
        let value = values::parse(def, Of::Dataset, name, text)?;
        check_value(def, &value)?;
        let number = value.number();
        match def.name {
            "version" => fs.zpl.version = number,
            "utf8only" => fs.zpl.utf8only = number,
            "normalization" => fs.zpl.normalization = number,
            "casesensitivity" => fs.zpl.casesensitivity = number,
            _ => fs.stored.push((def.name.to_owned(), value)),
        }
    }
    // names that are normalised are UTF-8
    match (fs.zpl.normalization, fs.zpl.utf8only) {
        (Some(1..), Some(0)) => Err("'utf8only' must be set 'on' if normalization chosen".to_owned()),
        (Some(1..), None) => {
            fs.zpl.utf8only = Some(1);
            Ok(fs)
        }
        _ => Ok(fs),
    }
}

fn user_property(name: &str, text: &str) -> Result<(String, Value), String> {
    if !prop::is_user_property(name) {
        return Err(match name.starts_with("written") {
            true => format!("'{name}' is readonly"),
            false => absent(name),
        });
    }
    if name.len() >= NAME_MAX {
        return Err(format!("property name '{name}' is too long"));
    }
    Ok((name.to_owned(), Value::String(text.to_owned())))
}

/// What stands besides the property list, and nobody writes there yet.
fn absent(name: &str) -> String {
    format!("'{name}' cannot be set by this version of Zuse")
}

/// What a property allows beyond its type.
fn check_value(def: &PropDef, value: &Value) -> Result<(), String> {
    let name = def.name;
    let (number, text) = (value.number().unwrap_or(0), value.text().unwrap_or(""));
    match name {
        "recordsize" if !(BLOCK_MIN..=BLOCK_MAX).contains(&number) || !number.is_power_of_two() => {
            Err(format!("'{name}' must be power of 2 from 512B to {}", nicebytes(BLOCK_MAX)))
        }
        "special_small_blocks" if number > BLOCK_MAX => {
            Err(format!("invalid '{name}' property: must be between zero and {}", nicebytes(BLOCK_MAX)))
        }
        "mlslabel" => Err("mlslabels are unsupported".to_owned()),
        "mountpoint" => check_mountpoint(text),
        // limits and reservations are kept by the dataset's directory, keys by its encryption root
        "quota" | "refquota" | "reservation" | "refreservation" | "filesystem_limit" | "snapshot_limit" => {
            Err(absent(name))
        }
        "encryption" if number == 2 => Ok(()),
        "encryption" | "keylocation" | "keyformat" | "pbkdf2iters" => Err(absent(name)),
        _ => Ok(()),
    }
}

pub(super) fn check_mountpoint(text: &str) -> Result<(), String> {
    if matches!(text, "none" | "legacy") {
        return Ok(());
    }
    if !text.starts_with('/') {
        return Err("'mountpoint' must be an absolute path, 'none', or 'legacy'".to_owned());
    }
    if text.split('/').any(|component| component.len() > COMPONENT_MAX) {
        return Err("component of 'mountpoint' is too long".to_owned());
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn check(list: &[(&str, &str)]) -> Result<NewFs, String> {
        let list: Vec<Said> = list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        check_new_fs(&list)
    }

    #[test]
    fn what_belongs_to_the_file_system_is_set_apart() {
        let fs = check(&[("compression", "lz4"), ("normalization", "formD"), ("a:b", "c")]).unwrap();
        assert_eq!(
            fs.stored,
            [("compression".to_owned(), Value::Number(15)), ("a:b".to_owned(), Value::String("c".to_owned()))]
        );
        assert_eq!(fs.zpl, ZplChoice { normalization: Some(16), utf8only: Some(1), ..ZplChoice::default() });
        let why = check(&[("normalization", "formD"), ("utf8only", "off")]).unwrap_err();
        assert_eq!(why, "'utf8only' must be set 'on' if normalization chosen");
    }

    #[test]
    fn values_are_held_against_their_bounds() {
        let why = |name: &str, value: &str| check(&[(name, value)]).err().unwrap_or_default();
        assert_eq!(why("recordsize", "100"), "'recordsize' must be power of 2 from 512B to 16M");
        assert_eq!(why("recordsize", "32M"), "'recordsize' must be power of 2 from 512B to 16M");
        assert_eq!(why("recordsize", "1M"), "");
        assert_eq!(why("used", "1"), "'used' is readonly");
        assert_eq!(why("mountpoint", "x"), "'mountpoint' must be an absolute path, 'none', or 'legacy'");
        assert_eq!(why("copies", "4"), "'copies' must be one of '1 | 2 | 3'");
        assert_eq!(feature_of("recordsize", &Value::Number(1 << 20)), Some("large_blocks"));
        assert_eq!(feature_of("compression", &Value::Number(400)), Some("zstd_compress"));
        assert_eq!(feature_of("dedup", &Value::Number(270)), Some("blake3"));
        assert_eq!(feature_of("checksum", &Value::Number(8)), None);
    }
}
