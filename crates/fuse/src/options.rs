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
    /// Users other than the one of this process may use it. Others than root need `user_allow_other` in `/etc/fuse.conf` for it, and
    /// without it `fusermount3`, which works as root, mounts nothing inside of their mounts.
    pub allow_other: bool,
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
            threads: THREADS,
            cache: CACHE,
        }
    }

    /// Returns whose requests are answered: of all whom the kernel lets in. A lookup that was refused here would make the kernel forget what is below the
    /// directory for everybody, and detach what is mounted there.
    pub(crate) fn acl(&self) -> SessionACL {
        if self.allow_other { SessionACL::All } else { SessionACL::Owner }
    }

    /// Returns the values of properties that the mount replaces; who decides what users may do is the same until its end.
    pub(crate) fn temporary(&self, acls: AclKind) -> Temporary {
        let readonly = self.read_only.then_some(true);
        Temporary { readonly, atime: self.atime, relatime: self.relatime, acltype: Some(acls) }
    }
}
