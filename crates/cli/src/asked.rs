//! Which command lines a server is asked to carry out.
//!
//! Those that open imported pools: of `zfs` and `zpool` all but a few, and Zuse's own verbs. What is misused, asks for help, or has nothing to do with pools that a server has open, is carried out
//! where it is: `zdb`, `zstream`, verbs on devices (`-d`), `zpool import` that only looks. So is a command that sets tunables (`zuse -o`): they are those of a process, and the server's
//! are not one command's. And one that names files of its process (`/dev/fd/3`, `<(…)` in a shell): a server has others under these names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::command::Tool;
use crate::{verbs, zfs, zpool};

/// Verbs of `zpool` that open no pool: the events and the labels of devices can be had without.
const ALONE: [&str; 2] = ["events", "labelclear"];
/// What the names of files of a process have in them.
const OWN_FILES: [&str; 6] = ["/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/proc/self", "/proc/thread-self"];

/// The name by which mount(8) calls this program.
pub(crate) const MOUNT_HELPER: &str = "mount.zfs";

/// Whether a server is asked to carry out the command `argv`, whose first word is the name that it is called by.
pub(crate) fn is_asked(argv: &[OsString]) -> bool {
    let Some((program, args)) = argv.split_first() else { return false };
    if args.iter().any(|arg| names_own_files(arg)) {
        return false;
    }
    let name = Path::new(program).file_name().and_then(OsStr::to_str);
    match name {
        Some("zdb" | "zstream" | "zstreamdump") => false,
        Some(name) => of_tool(name, args).unwrap_or_else(|| of_zuse(args)),
        None => of_zuse(args),
    }
}

/// Whether a word may name a file of this process.
fn names_own_files(word: &OsStr) -> bool {
    let parts: Vec<&[u8]> =
        word.as_bytes().split(|byte| *byte == b'/').filter(|part| ![b"" as &[u8], b"."].contains(part)).collect();
    let plain = [b"/".as_slice(), &parts.join(&b'/')].concat();
    OWN_FILES.iter().any(|name| plain.windows(name.len()).any(|part| part == name.as_bytes()))
}

/// Whether the command has something mounted, for which there has to be a server: one is started, unless the variable `ZUSE_ON_DEMAND` says `no`.
pub(crate) fn needs_server(argv: &[OsString]) -> bool {
    if crate::console::var("ZUSE_ON_DEMAND").is_some_and(|word| word == "no") {
        return false;
    }
    let name = |word: &OsStr| Path::new(word).file_name().and_then(OsStr::to_str).map(str::to_owned);
    let mut words = argv.iter().map(OsString::as_os_str);
    let args = match words.next().and_then(name).as_deref() {
        Some(MOUNT_HELPER) => return true,
        Some("zfs") => argv.get(1..),
        _ => match argv.get(1..).map(behind_keys) {
            Some([tool, args @ ..]) if tool == "zfs" => Some(args),
            _ => None,
        },
    };
    let parsed = args.and_then(|args| zfs::TOOL.parse(args));
    parsed.is_some_and(|(verb, args)| verb == "mount" && (args.has('a') || args.has('R') || !args.names().is_empty()))
}

fn of_tool(name: &str, args: &[OsString]) -> Option<bool> {
    match name {
        "zfs" => Some(opens_pools(&zfs::TOOL, args)),
        "zpool" => Some(opens_pools(&zpool::TOOL, args)),
        MOUNT_HELPER => Some(true),
        _ => None,
    }
}

fn opens_pools(tool: &Tool, args: &[OsString]) -> bool {
    let Some((verb, parsed)) = tool.parse(args) else { return false };
    match (tool.name, verb) {
        (_, "version") => false,
        ("zpool", verb) if ALONE.contains(&verb) => false,
        ("zpool", "import") => parsed.has('a') || !parsed.names().is_empty(),
        _ => true,
    }
}

/// What follows the keys for the command.
fn behind_keys(mut args: &[OsString]) -> &[OsString] {
    while let [flag, _, rest @ ..] = args
        && flag == "-L"
    {
        args = rest;
    }
    args
}

/// The arguments of `zuse`.
fn of_zuse(args: &[OsString]) -> bool {
    let Some((verb, rest)) = behind_keys(args).split_first() else { return false };
    let Some(verb) = verb.to_str() else { return false };
    of_tool(verb, rest).unwrap_or_else(|| verbs::opens_imported(verb, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_for_what_opens_imported_pools() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let asked = |line: &str| crate::console::in_test(|| is_asked(&words(line)));
        for line in [
            "zfs list",
            "/sbin/zfs snapshot t@s",
            "zuse zpool status",
            "zuse -L file:///k zfs list",
            "zuse ls t:/",
            "zuse -L prompt put t:/f",
            "zpool import -a",
            "zpool import -d /tmp t",
            "zfs compression=on t",
            "zuse nbd -u s t/v",
        ] {
            assert!(asked(line), "{line}");
        }
        for line in [
            "zfs",
            "zfs help",
            "zfs -V",
            "zfs version",
            "zfs list -?",
            "zfs list -o",
            "zfs nothing",
            "zpool events -f",
            "zpool import",
            "zpool import -d /tmp",
            "zdb t",
            "zuse zdb t",
            "zstream dump",
            "zuse serve",
            "zuse nbd -d /tmp t/v",
            "zuse help zfs",
            "zuse -o busy_wait=0 zfs list",
            "zuse ls -d /tmp t:/",
            "zuse ls --help",
            "zuse",
            "zuse tar -f /dev/fd/7 t/fs:/",
            "zuse tar -f //dev/./fd/7 t/fs:/",
            "zuse -L file:///dev/stdin zfs list",
            "zfs load-key -L file:///proc/self/fd/3 t",
        ] {
            assert!(!asked(line), "{line}");
        }
    }
}
