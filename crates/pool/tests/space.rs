//! Space maps against OpenZFS's zdb, which loads every metaslab.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::Arc;

use base::ObjectId;
use common::{open, truth_options};
use oracle::fixtures;
use oracle::said::Call;
use pool::Pool;

/// The facts about one metaslab: space map object, unflushed txg, and how many free segments there are of each power of two.
#[derive(Default, Debug, PartialEq, Eq)]
struct Metaslab {
    offset: u64,
    object: ObjectId,
    unflushed: u64,
    free: BTreeMap<u32, u64>,
}

fn by_zdb(output: &str) -> BTreeMap<(u64, u64), Metaslab> {
    let (mut all, mut vdev, mut current, mut in_memory) = (BTreeMap::new(), 0, None, false);
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["vdev", id, "metaslab", "shift", ..] => vdev = id.parse().unwrap(),
            ["vdev", id, _class, "metaslab", "shift", ..] => vdev = id.parse().unwrap(),
            ["metaslab", id, "offset", offset, "spacemap", object, "free", ..] => {
                let key: (u64, u64) = (vdev, id.parse().unwrap());
                let offset = u64::from_str_radix(offset, 16).unwrap();
                all.insert(key, Metaslab { offset, object: ObjectId(object.parse().unwrap()), ..Metaslab::default() });
                (current, in_memory) = (Some(key), false);
            }
            ["In-memory", "histogram:"] => in_memory = true,
            ["On-disk", "histogram:", ..] => in_memory = false,
            ["unflushed", txg] => {
                all.get_mut(&current.unwrap()).unwrap().unflushed = txg.strip_prefix("txg=").unwrap().parse().unwrap();
            }
            [bucket, count, ..] if in_memory && bucket.ends_with(':') => {
                let (bucket, count) = (bucket.trim_end_matches(':').parse().unwrap(), count.parse().unwrap());
                if count != 0 {
                    all.get_mut(&current.unwrap()).unwrap().free.insert(bucket, count);
                }
            }
            _ => {}
        }
    }
    all
}

fn by_us(pool: &Arc<Pool>) -> BTreeMap<(u64, u64), Metaslab> {
    let mut all = BTreeMap::new();
    for top in pool.tree().tops() {
        for info in pool.metaslabs(top.id()).unwrap() {
            let allocated = pool.metaslab_space(top.id(), info.id).unwrap();
            assert_eq!(allocated.total(), info.allocated, "metaslab {} of vdev {}", info.id, top.id());
            // zdb does not read the logs
            let free = pool.metaslab_map(top.id(), info.id).unwrap().complement(info.range()).histogram();
            let free =
                free.iter().enumerate().filter(|(_, n)| **n != 0).map(|(bucket, n)| (bucket as u32, *n)).collect();
            let metaslab =
                Metaslab { offset: info.start, object: info.sm_object, unflushed: info.unflushed_txg.0, free };
            all.insert((top.id(), info.id), metaslab);
        }
    }
    all
}

/// One line a metaslab.
fn lines(all: &BTreeMap<(u64, u64), Metaslab>) -> String {
    all.iter().map(|((vdev, id), metaslab)| format!("vdev {vdev}, metaslab {id}: {metaslab:?}\n")).collect()
}

#[test]
fn metaslabs_are_as_zdb_loads_them() {
    for fixture in fixtures::names() {
        // zdb does not open pools with missing top-level redundancy, nor those with garbage; those are copies of others
        if fixture.starts_with("deg") || fixture.starts_with("lost") {
            continue;
        }
        let unpacked = fixtures::unpack(&fixture);
        let pool = open(&unpacked.dir, &truth_options());
        let (dir, ours) = (unpacked.dir.to_str().unwrap(), by_us(&pool));
        assert!(!ours.is_empty(), "{fixture}");
        let args = ["-e", "-p", dir, "-mmm", pool.name()];
        let call = Call { fixture: &fixture, images: &unpacked, args: &args };
        let seen = |out: &Output| {
            assert!(out.status.success(), "{fixture}: {}", String::from_utf8_lossy(&out.stderr));
            lines(&by_zdb(&String::from_utf8_lossy(&out.stdout)))
        };
        if let Some(theirs) = call.part_differs("metaslabs", &lines(&ours), seen) {
            assert_eq!(lines(&ours), theirs, "{fixture}");
        }
        println!("{fixture}: {} metaslabs", ours.len());
    }
}
