//! The memory of all caches of the process: together they take no more than [`ZFS_ARC_MAX`](tunable::ZFS_ARC_MAX), however many pools are open.
//!
//! Each cache has its own lists and its own limit. Where the limits exceed the budget and it is used up, the cache that has most makes room: so
//! caches in use share it evenly, and one that is used alone gets nearly all of it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use base::tunable;
use parking_lot::{Mutex, RwLock};

use super::ArcStats;
use super::shard::Shard;

/// Bytes in use by all caches.
static USED: AtomicU64 = AtomicU64::new(0);
/// The sum of the limits of all caches.
static LIMITS: AtomicU64 = AtomicU64::new(0);
static CACHES: RwLock<Vec<Weak<Shards>>> = RwLock::new(Vec::new());
/// The counters of the caches that are no more: figures of the process never go back.
static PAST: Mutex<Option<ArcStats>> = Mutex::new(None);

/// The shards of a cache, known to the budget.
pub(super) struct Shards {
    pub(super) list: Box<[Mutex<Shard>]>,
    limit: u64,
    used: AtomicU64,
    /// The shard that makes room next.
    hand: AtomicUsize,
}

impl Shards {
    pub(super) fn new(list: Box<[Mutex<Shard>]>, limit: u64) -> Arc<Shards> {
        let shards = Arc::new(Shards { list, limit, used: AtomicU64::new(0), hand: AtomicUsize::new(0) });
        LIMITS.fetch_add(limit, Ordering::Relaxed);
        CACHES.write().push(Arc::downgrade(&shards));
        shards
    }

    /// Changes a shard; what it takes more or less is noted.
    pub(super) fn change<R>(&self, shard: &Mutex<Shard>, work: impl FnOnce(&mut Shard) -> R) -> R {
        let mut shard = shard.lock();
        let before = shard.size();
        let result = work(&mut shard);
        let after = shard.size();
        for used in [&self.used, &USED] {
            if after >= before {
                used.fetch_add(after - before, Ordering::Relaxed);
            } else {
                used.fetch_sub(before - after, Ordering::Relaxed);
            }
        }
        result
    }

    /// Counters and sizes of all shards together.
    pub(super) fn stats(&self) -> ArcStats {
        let mut sum = ArcStats::default();
        self.list.iter().for_each(|shard| sum.add(&shard.lock().stats()));
        sum
    }

    /// Evicts about `bytes` bytes. Returns whether there was anything to evict.
    fn evict(&self, bytes: u64) -> bool {
        (0..self.list.len()).any(|_| {
            let at = self.hand.fetch_add(1, Ordering::Relaxed).checked_rem(self.list.len()).unwrap_or(0);
            self.list.get(at).is_some_and(|shard| self.change(shard, |shard| shard.evict(bytes)))
        })
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        USED.fetch_sub(*self.used.get_mut(), Ordering::Relaxed);
        LIMITS.fetch_sub(self.limit, Ordering::Relaxed);
        let stats = self.stats();
        let mut caches = CACHES.write();
        caches.retain(|cache| cache.strong_count() > 0);
        PAST.lock().get_or_insert_default().add_counters(&stats);
    }
}

/// Counters and sizes of all caches together, those that are no more with their counters. The limit is that of the process, if it is the narrower one.
pub(super) fn stats_of_all() -> ArcStats {
    let (mut sum, live) = {
        let caches = CACHES.read();
        // one is added to the past when it leaves the list, which is locked here
        let live: Vec<Arc<Shards>> = caches.iter().filter_map(Weak::upgrade).collect();
        ((*PAST.lock()).unwrap_or_default(), live)
    };
    live.iter().for_each(|cache| sum.add(&cache.stats()));
    sum.c_max = sum.c_max.min(tunable::ZFS_ARC_MAX.get());
    sum
}

/// Makes the caches give up what they must so that `bytes` more fit. No shard is locked.
pub(super) fn make_room(bytes: u64) {
    let max = tunable::ZFS_ARC_MAX.get();
    let over = || (USED.load(Ordering::Relaxed) + bytes).saturating_sub(max);
    if LIMITS.load(Ordering::Relaxed) <= max || over() == 0 {
        return;
    }
    let mut caches: Vec<Arc<Shards>> = CACHES.read().iter().filter_map(Weak::upgrade).collect();
    loop {
        let most = caches.iter().enumerate().max_by_key(|(_, cache)| cache.used.load(Ordering::Relaxed));
        match (over(), most.map(|(n, _)| n)) {
            (0, _) | (_, None) => return,
            (bytes, Some(n)) => {
                if !caches.get(n).is_some_and(|cache| cache.evict(bytes)) {
                    caches.swap_remove(n);
                }
            }
        }
    }
}
