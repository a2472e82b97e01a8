#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const SIZE: u64 = 4 << 20;

fn check(free: &FreeSpace, model: &RangeTree) {
    assert_eq!(free.iter().collect::<Vec<_>>(), model.iter().collect::<Vec<_>>());
    assert_eq!((free.total(), free.len()), (model.total(), model.len()));
    assert_eq!(free.counts().map(u64::from), model.histogram());
    if let Some(index) = &free.sizes {
        let indexed: usize = index.classes.iter().map(BTreeSet::len).sum();
        assert_eq!(indexed, model.len());
    }
}

proptest! {
    /// Allocated space was free, freed space is available again, and nothing that would fit is refused.
    #[test]
    fn allocations_come_from_free_space(
        ops in prop::collection::vec((0..4u8, 0..SIZE / 512, 1..600u64), 1..120),
    ) {
        let mut model: RangeTree = std::iter::once(0..SIZE).collect();
        let mut free = FreeSpace::new(&model, SIZE, 9);
        let mut taken: Vec<Range<u64>> = Vec::new();
        for (op, at, len) in ops {
            let size = len * 512;
            match op {
                0 | 1 => {
                    let fits = model.largest().is_some_and(|r| r.end - r.start >= size);
                    match free.allocate(size) {
                        Some(start) => {
                            model.remove(start..start + size).unwrap();
                            taken.push(start..start + size);
                        }
                        None => prop_assert!(!fits),
                    }
                }
                2 if !taken.is_empty() => {
                    let range = taken.swap_remove(at as usize % taken.len());
                    free.add(range.clone()).unwrap();
                    prop_assert!(free.add(range.clone()).is_err());
                    model.add(range).unwrap();
                }
                _ => {
                    let range = at * 512..(at * 512 + size).min(SIZE);
                    prop_assert_eq!(free.contains(&range), model.contains(range.clone()));
                    let was = model.remove(range.clone()).is_ok();
                    prop_assert_eq!(free.remove(range.clone()).is_ok(), was);
                    if was { taken.push(range); }
                }
            }
            check(&free, &model);
        }
    }
}

#[test]
fn small_holes_are_searched_by_size() {
    // free segments of 1, 2, … 100 units, one unit apart
    let mut at = 0;
    let holes: RangeTree = (1..=100u64)
        .map(|n| {
            let hole = at..at + n * 512;
            at = hole.end + 512;
            hole
        })
        .collect();
    let mut free = FreeSpace::new(&holes, 1 << 30, 9);
    let hole = |n: u64| holes.iter().nth(n as usize - 1).unwrap();
    assert_eq!(free.allocate(7 * 512), Some(hole(7).start));
    assert_eq!(free.allocate(7 * 512), Some(hole(8).start), "the next larger one");
    assert_eq!(free.allocate(100 * 512), Some(hole(100).start));
    assert_eq!(free.allocate(100 * 512), None);
}

#[test]
fn allocation_goes_on_where_the_last_one_ended() {
    let mut free = FreeSpace::new(&std::iter::once(0..1u64 << 30).collect(), 1 << 30, 9);
    assert_eq!([free.allocate(4096), free.allocate(4096), free.allocate(8192)], [Some(0), Some(4096), Some(8192)]);
    free.add(0..4096).unwrap();
    assert_eq!(free.allocate(4096), Some(16384), "not in the hole behind the cursor");
}

#[test]
fn classes_are_ordered_as_sizes_are() {
    let classes: Vec<usize> = (0..4096).chain((12..63).map(|n| 1u64 << n)).chain([u64::MAX]).map(class_of).collect();
    assert!(classes.is_sorted() && classes.iter().all(|c| *c < CLASSES), "{:?}", classes.last());
}
