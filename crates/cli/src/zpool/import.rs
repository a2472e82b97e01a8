//! `zpool import`: finds pools on devices, shows them, and remembers those that are to be imported.
//!
//! Importing means opening the pool once, to see that it can be opened, and writing down where it is. The devices are only
//! ever read, which is why `-o readonly=on` must be said: a plain import promises more than this version can do.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Guid;
use pool::{KeyStatus, ListOptions, Pool};
use vdev::import::{Candidate, PoolState};
use vdev::{VdevAux, VdevState, VdevTree};

use super::activity::{Activity, ctime};
use super::reason::{self, Reason};
use super::vdevs::{Class, NameFlags, Vdev, Vdevs};
use crate::args::{Parsed, REWIND_TO_CHECKPOINT};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::state::{self, Imported};
use crate::{keys, names, pools};

/// Where devices are looked for if nobody says.
const DEFAULT_PATHS: [&str; 3] = ["/dev/disk/by-id", "/dev/mapper", "/dev"];

/// How the command was called.
struct Options {
    all: bool,
    destroyed: bool,
    force: bool,
    read_only: bool,
    load_keys: bool,
    dry_run: bool,
    key_location: Option<String>,
    txg: Option<u64>,
    checkpoint: bool,
    missing_log: bool,
    altroot: Option<String>,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let operands = call.args.names();
    let options = options(&call.args, operands.len())?;
    let paths = paths(&call.args);
    let mut found = vdev::import::scan(&paths).map_err(|e| failed(format!("cannot discover pools: {e}")))?;
    let imported = state::all()?;
    found.retain(|c| !imported.iter().any(|i| i.guid == c.guid.0));
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

fn options(args: &Parsed, operands: usize) -> Result<Options, Failure> {
    let mut options = Options {
        all: args.has('a'),
        destroyed: args.has('D'),
        force: args.has('f'),
        read_only: false,
        load_keys: args.has('l'),
        dry_run: args.has('n'),
        key_location: args.text('L'),
        txg: None,
        checkpoint: args.has(REWIND_TO_CHECKPOINT),
        missing_log: args.has('m'),
        altroot: args.text('R'),
    };
    for setting in args.values('o').map(|v| v.to_string_lossy().into_owned()) {
        match setting.split_once('=') {
            Some(("readonly", value)) => options.read_only = value == "on",
            Some(("altroot", value)) => options.altroot = Some(value.to_owned()),
            Some(("cachefile", _)) | None => {}
            Some((name, _)) => {
                return Err(failed(format!("property '{name}' cannot be set: this version of Zuse imports read-only")));
            }
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
    if args.has('c') {
        return Err(failed("-c: OpenZFS's cache files are not in this version of Zuse; use -d"));
    }
    if options.load_keys && args.has('N') {
        return said("-l is incompatible with -N");
    }
    if options.load_keys && !options.all && operands == 0 {
        return said("-l is only meaningful during an import");
    }
    if (options.dry_run || args.has('X')) && !args.has('F') {
        return said("-n or -X only meaningful with -F");
    }
    if (options.all && operands > 0) || operands > 2 {
        return said("too many arguments");
    }
    if let Some(root) = options.altroot.as_deref().filter(|root| !root.starts_with('/')) {
        return Err(failed(format!("bad alternate root '{root}'")));
    }
    Ok(options)
}

/// Where to look: `-d`, else `ZPOOL_IMPORT_PATH`, else the usual folders.
fn paths(args: &Parsed) -> Vec<PathBuf> {
    let said: Vec<PathBuf> = args.values('d').map(PathBuf::from).collect();
    if !said.is_empty() {
        return said.iter().filter_map(|path| resolve(path)).collect();
    }
    let from_env = std::env::var_os("ZPOOL_IMPORT_PATH").filter(|v| !v.is_empty());
    let paths: Vec<PathBuf> = match from_env {
        Some(list) => std::env::split_paths(&list).collect(),
        None => DEFAULT_PATHS.iter().map(PathBuf::from).collect(),
    };
    paths.iter().filter_map(|path| resolve(path)).collect()
}

/// The absolute path of a folder or device that is there. A link to a device keeps its name: that is how the administrator
/// knows it.
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

/// The number of this host, as `/etc/hostid` has it.
fn system_hostid() -> u64 {
    let bytes = std::fs::read("/etc/hostid").unwrap_or_default();
    bytes.first_chunk::<4>().map_or(0, |b| u32::from_ne_bytes(*b).into())
}

/// Whether another host used the pool last, and did not close it.
fn is_foreign(candidate: &Candidate) -> bool {
    candidate.state != PoolState::Exported && candidate.hostid.unwrap_or(0) != system_hostid()
}

fn import(candidate: &Candidate, new_name: Option<&str>, options: &Options) -> Outcome {
    let name = new_name.unwrap_or(&candidate.name).to_owned();
    let cannot = |why: String| failed(format!("cannot import '{name}': {why}"));
    names::check_pool(&name).map_err(&cannot)?;
    if state::find(&name)?.is_some() {
        return Err(cannot("a pool with that name already exists".to_owned()));
    }
    let record = Imported {
        guid: candidate.guid.0,
        name: name.clone(),
        name_on_disk: candidate.name.clone(),
        devices: devices_of(candidate),
        txg: options.txg,
        checkpoint: options.checkpoint,
        missing_log: options.missing_log,
        altroot: options.altroot.clone(),
        load_guid: 0,
        keys: Vec::new(),
    };
    let opened = Pool::open(candidate, &pools::options(&record));
    if is_foreign(candidate) && !options.force {
        let time = opened.as_ref().map_or(0, |pool| pool.uberblock().timestamp);
        return Err(failed(format!(
            "cannot import '{}': pool was previously in use from another system.\n\
             Last accessed by {} (hostid={:x}) at {}\n\
             The pool can be imported, use 'zpool import -f' to import the pool.",
            candidate.name,
            candidate.hostname.as_deref().unwrap_or("<unknown>"),
            candidate.hostid.unwrap_or(0),
            ctime(time)
        )));
    }
    if !options.read_only {
        return Err(cannot("this version of Zuse only imports pools read-only; use '-o readonly=on'".to_owned()));
    }
    if let Err(pool::Error::MissingVdevs(_)) = &opened
        && let Some(logs) = missing_logs(candidate)
    {
        print!("The devices below are missing or corrupted, use '-m' to import the pool anyway:\n{logs}\n");
        return Err(cannot("one or more devices is currently unavailable".to_owned()));
    }
    let pool = opened.map_err(|e| cannot(e.to_string()))?;
    for (txg, why) in &pool.load_info().skipped {
        eprintln!("warning: '{name}': txg {txg} cannot be used: {why}");
    }
    if options.dry_run {
        return Ok(0);
    }
    let mut record = Imported { load_guid: pool.load_guid(), ..record };
    let status = if options.load_keys { load_keys(&pool, &mut record, options)? } else { 0 };
    state::remember(&record)?;
    Ok(status)
}

/// The log devices that are not there, one a line, if nothing else is missing of a whole top-level vdev.
fn missing_logs(candidate: &Candidate) -> Option<String> {
    let options = pool::OpenOptions { missing_log_ok: true, ..pool::OpenOptions::default() };
    let pool = Pool::open(candidate, &options).ok()?;
    let vdevs = Vdevs::of_pool(&pool, &pools::paths(candidate)).ok()?;
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

/// All paths that opening the pool again may need.
fn devices_of(candidate: &Candidate) -> Vec<PathBuf> {
    let all = [&candidate.devices, &candidate.stale, &candidate.spares, &candidate.l2cache];
    let mut paths: Vec<PathBuf> = all.into_iter().flatten().map(|d| d.path.clone()).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Loads the keys of all encryption roots; those in files are remembered by their location. A failure is told, and does not
/// undo the import.
fn load_keys(pool: &Arc<Pool>, record: &mut Imported, options: &Options) -> Outcome {
    let trouble = |e: pool::Error| failed(format!("cannot open '{}': {e}", pool.name()));
    let mut status = 0;
    for entry in pool.list(pool.name(), &ListOptions::DATASETS).map_err(trouble)? {
        let Some(dataset) = entry.dataset() else { continue };
        let is_root = dataset.encryption_root().map_err(trouble)?.as_deref() == Some(dataset.name());
        if !is_root || dataset.key_status().map_err(trouble)? != KeyStatus::Unavailable {
            continue;
        }
        match keys::load(pool, dataset.name(), options.key_location.as_deref()) {
            Ok(()) => {
                let stored = dataset.prop("keylocation").map_err(trouble)?.map(|p| p.value.to_string());
                let location = options.key_location.clone().or(stored).unwrap_or_default();
                if location.starts_with("file://") {
                    record.keys.push((dataset.name().to_owned(), location));
                }
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

/// What is known of a candidate, as far as it opens.
struct View {
    vdevs: Option<Vdevs>,
    state: VdevState,
    aux: &'static str,
    /// The metadata is broken, not the devices.
    faulted: bool,
    reason: Reason,
    features: Vec<String>,
    comment: Option<String>,
}

fn look(candidate: &Candidate) -> View {
    let devices = pools::paths(candidate);
    let foreign = candidate.state == PoolState::Active && candidate.hostid.unwrap_or(0) != 0 && is_foreign(candidate);
    match Pool::open(candidate, &pool::OpenOptions::default()) {
        Ok(pool) => {
            let vdevs = Vdevs::of_pool(&pool, &devices).ok();
            let status = pool.tree().status();
            let reason = match (&vdevs, Activity::of(&pool)) {
                (Some(vdevs), Ok(activity)) => reason::of_pool(&pool, vdevs, &activity, 0, Some(foreign)),
                _ => Reason::CorruptPool,
            };
            View {
                state: status.state,
                aux: status.aux.message(),
                faulted: false,
                reason,
                vdevs,
                features: Vec::new(),
                comment: pool.config().get_str("comment").map(str::to_owned),
            }
        }
        Err(e) => look_at_labels(candidate, &devices, &e),
    }
}

/// A pool that does not open: what its labels and devices tell.
fn look_at_labels(candidate: &Candidate, devices: &HashMap<Guid, String>, why: &pool::Error) -> View {
    let find = |guid| candidate.device(guid).map(|d| d.device.clone());
    let tree = candidate.vdev_config().and_then(|config| VdevTree::open(&config, &find));
    let vdevs = tree.ok().map(|tree| Vdevs::of_tree(&tree, devices));
    let broken_devices = vdevs.as_ref().map(|v| reason::of_vdevs(v, false, 0)).filter(|r| *r != Reason::Ok);
    let mut view = View {
        state: VdevState::CantOpen,
        aux: "corrupted data",
        faulted: true,
        reason: Reason::CorruptPool,
        vdevs,
        features: Vec::new(),
        comment: candidate.config.get_str("comment").map(str::to_owned),
    };
    match why {
        pool::Error::Version(_) => {
            (view.reason, view.aux, view.faulted) = (Reason::VersionNewer, "newer version", false)
        }
        pool::Error::Features(features) => {
            view.features.clone_from(features);
            (view.reason, view.aux, view.faulted) = (Reason::UnsupportedFeature, "unsupported feature(s)", false);
        }
        pool::Error::MissingVdevs(_) => {
            (view.reason, view.aux, view.faulted) = (Reason::BadGuidSum, "missing device", false);
        }
        _ => {
            if let Some(reason) = broken_devices {
                let none = matches!(reason, Reason::MissingDevReplicated);
                view.reason = if none { Reason::MissingDev } else { reason };
                view.aux = VdevAux::NoReplicas.message();
                view.faulted = false;
            }
        }
    }
    view
}

/// A candidate as `zpool import` shows it (OpenZFS: `show_import`).
fn show(candidate: &Candidate) -> String {
    let view = look(candidate);
    let indent = if view.comment.is_some() { " " } else { "" };
    let health = if view.faulted { "FAULTED" } else { view.state.name() };
    let destroyed = if candidate.state == PoolState::Destroyed { " (DESTROYED)" } else { "" };
    let name = &candidate.name;
    let mut text =
        format!("{indent}  pool: {name}\n{indent}    id: {}\n{indent} state: {health}{destroyed}\n", candidate.guid);
    let status = view.reason.import_status(indent);
    if !status.is_empty() {
        text.push_str(&format!("{indent}status: {status}"));
        for feature in &view.features {
            text.push_str(&format!("\t{feature}\n"));
        }
    }
    text.push_str(&format!("{indent}action: {}", view.reason.import_action(view.state, indent)));
    if let Some(comment) = &view.comment {
        text.push_str(&format!("comment: {comment}\n"));
    }
    if view.faulted {
        match candidate.state {
            PoolState::Destroyed => text.push_str(&format!(
                "\t{indent}The pool was destroyed, but can be imported using the '-Df' flags.\n"
            )),
            PoolState::Active => text.push_str(&format!(
                "\t{indent}The pool may be active on another system, but can be imported using\n\t{indent}the '-f' flag.\n"
            )),
            PoolState::Exported => {}
        }
    }
    if let Some(id) = view.reason.message_id() {
        text.push_str(&format!("{indent}   see: https://openzfs.github.io/openzfs-docs/msg/{id}\n"));
    }
    text.push_str(&format!("{indent}config:\n\n"));
    text.push_str(&config(name, &view, health));
    if view.reason == Reason::BadGuidSum {
        text.push_str(&format!(
            "\n\t{indent}Additional devices are known to be part of this pool, though their\n\
             \t{indent}exact configuration cannot be determined.\n"
        ));
    }
    text
}

/// The tree of a candidate.
fn config(name: &str, view: &View, health: &str) -> String {
    let Some(vdevs) = &view.vdevs else { return format!("\t{name:<10}  {health}\n") };
    let flags = NameFlags::default();
    // the root counts as "root-0"
    let width = vdevs.width(name, flags).max(name.len()).max(10);
    let mut text = String::new();
    let aux = if view.state == VdevState::CantOpen { view.aux } else { "" };
    let gap = if aux.is_empty() { "" } else { "  " };
    text.push_str(&format!("\t{name:<width$}  {health}{gap}{aux}\n"));
    for top in vdevs.root.of_class(Class::Normal) {
        line(&mut text, name, top, 2, width);
    }
    for (title, members) in [("cache", &vdevs.l2cache), ("spares", &vdevs.spares)] {
        if !members.is_empty() {
            text.push_str(&format!("\t{title}\n"));
        }
        for vdev in members {
            text.push_str(&format!("\t  {}\n", vdev.name(name, flags)));
        }
    }
    for class in Class::SECTIONS {
        let mut members = vdevs.root.of_class(class).peekable();
        if members.peek().is_some() {
            text.push_str(&format!("\t{}\t\n", class.title()));
        }
        for vdev in members {
            line(&mut text, name, vdev, 2, width);
        }
    }
    text
}

fn line(text: &mut String, pool: &str, vdev: &Vdev, depth: usize, width: usize) {
    let mut shown = vdev.clone();
    // in this list a missing device goes by its path
    shown.not_present = false;
    let name = shown.name(pool, NameFlags::default());
    let aux = vdev.aux.message();
    let gap = if aux.is_empty() { "" } else { "  " };
    let room = width.saturating_sub(depth);
    text.push_str(&format!("\t{:depth$}{name:<room$}  {}{gap}{aux}\n", "", vdev.state.name()));
    for child in vdev.children.iter().filter(|c| !c.is_hidden()) {
        line(text, pool, child, depth + 2, width);
    }
}
