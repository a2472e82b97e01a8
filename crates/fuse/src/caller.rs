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

    /// Returns the caller of `access` or `chdir`. The first asks for the real user of a program, also of a set-uid one. As that user he has the
    /// groups of the program, and its capabilities if he is root (Linux: `access_override_creds`).
    pub(crate) fn accessing(&self, req: &Request) -> Cred {
        self.judged(req, Status::accessing)
    }

    /// Returns the caller as he is.
    pub(crate) fn real(&self, req: &Request) -> Cred {
        self.judged(req, Status::real)
    }

    /// Returns the caller as the status of his thread tells of him, with those capabilities that count here.
    fn judged(&self, req: &Request, judge: impl FnOnce(Status, u32, u32) -> Option<Cred>) -> Cred {
        let (pid, uid, gid) = (req.pid(), req.uid(), req.gid());
        let unknown = || Cred::user(uid, gid, []);
        // not of this PID namespace
        if pid == 0 {
            return unknown();
        }
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok();
        match text.and_then(|text| judge(Status::parse(&text)?, uid, gid)) {
            Some(cred) if cred.caps == Caps::NONE || user_namespace(&pid.to_string()) == self.namespace => cred,
            Some(cred) => cred.with_caps(Caps::NONE),
            None => unknown(),
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
    /// Returns the caller as he is; `None` if these are not his credentials: those of the request are another module's, or the thread is another
    /// by now. A root whose group alone is another has no more capabilities for that.
    fn real(self, uid: u32, gid: u32) -> Option<Cred> {
        let caps = Caps(self.caps);
        match (self.uid == uid, self.gid == gid) {
            (true, true) => Some(Cred::user(uid, gid, self.groups).with_caps(caps)),
            (true, false) if uid == 0 => Some(Cred::user(uid, gid, []).with_caps(caps)),
            _ => None,
        }
    }

    /// Returns the caller of `access` or `chdir`. If he is not another one for the first, it cannot be told from the second, for which the
    /// capabilities count that he has in effect.
    fn accessing(self, uid: u32, gid: u32) -> Option<Cred> {
        let is_same = (self.uid, self.gid) == (uid, gid);
        if is_same || (self.real_uid, self.real_gid) != (uid, gid) {
            return self.real(uid, gid);
        }
        let caps = if uid == 0 { Caps(self.permitted) } else { Caps::NONE };
        Some(Cred::user(uid, gid, self.groups).with_caps(caps))
    }

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
        let of = |uid, gid, real_uid| Status {
            uid,
            gid,
            real_uid,
            real_gid: gid,
            groups: vec![5],
            caps: Caps::CHOWN.0,
            permitted: Caps::FOWNER.0,
        };
        let cred = |uid, gid, groups: &[u32], caps| Some(Cred::user(uid, gid, groups).with_caps(caps));
        assert_eq!(of(7, 8, 7).real(7, 8), cred(7, 8, &[5], Caps::CHOWN));
        assert_eq!((of(7, 8, 7).real(7, 9), of(7, 8, 7).real(0, 8)), (None, None));
        // root in another group is no stronger
        assert_eq!(of(0, 8, 0).real(0, 9), cred(0, 9, &[], Caps::CHOWN));
        assert_eq!(of(7, 8, 7).accessing(7, 8), cred(7, 8, &[5], Caps::CHOWN));
        // set-uid programs
        assert_eq!(of(0, 8, 7).accessing(7, 8), cred(7, 8, &[5], Caps::NONE));
        assert_eq!(of(7, 8, 0).accessing(0, 8), cred(0, 8, &[5], Caps::FOWNER));
        let own = std::fs::read_to_string("/proc/thread-self/status").ok().and_then(|text| Status::parse(&text));
        assert_eq!(own.map(|own| own.uid), Some(rustix::process::geteuid().as_raw()));
    }
}
