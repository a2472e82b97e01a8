//! Scrubs: what is wrong on one side of a mirror or in a column of a raidz is made right, and what is lost is listed.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::{Env, ObjectId};
use dmu::NewObject;
use ondisk::ObjectType;
use ondisk::scan::{ScanFunc, ScanState};
use pool::check::Tally;
use pool::{CreateOptions, Hooks, ImportOptions, ScanEnd, ScrubRange, ScrubResult, Spa};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zio::{Bookmark, Buf, Payload};
use zuse::verify::{Options, verify};

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
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

fn judge(dir: &Path) {
    oracle::judge::no_leaks(dir, "t");
}

fn clean(spa: &Arc<Spa>) -> bool {
    let options = Options { dataset: None, threads: 1, expand: true };
    verify(&spa.view().unwrap(), &options, &|_, _| {}).unwrap().is_clean()
}

fn scrub(spa: &Arc<Spa>) -> Arc<Tally> {
    spa.scrub(ScrubRange::default()).unwrap();
    finish(spa)
}

/// The results of the scan that runs, at its end.
fn finish(spa: &Arc<Spa>) -> Arc<Tally> {
    let ScanEnd::Finished(tally) = spa.scan_wait(&mut |_| {}).unwrap() else { panic!("stopped") };
    tally
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
        let tally = scrub(&spa);
        assert!(tally.healed > 0 && tally.lost_blocks == 0, "{words:?}: {tally:?}");
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
    spa.scrub(ScrubRange::default()).unwrap();
    assert!(spa.scrub_pause().unwrap() && spa.scan_figures().is_none());
    let again = spa.scrub_pause().unwrap_err();
    assert_eq!(again.to_string(), "scrub is paused; use 'zpool scrub' to resume scrub");
    assert_eq!(again.errno(), base::Errno::EBUSY);
    assert!(matches!(spa.scan_wait(&mut |_| {}).unwrap(), ScanEnd::Stopped));
    assert_ne!(spa.view().unwrap().scan().unwrap().unwrap().flags, 0);
    scrub(&spa);
    let view = spa.view().unwrap();
    assert!(view.scan().unwrap().unwrap().errors > 0);
    assert!(!view.errlog().unwrap().is_empty());
    assert_eq!(view.error_scrub().unwrap(), None);
    spa.export().unwrap();
}

/// Blocks that are lost stay errors; those that were repaired, overwritten or freed do not.
#[test]
fn only_errors_are_scrubbed() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), &["a"]);
    let errors = |spa: &Arc<Spa>| spa.view().unwrap().errlog().unwrap();
    let again = |spa: &Arc<Spa>| spa.error_scrub().unwrap().then(|| finish(spa));
    fill(&spa);
    spa.snapshot(&["t@1".to_string()], &[]).unwrap();
    assert!(again(&spa).is_none(), "there are no errors");
    spa.export().unwrap();
    drop(spa);
    let whole = std::fs::read(dir.path().join("a")).unwrap();
    damage(&dir.path().join("a"));
    let spa = import(dir.path());
    scrub(&spa);
    let lost = errors(&spa);
    assert!(lost.len() > 100, "{}", lost.len());

    // it was begun, and begins anew
    assert!(spa.error_scrub().unwrap() && spa.scrub_pause().unwrap());
    let paused = spa.scrub_pause().unwrap_err();
    assert_eq!(paused.to_string(), "error scrub is paused; use 'zpool scrub -e' to resume error scrub");
    assert_eq!(errors(&spa), lost);
    let unfinished = spa.scrub(ScrubRange::default());
    assert!(unfinished.unwrap_err().to_string().starts_with("currently error scrubbing;"));
    let tally = again(&spa).unwrap();
    assert_eq!((tally.lost_blocks, tally.copies), (lost.len() as u64, 0), "other blocks were read");
    assert_eq!(errors(&spa), lost, "what is lost stays an error");
    let record = spa.view().unwrap().error_scrub().unwrap().unwrap();
    assert_eq!((record.state, record.to_examine), (ScanState::Finished, 0));
    assert_eq!((record.examined, record.errors), (lost.len() as u64, lost.len() as u64));

    // a part of the device comes back
    let middle = 8 << 20;
    spa.export().unwrap();
    drop(spa);
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("a")).unwrap();
    file.write_all_at(&whole[5 << 20..middle], 5 << 20).unwrap();
    let spa = import(dir.path());
    again(&spa).unwrap();
    let left = errors(&spa);
    assert!(!left.is_empty() && left.len() < lost.len(), "{} of {}", left.len(), lost.len());
    assert!(left.iter().all(|entry| lost.contains(entry)));
    // and what only a snapshot has is looked for there
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let tx = spa.tx(0).unwrap();
    let objects: std::collections::BTreeSet<ObjectId> = left.iter().map(|entry| entry.object).collect();
    objects.iter().for_each(|object| objset.free_object(&tx, *object).unwrap());
    drop(tx);
    spa.sync().unwrap();
    again(&spa).unwrap();
    assert_eq!(errors(&spa), left);
    spa.destroy_snapshots(&["t@1".to_string()], false).unwrap();
    spa.wait_freed().unwrap();
    again(&spa).unwrap();
    assert_eq!(errors(&spa), []);
    spa.export().unwrap();
    judge(dir.path());
}

/// A scrub that was begun, and has everything behind it up to `dataset`.
fn advance(spa: &Arc<Spa>, dataset: ObjectId) -> pool::ScrubCursor {
    spa.scrub_begin(1 << 30, ScrubRange::default()).unwrap();
    let view = spa.view().unwrap();
    let mut place = view.scrub_cursor(ScanFunc::Scrub).unwrap().unwrap();
    while place.target(&view).unwrap().unwrap().dataset != dataset {
        place.done(&view).unwrap();
    }
    place
}

#[test]
fn a_scrub_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), &["mirror", "a", "b"]);
    fill(&spa);
    spa.export().unwrap();
    drop(spa);
    damage(&dir.path().join("b"));

    // half of the object is behind it
    let spa = import(dir.path());
    let (head, object) = {
        let dataset = spa.view().unwrap().dataset("t").unwrap();
        let objset = dataset.objset().unwrap();
        (dataset.id(), objset.objects().map(|o| o.unwrap()).find(|o| o.nblocks() == 512).unwrap().id())
    };
    let mut place = advance(&spa, head);
    place.reached(&Bookmark::new(head, object, 0, 256));
    let since = ScrubResult { examined: 5 << 20, ..ScrubResult::default() };
    spa.scrub_progress(place, since, Vec::new()).unwrap();
    assert!(spa.scrub_pause().unwrap());
    assert!(spa.view().unwrap().scrub_cursor(ScanFunc::Scrub).unwrap().is_none(), "it is paused");
    spa.export().unwrap();
    drop(spa);
    judge(dir.path());

    let spa = import(dir.path());
    let tally = scrub(&spa);
    let scan = spa.view().unwrap().scan().unwrap().unwrap();
    assert_eq!((scan.state, scan.errors, scan.queue_obj), (ScanState::Finished, 0, ObjectId::NONE));
    assert_eq!(scan.examined, (5 << 20) + tally.bytes);
    assert!(tally.bytes < 6 << 20, "{} bytes were read of the half that was left", tally.bytes);
    assert!(tally.healed > 0 && !clean(&spa), "the first half was read");
    let tally = scrub(&spa);
    assert!(tally.healed > 0 && clean(&spa));
    spa.export().unwrap();
    judge(dir.path());
}

#[test]
fn a_scrub_follows_datasets_that_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), &["mirror", "a", "b"]);
    fill(&spa);
    let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    spa.snapshot(&names(&["t@1"]), &[]).unwrap();
    spa.snapshot(&names(&["t@2"]), &[]).unwrap();
    let id = |name: &str| spa.view().unwrap().dataset(name).unwrap().id();
    // all that is still to be read, in order
    let rest = || {
        let view = spa.view().unwrap();
        let mut place = view.scrub_cursor(ScanFunc::Scrub).unwrap().unwrap();
        let mut all = Vec::new();
        while let Some(target) = place.target(&view).unwrap() {
            all.push((target.dataset, target.after));
            place.done(&view).unwrap();
        }
        all
    };

    // the snapshot under way goes, and the one behind it: the head has what was theirs
    let [first, second, head] = ["t@1", "t@2", "t"].map(id);
    let place = advance(&spa, first);
    spa.scrub_progress(place, ScrubResult::default(), Vec::new()).unwrap();
    let (begun, after) = rest()[0];
    assert_eq!(begun, first);
    spa.destroy_snapshots(&names(&["t@1", "t@2"]), false).unwrap();
    let now = rest();
    assert!(now.contains(&(head, after)) && now.iter().all(|(id, _)| *id != first && *id != second), "{now:?}");

    // a snapshot has what the head may lose: it comes first, and then the head
    spa.snapshot(&names(&["t@3"]), &[]).unwrap();
    let now = rest();
    let place_of = |dataset| now.iter().position(|(id, _)| *id == dataset).unwrap();
    assert!(place_of(id("t@3")) < place_of(head), "{now:?}");
    assert_eq!(now[place_of(id("t@3"))].1, after);

    let before = spa.uberblock().txg;
    let tally = scrub(&spa);
    assert!(tally.lost_blocks == 0 && tally.bytes > 8 << 20);
    let view = spa.view().unwrap();
    let scan = view.scan().unwrap().unwrap();
    assert_eq!((scan.state, scan.queue_obj), (ScanState::Finished, ObjectId::NONE));
    assert!(view.last_scrubbed_txg().unwrap() <= before);
    spa.export().unwrap();
    judge(dir.path());
}

#[test]
fn only_what_is_new_is_scrubbed() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), &["a"]);
    fill(&spa);
    let range = ScrubRange { after: spa.uberblock().txg, upto: None };
    spa.scrub(range).unwrap();
    let tally = finish(&spa);
    assert!(tally.bytes < 1 << 20, "{} bytes", tally.bytes);
    spa.export().unwrap();
}

/// A pool that OpenZFS left with full logs, claimed by an import, on a private copy.
fn with_logs() -> (oracle::fixtures::Unpacked, Arc<Spa>) {
    let images = oracle::fixtures::unpack_private("zil-a");
    let spa = import_forced(&images);
    (images, spa)
}

fn import_forced(images: &oracle::fixtures::Unpacked) -> Arc<Spa> {
    let open = |path: std::path::PathBuf| {
        let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&path).unwrap());
        (path, device)
    };
    let found = vdev::import::scan_devices(images.images().into_iter().map(open).collect());
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Spa::import(found.first().unwrap(), &options, hooks()).unwrap()
}

/// The blocks of a claimed log that hold records: sequence number, place on the device, size.
fn log_blocks(spa: &Arc<Spa>, name: &str) -> (u64, Vec<(u64, u64, u64)>) {
    let objset = spa.view().unwrap().dataset(name).unwrap().objset().unwrap();
    let header = objset.phys().zil_header.clone();
    assert!(header.claim_txg.0 > 0, "the log waits");
    let mut blocks = Vec::new();
    zil::walk(&objset, &mut |step| {
        if let zil::Step::Block(bp) = step {
            blocks.push((bp.words[15], bp.dva(0).offset(), bp.dva(0).asize()));
        }
        std::ops::ControlFlow::Continue(())
    });
    blocks.retain(|(seq, ..)| *seq < header.claim_blk_seq);
    (objset.id().0, blocks)
}

#[test]
fn a_log_that_waits_to_be_replayed_is_scrubbed() {
    let (images, spa) = with_logs();
    let (id, blocks) = log_blocks(&spa, "zila/a");
    assert!(blocks.len() > 2, "{blocks:?}");
    let whole = scrub(&spa);
    assert_eq!((whole.lost_blocks, spa.view().unwrap().errlog().unwrap().len()), (0, 0));
    spa.export().unwrap();
    drop(spa);

    // a block in the midst of the chain: nothing else leads there, nor to what is behind it
    let &(seq, offset, size) = &blocks[blocks.len() / 2];
    let device = std::fs::OpenOptions::new().write(true).open(&images.images()[0]).unwrap();
    device.write_all_at(&vec![0xa5; size as usize], offset + (4 << 20)).unwrap();
    let spa = import_forced(&images);
    let tally = scrub(&spa);
    assert_eq!(tally.lost_blocks, 1, "{tally:?}");
    assert!(tally.bytes < whole.bytes, "{} and {} bytes", tally.bytes, whole.bytes);
    let errors = spa.view().unwrap().errlog().unwrap();
    let told: Vec<_> = errors.iter().map(|e| (e.objset, e.object, e.level, e.blkid)).collect();
    assert_eq!(told, [(ObjectId(id), ObjectId::NONE, -2, seq)]);
    // it stays an error for a scrub of errors, and goes with the log
    assert!(spa.error_scrub().unwrap());
    finish(&spa);
    assert_eq!(spa.view().unwrap().errlog().unwrap().len(), 1);
    spa.export().unwrap();
}

/// A good checksum says that a block is what was written, and not that anybody can read it.
#[test]
fn what_cannot_be_expanded_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), &["mirror", "a", "b"]);
    fill(&spa);
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let tx = spa.tx(1 << 20).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 16 << 10, ..NewObject::default() };
    let object = objset.alloc_object(&tx, &new).unwrap();
    let payload = Payload::Stored {
        bytes: Buf::from(vec![0xa5; 4096]),
        lsize: 16 << 10,
        compress: codec::Compress::Gzip1,
        crypt: None,
        byteorder: base::Endian::Little,
    };
    object.write_stored(&tx, 0, payload).unwrap();
    drop(tx);
    spa.sync().unwrap();

    let view = spa.view().unwrap();
    let look = |expand| {
        let options = Options { dataset: None, threads: 1, expand };
        verify(&view, &options, &|_, _| {}).unwrap()
    };
    assert!(look(false).is_clean());
    let found = look(true);
    assert_eq!(found.tally.lost_blocks, 1);
    let damage = found.tally.damage.first().unwrap();
    assert_eq!((damage.bm.object, damage.bm.blkid), (object.id(), 0));
    let tally = scrub(&spa);
    assert_eq!((tally.lost_blocks, tally.healed), (1, 0));
    let listed: Vec<ObjectId> = spa.view().unwrap().errlog().unwrap().iter().map(|entry| entry.object).collect();
    assert_eq!(listed, [object.id()]);
    spa.export().unwrap();
}
