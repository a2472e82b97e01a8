use std::sync::atomic::AtomicU64;

use super::class::tests::openzfs;
use super::*;

fn request(class: IoClass, offset: u64) -> Request {
    Request { class, direction: Direction::Read, offset, len: 4096, aggregated: false }
}

/// One at a time, whatever class.
fn narrow() -> Limits {
    Limits { max_active: 1, ..openzfs() }
}

/// Waits until so many wait.
fn until_waiting(queue: &Queue, count: usize) {
    while queue.state().waiting != count {
        thread::yield_now();
    }
}

/// The order in which requests that arrived in this order are served, one at a time.
fn order(requests: &[(IoClass, u64)]) -> Vec<(IoClass, u64)> {
    let queue = Queue::with_limits(narrow);
    let served = Mutex::new(Vec::new());
    let (index, _) = queue.enter(request(IoClass::SyncRead, 0), Instant::now());
    thread::scope(|scope| {
        for (n, (class, offset)) in requests.iter().copied().enumerate() {
            let (queue, served) = (&queue, &served);
            scope.spawn(move || {
                queue.run(request(class, offset), || {
                    served.lock().unwrap().push((class, offset));
                    Ok(())
                })
            });
            until_waiting(queue, n + 1);
        }
        queue.leave(index, None);
    });
    served.into_inner().unwrap()
}

#[test]
fn sync_requests_are_served_in_order_and_async_ones_by_offset() {
    use IoClass::{AsyncRead, Scrub, SyncRead, Trim};
    let sync: Vec<(IoClass, u64)> = [5, 3, 9, 1].map(|offset| (SyncRead, offset)).to_vec();
    assert_eq!(order(&sync), sync);
    let trims: Vec<(IoClass, u64)> = [5, 3, 9, 1].map(|offset| (Trim, offset)).to_vec();
    assert_eq!(order(&trims), trims);
    for class in [AsyncRead, Scrub] {
        let sorted = |offsets: &[u64]| offsets.iter().map(|offset| (class, *offset)).collect::<Vec<_>>();
        let served = order(&sorted(&[5, 3, 9, 1]));
        // where the half second ends between two of them, each part is sorted
        let parts = served.windows(2).filter(|pair| pair[0].1 > pair[1].1).count();
        assert!(parts <= 1 && served.len() == 4, "{served:?}");
    }
}

#[test]
fn those_of_an_earlier_half_second_come_first() {
    let mut state = State::default();
    let waiter = Arc::new(Waiter { thread: thread::current(), slot: AtomicUsize::new(NO_SLOT) });
    for (ms, offset) in [(0, 90), (500, 80), (540, 10), (600, 5)] {
        let waiting = Waiting { request: request(IoClass::AsyncWrite, offset), waiter: waiter.clone() };
        state.line_up(waiting, Duration::from_millis(ms));
    }
    let line = &state.lines[IoClass::AsyncWrite.index()];
    let offsets: Vec<u64> = line.values().map(|waiting| waiting.request.offset).collect();
    assert_eq!(offsets, [80, 90, 5, 10]);
}

/// Many threads with requests of all classes: bounds hold at each moment, nobody is forgotten, the account is right.
fn stress(limits: fn() -> Limits, threads: u64, each: u64) {
    let queue = Queue::with_limits(limits);
    let active: [AtomicU64; CLASSES] = Default::default();
    let total = AtomicU64::new(0);
    thread::scope(|scope| {
        for n in 0..threads {
            let (queue, active, total) = (&queue, &active, &total);
            scope.spawn(move || {
                let mut random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for _ in 0..each {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let class = IoClass::ALL[(random % CLASSES as u64) as usize];
                    queue
                        .run(request(class, random % 1000), || {
                            let now = active[class.index()].fetch_add(1, Ordering::SeqCst) + 1;
                            let all = total.fetch_add(1, Ordering::SeqCst) + 1;
                            let limits = limits();
                            let bounds = limits.classes[class.index()];
                            assert!(now <= bounds.max.max(bounds.min), "{now} of {}", class.name());
                            assert!(all <= limits.max_active, "{all}");
                            if random.is_multiple_of(3) {
                                thread::yield_now();
                            }
                            total.fetch_sub(1, Ordering::SeqCst);
                            active[class.index()].fetch_sub(1, Ordering::SeqCst);
                            Ok(())
                        })
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(queue.figures().operations(Direction::Read), threads * each);
    assert!(queue.depths().is_empty());
    let state = queue.state();
    assert_eq!((state.waiting, state.free.len()), (0, state.slots.len()));
    assert!(state.lines.iter().all(BTreeMap::is_empty));
}

#[test]
fn bounds_hold_and_nobody_is_forgotten() {
    stress(openzfs, 48, 800);
    stress(narrow, 16, 500);
    stress(|| Limits { max_active: 3, nia_credit: 1, nia_delay: 0, ..openzfs() }, 32, 500);
}

#[test]
fn a_lower_class_has_its_turn_beside_a_higher_one_that_never_rests() {
    // two readers want the one slot again and again
    let queue = Queue::with_limits(narrow);
    let stop = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    queue.run(request(IoClass::SyncRead, 0), || Ok(())).unwrap();
                }
            });
        }
        for class in [IoClass::AsyncWrite, IoClass::Trim, IoClass::Scrub] {
            for _ in 0..20 {
                queue.run(request(class, 0), || Ok(())).unwrap();
            }
        }
        stop.store(1, Ordering::Relaxed);
    });
}

#[test]
fn a_call_that_fails_or_panics_gives_its_slot_back_and_is_not_counted() {
    let queue = Queue::with_limits(narrow);
    let failed = queue.run(request(IoClass::SyncRead, 0), || Err::<(), _>(io::Error::other("gone")));
    assert!(failed.is_err());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        queue.run(request(IoClass::SyncRead, 0), || -> io::Result<()> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    queue.run(request(IoClass::Scrub, 0), || Ok(())).unwrap();
    assert_eq!(queue.figures().operations(Direction::Read), 1);
}

#[test]
fn who_waits_while_more_becomes_dirty_begins() {
    let queue = Queue::with_limits(openzfs);
    queue.set_dirty(0);
    let (read, _) = queue.enter(request(IoClass::SyncRead, 0), Instant::now());
    let writes = [0, 1].map(|n| queue.enter(request(IoClass::AsyncWrite, n), Instant::now()).0);
    thread::scope(|scope| {
        scope.spawn(|| queue.run(request(IoClass::AsyncWrite, 2), || Ok(())));
        until_waiting(&queue, 1);
        assert_eq!(queue.depths().0[3], [1, 2]);
        queue.set_dirty(600);
    });
    writes.into_iter().chain([read]).for_each(|index| queue.leave(index, None));
    assert!(queue.depths().is_empty());
}

#[test]
fn histograms_have_a_bucket_for_each_power_of_two() {
    let mut figures = IoFigures::default();
    let ns = Duration::from_nanos;
    let read = request(IoClass::SyncRead, 0);
    figures.count(&read, ns(0), ns(1023));
    figures.count(&read, ns(1), ns(1024));
    figures.count(&Request { len: 1 << 30, ..read }, ns(1 << 20), Duration::from_secs(3600));
    let write = Request { class: IoClass::Initializing, direction: Direction::Write, aggregated: true, ..read };
    figures.count(&write, ns(3), ns(4));
    let bucket = |histogram: &[u64]| -> Vec<(usize, u64)> {
        histogram.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect()
    };
    assert_eq!(bucket(figures.disk_wait(Direction::Read)), [(9, 1), (10, 1), (36, 1)]);
    assert_eq!(bucket(figures.total_wait(Direction::Read)), [(9, 1), (10, 1), (36, 1)]);
    assert_eq!(bucket(figures.total_wait(Direction::Write)), [(2, 1)]);
    let waits: Vec<_> = figures.queue_wait().map(bucket).collect();
    assert_eq!(waits, [vec![(0, 2), (20, 1)], vec![], vec![], vec![(1, 1)], vec![], vec![], vec![]]);
    let sizes: Vec<_> = figures.sizes().map(|(one, many)| (bucket(one), bucket(many))).collect();
    assert_eq!(sizes[0], (vec![(12, 2), (24, 1)], vec![]));
    assert_eq!(sizes[3], (vec![], vec![(12, 1)]));
    assert_eq!((figures.operations(Direction::Read), figures.operations(Direction::Write)), (3, 1));
    assert_eq!((figures.bytes(Direction::Read), figures.slow(Direction::Read)), (8192 + (1 << 30), 1));
    assert_eq!(figures.disk_wait(Direction::Read).len(), LATENCY_BUCKETS);

    assert_eq!(IoFigures::from_sparse(&figures.to_sparse()), Some(figures.clone()));
    assert_eq!((IoFigures::from_sparse(&[1]), IoFigures::from_sparse(&[1 << 20, 1])), (None, None));
    let mut twice = figures.clone();
    twice.add(&figures);
    assert_eq!(twice.since(&figures), figures);
    twice.clear_slow();
    assert_eq!(twice.slow(Direction::Read), 0);
}

#[test]
fn what_a_device_does_not_end_is_told_of_once() {
    let queue = Queue::with_limits(openzfs);
    let (index, _) = queue.enter(request(IoClass::SyncWrite, 512), Instant::now());
    assert!(queue.overdue(Duration::from_secs(60)).is_empty());
    thread::sleep(Duration::from_millis(5));
    let told = queue.overdue(Duration::from_millis(1));
    assert_eq!((told.len(), told[0].class, told[0].offset, told[0].len), (1, IoClass::SyncWrite, 512, 4096));
    assert!(told[0].age >= Duration::from_millis(5));
    assert!(queue.overdue(Duration::from_millis(1)).is_empty());
    queue.leave(index, None);
    let (index, _) = queue.enter(request(IoClass::SyncWrite, 1024), Instant::now());
    thread::sleep(Duration::from_millis(5));
    assert_eq!(queue.overdue(Duration::from_millis(1)).len(), 1);
    queue.leave(index, None);
}

#[test]
fn who_waits_for_a_reader_that_does_not_come_back_has_his_turn() {
    let queue = Queue::with_limits(openzfs);
    for _ in 0..20 {
        let (read, _) = queue.enter(request(IoClass::SyncRead, 0), Instant::now());
        thread::scope(|scope| {
            let scrub = || queue.run(request(IoClass::Scrub, 0), || Ok(()));
            let scrubs = [scrub; 4].map(|scrub| scope.spawn(scrub));
            until_waiting(&queue, 4);
            queue.leave(read, None);
            assert!(scrubs.into_iter().all(|scrub| scrub.join().is_ok_and(|done| done.is_ok())));
        });
        assert!(queue.depths().is_empty());
    }
}
