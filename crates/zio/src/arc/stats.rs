//! The figures of the cache, under OpenZFS's names (kstat `arcstats`).

use super::ArcKey;

/// Look-ups in the cache, by what was looked for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LookUps {
    /// Those for data.
    pub data: u64,
    /// Those for metadata.
    pub metadata: u64,
}

impl LookUps {
    pub(super) fn count(&mut self, key: &ArcKey) {
        *(if key.metadata { &mut self.metadata } else { &mut self.data }) += 1;
    }

    pub(super) fn add(&mut self, other: LookUps) {
        self.data += other.data;
        self.metadata += other.metadata;
    }
}

/// Counters and sizes with the names of OpenZFS's `arcstats`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ArcStats {
    /// Look-ups that found data.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// The hits of readers that wait for the block; all others are read ahead of their readers.
    pub demand_hits: LookUps,
    /// Their misses.
    pub demand_misses: LookUps,
    /// The hits of what is read ahead.
    pub prefetch_hits: LookUps,
    /// Its misses.
    pub prefetch_misses: LookUps,
    /// Hits among the blocks seen once.
    pub mru_hits: u64,
    /// Misses on blocks that lately fell off the MRU list.
    pub mru_ghost_hits: u64,
    /// Hits among the blocks seen again.
    pub mfu_hits: u64,
    /// Misses on blocks that lately fell off the MFU list.
    pub mfu_ghost_hits: u64,
    /// Blocks evicted.
    pub deleted: u64,
    /// Hits of readers that bypass the cache, and of readers of blocks that are not to be cached.
    pub uncached_hits: u64,
    /// Entries, ghosts included.
    pub hash_elements: u64,
    /// Bytes in use, book-keeping included.
    pub size: u64,
    /// The limit.
    pub c_max: u64,
    /// The target for the MRU list.
    pub p: u64,
    /// Bytes of data staged for their only reader.
    pub uncached_size: u64,
    /// Bytes of data seen once.
    pub mru_size: u64,
    /// Bytes of data seen again.
    pub mfu_size: u64,
    /// Bytes that the MRU ghosts stand for.
    pub mru_ghost_size: u64,
    /// Bytes that the MFU ghosts stand for.
    pub mfu_ghost_size: u64,
    /// What of the five sizes above is metadata, in their order: uncached, MRU, MFU, MRU ghosts, MFU ghosts.
    pub metadata: [u64; 5],
    /// Bytes of book-keeping.
    pub hdr_size: u64,
}

impl ArcStats {
    /// Names and values, as `arcstats` lists them. Blocks are cached decompressed, and each buffer is its only copy.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let [uncached, mru, mfu, mru_ghost, mfu_ghost] = self.metadata;
        let data = self.uncached_size + self.mru_size + self.mfu_size;
        let metadata = uncached + mru + mfu;
        let prefetches = [self.prefetch_hits, self.prefetch_misses].map(|ups| ups.data + ups.metadata);
        vec![
            ("hits", self.hits),
            ("misses", self.misses),
            ("demand_data_hits", self.demand_hits.data),
            ("demand_data_misses", self.demand_misses.data),
            ("demand_metadata_hits", self.demand_hits.metadata),
            ("demand_metadata_misses", self.demand_misses.metadata),
            ("prefetch_data_hits", self.prefetch_hits.data),
            ("prefetch_data_misses", self.prefetch_misses.data),
            ("prefetch_metadata_hits", self.prefetch_hits.metadata),
            ("prefetch_metadata_misses", self.prefetch_misses.metadata),
            ("mru_hits", self.mru_hits),
            ("mru_ghost_hits", self.mru_ghost_hits),
            ("mfu_hits", self.mfu_hits),
            ("mfu_ghost_hits", self.mfu_ghost_hits),
            ("uncached_hits", self.uncached_hits),
            ("deleted", self.deleted),
            ("hash_elements", self.hash_elements),
            ("c", self.c_max),
            ("c_max", self.c_max),
            ("p", self.p),
            ("size", self.size),
            ("compressed_size", data),
            ("uncompressed_size", data),
            ("hdr_size", self.hdr_size),
            ("data_size", data.saturating_sub(metadata)),
            ("metadata_size", metadata),
            ("mru_size", self.mru_size),
            ("mru_data", self.mru_size.saturating_sub(mru)),
            ("mru_metadata", mru),
            ("mru_evictable_data", self.mru_size.saturating_sub(mru)),
            ("mru_evictable_metadata", mru),
            ("mru_ghost_size", self.mru_ghost_size),
            ("mru_ghost_data", self.mru_ghost_size.saturating_sub(mru_ghost)),
            ("mru_ghost_metadata", mru_ghost),
            ("mfu_size", self.mfu_size),
            ("mfu_data", self.mfu_size.saturating_sub(mfu)),
            ("mfu_metadata", mfu),
            ("mfu_evictable_data", self.mfu_size.saturating_sub(mfu)),
            ("mfu_evictable_metadata", mfu),
            ("mfu_ghost_size", self.mfu_ghost_size),
            ("mfu_ghost_data", self.mfu_ghost_size.saturating_sub(mfu_ghost)),
            ("mfu_ghost_metadata", mfu_ghost),
            ("uncached_size", self.uncached_size),
            ("uncached_data", self.uncached_size.saturating_sub(uncached)),
            ("uncached_metadata", uncached),
            ("uncached_evictable_data", self.uncached_size.saturating_sub(uncached)),
            ("uncached_evictable_metadata", uncached),
            ("arc_meta_used", metadata),
            ("predictive_prefetch", prefetches.iter().sum()),
        ]
    }

    /// Adds the counters of another cache, and none of its sizes.
    pub(super) fn add_counters(&mut self, other: &ArcStats) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.demand_hits.add(other.demand_hits);
        self.demand_misses.add(other.demand_misses);
        self.prefetch_hits.add(other.prefetch_hits);
        self.prefetch_misses.add(other.prefetch_misses);
        self.mru_hits += other.mru_hits;
        self.mru_ghost_hits += other.mru_ghost_hits;
        self.mfu_hits += other.mfu_hits;
        self.mfu_ghost_hits += other.mfu_ghost_hits;
        self.deleted += other.deleted;
        self.uncached_hits += other.uncached_hits;
    }

    /// Adds counters and sizes of another cache.
    pub(super) fn add(&mut self, other: &ArcStats) {
        self.add_counters(other);
        self.hash_elements += other.hash_elements;
        self.size += other.size;
        self.c_max += other.c_max;
        self.p += other.p;
        self.uncached_size += other.uncached_size;
        self.mru_size += other.mru_size;
        self.mfu_size += other.mfu_size;
        self.mru_ghost_size += other.mru_ghost_size;
        self.mfu_ghost_size += other.mfu_ghost_size;
        self.metadata.iter_mut().zip(other.metadata).for_each(|(sum, bytes)| *sum += bytes);
        self.hdr_size += other.hdr_size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_all_counters_and_sizes_and_the_past_has_no_sizes() {
        let one = ArcStats {
            hits: 1,
            prefetch_misses: LookUps { data: 2, metadata: 3 },
            mfu_size: 40,
            metadata: [0, 0, 10, 0, 0],
            ..ArcStats::default()
        };
        let mut sum = one;
        sum.add(&one);
        sum.add_counters(&one);
        let named = sum.named();
        let get = |name: &str| named.iter().find(|(known, _)| *known == name).map(|(_, n)| *n);
        assert_eq!((get("hits"), get("prefetch_metadata_misses")), (Some(3), Some(9)));
        assert_eq!((get("mfu_data"), get("mfu_metadata"), get("data_size")), (Some(60), Some(20), Some(60)));
        assert_eq!(get("predictive_prefetch"), Some(15));
    }
}
