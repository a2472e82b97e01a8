//! `zpool import`: finds pools on devices, shows them, and imports those that are asked for.
//!
//! A request imports the pool ([`Ioc::PoolImport`]), or tells why not. One that is imported for a change is open then: its
//! stale devices are brought up to date, keys are loaded, and its intent logs are replayed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Errno, Guid};
use control::stats::TIMESTAMP;
use control::{Failed, Ioc};
use nvlist::{NvList, Value};
use ondisk::label::key;
use pool::Spa;
use site::import::{How, is_foreign};
use site::rewind::{Policy, Rewind};
use site::tryimport::{ERRNO, LOAD_INFO, MISSING_VDEVS};
use site::{Imported, Query, Session};
use vdev::import::{Candidate, PoolState};

use super::activity::ctime;
use super::show::show;
use super::vdevs::{Class, NameFlags, Vdev, Vdevs};
use crate::args::{Parsed, REWIND_TO_CHECKPOINT};
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, cause, failed, usage};
use crate::props::Said;
use crate::props::pool::{self as pool_props, When};
use crate::props::values::value_of;
use crate::{keys, messages, names, pools, replay, writable, zfs};

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
    /// `-o` without a value: options of the mounts.
    mount_options: Vec<String>,
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
    found.retain(|c| !imported.iter().any(|i| i.guid == c.guid));
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
    let session = here().machine().own_session(console::user());
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
            match show(&session, candidate) {
                Ok(text) => print!("{text}"),
                // it has gone since it was found
                Err(e) => {
                    eprintln!("cannot show '{}': {e}", candidate.name);
                    status = 1;
                }
            }
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
        mount_options: Vec::new(),
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
            ('o', None) => {
                options.mount_options.push(value.into_owned());
                continue;
            }
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
    let from_env = console::var("ZPOOL_IMPORT_PATH").filter(|v| !v.is_empty());
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
    let bytes = std::fs::read(console::path(file)).map_err(|e| cause(&e))?;
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
    let path = console::path(path);
    if std::fs::metadata(&path).ok()?.is_dir() {
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
    let guid = wanted.parse::<u64>().ok().map(Guid);
    let taken = imported.iter().any(|i| Some(i.guid) == guid || (guid.is_none() && i.name == wanted));
    let fits = |c: &&Candidate| guid.map_or(c.name == wanted, |guid| c.guid == guid);
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
        policy: Policy { rewind: options.rewind, extreme: options.extreme, dry_run: options.dry_run, txg: options.txg },
        checkpoint: options.checkpoint,
        missing_log: options.missing_log,
        altroot: options.prop("altroot").map(str::to_owned),
    };
    let props = pool_props::check(&options.props, When::Import, &candidate.name, candidate.version)
        .map_err(|why| failed(format!("cannot import pool '{}': {why}", candidate.name)))?;
    let mut stored = NvList::new();
    for (name, value) in props.into_iter().filter(|(name, _)| !pool_props::is_transient(name)) {
        stored.insert(&name, value_of(value));
    }
    let machine = here().machine();
    let session = machine.own_session(console::user());
    let request = how.request(candidate, stored);
    if is_foreign(candidate) && !options.force {
        return Err(in_use_elsewhere(
            candidate,
            last_used(&session, &How { missing_log: true, ..how }.trial(candidate)),
        ));
    }
    let answer = session.call(Ioc::PoolImport, &name, &request);
    let answer = answer.map_err(|e| why_not(candidate, &name, options, &e))?;
    let rewind = answer.get_nvlist(LOAD_INFO).and_then(Rewind::of);
    if let Some(rewind) = rewind.filter(|_| options.txg.is_none() || !options.read_only()) {
        print!("{}", exclaim(&candidate.name, &rewind, options.dry_run));
    }
    if options.dry_run {
        return Ok(0);
    }
    let record = pools::find(&name)?;
    let spa = match here().is_of_machine() {
        // it stays open
        true if !record.readonly => Some(here().write(&record)?),
        _ => machine.take(&record.name),
    };
    match spa {
        Some(spa) => finish(&spa, &doing(candidate, &name), options),
        None => {
            let status = if options.load_keys { load_keys(&pools::query(&record)?, options)? } else { 0 };
            Ok(status.max(mount(&record.name, None, options)?))
        }
    }
}

/// The beginning of a message about a pool that is imported for a change.
fn doing(candidate: &Candidate, name: &str) -> String {
    let old = &candidate.name;
    match name == old {
        true => format!("cannot import '{old}'"),
        false => format!("cannot import '{old}' as '{name}'"),
    }
}

/// The time at which a pool was changed last; 0 if it does not open.
fn last_used(session: &Session, trial: &NvList) -> u64 {
    let tried = session.call(Ioc::PoolTryImport, "", trial);
    tried.ok().and_then(|config| config.get_u64(TIMESTAMP)).unwrap_or(0)
}

/// The message for a request to import a pool that failed.
fn why_not(candidate: &Candidate, name: &str, options: &Options, e: &Failed) -> Failure {
    let Some(info) = e.out.get_nvlist(LOAD_INFO) else {
        let doing = doing(candidate, name);
        return match &*e.error {
            control::Error::Opening(..) => failed(e.to_string()),
            control::Error::Device(vdev::Error::Busy { .. }) => {
                failed(format!("{doing}: one or more devices are already in use\n"))
            }
            _ => failed(format!("{doing}: {}", messages::why_failed(e))),
        };
    };
    let cannot = |why: &str| failed(format!("cannot import '{name}': {why}"));
    if let Some(logs) = info.get_nvlist(MISSING_VDEVS) {
        let logs = missing_logs(&candidate.name, logs);
        print!("The devices below are missing or corrupted, use '-m' to import the pool anyway:\n{logs}\n");
    }
    let errno = info.get_i32(ERRNO).map(Errno::from_raw);
    match Rewind::of(info).filter(|_| !options.rewind && options.txg.is_none()) {
        _ if errno == Some(Errno::ENXIO) => cannot("one or more devices is currently unavailable"),
        Some(rewind) => {
            let begin = "Recovery is possible, but will result in some data loss.\n";
            cannot(&format!("I/O error\n\t{}", rewound(&candidate.name, &rewind, begin)))
        }
        None => cannot(&e.to_string()),
    }
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

/// Does what is to be done in a pool that was imported for a change: as mounting the file systems would do it, logs are replayed.
fn finish(spa: &Arc<Spa>, doing: &str, options: &Options) -> Outcome {
    here().catch_up(spa);
    let view = spa.view().map_err(|e| failed(format!("{doing}: {e}")))?;
    let status = if options.load_keys { load_keys(&here().query(&view), options)? } else { 0 };
    // logs that cannot be opened now can be later
    let status = if options.mount && !replay::all(spa)? { 1 } else { status };
    let status = status.max(mount(spa.name(), Some(spa), options)?);
    here().hide_changes(spa);
    writable::close(spa, doing)?;
    Ok(status)
}

/// Mounts the file systems of a pool that was imported, if anything is mounted here.
fn mount(pool: &str, spa: Option<&Arc<Spa>>, options: &Options) -> Outcome {
    let whole = !options.mount || zfs::enable(pool, spa, &options.mount_options, options.load_keys)?;
    Ok(u8::from(!whole))
}

/// OpenZFS: `zpool_rewind_exclaim`.
fn exclaim(name: &str, rewind: &Rewind, dry_run: bool) -> String {
    let time = ctime(rewind.time);
    let (returned, discarded) = match dry_run {
        true => (format!("Would be able to return {name} to its state as of {time}.\n"), "Would discard"),
        false => (format!("Pool {name} returned to its state as of {time}.\n"), "Discarded"),
    };
    match rewind.seconds {
        0 => returned,
        n @ 1..=120 => format!("{returned}{discarded} approximately {n} seconds of transactions.\n"),
        n => format!("{returned}{discarded} approximately {} minutes of transactions.\n", (n + 30) / 60),
    }
}

/// OpenZFS: `zpool_explain_recover`.
fn rewound(name: &str, rewind: &Rewind, begin: &str) -> String {
    let loss = match rewind.seconds {
        0 => String::new(),
        n @ 1..=120 => format!("Approximately {n} seconds of data\n\tmust be discarded, irreversibly.  "),
        n => format!("Approximately {} minutes of data\n\tmust be discarded, irreversibly.  ", (n + 30) / 60),
    };
    let left = match rewind.data_errors {
        0 => "",
        1 => "After rewind, at least\n\tone persistent user-data error will remain.  ",
        _ => "After rewind, several\n\tpersistent user-data errors will remain.  ",
    };
    format!(
        "{begin}\tReturning the pool to its state as of {}\n\tshould correct the problem.  {loss}{left}Recovery can be \
         attempted\n\tby executing 'zpool import -F {name}'.  A scrub of the pool\n\tis strongly recommended after recovery.",
        ctime(rewind.time),
    )
}

/// The absent log devices of a pool, one per line.
fn missing_logs(pool: &str, tree: &NvList) -> String {
    let mut config = NvList::new();
    config.insert(key::VDEV_TREE, tree.clone());
    let mut text = String::new();
    let Ok(vdevs) = Vdevs::of(&config) else { return text };
    for log in vdevs.root.of_class(Class::Logs) {
        let line = |vdev: &Vdev, indent: &str, mark: &str| {
            format!("\t{indent}{}{mark}\n", vdev.name(pool, NameFlags::default()))
        };
        text += &line(log, "    ", " [log]");
        text.extend(log.children.iter().map(|child| line(child, "      ", "")));
    }
    text
}

/// Loads the keys of all encryption roots; those in files are remembered by their location. A failure is reported, and
/// does not undo the import.
fn load_keys(query: &Query, options: &Options) -> Outcome {
    let trouble = |e: Failed| failed(format!("cannot open '{}': {e}", query.name()));
    let mut status = 0;
    for root in keys::without_key(query).map_err(trouble)? {
        let root = root.map_err(trouble)?;
        match keys::load(query, &root.name, options.key_location.as_deref()) {
            Ok(key) => {
                let location = options.key_location.clone().unwrap_or(root.location);
                keys::keep(query, &root.name, &location, &key)?;
            }
            Err(Failure::Failed(why)) => {
                eprintln!("{why}");
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    Ok(status)
}
