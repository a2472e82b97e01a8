//! Holds by requests: of lists in which something is missing.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::Ioc;
use nvlist::{NvList, Value};
use support::pool;

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

fn holds(pairs: &[(&str, &str)]) -> NvList {
    let pairs: Vec<(&str, Value)> = pairs.iter().map(|(name, tag)| (*name, (*tag).into())).collect();
    list(&[("holds", list(&pairs).into())])
}

fn tags(tags: &[&str]) -> Value {
    list(&tags.iter().map(|tag| (*tag, ().into())).collect::<Vec<_>>()).into()
}

#[test]
fn what_is_missing_keeps_nothing_from_being_held_or_released() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    control.spa().snapshot(&["t@a".to_owned()], &[]).unwrap();
    let held = || control.spa().view().unwrap().dataset("t@a").unwrap().userrefs().unwrap();
    let gone = list(&[("t@gone", Errno::ENOENT.into())]);
    let ask = |ioc, input: &NvList| control.call(ioc, "t", input);
    assert_eq!(ask(Ioc::Hold, &holds(&[("t@gone", "x"), ("t@a", "x")])).unwrap(), gone);
    assert_eq!(held(), 1);
    assert_eq!(ask(Ioc::Hold, &holds(&[("t@gone", "x")])).unwrap(), gone);
    // one that cannot be held is another matter; what is missing is told nevertheless
    let failed = ask(Ioc::Hold, &holds(&[("t@gone", "x"), ("t@a", "x")])).unwrap_err();
    assert_eq!(failed.errno, Errno::EEXIST);
    assert_eq!(failed.out.get("t@gone"), Some(&Errno::ENOENT.into()));
    assert_eq!(failed.out.get("t@a"), Some(&Errno::EEXIST.into()));
    let missing = list(&[("t@a#y", Errno::ENOENT.into()), ("t@gone", Errno::ENOENT.into())]);
    let input = list(&[("t@gone", tags(&["x", "y"])), ("t@a", tags(&["x", "y"]))]);
    assert_eq!(ask(Ioc::Release, &input).unwrap(), missing);
    assert_eq!(held(), 0);
}
