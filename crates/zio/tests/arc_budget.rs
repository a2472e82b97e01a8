//! The memory of several caches together. A test program of its own, as the limit is that of the process.
#![allow(clippy::unwrap_used)]

use base::{Txg, tunable};
use ondisk::Dva;
use zio::{ArcCache, ArcKey, Buf};

const MIB: u64 = 1 << 20;

fn fill(cache: &ArcCache, blocks: std::ops::Range<u64>) {
    for n in blocks {
        let key = ArcKey {
            dva: Dva::new(0, n << 17, 128 << 10, false),
            birth: Txg(1),
            sum: n,
            noauth: false,
            metadata: false,
        };
        cache.insert(&key, &Buf::from(vec![0; 128 << 10]));
    }
}

#[test]
fn all_caches_together_keep_the_limit() {
    tunable::ZFS_ARC_MAX.set(32 * MIB);
    let caches = [ArcCache::new(32 * MIB), ArcCache::new(32 * MIB)];
    let sizes = || caches.each_ref().map(|cache| cache.stats().size);
    fill(&caches[0], 0..400);
    assert!(sizes()[0] > 31 * MIB && sizes()[1] == 0, "alone it gets all: {:?}", sizes());
    for round in 1..4 {
        fill(&caches[round % 2], 400 * round as u64..400 * round as u64 + 200);
        let [a, b] = sizes();
        assert!(a + b <= 32 * MIB, "{a} and {b}");
        assert!(a + b > 31 * MIB && a.min(b) > 15 * MIB, "{a} and {b}");
    }
    caches[0].clear();
    let [_, rest] = caches;
    fill(&rest, 4000..4400);
    assert!(rest.stats().size > 31 * MIB, "{}", rest.stats().size);
    // a lower limit holds from the next block on
    tunable::ZFS_ARC_MAX.set(8 * MIB);
    fill(&rest, 5000..5001);
    assert!(rest.stats().size <= 8 * MIB);
}
