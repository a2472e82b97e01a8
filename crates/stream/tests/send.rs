//! The streams that Zuse sends equal those of the OpenZFS kernel module byte for byte, and OpenZFS's own `zstream` accepts them
//! as complete.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use base::Endian;
use codec::fletcher::Fletcher4;
use ondisk::send::{CHECKSUM_OFFSET, Header, RECORD_SIZE, Record};
use oracle::{fixtures, judge};
use pool::{Dataset, ListOptions, OpenOptions, Pool};
use stream::Reader;
use stream::send::{Base, Progress, SendFlags, send};
use support::{stream_of, write_temp};

fn open(fixture: &str) -> (Arc<Pool>, fixtures::Unpacked) {
    let images = fixtures::unpack(fixture);
    let wanted = fixtures::manifest(fixture)["pool"].as_str().unwrap().to_owned();
    let found = vdev::import::scan(&images.images()).unwrap();
    let candidate = found.iter().find(|c| c.name == wanted).unwrap();
    (Pool::open(candidate, &OpenOptions { missing_log_ok: true, ..OpenOptions::default() }).unwrap(), images)
}

fn sent(to: &Dataset, from: Option<&Dataset>, flags: &SendFlags) -> Result<Vec<u8>, stream::send::Error> {
    let base = from.map(|from| Base::of_snapshot(from, to)).transpose()?;
    let mut out = Vec::new();
    send(to, base.as_ref(), flags, &mut out, &Progress::default())?;
    Ok(out)
}

const RAW: SendFlags =
    SendFlags { embed: false, large_block: false, compress: false, raw: true, resume: None, saved: None };
const PLAIN: SendFlags = SendFlags { raw: false, ..RAW };
const ALL: SendFlags = SendFlags { embed: true, large_block: true, compress: true, ..PLAIN };

/// Replaces the BEGIN record of a stream by that of another, and recomputes the checksums. The fixture's kernel packed the list
/// there as NATIVE, which only its own machines read; later ones and Zuse pack XDR. The lists must be the same.
fn with_begin_of(ours: &[u8], theirs: &[u8]) -> Vec<u8> {
    let first = |bytes| {
        let mut reader = Reader::new(bytes);
        let begin = reader.next_record().unwrap().unwrap();
        let list = nvlist::NvList::unpack(begin.payload).unwrap();
        (begin.header.record, list.dump(0), RECORD_SIZE + begin.payload.len())
    };
    let ((begin, list, start), (their_begin, their_list, len)) = (first(ours), first(theirs));
    assert_eq!((begin, list), (their_begin, their_list));
    let mut out = theirs[..len].to_vec();
    let mut sum = Fletcher4::new();
    sum.update(&out, Endian::Little);
    let mut rest = &ours[start..];
    while !rest.is_empty() {
        let mut header = Header::decode(rest.first_chunk::<RECORD_SIZE>().unwrap(), Endian::Little).unwrap();
        let (record, after) = rest.split_at(RECORD_SIZE + header.payload_size() as usize);
        if let Record::End(end) = &mut header.record {
            end.checksum = sum.value();
        }
        let fields = header.encode(Endian::Little);
        sum.update(&fields[..CHECKSUM_OFFSET], Endian::Little);
        header.checksum = sum.value();
        let whole = header.encode(Endian::Little);
        sum.update(&whole[CHECKSUM_OFFSET..], Endian::Little);
        sum.update(&record[RECORD_SIZE..], Endian::Little);
        out.extend_from_slice(&whole);
        out.extend_from_slice(&record[RECORD_SIZE..]);
        rest = after;
    }
    out
}

#[test]
fn raw_streams_are_those_of_the_kernel() {
    let (pool, _images) = open("enc-a");
    for (name, to, from) in [
        ("raw-full-w", "enca/raw@s1", None),
        ("raw-incr-w", "enca/raw@s2", Some("enca/raw@s1")),
        ("hex-full-w", "enca/hex@s1", None),
        ("hex-incr-w", "enca/hex@s2", Some("enca/hex@s1")),
    ] {
        let from = from.map(|from| pool.dataset(from).unwrap());
        let ours = sent(&pool.dataset(to).unwrap(), from.as_ref(), &RAW).unwrap();
        let truth = stream_of("enc-a", name);
        let ours = with_begin_of(&ours, &truth);
        let differs = ours.iter().zip(&truth).position(|(a, b)| a != b);
        assert!(ours == truth, "{name}: {} bytes, not {}; first difference at {differs:?}", ours.len(), truth.len());
    }
}

/// Checks that the stream is complete, for Zuse and for OpenZFS.
fn check(name: &str, bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let mut records = 0;
    while reader.next_record().unwrap_or_else(|e| panic!("{name}: {e}")).is_some() {
        records += 1;
    }
    assert!(records >= 2, "{name}");
    let file = write_temp(bytes);
    if let Some(out) = judge::run("zstream", &["dump", file.path().to_str().unwrap()]) {
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

fn every_snapshot_of(fixture: &str) {
    let (pool, _images) = open(fixture);
    for entry in pool.list(pool.name(), &ListOptions::DATASETS).unwrap() {
        let Some(head) = entry.dataset() else { continue };
        if head.is_encrypted().unwrap() {
            continue;
        }
        let mut before: Option<Dataset> = None;
        for snapshot in head.snapshots().unwrap() {
            for flags in [&PLAIN, &ALL] {
                let full = sent(&snapshot, None, flags).unwrap();
                check(&format!("{} {flags:?}", snapshot.name()), &full);
                if let Some(before) = &before {
                    let part = sent(&snapshot, Some(before), flags).unwrap();
                    check(&format!("{} from {} {flags:?}", snapshot.name(), before.name()), &part);
                }
            }
            before = Some(snapshot);
        }
    }
}

#[test]
fn every_snapshot_can_be_sent() {
    for fixture in ["snaps-a", "comp-a", "sparse-a", "removal-a", "dedup-a", "posix-a", "zvol-a", "mixed-a"] {
        every_snapshot_of(fixture);
    }
}

#[test]
fn the_cache_is_as_it_was() {
    let (pool, _images) = open("frag-a");
    let snapshot = pool.dataset("fraga@s").unwrap();
    snapshot.objset().unwrap();
    let held = || {
        let stats = pool.zio().arc().stats();
        (stats.hash_elements, stats.size)
    };
    let before = held();
    let bytes = sent(&snapshot, None, &ALL).unwrap();
    let mut reader = Reader::new(&bytes[..]);
    let mut payloads = 0;
    while let Some(entry) = reader.next_record().unwrap() {
        payloads += u64::from(matches!(entry.header.record, Record::Write(_)));
    }
    // the contents of BEGIN are looked up in the MOS and in the master node; nothing that is sent stays in the cache
    let after = held();
    assert!(payloads > 32 && after.0 - before.0 < 16, "{payloads} blocks sent, {before:?} {after:?}");
    sent(&snapshot, None, &ALL).unwrap();
    assert_eq!(held(), after);
}
