//! Bugs of OpenZFS's send, by issue number; and the behaviour of send on unreadable blocks.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Errno, ObjectId};
use nvlist::NvList;
use ondisk::dsl::RedactEntry;
use ondisk::send::feature;
use oracle::fixtures;
use pool::{Dataset, OpenOptions, Pool};
use stream::recv::RecvArgs;
use stream::send::{Base, Progress, SendFlags, measure, send};
use stream::{Reader, Record};
use support::stream_of;
use target::Target;
use target::remake::{parts, stream_of as remade};
use vdev::{Device, Direction, FileDevice, Leaf};

const PLAIN: SendFlags =
    SendFlags { embed: false, large_block: false, compress: false, raw: false, resume: None, saved: None };
const ALL: SendFlags = SendFlags { embed: true, large_block: true, compress: true, ..PLAIN };
const RAW: SendFlags = SendFlags { raw: true, ..PLAIN };

/// Opens the pool of some images.
fn open(images: &fixtures::Unpacked) -> Arc<Pool> {
    let device = |path: PathBuf| -> (PathBuf, Arc<dyn Device>) {
        (path.clone(), Arc::new(FileDevice::open_read_only(&path).unwrap()))
    };
    let found = vdev::import::scan_devices(images.images().into_iter().map(device).collect());
    Pool::open(found.first().unwrap(), &OpenOptions::default()).unwrap()
}

fn sent(to: &Dataset, from: Option<&Dataset>, flags: &SendFlags) -> Result<Vec<u8>, stream::send::Error> {
    let base = from.map(|from| Base::of_snapshot(from, to)).transpose()?;
    let mut out = Vec::new();
    send(to, base.as_ref(), flags, &mut out, &Progress::default())?;
    Ok(out)
}

/// Returns the records of a stream with their payloads.
fn records(stream: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let mut reader = Reader::new(stream);
    let mut all = Vec::new();
    while let Some(entry) = reader.next_record().unwrap() {
        all.push((entry.header.record.clone(), entry.payload.to_vec()));
    }
    all
}

/// The list in BEGIN is XDR and padded to 8 bytes in every stream, so that machines of the other byte order can read it.
#[test]
fn issues_18360_and_18372_the_list_of_begin_is_xdr() {
    let images = fixtures::unpack("enc-a");
    let pool = open(&images);
    let raw = sent(&pool.dataset("enca/raw@s1").unwrap(), None, &RAW).unwrap();
    let (_, payload) = records(&raw).remove(0);
    assert_eq!((payload.first(), payload.len() % 8), (Some(&1), 0));
    let resumed = SendFlags { resume: Some(stream::send::ResumeAt { object: ObjectId(2), offset: 0 }), ..RAW };
    let (_, payload) = records(&sent(&pool.dataset("enca/raw@s1").unwrap(), None, &resumed).unwrap()).remove(0);
    assert_eq!((payload.first(), payload.len() % 8), (Some(&1), 0));
}

/// Several concurrent sends of one snapshot.
#[test]
fn issue_14903_sends_side_by_side() {
    let images = fixtures::unpack("snaps-a");
    let pool = open(&images);
    let heads = pool.list(pool.name(), &pool::ListOptions::DATASETS).unwrap();
    let snapshots: Vec<Dataset> =
        heads.iter().filter_map(|entry| entry.dataset()).flat_map(|head| head.snapshots().unwrap()).take(3).collect();
    let alone: Vec<Vec<u8>> = snapshots.iter().map(|to| sent(to, None, &ALL).unwrap()).collect();
    std::thread::scope(|scope| {
        let all = snapshots.iter().zip(&alone).cycle().take(9);
        all.for_each(|(to, alone)| drop(scope.spawn(move || assert!(sent(to, None, &ALL).unwrap() == *alone))));
    });
}

/// FREEOBJECTS never names more objects than the receiver can have; and the measured length is the length sent.
#[test]
fn issue_10916_no_number_behind_the_last_object_is_freed() {
    let images = fixtures::unpack("snaps-a");
    let pool = open(&images);
    let heads = pool.list(pool.name(), &pool::ListOptions::DATASETS).unwrap();
    let (mut freed, mut before) = (0, None::<Dataset>);
    for snapshot in heads.iter().filter_map(|entry| entry.dataset()).flat_map(|head| head.snapshots().unwrap()) {
        let most = (snapshot.objset().unwrap().phys().meta_dnode.maxblkid + 1) * 32;
        let from = before.take().filter(|before| before.dir().id() == snapshot.dir().id());
        for flags in [&PLAIN, &ALL] {
            let stream = sent(&snapshot, from.as_ref(), flags).unwrap();
            for (record, _) in records(&stream) {
                let Record::FreeObjects(free) = record else { continue };
                assert!(free.numobjs > 0 && free.firstobj.0 + free.numobjs <= most, "{free:?} of {most}");
                freed += 1;
            }
            let base = from.as_ref().map(|from| Base::of_snapshot(from, &snapshot).unwrap());
            assert_eq!(measure(&snapshot, base.as_ref(), flags).unwrap(), stream.len() as u64);
        }
        before = Some(snapshot);
    }
    assert!(freed > 5, "{freed}");
}

/// Spill blocks are sent once each, with their contents, and after their objects.
#[test]
fn issue_16701_spill_blocks() {
    let target = Target::new();
    target.receive(&stream_of("stspecial-a", "full"), "recva/a", &RecvArgs::default()).unwrap();
    let view = target.spa().view().unwrap();
    let ours = sent(&view.dataset("recva/a@1").unwrap(), None, &PLAIN).unwrap();
    let spills = |stream: &[u8]| -> Vec<(ObjectId, Vec<u8>)> {
        let of =
            |(record, payload)| if let Record::Spill(spill) = record { Some((spill.object, payload)) } else { None };
        records(stream).into_iter().filter_map(of).collect()
    };
    let theirs = spills(&stream_of("stspecial-a", "full"));
    assert!(!theirs.is_empty() && spills(&ours) == theirs, "{} spills, not {}", spills(&ours).len(), theirs.len());
}

/// Object, offset, length.
type Range = (u64, u64, u64);

/// Returns the ranges that a stream writes, and those that it frees. Adjacent ranges are merged.
fn ranges(stream: &[u8]) -> (Vec<Range>, Vec<Range>) {
    let (mut written, mut empty) = (Vec::new(), Vec::new());
    let add = |to: &mut Vec<Range>, (object, offset, length): Range| match to.last_mut() {
        Some(last) if last.0 == object && last.1.checked_add(last.2) == Some(offset) => {
            last.2 = last.2.saturating_add(length)
        }
        _ => to.push((object, offset, length)),
    };
    for (record, _) in records(stream) {
        match record {
            Record::Write(r) => add(&mut written, (r.object.0, r.offset, r.logical_size)),
            Record::Free(r) => add(&mut empty, (r.object.0, r.offset, r.length)),
            Record::Redact(r) => add(&mut empty, (r.object.0, r.offset, r.length)),
            _ => {}
        }
    }
    (written, empty)
}

/// A dataset that was received redacted is sent again completely, to the last block. Redacted ranges are holes, as with the
/// kernel module, and the stream says that it is redacted.
#[test]
fn a_redacted_dataset_sent_again() {
    let mut target = Target::new();
    let stream = stream_of("stredact-a", "redacted");
    target.receive(&stream, "recva/a", &RecvArgs::default()).unwrap();
    let ours = target.send("recva/a@base", None, false);
    let ((our_blocks, our_holes), (their_blocks, their_holes)) = (ranges(&ours), ranges(&stream));
    assert!(their_blocks.len() > 15, "{their_blocks:?}");
    assert_eq!(our_blocks, their_blocks);
    let within = |hole: &(u64, u64, u64), all: &[(u64, u64, u64)]| {
        let (mut at, end) = (hole.1, hole.1.saturating_add(hole.2));
        let reaches = |at: u64| {
            let here = all.iter().filter(|(object, start, _)| *object == hole.0 && *start <= at);
            here.map(|(_, start, len)| start.saturating_add(*len)).max().filter(|end| *end > at)
        };
        while let Some(next) = reaches(at).filter(|_| at < end) {
            at = next;
        }
        at >= end
    };
    let redacted = redacted_in(&stream);
    assert!(redacted.len() > 3, "{redacted:?}");
    assert!(redacted.iter().all(|hole| within(&(hole.0.0, hole.1, hole.2), &our_holes)), "{redacted:?} {our_holes:?}");
    assert!(their_holes.iter().filter(|hole| hole.2 < u64::MAX).all(|hole| within(hole, &our_holes)));
    let begin_of = |stream: &[u8]| {
        let (Record::Begin(begin), payload) = records(stream).remove(0) else { panic!("a stream") };
        (
            begin.features() & feature::REDACTED,
            NvList::unpack(&payload).unwrap().get_u64_array("redact_snaps").map(<[u64]>::to_vec),
        )
    };
    assert_eq!(begin_of(&ours), begin_of(&stream));
    target.close();
}

/// Returns the ranges of the REDACT records of a stream.
fn redacted_in(stream: &[u8]) -> Vec<(ObjectId, u64, u64)> {
    let of = |(record, _)| match record {
        Record::Redact(r) => Some((r.object, r.offset, r.length)),
        _ => None,
    };
    records(stream).into_iter().filter_map(of).collect()
}

/// OpenZFS 18477 and 10374, from a redaction bookmark: the redacted blocks are sent, however old they are, including the last one
/// of a file.
#[test]
fn issues_18477_and_10374_what_was_redacted_comes_with_the_next_stream() {
    let mut target = Target::new();
    for name in ["redacted", "incr-from-redact-bookmark"] {
        target.receive(&stream_of("stredact-a", name), "recva/a", &RecvArgs::default()).unwrap();
    }
    // the complete dataset, and a copy without the blocks of a list: all blocks, some, the last ones, of files with several
    let (whole, snaps) = (target.send("recva/a@next", None, false), vec![77, 78]);
    let mut blocks: BTreeMap<ObjectId, Vec<(u64, u64)>> = BTreeMap::new();
    for (record, _) in records(&whole) {
        if let Record::Write(r) = record
            && r.object_type == u32::from(ondisk::ObjectType::PLAIN_FILE_CONTENTS.0)
        {
            blocks.entry(r.object).or_default().push((r.offset / r.logical_size, r.logical_size));
        }
    }
    let mut redacted = Vec::new();
    for (n, (object, blocks)) in blocks.iter().enumerate() {
        let chosen = match n % 3 {
            0 => &blocks[..],
            1 => &blocks[blocks.len() - 1..],
            _ => continue,
        };
        redacted.extend(chosen.iter().map(|(blkid, size)| RedactEntry {
            object: *object,
            blkid: *blkid,
            count: 1,
            size: *size,
        }));
    }
    assert!(redacted.len() > 10, "{redacted:?}");
    let lacks = |record: &Record| match record {
        Record::Write(r) => redacted.iter().any(|e| (e.object, e.blkid * e.size) == (r.object, r.offset)),
        _ => false,
    };
    let mut lacking = parts(&whole);
    lacking.retain(|(header, _)| !lacks(&header.record));
    let Record::Begin(begin) = &mut lacking[0].0.record else { panic!("a stream") };
    begin.versioninfo |= feature::REDACTED << 2;
    let mut list = NvList::new();
    list.insert("redact_snaps", snaps.clone());
    lacking[0].1 = list.pack(nvlist::Encoding::Xdr, base::Endian::Little).unwrap();
    target.receive(&remade(&lacking), "recva/lacking", &RecvArgs::default()).unwrap();

    target.spa().snapshot(&["recva/a@last".to_owned()], &[]).unwrap();
    let view = target.spa().view().unwrap();
    let (from, to) = (view.dataset("recva/a@next").unwrap(), view.dataset("recva/a@last").unwrap());
    let of_snapshot = Base::of_snapshot(&from, &to).unwrap();
    let base = Base {
        redact_snaps: Some(snaps.into_iter().map(base::Guid).collect()),
        redacted: redacted.clone(),
        ..of_snapshot
    };
    let mut increment = Vec::new();
    send(&to, Some(&base), &PLAIN, &mut increment, &Progress::default()).unwrap();
    let sent = records(&increment).into_iter().filter(|(record, _)| lacks(record)).count();
    assert_eq!(sent, redacted.len());
    drop((from, to, view));
    target.receive(&increment, "recva/lacking", &RecvArgs::default()).unwrap();
    let files =
        target.compare_source("stredact-a", &[("recva/lacking@last", "srca/r@next"), ("recva/a@last", "srca/r@next")]);
    assert!(files > 10, "{files}");
    target.close();
}

/// A bookmark of a redacted snapshot determines which streams fit it.
#[test]
fn a_bookmark_of_a_redacted_snapshot() {
    let mut target = Target::new();
    target.receive(&stream_of("stredact-a", "redacted"), "recva/a", &RecvArgs::default()).unwrap();
    target.spa().bookmark(&[("recva/a#mark".to_owned(), "recva/a@base".to_owned())]).unwrap();
    target.receive(&stream_of("stredact-a", "incr-from-redact-bookmark"), "recva/a", &RecvArgs::default()).unwrap();
    let view = target.spa().view().unwrap();
    let (to, from) = (view.dataset("recva/a@next").unwrap(), view.dataset("recva/a@base").unwrap());
    let base = Base::of_bookmark(&view.bookmark("recva/a#mark").unwrap(), &to).unwrap();
    assert!(base.redact_snaps.is_some() && base.redact_snaps == from.redact_snaps().unwrap(), "{base:?}");
    assert!(base.redacted.is_empty());
    drop((to, from, view));
    target.close();
}

/// An unreadable block ends the stream without END or, if requested, is sent as a pattern. OpenZFS 9453: in that case there is no
/// buffer to free.
#[test]
fn what_cannot_be_read_is_no_whole_stream() {
    let images = fixtures::unpack_private("frag-a");
    let whole = {
        let pool = open(&images);
        sent(&pool.dataset("fraga@s").unwrap(), None, &ALL).unwrap()
    };
    // a payload that is stored on a device exactly as it is sent
    let path = images.images().remove(0);
    let mut image = std::fs::read(&path).unwrap();
    let payloads = records(&whole)
        .into_iter()
        .filter(|(record, payload)| matches!(record, Record::Write(_)) && payload.len() >= 512);
    let mut places = payloads.filter_map(|(record, payload)| {
        let sectors = image.as_chunks::<512>().0;
        let at = sectors.iter().position(|sector| payload.starts_with(sector))?;
        Some((record, at * 512))
    });
    let (Record::Write(lost), at) = places.next().unwrap() else { panic!("a write") };
    drop(places);
    image[at..at + 512].fill(0xa5);
    std::fs::write(&path, &image).unwrap();
    let pool = open(&images);
    let to = pool.dataset("fraga@s").unwrap();
    let mut out = Vec::new();
    let error = send(&to, None, &ALL, &mut out, &Progress::default()).unwrap_err();
    assert_eq!(error.errno(), Errno::EIO, "{error}");
    let mut reader = Reader::new(&out[..]);
    let ended = std::iter::from_fn(|| reader.next_record().transpose().map(|entry| entry.map(drop))).last();
    assert!(out.is_empty() || matches!(ended, Some(Err(stream::Error::Truncated { .. }))), "{ended:?}");
    base::tunable::set("zfs_send_corrupt_data", "1").unwrap();
    let patched = sent(&to, None, &ALL).unwrap();
    base::tunable::set("zfs_send_corrupt_data", "0").unwrap();
    assert_eq!(patched.len(), whole.len());
    let bad = records(&patched).into_iter().find(|(record, _)| {
        matches!(record, Record::Write(write) if (write.object, write.offset) == (lost.object, lost.offset))
    });
    let (_, payload) = bad.unwrap();
    assert!(payload.as_chunks::<8>().0.iter().all(|word| u64::from_le_bytes(*word) == 0x02f5_badd_b10c));
}

/// Adjacent blocks are read together.
#[test]
fn neighbours_are_one_read() {
    let images = fixtures::unpack("comp-a");
    let pool = open(&images);
    let of_leaf = |leaf: &Arc<Leaf>| leaf.queue().figures().operations(Direction::Read);
    let reads = || pool.tree().leaves().iter().map(of_leaf).sum::<u64>();
    let heads = pool.list(pool.name(), &pool::ListOptions::DATASETS).unwrap();
    let heads: Vec<&Dataset> = heads.iter().filter_map(|entry| entry.dataset()).collect();
    heads.iter().for_each(|to| drop(to.objset().unwrap()));
    let before = reads();
    let streams: Vec<Vec<u8>> = heads.iter().map(|to| sent(to, None, &ALL).unwrap()).collect();
    let reads = reads() - before;
    let is_write = |(record, _): &(Record, Vec<u8>)| matches!(record, Record::Write(_));
    let blocks = streams.iter().map(|stream| records(stream).into_iter().filter(is_write).count() as u64).sum::<u64>();
    assert!(blocks > 100 && reads < blocks / 2, "{blocks} blocks, {reads} reads");
}

/// An encrypted dataset, sent raw and in the clear, many times concurrently: its key can be unloaded afterwards, and is gone
/// then.
#[test]
fn issues_12014_and_17340_a_send_leaves_no_key_behind() {
    let mut target = Target::new();
    for name in ["e-w", "e-w-incr"] {
        target.receive(&stream_of("stenc-a", name), "recva/e", &RecvArgs::default()).unwrap();
    }
    let raw = target.send("recva/e@2", Some("recva/e@1"), true);
    target.load_key("stenc-a", "recva/e", "pass.txt");
    let plain = target.send("recva/e@2", Some("recva/e@1"), false);
    std::thread::scope(|scope| {
        for n in 0..6 {
            let (target, raw, plain) = (&target, &raw, &plain);
            scope.spawn(move || {
                let again = target.send("recva/e@2", Some("recva/e@1"), n % 2 == 0);
                assert!(again == *if n % 2 == 0 { raw } else { plain });
            });
        }
    });
    target.spa().unload_key("recva/e").unwrap();
    {
        let view = target.spa().view().unwrap();
        assert_eq!(sent(&view.dataset("recva/e@2").unwrap(), None, &PLAIN).unwrap_err().errno(), Errno::EACCES);
    }
    assert!(target.send("recva/e@2", Some("recva/e@1"), true) == raw);
    target.load_key("stenc-a", "recva/e", "pass.txt");
    assert!(target.send("recva/e@2", Some("recva/e@1"), false) == plain);
    target.close();
}

/// Large blocks of one size, sent to a receiver without large blocks: each part belongs to its own block, whichever worker reads
/// it, however chunks split the blocks.
#[test]
fn the_parts_of_split_blocks_are_not_mixed_up() {
    let mut target = Target::new();
    target.receive(&stream_of("stcomp-a", "r1m-L"), "recva/a", &RecvArgs::default()).unwrap();
    let whole = records(&target.send_as("recva/a@1", None, &SendFlags { large_block: true, ..PLAIN }));
    let large =
        whole.iter().filter(|(record, _)| matches!(record, Record::Write(w) if w.logical_size == 1 << 20)).count();
    assert!(large > 2, "{large}");
    let contents = |records: &[(Record, Vec<u8>)]| -> Vec<u8> {
        let data = records.iter().filter(|(record, _)| matches!(record, Record::Write(_)));
        data.flat_map(|(_, payload)| payload.clone()).collect()
    };
    let wanted = contents(&whole);
    for round in 0..30 {
        let split = records(&target.send("recva/a@1", None, false));
        assert!(contents(&split) == wanted, "round {round}");
    }
    target.close();
}
