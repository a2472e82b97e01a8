//! Properties that come with a stream: those that cannot be are told, and the rest is set.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Cursor;
use std::sync::Arc;

use base::Errno;
use control::{Control, Ioc};
use nvlist::{NvList, Value as Nv};
use ondisk::send::RECORD_SIZE;
use pool::Value;
use stream::send;
use support::pool;

/// A stream of a new file system's first snapshot.
fn stream_of(control: &Control) -> Vec<u8> {
    let mut plain = NvList::new();
    plain.insert("type", 2i32);
    control.call(Ioc::Create, "t/from", &plain).unwrap();
    control.spa().snapshot(&["t/from@s".to_owned()], &[]).unwrap();
    let dataset = control.spa().view().unwrap().dataset("t/from@s").unwrap();
    let mut out = Vec::new();
    send::send(&dataset, None, &Default::default(), &mut out, &Default::default()).unwrap();
    out
}

/// A request to receive a stream, all of which but its first record is the caller's file 0.
fn request(control: &Control, stream: &[u8]) -> NvList {
    let (begin, rest) = stream.split_at(RECORD_SIZE);
    let files = &control.caller().files;
    files.input(0, Box::new(Cursor::new(rest.to_vec())), Arc::default());
    let mut input = NvList::new();
    input.insert("snapname", "t/to@s");
    input.insert("begin_record", Nv::ByteArray(begin.to_vec()));
    input.insert("input_fd", 0i32);
    input
}

#[test]
fn a_hostile_list_does_not_get_into_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let mut input = request(&control, &stream_of(&control));
    let long = "a:".to_owned() + &"x".repeat(254);
    let bad: [(&str, Nv, Errno); 13] = [
        ("compression", 9999u64.into(), Errno::EINVAL),
        ("recordsize", 3000u64.into(), Errno::EINVAL),
        ("checksum", 777u64.into(), Errno::EINVAL),
        ("dedup", 4242u64.into(), Errno::EINVAL),
        ("copies", "two".into(), Errno::EINVAL),
        ("special_small_blocks", u64::MAX.into(), Errno::EINVAL),
        ("mountpoint", "../../etc".into(), Errno::EINVAL),
        ("used", 1u64.into(), Errno::EINVAL),
        ("volsize", (1u64 << 20).into(), Errno::EINVAL),
        ("a:number", 1u64.into(), Errno::EINVAL),
        ("a:flag", Nv::Boolean, Errno::EINVAL),
        (&long, "x".into(), Errno::ENAMETOOLONG),
        ("a:long", "x".repeat(8192).as_str().into(), Errno::E2BIG),
    ];
    let mut props = NvList::new();
    for (name, value, _) in &bad {
        props.insert(*name, value.clone());
    }
    props.insert("atime", 0u64);
    props.insert("a:b", "c");
    input.insert("props", props);
    let out = control.call(Ioc::RecvNew, "t/to", &input).unwrap();
    let errors = out.get_nvlist("errors").unwrap();
    for (name, value, errno) in &bad {
        let told = errors.get_i32(name).map(Errno::from_raw);
        assert!(
            told == Some(*errno) || (*errno == Errno::EINVAL && told == Some(Errno::ERANGE)),
            "{name}={value:?}: {told:?}"
        );
    }
    assert_eq!(errors.iter().count(), bad.len());
    let view = control.spa().view().unwrap();
    let to = view.dataset("t/to").unwrap();
    let value = |name: &str| to.prop(name).unwrap().map(|prop| (prop.value, prop.received));
    assert_eq!(value("atime"), Some((Value::Number(0), Some(Value::Number(0)))));
    assert_eq!(value("a:b").map(|value| value.0), Some(Value::String("c".into())));
    for name in ["compression", "recordsize", "checksum", "dedup", "copies", "special_small_blocks", "mountpoint"] {
        assert_eq!(value(name).and_then(|value| value.1), None, "{name} is stored");
    }
    for name in ["a:number", "a:flag", "a:long"] {
        assert_eq!(value(name), None, "{name}");
    }
    control.spa().export().unwrap();
}

/// Properties given with a stream are checked before anything is received.
#[test]
fn what_the_user_says_is_checked_first() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let mut input = request(&control, &stream_of(&control));
    let mut local = NvList::new();
    local.insert("encryption", "aes-256-gcm");
    input.insert("localprops", local);
    let failed = control.call(Ioc::RecvNew, "t/to", &input).unwrap_err();
    assert_eq!(failed.errno, Errno::EINVAL);
    assert!(control.spa().view().unwrap().dataset("t/to").is_err());
    control.spa().export().unwrap();
}
