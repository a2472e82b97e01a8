//! Scrubs: what is wrong on one side of a mirror or in a column of a raidz is made right, and what is lost is listed.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::Env;
use dmu::NewObject;
use ondisk::ObjectType;
use ondisk::scan::ScanState;
use pool::{CreateOptions, Hooks, ImportOptions, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zuse::Scrubbed;
use zuse::verify::{Options, verify};

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None }
}

fn make(dir: &Path, words: &[&str]) -> Arc<Spa> {
    let path = |w: &&str| if w.len() == 1 { dir.join(w).display().to_string() } else { (*w).to_string() };
    let spec = VdevSpec::parse(&words.iter().map(path).collect::<Vec<_>>()).unwrap();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        Some(Arc::new(FileDevice::create(Path::new(path), 64 << 20).unwrap()))
    };
    let options = LayoutOptions { ashift: Some(12), ..LayoutOptions::default() };
    let new = layout(&spec, &open, options, &hooks().env).unwrap();
    Spa::create(new, CreateOptions::new("t"), hooks()).unwrap()
}

fn import(dir: &Path) -> Arc<Spa> {
    let devices = std::fs::read_dir(dir).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        (path, device)
    });
    let found = vdev::import::scan_devices(devices.collect());
    Spa::import(found.first().unwrap(), &ImportOptions::default(), hooks()).unwrap()
}

fn fill(spa: &Arc<Spa>) {
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let tx = spa.tx(8 << 20).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 16 << 10, ..NewObject::default() };
    let object = objset.alloc_object(&tx, &new).unwrap();
    let mut data = vec![0; 8 << 20];
    spa.env().fill_random(&mut data);
    object.write(&tx, 0, &data).unwrap();
    drop(tx);
    spa.sync().unwrap();
}

/// Overwrites the middle of a device with what nobody wrote.
fn damage(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![0xa5; 12 << 20], 5 << 20).unwrap();
}

fn clean(spa: &Arc<Spa>) -> bool {
    let options = Options { dataset: None, threads: 1, heal: false };
    verify(&spa.view().unwrap(), &options, &|_, _| {}).unwrap().is_clean()
}

#[test]
fn what_redundancy_covers_is_repaired() {
    for words in [["mirror", "a", "b"].as_slice(), &["raidz", "a", "b", "c"], &["raidz2", "a", "b", "c", "d"]] {
        let dir = tempfile::tempdir().unwrap();
        let spa = make(dir.path(), words);
        fill(&spa);
        spa.export().unwrap();
        drop(spa);
        damage(&dir.path().join("b"));
        let spa = import(dir.path());
        assert!(!clean(&spa), "{words:?}");
        let scrubbed = zuse::scrub(&spa, 2, &AtomicBool::new(false), &|_, _| {}).unwrap();
        let Scrubbed::Whole(summary) = scrubbed else { panic!("stopped") };
        assert!(summary.tally.healed > 0 && summary.is_sound(), "{words:?}: {:?}", summary.tally);
        assert!(clean(&spa), "{words:?}");
        let scan = spa.view().unwrap().scan().unwrap().unwrap();
        assert_eq!((scan.state, scan.errors), (ScanState::Finished, 0));
        assert!(scan.processed > 0);
        spa.export().unwrap();
    }
}

#[test]
fn what_is_lost_is_listed_and_a_pause_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), &["a"]);
    fill(&spa);
    spa.export().unwrap();
    drop(spa);
    damage(&dir.path().join("a"));
    let spa = import(dir.path());
    assert!(matches!(zuse::scrub(&spa, 1, &AtomicBool::new(true), &|_, _| {}).unwrap(), Scrubbed::Stopped));
    assert_ne!(spa.view().unwrap().scan().unwrap().unwrap().flags, 0);
    zuse::scrub(&spa, 1, &AtomicBool::new(false), &|_, _| {}).unwrap();
    let view = spa.view().unwrap();
    assert!(view.scan().unwrap().unwrap().errors > 0);
    assert!(!view.errlog().unwrap().is_empty());
    spa.export().unwrap();
}
