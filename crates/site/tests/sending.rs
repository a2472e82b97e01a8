//! Streams that are sent while others change the pool: what is sent is held, and one state of the pool is read as long as it can be.
#![allow(clippy::unwrap_used)]

use std::io::{Error as IoError, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Errno;
use control::{Caller, Failed, Ioc, NewVdevs};
use nvlist::{NvList, Value};
use site::long_holds::Looking;
use site::{Machine, Query, Silent, Site};
use vdev::create::VdevSpec;

/// Set in the process that does the work: its folder. The state folder is of a process.
const CHILD: &str = "ZUSE_SENDING_CHILD";

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

/// Runs this test again in a process with a state folder of its own.
fn in_own_state(test: &str, work: fn(&Path)) {
    if let Some(dir) = std::env::var_os(CHILD) {
        return work(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, dir.path()).env("ZUSE_STATE", dir.path().join("state"));
    assert!(child.status().unwrap().success());
}

/// What was written to a file of the caller.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn contains(&self, name: &[u8]) -> bool {
        self.0.lock().unwrap().windows(name.len()).any(|bytes| bytes == name)
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

impl Write for Written {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(buf)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Calls what it is given before the first bytes are written.
struct Meanwhile<F: FnMut() + Send>(Option<F>);

impl<F: FnMut() + Send> Write for Meanwhile<F> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.take().into_iter().for_each(|mut work| work());
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Counts how often somebody tries to write, in vain.
#[derive(Clone, Default)]
struct Full(Arc<Mutex<usize>>);

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        *self.0.lock().unwrap() += 1;
        Err(IoError::other("full"))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A pool that one process has open for reading, and others change.
struct Lab {
    site: Site,
    caller: Caller,
    query: Query,
    others: Others,
}

/// Commands of other processes: each opens the pool, and closes it.
struct Others(Machine);

impl Others {
    fn call(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let answer = self.0.own_session(Caller::default()).call(ioc, name, input);
        self.0.close("t").unwrap();
        answer
    }
}

impl Lab {
    /// The pool `t` with the file system `t/fs` and its snapshots `r` and `s`, of which `r` has the bookmark `m`, open since then.
    fn new(dir: &Path) -> Lab {
        let path = dir.join("a").display().to_string();
        std::fs::File::create(&path).unwrap().set_len(96 << 20).unwrap();
        let config = NewVdevs { spec: VdevSpec::parse(&[path]).unwrap(), ..NewVdevs::default() }.to_list();
        let props = list(&[("feature@bookmarks", 0u64.into()), ("feature@extensible_dataset", 0u64.into())]);
        let others = Others(Machine::new(Site::new(Arc::new(Silent))));
        let new = list(&[("config", config.into()), ("props", props.into())]);
        others.call(Ioc::PoolCreate, "t", &new).unwrap();
        others.call(Ioc::Create, "t/fs", &list(&[("type", 2i32.into())])).unwrap();
        snapshot(&others, "t/fs@r");
        snapshot(&others, "t/fs@s");
        others.call(Ioc::Bookmark, "t", &list(&[("t/fs#m", "t/fs@r".into())])).unwrap();
        let (site, caller) = (Site::new(Arc::new(Silent)), Caller::default());
        let query = site.query(&site.of_dataset("t").unwrap().unwrap()).of(&caller);
        Lab { site, caller, query, others }
    }

    /// Sends with `query` to what is returned.
    fn send(&self, query: &Query, name: &str, from: Option<&str>) -> (Result<NvList, Errno>, Written) {
        let written = Written::default();
        self.caller.files.output(5, Box::new(written.clone()), Arc::default());
        let mut input = list(&[("fd", 5i32.into())]);
        from.into_iter().for_each(|from| input.insert("fromsnap", from));
        (query.call(Ioc::SendNew, name, &input).map_err(|failed| failed.errno), written)
    }
}

fn snapshot(others: &Others, name: &str) {
    let snaps = list(&[(name, ().into())]);
    others.call(Ioc::Snapshot, "t", &list(&[("snaps", snaps.into())])).unwrap();
}

fn destroy(others: &Others, name: &str) -> Result<NvList, Errno> {
    let snaps = list(&[(name, ().into())]);
    others.call(Ioc::DestroySnaps, "t", &list(&[("snaps", snaps.into())])).map_err(|failed| failed.errno)
}

#[test]
fn a_request_to_send_holds_what_it_sends() {
    in_own_state("a_request_to_send_holds_what_it_sends", |dir| {
        let Lab { query, caller, others, .. } = Lab::new(dir);
        let (others, errno) = (Arc::new(others), Arc::new(Mutex::new(None)));
        let (asked, told) = (others.clone(), errno.clone());
        let meanwhile = move || *told.lock().unwrap() = destroy(&asked, "t/fs@s").err();
        caller.files.output(5, Box::new(Meanwhile(Some(meanwhile))), Arc::default());
        query.call(Ioc::SendNew, "t/fs@s", &list(&[("fd", 5i32.into())])).unwrap();
        assert_eq!(*errno.lock().unwrap(), Some(Errno::EBUSY));
        destroy(&others, "t/fs@s").unwrap();
    });
}

#[test]
fn a_request_to_send_looks_at_what_others_did_since() {
    in_own_state("a_request_to_send_looks_at_what_others_did_since", |dir| {
        let lab = Lab::new(dir);
        lab.others.call(Ioc::Rename, "t/fs", &list(&[("target", "t/new".into())])).unwrap();
        let send = |name: &str| {
            let (sent, written) = lab.send(&lab.query, name, None);
            sent.map(|_| written)
        };
        // a package goes on under the names that its header has; a head is sent as it is now
        let written = send("t/fs@s").unwrap();
        assert!(written.contains(b"t/fs@s\0") && !written.contains(b"t/new"));
        assert!(send("t/fs").unwrap().contains(b"t/new@--head--\0"));
        destroy(&lab.others, "t/new@s").unwrap();
        let (sent, written) = lab.send(&lab.query, "t/fs@s", None);
        assert_eq!((sent.unwrap_err(), written.is_empty()), (Errno::ENOENT, true));
    });
}

#[test]
fn what_is_held_for_many_requests_is_read_in_one_state() {
    in_own_state("what_is_held_for_many_requests_is_read_in_one_state", |dir| {
        let lab = Lab::new(dir);
        let looking = Looking::at("t", &Silent).unwrap();
        let held = lab.query.hold(looking, ["t/fs@r", "t/fs@s"]).unwrap();
        for (name, from) in [("t/fs@r", None), ("t/fs@s", Some("t/fs@r"))] {
            lab.others.call(Ioc::Rename, "t/fs", &list(&[("target", "t/x".into())])).unwrap();
            lab.others.call(Ioc::Rename, "t/x", &list(&[("target", "t/fs".into())])).unwrap();
            assert_eq!(destroy(&lab.others, name), Err(Errno::EBUSY));
            lab.send(&held, name, from).0.unwrap();
            let open = lab.site.of_dataset("t").unwrap().unwrap();
            assert!(Arc::ptr_eq(&open, lab.query.pool()), "{name}: the pool was opened anew");
        }
        drop(held);
        destroy(&lab.others, "t/fs@s").unwrap();
    });
}

#[test]
fn a_start_is_found_where_it_is_now() {
    in_own_state("a_start_is_found_where_it_is_now", |dir| {
        let lab = Lab::new(dir);
        // the pool is written, and the head sent as it is now
        lab.others.call(Ioc::Rename, "t/fs", &list(&[("target", "t/new".into())])).unwrap();
        for from in ["t/fs@r", "t/fs#m"] {
            let (sent, written) = lab.send(&lab.query, "t/fs", Some(from));
            assert_eq!((sent.map(drop), written.is_empty()), (Ok(()), false), "{from}");
        }
    });
}

#[test]
fn a_start_that_was_made_again_under_its_name_is_gone() {
    in_own_state("a_start_that_was_made_again_under_its_name_is_gone", |dir| {
        let lab = Lab::new(dir);
        destroy(&lab.others, "t/fs@r").unwrap();
        snapshot(&lab.others, "t/fs@r");
        let marks = list(&[("t/fs#m", ().into())]);
        lab.others.call(Ioc::DestroyBookmarks, "t", &marks).unwrap();
        lab.others.call(Ioc::Bookmark, "t", &list(&[("t/fs#m", "t/fs@r".into())])).unwrap();
        for from in ["t/fs@r", "t/fs#m"] {
            let (sent, written) = lab.send(&lab.query, "t/fs", Some(from));
            assert_eq!((sent.unwrap_err(), written.is_empty()), (Errno::ENOENT, true), "{from}");
        }
    });
}

#[test]
fn a_stream_that_cannot_be_written_is_not_tried_again() {
    in_own_state("a_stream_that_cannot_be_written_is_not_tried_again", |dir| {
        let lab = Lab::new(dir);
        let tries = |name: &str| {
            let full = Full::default();
            lab.caller.files.output(5, Box::new(full.clone()), Arc::default());
            lab.query.call(Ioc::SendNew, name, &list(&[("fd", 5i32.into())])).unwrap_err();
            *full.0.lock().unwrap()
        };
        assert_eq!([tries("t/fs@s"), tries("t/fs")], [1, 1]);
        lab.others.call(Ioc::Rename, "t/fs", &list(&[("target", "t/new".into())])).unwrap();
        assert_eq!([tries("t/fs@s"), tries("t/fs")], [1, 1], "a part of it may have been written");
    });
}

#[test]
fn what_is_held_is_found_in_a_later_state_though_its_own_cannot_be_read() {
    in_own_state("what_is_held_is_found_in_a_later_state_though_its_own_cannot_be_read", |dir| {
        let lab = Lab::new(dir);
        let looking = Looking::at("t", &Silent).unwrap();
        let held = lab.query.hold(looking, ["t/fs@r", "t/fs@s"]).unwrap();
        lab.others.call(Ioc::Rename, "t/fs", &list(&[("target", "t/new".into())])).unwrap();
        // what the first state is read from is overwritten; the pool as it is now is elsewhere
        let [now, copy] = ["a", "copy"].map(|name| dir.join(name));
        std::fs::copy(&now, &copy).unwrap();
        let overwritten = std::fs::OpenOptions::new().write(true).open(&now).unwrap();
        overwritten.write_all_at(&vec![0; 90 << 20], 4 << 20).unwrap();
        std::fs::rename(&copy, &now).unwrap();
        let first = lab.query.pool();
        first.zio().arc().clear();
        first.dataset("t/fs").unwrap().snapshots().unwrap_err();
        let (sent, written) = lab.send(&held, "t/fs@s", Some("t/fs@r"));
        assert_eq!((sent.map(drop), written.is_empty()), (Ok(()), false));
    });
}

#[test]
fn a_lock_of_holds_that_others_keep_is_waited_for_once() {
    in_own_state("a_lock_of_holds_that_others_keep_is_waited_for_once", |dir| {
        let lab = Lab::new(dir);
        base::tunable::BUSY_WAIT.set(2);
        let others = Looking::at("t", &Silent).unwrap();
        assert!(Looking::at("t", &Silent).is_none());
        let unheld = lab.query.clone().without_holds();
        // whoever waits again waits for so long
        base::tunable::BUSY_WAIT.set(60);
        let begun = Instant::now();
        for name in ["t/fs@r", "t/fs@s"] {
            lab.send(&unheld, name, None).0.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        drop(others);
    });
}

#[test]
fn a_head_that_cannot_be_held_is_sent_as_it_is_now() {
    in_own_state("a_head_that_cannot_be_held_is_sent_as_it_is_now", |dir| {
        let lab = Lab::new(dir);
        lab.others.call(Ioc::Rename, "t/fs", &list(&[("target", "t/new".into())])).unwrap();
        base::tunable::BUSY_WAIT.set(1);
        let _others = Looking::at("t", &Silent).unwrap();
        for query in [lab.query.clone().without_holds(), lab.query.clone()] {
            let (sent, written) = lab.send(&query, "t/fs", None);
            assert!(sent.is_ok() && written.contains(b"t/new@--head--\0"), "{sent:?}");
        }
    });
}
