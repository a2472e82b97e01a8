//! Finds and opens the pool of a target: among devices (`-e`), by a cache file of OpenZFS, or as imported here.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use pool::{OpenOptions, Pool};
use site::devices;
use site::readers::Reading;
use vdev::import::{Candidate, scan};

use crate::console::{self, here};
use crate::error::{Failure, failed};

use super::options::Options;
use super::{config, recorder};

/// The folder that is searched for devices without `-p`.
const DEVICES: &str = "/dev";
/// Rewind policies: never; on demand with `-F`; and with `-X`, as far back as there is a state (OpenZFS:
/// `ZPOOL_NEVER_REWIND` and its like).
const REWIND: [u32; 3] = [2, 4, 12];

/// An open pool, and how it was found.
pub(super) struct Opened {
    pub(super) pool: Arc<Pool>,
    pub(super) candidate: Candidate,
}

/// Opens the pool that `target` is, or is in.
pub(super) fn target(out: &mut dyn Write, options: &Options, target: &str) -> Result<Opened, Failure> {
    let name = target.split(['/', '@', '#']).next().unwrap_or("");
    let cannot = |why: &dyn std::fmt::Display| failed(format!("zdb: can't open '{target}': {why}"));
    let mut how = OpenOptions {
        txg: options.txg,
        checkpoint: options.has('k'),
        missing_log_ok: true,
        missing_tops_ok: options.level('A') > 1,
        ..OpenOptions::default()
    };
    let reading = Reading::begin();
    let candidate = if options.has('e') {
        let paths = if options.paths.is_empty() { vec![PathBuf::from(DEVICES)] } else { options.paths.clone() };
        let candidate = among(&paths, name)?.ok_or_else(|| {
            eprintln!("failed to find config for pool '{name}': no matching pools");
            cannot(&"No such file or directory")
        })?;
        if options.level('C') > 1 && !options.json {
            let rewind = if options.has('X') { REWIND[2] } else { REWIND[usize::from(options.has('F'))] };
            config::import(out, &candidate, options.txg.map(|t| t.0), rewind)?;
        }
        candidate
    } else if let Some(path) = &options.cachefile {
        let cached = config::read_cache(path)?;
        let config = cached.get_nvlist(name).ok_or_else(|| cannot(&"No such file or directory"))?;
        let paths: Vec<PathBuf> = config::device_paths(config).into_iter().filter(|path| path.exists()).collect();
        among(&paths, name)?.ok_or_else(|| cannot(&"its devices are not where the cache file says"))?
    } else {
        let imported = here().find(name)?.ok_or_else(|| cannot(&"No such file or directory"))?;
        how.txg = how.txg.or(devices::options(&imported).txg);
        how.checkpoint |= imported.checkpoint;
        devices::candidate(&imported)?
    };
    let candidate = match &options.dump {
        Some(dir) => recorder::record(&candidate, dir)?,
        None => candidate,
    };
    let pool = Pool::open(&candidate, &how).map_err(|e| cannot(&e))?;
    reading.into_iter().for_each(|reading| reading.of(&pool));
    for (txg, why) in &pool.load_info().skipped {
        eprintln!("zdb: txg {txg} cannot be used: {why}");
    }
    Ok(Opened { pool, candidate })
}

/// The pool of this name or guid on devices or in folders of them; the one with the newest txg if there are several.
fn among(paths: &[PathBuf], name: &str) -> Result<Option<Candidate>, Failure> {
    let paths: Vec<PathBuf> = paths.iter().map(console::path).filter(|path| path.exists()).collect();
    let found = scan(&paths).map_err(|e| failed(format!("zdb: {e}")))?;
    let fitting = found.into_iter().filter(|c| c.name == name || c.guid.to_string() == name);
    Ok(fitting.max_by_key(|candidate| candidate.txg))
}
