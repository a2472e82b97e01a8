//! The figures of a run: how long writes wait, how long txgs take, how much memory the process has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use zuse::pool::Spa;

use crate::files::FILE_MAX;
use crate::world::{ARC_BYTES, DIRTY_BYTES, FILE_SYSTEMS, World, failed};
use crate::{ALLOCATOR, content};

/// A transaction is held for this long.
const HELD: Duration = Duration::from_secs(3);
/// The longest that a write may take while another thread holds a transaction.
const STALL_MAX: Duration = Duration::from_secs(1);
/// The longest that a txg may be open, quiescing and syncing, beside the time that a transaction is held in it.
const TXG_MAX: Duration = Duration::from_secs(30);
/// Threads that write files, compare them, or work with snapshots and short-lived datasets; each holds two files at most.
const FILES: u64 = 64 * 2 * FILE_MAX as u64;
/// Streams that are received at the same time, each with as much as its queue takes (`zfs_recv_queue_length`).
const STREAMS: u64 = 8 * (16 << 20);
/// Buffers of the threads that answer the kernel's requests, of which each mount has four by default, and the one of its first request. They count as in use,
/// though hardly a page of them is: 320 MiB more than without mounts.
const MOUNTS: u64 = FILE_SYSTEMS as u64 * 5 * ((16 << 20) + 4096);
/// Memory in use beside the ARC, dirty data and the model.
const MEMORY_BESIDE: u64 = (64 << 20) + FILES + STREAMS + MOUNTS;
/// Growth of memory between the first third of a run and its end.
const GROWTH_MAX: u64 = 128 << 20;
/// A part of a run after which caches are full, in percent.
const WARM_PCT: u64 = 33;
/// Bytes of a page, as `/proc/self/statm` counts.
const PAGE: u64 = 4096;

/// Bytes of memory: when caches are full, at most, and now.
#[derive(Default)]
struct Memory {
    warm: AtomicU64,
    most: AtomicU64,
    last: AtomicU64,
}

impl Memory {
    fn note(&self, bytes: u64, is_warm: bool) {
        self.last.store(bytes, Ordering::Relaxed);
        self.most.fetch_max(bytes, Ordering::Relaxed);
        if !is_warm {
            self.warm.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    fn grows(&self) -> bool {
        self.last.load(Ordering::Relaxed) > self.warm.load(Ordering::Relaxed) + GROWTH_MAX
    }

    fn print(&self, what: &str) {
        let mib = |figure: &AtomicU64| figure.load(Ordering::Relaxed) >> 20;
        println!(
            "{what}: {} MiB warm, {} MiB at the end, {} MiB at most",
            mib(&self.warm),
            mib(&self.last),
            mib(&self.most)
        );
    }
}

#[derive(Default)]
pub struct Figures {
    held: AtomicBool,
    writes: AtomicU64,
    slowest_us: AtomicU64,
    slowest_held_us: AtomicU64,
    in_use: Memory,
    resident: Memory,
    txg_us: AtomicU64,
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Figures {
    /// Notes a write that took this long; a synchronous one waits for devices.
    pub fn wrote(&self, time: Duration, sync: bool) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        if sync {
            return;
        }
        self.slowest_us.fetch_max(us(time), Ordering::Relaxed);
        if self.held.load(Ordering::Relaxed) {
            self.slowest_held_us.fetch_max(us(time), Ordering::Relaxed);
        }
    }

    /// Prints the figures; with `strict` they must be within their bounds.
    pub fn report(&self, spa: &Arc<Spa>, strict: bool) {
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        println!("{} writes; slowest {} ms", get(&self.writes), get(&self.slowest_us) / 1000);
        println!("slowest while a transaction is held: {} ms", get(&self.slowest_held_us) / 1000);
        println!("longest txg: {} ms; last {:?}", get(&self.txg_us) / 1000, spa.txgs());
        self.in_use.print("memory in use beside the model");
        self.resident.print("resident memory beside the model, with what the allocator keeps");
        if strict {
            assert!(get(&self.slowest_held_us) <= us(STALL_MAX), "a writer waited for the holder of a transaction");
            assert!(get(&self.txg_us) <= us(TXG_MAX), "a txg took too long");
            assert!(!self.in_use.grows() && !self.resident.grows(), "memory grows");
            assert!(self.in_use.most() <= ARC_BYTES + DIRTY_BYTES + MEMORY_BESIDE, "more memory than the limits allow");
        }
    }
}

/// Holds a transaction for some seconds, now and then, as a slow caller does.
pub fn hold_transactions(world: &World) -> impl FnMut() -> Result<(), String> {
    move || {
        world.rest(Duration::from_secs(4));
        let tx = world.spa().tx(4096).map_err(failed("tx"))?;
        world.figures.held.store(true, Ordering::Relaxed);
        world.rest(HELD);
        world.figures.held.store(false, Ordering::Relaxed);
        drop(tx);
        Ok(())
    }
}

/// Collects figures.
pub fn figures(world: &World) -> impl FnMut() -> Result<(), String> {
    move || {
        world.rest(Duration::from_millis(500));
        let statm = std::fs::read_to_string("/proc/self/statm").map_err(failed("statm"))?;
        let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).ok_or("statm")?;
        let (figures, is_warm) = (&world.figures, world.passed_pct() > WARM_PCT);
        figures.in_use.note((ALLOCATOR.allocated() as u64).saturating_sub(content::taken()), is_warm);
        figures.resident.note((pages * PAGE).saturating_sub(content::taken()), is_warm);
        let longest = world.spa().txgs().history().iter().map(|txg| (txg.quiesce_ns + txg.sync_ns) / 1000).max();
        figures.txg_us.fetch_max(longest.unwrap_or(0).saturating_sub(us(HELD)), Ordering::Relaxed);
        Ok(())
    }
}
