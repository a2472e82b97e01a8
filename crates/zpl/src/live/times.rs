//! When the time of last access changes (OpenZFS: `zfs_relatime_need_update`).

use crate::{Attrs, Time};

use super::Settings;

/// How old the time of last access is at most under `relatime`, seconds: a day.
const RELATIME_MAX_AGE: i64 = 24 * 60 * 60;

/// Whether a read at `now` changes the time of last access: always under `atime=on`, under `relatime=on` when the file has
/// changed since, or after a day.
pub(crate) fn atime_is_due(settings: &Settings, attrs: &Attrs, now: Time) -> bool {
    if !settings.atime || settings.readonly {
        return false;
    }
    !settings.relatime
        || attrs.mtime >= attrs.atime
        || attrs.ctime >= attrs.atime
        || now.sec.saturating_sub(attrs.atime.sec) >= RELATIME_MAX_AGE
}
