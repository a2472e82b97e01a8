//! The volumes of the pools of a machine, by their names.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Errno;
use control::Failed;
use fuse::Identity;
use pool::{Dataset, KeyStatus, Kind, Pool, Spa};
use site::Machine;
use zpl::Zvol;

use crate::Device;
use crate::device::Used;
use crate::directory::identity;

/// The value of `volmode` with which a volume is not there.
const VOLMODE_NONE: u64 = 3;
/// The value of `snapdev` with which the snapshots of a volume are there.
const SNAPDEV_VISIBLE: u64 = 1;
/// What names that users do not see have in them.
const SPECIAL: [char; 2] = ['$', '%'];

/// The volumes of the pools of a machine. A clone is the same.
#[derive(Clone)]
pub struct Volumes {
    machine: Machine,
    used: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Volumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volumes").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl Volumes {
    /// The volumes of all pools that this machine has open.
    #[must_use]
    pub fn of(machine: &Machine) -> Volumes {
        Volumes { machine: machine.clone(), used: Arc::default() }
    }

    /// Returns whether a volume is in use.
    #[must_use]
    pub fn are_used(&self) -> bool {
        self.used.load(Ordering::SeqCst) > 0
    }

    /// Returns the names of the pools that are open.
    pub(crate) fn pools(&self) -> Vec<String> {
        self.machine.open_pools().into_iter().map(|record| record.name).collect()
    }

    /// Looks at a pool as it is now.
    pub(crate) fn view(&self, pool: &str) -> Result<Arc<Pool>, Failed> {
        self.machine.borrow(pool, false)?.view()
    }

    /// Returns the volumes of a pool that are there, with the snapshots that are, in the order of `zfs list`. A dataset that cannot be read hides no other.
    pub(crate) fn in_pool(&self, pool: &str) -> Result<Vec<Dataset>, Failed> {
        let view = self.view(pool)?;
        let mut found = Vec::new();
        let mut dirs = vec![view.dir(view.name())?];
        while let Some(dir) = dirs.pop() {
            if let Some(Some(head)) = seen(dir.name(), dir.head()) {
                found.push((dir.name().to_owned(), seen(head.name(), devices_of(&head)).unwrap_or_default()));
            }
            let below = seen(dir.name(), dir.children()).unwrap_or_default();
            dirs.extend(below.into_iter().filter(|child| !child.is_special()));
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found.into_iter().flat_map(|(_, devices)| devices).collect())
    }

    /// Returns the volume or snapshot of this name, if it is there.
    pub(crate) fn look_up(&self, name: &str) -> Result<Option<Dataset>, Failed> {
        let Some(dataset) = self.dataset(name)? else { return Ok(None) };
        Ok(if is_there(&dataset)? { Some(dataset) } else { None })
    }

    /// Returns the dataset of this name, whatever it is.
    pub(crate) fn dataset(&self, name: &str) -> Result<Option<Dataset>, Failed> {
        if name.is_empty() || name.contains(SPECIAL) || name.contains('#') {
            return Ok(None);
        }
        let pool = name.split(['/', '@']).next().unwrap_or_default();
        let found = self.view(pool).and_then(|view| Ok(view.dataset(name)?));
        if_there(found)
    }

    /// Opens the volume or snapshot of this name: it is in use from now on. `None` if it is not there. The name may have become another's meanwhile: what is returned is which one was opened, and it is that one which is
    /// checked to be there.
    pub(crate) fn open(&self, name: &str) -> Result<Option<(Identity, Device)>, Failed> {
        // what is not there is not opened
        let Some(seen) = self.look_up(name)? else { return Ok(None) };
        let pool = name.split(['/', '@']).next().unwrap_or_default();
        // a pool that is gone by now is as one that has never been
        let Some(borrowed) = if_there(self.machine.borrow(pool, true))? else { return Ok(None) };
        let opened = match borrowed.spa() {
            Some(spa) if !seen.is_snapshot() => live(spa, name),
            _ => borrowed.view().and_then(|view| still(&view.dataset(name)?)),
        };
        let Some((dataset, device)) = if_there(opened)? else { return Ok(None) };
        if !is_there(&dataset)? {
            return Ok(None);
        }
        Ok(Some((identity(&dataset), device.of(borrowed, Used::new(&self.used)))))
    }
}

/// Opens a volume of this name, and returns which it is.
fn live(spa: &Arc<Spa>, name: &str) -> Result<(Dataset, Device), Failed> {
    let (device, number) = Device::open_live(spa, name, false)?;
    // it is in use, and stays
    let dataset = spa.view()?.dataset_by_id(number)?;
    Ok((dataset, device))
}

/// Opens a volume or snapshot that does not change.
fn still(dataset: &Dataset) -> Result<(Dataset, Device), Failed> {
    let held = dataset.long_hold()?;
    let volume = Zvol::open(dataset)?;
    Ok((dataset.clone(), Device::still(volume, Some(held))))
}

/// What could be found out of a dataset; that of another is not less for it.
pub(crate) fn seen<T>(name: &str, found: Result<T, pool::Error>) -> Option<T> {
    let warn = |error: &pool::Error| {
        tracing::warn!(target: "zuse::volumes", dataset = %name, %error, "left out, as it cannot be read");
    };
    found.inspect_err(warn).ok()
}

/// What is not there is no failure.
fn if_there<T>(found: Result<T, Failed>) -> Result<Option<T>, Failed> {
    match found {
        Ok(found) => Ok(Some(found)),
        // a name that is none is one of nothing
        Err(failed) if [Errno::ENOENT, Errno::EINVAL, Errno::ENAMETOOLONG].contains(&failed.errno) => Ok(None),
        Err(failed) => Err(failed),
    }
}

/// Returns a head, if it is a volume that is there, and those of its snapshots that are.
pub(crate) fn devices_of(head: &Dataset) -> Result<Vec<Dataset>, pool::Error> {
    if !is_there(head)? {
        return Ok(Vec::new());
    }
    let mut found = vec![head.clone()];
    if shows_snapshots(head)? {
        found.extend(head.snapshots()?.into_iter().filter(|snap| !snap.short_name().contains(SPECIAL)));
    }
    Ok(found)
}

/// Returns whether a dataset is a volume, or a snapshot of one, that is there.
pub(crate) fn is_there(dataset: &Dataset) -> Result<bool, pool::Error> {
    if dataset.head_kind()? != Kind::Volume || dataset.is_inconsistent() {
        return Ok(false);
    }
    let head = dataset.head()?;
    let is_hidden = number(&head, "volmode")? == Some(VOLMODE_NONE);
    let has_key = dataset.key_status()? != KeyStatus::Unavailable;
    Ok(!is_hidden && has_key && (!dataset.is_snapshot() || shows_snapshots(&head)?))
}

fn shows_snapshots(head: &Dataset) -> Result<bool, pool::Error> {
    Ok(number(head, "snapdev")? == Some(SNAPDEV_VISIBLE))
}

fn number(dataset: &Dataset, property: &str) -> Result<Option<u64>, pool::Error> {
    Ok(dataset.prop(property)?.and_then(|prop| prop.value.number()))
}
