//! A discard that takes many txgs, and is interrupted between them.

use std::path::Path;

use base::{Env, ObjectId};
use dmu::NewObject;
use ondisk::ObjectType;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};

use super::*;
use crate::{Activity, CreateOptions, Hooks, ImportOptions};

/// Blocks of the object, every other one of which is freed: more separate ranges than a block of a space map has entries.
const BLOCKS: u64 = 36_000;
const BLOCK: u64 = 512;

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), ..Hooks::default() }
}

fn make(dir: &Path, vdevs: &[&str]) -> Arc<Spa> {
    let words: Vec<String> = vdevs.iter().map(|name| dir.join(name).display().to_string()).collect();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        Some(Arc::new(FileDevice::create(Path::new(path), 256 << 20).unwrap()))
    };
    let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks().env).unwrap();
    Spa::create(new, CreateOptions::new("t"), hooks()).unwrap()
}

fn import(dir: &Path) -> Arc<Spa> {
    let found = vdev::import::scan(&[dir.to_owned()]).unwrap().remove(0).lock().unwrap();
    Spa::import(&found, &ImportOptions::default(), hooks()).unwrap()
}

fn held(spa: &Spa) -> u64 {
    spa.view().unwrap().space().unwrap().checkpoint
}

/// Makes a pool whose checkpoint holds many ranges.
fn with_checkpoint(dir: &Path, vdevs: &[&str]) -> Arc<Spa> {
    let spa = make(dir, vdevs);
    let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: BLOCK, ..NewObject::default() };
    let object = objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap();
    let mut data = vec![0; (BLOCKS * BLOCK) as usize];
    spa.env().fill_random(&mut data);
    object.write(&spa.tx(data.len() as u64).unwrap(), 0, &data).unwrap();
    spa.sync().unwrap();
    spa.checkpoint().unwrap();
    let tx = spa.tx_netfree(1 << 20).unwrap();
    (0..BLOCKS / 2).for_each(|n| object.free_range(&tx, n * 2 * BLOCK, BLOCK).unwrap());
    drop(tx);
    spa.sync().unwrap();
    spa
}

#[test]
fn a_discard_is_interrupted_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let spa = with_checkpoint(dir.path(), &["a", "b"]);
    let all = held(&spa);
    assert!(all >= BLOCKS / 2 * BLOCK);
    tunable::ZFS_SPA_DISCARD_MEMORY_LIMIT.set(1);
    let still = spa.background.discard.hold();
    spa.discard_checkpoint().unwrap();
    assert!(spa.background.discard.is_awake());
    assert_eq!(held(&spa), all, "nothing is freed while the task is held");
    assert!(matches!(spa.checkpoint(), Err(Error::CheckpointExists)));
    let one = |spa: &Arc<Spa>| spa.sync_task(|cx| cx.spa.discard_slice(cx.mos, cx.tx)).unwrap();
    assert_eq!(one(&spa), Next::More);
    let some = held(&spa);
    assert!(some > 0 && some < all, "{some} of {all}");
    spa.export().unwrap();
    drop((still, spa));
    oracle::judge::no_leaks(dir.path(), "t");

    let spa = import(dir.path());
    let waited = spa.wait_activity(Activity::Discard).unwrap();
    let view = spa.view().unwrap();
    assert_eq!((held(&spa), view.feature_active(FEATURE)), (0, false), "waited: {waited}");
    assert!(matches!(spa.discard_checkpoint(), Err(Error::NoCheckpoint)));
    spa.checkpoint().unwrap();
    drop(view);
    spa.export().unwrap();
    drop(spa);
    oracle::judge::no_leaks(dir.path(), "t");
}

/// Entries are freed from the end of a map, and the rest of it stays a map.
#[test]
fn a_map_is_freed_from_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let spa = with_checkpoint(dir.path(), &["a"]);
    let still = spa.background.discard.hold();
    spa.discard_checkpoint().unwrap();
    let length_of = |spa: &Arc<Spa>| {
        let mos = spa.live_mos().unwrap();
        spa.checkpoint_map(&mos, 0).unwrap().map(|map| map.map.header.length)
    };
    let mut slices = 0;
    while let Some(length) = length_of(&spa) {
        spa.sync_task(|cx| {
            let map = cx.spa.checkpoint_map(cx.mos, 0)?.ok_or(Error::NoCheckpoint)?;
            cx.spa.discard_some(cx.mos, cx.tx, &map, 1)
        })
        .unwrap();
        assert!(length_of(&spa).is_none_or(|now| now < length));
        // the map and its header agree: it is read to its end
        if let Some(map) = spa.checkpoint_map(&spa.live_mos().unwrap(), 0).unwrap() {
            let mut left = 0;
            let mut count = |change: ::space::Change| {
                left += (change.range.end - change.range.start) as i64;
                Ok(())
            };
            map.map.for_each_from(0, map.geometry, &mut count).unwrap();
            assert_eq!(map.map.header.alloc, -left);
        }
        slices += 1;
    }
    assert!(slices > 1, "the map has one block only");
    drop(still);
    spa.wait_activity(Activity::Discard).unwrap();
    assert!(!spa.view().unwrap().feature_active(FEATURE));
    spa.export().unwrap();
    drop(spa);
    oracle::judge::no_leaks(dir.path(), "t");
}

#[test]
fn a_checkpoint_without_its_txg_is_not_taken_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path(), &["a"]);
    spa.checkpoint().unwrap();
    spa.sync_task(|cx| Ok(cx.mos.root_zap()?.update(cx.tx, CHECKPOINT, 8, &[1, 2])?)).unwrap();
    spa.export().unwrap();
    drop(spa);
    let found = vdev::import::scan(&[dir.path().to_owned()]).unwrap().remove(0).lock().unwrap();
    let imported = Spa::import(&found, &ImportOptions::default(), hooks());
    assert!(matches!(imported, Err(Error::Corrupt { object: ObjectId(1), .. })), "{imported:?}");
}
