//! One shard: the policy.

use hashbrown::HashTable;

use super::slab::{Slab, State};
use super::{ArcKey, ArcStats, For, OVERHEAD};
use crate::Buf;

/// The part of the limit (1/16) that ghosts may take in real memory.
const GHOST_PART: u64 = 16;
/// The part of the limit (1/4) that staged blocks may take.
const UNCACHED_PART: u64 = 4;

#[derive(Debug)]
pub(super) struct Shard {
    table: HashTable<u32>,
    slab: Slab,
    secret: (u64, u64),
    /// Most bytes of data and book-keeping together.
    limit: u64,
    /// Wanted bytes of the MRU list.
    p: u64,
    stats: ArcStats,
}

impl Shard {
    pub(super) fn new(limit: u64, secret: (u64, u64)) -> Self {
        Shard { table: HashTable::new(), slab: Slab::new(), secret, limit, p: limit / 2, stats: ArcStats::default() }
    }

    fn find(&self, key: &ArcKey, hash: u64) -> Option<u32> {
        self.table.find(hash, |n| self.slab.get(*n).is_some_and(|e| e.key == *key)).copied()
    }

    fn count_hit(&mut self, key: &ArcKey, by: For) {
        self.stats.hits += 1;
        let (demand, prefetch) = (&mut self.stats.demand_hits, &mut self.stats.prefetch_hits);
        (if by == For::Reader { demand } else { prefetch }).count(key);
    }

    fn count_miss(&mut self, key: &ArcKey, by: For) {
        self.stats.misses += 1;
        let (demand, prefetch) = (&mut self.stats.demand_misses, &mut self.stats.prefetch_misses);
        (if by == For::Reader { demand } else { prefetch }).count(key);
    }

    pub(super) fn get(&mut self, key: &ArcKey, hash: u64, by: For) -> Option<Buf> {
        let found = self.find(key, hash);
        let entry = found.and_then(|n| Some((n, self.slab.get(n)?)));
        let Some((index, entry)) = entry else {
            self.count_miss(key, by);
            return None;
        };
        let (data, state) = (entry.data.clone(), entry.state);
        match state {
            State::Mru => self.stats.mru_hits += 1,
            State::Mfu => self.stats.mfu_hits += 1,
            State::MruGhost => self.stats.mru_ghost_hits += 1,
            State::MfuGhost => self.stats.mfu_ghost_hits += 1,
            State::Uncached => self.stats.uncached_hits += 1,
            State::Free => {}
        }
        if data.is_some() {
            self.count_hit(key, by);
            // a block staged for another reader counts as seen for the first time
            let first = state == State::Uncached;
            self.slab.put(index, if first { State::Mru } else { State::Mfu });
        } else {
            self.count_miss(key, by);
        }
        data
    }

    pub(super) fn holds(&self, key: &ArcKey, hash: u64) -> bool {
        let entry = self.find(key, hash).and_then(|index| self.slab.get(index));
        entry.is_some_and(|entry| entry.data.is_some())
    }

    pub(super) fn peek(&mut self, key: &ArcKey, hash: u64) -> Option<Buf> {
        let data = self.slab.get(self.find(key, hash)?)?.data.clone();
        self.stats.uncached_hits += u64::from(data.is_some());
        data
    }

    pub(super) fn use_up(&mut self, key: &ArcKey, hash: u64, last: bool, by: For) -> Option<Buf> {
        let found = self.find(key, hash).and_then(|n| Some((n, self.slab.get(n)?)));
        let Some((index, state, data)) = found.and_then(|(n, e)| Some((n, e.state, e.data.clone()?))) else {
            self.count_miss(key, by);
            return None;
        };
        self.count_hit(key, by);
        self.stats.uncached_hits += 1;
        if last && state == State::Uncached {
            self.forget(index);
        }
        Some(data)
    }

    pub(super) fn take(&mut self, key: &ArcKey, hash: u64) -> Option<Buf> {
        let data = self.get(key, hash, For::Reader)?;
        self.remove(key, hash);
        Some(data)
    }

    pub(super) fn insert(&mut self, key: &ArcKey, hash: u64, data: &Buf) {
        let size = data.len() as u64;
        if size.saturating_add(OVERHEAD) > self.limit {
            return;
        }
        let known = self.find(key, hash);
        match known.and_then(|n| Some((n, self.slab.get(n)?.state))) {
            Some((_, State::Mru | State::Mfu | State::Free)) => {}
            Some((index, State::Uncached)) => self.slab.put(index, State::Mru),
            Some((index, ghost)) => {
                self.adapt(ghost, size);
                self.make_room(size, ghost);
                // making room may have dropped this very ghost
                match self.find(key, hash) {
                    Some(_) => self.slab.revive(index, data.clone(), State::Mfu),
                    None => self.add(key, hash, data, State::Mfu),
                }
            }
            None => {
                self.make_room(size, State::Mru);
                self.add(key, hash, data, State::Mru);
            }
        }
    }

    pub(super) fn stage_room(&self) -> u64 {
        self.limit / UNCACHED_PART
    }

    pub(super) fn stage(&mut self, key: &ArcKey, hash: u64, data: &Buf) {
        let size = data.len() as u64;
        if size.saturating_add(OVERHEAD) > self.limit {
            return;
        }
        if let Some(index) = self.find(key, hash) {
            if self.slab.get(index).is_some_and(|e| e.data.is_some()) {
                return;
            }
            self.forget(index);
        }
        let room = self.stage_room();
        while self.slab.bytes(State::Uncached) + size > room && self.drop_oldest(State::Uncached) {
            self.stats.deleted += 1;
        }
        self.make_room(size, State::Uncached);
        self.add(key, hash, data, State::Uncached);
    }

    fn add(&mut self, key: &ArcKey, hash: u64, data: &Buf, state: State) {
        if let Some(index) = self.slab.add(*key, hash, data.clone(), state) {
            let (slab, secret) = (&self.slab, self.secret);
            self.table.insert_unique(hash, index, |n| slab.get(*n).map_or(0, |e| e.key.hash(secret)));
        }
    }

    /// Adapts the target after a hit on a ghost: the list that it was evicted from should have been longer.
    fn adapt(&mut self, ghost: State, size: u64) {
        let (mru, mfu) = (self.slab.bytes(State::MruGhost).max(1), self.slab.bytes(State::MfuGhost).max(1));
        if ghost == State::MruGhost {
            self.p = self.p.saturating_add(size.saturating_mul((mfu / mru).max(1))).min(self.limit);
        } else {
            self.p = self.p.saturating_sub(size.saturating_mul((mru / mfu).max(1)));
        }
    }

    /// Bytes in use, book-keeping included.
    pub(super) fn size(&self) -> u64 {
        let entries = self.table.len() as u64;
        let data = [State::Mru, State::Mfu, State::Uncached].map(|state| self.slab.bytes(state));
        data.iter().sum::<u64>() + entries * OVERHEAD
    }

    /// Evicts until `size` more bytes fit, for a block that comes from `from`.
    fn make_room(&mut self, size: u64, from: State) {
        let need = size + OVERHEAD;
        while self.size() + need > self.limit && self.evict_one(from) {}
    }

    /// Evicts until `bytes` bytes are free, for another shard. Returns whether there was anything to evict.
    pub(super) fn evict(&mut self, bytes: u64) -> bool {
        let (before, mut any) = (self.size(), false);
        while before - self.size().min(before) < bytes && self.evict_one(State::Mru) {
            any = true;
        }
        any
    }

    /// Evicts one block, for a block that comes from `from`. Returns `false` if nothing is left.
    fn evict_one(&mut self, from: State) -> bool {
        let mru = self.slab.bytes(State::Mru);
        let over = mru > self.p || (mru == self.p && from == State::MfuGhost);
        let order = if over { [State::Mru, State::Mfu] } else { [State::Mfu, State::Mru] };
        match order.into_iter().find_map(|state| Some((state, self.slab.oldest(state)?))) {
            Some((State::Mru, index)) => self.slab.put(index, State::MruGhost),
            Some((_, index)) => self.slab.put(index, State::MfuGhost),
            // only ghosts and staged blocks are left
            None => return self.drop_ghost() || self.drop_oldest(State::Uncached),
        }
        self.stats.deleted += 1;
        self.trim_ghosts();
        true
    }

    /// Limits the ghosts to a useful number: each list with its ghosts stands for at most the limit.
    fn trim_ghosts(&mut self) {
        loop {
            let count = self.slab.count(State::MruGhost) + self.slab.count(State::MfuGhost);
            let mru = self.slab.bytes(State::Mru) + self.slab.bytes(State::MruGhost);
            let all = mru + self.slab.bytes(State::Mfu) + self.slab.bytes(State::MfuGhost);
            let crowded = count * OVERHEAD > self.limit / GHOST_PART || all > self.limit.saturating_mul(2);
            let dropped = if mru > self.limit && self.slab.count(State::MruGhost) > 0 {
                self.drop_oldest(State::MruGhost)
            } else {
                crowded && self.drop_ghost()
            };
            if !dropped {
                return;
            }
        }
    }

    /// Forgets the oldest ghost of the longer ghost list.
    fn drop_ghost(&mut self) -> bool {
        let mru_longer = self.slab.bytes(State::MruGhost) > self.slab.bytes(State::MfuGhost);
        let [first, second] =
            if mru_longer { [State::MruGhost, State::MfuGhost] } else { [State::MfuGhost, State::MruGhost] };
        self.drop_oldest(first) || self.drop_oldest(second)
    }

    fn drop_oldest(&mut self, state: State) -> bool {
        let Some(index) = self.slab.oldest(state) else { return false };
        self.forget(index);
        true
    }

    fn forget(&mut self, index: u32) {
        let Some(hash) = self.slab.get(index).map(|e| e.hash) else { return };
        if let Ok(slot) = self.table.find_entry(hash, |n| *n == index) {
            slot.remove();
        }
        self.slab.put(index, State::Free);
    }

    pub(super) fn remove(&mut self, key: &ArcKey, hash: u64) -> bool {
        let Some(index) = self.find(key, hash) else { return false };
        let live = self.slab.get(index).is_some_and(|e| e.data.is_some());
        self.forget(index);
        live
    }

    pub(super) fn clear(&mut self) {
        self.table = HashTable::new();
        self.slab = Slab::new();
        self.p = self.limit / 2;
    }

    pub(super) fn stats(&self) -> ArcStats {
        let lists = [State::Uncached, State::Mru, State::Mfu, State::MruGhost, State::MfuGhost];
        let [uncached_size, mru_size, mfu_size, mru_ghost_size, mfu_ghost_size] =
            lists.map(|list| self.slab.bytes(list));
        let hash_elements = self.table.len() as u64;
        ArcStats {
            hash_elements,
            size: self.size(),
            c_max: self.limit,
            p: self.p,
            uncached_size,
            mru_size,
            mfu_size,
            mru_ghost_size,
            mfu_ghost_size,
            metadata: lists.map(|list| self.slab.metadata(list)),
            hdr_size: hash_elements * OVERHEAD,
            ..self.stats
        }
    }
}
