//! `zpool import`: finds pools on devices, shows them, and imports those that are asked for.
//!
//! A pool is opened for reading first in any case: missing devices and damage are reported before anything is written.
//! With `-o readonly=on` that is all, and the pool is remembered. Otherwise its devices are locked, it is opened for
//! writing, and marked as in use by this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvlist::{NvList, Value};
use ondisk::label::key;
use pool::{KeyStatus, ListOptions, Pool};
use site::import::{How, Import, is_foreign};
use site::{Imported, Query, devices, records};
use vdev::import::{Candidate, PoolState};
use vdev::{VdevState, VdevTree};

use super::activity::ctime;
use super::show::show;
use super::vdevs::{Class, NameFlags, Vdev, Vdevs};
use crate::args::{Parsed, REWIND_TO_CHECKPOINT};
use crate::command::Call;
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::here::here;
use crate::props::Said;
use crate::props::pool::{self as pool_props, When};
use crate::{keys, messages, names, replay, writable};

/// Vdevs are not nested deeper than this.
const VDEV_DEPTH_MAX: usize = 8;
/// The folders that are searched for devices by default.
const DEFAULT_PATHS: [&str; 3] = ["/dev/disk/by-id", "/dev/mapper", "/dev"];

/// The options of the command.
struct Options {
    all: bool,
    destroyed: bool,
    force: bool,
    /// `-F`; with `-n` it is only tried.
    rewind: bool,
    extreme: bool,
    dry_run: bool,
    load_keys: bool,
    /// Not `-N`: logs are replayed.
    mount: bool,
    temporary_name: bool,
    key_location: Option<String>,
    txg: Option<u64>,
    checkpoint: bool,
    missing_log: bool,
    props: Vec<Said>,
}

impl Options {
    fn prop(&self, name: &str) -> Option<&str> {
        self.props.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    fn read_only(&self) -> bool {
        self.prop("readonly") == Some("on")
    }
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let operands = call.args.names();
    let options = options(&call.args, operands.len())?;
    let paths = paths(&call.args)?;
    let mut found = vdev::import::scan(&paths).map_err(|e| failed(format!("cannot discover pools: {e}")))?;
    // it may be the pool that is looked for; most devices of a machine are something else
    let told = call.args.has('d') || operands.is_empty();
    if found.is_empty()
        && told
        && let Some(path) = vdev::import::denied(&paths).first()
    {
        return Err(failed(format!("cannot discover pools: {}: permission denied", path.display())));
    }
    let imported = here().all()?;
    found.retain(|c| !imported.iter().any(|i| i.guid == c.guid.0));
    found.retain(has_sound_name);
    found.retain(|c| (c.state == PoolState::Destroyed) == options.destroyed);

    if let Some(wanted) = operands.first() {
        let candidate = choose(wanted, &operands, &found, &imported)?;
        return import(candidate, operands.get(1).map(String::as_str), &options);
    }
    if found.is_empty() {
        eprintln!("no pools available to import");
        return Ok(0);
    }
    let mut status = 0;
    for (n, candidate) in found.iter().enumerate() {
        if options.all {
            match import(candidate, None, &options) {
                Ok(one) => status |= one,
                Err(Failure::Failed(why)) => {
                    eprintln!("{why}");
                    status = 1;
                }
                Err(other) => return Err(other),
            }
        } else {
            if n > 0 {
                println!();
            }
            print!("{}", show(candidate));
        }
    }
    Ok(status)
}

/// Whether the name of a pool can be shown; if not, says so. Nobody can have given a pool such a name but by writing its labels.
fn has_sound_name(candidate: &Candidate) -> bool {
    let is_sound = !candidate.name.contains(char::is_control);
    if !is_sound {
        eprintln!("skipping pool {}: its name has control characters", candidate.guid);
    }
    is_sound
}

fn options(args: &Parsed, operands: usize) -> Result<Options, Failure> {
    let mut options = Options {
        all: args.has('a'),
        destroyed: args.has('D'),
        force: args.has('f'),
        rewind: args.has('F'),
        extreme: args.has('X'),
        dry_run: args.has('n'),
        load_keys: args.has('l'),
        mount: !args.has('N'),
        temporary_name: args.has('t'),
        key_location: args.text('L'),
        txg: None,
        checkpoint: args.has(REWIND_TO_CHECKPOINT),
        missing_log: args.has('m'),
        props: Vec::new(),
    };
    for (option, value) in &args.options {
        let value = value.to_string_lossy();
        let said = match (option, value.split_once('=')) {
            // without a value it is a mount option, and nothing is mounted
            ('o', said) => said,
            ('R', _) => Some(("altroot", &*value)),
            _ => None,
        };
        if let Some((name, value)) = said {
            pool_props::add(&mut options.props, name, value).map_err(failed)?;
        }
    }
    if let Some(text) = args.text('T') {
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        options.txg = Some(parsed.map_err(|_| usage("invalid txg value"))?);
    }
    let said = |text: &str| Err(usage(text));
    if args.has('c') && args.has('d') {
        return said("-c is incompatible with -d");
    }
    if args.has('c') && args.has('s') {
        return said("-c is incompatible with -s");
    }
    if options.load_keys && args.has('N') {
        return said("-l is incompatible with -N");
    }
    if options.load_keys && !options.all && operands == 0 {
        return said("-l is only meaningful during an import");
    }
    if (options.dry_run || args.has('X')) && !options.rewind {
        return said("-n or -X only meaningful with -F");
    }
    if (options.all && operands > 0) || operands > 2 {
        return said("too many arguments");
    }
    Ok(options)
}

/// The folders and devices to search: `-d`, the devices of a cache file, else `ZPOOL_IMPORT_PATH`, else the usual
/// folders.
fn paths(args: &Parsed) -> Result<Vec<PathBuf>, Failure> {
    if let Some(file) = args.text('c') {
        return cached(&file).map_err(|why| failed(format!("cannot import: cannot open cache file '{file}': {why}")));
    }
    let said: Vec<PathBuf> = args.values('d').map(PathBuf::from).collect();
    if !said.is_empty() {
        return Ok(said.iter().filter_map(|path| resolve(path)).collect());
    }
    let from_env = std::env::var_os("ZPOOL_IMPORT_PATH").filter(|v| !v.is_empty());
    let paths: Vec<PathBuf> = match from_env {
        Some(list) => std::env::split_paths(&list).collect(),
        None => DEFAULT_PATHS.iter().map(PathBuf::from).collect(),
    };
    Ok(paths.iter().filter_map(|path| resolve(path)).collect())
}

/// The paths of all leaves in a cache file of OpenZFS: an nvlist with each pool's configuration, by name.
fn cached(file: &str) -> Result<Vec<PathBuf>, String> {
    fn leaves(vdev: &NvList, paths: &mut Vec<PathBuf>, depth: usize) {
        paths.extend(vdev.get_str(key::PATH).map(PathBuf::from));
        for list in [key::CHILDREN, key::SPARES, key::L2CACHE] {
            for child in vdev.get_nvlist_array(list).unwrap_or(&[]).iter().filter(|_| depth < VDEV_DEPTH_MAX) {
                leaves(child, paths, depth + 1);
            }
        }
    }
    let bytes = std::fs::read(file).map_err(|e| cause(&e))?;
    let pools = NvList::unpack(&bytes).map_err(|e| e.to_string())?;
    let mut paths = Vec::new();
    for (_, value) in pools.iter() {
        if let Value::NvList(pool) = value
            && let Some(tree) = pool.get_nvlist(key::VDEV_TREE)
        {
            leaves(tree, &mut paths, 0);
        }
    }
    Ok(paths.iter().filter_map(|path| resolve(path)).collect())
}

/// The absolute path of an existing folder or device. A link to a device keeps its name: the administrator knows it by
/// that name.
fn resolve(path: &Path) -> Option<PathBuf> {
    if std::fs::metadata(path).ok()?.is_dir() {
        return path.canonicalize().ok();
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}

/// The candidate that an operand names, by name or number.
fn choose<'a>(
    wanted: &str,
    operands: &[String],
    found: &'a [Candidate],
    imported: &[Imported],
) -> Result<&'a Candidate, Failure> {
    let guid = wanted.parse::<u64>().ok();
    let taken = imported.iter().any(|i| Some(i.guid) == guid || (guid.is_none() && i.name == wanted));
    let fits = |c: &&Candidate| guid.map_or(c.name == wanted, |guid| c.guid.0 == guid);
    let fitting: Vec<&Candidate> = found.iter().filter(fits).collect();
    let renamed = operands.get(1).is_some_and(|new| new != wanted);
    match fitting.as_slice() {
        [] if taken => Err(failed(format!(
            "cannot import '{wanted}': a pool with that name is already created/imported,\n\
             and no additional pools with that name were found"
        ))),
        _ if taken && !renamed => Err(failed(format!(
            "cannot import '{wanted}': a pool with that name already exists\n\
             use the form 'zpool import <pool | id> <newpool>' to give it a new name"
        ))),
        [] => Err(failed(format!("cannot import '{wanted}': no such pool available"))),
        [one] => Ok(one),
        _ => {
            Err(failed(format!("cannot import '{wanted}': more than one matching pool\nimport by numeric ID instead")))
        }
    }
}

fn import(candidate: &Candidate, new_name: Option<&str>, options: &Options) -> Outcome {
    let name = new_name.unwrap_or(&candidate.name).to_owned();
    let cannot = |why: String| failed(format!("cannot import '{name}': {why}"));
    names::check_new_pool(&name).map_err(&cannot)?;
    let how = How {
        name: new_name.map(str::to_owned),
        temporary_name: options.temporary_name,
        readonly: options.read_only(),
        force: options.force,
        rewind: options.rewind,
        extreme: options.extreme,
        txg: options.txg,
        checkpoint: options.checkpoint,
        missing_log: options.missing_log,
        altroot: options.prop("altroot").map(str::to_owned),
    };
    let import = Import::begin(here(), candidate, how)?;
    let props = pool_props::check(&options.props, When::Import, &candidate.name, candidate.version)
        .map_err(|why| failed(format!("cannot import pool '{}': {why}", candidate.name)))?;
    let opened = import.look();
    if is_foreign(candidate) && !options.force {
        return Err(in_use_elsewhere(candidate, opened.as_ref().map_or(0, |pool| pool.uberblock().timestamp)));
    }
    if let Err(pool::Error::MissingVdevs(_)) = &opened
        && let Some(logs) = missing_logs(candidate)
    {
        print!("The devices below are missing or corrupted, use '-m' to import the pool anyway:\n{logs}\n");
        return Err(cannot("one or more devices is currently unavailable".to_owned()));
    }
    let pool = opened.map_err(|e| cannot(unavailable(candidate, &e).unwrap_or_else(|| e.to_string())))?;
    let lost = options.txg.is_none() && !pool.load_info().skipped.is_empty();
    if lost && !options.rewind {
        let why = rewound(candidate, &pool, "Recovery is possible, but will result in some data loss.\n");
        return Err(cannot(format!("I/O error\n\t{why}")));
    }
    if !options.read_only() {
        return import_writable(candidate, &pool, import, props, options);
    }
    pool.watch_others(&site::writing::hooks(here().front()).env).map_err(|e| cannot(e.to_string()))?;
    if lost {
        print!("{}", exclaim(candidate, &pool, options.dry_run));
    }
    if options.dry_run {
        return Ok(0);
    }
    let mut record = import.read_only(&pool)?;
    load_keys(&pool, &mut record, options)
}

/// The message for a pool that does not open because too many of its devices are absent (OpenZFS: ENXIO).
fn unavailable(candidate: &Candidate, why: &pool::Error) -> Option<String> {
    let find = |guid| candidate.device(guid).map(|found| found.device.clone());
    let lost = match why {
        pool::Error::MissingVdevs(_) => true,
        pool::Error::Unreadable { .. } => {
            let tree = candidate.vdev_config().and_then(|config| VdevTree::open(&config, &find));
            tree.is_ok_and(|tree| tree.status().state == VdevState::CantOpen)
        }
        _ => false,
    };
    lost.then(|| "one or more devices is currently unavailable".to_owned())
}

fn in_use_elsewhere(candidate: &Candidate, time: u64) -> Failure {
    failed(format!(
        "cannot import '{}': pool was previously in use from another system.\n\
         Last accessed by {} (hostid={:x}) at {}\n\
         The pool can be imported, use 'zpool import -f' to import the pool.",
        candidate.name,
        crate::columns::in_line(candidate.hostname.as_deref().unwrap_or("<unknown>")),
        candidate.hostid.unwrap_or(0),
        ctime(time)
    ))
}

/// Imports a pool for reading and writing, under a name that is reserved. `seen` is the pool as it is on its devices.
fn import_writable(
    candidate: &Candidate,
    seen: &Arc<Pool>,
    import: Import<'_>,
    props: Vec<(String, pool::Value)>,
    options: &Options,
) -> Outcome {
    let old = &candidate.name;
    let doing = match import.name() == old {
        true => format!("cannot import '{old}'"),
        false => format!("cannot import '{old}' as '{}'", import.name()),
    };
    let cannot = |why: String| failed(format!("{doing}: {why}"));
    let lost = !seen.load_info().skipped.is_empty();
    // what is lost is told by the devices as they are now
    let told = if lost { exclaim(candidate, seen, options.dry_run) } else { String::new() };
    if options.dry_run {
        print!("{told}");
        return Ok(0);
    }
    let locked = import.lock().map_err(|e| match e {
        vdev::Error::Busy { .. } => cannot("one or more devices are already in use\n".to_owned()),
        other => cannot(other.to_string()),
    })?;
    let spa = import.write(&locked).map_err(|e| cannot(messages::why(&e)))?;
    print!("{told}");
    writable::catch_up(&spa);
    let (mut record, remembered) = import.remember(&spa).map_err(|e| cannot(e.to_string()))?;
    let view = spa.view().map_err(|e| cannot(e.to_string()))?;
    let status = load_keys(&view, &mut record, options)?;
    // as mounting the file systems would do it; logs that cannot be opened now can be later
    let status = if options.mount && !replay::all(&spa)? { 1 } else { status };
    for (name, value) in props.into_iter().filter(|(name, _)| !pool_props::is_transient(name)) {
        spa.set_prop(&name, value).map_err(|e| cannot(messages::why(&e)))?;
    }
    writable::close(&spa, &doing)?;
    remembered?;
    Ok(status)
}

/// Seconds between the newest state of a pool and the one that can be used.
fn seconds_lost(candidate: &Candidate, seen: &Pool) -> u64 {
    let newest = candidate.devices.iter().filter_map(|found| {
        let ashift = found.label.config.get_nvlist(key::VDEV_TREE)?.get_u64(key::ASHIFT)?;
        vdev::label::read_uberblocks(&*found.device, ashift).into_iter().max_by_key(|ub| ub.txg)
    });
    let newest = newest.max_by_key(|ub| ub.txg).map_or(0, |ub| ub.timestamp);
    newest.saturating_sub(seen.uberblock().timestamp)
}

/// OpenZFS: `zpool_rewind_exclaim`.
fn exclaim(candidate: &Candidate, seen: &Pool, dry_run: bool) -> String {
    let (name, time) = (&candidate.name, ctime(seen.uberblock().timestamp));
    let (returned, discarded) = match dry_run {
        true => (format!("Would be able to return {name} to its state as of {time}.\n"), "Would discard"),
        false => (format!("Pool {name} returned to its state as of {time}.\n"), "Discarded"),
    };
    match seconds_lost(candidate, seen) {
        0 => returned,
        n @ 1..=120 => format!("{returned}{discarded} approximately {n} seconds of transactions.\n"),
        n => format!("{returned}{discarded} approximately {} minutes of transactions.\n", (n + 30) / 60),
    }
}

/// OpenZFS: `zpool_explain_recover`.
fn rewound(candidate: &Candidate, seen: &Pool, begin: &str) -> String {
    let loss = match seconds_lost(candidate, seen) {
        0 => String::new(),
        n @ 1..=120 => format!("Approximately {n} seconds of data\n\tmust be discarded, irreversibly.  "),
        n => format!("Approximately {} minutes of data\n\tmust be discarded, irreversibly.  ", (n + 30) / 60),
    };
    let left = match seen.load_info().errors.data {
        0 => "",
        1 => "After rewind, at least\n\tone persistent user-data error will remain.  ",
        _ => "After rewind, several\n\tpersistent user-data errors will remain.  ",
    };
    format!(
        "{begin}\tReturning the pool to its state as of {}\n\tshould correct the problem.  {loss}{left}Recovery can be \
         attempted\n\tby executing 'zpool import -F {}'.  A scrub of the pool\n\tis strongly recommended after recovery.",
        ctime(seen.uberblock().timestamp),
        candidate.name
    )
}

/// The absent log devices, one per line, if no other top-level vdev is missing.
fn missing_logs(candidate: &Candidate) -> Option<String> {
    let options = pool::OpenOptions { missing_log_ok: true, ..pool::OpenOptions::default() };
    let pool = Pool::open(candidate, &options).ok()?;
    let vdevs = Vdevs::ask(&Query::of_found(pool.clone(), devices::paths(candidate))).ok()?;
    let mut text = String::new();
    for log in vdevs.root.of_class(Class::Logs).filter(|log| log.state <= VdevState::CantOpen) {
        let line = |vdev: &Vdev, indent: &str, mark: &str| {
            format!("\t{indent}{}{mark}\n", vdev.name(pool.name(), NameFlags::default()))
        };
        text += &line(log, "    ", " [log]");
        text.extend(log.children.iter().map(|child| line(child, "      ", "")));
    }
    Some(text)
}

/// Loads the keys of all encryption roots, if asked to; those in files are remembered by their location. A failure is
/// reported, and does not undo the import.
fn load_keys(pool: &Arc<Pool>, record: &mut Imported, options: &Options) -> Outcome {
    if !options.load_keys {
        return Ok(0);
    }
    let trouble = |e: pool::Error| failed(format!("cannot open '{}': {e}", pool.name()));
    let mut status = 0;
    for entry in pool.list(pool.name(), &ListOptions::DATASETS).map_err(trouble)? {
        let Some(dataset) = entry.dataset() else { continue };
        let is_root = dataset.encryption_root().map_err(trouble)?.as_deref() == Some(dataset.name());
        if !is_root || dataset.key_status().map_err(trouble)? != KeyStatus::Unavailable {
            continue;
        }
        match keys::load(pool, dataset.name(), options.key_location.as_deref()) {
            Ok(key) => {
                let stored = dataset.prop("keylocation").map_err(trouble)?.map(|p| p.value.to_string());
                let location = options.key_location.clone().or(stored).unwrap_or_default();
                keys::keep(pool, dataset.name(), &location, &key)?;
            }
            Err(Failure::Failed(why)) => {
                eprintln!("{why}");
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    if !record.keys.is_empty() {
        records::remember(record)?;
    }
    Ok(status)
}
