//! Requests to the pools of this machine, through the one door: a pool is made, exported, found, tried, imported and changed.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Errno, Guid};
use control::{Caller, Control, Ioc, NewVdevs};
use nvlist::{NvList, Value};
use site::import::{How, trial};
use site::rewind::Policy;
use site::{Machine, Silent, Site};
use support::{create, in_own_state, list, machine, new_fs, sited};
use vdev::create::VdevSpec;
use vdev::import::PoolState;

#[test]
fn pools_are_made_exported_and_imported() {
    in_own_state("pools_are_made_exported_and_imported", |dir| {
        let (whole, machine) = machine();
        create(&machine, dir);
        let call = |ioc, name: &str, pairs: &[(&str, Value)]| machine.call(ioc, name, &list(pairs));
        let configs = || call(Ioc::PoolConfigs, "", &[]).unwrap();
        let config = configs().get_nvlist("t").cloned().unwrap();
        let guid = config.get_u64("pool_guid").unwrap();
        assert_eq!(config.get_u64("state"), Some(0));
        let tree = list(&[("config", NvList::new().into())]);
        assert_eq!(machine.call(Ioc::PoolCreate, "t", &tree).unwrap_err().errno, Errno::EEXIST);
        for bad in ["a/b", "/../../t", "mirror", ""] {
            let tree = list(&[("config", NvList::new().into()), ("props", list(&[("tname", bad.into())]).into())]);
            let failed = machine.call(Ioc::PoolCreate, "u", &tree).unwrap_err();
            assert_eq!(failed.errno, Errno::EINVAL, "{bad}: {failed}");
            assert!(failed.to_string().contains("name"), "{bad}: {failed}");
        }

        new_fs(&machine, "t/fs").unwrap();
        let below = call(Ioc::DatasetListNext, "t", &[]).unwrap();
        assert!(below.contains("t/fs"), "what was changed is seen");
        assert_eq!(call(Ioc::PoolStats, "none", &[]).unwrap_err().errno, Errno::ENOENT);

        for ioc in [Ioc::PoolDestroy, Ioc::PoolExport] {
            for name in ["t/fs", "t/fs@s", "t@s"] {
                assert_eq!(call(ioc, name, &[]).unwrap_err().errno, Errno::EINVAL, "{ioc:?} {name}");
            }
        }
        call(Ioc::PoolExport, "t", &[]).unwrap();
        assert!(configs().is_empty());
        assert_eq!(call(Ioc::PoolStats, "t", &[]).unwrap_err().errno, Errno::ENOENT);
        let tried = call(Ioc::PoolTryImport, "", &[("config", config.clone().into())]).unwrap();
        assert_eq!((tried.get_u64("pool_guid"), tried.get_u64("state")), (Some(guid), Some(1)));
        assert!(tried.get_nvlist("load_info").unwrap().is_empty());

        let import = |name: &str, guid: u64, props: &[(&str, Value)]| {
            let pairs = [("guid", guid.into()), ("config", config.clone().into()), ("props", list(props).into())];
            call(Ioc::PoolImport, name, &pairs)
        };
        assert_eq!(import("t", guid ^ 1, &[]).unwrap_err().errno, Errno::EINVAL);
        // one that no pool can have, and one that this pool cannot have
        for (name, value, errno) in [("comment", "\n", Errno::EINVAL), ("bootfs", "t/none", Errno::ENOENT)] {
            assert_eq!(import("t", guid, &[(name, value.into())]).unwrap_err().errno, errno, "{name}");
            assert!(configs().is_empty(), "it is not imported");
        }
        import("new", guid, &[("readonly", 1u64.into())]).unwrap();
        assert_eq!(import("other", guid, &[]).unwrap_err().errno, Errno::EEXIST);
        let destroyed = call(Ioc::Destroy, "new/fs", &[]).unwrap_err();
        assert_eq!(destroyed.errno, Errno::EROFS);
        // as long as something of it is mounted
        let mounted = [whole.mounted(Guid(guid)), whole.mounted(Guid(guid))];
        for one in mounted {
            assert_eq!(call(Ioc::PoolExport, "new", &[]).unwrap_err().errno, Errno::EBUSY);
            drop(one);
        }
        call(Ioc::PoolExport, "new", &[]).unwrap();
        import("t", guid, &[("comment", "back".into())]).unwrap();
        let props = call(Ioc::PoolGetProps, "t", &[]).unwrap();
        let value = |name: &str| props.get_nvlist(name).unwrap().get("value").cloned();
        assert_eq!((value("comment"), value("readonly")), (Some("back".into()), Some(0u64.into())));
        call(Ioc::Destroy, "t/fs", &[]).unwrap();
        call(Ioc::PoolDestroy, "t", &[]).unwrap();
        assert!(configs().is_empty());
    });
}

#[test]
fn an_import_tells_what_is_missing_and_stays_open_for_who_wants_it() {
    in_own_state("an_import_tells_what_is_missing_and_stays_open_for_who_wants_it", |dir| {
        let paths = ["a", "b"].map(|name| dir.join(name).display().to_string());
        for path in &paths {
            std::fs::File::create(path).unwrap().set_len(96 << 20).unwrap();
        }
        let spec = VdevSpec::parse(&[paths[0].clone(), "log".to_owned(), paths[1].clone()]).unwrap();
        let config = NewVdevs { spec, ..NewVdevs::default() }.to_list();
        let (_machine, machine) = machine();
        machine.call(Ioc::PoolCreate, "t", &list(&[("config", config.into())])).unwrap();
        machine.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        // the labels tell another place
        std::fs::create_dir(dir.join("moved")).unwrap();
        std::fs::rename(dir.join("a"), dir.join("moved/a")).unwrap();
        let found = vdev::import::scan(&[dir.join("moved")]).unwrap().remove(0);
        let how = How { missing_log: true, ..How::default() };
        let request = |how: &How| how.request(&found, NvList::new());
        let failed = machine.call(Ioc::PoolImport, "t", &request(&How::default())).unwrap_err();
        let info = failed.out.get_nvlist("load_info").unwrap();
        let logs = info.get_nvlist("missing_vdevs").unwrap().get_nvlist_array("children").unwrap();
        assert_eq!((failed.errno, info.get_i32("errno"), logs.len()), (Errno::ENXIO, Some(Errno::ENXIO.raw()), 1));
        assert!(logs[0].get_str("path").unwrap().ends_with("/b"), "{logs:?}");

        // a trial says the same, and takes the pool without its log if it is asked to
        let tried = |input: &NvList| machine.call(Ioc::PoolTryImport, "", input).map_err(|e| e.errno);
        let errno = |config: NvList| config.get_nvlist("load_info").unwrap().get_i32("errno").map(Errno::from_raw);
        assert_eq!(tried(&trial(&found)).map(errno), Ok(Some(Errno::EIO)));
        assert_eq!(tried(&how.trial(&found)).map(errno), Ok(None));
        let mut odd = trial(&found);
        odd.insert("flags", 1u64 << 40);
        assert_eq!(tried(&odd).map(errno), Err(Errno::ENOTSUP));

        let site = Site::new(Arc::new(Silent));
        let policy = Policy { rewind: true, dry_run: true, ..Policy::default() };
        machine.call(Ioc::PoolImport, "t", &request(&How { policy, ..how.clone() })).unwrap();
        assert_eq!(site.find("t").unwrap(), None, "it was only tried");
        // one that the pool cannot have
        let bad = how.request(&found, list(&[("bootfs", "t/none".into())]));
        let keeper = Machine::new(site.clone());
        let keeping = keeper.own_session(Caller::default());
        assert_eq!(keeping.call(Ioc::PoolImport, "t", &bad).unwrap_err().errno, Errno::ENOENT);
        assert_eq!(site.find("t").unwrap(), None);
        assert_eq!(vdev::import::scan(&[dir.join("moved")]).unwrap().remove(0).state, PoolState::Exported);

        let how = How { temporary_name: true, ..how };
        keeping.call(Ioc::PoolImport, "other", &request(&how)).unwrap();
        keeping.call(Ioc::Create, "other/fs", &list(&[("type", 2i32.into())])).unwrap();
        let spa = keeper.take("other").unwrap();
        assert!(keeper.take("other").is_none() && keeper.open_pools().is_empty());
        assert!(spa.view().unwrap().dataset("other/fs").is_ok(), "under the name that it has here");
        site.hide_changes(&spa);
        spa.close().unwrap();
        drop(spa);
        machine.call(Ioc::PoolExport, "other", &NvList::new()).unwrap();
        assert_eq!(vdev::import::scan(&[dir.join("moved")]).unwrap().remove(0).name, "t");
    });
}

/// The bytes that were written, by whichever clone.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(buf)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_is_sent_to_a_file_of_the_caller() {
    in_own_state("a_stream_is_sent_to_a_file_of_the_caller", |dir| {
        let caller = Caller::default();
        let machine = Machine::new(Site::new(Arc::new(Silent))).own_session(caller.clone());
        create(&machine, dir);
        let snaps = list(&[("t@s", ().into())]);
        machine.call(Ioc::Snapshot, "t", &list(&[("snaps", snaps.into())])).unwrap();
        let written = Written::default();
        let send = || machine.call(Ioc::SendNew, "t@s", &list(&[("fd", 5i32.into())]));
        assert_eq!(send().unwrap_err().errno, Errno::EBADF);
        caller.files.output(5, Box::new(written.clone()), Arc::default());
        send().unwrap();
        assert!(written.0.lock().unwrap().len() > 312, "more than one record");
    });
}

#[test]
fn a_pool_that_does_not_open_is_told_by_its_labels() {
    in_own_state("a_pool_that_does_not_open_is_told_by_its_labels", |dir| {
        let (_machine, machine) = machine();
        create(&machine, dir);
        let config = machine.call(Ioc::PoolConfigs, "", &NvList::new()).unwrap().get_nvlist("t").cloned().unwrap();
        machine.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        let mut folders = config.clone();
        let mirror = &mut folders.get_nvlist_mut("vdev_tree").unwrap().get_nvlist_array_mut("children").unwrap()[0];
        let leaves = mirror.get_nvlist_array_mut("children").unwrap();
        leaves.iter_mut().for_each(|leaf| leaf.insert("path", dir.to_str().unwrap()));
        let tried = machine.call(Ioc::PoolTryImport, "", &list(&[("config", folders.into())]));
        assert_eq!(tried.unwrap_err().errno, Errno::ENXIO, "a folder is not looked through");
        let input = list(&[("config", config.into())]);
        std::fs::remove_file(dir.join("b")).unwrap();
        let tried = machine.call(Ioc::PoolTryImport, "", &input).unwrap();
        let state = |config: &NvList| config.get_nvlist("vdev_tree").unwrap().get_u64_array("vdev_stats").unwrap()[1];
        assert_eq!((state(&tried), tried.get_nvlist("load_info").unwrap().is_empty()), (6, true), "degraded");
        // its labels are whole, its metadata is not
        let file = std::fs::OpenOptions::new().write(true).open(dir.join("a")).unwrap();
        let zeros = vec![0; 88 << 20];
        std::os::unix::fs::FileExt::write_all_at(&file, &zeros, 4 << 20).unwrap();
        let tried = machine.call(Ioc::PoolTryImport, "", &input).unwrap();
        let info = tried.get_nvlist("load_info").unwrap();
        assert!(info.contains("errno") && info.get_u64("aux").is_some(), "{info:?}");
        assert!(tried.get_nvlist("vdev_tree").unwrap().get_nvlist_array("children").is_some());
        std::fs::remove_file(dir.join("a")).unwrap();
        assert_eq!(machine.call(Ioc::PoolTryImport, "", &input).unwrap_err().errno, Errno::ENXIO);
    });
}

#[test]
fn devices_that_come_and_go_are_recorded() {
    in_own_state("devices_that_come_and_go_are_recorded", |dir| {
        let (_machine, machine) = machine();
        create(&machine, dir);
        let path = dir.join("c");
        std::fs::File::create(&path).unwrap().set_len(96 << 20).unwrap();
        let is_recorded = || {
            let record = Site::new(Arc::new(Silent)).find("t").unwrap().unwrap();
            record.devices.contains(&path)
        };
        let add = |name: &str| {
            let spec = VdevSpec::parse(&["cache".to_owned(), dir.join(name).display().to_string()]).unwrap();
            let config = NewVdevs { spec, ..NewVdevs::default() }.to_list();
            machine.call(Ioc::VdevAdd, "t", &list(&[("config", config.into())]))
        };
        let before = Site::new(Arc::new(Silent)).find("t").unwrap();
        assert!(add("none").is_err());
        assert_eq!(Site::new(Arc::new(Silent)).find("t").unwrap(), before, "nothing has come");
        add("c").unwrap();
        assert!(is_recorded());
        assert_eq!(add("c").unwrap_err().errno, Errno::EBUSY, "the pool has it already");
        assert!(is_recorded());
        let stats = machine.call(Ioc::PoolStats, "t", &NvList::new()).unwrap();
        let cache = &stats.get_nvlist("vdev_tree").unwrap().get_nvlist_array("l2cache").unwrap()[0];
        let guid = cache.get_u64("guid").unwrap();
        machine.call(Ioc::VdevRemove, "t", &list(&[("guid", guid.into())])).unwrap();
        assert!(!is_recorded());
    });
}

#[test]
fn events_of_all_processes_are_read_one_by_one() {
    in_own_state("events_of_all_processes_are_read_one_by_one", |dir| {
        let (_machine, machine) = machine();
        create(&machine, dir);
        site::events::publish();
        let call = |ioc, pairs: &[(&str, Value)]| machine.call(ioc, "", &list(pairs));
        let next = || call(Ioc::EventsNext, &[]);
        let mut classes = Vec::new();
        while let Ok(answer) = next() {
            classes.push(answer.get_nvlist("event").unwrap().get_str("class").unwrap().to_owned());
        }
        assert!(classes.iter().any(|class| class.ends_with("pool_create")), "{classes:?}");
        assert_eq!(next().unwrap_err().errno, Errno::ENOENT);
        call(Ioc::EventsSeek, &[("eid", 0u64.into())]).unwrap();
        assert!(next().is_ok());
        call(Ioc::EventsSeek, &[("eid", u64::MAX.into())]).unwrap();
        assert!(next().is_err());
        let cleared = call(Ioc::EventsClear, &[]).unwrap();
        assert_eq!(cleared.get_u64("cleared"), Some(classes.len() as u64));
    });
}

#[test]
fn a_program_beside_the_machine_borrows_its_pools() {
    in_own_state("a_program_beside_the_machine_borrows_its_pools", |dir| {
        let (_, machine, session) = sited();
        create(&session, dir);
        let beside = Site::of_machine(Arc::new(Silent), &machine);
        let record = beside.find("t").unwrap().unwrap();
        // it sees what is not closed, and its change is seen
        let spa = beside.write(&record).unwrap();
        let control = Control::new(spa.clone(), Caller::default());
        control.call(Ioc::Create, "t/fs", &list(&[("type", 2i32.into())])).unwrap();
        assert!(beside.open(&record).unwrap().dataset("t/fs").is_ok());
        let none = NvList::new();
        assert_eq!(session.call(Ioc::PoolExport, "t", &none).unwrap_err().errno, Errno::EBUSY);
        // closing leaves it open, and free
        beside.rest();
        beside.close(&spa).unwrap();
        assert!(!spa.is_stopped());
        drop((control, spa));
        session.call(Ioc::PoolExport, "t", &none).unwrap();
        assert!(beside.find("t").unwrap().is_none() && machine.open_pools().is_empty());
    });
}

#[test]
fn a_machine_that_has_ended_opens_no_pool() {
    in_own_state("a_machine_that_has_ended_opens_no_pool", |dir| {
        let (_, machine, session) = sited();
        create(&session, dir);
        let beside = Site::of_machine(Arc::new(Silent), &machine);
        let record = beside.find("t").unwrap().unwrap();
        let spa = beside.write(&record).unwrap();
        // what is in use is waited for, and left then
        let left = machine.end(Duration::from_millis(300)).unwrap_err();
        assert_eq!((left.errno, machine.open_pools().len()), (Errno::EBUSY, 1));
        beside.close(&spa).unwrap();
        machine.end(Duration::from_secs(60)).unwrap();
        assert!(spa.is_stopped() && machine.open_pools().is_empty());
        assert_eq!(machine.open("t").unwrap_err().errno, Errno::ECANCELED);
        assert_eq!(beside.write(&record).map(drop).unwrap_err().errno(), Errno::ECANCELED);
    });
}
