#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn key(n: u64) -> ArcKey {
    ArcKey { dva: Dva::new(n % 3, n << 12, 4096, false), birth: Txg(n + 1), sum: n, noauth: false, metadata: false }
}

fn data(n: u64, size: usize) -> Buf {
    Buf::from(vec![n as u8; size])
}

/// The policy told plainly: four queues of (key, size), oldest in front, searched from end to end.
struct Model {
    queues: [VecDeque<(u64, u64)>; 4],
    limit: u64,
    p: u64,
}

impl Model {
    fn new(limit: u64) -> Self {
        Model { queues: Default::default(), limit, p: limit / 2 }
    }

    fn bytes(&self, q: usize) -> u64 {
        self.queues[q].iter().map(|e| e.1).sum()
    }

    fn take(&mut self, k: u64) -> Option<(usize, u64)> {
        (0..4).find_map(|q| {
            let at = self.queues[q].iter().position(|e| e.0 == k)?;
            Some((q, self.queues[q].remove(at)?.1))
        })
    }

    fn size(&self) -> u64 {
        self.bytes(0) + self.bytes(1) + self.queues.iter().map(|q| q.len() as u64).sum::<u64>() * OVERHEAD
    }

    fn get(&mut self, k: u64) -> bool {
        let Some(q) = (0..2).find(|q| self.queues[*q].iter().any(|e| e.0 == k)) else { return false };
        let (_, size) = self.take(k).unwrap();
        assert!(q < 2);
        self.queues[1].push_back((k, size));
        true
    }

    fn insert(&mut self, k: u64, size: u64) {
        if size + OVERHEAD > self.limit || self.queues[..2].iter().flatten().any(|e| e.0 == k) {
            return;
        }
        let ghost = (2..4).find(|q| self.queues[*q].iter().any(|e| e.0 == k));
        let (b1, b2) = (self.bytes(2).max(1), self.bytes(3).max(1));
        match ghost {
            Some(2) => self.p = (self.p + size * (b2 / b1).max(1)).min(self.limit),
            Some(_) => self.p = self.p.saturating_sub(size * (b1 / b2).max(1)),
            None => {}
        }
        while self.size() + size + OVERHEAD > self.limit {
            let mru = self.bytes(0);
            let over = mru > self.p || (mru == self.p && ghost == Some(3));
            let order = if over { [0, 1] } else { [1, 0] };
            let q = order.into_iter().find(|q| !self.queues[*q].is_empty()).unwrap_or(0);
            match self.queues[q].pop_front() {
                Some(e) => {
                    self.queues[q + 2].push_back(e);
                    self.trim();
                }
                None => {
                    if !self.drop_ghost() {
                        break;
                    }
                }
            }
        }
        self.take(k);
        self.queues[if ghost.is_some() { 1 } else { 0 }].push_back((k, size));
    }

    fn drop_ghost(&mut self) -> bool {
        let first = if self.bytes(2) > self.bytes(3) { 2 } else { 3 };
        self.queues[first].pop_front().or_else(|| self.queues[5 - first].pop_front()).is_some()
    }

    fn trim(&mut self) {
        loop {
            let mru = self.bytes(0) + self.bytes(2);
            let all = mru + self.bytes(1) + self.bytes(3);
            let ghosts = (self.queues[2].len() + self.queues[3].len()) as u64;
            let done = if mru > self.limit && !self.queues[2].is_empty() {
                self.queues[2].pop_front().is_none()
            } else if ghosts * OVERHEAD > self.limit / 16 || all > 2 * self.limit {
                !self.drop_ghost()
            } else {
                true
            };
            if done {
                return;
            }
        }
    }
}

proptest! {
    #[test]
    fn it_keeps_what_the_model_keeps(limit in 0..200_000u64, ops in prop::collection::vec((0..40u64, 1..9000usize, 0..10u8), 1..400)) {
        let (arc, mut model) = (ArcCache::new(limit), Model::new(limit));
        // a block has one size
        let mut sizes = std::collections::HashMap::new();
        for (n, size, op) in ops {
            let size = *sizes.entry(n).or_insert(size);
            match op {
                0 => prop_assert_eq!(arc.peek(&key(n)).is_some(), model.queues[..2].iter().flatten().any(|e| e.0 == n)),
                1 => { prop_assert_eq!(arc.remove(&key(n)), model.take(n).is_some_and(|(q, _)| q < 2)); }
                _ => {
                    let hit = arc.get(&key(n));
                    prop_assert_eq!(hit.is_some(), model.get(n));
                    match hit {
                        Some(found) => prop_assert_eq!(found, data(n, size)),
                        None => { arc.insert(&key(n), &data(n, size)); model.insert(n, size as u64); }
                    }
                }
            }
            let s = arc.stats();
            prop_assert!(s.size <= limit);
            prop_assert_eq!((s.p, s.size), (model.p, model.size()));
            let sizes = [s.mru_size, s.mfu_size, s.mru_ghost_size, s.mfu_ghost_size];
            prop_assert_eq!(sizes, std::array::from_fn(|q| model.bytes(q)));
        }
    }
}

#[test]
fn a_long_scan_does_not_wash_out_what_is_read_again_and_again() {
    let arc = ArcCache::new(1 << 20);
    for _ in 0..3 {
        for n in 0..50 {
            if arc.get(&key(n)).is_none() {
                arc.insert(&key(n), &data(n, 8192));
            }
        }
    }
    for n in 1000..5000 {
        assert!(arc.get(&key(n)).is_none());
        arc.insert(&key(n), &data(n, 8192));
    }
    assert_eq!((0..50).filter(|n| arc.get(&key(*n)).is_some()).count(), 50);
}

#[test]
fn a_peek_leaves_no_trace_in_the_order() {
    let limit = 4 * (8192 + OVERHEAD);
    let arc = ArcCache::new(limit);
    for n in 0..4 {
        arc.insert(&key(n), &data(n, 8192));
    }
    for _ in 0..100 {
        assert!(arc.peek(&key(0)).is_some());
    }
    arc.insert(&key(9), &data(9, 8192));
    assert!(arc.peek(&key(0)).is_none(), "the oldest goes first, however often it was peeked at");
    let stats = arc.stats();
    assert_eq!((stats.hits, stats.misses, stats.uncached_hits), (0, 0, 100));
}

#[test]
fn many_threads_stay_within_the_limit() {
    let limit = 256 << 20;
    let arc = ArcCache::new(limit);
    assert_eq!(arc.shards.list.len(), 4);
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let arc = &arc;
            scope.spawn(move || {
                for i in 0..20_000u64 {
                    let n = (i * 7 + t * 13) % 9_000;
                    match arc.get(&key(n)) {
                        Some(found) => assert_eq!(found.first(), Some(&(n as u8))),
                        None => arc.insert(&key(n), &data(n, 64 << 10)),
                    }
                }
            });
        }
    });
    let stats = arc.stats();
    assert!(stats.size <= limit && stats.size > limit / 2, "{stats:?}");
    assert_eq!(stats.hits + stats.misses, 80_000);
    assert_eq!(stats.mru_hits + stats.mfu_hits, stats.hits);
    arc.clear();
    assert_eq!(arc.stats().size, 0);
}

#[test]
fn who_changes_a_block_gets_it_without_a_copy() {
    let cache = ArcCache::new(1 << 20);
    let (block, room) = (data(7, 8192), data(7, 8192));
    let place = block.as_ptr();
    cache.insert(&key(1), &block);
    cache.insert(&key(2), &room);
    drop(block);
    let taken = cache.take(&key(1)).unwrap();
    assert!(cache.peek(&key(1)).is_none() && cache.take(&key(1)).is_none(), "it is forgotten");
    let taken = taken.into_vec();
    assert_eq!(taken.as_ptr(), place, "nobody else holds it");
    // who reads it meanwhile keeps what it was
    let mut changed = cache.take(&key(2)).unwrap().into_vec();
    changed.fill(9);
    assert_eq!(room, data(7, 8192));
    assert_eq!(cache.stats().size, 0);
}

#[test]
fn what_waits_for_its_reader_goes_with_him() {
    let arc = ArcCache::new(1 << 20);
    arc.stage(&key(1), &data(1, 8192));
    arc.stage(&key(2), &data(2, 8192));
    arc.insert(&key(3), &data(3, 8192));
    assert_eq!((arc.stats().uncached_size, arc.stats().mru_size), (16384, 8192));
    // a reader of a part leaves it there, the last takes it
    assert_eq!(arc.use_up(&key(1), false), Some(data(1, 8192)));
    assert_eq!(arc.use_up(&key(1), true), Some(data(1, 8192)));
    assert_eq!(arc.use_up(&key(1), true), None);
    // what is cached for others stays, where it was
    assert_eq!(arc.use_up(&key(3), true), Some(data(3, 8192)));
    // and others may come to cache what waits
    assert_eq!(arc.get(&key(2)), Some(data(2, 8192)));
    let stats = arc.stats();
    assert_eq!((stats.uncached_size, stats.mru_size, stats.mfu_size), (0, 16384, 0));
    assert_eq!((stats.hits, stats.misses, stats.uncached_hits), (4, 1, 4));
}

#[test]
fn what_nobody_comes_for_takes_a_part_of_the_room_and_goes_in_its_order() {
    let limit = 64 << 10;
    let arc = ArcCache::new(limit);
    for n in 0..100 {
        arc.stage(&key(n), &data(n, 4096));
        let stats = arc.stats();
        assert!(stats.uncached_size <= arc.stage_room() && stats.size <= limit, "{stats:?}");
    }
    assert!(arc.peek(&key(0)).is_none() && arc.peek(&key(99)).is_some());
    // it does not keep from the cache what is to be cached, and the other way round
    for n in 200..300 {
        arc.insert(&key(n), &data(n, 4096));
        assert!(arc.stats().size <= limit);
    }
    assert!(arc.peek(&key(299)).is_some() && arc.peek(&key(99)).is_some());
    arc.stage(&key(400), &data(4, 40 << 10));
    assert!(arc.peek(&key(400)).is_some() && arc.stats().size <= limit, "one may be larger than that part");
    assert_eq!(arc.stats().uncached_size, 40 << 10);
}
