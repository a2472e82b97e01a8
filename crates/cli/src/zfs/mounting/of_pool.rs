//! All file systems of a pool: mounted after an import, unmounted before an export (OpenZFS: `zpool_enable_datasets`, `zpool_disable_datasets`).

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::Guid;
use mounts::{Mounts, Source};
use pool::Spa;

use super::options::Options;
use super::{Ask, CANMOUNT_ON, Facts, mount, still, unmount, wanted};
use crate::console;
use crate::error::{Failure, failed};
use crate::names::Types;
use crate::pools;
use crate::zfs::select::Selection;

/// Threads that mount. What each does is mostly a wait for the kernel and for devices.
const THREADS: usize = 8;

/// A file system to be mounted, and the open pool that it is in.
pub(in crate::zfs) struct Wanted {
    pub(in crate::zfs) facts: Facts,
    pub(in crate::zfs) source: Source,
}

/// Mounts file systems at their mount points, one inside of another after that, `told` after each how many there were. Failures are printed. Returns
/// whether all could be mounted.
pub(in crate::zfs) fn mount_all(
    table: &Mounts,
    all: &[Wanted],
    options: &Options,
    ask: Ask,
    told: impl Fn(usize) + Sync,
) -> Result<bool, Failure> {
    let points: Vec<&Path> = all.iter().map(|one| Path::new(&one.facts.mountpoint)).collect();
    // a question for a key is asked before the next
    let threads = if ask.loads_keys { 1 } else { THREADS };
    let running = console::current();
    let (failures, done) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    mounts::in_order(&points, threads, |at| {
        running.enter(|| {
            let Some(one) = all.get(at).filter(|_| !console::is_interrupted()) else { return };
            if let Err(failure) = mount(table, &one.source, &one.facts, options, ask) {
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
            }
            told(done.fetch_add(1, Ordering::Relaxed) + 1);
        });
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    let whole = failures.is_empty();
    for failure in failures {
        match failure {
            Failure::Failed(why) => eprintln!("{why}"),
            other => return Err(other),
        }
    }
    Ok(whole)
}

/// Mounts what is to be mounted of a pool that was imported. Returns whether all could be.
pub(crate) fn enable(
    pool: &str,
    spa: Option<&Arc<Spa>>,
    options: &[String],
    loads_keys: bool,
) -> Result<bool, Failure> {
    let Some(table) = console::mounts() else { return Ok(true) };
    let options = Options::parse(options.iter().map(String::as_str))
        .map_err(|_| failed(format!("cannot mount '{pool}': Invalid argument")))?;
    let source = match spa {
        Some(spa) => Source::Live(spa.clone()),
        None => still(pools::open(&pools::find(pool)?)?),
    };
    let mut selection = Selection::new(Types::FILESYSTEMS);
    selection.recurse = true;
    let (entries, whole) = selection.run(&[pool.to_owned()], &wanted())?;
    let mut all = Vec::new();
    for dataset in &entries {
        let facts = Facts::of(dataset)?;
        // what has no key is mounted once that is loaded
        let is_ready = (!facts.lacks_key || loads_keys) && !facts.inconsistent;
        if facts.canmount == CANMOUNT_ON && is_ready && facts.mountable(false).is_some() {
            all.push(Wanted { facts, source: source.clone() });
        }
    }
    Ok(mount_all(&table, &all, &options, Ask { named: false, ..Ask::FOLLOWS }, |_| {})? && whole)
}

/// Mounts the root file system of a pool that was created.
pub(crate) fn mount_root(pool: &str, spa: &Arc<Spa>) -> Result<(), Failure> {
    let Some(table) = console::mounts() else { return Ok(()) };
    let facts = Facts::now(pool)?;
    if facts.canmount != CANMOUNT_ON {
        return Ok(());
    }
    mount(&table, &Source::Live(spa.clone()), &facts, &Options::default(), Ask::FOLLOWS)
}

/// Unmounts all of a pool that is to be exported or destroyed. Returns what is to be called once it is, which removes mount points that came from above.
pub(crate) fn disable(guid: Guid, force: bool) -> Result<impl FnOnce(), Failure> {
    let mut mounted = Vec::new();
    if let Some(table) = console::mounts() {
        let entries = table.of_pool(guid);
        // it only tells of the mount points: what cannot be read is left
        mounted.extend(entries.iter().filter_map(|entry| Facts::now(&entry.name()).ok()));
        entries.iter().try_for_each(|entry| unmount(&table, entry, force))?;
    }
    Ok(move || mounted.iter().for_each(Facts::remove_point))
}
