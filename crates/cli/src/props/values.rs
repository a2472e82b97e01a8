//! Text to values (OpenZFS: `zprop_parse_value`, `zfs_nicestrtonum`).

use pool::Value;
use pool::prop::{PropDef, PropKind};

/// The longest text (OpenZFS: `ZFS_MAXPROPLEN`).
pub(crate) const TEXT_MAX: usize = 4096;

/// The table that a property is in: the same name may mean two things.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    /// A dataset's.
    Dataset,
    /// A pool's.
    Pool,
    /// A vdev's.
    Vdev,
}

/// The value that `text` stands for. `name` is the property's name as the user gave it.
pub(crate) fn parse(def: &PropDef, of: Of, name: &str, text: &str) -> Result<Value, String> {
    match def.kind {
        PropKind::String { .. } if text.len() >= TEXT_MAX => Err(format!("'{name}' is too long")),
        PropKind::String { .. } => Ok(Value::String(text.to_owned())),
        PropKind::Number { .. } => number_of(def, of, name, text).map(Value::Number),
        PropKind::Index { .. } => match def.index_value(text) {
            Some(n) => Ok(Value::Number(n)),
            None => Err(format!("'{}' must be one of '{}'", def.name, def.values)),
        },
    }
}

fn number_of(def: &PropDef, of: Of, name: &str, text: &str) -> Result<u64, String> {
    let no_quota = |n: u64, what: &str| if n == 0 { Err(format!("use 'none' to disable {what}")) } else { Ok(n) };
    match (text, of, def.name) {
        ("none", Of::Dataset, "filesystem_limit" | "snapshot_limit") => Ok(u64::MAX),
        // no threshold
        ("none", Of::Vdev, _) if def.default_number() == u64::MAX => Ok(u64::MAX),
        ("none", _, _) => Ok(0),
        ("auto", Of::Pool, "dedup_table_quota") => Ok(u64::MAX),
        ("auto", Of::Dataset, "refreservation") => Err(format!("'{name}=auto' only allowed on volumes")),
        ("auto", _, _) => Err(format!("'auto' is invalid value for '{name}'")),
        (_, Of::Dataset, "quota" | "refquota") => no_quota(number(text)?, "quota/refquota"),
        (_, Of::Pool, "dedup_table_quota") => no_quota(number(text)?, "ddt table quota"),
        _ => number(text),
    }
}

/// A number with a suffix: `10`, `1.5G`, `3KiB`.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let too_large = || "numeric value is too large".to_owned();
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(format!("bad numeric value '{text}'"));
    }
    let whole_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = text.split_at(whole_end);
    let parse = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>().map_err(|_| too_large()) };
    let whole_number = parse(whole)?;
    let Some(behind) = rest.strip_prefix('.') else {
        let shift = shift_of(rest)?;
        return 1u64.checked_shl(shift).and_then(|unit| whole_number.checked_mul(unit)).ok_or_else(too_large);
    };
    let fraction_end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    let (fraction, suffix) = behind.split_at(fraction_end);
    let value: f64 = format!("{whole}.{fraction}0").parse().map_err(|_| format!("bad numeric value '{text}'"))?;
    let value = value * f64::from(shift_of(suffix)?).exp2();
    if value >= u64::MAX as f64 { Err(too_large()) } else { Ok(value as u64) }
}

/// The power of two that a suffix stands for: `G`, `GB` and `GiB` are the same, in any case.
fn shift_of(suffix: &str) -> Result<u32, String> {
    let upper = suffix.to_ascii_uppercase();
    let Some(first) = upper.chars().next() else { return Ok(0) };
    let unit = "BKMGTPEZ".find(first);
    let tail = upper.get(1..).unwrap_or("");
    match unit {
        Some(0) if tail.is_empty() => Ok(0),
        Some(n) if n > 0 && matches!(tail, "" | "B" | "IB") => Ok(10 * n as u32),
        _ => Err(format!("invalid numeric suffix '{suffix}'")),
    }
}

/// The value of a property in a request.
pub(crate) fn value_of(value: pool::Value) -> nvlist::Value {
    match value {
        pool::Value::Number(number) => number.into(),
        pool::Value::String(text) => text.as_str().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_suffixes() {
        for (text, n) in [
            ("0", 0),
            ("10", 10),
            ("1k", 1 << 10),
            ("3KiB", 3 << 10),
            ("2MB", 2 << 20),
            ("1.5G", 3 << 29),
            (".5K", 512),
            ("7b", 7),
            ("15E", 15 << 60),
        ] {
            assert_eq!(number(text), Ok(n), "{text}");
        }
        for (text, why) in [
            ("", "bad numeric value ''"),
            ("x", "bad numeric value 'x'"),
            ("-1", "bad numeric value '-1'"),
            ("1x", "invalid numeric suffix 'x'"),
            ("1BB", "invalid numeric suffix 'BB'"),
            ("1KK", "invalid numeric suffix 'KK'"),
            ("16E", "numeric value is too large"),
            ("1Z", "numeric value is too large"),
            ("17.5E", "numeric value is too large"),
            ("99999999999999999999", "numeric value is too large"),
        ] {
            assert_eq!(number(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_value_is_of_its_type() {
        let value = |name: &str, text: &str| {
            parse(pool::prop::find(name).unwrap_or(&pool::prop::DATASET[0]), Of::Dataset, name, text)
        };
        assert_eq!(value("compression", "zstd-3"), Ok(Value::Number(400)));
        assert_eq!(value("atime", "maybe"), Err("'atime' must be one of 'on | off'".to_owned()));
        assert_eq!(value("quota", "0"), Err("use 'none' to disable quota/refquota".to_owned()));
        assert_eq!(value("quota", "none"), Ok(Value::Number(0)));
        assert_eq!(value("snapshot_limit", "none"), Ok(Value::Number(u64::MAX)));
        assert_eq!(value("recordsize", "auto"), Err("'auto' is invalid value for 'recordsize'".to_owned()));
    }
}
