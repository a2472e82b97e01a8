//! Bugs that OpenZFS's send has had, each by its number; and what a send does with blocks that it cannot read.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oracle::fixtures;
use pool::{Dataset, OpenOptions, Pool};
use stream::recv::RecvArgs;
use stream::send::{Base, Progress, SendFlags, measure, send};
use stream::{Reader, Record};
use support::stream_of;
use target::Target;
use vdev::{Device, FileDevice};

const PLAIN: SendFlags =
    SendFlags { embed: false, large_block: false, compress: false, raw: false, resume: None, saved: None };
const ALL: SendFlags = SendFlags { embed: true, large_block: true, compress: true, ..PLAIN };
const RAW: SendFlags = SendFlags { raw: true, ..PLAIN };

/// A device that counts reads.
#[derive(Debug)]
struct Counting(FileDevice, Arc<AtomicU64>);

impl Device for Counting {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

/// Opens the pool of some images; reads are counted.
fn open(images: &fixtures::Unpacked) -> (Arc<Pool>, Arc<AtomicU64>) {
    let reads = Arc::new(AtomicU64::new(0));
    let device = |path: &Path| -> Arc<dyn Device> {
        Arc::new(Counting(FileDevice::open_read_only(path).unwrap(), reads.clone()))
    };
    let devices = images.images().into_iter().map(|path| (path.clone(), device(&path))).collect();
    let found = vdev::import::scan_devices(devices);
    (Pool::open(found.first().unwrap(), &OpenOptions::default()).unwrap(), reads)
}

fn sent(to: &Dataset, from: Option<&Dataset>, flags: &SendFlags) -> Result<Vec<u8>, stream::send::Error> {
    let base = from.map(|from| Base::of_snapshot(from, to)).transpose()?;
    let mut out = Vec::new();
    send(to, base.as_ref(), flags, &mut out, &Progress::default())?;
    Ok(out)
}

/// Records of a stream with their payloads.
fn records(stream: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let mut reader = Reader::new(stream);
    let mut all = Vec::new();
    while let Some(entry) = reader.next_record().unwrap() {
        all.push((entry.header.record.clone(), entry.payload.to_vec()));
    }
    all
}

/// The list in BEGIN is XDR and filled up to 8 bytes in every stream, so that machines of the other byte order read it.
#[test]
fn issues_18360_and_18372_the_list_of_begin_is_xdr() {
    let images = fixtures::unpack("enc-a");
    let (pool, _) = open(&images);
    let raw = sent(&pool.dataset("enca/raw@s1").unwrap(), None, &RAW).unwrap();
    let (_, payload) = records(&raw).remove(0);
    assert_eq!((payload.first(), payload.len() % 8), (Some(&1), 0));
    let resumed = SendFlags { resume: Some(stream::send::ResumeAt { object: 2, offset: 0 }), ..RAW };
    let (_, payload) = records(&sent(&pool.dataset("enca/raw@s1").unwrap(), None, &resumed).unwrap()).remove(0);
    assert_eq!((payload.first(), payload.len() % 8), (Some(&1), 0));
}

/// Several sends of one snapshot at a time.
#[test]
fn issue_14903_sends_side_by_side() {
    let images = fixtures::unpack("snaps-a");
    let (pool, _) = open(&images);
    let heads = pool.list(pool.name(), &pool::ListOptions::DATASETS).unwrap();
    let snapshots: Vec<Dataset> =
        heads.iter().filter_map(|entry| entry.dataset()).flat_map(|head| head.snapshots().unwrap()).take(3).collect();
    let alone: Vec<Vec<u8>> = snapshots.iter().map(|to| sent(to, None, &ALL).unwrap()).collect();
    std::thread::scope(|scope| {
        let all = snapshots.iter().zip(&alone).cycle().take(9);
        all.for_each(|(to, alone)| drop(scope.spawn(move || assert!(sent(to, None, &ALL).unwrap() == *alone))));
    });
}

/// FREEOBJECTS never names more objects than the receiver can have; and what is measured is what is sent.
#[test]
fn issue_10916_no_number_behind_the_last_object_is_freed() {
    let images = fixtures::unpack("snaps-a");
    let (pool, _) = open(&images);
    let heads = pool.list(pool.name(), &pool::ListOptions::DATASETS).unwrap();
    let (mut freed, mut before) = (0, None::<Dataset>);
    for snapshot in heads.iter().filter_map(|entry| entry.dataset()).flat_map(|head| head.snapshots().unwrap()) {
        let most = (snapshot.objset().unwrap().phys().meta_dnode.maxblkid + 1) * 32;
        let from = before.take().filter(|before| before.dir().id() == snapshot.dir().id());
        for flags in [&PLAIN, &ALL] {
            let stream = sent(&snapshot, from.as_ref(), flags).unwrap();
            for (record, _) in records(&stream) {
                let Record::FreeObjects(free) = record else { continue };
                assert!(free.numobjs > 0 && free.firstobj + free.numobjs <= most, "{free:?} of {most}");
                freed += 1;
            }
            let base = from.as_ref().map(|from| Base::of_snapshot(from, &snapshot).unwrap());
            assert_eq!(measure(&snapshot, base.as_ref(), flags).unwrap(), stream.len() as u64);
        }
        before = Some(snapshot);
    }
    assert!(freed > 5, "{freed}");
}

/// Spill blocks come once each, with what they have, and after their objects.
#[test]
fn issue_16701_spill_blocks() {
    let target = Target::new();
    target.receive(&stream_of("stspecial-a", "full"), "recva/a", &RecvArgs::default()).unwrap();
    let view = target.spa().view().unwrap();
    let ours = sent(&view.dataset("recva/a@1").unwrap(), None, &PLAIN).unwrap();
    let spills = |stream: &[u8]| -> Vec<(u64, Vec<u8>)> {
        let of =
            |(record, payload)| if let Record::Spill(spill) = record { Some((spill.object, payload)) } else { None };
        records(stream).into_iter().filter_map(of).collect()
    };
    let theirs = spills(&stream_of("stspecial-a", "full"));
    assert!(!theirs.is_empty() && spills(&ours) == theirs, "{} spills, not {}", spills(&ours).len(), theirs.len());
}

/// A dataset that was received redacted, sent again: all that is there, to the last block.
#[test]
fn issue_18477_the_last_block_of_a_redacted_dataset() {
    let target = Target::new();
    let stream = stream_of("stredact-a", "redacted");
    target.receive(&stream, "recva/a", &RecvArgs::default()).unwrap();
    let view = target.spa().view().unwrap();
    let ours = sent(&view.dataset("recva/a@base").unwrap(), None, &PLAIN).unwrap();
    let blocks = |stream: &[u8]| -> Vec<(u64, u64)> {
        let of =
            |(record, _)| if let Record::Write(write) = record { Some((write.object, write.offset)) } else { None };
        records(stream).into_iter().filter_map(of).collect()
    };
    let theirs = blocks(&stream);
    assert!(theirs.len() > 30, "{theirs:?}");
    assert_eq!(blocks(&ours), theirs);
}

/// A block that cannot be read ends the stream, without END; or, if that is wanted, is sent as a pattern.
#[test]
fn what_cannot_be_read_is_no_whole_stream() {
    let images = fixtures::unpack_private("frag-a");
    let whole = {
        let (pool, _) = open(&images);
        sent(&pool.dataset("fraga@s").unwrap(), None, &ALL).unwrap()
    };
    // a payload that stands on a device as it is sent
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
    let (pool, _) = open(&images);
    let to = pool.dataset("fraga@s").unwrap();
    let mut out = Vec::new();
    let error = send(&to, None, &ALL, &mut out, &Progress::default()).unwrap_err();
    assert_eq!(error.errno(), 5, "{error}");
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

/// Blocks that lie side by side are read together.
#[test]
fn neighbours_are_one_read() {
    let images = fixtures::unpack("comp-a");
    let (pool, reads) = open(&images);
    let heads = pool.list(pool.name(), &pool::ListOptions::DATASETS).unwrap();
    let heads: Vec<&Dataset> = heads.iter().filter_map(|entry| entry.dataset()).collect();
    heads.iter().for_each(|to| drop(to.objset().unwrap()));
    let before = reads.load(Ordering::Relaxed);
    let streams: Vec<Vec<u8>> = heads.iter().map(|to| sent(to, None, &ALL).unwrap()).collect();
    let reads = reads.load(Ordering::Relaxed) - before;
    let is_write = |(record, _): &(Record, Vec<u8>)| matches!(record, Record::Write(_));
    let blocks = streams.iter().map(|stream| records(stream).into_iter().filter(is_write).count() as u64).sum::<u64>();
    assert!(blocks > 100 && reads < blocks / 2, "{blocks} blocks, {reads} reads");
}
