//! Keys loaded and unloaded by requests.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::{Control, Ioc, ReadOnlyControl};
use nvlist::{NvList, Value};
use support::pool;
use zpl::live::Zfs;

const DONE: Errno = Errno::from_raw(0);
/// Property `keystatus`.
const UNAVAILABLE: u64 = 1;
const AVAILABLE: u64 = 2;

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

/// The request for an encryption root with the key of sevens.
fn new_root() -> NvList {
    let (mut create, mut props) = (with_key(&[7; 32]), NvList::new());
    props.insert("encryption", 1u64);
    props.insert("keyformat", 1u64);
    create.insert("type", 2i32);
    create.insert("props", props);
    create
}

fn status(control: &Control, name: &str) -> u64 {
    let view = control.spa().view().unwrap();
    view.dataset(name).unwrap().prop("keystatus").unwrap().unwrap().value.number().unwrap()
}

#[test]
fn a_key_is_checked_loaded_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let (key, wrong) = (with_key(&[7; 32]), with_key(&[8; 32]));
    assert_eq!(ask(&control, Ioc::Create, "t/e", &new_root()), DONE);
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

#[test]
fn a_state_that_is_read_takes_a_key_once_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let key = with_key(&[7; 32]);
    assert_eq!(ask(&control, Ioc::Create, "t/e", &new_root()), DONE);
    assert_eq!(ask(&control, Ioc::UnloadKey, "t/e", &NvList::new()), DONE);
    let view = control.spa().view().unwrap();
    let (look, txg) = (ReadOnlyControl::new(view.clone()), view.uberblock().txg);
    let load = |input: &NvList| look.call(Ioc::LoadKey, "t/e", input).map_or_else(|failed| failed.errno, |_| DONE);
    let mut noop = key.clone();
    noop.insert("noop", Value::Boolean);
    assert_eq!((load(&with_key(&[8; 32])), load(&with_key(&[7; 33]))), (Errno::EACCES, Errno::EINVAL));
    assert_eq!((load(&noop), status(&control, "t/e")), (DONE, UNAVAILABLE));
    assert_eq!((load(&key), load(&key)), (DONE, Errno::EEXIST));
    assert_eq!(status(&control, "t/e"), AVAILABLE);
    assert_eq!(control.spa().view().unwrap().uberblock().txg, txg);
    // another key is a change, and to forget one is none
    assert_eq!(look.call(Ioc::ChangeKey, "t/e", &key).unwrap_err().errno, Errno::EROFS);
    let unload = || look.call(Ioc::UnloadKey, "t/e", &NvList::new()).map_or_else(|failed| failed.errno, |_| DONE);
    assert_eq!((unload(), unload()), (DONE, Errno::EACCES));
    assert_eq!(status(&control, "t/e"), UNAVAILABLE);
}
