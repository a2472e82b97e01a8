//! What is told of damaged and odd pools, whose blocks are changed behind their checksums.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use control::{Caller, Control};
use nvlist::Value;
use ondisk::{BlkPtr, ObjectType};
use pool::{OpenOptions, Pool};
use stream::package::{Gathered, What};
use vdev::Device;
use zio::tamper;

use super::*;

/// The value of a property whose list is to be lost.
const LOST: &str = "this value is lost";
/// The name of a snapshot that is to have another, of the same length.
const NAMED: &str = "to-be-named-by-openzfs";
const SPECIAL: &str = "%o-be-named-by-openzfs";
/// Where the root block of an object set has its type, and that of volumes.
const OS_TYPE: usize = 704;
const ZVOL: u8 = 3;

fn pairs(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

/// A device with the pool `t`: with the volume `t/v`, its snapshots `one`, [`SPECIAL`] and `two`, the clone `t/c` of `t/v@one` with snapshot `two`, and
/// the encrypted `t/k` with snapshot `two`.
fn made() -> (PathBuf, Arc<dyn Device>) {
    let (spa, disks) = pool::testing::in_memory("d0", 1);
    let control = Control::new(spa, Caller::default());
    let volume = [("volsize", (1u64 << 20).into()), ("volblocksize", (16u64 << 10).into())];
    let encrypted = [volume.as_slice(), &[("encryption", 8u64.into()), ("keyformat", 1u64.into())]].concat();
    let key = pairs(&[("wkeydata", Value::Uint8Array(vec![7; 32]))]);
    let new = |props: &[(&str, Value)]| pairs(&[("type", 3i32.into()), ("props", pairs(props).into())]);
    control.call(Ioc::Create, "t/v", &new(&volume)).unwrap();
    let mut new = new(&encrypted);
    new.insert("hidden_args", key);
    control.call(Ioc::Create, "t/k", &new).unwrap();
    let snapshot = |name: &str| {
        let snaps = pairs(&[(name, ().into())]);
        control.call(Ioc::Snapshot, "t", &pairs(&[("snaps", snaps.into())])).unwrap();
    };
    snapshot("t/v@one");
    control.call(Ioc::Clone, "t/c", &pairs(&[("origin", "t/v@one".into())])).unwrap();
    ["t@two", &format!("t/v@{NAMED}"), "t/v@two", "t/c@two", "t/k@two"].into_iter().for_each(snapshot);
    for (name, value) in [("t/v@one", LOST), ("t/v@two", "own")] {
        let props = pairs(&[("a:b", value.into())]);
        control.call(Ioc::SetProp, name, &pairs(&[("props", props.into())])).unwrap();
    }
    control.spa().export().unwrap();
    (PathBuf::from("d0"), disks[0].clone())
}

/// Where `part` is in a block.
fn place(block: &[u8], part: &str) -> Option<usize> {
    block.windows(part.len()).position(|bytes| bytes == part.as_bytes())
}

/// Changes blocks of the pool behind their checksums.
fn change(bp: &BlkPtr, block: &mut [u8]) {
    if let Some(at) = place(block, NAMED) {
        block[at..at + SPECIAL.len()].copy_from_slice(SPECIAL.as_bytes());
    }
    let kind = |block: &[u8]| block.get(OS_TYPE..).and_then(|rest| rest.first()).copied();
    let is_root = bp.object_type() == ObjectType::OBJSET && kind(block) == Some(ZVOL);
    if is_root || place(block, LOST).is_some() {
        block.fill(0xff);
    }
}

/// Questions about the pool.
fn asked<T>(ask: impl FnOnce(&Arc<Pool>, &Asked<'_>) -> T) -> T {
    static POOL: LazyLock<Arc<Pool>> = LazyLock::new(|| {
        let device = made();
        tamper::set(Some(Arc::new(change)));
        Pool::open(&vdev::import::scan_devices(vec![device])[0], &OpenOptions::default()).unwrap()
    });
    let source = Arc::new(Query::of_found(POOL.clone(), HashMap::new()));
    ask(&POOL, &Asked { source: &source, received: false })
}

#[test]
fn no_snapshot_is_left_out_whatever_its_name() {
    asked(|pool, asked| {
        let theirs = pool.dataset("t/v").unwrap().snapshots().unwrap();
        let theirs: Vec<_> = theirs.iter().map(|snap| (snap.name().to_owned(), snap.guid())).collect();
        assert_eq!(theirs[1].0, format!("t/v@{SPECIAL}"));
        let ours = asked.snapshots("t/v").unwrap().into_iter().map(|snap| (snap.name, snap.guid));
        assert_eq!(ours.collect::<Vec<_>>(), theirs);
    });
}

#[test]
fn only_the_properties_of_what_is_sent_are_read() {
    asked(|_, asked| {
        let snaps = asked.snapshots("t/v").unwrap();
        assert!(asked.props("t/v", &snaps).is_err(), "one list is lost");
        let own: Vec<_> = asked.props("t/v", &snaps[1..]).unwrap();
        assert_eq!(own, [NvList::new(), pairs(&[("a:b", "own".into())])]);
        for (from, steps) in [(None, 1), (Some("one".to_owned()), 2)] {
            let what = What { all: from.is_some(), props: true, from, to: "two".to_owned(), ..What::default() };
            assert_eq!(gathered(asked, "t/v", what).unwrap().steps().steps.len(), steps);
        }
    });
}

#[test]
fn what_is_lost_with_an_object_set_is_not_asked_for() {
    asked(|pool, asked| {
        assert!(pool.dataset("t/c").unwrap().kind().is_err(), "its root block is lost");
        let of = |name: &str| asked.details(name).unwrap();
        assert_eq!(of("t/c").origin, one(asked.source, "t/v@one").ok());
        assert_eq!((of("t/v").origin, of("t/v").encryption_root), (None, None));
        assert_eq!(of("t/k").encryption_root.as_deref(), Some("t/k"));
        let to = one(asked.source, "t/c@two").unwrap();
        let from = one(asked.source, "t/v@one").unwrap();
        assert!(is_before(asked.source, ("t/v", from.txg), &to).unwrap());
        // in the clear it may not be sent
        let what = What { replicate: true, to: "two".to_owned(), ..What::default() };
        let refused = gathered(asked, "t/k", what).unwrap_err();
        assert!(matches!(refused, Error::Encrypted { .. }), "{refused}");
    });
}

fn gathered(asked: &Asked<'_>, head: &str, what: What) -> Result<Gathered, Error> {
    let Snap { name, guid, txg } = one(asked.source, head).unwrap();
    Gathered::new(asked, &Head { name, guid, txg }, what)
}
