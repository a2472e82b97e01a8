//! The time zone that a client's variable `TZ` names, read as `jiff` reads that of the process.

use std::ffi::OsStr;

use jiff::tz::TimeZone;

/// The zone of a machine whose users name none.
const LOCAL: &str = "/etc/localtime";
/// The folder of time zones in paths of them.
const FOLDER: &str = "zoneinfo/";

/// The time zone of this name; `None`: the machine's. One that is not known has the name `Etc/Unknown`, and the time of UTC.
pub(super) fn named(name: Option<&OsStr>) -> TimeZone {
    let Some(name) = name else { return file(LOCAL).unwrap_or(TimeZone::UTC) };
    let Some(name) = name.to_str() else { return TimeZone::unknown() };
    if name.is_empty() {
        return TimeZone::UTC;
    }
    let plain = name.strip_prefix(':').unwrap_or(name);
    let rule = if plain == name { TimeZone::posix(name).ok() } else { None };
    let short = plain.rsplit_once(FOLDER).map_or(plain, |(_, short)| short);
    rule.or_else(|| TimeZone::get(short).ok()).or_else(|| file(plain)).unwrap_or_else(TimeZone::unknown)
}

/// The time zone in a file.
fn file(path: &str) -> Option<TimeZone> {
    let bytes = std::fs::read(super::path(path)).ok()?;
    TimeZone::tzif("", &bytes).ok()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_zone_is_a_rule_a_name_or_a_file() {
        let hours = |name: &str| named(Some(OsStr::new(name))).to_offset(Timestamp::UNIX_EPOCH).seconds() / 3600;
        crate::console::in_test(|| {
            assert_eq!(["", "UTC", "EST5", ":Etc/GMT-3", "nowhere"].map(hours), [0, 0, -5, 3, 0]);
        });
    }
}
