//! `cargo bench -p zuse-benches --bench queue [-- ms=5 seconds=3 depths=32,4,1 readers=1,8 scrubbers=2,32 mb=128]`: what is left of the rate of random
//! reads while a scrub runs.
//!
//! The pool is on a device in memory, each operation of which takes `ms` milliseconds, `depth` of them at a time. An object of blocks of 4 KiB is read at
//! random by some threads; no block is read twice, and the pool is imported anew for each measurement. Beside it scrubs run, one after the other, with so
//! many threads. Each pair is measured in both orders: without the scrub and with it, with it and without. Before, what the queue costs an I/O that has
//! not to wait.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::tunable::ZUSE_SCRUB_THREADS;
use base::{Env, ObjectId};
use benches::{mix, number, text};
use dmu::{NewObject, Object};
use ondisk::ObjectType;
use pool::{CreateOptions, Hooks, ImportOptions, Spa, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, DirectSource, IoClass, Latency, LeafSource, MemoryDevice, VdevTree};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const NAME: &str = "z";
const BLOCK: u64 = 4096;
/// Pointers of one indirect block.
const FANOUT: u64 = 1 << 10;

/// A case that is measured.
#[derive(Clone, Copy)]
struct Case {
    ms: u64,
    depth: u64,
    readers: u64,
    scrubbers: usize,
    time: Duration,
}

fn main() -> Result<()> {
    let (ms, mb, time) = (number("ms", 5), number("mb", 128), Duration::from_secs(number("seconds", 3)));
    let numbers =
        |name: &str, or: &str| -> Vec<u64> { text(name, or).split(',').filter_map(|n| n.parse().ok()).collect() };
    println!("a read that finds room: {:.0} ns more than its device takes", overhead()?);
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::writable((mb << 20) * 4));
    let id = make(&memory, mb << 20)?;
    println!("reads of 4 KiB a second, {ms} ms an operation of the device; with a scrub in percent of those without");
    println!(
        "| depth | readers | scrubbing threads | alone | with a scrub | | alone, second | with a scrub, first | |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for depth in numbers("depths", "32,4,1") {
        for readers in numbers("readers", "1,8") {
            for scrubbers in numbers("scrubbers", "2,32") {
                let case = Case { ms, depth, readers, scrubbers: usize::try_from(scrubbers)?, time };
                let [alone, with] = [case.rate(&memory, id, false)?, case.rate(&memory, id, true)?];
                let [with_first, alone_second] = [case.rate(&memory, id, true)?, case.rate(&memory, id, false)?];
                println!(
                    "| {depth} | {readers} | {scrubbers} | {alone:.0} | {with:.0} | {:.0} % | {alone_second:.0} | {with_first:.0} | {:.0} % |",
                    with / alone * 100.0,
                    with_first / alone_second * 100.0
                );
            }
        }
    }
    Ok(())
}

/// Makes a pool with an object of so many bytes on `device`; gives the object's number.
fn make(device: &Arc<dyn Device>, bytes: u64) -> Result<u64> {
    let open = |_: &str| Some(device.clone());
    let new = layout(&VdevSpec::parse(&["memory".to_owned()])?, &open, LayoutOptions::default(), &Env::system())?;
    let mut options = CreateOptions::new(NAME);
    options.fs_props.push(("compression".to_owned(), Value::Number(2)));
    let spa = Spa::create(new, options, Hooks::default())?;
    let objset = spa.objset(&spa.view()?.dataset(NAME)?)?;
    let new = NewObject {
        object_type: ObjectType::UINT64_OTHER,
        block_size: BLOCK,
        indirect_shift: 17,
        bonus_type: ObjectType::UINT64_OTHER,
        bonus_len: 64,
        ..NewObject::default()
    };
    let object = objset.alloc_object(&spa.tx(1 << 20)?, &new)?;
    let chunk = FANOUT * BLOCK;
    let mut data = vec![0; usize::try_from(chunk)?];
    for at in (0..bytes).step_by(usize::try_from(chunk)?) {
        for (n, word) in (0..).zip(data.chunks_exact_mut(8)) {
            word.copy_from_slice(&mix(at + n).to_le_bytes());
        }
        object.write(&spa.tx(chunk + (1 << 20))?, at, &data)?;
    }
    let id = object.id();
    spa.sync()?;
    drop((object, objset));
    spa.close()?;
    Ok(id.0)
}

/// Nanoseconds that the queue costs a read that nothing else waits beside, the least of some rounds.
fn overhead() -> Result<f64> {
    const READS: u32 = 200_000;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::writable(64 << 20));
    let tree = VdevTree::of_one(device.clone(), 32 << 20)?;
    let leaf = tree.leaves().first().ok_or("no leaf")?;
    let mut buf = [0; 512];
    let mut least = f64::INFINITY;
    for _ in 0..10 {
        let begun = Instant::now();
        for n in 0..u64::from(READS) {
            device.read_at(n % 1024 * 512, &mut buf)?;
        }
        let bare = begun.elapsed();
        let begun = Instant::now();
        for n in 0..u64::from(READS) {
            DirectSource.read(leaf, IoClass::SyncRead, n % 1024 * 512, &mut buf)?;
        }
        least = least.min((begun.elapsed().as_secs_f64() - bare.as_secs_f64()) * 1e9 / f64::from(READS));
    }
    Ok(least)
}

impl Case {
    /// Blocks read a second, of an object that nobody has read.
    fn rate(&self, memory: &Arc<dyn Device>, id: u64, scrubs: bool) -> Result<f64> {
        let device: Arc<dyn Device> = Arc::new(Latency::new(memory.clone(), self.ms, self.depth));
        let found = vdev::import::scan_devices(vec![(PathBuf::from("memory"), device)]);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let spa = Spa::import(found.first().ok_or("no pool")?, &options, Hooks::default())?;
        let object = spa.view()?.dataset(NAME)?.objset()?.object(ObjectId(id))?;
        // the pointers are in the cache
        let blocks = object.nblocks();
        for first in (0..blocks).step_by(usize::try_from(FANOUT)?) {
            object.block(first)?;
        }
        let stop = AtomicBool::new(false);
        let rate = std::thread::scope(|scope| {
            let scrubbing = scrubs.then(|| scope.spawn(|| self.scrub(&spa, &stop)));
            if scrubs {
                std::thread::sleep(Duration::from_millis(300));
            }
            let rate = self.read(&object, blocks);
            stop.store(true, Ordering::Relaxed);
            scrubbing.map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err("the scrub panicked".into())))?;
            rate
        });
        drop(object);
        spa.close()?;
        rate
    }

    /// Scrubs again and again, until it is told to stop.
    fn scrub(&self, spa: &Arc<Spa>, stop: &AtomicBool) -> Result<()> {
        ZUSE_SCRUB_THREADS.set(self.scrubbers as u64);
        while !stop.load(Ordering::Relaxed) {
            spa.scrub(pool::ScrubRange::default())?;
            while !stop.load(Ordering::Relaxed) && !spa.scan_wait_for(Duration::from_millis(50))? {}
        }
        spa.scrub_pause()?;
        Ok(())
    }

    fn read(&self, object: &Object, blocks: u64) -> Result<f64> {
        let (next, begun) = (AtomicU64::new(0), Instant::now());
        let reader = || -> Result<u64> {
            let mut count = 0;
            while begun.elapsed() < self.time {
                // an odd step through a power of two comes to each once
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= blocks {
                    break;
                }
                object.block(n.wrapping_mul(0x9e37_79b1) % blocks)?;
                count += 1;
            }
            Ok(count)
        };
        let read = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..self.readers).map(|_| scope.spawn(reader)).collect();
            let counts =
                readers.into_iter().map(|reader| reader.join().unwrap_or_else(|_| Err("a reader panicked".into())));
            counts.sum::<Result<u64>>()
        })?;
        Ok(read as f64 / begun.elapsed().as_secs_f64())
    }
}
