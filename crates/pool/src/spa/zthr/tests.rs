//! Tasks that are cancelled, held, waited for, that fail, and that outlive their pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use base::Env;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

use super::*;
use crate::{CreateOptions, Hooks};

fn pool(env: Env) -> Arc<Spa> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::writable(64 << 20).named("d".to_owned()));
    let hooks = Hooks { env, ..Hooks::default() };
    let spec = VdevSpec::parse(&["d".to_owned()]).unwrap();
    let new = layout(&spec, &|_: &str| Some(device.clone()), LayoutOptions::default(), &hooks.env).unwrap();
    Spa::create(new, CreateOptions::new("t"), hooks).unwrap()
}

fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that nothing is counted any more.
fn stands_still(count: &AtomicU64) {
    let before = count.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(count.load(Ordering::SeqCst), before);
}

#[test]
fn slices_run_until_the_task_is_held_or_cancelled() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    fn slice(_: &Arc<Spa>) -> Result<Next, Error> {
        COUNT.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        Ok(Next::More)
    }
    let moves = || {
        let before = COUNT.load(Ordering::SeqCst);
        until(|| COUNT.load(Ordering::SeqCst) > before + 2);
    };
    let spa = pool(Env::system());
    let task = Zthr::new("test", Work::Beside(slice));
    stands_still(&COUNT);
    task.wake(&spa);
    moves();
    let (held, again) = (task.hold(), task.hold());
    assert!(task.is_awake() && task.is_interrupted());
    stands_still(&COUNT);
    drop(held);
    stands_still(&COUNT);
    drop(again);
    moves();
    assert!(!task.wait(&spa, Some(Instant::now() + Duration::from_millis(20)), &mut || {}).unwrap());
    task.cancel();
    stands_still(&COUNT);
    assert!(!task.is_awake() && task.wait(&spa, None, &mut || {}).unwrap());
    task.wake(&spa);
    moves();
    task.stop();
    stands_still(&COUNT);
    // a stopped task is not woken any more, and nobody waits for it
    task.wake(&spa);
    stands_still(&COUNT);
    assert!(matches!(task.wait(&spa, None, &mut || {}), Err(Error::Closed)));
    spa.export().unwrap();
}

#[test]
fn a_task_that_is_woken_during_its_last_slice_runs_again() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static GO: AtomicU64 = AtomicU64::new(0);
    fn slice(_: &Arc<Spa>) -> Result<Next, Error> {
        let n = COUNT.fetch_add(1, Ordering::SeqCst);
        until(|| GO.load(Ordering::SeqCst) > n);
        Ok(Next::Done)
    }
    let spa = pool(Env::system());
    let task = Zthr::new("test", Work::Beside(slice));
    task.wake(&spa);
    until(|| COUNT.load(Ordering::SeqCst) == 1);
    task.wake(&spa);
    GO.store(2, Ordering::SeqCst);
    assert!(task.wait(&spa, None, &mut || {}).unwrap());
    assert_eq!(COUNT.load(Ordering::SeqCst), 2);
    // the thread has ended with its work, and another one begins with the next
    GO.store(3, Ordering::SeqCst);
    task.wake(&spa);
    assert!(task.wait(&spa, None, &mut || {}).unwrap());
    assert_eq!(COUNT.load(Ordering::SeqCst), 3);
    spa.export().unwrap();
}

#[test]
fn an_error_is_kept_until_the_task_is_woken_again() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    fn slice(_: &Arc<Spa>) -> Result<Next, Error> {
        match COUNT.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(Next::More),
            1 => Err(Error::NoSpace),
            2 => panic!("a test of a panic"),
            _ => Ok(Next::Done),
        }
    }
    let spa = pool(Env::system());
    let task = Zthr::new("test", Work::Beside(slice));
    task.wake(&spa);
    for _ in 0..2 {
        let error = task.wait(&spa, None, &mut || {}).unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error.errno()),
            ("test: no space left in the pool", base::Errno::ENOSPC)
        );
    }
    assert!(!task.is_awake());
    task.wake(&spa);
    assert!(task.wait(&spa, None, &mut || {}).unwrap_err().to_string().contains("panicked"));
    task.wake(&spa);
    assert!(task.wait(&spa, None, &mut || {}).unwrap());
    task.stop();
    spa.export().unwrap();
}

#[test]
fn a_resting_task_is_woken_and_stopped_at_once() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    fn slice(_: &Arc<Spa>) -> Result<Next, Error> {
        COUNT.fetch_add(1, Ordering::SeqCst);
        Ok(Next::Rest(Duration::from_secs(3600)))
    }
    let spa = pool(Env::system());
    let task = Zthr::new("test", Work::Beside(slice));
    task.wake(&spa);
    until(|| COUNT.load(Ordering::SeqCst) == 1);
    stands_still(&COUNT);
    task.wake(&spa);
    until(|| COUNT.load(Ordering::SeqCst) == 2);
    task.stop();
    spa.export().unwrap();
}

#[test]
fn a_seeded_task_runs_in_the_thread_that_waits() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
    fn slice(_: &Arc<Spa>) -> Result<Next, Error> {
        THREADS.lock().push(std::thread::current().id());
        Ok(if COUNT.fetch_add(1, Ordering::SeqCst) < 4 { Next::More } else { Next::Done })
    }
    let spa = pool(Env::seeded(1));
    let task = Zthr::new("test", Work::Beside(slice));
    task.wake(&spa);
    stands_still(&COUNT);
    assert!(task.is_awake());
    let mut looks = 0;
    assert!(task.wait(&spa, None, &mut || looks += 1).unwrap());
    assert_eq!((COUNT.load(Ordering::SeqCst), looks), (5, 5));
    assert!(THREADS.lock().iter().all(|thread| *thread == std::thread::current().id()));
    spa.export().unwrap();
}

/// The thread does not keep the pool open, and ends with it.
#[test]
fn a_pool_that_is_dropped_ends_its_tasks() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    fn slice(_: &Arc<Spa>) -> Result<Next, Error> {
        COUNT.fetch_add(1, Ordering::SeqCst);
        Ok(Next::Rest(Duration::from_millis(1)))
    }
    let spa = pool(Env::system());
    let task = Zthr::new("test", Work::Beside(slice));
    task.wake(&spa);
    until(|| COUNT.load(Ordering::SeqCst) > 2);
    let weak = spa.weak();
    drop(spa);
    until(|| weak.upgrade().is_none());
    task.stop();
    stands_still(&COUNT);
}
