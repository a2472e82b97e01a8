//! Lists of blocks in the MOS against the totals that stand beside them: deadlists, livelists, dedup tables, block reference tables.

#![allow(clippy::unwrap_used)]

mod common;

use base::Txg;
use common::{open, truth_options};
use ondisk::BlkPtr;
use ondisk::bpobj::livelist_entry_is_free;
use ondisk::ddt::DdtStat;
use oracle::fixtures;
use pool::{Deadlist, Dir, ListOptions, Pool, Space};

fn space_of(pool: &Pool, bp: &BlkPtr) -> Space {
    let used = bp.dvas().map(|dva| pool.tree().top(dva.vdev()).unwrap().deflated(dva.asize())).sum();
    Space { used, comp: if bp.is_embedded() { 0 } else { bp.psize() }, uncomp: bp.lsize() }
}

fn check_deadlist(pool: &Pool, list: &Deadlist, what: &str) -> usize {
    let (mut used, mut count) = (0u64, 0);
    list.for_each(&mut |bp| {
        let n = space_of(pool, bp).used;
        used = if livelist_entry_is_free(bp) { used.wrapping_sub(n) } else { used.wrapping_add(n) };
        count += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(list.space().used, used, "{what}");
    assert_eq!(list.space_range(Txg(0), Txg(u64::MAX)).unwrap().used, used, "{what}");
    count
}

fn all_dirs(dir: &Dir, into: &mut Vec<Dir>) {
    into.push(dir.clone());
    dir.children().unwrap().iter().for_each(|child| all_dirs(child, into));
}

#[test]
fn deadlists_and_livelists_add_up() {
    let (mut blocks, mut livelists) = (0, 0);
    for fixture in fixtures::names() {
        let pool = open(&fixtures::unpack(&fixture).dir, &truth_options());
        for entry in pool.list(pool.name(), &ListOptions { special: true, ..ListOptions::ALL }).unwrap() {
            let Some(ds) = entry.dataset() else { continue };
            if let Some(list) = ds.deadlist().unwrap() {
                blocks += check_deadlist(&pool, &list, &format!("{fixture}: deadlist of {}", ds.name()));
            }
        }
        let mut dirs = Vec::new();
        all_dirs(&pool.root_dir().unwrap(), &mut dirs);
        for dir in dirs {
            if let Some(list) = dir.livelist().unwrap() {
                check_deadlist(&pool, &list, &format!("{fixture}: livelist of {}", dir.name()));
                livelists += 1;
            }
        }
    }
    println!("{blocks} dead blocks, {livelists} livelists");
    assert!(blocks > 0 && livelists > 0);
}

#[test]
fn dedup_tables_hold_what_their_statistics_say() {
    let mut tables = 0;
    for fixture in ["dedup-a", "special-a", "enc-a"] {
        let pool = open(&fixtures::unpack(fixture).dir, &truth_options());
        for table in pool.ddts().unwrap() {
            let mut sum = DdtStat::default();
            table
                .for_each(&mut |entry| {
                    sum.add(&entry.stat(&pool));
                    Ok(())
                })
                .unwrap();
            assert_eq!(sum, table.histogram(&pool).unwrap().total(), "{fixture}: {:?}", table.checksum);
            assert!(sum.blocks > 0 || table.stores.iter().all(|s| s.count == 0));
            tables += 1;
        }
    }
    assert!(tables >= 4, "{tables}");
}

#[test]
fn block_reference_tables_hold_what_their_headers_say() {
    let mut entries = 0;
    for fixture in ["bclone-a", "zil-a", "zilslog-a"] {
        let pool = open(&fixtures::unpack(fixture).dir, &truth_options());
        for table in pool.brts().unwrap() {
            let all: Result<Vec<(u64, u64)>, _> = table.entries().unwrap().collect();
            let all = all.unwrap();
            assert_eq!(all.len() as u64, table.phys.totalcount, "{fixture}");
            assert!(all.iter().all(|(_, count)| (1..1 << 32).contains(count)), "{fixture}");
            entries += all.len();
        }
    }
    assert!(entries > 0);
}
