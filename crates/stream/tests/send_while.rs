//! Sends and receives while the same datasets are in use, and streams that arrive in pieces of any size.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use base::Errno;
use stream::recv::RecvArgs;
use stream::send::{Progress, SendFlags, send};
use support::stream_of;
use target::Target;

fn plain() -> RecvArgs {
    RecvArgs::default()
}

/// The snapshot that is sent stays the same, whatever happens to the file system.
#[test]
fn a_snapshot_is_sent_while_its_file_system_changes() {
    let mut target = Target::new();
    target.receive(&stream_of("stspecial-a", "full"), "recva/a", &plain()).unwrap();
    let alone = target.send("recva/a@1", None, false);
    let increments = ["incr-1-2", "incr-2-3", "incr-3-4", "incr-4-5"].map(|name| stream_of("stspecial-a", name));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (target, done) = (&target, &done);
        let writes = scope.spawn(move || {
            for stream in &increments {
                target.receive(stream, "recva/a", &plain()).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut times = 0;
        while !done.load(Ordering::SeqCst) && !writes.is_finished() || times < 2 {
            assert!(target.send("recva/a@1", None, false) == alone, "time {times}");
            times += 1;
        }
        writes.join().unwrap();
    });
    target.close();
}

/// A writer that accepts a few bytes at a time, is interrupted now and then, and once runs an action.
struct Meddling<F: FnMut()> {
    out: Vec<u8>,
    calls: u64,
    after: usize,
    meddle: Option<F>,
}

impl<F: FnMut()> Write for Meddling<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls % 7 == 3 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.out.len() >= self.after
            && let Some(mut meddle) = self.meddle.take()
        {
            meddle();
        }
        let some = bytes.len().min(1 + self.out.len() % 100_000);
        self.out.extend_from_slice(&bytes[..some]);
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A send holds its snapshot: it cannot be destroyed until the stream is complete, and can be afterwards.
#[test]
fn a_snapshot_is_not_destroyed_while_it_is_sent() {
    base::tunable::set("zfs_send_queue_length", "1").unwrap();
    let mut target = Target::new();
    target.receive(&stream_of("stmany-a", "full"), "recva/a", &plain()).unwrap();
    let alone = target.send("recva/a@1", None, false);
    let view = target.spa().view().unwrap();
    let to = view.dataset("recva/a@1").unwrap();
    let names = ["recva/a@1".to_owned()];
    let mut said = Vec::new();
    let meddle = || {
        for defer in [false, true] {
            match target.spa().destroy_snapshots(&names, defer) {
                Err(pool::Error::Many(all)) => said.extend(all.iter().map(|(_, error)| error.errno())),
                other => panic!("{other:?}"),
            }
        }
        target.spa().rename_snapshot("recva/a", "1", "one", false).unwrap();
    };
    let mut out = Meddling { out: Vec::new(), calls: 0, after: 100_000, meddle: Some(meddle) };
    send(&to, None, &SendFlags::default(), &mut out, &Progress::default()).unwrap();
    assert!(out.out == alone);
    drop(out);
    assert_eq!(said, [Errno::EBUSY, Errno::EBUSY]);
    target.spa().destroy_snapshots(&["recva/a@one".to_owned()], false).unwrap();
    // a send that looked it up before fails
    let late = send(&to, None, &SendFlags::default(), &mut Vec::new(), &Progress::default()).unwrap_err();
    assert_eq!(late.errno(), Errno::ENOENT);
    drop((to, view));
    target.close();
}

/// A head dataset that is not open is sent as it is; one that is open is not sent.
#[test]
fn a_head_is_not_changed_while_it_is_sent() {
    let mut target = Target::new();
    target.receive(&stream_of("stbasic-a", "full"), "recva/a", &plain()).unwrap();
    let alone = target.send("recva/a", None, false);
    let view = target.spa().view().unwrap();
    let to = view.dataset("recva/a").unwrap();
    let open = target.spa().objset(&to).unwrap();
    let refused = send(&to, None, &SendFlags::default(), &mut Vec::new(), &Progress::default()).unwrap_err();
    assert_eq!(refused.errno(), Errno::EBUSY);
    drop(open);
    let mut said = Vec::new();
    let meddle = || {
        said.push(target.spa().objset(&to).unwrap_err().errno());
        said.push(target.spa().rollback("recva/a", None).unwrap_err().errno());
        let increment = stream_of("stbasic-a", "incr-1-2");
        said.push(target.receive(&increment, "recva/a", &plain()).unwrap_err().errno());
    };
    let mut out = Meddling { out: Vec::new(), calls: 0, after: 100_000, meddle: Some(meddle) };
    send(&to, None, &SendFlags::default(), &mut out, &Progress::default()).unwrap();
    assert!(out.out == alone);
    drop(out);
    assert_eq!(said, [Errno::EBUSY; 3]);
    drop((to, view));
    target.close();
}

/// Returns one byte at a time.
struct Bytes<R>(R);

impl<R: Read> Read for Bytes<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let one = into.len().min(1);
        self.0.read(&mut into[..one])
    }
}

/// `send | receive` in one process, through a pipe that the receiver reads byte by byte.
#[test]
fn a_stream_is_received_byte_by_byte_while_it_is_sent() {
    let mut target = Target::new();
    target.receive(&stream_of("stbasic-a", "full"), "recva/a", &plain()).unwrap();
    for flags in
        [SendFlags::default(), SendFlags { compress: true, embed: true, large_block: true, ..SendFlags::default() }]
    {
        let (reads, mut writes) = io::pipe().unwrap();
        let into = format!("recva/copy{}", u8::from(flags.compress));
        std::thread::scope(|scope| {
            let target = &target;
            scope.spawn(move || {
                let view = target.spa().view().unwrap();
                let to = view.dataset("recva/a@1").unwrap();
                send(&to, None, &flags, &mut writes, &Progress::default()).unwrap();
            });
            target.receive_from(Bytes(reads), &into, &plain()).unwrap();
        });
        target.compare_source("stbasic-a", &[(&format!("{into}@1"), "srca/fs@1")]);
    }
    target.close();
}

/// Runs an action when half of the stream was read.
struct Halfway<'a, F: FnMut()> {
    bytes: &'a [u8],
    half: usize,
    then: Option<F>,
}

impl<F: FnMut()> Read for Halfway<'_, F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes.len() <= self.half
            && let Some(mut then) = self.then.take()
        {
            then();
        }
        // read-ahead does not go past the half
        let most = if self.then.is_some() { self.bytes.len() - self.half } else { into.len() };
        let most = most.min(into.len());
        self.bytes.read(&mut into[..most])
    }
}

/// A second receive into a target that is being received is refused, and the first is not disturbed; readers see the old contents
/// meanwhile.
#[test]
fn two_receives_into_one_target_and_readers_of_it() {
    let mut target = Target::new();
    let (full, increment) = (stream_of("stbasic-a", "full"), stream_of("stbasic-a", "incr-1-2"));
    target.receive(&full, "recva/a", &plain()).unwrap();
    for resumable in [false, true] {
        let args = RecvArgs { resumable, ..plain() };
        let mut said = Vec::new();
        let then = || {
            said.push(target.receive(&increment, "recva/a", &args).unwrap_err().errno());
            said.push(
                target.receive(&increment, "recva/a", &RecvArgs { force: true, ..args.clone() }).unwrap_err().errno(),
            );
            target.compare_source("stbasic-a", &[("recva/a@1", "srca/fs@1")]);
        };
        let input = Halfway { bytes: &increment, half: increment.len() / 2, then: Some(then) };
        target.receive_from(input, "recva/a", &args).unwrap();
        assert_eq!(said, [Errno::EBUSY, Errno::EBUSY]);
        target.compare_source("stbasic-a", &[("recva/a@2", "srca/fs@2")]);
        target.spa().destroy_snapshots(&["recva/a@2".to_owned()], false).unwrap();
        target.spa().rollback("recva/a", Some("recva/a@1")).unwrap();
    }
    target.close();
}
