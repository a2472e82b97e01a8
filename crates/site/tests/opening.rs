//! What a machine does where it opens a pool: keys that are kept and forgotten, logs, devices that were away, changes of others.
#![allow(clippy::unwrap_used)]

#[path = "support/calls.rs"]
mod calls;
mod support;

use std::path::Path;
use std::thread;
use std::time::Duration;

use base::{Errno, ObjectId};
use calls::{changing, snapshot};
use control::{Caller, Ioc, NewVdevs};
use nvlist::{NvList, Value};
use site::{Machine, Session, Silent, Site};
use support::{create, in_own_state, list, machine, new_fs, sited};
use vdev::create::VdevSpec;
use zpl::live::{Cred, NewFile, Zfs};

/// The value of a property in an answer.
fn number(answer: &NvList, prop: &str) -> Option<u64> {
    answer.get_nvlist(prop)?.get_u64("value")
}

fn with_key(key: u8) -> NvList {
    let hidden = list(&[("wkeydata", Value::Uint8Array(vec![key; 32]))]);
    list(&[("hidden_args", hidden.into())])
}

/// Makes an encrypted file system `t/e`.
fn new_encrypted(session: &Session) {
    let mut encrypted = with_key(7);
    encrypted.insert("type", 2i32);
    encrypted.insert("props", list(&[("encryption", 1u64.into()), ("keyformat", 1u64.into())]));
    session.call(Ioc::Create, "t/e", &encrypted).unwrap();
}

/// Makes an encrypted file system `t/e`, whose key is kept in a file.
fn keep_key(site: &Site, session: &Session, dir: &Path) {
    new_encrypted(session);
    std::fs::write(dir.join("key"), [7; 32]).unwrap();
    let location = format!("file://{}", dir.join("key").display());
    let key = codec::crypt::WrappingKey::from_raw(&[7; 32]).unwrap();
    let view = changing(site).view().unwrap();
    site::keys::keep(&site.query(&view), "t/e", &location, &key, &Silent).unwrap();
    drop(view);
}

#[test]
fn keys_stay_loaded_and_are_of_pools_that_are_only_read_as_well() {
    in_own_state("keys_stay_loaded_and_are_of_pools_that_are_only_read_as_well", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        new_encrypted(&session);
        let status = || {
            let own = machine.own_session(Caller::default());
            number(&own.call(Ioc::ObjsetStats, "t/e", &NvList::new()).unwrap(), "keystatus")
        };
        let (unavailable, available) = (Some(1), Some(2));
        let call = |ioc, input: &NvList| session.call(ioc, "t/e", input).map(drop).map_err(|e| e.errno);
        let none = NvList::new();
        assert_eq!(status(), available);
        assert_eq!((call(Ioc::UnloadKey, &none), status()), (Ok(()), unavailable));
        assert_eq!((call(Ioc::LoadKey, &with_key(8)), status()), (Err(Errno::EACCES), unavailable));
        assert_eq!((call(Ioc::LoadKey, &with_key(7)), status()), (Ok(()), available));
        // the history tells it, without the key
        session.call(Ioc::PoolSync, "t", &list(&[("force", false.into())])).unwrap();
        let records = session.call(Ioc::PoolGetHistory, "t", &none).unwrap();
        let records = records.get_nvlist_array("history record").unwrap();
        let of = |name: &str| records.iter().filter(|record| record.get_str("ioctl") == Some(name)).count();
        assert_eq!((of("load-key"), of("unload-key")), (1, 1));
        assert!(!format!("{records:?}").contains("wkeydata"));

        let config = session.call(Ioc::PoolConfigs, "", &none).unwrap().get_nvlist("t").cloned().unwrap();
        session.call(Ioc::PoolExport, "t", &none).unwrap();
        let guid = config.get_u64("pool_guid").unwrap();
        let props = list(&[("readonly", 1u64.into())]);
        let import = list(&[("guid", guid.into()), ("config", config.into()), ("props", props.into())]);
        session.call(Ioc::PoolImport, "t", &import).unwrap();
        assert_eq!(status(), unavailable);
        assert_eq!(call(Ioc::UnloadKey, &none), Err(Errno::EACCES));
        assert_eq!((call(Ioc::LoadKey, &with_key(7)), status()), (Ok(()), available));
        assert_eq!(call(Ioc::LoadKey, &with_key(7)), Err(Errno::EEXIST));
        assert_eq!(call(Ioc::ChangeKey, &with_key(7)), Err(Errno::EROFS));
        assert_eq!((call(Ioc::UnloadKey, &none), status()), (Ok(()), unavailable));
        assert_eq!(machine.open_pools().len(), 1);
        machine.close("t").unwrap();
        assert!(machine.open_pools().is_empty());
    });
}

#[test]
fn an_unloaded_key_is_kept_for_nobody() {
    in_own_state("an_unloaded_key_is_kept_for_nobody", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        keep_key(&site, &session, dir);
        let record = || site.find("t").unwrap().unwrap();
        assert_eq!(record().keys.len(), 1);
        session.call(Ioc::UnloadKey, "t/e", &NvList::new()).unwrap();
        assert_eq!((record().keys.len(), record().unloaded.len()), (0, 1));
        machine.close("t").unwrap();
        machine.open("t").unwrap();
        let stats = session.call(Ioc::ObjsetStats, "t/e", &NvList::new()).unwrap();
        assert_eq!(number(&stats, "keystatus"), Some(1));
    });
}

#[test]
fn a_key_that_was_changed_is_kept_for_nobody() {
    in_own_state("a_key_that_was_changed_is_kept_for_nobody", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        keep_key(&site, &session, dir);
        let record = || site.find("t").unwrap().unwrap();
        assert_eq!(record().keys.len(), 1);
        let mut change = with_key(8);
        change.insert("props", list(&[("keyformat", 1u64.into())]));
        session.call(Ioc::ChangeKey, "t/e", &change).unwrap();
        assert_eq!((record().keys.len(), record().unloaded.len()), (0, 0));
        machine.close("t").unwrap();
        let load = |key: u8| session.call(Ioc::LoadKey, "t/e", &with_key(key)).map(drop).map_err(|e| e.errno);
        assert_eq!((load(7), load(8)), (Err(Errno::EACCES), Ok(())));
    });
}

#[test]
fn a_kept_key_is_that_of_its_root_after_a_promote() {
    in_own_state("a_kept_key_is_that_of_its_root_after_a_promote", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        keep_key(&site, &session, dir);
        let root = || site.find("t").unwrap().unwrap().keys[0].0;
        let before = root();
        snapshot(&session, "t/e@s").unwrap();
        session.call(Ioc::Clone, "t/clone", &list(&[("origin", "t/e@s".into())])).unwrap();
        session.call(Ioc::Promote, "t/clone", &NvList::new()).unwrap();
        machine.close("t").unwrap();
        assert_ne!(root(), before);
        session.call(Ioc::Destroy, "t/e", &NvList::new()).unwrap();
        let stats = session.call(Ioc::ObjsetStats, "t/clone", &NvList::new()).unwrap();
        assert_eq!(number(&stats, "keystatus"), Some(2));
    });
}

/// Makes a file in each of these file systems, which is in their logs alone, and ends the process, as far as the devices can tell. Returns the numbers of the files.
fn leave_logs(site: &Site, machine: &Machine, dir: &Path, names: [&str; 2]) -> [ObjectId; 2] {
    let spa = changing(site);
    let opened = names.map(|name| Zfs::open(&spa, name).unwrap());
    let make = |name: &[u8]| {
        opened.each_ref().map(|fs| {
            let new = NewFile::new(zpl::Kind::File, 0o644);
            let (file, _) = fs.create(&Cred::ROOT, fs.fs().root(), name, &new).unwrap();
            fs.fsync(file).unwrap();
            file
        })
    };
    // the beginning of a log is written with a txg
    make(b"before");
    spa.sync().unwrap();
    let files = make(b"f");
    let devices = ["a", "b"].map(|name| (dir.join(name), dir.join(format!("{name}.then"))));
    devices.iter().for_each(|(device, then)| assert!(std::fs::copy(device, then).is_ok()));
    let guid = spa.guid();
    drop((opened, spa));
    machine.close("t").unwrap();
    devices.iter().for_each(|(device, then)| assert!(std::fs::copy(then, device).is_ok()));
    site::left::forget(guid);
    files
}

#[test]
fn logs_are_replayed_before_the_first_change() {
    in_own_state("logs_are_replayed_before_the_first_change", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        new_encrypted(&session);
        let [file, secret] = leave_logs(&site, &machine, dir, ["t", "t/e"]);
        let has = |name: &str, object: ObjectId| {
            let stats = session.call(Ioc::ObjToStats, name, &list(&[("obj", object.0.into())]));
            stats.is_ok_and(
                |stats| matches!(stats.get("path"), Some(Value::String(path)) if path.to_str() == Some("/f")),
            )
        };
        // what everybody may ask changes nothing
        machine.open("t").unwrap();
        session.call(Ioc::PoolSync, "t", &list(&[("force", true.into())])).unwrap();
        assert!(!has("t", file));
        snapshot(&session, "t@s").unwrap();
        assert!(has("t@s", file) && has("t", file));
        // that of an encrypted one once there is its key
        session.call(Ioc::LoadKey, "t/e", &with_key(7)).unwrap();
        assert!(!has("t/e", secret));
        snapshot(&session, "t/e@s").unwrap();
        assert!(has("t/e@s", secret));
    });
}

#[test]
fn devices_that_were_away_are_brought_up_to_date_before_the_first_change() {
    in_own_state("devices_that_were_away_are_brought_up_to_date_before_the_first_change", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        machine.close("t").unwrap();
        let away = dir.join("away");
        std::fs::create_dir(&away).unwrap();
        std::fs::rename(dir.join("b"), away.join("b")).unwrap();
        new_fs(&session, "t/meanwhile").unwrap();
        machine.close("t").unwrap();
        std::fs::rename(away.join("b"), dir.join("b")).unwrap();
        let is_behind = || changing(&site).tree().stale_leaves().next().is_some();
        machine.open("t").unwrap();
        assert!(is_behind());
        new_fs(&session, "t/after").unwrap();
        assert!(!is_behind());
    });
}

#[test]
fn a_pool_that_is_read_is_that_of_its_import() {
    in_own_state("a_pool_that_is_read_is_that_of_its_import", |dir| {
        let (_first, reading) = machine();
        let (second, writing) = machine();
        create(&writing, dir);
        let none = NvList::new();
        let config = writing.call(Ioc::PoolConfigs, "", &none).unwrap().get_nvlist("t").cloned().unwrap();
        writing.call(Ioc::PoolExport, "t", &none).unwrap();
        let import = |session: &Session, readonly: u64| {
            let props = list(&[("readonly", readonly.into())]);
            let guid = config.get_u64("pool_guid").unwrap();
            let input = list(&[("guid", guid.into()), ("config", config.clone().into()), ("props", props.into())]);
            session.call(Ioc::PoolImport, "t", &input).unwrap();
        };
        let listed = || reading.call(Ioc::DatasetListNext, "t", &none).unwrap().len();
        import(&reading, 1);
        assert_eq!(listed(), 0);
        writing.call(Ioc::PoolExport, "t", &none).unwrap();
        import(&writing, 0);
        new_fs(&writing, "t/new").unwrap();
        second.close("t").unwrap();
        assert_eq!(listed(), 1);
    });
}

#[test]
fn a_pool_that_another_writes_is_seen_as_it_is_now() {
    in_own_state("a_pool_that_another_writes_is_seen_as_it_is_now", |dir| {
        let (_first, reading) = machine();
        let (second, writing) = machine();
        create(&writing, dir);
        let none = NvList::new();
        let seen = || {
            second.close("t").unwrap();
            let below = reading.call(Ioc::DatasetListNext, "t", &none).unwrap().len();
            let configs = reading.call(Ioc::PoolConfigs, "", &none).unwrap();
            (below, configs.get_nvlist("t").unwrap().get_str("comment").map(str::to_owned))
        };
        assert_eq!(seen(), (0, None));
        new_fs(&writing, "t/new").unwrap();
        let props = list(&[("comment", "ours".into())]);
        writing.call(Ioc::PoolSetProps, "t", &list(&[("props", props.into())])).unwrap();
        assert_eq!(seen(), (1, Some("ours".to_owned())));
    });
}

#[test]
fn an_export_that_was_cut_short_is_brought_to_its_end() {
    in_own_state("an_export_that_was_cut_short_is_brought_to_its_end", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        let record = site.find("t").unwrap().unwrap();
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        // as if the process had ended before
        site::records::remember(&record).unwrap();
        assert!(session.call(Ioc::PoolDestroy, "t", &NvList::new()).is_err());
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        assert!(site.find("t").unwrap().is_none() && machine.open_pools().is_empty());
    });
}

#[test]
fn a_new_pool_that_cannot_be_remembered_is_closed_and_its_error_told() {
    in_own_state("a_new_pool_that_cannot_be_remembered_is_closed_and_its_error_told", |dir| {
        let (machine, session) = machine();
        let (state, away) = (dir.join("state"), dir.join("away"));
        let device = dir.join("new");
        std::fs::File::create(&device).unwrap().set_len(96 << 20).unwrap();
        let spec = VdevSpec::parse(&[device.display().to_string()]).unwrap();
        let config = NewVdevs { spec, ..NewVdevs::default() }.to_list();
        let make = || session.call(Ioc::PoolCreate, "u", &list(&[("config", config.clone().into())]));
        let record = site::Imported { devices: vec![device.clone()], ..Default::default() };
        let failed = loop {
            let made = thread::scope(|scope| {
                let making = scope.spawn(make);
                while !site::writing::is_used(&record) && !making.is_finished() {
                    thread::sleep(Duration::from_micros(200));
                }
                std::fs::rename(&state, &away).unwrap();
                std::fs::write(&state, "no folder").unwrap();
                making.join().unwrap()
            });
            let is_open = !machine.open_pools().is_empty();
            std::fs::remove_file(&state).unwrap();
            std::fs::rename(&away, &state).unwrap();
            match made {
                Err(failed) => break (failed.errno, is_open),
                // it was remembered before
                Ok(_) => drop(session.call(Ioc::PoolDestroy, "u", &NvList::new()).unwrap()),
            }
        };
        assert_eq!(failed, (Errno::ENOTDIR, false));
        make().unwrap();
    });
}
