//! `cargo bench -p zuse-benches --bench replay [-- records=100000 serial=2000 full=0,1 files=256 latencies=0,1,10,50 depths=32,256 kinds=write,link,mix,peer
//! ways=serial,primed,parallel rounds=1 peer_records=30000]`: how long the replay of an intent log takes on devices that take their time, beside OpenZFS's own engine.
//!
//! The pool is in memory. On disk are files of 4 MiB with records of 128 KiB (`write`: 4 KiB at a random place of a random file), or small files in 256
//! directories (`link`: another name for a random file in a random directory); `mix` has both: of ten changes six write, two link, one makes a file, one
//! renames one. Then there is a stretch without a txg, committed every 64 changes. The memory as it is then is the pool that lost its power. It is imported
//! with an empty cache, each operation of its device so many milliseconds slower, and its log is replayed: one record after the other with nothing read
//! before (as OpenZFS does it), with what it reads read before (`primed`), and primed with 32 records at a time (`parallel`, as is the default).
//!
//! One after the other, a long log on a slow device takes very long. Where the latency is not in `full`, `serial` stands for a shorter log of the same
//! kind over the same files, and says of how many records. A log that short seldom meets a block twice, so its rate per record is lower
//! than that of the long log would be: `full` tells.
//!
//! `peer`: 4 KiB into random blocks of 8 KiB of 1.6 GB, as `zpeer zilmk` does, and what that and `zpeer zilreplay` take; both with files on one disk, in the
//! same run. Each replay is a process of its own (`kinds=kept file=PATH`), as with the peer: memory that was never touched costs more than anything else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ::pool::{CreateOptions, Hooks, ImportOptions, Spa, Value};
use base::{Env, ObjectId, tunable};
use benches::streams::{touched, warm};
use benches::{median, run_peer, spent_cpu_seconds, text, zpeer};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice, Latency, MemoryDevice, Overlay, Room};
use zpl::Kind;
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, RenameMode, SetAttr, Zfs, replay_all};

const NAME: &str = "z";
const FILE: u64 = 4 << 20;
const DIRS: u64 = 256;
const SMALL_FILES: u64 = 50_000;
/// The files that the peer writes to: blocks of 8 KiB, in files of 64 MiB here.
const PEER_BLOCKS: u64 = 200_000;
const PEER_FILE: u64 = 64 << 20;

/// GiB of memory that are at hand when either replays.
const WARM: u64 = 4;

fn numbers(name: &str, or: &str) -> Vec<u64> {
    text(name, or).split(',').filter_map(|text| text.parse().ok()).collect()
}

fn number(name: &str, or: u64) -> u64 {
    numbers(name, "").first().copied().unwrap_or(or)
}

/// The records that are logged.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Write,
    Link,
    Mix,
    Peer,
    /// A pool of `Peer`, in a file.
    Kept,
}

impl Load {
    fn of(name: &str) -> Option<Load> {
        Some(match name {
            "write" => Load::Write,
            "link" => Load::Link,
            "mix" => Load::Mix,
            "peer" => Load::Peer,
            "kept" => Load::Kept,
            _ => return None,
        })
    }
}

fn main() {
    if touched() {
        return;
    }
    tunable::ZFS_ARC_MAX.set(4 << 30);
    let kinds = text("kinds", "write,link,mix,peer");
    println!(
        "{:<8}{:>8}{:>7}{:>12}{:>10}{:>10}{:>10}{:>12}{:>10}",
        "kind", "latency", "depth", "way", "records", "import s", "replay s", "records/s", "CPU s"
    );
    for kind in kinds.split(',') {
        match Load::of(kind) {
            Some(Load::Peer) => peer(),
            Some(Load::Kept) => kept(),
            Some(load) => table(kind, load),
            None => eprintln!("no kind: {kind}"),
        }
    }
}

fn asked(way: &str) -> bool {
    text("ways", "serial,primed,parallel").split(',').any(|asked| asked == way)
}

fn table(kind: &str, load: Load) {
    let (records, full) = (number("records", 100_000), numbers("full", "0,1"));
    let long = Crashed::new(load, records, None);
    let short = Crashed::new(load, number("serial", 2_000), None);
    for ms in numbers("latencies", "0,1,10,50") {
        let mut depths = numbers("depths", "32,256");
        if ms == 0 {
            depths.truncate(1);
        }
        for (n, depth) in depths.into_iter().enumerate() {
            // who has one operation under way at a time does not care for the depth
            if n == 0 && asked("serial") {
                let pool = if full.contains(&ms) { &long } else { &short };
                line(kind, ms, depth, "serial", &rounds(pool, ms, depth, 0, 0));
            }
            for (way, width) in [("primed", 0), ("parallel", 32)] {
                if asked(way) {
                    line(kind, ms, depth, way, &rounds(&long, ms, depth, 1, width));
                }
            }
        }
    }
}

fn line(kind: &str, ms: u64, depth: u64, way: &str, took: &Took) {
    let Took { records, import, replay, cpu } = took;
    let rate = *records as f64 / replay;
    println!("{kind:<8}{ms:>5} ms{depth:>7}{way:>12}{records:>10}{import:>10.2}{replay:>10.2}{rate:>12.0}{cpu:>10.2}");
}

/// The seconds that an import and a replay took; of the replay also the CPU seconds of all threads.
struct Took {
    records: u64,
    import: f64,
    replay: f64,
    cpu: f64,
}

fn rounds(pool: &Crashed, ms: u64, depth: u64, prime: u64, width: u64) -> Took {
    tunable::ZIL_REPLAY_PRIME.set(prime);
    tunable::ZIL_REPLAY_PARALLEL.set(width);
    let all: Vec<Took> = (0..number("rounds", 1).max(1)).map(|_| pool.replayed(ms, depth)).collect();
    for took in &all {
        assert_eq!(took.records, pool.records, "all of the log is replayed");
    }
    let of = |field: fn(&Took) -> f64| median(all.iter().map(field).collect());
    Took {
        records: pool.records,
        import: of(|took| took.import),
        replay: of(|took| took.replay),
        cpu: of(|took| took.cpu),
    }
}

fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() }
}

/// Random numbers that repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// A pool that lost its power: nothing is written to its device any more.
struct Crashed {
    device: Arc<dyn Device>,
    /// Records in its log.
    records: u64,
    /// The CPU seconds and wall seconds that all changes took, commits included.
    commits: (f64, f64),
}

/// The state on disk before.
struct Found {
    dirs: Vec<ObjectId>,
    large: Vec<ObjectId>,
    small: Vec<ObjectId>,
    file: u64,
}

#[allow(clippy::expect_used)]
impl Crashed {
    /// In memory, or in a file.
    fn new(load: Load, records: u64, path: Option<&Path>) -> Crashed {
        let size = 16 << 30;
        let device: Arc<dyn Device> = match path {
            Some(path) => Arc::new(FileDevice::create(path, 40 << 30).expect("file")),
            None => Arc::new(MemoryDevice::writable(size)),
        };
        let powered = Arc::new(Powered { device: device.clone(), lost: AtomicBool::new(false) });
        let spec = VdevSpec::parse(&["/memory".to_string()]).expect("spec");
        let open = |_: &str| Some(powered.clone() as Arc<dyn Device>);
        let new = layout(&spec, &open, LayoutOptions { ashift: Some(12), ..LayoutOptions::default() }, &hooks().env);
        let mut create = CreateOptions::new(NAME);
        let recordsize = if load == Load::Peer { 8 << 10 } else { 128 << 10 };
        create.fs_props = vec![("recordsize".to_owned(), Value::Number(recordsize))];
        create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
        let spa = Spa::create(new.expect("layout"), create, hooks()).expect("pool");
        let zfs = Zfs::open(&spa, NAME).expect("file system");
        tunable::ZFS_DIRTY_DATA_MAX.set(1 << 30);
        let found = prepare(&zfs, load);
        spa.sync().expect("sync");
        tunable::ZFS_TXG_TIMEOUT.set(3600);
        tunable::ZFS_DIRTY_DATA_MAX.set(64 << 30);
        // the first commit of a log waits for a txg, the one that has its header
        let root = zfs.fs().root();
        zfs.setattr(&Cred::ROOT, root, &SetAttr { mode: Some(0o755), ..Default::default() }).expect("mode");
        zfs.sync().expect("commit");
        spa.sync().expect("sync");
        let (synced, cpu, begun) = (spa.txgs().synced(), spent_cpu_seconds(), Instant::now());
        let every = if load == Load::Peer { 3000 } else { 64 };
        change(&zfs, load, records, &found, every);
        let took = (spent_cpu_seconds() - cpu, begun.elapsed().as_secs_f64());
        assert_eq!(spa.txgs().synced(), synced, "all is in the log");
        powered.lost.store(true, Ordering::Release);
        let mut crashed = Crashed { device, records, commits: took };
        // a pool that is closed would wait for its last txg
        std::mem::forget((zfs, spa));
        tunable::ZFS_TXG_TIMEOUT.set(5);
        // as OpenZFS has it on a machine of 40 GiB
        tunable::ZFS_DIRTY_DATA_MAX.set(4 << 30);
        if load == Load::Mix {
            // some changes write more than one record
            crashed.records = crashed.replayed(0, 32).records;
        }
        crashed
    }

    /// Imports it and replays its log.
    fn replayed(&self, ms: u64, depth: u64) -> Took {
        let memory = Overlay::new(self.device.clone(), Room::new(u64::MAX));
        let slow: Arc<dyn Device> = match ms {
            0 => Arc::new(memory),
            _ => Arc::new(Latency::new(Arc::new(memory), ms, depth)),
        };
        let begun = Instant::now();
        let found = vdev::import::scan_devices(vec![(PathBuf::from("/memory"), slow)]);
        let candidate = found.first().expect("pool");
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let spa = Spa::import(candidate, &options, hooks()).expect("import");
        let import = begun.elapsed().as_secs_f64();
        let (begun, cpu) = (Instant::now(), spent_cpu_seconds());
        let mut records = 0;
        let done = replay_all(&spa, &mut |progress| records = progress.records_done).expect("replay");
        let (replay, cpu) = (begun.elapsed().as_secs_f64(), spent_cpu_seconds() - cpu);
        assert!(done.iter().all(|(_, opened)| opened.is_ok()), "{done:?}");
        spa.close().expect("close");
        Took { records, import, replay, cpu }
    }
}

#[allow(clippy::expect_used)]
fn prepare(zfs: &Zfs, load: Load) -> Found {
    let (root, cred) = (zfs.fs().root(), Cred::ROOT);
    let (new, dir) = (NewFile::new(Kind::File, 0o644), NewFile::new(Kind::Directory, 0o755));
    let mut random = Random(1);
    let mut data: Vec<u8> = Vec::new();
    data.resize_with(FILE as usize, || random.below(256) as u8);
    let (files, file) = match load {
        Load::Peer => (PEER_BLOCKS * 8192 / PEER_FILE, PEER_FILE),
        Load::Link => (0, FILE),
        _ => (number("files", 256), FILE),
    };
    let make =
        |dir: ObjectId, name: String, new: &NewFile<'_>| zfs.create(&cred, dir, name.as_bytes(), new).expect("file").0;
    let dirs: Vec<ObjectId> = match load {
        Load::Link | Load::Mix => (0..DIRS).map(|n| make(root, format!("dir-{n}"), &dir)).collect(),
        _ => vec![root],
    };
    let large: Vec<ObjectId> = (0..files).map(|n| make(root, format!("file-{n}"), &new)).collect();
    for id in &large {
        let mut at = 0;
        while at < file {
            zfs.write(&cred, *id, at, &data).expect("write");
            at += FILE;
        }
    }
    let small = if dirs.len() > 1 { SMALL_FILES } else { 0 };
    let small = (0..small).map(|n| make(dirs[(n % DIRS) as usize], format!("small-{n}"), &new)).collect();
    Found { dirs, large, small, file }
}

/// Makes `records` changes and commits them, `every` at a time.
#[allow(clippy::expect_used)]
fn change(zfs: &Zfs, load: Load, records: u64, found: &Found, every: u64) {
    let cred = Cred::ROOT;
    let mut random = Random(7);
    let data: Vec<u8> = (0..4096).map(|_| random.below(256) as u8).collect();
    let new = NewFile::new(Kind::File, 0o644);
    let mut made = Vec::new();
    for n in 0..records {
        let what = match load {
            Load::Write | Load::Peer | Load::Kept => 0,
            Load::Link => 6,
            Load::Mix => random.below(10),
        };
        let any = |from: &[ObjectId], random: &mut Random| from[random.below(from.len() as u64) as usize];
        let dir = any(&found.dirs, &mut random);
        match what {
            0..6 => {
                let id = any(&found.large, &mut random);
                let at = random.below(found.file / 4096) * 4096;
                zfs.write(&cred, id, at, &data).expect("write");
            }
            6 | 7 => {
                let id = any(&found.small, &mut random);
                zfs.link(&cred, id, dir, format!("link-{n}").as_bytes()).expect("link");
            }
            9 if !made.is_empty() => {
                let (from, name) = made.swap_remove(random.below(made.len() as u64) as usize);
                let to = format!("moved-{n}");
                zfs.rename(&cred, from, String::as_bytes(&name), dir, to.as_bytes(), RenameMode::Replace)
                    .expect("rename");
            }
            _ => {
                let name = format!("new-{n}");
                zfs.create(&cred, dir, name.as_bytes(), &new).expect("create");
                made.push((dir, name));
            }
        }
        if n % every == every - 1 {
            zfs.sync().expect("commit");
        }
    }
    zfs.sync().expect("commit");
}

/// A device that can lose its power: what is written then does not arrive. As with the peer's files, a flush is taken for done.
#[derive(Debug)]
struct Powered {
    device: Arc<dyn Device>,
    lost: AtomicBool,
}

impl Powered {
    fn keep(&self, write: impl FnOnce(&dyn Device) -> std::io::Result<()>) -> std::io::Result<()> {
        if self.lost.load(Ordering::Acquire) {
            return Err(std::io::Error::other("no power"));
        }
        write(&*self.device)
    }
}

impl Device for Powered {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.keep(|device| device.write_at(offset, data))
    }

    fn write_vectored_at(&self, offset: u64, data: &[std::io::IoSlice<'_>]) -> std::io::Result<()> {
        self.keep(|device| device.write_vectored_at(offset, data))
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

fn told(what: &str, records: u64, cpu: f64, wall: f64) {
    let of = |seconds| records as f64 / seconds / 1e3;
    println!("peer    zuse {what}: {:.1} k per CPU s, {:.1} k per s", of(cpu), of(wall));
}

/// The replay of the log of a pool in a file, which stays as it is.
#[allow(clippy::expect_used)]
fn kept() {
    let file = FileDevice::open_read_only(Path::new(&text("file", ""))).expect("file");
    let crashed = Crashed { device: Arc::new(file), records: number("peer_records", 30_000), commits: (0.0, 0.0) };
    tunable::ZFS_DIRTY_DATA_MAX.set(4 << 30);
    for (way, prime, width) in [("serial", 0, 0), ("primed", 1, 0), ("parallel", 1, 32)] {
        if asked(way) {
            let took = rounds(&crashed, 0, 32, prime, width);
            told(way, took.records, took.cpu, took.replay);
        }
    }
}

/// The work of the peer, both engines in turn.
fn peer() {
    let dir = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from).join("zuse-replay");
    drop(std::fs::create_dir_all(&dir));
    let records = number("peer_records", 30_000);
    let path = dir.join("ours");
    let ours = Crashed::new(Load::Peer, records, Some(&path));
    let (cpu, wall) = ours.commits;
    told("commits", records, cpu, wall);
    // as the peer: each in a process that has no memory yet
    for way in ["serial", "primed", "parallel"] {
        let (file, records) = (format!("file={}", path.display()), format!("peer_records={records}"));
        let way = format!("ways={way}");
        warm(WARM);
        let run = std::env::current_exe().map(std::process::Command::new);
        drop(run.and_then(|mut run| run.args(["kinds=kept", &file, &records, &way]).status()));
    }
    drop(ours);
    drop(std::fs::remove_file(&path));
    let Some(zpeer) = zpeer() else { return };
    let at = format!("dir={}", dir.display());
    let (blocks, ops) = (format!("blocks={PEER_BLOCKS}"), format!("ops={records}"));
    for cached in ["warm=0", "warm=1"] {
        let _made = run_peer(&zpeer, &["mk", &at, &blocks, "vsize=40g"]);
        let made = run_peer(&zpeer, &["zilmk", &at, &blocks, &ops, "clump=3000", "pw=4096"]);
        warm(WARM);
        let replayed = run_peer(&zpeer, &["zilreplay", &at, cached]);
        for result in made.iter().chain(&replayed) {
            let of = |key: &str| result.get(key).and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
            let name = result.get("name").map_or("", String::as_str);
            let (cpu, wall) = (of("per_cpu") / 1e3, of("rate") / 1e3);
            println!("peer    libzpool {cached} {name}: {cpu:.1} k per CPU s, {wall:.1} k per s");
        }
    }
    drop(std::fs::remove_dir_all(&dir));
}
