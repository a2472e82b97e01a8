//! The files and directories, and what is in them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use base::{Errno, tunable};
use site::{LiveHeld, LivePool, Machine};

use crate::files;
use crate::layout::Header;

/// The directory of kstats, and that of the module `zfs` in it.
const KSTAT: &str = "kstat";
const ZFS: &str = "zfs";
/// The directory of tunables.
const PARAMETERS: &str = "parameters";
/// The longest text that a parameter takes, in bytes; the longest value is a number of 20 digits.
pub(crate) const PARAMETER_MAX: usize = 4096;
/// Modes of what is read and written.
const READ: u16 = 0o444;
const READ_BY_OWNER: u16 = 0o400;
const WRITE: u16 = 0o644;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// A directory.
    Directory,
    /// A file with these permissions.
    File {
        /// As `chmod` takes them.
        mode: u16,
    },
}

/// The tree of a machine. A path in it is relative, and that of its root empty.
pub struct Tree {
    machine: Machine,
    begun: Instant,
    /// The nanoseconds from the start of the machine to that.
    begun_ns: u64,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").finish_non_exhaustive()
    }
}

impl Tree {
    /// The tree of the pools that a machine has open.
    #[must_use]
    pub fn new(machine: Machine) -> Tree {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        let seconds = uptime.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        Tree { machine, begun: Instant::now(), begun_ns: (seconds * 1e9) as u64 }
    }

    /// Returns what is at a path; `None` if there is nothing.
    #[must_use]
    pub fn item(&self, path: &str) -> Option<Item> {
        match split(path).as_slice() {
            [] | [KSTAT | PARAMETERS] | [KSTAT, ZFS] => Some(Item::Directory),
            [PARAMETERS, name] => tunable_of(name).map(|_| Item::File { mode: WRITE }),
            [KSTAT, ZFS, name] if files::OF_ALL.contains(name) => Some(Item::File { mode: READ }),
            [KSTAT, ZFS, pool] => self.pool(pool).map(|_| Item::Directory),
            [KSTAT, ZFS, pool, name] => {
                let pool = self.pool(pool)?;
                of_pool(&pool).into_iter().find(|(known, _)| known == name).map(|(_, item)| item)
            }
            _ => None,
        }
    }

    /// Returns what is in a directory, by name; `None` if there is no such directory.
    #[must_use]
    pub fn list(&self, path: &str) -> Option<Vec<(String, Item)>> {
        let directory = |name: &str| (name.to_owned(), Item::Directory);
        match split(path).as_slice() {
            [] => Some(vec![directory(KSTAT), directory(PARAMETERS)]),
            [KSTAT] => Some(vec![directory(ZFS)]),
            [PARAMETERS] => {
                let item = Item::File { mode: WRITE };
                Some(tunable::ALL.iter().map(|tunable| (tunable.name.to_owned(), item)).collect())
            }
            [KSTAT, ZFS] => {
                let mut all: Vec<_> =
                    files::OF_ALL.iter().map(|name| ((*name).to_owned(), Item::File { mode: READ })).collect();
                let pools = self.machine.live_pools().into_iter().map(|pool| pool.record.name);
                all.extend(pools.filter(|name| !files::OF_ALL.contains(&name.as_str())).map(|name| directory(&name)));
                Some(all)
            }
            [KSTAT, ZFS, pool] => self.pool(pool).map(|pool| of_pool(&pool)),
            _ => None,
        }
    }

    /// Returns the text of a file as it is now; `None` if there is no such file.
    #[must_use]
    pub fn read(&self, path: &str) -> Option<String> {
        let header = || Header { id: id_of(path), made_ns: self.begun_ns, read_ns: self.now_ns() };
        match split(path).as_slice() {
            [PARAMETERS, name] => tunable_of(name).map(|tunable| format!("{tunable}\n")),
            [KSTAT, ZFS, name] => files::of_all(name, &self.machine.live_pools(), header()),
            [KSTAT, ZFS, pool, name] => files::of_pool(name, &self.pool(pool)?, header()),
            _ => None,
        }
    }

    /// Sets a parameter, for this process.
    ///
    /// # Errors
    /// ENOENT if there is no such file, EACCES for one that is no parameter, EINVAL for a value that it does not take.
    pub fn write(&self, path: &str, text: &[u8]) -> Result<(), Errno> {
        let name = match split(path).as_slice() {
            [PARAMETERS, name] => tunable_of(name).ok_or(Errno::ENOENT)?.name,
            _ => return Err(self.item(path).map_or(Errno::ENOENT, |_| Errno::EACCES)),
        };
        let value = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?.trim();
        tunable::set(name, value).map_err(|_| Errno::EINVAL)?;
        tracing::info!(target: "zuse::monitor", name, value, "a tunable was set");
        Ok(())
    }

    fn pool(&self, name: &str) -> Option<LivePool> {
        self.machine.live_pools().into_iter().find(|pool| pool.record.name == name)
    }

    fn now_ns(&self) -> u64 {
        self.begun_ns.saturating_add(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The files of a pool.
fn of_pool(pool: &LivePool) -> Vec<(String, Item)> {
    let count = match pool.held {
        LiveHeld::Writing(_) => files::OF_POOL.len(),
        LiveHeld::Reading(_) => files::OF_READ_POOL,
    };
    let mode = |name: &str| if name == "reads" { READ_BY_OWNER } else { READ };
    let own = files::OF_POOL.iter().take(count).map(|name| ((*name).to_owned(), Item::File { mode: mode(name) }));
    own.chain(files::datasets(pool).into_iter().map(|name| (name, Item::File { mode: READ }))).collect()
}

fn tunable_of(name: &str) -> Option<&'static tunable::Tunable> {
    tunable::ALL.iter().copied().find(|tunable| tunable.name == name)
}

/// The names of a path.
fn split(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !name.is_empty()).collect()
}

/// The number of a kstat: the same as long as the program runs, and hardly another one's.
fn id_of(path: &str) -> u32 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    (hasher.finish() >> 33) as u32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use site::{Silent, Site};

    use super::*;

    fn tree() -> Tree {
        Tree::new(Site::new(Arc::new(Silent)).machine())
    }

    #[test]
    fn what_is_listed_is_there_and_can_be_read() {
        let tree = tree();
        let mut directories = vec![String::new()];
        let mut files = 0;
        while let Some(path) = directories.pop() {
            for (name, item) in tree.list(&path).unwrap() {
                let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                assert_eq!(tree.item(&below), Some(item), "{below}");
                match item {
                    Item::Directory => {
                        assert_eq!(tree.read(&below), None);
                        directories.push(below);
                    }
                    Item::File { .. } => {
                        assert!(tree.list(&below).is_none());
                        assert!(tree.read(&below).unwrap().ends_with('\n'), "{below}");
                        files += 1;
                    }
                }
            }
        }
        assert_eq!(files, files::OF_ALL.len() + tunable::ALL.len());
        for absent in
            ["x", "kstat/zfs/t", "kstat/zfs/t/state", "kstat/zfs/arcstats/x", "parameters/zfs_no_such", "kstat/spl"]
        {
            assert_eq!((tree.item(absent), tree.read(absent)), (None, None), "{absent}");
        }
    }

    #[test]
    fn parameters_take_their_values_and_refuse_others() {
        let (tree, path) = (tree(), "parameters/zfs_vdev_nia_credit");
        assert_eq!(tree.read(path).as_deref(), Some("5\n"));
        assert_eq!(tree.write(path, b"7\n"), Ok(()));
        assert_eq!(tree.read(path).as_deref(), Some("7\n"));
        for bad in [&b"many"[..], b"", b"-1", b"\xff", b"1 2"] {
            assert_eq!(tree.write(path, bad), Err(Errno::EINVAL), "{bad:?}");
        }
        assert_eq!(tree.read(path).as_deref(), Some("7\n"));
        assert_eq!(tree.write("parameters/zfs_no_such", b"1"), Err(Errno::ENOENT));
        assert_eq!(tree.write("kstat/zfs/arcstats", b"0"), Err(Errno::EACCES));
        assert_eq!(tree.write("kstat/zfs/no_such", b"0"), Err(Errno::ENOENT));
        // one whose values are words
        assert_eq!(tree.write("parameters/zfs_deadman_failmode", b"7"), Err(Errno::EINVAL));
        assert_eq!(tree.read("parameters/zfs_deadman_failmode").as_deref(), Some("wait\n"));
    }
}
