//! Streams of a machine of the other byte order: records and, in objects of ours, what is in the blocks.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use ::base::{Endian, bytes};
use ondisk::sa::SaHeader;
use ondisk::zap::{FatHeader, Leaf, MicroZap, ZBT_HEADER, ZBT_LEAF, ZBT_MICRO};
use ondisk::{ByteswapClass, ObjectType};
use stream::Record;
use stream::recv::RecvArgs;
use support::stream_of;
use target::Target;
use target::remake::{Part, parts, stream_in};

const BIG: Endian = Endian::Big;

/// Turns fields of `block`: (where, how long).
fn turn(block: &mut [u8], fields: impl IntoIterator<Item = (usize, usize)>) {
    fields.into_iter().for_each(|(at, len)| block[at..at + len].reverse());
}

fn words(from: usize, to: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    (from..to).step_by(len).map(move |at| (at, len))
}

/// A block of a ZAP as a big-endian machine has it, and that it reads as what it was.
fn zap(block: &mut [u8]) {
    let len = block.len();
    match bytes::u64(block, 0, Endian::Little).unwrap() {
        ZBT_MICRO => {
            turn(block, words(0, 64, 8).chain(words(64, len, 64).flat_map(|(at, _)| [(at, 8), (at + 8, 4)])));
            assert!(MicroZap::parse(block, BIG).is_ok());
        }
        ZBT_LEAF => {
            let before = Leaf::parse(block, Endian::Little).unwrap().header;
            let chunks = 48 + len / 16;
            let kinds: Vec<(usize, u8)> = words(chunks, len - 23, 24).map(|(at, _)| (at, block[at])).collect();
            turn(block, [(0, 8), (8, 8), (16, 8), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2)]);
            turn(block, words(48, chunks, 2));
            for (at, kind) in kinds {
                match kind {
                    252 => turn(block, words(at + 2, at + 12, 2).chain([(at + 12, 4), (at + 16, 8)])),
                    _ => turn(block, [(at + 22, 2)]),
                }
            }
            assert_eq!(Leaf::parse(block, BIG).unwrap().header, before);
        }
        first => {
            turn(block, words(0, len, 8));
            assert!(first != ZBT_HEADER || FatHeader::decode(block, BIG).is_ok());
        }
    }
}

/// Attributes as a big-endian machine has them: the header, what all files have, and the first part of variable length, an ACL of entries without
/// users. What follows are bytes. Of a spill block there is nothing but bytes behind the header.
fn attributes(block: &mut [u8], spill: bool) {
    let header = SaHeader::decode(block).unwrap().unwrap();
    let acl = usize::from(bytes::u16(block, 6, Endian::Little).unwrap());
    turn(block, [(0, 4)].into_iter().chain(words(4, header.size, 2)));
    if !spill {
        // sixteen numbers all have, some a project, a device, or a directory of attributes; then comes how many entries there are
        let is_count = |at: &usize| bytes::u64(block, *at, Endian::Little) == Some(acl as u64 / 8);
        let count = (16..20).rev().map(|n| header.size + n * 8).find(is_count).unwrap();
        turn(block, words(header.size, count + 8, 8));
        turn(block, words(count + 8, count + 8 + acl, 8).flat_map(|(at, _)| [(at, 2), (at + 2, 2), (at + 4, 4)]));
    }
    assert_eq!(SaHeader::decode(block).unwrap().unwrap().endian, BIG);
}

/// The stream of a machine of the other order. Attributes may stay: so they are in a file system that came from elsewhere.
fn foreign(bytes: &[u8], with_attributes: bool) -> (Vec<u8>, usize) {
    let (mut all, mut zaps): (Vec<Part>, usize) = (parts(bytes), 0);
    for (header, payload) in &mut all {
        let sa = u32::from(ObjectType::SA.0);
        let r = match &header.record {
            Record::Write(r) => r,
            Record::Object(r) if with_attributes && r.bonus_type == sa => {
                attributes(payload, false);
                continue;
            }
            Record::Spill(r) if with_attributes && r.object_type == sa => {
                attributes(payload, true);
                continue;
            }
            _ => continue,
        };
        match ObjectType(r.object_type as u8).byteswap_class() {
            Some(ByteswapClass::Zap) => {
                zap(payload);
                zaps += 1;
            }
            Some(ByteswapClass::Uint64) => {
                let len = payload.len();
                turn(payload, words(0, len, 8));
            }
            Some(ByteswapClass::Uint8) => {}
            other => panic!("{other:?}"),
        }
    }
    (stream_in(&all, BIG), zaps)
}

#[test]
fn a_stream_of_the_other_byte_order_gives_the_same_files() {
    let mut target = Target::new();
    let mut zaps = 0;
    for (fixture, name, fs) in
        [("stbasic-a", "full", "recva/a"), ("stbasic-a", "incr-1-2", "recva/a"), ("stspecial-a", "full", "recva/s")]
    {
        let (bytes, found) = foreign(&stream_of(fixture, name), false);
        zaps += found;
        target.receive(&bytes, fs, &RecvArgs::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    assert!(zaps > 20, "{zaps}");
    for _ in 0..2 {
        target.compare("stbasic-a", &|name| matches!(name, "recva/a@1" | "recva/a@2"), &|_| None);
        target.again();
    }
    target.close();
}

/// Attributes in the order of another machine stay as they came, and are read as what they are; an increment finds the same files by them.
#[test]
fn attributes_of_the_other_byte_order_stay_and_are_read() {
    let mut target = Target::new();
    for name in ["full", "incr-1-2"] {
        let (bytes, _) = foreign(&stream_of("stbasic-a", name), true);
        target.receive(&bytes, "recva/a", &RecvArgs::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    {
        let view = target.spa().view().unwrap();
        let objset = view.dataset("recva/a@2").unwrap().objset().unwrap();
        let bonuses =
            (1..200).filter_map(|id| objset.object(id).ok()).filter(|o| o.phys().bonus_type == ObjectType::SA);
        let orders: Vec<Endian> = bonuses.map(|o| SaHeader::decode(o.bonus()).unwrap().unwrap().endian).collect();
        assert!(orders.len() > 20 && orders.iter().all(|order| *order == BIG), "{orders:?}");
    }
    assert!(target.compare("stbasic-a", &|name| matches!(name, "recva/a@1" | "recva/a@2"), &|_| None) > 20);
    target.again();
    target.compare("stbasic-a", &|name| name == "recva/a@2", &|_| None);
    target.close();
}
