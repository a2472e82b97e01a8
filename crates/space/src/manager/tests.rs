#![allow(clippy::unwrap_used)]

use base::ObjectId;
use ondisk::Dva;

use super::*;
use crate::log::MetaslabChanges;
use crate::{Held, MapGeometry, MapInfo, RangeTree, Recent};

/// A loader for metaslabs without maps; the map of one of vdev 9 cannot be read.
struct NoMaps;

impl MetaslabLoader for NoMaps {
    fn load(&self, vdev: u32, _: u32, _: &MapInfo, _: &MapGeometry, _: Recent) -> Result<(RangeTree, Held), String> {
        if vdev == 9 { Err("broken".to_owned()) } else { Ok(Default::default()) }
    }
}

struct Sectors(u64);

impl Layout for Sectors {
    fn asize(&self, psize: u64, _: Txg) -> u64 {
        psize.next_multiple_of(self.0)
    }

    fn deflated(&self, asize: u64) -> u64 {
        asize
    }
}

fn top(id: u32, class: Class, count: u64, ms_shift: u32) -> TopSpace {
    let metaslab = |n| {
        let geometry = MapGeometry::metaslab(n, ms_shift, 9).unwrap();
        Metaslab::new(n as u32, geometry, None, MetaslabChanges::default(), true)
    };
    let metaslabs = (0..count).map(metaslab).collect();
    TopSpace { id, class, ms_shift, metaslabs, data_children: 1, allocatable: true, layout: Arc::new(Sectors(512)) }
}

fn manager(tops: impl IntoIterator<Item = TopSpace>) -> SpaceManager {
    let mgr = SpaceManager::new(Arc::new(NoMaps));
    tops.into_iter().for_each(|t| mgr.add_top(t, Txg(0)));
    mgr
}

fn request(class: Class) -> SpaceRequest<'static> {
    SpaceRequest { class, txg: Txg(5), hint: 0, avoid: &[], gang: false }
}

#[test]
fn a_run_lies_side_by_side() {
    let mgr = manager([top(0, Class::Normal, 16, 24)]);
    let mut got = Vec::new();
    mgr.allocate_many(&request(Class::Normal), &[4096, 8192, 512, 1024], &mut got).unwrap();
    let offsets: Vec<u64> = got.iter().map(Dva::offset).collect();
    assert_eq!(offsets, [0, 4096, 12288, 12800]);
    assert!(got.iter().all(|d| d.vdev() == 0 && !d.is_gang()));
}

#[test]
fn vdevs_take_turns_by_their_free_space() {
    // the second vdev is twice as large
    let mgr = manager([top(0, Class::Normal, 32, 24), top(1, Class::Normal, 64, 24)]);
    let mut bytes = [0u64; 2];
    let mut switches = 0;
    let mut last = 0;
    for _ in 0..2400 {
        let dva = mgr.allocate(&request(Class::Normal), 128 << 10).unwrap();
        bytes[dva.vdev() as usize] += dva.asize();
        switches += u32::from(std::mem::replace(&mut last, dva.vdev()) != dva.vdev());
    }
    let share = bytes[1] as f64 / bytes[0] as f64;
    assert!((1.7..2.3).contains(&share), "{bytes:?}");
    assert!((50..300).contains(&switches), "{switches}");
}

#[test]
fn copies_are_on_other_vdevs_or_far_apart() {
    let mgr = manager([top(0, Class::Normal, 16, 24), top(1, Class::Normal, 16, 24), top(2, Class::Normal, 16, 24)]);
    let first = mgr.allocate(&request(Class::Normal), 4096).unwrap();
    let second = mgr.allocate(&SpaceRequest { avoid: &[first], ..request(Class::Normal) }, 4096).unwrap();
    let third = mgr.allocate(&SpaceRequest { avoid: &[first, second], ..request(Class::Normal) }, 4096).unwrap();
    let mut vdevs = [first.vdev(), second.vdev(), third.vdev()];
    vdevs.sort_unstable();
    assert_eq!(vdevs, [0, 1, 2]);

    let mgr = manager([top(0, Class::Normal, 16, 24)]);
    let mut used = Vec::new();
    for _ in 0..3 {
        let dva = mgr.allocate(&SpaceRequest { avoid: &used.clone(), ..request(Class::Normal) }, 4096).unwrap();
        used.push(dva);
    }
    let mut slabs: Vec<u64> = used.iter().map(|d| d.offset() >> 24).collect();
    slabs.dedup();
    assert_eq!(slabs.len(), 3, "each in a metaslab of its own");
    // if there is only one metaslab, the copies are in it
    let mgr = manager([top(0, Class::Normal, 1, 24)]);
    let first = mgr.allocate(&request(Class::Normal), 4096).unwrap();
    assert!(mgr.allocate(&SpaceRequest { avoid: &[first], ..request(Class::Normal) }, 4096).is_ok());
}

#[test]
fn full_classes_hand_over() {
    let small = |id, class| top(id, class, 1, 16);
    let mgr =
        manager([top(0, Class::Normal, 4, 24), small(1, Class::Special), small(2, Class::Dedup), small(3, Class::Log)]);
    let fill = |class| {
        let mut order = Vec::new();
        for _ in 0..40 {
            let vdev = mgr.allocate(&request(class), 8192).unwrap().vdev();
            if order.last() != Some(&vdev) {
                order.push(vdev);
            }
        }
        order
    };
    assert_eq!(fill(Class::Dedup), [2, 1, 0]);
    assert_eq!(fill(Class::Special), [0]);
    assert_eq!(fill(Class::Log), [3, 0]);
    assert!(mgr.has_class(Class::Log) && !mgr.has_class(Class::EmbeddedLog));
}

#[test]
fn a_vdev_with_many_metaslabs_sets_one_aside_for_the_log() {
    let mgr = manager([top(0, Class::Normal, 65, 20)]);
    assert_eq!(mgr.class_of((0, 0)), Some(Class::EmbeddedLog));
    assert_eq!(mgr.class_of((0, 1)), Some(Class::Normal));
    assert_eq!(mgr.figures(Class::EmbeddedLog).space, 1 << 20);
    assert_eq!(mgr.allocate(&request(Class::Log), 4096).unwrap().offset() >> 20, 0);
    let normal: Vec<u64> =
        (0..64).map(|_| mgr.allocate(&request(Class::Normal), 1 << 20).unwrap().offset() >> 20).collect();
    assert!(!normal.contains(&0));
    assert_eq!(mgr.allocate(&request(Class::Normal), 512), Err(AllocError::NoSpace), "the log's is not for others");
    assert!(!manager([top(0, Class::Normal, 64, 20)]).has_class(Class::EmbeddedLog));
}

#[test]
fn no_run_of_the_size_is_no_space() {
    let mgr = manager([top(0, Class::Normal, 2, 20)]);
    assert_eq!(mgr.allocate(&request(Class::Normal), 2 << 20), Err(AllocError::NoSpace));
    let mut got = Vec::new();
    let asked = vec![300 << 10; 10];
    assert_eq!(mgr.allocate_many(&request(Class::Normal), &asked, &mut got), Err(AllocError::NoSpace));
    assert_eq!(got.len(), 6, "three in each metaslab");
    assert!(mgr.allocate(&SpaceRequest { gang: true, ..request(Class::Normal) }, 100 << 10).is_ok());
    while mgr.allocate(&request(Class::Normal), 512).is_ok() {}
    assert_eq!(mgr.allocate(&SpaceRequest { gang: true, ..request(Class::Normal) }, 512), Err(AllocError::NoSpace));
}

#[test]
fn what_is_given_back_at_once_is_there_again() {
    let mgr = manager([top(0, Class::Normal, 1, 20)]);
    let all = mgr.allocate(&request(Class::Normal), 1 << 20).unwrap();
    assert!(mgr.release(0, all.offset(), 1 << 20, Txg(6)).is_err(), "not of this txg");
    mgr.release(0, all.offset(), 1 << 20, Txg(5)).unwrap();
    assert!(mgr.allocate(&request(Class::Normal), 1 << 20).is_ok());
}

#[test]
fn claimed_space_is_not_given_to_others() {
    let mgr = manager([top(0, Class::Normal, 1, 20)]);
    mgr.claim(0, 4096, 4096, Txg(5)).unwrap();
    assert!(matches!(mgr.claim(0, 4096, 512, Txg(5)), Err(AllocError::State { .. })));
    assert!(matches!(mgr.claim(0, 4 << 20, 512, Txg(5)), Err(AllocError::Nowhere { .. })));
    // a block pointer that lies between two sectors
    let between = mgr.claim(0, 8192 + 256, 512, Txg(5));
    assert!(matches!(between, Err(AllocError::State { source: Error::OutOfMap { .. }, .. })), "{between:?}");
    for _ in 0..(1 << 8) - 2 {
        let dva = mgr.allocate(&request(Class::Normal), 4096).unwrap();
        assert_ne!(dva.offset(), 4096);
    }
}

#[test]
fn claimed_space_may_be_held() {
    let held = || {
        let mut held = Held::default();
        held.add(Txg(8), 4096..16384).unwrap();
        held
    };
    let mut one = top(0, Class::Normal, 1, 20);
    let mut changes = MetaslabChanges::default();
    changes.frees.add(4096..16384).unwrap();
    one.metaslabs = one.metaslabs.into_iter().map(|ms| ms.opened(Txg(9), held())).collect();
    let mgr = SpaceManager::new(Arc::new(NoMaps));
    mgr.opened(Txg(9), Txg(7));
    mgr.add_top(one, Txg(0));
    let figures = || (mgr.figures(Class::Normal).alloc, mgr.figures(Class::Normal).deferred);
    assert_eq!(figures(), (12288, 12288));
    let at = |txg| SpaceRequest { txg: Txg(txg), ..request(Class::Normal) };
    let first = mgr.allocate(&at(10), 8192).unwrap();
    assert_eq!(first.offset(), 16384, "what lies before it is too small, or held");
    mgr.claim(0, 8192, 12288, Txg(10)).unwrap_err();
    mgr.claim(0, 8192, 4096, Txg(10)).unwrap();
    // the refused claim releases the parts that it had taken
    assert_eq!(figures().0, figures().1);
    mgr.start_pass(Txg(10)).unwrap();
    mgr.sync_done(Txg(10), Txg(u64::MAX)).unwrap();
    assert_eq!(figures().1, 0, "freed in 8, free after 10");
    assert_eq!(mgr.allocate(&at(11), 4096).unwrap().vdev(), 0);
}

#[test]
fn a_map_that_cannot_be_read_is_passed_over() {
    let mut broken = top(9, Class::Normal, 2, 20);
    for ms in &mut broken.metaslabs {
        let mut map = MapInfo { object: ObjectId(1), block: 512, ..MapInfo::default() };
        (map.header.length, map.header.alloc, map.header.histogram) = (8, 512, Some([1; 32]));
        *ms = Metaslab::new(ms.id(), *ms.geometry(), Some(map), MetaslabChanges::default(), true);
    }
    let mgr = manager([broken, top(1, Class::Normal, 2, 20)]);
    assert!((0..100).all(|_| mgr.allocate(&request(Class::Normal), 4096).unwrap().vdev() == 1));
    assert!(matches!(mgr.load((9, 0)), Err(AllocError::Load { .. })));
}

#[test]
fn what_is_unused_is_unloaded() {
    let mgr = manager([top(0, Class::Normal, 8, 20)]);
    let dva = mgr.allocate(&request(Class::Normal), 4096).unwrap();
    mgr.release(0, dva.offset(), 4096, Txg(5)).unwrap();
    let second = mgr.allocate(&SpaceRequest { avoid: &[dva, dva], ..request(Class::Normal) }, 4096).unwrap();
    mgr.release(0, second.offset(), 4096, Txg(5)).unwrap();
    assert_eq!(mgr.loaded_count(), 2);
    (6..60).for_each(|t| mgr.sync_done(Txg(t), Txg(t)).unwrap());
    assert_eq!(mgr.loaded_count(), 1, "an allocator stays with one of them");
}

#[test]
fn slop_is_as_openzfs_has_it() {
    let slop = |count, shift| manager([top(0, Class::Normal, count, shift)]).slop();
    assert_eq!(slop(16, 22), 32 << 20, "half of a tiny pool");
    assert_eq!(slop(16, 26), 128 << 20, "at least 128 MiB");
    // 200 × 1 GiB: 1/32 of 199 GiB, minus the embedded log's 1 GiB
    let rd = 199u64 << 30;
    assert_eq!(slop(200, 30), rd / 32 - (1 << 30));
    assert_eq!(slop(200, 36), 128 << 30 >> 1, "at most 128 GiB; the log's metaslab counts for no more than half");
}

#[test]
fn figures_and_fragmentation_are_of_complete_txgs() {
    let mgr = manager([top(0, Class::Normal, 4, 20)]);
    let dva = mgr.allocate(&request(Class::Normal), 4096).unwrap();
    assert_eq!((mgr.figures(Class::Normal).alloc, mgr.fragmentation(Class::Normal)), (0, Some(0)));
    assert_eq!(mgr.start_pass(Txg(5)).unwrap(), [(0, (dva.offset() >> 20) as u32)]);
    assert_eq!(mgr.vdev_figures(0).space, 4 << 20);
}

#[test]
fn what_a_log_device_does_not_take_goes_elsewhere() {
    let mgr = manager([top(0, Class::Normal, 16, 24), top(1, Class::Log, 4, 24)]);
    assert_eq!(mgr.allocate(&request(Class::Log), 4096).unwrap().vdev(), 1);
    mgr.retire(1);
    assert!(!mgr.has_class(Class::Log));
    assert_eq!(mgr.allocate(&request(Class::Log), 4096).unwrap().vdev(), 0);
    // its existing blocks stay valid
    mgr.free(1, 0, 4096, false).unwrap();
    assert_eq!(mgr.vdevs(), [0, 1]);
}

#[test]
fn nothing_is_allocated_from_a_disabled_metaslab() {
    let mgr = manager([top(0, Class::Normal, 4, 20)]);
    let first = mgr.allocate(&request(Class::Normal), 4096).unwrap();
    let id = (first.offset() >> 20) as u32;
    let disabled = mgr.disable((0, id)).unwrap().unwrap();
    assert_eq!((disabled.free.total(), disabled.was_used), ((1 << 20) - 4096, false));
    assert!(!disabled.free.intersects(first.offset()..first.offset() + 4096));
    for _ in 0..3 * 256 {
        let dva = mgr.allocate(&request(Class::Normal), 4096).unwrap();
        assert_ne!((dva.offset() >> 20) as u32, id, "also the allocator that had it takes another");
    }
    // disabled twice, it stays disabled until both have ended
    let again = mgr.disable((0, id)).unwrap().unwrap();
    drop(disabled);
    assert!(mgr.with((0, id), |ms| ms.limit()).unwrap() == 0);
    drop(again);
    let back = mgr.allocate(&request(Class::Normal), 4096).unwrap();
    assert_eq!((back.offset() >> 20) as u32, id, "all others are full");
    assert!(mgr.disable((0, 99)).unwrap().is_none());
}

#[test]
fn an_allocation_waits_for_space_that_is_disabled() {
    let mgr = manager([top(0, Class::Normal, 1, 20)]);
    let disabled = mgr.disable((0, 0)).unwrap().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| mgr.allocate(&request(Class::Normal), 4096));
        while !disabled.is_wanted() {
            std::thread::yield_now();
        }
        assert!(mgr.disable((0, 0)).unwrap().is_none(), "none is disabled while one waits");
        drop(disabled);
        waits.join().unwrap().unwrap();
    });
    assert!(mgr.disable((0, 0)).unwrap().is_some());
    // what fits nowhere fails without a wait
    assert!(matches!(mgr.allocate(&request(Class::Normal), 2 << 20), Err(AllocError::NoSpace)));
}

#[test]
fn only_so_many_metaslabs_of_a_vdev_are_disabled() {
    let mgr = manager([top(0, Class::Normal, 8, 20), top(1, Class::Normal, 8, 20)]);
    let three: Vec<_> = (0..3).map(|n| mgr.disable((0, n)).unwrap().unwrap()).collect();
    assert!(mgr.disable((0, 3)).unwrap().is_none());
    assert!(mgr.disable((0, 1)).unwrap().is_some() && mgr.disable((1, 3)).unwrap().is_some());
    drop(three);
    assert!(mgr.disable((0, 3)).unwrap().is_some());
}

#[test]
fn what_is_freed_is_kept_for_a_trim_until_it_is_allocated_again() {
    let mgr = manager([top(0, Class::Normal, 1, 20)]);
    mgr.keep_freed(true);
    let txg = |txg: u64| SpaceRequest { txg: Txg(txg), ..request(Class::Normal) };
    let synced = |txg: u64| {
        for id in mgr.start_pass(Txg(txg)).unwrap() {
            mgr.with(id, |ms| {
                let work = ms.take_work(Txg(txg));
                ms.pass_done(work).unwrap();
            });
        }
        mgr.sync_done(Txg(txg), Txg(u64::MAX)).unwrap();
    };
    let (first, second) = (mgr.allocate(&txg(1), 4096).unwrap(), mgr.allocate(&txg(1), 4096).unwrap());
    synced(1);
    mgr.free(0, first.offset(), 4096, false).unwrap();
    mgr.free(0, second.offset(), 4096, false).unwrap();
    let freed = || mgr.with((0, 0), |ms| ms.has_freed()).unwrap();
    (2..=3).for_each(|n| {
        synced(n);
        assert!(!freed(), "what was freed in a txg that can still be opened, in txg {n}");
    });
    synced(4);
    assert!(freed());
    mgr.claim(0, second.offset(), 4096, Txg(5)).unwrap();
    let taken: Vec<_> = mgr.disable((0, 0)).unwrap().unwrap().take_freed().iter().collect();
    assert!(taken.len() == 1 && taken[0] == (first.offset()..first.offset() + 4096));
    assert!(!freed());
    mgr.keep_freed(false);
    mgr.free(0, second.offset(), 4096, false).unwrap();
    (5..9).for_each(synced);
    assert!(!freed());
}

#[test]
fn a_vdev_that_grows_is_allocated_from_to_its_end() {
    let grown = |from: u64, to: u64| -> Vec<Metaslab> {
        top(0, Class::Normal, to, 20).metaslabs.into_iter().skip(from as usize).collect()
    };
    let mgr = manager([top(0, Class::Normal, 4, 20), top(1, Class::Normal, 4, 20)]);
    let fill = || {
        let mut got = RangeTree::new();
        while let Ok(dva) = mgr.allocate(&request(Class::Normal), 128 << 10) {
            if dva.vdev() == 0 {
                got.add(dva.offset()..dva.offset() + dva.asize()).unwrap();
            }
        }
        got
    };
    let one = |range: std::ops::Range<u64>| std::iter::once(range).collect::<RangeTree>();
    assert_eq!(fill(), one(0..4 << 20));
    mgr.grow_top(0, grown(4, 10));
    assert_eq!(mgr.figures(Class::Normal).space, 14 << 20);
    assert_eq!((mgr.metaslab_count(0), mgr.metaslab_count(1)), (10, 4));
    assert_eq!(fill(), one(4 << 20..10 << 20), "what was there is still allocated");
    // with many metaslabs one of the new ones is for the intent log
    assert!(!mgr.has_class(Class::EmbeddedLog));
    mgr.grow_top(0, grown(10, 70));
    assert_eq!((mgr.figures(Class::EmbeddedLog).space, mgr.class_of((0, 10))), (1 << 20, Some(Class::EmbeddedLog)));
    assert_eq!(mgr.figures(Class::Normal).space, (69 + 4) << 20);
    assert_eq!(mgr.allocate(&request(Class::EmbeddedLog), 4096).unwrap().offset(), 10 << 20);
    // one from which nothing is allocated stays so
    assert!(mgr.retire(1));
    mgr.grow_top(1, top(1, Class::Normal, 8, 20).metaslabs.into_iter().skip(4).collect());
    assert_eq!(fill(), one(11 << 20..70 << 20));
    mgr.reinstate(1);
    assert_eq!(mgr.allocate(&request(Class::Normal), 4096).unwrap().vdev(), 1);
}
