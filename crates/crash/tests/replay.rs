//! Power cuts while an import claims and replays intent logs: from any state, the next import must produce the same result as an
//! uninterrupted one.
//!
//! The pool is one that the kernel module left with full logs (fixture `zil-a`). `ZUSE_CUTS` sets the number of cuts, `ZUSE_SEED` their
//! seed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use base::tunable;
use crash::{Cut, Recording, State, number_from_env, report, try_cuts};
use oracle::fixtures;
use pool::{Hooks, ImportOptions, Kind, ListOptions, Spa};
use vdev::Device;
use zpl::{FileSystem, Node, Zvol};

const FIXTURE: &str = "zil-a";
const POOL: &str = "zila";

/// The attributes of all files except times, by path.
type Listing = BTreeMap<String, String>;

fn import(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Spa>, String> {
    let devices = devices.into_iter().map(|device| (PathBuf::from(device.name()), device)).collect();
    let found = vdev::import::scan_devices(devices);
    let candidate = found.iter().find(|found| found.name == POOL).ok_or("no pool")?;
    let hooks = Hooks { used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() };
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Spa::import(candidate, &options, hooks).map_err(|e| format!("import: {e}"))
}

/// Replays all logs except that of the dataset whose key is unknown, and lists the files.
fn replay(spa: &Arc<Spa>) -> Result<Listing, String> {
    for (name, opened) in zpl::live::replay_all(spa, &mut |_| ()).map_err(|e| e.to_string())? {
        opened.map_err(|e| format!("{name}: {e}"))?;
    }
    list(spa).map_err(|e| e.to_string())
}

fn list(spa: &Arc<Spa>) -> Result<Listing, zpl::Error> {
    let mut listing = Listing::new();
    let view = spa.view()?;
    for entry in view.list(POOL, &ListOptions::DATASETS)? {
        let Some(dataset) = entry.dataset() else { continue };
        if dataset.key_status()? == pool::KeyStatus::Unavailable {
            continue;
        }
        let header = dataset.objset()?.phys().zil_header.clone();
        assert_eq!(header.replay_seq, 0, "{}: the log is gone", dataset.name());
        if dataset.kind()? == Kind::Volume {
            let volume = Zvol::open(dataset)?;
            let mut sum = DefaultHasher::new();
            let mut buf = vec![0; 1 << 20];
            for at in (0..volume.size()).step_by(buf.len()) {
                volume.read(at, &mut buf)?;
                buf.hash(&mut sum);
            }
            listing.insert(dataset.name().to_owned(), format!("{:x}", sum.finish()));
            continue;
        }
        let fs = FileSystem::open(dataset)?;
        let root = fs.node(fs.root())?;
        walk(&fs, &root, dataset.name(), &mut listing)?;
    }
    Ok(listing)
}

fn walk(fs: &FileSystem, node: &Node, path: &str, listing: &mut Listing) -> Result<(), zpl::Error> {
    let attrs = node.attrs();
    let mut sum = DefaultHasher::new();
    match node.kind() {
        zpl::Kind::File => {
            let mut data = vec![0; usize::try_from(node.size()).unwrap()];
            node.object().read(0, &mut data)?;
            data.hash(&mut sum);
        }
        zpl::Kind::Symlink => node.target()?.hash(&mut sum),
        _ => {}
    }
    let (id, mode, links, size) = (node.id(), attrs.mode, attrs.links, node.size());
    let told = format!("{id} {mode:o} {}:{} {links} {size} {:x}", attrs.uid(), attrs.gid(), sum.finish());
    listing.insert(path.to_owned(), told);
    if node.kind() == zpl::Kind::Directory {
        for entry in fs.read_dir(node.id())? {
            let entry = entry?;
            let below = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            walk(fs, &fs.node(entry.object)?, &below, listing)?;
        }
    }
    Ok(())
}

#[test]
fn a_cut_at_any_write_of_a_claim_or_replay_is_made_good_by_the_next() {
    let images = fixtures::unpack(FIXTURE);
    let bytes = |path: &PathBuf| (path.display().to_string(), Arc::new(std::fs::read(path).unwrap()));
    let recording: Recording<()> = Recording::over(images.images().iter().map(bytes).collect(), 1 << 30);
    // many txgs, so that cuts find partly replayed logs
    let percent = tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.get();
    tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.set(0);
    let spa = import(recording.devices()).unwrap();
    let whole = replay(&spa).unwrap();
    spa.export().unwrap();
    drop(spa);
    tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.set(percent);
    let tape = recording.finish();
    assert!(whole.len() > 100, "{} files", whole.len());

    let (seed, cuts) = (number_from_env("ZUSE_SEED", 1), number_from_env("ZUSE_CUTS", 40));
    let cuts: Vec<Cut> = (seed..seed + cuts).map(|seed| Cut::draw(&tape, seed)).collect();
    let check = |state: &State<'_, ()>| -> Result<(), String> {
        let spa = import(state.devices())?;
        let found = replay(&spa)?;
        let differs = |(path, told): (&String, &String)| {
            let other = found.get(path);
            (other != Some(told)).then(|| format!("{path}: {told}, not {other:?}"))
        };
        if let Some(difference) = whole.iter().find_map(differs) {
            return Err(difference);
        }
        match found.keys().find(|path| !whole.contains_key(*path)) {
            Some(more) => Err(format!("{more}: more files than before")),
            None => spa.export().map_err(|e| e.to_string()),
        }
    };
    let failures = try_cuts(&tape, cuts, 2, &check);
    let again = |seed| format!("ZUSE_SEED={seed} ZUSE_CUTS=1 cargo test -p zuse-crash --test replay");
    assert!(failures.is_empty(), "{}", report(&failures, &again));
}
