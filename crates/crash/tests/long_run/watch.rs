//! The figures of a run: how long writes wait, how long txgs take, how much memory the process has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use zuse::pool::Spa;

use crate::world::{ARC_BYTES, DIRTY_BYTES, World, failed};

/// A transaction is held for this long.
const HELD: Duration = Duration::from_secs(3);
/// The longest that a write may take while another thread holds a transaction.
const STALL_MAX: Duration = Duration::from_secs(1);
/// The longest that a txg may be open, quiescing and syncing, beside the time that a transaction is held in it.
const TXG_MAX: Duration = Duration::from_secs(30);
/// Memory beside the ARC and dirty data: the model, streams, and 64 MiB.
const MEMORY_BESIDE: u64 = 448 << 20;
/// Growth of memory between the first third of a run and its end.
const GROWTH_MAX: u64 = 128 << 20;
/// A part of a run after which caches are full, in percent.
const WARM_PCT: u64 = 33;
/// Bytes of a page, as `/proc/self/statm` counts.
const PAGE: u64 = 4096;

#[derive(Default)]
pub struct Figures {
    held: AtomicBool,
    writes: AtomicU64,
    slowest_us: AtomicU64,
    slowest_held_us: AtomicU64,
    warm: AtomicU64,
    most: AtomicU64,
    last: AtomicU64,
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
        let (warm, last) = (get(&self.warm), get(&self.last));
        println!("{} writes; slowest {} ms", get(&self.writes), get(&self.slowest_us) / 1000);
        println!("slowest while a transaction is held: {} ms", get(&self.slowest_held_us) / 1000);
        println!("longest txg: {} ms; last {:?}", get(&self.txg_us) / 1000, spa.txgs());
        println!(
            "memory: {} MiB warm, {} MiB at the end, {} MiB at most",
            warm >> 20,
            last >> 20,
            get(&self.most) >> 20
        );
        if strict {
            assert!(get(&self.slowest_held_us) <= us(STALL_MAX), "a writer waited for the holder of a transaction");
            assert!(get(&self.txg_us) <= us(TXG_MAX), "a txg took too long");
            assert!(last <= warm + GROWTH_MAX, "memory grows");
            assert!(get(&self.most) <= ARC_BYTES + DIRTY_BYTES + MEMORY_BESIDE, "more memory than the limits allow");
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
        let (bytes, figures) = (pages * PAGE, &world.figures);
        figures.last.store(bytes, Ordering::Relaxed);
        figures.most.fetch_max(bytes, Ordering::Relaxed);
        if world.passed_pct() <= WARM_PCT {
            figures.warm.fetch_max(bytes, Ordering::Relaxed);
        }
        let longest = world.spa().txgs().history().iter().map(|txg| (txg.quiesce_ns + txg.sync_ns) / 1000).max();
        figures.txg_us.fetch_max(longest.unwrap_or(0).saturating_sub(us(HELD)), Ordering::Relaxed);
        Ok(())
    }
}
