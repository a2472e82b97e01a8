//! Raw streams of the OpenZFS kernel module: received without a key; with the key the files are those of the sender; sent again
//! the streams are the same.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use ::base::{Endian, Errno, tunable};
use ondisk::send::DRR_RAW_BYTESWAP;
use oracle::fixtures;
use pool::ChangeKey;
use stream::Record;
use stream::recv::RecvArgs;
use support::stream_of;
use target::Target;
use target::remake::{Part, boundaries, parts, resumed_at, stream_in, stream_of as remade};
use zpl::Kind;
use zpl::live::{Cred, NewFile, Vfs, Zfs};

/// No error.
const DONE: Errno = Errno::from_raw(0);
const PLAIN: fn() -> RecvArgs = RecvArgs::default;

/// Returns the parts in which two streams must agree: everything except the list in BEGIN, which may be packed differently, its
/// name, and the checksums.
fn records(bytes: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let of = |(header, payload): Part| match header.record {
        Record::Begin(mut begin) => {
            begin.toname = Box::new([0; 256]);
            let list = nvlist::NvList::unpack(&payload).unwrap();
            (Record::Begin(begin), list.dump(0).into_bytes())
        }
        Record::End(mut end) => {
            end.checksum = [0; 4];
            (Record::End(end), payload)
        }
        record => (record, payload),
    };
    parts(bytes).into_iter().map(of).collect()
}

fn same_stream(target: &Target, truth: &[u8], to: &str, from: Option<&str>) {
    let (ours, theirs) = (records(&target.send(to, from, true)), records(truth));
    for (n, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(a.0, b.0, "{to}: record {n}");
        assert!(a.1 == b.1, "{to}: payload of record {n}, {:?}", a.0);
    }
    assert_eq!(ours.len(), theirs.len(), "{to}");
}

#[test]
fn raw_streams_are_received_without_a_key_and_sent_again() {
    let mut target = Target::new();
    let stream = |name: &str| stream_of("stenc-a", name);
    for (fs, name) in [("we", "e-w"), ("we", "e-w-incr"), ("wk", "k-w"), ("wk", "k-w-incr"), ("wv", "vol-w")] {
        let fs = format!("recva/{fs}");
        target.receive(&stream(name), &fs, &PLAIN()).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    target.receive_package(&stream("k-p-w"), "srca/k", "recva/wkp").unwrap();
    let all = target.receive_package(&stream("e-R-w"), "srca/e", "recva/wR").unwrap();
    assert!(all.len() >= 5, "{all:?}");
    // not encrypted: raw only means as stored
    target.receive(&stream("plain-w"), "recva/pw", &PLAIN()).unwrap();
    target.again();
    same_stream(&target, &stream("e-w"), "recva/we@1", None);
    same_stream(&target, &stream("e-w-incr"), "recva/we@2", Some("recva/we@1"));
    same_stream(&target, &stream("k-w"), "recva/wk@1", None);
    same_stream(&target, &stream("k-w-incr"), "recva/wk@2", Some("recva/wk@1"));
    same_stream(&target, &stream("vol-w"), "recva/wv@2", None);
    // each is an encryption root; for a package the front end makes those inherit that were none
    for child in ["recva/wR/child", "recva/wR/vol"] {
        target.spa().change_key(child, ChangeKey::ForceInherit).unwrap();
    }
    for (root, file) in
        [("we", "pass.txt"), ("wk", "raw.key"), ("wR", "pass.txt"), ("wkp", "raw.key"), ("wv", "pass.txt")]
    {
        assert!(target.load_key("stenc-a", &format!("recva/{root}"), file) >= 2);
    }
    let files = target.compare_source(
        "stenc-a",
        &[
            ("recva/we@1", "srca/e@1"),
            ("recva/we@2", "srca/e@2"),
            ("recva/wk@1", "srca/k@1"),
            ("recva/wk@2", "srca/k@2"),
            ("recva/pw@1", "srca/plain@1"),
        ],
    );
    assert!(files > 300, "{files}");
    let mine = |name: &str| ["recva/wR/child", "recva/wR@", "recva/wkp"].iter().any(|n| name.starts_with(n));
    assert!(target.compare("stenc-a", &mine, &|_| None) > 300);
    let sum = fixtures::json("stenc-a", "source/manifest.json")["zvols"]["srca/e/vol"]["sha256"].clone();
    for volume in ["recva/wv", "recva/wR/vol", "recva/wv@2"] {
        assert_eq!(target.volume_sum(volume), sum.as_str().unwrap(), "{volume}");
    }
    // with its key it is an ordinary file system, and knows the owners of its files
    let fs = zpl::live::Zfs::open(target.spa(), "recva/we").unwrap();
    drop(fs);
    target.spa().sync().unwrap();
    let view = target.spa().view().unwrap();
    let flags = view.dataset("recva/we").unwrap().objset().unwrap().phys().flags;
    assert_ne!(flags & ondisk::ObjsetPhys::FLAG_USERACCOUNTING, 0);
    drop(view);
    target.again();
    target.load_key("stenc-a", "recva/we", "pass.txt");
    target.compare_source("stenc-a", &[("recva/we@2", "srca/e@2"), ("recva/we@1", "srca/e@1")]);
    target.close();
}

#[test]
fn what_does_not_fit_a_raw_stream_is_refused() {
    let mut target = Target::new();
    let stream = |name: &str| stream_of("stenc-a", name);
    let errno =
        |fs: &str, bytes: &[u8], args: RecvArgs| target.receive(bytes, fs, &args).err().map_or(DONE, |e| e.errno());
    let force = || RecvArgs { force: true, ..RecvArgs::default() };
    target.receive(&stream_of("stbasic-a", "full"), "recva/plain", &PLAIN()).unwrap();
    target.receive(&stream("e-w"), "recva/e", &PLAIN()).unwrap();
    // onto a target that is not encrypted, or must not be replaced
    assert_eq!(errno("recva/plain", &stream("e-w"), PLAIN()), Errno::EEXIST);
    assert_eq!(errno("recva/plain", &stream("k-p-w"), force()), Errno::EINVAL);
    assert_eq!(errno("recva/e", &stream("k-p-w"), force()), Errno::EINVAL);
    assert_eq!(errno("recva/e", &stream("k-w-incr"), PLAIN()), Errno::ENODEV);
    let changed = |change: &dyn Fn(&mut nvlist::NvList)| {
        let mut parts = parts(&stream("e-w-incr"));
        let mut list = nvlist::NvList::unpack(&parts[0].1).unwrap();
        change(list.get_nvlist_mut("crypt_keydata").unwrap());
        let mut packed = list.pack(nvlist::Encoding::Xdr, Endian::Little).unwrap();
        packed.resize(packed.len().next_multiple_of(8), 0);
        parts[0].1 = packed;
        remade(&parts)
    };
    let put = |name: &'static str, value: u64| {
        changed(&move |list| {
            list.insert(name, value);
        })
    };
    // the IV set: none, another; another key; an unknown cipher and an unknown key format
    assert_eq!(errno("recva/e", &put("from_ivset_guid", 0), PLAIN()), Errno::ZFS_ERR_FROM_IVSET_GUID_MISSING);
    assert_eq!(errno("recva/e", &put("from_ivset_guid", 5), PLAIN()), Errno::ZFS_ERR_FROM_IVSET_GUID_MISMATCH);
    assert_eq!(errno("recva/e", &put("DSL_CRYPTO_GUID", 5), PLAIN()), Errno::EACCES);
    assert_eq!(errno("recva/e", &put("DSL_CRYPTO_SUITE", 77), PLAIN()), Errno::ZFS_ERR_CRYPTO_NOTSUP);
    assert_eq!(errno("recva/e", &put("DSL_CRYPTO_VERSION", 0), PLAIN()), Errno::ENOTSUP);
    assert_eq!(errno("recva/e", &put("keyformat", 9), PLAIN()), Errno::EINVAL);
    assert_eq!(errno("recva/e", &put("mdn_nlevels", 0), PLAIN()), Errno::EINVAL);
    assert_eq!(errno("recva/e", &put("mdn_indblkshift", 30), PLAIN()), Errno::ENOTSUP);
    assert!(!target.has("recva/e/%recv") && !target.has("recva/e@2"));
    tunable::ZFS_DISABLE_IVSET_GUID_CHECK.set(1);
    let passes = errno("recva/e", &put("from_ivset_guid", 5), PLAIN());
    tunable::ZFS_DISABLE_IVSET_GUID_CHECK.set(0);
    assert_eq!(passes, DONE);
    target.load_key("stenc-a", "recva/e", "pass.txt");
    target.compare_source("stenc-a", &[("recva/e@2", "srca/e@2")]);
    target.close();
}

#[test]
fn a_raw_stream_cut_anywhere_is_whole_in_the_end() {
    let mut target = Target::new();
    let resumable = || RecvArgs { resumable: true, ..RecvArgs::default() };
    for name in ["k-w", "k-w-incr"] {
        let bytes = stream_of("stenc-a", name);
        let parts = parts(&bytes);
        let ends = boundaries(&parts);
        let mut rest = bytes.clone();
        for n in 1..6 {
            let at = if n % 2 == 0 { rest.len() / 2 } else { ends[parts.len() * n / 6].min(rest.len() - 1) };
            let error = target.receive(&rest[..at], "recva/k", &resumable()).unwrap_err();
            assert_eq!(error.errno(), Errno::ZFS_ERR_STREAM_TRUNCATED, "{error}");
            if n == 3 {
                target.again();
            }
            let token = target.spa().view().unwrap().dataset("recva/k").unwrap().receive_resume_token().unwrap();
            let list = stream::token::decode(&token.unwrap()).unwrap();
            rest = resumed_at(&parts, list.get_u64("object").unwrap(), list.get_u64("offset").unwrap());
        }
        target.receive(&rest, "recva/k", &resumable()).unwrap();
    }
    same_stream(&target, &stream_of("stenc-a", "k-w-incr"), "recva/k@2", Some("recva/k@1"));
    target.load_key("stenc-a", "recva/k", "raw.key");
    target.compare_source("stenc-a", &[("recva/k@1", "srca/k@1"), ("recva/k@2", "srca/k@2")]);
    target.close();
}

/// A big-endian machine sends what it received from a little-endian one: its records are byte-swapped, stored blocks are not.
#[test]
fn raw_blocks_of_the_other_byte_order_stay_as_they_are() {
    let mut target = Target::new();
    for name in ["e-w", "e-w-incr"] {
        let mut all = parts(&stream_of("stenc-a", name));
        for (header, _) in &mut all {
            match &mut header.record {
                Record::Write(r) => r.flags |= DRR_RAW_BYTESWAP,
                Record::Spill(r) => r.flags |= DRR_RAW_BYTESWAP,
                Record::Object(r) => r.flags |= DRR_RAW_BYTESWAP,
                Record::ObjectRange(r) => r.flags |= DRR_RAW_BYTESWAP,
                _ => {}
            }
        }
        target.receive(&stream_in(&all, Endian::Big), "recva/e", &PLAIN()).unwrap();
    }
    same_stream(&target, &stream_of("stenc-a", "e-w-incr"), "recva/e@2", Some("recva/e@1"));
    target.load_key("stenc-a", "recva/e", "pass.txt");
    target.compare_source("stenc-a", &[("recva/e@1", "srca/e@1"), ("recva/e@2", "srca/e@2")]);
    target.close();
}

/// OpenZFS 8758 and 18784: a non-raw increment on top of a raw base encrypts with new IVs. The result reports it; and a raw
/// increment of the source, whose IVs differ now, is refused before it makes unreadable files.
#[test]
fn issues_8758_and_18784_a_plain_increment_parts_the_sets_of_ivs() {
    let mut target = Target::new();
    let stream = |name: &str| stream_of("stenc-a", name);
    for fs in ["recva/source", "recva/copy"] {
        target.receive(&stream("e-w"), fs, &PLAIN()).unwrap();
        target.load_key("stenc-a", fs, "pass.txt");
    }
    target.receive(&stream("e-w-incr"), "recva/source", &PLAIN()).unwrap();
    let plain = target.send("recva/source@2", Some("recva/source@1"), false);
    let received = target.receive(&plain, "recva/copy", &PLAIN()).unwrap();
    assert!(received[0].ivset_diverged);
    target.compare_source("stenc-a", &[("recva/source@2", "srca/e@2"), ("recva/copy@2", "srca/e@2")]);
    target.spa().snapshot(&["recva/source@3".to_owned()], &[]).unwrap();
    let raw = target.send("recva/source@3", Some("recva/source@2"), true);
    assert_eq!(
        target.receive(&raw, "recva/copy", &PLAIN()).unwrap_err().errno(),
        Errno::ZFS_ERR_FROM_IVSET_GUID_MISMATCH
    );
    let plain = target.send("recva/source@3", Some("recva/source@2"), false);
    assert!(!target.receive(&plain, "recva/copy", &PLAIN()).unwrap()[0].ivset_diverged);
    target.close();
}

/// A snapshot taken while a log is in use has that log in its root block. The log does not belong to a dataset that is received
/// raw on top: neither an end nor a new log frees its blocks, which may be in other use by now.
#[test]
fn a_raw_increment_has_nothing_of_the_log_that_its_base_was_taken_with() {
    let mut target = Target::new();
    target.receive(&stream_of("stenc-a", "e-w"), "recva/e", &PLAIN()).unwrap();
    target.load_key("stenc-a", "recva/e", "pass.txt");
    let write = |target: &Target, byte: u8| {
        let fs = Zfs::open(target.spa(), "recva/e").unwrap();
        let file = NewFile::new(Kind::File, 0o644);
        let (id, _) = fs.create(&Cred::ROOT, fs.root(), &[b'a' + byte], &file).unwrap();
        for n in 0..4 {
            fs.write(&Cred::ROOT, id, n * 8192, &[byte; 8192]).unwrap();
            fs.fsync(id).unwrap();
        }
        fs
    };
    let snapshot = |target: &Target, name: &str| target.spa().snapshot(&[format!("recva/e@{name}")], &[]).unwrap();
    let fs = write(&target, 1);
    snapshot(&target, "base");
    drop(fs);
    let fs = write(&target, 2);
    snapshot(&target, "next");
    drop(fs);
    let view = target.spa().view().unwrap();
    let header = view.dataset("recva/e@base").unwrap().objset().unwrap().phys().zil_header.clone();
    assert!(!header.log.is_hole(), "the snapshot has a log");
    drop(view);
    let raw = target.send("recva/e@next", Some("recva/e@base"), true);
    target.spa().destroy_snapshots(&["recva/e@next".to_string()], false).unwrap();
    target.spa().rollback("recva/e", Some("recva/e@base")).unwrap();
    target.receive(&raw[..raw.len() / 2], "recva/e", &PLAIN()).unwrap_err();
    target.again();
    target.receive(&raw, "recva/e", &PLAIN()).unwrap();
    let header =
        |name: &str| target.spa().view().unwrap().dataset(name).unwrap().objset().unwrap().phys().zil_header.clone();
    assert_eq!(header("recva/e"), ondisk::ZilHeader::empty());
    target.load_key("stenc-a", "recva/e", "pass.txt");
    drop(write(&target, 3));
    target.close();
}

/// The key was changed at the sender. It is stored with the snapshot, or not at all.
#[test]
fn a_raw_increment_that_is_refused_in_the_end_leaves_the_key_as_it_was() {
    let mut target = Target::new();
    target.receive(&stream_of("stenc-a", "e-w"), "recva/e", &PLAIN()).unwrap();
    target.load_key("stenc-a", "recva/e", "pass.txt");
    let iters = |target: &Target| target.spa().view().unwrap().encryption_root("recva/e").unwrap().1.pbkdf2_iters;
    let before = iters(&target);
    let mut parts = parts(&stream_of("stenc-a", "e-w-incr"));
    let mut list = nvlist::NvList::unpack(&parts[0].1).unwrap();
    list.get_nvlist_mut("crypt_keydata").unwrap().insert("pbkdf2iters", before + 1);
    let mut packed = list.pack(nvlist::Encoding::Xdr, Endian::Little).unwrap();
    packed.resize(packed.len().next_multiple_of(8), 0);
    parts[0].1 = packed;
    let held = Zfs::open(target.spa(), "recva/e").unwrap();
    let force = RecvArgs { force: true, ..RecvArgs::default() };
    let error = target.receive(&remade(&parts), "recva/e", &force).unwrap_err();
    assert_eq!((error.errno(), iters(&target)), (Errno::EBUSY, before), "{error}");
    drop(held);
    target.again();
    target.load_key("stenc-a", "recva/e", "pass.txt");
    target.close();
}
