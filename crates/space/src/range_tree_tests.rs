#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const SPACE: u64 = 96;

/// A reference model: a set of bytes.
#[derive(Clone)]
struct Model([bool; SPACE as usize]);

impl Model {
    fn all(&self, r: &Range<u64>, want: bool) -> bool {
        r.clone().all(|n| self.0[n as usize] == want)
    }

    fn set(&mut self, r: &Range<u64>, value: bool) -> u64 {
        r.clone().filter(|n| std::mem::replace(&mut self.0[*n as usize], value) != value).count() as u64
    }

    fn runs(&self, r: &Range<u64>, want: bool) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for n in r.clone().filter(|n| self.0[*n as usize] == want) {
            match runs.last_mut().filter(|run| run.end == n) {
                Some(run) => run.end = n + 1,
                None => runs.push(n..n + 1),
            }
        }
        runs
    }
}

fn range() -> impl Strategy<Value = Range<u64>> {
    (0..SPACE, 0..24u64).prop_map(|(s, n)| s..(s + n).min(SPACE))
}

proptest! {
    #[test]
    fn it_does_what_a_plain_set_does(ops in prop::collection::vec((0..5u8, range()), 1..200)) {
        let (mut tree, mut model) = (RangeTree::new(), Model([false; SPACE as usize]));
        let (mut other, mut other_model) = (RangeTree::new(), model.clone());
        for (op, r) in ops {
            match op {
                0 => {
                    let free = model.all(&r, false);
                    prop_assert_eq!(tree.add(r.clone()).is_ok(), free);
                    if free { model.set(&r, true); }
                }
                1 => {
                    let there = model.all(&r, true);
                    prop_assert_eq!(tree.contains(r.clone()), there);
                    prop_assert_eq!(tree.remove(r.clone()).is_ok(), there);
                    if there { model.set(&r, false); }
                }
                2 => prop_assert_eq!(tree.cover(r.clone()), model.set(&r, true)),
                3 => prop_assert_eq!(tree.clear(r.clone()), model.set(&r, false)),
                _ => {
                    let missing = model.runs(&r, false);
                    let fits = missing.iter().all(|m| other_model.all(m, false));
                    if fits {
                        tree.remove_xor_add(r.clone(), &mut other).unwrap();
                        model.set(&r, false);
                        missing.iter().for_each(|m| { other_model.set(m, true); });
                    } else {
                        prop_assert!(tree.clone().remove_xor_add(r.clone(), &mut other.clone()).is_err());
                    }
                }
            }
            let whole = 0..SPACE;
            prop_assert_eq!(tree.iter().collect::<Vec<_>>(), model.runs(&whole, true));
            prop_assert_eq!(other.iter().collect::<Vec<_>>(), other_model.runs(&whole, true));
            prop_assert_eq!(tree.overlaps(r.clone()).collect::<Vec<_>>(), model.runs(&r, true));
            prop_assert_eq!(tree.gaps(r.clone()).collect::<Vec<_>>(), model.runs(&r, false));
            prop_assert_eq!(tree.intersects(r.clone()), !model.all(&r, false));
            prop_assert_eq!(tree.total(), model.runs(&whole, true).iter().map(|s| s.end - s.start).sum::<u64>());
            prop_assert_eq!(&tree.complement(whole.clone()).complement(whole), &tree);
            prop_assert_eq!(&tree.iter().rev().collect::<RangeTree>(), &tree);
            prop_assert_eq!(tree.histogram().iter().sum::<u64>(), tree.len() as u64);
        }
    }
}

#[test]
fn the_ends_of_the_number_line_are_no_trap() {
    let mut tree = RangeTree::new();
    tree.add(0..u64::MAX).unwrap();
    assert_eq!(tree.total(), u64::MAX);
    assert!(tree.add(5..6).is_err());
    tree.remove(u64::MAX - 1..u64::MAX).unwrap();
    assert_eq!(tree.histogram()[63], 1);
    assert_eq!(tree.largest(), Some(0..u64::MAX - 1));
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = 9..3;
    assert!(tree.add(backwards.clone()).is_ok() && tree.remove(backwards.clone()).is_ok());
    assert_eq!(
        (tree.clear(backwards.clone()), tree.overlaps(backwards.clone()).count(), tree.gaps(backwards).count()),
        (0, 0, 0)
    );
}
