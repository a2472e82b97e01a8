//! Pools of a machine whose devices are gone: they are shown, cleared, closed and exported while requests wait.
#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use base::{Errno, Guid};
use control::{Caller, Canceller, Ioc, NewVdevs};
use nvlist::NvList;
use site::import::How;
use site::{Imported, Machine, Session};
use support::{create, in_own_state, list, machine, new_fs, sited};
use vdev::create::VdevSpec;
use zpl::live::{Cred, NewFile, Zfs};

/// No wait of these tests is as long.
const LONG: Duration = Duration::from_secs(60);

const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;

/// Takes the devices of the pool away, and brings them back.
fn move_devices(dir: &Path, are_away: bool) {
    let away = dir.join("away");
    std::fs::create_dir_all(&away).unwrap();
    for (here, there) in ["a", "b"].map(|name| (dir.join(name), away.join(name))) {
        let (from, to) = if are_away { (here, there) } else { (there, here) };
        std::fs::rename(from, to).unwrap();
    }
}

/// Waits until the pool is suspended.
fn wait_suspended(session: &Session) -> NvList {
    let begun = Instant::now();
    loop {
        // until somebody has noticed, what is not in the cache cannot be read
        let stats = session.call(Ioc::PoolStats, "t", &NvList::new()).map_err(|e| e.errno);
        match stats {
            Ok(stats) if stats.contains("suspended") => return stats,
            stats => assert!(begun.elapsed() < LONG, "it is not suspended: {stats:?}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_suspended_pool_is_shown_and_keeps_nobody_waiting() {
    in_own_state("a_suspended_pool_is_shown_and_keeps_nobody_waiting", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        move_devices(dir, true);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| new_fs(&session, "t/meanwhile"));
            let other = machine.own_session(Caller::default());
            let stats = wait_suspended(&other);
            assert_eq!(stats.get_u64("suspended"), Some(0));
            let config = other.call(Ioc::PoolConfigs, "", &NvList::new()).unwrap();
            assert_eq!(config.get_nvlist("t").unwrap().get_u64("state"), Some(0));
            let health = other.call(Ioc::PoolGetProps, "t", &NvList::new()).unwrap();
            assert_eq!(health.get_nvlist("health").unwrap().get_str("value"), Some("SUSPENDED"));
            other.call(Ioc::PoolGetProps, "t", &list(&[("what", 1u64.into())])).unwrap_err();
            assert_eq!(new_fs(&other, "t/none"), Err(Errno::EAGAIN));
            let listed = other.call(Ioc::DatasetListNext, "t", &NvList::new());
            assert_eq!(listed.unwrap_err().errno, Errno::EAGAIN);
            assert!(!waiting.is_finished());
            move_devices(dir, false);
            other.call(Ioc::Clear, "t", &NvList::new()).unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert_eq!(session.call(Ioc::DatasetListNext, "t", &NvList::new()).unwrap().len(), 1);
    });
}

#[test]
fn a_suspended_pool_can_be_closed_while_requests_wait_for_its_devices() {
    in_own_state("a_suspended_pool_can_be_closed_while_requests_wait_for_its_devices", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        move_devices(dir, true);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| new_fs(&session, "t/meanwhile"));
            // it is suspended before the close or while that waits for the request
            let closing = scope.spawn(|| machine.close("t").map_err(|e| e.errno));
            let begun = Instant::now();
            while !(waiting.is_finished() && closing.is_finished()) {
                assert!(begun.elapsed() < LONG, "the pool is wedged");
                thread::sleep(Duration::from_millis(20));
            }
        });
        assert!(machine.open_pools().is_empty());
        assert_eq!(site::suspended::of(site.find("t").unwrap().unwrap().guid), None);
        move_devices(dir, false);
        new_fs(&session, "t/after").unwrap();
    });
}

#[test]
fn a_pool_that_is_suspended_by_its_close_is_given_up() {
    in_own_state("a_pool_that_is_suspended_by_its_close_is_given_up", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        let record = site.find("t").unwrap().unwrap();
        let spa = site.changing(&record).unwrap();
        let fs = Zfs::open(&spa, "t").unwrap();
        move_devices(dir, true);
        fs.create(&Cred::ROOT, fs.fs().root(), b"f", &NewFile::new(zpl::Kind::File, 0o644)).unwrap();
        drop(fs);
        drop(spa);
        thread::scope(|scope| {
            let closing = scope.spawn(|| machine.close("t").map_err(|e| e.errno));
            let begun = Instant::now();
            while !closing.is_finished() {
                if begun.elapsed() > LONG {
                    std::process::exit(1);
                }
                thread::sleep(Duration::from_millis(20));
            }
            assert!(closing.join().unwrap().is_err());
        });
        assert!(machine.open_pools().is_empty());
        assert_eq!(site::suspended::of(record.guid), None);
        move_devices(dir, false);
        new_fs(&session, "t/after").unwrap();
    });
}

#[test]
fn devices_come_into_a_pool_while_another_is_suspended() {
    in_own_state("devices_come_into_a_pool_while_another_is_suspended", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        let other = dir.join("other");
        let [first, second] = ["first", "second"].map(|name| dir.join(name));
        for path in [&other, &first, &second] {
            std::fs::File::create(path).unwrap().set_len(96 << 20).unwrap();
        }
        let config = |path: &Path| {
            let spec = VdevSpec::parse(&[path.display().to_string()]).unwrap();
            NewVdevs { spec, ..NewVdevs::default() }.to_list()
        };
        session.call(Ioc::PoolCreate, "u", &list(&[("config", config(&other).into())])).unwrap();
        let add = |pool: &str, path: &Path| {
            let own = machine.own_session(Caller::default());
            let input = list(&[("config", config(path).into())]);
            own.call(Ioc::VdevAdd, pool, &input).map(drop).map_err(|e| e.errno)
        };
        move_devices(dir, true);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| add("t", &first));
            wait_suspended(&machine.own_session(Caller::default()));
            let begun = Instant::now();
            let adding = scope.spawn(|| add("u", &second));
            while !adding.is_finished() {
                if begun.elapsed() > LONG {
                    std::process::exit(1);
                }
                thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(adding.join().unwrap(), Ok(()));
            assert!(!waiting.is_finished());
            move_devices(dir, false);
            machine.own_session(Caller::default()).call(Ioc::Clear, "t", &NvList::new()).unwrap();
            waiting.join().unwrap().unwrap();
        });
        let has = |pool: &str, path: &Path| site.find(pool).unwrap().unwrap().devices.contains(&path.to_path_buf());
        assert!(has("t", &first) && has("u", &second));
        // one that cannot be added is not in the record
        assert!(add("u", &first).is_err() && !has("u", &first));
        assert!(add("t", &first).is_err() && has("t", &first));
    });
}

#[test]
fn a_wait_for_space_that_a_suspended_pool_frees_can_be_ended() {
    in_own_state("a_wait_for_space_that_a_suspended_pool_frees_can_be_ended", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        // so many blocks that they are not freed soon
        let props = list(&[("recordsize", 512u64.into())]);
        session.call(Ioc::Create, "t/fs", &list(&[("type", 2i32.into()), ("props", props.into())])).unwrap();
        let spa = site.changing(&site.find("t").unwrap().unwrap()).unwrap();
        {
            let fs = Zfs::open(&spa, "t/fs").unwrap();
            let root = fs.fs().root();
            let file = fs.create(&Cred::ROOT, root, b"f", &NewFile::new(zpl::Kind::File, 0o644)).unwrap().0;
            fs.write(&Cred::ROOT, file, 0, &base::Env::noise(7, 8 << 20)).unwrap();
            spa.sync().unwrap();
        }
        drop(spa);
        base::tunable::ZFS_ASYNC_BLOCK_MAX_BLOCKS.set(1);
        session.call(Ioc::Destroy, "t/fs", &NvList::new()).unwrap();
        let wait = list(&[("wait_activity", 1i32.into())]);
        loop {
            let canceller = Canceller::default();
            let token = canceller.token();
            let ended = thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    let own = machine.own_session(Caller::default());
                    own.call_until(Ioc::Wait, "t", &wait, &token).map(drop).map_err(|e| e.errno)
                });
                move_devices(dir, true);
                wait_suspended(&session);
                let begun = Instant::now();
                canceller.cancel();
                while !waiting.is_finished() {
                    if begun.elapsed() > LONG {
                        std::process::exit(1);
                    }
                    thread::sleep(Duration::from_millis(20));
                }
                waiting.join().unwrap()
            });
            move_devices(dir, false);
            session.call(Ioc::Clear, "t", &NvList::new()).unwrap();
            // it is refused if it came when the pool was suspended already
            assert!(matches!(ended, Err(Errno::EINTR | Errno::EAGAIN)), "{ended:?}");
            if ended == Err(Errno::EINTR) {
                break;
            }
        }
    });
}

#[test]
fn a_pool_that_is_suspended_elsewhere_is_cleared_there() {
    in_own_state("a_pool_that_is_suspended_elsewhere_is_cleared_there", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        move_devices(dir, true);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| new_fs(&session, "t/meanwhile"));
            wait_suspended(&machine.own_session(Caller::default()));
            let (_site, _other, other) = sited();
            let clear = || other.call(Ioc::Clear, "t", &NvList::new()).map(drop).map_err(|e| e.errno);
            assert_eq!(clear(), Err(Errno::EIO));
            assert!(!waiting.is_finished());
            move_devices(dir, false);
            assert_eq!(clear(), Ok(()));
            waiting.join().unwrap().unwrap();
        });
    });
}

#[test]
fn a_failed_export_leaves_no_dead_pool() {
    in_own_state("a_failed_export_leaves_no_dead_pool", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        let props = list(&[("failmode", 1u64.into())]);
        session.call(Ioc::PoolSetProps, "t", &list(&[("props", props.into())])).unwrap();
        new_fs(&session, "t/before").unwrap();
        move_devices(dir, true);
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap_err();
        assert!(machine.open_pools().is_empty());
        move_devices(dir, false);
        new_fs(&session, "t/after").unwrap();
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
    });
}

#[test]
fn an_export_that_waits_for_devices_keeps_nobody_else_waiting() {
    in_own_state("an_export_that_waits_for_devices_keeps_nobody_else_waiting", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        new_fs(&session, "t/before").unwrap();
        let export = || session.call(Ioc::PoolExport, "t", &NvList::new()).map_err(|e| e.errno);
        let other = machine.own_session(Caller::default());
        // it goes on when the pool is cleared, and fails when it is closed
        for cleared in [false, true] {
            move_devices(dir, true);
            thread::scope(|scope| {
                let exporting = scope.spawn(export);
                wait_suspended(&other);
                assert_eq!(new_fs(&other, "t/none"), Err(Errno::EAGAIN));
                assert!(!exporting.is_finished());
                if cleared {
                    move_devices(dir, false);
                    other.call(Ioc::Clear, "t", &NvList::new()).unwrap();
                } else {
                    machine.close("t").unwrap();
                }
                assert_eq!(exporting.join().unwrap().is_ok(), cleared);
            });
            assert!(machine.open_pools().is_empty());
            if !cleared {
                move_devices(dir, false);
                new_fs(&session, "t/after").unwrap();
            }
        }
        assert_eq!(new_fs(&session, "t/none"), Err(Errno::ENOENT));
    });
}

/// Waits until something is so.
fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > LONG {
            eprintln!("somebody waits for ever");
            std::process::exit(1);
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// Devices that go while a pool becomes one of the machine.
struct Going<'a> {
    /// Whether they go now.
    when: &'a dyn Fn(&Imported) -> bool,
    /// What is done while the pool waits for them.
    then: &'a dyn Fn(&Imported),
    /// Undoes what was done before they were gone.
    again: &'a dyn Fn(),
    /// Whether a request that fails is made again as well.
    must_wait: bool,
}

/// Makes the pool `t` one of the machine by `request`, and takes its devices away: the next txg finds them gone. Gives what came of the request; one that was done before is made again.
fn without_devices(
    dir: &Path,
    request: impl Fn() -> Result<(), Errno> + Sync,
    Going { when, then, again, must_wait }: Going<'_>,
) -> Result<(), Errno> {
    let paths = ["a", "b"].map(|name| dir.join(name));
    let begun = Instant::now();
    loop {
        let record = Imported { devices: paths.to_vec(), ..Imported::default() };
        let (is_suspended, done) = thread::scope(|scope| {
            let waiting = scope.spawn(&request);
            until(|| waiting.is_finished() || when(&record));
            move_devices(dir, true);
            let guid = || suspended_pool(dir);
            until(|| waiting.is_finished() || guid().is_some());
            let is_suspended = !waiting.is_finished();
            if is_suspended {
                then(&Imported { guid: guid().unwrap_or_default(), ..record });
            }
            until(|| waiting.is_finished());
            (is_suspended, waiting.join().unwrap())
        });
        if is_suspended || (done.is_err() && !must_wait) {
            return done;
        }
        assert!(begun.elapsed() < LONG, "it is always done before its devices are gone: {done:?}");
        move_devices(dir, false);
        again();
    }
}

/// The pool that is suspended; there is one at most.
fn suspended_pool(dir: &Path) -> Option<Guid> {
    let names =
        std::fs::read_dir(dir.join("state")).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut guids = names.filter_map(|name| name.strip_suffix(".suspended")?.parse().ok().map(Guid));
    guids.find(|guid| site::suspended::of(*guid).is_some())
}

/// Imports the pool `t` so.
fn import_without_devices(dir: &Path, session: &Session, then: impl Fn(&Imported)) -> Result<(), Errno> {
    let found = vdev::import::scan(&["a", "b"].map(|name| dir.join(name))).unwrap().remove(0);
    let input = How::default().request(&found, NvList::new());
    drop(found);
    let import = || session.call(Ioc::PoolImport, "t", &input).map(drop).map_err(|e| e.errno);
    let export = || drop(session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap());
    let going = Going { when: &site::writing::is_used, then: &then, again: &export, must_wait: false };
    without_devices(dir, import, going)
}

/// Creates the pool `t` so.
fn create_without_devices(dir: &Path, session: &Session, then: impl Fn(&Imported)) -> Result<(), Errno> {
    let paths = ["a", "b"].map(|name| dir.join(name));
    let new_files = || paths.iter().for_each(|path| std::fs::File::create(path).unwrap().set_len(96 << 20).unwrap());
    let words: Vec<String> =
        ["mirror".into()].into_iter().chain(paths.iter().map(|path| path.display().to_string())).collect();
    let config = NewVdevs { spec: VdevSpec::parse(&words).unwrap(), ..NewVdevs::default() }.to_list();
    let input = list(&[("config", config.into())]);
    let create = || session.call(Ioc::PoolCreate, "t", &input).map(drop).map_err(|e| e.errno);
    let again = || {
        let _undone = session.call(Ioc::PoolDestroy, "t", &NvList::new());
        new_files();
    };
    new_files();
    // its first txg is on the devices
    let has_uberblock = |_: &Imported| {
        let mut ring = vec![0; 128 << 10];
        let read = std::fs::File::open(&paths[0]).and_then(|file| file.read_exact_at(&mut ring, 128 << 10));
        read.is_ok() && ring.chunks(8).any(|word| word == UBERBLOCK_MAGIC.to_ne_bytes())
    };
    let going = Going { when: &has_uberblock, then: &then, again: &again, must_wait: true };
    without_devices(dir, create, going)
}

#[test]
fn a_pool_that_is_suspended_while_it_is_imported_can_be_closed_and_cleared() {
    in_own_state("a_pool_that_is_suspended_while_it_is_imported_can_be_closed_and_cleared", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        let other = machine.own_session(Caller::default());
        for close in [|machine: &Machine| machine.close("t"), Machine::close_all] {
            let closed = import_without_devices(dir, &session, |record| {
                let shown = other.call(Ioc::PoolStats, "t", &NvList::new()).unwrap();
                assert!(shown.contains("suspended"));
                close(&machine).unwrap();
                assert_eq!(site::suspended::of(record.guid), None);
            });
            assert_eq!(closed, Err(Errno::EIO));
            assert!(machine.open_pools().is_empty() && site.find("t").unwrap().is_none());
            assert_eq!(new_fs(&other, "t/none"), Err(Errno::ENOENT));
            move_devices(dir, false);
        }
        let cleared = import_without_devices(dir, &session, |_| {
            move_devices(dir, false);
            other.call(Ioc::Clear, "t", &NvList::new()).unwrap();
        });
        assert_eq!(cleared, Ok(()));
        new_fs(&session, "t/after").unwrap();
        assert_eq!(machine.open_pools().len(), 1);
    });
}

#[test]
fn an_import_that_fails_as_devices_go_leaves_nothing_behind() {
    in_own_state("an_import_that_fails_as_devices_go_leaves_nothing_behind", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        let props = list(&[("failmode", 1u64.into())]);
        session.call(Ioc::PoolSetProps, "t", &list(&[("props", props.into())])).unwrap();
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        assert!(import_without_devices(dir, &session, |_| ()).is_err());
        move_devices(dir, false);
        let found = vdev::import::scan(&["a", "b"].map(|name| dir.join(name))).unwrap().remove(0);
        assert_eq!(site::suspended::of(found.guid), None);
        session.call(Ioc::PoolImport, "t", &How::default().request(&found, NvList::new())).unwrap();
        machine.close("t").unwrap();
    });
}

#[test]
fn a_pool_that_is_suspended_while_it_is_created_can_be_cleared_and_closed() {
    in_own_state("a_pool_that_is_suspended_while_it_is_created_can_be_cleared_and_closed", |dir| {
        let (machine, session) = machine();
        let other = machine.own_session(Caller::default());
        let (_site, _elsewhere, elsewhere) = sited();
        for clears in [&other, &elsewhere] {
            let cleared = create_without_devices(dir, &session, |_| {
                assert_eq!(new_fs(&other, "t/none"), Err(Errno::EAGAIN));
                move_devices(dir, false);
                clears.call(Ioc::Clear, "t", &NvList::new()).unwrap();
            });
            assert_eq!(cleared, Ok(()));
            new_fs(&other, "t/after").unwrap();
            session.call(Ioc::PoolDestroy, "t", &NvList::new()).unwrap();
        }
        let closed = create_without_devices(dir, &session, |_| machine.close("t").unwrap());
        assert!(closed.is_err() && machine.open_pools().is_empty());
    });
}

#[test]
fn a_pool_that_another_process_waits_to_import_is_cleared_there() {
    in_own_state("a_pool_that_another_process_waits_to_import_is_cleared_there", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        let (_site, _other, other) = sited();
        let cleared = import_without_devices(dir, &session, |_| {
            move_devices(dir, false);
            other.call(Ioc::Clear, "t", &NvList::new()).unwrap();
        });
        assert_eq!((cleared, machine.open_pools().len()), (Ok(()), 1));
    });
}

#[test]
fn a_suspended_import_keeps_its_name_and_no_other() {
    in_own_state("a_suspended_import_keeps_its_name_and_no_other", |dir| {
        base::tunable::BUSY_WAIT.set(2);
        let (machine, session) = machine();
        create(&session, dir);
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        let file = dir.join("other");
        std::fs::File::create(&file).unwrap().set_len(96 << 20).unwrap();
        let spec = VdevSpec::parse(&[file.display().to_string()]).unwrap();
        let input = list(&[("config", NewVdevs { spec, ..NewVdevs::default() }.to_list().into())]);
        let other = machine.own_session(Caller::default());
        let new_pool = |name: &str| other.call(Ioc::PoolCreate, name, &input).map(drop).map_err(|e| e.errno);
        let cleared = import_without_devices(dir, &session, |_| {
            assert!(new_pool("t").is_err());
            assert_eq!(new_pool("u"), Ok(()));
            move_devices(dir, false);
            other.call(Ioc::Clear, "t", &NvList::new()).unwrap();
        });
        assert_eq!((cleared, machine.open_pools().len()), (Ok(()), 2));
    });
}

#[test]
fn a_pool_that_waits_for_its_devices_is_not_taken() {
    in_own_state("a_pool_that_waits_for_its_devices_is_not_taken", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        let other = machine.own_session(Caller::default());
        let take = || {
            thread::scope(|scope| {
                let taking = scope.spawn(|| machine.take("t").is_none());
                until(|| taking.is_finished());
                assert!(taking.join().unwrap());
            });
            move_devices(dir, false);
            other.call(Ioc::Clear, "t", &NvList::new()).unwrap();
        };
        assert_eq!(import_without_devices(dir, &session, |_| take()), Ok(()));
        session.call(Ioc::PoolDestroy, "t", &NvList::new()).unwrap();
        assert_eq!(create_without_devices(dir, &session, |_| take()), Ok(()));
        assert!(machine.take("t").is_some());
    });
}

#[test]
fn a_new_pool_does_not_take_the_record_of_an_import_that_was_quicker() {
    in_own_state("a_new_pool_does_not_take_the_record_of_an_import_that_was_quicker", |dir| {
        let (machine, session) = machine();
        let (site, _elsewhere, elsewhere) = sited();
        let created = create_without_devices(dir, &session, |_| {
            move_devices(dir, false);
            let found = vdev::import::scan(&["a", "b"].map(|name| dir.join(name))).unwrap().remove(0);
            let how = How { name: Some("u".to_owned()), readonly: true, ..How::default() };
            elsewhere.call(Ioc::PoolImport, "u", &how.request(&found, NvList::new())).unwrap();
            elsewhere.call(Ioc::Clear, "t", &NvList::new()).unwrap();
        });
        assert_eq!((created, machine.open_pools().len()), (Err(Errno::EEXIST), 0));
        let names: Vec<String> = site.all().unwrap().into_iter().map(|record| record.name).collect();
        assert_eq!(names, ["u"]);
    });
}

#[test]
fn a_suspended_pool_is_shown_though_another_just_looks_for_it() {
    in_own_state("a_suspended_pool_is_shown_though_another_just_looks_for_it", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        let guid = site.find("t").unwrap().unwrap().guid;
        machine.close("t").unwrap();
        let file = std::fs::File::create(dir.join("state").join(format!("{guid}.suspended"))).unwrap();
        file.lock_shared().unwrap();
        new_fs(&session, "t/before").unwrap();
        move_devices(dir, true);
        let waiting = machine.own_session(Caller::default());
        thread::scope(|scope| {
            scope.spawn(move || drop(new_fs(&waiting, "t/waits")));
            // whoever looks has it for a moment, in which the pool is suspended
            thread::sleep(Duration::from_millis(300));
            drop(file);
            until(|| site::suspended::of(guid).is_some_and(|pool| !pool.vdevs.is_empty()));
            move_devices(dir, false);
            session.call(Ioc::Clear, "t", &NvList::new()).unwrap();
        });
        machine.close("t").unwrap();
    });
}
