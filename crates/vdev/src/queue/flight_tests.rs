use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use base::{Txg, tasks};
use ondisk::label::key;
use ondisk::{Dva, VDEV_LABEL_START_SIZE};

use super::*;
use crate::test_pool::{TestPool, leaf};
use crate::testing::{Call, Tapped};
use crate::{AheadSource, BlockWrite, MemoryDevice, ReadCx, ReadMode, VdevConfig, VdevTree};

/// Memory that is waited for, that makes nothing while it is shut, and has a bad place.
#[derive(Debug, Default)]
struct Gate {
    shut: AtomicBool,
    /// Operations that came.
    came: AtomicUsize,
    bad: Mutex<Range<u64>>,
}

impl Gate {
    fn new() -> Arc<Gate> {
        Arc::default()
    }

    fn pass(&self, call: &Call) -> io::Result<()> {
        self.came.fetch_add(1, Ordering::SeqCst);
        // an operation that took no time would have ended before anybody waits for it
        thread::sleep(Duration::from_millis(5));
        while self.shut.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        if call.meets(&self.bad.lock().unwrap()) { Err(io::Error::other("bad sector")) } else { Ok(()) }
    }

    fn device(self: &Arc<Gate>) -> Arc<dyn Device> {
        let (gate, memory) = (self.clone(), Arc::new(MemoryDevice::writable(64 << 20)));
        Arc::new(Tapped::new(memory, move |call| gate.pass(call)).in_threads())
    }
}

fn pool(gate: &Arc<Gate>) -> Arc<VdevTree> {
    let mut top = leaf(0);
    top.insert(key::ASHIFT, 12u64);
    let config = VdevConfig::parse(&TestPool::with_tops(vec![top], 0).config).unwrap();
    let found = |_| Some(gate.device());
    Arc::new(VdevTree::open(&config, &found).unwrap())
}

/// The place of the `n`th block: none is read together with another one.
fn place(n: u64) -> Dva {
    Dva::new(0, n << 16, 4096, false)
}

fn planned(blocks: Range<u64>) -> impl Iterator<Item = crate::Planned> {
    blocks.map(|n| (place(n), 4096, Txg(5)))
}

fn read(tree: &VdevTree, source: &AheadSource, class: IoClass, n: u64) {
    let cx = ReadCx { source, class, ..ReadCx::NORMAL };
    tree.read(place(n), 4096, Txg(5), &cx, &mut [0; 4096], &mut |_| true).unwrap();
}

/// Runs `work` in a thread of its own, and fails if it does not end.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (done, told) = mpsc::channel();
    let work = move || {
        work();
        done.send(()).unwrap();
    };
    thread::Builder::new().spawn(work).unwrap();
    told.recv_timeout(Duration::from_secs(20)).expect("it failed, or waits for a slot that it holds itself");
}

/// Classes, and how many sources of 32 reads have all that the class may have at a time.
const SOURCES: [(IoClass, u64); 3] = [(IoClass::Scrub, 1), (IoClass::AsyncRead, 2), (IoClass::SyncRead, 8)];

/// Sources of one thread, that many.
fn sources(tree: &VdevTree, class: IoClass, count: u64) -> Vec<(AheadSource, Range<u64>)> {
    let source = |n| {
        let (source, blocks) = (AheadSource::default(), n * 32..(n + 1) * 32);
        source.plan(tree, ReadMode::Normal, class, planned(blocks.clone()));
        (source, blocks)
    };
    (0..count).map(source).collect()
}

#[test]
fn a_read_that_was_not_planned_does_not_wait_for_planned_ones_of_its_thread() {
    for (class, count) in SOURCES {
        ends(move || {
            let tree = pool(&Gate::new());
            let sources = sources(&tree, class, count);
            let (source, blocks) = &sources[0];
            read(&tree, source, class, 500);
            blocks.clone().for_each(|n| read(&tree, source, class, n));
            drop(sources);
            assert!(tree.leaves()[0].queue().depths().is_empty());
        });
    }
}

#[test]
fn sources_of_a_thread_do_not_wait_for_each_other() {
    for (class, count) in SOURCES {
        ends(move || {
            let tree = pool(&Gate::new());
            for (source, blocks) in sources(&tree, class, count + 1) {
                blocks.for_each(|n| read(&tree, &source, class, n));
            }
            assert!(tree.leaves()[0].queue().depths().is_empty());
        });
    }
}

#[test]
fn after_a_read_that_failed_nothing_is_under_way() {
    // the pool may be suspended for it, and who brings the devices back reads them
    let gate = Gate::new();
    let tree = pool(&gate);
    *gate.bad.lock().unwrap() = VDEV_LABEL_START_SIZE..VDEV_LABEL_START_SIZE + 512;
    let source = AheadSource::default();
    source.plan(&tree, ReadMode::Normal, IoClass::SyncRead, planned(0..64));
    let cx = ReadCx { source: &source, ..ReadCx::NORMAL };
    tree.read(place(0), 4096, Txg(5), &cx, &mut [0; 4096], &mut |_| true).unwrap_err();
    assert!(tree.leaves()[0].queue().depths().is_empty());
    (1..64).for_each(|n| read(&tree, &source, IoClass::SyncRead, n));
}

#[test]
fn a_write_is_made_again_though_others_of_its_batch_have_all_that_may_be() {
    if tasks::width() == 1 {
        return eprintln!("skipped: on one core nothing is under way while something else is done");
    }
    let gate = Gate::new();
    let tree = pool(&gate);
    *gate.bad.lock().unwrap() = VDEV_LABEL_START_SIZE..VDEV_LABEL_START_SIZE + 512;
    gate.shut.store(true, Ordering::SeqCst);
    ends(move || {
        thread::scope(|scope| {
            let writes = scope.spawn(|| {
                let data = [7; 4096];
                let blocks: Vec<BlockWrite<'_>> = (0..8).map(|n| BlockWrite { dva: place(n), data: &data }).collect();
                tree.write(Txg(5), &blocks)
            });
            while gate.came.load(Ordering::SeqCst) < 8 {
                thread::yield_now();
            }
            // a reader comes: now there may be two writes
            let queue = tree.leaves()[0].queue();
            let read = Request {
                class: IoClass::SyncRead,
                direction: Direction::Read,
                offset: 0,
                len: 512,
                aggregated: false,
            };
            let (slot, _) = queue.enter(read, Instant::now());
            queue.set_dirty(0);
            gate.shut.store(false, Ordering::SeqCst);
            assert!(writes.join().unwrap().is_err());
            queue.leave(slot, None);
            assert!(queue.depths().is_empty());
        });
    });
}
