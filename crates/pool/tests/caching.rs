//! The blocks that stay in the cache when they are written.
#![allow(clippy::unwrap_used)]

mod live;

use base::ObjectId;
use live::Live;
use zio::ArcKey;

const NONE: u64 = 0;
const METADATA: u64 = 1;
const ALL: u64 = 2;

/// Whether the first indirect block of an object that was just written, and its first block, are in the cache.
fn cached(live: &Live, name: &str, id: ObjectId) -> [bool; 2] {
    let object = live.view().dataset(name).unwrap().objset().unwrap().object(id).unwrap();
    // looking for a block reads the blocks above it
    [1, 0].map(|level| {
        let bp = object.blkptr(level, 0).unwrap().unwrap();
        live.spa.zio().arc().peek(&ArcKey::of(&bp).unwrap()).is_some()
    })
}

#[test]
fn what_is_written_stays_as_primarycache_says() {
    const LEN: usize = 2 << 20;
    let live = Live::new();
    live.create("t/a", &[("primarycache", METADATA)]).unwrap();
    let id = live.file("t/a", LEN, 1);
    assert_eq!(cached(&live, "t/a", ObjectId(id)), [true, false]);
    // it counts for an open object set from when it is set, and is inherited
    for (seed, (primarycache, stays)) in
        [(ALL, [true, true]), (NONE, [false, false]), (METADATA, [true, false])].into_iter().enumerate()
    {
        live.set("t", "primarycache", ALL - primarycache).unwrap();
        live.set("t/a", "primarycache", primarycache).unwrap();
        live.write("t/a", ObjectId(id), 0, LEN, seed as u64 + 2);
        assert_eq!(cached(&live, "t/a", ObjectId(id)), stays, "{primarycache}");
        live.spa.zio().arc().clear();
    }
    live.set("t", "primarycache", NONE).unwrap();
    live.fs("t/b");
    let id = live.file("t/b", LEN, 5);
    assert_eq!(cached(&live, "t/b", ObjectId(id)), [false, false]);
    live.judged();
}
