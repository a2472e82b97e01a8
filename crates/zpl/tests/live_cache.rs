//! The data that stays in the cache after reads and read-ahead (property `primarycache`).
#![allow(clippy::unwrap_used)]

mod scratch;

use base::ObjectId;
use pool::{PropSource, Value};
use scratch::Scratch;
use zio::ArcStats;
use zpl::create::FsProps;
use zpl::live::{Cred, NewFile, Zfs};
use zpl::{FileSystem, Kind};

const ROOT: Cred = Cred::ROOT;
const BLOCK: usize = 128 << 10;
const BLOCKS: usize = 40;
const NONE: u64 = 0;
const METADATA: u64 = 1;
const ALL: u64 = 2;
/// Upper bound of the other blocks that may be read meanwhile: indirect blocks, dnodes, names, and others of the pool.
const LITTLE: u64 = 6 * BLOCK as u64;

/// Creates a file system with a file of [`BLOCKS`] blocks that do not compress.
fn scratch(primarycache: u64) -> (Scratch, Vec<u8>) {
    let scratch =
        Scratch::with(FsProps::default(), &[("compression", 2), ("primarycache", primarycache), ("atime", 0)]);
    let data: Vec<u8> =
        (0..(BLOCKS * BLOCK) as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let zfs = scratch.zfs();
    let (id, _) = zfs.create(&ROOT, zfs.fs().root(), b"f", &NewFile::new(Kind::File, 0o644)).unwrap();
    zfs.write(&ROOT, id, 0, &data).unwrap();
    scratch.spa().sync().unwrap();
    scratch.spa().zio().arc().clear();
    (scratch, data)
}

fn id(zfs: &Zfs) -> ObjectId {
    zfs.lookup(&ROOT, zfs.fs().root(), b"f").unwrap().0
}

fn stats(scratch: &Scratch) -> ArcStats {
    scratch.spa().zio().arc().stats()
}

fn blocks_read(scratch: &Scratch) -> u64 {
    scratch.spa().zio().stats().blocks.get()
}

/// Returns the bytes of data in the cache.
fn held(stats: &ArcStats) -> u64 {
    stats.mru_size + stats.mfu_size + stats.uncached_size
}

/// Reads the whole file in steps; returns the number of blocks read from the disk.
fn read_through(scratch: &Scratch, zfs: &Zfs, data: &[u8], step: usize) -> u64 {
    let id = id(zfs);
    let before = blocks_read(scratch);
    let mut buf = vec![0; step];
    for at in (0..data.len()).step_by(step) {
        let n = zfs.read(id, at as u64, &mut buf).unwrap();
        assert!(buf[..n] == data[at..at + n], "at {at}");
    }
    blocks_read(scratch) - before
}

#[test]
fn what_is_read_stays_as_primarycache_says() {
    for primarycache in [ALL, METADATA, NONE] {
        let (scratch, data) = scratch(primarycache);
        let zfs = scratch.zfs();
        for step in [BLOCK, 4096, 3 * BLOCK, 100_000] {
            scratch.spa().zio().arc().clear();
            let read = read_through(&scratch, &zfs, &data, step);
            let data_blocks = BLOCKS as u64;
            assert!(read >= data_blocks, "{primarycache}, {step}: {read}");
            // without any cache, the indirect block may be read for each block that is fetched ahead
            let pointers = if primarycache == NONE { data_blocks } else { 0 };
            assert!(read <= data_blocks + pointers + 8, "{primarycache}, {step}: {read}");
            let stats = stats(&scratch);
            match primarycache {
                ALL => assert!(held(&stats) >= data.len() as u64, "{stats:?}"),
                _ => assert!(held(&stats) < LITTLE, "{primarycache}, {step}: {stats:?}"),
            }
            assert_eq!(stats.uncached_size, 0, "{primarycache}, {step}");
        }
        // cached data is found again; readers hold indirect blocks
        let again = read_through(&scratch, &zfs, &data, BLOCK);
        match primarycache {
            // the indirect block may have been held by its reader, and so not be in the cache
            ALL => assert!(again <= 2, "{again}"),
            METADATA => assert!((BLOCKS as u64..=BLOCKS as u64 + 2).contains(&again), "{again}"),
            _ => assert!(again >= BLOCKS as u64, "{again}"),
        }
    }
}

#[test]
fn what_is_not_cached_is_read_ahead_all_the_same_and_once() {
    let (scratch, data) = scratch(METADATA);
    let zfs = scratch.zfs();
    scratch.spa().zio().arc().clear();
    let before = stats(&scratch).uncached_hits;
    // small reads: all but the first in a block hit the cache, as all after the second hit the data read ahead
    let read = read_through(&scratch, &zfs, &data, 4096);
    assert!((BLOCKS as u64..BLOCKS as u64 + 8).contains(&read), "{read}");
    let expected = (BLOCKS * (BLOCK / 4096 - 1)) as u64;
    let hits = stats(&scratch).uncached_hits - before;
    assert!(hits >= expected, "{hits} of {expected}");
}

#[test]
fn a_property_that_changes_counts_from_then_on() {
    let (scratch, data) = scratch(ALL);
    let zfs = scratch.zfs();
    read_through(&scratch, &zfs, &data, BLOCK);
    assert!(held(&stats(&scratch)) >= data.len() as u64);
    let set = |value| {
        let props = [("primarycache".to_string(), Value::Number(value))];
        scratch.spa().set_props("t", &props, PropSource::Local).unwrap();
        scratch.spa().zio().arc().clear();
    };
    set(METADATA);
    read_through(&scratch, &zfs, &data, BLOCK);
    assert!(held(&stats(&scratch)) < LITTLE);
    set(ALL);
    read_through(&scratch, &zfs, &data, BLOCK);
    assert!(held(&stats(&scratch)) >= data.len() as u64);
}

#[test]
fn blocks_that_are_changed_in_part_are_read_once_and_not_kept() {
    let (mut scratch, mut data) = scratch(METADATA);
    let zfs = scratch.zfs();
    let file = id(&zfs);
    scratch.spa().zio().arc().clear();
    let before = blocks_read(&scratch);
    for n in 0..10 {
        let at = n * 3 * BLOCK + 1000;
        zfs.write(&ROOT, file, at as u64, &[7; 5000]).unwrap();
        data[at..at + 5000].fill(7);
    }
    let read = blocks_read(&scratch) - before;
    assert!((10..18).contains(&read), "{read}");
    assert!(held(&stats(&scratch)) < LITTLE, "{:?}", stats(&scratch));
    scratch.spa().sync().unwrap();
    read_through(&scratch, &zfs, &data, BLOCK);
    drop(zfs);
    scratch.close();
}

#[test]
fn snapshots_and_those_who_only_look_keep_what_the_property_says() {
    for primarycache in [ALL, METADATA, NONE] {
        let (scratch, data) = scratch(primarycache);
        scratch.spa().snapshot(&["t@s".to_string()], &[]).unwrap();
        let view = scratch.spa().view().unwrap();
        for name in ["t", "t@s"] {
            let dataset = view.dataset(name).unwrap();
            let fs = FileSystem::open(&dataset).unwrap();
            let node = fs.resolve(b"/f").unwrap();
            scratch.spa().zio().arc().clear();
            let mut buf = vec![0; data.len()];
            assert_eq!(node.read(0, &mut buf).unwrap(), data.len());
            assert!(buf == data);
            let stats = stats(&scratch);
            match primarycache {
                ALL => assert!(held(&stats) >= data.len() as u64, "{name}: {stats:?}"),
                METADATA => assert!((BLOCK as u64..LITTLE).contains(&held(&stats)), "{name}: {stats:?}"),
                _ => assert!(held(&stats) < BLOCK as u64, "{name}: {stats:?}"),
            }
        }
    }
}
