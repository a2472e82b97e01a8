//! The adaptive replacement cache (OpenZFS: `arc.c`; Megiddo and Modha, FAST '03).
//!
//! Two lists hold data: blocks seen once lately (MRU) and blocks seen again (MFU). Two *ghost* lists remember the blocks
//! evicted from each, without data. A miss on a block in a ghost list shows that its list was too short: the target `p`
//! of the MRU list moves up or down. Eviction takes from the MRU list while that is over `p`, else from the MFU list. So
//! one long sequential read cannot evict the blocks that are read again and again, and the cache follows a change of the
//! access pattern.
//!
//! A fifth list holds blocks that are not to be cached (property `primarycache`) but were read ahead of their reader, or
//! in part: they are dropped when they have been read. Blocks that no reader asks for are dropped oldest first, as the
//! list is limited to a quarter of the cache.
//!
//! Sizes are bytes. The limit always holds, and so does that of all caches of the process together (`budget`), the book-keeping of live and ghost entries included; a block that would not
//! fit in its shard is not kept. Every operation is O(1) (an insertion evicts as many blocks as it must): entries live in
//! a slab, lists are chained through it by index, and a hash table maps keys to indices. The cache is split in shards by
//! the hash of the key, each with its own lock and its share of the limit, so that readers seldom contend.
//!
//! A block is identified by the first DVA, the physical birth and the checksum of its pointer, which are the same in
//! every snapshot and clone. A cached block never changes, so there is no invalidation but [`ArcCache::remove`] and
//! [`ArcCache::clear`]. The checksum is part of the key because a later pass of a sync may overwrite a block in place
//! while a reader of the old contents has yet to insert them.

mod budget;
mod shard;
mod slab;
mod stats;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};

use std::sync::Arc;

use base::Txg;
use budget::Shards;
use ondisk::{BlkPtr, Dva};
use parking_lot::Mutex;
use shard::Shard;

use crate::Buf;

pub use stats::{ArcStats, LookUps};

/// The identity of a cached block (OpenZFS: `buf_hash`, `HDR_EQUAL`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArcKey {
    /// The first DVA of the pointer.
    pub dva: Dva,
    /// Its physical birth.
    pub birth: Txg,
    /// The words of its checksum, folded into one: the first word of fletcher4 alone is the same for blocks whose words
    /// are permuted.
    pub sum: u64,
    /// True if the data is the stored form of a block of an encrypted dataset, read without the key.
    pub noauth: bool,
    /// True for indirect blocks and objects of metadata; sizes and look-ups of both kinds are told apart.
    pub metadata: bool,
}

impl ArcKey {
    /// The key of the block of `bp`; `None` for holes and embedded blocks, which are not cached.
    #[must_use]
    pub fn of(bp: &BlkPtr) -> Option<Self> {
        (!bp.is_hole() && !bp.is_embedded()).then(|| ArcKey {
            dva: bp.dva(0),
            birth: bp.birth_physical(),
            sum: bp.cksum().iter().fold(0, |sum, word| sum.rotate_left(19) ^ word),
            noauth: false,
            metadata: bp.level() > 0 || bp.object_type().is_metadata(),
        })
    }

    /// Hashes the key with a secret, so that a hostile pool cannot target one bucket.
    fn hash(&self, secret: (u64, u64)) -> u64 {
        let folded = |a: u64, b: u64| {
            let wide = u128::from(a) * u128::from(b);
            (wide >> 64) as u64 ^ wide as u64
        };
        let place = folded(self.dva.word1 ^ secret.0, self.dva.word0 ^ 0x9e37_79b9_7f4a_7c15);
        folded(place ^ self.birth.0 ^ self.sum ^ (u64::from(self.noauth) << 63), secret.1 | 1)
    }
}

/// Who looks for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// Somebody waits for it.
    Reader,
    /// It is read ahead of its reader.
    Prefetch,
}

/// The memory of one entry besides its data: slab entry, table slot, the shared buffer's header.
pub(crate) const OVERHEAD: u64 = 192;
/// A shard should be able to hold a few of the largest blocks.
const SHARD_BYTES: u64 = 64 << 20;
const MAX_SHARDS: u64 = 64;

/// The cache of verified logical blocks.
pub struct ArcCache {
    shards: Arc<Shards>,
    secret: (u64, u64),
}

impl ArcCache {
    /// A cache that never takes more than `limit` bytes (0: it keeps nothing).
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let wanted = (limit / SHARD_BYTES).clamp(1, MAX_SHARDS);
        let shards = 1 << wanted.ilog2();
        let random = RandomState::new();
        let secret = (random.hash_one(0u8), random.hash_one(1u8));
        let list = (0..shards).map(|_| Mutex::new(Shard::new(limit / shards, secret))).collect();
        ArcCache { shards: Shards::new(list, limit), secret }
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        self.shards.list.get((hash >> 48) as usize & (self.shards.list.len() - 1))
    }

    fn change<R>(&self, hash: u64, work: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        Some(self.shards.change(self.shard(hash)?, work))
    }

    /// The data of `key`, which becomes the most recently used.
    #[must_use]
    pub fn get(&self, key: &ArcKey) -> Option<Buf> {
        let hash = key.hash(self.secret);
        self.shard(hash)?.lock().get(key, hash, For::Reader)
    }

    /// As [`ArcCache::get`], for data that is read ahead of its reader.
    #[must_use]
    pub fn get_ahead(&self, key: &ArcKey) -> Option<Buf> {
        let hash = key.hash(self.secret);
        self.shard(hash)?.lock().get(key, hash, For::Prefetch)
    }

    /// The data of `key`, without changing its list position or the cache's targets.
    #[must_use]
    pub fn peek(&self, key: &ArcKey) -> Option<Buf> {
        let hash = key.hash(self.secret);
        self.shard(hash)?.lock().peek(key, hash)
    }

    /// Returns whether the data of `key` is there. It counts as no use of it.
    #[must_use]
    pub fn holds(&self, key: &ArcKey) -> bool {
        let hash = key.hash(self.secret);
        self.shard(hash).is_some_and(|shard| shard.lock().holds(key, hash))
    }

    /// The data of `key`, for a reader of a block that is not to be cached: a staged copy is dropped if this is its
    /// `last` read. A copy cached for other readers keeps its list position.
    #[must_use]
    pub fn use_up(&self, key: &ArcKey, last: bool) -> Option<Buf> {
        let hash = key.hash(self.secret);
        self.change(hash, |shard| shard.use_up(key, hash, last, For::Reader))?
    }

    /// The data of `key`, for one that reads a block ahead of its reader which is not to be cached.
    #[must_use]
    pub fn staged(&self, key: &ArcKey) -> Option<Buf> {
        let hash = key.hash(self.secret);
        self.change(hash, |shard| shard.use_up(key, hash, false, For::Prefetch))?
    }

    /// The approximate number of bytes that may be staged.
    #[must_use]
    pub fn stage_room(&self) -> u64 {
        let each = self.shards.list.first().map_or(0, |shard| shard.lock().stage_room());
        each.saturating_mul(self.shards.list.len() as u64)
    }

    /// Stages `data`, which is not to be cached, for its reader.
    pub fn stage(&self, key: &ArcKey, data: &Buf) {
        let hash = key.hash(self.secret);
        budget::make_room(data.len() as u64 + OVERHEAD);
        let _ = self.change(hash, |shard| shard.stage(key, hash, data));
    }

    /// Removes and returns the data of `key`: a caller that changes a block replaces it.
    #[must_use]
    pub fn take(&self, key: &ArcKey) -> Option<Buf> {
        let hash = key.hash(self.secret);
        self.change(hash, |shard| shard.take(key, hash))?
    }

    /// Keeps `data` under `key`. If it is there already (two readers missed at once) the older copy stays.
    pub fn insert(&self, key: &ArcKey, data: &Buf) {
        let hash = key.hash(self.secret);
        budget::make_room(data.len() as u64 + OVERHEAD);
        let _ = self.change(hash, |shard| shard.insert(key, hash, data));
    }

    /// Removes `key`; returns whether its data was cached.
    pub fn remove(&self, key: &ArcKey) -> bool {
        let hash = key.hash(self.secret);
        self.change(hash, |shard| shard.remove(key, hash)).unwrap_or(false)
    }

    /// Removes everything but the counters.
    pub fn clear(&self) {
        self.shards.list.iter().for_each(|shard| self.shards.change(shard, Shard::clear));
    }

    /// Counters and sizes of all shards together.
    #[must_use]
    pub fn stats(&self) -> ArcStats {
        self.shards.stats()
    }

    /// Counters and sizes of all caches of the process together; the counters of those that are no more count on.
    #[must_use]
    pub fn stats_of_process() -> ArcStats {
        budget::stats_of_all()
    }
}

impl std::fmt::Debug for ArcCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}
