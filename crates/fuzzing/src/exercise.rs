//! Calls every query that the library offers on a pool.

use std::convert::Infallible;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use dmu::{Objset, Zap};
use pool::prop::{format, format_pool};
use pool::{Dataset, Entry, Kind, ListOptions, OpenOptions, Pool, SpaceKind};
use stream::send::{Progress, SendFlags, send};
use vdev::Device;
use zpl::{FileSystem, Node, Zvol};
use zuse::verify::{Names, Options, verify};
use zuse::{Archiver, Chunk, Go, Silent, Step, read_past_damage, walk};

/// Files larger than this are not read.
const READ_MAX: u64 = 1 << 20;
/// Files and damage reports beyond these are ignored.
const FILES_MAX: u64 = 256;
/// Number of files whose path is looked up, which searches their whole directory.
const PATHS_MAX: u64 = 16;

/// Objects of a set, and entries of a ZAP, beyond these are ignored.
const OBJECTS_MAX: usize = 1000;
const ENTRIES_MAX: usize = 1000;
/// Datasets beyond these are not sent; a stream or archive is stopped after this many bytes.
const SENT_MAX: u64 = 6;
const OUT_MAX: usize = 2 << 20;

/// Counts of an exercise, to show that it did something.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) files: u64,
    /// Blocks that verification reports as lost, or files that cannot be read.
    pub(crate) lost: u64,
    /// Datasets that were sent.
    sent: u64,
}

/// Opens the pools on a device and exercises them.
pub(crate) fn exercise(device: Arc<dyn Device>) -> Findings {
    let mut found = Findings::default();
    let _ = vdev::label::read_labels(&*device);
    let _ = vdev::label::read_bootenv(&*device);
    for candidate in vdev::import::scan_devices(vec![(PathBuf::from("disk0"), device)]) {
        let options = OpenOptions { arc_bytes: 16 << 20, ..OpenOptions::default() };
        if let Ok(pool) = Pool::open(&candidate, &options) {
            let here = exercise_pool(&pool);
            found.files += here.files;
            found.lost += here.lost;
        }
    }
    found
}

/// Exercises a pool.
pub(crate) fn exercise_pool(pool: &Arc<Pool>) -> Findings {
    let mut found = Findings::default();
    ask_pool(pool);
    ask_objects(pool.mos());
    ask_datasets(pool, &mut found);
    check(pool, &mut found);
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

/// Lists objects as zdb does.
fn ask_objects(objset: &Arc<Objset>) {
    for object in objset.objects().take(OBJECTS_MAX).flatten() {
        let _ = (object.next_data(1), object.next_hole(0), object.spill().is_ok(), object.blkptr(1, 0).is_ok());
        if let Ok(zap) = Zap::open_any(object) {
            let first = zap.entries().ok().and_then(|entries| entries.take(ENTRIES_MAX).flatten().next());
            let _ = (first.map(|entry| zap.lookup(&entry.name).is_ok()), zap.stats());
        }
    }
}

/// A writer that fails after a number of bytes.
struct Limited(usize);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ask_datasets(pool: &Arc<Pool>, found: &mut Findings) {
    let everything = ListOptions { special: true, ..ListOptions::ALL };
    for entry in pool.list(pool.name(), &everything).unwrap_or_default() {
        match &entry {
            Entry::Dataset(dataset) => ask_dataset(dataset, found),
            Entry::Bookmark(mark) => drop(mark.props()),
        }
    }
}

fn ask_dataset(dataset: &Dataset, found: &mut Findings) {
    for (name, value) in dataset.props().unwrap_or_default() {
        let _ = format(&name, &value.value, false);
    }
    let _ = (dataset.holds(), dataset.clones().map(|c| c.len()), dataset.origin().map(|o| o.is_some()));
    let _ = (dataset.deadlist().map(|d| d.map(|d| d.space())), dataset.userspace(SpaceKind::UserUsed));
    let flags = SendFlags { raw: found.sent.is_multiple_of(2), ..SendFlags::default() };
    if found.sent < SENT_MAX {
        let _ = send(dataset, None, &flags, &mut Limited(OUT_MAX), &Progress::default());
        found.sent += 1;
    }
    if let Ok(objset) = dataset.objset() {
        ask_objects(&objset);
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
            let Ok(fs) = FileSystem::open(dataset) else { return };
            if let Ok(root) = fs.root_node() {
                let _ = Archiver::new(Limited(OUT_MAX), &mut Silent).add_tree(root, b"");
            }
            if let Ok(root) = fs.root_node() {
                read_files(root, found);
            }
        }
    }
}

fn read_files(root: Node, found: &mut Findings) {
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
        // a directory may claim millions of entries; a few hundred exercise the same code
        Ok(if found.files - start < FILES_MAX { Go::In } else { Go::Over })
    });
}

fn ask_file(node: &Node, path: bool, found: &mut Findings) {
    if path {
        let _ = node.fs().path_of(node.id());
    }
    let _ = (node.xattrs().map(|x| x.len()), node.acl().is_ok(), node.target());
    if node.kind() == zpl::Kind::File && node.size() <= READ_MAX {
        let done = read_past_damage(node, &mut |chunk| {
            found.lost += u64::from(matches!(chunk, Chunk::Lost { .. }));
            Ok(())
        });
        assert!(done.is_ok(), "reading fails: {done:?}");
    }
}

fn check(pool: &Arc<Pool>, found: &mut Findings) {
    if let Ok(summary) = verify(pool, &Options { dataset: None, threads: 1, expand: true }, &|_, _| {}) {
        found.lost += summary.tally.lost_blocks;
        let mut names = Names::new(pool);
        for damage in summary.damage().take(PATHS_MAX as usize) {
            let _ = names.place(&damage.bm).to_string();
        }
    }
}
