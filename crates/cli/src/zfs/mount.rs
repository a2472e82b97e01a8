//! `zfs mount`, `unmount`, `share`, `unshare`: the answers of a program that mounts nothing.
//!
//! What OpenZFS refuses is refused in its words. What it would mount is refused too, with the commands that reach the
//! files instead; a file system to be unmounted is not mounted.

use std::path::Path;

use control::Failed;

use super::listed::{Listed, Wanted};
use super::select::{Selection, find, told};
use crate::command::Call;
use crate::error::{Outcome, failed, usage};
use crate::names::Types;

/// The properties that are looked at.
const PROPS: [&str; 7] = ["zoned", "sharenfs", "sharesmb", "mountpoint", "canmount", "keystatus", "inconsistent"];

/// The outcome for a file system.
enum Verdict {
    /// It is skipped with `-a`; the reason if it is named.
    Passed(String),
    /// It would be mounted or shared.
    Wanted,
}

/// `mount` and `share`.
pub(super) fn mount(call: &Call<'_>) -> Outcome {
    let (all, recursive) = (call.args.has('a'), call.args.has('R'));
    let share = call.command.name == "share";
    let mut names = call.args.names();
    if call.args.values('o').any(|options| options.is_empty()) {
        return Err(usage("empty mount options (-o) specified"));
    }
    if call.args.has('j') && !names.is_empty() {
        return Err(usage("too many arguments"));
    }
    if all || recursive {
        if share && !names.is_empty() {
            let protocol = names.remove(0);
            if !matches!(protocol.as_str(), "nfs" | "smb") {
                return Err(usage(format!("share type must be 'nfs' or 'smb', not '{protocol}'")));
            }
        }
        if all && !names.is_empty() {
            return Err(usage("too many arguments"));
        }
        if names.is_empty() && recursive {
            return Err(usage("no dataset provided"));
        }
        return mount_all(&names, share);
    }
    match names.as_slice() {
        [] if share || call.args.has('o') => Err(usage("missing filesystem argument (specify -a for all)")),
        // the list of mounted file systems is empty
        [] => Ok(0),
        [name] => mount_one(name, share),
        _ => Err(usage("too many arguments")),
    }
}

fn mount_one(name: &str, share: bool) -> Outcome {
    let dataset = find(name, Types::FILESYSTEMS)?;
    let verdict = judge(&dataset, share, true).map_err(|e| failed(told(&e, name)))?;
    let what = if share { "share" } else { "mount" };
    Err(failed(match verdict {
        Verdict::Passed(why) => format!("cannot {what} '{name}': {why}"),
        Verdict::Wanted => refusal(name, share),
    }))
}

fn refusal(name: &str, share: bool) -> String {
    match share {
        true => format!("cannot share '{name}': Zuse shares nothing"),
        false => format!(
            "cannot mount '{name}': Zuse mounts nothing\n\
             use 'zuse ls', 'zuse cat', 'zuse cp' or 'zuse tar' to reach its files"
        ),
    }
}

fn mount_all(names: &[String], share: bool) -> Outcome {
    let mut selection = Selection::new(Types::FILESYSTEMS);
    selection.recurse = true;
    let (entries, whole) = selection.run(names, &Wanted::props(&PROPS))?;
    let mut status = u8::from(!whole);
    for dataset in entries.iter() {
        let name = dataset.name();
        if let Verdict::Wanted = judge(dataset, share, false).map_err(|e| failed(told(&e, name)))? {
            eprintln!("{}", refusal(name, share));
            status = 1;
        }
    }
    Ok(status)
}

/// OpenZFS: the checks of `share_mount_one`.
fn judge(dataset: &Listed, share: bool, named: bool) -> Result<Verdict, Failed> {
    let text = |name: &str| -> Result<String, Failed> {
        let value = dataset.prop(name)?.map(|value| pool::prop::format(name, &value, false));
        Ok(value.unwrap_or_default())
    };
    let passed = |why: &str| Ok(Verdict::Passed(why.to_owned()));
    let what = if share { "share" } else { "mount" };
    if text("zoned")? == "on" {
        return passed("dataset is exported to a local zone");
    }
    if share && text("sharenfs")? == "off" && text("sharesmb")? == "off" {
        return passed(
            "legacy share\nuse exports(5) or smb.conf(5) to share this filesystem, or set the sharenfs or sharesmb property",
        );
    }
    match text("mountpoint")?.as_str() {
        "legacy" => {
            return Ok(Verdict::Passed(format!("legacy mountpoint\nuse {what}(8) to {what} this filesystem")));
        }
        "none" => return passed("no mountpoint set"),
        _ => {}
    }
    match text("canmount")?.as_str() {
        "off" => return passed("'canmount' property is set to 'off'"),
        "noauto" if !named => return passed("'canmount' property is set to 'noauto'"),
        _ => {}
    }
    if dataset.lacks_key()? {
        return passed("encryption key not loaded");
    }
    if dataset.is("inconsistent")? {
        return passed(
            "Contains partially-completed state from \"zfs receive -s\", which can be resumed with \"zfs send -t\"",
        );
    }
    Ok(Verdict::Wanted)
}

/// `unmount` and `unshare`.
pub(super) fn unmount(call: &Call<'_>) -> Outcome {
    let share = call.command.name == "unshare";
    let what = if share { "unshare" } else { "unmount" };
    let names = call.args.names();
    if call.args.has('a') {
        return match names.as_slice() {
            [protocol] if share && matches!(protocol.as_str(), "nfs" | "smb") => Ok(0),
            [] => Ok(0),
            _ => Err(usage("too many arguments")),
        };
    }
    let name = match names.as_slice() {
        [] => return Err(usage("missing filesystem argument")),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    if name.starts_with('/') {
        let why = match Path::new(name).exists() {
            true => "not a ZFS filesystem",
            false => "no such file or directory",
        };
        return Err(failed(format!("cannot {what} '{name}': {why}")));
    }
    let dataset = find(name, Types::FILESYSTEMS)?;
    let text = |prop: &str| dataset.text(prop).ok().flatten().unwrap_or_default();
    let why = match (share, text("mountpoint").as_str()) {
        (true, _) if text("sharenfs") == "off" && text("sharesmb") == "off" => {
            "legacy share\nuse exports(5) or smb.conf(5) to unshare this filesystem"
        }
        (true, _) => "not currently shared",
        (false, "legacy") => "legacy mountpoint\nuse umount(8) to unmount this filesystem",
        (false, _) => "not currently mounted",
    };
    Err(failed(format!("cannot {what} '{name}': {why}")))
}
