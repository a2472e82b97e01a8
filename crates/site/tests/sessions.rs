//! Sessions of many callers at once: what each may do, pools and keys that stay, waits that end, one state for one diff.
#![allow(clippy::unwrap_used)]

#[path = "support/calls.rs"]
mod calls;
mod support;

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use base::{Errno, ObjectId};
use calls::{changing, snapshot};
use control::{Caller, Canceller, DiffRecord, Ioc, Who};
use nvlist::{NvList, Value};
use site::{Machine, Session, Silent, Site};
use support::{create, in_own_state, list, machine, new_fs, sited};
use zpl::live::{Cred, NewFile, Zfs};

/// No wait of these tests is as long.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_stranger_is_told_nothing_but_what_is_open_to_everybody() {
    in_own_state("a_stranger_is_told_nothing_but_what_is_open_to_everybody", |dir| {
        let (machine, own) = machine();
        create(&own, dir);
        let owner = site::records::owner();
        let as_user = |uid: u32| machine.session(Caller { uid, real_uid: uid, ..Caller::default() });
        let (stranger, root) = (as_user(owner + 1), as_user(0));
        for ioc in Ioc::ALL {
            for name in ["t", "t/none", "none", "@"] {
                let errno = stranger.call(ioc, name, &NvList::new()).err().map(|failed| failed.errno);
                match ioc.who() {
                    Who::Everybody => assert_ne!(errno, Some(Errno::EPERM), "{ioc:?} {name}"),
                    _ => assert_eq!(errno, Some(Errno::EPERM), "{ioc:?} {name}"),
                }
            }
        }
        let stats = stranger.call(Ioc::PoolStats, "t", &NvList::new()).unwrap();
        assert_eq!(stats.get_str("name"), Some("t"));
        assert_eq!(new_fs(&stranger, "t/fs"), Err(Errno::EPERM));
        for (session, name) in [(&root, "t/root"), (&as_user(owner), "t/owner")] {
            new_fs(session, name).unwrap();
        }
        let below = stranger.call(Ioc::DatasetListNext, "t", &NvList::new()).unwrap();
        assert_eq!(below.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["t/owner", "t/root"]);
    });
}

#[test]
fn a_pool_stays_open_until_it_is_closed() {
    in_own_state("a_pool_stays_open_until_it_is_closed", |dir| {
        let (machine, session) = machine();
        let open = || machine.open_pools().iter().map(|pool| pool.name.clone()).collect::<Vec<_>>();
        create(&session, dir);
        assert_eq!(open(), ["t"]);
        let devices = [dir.join("a"), dir.join("b")];
        assert!(devices.iter().all(|path| vdev::device::is_busy(path)));
        let stats = session.call(Ioc::PoolStats, "t", &NvList::new()).unwrap();
        let mirror = &stats.get_nvlist("vdev_tree").unwrap().get_nvlist_array("children").unwrap()[0];
        let path = mirror.get_nvlist_array("children").unwrap()[0].get_str("path").unwrap().to_owned();
        assert_eq!(Path::new(&path), devices[0]);
        machine.close("none").unwrap();
        machine.close("t").unwrap();
        assert!(open().is_empty() && !devices.iter().any(|path| vdev::device::is_busy(path)));
        // a question opens no pool for a change, a change does
        session.call(Ioc::DatasetListNext, "t", &NvList::new()).unwrap();
        assert!(open().is_empty());
        new_fs(&session, "t/fs").unwrap();
        assert_eq!(open(), ["t"]);
        machine.close_all().unwrap();
        assert!(open().is_empty());
        machine.open("t").unwrap();
        assert_eq!((open(), machine.open("none").unwrap_err().errno), (vec!["t".to_owned()], Errno::ENOENT));
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
        assert!(open().is_empty() && !devices.iter().any(|path| vdev::device::is_busy(path)));
        assert_eq!(new_fs(&session, "t/other"), Err(Errno::ENOENT));
    });
}

/// A stream that stops in the middle until it is let go on.
struct Stalling {
    bytes: io::Cursor<Vec<u8>>,
    stop: u64,
    begun: Sender<()>,
    go_on: Receiver<()>,
}

impl Read for Stalling {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.bytes.position() >= self.stop {
            self.stop = u64::MAX;
            let _told = self.begun.send(());
            let _go_on = self.go_on.recv();
        }
        let most = usize::try_from(self.stop.saturating_sub(self.bytes.position())).unwrap_or(usize::MAX).max(1);
        let len = buf.len().min(most);
        self.bytes.read(&mut buf[..len])
    }
}

/// The bytes that were written, by whichever clone.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream of a file system with a file of a megabyte.
fn stream(session: &Session, spa: &Arc<pool::Spa>) -> Vec<u8> {
    new_fs(session, "t/src").unwrap();
    let fs = Zfs::open(spa, "t/src").unwrap();
    let root = fs.fs().root();
    let file = fs.create(&Cred::ROOT, root, b"f", &NewFile::new(zpl::Kind::File, 0o644)).unwrap().0;
    fs.write(&Cred::ROOT, file, 0, &base::Env::noise(7, 1 << 20)).unwrap();
    drop(fs);
    spa.sync().unwrap();
    let written = Written::default();
    session.caller().files.output(3, Box::new(written.clone()), Arc::default());
    snapshot(session, "t/src@s").unwrap();
    session.call(Ioc::SendNew, "t/src@s", &list(&[("fd", 3i32.into())])).unwrap();
    let bytes = written.0.lock().unwrap().clone();
    assert!(bytes.len() > 1 << 20);
    bytes
}

/// The request to receive a stream whose input stalls half-way: what tells that it does, and what lets it go on.
fn stalling(receiver: &Session, mut bytes: Vec<u8>) -> (NvList, Receiver<()>, Sender<()>) {
    let rest = bytes.split_off(312);
    let (begun, has_begun) = channel();
    let (go, go_on) = channel();
    let stop = rest.len() as u64 / 2;
    let input = Stalling { bytes: io::Cursor::new(rest), stop, begun, go_on };
    receiver.caller().files.input(4, Box::new(input), Arc::default());
    let request =
        list(&[("snapname", "t/new@s".into()), ("begin_record", Value::ByteArray(bytes)), ("input_fd", 4i32.into())]);
    (request, has_begun, go)
}

#[test]
fn a_snapshot_answers_in_the_middle_of_a_long_receive() {
    in_own_state("a_snapshot_answers_in_the_middle_of_a_long_receive", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        let bytes = stream(&session, &changing(&site));
        let receiver = machine.own_session(Caller::default());
        let (request, has_begun, go) = stalling(&receiver, bytes);
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receiver.call(Ioc::RecvNew, "t/new", &request));
            has_begun.recv_timeout(LONG).unwrap();
            thread::scope(|others| {
                for n in 0..8 {
                    let (machine, session) = (&machine, &session);
                    others.spawn(move || {
                        let own = machine.own_session(Caller::default());
                        for m in 0..4 {
                            snapshot(if m % 2 == 0 { session } else { &own }, &format!("t/src@{n}-{m}")).unwrap();
                            own.call(Ioc::SnapshotListNext, "t/src", &NvList::new()).unwrap();
                        }
                    });
                }
            });
            assert!(!receiving.is_finished());
            // it is in use, as in OpenZFS
            let left = session.call(Ioc::PoolExport, "t", &NvList::new());
            assert_eq!(left.unwrap_err().errno, Errno::EBUSY);
            go.send(()).unwrap();
            receiving.join().unwrap().unwrap();
        });
        let all = session.call(Ioc::SnapshotListNext, "t/src", &NvList::new()).unwrap();
        assert_eq!(all.len(), 33);
        let new = session.call(Ioc::SnapshotListNext, "t/new", &NvList::new()).unwrap();
        assert_eq!(new.len(), 1);
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
    });
}

#[test]
fn many_threads_open_a_pool_once() {
    in_own_state("many_threads_open_a_pool_once", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        machine.close("t").unwrap();
        thread::scope(|scope| {
            for n in 0..8 {
                let machine = &machine;
                scope.spawn(move || {
                    let own = machine.own_session(Caller::default());
                    new_fs(&own, &format!("t/{n}")).unwrap();
                });
            }
        });
        assert_eq!(session.call(Ioc::DatasetListNext, "t", &NvList::new()).unwrap().len(), 8);
    });
}

#[test]
fn waits_end_when_their_caller_says_so_or_is_gone() {
    in_own_state("waits_end_when_their_caller_says_so_or_is_gone", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        let scrub = list(&[("scan_type", 1u64.into()), ("scan_command", 0u64.into())]);
        // a scrub that reads nothing
        base::tunable::ZFS_SCAN_SUSPEND_PROGRESS.set(1);
        session.call(Ioc::PoolScrub, "t", &scrub).unwrap();
        let wait = list(&[("wait_activity", 6i32.into())]);
        let ended_by = |end: fn(Canceller)| {
            let canceller = Canceller::default();
            let token = canceller.token();
            thread::scope(|scope| {
                let waiting = scope.spawn(|| session.call_until(Ioc::Wait, "t", &wait, &token).map_err(|e| e.errno));
                thread::sleep(Duration::from_millis(200));
                assert!(!waiting.is_finished());
                let begun = Instant::now();
                end(canceller);
                let ended = waiting.join().unwrap();
                assert!(begun.elapsed() < LONG);
                ended.map(drop)
            })
        };
        assert_eq!(ended_by(|canceller| canceller.cancel()), Err(Errno::EINTR));
        assert_eq!(ended_by(drop), Err(Errno::EINTR));
        // an event that does not come
        session.call(Ioc::EventsSeek, "", &list(&[("eid", u64::MAX.into())])).unwrap();
        let canceller = Canceller::default();
        let token = canceller.token();
        let ended = thread::scope(|scope| {
            let next = list(&[("wait_ms", 60_000u64.into())]);
            let (session, token) = (&session, &token);
            let waiting = scope.spawn(move || {
                loop {
                    // what the scrub has told
                    match session.call_until(Ioc::EventsNext, "", &next, token) {
                        Ok(_) => {}
                        Err(failed) => break failed.errno,
                    }
                }
            });
            thread::sleep(Duration::from_millis(200));
            drop(canceller);
            waiting.join().unwrap()
        });
        assert_eq!(ended, Errno::EINTR);
        // a wait does not keep a pool from being exported, which ends it
        let ended = thread::scope(|scope| {
            let waiting = scope.spawn(|| session.call(Ioc::Wait, "t", &wait).map_err(|e| e.errno));
            thread::sleep(Duration::from_millis(200));
            machine.own_session(Caller::default()).call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
            waiting.join().unwrap().map(drop)
        });
        assert_eq!(ended, Ok(()));
    });
}

fn file(spa: &Arc<pool::Spa>, name: &[u8]) -> ObjectId {
    let fs = Zfs::open(spa, "t").unwrap();
    let root = fs.fs().root();
    let (file, _) = fs.create(&Cred::ROOT, root, name, &NewFile::new(zpl::Kind::File, 0o644)).unwrap();
    spa.sync().unwrap();
    file
}

#[test]
fn one_diff_sees_one_state_of_a_head() {
    in_own_state("one_diff_sees_one_state_of_a_head", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        let spa = changing(&site);
        let kept = file(&spa, b"kept");
        snapshot(&session, "t@one").unwrap();
        let new = file(&spa, b"new");
        let path = |session: &Session, object: ObjectId| -> Result<String, Errno> {
            let stats = session.call(Ioc::ObjToStats, "t", &list(&[("obj", object.0.into())])).map_err(|e| e.errno)?;
            match stats.get("path") {
                Some(Value::String(path)) => Ok(path.to_string_lossy().into_owned()),
                other => panic!("{other:?}"),
            }
        };
        let records = || {
            let written = Written::default();
            session.caller().files.output(3, Box::new(written.clone()), Arc::default());
            session.call(Ioc::Diff, "t", &list(&[("fromsnap", "t@one".into()), ("fd", 3i32.into())])).unwrap();
            let bytes = written.0.lock().unwrap().clone();
            let (all, _) = bytes.as_chunks::<{ DiffRecord::SIZE }>();
            all.iter().filter_map(DiffRecord::decode).filter(|record| record.in_use).collect::<Vec<_>>()
        };
        let has = |object: ObjectId| records().iter().any(|record| (record.first..=record.last).contains(&object));
        assert!(has(new));
        // another caller changes it meanwhile
        {
            let fs = Zfs::open(&spa, "t").unwrap();
            fs.unlink(&Cred::ROOT, fs.fs().root(), b"new").unwrap();
        }
        let later = file(&spa, b"later");
        assert_eq!(path(&session, new), Ok("/new".to_owned()), "the diff goes on in the state that it has seen");
        let other = machine.own_session(Caller::default());
        assert_eq!((path(&other, later), path(&other, kept)), (Ok("/later".to_owned()), Ok("/kept".to_owned())));
        // a diff from the beginning sees what is there now
        assert!(has(later));
        assert_eq!(path(&session, later), Ok("/later".to_owned()));
        // and so does who changes something
        let last = file(&spa, b"last");
        assert_ne!(path(&session, last), Ok("/last".to_owned()));
        snapshot(&session, "t@two").unwrap();
        assert_eq!(path(&session, last), Ok("/last".to_owned()));
        drop(spa);
    });
}

#[test]
fn who_is_not_the_owner_has_no_pool_opened() {
    in_own_state("who_is_not_the_owner_has_no_pool_opened", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        let uid = site::records::owner() + 1;
        let stranger = machine.session(Caller { uid, real_uid: uid, ..Caller::default() });
        let sync = list(&[("force", false.into())]);
        let asked = || {
            let wait = list(&[("wait_activity", 6i32.into())]);
            let condense = list(&[("condense_command", "cancel".into()), ("condense_type", "log_spacemap".into())]);
            let all = [(Ioc::PoolSync, &sync), (Ioc::Wait, &wait), (Ioc::PoolCondense, &condense)];
            all.map(|(ioc, input)| stranger.call(ioc, "t", input).err().map(|e| e.errno))
        };
        assert_eq!(asked()[..2], [None, None]);
        machine.close("t").unwrap();
        assert_eq!(asked(), [Some(Errno::EPERM); 3]);
        // nor does a request that makes no sense open it
        session.call(Ioc::PoolSync, "t", &list(&[("what", 1u64.into())])).unwrap_err();
        assert!(machine.open_pools().is_empty());
        session.call(Ioc::PoolSync, "t", &sync).unwrap();
        assert_eq!(machine.open_pools().len(), 1);
    });
}

#[test]
fn a_receive_whose_caller_is_gone_does_not_keep_the_pool() {
    in_own_state("a_receive_whose_caller_is_gone_does_not_keep_the_pool", |dir| {
        let (site, _machine, session) = sited();
        create(&session, dir);
        let bytes = stream(&session, &changing(&site));
        let (request, has_begun, go) = stalling(&session, bytes);
        let canceller = Canceller::default();
        let token = canceller.token();
        let ended = thread::scope(|scope| {
            let receiving = scope.spawn(|| session.call_until(Ioc::RecvNew, "t/new", &request, &token));
            has_begun.recv_timeout(LONG).unwrap();
            drop(canceller);
            go.send(()).unwrap();
            receiving.join().unwrap().map(drop).map_err(|e| e.errno)
        });
        assert_eq!(ended, Err(Errno::EINTR));
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
    });
}

/// A file that takes nothing until it is let go on.
struct Clogged(Sender<()>, Receiver<()>);

impl Write for Clogged {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let _told = self.0.send(());
        let _go_on = self.1.recv();
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_send_whose_caller_is_gone_does_not_keep_the_pool() {
    in_own_state("a_send_whose_caller_is_gone_does_not_keep_the_pool", |dir| {
        let site = Site::new(Arc::new(Silent));
        let session = Machine::new(site.clone()).own_session(Caller::default());
        create(&session, dir);
        stream(&session, &changing(&site));
        let (begun, has_begun) = channel();
        let (go, go_on) = channel();
        session.caller().files.output(4, Box::new(Clogged(begun, go_on)), Arc::default());
        let canceller = Canceller::default();
        let token = canceller.token();
        let ended = thread::scope(|scope| {
            let request = list(&[("fd", 4i32.into())]);
            let (session, token) = (&session, &token);
            let sending = scope.spawn(move || session.call_until(Ioc::SendNew, "t/src@s", &request, token));
            has_begun.recv_timeout(LONG).unwrap();
            drop(canceller);
            drop(go);
            sending.join().unwrap().map(drop).map_err(|e| e.errno)
        });
        assert_eq!(ended, Err(Errno::EINTR));
        assert!(has_begun.try_recv().is_err(), "more was written");
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
    });
}

#[test]
fn a_stranger_who_waits_for_a_file_system_has_nothing_written() {
    in_own_state("a_stranger_who_waits_for_a_file_system_has_nothing_written", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        new_fs(&session, "t/fs").unwrap();
        let uid = site::records::owner() + 1;
        let stranger = machine.session(Caller { uid, real_uid: uid, ..Caller::default() });
        let spa = changing(&site);
        spa.sync().unwrap();
        // something is to be written
        let fs = Zfs::open(&spa, "t").unwrap();
        fs.create(&Cred::ROOT, fs.fs().root(), b"f", &NewFile::new(zpl::Kind::File, 0o644)).unwrap();
        let before = spa.view().unwrap().uberblock().txg;
        let wait = list(&[("wait_activity", 0i32.into())]);
        let ask = |session: &Session, name: &str| {
            session.call(Ioc::WaitFs, name, &wait).map(|out| out.get_bool("wait_waited")).map_err(|e| e.errno)
        };
        assert_eq!(ask(&stranger, "t/fs"), Ok(Some(false)));
        assert_eq!(ask(&stranger, "t/none"), Err(Errno::ENOENT));
        assert_eq!(spa.view().unwrap().uberblock().txg, before, "it had something written");
        assert_eq!(ask(&session, "t/fs"), Ok(Some(false)));
        assert!(spa.view().unwrap().uberblock().txg > before);
    });
}

#[test]
fn keys_that_are_unloaded_at_once_all_stay_so() {
    in_own_state("keys_that_are_unloaded_at_once_all_stay_so", |dir| {
        let (site, machine, session) = sited();
        create(&session, dir);
        let guid = site.find("t").unwrap().unwrap().guid;
        let names: Vec<String> = (0..4).map(|n| format!("t/{n}")).collect();
        let hidden = || list(&[("wkeydata", Value::Uint8Array(vec![7; 32]))]);
        for name in &names {
            let props = list(&[("encryption", 8u64.into()), ("keyformat", 1u64.into())]);
            let input = [("type", 2i32.into()), ("props", props.into()), ("hidden_args", hidden().into())];
            session.call(Ioc::Create, name, &list(&input)).unwrap();
        }
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        let soft = core.split_whitespace().nth(4).unwrap();
        assert!(matches!(soft, "0" | "1"), "the process has keys and may leave a core dump: {core}");
        for round in 0..8 {
            thread::scope(|scope| {
                for name in &names {
                    let machine = &machine;
                    let own = machine.own_session(Caller::default());
                    scope.spawn(move || own.call(Ioc::UnloadKey, name, &NvList::new()).unwrap());
                }
            });
            let record = site.all().unwrap().into_iter().find(|record| record.guid == guid).unwrap();
            assert_eq!(record.unloaded.len(), names.len(), "round {round}");
            for name in &names {
                session.call(Ioc::LoadKey, name, &list(&[("hidden_args", hidden().into())])).unwrap();
            }
            site::records::remember(&site::Imported { unloaded: Vec::new(), ..record }).unwrap();
        }
    });
}

#[test]
fn a_name_that_another_thread_gives_is_waited_for() {
    in_own_state("a_name_that_another_thread_gives_is_waited_for", |_| {
        let reserve =
            |name, guid| site::records::reserve(&Silent, name, Some(base::Guid(guid))).map_err(|e| e.to_string());
        for (name, guid) in [("t", 2), ("u", 1)] {
            let names = reserve("t", 1).unwrap();
            drop(reserve("u", 2).unwrap());
            thread::scope(|scope| {
                let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| reserve(name, guid).map(drop))).collect();
                thread::sleep(Duration::from_secs(1));
                assert!(waiting.iter().all(|one| !one.is_finished()));
                drop(names);
                waiting.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), Ok(())));
            });
        }
        let left = std::fs::read_dir(site::records::folder().unwrap()).unwrap();
        assert_eq!(left.count(), 0, "nothing stays of them");
    });
}

/// A program that is slow while a pool is opened.
struct Slow(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl site::Front for Slow {
    fn opened(&self, _pool: &Arc<pool::Pool>) {
        // only the first waits
        if let Ok(go_on) = self.0.try_lock() {
            let _waited = go_on.recv_timeout(Duration::from_secs(30));
        }
    }
}

#[test]
fn who_looks_at_a_pool_does_not_wait_until_another_has_opened_it() {
    in_own_state("who_looks_at_a_pool_does_not_wait_until_another_has_opened_it", |dir| {
        let (first, session) = machine();
        create(&session, dir);
        new_fs(&session, "t/fs").unwrap();
        first.close("t").unwrap();
        let (go_on, waits) = std::sync::mpsc::channel();
        let machine = Machine::new(Site::new(Arc::new(Slow(std::sync::Mutex::new(waits)))));
        let own = machine.own_session(Caller::default());
        thread::scope(|scope| {
            let opening = scope.spawn(|| machine.open("t").map_err(|e| e.errno));
            thread::sleep(Duration::from_secs(1));
            assert!(!opening.is_finished());
            let begun = Instant::now();
            let listed = own.call(Ioc::DatasetListNext, "t", &NvList::new()).unwrap();
            assert!(!opening.is_finished() && listed.len() == 1, "{:?}", begun.elapsed());
            go_on.send(()).unwrap();
            assert_eq!(opening.join().unwrap(), Ok(()));
        });
    });
}
