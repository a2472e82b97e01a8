//! Bugs of OpenZFS's receive, by issue number.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use base::{Errno, ObjectId};
use ondisk::send::{FreeObjects, feature};
use oracle::fixtures;
use pool::{NewDataset, OpenOptions, Pool};
use stream::recv::RecvArgs;
use stream::send::SendFlags;
use stream::{Header, Record};
use support::stream_of;
use target::Target;
use target::remake::{Part, boundaries, parts, resumed_at, stream_of as remade};

const PLAIN: fn() -> RecvArgs = RecvArgs::default;

/// An increment with large blocks on top of a stream without: blocks of a file that the increment does not contain stay as they
/// are.
#[test]
fn issues_6224_and_10383_large_blocks_from_one_stream_to_the_next() {
    let mut target = Target::new();
    target.receive(&stream_of("stcomp-a", "r1m-plain"), "recva/pl1m", &PLAIN()).unwrap();
    target.receive(&stream_of("stcomp-a", "r1m-Lc-incr"), "recva/pl1m", &PLAIN()).unwrap();
    // the kernel module's copy of the same snapshots, which had large blocks from the beginning
    let truth_of = |name: &str| (name == "recva/pl1m").then(|| "recva/lc1m".to_owned());
    assert!(target.compare("stcomp-a", &|name| name.starts_with("recva/pl1m"), &truth_of) > 10);
    target.again();
    target.compare("stcomp-a", &|name| name.starts_with("recva/pl1m"), &truth_of);
    target.close();
}

/// A dataset that was received with large blocks accepts no stream without them, whether it has such a block or not.
#[test]
fn issue_18105_the_feature_is_in_use_once_a_stream_had_it() {
    let mut target = Target::new();
    target.receive(&stream_of("stcomp-a", "r1m-Lc"), "recva/x", &PLAIN()).unwrap();
    let mut without = parts(&stream_of("stcomp-a", "r1m-Lc-incr"));
    if let Record::Begin(begin) = &mut without[0].0.record {
        begin.versioninfo &= !(feature::LARGE_BLOCKS << 2);
    }
    assert_eq!(
        target.receive(&remade(&without), "recva/x", &PLAIN()).unwrap_err().errno(),
        Errno::ZFS_ERR_STREAM_LARGE_BLOCK_MISMATCH
    );
    assert!(!target.has("recva/x/%recv"));
    target.close();
}

/// FREEOBJECTS, and then the same number again: the object is created when the free of the old one is on disk.
#[test]
fn issues_11893_and_14358_an_object_is_freed_and_made_again() {
    let mut target = Target::new();
    let all = parts(&stream_of("stbasic-a", "full"));
    let mut twice: Vec<Part> = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let Record::Object(object) = &all[at].0.record else {
            twice.push(all[at].clone());
            at += 1;
            continue;
        };
        let of_it = |(header, _): &&Part| match &header.record {
            Record::Write(w) => w.object == object.object,
            Record::Free(f) => f.object == object.object,
            Record::Spill(s) => s.object == object.object,
            _ => false,
        };
        let len = 1 + all[at + 1..].iter().take_while(of_it).count();
        let group = &all[at..at + len];
        // writes must ascend: a group with several writes cannot be sent twice
        let writes = group.iter().filter(|(header, _)| matches!(header.record, Record::Write(_))).count();
        if object.object > ObjectId(40) && writes <= 1 {
            twice.extend_from_slice(group);
            let (firstobj, toguid) = (object.object, object.toguid);
            let record = Record::FreeObjects(FreeObjects { firstobj, numobjs: 1, toguid });
            twice.push((Header { payloadlen: 0, checksum: [0; 4], record }, Vec::new()));
        }
        twice.extend_from_slice(group);
        at += len;
    }
    assert!(twice.len() > all.len() + 20);
    target.receive(&remade(&twice), "recva/a", &PLAIN()).unwrap();
    assert!(target.compare("stbasic-a", &|name| name == "recva/a@1", &|_| None) > 10);
    target.close();
}

/// A payload length in BEGIN that no list has is refused before memory is allocated.
#[test]
fn issue_14285_a_huge_payload() {
    let mut target = Target::new();
    let mut bytes = stream_of("stbasic-a", "empty-full");
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(target.receive(&bytes, "recva/x", &PLAIN()).unwrap_err().errno(), Errno::ERANGE);
    target.close();
}

/// OpenZFS 15927: a stream that was cut exactly where an object begins is resumed there, and nothing of it is lost.
#[test]
fn issue_15927_resumed_where_an_object_begins() {
    let mut target = Target::new();
    let bytes = stream_of("stbasic-a", "full");
    let all = parts(&bytes);
    let ends = boundaries(&all);
    let resumable = || RecvArgs { resumable: true, ..PLAIN() };
    let objects = (0..all.len()).filter(|n| matches!(all[*n].0.record, Record::Object(_)));
    let objects: Vec<usize> = objects.skip(3).step_by(17).take(6).collect();
    let mut rest = bytes.clone();
    for (n, object) in objects.iter().enumerate() {
        // before its record, and after it
        let cut = ends[object + n % 2];
        let done = bytes.len() - rest.len().min(bytes.len());
        let at = cut.saturating_sub(done).clamp(ends[1], rest.len() - 1);
        assert_eq!(
            target.receive(&rest[..at], "recva/a", &resumable()).unwrap_err().errno(),
            Errno::ZFS_ERR_STREAM_TRUNCATED
        );
        let token = target.spa().view().unwrap().dataset("recva/a").unwrap().receive_resume_token().unwrap();
        let list = stream::token::decode(&token.unwrap()).unwrap();
        rest = resumed_at(&all, list.get_u64("object").unwrap(), list.get_u64("offset").unwrap());
    }
    target.receive(&rest, "recva/a", &resumable()).unwrap();
    assert!(target.compare("stbasic-a", &|name| name == "recva/a@1", &|_| None) > 10);
    target.close();
}

/// Compressed blocks are written as they came: sending them again gives the same blocks, whatever the target's compression is.
#[test]
fn compressed_blocks_are_not_compressed_again() {
    let mut target = Target::new();
    let flags =
        |large_block, embed| SendFlags { embed, large_block, compress: true, raw: false, resume: None, saved: None };
    for (name, fs, flags) in [
        ("r8-c", "r8", flags(false, false)),
        ("r1m-Lc", "r1m", flags(true, false)),
        ("gz-Lec", "gz", flags(true, true)),
    ] {
        let bytes = stream_of("stcomp-a", name);
        target.receive(&bytes, &format!("recva/{fs}"), &PLAIN()).unwrap();
        let blocks = |bytes: &[u8]| -> Vec<Part> {
            parts(bytes).into_iter().filter(|(header, _)| matches!(header.record, Record::Write(_))).collect()
        };
        let (theirs, ours) = (blocks(&bytes), blocks(&target.send_as(&format!("recva/{fs}@1"), None, &flags)));
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let mut compressed = 0;
        for (our, their) in ours.iter().zip(&theirs) {
            let (Record::Write(a), Record::Write(b)) = (&our.0.record, &their.0.record) else { continue };
            if b.compressiontype != 0 {
                assert_eq!((a.object, a.offset, a.compressiontype), (b.object, b.offset, b.compressiontype), "{name}");
                assert!(our.1 == their.1, "{name}: {b:?}");
                compressed += 1;
            }
        }
        assert!(compressed > 0, "{name}");
    }
    target.close();
}

const WHOLE: SendFlags =
    SendFlags { embed: true, large_block: true, compress: true, raw: false, resume: None, saved: None };

/// A file of one large block whose size is not a power of two, sent to a receiver without large blocks: its last piece is shorter
/// than the others.
#[test]
fn issues_12778_17829_and_18749_the_last_piece_of_a_split_block_is_short() {
    let mut target = Target::new();
    for (name, base) in [("r1m-Lc", None), ("r1m-Lc-incr", Some("recva/x@1"))] {
        target.receive(&stream_of("stcomp-a", name), "recva/x", &PLAIN()).unwrap();
        let to = if base.is_some() { "recva/x@2" } else { "recva/x@1" };
        for (compress, copy) in [(false, "recva/plain"), (true, "recva/packed")] {
            let split = target.send_as(to, base, &SendFlags { large_block: false, compress, ..WHOLE });
            let short = |(header, _): &Part| match &header.record {
                Record::Write(w) => w.offset > 0 && w.logical_size < 128 << 10 && w.offset.is_multiple_of(128 << 10),
                _ => false,
            };
            assert!(base.is_some() || parts(&split).iter().filter(|part| short(part)).count() > 2, "{name}");
            target.receive(&split, copy, &PLAIN()).unwrap();
        }
    }
    target.compare_source(
        "stcomp-a",
        &[
            ("recva/plain@1", "srca/r1m@1"),
            ("recva/plain@2", "srca/r1m@2"),
            ("recva/packed@1", "srca/r1m@1"),
            ("recva/packed@2", "srca/r1m@2"),
        ],
    );
    target.close();
}

/// A directory in large blocks: the target's dataset uses the feature, once, however many such streams come.
#[test]
fn issues_18143_and_18144_large_microzaps_are_in_use_once_a_stream_had_them() {
    let images = fixtures::unpack("lmz-a");
    let full = {
        let path = images.images().remove(0);
        let device: std::sync::Arc<dyn vdev::Device> =
            std::sync::Arc::new(vdev::FileDevice::open_read_only(&path).unwrap());
        let found = vdev::import::scan_devices(vec![(path, device)]);
        let pool = Pool::open(found.first().unwrap(), &OpenOptions::default()).unwrap();
        let mut out = Vec::new();
        let head = pool.dataset("lmza/d").unwrap();
        stream::send::send(&head, None, &WHOLE, &mut out, &stream::send::Progress::default()).unwrap();
        out
    };
    let mut target = Target::new();
    let uses = |target: &Target, name: &str| {
        target.spa().view().unwrap().dataset(name).unwrap().feature_active("large_microzap").unwrap()
    };
    for copy in ["recva/a", "recva/b"] {
        target.receive(&full, copy, &PLAIN()).unwrap();
        assert!(uses(&target, copy) && uses(&target, &format!("{copy}@--head--")));
    }
    target.again();
    target.spa().snapshot(&["recva/a@2".to_owned()], &[]).unwrap();
    let increment = target.send_as("recva/a@2", Some("recva/a@--head--"), &WHOLE);
    target.receive(&increment, "recva/b", &PLAIN()).unwrap();
    assert!(uses(&target, "recva/b@2"));
    // zdb counts the datasets that use the feature
    target.close();
}

/// Sizes beyond 32 bits are not truncated.
#[test]
fn issue_18623_sizes_that_do_not_fit() {
    let mut target = Target::new();
    let all = parts(&stream_of("stcomp-a", "r1m-Lc"));
    type Change = fn(&mut Record) -> bool;
    let changes: [(Errno, Change); 3] = [
        (Errno::ERANGE, |record| match record {
            Record::Write(w) if w.compressiontype != 0 => {
                w.logical_size |= 1 << 32;
                true
            }
            _ => false,
        }),
        (Errno::ERANGE, |record| match record {
            Record::Write(w) if w.compressiontype != 0 => {
                (w.logical_size, w.compressed_size) = (1 << 33, (1 << 32) | w.compressed_size);
                true
            }
            _ => false,
        }),
        (Errno::EINVAL, |record| match record {
            Record::FreeObjects(f) => {
                (f.firstobj, f.numobjs) = (ObjectId(1 << 63), (1 << 63) + 1);
                true
            }
            _ => false,
        }),
    ];
    for (n, (errno, change)) in changes.into_iter().enumerate() {
        let mut changed = all.clone();
        assert!(changed.iter_mut().any(|(header, _)| change(&mut header.record)), "{n}");
        // the checksums are right up to this record; the stream is not read any further
        let error = target.receive(&remade(&changed), "recva/new", &PLAIN()).unwrap_err();
        assert_eq!(error.errno(), errno, "{n}: {error}");
        assert!(!target.has("recva/new"));
    }
    target.close();
}

/// A refused stream does not remove an encrypted target's key.
#[test]
fn issue_18961_what_is_refused_takes_no_key_away() {
    let mut target = Target::new();
    target.receive(&stream_of("stenc-a", "e-w"), "recva/e", &PLAIN()).unwrap();
    target.load_key("stenc-a", "recva/e", "pass.txt");
    let embedded = stream_of("stcomp-a", "gz-Lec-incr");
    for refused in [&embedded, &stream_of("stbasic-a", "full"), &stream_of("stenc-a", "k-w-incr")] {
        for force in [false, true] {
            assert!(target.receive(refused, "recva/e", &RecvArgs { force, ..PLAIN() }).is_err());
        }
    }
    target.compare_source("stenc-a", &[("recva/e@1", "srca/e@1")]);
    let plain = target.send("recva/e@1", None, false);
    target.receive(&plain, "recva/p", &PLAIN()).unwrap();
    target.compare_source("stenc-a", &[("recva/p@1", "srca/e@1")]);
    target.close();
}

/// A backup server: encrypted targets receive while snapshots are listed, files are read, and old snapshots are destroyed.
#[test]
fn issues_11679_12001_12270_and_14321_receives_while_others_work() {
    let mut target = Target::new();
    let raw = ["e-w", "e-w-incr"].map(|name| stream_of("stenc-a", name));
    target.receive(&raw[0], "recva/top", &PLAIN()).unwrap();
    target.load_key("stenc-a", "recva/top", "pass.txt");
    let basic = ["full", "incr-1-2"].map(|name| stream_of("stbasic-a", name));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (target, done) = (&target, &done);
        scope.spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let view = target.spa().view().unwrap();
                for entry in view.list("recva", &pool::ListOptions::DATASETS).unwrap() {
                    let Some(head) = entry.dataset() else { continue };
                    let names: Vec<String> =
                        head.snapshots().into_iter().flatten().map(|s| s.name().to_owned()).collect();
                    if head.name().ends_with("old") && names.len() > 1 {
                        // it may be in use or already destroyed
                        drop(target.spa().destroy_snapshots(&names[..1], false));
                    }
                    // a dataset that is being received cannot be read as a file system yet
                    drop(zpl::FileSystem::open(head).map(|fs| fs.root_node().map(drop)));
                }
            }
        });
        let received = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 0..4 {
                // below an encrypted dataset: encrypted with its key
                for fs in [format!("recva/top/{n}"), format!("recva/{n}old")] {
                    basic.iter().for_each(|stream| drop(target.receive(stream, &fs, &PLAIN()).unwrap()));
                }
                raw.iter().for_each(|stream| drop(target.receive(stream, &format!("recva/raw{n}"), &PLAIN()).unwrap()));
            }
        }));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        received.unwrap();
    });
    assert!(target.spa().view().unwrap().dataset("recva/top/3").unwrap().is_encrypted().unwrap());
    let copies: Vec<String> = (0..4).map(|n| format!("recva/top/{n}@2")).collect();
    let pairs: Vec<(&str, &str)> = copies.iter().map(|copy| (copy.as_str(), "srca/fs@2")).collect();
    target.compare_source("stbasic-a", &pairs);
    for n in 0..4 {
        target.load_key("stenc-a", &format!("recva/raw{n}"), "pass.txt");
        target.compare_source("stenc-a", &[(&format!("recva/raw{n}@2"), "srca/e@2")]);
    }
    target.close();
}

/// Blocks that do not become smaller with larger sectors keep their compression: a receiver of them knows it.
#[test]
fn issue_12770_compressed_blocks_in_larger_sectors() {
    let mut target = Target::with_ashift(12);
    target.receive(&stream_of("stcomp-a", "r8-c"), "recva/a", &PLAIN()).unwrap();
    let packed = target.send_as("recva/a@1", None, &SendFlags { embed: false, ..WHOLE });
    let compressed = |(header, _): &Part| match &header.record {
        Record::Write(w) => w.compressiontype != 0,
        _ => false,
    };
    assert!(parts(&packed).iter().filter(|part| compressed(part)).count() > 20);
    target.receive(&packed, "recva/b", &PLAIN()).unwrap();
    let small = Target::new();
    small.receive(&packed, "recva/a", &PLAIN()).unwrap();
    let back = small.send_as("recva/a@1", None, &SendFlags { embed: false, ..WHOLE });
    target.receive(&back, "recva/c", &PLAIN()).unwrap();
    small.compare_source("stcomp-a", &[("recva/a@1", "srca/r8@1")]);
    let copies = ["recva/a@1", "recva/b@1", "recva/c@1"];
    target.compare_source("stcomp-a", &copies.map(|copy| (copy, "srca/r8@1")));
    target.close();
}

/// A stream that runs an action when a given number of bytes was read.
struct Meanwhile<'a> {
    bytes: &'a [u8],
    left: usize,
    work: Option<Box<dyn FnOnce() + Send + 'a>>,
}

impl std::io::Read for Meanwhile<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0
            && let Some(work) = self.work.take()
        {
            work();
        }
        let max = if self.left == 0 { buf.len() } else { buf.len().min(self.left) };
        let n = self.bytes.read(&mut buf[..max])?;
        self.left = self.left.saturating_sub(n);
        Ok(n)
    }
}

/// A new dataset that is renamed while it is received is the one that gets the snapshot or is destroyed, not another that has its
/// old name by then.
#[test]
fn a_dataset_may_be_renamed_while_it_is_received() {
    let mut target = Target::new();
    let whole = stream_of("stbasic-a", "full");
    for (bytes, fits) in [(&whole[..], true), (&whole[..whole.len() - 100], false)] {
        let (first, second) = if fits { ("recva/a", "recva/b") } else { ("recva/c", "recva/d") };
        let work = Box::new(|| {
            target.spa().rename(first, second).unwrap();
            let new = NewDataset::inheriting(first, ondisk::ObjsetType::Zfs);
            target.spa().create_dataset(new, Box::new(|_, _| Ok(()))).unwrap();
        });
        let input = Meanwhile { bytes, left: bytes.len() / 2, work: Some(work) };
        let received = target.receive_from(input, first, &PLAIN());
        assert_eq!(received.is_ok(), fits, "{received:?}");
        let view = target.spa().view().unwrap();
        assert!(view.dataset(first).unwrap().snapshots().unwrap().is_empty());
        let snapshots = |name: &str| view.dataset(name).map(|ds| (ds.is_inconsistent(), ds.snapshots().unwrap().len()));
        assert_eq!(snapshots(second).ok(), fits.then_some((false, 1)));
    }
    // the dataset that receives an increment until it replaces its target
    let bytes = stream_of("stbasic-a", "incr-1-2");
    let work = Box::new(|| target.spa().rename("recva/b/%recv", "recva/b/other").unwrap());
    let input = Meanwhile { bytes: &bytes, left: bytes.len() / 2, work: Some(work) };
    target.receive_from(input, "recva/b", &PLAIN()).unwrap();
    let b = target.spa().view().unwrap().dataset("recva/b").unwrap();
    assert_eq!((b.snapshots().unwrap().len(), b.children().unwrap().len()), (2, 0));
    drop(b);
    target.close();
}
