//! Hostile lists cannot exhaust memory, stack or time.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use base::Errno;
use nvlist::{Encoding, Endian, Error, Limits, NvList, NvListRef, Uniqueness, Value};

fn deep(levels: usize) -> NvList {
    let mut list = NvList::new();
    for _ in 0..levels {
        let mut outer = NvList::new();
        outer.insert("in", list);
        list = outer;
    }
    list
}

#[test]
fn nesting_ends_at_the_limit() {
    for encoding in [Encoding::Xdr, Encoding::Native] {
        let packed = deep(100).pack(encoding, Endian::Little).unwrap();
        assert!(NvList::unpack(&packed).is_ok());
        assert!(NvListRef::new(&packed).unwrap().check().is_ok());
        let limits = Limits { depth: 99, ..Limits::default() };
        assert!(matches!(NvList::unpack_with(&packed, &limits), Err(Error::Limit { limit: 99, .. })));
        assert!(matches!(deep(101).pack(encoding, Endian::Little), Err(Error::Limit { .. })));
    }
    // 100,000 levels, by hand: a pair's header and a list's header, repeated
    let mut packed = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    for _ in 0..100_000 {
        for word in [1u32 << 30, 48, 1, u32::from_be_bytes(*b"x\0\0\0"), 19, 1, 0, 1] {
            packed.extend(word.to_be_bytes());
        }
    }
    assert!(matches!(NvList::unpack(&packed), Err(Error::Limit { limit: 100, .. })));
    assert!(matches!(NvListRef::new(&packed).unwrap().check(), Err(Error::Limit { .. })));
}

#[test]
fn pairs_and_bytes_end_at_the_limit() {
    let mut list = NvList::new();
    for i in 0..1000u64 {
        list.insert(format!("{i}"), i);
    }
    for encoding in [Encoding::Xdr, Encoding::Native] {
        let packed = list.pack(encoding, Endian::Big).unwrap();
        let few = Limits { pairs: 999, ..Limits::default() };
        assert!(matches!(NvList::unpack_with(&packed, &few), Err(Error::Limit { what: "pairs", limit: 999 })));
        let small = Limits { bytes: 40_000, ..Limits::default() };
        assert!(matches!(NvList::unpack_with(&packed, &small), Err(Error::Limit { limit: 40_000, .. })));
        let enough = Limits { bytes: 4 * list.heap_size(), ..Limits::default() };
        assert!(NvList::unpack_with(&packed, &enough).is_ok());
    }
}

#[test]
fn a_count_alone_takes_no_memory() {
    // arrays of 2^31-1 elements with nothing behind them
    for ty in [17u32, 20, 16, 10, 24] {
        let mut packed = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        for word in [1u32 << 30, 1 << 30, 0, ty, i32::MAX as u32, i32::MAX as u32] {
            packed.extend(word.to_be_bytes());
        }
        packed.resize(200, 0);
        assert!(NvList::unpack(&packed).is_err(), "type {ty}");
        assert!(NvListRef::new(&packed).unwrap().check().is_err(), "type {ty}");
    }
}

#[test]
fn unique_names_are_unique() {
    let mut list = NvList::with_flags(Uniqueness::None);
    list.insert("twice", 1u64);
    list.insert("twice", "text");
    for encoding in [Encoding::Xdr, Encoding::Native] {
        let mut packed = list.pack(encoding, Endian::Big).unwrap();
        assert_eq!(NvList::unpack(&packed).unwrap(), list);
        packed[11] = 2;
        assert_eq!(NvList::unpack(&packed).unwrap().uniqueness(), Uniqueness::NameAndType);
        packed[11] = 1;
        assert!(matches!(NvList::unpack(&packed), Err(Error::Duplicate { name, .. }) if name == "twice"));
    }
}

#[test]
fn names_that_cannot_be_said_are_refused() {
    for (name, value) in [
        (&b"nul\0inside"[..], Value::Boolean),
        (&[b'x'; 32767][..], Value::Boolean),
        (b"ok", Value::from("nul\0inside")),
        (b"ok", Value::from(vec!["a", "nul\0inside"])),
    ] {
        let mut list = NvList::new();
        list.insert(name, value);
        for encoding in [Encoding::Xdr, Encoding::Native] {
            let error = list.pack(encoding, Endian::Big).unwrap_err();
            assert!(matches!(error, Error::Unpackable { .. }), "{error}");
            assert_eq!(error.errno(), Errno::EINVAL);
        }
    }
    let mut list = NvList::new();
    list.insert([b'x'; 32766], ());
    list.insert(b"\xff\xfe", "bytes");
    for encoding in [Encoding::Xdr, Encoding::Native] {
        let packed = list.pack(encoding, Endian::Big).unwrap();
        let back = NvList::unpack(&packed).unwrap();
        assert_eq!(back, list);
        assert_eq!(back.get_str(b"\xff\xfe"), Some("bytes"));
        assert_eq!((back.iter().count(), back.iter_bytes().count()), (1, 2));
    }
}

/// Names that OpenZFS's hash (the ELF hash) puts into one bucket: "A0" and "0" + 16 … cost it quadratic time.
#[test]
fn colliding_names_are_as_fast_as_any() {
    fn elf(name: &[u8]) -> u32 {
        name.iter().fold(0u32, |h, b| {
            let h = (h << 4).wrapping_add(u32::from(*b));
            let g = h & 0xf000_0000;
            (h ^ g >> 24) & !g
        })
    }
    // each pair of letters has two spellings of the same hash
    let names: Vec<Vec<u8>> = (0..1u32 << 17)
        .map(|bits| (0..17).flat_map(|at| if bits >> at & 1 == 0 { *b"ap" } else { *b"b`" }).collect())
        .collect();
    assert!(names.iter().all(|n| elf(n) == elf(&names[0])));
    let start = Instant::now();
    let mut list = NvList::new();
    for name in &names {
        list.insert(name, ());
    }
    assert!(names.iter().all(|n| list.contains(n)));
    for name in &names {
        assert!(list.remove(name).is_some());
    }
    // quadratic work would be 2^33 comparisons
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn one_name_many_times_is_not_quadratic() {
    let mut list = NvList::with_flags(Uniqueness::None);
    let start = Instant::now();
    for i in 0..300_000u64 {
        list.insert("same", i);
    }
    for encoding in [Encoding::Xdr, Encoding::Native] {
        let packed = list.pack(encoding, Endian::Little).unwrap();
        assert_eq!(NvList::unpack(&packed).unwrap().len(), 300_000);
    }
    for i in 0..300_000u64 {
        assert_eq!(list.remove("same"), Some(Value::Uint64(i)));
    }
    assert!(list.is_empty());
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn memory_follows_the_pairs() {
    let mut list = NvList::new();
    for i in 0..100_000u64 {
        list.insert(format!("name {i}"), i);
    }
    let full = list.heap_size();
    for i in 0..100_000u64 {
        if i % 1000 != 0 {
            list.remove(format!("name {i}"));
        }
    }
    assert_eq!(list.len(), 100);
    // about a megabyte is kept
    assert!(full > 10 << 20 && list.heap_size() < 3 << 19, "{} of {full}", list.heap_size());
    assert!(list.iter().map(|(_, v)| v.as_u64()).eq((0..100).map(|i| Some(i * 1000))));
    // repeated replacement leaves nothing behind either
    for i in 0..100_000u64 {
        list.insert(format!("name {}", i % 7 * 1000), i);
    }
    assert_eq!(list.len(), 100);
    assert!(list.heap_size() < 3 << 19);
}
