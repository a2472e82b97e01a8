//! A log record may free more than a txg can hold: OpenZFS logs a discard of a whole volume as one.
#![allow(clippy::unwrap_used, dead_code)]

mod power;

use base::{ObjectId, tunable};
use ondisk::zil::{Record, TxType};
use pool::Spa;
use power::{ROOT, Rig, bytes};
use std::sync::Arc;
use zil::write::{Itx, ItxData};
use zpl::Kind;
use zpl::live::{NewFile, Volume, Zfs};

const BLOCK: u64 = 512;
/// Maximum bytes freed in one transaction: 256 blocks of 1024 pointers.
const PIECE: u64 = BLOCK << 18;
const PIECES: u64 = 3;
/// Bytes of data in each; freeing them takes a txg more memory than may be dirty.
const DATA: usize = 2 << 20;

/// Logs that the `length` bytes from `offset` on were freed, all at once.
fn log(spa: &Arc<Spa>, dataset: &str, (foid, offset, length): (ObjectId, u64, u64)) {
    let objset = spa.objset(&spa.view().unwrap().dataset(dataset).unwrap()).unwrap();
    let record = Record::Truncate { foid, offset, length }.encode(TxType::Truncate);
    let zil = spa.zil(&objset);
    zil.assign(&spa.tx(1 << 10).unwrap(), Itx { record, object: Some(foid), sync: true, data: ItxData::InRecord });
    zil.commit(None).unwrap();
}

/// Returns the number of txgs since `from` that freed much.
fn busy_txgs(spa: &Arc<Spa>, from: base::Txg) -> usize {
    let history = spa.txgs().history();
    println!("{:?}", history.iter().map(|record| (record.txg, record.dirty)).collect::<Vec<_>>());
    history.iter().filter(|record| record.txg > from.0 && record.dirty > DATA as u64 / 4).count()
}

#[test]
fn what_one_record_frees_is_freed_over_many_txgs() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[("recordsize", BLOCK)], false);
    let file = zfs.create(&ROOT, zfs.fs().root(), b"long", &NewFile::new(Kind::File, 0o644)).unwrap().0;
    rig.volume("t/v", PIECES * PIECE, BLOCK);
    let volume = Volume::open(&rig.spa, "t/v").unwrap();
    for n in 0..PIECES {
        let data = bytes(DATA, n);
        zfs.write(&ROOT, file, n * PIECE, &data).unwrap();
        volume.write(n * PIECE, &data).unwrap();
    }
    rig.spa.sync().unwrap();
    // the log chains begin
    zfs.write(&ROOT, file, 0, &bytes(DATA, 0)[..100]).unwrap();
    zfs.fsync(file).unwrap();
    volume.write(0, &bytes(DATA, 0)[..100]).unwrap();
    volume.flush().unwrap();
    log(&rig.spa, "t/f", (file, 700, 0));
    log(&rig.spa, "t/v", (ObjectId(1), 700, PIECES * PIECE - 700));

    let after = rig.after_cut(&[], false);
    let spa = after.spa.as_ref().unwrap();
    tunable::ZFS_DIRTY_DATA_MAX.set(1 << 20);
    let begun = spa.txgs().synced();
    let found = Zfs::open(spa, "t/f").unwrap();
    spa.sync().unwrap();
    assert_eq!(found.getattr(file).unwrap().size, 700);
    assert!(busy_txgs(spa, begun) >= PIECES as usize, "a file");
    drop(found);

    let begun = spa.txgs().synced();
    let found = Volume::open(spa, "t/v").unwrap();
    spa.sync().unwrap();
    assert!(busy_txgs(spa, begun) >= PIECES as usize, "a volume");
    let mut read = vec![1; DATA];
    for n in 0..PIECES {
        found.read(n * PIECE, &mut read).unwrap();
        let kept = if n == 0 { 700 } else { 0 };
        assert!(read[..kept] == bytes(DATA, n)[..kept] && read[kept..].iter().all(|byte| *byte == 0), "piece {n}");
    }
    drop(found);
    after.close();
}

/// OpenZFS logs a zeroed range that ends beyond the file as one TRUNCATE, and its replay moves the end.
#[test]
fn a_hole_that_ends_behind_the_file_moves_its_end() {
    let rig = Rig::new(&["/a"]);
    let zfs = rig.file_system("t/f", &[("recordsize", BLOCK)], false);
    let new = |name: &[u8]| {
        let id = zfs.create(&ROOT, zfs.fs().root(), name, &NewFile::new(Kind::File, 0o644)).unwrap().0;
        zfs.write(&ROOT, id, 0, &bytes(5000, 1)).unwrap();
        id
    };
    let (across, at_end, behind, within) = (new(b"across"), new(b"at end"), new(b"behind"), new(b"within"));
    rig.spa.sync().unwrap();
    // a log chain begins
    zfs.write(&ROOT, across, 0, &bytes(5000, 1)[..100]).unwrap();
    zfs.fsync(across).unwrap();
    let holes = [(across, 700, 9000), (at_end, 5000, 10), (behind, 6000, 1), (within, 700, 1000)];
    for hole in holes {
        log(&rig.spa, "t/f", hole);
    }

    let after = rig.after_cut(&[], false);
    let found = after.open("t/f");
    for (id, kept, size) in [(across, 700, 9700), (at_end, 5000, 5010), (behind, 5000, 6001), (within, 700, 5000)] {
        assert_eq!(found.getattr(id).unwrap().size, size);
        let mut read = vec![1; 20000];
        assert_eq!(found.read(id, 0, &mut read).unwrap(), size as usize);
        let cut = if id == within { 1700 } else { size as usize };
        assert!(read[..kept] == bytes(5000, 1)[..kept] && read[kept..cut].iter().all(|byte| *byte == 0), "{id}");
        assert!(id != within || read[1700..5000] == bytes(5000, 1)[1700..]);
    }
    drop(found);
    after.close();
}
