//! Quotas of users by requests.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::Ioc;
use nvlist::{NvList, Value};
use support::pool;

/// The request for a file system with a quota that nobody can have here: that of a Windows identity.
fn asked(key: &str, value: Value) -> NvList {
    let (mut props, mut input) = (NvList::new(), NvList::new());
    props.insert("userquota@5-S-1-5-21", Value::Uint64Array(vec![1, 5, 1 << 20]));
    input.insert("props", props);
    input.insert(key, value);
    input
}

#[test]
fn a_dataset_that_cannot_have_its_quotas_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    control.spa().snapshot(&["t@a".to_owned()], &[]).unwrap();
    for (ioc, input) in [(Ioc::Create, asked("type", 2i32.into())), (Ioc::Clone, asked("origin", "t@a".into()))] {
        assert_eq!(control.call(ioc, "t/new", &input).unwrap_err().errno, Errno::ENOTSUP, "{ioc:?}");
        assert!(control.spa().view().unwrap().dataset("t/new").is_err(), "{ioc:?}");
    }
}
