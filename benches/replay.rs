//! `cargo bench -p zuse-benches --bench replay [-- records=20000 files=256 latencies=0,1,5,20 depth=32]`: how long the replay of an intent
//! log takes on devices that take their time.
//!
//! The pool is in memory. Its files of 4 MiB, with records of 128 KiB, are on disk; then there is a stretch without a txg: eight of ten changes
//! write to a random place of a random file (4 KiB, some a whole record), one makes a file, one renames one; the log is committed every 64
//! changes. The memory as it is then, before any txg could hold a part of that, is the pool that lost its power. It is imported with
//! an empty cache, each operation of its device so many milliseconds slower, and its log is replayed: one record after the other with
//! nothing read before (as OpenZFS does it), primed, and primed with 32 records at a time (as is the default).
//!
//! Prints seconds of wall time: of the import, the claim of the log among it, and of the replay.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ::pool::{CreateOptions, Hooks, ImportOptions, Spa};
use base::{Env, tunable};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, Latency, MemoryDevice, Overlay, Room};
use zpl::Kind;
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, Zfs, replay_all};

const NAME: &str = "z";
const FILE: u64 = 4 << 20;
const RECORD: u64 = 128 << 10;

fn text(name: &str) -> Option<String> {
    std::env::args().find_map(|a| Some(a.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

fn number(name: &str, or: u64) -> u64 {
    text(name).and_then(|text| text.parse().ok()).unwrap_or(or)
}

fn main() {
    let (records, files, depth) = (number("records", 20_000), number("files", 256), number("depth", 32));
    let latencies = text("latencies").unwrap_or_else(|| "0,1,5,20".to_owned());
    let image = Arc::new(crashed(records, files));
    println!("seconds to replay about {records} records of {files} files; devices do {depth} operations at a time");
    println!("{:>10}{:>10}{:>16}{:>12}{:>20}", "latency", "import", "one by one", "primed", "primed, parallel");
    for ms in latencies.split(',').filter_map(|text| text.parse().ok()) {
        let ways = [(0, 0), (1, 0), (1, 32)].map(|(prime, width)| {
            tunable::ZIL_REPLAY_PRIME.set(prime);
            tunable::ZIL_REPLAY_PARALLEL.set(width);
            replayed(&image, ms, depth)
        });
        let [(import, serial, count), (_, primed, _), (_, parallel, again)] = ways;
        assert_eq!(count, again, "each way replays the same");
        println!("{ms:>7} ms{import:>10.2}{serial:>16.2}{primed:>12.2}{parallel:>20.2}   ({count} records)");
    }
}

fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)) }
}

/// Random numbers that repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// A pool that lost its power with so many changes in its log.
#[allow(clippy::expect_used)]
fn crashed(records: u64, files: u64) -> Vec<u8> {
    let size = (files * FILE * 3 / 2 + records * 16 * 1024 + (256 << 20)).next_multiple_of(1 << 20);
    let memory = MemoryDevice::writable(size);
    let device: Arc<dyn Device> = Arc::new(memory.clone());
    let spec = VdevSpec::parse(&["/memory".to_string()]).expect("spec");
    let open = |_: &str| Some(device.clone());
    let new = layout(&spec, &open, LayoutOptions { ashift: Some(12), ..LayoutOptions::default() }, &hooks().env);
    let mut create = CreateOptions::new(NAME);
    create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    let spa = Spa::create(new.expect("layout"), create, hooks()).expect("pool");
    let zfs = Zfs::open(&spa, NAME).expect("file system");
    let (root, cred, new) = (zfs.fs().root(), Cred::ROOT, NewFile::new(Kind::File, 0o644));
    let mut random = Random(1);
    let mut data: Vec<u8> = Vec::new();
    data.resize_with(FILE as usize, || random.below(256) as u8);
    let make = |n: u64| {
        let id = zfs.create(&cred, root, format!("file-{n}").as_bytes(), &new).expect("file").0;
        zfs.write(&cred, id, 0, &data).expect("write");
        id
    };
    let ids: Vec<u64> = (0..files).map(make).collect();
    spa.sync().expect("sync");
    tunable::ZFS_TXG_TIMEOUT.set(3600);
    tunable::ZFS_DIRTY_DATA_MAX.set(64 << 30);
    // the first commit of a log waits for a txg, the one that has its header
    zfs.setattr(&cred, root, &zpl::live::SetAttr { mode: Some(0o755), ..Default::default() }).expect("mode");
    zfs.sync().expect("commit");
    spa.sync().expect("sync");
    let (mut made, begun) = (0, spa.txgs().synced());
    for n in 0..records {
        let file = ids.get(random.below(files) as usize).copied().unwrap_or(root);
        match random.below(10) {
            0 => {
                made += 1;
                zfs.create(&cred, root, format!("new-{made}").as_bytes(), &new).expect("create");
            }
            1 if made > 0 => {
                let (from, to) = (format!("new-{made}"), format!("moved-{n}"));
                let mode = zpl::live::RenameMode::Replace;
                zfs.rename(&cred, root, from.as_bytes(), root, to.as_bytes(), mode).expect("rename");
                made -= 1;
            }
            2 => {
                let at = random.below(FILE / RECORD) * RECORD;
                zfs.write(&cred, file, at, data.get(..RECORD as usize).unwrap_or(&data)).expect("write");
            }
            _ => zfs.write(&cred, file, random.below(FILE - 4096), data.get(..4096).unwrap_or(&data)).expect("write"),
        }
        if n % 64 == 63 {
            zfs.sync().expect("commit");
        }
    }
    zfs.sync().expect("commit");
    let synced = spa.txgs().synced();
    if synced != begun {
        println!("some commits waited for a txg, of {begun} to {synced}: less is left in the log");
    }
    let image = memory.snapshot();
    tunable::ZFS_TXG_TIMEOUT.set(5);
    tunable::ZFS_DIRTY_DATA_MAX.set(256 << 20);
    image
}

/// Seconds of the import and of the replay, and how many records were replayed.
#[allow(clippy::expect_used)]
fn replayed(image: &Arc<Vec<u8>>, ms: u64, depth: u64) -> (f64, f64, u64) {
    let memory = Overlay::new(Arc::new(MemoryDevice::new(image.clone())), Room::new(u64::MAX));
    let slow: Arc<dyn Device> = Arc::new(Latency::new(Arc::new(memory), ms, depth));
    let begun = Instant::now();
    let found = vdev::import::scan_devices(vec![(PathBuf::from("/memory"), slow)]);
    let candidate = found.first().expect("pool");
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = Spa::import(candidate, &options, hooks()).expect("import");
    let import = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut records = 0;
    let done = replay_all(&spa, &mut |progress| records = progress.records_done).expect("replay");
    let replay = begun.elapsed().as_secs_f64();
    assert!(done.iter().all(|(_, opened)| opened.is_ok()), "{done:?}");
    spa.close().expect("close");
    (import, replay, records)
}
