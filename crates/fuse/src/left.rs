//! Mounts whose server died: the kernel answers ENOTCONN at their mount points until they are unmounted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use crate::kernel;

/// How long mounts that are asked at once have to answer. One that takes longer has somebody who answers it, however slowly.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// How many are asked at once.
const AT_ONCE: usize = 64;

/// A mount of one of this crate's kinds, by whatever process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// It is a directory of devices, and no file system.
    pub is_devices: bool,
    /// The name of the dataset; of a directory of devices what it was mounted as.
    pub source: String,
    /// The mount point.
    pub path: PathBuf,
}

/// Returns whether this system has FUSE.
#[must_use]
pub fn is_available() -> bool {
    Path::new(kernel::DEVICE).exists()
}

/// Returns the mounts of this crate's kinds in the mount table, in its order; none if it cannot be read.
#[must_use]
pub fn all_mounts() -> Vec<Seen> {
    kernel::table().map(|table| kernel::ours(&table)).unwrap_or_default()
}

/// Unmounts the mounts of this crate's kinds that nobody answers, of those that are wanted, the last one first. Returns them. One that
/// this user may not unmount, or that does not say in half a second that it is dead, is passed over.
pub fn unmount_dead(is_wanted: impl Fn(&Seen) -> bool) -> Vec<Seen> {
    let wanted: Vec<Seen> = all_mounts().into_iter().rev().filter(|seen| is_wanted(seen)).collect();
    let mut gone = Vec::new();
    for some in wanted.chunks(AT_ONCE) {
        for seen in dead_of(some) {
            // again, as another process may have unmounted it meanwhile, and mounted what lives
            if !dead_of(std::slice::from_ref(&seen)).is_empty() && unmount(&seen) {
                tracing::info!(target: "zuse::fuse", source = seen.source, at = %seen.path.display(), "unmounted what a dead process left");
                gone.push(seen);
            }
        }
    }
    gone
}

/// Returns those of which the kernel says that nobody answers, in their order. Each is asked in a thread of its own, as one who lives may not answer.
fn dead_of(mounts: &[Seen]) -> Vec<Seen> {
    let (tell, told) = channel();
    for (n, seen) in mounts.iter().enumerate() {
        let (tell, path) = (tell.clone(), seen.path.clone());
        let ask = move || {
            // what the kernel has cached is not asked for
            let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
            let asked = rustix::fs::statx(rustix::fs::CWD, &path, how, StatxFlags::BASIC_STATS);
            let dead = asked.is_err_and(|errno| [Errno::NOTCONN, Errno::CONNABORTED].contains(&errno));
            // nobody may wait any more
            let _ = tell.send((n, dead));
        };
        // one that cannot be asked is not known to be dead
        let _asked = std::thread::Builder::new().name("fuse-left".to_owned()).spawn(ask);
    }
    drop(tell);
    let until = Instant::now() + ANSWER_MAX;
    let mut dead = BTreeSet::new();
    while let Ok((n, is_dead)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if is_dead {
            dead.insert(n);
        }
    }
    dead.into_iter().filter_map(|n| mounts.get(n).cloned()).collect()
}

fn unmount(seen: &Seen) -> bool {
    match kernel::detach(seen) {
        Err(Errno::PERM) => kernel::unmount_path_by_helper(&seen.path),
        done => done.unwrap_or(false),
    }
}
