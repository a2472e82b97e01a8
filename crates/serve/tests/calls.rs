//! Requests of many clients at once to real pools: streams, waits, events, pools that come and go.
#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

#[path = "../../site/tests/support/mod.rs"]
mod state;
mod support;

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

use base::Errno;
use control::Ioc;
use nvlist::{NvList, Value};
use serve::frame::Kind;
use serve::message::Call;
use serve::{Error, Options, wire};
use state::in_own_state;
use support::{
    LONG, bare, below, call, client, create, endless_scrub, errno, list, new_fs, receive, sent, snapshot, until,
    with_pool, with_stream,
};

#[test]
fn a_snapshot_is_taken_while_another_client_receives_from_a_pipe() {
    in_own_state("a_snapshot_is_taken_while_another_client_receives_from_a_pipe", |dir| {
        let (serving, one, stream) = with_stream(dir);
        assert!(stream.len() > 1 << 20);
        let (request, rest) = receive("t/new@s", &stream);
        let (reader, mut writer) = io::pipe().unwrap();
        let receiver = client();
        let receiving = receiver.begin_call(Ioc::RecvNew, "t/new", &request, &[reader.as_fd()]).unwrap();
        drop(reader);
        writer.write_all(&rest[..rest.len() / 2]).unwrap();
        thread::scope(|scope| {
            for n in 0..4 {
                scope.spawn(move || {
                    let own = client();
                    for m in 0..4 {
                        snapshot(&own, &format!("t/src@{n}-{m}")).unwrap();
                        below(&own, Ioc::SnapshotListNext, "t/src");
                    }
                });
            }
        });
        assert_eq!(call(&one, Ioc::PoolExport, "t", &[]), Err(Errno::EBUSY), "the receive is over already");
        writer.write_all(&rest[rest.len() / 2..]).unwrap();
        drop(writer);
        let received = receiving.wait().unwrap();
        assert_eq!(received.get_u64("read_bytes"), Some(stream.len() as u64));
        assert_eq!(below(&one, Ioc::SnapshotListNext, "t/src").len(), 17);
        assert_eq!(below(&one, Ioc::SnapshotListNext, "t/new"), ["t/new@s"]);
        assert!(sent(&one, "t/new@s").len() > 1 << 20);
        serving.end();
    });
}

#[test]
fn a_stream_goes_into_a_pipe_and_ends_with_a_client_that_reads_nothing() {
    in_own_state("a_stream_goes_into_a_pipe_and_ends_with_a_client_that_reads_nothing", |dir| {
        let (serving, one, whole) = with_stream(dir);
        let request = list(&[("fd", 0i32.into())]);
        let (mut reader, writer) = io::pipe().unwrap();
        let sending = one.begin_call(Ioc::SendNew, "t/src@s", &request, &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut piped = Vec::new();
        reader.read_to_end(&mut piped).unwrap();
        sending.wait().unwrap();
        assert!(piped == whole);
        // one that names no descriptor of its own has none
        assert_eq!(errno(one.call(Ioc::SendNew, "t/src@s", &request, &[])), Err(Errno::EBADF));
        // what cannot be sent harms no other request
        assert!(matches!(
            one.call(Ioc::PoolConfigs, "", &NvList::new(), &[io::stdin().as_fd(); 9]),
            Err(Error::Unsendable(_))
        ));
        let long = list(&[("message", Value::String("x".repeat(65 << 20).as_str().into()))]);
        assert!(matches!(one.call(Ioc::LogHistory, "t", &long, &[]), Err(Error::Unsendable(_))));
        let (reader, writer) = io::pipe().unwrap();
        let other = client();
        let stalled = other.begin_call(Ioc::SendNew, "t/src@s", &request, &[writer.as_fd()]).unwrap();
        serving.has_requests(1);
        // others are not held up by it, also over the same connection
        snapshot(&other, "t/src@later").unwrap();
        // and none reaches the file of another one
        assert_eq!(errno(other.call(Ioc::SendNew, "t/src@s", &request, &[])), Err(Errno::EBADF));
        drop((stalled, other));
        let begun = Instant::now();
        while call(&one, Ioc::PoolExport, "t", &[]) == Err(Errno::EBUSY) {
            assert!(begun.elapsed() < LONG);
        }
        assert!(below(&one, Ioc::PoolConfigs, "").is_empty());
        drop((reader, writer));
        serving.end();
    });
}

#[test]
fn pools_are_made_exported_imported_and_their_events_read() {
    in_own_state("pools_are_made_exported_imported_and_their_events_read", |dir| {
        let (serving, one) = with_pool(Options::default(), dir);
        new_fs(&one, "t/fs").unwrap();
        let config = call(&one, Ioc::PoolConfigs, "", &[]).unwrap().get_nvlist("t").unwrap().clone();
        let guid = config.get_u64("pool_guid").unwrap();
        call(&one, Ioc::PoolExport, "t", &[]).unwrap();
        assert_eq!(new_fs(&one, "t/no"), Err(Errno::ENOENT));
        let devices =
            Value::StringArray(["t-a", "t-b"].map(|file| dir.join(file).display().to_string().into()).to_vec());
        let import = [("guid", guid.into()), ("config", config.into()), ("devices", devices)];
        call(&one, Ioc::PoolImport, "t", &import).unwrap();
        assert_eq!(below(&one, Ioc::DatasetListNext, "t"), ["t/fs"]);
        site::events::publish();
        let mut classes = Vec::new();
        while let Ok(answer) = call(&one, Ioc::EventsNext, "", &[]) {
            classes.push(answer.get_nvlist("event").unwrap().get_str("class").unwrap().to_owned());
        }
        assert!(classes.iter().any(|class| class.ends_with("pool_create")), "{classes:?}");
        assert!(classes.iter().any(|class| class.ends_with("pool_export")), "{classes:?}");
        // each connection has its own place among them
        assert!(call(&client(), Ioc::EventsNext, "", &[]).is_ok());
        serving.end();
        assert!(!vdev::device::is_busy(&dir.join("t-a")));
    });
}

#[test]
fn a_wait_ends_by_a_cancel_and_by_the_end_of_its_connection() {
    in_own_state("a_wait_ends_by_a_cancel_and_by_the_end_of_its_connection", |dir| {
        let (serving, one) = with_pool(Options::default(), dir);
        let wait = endless_scrub(&one, "t");
        let request = one.begin_call(Ioc::Wait, "t", &wait, &[]).unwrap();
        // requests of one connection run at once
        new_fs(&one, "t/meanwhile").unwrap();
        request.cancel();
        assert_eq!(errno(request.wait()), Err(Errno::EINTR));
        // one connection has 16 of them; those that are dropped make room for others
        for _ in 0..2 {
            let waiting: Vec<_> = (0..16).map(|_| one.begin_call(Ioc::Wait, "t", &wait, &[]).unwrap()).collect();
            let more = || call(&one, Ioc::PoolStats, "t", &[]).map(drop);
            let begun = Instant::now();
            while more() != Err(Errno::EAGAIN) {
                assert!(begun.elapsed() < LONG);
            }
            drop(waiting);
            while more().is_err() {
                assert!(begun.elapsed() < LONG);
            }
        }
        // one that is killed says nothing
        let other = bare();
        let body = Call::encode(Ioc::Wait, "t", &wait).unwrap();
        wire::send(&other, Kind::Call, 1, &body, &[]).unwrap();
        serving.has_requests(1);
        drop(other);
        serving.has_requests(0);
        // a server that ends cancels them as well
        let last = one.begin_call(Ioc::Wait, "t", &wait, &[]).unwrap();
        serving.has_requests(1);
        serving.end();
        assert_eq!(errno(last.wait()), Err(Errno::EINTR));
    });
}

#[test]
fn a_receive_that_stalls_ends_with_its_client_and_with_the_server() {
    in_own_state("a_receive_that_stalls_ends_with_its_client_and_with_the_server", |dir| {
        let (serving, one, stream) = with_stream(dir);
        let (request, rest) = receive("t/new@s", &stream);
        // a file is read from where it is, and no further than the stream goes
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[b"before".as_slice(), &rest, b"behind"].concat()).unwrap();
        file.seek(SeekFrom::Start(6)).unwrap();
        one.call(Ioc::RecvNew, "t/new", &request, &[file.as_fd()]).unwrap();
        let mut behind = String::new();
        file.read_to_string(&mut behind).unwrap();
        assert_eq!(behind, "behind");
        call(&one, Ioc::DestroySnaps, "t", &[("snaps", list(&[("t/new@s", ().into())]).into())]).unwrap();
        call(&one, Ioc::Destroy, "t/new", &[]).unwrap();
        let (socket, mut writer) = UnixStream::pair().unwrap();
        let other = client();
        let stalled = other.begin_call(Ioc::RecvNew, "t/new", &request, &[socket.as_fd()]).unwrap();
        // as much as it takes before it waits for more
        writer.write_all(&rest[..rest.len() / 2]).unwrap();
        drop((stalled, other));
        until("the receive of a client that is gone goes on", || call(&one, Ioc::PoolExport, "t", &[]).is_ok());
        create(&one, dir, "u");
        let (request, _) = receive("u/new@s", &stream);
        let (socket, _writer) = UnixStream::pair().unwrap();
        let stalled = one.begin_call(Ioc::RecvNew, "u/new", &request, &[socket.as_fd()]).unwrap();
        serving.has_requests(1);
        serving.end();
        assert_eq!(errno(stalled.wait()), Err(Errno::EINTR));
    });
}

#[test]
fn a_key_that_one_client_loads_is_there_for_all() {
    in_own_state("a_key_that_one_client_loads_is_there_for_all", |dir| {
        let (serving, one) = with_pool(Options::default(), dir);
        let hidden = |octet| list(&[("wkeydata", Value::Uint8Array(vec![octet; 32]))]);
        let props = list(&[("encryption", 8u64.into()), ("keyformat", 1u64.into())]);
        let encrypted = [("type", 2i32.into()), ("props", props.into()), ("hidden_args", hidden(7).into())];
        call(&one, Ioc::Create, "t/enc", &encrypted).unwrap();
        call(&one, Ioc::UnloadKey, "t/enc", &[]).unwrap();
        let load = |octet| call(&client(), Ioc::LoadKey, "t/enc", &[("hidden_args", hidden(octet).into())]).map(drop);
        assert_eq!(new_fs(&one, "t/enc/below"), Err(Errno::EACCES));
        assert_eq!((load(8), load(7)), (Err(Errno::EACCES), Ok(())));
        new_fs(&client(), "t/enc/below").unwrap();
        serving.end();
    });
}
