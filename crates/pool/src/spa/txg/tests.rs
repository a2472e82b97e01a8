#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::sync::mpsc::{Receiver, channel};

use base::ObjectId;
use dmu::{Tx, TxHold, TxObjects};

use super::*;

/// Longer than anything takes that does not wait.
const LONG: Duration = Duration::from_secs(60);
/// Held by tests that change the bound of dirty data, or need some.
static BOUND: Mutex<()> = Mutex::new(());

fn files(ids: &[ObjectId]) -> TxObjects {
    TxObjects::of(ObjectId(54), ids)
}

/// Begins a transaction in a thread, and returns where it comes out.
fn assign(txgs: &Arc<Txgs>, objects: TxObjects) -> Receiver<Tx> {
    let (send, receive) = channel();
    let txgs = txgs.clone();
    std::thread::spawn(move || send.send(txgs.assign(objects).unwrap()));
    receive
}

/// Closes the open txg in a thread, and returns where it comes out once it is quiet.
fn close(txgs: &Arc<Txgs>) -> Receiver<Quiesced> {
    let (open, (send, receive)) = (txgs.open(), channel());
    {
        let mut state = txgs.state.lock();
        txgs.want(&mut state, open);
    }
    let other = txgs.clone();
    std::thread::spawn(move || send.send(other.next(&|| ()).unwrap()));
    while txgs.open() == open {
        std::thread::yield_now();
    }
    receive
}

fn await_waiting(txgs: &Txgs, count: u32) {
    while txgs.state.lock().waiting < count {
        std::thread::yield_now();
    }
}

#[test]
fn a_slow_transaction_holds_up_only_those_on_its_objects() {
    let _bound = BOUND.lock();
    let txgs = Txgs::new(Txg(5));
    let slow = txgs.assign(files(&[ObjectId(7)])).unwrap();
    let quiet = close(&txgs);
    // eight writers of other objects go on in the next txg, for as long as they like
    for round in 0..3 {
        for n in 0..8 {
            let tx = assign(&txgs, files(&[ObjectId(10 + n), ObjectId(20 + n)])).recv_timeout(LONG).unwrap();
            assert_eq!(tx.txg(), Txg(7), "round {round}");
        }
    }
    assert_eq!((txgs.open(), txgs.synced()), (Txg(7), Txg(5)));
    let same = assign(&txgs, files(&[ObjectId(6), ObjectId(7)]));
    await_waiting(&txgs, 1);
    let all = [assign(&txgs, TxObjects::of_set(ObjectId(54))), assign(&txgs, TxObjects::all())];
    await_waiting(&txgs, 3);
    assert_eq!(assign(&txgs, TxObjects::of_set(ObjectId(55))).recv_timeout(LONG).unwrap().txg(), Txg(7));
    assert!(quiet.try_recv().is_err() && same.try_recv().is_err());
    drop(slow);
    assert_eq!(quiet.recv_timeout(LONG).unwrap().txg, Txg(6));
    assert_eq!(same.recv_timeout(LONG).unwrap().txg(), Txg(7));
    all.iter().for_each(|one| assert_eq!(one.recv_timeout(LONG).unwrap().txg(), Txg(7)));
}

#[test]
fn no_object_is_claimed_in_two_txgs() {
    let _bound = BOUND.lock();
    let txgs = Txgs::new(Txg(5));
    let (older, done) = (txgs.assign(files(&[ObjectId(7)])).unwrap(), txgs.assign(files(&[ObjectId(8)])).unwrap());
    assert!(older.claim(&files(&[ObjectId(8)])), "in one txg objects may be shared");
    drop(done);
    let quiet = close(&txgs);
    let newer = txgs.assign(files(&[ObjectId(9)])).unwrap();
    assert_eq!((older.txg(), newer.txg()), (Txg(6), Txg(7)));
    for (tx, taken) in [(&newer, [7, 8]), (&older, [9, 9])] {
        assert!(taken.iter().all(|id| !tx.claim(&files(&[ObjectId(10), ObjectId(*id)]))));
        assert!(!tx.may_change(ObjectId(54), ObjectId(10)), "all are claimed, or none");
        assert!(!tx.claim(&TxObjects::of_set(ObjectId(54))) && !tx.claim(&TxObjects::all()));
        assert!(tx.claim(&TxObjects::of_set(ObjectId(60 + tx.txg().0))));
    }
    assert!(
        older.claim(&files(&[ObjectId(11)]))
            && !newer.claim(&files(&[ObjectId(11)]))
            && newer.claim(&files(&[ObjectId(12)]))
    );
    drop(older);
    assert_eq!(quiet.recv_timeout(LONG).unwrap().txg, Txg(6));
    assert!(newer.claim(&files(&[ObjectId(7), ObjectId(8), ObjectId(11)])));
}

#[test]
fn the_bound_of_dirty_data_is_of_all_pools() {
    let _bound = BOUND.lock();
    let before = tunable::ZFS_DIRTY_DATA_MAX.get();
    tunable::ZFS_DIRTY_DATA_MAX.set(4 << 20);
    let (busy, idle) = (Txgs::new(Txg(5)), Txgs::new(Txg(9)));
    let tx = busy.assign(files(&[ObjectId(7)])).unwrap();
    tx.dirtied(5 << 20);
    drop(tx);
    // nothing is dirty in the other pool, and its writer waits all the same
    let writer = assign(&idle, files(&[ObjectId(7)]));
    await_waiting(&idle, 1);
    let quiet = busy.next(&|| ()).unwrap();
    assert_eq!((quiet.txg, quiet.record.dirty), (Txg(6), 5 << 20), "the waiting writer has it synced");
    assert!(writer.try_recv().is_err());
    busy.undirtied(quiet.txg, 3 << 20);
    assert_eq!(writer.recv_timeout(LONG).unwrap().txg(), Txg(10));
    assert_eq!(idle.stats.dirty_over_max.get(), 1);
    // a suspended pool holds up no other
    busy.dirtied(Txg(7), 5 << 20);
    let writer = assign(&idle, files(&[ObjectId(7)]));
    await_waiting(&idle, 1);
    busy.fail(Arc::new(Error::Closed));
    assert_eq!(writer.recv_timeout(LONG).unwrap().txg(), Txg(10));
    // nor does one that is gone
    let other = Txgs::new(Txg(5));
    other.dirtied(Txg(6), 5 << 20);
    let writer = assign(&idle, files(&[ObjectId(7)]));
    await_waiting(&idle, 1);
    drop(other);
    assert!(writer.recv_timeout(LONG).is_ok());
    tunable::ZFS_DIRTY_DATA_MAX.set(before);
}

/// Writers of one pool do not wait for the dirty data of another that is suspended; that counts again once the pool goes on.
#[test]
fn dirty_data_of_a_suspended_pool_holds_up_no_other() {
    let _bound = BOUND.lock();
    let before = tunable::ZFS_DIRTY_DATA_MAX.get();
    tunable::ZFS_DIRTY_DATA_MAX.set(4 << 20);
    let (gone, other) = (Txgs::new(Txg(5)), Txgs::new(Txg(9)));
    let tx = gone.assign(files(&[ObjectId(7)])).unwrap();
    tx.dirtied(5 << 20);
    drop(tx);
    gone.suspend(&Arc::new(Error::Closed), true);
    let writer = assign(&other, files(&[ObjectId(7)]));
    drop(writer.recv_timeout(LONG).unwrap());
    gone.resume();
    let writer = assign(&other, files(&[ObjectId(7)]));
    await_waiting(&other, 1);
    assert!(writer.try_recv().is_err());
    gone.undirtied(Txg(6), 5 << 20);
    drop(writer.recv_timeout(LONG).unwrap());
    tunable::ZFS_DIRTY_DATA_MAX.set(before);
}
