//! The facts that `zpool status` shows about a pool, as text or as JSON.

use std::sync::Arc;

use pool::{ErrorEntry, Pool};
use site::iostats::{self, Record};
use vdev::Direction;

use super::activity::Activity;
use super::leaf_work::Work;
use super::reason::{self, Reason};
use super::vdevs::{NameFlags, Vdev, Vdevs};
use crate::error::{Failure, failed};
use crate::here::here;
use crate::shown;

/// The options of the command.
pub(super) struct Options {
    pub(super) names: NameFlags,
    pub(super) verbose: bool,
    pub(super) explain: bool,
    pub(super) parsable: bool,
    pub(super) dedup: bool,
    pub(super) unhealthy: bool,
    pub(super) slow: bool,
    pub(super) power: bool,
    pub(super) direct: bool,
    pub(super) initialize: bool,
    pub(super) trim: bool,
}

impl Options {
    /// The kinds of work on devices that are shown.
    pub(super) fn work(&self) -> impl Iterator<Item = Work> {
        [(self.initialize, Work::Initialize), (self.trim, Work::Trim)]
            .into_iter()
            .filter(|(told, _)| *told)
            .map(|(_, work)| work)
    }
}

/// The facts that are shown about a pool.
pub(super) struct Facts {
    pub(super) pool: Arc<Pool>,
    pub(super) vdevs: Vdevs,
    pub(super) activity: Activity,
    pub(super) errors: Vec<ErrorEntry>,
    pub(super) reason: Reason,
    pub(super) record: Record,
}

impl Facts {
    pub(super) fn of(pool: &Arc<Pool>) -> Result<Facts, Failure> {
        let mut vdevs = Vdevs::of_pool(pool, &here().devices(pool))?;
        let activity = Activity::of(pool)?;
        let record = iostats::record(pool.guid());
        let met: Vec<_> = record.lost.iter().copied().collect();
        let errors = pool.errlog_with(&met).map_err(|e| failed(format!("cannot open '{}': {e}", pool.name())))?;
        vdevs.set_errors(&record.errors);
        let suspended = site::suspended::of(pool.guid());
        suspended.iter().for_each(|suspended| vdevs.set_states(suspended));
        let reason = reason::of_pool(pool, &vdevs, &activity, errors.len(), None);
        let reason = suspended.as_ref().map_or(reason, Reason::of_suspended);
        Ok(Facts { pool: pool.clone(), vdevs, activity, errors, reason, record })
    }
}

/// The number of slow operations of a device since the import.
pub(super) fn slow(record: &Record, vdev: &Vdev) -> u64 {
    record.devices.get(&vdev.guid).map_or(0, |io| io.slow(Direction::Read).saturating_add(io.slow(Direction::Write)))
}

/// Each damaged object once, as `zpool status -v` calls it.
pub(super) fn damaged(facts: &Facts) -> Vec<String> {
    let mut objects: Vec<(u64, u64)> = facts.errors.iter().map(|e| (e.objset, e.object)).collect();
    objects.sort_unstable();
    objects.dedup();
    objects.into_iter().map(|(objset, object)| path_of(&facts.pool, objset, object)).collect()
}

/// The path of an object (OpenZFS: `zpool_obj_to_path`). Nothing is mounted, so a file is shown as `dataset:path`.
fn path_of(pool: &Arc<Pool>, objset: u64, object: u64) -> String {
    if objset == 0 {
        return format!("<metadata>:<{object:#x}>");
    }
    let Ok(dataset) = pool.dataset_by_id(objset) else {
        return format!("<{objset:#x}>:<{object:#x}>");
    };
    let path = zpl::FileSystem::open(&dataset).and_then(|fs| fs.path_of(object));
    match path {
        Ok(path) => format!("{}:{}", dataset.name(), shown::name(&path)),
        Err(_) => format!("{}:<{object:#x}>", dataset.name()),
    }
}
