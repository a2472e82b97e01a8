//! Values as the commands print them (OpenZFS: `zfs_prop_get`, `zpool_get_prop`, `zfs_nicenum`).

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{PropKind, Value, find, find_pool, find_vdev};

/// `n` in at most five characters: 512, 1.50K, 12.3M; exact multiples without a fraction (OpenZFS: `zfs_nicenum`).
#[must_use]
pub fn nicenum(n: u64) -> String {
    nice(n, "")
}

/// Formats as [`nicenum`], with a B behind plain bytes: 512B, 1.50K (OpenZFS: `zfs_nicebytes`).
#[must_use]
pub fn nicebytes(n: u64) -> String {
    nice(n, "B")
}

fn nice(n: u64, plain: &str) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut index = 0;
    while index + 1 < UNITS.len() && n >> (10 * index) >= 1024 {
        index += 1;
    }
    let unit = if index == 0 { plain } else { UNITS.get(index).copied().unwrap_or("") };
    let whole = n >> (10 * index);
    if index == 0 || whole << (10 * index) == n {
        return format!("{whole}{unit}");
    }
    let value = n as f64 / (1u64 << (10 * index)) as f64;
    // the most decimals that leave the text within five characters
    let texts = [2, 1, 0].map(|decimals| format!("{value:.decimals$}{unit}"));
    let [_, _, last] = &texts;
    texts.iter().find(|t| t.len() <= 5).unwrap_or(last).clone()
}

/// A ratio in hundredths: 150 is 1.50x, or 1.50 for scripts.
#[must_use]
pub fn ratio(hundredths: u64, parsable: bool) -> String {
    format!("{}.{:02}{}", hundredths / 100, hundredths % 100, if parsable { "" } else { "x" })
}

/// Seconds since 1970 in local time, as `Sat Nov 21  8:30 2026`.
#[must_use]
pub fn date(seconds: u64) -> String {
    strftime(seconds, "%a %b %e %k:%M %Y")
}

fn strftime(seconds: u64, layout: &str) -> String {
    let stamp = i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok());
    match stamp {
        Some(stamp) => stamp.to_zoned(TimeZone::system()).strftime(layout).to_string(),
        None => seconds.to_string(),
    }
}

/// The text that `zfs get` prints for `value` of the dataset property `name`; `parsable` is its option -p. User properties print as they are.
#[must_use]
pub fn format(name: &str, value: &Value, parsable: bool) -> String {
    let n = match value {
        Value::String(s) => return s.clone(),
        Value::Number(n) => *n,
    };
    let Some(def) = find(name) else { return format_wildcard(name, n, parsable) };
    if let PropKind::Index { .. } = def.kind {
        return match name {
            "mounted" => if n != 0 { "yes" } else { "no" }.to_string(),
            _ => def.index_name(n).unwrap_or("-").to_string(),
        };
    }
    match def.name {
        "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count" if n == u64::MAX => {
            "none".to_string()
        }
        "compressratio" | "refcompressratio" => ratio(n, parsable),
        "guid" | "keyguid" | "ivsetguid" | "createtxg" | "objsetid" | "pbkdf2iters" => n.to_string(),
        "creation" if !parsable => date(n),
        "snapshots_changed" if !parsable => strftime(n, "%a %b %e %k:%M:%S %Y"),
        _ if parsable => n.to_string(),
        "quota" | "refquota" | "reservation" | "refreservation" if n == 0 => "none".to_string(),
        "quota"
        | "refquota"
        | "reservation"
        | "refreservation"
        | "referenced"
        | "available"
        | "used"
        | "usedbysnapshots"
        | "usedbydataset"
        | "usedbyrefreservation"
        | "usedbychildren" => nicebytes(n),
        _ => nicenum(n),
    }
}

/// `userused@…`, `userquota@…`, `written@…` and their like.
fn format_wildcard(name: &str, n: u64, parsable: bool) -> String {
    let what = name.split(['@', '#']).next().unwrap_or("");
    if parsable {
        return n.to_string();
    }
    if what.ends_with("quota") && n == 0 {
        return "none".to_string();
    }
    // objects are counted, everything else is in bytes
    if what.contains("obj") { nicenum(n) } else { nicebytes(n) }
}

/// The text that `zpool get` prints for `value` of the pool property `name`.
#[must_use]
pub fn format_pool(name: &str, value: &Value, parsable: bool) -> String {
    let n = match value {
        Value::String(s) => return s.clone(),
        Value::Number(n) => *n,
    };
    let Some(def) = find_pool(name) else { return n.to_string() };
    if let PropKind::Index { .. } = def.kind {
        return def.index_name(n).unwrap_or("-").to_string();
    }
    let nice = |n: u64, as_text: fn(u64) -> String| if parsable { n.to_string() } else { as_text(n) };
    match def.name {
        "dedup_table_quota" if n == u64::MAX => "auto".to_string(),
        "dedup_table_quota" if n == 0 && !parsable => "none".to_string(),
        "size" | "allocated" | "free" | "freeing" | "leaked" | "ashift" | "maxblocksize" | "maxdnodesize"
        | "bclonesaved" | "bcloneused" | "dedup_table_size" | "dedup_table_quota" | "dedupcached" => nice(n, nicenum),
        "expandsize" | "checkpoint" if n == 0 => "-".to_string(),
        "expandsize" | "checkpoint" => nice(n, nicebytes),
        "fragmentation" if n == u64::MAX => "-".to_string(),
        "capacity" | "fragmentation" => nice(n, |n| format!("{n}%")),
        "dedupratio" | "bcloneratio" => ratio(n, parsable),
        "version" if n >= 5000 => "-".to_string(),
        _ => n.to_string(),
    }
}

/// The text that `zpool get` prints for `value` of the vdev property `name` (OpenZFS: `zpool_get_vdev_prop_value`).
#[must_use]
pub fn format_vdev(name: &str, value: &Value, parsable: bool) -> String {
    let n = match value {
        Value::String(s) => return s.clone(),
        Value::Number(n) => *n,
    };
    let Some(def) = find_vdev(name) else { return n.to_string() };
    if let PropKind::Index { .. } = def.kind {
        return def.index_name(n).unwrap_or("-").to_string();
    }
    match def.name {
        "expandsize" if n == 0 => "-".to_string(),
        "state" if !parsable => vdev_state(n).to_string(),
        "fragmentation" if n == u64::MAX => "-".to_string(),
        // the percents of fragmentation have their sign for scripts too
        "fragmentation" => format!("{n}%"),
        "capacity" if !parsable => format!("{n}%"),
        "guid" | "ashift" | "parity" | "numchildren" => n.to_string(),
        _ if def.default_number() == u64::MAX && n == u64::MAX => "-".to_string(),
        _ if def.default_number() == u64::MAX || parsable => n.to_string(),
        _ => nicenum(n),
    }
}

/// OpenZFS: `zpool_state_to_name`.
fn vdev_state(n: u64) -> &'static str {
    const NAMES: [&str; 8] = ["UNKNOWN", "OFFLINE", "OFFLINE", "REMOVED", "UNAVAIL", "FAULTED", "DEGRADED", "ONLINE"];
    usize::try_from(n).ok().and_then(|n| NAMES.get(n)).copied().unwrap_or("UNKNOWN")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_five_characters() {
        for (n, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1025, "1.00K"),
            (1536, "1.50K"),
            (10239, "10.0K"),
            (12345, "12.1K"),
            (123_456, "121K"),
            (1_047_552, "1023K"),
            (1_048_575, "1024K"),
            (1 << 20, "1M"),
            (u64::MAX, "16.0E"),
            (117_440_512, "112M"),
        ] {
            assert_eq!(nicenum(n), text, "{n}");
        }
        assert_eq!(nicebytes(512), "512B");
        assert_eq!(nicebytes(1536), "1.50K");
    }

    #[test]
    fn each_property_prints_in_its_own_way() {
        let n = Value::Number;
        assert_eq!(format("compressratio", &n(150), false), "1.50x");
        assert_eq!(format("quota", &n(0), false), "none");
        assert_eq!(format("quota", &n(0), true), "0");
        assert_eq!(format("compression", &n(16 | 5 << 7), false), "zstd-5");
        assert_eq!(format("checksum", &n(99), false), "-");
        assert_eq!(format("snapshot_limit", &n(u64::MAX), true), "none");
        assert_eq!(format("recordsize", &n(131_072), false), "128K");
        assert_eq!(format("userobjused@root", &n(2048), false), "2K");
        assert_eq!(format("userused@root", &n(512), false), "512B");
        assert_eq!(format_pool("capacity", &n(12), false), "12%");
        assert_eq!(format_pool("version", &n(5000), true), "-");
        assert_eq!(format_pool("dedup_table_quota", &n(u64::MAX), true), "auto");
        assert_eq!(format_vdev("fragmentation", &n(3), true), "3%");
        assert_eq!(format_vdev("size", &n(2048), false), "2K");
        assert_eq!(format_vdev("checksum_n", &n(u64::MAX), true), "-");
        assert_eq!(format_vdev("checksum_n", &n(4096), false), "4096");
        assert_eq!(
            (format_vdev("state", &n(4), false), format_vdev("state", &n(4), true)),
            ("UNAVAIL".into(), "4".into())
        );
        assert_eq!(format_vdev("failfast", &n(2), false), "inherit");
    }

    #[test]
    fn a_date_is_padded_as_strftime_does() {
        let text = strftime(1_795_249_803, "%a %b %e %k:%M %Y");
        assert_eq!(text.len(), "Sat Nov 21  8:30 2026".len());
        assert!(strftime(u64::MAX, "%a") == u64::MAX.to_string());
    }
}
