//! Sessions of a machine whose state folder is a test's own.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base::Errno;
use control::{Caller, Ioc, NewVdevs};
use nvlist::{NvList, Value};
use site::{Machine, Session, Silent, Site};
use vdev::create::VdevSpec;

/// Set in the process that does the work: its folder. The state folder is of a process.
const CHILD: &str = "ZUSE_MACHINE_CHILD";
/// The time that it has for that: then somebody waits for ever.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

/// Runs this test again in a process with a state folder of its own.
pub(crate) fn in_own_state(test: &str, work: fn(&Path)) {
    if let Some(dir) = std::env::var_os(CHILD) {
        return work(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, dir.path()).env("ZUSE_STATE", dir.path().join("state"));
    let (mut child, begun) = (child.spawn().unwrap(), Instant::now());
    let ended = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(ended.success(), "{ended}");
}

/// A site, a machine on it, and the requests of this process to that.
pub(crate) fn sited() -> (Site, Machine, Session) {
    let site = Site::new(Arc::new(Silent));
    let machine = Machine::new(site.clone());
    let session = machine.own_session(Caller::default());
    (site, machine, session)
}

/// The same without the site.
pub(crate) fn machine() -> (Machine, Session) {
    let (_, machine, session) = sited();
    (machine, session)
}

/// Makes a pool `t` of two mirrored files, which can hold encrypted datasets.
pub(crate) fn create(session: &Session, dir: &Path) {
    let paths = ["a", "b"].map(|name| dir.join(name).display().to_string());
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(96 << 20).unwrap();
    }
    let spec = VdevSpec::parse(&["mirror".to_owned(), paths[0].clone(), paths[1].clone()]).unwrap();
    let config = NewVdevs { spec, ..NewVdevs::default() }.to_list();
    let features = ["async_destroy", "extensible_dataset", "bookmarks", "bookmark_v2", "encryption"];
    let mut props = NvList::new();
    features.iter().for_each(|name| props.insert(format!("feature@{name}"), 0u64));
    session.call(Ioc::PoolCreate, "t", &list(&[("config", config.into()), ("props", props.into())])).unwrap();
}

/// Makes a file system.
pub(crate) fn new_fs(session: &Session, name: &str) -> Result<NvList, Errno> {
    session.call(Ioc::Create, name, &list(&[("type", 2i32.into())])).map_err(|e| e.errno)
}
