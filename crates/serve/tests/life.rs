//! How servers begin and end: one at a time, also after one that was killed, by hand and by systemd; what clients and other processes see of it.
#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

#[path = "../../site/tests/support/mod.rs"]
mod state;
mod support;

use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base::Errno;
use control::{Caller, Ioc};
use serve::{Client, Error, Options, Server};
use site::{Machine, Silent, Site};
use state::in_own_state;
use support::{
    LONG, Serving, call, client, create, endless_scrub, errno, list, new_fs, receive, sent, serve_if_asked,
    server_process, snapshot, until, with_pool,
};

/// Serves in a process of its own; a test that is run for that.
#[test]
fn a_server_for_the_other_tests() {
    serve_if_asked();
}

const SERVER: &str = "a_server_for_the_other_tests";

#[test]
fn there_is_one_server_at_a_time() {
    in_own_state("there_is_one_server_at_a_time", |_| {
        let socket = site::seat::path().unwrap();
        assert!(Client::connect().unwrap().is_none(), "there is no folder even");
        let serving = Serving::begin(Options::default());
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        for _ in 0..3 {
            let second = Server::new(Site::new(Arc::new(Silent)), Options::default()).unwrap_err();
            assert_eq!(second.kind(), std::io::ErrorKind::ResourceBusy);
            assert!(second.to_string().contains(&format!("process {}", std::process::id())), "{second}");
            assert_eq!(client().server_process(), u64::from(std::process::id()), "it took the socket of the first");
        }
        serving.end();
        assert!(!socket.exists() && Client::connect().unwrap().is_none());
        let open = Serving::begin(Options { delegation: true, ..Options::default() });
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
        open.end();
    });
}

#[test]
fn of_many_that_begin_at_once_one_serves() {
    in_own_state("of_many_that_begin_at_once_one_serves", |_| {
        // of a server that was killed
        std::fs::create_dir_all(site::seat::path().unwrap().parent().unwrap()).unwrap();
        drop(UnixListener::bind(site::seat::path().unwrap()).unwrap());
        assert!(Client::connect().unwrap().is_none());
        let (serving, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        if let Ok(server) = Server::new(Site::new(Arc::new(Silent)), Options::default()) {
                            assert_eq!(serving.fetch_add(1, Ordering::SeqCst), 0, "two have the seat");
                            let stop = serve::Stop::new().unwrap();
                            thread::scope(|scope| {
                                scope.spawn(|| {
                                    thread::sleep(Duration::from_millis(5));
                                    serving.fetch_sub(1, Ordering::SeqCst);
                                    stop.stop();
                                });
                                server.run(&stop).unwrap();
                            });
                        }
                    }
                });
            }
            let begun = Instant::now();
            let mut met = 0;
            while begun.elapsed() < LONG && (met <= 10 || begun.elapsed() < Duration::from_secs(2)) {
                // one that ends closes the connection before it has said hello, or after
                met += usize::from(Client::connect().is_ok_and(|client| client.is_some()));
            }
            over.store(true, Ordering::SeqCst);
            assert!(met > 10, "{met}");
        });
    });
}

/// Takes snapshots, or receives file systems, until the server is killed; the snapshots that it has answered.
fn changes_until_it_dies(
    name: &str,
    receives: bool,
    stream: &[u8],
    (killed, done_by): (&AtomicBool, &AtomicUsize),
) -> Vec<String> {
    let own = client();
    let mut answered = Vec::new();
    for n in 0.. {
        let done = if receives {
            let target = format!("t/new-{name}-{n}@s");
            let (request, rest) = receive(&target, stream);
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&rest).unwrap();
            file.rewind().unwrap();
            own.call(Ioc::RecvNew, target.trim_end_matches("@s"), &request, &[file.as_fd()]).map(|_| target)
        } else {
            let snapshot = format!("t/fs@{name}-{n}");
            let snaps = list(&[(snapshot.as_str(), ().into())]);
            own.call(Ioc::Snapshot, "t", &list(&[("snaps", snaps.into())]), &[]).map(|_| snapshot)
        };
        match done {
            Ok(snapshot) => {
                answered.push(snapshot);
                done_by.store(answered.len(), Ordering::SeqCst);
            }
            // never that it was done, and never that it was refused
            Err(Error::Gone(_)) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(killed.load(Ordering::SeqCst), "it was not killed yet");
    answered
}

#[test]
fn what_a_killed_server_has_answered_is_there_for_the_next() {
    in_own_state("what_a_killed_server_has_answered_is_there_for_the_next", |dir| {
        let mut server = server_process(SERVER);
        create(&client(), dir, "t");
        new_fs(&client(), "t/fs").unwrap();
        snapshot(&client(), "t/fs@sent").unwrap();
        let stream = sent(&client(), "t/fs@sent");
        let mut answered = Vec::new();
        for round in 0..5 {
            let (stopped, pid) = (AtomicBool::new(false), u64::from(server.id()));
            let done = [(); 3].map(|()| AtomicUsize::new(0));
            assert_eq!(client().server_process(), pid);
            let new: Vec<Vec<String>> = thread::scope(|scope| {
                let (stopped, stream, done) = (&stopped, &stream, &done);
                let write = |writer: usize| {
                    let told = (stopped, &done[writer]);
                    move || changes_until_it_dies(&format!("{round}-{writer}"), writer == 0, stream, told)
                };
                let writers: Vec<_> = (0..3).map(|writer| scope.spawn(write(writer))).collect();
                until("each has an answer", || done.iter().all(|done| done.load(Ordering::SeqCst) > 0));
                thread::sleep(Duration::from_millis(70 * round));
                stopped.store(true, Ordering::SeqCst);
                server.kill().unwrap();
                writers.into_iter().map(|writer| writer.join().unwrap()).collect()
            });
            server.wait().unwrap();
            assert!(new.iter().any(|of_one| !of_one.is_empty()));
            answered.extend(new.into_iter().flatten());
            assert!(site::seat::path().unwrap().exists() && Client::connect().unwrap().is_none());
            server = server_process(SERVER);
            let all = call(&client(), Ioc::SnapshotListNext, "t", &[("depth", 9u64.into())]).unwrap();
            let there: Vec<&str> = all.iter().map(|(name, _)| name).collect();
            assert!(
                answered.iter().all(|name| there.contains(&name.as_str())),
                "round {round}: {answered:?} {there:?}"
            );
        }
        assert!(answered.iter().any(|name| name.starts_with("t/new-")), "{answered:?}");
        // a process that is no client meets the locks of the server
        base::tunable::BUSY_WAIT.set(0);
        let own = Machine::new(Site::new(Arc::new(Silent))).own_session(Caller::default());
        let sync = list(&[("force", false.into())]);
        let refused = own.call(Ioc::PoolSync, "t", &sync).unwrap_err();
        assert!(refused.to_string().contains(&format!("process {}", server.id())), "{refused}");
        // and reads beside it
        assert!(own.call(Ioc::DatasetListNext, "t", &nvlist::NvList::new()).is_ok());
        let process = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        server.wait().unwrap();
        // the system may still be closing the devices of the process that is gone
        base::tunable::BUSY_WAIT.set(60);
        own.call(Ioc::PoolSync, "t", &sync).unwrap();
        own.call(Ioc::PoolExport, "t", &nvlist::NvList::new()).unwrap();
        oracle::judge::no_leaks(dir, "t");
    });
}

#[test]
fn a_server_opens_what_is_imported_and_goes_on_past_what_does_not_open() {
    in_own_state("a_server_opens_what_is_imported_and_goes_on_past_what_does_not_open", |dir| {
        let serving = Serving::begin(Options::default());
        ["broken", "t"].iter().for_each(|name| create(&client(), dir, name));
        serving.end();
        std::fs::remove_file(dir.join("broken-a")).unwrap();
        std::fs::remove_file(dir.join("broken-b")).unwrap();
        let serving = Serving::begin(Options::default());
        until("the pool is not opened", || vdev::device::is_busy(&dir.join("t-a")));
        snapshot(&client(), "t@s").unwrap();
        assert!(snapshot(&client(), "broken@s").is_err());
        serving.end();
    });
}

#[test]
fn a_server_ends_when_it_has_been_idle_but_not_while_it_has_a_client() {
    in_own_state("a_server_ends_when_it_has_been_idle_but_not_while_it_has_a_client", |dir| {
        let idle = Duration::from_millis(300);
        let (serving, one) = with_pool(Options { idle: Some(idle), ..Options::default() }, dir);
        thread::sleep(3 * idle);
        snapshot(&one, "t@s").unwrap();
        drop(one);
        serving.ended();
        assert!(Client::connect().unwrap().is_none() && !vdev::device::is_busy(&dir.join("t-a")));
    });
}

/// The state of the scrub of a pool: 1 while it is under way, 2 at its end.
fn scan_state(client: &Client, pool: &str) -> u64 {
    let config = call(client, Ioc::PoolStats, pool, &[]).unwrap();
    config.get_nvlist("vdev_tree").unwrap().get_u64_array("scan_stats").unwrap()[1]
}

#[test]
fn an_idle_server_stays_until_a_scrub_is_done() {
    use base::tunable::{VDEV_LATENCY_DEPTH, VDEV_LATENCY_MS, ZFS_SCAN_SUSPEND_PROGRESS};
    in_own_state("an_idle_server_stays_until_a_scrub_is_done", |dir| {
        with_pool(Options::default(), dir).0.end();
        // longer than a server stays that is idle
        VDEV_LATENCY_MS.set(20);
        VDEV_LATENCY_DEPTH.set(1);
        let serving = Serving::begin(Options { idle: Some(Duration::from_millis(50)), ..Options::default() });
        let one = client();
        call(&one, Ioc::PoolScrub, "t", &[("scan_type", 1u64.into()), ("scan_command", 0u64.into())]).unwrap();
        drop(one);
        serving.ended();
        VDEV_LATENCY_MS.set(0);
        // one that was interrupted would not go on
        ZFS_SCAN_SUSPEND_PROGRESS.set(1);
        let serving = Serving::begin(Options::default());
        assert_eq!(scan_state(&client(), "t"), 2);
        serving.end();
    });
}

#[test]
fn an_idle_server_does_not_stay_for_a_scrub_that_stands_still() {
    in_own_state("an_idle_server_does_not_stay_for_a_scrub_that_stands_still", |dir| {
        let idle = Duration::from_millis(50);
        let (serving, one) = with_pool(Options { idle: Some(idle), ..Options::default() }, dir);
        endless_scrub(&one, "t");
        drop(one);
        serving.ended();
        let serving = Serving::begin(Options::default());
        assert_eq!(scan_state(&client(), "t"), 1);
        serving.end();
    });
}

#[test]
fn whoever_waits_is_told_that_the_server_has_died() {
    in_own_state("whoever_waits_is_told_that_the_server_has_died", |dir| {
        let mut server = server_process(SERVER);
        let one = client();
        create(&one, dir, "t");
        let next = list(&[("wait_ms", 60_000u64.into())]);
        call(&one, Ioc::EventsSeek, "", &[("eid", u64::MAX.into())]).unwrap();
        let waiting = one.begin_call(Ioc::EventsNext, "", &next, &[]).unwrap();
        thread::sleep(Duration::from_millis(100));
        server.kill().unwrap();
        server.wait().unwrap();
        let begun = Instant::now();
        while !matches!(waiting.wait(), Err(Error::Gone(_))) {
            assert!(begun.elapsed() < LONG);
        }
        assert!(matches!(one.call(Ioc::PoolConfigs, "", &nvlist::NvList::new(), &[]), Err(Error::Gone(_))));
    });
}

#[test]
fn a_request_that_waits_is_not_taken_by_a_server_that_ends() {
    in_own_state("a_request_that_waits_is_not_taken_by_a_server_that_ends", |dir| {
        let (serving, one) = with_pool(Options::default(), dir);
        let wait = endless_scrub(&one, "t");
        let waiting = one.begin_call(Ioc::Wait, "t", &wait, &[]).unwrap();
        serving.has_requests(1);
        serving.end();
        assert_eq!(errno(waiting.wait()), Err(Errno::EINTR));
        assert!(matches!(one.call(Ioc::PoolConfigs, "", &nvlist::NvList::new(), &[]), Err(Error::Gone(_))));
    });
}

#[test]
fn a_socket_of_systemd_is_used_and_left() {
    in_own_state("a_socket_of_systemd_is_used_and_left", |dir| {
        let socket = site::seat::path().unwrap();
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("sh");
        let script = r#"exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" --exact "$1" --nocapture"#;
        command.args(["-c", script]).arg(program).arg(SERVER).env("ZUSE_TEST_SERVER", "1");
        let mut server = command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(Stdio::null()).spawn().unwrap();
        // it need not run yet: the socket is listened to
        let one = client();
        create(&one, dir, "t");
        assert_eq!(one.server_process(), u64::from(server.id()));
        server.kill().unwrap();
        server.wait().unwrap();
        drop(command);
        assert!(socket.exists());
    });
}
