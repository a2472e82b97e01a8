//! Random changes, held against a model: what a txg left is what a reader finds on disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::ObjectId;
use ondisk::{ObjectType, ObjsetType};

use super::pool::TestPool;
use crate::testing::Rng;
use crate::{NewObject, Object, Objset, Tx};

/// Blocks that an object may have.
const BLOCKS: usize = 3200;

#[derive(Clone)]
struct ModelObject {
    bytes: Vec<u8>,
    block_size: usize,
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
    slots: usize,
}

impl ModelObject {
    /// Which blocks are not all zeros.
    fn data(&self) -> Vec<bool> {
        self.bytes.chunks(self.block_size).map(|block| block.iter().any(|byte| *byte != 0)).collect()
    }

    fn put(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(data);
    }
}

type Model = BTreeMap<ObjectId, ModelObject>;

fn random_bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let kind = rng.below(3);
    (0..len).map(|_| if kind == 0 { 7 } else { rng.next() as u8 | 1 }).collect()
}

fn change(rng: &mut Rng, os: &Arc<Objset>, tx: &Tx, model: &mut Model) {
    let pick = |rng: &mut Rng, model: &Model| model.keys().nth(rng.below(model.len())).copied();
    match (rng.below(20), pick(rng, model)) {
        (0 | 1, _) | (_, None) => {
            let block_size = [512, 512, 1024, 4096, 1536][rng.below(5)];
            let new = NewObject {
                object_type: ObjectType::PLAIN_FILE_CONTENTS,
                block_size: block_size as u64,
                indirect_shift: 12,
                bonus_type: ObjectType::PLAIN_OTHER,
                bonus_len: rng.below(100),
                slots: 1 + rng.below(3),
                ..NewObject::default()
            };
            let id = os.alloc_object(tx, &new).unwrap().id();
            let there = ModelObject {
                bytes: Vec::new(),
                block_size,
                bonus: vec![0; new.bonus_len],
                spill: None,
                slots: new.slots,
            };
            assert!(model.insert(id, there).is_none(), "object {id} was given twice");
        }
        (2, Some(id)) if rng.below(2) == 0 => {
            os.free_object(tx, id).unwrap();
            model.remove(&id);
            assert!(os.object(id).unwrap_err().is_not_found());
        }
        (n, Some(id)) => {
            let object = os.object(id).unwrap();
            change_object(rng, n, &object, tx, model.get_mut(&id).unwrap());
        }
    }
}

fn change_object(rng: &mut Rng, what: usize, object: &Object, tx: &Tx, model: &mut ModelObject) {
    let size = model.block_size;
    // one whose block size is no power of two has one block
    let blocks = if size.is_power_of_two() { BLOCKS } else { 1 };
    let near = if rng.below(4) == 0 { blocks } else { blocks.min(60) };
    match what {
        2 | 3 => {
            let room = object.reload().unwrap().phys().max_bonus(model.spill.is_some());
            let len = rng.below(room.min(200));
            model.bonus = random_bytes(rng, len);
            object.set_bonus(tx, &model.bonus).unwrap();
        }
        4 => {
            let dn = object.reload().unwrap();
            if dn.phys().fits_spill() {
                let len = 512 * (1 + rng.below(4));
                let spill = random_bytes(rng, len);
                object.set_spill(tx, spill.clone()).unwrap();
                model.spill = Some(spill);
            }
        }
        5 => {
            object.remove_spill(tx).unwrap();
            model.spill = None;
        }
        6 | 7 => {
            let from = rng.below(near * size);
            let len = if rng.below(3) == 0 { u64::MAX } else { rng.below(300 * size) as u64 };
            object.free_range(tx, from as u64, len).unwrap();
            let end = (from as u64).saturating_add(len).min(model.bytes.len() as u64) as usize;
            if from < end {
                model.bytes[from..end].fill(0);
            }
        }
        8 if object.nblocks() == 1 => {
            let new = [512, 1024, 2048, 1536][rng.below(4)].max(size);
            object.set_block_size(tx, new as u64, 0).unwrap();
            model.block_size = new;
        }
        9 => {
            let blkid = rng.below(near);
            let add = rng.next() as u8 | 1;
            object.modify_block(tx, blkid as u64, |block| block[size / 2] = block[size / 2].wrapping_add(add)).unwrap();
            let at = blkid * size + size / 2;
            let old = model.bytes.get(at).copied().unwrap_or(0);
            model.put(at, &[old.wrapping_add(add)]);
        }
        10 => {
            let blkid = rng.below(near);
            let data = random_bytes(rng, size);
            object.write_block(tx, blkid as u64, data.clone()).unwrap();
            model.put(blkid * size, &data);
        }
        _ => {
            let at = rng.below(near * size);
            let len = (1 + rng.below(5 * size)).min(blocks * size - at);
            let data = random_bytes(rng, len);
            object.write(tx, at as u64, &data).unwrap();
            model.put(at, &data);
        }
    }
}

fn compare(os: &Arc<Objset>, model: &Model, on_disk: bool) {
    let ids: Vec<ObjectId> = os.objects().map(|object| object.unwrap().id()).collect();
    assert!(ids.iter().eq(model.keys()), "{ids:?} {:?}", model.keys());
    for (id, want) in model {
        let object = os.object(*id).unwrap();
        assert_eq!(object.bonus(), want.bonus, "bonus of {id}");
        assert_eq!(object.phys().slots(), want.slots);
        assert_eq!(object.block_size(), want.block_size as u64);
        assert_eq!(object.spill().unwrap().map(|buf| buf.to_vec()), want.spill, "spill of {id}");
        let got = object.read_vec(0, want.bytes.len() + 10_000).unwrap();
        let first = got.iter().zip(want.bytes.iter().chain(std::iter::repeat(&0))).position(|(a, b)| a != b);
        assert_eq!(first, None, "object {id}, block size {}", want.block_size);
        compare_holes(&object, want, on_disk);
    }
}

/// On disk, data is where bytes are; in memory, blocks of zeros may be data still.
fn compare_holes(object: &Object, want: &ModelObject, on_disk: bool) {
    let size = want.block_size as u64;
    let data = want.data();
    let mut found = vec![false; data.len()];
    let mut at = 0;
    while let Some(start) = object.next_data(at).unwrap() {
        let end = object.next_hole(start).unwrap();
        assert!(start >= at && end > start && (start | end).is_multiple_of(512), "{start} {end}");
        for blkid in start / size..end / size {
            match found.get_mut(blkid as usize) {
                Some(place) => *place = true,
                None => assert!(!on_disk || object.block(blkid).unwrap().is_some()),
            }
        }
        at = end;
    }
    for (blkid, (found, data)) in found.iter().zip(&data).enumerate() {
        assert!(*found == *data || (!on_disk && *found), "{object:?} block {blkid}: found {found}, wanted {data}");
    }
}

fn run(seed: u64, rounds: usize) {
    let pool = TestPool::new();
    let mut rng = Rng(seed);
    let first = pool.tx(4);
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Other, 0, &first).unwrap();
    drop(first);
    let (mut model, mut open, mut waiting) = (Model::new(), 4u64, Vec::new());
    for _ in 0..rounds {
        let tx = pool.tx(open);
        for _ in 0..1 + rng.below(40) {
            change(&mut rng, &os, &tx, &mut model);
        }
        drop(tx);
        if rng.below(3) == 0 {
            compare(&os, &model, false);
        }
        waiting.push((open, model.clone()));
        open += 1;
        // up to three txgs are open at a time
        while waiting.len() > 2 || (!waiting.is_empty() && rng.below(2) == 0) {
            let (txg, then) = waiting.remove(0);
            let bp = pool.sync(&os, txg);
            assert!(!os.is_dirty(base::Txg(txg)));
            let there = pool.reopen(&bp);
            compare(&there, &then, true);
            pool.ledger.check(&there);
            if waiting.is_empty() {
                assert_eq!(pool.holds.dirty.load(Ordering::SeqCst), 0, "dirty bytes in the end");
                os.evict_clean();
            }
        }
    }
    compare(&os, &model, false);
    assert_eq!(pool.holds.places.load(Ordering::SeqCst), 0);
}

#[test]
fn what_a_txg_left_is_on_disk() {
    for seed in [1, 77, 0x1234_5678] {
        run(seed, 14);
    }
}

#[test]
#[ignore = "long"]
fn what_many_txgs_left_is_on_disk() {
    for seed in 100..140 {
        run(seed, 120);
    }
}
