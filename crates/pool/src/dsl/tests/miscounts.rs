//! Counts on disk that are wrong, and what is made of them; tasks that panic.

use base::ObjectId;

use super::*;
use crate::dsl::crypt::write::KEY_REFCOUNT;
use crate::dsl::deadlist::Deadlist;
use crate::spa::bpobj::write::tests::pointer;
use crate::{Pool, testing};
use ondisk::dsl::dir_keys;

/// The wrong counters that are in the history of a pool.
fn recorded(view: &Pool) -> Vec<String> {
    let history = view.history().unwrap();
    let wrong = history.iter().filter(|record| record.list.get_str("internal_name") == Some("miscount"));
    wrong.filter_map(|record| record.list.get_str("history internal str").map(str::to_owned)).collect()
}

/// Makes `t/a` say that it refers to 512 bytes.
fn count_too_little(spa: &Arc<Spa>) {
    spa.sync_task(|cx| {
        let head = cx.spa.find_head(cx.mos, "t/a")?;
        cx.mos.edit_dataset(cx.tx, head.id, |phys| phys.referenced_bytes = 512)
    })
    .unwrap();
}

#[test]
fn a_counter_that_would_fall_below_zero_is_held_there_and_recorded() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    let objset = spa.objset(&spa.view().unwrap().dataset("t/a").unwrap()).unwrap();
    let mut noise = vec![0; 64 << 10];
    Env::seeded(1).fill_random(&mut noise);
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 64 << 10, ..NewObject::default() };
    let id = {
        let tx = spa.tx(1 << 20).unwrap();
        let object = objset.alloc_object(&tx, &new).unwrap();
        object.write(&tx, 0, &noise).unwrap();
        object.id()
    };
    count_too_little(&spa);
    objset.free_object(&spa.tx(1 << 20).unwrap(), id).unwrap();
    spa.sync().unwrap();
    let view = spa.view().unwrap();
    let head = view.dataset("t/a").unwrap();
    assert_eq!(head.referenced(), 0);
    let recorded = recorded(&view);
    let told = format!("object {}: referenced is 512 and changes by -", head.id());
    assert!(recorded.len() == 1 && recorded[0].starts_with(&told), "{recorded:?}");
}

#[test]
fn a_unique_figure_that_would_fall_below_zero_when_it_is_counted_anew_is_recorded() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    let (one, two) = ("t/a@one".to_string(), "t/a@two".to_string());
    spa.snapshot(std::slice::from_ref(&one), &[]).unwrap();
    spa.snapshot(std::slice::from_ref(&two), &[]).unwrap();
    count_too_little(&spa);
    spa.destroy_snapshots(&[two], false).unwrap();
    let view = spa.view().unwrap();
    let head = view.dataset("t/a").unwrap();
    assert_eq!(head.phys().unique_bytes, 0);
    let recorded = recorded(&view);
    let told = format!("object {}: unique, counted anew, is 512 and changes by -", head.id());
    assert!(recorded.len() == 1 && recorded[0].starts_with(&told), "{recorded:?}");
}

#[test]
fn a_block_of_a_clone_that_was_freed_and_never_written_is_recorded() {
    let (spa, _device) = pool();
    create(&spa, "t/a").unwrap();
    spa.snapshot(&["t/a@s".to_string()], &[]).unwrap();
    spa.clone_dataset("t/a@s", "t/c", Vec::new()).unwrap();
    let livelist = spa
        .sync_task(|cx| {
            let dir = cx.spa.find_dir(cx.mos, "t/c")?;
            let id = cx.mos.extra_id(dir, dir_keys::LIVELIST)?.unwrap();
            let mut livelist = Deadlist::open(cx.mos, id)?;
            cx.spa.with_empty_bpobj(cx.mos, cx.tx, |count| {
                livelist.add_key(cx.tx, Txg(1), count)?;
                livelist.insert_marked(cx.tx, &[(pointer(5, 2), true)], count)
            })?;
            Ok(id)
        })
        .unwrap();
    spa.destroy_head("t/c").unwrap();
    spa.wait_freed().unwrap();
    let recorded = recorded(&spa.view().unwrap());
    let told = format!("object {livelist}: uses of a block of a livelist is 0 and changes by -1");
    assert!(recorded.contains(&told), "{recorded:?}");
}

#[test]
fn a_key_that_does_not_say_how_many_have_it_is_neither_shared_nor_freed() {
    let (spa, _device) = pool();
    let new = NewDataset { key: Some(testing::key(1)), ..NewDataset::inheriting("t/e", ObjsetType::Zfs) };
    spa.create_dataset(new, Box::new(|_, _| Ok(()))).unwrap();
    spa.snapshot(&["t/e@s".to_string()], &[]).unwrap();
    spa.clone_dataset("t/e@s", "t/c", Vec::new()).unwrap();
    let key = spa
        .sync_task(|cx| {
            let dir = cx.spa.find_dir(cx.mos, "t/c")?;
            let key = cx.mos.extra_id(dir, dir_keys::CRYPTO_KEY_OBJ)?.unwrap();
            cx.mos.zap(key)?.remove(cx.tx, KEY_REFCOUNT)?;
            Ok(key)
        })
        .unwrap();
    let is_refused = |done: Result<(), Error>| matches!(done, Err(Error::Corrupt { object, .. }) if object == key);
    assert!(is_refused(spa.destroy_head("t/c")));
    assert!(is_refused(spa.clone_dataset("t/e@s", "t/d", Vec::new())));
    // nothing was changed
    spa.sync().unwrap();
    assert!(spa.live_mos().unwrap().zap(key).is_ok());
}

/// Makes the key of `t/f` name directory `root` as its encryption root.
fn put_under(spa: &Arc<Spa>, root: ObjectId) {
    spa.sync_task(move |cx| {
        let dir = cx.spa.find_dir(cx.mos, "t/f")?;
        let key = cx.mos.extra_id(dir, dir_keys::CRYPTO_KEY_OBJ)?.unwrap();
        Ok(cx.mos.zap(key)?.update_u64(cx.tx, "DSL_CRYPTO_ROOT_DDOBJ", root.0)?)
    })
    .unwrap();
}

/// OpenZFS makes such pools, by a rename or a promotion, and then loses the key (`dsl_dir_rename_crypt_check` compares roots only).
#[test]
fn a_key_to_which_no_way_leads_from_its_root_is_kept_and_changed() {
    let (spa, device) = pool();
    for name in ["t/e", "t/f"] {
        let new = NewDataset { key: Some(testing::key(1)), ..NewDataset::inheriting(name, ObjsetType::Zfs) };
        spa.create_dataset(new, Box::new(|_, _| Ok(()))).unwrap();
    }
    let root = spa.view().unwrap().dir("t/e").unwrap().id();
    put_under(&spa, root);
    spa.change_key("t/e", ChangeKey::NewRoot(testing::key(2))).unwrap();
    let spa = again(spa, &device);
    spa.load_key("t/e", &testing::key(2).wrapping).unwrap();
    let status = |name: &str| spa.view().unwrap().dataset(name).unwrap().key_status().unwrap();
    assert_eq!(status("t/f"), KeyStatus::Available);
    // one whose root is gone is opened by itself
    spa.destroy_head("t/e").unwrap();
    let spa = again(spa, &device);
    assert_eq!(spa.view().unwrap().dataset("t/f").unwrap().encryption_root().unwrap().as_deref(), Some("t/f"));
    spa.load_key("t/f", &testing::key(2).wrapping).unwrap();
    let status = |name: &str| spa.view().unwrap().dataset(name).unwrap().key_status().unwrap();
    assert_eq!(status("t/f"), KeyStatus::Available);
}

#[test]
fn a_task_that_panics_suspends_the_pool_as_a_bug() {
    let (spa, _device) = pool();
    let done = spa.sync_task(|_| -> Result<(), Error> { panic!("within a task") });
    let bug = |error: &Error| matches!(error, Error::Suspended(why) if matches!(**why, Error::Bug(_)));
    assert!(done.as_ref().is_err_and(bug), "{done:?}");
}
