//! Real datasets, written down again as a machine of the other byte order would have: they read the same.

use std::sync::Arc;

use base::{Endian, ObjectId, Txg};
use ondisk::zap::{LEAF_CHUNK_SIZE, ZBT_HEADER, ZBT_LEAF, ZBT_MICRO};
use ondisk::{BlkPtr, DnodePhys, ObjectType};
use vdev::VdevTree;
use zio::Zio;

use crate::sa::{Attr, SaTable};
use crate::testing::Disk;
use crate::{NoOwner, Object, Objset, SyncCx, Tx, WritePolicy, Zap};

fn mos(name: &str) -> Arc<Objset> {
    let images = oracle::fixtures::unpack(name);
    let candidate = vdev::import::scan(std::slice::from_ref(&images.dir)).unwrap().remove(0);
    let config = candidate.vdev_config().unwrap();
    let tree = VdevTree::open(&config, &|guid| candidate.device(guid).map(|found| found.device.clone())).unwrap();
    let ubs = vdev::label::read_uberblocks(&*candidate.devices[0].device, config.children[0].ashift);
    Objset::open(Arc::new(Zio::new(Arc::new(tree), 64 << 20)), ObjectId(0), &ubs[0].rootbp).unwrap()
}

fn datasets(mos: &Arc<Objset>) -> Vec<Arc<Objset>> {
    let of = |object: Object| {
        let bp = BlkPtr::decode(object.bonus().get(128..)?, object.endian()).ok()?;
        Objset::open(mos.zio().clone(), object.id(), &bp).ok()
    };
    mos.objects().flatten().filter(|o| o.phys().bonus_type == ObjectType::DSL_DATASET).filter_map(of).collect()
}

fn swap(block: &mut [u8], fields: &[(usize, usize)]) {
    for (at, width) in fields {
        block[*at..*at + *width].reverse();
    }
}

/// As OpenZFS's `zap_byteswap`.
fn swap_zap(block: &mut [u8]) {
    match u64::from_le_bytes(block[..8].try_into().unwrap()) {
        ZBT_MICRO => {
            swap(block, &[(0, 8), (8, 8), (16, 8)]);
            block[64..].chunks_exact_mut(64).for_each(|entry| swap(entry, &[(0, 8), (8, 4)]));
        }
        ZBT_LEAF => {
            swap(block, &[(0, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)]);
            let at = 48 + block.len() / 16;
            let (hash, chunks) = block.split_at_mut(at);
            hash[48..].chunks_exact_mut(2).for_each(<[u8]>::reverse);
            for chunk in chunks.chunks_exact_mut(LEAF_CHUNK_SIZE) {
                match chunk[0] {
                    252 => swap(chunk, &[(2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 8)]),
                    _ => swap(chunk, &[(22, 2)]),
                }
            }
        }
        // a header, or pointers
        kind => {
            assert!(kind == ZBT_HEADER || kind < 1 << 32);
            block.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        }
    }
}

/// The object as the other order has it.
fn rewrite(disk: &mut Disk, object: &Object) -> DnodePhys {
    let old = object.phys();
    let t = old.object_type;
    let mut cursor = object.cursor();
    let mut blocks = Vec::new();
    for blkid in 0..object.nblocks().min(300) {
        let block = cursor.block(blkid).unwrap().map(|(buf, _)| buf.into_vec());
        blocks.push(block.map(|mut block| {
            if t.is_zap() {
                swap_zap(&mut block);
            }
            block
        }));
    }
    let mut dn = disk.object(t, &blocks, 17, 1);
    (dn.bonus_type, dn.bonus, dn.extra_slots, dn.flags) =
        (old.bonus_type, old.bonus.clone(), old.extra_slots, old.flags);
    dn.datablkszsec = old.datablkszsec;
    if old.bonus_type == ObjectType::ZNODE {
        dn.bonus[..176].chunks_exact_mut(8).for_each(<[u8]>::reverse);
        swap(&mut dn.bonus, &[(176, 8), (184, 4), (188, 2), (190, 2)]);
    }
    if let Some(spill) = object.spill().unwrap() {
        dn.spill = Some(disk.write(&spill, ObjectType::SA, 0, 1));
    } else if old.spill.is_some() {
        dn.spill = Some(BlkPtr::HOLE);
    }
    dn
}

fn table(os: &Arc<Objset>) -> SaTable {
    let sa = Zap::open(os.object(ObjectId(1)).unwrap()).unwrap().lookup_u64("SA_ATTRS").unwrap();
    SaTable::load(os, ObjectId(sa.unwrap_or(0))).unwrap()
}

/// ZAP entries and files that read the same in both orders.
fn check(os: &Arc<Objset>) -> (usize, usize) {
    let mut disk = Disk::new(Endian::Big);
    let objects: Vec<Object> = os.objects().map(Result::unwrap).collect();
    let dnodes: Vec<_> = objects.iter().map(|object| (object.id(), rewrite(&mut disk, object))).collect();
    let root = disk.objset(&dnodes);
    let swapped = disk.open(&root);
    let tables = (table(os), table(&swapped));
    let (mut entries, mut files) = (0, 0);
    for (old, new) in objects.iter().zip(swapped.objects()) {
        let new = new.unwrap();
        assert_eq!((new.id(), new.endian()), (old.id(), Endian::Big));
        if old.phys().object_type.is_zap() {
            let (a, b) = (Zap::open(old.clone()).unwrap(), Zap::open(new.clone()).unwrap());
            let list = |zap: &Zap| zap.entries().unwrap().map(Result::unwrap).collect::<Vec<_>>();
            assert_eq!(list(&a), list(&b), "{old:?}");
            for entry in list(&a) {
                assert_eq!(b.lookup(&entry.name).unwrap(), Some(entry.value));
                entries += 1;
            }
        }
        if matches!(old.phys().bonus_type, ObjectType::SA | ObjectType::ZNODE) {
            let (a, b) = (tables.0.attrs(old).unwrap(), tables.1.attrs(&new).unwrap());
            for attr in Attr::ALL.iter().filter(|attr| **attr != Attr::ZnodeAcl) {
                assert_eq!(a.get(*attr), b.get(*attr), "{old:?} {attr:?}");
            }
            files += 1;
        }
    }
    (entries, files)
}

#[test]
fn a_dataset_of_the_other_byte_order_reads_the_same() {
    for name in ["names-a", "legacy-a", "posix-a"] {
        let mos = mos(name);
        let (mut entries, mut files) = (0, 0);
        for os in datasets(&mos) {
            if os.object(ObjectId(1)).is_ok_and(|o| o.phys().object_type == ObjectType::MASTER_NODE) {
                let found = check(&os);
                entries += found.0;
                files += found.1;
            }
        }
        assert!(entries > 300 && files > 300, "{name}: {entries} entries, {files} files");
    }
}

/// Bytes for what is written.
const MORE: usize = 64 << 20;

/// The same objects, whatever their order, but for the entry that was put into tables.
fn same(old: &Arc<Objset>, new: &Arc<Objset>) {
    let tables = (table(old), table(new));
    for (a, b) in old.objects().map(Result::unwrap).zip(new.objects().map(Result::unwrap)) {
        assert_eq!((a.id(), a.phys().object_type), (b.id(), b.phys().object_type));
        if a.phys().object_type.is_zap() {
            let list = |object: &Object| {
                let all = Zap::open(object.clone()).unwrap().entries().unwrap().map(Result::unwrap);
                let mut all: Vec<_> = all.filter(|entry| entry.name != LATER.as_bytes()).collect();
                all.sort_by(|a, b| a.name.cmp(&b.name));
                all
            };
            assert_eq!(list(&a), list(&b), "{a:?}");
            assert_eq!(Zap::open(b).unwrap().lookup_u64(LATER).unwrap(), Some(7));
        } else if matches!(a.phys().bonus_type, ObjectType::SA | ObjectType::ZNODE) {
            let (had, has) = (tables.0.attrs(&a).unwrap(), tables.1.attrs(&b).unwrap());
            for attr in Attr::ALL.iter().filter(|attr| **attr != Attr::ZnodeAcl) {
                assert_eq!(had.get(*attr), has.get(*attr), "{a:?} {attr:?}");
            }
        }
    }
}

const LATER: &str = "put in later";

/// Changed parts of a dataset of the other byte order are written in ours; the rest is read as it was, dnodes beside those that changed too.
#[test]
fn a_dataset_of_the_other_byte_order_is_written() {
    for name in ["names-a", "legacy-a"] {
        let mos = mos(name);
        let is_files =
            |os: &Arc<Objset>| os.object(ObjectId(1)).is_ok_and(|o| o.phys().object_type == ObjectType::MASTER_NODE);
        let (mut changed, mut sets) = (0, 0);
        for os in datasets(&mos).into_iter().filter(is_files).take(3) {
            let mut disk = Disk::new(Endian::Big);
            let objects = os.objects().map(Result::unwrap);
            let dnodes: Vec<_> = objects.map(|object| (object.id(), rewrite(&mut disk, &object))).collect();
            let root = disk.objset(&dnodes);
            let (zio, used) = disk.zio_to_write(MORE);
            zio.set_space(super::live::pool::space(used, used + MORE as u64));
            let live = Objset::open_writable(zio.clone(), ObjectId(5), &root).unwrap();
            let tx = Tx::syncing(Txg(100));
            for object in live.objects().map(Result::unwrap).filter(|object| object.phys().object_type.is_zap()) {
                let zap = Zap::open(live.object(object.id()).unwrap()).unwrap();
                zap.update_u64(&tx, LATER, 7).unwrap();
                changed += 1;
            }
            let policy = WritePolicy::default();
            let cx = SyncCx { txg: Txg(100), pass: 1, owner: &NoOwner, policy: &policy, used: None, late: false };
            let bp = live.sync(&cx).unwrap();
            assert_eq!(bp.endian(), Endian::Little);
            zio.arc().clear();
            let now = Objset::open(zio, ObjectId(5), &bp).unwrap();
            same(&os, &now);
            let ours = now.objects().map(Result::unwrap).filter(|object| object.phys().object_type.is_zap());
            assert!(ours.into_iter().all(|zap| zap.endian_of(0).unwrap() == Some(Endian::Little)));
            sets += 1;
        }
        assert!(changed > 20 && sets > 0, "{name}: {changed}");
    }
}
