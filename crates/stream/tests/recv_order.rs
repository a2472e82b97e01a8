//! Streams of a machine of the other byte order: records and, in objects of ours, what is in the blocks.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use ::base::{Endian, bytes};
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

/// The stream of a machine of the other order: attributes stay, as they are when a file system came from elsewhere.
fn foreign(bytes: &[u8]) -> (Vec<u8>, usize) {
    let (mut all, mut zaps): (Vec<Part>, usize) = (parts(bytes), 0);
    for (header, payload) in &mut all {
        let Record::Write(r) = &header.record else { continue };
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
        let (bytes, found) = foreign(&stream_of(fixture, name));
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
