//! Lists and the history of a MOS in memory.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use base::Txg;
use dmu::{NewObject, NewZap, Objset, Tx, Zap};
use nvlist::NvList;
use ondisk::ObjsetType;
use ondisk::bpobj::{BpobjPhys, BptreePhys};
use ondisk::history::HistoryPhys;
use ondisk::spacemap::SpaceMapHeader;
use space::MapGeometry;
use vdev::{MemoryDevice, VdevTree};

use super::*;
use crate::spa::bpobj::bptree_entries;
use crate::spa::history;
use crate::spa::metaslab::spacemap::SpaceMap;

/// Bytes of the device.
const SIZE: u64 = 64 << 20;

pub(crate) fn mos() -> (Mos, Tx) {
    mos_of(SIZE - (5 << 20))
}

/// A MOS in a pool that claims to have `asize` bytes.
fn mos_of(asize: u64) -> (Mos, Tx) {
    let tree = VdevTree::of_one(Arc::new(MemoryDevice::writable(SIZE)), asize).unwrap();
    let zio = Arc::new(zio::Zio::new(Arc::new(tree), 8 << 20));
    let tx = Tx::syncing(Txg(10));
    let objset = Objset::create(zio, ObjectId::MOS, ObjsetType::Meta, 0, &tx).unwrap();
    let directory =
        NewZap { id: Some(ObjectId::POOL_DIRECTORY), object_type: ObjectType::OBJECT_DIRECTORY, ..NewZap::default() };
    Zap::create_with(&tx, &objset, &directory).unwrap();
    (Mos::open(objset).unwrap(), tx)
}

/// A pointer to `sectors` of 512 bytes, born in `txg`.
pub(crate) fn pointer(txg: u64, sectors: u64) -> BlkPtr {
    let mut bp = BlkPtr::HOLE;
    let dva = ondisk::Dva::new(0, txg << 20, sectors << 9, false);
    (bp.words[0], bp.words[1]) = (dva.word0, dva.word1);
    bp.words[6] = (2 * sectors - 1) | (sectors - 1) << 16 | 2 << 32 | 7 << 40 | 19 << 48 | 1 << 63;
    (bp.words[10], bp.words[11], bp.words[12]) = (txg, 1, 77);
    bp
}

pub(crate) fn space_of(blocks: &[BlkPtr]) -> Space {
    let n: u64 = blocks.iter().map(|bp| bp.psize()).sum();
    Space { used: n, comp: n, uncomp: 2 * n }
}

pub(crate) fn all(list: &Bpobj) -> Vec<u64> {
    let mut births = Vec::new();
    list.for_each(&mut |bp| {
        births.push(bp.birth().0);
        Ok(())
    })
    .unwrap();
    births.sort_unstable();
    births
}

#[test]
fn lists_are_joined_and_taken_apart() {
    let (mos, tx) = mos();
    let blocks: Vec<BlkPtr> = (1..=5000).map(|n| pointer(n, 1 + n % 3)).collect();
    let open = |id| Bpobj::open(&mos, id).unwrap();
    let new = || open(Bpobj::create(&mos, &tx, LIST_BLOCK).unwrap());
    let (big, small, top) = (new(), new(), new());
    big.append_many(&tx, &blocks[..4000]).unwrap();
    blocks[4000..4900].iter().for_each(|bp| small.append_many(&tx, &[*bp]).unwrap());
    top.append_many(&tx, &blocks[4900..]).unwrap();
    assert_eq!((open(big.id()).space(), open(big.id()).phys().num_blkptrs), (space_of(&blocks[..4000]), 4000));
    // one that is short is copied, one that is long hangs below
    top.append_lists(&tx, &[small.id(), big.id(), new().id()]).unwrap();
    let now = open(top.id());
    assert_eq!((now.phys().num_blkptrs, now.phys().num_subobjs), (1000, 1));
    assert_eq!((now.space(), now.object.bonus().len()), (space_of(&blocks), BpobjPhys::SIZE_V2));
    assert!(all(&now).into_iter().eq(1..=5000));
    assert!(mos.object(small.id()).is_err() && mos.object(big.id()).is_ok());
    let mut taken = Vec::new();
    for left in [4990u64, 3500, 100, 0] {
        let most = 5000 - taken.len() as u64 - left;
        let n = top.take(&tx, most, &mut |bp, _| {
            taken.push(bp.birth().0);
            Ok(())
        });
        assert_eq!(n.unwrap(), most);
        let rest: Vec<BlkPtr> = blocks.iter().filter(|bp| !taken.contains(&bp.birth().0)).copied().collect();
        assert_eq!(open(top.id()).space(), space_of(&rest));
        assert_eq!(all(&open(top.id())).len() as u64, left);
    }
    taken.sort_unstable();
    assert!(taken.into_iter().eq(1..=5000) && mos.object(big.id()).is_err());
    assert!(open(top.id()).is_empty() && open(top.id()).phys().subobjs == ObjectId(0));
    top.append_many(&tx, &blocks[..3]).unwrap();
    top.clear(&tx).unwrap();
    assert_eq!((open(top.id()).space(), all(&open(top.id()))), (Space::default(), vec![]));
}

#[test]
fn the_history_keeps_its_first_record_and_the_newest() {
    let (mos, tx) = mos();
    let id = history::create(&mos, &tx).unwrap();
    let record = |n: u64| {
        let mut list = NvList::new();
        list.insert("history command", format!("command number {n} {}", "x".repeat((n % 90) as usize)));
        list.insert("history time", n);
        list
    };
    let mut lost = 0;
    for n in 0..3000 {
        history::append(&mos, &tx, &record(n)).unwrap();
        if n % 500 == 499 {
            let (records, now_lost) = history::read(&mos, id).unwrap();
            let times: Vec<u64> = records.iter().map(|record| record.time().unwrap()).collect();
            assert_eq!(times[0], 0);
            assert!(times[1..].iter().copied().eq(now_lost + 1..=n));
            lost = now_lost;
        }
    }
    assert!(lost > 0);
}

/// A pool whose history has gone round before its first command (ztest's have none): what that command would keep for ever leaves no ring.
#[test]
fn a_history_that_went_round_without_commands_goes_on() {
    let (mos, tx) = mos();
    let id = history::create(&mos, &tx).unwrap();
    let record = |name: &str, n: u64| {
        let mut list = NvList::new();
        list.insert(name, format!("number {n} {}", "x".repeat(100)));
        list.insert("history time", n);
        list
    };
    let phys = || HistoryPhys::decode(mos.object(id).unwrap().bonus(), OURS).unwrap();
    let times = || -> Vec<u64> {
        let records = history::read(&mos, id).unwrap().0;
        records.iter().map(|record| record.time().unwrap()).collect()
    };
    for n in 0..1500 {
        history::append(&mos, &tx, &record("history internal str", n)).unwrap();
    }
    assert!(phys().eof > phys().phys_max_off && phys().records_lost > 0);
    for n in 1500..3000 {
        history::append(&mos, &tx, &record("history command", n)).unwrap();
        assert_eq!(phys().pool_create_len, 0);
    }
    let last = times();
    assert!(last.len() > 100 && last.iter().copied().eq(3000 - last.len() as u64..3000), "{last:?}");
    // one that was damaged so goes on with its next record
    let damaged = HistoryPhys { pool_create_len: phys().eof, bof: phys().eof, ..phys() };
    mos.object(id).unwrap().set_bonus(&tx, &damaged.encode(OURS)).unwrap();
    assert!(times().is_empty());
    for n in 0..1500 {
        history::append(&mos, &tx, &record("history command", n)).unwrap();
    }
    let last = times();
    assert!(last.len() > 100 && last.iter().copied().eq(1500 - last.len() as u64..1500), "{last:?}");
}

#[test]
fn lengths_that_no_device_could_hold_are_refused_at_once() {
    const FAR: u64 = 1 << 52;
    let (mos, tx) = mos_of(1 << 60);
    // as long as it says that it is, and empty but for its end
    let sparse = |object_type, bonus: &[u8]| {
        let new = NewObject { object_type, block_size: LIST_BLOCK, bonus_type: object_type, ..NewObject::default() };
        let object = mos.objset.alloc_object(&tx, &NewObject { bonus_len: bonus.len(), ..new }).unwrap();
        object.set_bonus(&tx, bonus).unwrap();
        object.write(&tx, FAR, &[1]).unwrap();
        object.id()
    };
    let refused = |id: ObjectId, read: Result<(), Error>, claim: u64| {
        let said = read.unwrap_err().to_string();
        assert!(said.contains(&format!("object {id}")) && said.contains(&claim.to_string()), "{said}");
    };

    let phys = BpobjPhys { num_blkptrs: FAR / 128, ..BpobjPhys::default() };
    let list = sparse(ObjectType::BPOBJ, &phys.encode(OURS, BpobjPhys::SIZE_V2));
    refused(list, Bpobj::open(&mos, list).unwrap().for_each(&mut |_| Ok(())), FAR / 128);

    let phys = BptreePhys { begin: 0, end: 1 << 20, bytes: 0, comp: 0, uncomp: 0 };
    let trees = sparse(ObjectType::UINT64_OTHER, &phys.encode(OURS));
    refused(trees, bptree_entries(&mos, trees).map(drop), 1 << 20);

    let phys = HistoryPhys { phys_max_off: FAR, eof: FAR, ..HistoryPhys::default() };
    let ring = sparse(ObjectType::SPA_HISTORY, &phys.encode(OURS));
    refused(ring, history::read(&mos, ring).map(drop), FAR);

    let header = SpaceMapHeader { length: SIZE + 8, histogram: Some([0; 32]), ..SpaceMapHeader::default() };
    let map = sparse(ObjectType::SPACE_MAP, &header.encode(OURS));
    refused(map, SpaceMap::open(&mos, map).unwrap().load(MapGeometry::LOG).map(drop), SIZE + 8);
}
