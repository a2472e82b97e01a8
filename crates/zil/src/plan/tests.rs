//! Every order that the plan allows gives the same result as applying one record after the other.

use std::collections::BTreeMap;

use ondisk::zil::{Create, Record, Rename, TxType, Write};
use ondisk::{BlkPtr, SECTOR_SHIFT};
use proptest::prelude::*;

use super::*;

const BLOCK: u64 = 16;
const SIZE: u64 = 6 * BLOCK;

/// A change, owned.
#[derive(Clone, Debug)]
enum Change {
    Write { file: ObjectId, at: u64, len: u64, byte: u8 },
    Truncate { file: ObjectId, at: u64 },
    SetAttr { file: ObjectId, mode: u64 },
    Create { dir: ObjectId, file: ObjectId, name: u8 },
    Link { dir: ObjectId, file: ObjectId, name: u8 },
    Remove { dir: ObjectId, name: u8 },
    Rename { from: (ObjectId, u8), to: (ObjectId, u8) },
}

/// Directories are objects 1 to 3, files 10 to 15.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    names: BTreeMap<(ObjectId, u8), ObjectId>,
    files: BTreeMap<ObjectId, (Vec<u8>, u64, u64)>,
    dirs: BTreeMap<ObjectId, u64>,
}

impl Model {
    /// Files 10, 11 and 12 exist, with two blocks or more.
    fn begun() -> Model {
        let mut model = Model::default();
        for file in 10..13u64 {
            model.names.insert((ObjectId(1), file as u8 - 10), ObjectId(file));
            model.files.insert(ObjectId(file), (vec![7; 3 * BLOCK as usize], 0, 1));
        }
        model
    }

    fn named(&self, dir: ObjectId, name: &[u8]) -> Option<ObjectId> {
        self.names.get(&(dir, *name.first()?)).copied()
    }

    fn block(&self, file: ObjectId) -> Option<u64> {
        self.files.get(&file).filter(|(data, ..)| data.len() as u64 > BLOCK).map(|_| BLOCK)
    }

    fn unlink(&mut self, dir: ObjectId, name: u8) -> bool {
        let Some(file) = self.names.remove(&(dir, name)) else { return false };
        if let Some((.., links)) = self.files.get_mut(&file) {
            *links -= 1;
            if *links == 0 {
                self.files.remove(&file);
            }
        }
        true
    }

    /// Makes a change. Returns false if it could not be made.
    fn apply(&mut self, change: &Change, superseded: bool) -> bool {
        match *change {
            Change::Write { file, at, len, byte } => {
                let Some((data, ..)) = self.files.get_mut(&file) else { return true };
                let end = (at + len) as usize;
                data.resize(data.len().max(end), 0);
                if !superseded {
                    data[at as usize..end].fill(byte);
                }
            }
            Change::Truncate { file, at } => {
                if let Some((data, ..)) = self.files.get_mut(&file) {
                    data.resize(at as usize, 0);
                }
            }
            Change::SetAttr { file, mode } if file < ObjectId(10) => {
                self.dirs.insert(file, mode);
            }
            Change::SetAttr { file, mode } => {
                if let Some((_, m, _)) = self.files.get_mut(&file) {
                    *m = mode;
                }
            }
            // a new file takes its mode from its directory
            Change::Create { dir, file, name } => {
                if self.names.contains_key(&(dir, name)) || self.files.contains_key(&file) {
                    return false;
                }
                self.names.insert((dir, name), file);
                self.files.insert(file, (Vec::new(), self.dirs.get(&dir).copied().unwrap_or(0), 1));
            }
            Change::Link { dir, file, name } => {
                let Some((.., links)) = self.files.get_mut(&file) else { return false };
                if self.names.contains_key(&(dir, name)) {
                    return false;
                }
                *links += 1;
                self.names.insert((dir, name), file);
            }
            Change::Remove { dir, name } => return self.unlink(dir, name),
            Change::Rename { from, to } => {
                let Some(file) = self.names.get(&from).copied() else { return false };
                if from == to {
                    return true;
                }
                self.unlink(to.0, to.1);
                self.names.remove(&from);
                self.names.insert(to, file);
            }
        }
        true
    }
}

static BYTES: [u8; SIZE as usize] = [0; SIZE as usize];
static NAMES: [[u8; 1]; 8] = [[0], [1], [2], [3], [4], [5], [6], [7]];

fn create(dir: ObjectId, file: ObjectId, name: u8) -> Create<'static> {
    Create {
        doid: dir,
        foid: file,
        slots: 1,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        generation: 1,
        crtime: [0; 2],
        rdev: 0,
        attrs: None,
        acl: None,
        domains: Vec::new(),
        name: &NAMES[usize::from(name)],
        link: None,
    }
}

/// Returns the record of a change.
fn record(change: &Change) -> (TxType, Record<'static>) {
    let name = |n: u8| -> &'static [u8] { &NAMES[usize::from(n)] };
    match *change {
        Change::Write { file, at, len, .. } => {
            let data = Some(&BYTES[..len as usize]);
            let write = Write { foid: file, offset: at, length: len, blkptr: BlkPtr::default(), data };
            (TxType::Write, Record::Write(write))
        }
        Change::Truncate { file, at } => (TxType::Truncate, Record::Truncate { foid: file, offset: at, length: 0 }),
        // an ACL represents all changes of the object itself
        Change::SetAttr { file, .. } => (TxType::AclV0, Record::AclV0 { foid: file, count: 0, aces: &[] }),
        Change::Create { dir, file, name } => (TxType::Create, Record::Create(create(dir, file, name))),
        Change::Link { dir, file, name: n } => {
            (TxType::Link, Record::Link { doid: dir, link_obj: file, name: name(n) })
        }
        Change::Remove { dir, name: n } => (TxType::Remove, Record::Remove { doid: dir, name: name(n) }),
        Change::Rename { from, to } => {
            let (src, dst) = (name(from.1), name(to.1));
            (TxType::Rename, Record::Rename(Rename { sdoid: from.0, tdoid: to.0, src, dst, whiteout: None }))
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let (file, dir, name) = ((10..16u64).prop_map(ObjectId), (1..4u64).prop_map(ObjectId), 0..8u8);
    // half of all writes are of whole blocks
    let whole = (0..5u64, 1..4u64).prop_map(|(at, n)| (at * BLOCK, n.min(6 - at) * BLOCK));
    let part = (0..SIZE - 1).prop_flat_map(|at| (Just(at), 1..SIZE - at));
    let write = (file.clone(), prop_oneof![whole, part], any::<u8>());
    let change = prop_oneof![
        8 => write.prop_map(|(file, (at, len), byte)| Change::Write { file, at, len, byte }),
        1 => (file.clone(), 0..SIZE).prop_map(|(file, at)| Change::Truncate { file, at }),
        1 => (prop_oneof![file.clone(), dir.clone()], any::<u64>()).prop_map(|(file, mode)| Change::SetAttr { file, mode }),
        1 => (dir.clone(), file.clone(), name.clone()).prop_map(|(dir, file, name)| Change::Create { dir, file, name }),
        1 => (dir.clone(), file, name.clone()).prop_map(|(dir, file, name)| Change::Link { dir, file, name }),
        1 => (dir.clone(), name.clone()).prop_map(|(dir, name)| Change::Remove { dir, name }),
        1 => ((dir.clone(), name.clone()), (dir, name)).prop_map(|(from, to)| Change::Rename { from, to }),
    ];
    prop::collection::vec(change, 0..60)
}

/// Applies the changes up to the first fence that fails, as a window does, but follows `choose` wherever there is a choice.
/// Returns the number applied.
fn side_by_side(model: &mut Model, changes: &[Change], mut choose: impl FnMut(usize) -> usize) -> usize {
    let records: Vec<(TxType, Record<'static>)> = changes.iter().map(record).collect();
    let steps: Vec<Step<'_, '_>> =
        records.iter().map(|(kind, record)| Step { kind: Some(*kind), record: Some(record) }).collect();
    let begun = model.clone();
    let left_out = superseded(&steps, |id| begun.block(id));
    let mut lanes = Lanes::default();
    let (mut next, mut under_way): (usize, Vec<(ObjectId, VecDeque<usize>)>) = (0, Vec::new());
    let mut failed = None;
    loop {
        let step = steps.get(next).filter(|_| failed.is_none());
        let fence = step.filter(|step| step.lane().is_none()).and_then(|step| step.record);
        let joins = fence.map(|record| Joins::of(record, |dir, name| Some(model.named(dir, name))));
        let lead = step.is_some() && joins.is_none_or(|joins| lanes.is_clear(&joins));
        let (ready, busy) = (lanes.ready(), under_way.len());
        let choices = usize::from(lead) + usize::from(ready > 0) + busy;
        if choices == 0 {
            assert!(failed.is_some() || next == steps.len(), "it must go on");
            return failed.unwrap_or(next);
        }
        let mut choice = choose(choices);
        if choice < busy {
            // the change finishes here, and only now can others see it
            let (object, lane) = &mut under_way[choice];
            let done = lane.pop_front().map(|n| model.apply(&changes[n], left_out.contains(&n)));
            assert_eq!(done, Some(true));
            if lane.is_empty() {
                lanes.done(*object);
                under_way.swap_remove(choice);
            }
            continue;
        }
        choice -= busy;
        if lead && choice == 0 {
            match steps[next].lane() {
                Some(object) => lanes.push(object, next),
                None if model.apply(&changes[next], false) => {}
                None => {
                    failed = Some(next);
                    continue;
                }
            }
            next += 1;
        } else {
            under_way.extend(lanes.take().map(|(object, lane)| (object, lane.into())));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_order_that_the_plan_allows_gives_what_one_after_the_other_gives(
        changes in changes(),
        choices in prop::collection::vec(any::<usize>(), 400),
    ) {
        let mut serial = Model::begun();
        let done = changes.iter().position(|change| !serial.apply(change, false)).unwrap_or(changes.len());
        let mut parallel = Model::begun();
        let mut choices = choices.into_iter().cycle();
        let did = side_by_side(&mut parallel, &changes, |n| choices.next().unwrap_or(0) % n);
        prop_assert_eq!(did, done);
        prop_assert_eq!(parallel, serial);
    }
}

fn write_of(file: ObjectId, at: u64, len: u64) -> Change {
    Change::Write { file, at, len, byte: 1 }
}

fn left_out(changes: &[Change]) -> Vec<usize> {
    let records: Vec<(TxType, Record<'static>)> = changes.iter().map(record).collect();
    let steps: Vec<Step<'_, '_>> =
        records.iter().map(|(kind, record)| Step { kind: Some(*kind), record: Some(record) }).collect();
    let mut found: Vec<usize> = superseded(&steps, |id| (id < ObjectId(15)).then_some(BLOCK)).into_iter().collect();
    found.sort_unstable();
    found
}

#[test]
fn only_what_whole_blocks_overwrite_at_once_is_left_out() {
    let part = write_of(ObjectId(10), 3, 5);
    let whole = write_of(ObjectId(10), 0, BLOCK);
    assert_eq!(left_out(&[part.clone(), whole.clone()]), [0]);
    assert_eq!(left_out(&[whole.clone(), part.clone()]), []);
    assert_eq!(left_out(&[part.clone(), write_of(ObjectId(10), 0, BLOCK + 1)]), [], "the later one reads a block");
    assert_eq!(left_out(&[part.clone(), write_of(ObjectId(11), 0, BLOCK)]), [], "another file");
    assert_eq!(left_out(&[part.clone(), part.clone(), whole.clone()]), [0, 1]);
    let behind = write_of(ObjectId(10), BLOCK + 3, BLOCK + 5);
    assert_eq!(
        left_out(&[part.clone(), behind, whole.clone()]),
        [],
        "a write between them reads a block, which may fail"
    );
    let between = [Change::Truncate { file: ObjectId(10), at: 4 }, Change::Remove { dir: ObjectId(1), name: 7 }];
    for between in between {
        assert_eq!(left_out(&[part.clone(), between, whole.clone()]), [], "it may fail, or look");
    }
    let other = Change::SetAttr { file: ObjectId(11), mode: 1 };
    assert_eq!(left_out(&[part, other, whole]), [0]);
    assert_eq!(
        left_out(&[write_of(ObjectId(15), 3, 5), write_of(ObjectId(15), 0, BLOCK)]),
        [],
        "blocks that still grow"
    );
}

#[test]
fn an_indirect_write_of_a_part_counts_with_its_whole_block() {
    let mut bp = BlkPtr::default();
    // the size in sectors, minus one
    bp.words[6] = (8 << SECTOR_SHIFT >> SECTOR_SHIFT) - 1;
    assert_eq!(bp.lsize(), 8 << SECTOR_SHIFT);
    let part = Record::Write(Write { foid: ObjectId(10), offset: 5000, length: 100, blkptr: bp, data: None });
    let step = Step { kind: Some(TxType::Write), record: Some(&part) };
    assert_eq!(bytes_of(&step), Some(4096..8192));
}

#[test]
fn windows_are_bounded_and_hold_all() {
    let most = (base::tunable::ZFS_DIRTY_DATA_MAX.get() / 4).max(WINDOW_BYTES_MIN);
    let bytes = [1, most, 1, 1, most * 2, 5];
    assert_eq!(windows(&bytes), [0..1, 1..2, 2..4, 4..5, 5..6]);
    assert_eq!(windows(&[1; WINDOW_RECORDS + 1]), [0..WINDOW_RECORDS, WINDOW_RECORDS..WINDOW_RECORDS + 1]);
    assert!(windows(&[]).is_empty());
}
