//! Equal blocks are written once: the pipeline against a dedup table and a table of clones in memory.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use base::{Env, Txg};
use codec::{ChecksumKind, Compress};
use common::writable::{Top, Writable};
use common::{BM, key, text};
use ondisk::BlkPtr;
use ondisk::ddt::DdtKey;
use zio::{Buf, CloneTable, DedupLookup, DedupTable, Error, Payload, TableError, WriteCx, WriteProps, WriteReq};

const CX: WriteCx = WriteCx { txg: Txg(100), pass: 1 };

/// Pointer and references by content.
#[derive(Default)]
struct Table {
    entries: Mutex<HashMap<DdtKey, (BlkPtr, u64)>>,
}

impl DedupTable for Table {
    fn load(&self, _bp: &BlkPtr) -> Result<(), TableError> {
        Ok(())
    }

    fn find(&self, txg: Txg, bp: &BlkPtr, copies: u8) -> Result<DedupLookup, TableError> {
        let entries = self.entries.lock().unwrap();
        let Some((known, _)) = entries.get(&DdtKey::of(bp)) else { return Ok(DedupLookup::Missing) };
        if known.dvas().count() < usize::from(copies) {
            return Ok(DedupLookup::Ordinary);
        }
        let mut hit = *bp;
        let most = if bp.is_encrypted() { 4 } else { 6 };
        hit.words[..most].copy_from_slice(&known.words[..most]);
        hit.words[10] = txg.0;
        hit.words[9] = known.birth_physical().0;
        Ok(DedupLookup::Hit(hit))
    }

    fn add_ref(&self, _txg: Txg, bp: &BlkPtr) {
        self.entries.lock().unwrap().get_mut(&DdtKey::of(bp)).unwrap().1 += 1;
    }

    fn insert(&self, _txg: Txg, bp: &BlkPtr) {
        assert!(self.entries.lock().unwrap().insert(DdtKey::of(bp), (*bp, 1)).is_none());
    }

    fn forget(&self, _txg: Txg, bp: &BlkPtr) {
        assert_eq!(self.entries.lock().unwrap().remove(&DdtKey::of(bp)).unwrap().1, 1);
    }

    fn release(&self, _txg: Txg, bp: &BlkPtr) -> Result<bool, TableError> {
        let mut entries = self.entries.lock().unwrap();
        let Some((_, refs)) = entries.get_mut(&DdtKey::of(bp)) else { return Ok(false) };
        *refs -= 1;
        Ok(true)
    }
}

fn pool() -> (Writable, Arc<Table>) {
    let pool = Writable::new(&[Top::Mirror(2), Top::Mirror(1)], 9, 24 << 20);
    let table = Arc::new(Table::default());
    pool.zio.set_dedup(table.clone());
    (pool, table)
}

fn req(data: Vec<u8>, props: &WriteProps) -> WriteReq {
    let payload = Payload::Logical(Buf::from(data));
    WriteReq { bm: BM, props: props.clone(), payload, orig: BlkPtr::HOLE, fill: 1 }
}

fn noise(n: usize, seed: u64) -> Vec<u8> {
    Env::noise(seed, n)
}

#[test]
fn equal_blocks_share_their_place() {
    for (checksum, verify, encrypt) in [
        (ChecksumKind::Sha256, false, false),
        (ChecksumKind::Blake3, true, false),
        (ChecksumKind::Edonr, true, false),
        (ChecksumKind::Sha512, true, true),
    ] {
        let (pool, table) = pool();
        pool.zio.keys().insert(BM.objset, Arc::new(key()));
        let props = WriteProps {
            checksum,
            dedup: Some(verify),
            encrypt,
            compress: Compress::Lz4,
            copies: 2,
            ..WriteProps::default()
        };
        // equal ones in one batch, one behind the other and far apart, then in another txg
        let data = |n: u64| if n.is_multiple_of(2) { noise(32 << 10, n % 10) } else { text(16 << 10) };
        let bps = pool.zio.write(&CX, (0..500).map(|n| req(data(n), &props)).collect()).unwrap();
        let later = WriteCx { txg: Txg(101), pass: 1 };
        let again = pool.zio.write(&later, (0..20).map(|n| req(data(n), &props)).collect()).unwrap();
        assert_eq!(table.entries.lock().unwrap().len(), 6);
        assert_eq!(table.entries.lock().unwrap().values().map(|e| e.1).sum::<u64>(), 520);
        assert_eq!(pool.allocated(), table.entries.lock().unwrap().values().map(|e| e.0.asize()).sum::<u64>());
        for (n, bp) in bps.iter().enumerate() {
            assert!(bp.is_dedup());
            assert_eq!(&pool.zio.read(bp, &BM).unwrap()[..], data(n as u64));
        }
        for (n, bp) in again.iter().enumerate() {
            assert_eq!((bp.birth_logical(), bp.birth_physical()), (Txg(101), Txg(100)));
            assert_eq!((bp.dva(0), bp.dva(1)), (bps[n].dva(0), bps[n].dva(1)));
            pool.zio.arc().clear();
            assert_eq!(&pool.zio.read(bp, &BM).unwrap()[..], data(n as u64));
        }
        // the table has the last word on freeing
        let before = pool.allocated();
        again.iter().for_each(|bp| pool.zio.free(Txg(102), bp).unwrap());
        assert_eq!(pool.allocated(), before);
        assert_eq!(table.entries.lock().unwrap().values().map(|e| e.1).sum::<u64>(), 500);
        // one that the table does not know is an ordinary block
        table.entries.lock().unwrap().clear();
        pool.zio.free(Txg(102), &bps[0]).unwrap();
        assert_eq!(pool.allocated(), before - bps[0].asize());
    }
}

#[test]
fn a_block_that_only_seems_equal_is_written() {
    let (pool, table) = pool();
    let props = |verify| WriteProps { checksum: ChecksumKind::Sha256, dedup: Some(verify), ..WriteProps::default() };
    let first = pool.zio.write(&CX, vec![req(text(8192), &props(true))]).unwrap()[0];
    // the table lies: the same content is said to be elsewhere
    let other = pool.zio.write(&CX, vec![req(noise(8192, 1), &props(true))]).unwrap()[0];
    table.entries.lock().unwrap().get_mut(&DdtKey::of(&first)).unwrap().0.words[..6].copy_from_slice(&other.words[..6]);
    let trusting = pool.zio.write(&CX, vec![req(text(8192), &props(false))]).unwrap()[0];
    assert_eq!(trusting.dva(0), other.dva(0));
    let careful = pool.zio.write(&CX, vec![req(text(8192), &props(true))]).unwrap()[0];
    assert!(!careful.is_dedup());
    assert_eq!(&pool.zio.read(&careful, &BM).unwrap()[..], text(8192));
    // more copies than there are: an ordinary block
    let more = WriteProps { copies: 2, ..props(false) };
    let bp = pool.zio.write(&CX, vec![req(noise(8192, 1), &more)]).unwrap()[0];
    assert!(!bp.is_dedup() && bp.dvas().count() == 2);
}

#[test]
fn a_failed_batch_leaves_no_references() {
    let (pool, table) = pool();
    let props = WriteProps { checksum: ChecksumKind::Sha256, dedup: Some(false), ..WriteProps::default() };
    let kept = pool.zio.write(&CX, vec![req(noise(64 << 10, 0), &props)]).unwrap();
    let before = pool.allocated();
    pool.space.left.store(4 << 20, Ordering::Relaxed);
    let batch = (0..400).map(|n| req(noise(64 << 10, n % 150), &props)).collect();
    assert!(matches!(pool.zio.write(&CX, batch), Err(Error::NoSpace { .. })));
    assert_eq!(pool.allocated(), before);
    let entries = table.entries.lock().unwrap();
    assert_eq!((entries.len(), entries[&DdtKey::of(&kept[0])].1), (1, 1));
}

struct Clones(Mutex<HashMap<u64, u64>>);

impl CloneTable for Clones {
    fn add(&self, _txg: Txg, bp: &BlkPtr) {
        *self.0.lock().unwrap().entry(bp.dva(0).offset()).or_default() += 1;
    }

    fn release(&self, _txg: Txg, bp: &BlkPtr) -> Result<bool, TableError> {
        let mut counts = self.0.lock().unwrap();
        match counts.get_mut(&bp.dva(0).offset()).filter(|n| **n > 0) {
            Some(n) => {
                *n -= 1;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

#[test]
fn a_cloned_block_is_freed_with_its_last_reference() {
    let (pool, _) = pool();
    let bp = pool.zio.write(&CX, vec![req(text(8192), &WriteProps::default())]).unwrap()[0];
    pool.zio.set_clones(Arc::new(Clones(Mutex::default())));
    let before = pool.allocated();
    for _ in 0..2 {
        let clone = WriteReq { payload: Payload::Clone(bp), ..req(Vec::new(), &WriteProps::default()) };
        assert_eq!(pool.zio.write(&CX, vec![clone]).unwrap()[0].dva(0), bp.dva(0));
    }
    for _ in 0..2 {
        pool.zio.free(Txg(101), &bp).unwrap();
        assert_eq!(pool.allocated(), before);
    }
    pool.zio.free(Txg(101), &bp).unwrap();
    assert_eq!(pool.allocated(), 0);
}
