//! All that can be asked of a pool.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use pool::prop::{format, format_pool};
use pool::{Dataset, Entry, Kind, ListOptions, OpenOptions, Pool, SpaceKind};
use vdev::Device;
use zpl::{FileSystem, Node, Zvol};
use zuse::verify::{Names, Options, verify};
use zuse::{Chunk, Go, Step, read_past_damage, walk};

/// Files beyond this size are not read.
const READ_MAX: u64 = 1 << 20;
/// Files and damages beyond these are not looked at.
const FILES_MAX: u64 = 256;
/// Files whose path is looked for: it takes a look through their whole directory.
const PATHS_MAX: u64 = 16;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) files: u64,
    /// Blocks that verification calls lost, or files that do not read.
    pub(crate) lost: u64,
}

/// Opens the pools on a device and asks them for everything.
pub(crate) fn exercise(device: Arc<dyn Device>) -> Found {
    let mut found = Found::default();
    let _ = vdev::label::read_labels(&*device);
    let _ = vdev::label::read_bootenv(&*device);
    for candidate in vdev::import::scan_devices(vec![(PathBuf::from("disk0"), device)]) {
        let options = OpenOptions { arc_bytes: 16 << 20, ..OpenOptions::default() };
        if let Ok(pool) = Pool::open(&candidate, &options) {
            ask_pool(&pool);
            ask_datasets(&pool, &mut found);
            check(&pool, &mut found);
        }
    }
    found
}

fn ask_pool(pool: &Arc<Pool>) {
    for (name, value) in pool.props().unwrap_or_default() {
        let _ = format_pool(&name, &value.value, false);
    }
    let _ = (pool.history(), pool.errlog(), pool.scan(), pool.space(), pool.spares(), pool.l2cache());
    let _ = (pool.ddts().map(|t| t.len()), pool.dedup_total(), pool.brt_stats(), pool.log_space_maps());
    let _ = pool.tree().status();
}

fn ask_datasets(pool: &Arc<Pool>, found: &mut Found) {
    let everything = ListOptions { special: true, ..ListOptions::ALL };
    for entry in pool.list(pool.name(), &everything).unwrap_or_default() {
        match &entry {
            Entry::Dataset(dataset) => ask_dataset(dataset, found),
            Entry::Bookmark(mark) => drop(mark.props()),
        }
    }
}

fn ask_dataset(dataset: &Dataset, found: &mut Found) {
    for (name, value) in dataset.props().unwrap_or_default() {
        let _ = format(&name, &value.value, false);
    }
    let _ = (dataset.holds(), dataset.clones().map(|c| c.len()), dataset.origin().map(|o| o.is_some()));
    let _ = (dataset.deadlist().map(|d| d.map(|d| d.space())), dataset.userspace(SpaceKind::UserUsed));
    if let Ok(objset) = dataset.objset() {
        zil::walk(&objset, &mut |step| {
            if let zil::Step::Record { record, .. } = step {
                let _ = record.decode();
            }
            ControlFlow::Continue(())
        });
    }
    match dataset.head_kind() {
        Ok(Kind::Volume) => {
            if let Ok(volume) = Zvol::open(dataset) {
                let _ = volume.read(0, &mut vec![0; READ_MAX as usize]);
            }
        }
        _ => {
            if let Ok(root) = FileSystem::open(dataset).and_then(|fs| fs.root_node()) {
                read_files(root, found);
            }
        }
    }
}

fn read_files(root: Node, found: &mut Found) {
    let start = found.files;
    let Ok(()) = walk::<Infallible>(root, false, &mut |step| {
        match step {
            Step::Enter { node, .. } => {
                found.files += 1;
                if found.files - start < FILES_MAX {
                    ask_file(node, found.files - start < PATHS_MAX, found);
                }
            }
            Step::Lost { .. } => found.lost += 1,
            Step::Leave { .. } | Step::Refused { .. } => {}
        }
        // a directory may claim millions of entries; what all say, a few hundred say
        Ok(if found.files - start < FILES_MAX { Go::In } else { Go::Over })
    });
}

fn ask_file(node: &Node, path: bool, found: &mut Found) {
    if path {
        let _ = node.fs().path_of(node.id());
    }
    let _ = (node.xattrs().map(|x| x.len()), node.acl().is_ok(), node.target());
    if node.kind() == zpl::Kind::File && node.size() <= READ_MAX {
        let done = read_past_damage(node, &mut |chunk| {
            found.lost += u64::from(matches!(chunk, Chunk::Lost { .. }));
            Ok(())
        });
        assert!(done.is_ok(), "reading says {done:?}");
    }
}

fn check(pool: &Arc<Pool>, found: &mut Found) {
    if let Ok(summary) = verify(pool, &Options { dataset: None, threads: 1, heal: false, expand: true }, &|_, _| {}) {
        found.lost += summary.tally.lost_blocks;
        let mut names = Names::new(pool);
        for damage in summary.damage().take(PATHS_MAX as usize) {
            let _ = names.place(&damage.bm).to_string();
        }
    }
}
