//! Five short measurements, one of each engine that Zuse was built around, on pools in memory. The numbers are those of this machine, now;
//! `make bench` measures the same at length, beside OpenZFS's own engine.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use base::ObjectId;
use zuse::base::{Env, tunable};
use zuse::nvlist::NvList;
use zuse::pool::{CreateOptions, Hooks, ImportOptions, Spa, Value};
use zuse::stream::{Reader, Record, recv, send};
use zuse::vdev::create::{LayoutOptions, VdevSpec, layout};
use zuse::vdev::{Device, Direction, Latency, MemoryDevice, import};
use zuse::zpl::create::{FsProps, create_fs};
use zuse::zpl::live::{Cred, NewFile};
use zuse::zpl::{Kind, UsedByBonus};
use zuse::{Files, Pool};

/// That of the `zuse` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Bytes of a pool.
const SIZE: u64 = 768 << 20;
/// Bytes of a record of the file that is sent and overwritten.
const RECORD: usize = 8192;

fn main() -> Result<()> {
    nvlists()?;
    streams()?;
    space_maps()?;
    replay()
}

/// A new device in memory.
fn memory(size: u64) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::writable(size))
}

fn hooks() -> Hooks {
    Hooks { used_by: Some(Arc::new(UsedByBonus)), ..Hooks::default() }
}

/// A pool `tank` on `device`, with or without a log of space maps.
fn make(device: Arc<dyn Device>, log_spacemap: bool) -> Result<Pool> {
    let open = |_: &str| Some(device.clone());
    let spec = VdevSpec::parse(&["memory".to_owned()])?;
    let new = layout(&spec, &open, LayoutOptions::default(), &Env::system())?;
    let mut options = CreateOptions::new("tank");
    options.features.retain(|name| log_spacemap || *name != "log_spacemap");
    // file systems below take their names' form from this one
    options.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    let pool = Pool::of_spa(Spa::create(new, options, hooks())?);
    pool.create("tank/fs", &[("recordsize", Value::Number(RECORD as u64)), ("compression", Value::Number(15))])?;
    Ok(pool)
}

/// A block of which lz4 leaves about 2.5 KB.
fn block(seed: u64) -> Vec<u8> {
    let mut block = vec![0x5a; RECORD];
    if let Some(head) = block.get_mut(..2400) {
        Env::seeded(seed).fill_random(head);
    }
    block
}

fn file(files: &Files, name: &str, blocks: u64) -> Result<ObjectId> {
    let id = files.make(name.as_bytes(), &NewFile::new(Kind::File, 0o644))?;
    for first in (0..blocks).step_by(128) {
        let data: Vec<u8> = (first..blocks.min(first + 128)).flat_map(block).collect();
        files.zfs().write(&Cred::ROOT, id, first * RECORD as u64, &data)?;
    }
    files.zfs().spa().sync()?;
    Ok(id)
}

fn rate(what: u64, since: Instant) -> f64 {
    what as f64 / since.elapsed().as_secs_f64()
}

fn nvlists() -> Result<()> {
    const PAIRS: u64 = 10_000;
    let names: Vec<String> = (0..PAIRS).map(|n| format!("tank/fs@auto-{n:06}")).collect();
    let start = Instant::now();
    let mut list = NvList::new();
    for name in &names {
        list.insert(name.as_str(), ());
    }
    let found = names.iter().filter(|name| list.contains(name)).count();
    names.iter().for_each(|name| drop(list.remove(name)));
    println!(
        "  nvlist        {PAIRS} names added, found ({found}) and removed: {:.1} million operations a second",
        rate(3 * PAIRS, start) / 1e6
    );
    const SNAPSHOTS: u64 = 1_000;
    let pool = make(memory(256 << 20), true)?;
    let names: Vec<String> = (0..SNAPSHOTS).map(|n| format!("tank/fs@auto-{n:06}")).collect();
    names.iter().try_for_each(|name| pool.snapshot(name))?;
    let start = Instant::now();
    pool.spa()?.destroy_snapshots(&names, false)?;
    println!("                {SNAPSHOTS} snapshots destroyed in one call: {:.0} a second", rate(SNAPSHOTS, start));
    Ok(())
}

fn streams() -> Result<()> {
    const BLOCKS: u64 = 60_000;
    let pool = make(memory(SIZE), true)?;
    file(&pool.files("tank/fs")?, "file", BLOCKS)?;
    pool.snapshot("tank/fs@now")?;
    let view = pool.view()?;
    let arc = || view.zio().arc().stats().size;
    let (before, snapshot) = (arc(), view.dataset("tank/fs@now")?);
    let flags = send::SendFlags { compress: true, ..send::SendFlags::default() };
    let mut stream = Vec::new();
    send::send(&snapshot, None, &flags, &mut stream, &send::Progress::default())?;
    // to nowhere: the memory that a stream fills costs more than to send it
    let start = Instant::now();
    send::send(&snapshot, None, &flags, &mut io::sink(), &send::Progress::default())?;
    println!(
        "  send          {BLOCKS} blocks of {RECORD} (2.5 KB compressed): {:.0} blocks a second; cache before {before}, after {} bytes",
        rate(BLOCKS, start),
        arc()
    );
    for batch in ["0", "1048576"] {
        tunable::set("zfs_recv_write_batch_size", batch)?;
        let target = make(memory(SIZE), true)?;
        let mut reader = Reader::new(stream.as_slice());
        let start = Instant::now();
        let args = recv::RecvArgs { target: "tank/copy@now".to_owned(), ..recv::RecvArgs::default() };
        receive(target.spa()?, &mut reader, &args)?;
        let told = if batch == "0" {
            "receive       a transaction per record"
        } else {
            "              1 MiB a transaction   "
        };
        println!("  {told}: {:.0} blocks a second", rate(BLOCKS, start));
    }
    Ok(())
}

/// Random overwrites of a pool of many metaslabs.
fn space_maps() -> Result<()> {
    const METASLABS: u64 = 4096;
    const BLOCKS: u64 = 40_000;
    const TXGS: u64 = 20;
    const OVERWRITES: u64 = 1000;
    tunable::set("zfs_vdev_default_ms_shift", "17")?;
    tunable::set("zfs_vdev_default_ms_count", &METASLABS.to_string())?;
    for logs in [false, true] {
        let pool = make(memory(SIZE), logs)?;
        let spa = pool.spa()?.clone();
        let written = || -> u64 {
            let tree = spa.tree();
            let leaves = tree.leaves().iter();
            leaves.map(|leaf| leaf.queue().figures().operations(Direction::Write)).sum()
        };
        let files = pool.files("tank/fs")?;
        let id = file(&files, "file", BLOCKS)?;
        let random = Env::seeded(7);
        let (before, start) = (written(), Instant::now());
        for _ in 0..TXGS {
            for _ in 0..OVERWRITES {
                let seed = random.random_u64();
                files.zfs().write(&Cred::ROOT, id, seed % BLOCKS * RECORD as u64, &block(seed))?;
            }
            pool.sync()?;
        }
        let writes = (written() - before) / TXGS;
        let told = if logs { "              with log space maps   " } else { "space maps    an append to every map" };
        println!(
            "  {told}: {:.1} ms and {writes} writes a txg of {OVERWRITES} random overwrites",
            start.elapsed().as_secs_f64() * 1e3 / TXGS as f64
        );
    }
    Ok(())
}

/// A log of synchronous writes to many places, replayed on a device on which each read takes a while.
fn replay() -> Result<()> {
    const WRITES: u64 = 1500;
    /// Milliseconds of a read or write of the device, and how many it does at a time.
    const LATENCY: u64 = 2;
    const DEPTH: u64 = 64;
    tunable::set("zfs_vdev_default_ms_shift", "29")?;
    // no txg shall take what the log has
    tunable::set("zfs_txg_timeout", "3600")?;
    let memory = MemoryDevice::writable(SIZE);
    let pool = make(Arc::new(memory.clone()), true)?;
    let files = pool.files("tank/fs")?;
    let ids = (0..30).map(|n| file(&files, &format!("file-{n}"), 1000)).collect::<Result<Vec<_>>>()?;
    let random = Env::seeded(9);
    for n in 0..WRITES {
        let (at, id) = (random.random_u64() % 8_000_000, ids[n as usize % ids.len()]);
        files.zfs().write(&Cred::ROOT, id, at, &[n as u8; 512])?;
        if n % 16 == 15 {
            files.zfs().sync()?;
        }
    }
    // the power goes
    let image = Arc::new(memory.snapshot());
    let ways = [("one by one, as it is read", "0", "0"), ("primed", "1", "0"), ("primed, and in parallel", "1", "32")];
    for (n, (told, prime, parallel)) in ways.into_iter().enumerate() {
        tunable::set("zil_replay_prime", prime)?;
        tunable::set("zil_replay_parallel", parallel)?;
        let memory = MemoryDevice::writable_from(image.to_vec());
        let device: Arc<dyn Device> = Arc::new(Latency::new(Arc::new(memory), LATENCY, DEPTH));
        let start = Instant::now();
        let found = import::scan_devices(vec![(PathBuf::from("memory"), device)]);
        let found = found.first().ok_or("no pool")?;
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let replayed = Pool::of_spa(Spa::import(found, &options, hooks())?);
        replayed.files("tank/fs")?;
        let label = if n == 0 { "replay        " } else { "              " };
        println!(
            "  {label}{WRITES} writes of 30 files, {LATENCY} ms an access, {told}: {:.2} s",
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

fn receive(spa: &Arc<Spa>, reader: &mut Reader<&[u8]>, args: &recv::RecvArgs) -> Result<()> {
    let entry = reader.next_record()?.ok_or("an empty stream")?;
    let payload = entry.payload.to_vec();
    let Record::Begin(begin) = entry.header.record else { return Err("no stream".into()) };
    recv::receive(spa, reader, &begin, &payload, args, &recv::Progress::default())?;
    Ok(())
}
