//! Streams that are cut off, damaged, or lie: an error, and the target is as it was.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use std::sync::OnceLock;

use ondisk::send::feature;
use stream::recv::{Error, RecvArgs};
use stream::{Header, Record};
use support::{stream_of, streams};
use target::Target;
use target::remake::{Part, boundaries, parts, stream_of as remade};

fn increment() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| stream_of("stbasic-a", "incr-1-2"))
}

/// A pool with `recva/a@1`, to which the increment fits.
fn with_base() -> Target {
    let target = Target::new();
    target.receive(&stream_of("stbasic-a", "full"), "recva/a", &RecvArgs::default()).unwrap();
    target
}

/// The increment, changed, is refused, and nothing came of it.
fn refused(target: &Target, bytes: &[u8], what: &str) -> Error {
    let error = target.receive(bytes, "recva/a", &RecvArgs::default()).err();
    let error = error.unwrap_or_else(|| panic!("{what}: received"));
    assert!(!target.has("recva/a@2") && !target.has("recva/a/%recv"), "{what}: {error}");
    error
}

#[test]
fn a_stream_cut_at_any_record_leaves_the_target_as_it_was() {
    let mut target = with_base();
    let bytes = increment();
    let ends = boundaries(&parts(bytes));
    let step = ends.len().div_ceil(60);
    for at in ends.iter().skip(1).step_by(step) {
        for at in [*at, at + 100] {
            assert_eq!(refused(&target, &bytes[..at], &format!("cut at {at}")).errno(), 1040);
        }
    }
    target.receive(bytes, "recva/a", &RecvArgs::default()).unwrap();
    target.close();
}

#[test]
fn a_changed_byte_leaves_the_target_as_it_was() {
    let mut target = with_base();
    let mut at = 1u64;
    for _ in 0..100 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut bytes = increment().to_vec();
        let place = (at >> 20) as usize % bytes.len();
        bytes[place] ^= 1 << (at >> 60 & 7);
        match target.receive(&bytes, "recva/a", &RecvArgs::default()) {
            Err(_) => assert!(!target.has("recva/a@2") && !target.has("recva/a/%recv"), "byte {place}"),
            // of BEGIN not all bytes are under the sum of a reader that has them already: the name, padding
            Ok(_) => panic!("byte {place} changed, and received"),
        }
    }
    target.receive(increment(), "recva/a", &RecvArgs::default()).unwrap();
    target.close();
}

/// Streams with right sums and wrong fields.
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
        // into a clone of the base's state that goes each time
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
    // the first file's OBJECT is missing: its first WRITE fails, thousands after it would not
    let first = full.iter().find_map(|(h, _)| if let Record::Write(w) = &h.record { Some(w.object) } else { None });
    let broken = without(&full, |record| matches!(record, Record::Object(o) if Some(o.object) == first));
    let error = target.receive(&broken, "recva/new", &RecvArgs::default()).unwrap_err();
    assert!(matches!(&error, Error::Apply { source, .. } if source.is_not_found()), "{error}");
    assert!(!target.has("recva/new"));
    target.close();
}

/// Each kind of record, wrong in each way that is checked.
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
    let changes: &[(&str, i32, Change)] = &[
        ("object number 0", 22, change!(Object, o if true => o.object = 0)),
        ("type is DMU_OT_NONE", 22, change!(Object, o if true => o.object_type = 0)),
        ("invalid type 99", 22, change!(Object, o if true => o.object_type = 99)),
        ("requires DMU_BACKUP_FEATURE_LARGE_BLOCKS", 22, change!(Object, o if true => o.blksz = 256 << 10)),
        ("is not a multiple of 512", 22, change!(Object, o if true => o.blksz = 1000)),
        ("below minimum 512", 22, change!(Object, o if true => o.blksz = 0)),
        ("require DMU_BACKUP_FEATURE_LARGE_DNODE", 22, change!(Object, o if true => o.dn_slots = 33)),
        ("invalid flags", 22, change!(Object, o if true => o.flags = 0x80)),
        ("exceeds maximum 320", 34, change!(Object, o if o.bonuslen > 0 => o.bonuslen = 328)),
        ("must be zero in non-raw", 22, change!(Object, o if true => o.nlevels = 1)),
        ("it goes back", 22, change!(Write, w if w.object > 40 => w.object = 1)),
        ("overflows", 22, change!(Write, w if true => w.offset = u64::MAX - 511)),
        ("compressed size must be zero", 22, change!(Write, w if true => w.compressed_size = 8)),
        ("overflows", 22, change!(Free, f if true => (f.offset, f.length) = (u64::MAX - 5, 10))),
        ("overflows", 22, change!(FreeObjects, f if true => (f.firstobj, f.numobjs) = (9, u64::MAX))),
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

#[test]
fn targets_that_do_not_fit_are_refused() {
    let mut target = with_base();
    let plain = RecvArgs::default();
    let errno = |target: &Target, bytes: &[u8], fs: &str, args: &RecvArgs| {
        target.receive(bytes, fs, args).err().map_or(0, |error| error.errno())
    };
    let full = stream_of("stbasic-a", "full");
    let later = stream_of("stbasic-a", "incr-from-bookmark");
    // exists; incremental without target; no such base; parent missing; a name that cannot be
    assert_eq!(errno(&target, &full, "recva/a", &plain), 17);
    assert_eq!(errno(&target, increment(), "recva/none", &plain), 2);
    assert_eq!(errno(&target, &stream_of("stbasic-a", "incrI-2-4"), "recva/a", &plain), 19);
    assert_eq!(errno(&target, &full, "recva/no/such", &plain), 2);
    assert_eq!(errno(&target, &full, "recva/x:*", &plain), 22);
    // an origin that is not the base
    let clone = RecvArgs { origin: Some("recva/a@1".to_owned()), ..RecvArgs::default() };
    assert_eq!(errno(&target, &stream_of("stclone-a", "clone"), "recva/c", &clone), 19);
    // features that nobody knows
    let mut unknown = parts(&full);
    if let Record::Begin(begin) = &mut unknown[0].0.record {
        begin.versioninfo |= (1 << 40) << 2;
    }
    assert_eq!(errno(&target, &remade(&unknown), "recva/new", &plain), 1037);
    let mut deduplicated = parts(&full);
    if let Record::Begin(begin) = &mut deduplicated[0].0.record {
        begin.versioninfo |= feature::DEDUP << 2;
    }
    assert_eq!(errno(&target, &remade(&deduplicated), "recva/new", &plain), 1037);
    // the base is not the last snapshot any more; with force it is made so
    target.receive(increment(), "recva/a", &plain).unwrap();
    target.spa().snapshot(&["recva/a@mine".to_owned()], &[]).unwrap();
    let force = RecvArgs { force: true, ..RecvArgs::default() };
    assert_eq!(errno(&target, increment(), "recva/a", &plain), 17);
    assert_eq!(errno(&target, &later, "recva/a", &force), 0);
    assert!(target.has("recva/a@3") && !target.has("recva/a@2") && !target.has("recva/a@mine"));
    // a full stream takes the place of everything
    assert_eq!(errno(&target, &stream_of("stbasic-a", "live-nosnap"), "recva/a", &force), 0);
    assert!(target.has("recva/a@4") && !target.has("recva/a@3") && !target.has("recva/a@1"));
    target.again();
    target.close();
}

/// The streams of the fixtures that are no whole streams.
#[test]
fn streams_that_were_cut_by_their_sender_are_refused() {
    let mut target = Target::new();
    for (name, bytes) in streams("stresume-a").iter().filter(|(name, _)| name.contains("truncated")) {
        let error = target.receive(bytes, "recva/t", &RecvArgs::default()).unwrap_err();
        assert!(matches!(error.errno(), 1040 | 2), "{name}: {error}");
        assert!(!target.has("recva/t"));
    }
    target.close();
}
