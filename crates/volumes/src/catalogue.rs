//! The volumes of the pools of a machine, by their names.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Errno;
use control::Failed;
use pool::{Dataset, KeyStatus, Kind, ListOptions, Pool};
use site::Machine;
use zpl::Zvol;

use crate::Device;
use crate::device::Used;

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

    /// Returns the volumes of a pool that are there, with the snapshots that are, in the order of `zfs list`.
    pub(crate) fn in_pool(&self, pool: &str) -> Result<Vec<Dataset>, Failed> {
        let view = self.view(pool)?;
        let mut found = Vec::new();
        for entry in view.list(view.name(), &ListOptions::DATASETS)? {
            if let Some(head) = entry.dataset() {
                found.extend(devices_of(head)?);
            }
        }
        Ok(found)
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

    /// Opens the volume or snapshot of this name: it is in use from now on. `None` if it is not there.
    pub(crate) fn open(&self, name: &str) -> Result<Option<Device>, Failed> {
        let Some(seen) = self.look_up(name)? else { return Ok(None) };
        let pool = name.split(['/', '@']).next().unwrap_or_default();
        // a pool that is gone by now is as one that has never been
        let Some(borrowed) = if_there(self.machine.borrow(pool, true))? else { return Ok(None) };
        let device = match borrowed.spa() {
            Some(spa) if !seen.is_snapshot() => Device::live(spa, name, false).map_err(Failed::from),
            _ => {
                let dataset = borrowed.view()?.dataset(name)?;
                let held = dataset.long_hold()?;
                Zvol::open(&dataset).map(|volume| Device::still(volume, Some(held))).map_err(Failed::from)
            }
        };
        Ok(if_there(device)?.map(|device| device.of(borrowed, Used::new(&self.used))))
    }
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
fn is_there(dataset: &Dataset) -> Result<bool, pool::Error> {
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
