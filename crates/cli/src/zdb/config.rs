//! `-C`: configurations, of the MOS, of an import, of a cache file.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use nvlist::{NvList, Value};
use ondisk::label::key;
use pool::Pool;
use site::devices;
use vdev::import::Candidate;

use crate::console::{self, here};
use crate::error::{Failure, Outcome, cause, failed};
use crate::pools::stdout;

/// The configuration in the MOS.
pub(super) fn mos(out: &mut dyn Write, pool: &Pool) -> io::Result<()> {
    write!(out, "\nMOS Configuration:\n{}", pool.config().dump_escaped(8))
}

/// The configuration that an import would start with (`-CC` with `-e`).
pub(super) fn import(out: &mut dyn Write, candidate: &Candidate, txg: Option<u64>, rewind: u32) -> io::Result<()> {
    let found = &candidate.config;
    let mut list = NvList::new();
    let mut take = |name: &str| {
        if let Some(value) = found.get(name) {
            list.insert(name, value.clone());
        }
    };
    for name in [key::VDEV_CHILDREN, key::VERSION, key::POOL_GUID, key::POOL_NAME, "comment", "compatibility"] {
        take(name);
    }
    for name in [key::POOL_STATE, key::HOSTID, key::HOSTNAME] {
        take(name);
    }
    if let Some(tree) = found.get_nvlist(key::VDEV_TREE) {
        list.insert(key::VDEV_TREE, with_paths(tree, candidate));
    }
    let mut policy = NvList::new();
    policy.insert("load-request-txg", txg.unwrap_or(u64::MAX));
    policy.insert("load-rewind-policy", rewind);
    list.insert("load-policy", policy);
    write!(out, "\nConfiguration for import:\n{}", list.dump_escaped(8))
}

/// A tree in which each device has the path where it was found.
fn with_paths(tree: &NvList, candidate: &Candidate) -> NvList {
    let mut tree = tree.clone();
    let guid = tree.get_u64(key::GUID).map(base::Guid);
    if let Some(device) = guid.and_then(|guid| candidate.devices.iter().find(|d| d.guid == guid)) {
        // a value that is set again is moved to the end
        tree.remove(key::PATH);
        tree.insert(key::PATH, device.path.display().to_string());
    }
    if let Some(Value::NvListArray(children)) = tree.get(key::CHILDREN).cloned() {
        let children: Vec<NvList> = children.iter().map(|child| with_paths(child, candidate)).collect();
        tree.remove(key::CHILDREN);
        tree.insert(key::CHILDREN, children);
    }
    tree
}

/// `zdb -C` without a pool: a cache file of OpenZFS, or else the pools imported here.
pub(super) fn cache(path: Option<&Path>) -> Outcome {
    let mut out = stdout();
    match path {
        Some(path) => write!(out, "{}", read_cache(path)?.dump_escaped(0))?,
        None => {
            for imported in here().all()? {
                let candidate = devices::candidate(&imported)?;
                writeln!(out, "{}:", imported.name)?;
                write!(out, "{}", candidate.config.dump_escaped(4))?;
            }
        }
    }
    out.flush()?;
    Ok(0)
}

/// The configurations in a cache file of OpenZFS, by name of the pool.
pub(super) fn read_cache(path: &Path) -> Result<NvList, Failure> {
    let bytes = match fs::read(console::path(path)) {
        Ok(bytes) => bytes,
        Err(e) => {
            println!("cannot open '{}': {}", path.display(), cause(&e));
            return Err(failed(""));
        }
    };
    NvList::unpack(&bytes).map_err(|_| failed("failed to unpack nvlist"))
}

/// The devices that a configuration names.
pub(super) fn device_paths(config: &NvList) -> Vec<std::path::PathBuf> {
    let mut paths = Vec::new();
    collect_paths(config, 0, &mut paths);
    paths
}

fn collect_paths(list: &NvList, depth: u32, paths: &mut Vec<std::path::PathBuf>) {
    /// Limit on the depth of a vdev tree: deeper than any real one.
    const DEPTH_MAX: u32 = 16;
    paths.extend(list.get_str(key::PATH).map(std::path::PathBuf::from));
    if depth == DEPTH_MAX {
        return;
    }
    for name in [key::CHILDREN, key::SPARES, key::L2CACHE] {
        for child in list.get_nvlist_array(name).unwrap_or(&[]) {
            collect_paths(child, depth + 1, paths);
        }
    }
    if let Some(tree) = list.get_nvlist(key::VDEV_TREE) {
        collect_paths(tree, depth + 1, paths);
    }
}
