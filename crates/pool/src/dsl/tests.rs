//! Tests that need two tasks in one txg, or a state that only a crash leaves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Env, Guid, ObjectId, Txg};
use dmu::NewObject;
use ondisk::send::Begin;
use ondisk::{ObjectType, ObjsetType};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

mod miscounts;
mod views;

use super::*;
use crate::dsl::space::{Delta, Used};
use crate::spa::TaskCx;
use crate::spa::errlog::{self, ErrorEntry};
use crate::{CreateOptions, Error, Hooks, ImportOptions, ListOptions, Spa};

const SIZE: u64 = 64 << 20;

fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: None, ..Hooks::default() }
}

fn pool() -> (Arc<Spa>, Arc<dyn Device>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::writable(SIZE));
    let open = |_: &str| Some(device.clone());
    let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
    let new = layout(&VdevSpec::parse(&["/a".to_string()]).unwrap(), &open, options, &hooks().env).unwrap();
    (Spa::create(new, CreateOptions::new("t"), hooks()).unwrap(), device)
}

fn again(spa: Arc<Spa>, device: &Arc<dyn Device>) -> Arc<Spa> {
    spa.close().unwrap();
    drop(spa);
    let found = vdev::import::scan_devices(vec![(PathBuf::from("/a"), device.clone())]);
    let options = ImportOptions { again: true, ..ImportOptions::default() };
    Spa::import(found.first().unwrap(), &options, hooks()).unwrap()
}

fn create(spa: &Arc<Spa>, name: &str) -> Result<(), Error> {
    let new = NewDataset::inheriting(name, ObjsetType::Zfs);
    let one = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 4096, ..NewObject::default() };
    spa.create_dataset(
        new,
        Box::new(move |objset, tx| {
            let object = objset.alloc_object(tx, &one)?;
            object.write(tx, 0, &[7; 4096])
        }),
    )
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> Refusal {
    match result.unwrap_err() {
        Error::Refused { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn a_snapshot_in_the_txg_that_made_its_file_system_has_what_is_in_it() {
    let (spa, _device) = pool();
    // as long as this place is held all tasks go into one txg
    let place = spa.tx(1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| create(&spa, "t/a").unwrap());
        std::thread::sleep(Duration::from_millis(100));
        scope.spawn(|| spa.snapshot(&["t/a@s".to_string()], &[]).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        drop(place);
    });
    let view = spa.view().unwrap();
    let (head, snap) = (view.dataset("t/a").unwrap(), view.dataset("t/a@s").unwrap());
    assert_eq!(snap.phys().bp, head.phys().bp);
    assert_eq!(snap.phys().referenced_bytes, head.phys().referenced_bytes);
    assert!(snap.phys().creation_txg > head.phys().creation_txg);
    assert_eq!(snap.objset().unwrap().objects().count(), 1);
}

#[test]
fn what_a_crash_left_half_destroyed_is_gone_after_the_import() {
    let (spa, device) = pool();
    create(&spa, "t/a").unwrap();
    create(&spa, "t/a/b").unwrap();
    create(&spa, "t/c").unwrap();
    let used = spa.view().unwrap().dataset("t").unwrap().used();
    for name in ["t/a/b", "t/a"] {
        spa.sync_task(move |cx| {
            let head = cx.spa.find_head(cx.mos, name)?;
            let mark =
                |phys: &mut ondisk::dsl::DslDatasetPhys| phys.flags |= ondisk::dsl::DslDatasetPhys::FLAG_INCONSISTENT;
            cx.mos.edit_dataset(cx.tx, head.id, mark)
        })
        .unwrap();
    }
    // a receive that can go on stays
    spa.sync_task(|cx| {
        let head = cx.spa.find_head(cx.mos, "t/c")?;
        let mark =
            |phys: &mut ondisk::dsl::DslDatasetPhys| phys.flags |= ondisk::dsl::DslDatasetPhys::FLAG_INCONSISTENT;
        cx.mos.edit_dataset(cx.tx, head.id, mark)?;
        let key = ondisk::dsl::dataset_keys::RESUME_TOGUID;
        Ok(cx.spa.zapify(cx.mos, cx.tx, head.id)?.add_u64(cx.tx, key, 5)?)
    })
    .unwrap();
    let spa = again(spa, &device);
    spa.wait_freed().unwrap();
    let view = spa.view().unwrap();
    assert!(view.dataset("t/a").is_err() && view.dataset("t/a/b").is_err() && view.dataset("t/c").is_ok());
    assert!(view.dataset("t").unwrap().used() < used);
}

#[test]
fn a_bookmark_that_cannot_be_understood_hides_no_other() {
    let (spa, _device) = pool();
    spa.snapshot(&["t@s".to_string()], &[]).unwrap();
    spa.bookmark(&[("t#good".to_string(), "t@s".to_string())]).unwrap();
    spa.sync_task(|cx| {
        let head = cx.spa.find_head(cx.mos, "t")?;
        let zap = cx.mos.bookmark_zap(head.id)?.expect("it has a bookmark");
        Ok(zap.add_u64(cx.tx, "bad", 5)?)
    })
    .unwrap();
    let head = spa.view().unwrap().dataset("t").unwrap();
    assert!(head.bookmarks().is_err());
    let all = head.readable_bookmarks().unwrap();
    let readable: Vec<(&str, bool)> = all.iter().map(|(name, mark)| (name.as_str(), mark.is_ok())).collect();
    assert_eq!(readable, [("bad", false), ("good", true)]);
}

#[test]
fn errors_of_what_a_promotion_moves_move_along() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    spa.snapshot(&["t/a@s".to_string()], &[]).unwrap();
    spa.clone_dataset("t/a@s", "t/c", Vec::new()).unwrap();
    let view = spa.view().unwrap();
    let id = |name: &str| view.dataset(name).unwrap().id();
    let (a, c) = (id("t/a"), id("t/c"));
    let at = view.dataset("t/a@s").unwrap().phys().creation_txg;
    let entry = |objset, blkid, birth| ErrorEntry {
        objset,
        object: ObjectId(1),
        level: 0,
        blkid,
        birth: Some(birth),
        last: true,
    };
    let (old, new) = (entry(a, 1, Txg(at.0 - 1)), entry(a, 2, Txg(at.0 + 1)));
    let both = [old, new.clone()];
    spa.sync_task(move |cx| errlog::write(cx.mos, cx.tx, errlog::LAST, &both, true)).unwrap();
    spa.promote("t/c").unwrap();
    let mut now = spa.view().unwrap().errlog().unwrap();
    now.sort();
    let mut wanted = [entry(c, 1, Txg(at.0 - 1)), new];
    wanted.sort();
    assert_eq!(now, wanted);
}

#[test]
fn heads_that_parted_at_other_snapshots_do_not_change_places() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    spa.snapshot(&["t/a@1".to_string()], &[]).unwrap();
    spa.clone_dataset("t/a@1", "t/a/c", Vec::new()).unwrap();
    spa.snapshot(&["t/a@2".to_string()], &[]).unwrap();
    for force in [false, true] {
        let why = refusal(spa.swap_heads("t/a/c", "t/a", force));
        assert_eq!(why, Refusal::Invalid("the two heads do not have the same last snapshot"));
    }
}

/// Runs what must come to an end, whatever is on disk.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    told.recv_timeout(Duration::from_secs(60)).expect("goes on for ever")
}

#[test]
fn directories_in_a_circle_are_corrupt() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    create(&spa, "t/a/b").unwrap();
    let ended = ends(move || {
        spa.sync_task(|cx| {
            let a = cx.spa.find_dir(cx.mos, "t/a")?;
            let b = cx.spa.find_dir(cx.mos, "t/a/b")?;
            cx.mos.edit_dir(cx.tx, a, |dir| dir.parent_obj = b)?;
            let more = Delta { used: 512, ..Delta::default() };
            let all = [cx.mos.prop(b, "atime").map(drop), cx.mos.did_use(cx.tx, b, Used::Head, more)];
            // the pool is to be closed
            let root = cx.spa.find_dir(cx.mos, "t")?;
            cx.mos.edit_dir(cx.tx, a, |dir| dir.parent_obj = root)?;
            Ok(all)
        })
    });
    let ended = ended.unwrap();
    assert!(ended.iter().all(|result| matches!(result, Err(Error::Corrupt { .. }))), "{ended:?}");
}

#[test]
fn directories_of_two_names_are_corrupt() {
    const LEVELS: usize = 18;
    let (spa, _device) = pool();
    let name = |level: usize| format!("t{}", "/a".repeat(level));
    (1..=LEVELS).for_each(|level| create(&spa, &name(level)).unwrap());
    // what is at the end has 2 to the 18th names then
    let twice = spa.sync_task(move |cx| {
        for level in 1..=LEVELS {
            let (parent, child) = (cx.spa.find_dir(cx.mos, &name(level - 1))?, cx.spa.find_dir(cx.mos, &name(level))?);
            cx.mos.zap(cx.mos.dir_phys(parent)?.child_dir_zapobj)?.add_u64(cx.tx, "b", child.0)?;
        }
        let mut heads = Vec::new();
        let found = cx.mos.heads_below(cx.spa.find_dir(cx.mos, "t")?, "t", &mut heads, 0);
        Ok((found, heads.len()))
    });
    let (found, heads) = twice.unwrap();
    assert!(matches!(found, Err(Error::Corrupt { .. })) && heads < 100, "{found:?} {heads}");
    let listed = spa.view().unwrap().list("t", &ListOptions::ALL);
    assert!(matches!(listed, Err(Error::Corrupt { .. })), "{:?}", listed.map(|all| all.len()));
}

#[test]
fn snapshots_in_a_circle_are_corrupt() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    spa.snapshot(&["t/a@1".to_string()], &[]).unwrap();
    spa.snapshot(&["t/a@2".to_string()], &[]).unwrap();
    let begin = Begin {
        magic: 0,
        versioninfo: 1,
        creation_time: 0,
        objset_type: 2,
        flags: 0,
        toguid: Guid(6),
        fromguid: Guid(5),
        toname: Box::new([0; 256]),
    };
    let req = RecvBegin {
        fs: "t/a".to_string(),
        snap: "new".to_string(),
        origin: None,
        force: true,
        resumable: false,
        begin,
        list: nvlist::NvList::new(),
        key: None,
        without_key: WithoutKey::Inherit,
    };
    let ended = ends(move || {
        spa.sync_task(|cx| {
            let snap = cx.spa.find_snapshot(cx.mos, "t/a@1")?;
            let last = cx.spa.find_snapshot(cx.mos, "t/a@2")?.id;
            cx.mos.edit_dataset(cx.tx, snap.id, |phys| phys.prev_snap_obj = last)
        })
        .unwrap();
        spa.receive_begin(req)
    });
    assert!(matches!(ended, Err(Error::Corrupt { .. })), "{ended:?}");
}

#[test]
fn a_head_that_a_task_is_about_to_change_is_not_held() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    let head = spa.view().unwrap().dataset("t/a").unwrap();
    let id = head.id();
    let held = spa.sync_task(move |cx| {
        cx.spa.dsl.open_datasets.evict(&[id], cx.tx.txg()).expect("nobody uses it");
        Ok(head.long_hold().map(drop))
    });
    assert_eq!(refusal(held.unwrap()), Refusal::Busy);
    // nothing came of it
    drop(spa.view().unwrap().dataset("t/a").unwrap().long_hold().unwrap());
}

/// A walk of the chain ends.
#[test]
fn a_chain_of_snapshots_that_does_not_go_back_is_not_followed() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    spa.snapshot(&["t/a@1".to_string()], &[]).unwrap();
    spa.snapshot(&["t/a@2".to_string()], &[]).unwrap();
    for (name, before) in [("t/a", "t/a"), ("t/a@1", "t/a@2"), ("t/a@1", "t/a@1"), ("t/a@2", "t/a")] {
        let followed = spa.sync_task(move |cx| {
            let (of, before) = (cx.spa.find(cx.mos, name)?, cx.spa.find(cx.mos, before)?);
            let set = |to| cx.mos.edit_dataset(cx.tx, of.id, |phys| phys.prev_snap_obj = to);
            set(before.id)?;
            let followed = cx.mos.before(&cx.mos.live(of.id)?).map(|before| before.map(|live| live.id));
            set(of.phys.prev_snap_obj)?;
            Ok(followed)
        });
        assert!(matches!(followed.unwrap(), Err(Error::Corrupt { .. })), "{name}");
    }
}

/// Remains of early versions of ZFS: keys of the first format, and snapshots without the number of their set of IVs.
#[test]
fn errata_are_told_and_obeyed() {
    use crate::Erratum;
    use codec::crypt::{Suite, WrappingKey};
    use ondisk::dsl::{dataset_keys, dir_keys};

    let (spa, device) = pool();
    let key = crate::NewKey {
        cipher: Suite::Aes256Gcm,
        keyformat: crate::KeyFormat::Raw,
        keylocation: "prompt".to_string(),
        wrapping: WrappingKey::from_raw(&[7; 32]).unwrap(),
        pbkdf2_iters: 0,
        salt: 0,
    };
    let new = NewDataset { key: Some(key), ..NewDataset::inheriting("t/e", ObjsetType::Zfs) };
    spa.create_dataset(new, Box::new(|_, _| Ok(()))).unwrap();
    spa.snapshot(&["t/e@1".to_string()], &[]).unwrap();
    let erratum = |spa: &Arc<Spa>| spa.view().unwrap().erratum().unwrap();
    let open = |spa: &Arc<Spa>| spa.objset(&spa.view().unwrap().dataset("t/e").unwrap()).map(drop);
    assert_eq!(erratum(&spa), None);
    spa.sync_task(|cx| {
        let snap = cx.spa.find_snapshot(cx.mos, "t/e@1")?.id;
        Ok(cx.mos.zap(snap)?.remove(cx.tx, dataset_keys::IVSET_GUID).map(drop)?)
    })
    .unwrap();
    assert_eq!(erratum(&spa), Some(Erratum::NoIvset));
    open(&spa).unwrap();
    // the last snapshot is looked at
    spa.snapshot(&["t/e@2".to_string()], &[]).unwrap();
    assert_eq!(erratum(&spa), None);
    spa.sync_task(|cx| {
        let dir = cx.spa.find_dir(cx.mos, "t/e")?;
        let key = cx.mos.extra_id(dir, dir_keys::CRYPTO_KEY_OBJ)?.expect("it is encrypted");
        Ok(cx.mos.zap(key)?.remove(cx.tx, "DSL_CRYPTO_VERSION").map(drop)?)
    })
    .unwrap();
    let spa = again(spa, &device);
    assert_eq!(erratum(&spa), Some(Erratum::OldKeys));
    assert!(matches!(open(&spa), Err(Error::ReadOnlyDataset { name }) if name == "t/e"));
}

/// The sync thread, and whoever looks at a head, have references of their own.
#[test]
fn references_of_the_engine_are_no_use() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    let dataset = spa.view().unwrap().dataset("t/a").unwrap();
    let id = dataset.id();
    let objset = spa.objset(&dataset).unwrap();
    assert!(spa.dsl.open_datasets.in_use(&[id]) && spa.dsl.open_datasets.is_open_or_dirty(id));
    drop(objset);
    let looked_at = spa.dsl.open_datasets.all();
    assert!(!spa.dsl.open_datasets.in_use(&[id]) && !spa.dsl.open_datasets.is_open_or_dirty(id));
    drop(looked_at);
    let (begun, begins) = std::sync::mpsc::channel();
    let used = std::thread::scope(|scope| {
        scope.spawn(|| {
            let task = move |cx: &TaskCx<'_>| {
                let objset = cx.spa.dsl.open_datasets.objset(id);
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                drop(objset);
                Ok(())
            };
            spa.sync_task(task).unwrap();
        });
        begins.recv().unwrap();
        spa.dsl.open_datasets.in_use(&[id])
    });
    assert!(!used, "the task's reference is taken for a user");
}

#[test]
fn a_head_opened_while_a_task_changes_its_root_block_is_of_the_new_one() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    create(&spa, "t/b").unwrap();
    let view = spa.view().unwrap();
    let (a, b) = (view.dataset("t/a").unwrap(), view.dataset("t/b").unwrap());
    let (id, new) = (a.id(), b.phys().bp);
    let (begun, begins) = std::sync::mpsc::channel();
    let opened = std::thread::scope(|scope| {
        let task = move |cx: &TaskCx<'_>| {
            cx.spa.dsl.open_datasets.evict(&[id], cx.tx.txg()).expect("nobody uses it");
            begun.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            cx.mos.edit_dataset(cx.tx, id, |phys| phys.bp = new)
        };
        scope.spawn(|| spa.sync_task(task).unwrap());
        begins.recv().unwrap();
        spa.objset(&a).unwrap()
    });
    assert_eq!(opened.rootbp(), new);
}

/// Runs `change` in the txg after a task's own, as another thread may, and asks the task for the dataset then.
fn evicted_after(
    spa: &Arc<Spa>,
    name: &str,
    change: impl FnOnce(&Arc<Spa>, &Arc<dmu::Objset>, &dmu::Tx) -> Result<(), Error> + Send + 'static,
) -> Result<(), Refusal> {
    let head = spa.view().unwrap().dataset(name).unwrap();
    let asked = spa.sync_task(move |cx| {
        let objset = cx.spa.objset(&head)?;
        let spa = cx.spa.clone();
        let tx = spa.dataset_tx_for(&objset, 1 << 16, false, dmu::TxObjects::of_set(objset.id()))?;
        assert!(tx.txg() > cx.tx.txg());
        change(&spa, &objset, &tx)?;
        drop((tx, objset));
        Ok(cx.spa.dsl.open_datasets.evict(&[head.id()], cx.tx.txg()))
    });
    asked.unwrap()
}

#[test]
fn a_head_that_the_next_txg_has_changed_is_busy() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    let one = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 4096, ..NewObject::default() };
    let made = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let id = made.clone();
    let asked = evicted_after(&spa, "t/a", move |_, objset, tx| {
        let object = objset.alloc_object(tx, &one)?;
        id.store(object.id().0, std::sync::atomic::Ordering::Relaxed);
        Ok(object.write(tx, 0, &[8; 4096])?)
    });
    assert_eq!(asked, Err(Refusal::Busy));
    spa.sync().unwrap();
    let objset = spa.objset(&spa.view().unwrap().dataset("t/a").unwrap()).unwrap();
    let object = objset.object(ObjectId(made.load(std::sync::atomic::Ordering::Relaxed))).unwrap();
    assert_eq!(object.read_vec(0, 4096).unwrap(), [8; 4096]);
    drop((object, objset));
    // with that txg on disk it is free
    assert_eq!(evicted_after(&spa, "t/a", |_, _, _| Ok(())), Ok(()));
}

#[test]
fn a_dataset_whose_blocks_the_next_txg_shares_is_busy() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    let asked = evicted_after(&spa, "t/a", |spa, objset, tx| {
        spa.keep_source(tx, objset);
        Ok(())
    });
    assert_eq!(asked, Err(Refusal::Busy));
    spa.sync().unwrap();
    spa.sync().unwrap();
    assert_eq!(evicted_after(&spa, "t/a", |_, _, _| Ok(())), Ok(()));
}

#[test]
fn a_head_that_nobody_has_mounted_is_sent_or_destroyed_beside_its_rollback() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    spa.snapshot(&["t/a@1".to_owned()], &[]).unwrap();
    spa.clone_dataset("t/a@1", "t/b", Vec::new()).unwrap();
    let asked_for = |tasks| {
        while spa.waiting_tasks() < tasks {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        // the txg is not synced before both are asked for
        let tx = spa.tx(1 << 16).unwrap();
        let rollback = scope.spawn(|| spa.rollback("t/b", None).map(drop));
        asked_for(1);
        let head = spa.view().unwrap().dataset("t/b").unwrap();
        drop(head.long_hold().unwrap());
        let destroy = scope.spawn(|| spa.destroy_head("t/b"));
        asked_for(2);
        drop(tx);
        rollback.join().unwrap().unwrap();
        destroy.join().unwrap().unwrap();
    });
    assert!(spa.view().unwrap().dataset("t/b").is_err());
}

#[test]
fn a_feature_of_a_dataset_that_is_gone_is_not_noted() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    let id = spa.view().unwrap().dataset("t/a").unwrap().id();
    spa.destroy_head("t/a").unwrap();
    let tx = spa.tx(1 << 16).unwrap();
    spa.use_dataset_feature(&tx, id, "large_blocks");
    drop(tx);
    spa.sync().unwrap();
}

#[test]
fn half_of_a_change_is_not_committed_when_its_thread_panics() {
    for changes in [false, true] {
        let (spa, _device) = pool();
        let objset = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let tx = spa.tx(1 << 16).unwrap();
            if changes {
                let one = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 4096, ..NewObject::default() };
                objset.alloc_object(&tx, &one).unwrap();
            }
            panic!("within a change");
        }));
        assert!(ended.is_err());
        assert_eq!(matches!(spa.sync(), Err(Error::Suspended(_))), changes);
    }
}
