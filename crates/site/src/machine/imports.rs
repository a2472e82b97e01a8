//! Requests about pools that are not imported, or are about to be. They are found by their configuration.
//!
//! An import that fails before the pool is opened for writing answers with the configuration, and in its list `load_info` with what is known of the failure:
//! `errno` and `error` if the pool does not open, in `missing_vdevs` a tree of the log devices that are absent if nothing else is, and in `rewind_info` the
//! older state that could be loaded ([`Rewind`]).

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Errno, Guid, Txg, tasks};
use control::stats::VdevStats;
use control::{Control, Failed, Ioc, TRANSIENT, stats};
use nvlist::{NvList, Value as Nv};
use ondisk::label::key;
use pool::prop::check_pool_value;
use pool::{Error as PoolError, OpenOptions, Pool, Spa, Value};
use vdev::import::Candidate;
use vdev::{VdevConfig, VdevState, VdevTree};

use super::Session;
use super::pools::{Held, Open};
use crate::error::opening;
use crate::import::{How, Import, is_foreign, takes_missing_logs};
use crate::rewind::{LOAD_POLICY, Policy, Rewind};
use crate::tryimport::{ERRNO, ERROR, LOAD_INFO, MISSING_VDEVS, try_import};
use crate::{Error, Imported, Query, devices, records, writing};

/// The state of a pool that is imported, and of one that does not open (OpenZFS: `pool_state_t`).
const STATE_ACTIVE: u64 = 0;
const STATE_UNAVAIL: u64 = 6;

impl Session {
    pub(super) fn configs(&self) -> Result<NvList, Failed> {
        let mut out = NvList::new();
        for record in self.machine.site.all().map_err(opening)? {
            let (mut config, state) = match tasks::never_waiting(|| self.machine.site.open_anew(&record)) {
                Ok((pool, _)) => (stats::stored(pool.config()), STATE_ACTIVE),
                // as far as its labels tell of it
                Err(_) => {
                    let found = devices::candidate(&record).ok();
                    (found.map(|found| stats::stored(&found.config)).unwrap_or_default(), STATE_UNAVAIL)
                }
            };
            config.insert(key::POOL_NAME, record.name.as_str());
            config.insert(key::POOL_GUID, record.guid.0);
            config.insert(key::POOL_STATE, state);
            out.insert(&record.name, config);
        }
        Ok(out)
    }

    pub(super) fn try_import(&self, input: &NvList) -> Result<NvList, Failed> {
        let none = NvList::new();
        let config = input.get_nvlist("config").unwrap_or(&none);
        let (candidate, policy) = (found(config, input)?, Policy::of(config));
        let options = OpenOptions {
            txg: policy.txg.map(Txg),
            missing_log_ok: takes_missing_logs(input)?,
            verify: config.contains(LOAD_POLICY).then(|| policy.verify()),
            ..OpenOptions::default()
        };
        Ok(try_import(&candidate, &options))
    }

    pub(super) fn import(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let none = NvList::new();
        let config = input.get_nvlist("config").unwrap_or(&none);
        let props = input.get_nvlist("props").unwrap_or(&none);
        if config.get_u64(key::POOL_GUID) != input.get_u64("guid") {
            return Err(invalid("the configuration is not that of the pool"));
        }
        let stored = stored_props(props)?;
        let candidate = found(config, input)?;
        let how = How::of(name, &candidate, input)?;
        let (readonly, dry_run) = (how.readonly, how.policy.dry_run);
        let import = Import::begin(&self.machine.site, &candidate, how).map_err(opening)?;
        let (mut answer, mut info) = (config.clone(), NvList::new());
        let seen = self.load(&import, &mut info);
        answer.insert(LOAD_INFO, info);
        let seen = seen.map_err(|failed| Failed { out: Box::new(answer.clone()), ..failed })?;
        match (dry_run, readonly) {
            (true, _) => {}
            (false, true) => import.read_only(&seen).map_err(opening)?,
            (false, false) => self.import_to_write(import, stored)?,
        }
        Ok(answer)
    }

    /// Opens a pool for reading as its import finds it; what is to be told of that comes into `info`.
    fn load(&self, import: &Import<'_>, info: &mut NvList) -> Result<Arc<Pool>, Failed> {
        let (candidate, how) = (import.candidate(), import.how());
        // a label without a hostid, or with 0, is of no host
        let of_a_host = candidate.hostid.is_some_and(|hostid| hostid != 0);
        if of_a_host && is_foreign(candidate) && !how.force {
            let why = "pool was previously in use from another system";
            return Err(control::Error::Opening(Errno::EREMOTEIO, why.into()).into());
        }
        let seen = import.look().map_err(|e| {
            if let Some(logs) = missing_logs(candidate, &e) {
                info.insert(MISSING_VDEVS, logs);
            }
            let lacks_devices = lacks_devices(candidate, &e);
            let mut failed = Failed::from(e);
            if lacks_devices {
                failed.errno = Errno::ENXIO;
            }
            info.insert(ERRNO, failed.errno);
            info.insert(ERROR, failed.error.to_string());
            failed
        })?;
        let rewind = Rewind::find(candidate, &seen);
        if let Some(rewind) = &rewind {
            rewind.put(info);
        }
        if how.policy.txg.is_none() && !how.policy.rewind && rewind.is_some() {
            let why = "the newest state of the pool cannot be used";
            return Err(control::Error::Opening(Errno::EIO, why.into()).into());
        }
        if how.readonly {
            seen.watch_others(&writing::hooks(self.machine.site.front()).env)?;
        }
        Ok(seen)
    }

    /// Opens a pool for writing, sets its properties, and remembers it as imported if it has them all. It stays open then.
    fn import_to_write(&self, import: Import<'_>, stored: NvList) -> Result<(), Failed> {
        let guid = import.candidate().guid;
        // nobody else opens it meanwhile
        let place = self.machine.place(guid);
        let mut filling = place.write();
        self.machine.go_on()?;
        let locked = import.lock()?;
        let spa = import.write(locked, filling.expects(import.record()))?;
        match self.set_and_remember(&spa, stored, import) {
            Ok(record) => {
                self.machine.site.keep(&spa);
                filling.fill(Open::new(record, Held::Writing(spa)));
                Ok(())
            }
            Err(failed) => {
                // the error is what counts; a pool that is not imported is in use by nobody
                let _forgotten = records::forget(guid);
                let _exported = self.machine.leave_written(&spa, || spa.export());
                filling.empty();
                Err(failed)
            }
        }
    }

    /// Sets properties of a pool that was opened to be imported, and remembers it as imported.
    fn set_and_remember(&self, spa: &Arc<Spa>, props: NvList, import: Import<'_>) -> Result<Imported, Failed> {
        if !props.is_empty() {
            let mut input = NvList::new();
            input.insert("props", props);
            Control::new(spa.clone(), self.caller.clone()).call(Ioc::PoolSetProps, spa.name(), &input)?;
        }
        import.remember(spa)
    }
}

/// Returns those properties of an import that are stored, if the pool can have them.
fn stored_props(props: &NvList) -> Result<NvList, Failed> {
    let mut stored = NvList::new();
    for (name, value) in props.iter().filter(|(name, _)| !TRANSIENT.contains(name)) {
        let plain = match value {
            Nv::Uint64(number) => Value::Number(*number),
            Nv::String(text) => Value::String(text.to_string_lossy().into_owned()),
            _ => return Err(invalid(&format!("value of '{name}' is neither a number nor text"))),
        };
        check_pool_value(name, &plain).map_err(|bad| invalid(&format!("'{name}': {}", bad.why())))?;
        stored.insert(name, value.clone());
    }
    Ok(stored)
}

/// The pool with this configuration: on the `devices` that a request names, else on those that the configuration names.
///
/// The labels are read here though the caller has read them to find the pool. What the request has of them is an address: it may be old, or made up by a client that
/// wants another pool's devices taken for this one's, and between the two looks a device may have gone, or another host may have imported the pool. The
/// state, the host and the txg that decide over an import are those that are on the devices now. OpenZFS reads them again as well
/// (`vdev_label_read_config`, `spa_ld_select_uberblock`). Only the pool's own devices are read, and not all that the caller went through.
fn found(config: &NvList, input: &NvList) -> Result<Candidate, Failed> {
    let guid = Guid(config.get_u64(key::POOL_GUID).ok_or_else(|| invalid("the configuration has no guid"))?);
    let tree = config.get_nvlist(key::VDEV_TREE).ok_or_else(|| invalid("the configuration has no vdevs"))?;
    let mut paths = match input.get("devices") {
        Some(Nv::StringArray(paths)) => paths.iter().map(|path| path_of(path)).collect(),
        _ => paths_in(tree)?,
    };
    // a caller names devices, and has nothing else looked through
    let is_device = |meta: std::fs::Metadata| meta.is_file() || meta.file_type().is_block_device();
    paths.retain(|path| path.is_absolute() && path.metadata().is_ok_and(is_device));
    let all = vdev::import::scan(&paths)?;
    let name = || config.get_str(key::POOL_NAME).unwrap_or_default().to_owned();
    all.into_iter().find(|found| found.guid == guid).ok_or_else(|| opening(Error::Gone { name: name() }))
}

fn path_of(bytes: &[u8]) -> PathBuf {
    Path::new(std::ffi::OsStr::from_bytes(bytes)).to_owned()
}

/// The paths in a tree of vdevs, with those of spares and caches.
fn paths_in(tree: &NvList) -> Result<Vec<PathBuf>, vdev::Error> {
    let leaves = VdevConfig::parse(tree)?;
    let mut paths: Vec<PathBuf> = leaves.leaves().filter_map(|leaf| leaf.path.as_ref().map(PathBuf::from)).collect();
    let aside = [key::SPARES, key::L2CACHE].into_iter().filter_map(|key| tree.get_nvlist_array(key)).flatten();
    paths.extend(aside.filter_map(|vdev| vdev.get_str(key::PATH)).map(PathBuf::from));
    Ok(paths)
}

/// Whether a pool does not open because too many of its devices are absent.
fn lacks_devices(candidate: &Candidate, why: &PoolError) -> bool {
    let find = |guid| candidate.device(guid).map(|found| found.device.clone());
    match why {
        PoolError::MissingVdevs(_) => true,
        PoolError::Unreadable { .. } => {
            let tree = candidate.vdev_config().and_then(|config| VdevTree::open(&config, &find));
            tree.is_ok_and(|tree| tree.status().state == VdevState::CantOpen)
        }
        _ => false,
    }
}

/// The tree of the absent log devices of a pool that does not open, if no other top-level vdev is missing.
fn missing_logs(candidate: &Candidate, why: &PoolError) -> Option<NvList> {
    let PoolError::MissingVdevs(_) = why else { return None };
    let options = OpenOptions { missing_log_ok: true, ..OpenOptions::default() };
    let query = Query::of_found(Pool::open(candidate, &options).ok()?, devices::paths(candidate));
    let mut input = NvList::new();
    input.insert("brief", ());
    let config = query.call(Ioc::PoolStats, query.name(), &input).ok()?;
    let root = config.get_nvlist(key::VDEV_TREE)?;
    let is_absent = |vdev: &NvList| VdevStats::of(vdev).health().0 <= VdevState::CantOpen;
    let tops = VdevConfig::parse(root).ok()?.children.into_iter();
    let logs = tops.filter(|top| top.is_log || top.alloc_bias.as_deref() == Some("log")).map(|top| top.raw);
    let logs: Vec<NvList> = logs.filter(is_absent).collect();
    let mut root = root.clone();
    root.insert(key::CHILDREN, logs.clone());
    (!logs.is_empty()).then_some(root)
}

fn invalid(why: &str) -> Failed {
    control::Error::Invalid(why.to_owned()).into()
}
