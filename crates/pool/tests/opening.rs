//! Opening pools: which state, with which devices; and names that are not there.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Output;

use base::{Errno, ObjectId, Txg};
use common::{open, truth_options};
use oracle::fixtures;
use oracle::said::Call;
use pool::{Entry, Error, ListOptions, OpenOptions, Pool};

#[test]
fn a_pool_with_all_its_devices_has_the_guid_sum_of_its_uberblock() {
    for fixture in fixtures::names() {
        let pool = open(&fixtures::unpack(&fixture).dir, &truth_options());
        let info = pool.load_info();
        assert!(!info.guid_sum_differs, "{fixture}");
        assert!(info.skipped.is_empty(), "{fixture}: {:?}", info.skipped);
        assert!(info.missing_tops.is_empty() && !info.rewound, "{fixture}");
    }
}

/// Names and numbers of the datasets that `zdb -d` lists, in the order of names.
fn datasets_of_zdb(out: &Output) -> String {
    let text = String::from_utf8_lossy(&out.stdout);
    let lines = text.lines().filter_map(|l| l.strip_prefix("Dataset "));
    let lines = lines.filter(|l| !l.starts_with("mos ") && !l.contains('$'));
    let mut names: Vec<String> = lines
        .map(|l| {
            let id = l.split(" ID ").nth(1).unwrap().split(',').next().unwrap();
            format!("{} {id}\n", l.split_whitespace().next().unwrap())
        })
        .collect();
    names.sort();
    names.concat()
}

#[test]
fn a_rewind_opens_the_state_that_zdb_opens() {
    let unpacked = fixtures::unpack("snaps-a");
    let newest = open(&unpacked.dir, &truth_options());
    let device = newest.tree().leaves()[0].device().unwrap();
    let states = vdev::label::read_uberblocks(device.as_ref(), newest.tree().tops()[0].ashift().into());
    let mut compared = 0;
    for state in states.iter().filter(|ub| ub.txg < newest.uberblock().txg).take(12) {
        let options = OpenOptions { txg: Some(state.txg), ..truth_options() };
        let candidates = vdev::import::scan(std::slice::from_ref(&unpacked.dir)).unwrap();
        let Ok(pool) = Pool::open(&candidates[0], &options) else { continue };
        assert!(pool.load_info().rewound);
        assert!(pool.uberblock().txg <= state.txg);
        // blocks of old states may have been overwritten since
        if pool.uberblock().txg != state.txg {
            continue;
        }
        let all: Vec<Entry> = pool.list(pool.name(), &ListOptions { bookmarks: false, ..ListOptions::ALL }).unwrap();
        let mut names: Vec<String> =
            all.iter().filter_map(Entry::dataset).map(|ds| format!("{} {}\n", ds.name(), ds.id())).collect();
        names.sort();
        let ours = names.concat();
        let (dir, txg) = (unpacked.dir.to_str().unwrap(), state.txg.to_string());
        let args = ["-e", "-p", dir, "-t", &txg, "-d", pool.name()];
        let call = Call { fixture: "snaps-a", images: &unpacked, args: &args };
        if let Some(theirs) = call.part_differs("datasets", &ours, datasets_of_zdb) {
            assert_eq!(ours, theirs, "txg {}", state.txg);
        }
        compared += 1;
    }
    println!("{compared} states compared");
    assert!(compared > 0);
}

#[test]
fn a_txg_before_all_states_is_an_error() {
    let unpacked = fixtures::unpack("basic-a");
    let candidates = vdev::import::scan(std::slice::from_ref(&unpacked.dir)).unwrap();
    let options = OpenOptions { txg: Some(Txg(1)), ..truth_options() };
    assert!(matches!(Pool::open(&candidates[0], &options), Err(Error::NoUberblock(_))));
    let options = OpenOptions { checkpoint: true, ..truth_options() };
    assert!(matches!(Pool::open(&candidates[0], &options), Err(Error::NoCheckpoint)));
}

#[test]
fn a_missing_log_device_can_be_done_without() {
    let unpacked = fixtures::unpack_private("zilslog-a");
    std::fs::remove_file(unpacked.dir.join("log0.img")).unwrap();
    let candidates = vdev::import::scan(std::slice::from_ref(&unpacked.dir)).unwrap();
    assert!(matches!(Pool::open(&candidates[0], &truth_options()), Err(Error::MissingVdevs(_))));
    let options = OpenOptions { missing_log_ok: true, ..truth_options() };
    let pool = Pool::open(&candidates[0], &options).unwrap();
    assert_eq!(pool.load_info().missing_tops.len(), 1);
    assert!(!pool.list(pool.name(), &ListOptions::ALL).unwrap().is_empty());
}

#[test]
fn a_missing_top_level_vdev_is_named_unless_it_is_tolerated() {
    let unpacked = fixtures::unpack_private("stripe-a");
    std::fs::remove_file(unpacked.dir.join("disk1.img")).unwrap();
    let candidates = vdev::import::scan(std::slice::from_ref(&unpacked.dir)).unwrap();
    assert!(matches!(Pool::open(&candidates[0], &truth_options()), Err(Error::MissingVdevs(v)) if v.len() == 1));
    let options = OpenOptions { missing_tops_ok: true, ..truth_options() };
    // metadata has copies on other vdevs
    let pool = Pool::open(&candidates[0], &options).unwrap();
    assert_eq!(pool.load_info().missing_tops, vec![1]);
    assert!(pool.list(pool.name(), &ListOptions::ALL).unwrap().len() > 3);
}

#[test]
fn an_older_state_is_taken_if_the_newest_leads_nowhere() {
    use std::os::unix::fs::FileExt;
    let unpacked = fixtures::unpack_private("basic-a");
    let pool = open(&unpacked.dir, &truth_options());
    let newest = pool.uberblock().clone();
    // all copies of the newest MOS go
    let file = std::fs::OpenOptions::new().write(true).open(unpacked.dir.join("disk0.img")).unwrap();
    for dva in newest.rootbp.dvas() {
        file.write_all_at(&[0xa5; 512], dva.offset() + ondisk::VDEV_LABEL_START_SIZE).unwrap();
    }
    drop(pool);
    let pool = open(&unpacked.dir, &truth_options());
    assert!(pool.uberblock().txg < newest.txg);
    assert_eq!(pool.load_info().skipped.first().map(|(txg, _)| *txg), Some(newest.txg));
}

#[test]
fn a_stale_mirror_side_is_known_to_have_missed_txgs() {
    let pool = open(&fixtures::unpack("resilver-a").dir, &truth_options());
    let newest = pool.uberblock().txg;
    let stale = pool.tree().leaves().iter().filter(|leaf| (1..newest.0).any(|txg| leaf.misses(Txg(txg)))).count();
    assert_eq!(stale, 1);
}

#[test]
fn what_is_not_there_is_said_so() {
    let pool = open(&fixtures::unpack("snaps-a").dir, &truth_options());
    let name = pool.name().to_string();
    for missing in ["nosuchpool", "/no", "/fs/no", "@no", "/clone2@no", "/clone2@", "/"] {
        let full = if missing.starts_with("no") { missing.to_string() } else { format!("{name}{missing}") };
        let err = pool.dataset(&full).unwrap_err();
        assert!(err.is_not_found() && err.errno() == Errno::ENOENT, "{full}: {err}");
    }
    assert_eq!(pool.bookmark(&format!("{name}/clone2#no")).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(pool.dataset(&format!("{name}#x")).unwrap_err().errno(), Errno::EINVAL);
    let older = pool.dataset(&format!("{name}/clone2@one")).unwrap();
    let newer = pool.dataset(&format!("{name}/clone2@three")).unwrap();
    assert!(newer.written_since(&older).is_ok());
    assert_eq!(older.written_since(&newer).unwrap_err().errno(), Errno::EXDEV);
    assert!(pool.dataset_by_id(ObjectId(1)).is_err() && pool.dataset_by_id(ObjectId(1 << 40)).is_err());
    for entry in pool.list(&name, &ListOptions::ALL).unwrap() {
        if let Some(ds) = entry.dataset() {
            assert_eq!(pool.dataset_by_id(ds.id()).unwrap().name(), ds.name());
            assert_eq!(pool.dataset_by_guid(ds.guid()).unwrap().unwrap().id(), ds.id());
        }
    }
}
