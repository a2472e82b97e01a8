//! Keys loaded and unloaded by requests to a pool that is open for writing.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::{Control, Ioc};
use nvlist::{NvList, Value};
use support::pool;
use zpl::live::Zfs;

const DONE: Errno = Errno::from_raw(0);

/// The errno of a request.
fn ask(control: &Control, ioc: Ioc, name: &str, input: &NvList) -> Errno {
    control.call(ioc, name, input).map_or_else(|failed| failed.errno, |_| DONE)
}

fn with_key(key: &[u8]) -> NvList {
    let (mut hidden, mut input) = (NvList::new(), NvList::new());
    hidden.insert("wkeydata", Value::Uint8Array(key.to_vec()));
    input.insert("hidden_args", hidden);
    input
}

fn status(control: &Control, name: &str) -> u64 {
    let view = control.spa().view().unwrap();
    view.dataset(name).unwrap().prop("keystatus").unwrap().unwrap().value.number().unwrap()
}

#[test]
fn a_key_is_checked_loaded_and_forgotten() {
    const UNAVAILABLE: u64 = 1;
    const AVAILABLE: u64 = 2;
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let (key, wrong) = (with_key(&[7; 32]), with_key(&[8; 32]));
    let mut props = NvList::new();
    props.insert("encryption", 1u64);
    props.insert("keyformat", 1u64);
    let mut create = key.clone();
    create.insert("type", 2i32);
    create.insert("props", props);
    assert_eq!(ask(&control, Ioc::Create, "t/e", &create), DONE);
    let mut plain = NvList::new();
    plain.insert("type", 2i32);
    assert_eq!(ask(&control, Ioc::Create, "t/e/below", &plain), DONE);
    assert_eq!(ask(&control, Ioc::Create, "t/plain", &plain), DONE);

    let none = NvList::new();
    assert_eq!(ask(&control, Ioc::LoadKey, "t/e", &key), Errno::EEXIST, "the key is there since the file system is");
    // what is in use keeps its key
    let zfs = Zfs::open(control.spa(), "t/e/below").unwrap();
    assert_eq!(ask(&control, Ioc::UnloadKey, "t/e", &none), Errno::EBUSY);
    drop(zfs);
    assert_eq!(ask(&control, Ioc::UnloadKey, "t/e/below", &none), Errno::EINVAL);
    assert_eq!(ask(&control, Ioc::UnloadKey, "t/e", &none), DONE);
    assert_eq!((status(&control, "t/e"), status(&control, "t/e/below")), (UNAVAILABLE, UNAVAILABLE));
    assert!(Zfs::open(control.spa(), "t/e/below").is_err());
    assert_eq!(ask(&control, Ioc::UnloadKey, "t/e", &none), Errno::EACCES);
    assert_eq!(ask(&control, Ioc::UnloadKey, "t/plain", &none), Errno::EINVAL);

    assert_eq!(ask(&control, Ioc::LoadKey, "t/e", &wrong), Errno::EACCES);
    assert_eq!(ask(&control, Ioc::LoadKey, "t/e", &with_key(&[7; 31])), Errno::EINVAL);
    assert_eq!(ask(&control, Ioc::LoadKey, "t/e/below", &key), Errno::EINVAL);
    assert_eq!(ask(&control, Ioc::LoadKey, "t/plain", &key), Errno::EINVAL);
    let noop = |key: &NvList| {
        let mut input = key.clone();
        input.insert("noop", Value::Boolean);
        ask(&control, Ioc::LoadKey, "t/e", &input)
    };
    assert_eq!((noop(&wrong), noop(&key)), (Errno::EACCES, DONE));
    assert_eq!(status(&control, "t/e"), UNAVAILABLE, "it was only checked");
    assert_eq!(ask(&control, Ioc::LoadKey, "t/e", &key), DONE);
    assert_eq!((noop(&key), status(&control, "t/e/below")), (DONE, AVAILABLE));
    let zfs = Zfs::open(control.spa(), "t/e/below").unwrap();
    assert!(zfs.getattr(zfs.fs().root()).is_ok());
}
