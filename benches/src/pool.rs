//! Pools of Zuse's own for benchmarks: files that do not flush; some count what is written to them, and can be slow.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Env;
use dmu::{NewObject, Object, Objset};
use ondisk::ObjectType;
use pool::{CreateOptions, Hooks, ImportOptions, Spa, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::device::Way;
use vdev::{Device, FileDevice};

/// The bytes that went to and came from the devices of a pool.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Writes.
    pub writes: AtomicU64,
    /// Bytes written.
    pub written: AtomicU64,
    /// Reads.
    pub reads: AtomicU64,
    /// Bytes read.
    pub read: AtomicU64,
    /// The delay of each write, in microseconds.
    pub write_delay_us: AtomicU64,
}

impl Traffic {
    /// Writes and bytes written so far.
    #[must_use]
    pub fn written(&self) -> (u64, u64) {
        (self.writes.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed))
    }
}

/// A file that takes a flush for done, as the peer's do, but for `flush=1` on the command line. One that counts makes each operation in the thread that asks for it; one that does
/// not makes them as the file would.
#[derive(Debug)]
struct Unflushed {
    file: FileDevice,
    traffic: Arc<Traffic>,
    counts: bool,
}

impl Device for Unflushed {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        self.traffic.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.count(data.len());
        self.file.write_at(offset, data)
    }

    fn write_vectored_at(&self, offset: u64, data: &[io::IoSlice<'_>]) -> io::Result<()> {
        self.count(data.iter().map(|part| part.len()).sum());
        self.file.write_vectored_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        if crate::number("flush", 0) != 0 { self.file.flush() } else { Ok(()) }
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn way(&self, offset: u64, len: usize) -> Way<'_> {
        if self.counts { Way::Here } else { self.file.way(offset, len) }
    }

    fn name(&self) -> String {
        self.file.name()
    }
}

impl Unflushed {
    fn count(&self, bytes: usize) {
        self.traffic.writes.fetch_add(1, Ordering::Relaxed);
        self.traffic.written.fetch_add(bytes as u64, Ordering::Relaxed);
        let delay = self.traffic.write_delay_us.load(Ordering::Relaxed);
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
    }
}

/// The layout of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Files.
    pub vdevs: usize,
    /// Bytes of each.
    pub size: u64,
    /// Whether data is compressed (lz4).
    pub lz4: bool,
    /// Whether the pool logs changes of space.
    pub log_spacemap: bool,
    /// log2 of the size of metaslabs; 0 as it comes.
    pub ms_shift: u64,
    /// Whether [`Traffic`] is counted, and writes can be delayed.
    pub counts: bool,
}

/// Makes a pool of striped files in `dir`, and gives what it does to them.
///
/// # Panics
/// When it cannot be made: there is nothing to measure then.
#[must_use]
#[allow(clippy::expect_used)]
pub fn make(dir: &Path, shape: &Shape) -> (Arc<Spa>, Arc<Traffic>) {
    let traffic = Arc::new(Traffic::default());
    let paths: Vec<String> = files(dir, shape).iter().map(|path| path.display().to_string()).collect();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        let file = FileDevice::create(Path::new(path), shape.size).ok()?;
        Some(Arc::new(Unflushed { file, traffic: traffic.clone(), counts: shape.counts }))
    };
    paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
    let spec = VdevSpec::parse(&paths).expect("files");
    let env = Env::system();
    let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
    let mut new = layout(&spec, &open, options, &env).expect("layout");
    if shape.ms_shift > 0 {
        for top in new.vdev_tree.get_nvlist_array_mut("children").into_iter().flatten() {
            top.insert("metaslab_shift", shape.ms_shift);
        }
    }
    let mut create = CreateOptions::new("z");
    create.features.retain(|name| shape.log_spacemap || *name != "log_spacemap");
    create.fs_props.push(("compression".to_string(), Value::Number(if shape.lz4 { 15 } else { 2 })));
    let spa = Spa::create(new, create, Hooks { env, used_by: None, ..Hooks::default() }).expect("pool");
    (spa, traffic)
}

fn files(dir: &Path, shape: &Shape) -> Vec<PathBuf> {
    (0..shape.vdevs).map(|n| dir.join(format!("z.v{n}"))).collect()
}

/// Opens a pool that [`make`] made and that has been exported since.
///
/// # Panics
/// When it cannot be opened.
#[must_use]
#[allow(clippy::expect_used)]
pub fn import(dir: &Path, shape: &Shape) -> Arc<Spa> {
    let open = |path: PathBuf| {
        let file = FileDevice::open_read_write(&path).expect("device");
        let device: Arc<dyn Device> = Arc::new(Unflushed { file, traffic: Arc::default(), counts: shape.counts });
        (path, device)
    };
    let found = vdev::import::scan_devices(files(dir, shape).into_iter().map(open).collect());
    let found = found.first().expect("a pool");
    Spa::import(found, &ImportOptions::default(), Hooks { env: Env::system(), used_by: None, ..Hooks::default() })
        .expect("import")
}

/// The object set of the pool's root dataset, and a new object in it.
///
/// # Panics
/// When it cannot be made.
#[must_use]
#[allow(clippy::expect_used)]
pub fn object(spa: &Arc<Spa>, block_size: u64, indirect_shift: u8) -> (Arc<Objset>, Object) {
    let view = spa.view().expect("view");
    let dataset = view.dataset("z").expect("root dataset");
    let objset = spa.objset(&dataset).expect("object set");
    let tx = spa.tx(1 << 20).expect("tx");
    let new = NewObject {
        object_type: ObjectType::UINT64_OTHER,
        block_size,
        indirect_shift,
        bonus_type: ObjectType::UINT64_OTHER,
        bonus_len: 64,
        ..NewObject::default()
    };
    let object = objset.alloc_object(&tx, &new).expect("object");
    (objset, object)
}

/// The bytes that the peer writes too: for each 8 KiB some that are random, then a constant.
pub fn fill(buf: &mut [u8], seed: u64) {
    let mut state = crate::mix(seed) | 1;
    let random = (2400 * buf.len() / 8192) & !7;
    let (head, tail) = buf.split_at_mut(random);
    for word in head.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    tail.fill(0x5a);
}
