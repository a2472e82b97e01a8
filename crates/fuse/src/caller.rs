//! Who sends a request.
//!
//! Where the kernel decides, the engine gets a caller with the capabilities that stand for what the kernel has decided. Where the engine
//! decides, and for the few decisions that are its own in any case, it gets the caller as he is: see [the crate](crate).

use fuser::Request;
use zpl::live::{Caps, Cred};

/// What the kernel has decided when it sends a request. Whether set-id bits are kept it says with the request.
const DECIDED: Caps = Caps::CHOWN.and(Caps::DAC_OVERRIDE).and(Caps::FOWNER).and(Caps::FSETID).and(Caps::SYS_ADMIN);

/// Looks up callers.
pub(crate) struct Callers {
    /// The user namespace of this process.
    namespace: Option<u64>,
}

impl Callers {
    pub(crate) fn new() -> Callers {
        Callers { namespace: user_namespace("self") }
    }

    /// Returns a caller for whom the kernel has decided.
    pub(crate) fn decided(req: &Request) -> Cred {
        Cred::user(req.uid(), req.gid(), []).with_caps(DECIDED)
    }

    /// Returns the caller of `access`, which asks for the real user of a program, also of a set-uid one. As that user he has the groups of the
    /// program, and its capabilities if he is root (Linux: `access_override_creds`).
    pub(crate) fn accessing(&self, req: &Request) -> Cred {
        let (pid, uid, gid) = (req.pid(), req.uid(), req.gid());
        let text = if pid == 0 { None } else { std::fs::read_to_string(format!("/proc/{pid}/status")).ok() };
        match text.and_then(|text| Status::parse(&text)) {
            Some(status) if (status.real_uid, status.real_gid) == (uid, gid) => {
                let caps = if uid == 0 { self.counted(pid, status.permitted) } else { Caps::NONE };
                Cred::user(uid, gid, status.groups).with_caps(caps)
            }
            _ => self.real(req),
        }
    }

    /// Returns those capabilities of a process that count here.
    fn counted(&self, pid: u32, caps: u64) -> Caps {
        let ours = caps == 0 || user_namespace(&pid.to_string()) == self.namespace;
        if ours { Caps(caps) } else { Caps::NONE }
    }

    /// Returns the caller as he is.
    pub(crate) fn real(&self, req: &Request) -> Cred {
        let (pid, uid, gid) = (req.pid(), req.uid(), req.gid());
        let unknown = || Cred::user(uid, gid, []);
        // not of this PID namespace
        if pid == 0 {
            return unknown();
        }
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return unknown() };
        match Status::parse(&text) {
            Some(status) if (status.uid, status.gid) == (uid, gid) => {
                let caps = self.counted(pid, status.caps);
                Cred::user(uid, gid, status.groups).with_caps(caps)
            }
            // the credentials of another module, or another thread by now
            _ => unknown(),
        }
    }
}

/// Returns the inode number of a process's user namespace.
fn user_namespace(pid: &str) -> Option<u64> {
    rustix::fs::stat(format!("/proc/{pid}/ns/user")).ok().map(|stat| stat.st_ino)
}

/// The credentials of a thread, as `/proc/TID/status` tells them.
#[derive(PartialEq, Eq, Debug)]
struct Status {
    /// The user and the group for file systems.
    uid: u32,
    gid: u32,
    /// The user and the group who began the program.
    real_uid: u32,
    real_gid: u32,
    groups: Vec<u32>,
    /// The effective capabilities.
    caps: u64,
    /// Those that it may have.
    permitted: u64,
}

impl Status {
    fn parse(text: &str) -> Option<Status> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        // real, effective, saved, for file systems
        let of = |name: &str, place| field(name)?.split_whitespace().nth(place)?.parse().ok();
        let caps = |name: &str| u64::from_str_radix(field(name)?.trim(), 16).ok();
        let groups = field("Groups")?.split_whitespace().map(|gid| gid.parse().ok());
        Some(Status {
            uid: of("Uid", 3)?,
            gid: of("Gid", 3)?,
            real_uid: of("Uid", 0)?,
            real_gid: of("Gid", 0)?,
            groups: groups.collect::<Option<_>>()?,
            caps: caps("CapEff")?,
            permitted: caps("CapPrm")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_thread() {
        let text = "Name:\tcat\nUid:\t1000\t1000\t1000\t1001\nGid:\t100\t100\t100\t101\nGroups:\t4 24 27 \nCapPrm:\t0000000000000003\nCapEff:\t000001ffffffffff\n";
        let (groups, caps) = (vec![4, 24, 27], 0x1ff_ffff_ffff);
        let status = Status { uid: 1001, gid: 101, real_uid: 1000, real_gid: 100, groups, caps, permitted: 3 };
        assert_eq!(Status::parse(text), Some(status));
        assert_eq!(Status::parse(&text.replace("27", "x")), None);
        assert_eq!(Status::parse("Uid:\t1\n"), None);
        let own = std::fs::read_to_string("/proc/thread-self/status").ok().and_then(|text| Status::parse(&text));
        assert_eq!(own.map(|own| own.uid), Some(rustix::process::geteuid().as_raw()));
    }
}
