//! Clients that mean ill, or are broken: wrong users, frames that lie, half frames, descriptors that nobody asked for, answers that nobody reads, connections by the thousand.
#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

#[path = "../../site/tests/support/mod.rs"]
mod state;
mod support;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base::Errno;
use control::Ioc;
use nvlist::NvList;
use serve::frame::{HEADER, Header, Kind};
use serve::message::{Answer, Bounds, Call};
use serve::{Client, Error, Options, Peer, wire};
use state::in_own_state;
use support::{LONG, Serving, bare, call, client, create, endless_scrub, errno, new_fs, snapshot, until, with_pool};

/// The user that every peer is.
static USER: AtomicU32 = AtomicU32::new(0);

fn identify(_stream: &UnixStream) -> io::Result<Peer> {
    Ok(Peer { uid: USER.load(Ordering::SeqCst), gid: 100, process: 1 })
}

/// A user that is neither root nor the owner.
const STRANGER: u32 = 54321;

fn become_user(uid: u32) {
    USER.store(uid, Ordering::SeqCst);
}

/// The next answer, and the number of its request.
fn answer(stream: &UnixStream) -> Result<(u64, Errno), wire::Error> {
    let frame = wire::receive(stream, Bounds::SERVER.body, Some(LONG))?;
    assert_eq!(frame.header.kind, Kind::Answer as u8);
    Ok((frame.header.id, Answer::decode(&frame.body, &Bounds::SERVER).unwrap().errno))
}

/// Whether the server closes the connection, perhaps after it has said why.
fn is_closed(stream: &UnixStream) -> bool {
    loop {
        match answer(stream) {
            Ok((0, errno)) => assert_ne!(errno, Answer::DONE),
            Ok(other) => panic!("{other:?}"),
            Err(wire::Error::Closed) => break true,
            Err(wire::Error::Io(e)) => break e.kind() == io::ErrorKind::ConnectionReset,
            Err(other) => panic!("{other}"),
        }
    }
}

fn header(kind: u8, descriptors: usize, id: u64, len: u32) -> [u8; HEADER] {
    Header { kind, descriptors, id, len }.encode()
}

fn configs() -> wire::Body {
    Call::encode(Ioc::PoolConfigs, "", &NvList::new()).unwrap()
}

#[test]
fn other_users_are_refused_or_may_do_what_everybody_may() {
    in_own_state("other_users_are_refused_or_may_do_what_everybody_may", |dir| {
        let options = Options { identify, ..Options::default() };
        let serving = Serving::begin(options.clone());
        create(&client(), dir, "t");
        become_user(STRANGER);
        assert_eq!(errno(Client::connect().map(drop)), Err(Errno::EPERM));
        become_user(0);
        assert!(client().call(Ioc::PoolConfigs, "", &NvList::new(), &[]).is_ok());
        serving.end();

        let serving = Serving::begin(Options { delegation: true, ..options });
        let owner = client();
        new_fs(&owner, "t/fs").unwrap();
        become_user(STRANGER);
        let stranger = client();
        assert_eq!(call(&stranger, Ioc::PoolStats, "t", &[]).unwrap().get_str("name"), Some("t"));
        assert_eq!(call(&stranger, Ioc::DatasetListNext, "t", &[]).unwrap().len(), 1);
        assert_eq!(new_fs(&stranger, "t/no"), Err(Errno::EPERM));
        assert_eq!(snapshot(&stranger, "t@no"), Err(Errno::EPERM));
        assert_eq!(call(&stranger, Ioc::SendNew, "t/fs", &[("fd", 0i32.into())]), Err(Errno::EPERM));
        // descriptors end the connection: even to close one may take forever
        let (mut reader, writer) = io::pipe().unwrap();
        let request = support::list(&[("fd", 0i32.into())]);
        assert!(client().call(Ioc::SendNew, "t/fs", &request, &[writer.as_fd()]).is_err());
        let three = [reader.as_fd(), writer.as_fd(), writer.as_fd()];
        assert!(client().begin_run(vec!["zfs".into()], three, &reader, 0o22).and_then(|run| run.wait()).is_err());
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "one is still open");
        // a body that only the owner may send
        let long = bare();
        let _broken = (&long).write_all(&header(Kind::Call as u8, 0, 1, Bounds::OTHERS.body + 1));
        assert!(is_closed(&long));
        // and as many connections as one of them may have
        let many: Vec<UnixStream> = (0..70).map(|_| site::seat::connect().unwrap().unwrap()).collect();
        let refused = many.iter().filter(|one| {
            let frame = wire::receive(one, 1 << 20, Some(LONG)).unwrap();
            frame.header.kind == Kind::Answer as u8
        });
        assert!((6..=8).contains(&refused.count()));
        become_user(STRANGER + 1);
        assert!(call(&client(), Ioc::PoolStats, "t", &[]).is_ok());
        become_user(0);
        assert!(snapshot(&client(), "t@still").is_ok() && snapshot(&owner, "t@yes").is_ok());
        become_user(STRANGER);
        drop(many);
        until("no room for a stranger", || Client::connect().is_ok());
        serving.end();
    });
}

#[test]
fn frames_that_lie_are_answered_or_end_their_connection_alone() {
    in_own_state("frames_that_lie_are_answered_or_end_their_connection_alone", |_| {
        let serving = Serving::begin(Options::default());
        let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let others = client();
        let before = files();
        // what can be understood is answered
        let one = bare();
        for kind in [Kind::Hello as u8, Kind::Answer as u8, 8, 255] {
            (&one).write_all(&header(kind, 0, 9, 3)).unwrap();
            (&one).write_all(b"abc").unwrap();
            assert_eq!(answer(&one).unwrap(), (9, Errno::ZFS_ERR_IOC_CMD_UNAVAIL));
        }
        for kind in [Kind::Call, Kind::Run] {
            (&one).write_all(&header(kind as u8, 0, 5, 3)).unwrap();
            (&one).write_all(b"abc").unwrap();
            let expected = if kind == Kind::Run { Errno::ENOTSUP } else { Errno::EINVAL };
            assert_eq!(answer(&one).unwrap(), (5, expected));
        }
        // about requests that are not in flight
        wire::send(&one, Kind::Signal, 77, b"abc", &[]).unwrap();
        wire::send(&one, Kind::Cancel, 77, b"", &[]).unwrap();
        wire::send(&one, Kind::Signal, 77, &serve::message::encode_signal(2).unwrap(), &[]).unwrap();
        // descriptors that nobody asked for are closed
        let (reader, writer) = io::pipe().unwrap();
        wire::send(&one, Kind::Call, 1, &configs(), &[writer.as_fd(); 8]).unwrap();
        assert_eq!(answer(&one).unwrap(), (1, Answer::DONE));
        drop((writer, one));
        assert_eq!((&reader).read(&mut [0]).unwrap(), 0);
        // what cannot be understood ends the connection
        let mut lies: Vec<Vec<u8>> = vec![
            b"GET / HTTP/1.1\r\nHost: localhost\r\n".to_vec(),
            header(Kind::Call as u8, 0, 1, u32::MAX).to_vec(),
            header(Kind::Call as u8, 3, 1, 0).to_vec(),
            header(Kind::Call as u8, 0, 0, 0).to_vec(),
        ];
        let mut other_version = header(Kind::Call as u8, 0, 1, 0);
        other_version[4] = 9;
        lies.push(other_version.to_vec());
        for lie in lies {
            let one = bare();
            (&one).write_all(&lie).unwrap();
            assert!(is_closed(&one), "{lie:?}");
        }
        // half of one, and then no more
        for half in [1, HEADER - 1, HEADER, HEADER + 5] {
            let one = bare();
            (&one).write_all(&[&header(Kind::Call as u8, 0, 1, 100)[..], &[0; 50]].concat()[..half]).unwrap();
            drop(one);
        }
        drop(reader);
        assert!(others.call(Ioc::PoolConfigs, "", &NvList::new(), &[]).is_ok());
        until("descriptors stay open", || files() <= before);
        serving.end();
    });
}

#[test]
fn a_number_is_used_by_one_request_at_a_time() {
    in_own_state("a_number_is_used_by_one_request_at_a_time", |dir| {
        let (serving, others) = with_pool(Options::default(), dir);
        let wait = Call::encode(Ioc::Wait, "t", &endless_scrub(&others, "t")).unwrap();
        let one = bare();
        wire::send(&one, Kind::Call, 1, &wait, &[]).unwrap();
        let other = bare();
        wire::send(&other, Kind::Call, 1, &wait, &[]).unwrap();
        wire::send(&other, Kind::Call, 1, &configs(), &[]).unwrap();
        assert!(is_closed(&other));
        for id in 2..17 {
            wire::send(&one, Kind::Call, id, &wait, &[]).unwrap();
        }
        wire::send(&one, Kind::Call, 17, &configs(), &[]).unwrap();
        assert_eq!(answer(&one).unwrap(), (17, Errno::EAGAIN));
        wire::send(&one, Kind::Cancel, 1, b"", &[]).unwrap();
        assert_eq!(answer(&one).unwrap(), (1, Errno::EINTR));
        wire::send(&one, Kind::Call, 1, &configs(), &[]).unwrap();
        assert_eq!(answer(&one).unwrap(), (1, Answer::DONE));
        serving.end();
    });
}

#[test]
fn whoever_stalls_is_given_up_and_holds_nobody_up() {
    in_own_state("whoever_stalls_is_given_up_and_holds_nobody_up", |_| {
        let serving = Serving::begin(Options::default());
        let begun = Instant::now();
        // half a request
        let half = bare();
        (&half).write_all(&header(Kind::Call as u8, 0, 1, 100)).unwrap();
        // answers that nobody reads
        let deaf = bare();
        // longer than a busy machine keeps the server from reading
        deaf.set_write_timeout(Some(Duration::from_secs(4))).unwrap();
        let mut frame = header(8, 0, 1, 0).to_vec();
        frame = frame.repeat(100);
        while (&deaf).write_all(&frame).is_ok() {}
        // and one that asks for nothing is no trouble
        let quiet = bare();
        for _ in 0..50 {
            assert!(client().call(Ioc::PoolConfigs, "", &NvList::new(), &[]).is_ok());
        }
        // they did not wait for those
        assert!(begun.elapsed() < wire::FRAME_TIME);
        assert!(is_closed(&half));
        assert!(begun.elapsed() >= wire::FRAME_TIME);
        until("a client that reads nothing is kept", || {
            deaf.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
            (&deaf).write_all(&frame).is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
        });
        wire::send(&quiet, Kind::Call, 1, &configs(), &[]).unwrap();
        assert_eq!(answer(&quiet).unwrap(), (1, Answer::DONE));
        serving.end();
    });
}

#[test]
fn of_thousands_of_connections_some_are_refused_and_none_is_lost() {
    in_own_state("of_thousands_of_connections_some_are_refused_and_none_is_lost", |_| {
        let serving = Serving::begin(Options::default());
        let before = client();
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let few = threads() + 8;
        for _ in 0..2 {
            let mut all = Vec::new();
            let mut refused = 0;
            for _ in 0..3000 {
                match Client::connect() {
                    Ok(Some(client)) => all.push(client),
                    Err(Error::Failed(failed)) => {
                        assert_eq!(failed.errno, Errno::EAGAIN);
                        refused += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((all.len(), refused), (1023, 1977));
            assert!(all.iter().all(|one| one.call(Ioc::PoolConfigs, "", &NvList::new(), &[]).is_ok()));
            drop(all);
            // all of them have ended
            until("connections are left", || threads() < few);
        }
        assert!(before.call(Ioc::PoolConfigs, "", &NvList::new(), &[]).is_ok());
        serving.end();
    });
}

#[test]
fn noise_does_no_harm() {
    in_own_state("noise_does_no_harm", |dir| {
        let (serving, owner) = with_pool(Options { identify, delegation: true, ..Options::default() }, dir);
        become_user(STRANGER);
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/server");
        let seeds: Vec<Vec<u8>> =
            std::fs::read_dir(corpus).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        for step in 0..2000usize {
            let mut bytes = seeds[step % seeds.len()].clone();
            let noise = base::Env::noise(step as u64, 8);
            let place = usize::from(noise[0]) | usize::from(noise[1]) << 8;
            let len = bytes.len();
            bytes[place % len] ^= noise[2];
            bytes.truncate(len - usize::from(noise[3] & 7) % len);
            let one = loop {
                // as many as a stranger may have are ending
                if let Ok(Some(stream)) = site::seat::connect() {
                    break stream;
                }
            };
            let _broken = (&one).write_all(&bytes);
        }
        become_user(0);
        assert!(snapshot(&client(), "t@s").is_ok() && snapshot(&owner, "t@t").is_ok());
        serving.end();
    });
}
