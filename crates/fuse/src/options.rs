//! Options of a mount.

use std::time::Duration;

use fuser::SessionACL;
use zpl::live::{AclKind, Temporary};

/// How long names and attributes are cached.
const CACHE: Duration = Duration::from_secs(60);
/// Threads that answer requests. Each has a buffer of 16 MiB; what waits long is handed to others.
const THREADS: usize = 4;

/// How a file system is mounted. The default is what `zfs mount` does without options for a dataset with default properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The name of the dataset, which the mount table shows as the source.
    pub source: String,
    /// Nothing can be changed (`ro`).
    pub read_only: bool,
    /// Programs can be executed (`exec`).
    pub exec: bool,
    /// Set-id bits have their effect (`setuid`).
    pub setuid: bool,
    /// Device files have their effect (`devices`).
    pub devices: bool,
    /// Whether reads set access times, if not as the properties of the dataset say (`atime`, `noatime`).
    pub atime: Option<bool>,
    /// Whether access times are only set where they are due, likewise (`relatime`, `norelatime`).
    pub relatime: Option<bool>,
    /// Users other than the one of this process may use it. Others than root need `user_allow_other` in `/etc/fuse.conf` for it.
    pub allow_other: bool,
    /// Root may use it, too, if the one of this process is another. Needs the same; without it `fusermount3`, as root, mounts nothing inside of it.
    pub allow_root: bool,
    /// Threads that answer requests.
    pub threads: usize,
    /// How long the kernel takes names and attributes for valid without asking. What changes behind the mount must be told.
    pub cache: Duration,
}

impl Options {
    /// Returns the options of a file system without options.
    #[must_use]
    pub fn new(source: &str) -> Options {
        Options {
            source: source.to_owned(),
            read_only: false,
            exec: true,
            setuid: true,
            devices: true,
            atime: None,
            relatime: None,
            allow_other: rustix::process::geteuid().is_root(),
            allow_root: !rustix::process::geteuid().is_root() && others_are_allowed(),
            threads: THREADS,
            cache: CACHE,
        }
    }

    /// Returns whether the kernel is to let others than the user of this process in.
    pub(crate) fn lets_others_in(&self) -> bool {
        self.allow_other || self.allow_root
    }

    /// Returns whose requests are answered.
    pub(crate) fn acl(&self) -> SessionACL {
        match (self.allow_other, self.allow_root) {
            (true, _) => SessionACL::All,
            (false, true) => SessionACL::RootAndOwner,
            (false, false) => SessionACL::Owner,
        }
    }

    /// Returns the values of properties that the mount replaces; who decides what users may do is the same until its end.
    pub(crate) fn temporary(&self, acls: AclKind) -> Temporary {
        let readonly = self.read_only.then_some(true);
        Temporary { readonly, atime: self.atime, relatime: self.relatime, acltype: Some(acls) }
    }
}

/// Returns whether this system lets users allow others to use their mounts.
fn others_are_allowed() -> bool {
    std::fs::read_to_string("/etc/fuse.conf").is_ok_and(|text| allows_others(&text))
}

fn allows_others(conf: &str) -> bool {
    conf.lines().any(|line| line.split('#').next().is_some_and(|words| words.trim() == "user_allow_other"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_allows_others() {
        assert!(allows_others("mount_max = 9\n user_allow_other # all\n"));
        assert!(!allows_others("#user_allow_other\nuser_allow_others\n"));
    }
}
