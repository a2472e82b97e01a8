//! Opens the pool, dataset and file that the options and a target name.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Errno, Txg};
use control::Caller;
use pool::{Dataset, KeyStatus, Kind, OpenOptions, Pool, Spa};
use site::{devices, records, with_log};
use zpl::Follow;
use zpl::live::{Volume, Zfs};
use zuse::{Files, Target, TargetObject};

use crate::args::Parsed;
use crate::console::{self, here};
use crate::error::{Failure, failed, usage};
use crate::verbs::flags::{CHECKPOINT, WITH_LOG};
use crate::{keys, messages, pools, replay, writable};

/// The pools that a command opened.
#[derive(Default)]
pub(crate) struct Session {
    devices: Vec<PathBuf>,
    keys: Vec<String>,
    txg: Option<Txg>,
    checkpoint: bool,
    with_log: bool,
    open: Vec<(String, Arc<Pool>)>,
    writing: Vec<(String, Arc<Spa>)>,
    /// Pools whose logs are replayed in memory: they live as long as they are read.
    in_memory: Vec<Arc<Spa>>,
    file_systems: Vec<(String, Files)>,
}

impl Session {
    /// Takes the common options.
    pub(crate) fn new(parsed: &Parsed) -> Result<Session, Failure> {
        let devices: Vec<PathBuf> = parsed.values('d').map(console::path).collect();
        // those of the whole command are loaded when an imported pool is opened
        let given = if devices.is_empty() { Vec::new() } else { console::given_keys() };
        let own = parsed.values('L').map(|v| v.to_string_lossy().into_owned());
        let txg = match parsed.text('T') {
            None => None,
            Some(text) => Some(text.parse().map(Txg).map_err(|_| usage(format!("invalid txg '{text}'")))?),
        };
        Ok(Session {
            keys: own.chain(given).collect(),
            devices,
            txg,
            checkpoint: parsed.has(CHECKPOINT),
            with_log: parsed.has(WITH_LOG),
            ..Session::default()
        })
    }

    /// Runs a verb that may change pools, and closes these: what was done before a failure stays done.
    pub(crate) fn run<R>(parsed: &Parsed, verb: impl FnOnce(&mut Session) -> Result<R, Failure>) -> Result<R, Failure> {
        let mut session = Session::new(parsed)?;
        let done = verb(&mut session);
        let closed = session.close();
        let done = done?;
        closed.map(|()| done)
    }

    /// The pool of that name (or guid, with `-d`).
    pub(crate) fn pool(&mut self, name: &str) -> Result<Arc<Pool>, Failure> {
        if let Some((_, pool)) = self.open.iter().find(|(n, _)| n == name) {
            return Ok(Arc::clone(pool));
        }
        let pool = if self.with_log {
            self.open_with_log(name)?
        } else if self.devices.is_empty() {
            let missing =
                || failed(format!("cannot open '{name}': no such pool (import it, or say with -d where it is)"));
            pools::of_dataset(name)?.ok_or_else(missing)?.pool().clone()
        } else {
            self.open_on_devices(name)?
        };
        self.open.push((name.to_owned(), Arc::clone(&pool)));
        Ok(pool)
    }

    /// The pool of that name, open for writing; it is closed with the session. A pool on the devices of `-d` is
    /// imported for that time only.
    pub(crate) fn writable(&mut self, name: &str) -> Result<Arc<Spa>, Failure> {
        if let Some((_, spa)) = self.writing.iter().find(|(n, _)| n == name) {
            return Ok(Arc::clone(spa));
        }
        if self.txg.is_some() || self.checkpoint {
            return Err(usage("an older state of a pool can only be read"));
        }
        if self.with_log {
            return Err(usage("what is seen with --with-log can only be read"));
        }
        let doing = format!("cannot open '{name}'");
        let mut remembered = None;
        let spa = if self.devices.is_empty() {
            let record = remembered.insert(pools::find(name)?);
            writable::open(record, &doing)?
        } else {
            let found = devices::named(&self.devices, name)?;
            if records::is_remembered(found.guid) {
                // the export at the end would take it away from the other commands
                return Err(failed(format!("{doing}: the pool is imported: name it without -d")));
            }
            let candidate = here().lock(&found).map_err(|e| messages::busy(name, &e))?;
            let spa = site::import::for_now(candidate, here().front())
                .map_err(|e| failed(format!("{doing}: {}", messages::why(&e))))?;
            here().catch_up(&spa);
            spa
        };
        let view = spa.view().map_err(|e| failed(format!("{doing}: {}", messages::why(&e))))?;
        if let Some(record) = &remembered {
            here().load_keys(&view, record);
        }
        // from here on it is read as it was when it was opened
        self.open.retain(|(n, _)| n != name);
        self.open.push((name.to_owned(), view));
        self.writing.push((name.to_owned(), Arc::clone(&spa)));
        Ok(spa)
    }

    /// The files of a target's file system, open for changes.
    pub(crate) fn files(&mut self, target: &Target) -> Result<Files, Failure> {
        let cannot = |why: &dyn std::fmt::Display| failed(format!("{target}: {why}"));
        if let Some((_, files)) = self.file_systems.iter().find(|(name, _)| *name == target.dataset) {
            return Ok(files.clone());
        }
        let spa = self.writable(target.pool())?;
        let dataset = self.dataset(target)?;
        if dataset.is_snapshot() {
            return Err(cannot(&"a snapshot cannot be changed"));
        }
        self.check_key(target, &dataset)?;
        if dataset.head_kind().map_err(|e| cannot(&e))? == Kind::Volume {
            return Err(cannot(&"a volume has no files"));
        }
        let Caller { uid, gid, .. } = console::user();
        let files = Files::new(Zfs::open(&spa, dataset.name()).map_err(|e| cannot(&e))?);
        let files = files.owned_by(uid, gid).with_umask(console::umask());
        self.file_systems.push((target.dataset.clone(), files.clone()));
        Ok(files)
    }

    /// Makes lookups in a pool that is written see its current state, including the logs that were replayed since it
    /// was opened.
    pub(super) fn look_again(&mut self, pool: &str) -> Result<(), Failure> {
        let Some((_, spa)) = self.writing.iter().find(|(name, _)| name == pool) else { return Ok(()) };
        let cannot = |e: pool::Error| failed(format!("cannot read '{pool}': {}", messages::why(&e)));
        spa.sync().map_err(cannot)?;
        let view = spa.view().map_err(cannot)?;
        self.open.retain(|(name, _)| name != pool);
        self.open.push((pool.to_owned(), view));
        Ok(())
    }

    /// Whether pools are read as they are, and in no other state.
    pub(super) fn reads_as_it_is(&self) -> bool {
        self.devices.is_empty() && self.txg.is_none() && !self.checkpoint && !self.with_log
    }

    /// The pool of a volume that a target names, open for changes, and with its key.
    pub(super) fn spa_of_volume(&mut self, target: &Target) -> Result<Arc<Spa>, Failure> {
        let spa = self.writable(target.pool())?;
        let dataset = self.dataset(target)?;
        self.check_key(target, &dataset)?;
        Ok(spa)
    }

    /// The volume that a target names, open for changes; `None` if it names something in a file system.
    pub(super) fn volume(&mut self, target: &Target) -> Result<Option<Volume>, Failure> {
        let cannot = |why: &dyn std::fmt::Display| failed(format!("{target}: {why}"));
        let spa = self.writable(target.pool())?;
        let dataset = self.dataset(target)?;
        if dataset.head_kind().map_err(|e| cannot(&e))? != Kind::Volume {
            return Ok(None);
        }
        if dataset.is_snapshot() {
            return Err(cannot(&"a snapshot cannot be changed"));
        }
        if !target.path().is_empty() {
            return Err(cannot(&"a volume has no files"));
        }
        self.check_key(target, &dataset)?;
        Ok(Some(Volume::open(&spa, dataset.name()).map_err(|e| cannot(&e))?))
    }

    /// Names the pools that another command has changed since they were opened, as a reason why something could not be
    /// read.
    pub(super) fn tell_changes(&self) {
        let read = self.open.iter().filter(|(name, _)| !self.writing.iter().any(|(written, _)| written == name));
        for (name, _) in read.filter(|(_, pool)| self.devices.is_empty() && !self.with_log && here().is_changed(pool)) {
            eprintln!("warning: '{name}' was modified while it was being read; use a snapshot for a consistent copy");
        }
    }

    /// Writes what was changed, and closes the pools.
    fn close(mut self) -> Result<(), Failure> {
        self.file_systems.clear();
        self.open.clear();
        let exported = !self.devices.is_empty();
        let mut result = Ok(());
        for (name, spa) in self.writing {
            let closed = if exported { spa.export() } else { here().close(&spa) };
            if let Err(e) = closed {
                result = Err(failed(format!("cannot close '{name}': {}", messages::why(&e))));
            }
        }
        result
    }

    /// Opens a pool that is on the devices of `-d`, by name or guid.
    fn open_on_devices(&self, name: &str) -> Result<Arc<Pool>, Failure> {
        let options = OpenOptions {
            txg: self.txg,
            checkpoint: self.checkpoint,
            missing_log_ok: true,
            missing_tops_ok: true,
            arc_bytes: base::tunable::ZFS_ARC_MAX.get(),
            ..OpenOptions::default()
        };
        let pool = here().read(|| devices::named(&self.devices, name), &options).map_err(|e| match e {
            site::Error::Open { source, .. } => failed(format!("cannot open '{name}': {source}")),
            other => other.into(),
        })?;
        let info = pool.load_info();
        for (txg, why) in &info.skipped {
            eprintln!("warning: txg {txg} cannot be used: {why}");
        }
        if !info.missing_tops.is_empty() {
            eprintln!("warning: top-level devices {:?} are missing; what lies there is lost", info.missing_tops);
        }
        Ok(pool)
    }

    /// Opens a pool as it is with its logs replayed, in memory.
    fn open_with_log(&mut self, name: &str) -> Result<Arc<Pool>, Failure> {
        if self.txg.is_some() || self.checkpoint {
            return Err(usage("the intent logs of an older state of a pool are gone"));
        }
        let record = if self.devices.is_empty() { Some(pools::find(name)?) } else { None };
        let find = || -> Result<_, Failure> {
            let Some(record) = &record else { return Ok((devices::named(&self.devices, name)?, None)) };
            let candidate = devices::candidate(record)?;
            let shown = (record.name != candidate.name).then(|| record.name.clone());
            Ok((candidate, shown))
        };
        let keys = |pool: &Arc<Pool>| {
            if let Some(record) = &record {
                here().load_keys(pool, record);
            }
            self.provide_keys(pool)
        };
        let (spa, view) = here().read_replayed(find, keys, |spa| replay::all(spa).map(drop))?;
        self.in_memory.push(spa);
        Ok(view)
    }

    /// Finds the key of an encrypted dataset, if it is not loaded: among those of `-L`, or by asking; in an imported
    /// pool also in the file that its `keylocation` names, unless it was unloaded. A pool on devices may be anybody's:
    /// the file it names is opened only with `-L keylocation`. Without a key, names and sizes can still be seen, and
    /// reading files fails with an error that says the key is not loaded.
    fn provide_key(&self, pool: &Arc<Pool>, dataset: &Dataset) -> Result<(), Failure> {
        let broken = |e: pool::Error| failed(format!("{}: {e}", dataset.name()));
        if dataset.key_status().map_err(broken)? != KeyStatus::Unavailable {
            return Ok(());
        }
        if self.with_log {
            // with a key loaded only now, the old state would be seen
            if with_log::is_sealed(dataset) {
                let name = dataset.name();
                eprintln!("warning: the intent log of '{name}' is not replayed: its key is not loaded");
            }
            return Ok(());
        }
        let Some(info) = dataset.crypto().map_err(broken)? else { return Ok(()) };
        let root = pool.dir_by_id(info.root_dir).map_err(broken)?.name().to_owned();
        if self.try_given(pool, &root) {
            return Ok(());
        }
        let at = pool.dataset(&root).and_then(|ds| ds.prop("keylocation")).map_err(broken)?;
        let at = at.map(|p| p.value.to_string()).unwrap_or_default();
        let takes = match at.as_str() {
            "prompt" => console::stdin_is_terminal(),
            _ if self.devices.is_empty() && !site::keys::waits(console::location(&at)) => {
                !here().record(pool).is_some_and(|record| record.unloaded.contains(&info.root_dir))
            }
            _ => false,
        };
        if takes {
            match keys::load(&here().query(pool), &root, None) {
                Ok(_) => console::has_key(pool.guid(), &root),
                Err(Failure::Failed(why)) => eprintln!("warning: {root}: {why}"),
                Err(_) => {}
            }
        }
        if !self.keys.is_empty() && dataset.key_status().map_err(broken)? == KeyStatus::Unavailable {
            eprintln!("warning: none of the keys given fits '{root}'");
        }
        Ok(())
    }

    /// Tries the keys of `-L` on an encryption root.
    fn try_given(&self, pool: &Arc<Pool>, root: &str) -> bool {
        let query = here().query(pool);
        self.keys.iter().any(|given| keys::load_from(&query, root, given))
    }

    /// Loads the keys of `-L` into all encryption roots of a pool that they fit.
    pub(crate) fn provide_keys(&self, pool: &Arc<Pool>) -> Result<(), Failure> {
        if self.keys.is_empty() {
            return Ok(());
        }
        keys::load_all(&here().query(pool), &self.keys).map_err(|e| failed(e.to_string()))
    }

    /// The dataset of a target, with its key if one is available.
    pub(crate) fn dataset(&mut self, target: &Target) -> Result<Dataset, Failure> {
        let dataset = self.sealed_dataset(target)?;
        self.provide_key(dataset.pool(), &dataset)?;
        Ok(dataset)
    }

    /// As [`Session::dataset`], without looking for a key: for its kind and properties.
    pub(super) fn sealed_dataset(&mut self, target: &Target) -> Result<Dataset, Failure> {
        let pool = self.pool(target.pool())?;
        // with -d a pool may be named by its guid, or its name may differ from what was asked for
        let name = format!("{}{}", pool.name(), target.dataset.get(target.pool().len()..).unwrap_or(""));
        pool.dataset(&name).map_err(|e| {
            let why = e.to_string();
            let why = why.strip_prefix(&format!("cannot open '{name}': ")).unwrap_or(&why);
            failed(format!("cannot open '{}': {why}", target.dataset))
        })
    }

    fn check_key(&self, target: &Target, dataset: &Dataset) -> Result<(), Failure> {
        if dataset.key_status().is_ok_and(|s| s == KeyStatus::Unavailable) {
            let root = dataset.encryption_root().ok().flatten().unwrap_or_default();
            let at = dataset.pool().dataset(&root).ok().and_then(|root| root.prop("keylocation").ok()?);
            let at = at.map(|at| at.value.to_string()).filter(|at| at != "prompt");
            let there = at.map_or(String::new(), |at| format!(", or -L keylocation ({at})"));
            let how = format!("give the key of '{root}' with -L file:///PATH or -L prompt{there}");
            return Err(failed(format!("{target}: key not loaded: {how}")));
        }
        Ok(())
    }

    /// The object that a target names; a symbolic link is itself the object.
    pub(crate) fn find(&mut self, target: &Target) -> Result<TargetObject, Failure> {
        self.find_as(target, Follow::Parents)
    }

    /// The object that a target names, following a symbolic link as `follow` says.
    pub(crate) fn find_as(&mut self, target: &Target, follow: Follow) -> Result<TargetObject, Failure> {
        let dataset = self.dataset(target)?;
        self.check_key(target, &dataset)?;
        TargetObject::open(&dataset, target.path(), follow).map_err(|e| match e {
            zuse::Error::Files(e) => failed(format!("{target}: {}", strerror(&e))),
            // the pool may have been named by its guid
            zuse::Error::NoFiles { .. } => {
                failed(format!("{target}: '{}' is a volume, and has no files", target.dataset))
            }
            e => failed(format!("{target}: {e}")),
        })
    }
}

/// The system's message for an error of a file, to be printed after the path.
pub(super) fn strerror(e: &zpl::Error) -> String {
    match e {
        zpl::Error::Dmu(_) | zpl::Error::Pool(_) | zpl::Error::Log(_) => e.to_string(),
        e if e.errno() == Errno::EIO => e.to_string(),
        e => crate::error::cause(&std::io::Error::from(e.errno())),
    }
}

/// Parses the operands as targets; there must be at least one.
pub(super) fn targets(parsed: &Parsed) -> Result<Vec<Target>, Failure> {
    use std::os::unix::ffi::OsStrExt;
    if parsed.operands.is_empty() {
        return Err(usage("missing target argument"));
    }
    let parse = |o: &std::ffi::OsString| Target::parse(o.as_bytes()).map_err(|e| usage(e.to_string()));
    parsed.operands.iter().map(parse).collect()
}

/// Returns whether an operand is a target, where host paths are accepted too: it contains `:/`, and does not begin as
/// a path does.
pub(super) fn is_target(operand: &std::ffi::OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let bytes = operand.as_bytes();
    !bytes.starts_with(b"/") && !bytes.starts_with(b".") && bytes.windows(2).any(|w| w == b":/")
}

/// An operand that must be a target with a path.
pub(super) fn file_target(operand: &std::ffi::OsStr) -> Result<Target, Failure> {
    use std::os::unix::ffi::OsStrExt;
    let target = Target::parse(operand.as_bytes()).map_err(|e| usage(e.to_string()))?;
    match target.path {
        Some(_) => Ok(target),
        None => Err(usage(format!("'{target}' names no file: expected POOL[/FS]:/PATH"))),
    }
}
