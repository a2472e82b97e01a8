//! Datasets that somebody reads for long are not destroyed, by this process or another.
#![allow(clippy::unwrap_used)]

mod live;

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use base::{Errno, Guid, ObjectId};
use live::{Live, why};
use pool::{Dataset, Error, HeldElsewhere, KeptObject, Refusal, Spa, Suspend};

fn snapshot(live: &Live, name: &str) -> Dataset {
    live.spa.snapshot(&[name.to_owned()], &[]).unwrap();
    live.view().dataset(name).unwrap()
}

fn destroy(live: &Live, name: &str, defer: bool) -> Result<(), Error> {
    live.spa.destroy_snapshots(&[name.to_owned()], defer)
}

fn clone(live: &Live, from: &str, name: &str) {
    live.spa.clone_dataset(from, name, Vec::new()).unwrap();
}

#[track_caller]
fn busy<T: std::fmt::Debug>(result: Result<T, Error>) {
    match result {
        Err(Error::Many(all)) => {
            assert!(all.iter().all(|(_, e)| e.errno() == Errno::EBUSY) && !all.is_empty(), "{all:?}")
        }
        other => assert_eq!(other.unwrap_err().errno(), Errno::EBUSY),
    }
}

#[test]
fn a_snapshot_that_is_read_is_not_destroyed() {
    let live = Live::new();
    live.fs("t/a");
    let id = live.file("t/a", 300_000, 1);
    let snap = snapshot(&live, "t/a@1");
    let held = (snap.long_hold().unwrap(), snap.long_hold().unwrap());
    busy(destroy(&live, "t/a@1", false));
    busy(destroy(&live, "t/a@1", true));
    drop(held.0);
    busy(destroy(&live, "t/a@1", false));
    // the file system, the name, tags, clones: none of that disturbs who reads
    live.write("t/a", ObjectId(id), 0, 1000, 2);
    live.spa.rollback("t/a", None).unwrap();
    live.spa.hold(&[("t/a@1".into(), "tag".into())]).unwrap();
    live.spa.release(&[("t/a@1".into(), "tag".into())]).unwrap();
    live.spa.rename_snapshot("t/a", "1", "one", false).unwrap();
    clone(&live, "t/a@one", "t/b");
    // the snapshots that would move are open
    busy(live.spa.promote("t/b"));
    drop(held.1);
    live.spa.promote("t/b").unwrap();
    live.spa.promote("t/a").unwrap();
    live.spa.destroy_head("t/b").unwrap();
    destroy(&live, "t/a@one", false).unwrap();
    // who comes too late is told so, though what he looked at has it
    assert!(snap.long_hold().unwrap_err().is_not_found());
    snapshot(&live, "t/a@one");
    assert!(snap.long_hold().unwrap_err().is_not_found());
    drop(snap);
    live.judged();
}

#[test]
fn what_would_go_with_its_last_tag_or_clone_stays() {
    let live = Live::new();
    live.fs("t/a");
    live.file("t/a", 300_000, 1);
    let snap = snapshot(&live, "t/a@1");
    let tag = [("t/a@1".to_owned(), "tag".to_owned())];
    live.spa.hold(&tag).unwrap();
    clone(&live, "t/a@1", "t/b");
    destroy(&live, "t/a@1", true).unwrap();
    let held = snap.long_hold().unwrap();
    live.spa.release(&tag).unwrap();
    busy(live.spa.destroy_head("t/b"));
    drop(held);
    live.spa.hold(&tag).unwrap();
    live.spa.destroy_head("t/b").unwrap();
    let held = snap.long_hold().unwrap();
    busy(live.spa.release(&tag));
    assert!(live.view().dataset("t/a@1").is_ok());
    drop(held);
    live.spa.release(&tag).unwrap();
    assert!(live.view().dataset("t/a@1").unwrap_err().is_not_found());
    drop(snap);
    live.judged();
}

#[test]
fn a_head_that_is_read_is_not_changed() {
    let live = Live::new();
    live.fs("t/a");
    let id = live.file("t/a", 300_000, 1);
    snapshot(&live, "t/a@1");
    let head = live.view().dataset("t/a").unwrap();
    let open = live.spa.objset(&head).unwrap();
    assert_eq!(why(head.long_hold()), Refusal::Busy);
    drop(open);
    let held = head.long_hold().unwrap();
    assert_eq!(why(live.spa.objset(&head)), Refusal::Busy);
    assert_eq!(why(live.spa.rollback("t/a", None)), Refusal::Busy);
    destroy(&live, "t/a@1", false).unwrap();
    assert_eq!(why(live.spa.destroy_head("t/a")), Refusal::Busy);
    snapshot(&live, "t/a@2");
    live.set("t/a", "atime", 0).unwrap();
    drop(held);
    live.write("t/a", ObjectId(id), 0, 1000, 2);
    // what is held must be what is there
    assert_eq!(why(head.long_hold()), Refusal::Busy);
    drop(live.view().dataset("t/a").unwrap().long_hold().unwrap());
    live.spa.destroy_snapshots(&["t/a@2".into()], false).unwrap();
    live.spa.destroy_head("t/a").unwrap();
    assert!(head.long_hold().unwrap_err().is_not_found());
    live.judged();
}

/// Somebody who has let go of `t/a` while its contents are replaced, and looks what others could do to it.
struct LetGo {
    spa: Arc<Spa>,
    dataset: ObjectId,
    found: Mutex<Vec<Option<Errno>>>,
}

impl LetGo {
    fn note<T>(&self, done: Result<T, Error>) {
        self.found.lock().unwrap().push(done.err().map(|error| error.errno()));
    }

    fn hold(&self) -> Result<(), Error> {
        self.spa.view()?.dataset("t/a")?.long_hold().map(drop)
    }
}

impl Suspend for LetGo {
    fn dataset(&self) -> ObjectId {
        self.dataset
    }

    fn kept(&self) -> Vec<KeptObject> {
        Vec::new()
    }

    fn suspend(&self) {
        self.note(self.hold());
    }

    fn resume(&self, _replaced: bool) {
        self.note(self.hold());
        self.note(self.spa.destroy_snapshots(&["t/a@1".into()], false));
        self.note(self.spa.destroy_head("t/a"));
        // who has let go of it has it again
        self.note(self.spa.view().and_then(|view| self.spa.objset(&view.dataset("t/a")?)));
    }
}

#[test]
fn a_head_is_owned_while_its_contents_are_replaced() {
    let live = Live::new();
    live.fs("t/a");
    live.file("t/a", 300_000, 1);
    snapshot(&live, "t/a@1");
    let dataset = live.view().dataset("t/a").unwrap().id();
    let user = Arc::new(LetGo { spa: live.spa.clone(), dataset, found: Mutex::default() });
    let weak: std::sync::Weak<LetGo> = Arc::downgrade(&user);
    live.spa.suspend_with(weak);
    live.spa.rollback("t/a", None).unwrap();
    let busy = Some(Errno::EBUSY);
    assert_eq!(*user.found.lock().unwrap(), [busy, busy, None, busy, None]);
    // and not any longer
    user.hold().unwrap();
    live.spa.destroy_head("t/a").unwrap();
    drop(user);
    live.judged();
}

/// Another process, that says what it reads; each look must be at a time when it cannot come to read more.
#[derive(Default)]
struct Others {
    held: Mutex<BTreeSet<ObjectId>>,
    frozen: Arc<Mutex<usize>>,
    unfrozen_looks: Mutex<usize>,
    opened: Mutex<BTreeSet<ObjectId>>,
}

struct Frozen(Arc<Mutex<usize>>);

impl Drop for Frozen {
    fn drop(&mut self) {
        *self.0.lock().unwrap() -= 1;
    }
}

impl HeldElsewhere for Others {
    fn is_held(&self, _pool: Guid, id: ObjectId) -> bool {
        *self.unfrozen_looks.lock().unwrap() += usize::from(*self.frozen.lock().unwrap() == 0);
        self.held.lock().unwrap().contains(&id)
    }

    fn freeze(&self, _pool: Guid) -> Box<dyn Any> {
        *self.frozen.lock().unwrap() += 1;
        Box::new(Frozen(self.frozen.clone()))
    }

    fn opened(&self, _pool: Guid, id: ObjectId) {
        self.opened.lock().unwrap().insert(id);
    }
}

#[test]
fn what_another_process_reads_is_not_destroyed() {
    let others = Arc::new(Others::default());
    let live = Live::hooked(Some(others.clone()));
    live.fs("t/a");
    live.file("t/a", 300_000, 1);
    let (snap, head) = (snapshot(&live, "t/a@1"), live.view().dataset("t/a").unwrap());
    clone(&live, "t/a@1", "t/b");
    // what was opened here is told to the others, and nothing else
    let opened = |name| others.opened.lock().unwrap().contains(&live.view().dataset(name).unwrap().id());
    assert!(opened("t/a") && !opened("t/b"));
    *others.held.lock().unwrap() = [snap.id(), head.id()].into();
    *others.unfrozen_looks.lock().unwrap() = 0;
    busy(live.spa.promote("t/b"));
    live.spa.destroy_head("t/b").unwrap();
    busy(destroy(&live, "t/a@1", false));
    assert_eq!(why(live.spa.rollback("t/a", None)), Refusal::Busy);
    assert_eq!(*others.unfrozen_looks.lock().unwrap(), 0);
    assert_eq!(why(live.spa.objset(&head)), Refusal::Busy);
    others.held.lock().unwrap().remove(&snap.id());
    destroy(&live, "t/a@1", false).unwrap();
    assert_eq!(why(live.spa.destroy_head("t/a")), Refusal::Busy);
    others.held.lock().unwrap().clear();
    live.spa.destroy_head("t/a").unwrap();
    assert_eq!(*others.frozen.lock().unwrap(), 0);
    drop((snap, head));
    live.judged();
}

/// In an old pool the objects go before the name does.
#[test]
fn nobody_begins_to_read_what_is_being_destroyed() {
    let others = Arc::new(Others::default());
    let live = Live::hooked_with(|create| create.features.clear(), Some(others.clone()));
    live.fs("t/a");
    live.file("t/a", 300_000, 1);
    live.spa.sync().unwrap();
    *others.unfrozen_looks.lock().unwrap() = 0;
    live.spa.destroy_head("t/a").unwrap();
    assert_eq!((*others.unfrozen_looks.lock().unwrap(), *others.frozen.lock().unwrap()), (0, 0));
    live.judged();
}
