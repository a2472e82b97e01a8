//! The facts that `zpool status` shows about a pool, as text or as JSON.

use base::ObjectId;
use control::stats::{Activity, Dedup, ERROR_COUNT, SUSPENDED};
use control::{ERROR_WORDS, Ioc};
use nvlist::NvList;
use site::Query;

use super::leaf_work::Work;
use super::reason::{self, Reason};
use super::vdevs::{NameFlags, Vdevs};
use crate::error::{Failure, failed};
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
    /// The kinds of work on devices, and whether they are asked for.
    pub(super) fn work(&self) -> [(bool, Work); 2] {
        [(self.initialize, Work::Initialize), (self.trim, Work::Trim)]
    }
}

/// The facts that are shown about a pool.
pub(super) struct Facts {
    pub(super) query: Query,
    /// Its configuration, with figures.
    pub(super) config: NvList,
    pub(super) vdevs: Vdevs,
    pub(super) activity: Activity,
    /// The number of damaged blocks; `None` if it cannot be read as the pool is suspended.
    pub(super) errors: Option<u64>,
    pub(super) reason: Reason,
}

impl Facts {
    pub(super) fn of(query: Query) -> Result<Facts, Failure> {
        let config = ask(&query, Ioc::PoolStats, &NvList::new())?;
        let vdevs = Vdevs::of(&config)?;
        let activity = Activity::of(&config);
        let errors = match config.get_u64(ERROR_COUNT) {
            None if config.contains(SUSPENDED) => None,
            // it is asked for the reason why it cannot be read
            None => Some(error_words(&query)?.len() as u64),
            known => known,
        };
        let reason = match config.get_u64(SUSPENDED) {
            Some(failmode) => Reason::of_suspended(failmode),
            None => reason::of_pool(&config, &vdevs, &activity, errors.unwrap_or(0), None),
        };
        Ok(Facts { query, config, vdevs, activity, errors, reason })
    }

    /// The name of the pool.
    pub(super) fn name(&self) -> &str {
        self.query.name()
    }

    /// The dedup tables. They are asked for here, as their logs are read for it.
    pub(super) fn dedup(&self) -> Result<Dedup, Failure> {
        let mut input = NvList::new();
        ["brief", "dedup"].into_iter().for_each(|key| input.insert(key, ()));
        let config = ask(&self.query, Ioc::PoolStats, &input)?;
        Dedup::of(&config).ok_or_else(|| failed(format!("cannot open '{}': no figures of dedup tables", self.name())))
    }
}

fn ask(query: &Query, ioc: Ioc, input: &NvList) -> Result<NvList, Failure> {
    query.call(ioc, query.name(), input).map_err(|e| failed(format!("cannot open '{}': {e}", query.name())))
}

/// The blocks in the error log.
fn error_words(query: &Query) -> Result<Vec<[u64; ERROR_WORDS]>, Failure> {
    let out = ask(query, Ioc::ErrorLog, &NvList::new())?;
    Ok(out.get_u64_array("errors").unwrap_or(&[]).as_chunks::<ERROR_WORDS>().0.to_vec())
}

/// Each damaged object once, as `zpool status -v` calls it.
pub(super) fn damaged(facts: &Facts) -> Result<Vec<String>, Failure> {
    let mut objects: Vec<(u64, u64)> =
        error_words(&facts.query)?.into_iter().map(|[objset, object, ..]| (objset, object)).collect();
    objects.sort_unstable();
    objects.dedup();
    Ok(objects.into_iter().map(|(objset, object)| path_of(&facts.query, ObjectId(objset), ObjectId(object))).collect())
}

/// The path of an object (OpenZFS: `zpool_obj_to_path`). Nothing is mounted, so a file is shown as `dataset:path`.
fn path_of(query: &Query, objset: ObjectId, object: ObjectId) -> String {
    if objset == ObjectId::MOS {
        return format!("<metadata>:<{object:#x}>");
    }
    let about = |ioc, name: &str, object: ObjectId| {
        let mut input = NvList::new();
        input.insert("obj", object.0);
        query.call(ioc, name, &input).ok()
    };
    let dataset = about(Ioc::DsobjToDsname, query.name(), objset);
    let Some(dataset) = dataset.as_ref().and_then(|out| out.get_str("name")) else {
        return format!("<{objset:#x}>:<{object:#x}>");
    };
    let found = about(Ioc::ObjToPath, dataset, object);
    match found.as_ref().and_then(|out| out.get("path")) {
        Some(nvlist::Value::String(path)) => format!("{dataset}:{}", shown::name(path.as_bytes())),
        _ => format!("{dataset}:<{object:#x}>"),
    }
}
