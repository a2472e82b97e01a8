//! Views that threads take and read while txgs are committed: what they share never shows a state that is not theirs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::testing::key;
use crate::{ChangeKey, KeyFormat, NewKey, Pool, PropSource, Value};

const READERS: usize = 4;
/// Changes that the writer makes, each in a txg of its own.
const CHANGES: u64 = 60;
/// File systems that nobody changes.
const STILL: u64 = 20;

/// Numbers that only grow, as a view shows them: a property, a name, a snapshot, and the rounds of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen([u64; 4]);

fn passphrase(iters: u64) -> NewKey {
    NewKey { keyformat: KeyFormat::Passphrase, pbkdf2_iters: 350_000 + iters, salt: 7, ..key(3) }
}

/// Makes change `n`, of one of the four.
fn change(spa: &Arc<Spa>, n: u64) -> Result<(), Error> {
    match n % 4 {
        0 => spa.set_props("t/a", &[("x:n".to_string(), Value::String(n.to_string()))], PropSource::Local),
        1 => spa.rename(&format!("t/n{}", n.saturating_sub(4)), &format!("t/n{n}")),
        2 => spa.snapshot(&[format!("t/a@{n:04}")], &[]),
        _ => spa.change_key("t/k", ChangeKey::NewRoot(passphrase(n))),
    }
}

/// Reads the four numbers, and checks what nobody changes.
fn read(view: &Arc<Pool>) -> Seen {
    let number = |text: &str| text.parse::<u64>().unwrap();
    let a = view.dataset("t/a").unwrap();
    let prop = a.prop("x:n").unwrap().map_or(0, |prop| match prop.value {
        Value::String(text) => number(&text),
        Value::Number(n) => n,
    });
    let children = view.dataset("t").unwrap().children().unwrap();
    let named = children.iter().find_map(|child| child.name().strip_prefix("t/n")).map(number).unwrap();
    let renamed = view.dataset(&format!("t/n{named}")).unwrap();
    assert_eq!(view.dataset_by_id(renamed.id()).unwrap().name(), renamed.name());
    let last = a.snapshot_names().unwrap().into_iter().map(|(name, _)| number(&name)).max().unwrap_or(0);
    let info = view.dataset("t/k").unwrap().crypto().unwrap().unwrap();
    for n in 0..STILL {
        let still = view.dataset(&format!("t/still{n}")).unwrap();
        assert_eq!(still.setting("x:n").unwrap().map(|setting| setting.value), Some(Value::String(n.to_string())));
    }
    Seen([prop, named, last, info.pbkdf2_iters - 350_000])
}

/// The pool before the first change.
fn start() -> Arc<Spa> {
    let (spa, _disks) = crate::testing::in_memory("d0", 1);
    for name in ["t/a", "t/n0"] {
        spa.create_dataset(NewDataset::inheriting(name, ObjsetType::Zfs), Box::new(|_, _| Ok(()))).unwrap();
    }
    let keyed = NewDataset { key: Some(passphrase(0)), ..NewDataset::inheriting("t/k", ObjsetType::Zfs) };
    spa.create_dataset(keyed, Box::new(|_, _| Ok(()))).unwrap();
    for n in 0..STILL {
        let props = vec![("x:n".to_string(), Value::String(n.to_string()))];
        let new = NewDataset { props, ..NewDataset::inheriting(format!("t/still{n}"), ObjsetType::Zfs) };
        spa.create_dataset(new, Box::new(|_, _| Ok(()))).unwrap();
    }
    spa
}

/// What a view of each txg has shown, and between which txgs each change was made.
#[derive(Default)]
struct Record {
    seen: Mutex<BTreeMap<Txg, Seen>>,
    /// The change, the last synced txg before it, and the last one after it.
    changes: Mutex<Vec<(u64, Txg, Txg)>>,
}

impl Record {
    fn add(&self, view: &Arc<Pool>, seen: Seen) {
        let at = view.uberblock().txg;
        let first = *self.seen.lock().entry(at).or_insert(seen);
        assert_eq!(first, seen, "two views of txg {at}");
    }

    /// Checks every view against the changes that its txg must and may have.
    fn check(&self) {
        for (at, Seen(seen)) in &*self.seen.lock() {
            for (of, seen) in (0..).zip(seen) {
                let mine = || self.changes.lock().clone().into_iter().filter(move |(n, ..)| n % 4 == of);
                let must = mine().filter(|(.., after)| after <= at).map(|(n, ..)| n).max().unwrap_or(0);
                let may = mine().filter(|(_, before, _)| before < at).map(|(n, ..)| n).max().unwrap_or(0);
                assert!((must..=may).contains(seen), "number {of} in txg {at}: {seen}, and not in {must}..={may}");
            }
        }
    }
}

#[test]
fn readers_of_views_see_their_own_txg_while_others_are_committed() {
    let spa = start();
    let (record, over) = (Record::default(), AtomicBool::new(false));
    let stats = || {
        let view = spa.view().unwrap();
        let stats = &view.known.carried().stats;
        (stats.hits.get(), stats.misses.get())
    };
    read(&spa.view().unwrap());
    let before = stats();
    let views = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut views = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        let view = spa.view().unwrap();
                        let seen = read(&view);
                        record.add(&view, seen);
                        // it stays what it was when it is overtaken
                        while spa.uberblock().txg == view.uberblock().txg && !over.load(Ordering::Relaxed) {
                            std::thread::yield_now();
                        }
                        assert_eq!(read(&view), seen);
                        views += 2;
                    }
                    views
                })
            })
            .collect();
        for n in 4..4 + CHANGES {
            let old = spa.uberblock().txg;
            let change = if n < 8 && n % 4 == 1 { spa.rename("t/n0", &format!("t/n{n}")) } else { change(&spa, n) };
            change.unwrap();
            record.changes.lock().push((n, old, spa.uberblock().txg));
        }
        over.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>()
    });
    record.check();
    let seen = read(&spa.view().unwrap());
    assert!(seen.0.iter().all(|n| *n >= CHANGES), "the last of each is there: {seen:?}");
    // a change touches a few objects, and each reader may read them before another has
    let (hits, misses) = (stats().0 - before.0, stats().1 - before.1);
    assert!(hits >= views * STILL, "{hits} values were known to {views} views");
    let most = CHANGES * READERS as u64 * CHANGED_MAX;
    assert!(misses < most, "{misses} values were read, of {CHANGES} changes; {hits} were known");
}

/// Values of the objects that a change touches, at most.
const CHANGED_MAX: u64 = 16;

#[test]
fn a_view_and_those_that_overtake_it_share_what_did_not_change() {
    let spa = start();
    let old = spa.view().unwrap();
    for n in [4, 8, 12] {
        change(&spa, n).unwrap();
    }
    let new = spa.view().unwrap();
    assert!(new.uberblock().txg > old.uberblock().txg);
    let misses = || old.known.carried().stats.misses.get();
    assert_eq!(read(&old).0[0], 0);
    let read_by_old = misses();
    assert_eq!(read(&new).0[0], 12);
    let read_by_new = misses() - read_by_old;
    assert!(read_by_new <= CHANGED_MAX, "{read_by_new} of {read_by_old} values were read again");
    // and the other way round
    let before = misses();
    assert_eq!(new.dataset("t/still0").unwrap().userrefs().unwrap(), 0);
    new.dataset("t/a").unwrap().snapshots().unwrap();
    assert_eq!(read(&old).0[0], 0);
    assert_eq!(misses(), before);
}
