//! Bugs that OpenZFS had in its receive, by their numbers.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use ondisk::send::{FreeObjects, feature};
use stream::recv::RecvArgs;
use stream::send::SendFlags;
use stream::{Header, Record};
use support::stream_of;
use target::Target;
use target::remake::{Part, boundaries, parts, resumed_at, stream_of as remade};

const PLAIN: fn() -> RecvArgs = RecvArgs::default;

/// An increment with large blocks on top of a stream without: files keep what the increment does not have, in the blocks that they have.
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

/// A dataset that was received with large blocks takes no stream without them, whether it has such a block or not.
#[test]
fn issue_18105_the_feature_is_in_use_once_a_stream_had_it() {
    let mut target = Target::new();
    target.receive(&stream_of("stcomp-a", "r1m-Lc"), "recva/x", &PLAIN()).unwrap();
    let mut without = parts(&stream_of("stcomp-a", "r1m-Lc-incr"));
    if let Record::Begin(begin) = &mut without[0].0.record {
        begin.versioninfo &= !(feature::LARGE_BLOCKS << 2);
    }
    assert_eq!(target.receive(&remade(&without), "recva/x", &PLAIN()).unwrap_err().errno(), 1041);
    assert!(!target.has("recva/x/%recv"));
    target.close();
}

/// FREEOBJECTS, and then the same number again: the object is made when the old one is gone from disk.
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
        // writes do not go back: what has several cannot come twice
        let writes = group.iter().filter(|(header, _)| matches!(header.record, Record::Write(_))).count();
        if object.object > 40 && writes <= 1 {
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

/// A length in BEGIN that no list has: refused before memory is taken.
#[test]
fn issue_14285_a_huge_payload() {
    let mut target = Target::new();
    let mut bytes = stream_of("stbasic-a", "empty-full");
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(target.receive(&bytes, "recva/x", &PLAIN()).unwrap_err().errno(), 34);
    target.close();
}

/// OpenZFS 15927: a stream that was cut exactly where an object begins goes on there, and nothing of it is lost.
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
        // before its record, and behind it
        let cut = ends[object + n % 2];
        let done = bytes.len() - rest.len().min(bytes.len());
        let at = cut.saturating_sub(done).clamp(ends[1], rest.len() - 1);
        assert_eq!(target.receive(&rest[..at], "recva/a", &resumable()).unwrap_err().errno(), 1040);
        let token = target.spa().view().unwrap().dataset("recva/a").unwrap().receive_resume_token().unwrap();
        let list = stream::token::decode(&token.unwrap()).unwrap();
        rest = resumed_at(&all, list.get_u64("object").unwrap(), list.get_u64("offset").unwrap());
    }
    target.receive(&rest, "recva/a", &resumable()).unwrap();
    assert!(target.compare("stbasic-a", &|name| name == "recva/a@1", &|_| None) > 10);
    target.close();
}

/// Compressed blocks are written as they came: what is sent again is the same, whatever the target would have compressed with.
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
