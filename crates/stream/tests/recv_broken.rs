//! Streams that are truncated, damaged, or malicious: the receive fails, and the target is unchanged.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use base::{Errno, ObjectId};
use ondisk::send::feature;
use stream::recv::{Error, RecvArgs};
use stream::{Header, Record};
use support::{stream_of, streams};
use target::Target;
use target::remake::{Part, boundaries, parts, resumed_at, stream_of as remade};
use vdev::testing::{Call, Tapped};
use vdev::{Device, FileDevice};

/// No error.
const DONE: Errno = Errno::from_raw(0);

fn increment() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| stream_of("stbasic-a", "incr-1-2"))
}

/// Returns a pool with `recva/a@1`, the base of the increment.
fn with_base() -> Target {
    let target = Target::new();
    target.receive(&stream_of("stbasic-a", "full"), "recva/a", &RecvArgs::default()).unwrap();
    target
}

/// Checks that the changed increment is refused and has no effect.
fn refused(target: &Target, bytes: &[u8], what: &str) -> Error {
    let error = target.receive(bytes, "recva/a", &RecvArgs::default()).err();
    let error = error.unwrap_or_else(|| panic!("{what}: received"));
    assert!(!target.has("recva/a@2") && !target.has("recva/a/%recv"), "{what}: {error}");
    error
}

/// Returns the number of cases of each kind: a sample, or all that the test plan requires.
fn times() -> usize {
    if std::env::var_os("ZUSE_BIG").is_some() { 10_000 } else { 300 }
}

/// A deterministic pseudo-random sequence.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) as usize % end
    }
}

#[test]
fn a_stream_cut_at_any_record_or_byte_leaves_the_target_as_it_was() {
    let mut target = with_base();
    let bytes = increment();
    let mut dice = Dice(3);
    let ends = boundaries(&parts(bytes));
    let at_records = ends.iter().copied().skip(1).step_by(ends.len().div_ceil(times()));
    let mut cuts: Vec<usize> = at_records.collect();
    cuts.resize_with(times(), || 1 + dice.below(bytes.len() - 1));
    for at in cuts {
        let error = refused(&target, &bytes[..at], &format!("cut at {at}"));
        assert_eq!(error.errno(), Errno::ZFS_ERR_STREAM_TRUNCATED, "cut at {at}: {error}");
        // the error names the offset of the missing record
        assert!(error.to_string().contains("offset"), "{error}");
    }
    target.receive(bytes, "recva/a", &RecvArgs::default()).unwrap();
    target.close();
}

#[test]
fn a_changed_byte_leaves_the_target_as_it_was() {
    let mut target = with_base();
    let mut dice = Dice(1);
    for _ in 0..times() {
        let mut bytes = increment().to_vec();
        let place = dice.below(bytes.len());
        bytes[place] ^= 1 << dice.below(8);
        refused(&target, &bytes, &format!("byte {place} changed"));
    }
    target.receive(increment(), "recva/a", &RecvArgs::default()).unwrap();
    target.close();
}

/// A resumable receive completes in the end, wherever it was interrupted.
#[test]
fn a_cut_stream_that_is_resumed_gives_the_same_files() {
    let mut target = with_base();
    let bytes = increment();
    let resumable = RecvArgs { resumable: true, ..RecvArgs::default() };
    let (all, mut dice) = (parts(bytes), Dice(9));
    let before = all[0].1.len() + ondisk::send::RECORD_SIZE;
    for n in 0..times() / 30 {
        let at = before + dice.below(bytes.len() - before);
        let error = target.receive(&bytes[..at], "recva/a", &resumable).unwrap_err();
        assert_eq!(error.errno(), Errno::ZFS_ERR_STREAM_TRUNCATED, "cut at {at}: {error}");
        let token = target.spa().view().unwrap().dataset("recva/a").unwrap().receive_resume_token().unwrap();
        let rest = match token {
            None => bytes.to_vec(),
            Some(token) => {
                let list = stream::token::decode(&token).unwrap();
                resumed_at(&all, list.get_u64("object").unwrap(), list.get_u64("offset").unwrap())
            }
        };
        target.receive(&rest, "recva/a", &resumable).unwrap_or_else(|e| panic!("cut at {at}: {e}"));
        if n % 3 == 0 {
            target.compare("stbasic-a", &|name| name == "recva/a@2", &|_| None);
        }
        target.spa().destroy_snapshots(&["recva/a@2".to_owned()], false).unwrap();
        target.spa().rollback("recva/a", None).unwrap();
    }
    target.close();
}

/// A device that accepts a given number of writes and then fails.
fn failing(device: FileDevice, left: &Arc<AtomicI64>) -> Arc<dyn Device> {
    let left = left.clone();
    let pass = move |call: &Call| match call {
        Call::Write(_) if left.fetch_sub(1, Ordering::Relaxed) <= 0 => Err(io::Error::other("the device has failed")),
        _ => Ok(()),
    };
    Arc::new(Tapped::new(Arc::new(device), pass))
}

/// OpenZFS 10320, with a failing device: a write of a batch fails. So does the receive, with that error; an import afterwards
/// finds the target as it was, and the stream can be received.
#[test]
fn issue_10320_a_failing_device_fails_the_receive() {
    for writes in [0, 1, 2, 5, 8, 12] {
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let mut target = Target::on(&|inner| failing(inner, &left));
        target.receive(&stream_of("stbasic-a", "full"), "recva/a", &RecvArgs::default()).unwrap();
        left.store(writes, Ordering::Relaxed);
        let bytes = stream_of("stbasic-a", "incr-1-2");
        let error = target.receive(&bytes, "recva/a", &RecvArgs::default()).unwrap_err();
        assert!(matches!(error, Error::Pool(_) | Error::Apply { .. }), "after {writes} writes: {error}");
        target.crash();
        assert!(!target.has("recva/a@2"), "after {writes} writes");
        target.compare("stbasic-a", &|name| name == "recva/a@1", &|_| None);
        target.receive(&bytes, "recva/a", &RecvArgs::default()).unwrap();
        target.compare("stbasic-a", &|name| name == "recva/a@2", &|_| None);
    }
}

/// A pool whose device has failed releases it when it is dropped, as soon as the error was returned: no later open finds it busy.
#[test]
fn a_failed_pool_lets_its_devices_go() {
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let mut target = Target::on(&|inner| failing(inner, &left));
    target.receive(&stream_of("stbasic-a", "empty-full"), "recva/a", &RecvArgs::default()).unwrap();
    for round in 0..40 {
        left.store(round % 4, Ordering::Relaxed);
        target.spa().snapshot(&[format!("recva/a@{round}")], &[]).unwrap_err();
        left.store(i64::MAX, Ordering::Relaxed);
        target.crash_on(&|inner| failing(inner, &left));
        assert!(!target.has(&format!("recva/a@{round}")));
    }
}

/// Streams with right checksums and wrong fields.
#[test]
fn a_lying_stream_is_refused_or_harmless() {
    let mut target = with_base();
    let all = parts(increment());
    let (mut seed, mut failed) = (7u64, 0);
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 24
    };
    for n in 0..150 {
        let mut lying = all.clone();
        let at = 1 + next() as usize % (lying.len() - 2);
        let e = base::Endian::Little;
        let mut buf = lying[at].0.encode(e);
        let field = 8 + next() as usize % 56;
        buf[field] = next() as u8;
        let Ok(header) = Header::decode(&buf, e) else { continue };
        if header.payload_size() != lying[at].1.len() as u64 {
            continue;
        }
        lying[at].0 = header;
        let fs = format!("recva/lie{n}");
        // into a clone of the base's state, which is discarded each time
        let full = target.receive(&remade(&lying), "recva/a", &RecvArgs::default());
        failed += usize::from(full.is_err());
        if full.is_ok() {
            target.spa().destroy_snapshots(&["recva/a@2".to_owned()], false).unwrap();
            target.spa().rollback("recva/a", None).unwrap();
        }
        assert!(!target.has("recva/a/%recv"), "{fs}");
    }
    assert!(failed > 10, "{failed}");
    target.close();
}

fn without(all: &[Part], gone: impl Fn(&Record) -> bool) -> Vec<u8> {
    let mut once = true;
    let kept = all.iter().filter(|(header, _)| !(gone(&header.record) && std::mem::take(&mut once)));
    remade(&kept.cloned().collect::<Vec<_>>())
}

/// OpenZFS 10320: a record that failed in the middle of a batch, and good ones after it.
#[test]
fn issue_10320_the_first_error_counts() {
    let mut target = with_base();
    let full = parts(&stream_of("stbasic-a", "full"));
    // the first file's OBJECT is missing: its first WRITE fails, thousands after it would succeed
    let first = full.iter().find_map(|(h, _)| if let Record::Write(w) = &h.record { Some(w.object) } else { None });
    let broken = without(&full, |record| matches!(record, Record::Object(o) if Some(o.object) == first));
    let error = target.receive(&broken, "recva/new", &RecvArgs::default()).unwrap_err();
    assert!(matches!(&error, Error::Apply { source, .. } if source.is_not_found()), "{error}");
    assert!(!target.has("recva/new"));
    target.close();
}

/// Each kind of record, invalid in each way that is checked.
#[test]
fn records_that_cannot_be_are_refused_with_the_reason() {
    let mut target = with_base();
    let all = parts(&stream_of("stbasic-a", "full"));
    type Change = fn(&mut Record) -> bool;
    macro_rules! change {
        ($kind:ident, $r:ident if $when:expr => $change:expr) => {
            |record| match record {
                Record::$kind($r) if $when => {
                    $change;
                    true
                }
                _ => false,
            }
        };
    }
    let changes: &[(&str, Errno, Change)] = &[
        ("object number 0", Errno::EINVAL, change!(Object, o if true => o.object = ObjectId(0))),
        ("type is DMU_OT_NONE", Errno::EINVAL, change!(Object, o if true => o.object_type = 0)),
        ("invalid type 99", Errno::EINVAL, change!(Object, o if true => o.object_type = 99)),
        ("requires DMU_BACKUP_FEATURE_LARGE_BLOCKS", Errno::EINVAL, change!(Object, o if true => o.blksz = 256 << 10)),
        ("is not a multiple of 512", Errno::EINVAL, change!(Object, o if true => o.blksz = 1000)),
        ("below minimum 512", Errno::EINVAL, change!(Object, o if true => o.blksz = 0)),
        ("require DMU_BACKUP_FEATURE_LARGE_DNODE", Errno::EINVAL, change!(Object, o if true => o.dn_slots = 33)),
        ("invalid flags", Errno::EINVAL, change!(Object, o if true => o.flags = 0x80)),
        ("exceeds maximum 320", Errno::ERANGE, change!(Object, o if o.bonuslen > 0 => o.bonuslen = 328)),
        ("must be zero in non-raw", Errno::EINVAL, change!(Object, o if true => o.nlevels = 1)),
        ("it goes back", Errno::EINVAL, change!(Write, w if w.object > ObjectId(40) => w.object = ObjectId(1))),
        ("overflows", Errno::EINVAL, change!(Write, w if true => w.offset = u64::MAX - 511)),
        ("compressed size must be zero", Errno::EINVAL, change!(Write, w if true => w.compressed_size = 8)),
        ("overflows", Errno::EINVAL, change!(Free, f if true => (f.offset, f.length) = (u64::MAX - 5, 10))),
        (
            "overflows",
            Errno::EINVAL,
            change!(FreeObjects, f if true => (f.firstobj, f.numobjs) = (ObjectId(9), u64::MAX)),
        ),
    ];
    for (why, errno, change) in changes {
        let mut changed = all.clone();
        let found = changed.iter_mut().position(|(header, _)| change(&mut header.record));
        let (header, payload) = &mut changed[found.unwrap_or_else(|| panic!("{why}: no such record"))];
        payload.resize(usize::try_from(header.payload_size()).unwrap(), 0);
        let error = target.receive(&remade(&changed), "recva/new", &RecvArgs::default()).unwrap_err();
        assert_eq!(error.errno(), *errno, "{error}");
        assert!(error.to_string().contains(why) && error.to_string().contains("stream offset"), "{error}");
        assert!(!target.has("recva/new"));
    }
    target.close();
}

/// The pointer of such a block would be one that no read accepts.
#[test]
fn uncompressed_blocks_that_are_shorter_than_they_say_are_refused() {
    let mut target = Target::new();
    let mut all = parts(&stream_of("stcomp-a", "r8-c"));
    let shorter = all.iter_mut().find_map(|(header, _)| match &mut header.record {
        Record::Write(w) if w.compressiontype != 0 && w.compressed_size < w.logical_size => Some(w),
        _ => None,
    });
    shorter.unwrap().compressiontype = codec::Compress::Off as u8;
    let error = target.receive(&remade(&all), "recva/new", &RecvArgs::default()).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    assert!(error.to_string().contains("of an uncompressed block of"), "{error}");
    assert!(!target.has("recva/new"));
    target.close();
}

#[test]
fn targets_that_do_not_fit_are_refused() {
    let mut target = with_base();
    let plain = RecvArgs::default();
    let errno = |target: &Target, bytes: &[u8], fs: &str, args: &RecvArgs| {
        target.receive(bytes, fs, args).err().map_or(DONE, |error| error.errno())
    };
    let full = stream_of("stbasic-a", "full");
    let later = stream_of("stbasic-a", "incr-from-bookmark");
    // target exists; incremental without target; no such base; parent missing; invalid name
    assert_eq!(errno(&target, &full, "recva/a", &plain), Errno::EEXIST);
    assert_eq!(errno(&target, increment(), "recva/none", &plain), Errno::ENOENT);
    assert_eq!(errno(&target, &stream_of("stbasic-a", "incrI-2-4"), "recva/a", &plain), Errno::ENODEV);
    assert_eq!(errno(&target, &full, "recva/no/such", &plain), Errno::ENOENT);
    assert_eq!(errno(&target, &full, "recva/x:*", &plain), Errno::EINVAL);
    // an origin that is not the base
    let clone = RecvArgs { origin: Some("recva/a@1".to_owned()), ..RecvArgs::default() };
    assert_eq!(errno(&target, &stream_of("stclone-a", "clone"), "recva/c", &clone), Errno::ENODEV);
    // unknown features
    let mut unknown = parts(&full);
    if let Record::Begin(begin) = &mut unknown[0].0.record {
        begin.versioninfo |= (1 << 40) << 2;
    }
    assert_eq!(errno(&target, &remade(&unknown), "recva/new", &plain), Errno::ZFS_ERR_UNKNOWN_SEND_STREAM_FEATURE);
    let mut deduplicated = parts(&full);
    if let Record::Begin(begin) = &mut deduplicated[0].0.record {
        begin.versioninfo |= feature::DEDUP << 2;
    }
    assert_eq!(errno(&target, &remade(&deduplicated), "recva/new", &plain), Errno::ZFS_ERR_UNKNOWN_SEND_STREAM_FEATURE);
    // the base is no longer the last snapshot; with force the target is rolled back to it
    target.receive(increment(), "recva/a", &plain).unwrap();
    target.spa().snapshot(&["recva/a@mine".to_owned()], &[]).unwrap();
    let force = RecvArgs { force: true, ..RecvArgs::default() };
    assert_eq!(errno(&target, increment(), "recva/a", &plain), Errno::EEXIST);
    assert_eq!(errno(&target, &later, "recva/a", &force), DONE);
    assert!(target.has("recva/a@3") && !target.has("recva/a@2") && !target.has("recva/a@mine"));
    // a full stream replaces everything
    assert_eq!(errno(&target, &stream_of("stbasic-a", "live-nosnap"), "recva/a", &force), DONE);
    assert!(target.has("recva/a@4") && !target.has("recva/a@3") && !target.has("recva/a@1"));
    target.again();
    target.close();
}

/// The streams of the fixtures that are incomplete.
#[test]
fn streams_that_were_cut_by_their_sender_are_refused() {
    let mut target = Target::new();
    for (name, bytes) in streams("stresume-a").iter().filter(|(name, _)| name.contains("truncated")) {
        let error = target.receive(bytes, "recva/t", &RecvArgs::default()).unwrap_err();
        assert!(matches!(error.errno(), Errno::ZFS_ERR_STREAM_TRUNCATED | Errno::ENOENT), "{name}: {error}");
        assert!(!target.has("recva/t"));
    }
    target.close();
}
