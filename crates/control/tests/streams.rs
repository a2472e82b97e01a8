//! Streams that are sent to files of the caller and received from them.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Cursor, Read, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use base::Errno;
use control::{Control, Ioc};
use nvlist::{NvList, Value};
use ondisk::send::RECORD_SIZE;
use support::pool;

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

/// The bytes written, for all clones.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The bytes to read, from a position that all clones share.
#[derive(Clone)]
struct Shared(Arc<Mutex<Cursor<Vec<u8>>>>);

impl Read for Shared {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().read(buf)
    }
}

/// The dataset `t/a` with two snapshots, and the streams of the first, and from there to the second.
fn sent(control: &Control) -> [Vec<u8>; 2] {
    control.call(Ioc::Create, "t/a", &list(&[("type", 2i32.into())])).unwrap();
    for name in ["t/a@one", "t/a@two"] {
        control.call(Ioc::Snapshot, "t", &list(&[("snaps", list(&[(name, ().into())]).into())])).unwrap();
    }
    [("t/a@one", None), ("t/a@two", Some("t/a@one"))].map(|(name, from)| {
        let (written, progress) = (Written::default(), Arc::<stream::send::Progress>::default());
        control.caller().files.output(5, Box::new(written.clone()), progress.clone());
        let mut input = list(&[("fd", 5i32.into())]);
        from.into_iter().for_each(|from| input.insert("fromsnap", from));
        control.call(Ioc::SendNew, name, &input).unwrap();
        control.caller().files.close(5);
        let bytes = written.0.lock().unwrap().clone();
        assert_eq!(progress.bytes.load(Ordering::Relaxed), bytes.len() as u64);
        bytes
    })
}

#[test]
fn streams_go_through_files_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let streams = sent(&control);
    let guid = |name: &str| control.spa().view().unwrap().dataset(name).unwrap().guid();
    // both streams in one input: each request takes its own and no more
    let input = Shared(Arc::new(Mutex::new(Cursor::new(streams.concat()))));
    control.caller().files.input(7, Box::new(input.clone()), Arc::default());
    for (snapname, from) in [("t/b@one", "t/a@one"), ("t/b@two", "t/a@two")] {
        let mut begin = vec![0; RECORD_SIZE];
        input.clone().read_exact(&mut begin).unwrap();
        let request = list(&[
            ("snapname", snapname.into()),
            ("begin_record", Value::ByteArray(begin)),
            ("input_fd", 7i32.into()),
        ]);
        let out = control.call(Ioc::RecvNew, "t/b", &request).unwrap();
        assert!(out.get_u64("read_bytes").unwrap() > RECORD_SIZE as u64);
        assert_eq!(guid(snapname), guid(from));
    }
    // the record of a request is written with the next txg
    control.spa().sync().unwrap();
    let history = control.call(Ioc::PoolGetHistory, "t", &NvList::new()).unwrap();
    let records = history.get_nvlist_array("history record").unwrap();
    assert_eq!(records.iter().filter(|record| record.get_str("ioctl") == Some("receive")).count(), 2);
    assert!(!records.iter().any(|record| record.get_str("ioctl") == Some("send")), "nothing is changed by it");
    control.spa().export().unwrap();
}

#[test]
fn files_that_are_not_open_and_records_that_are_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let [stream, _] = sent(&control);
    let errno = |ioc, name: &str, input: &NvList| {
        control.call(ioc, name, input).map_or_else(|e| e.errno, |_| Errno::from_raw(0))
    };
    assert_eq!(errno(Ioc::SendNew, "t/a@one", &list(&[("fd", 5i32.into())])), Errno::EBADF);
    let request = |begin: &[u8]| {
        list(&[
            ("snapname", "t/b@one".into()),
            ("begin_record", Value::ByteArray(begin.to_vec())),
            ("input_fd", 7i32.into()),
        ])
    };
    assert_eq!(errno(Ioc::RecvNew, "t/b", &request(&stream[..RECORD_SIZE])), Errno::EBADF);
    control.caller().files.input(7, Box::new(Cursor::new(Vec::new())), Arc::default());
    assert_eq!(errno(Ioc::RecvNew, "t/b", &request(&stream[RECORD_SIZE..][..RECORD_SIZE])), Errno::EINVAL);
    assert_eq!(errno(Ioc::RecvNew, "t/b", &request(&stream[..8])), Errno::EINVAL);
    // it ends after its first record
    assert_ne!(errno(Ioc::RecvNew, "t/b", &request(&stream[..RECORD_SIZE])), Errno::from_raw(0));
    assert!(control.spa().view().unwrap().dataset("t/b").is_err());
    assert_eq!(errno(Ioc::PoolCreate, "t", &list(&[("config", NvList::new().into())])), Errno::EEXIST);
    control.spa().export().unwrap();
}

#[test]
fn a_stream_that_cannot_be_whole_is_refused_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    sent(&control);
    let key = list(&[("wkeydata", Value::Uint8Array(vec![7; 32]))]);
    let props = list(&[
        ("encryption", 8u64.into()),
        ("keyformat", 1u64.into()),
        ("volsize", (1u64 << 20).into()),
        ("volblocksize", (16u64 << 10).into()),
    ]);
    let request = [("type", 3i32.into()), ("props", props.into()), ("hidden_args", key.into())];
    control.call(Ioc::Create, "t/v", &list(&request)).unwrap();
    for name in ["t/v@one", "t/a@three"] {
        control.call(Ioc::Snapshot, "t", &list(&[("snaps", list(&[(name, ().into())]).into())])).unwrap();
    }
    control.call(Ioc::UnloadKey, "t/v", &NvList::new()).unwrap();
    let written = Written::default();
    control.caller().files.output(5, Box::new(written.clone()), Arc::default());
    let send = |name: &str, more: &[(&str, Value)]| {
        let mut input = list(&[("fd", 5i32.into())]);
        more.iter().for_each(|(key, value)| input.insert(*key, value.clone()));
        control.call(Ioc::SendNew, name, &input).map_err(|failed| failed.errno)
    };
    let from = |name: &str| [("fromsnap", name.into())];
    // in another's past, later, the same, none, no snapshot
    let refused = ["t/v@one", "t/a@three", "t/a@two", "t/a@none", "t/a"];
    let errnos = refused.map(|name| send("t/a@two", &from(name)).unwrap_err());
    assert_eq!(errnos, [Errno::EXDEV, Errno::EXDEV, Errno::EXDEV, Errno::ENOENT, Errno::EINVAL]);
    assert_eq!(send("t/v@one", &[]), Err(Errno::EACCES));
    assert_eq!(send("t/a@two", &[("savedok", ().into())]), Err(Errno::EINVAL), "nothing of it was received");
    assert_eq!(written.0.lock().unwrap().len(), 0);
    send("t/v@one", &[("rawok", ().into())]).unwrap();
    send("t/a@two", &from("t/a@one")).unwrap();
    control.spa().export().unwrap();
}
