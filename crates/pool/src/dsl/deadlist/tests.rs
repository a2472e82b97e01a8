//! Deadlists of a MOS in memory.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;

use base::{ObjectId, Txg};
use ondisk::BlkPtr;

use super::Deadlist;
use crate::spa::bpobj::write::tests::{all, mos, pointer, space_of};
use crate::spa::bpobj::write::{LIST_BLOCK, drop_empties, empty_list};
use crate::spa::bpobj::{Bpobj, Space};

#[test]
fn deadlists_sort_by_birth_and_share_an_empty_list() {
    let (mos, tx) = mos();
    let uses = Cell::new(0i64);
    let mut count = |by: i64| {
        uses.set(uses.get() + by);
        Ok(Some(uses.get() as u64))
    };
    let open = |id| Deadlist::open(&mos, id).unwrap();
    let births = |list: &Deadlist| -> Vec<(u64, usize)> {
        list.lists().into_iter().map(|(key, id)| (key.0, all(&list.list(id).unwrap()).len())).collect()
    };
    let id = Deadlist::create(&mos, &tx).unwrap();
    let mut list = open(id);
    for txg in [0, 10, 20, 30] {
        list.add_key(&tx, Txg(txg), &mut count).unwrap();
    }
    assert_eq!(uses.get(), 4);
    let blocks: Vec<BlkPtr> = [5, 10, 11, 12, 31, 99].map(|txg| pointer(txg, 2)).to_vec();
    list.insert_many(&tx, &blocks, &mut count).unwrap();
    assert_eq!((uses.get(), list.space(), open(id).space()), (1, space_of(&blocks), space_of(&blocks)));
    assert_eq!(births(&open(id)), [(0, 2), (10, 2), (20, 0), (30, 2)]);
    let other = open(list.clone_with(&tx, Txg(30), ObjectId(0), &[], &mut count).unwrap());
    assert_eq!((births(&other), uses.get()), (vec![(0, 0), (10, 0), (20, 0)], 4));
    let mut other = other;
    other.insert_many(&tx, &[pointer(15, 1)], &mut count).unwrap();
    assert_eq!(open(id).remove_keys(&tx, &[Txg(10), Txg(77)], &mut count).unwrap(), id);
    assert_eq!(births(&open(id)), [(0, 4), (20, 0), (30, 2)]);
    // what one has under a key that the other has not goes to the key before
    let (mut lists, mut space) = (open(id).contents().unwrap(), open(id).space());
    for (key, mut ids) in open(other.id()).contents().unwrap() {
        lists.range_mut(..=key).next_back().unwrap().1.append(&mut ids);
    }
    space.add(open(other.id()).space());
    let before = other.empties(empty_list(&mos).unwrap());
    assert_eq!(open(id).rebuild(&tx, &lists, space, &mut count).unwrap(), id);
    drop_empties(&mos, &tx, before, &mut count).unwrap();
    assert_eq!((births(&open(id)), uses.get()), (vec![(0, 5), (20, 0), (30, 2)], 1));
    assert_eq!(open(id).space().used, space_of(&blocks).used + 512);
    let free = Bpobj::open(&mos, Bpobj::create(&mos, &tx, LIST_BLOCK).unwrap()).unwrap();
    // the lists that were joined are one now
    let mut lists = open(id).contents().unwrap();
    let away = lists.split_off(&Txg(20)).into_values().flatten().collect::<Vec<ObjectId>>();
    free.append_lists(&tx, &away).unwrap();
    space.sub(Bpobj::open(&mos, free.id()).unwrap().space());
    open(id).rebuild(&tx, &lists, space, &mut count).unwrap();
    assert_eq!((births(&open(id)), uses.get()), (vec![(0, 5)], 0));
    assert_eq!((all(&Bpobj::open(&mos, free.id()).unwrap()), empty_list(&mos).unwrap()), (vec![31, 99], None));
    let mut list = open(id);
    list.remove_entry(&tx, Txg(0), &mut count).unwrap();
    assert_eq!(open(id).space(), Space::default());
    open(id).free(&tx, &mut count).unwrap();
    assert!(mos.object(id).is_err());
}

#[test]
fn a_deadlist_of_many_keys_is_made_and_emptied_at_once() {
    let (mos, tx) = mos();
    let uses = Cell::new(0i64);
    let mut count = |by: i64| {
        uses.set(uses.get() + by);
        Ok(Some(uses.get() as u64))
    };
    let open = |id| Deadlist::open(&mos, id).unwrap();
    let first = Deadlist::create(&mos, &tx).unwrap();
    let keys: Vec<Txg> = (0..5000).map(Txg).collect();
    let id = open(first).clone_with(&tx, Txg(u64::MAX), ObjectId(0), &keys, &mut count).unwrap();
    let mut list = open(id);
    assert_eq!((list.lists().len(), uses.get()), (5000, 5000));
    list.insert_many(&tx, &[pointer(1, 1), pointer(2500, 2), pointer(5000, 3)], &mut count).unwrap();
    // what follows has the same keys and more, and nothing in them
    let next = Deadlist::succeed((&mos, &tx), id, ObjectId(0), &[Txg(4999), Txg(9000)], &mut count).unwrap();
    let keys_of = |id| open(id).lists().into_iter().map(|(key, _)| key).collect::<Vec<Txg>>();
    assert_eq!(keys_of(next), keys.iter().copied().chain([Txg(9000)]).collect::<Vec<Txg>>());
    assert_eq!((open(next).empties(empty_list(&mos).unwrap()), open(next).space()), (5001, Space::default()));
    assert_eq!(uses.get(), 4997 + 5001);
    open(next).free(&tx, &mut count).unwrap();
    let id = list.remove_keys(&tx, &keys[1..], &mut count).unwrap();
    assert_eq!((open(id).lists().len(), uses.get()), (1, 0));
    assert_eq!(all(&open(id).list(open(id).lists()[0].1).unwrap()), [1, 2500, 5000]);
}
