//! What users have of a file system, by requests.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::{Control, Ioc};
use nvlist::{NvList, Value};
use support::pool;

fn ask(control: &Control, name: &str, kind: u64) -> Result<NvList, Errno> {
    let mut input = NvList::new();
    input.insert("type", kind);
    control.call(Ioc::UserspaceMany, name, &input).map_err(|failed| failed.errno)
}

#[test]
fn what_users_have_and_what_they_may_have_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let set = |name: &str, value: Value| {
        let (mut props, mut input) = (NvList::new(), NvList::new());
        props.insert(name, value);
        input.insert("props", props);
        control.call(Ioc::SetProp, "t", &input).unwrap();
    };
    set("userquota@0-", Value::Uint64Array(vec![1, 0, 7 << 20]));
    let used = ask(&control, "t", 0).unwrap();
    let numbers = |list: &NvList, key: &str| list.get_u64_array(key).unwrap().to_vec();
    assert_eq!(numbers(&used, "rids"), [0]);
    assert!(numbers(&used, "space")[0] > 0 && used.get_u64("default_quota") == Some(0));
    assert_eq!(used.get("domains"), Some(&Value::from(vec![""])));
    let quotas = ask(&control, "t", 1).unwrap();
    assert_eq!((numbers(&quotas, "rids"), numbers(&quotas, "space")), (vec![0], vec![7 << 20]));
    assert!(!quotas.contains("default_quota"));
    assert!(numbers(&ask(&control, "t", 11).unwrap(), "rids").is_empty());
    assert_eq!(ask(&control, "t", 12).unwrap_err(), Errno::EINVAL);
    assert_eq!(ask(&control, "t/none", 0).unwrap_err(), Errno::ENOENT);
}
