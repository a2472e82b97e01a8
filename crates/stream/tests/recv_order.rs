//! Streams of a machine of the other byte order: byte-swapped records and, in our objects, byte-swapped block contents.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use ::base::{Endian, bytes};
use base::ObjectId;
use dmu::Zap;
use ondisk::sa::SaHeader;
use ondisk::send::{WriteEmbedded, feature};
use ondisk::zap::{FatHeader, Leaf, MicroZap, ZBT_HEADER, ZBT_LEAF, ZBT_MICRO};
use ondisk::{ByteswapClass, ObjectType};
use stream::Record;
use stream::recv::RecvArgs;
use stream::send::SendFlags;
use support::stream_of;
use target::Target;
use target::remake::{Part, parts, stream_in};

const BIG: Endian = Endian::Big;

/// Byte-swaps fields of `block`: (offset, length).
fn turn(block: &mut [u8], fields: impl IntoIterator<Item = (usize, usize)>) {
    fields.into_iter().for_each(|(at, len)| block[at..at + len].reverse());
}

fn words(from: usize, to: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    (from..to).step_by(len).map(move |at| (at, len))
}

/// Converts a ZAP block to that of a big-endian machine, and checks that it reads the same.
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

/// Converts system attributes to those of a big-endian machine: the header, the attributes that all files have, and the first of
/// variable length, an ACL of entries without users. The rest are bytes. A spill block has only bytes after the header.
fn attributes(block: &mut [u8], spill: bool) {
    let header = SaHeader::decode(block).unwrap().unwrap();
    let acl = usize::from(bytes::u16(block, 6, Endian::Little).unwrap());
    turn(block, [(0, 4)].into_iter().chain(words(4, header.size, 2)));
    if !spill {
        // all files have sixteen numbers, some also a project, a device, or an attribute directory; then follows the number of
        // entries
        let is_count = |at: &usize| bytes::u64(block, *at, Endian::Little) == Some(acl as u64 / 8);
        let count = (16..20).rev().map(|n| header.size + n * 8).find(is_count).unwrap();
        turn(block, words(header.size, count + 8, 8));
        turn(block, words(count + 8, count + 8 + acl, 8).flat_map(|(at, _)| [(at, 2), (at + 2, 2), (at + 4, 4)]));
    }
    assert_eq!(SaHeader::decode(block).unwrap().unwrap().endian, BIG);
}

/// Returns the stream of a machine of the other byte order. Attributes may be left in ours, as in a file system that came from
/// elsewhere.
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

/// Attributes in the other byte order are stored as they came, and are read correctly; an increment recognizes the same files by
/// them.
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
        let bonuses = (1..200)
            .filter_map(|id| objset.object(ObjectId(id)).ok())
            .filter(|o| o.phys().bonus_type == ObjectType::SA);
        let orders: Vec<Endian> = bonuses.map(|o| SaHeader::decode(o.bonus()).unwrap().unwrap().endian).collect();
        assert!(orders.len() > 20 && orders.iter().all(|order| *order == BIG), "{orders:?}");
    }
    assert!(target.compare("stbasic-a", &|name| matches!(name, "recva/a@1" | "recva/a@2"), &|_| None) > 20);
    target.again();
    target.compare("stbasic-a", &|name| name == "recva/a@2", &|_| None);
    target.close();
}

/// Small ZAPs are embedded in pointers: compressed data there cannot be byte-swapped, so the pointer must state its byte order.
#[test]
fn what_stands_in_pointers_keeps_the_order_of_its_writer() {
    let mut target = Target::new();
    let (bytes, _) = foreign(&stream_of("stbasic-a", "full"), false);
    let mut reader = parts(&bytes);
    let mut small = 0;
    for (header, payload) in &mut reader {
        match &mut header.record {
            Record::Begin(begin) => {
                let features = begin.features() | feature::EMBED_DATA | feature::LZ4;
                begin.versioninfo = u64::from(begin.hdrtype()) | features << 2;
            }
            Record::Write(r) if ObjectType(r.object_type as u8).is_zap() && r.offset == 0 => {
                let Some(mut packed) = codec::compress(codec::Compress::Lz4, None, payload, 112) else { continue };
                let (lsize, psize) = (payload.len() as u32, packed.len() as u32);
                packed.resize(packed.len().next_multiple_of(8), 0);
                let (object, offset, length, toguid) = (r.object, r.offset, r.logical_size, r.toguid);
                let compression = codec::Compress::Lz4 as u8;
                header.record = Record::WriteEmbedded(WriteEmbedded {
                    object,
                    offset,
                    length,
                    toguid,
                    compression,
                    etype: 0,
                    lsize,
                    psize,
                });
                *payload = packed;
                small += 1;
            }
            _ => {}
        }
    }
    assert!(small > 3, "{small}");
    target.receive(&stream_in(&reader, BIG), "recva/a", &RecvArgs::default()).unwrap();
    let is_foreign = |name: &str, target: &Target| {
        let objset = target.spa().view().unwrap().dataset(name).unwrap().objset().unwrap();
        let objects: Vec<_> = objset.objects().map(Result::unwrap).collect();
        objects.iter().filter(|object| object.endian_of(0).unwrap() == Some(BIG)).count()
    };
    // blocks that were written as a whole are in our order
    assert_eq!(is_foreign("recva/a@1", &target), small);
    target.compare("stbasic-a", &|name| name == "recva/a@1", &|_| None);
    // it is sent in our order: a stream does not state the order of embedded data
    for embed in [false, true] {
        let flags = SendFlags { embed, large_block: true, compress: true, raw: false, resume: None, saved: None };
        let sent = target.send_as("recva/a@1", None, &flags);
        let fs = format!("recva/again-{embed}");
        target.receive(&sent, &fs, &RecvArgs::default()).unwrap();
        assert_eq!(is_foreign(&format!("{fs}@1"), &target), 0);
        let names = |name: &str| {
            let objset = target.spa().view().unwrap().dataset(name).unwrap().objset().unwrap();
            let zaps = objset.objects().map(Result::unwrap).filter(|object| object.phys().object_type.is_zap());
            let entries =
                |object| Zap::open(object).unwrap().entries().unwrap().map(Result::unwrap).collect::<Vec<_>>();
            zaps.map(entries).collect::<Vec<_>>()
        };
        assert_eq!(names(&format!("{fs}@1")), names("recva/a@1"));
    }
    // a change of a block converts it
    target.again();
    let objset = target.spa().objset(&target.spa().view().unwrap().dataset("recva/a").unwrap()).unwrap();
    let changed: Vec<ObjectId> = {
        let tx = target.spa().tx(1 << 20).unwrap();
        let all = objset.objects().map(Result::unwrap).filter(|object| object.endian_of(0).unwrap() == Some(BIG));
        let ids: Vec<ObjectId> = all.map(|object| object.id()).collect();
        for id in &ids {
            let zap = Zap::open(objset.object(*id).unwrap()).unwrap();
            zap.update_u64(&tx, "put in later", 7).unwrap();
        }
        ids
    };
    target.spa().sync().unwrap();
    assert_eq!(changed.len(), small);
    let now = target.spa().view().unwrap().dataset("recva/a").unwrap().objset().unwrap();
    let then = target.spa().view().unwrap().dataset("recva/a@1").unwrap().objset().unwrap();
    for id in changed {
        let entries = |objset: &std::sync::Arc<dmu::Objset>| {
            let zap = Zap::open(objset.object(id).unwrap()).unwrap();
            let all = zap.entries().unwrap().map(Result::unwrap);
            let mut all: Vec<_> = all.filter(|entry| entry.name != b"put in later").collect();
            all.sort_by(|a, b| a.name.cmp(&b.name));
            all
        };
        let object = now.object(id).unwrap();
        assert_eq!(object.endian_of(0).unwrap(), Some(Endian::Little));
        assert_eq!(Zap::open(object).unwrap().lookup_u64("put in later").unwrap(), Some(7));
        assert_eq!(entries(&now), entries(&then), "object {id}");
    }
    drop(objset);
    target.close();
}
