//! Pools that are made, vdevs that come and go, and the events of that.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::Arc;

use base::Errno;
use control::{Caller, Control, Ioc, NewVdevs, Plain};
use nvlist::{NvList, Value};
use pool::Hooks;
use support::pool;
use vdev::FileDevice;
use vdev::create::VdevSpec;

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

/// A request for vdevs on new files in `dir`: words that begin with a slash.
fn config(dir: &Path, words: &str, ashift: Option<u64>) -> NvList {
    let words = words.split(' ').map(|word| match word.strip_prefix('/') {
        Some(name) => {
            let path = dir.join(name);
            drop(FileDevice::create(&path, 96 << 20).unwrap());
            path.display().to_string()
        }
        None => word.to_owned(),
    });
    let spec = VdevSpec::parse(&words.collect::<Vec<_>>()).unwrap();
    list(&[("config", NewVdevs { spec, ashift, shared: Vec::new() }.to_list().into())])
}

const DONE: Errno = Errno::from_raw(0);

fn errno(control: &Control, ioc: Ioc, input: &NvList) -> Errno {
    control.call(ioc, "t", input).map_or_else(|failed| failed.errno, |_| DONE)
}

#[test]
fn vdevs_are_added_and_removed_by_request() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let tops = || control.spa().tree().tops().iter().filter(|top| top.is_concrete()).count();
    let larger = config(dir.path(), "/n", Some(12));
    assert_eq!(errno(&control, Ioc::VdevAdd, &larger), Errno::ZFS_ERR_ASHIFT_MISMATCH);
    assert_eq!(errno(&control, Ioc::VdevAdd, &config(dir.path(), "log mirror /l /m", None)), DONE);
    assert_eq!(tops(), 2);
    let log = control.spa().tree().tops().iter().find(|top| top.config().is_log).map(|top| top.guid()).unwrap();
    assert_eq!(errno(&control, Ioc::VdevRemove, &list(&[("guid", log.0.into())])), DONE);
    assert_eq!(tops(), 1);
    assert_ne!(errno(&control, Ioc::VdevRemove, &list(&[("guid", log.0.into())])), DONE);
    assert_eq!(errno(&control, Ioc::VdevAdd, &list(&[("config", NvList::new().into())])), Errno::EINVAL);
    assert_eq!(errno(&control, Ioc::VdevDetach, &list(&[("guid", log.0.into())])), Errno::ENODEV);
    let next = || control.call(Ioc::EventsNext, "t", &NvList::new());
    let read = || -> Vec<NvList> {
        let all = std::iter::from_fn(|| next().ok()?.get_nvlist("event").cloned());
        // other tests have pools in this process
        all.filter(|event| event.get_u64("pool_guid") == Some(control.spa().guid().0)).collect()
    };
    let events = read();
    let number = |class: &str| {
        let of_class = events.iter().find(|event| event.get_str("class").is_some_and(|known| known.ends_with(class)));
        of_class.and_then(|event| event.get_u64("eid"))
    };
    let (added, removed) = (number("vdev_add").unwrap(), number("vdev_remove_dev").unwrap());
    assert!(added < removed);
    assert_eq!(errno(&control, Ioc::EventsSeek, &list(&[("eid", (1u64 << 60).into())])), Errno::ENOENT);
    assert_eq!(errno(&control, Ioc::EventsSeek, &list(&[("eid", removed.into())])), DONE);
    assert_eq!(read().first().and_then(|event| event.get_u64("eid")), Some(removed));
    assert_eq!(errno(&control, Ioc::EventsSeek, &list(&[("eid", u64::MAX.into())])), DONE);
    assert!(read().iter().all(|event| event.get_u64("eid") > Some(removed)));
    control.spa().export().unwrap();
}

#[test]
fn a_pool_is_made_by_request_and_its_history_names_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let caller = Caller { uid: 7, gid: 8, real_uid: 9, ..Caller::default() };
    let make = |input: &NvList| {
        Control::create_pool("new", input, (Hooks::default(), caller.clone()), Arc::new(Plain)).map_err(|e| e.errno)
    };
    let mut input = config(dir.path(), "mirror /a /b log /c", Some(12));
    let root = list(&[("compression", 15u64.into())]);
    input.insert("props", list(&[("feature@nonesuch", 0u64.into())]));
    assert_eq!(make(&input).map(drop), Err(Errno::EINVAL));
    let props = [("comment", "a pool".into()), ("feature@bookmarks", 0u64.into()), ("root-props-nvl", root.into())];
    input.insert("props", list(&props));
    let control = make(&input).unwrap();
    control.call(Ioc::LogHistory, "new", &list(&[("message", "zpool create new".into())])).unwrap();
    let view = control.spa().view().unwrap();
    let prop = |name: &str| view.prop(name).unwrap().map(|prop| prop.value.to_string());
    assert_eq!(prop("comment").as_deref(), Some("a pool"));
    assert!(view.feature_enabled("bookmarks") && !view.feature_enabled("large_dnode"));
    let compression = view.dataset("new").unwrap().prop("compression").unwrap().unwrap().value.number();
    assert_eq!(compression, Some(15));
    let history = control.call(Ioc::PoolGetHistory, "new", &NvList::new()).unwrap();
    let records = history.get_nvlist_array("history record").unwrap();
    let by = records.iter().find(|record| record.contains("history command")).unwrap();
    assert_eq!(by.get_u64("history who"), Some(9));
    control.spa().export().unwrap();
}
