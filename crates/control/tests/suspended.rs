//! Requests to a pool whose devices are gone (OpenZFS: `POOL_CHECK_SUSPENDED`).
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use base::Errno;
use control::stats::SUSPENDED;
use control::{Control, Ioc};
use nvlist::{NvList, Value};
use support::{pool, pool_with};
use vdev::testing::Tapped;

/// No request of this test takes as long.
const LONG: Duration = Duration::from_secs(60);

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

/// A request whose name and keys are right, as far as they are looked at before the state of the pool.
fn errno(control: &Control, ioc: Ioc, input: NvList) -> Option<Errno> {
    let (sender, receiver) = channel();
    let control = control.clone();
    thread::Builder::new()
        .spawn(move || {
            let name = if ioc == Ioc::GetBookmarkProps { "t#none" } else { "t" };
            let _told = sender.send(control.call(ioc, name, &input).err().map(|failed| failed.errno));
        })
        .unwrap();
    receiver.recv_timeout(LONG).unwrap_or_else(|_| panic!("{ioc:?} waits for the devices"))
}

/// The request that is looked at closest.
fn input(ioc: Ioc, leaf: u64) -> NvList {
    match ioc {
        Ioc::VdevGetProps => list(&[("vdevprops_get_vdev", leaf.into())]),
        _ => NvList::new(),
    }
}

#[test]
fn a_suspended_pool_refuses_requests_at_once_and_what_it_shows_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let leaf = control.spa().tree().config().children[0].guid.0;
    let create = |name: &str| control.call(Ioc::Create, name, &list(&[("type", 2i32.into())])).map(drop);
    create("t/before").unwrap();
    let (device, away) = (dir.path().join("a"), dir.path().join("away"));
    std::fs::rename(&device, &away).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| create("t/meanwhile"));
        let begun = Instant::now();
        while control.spa().suspended().is_none() {
            assert!(begun.elapsed() < LONG, "it is not suspended");
            thread::sleep(Duration::from_millis(20));
        }
        let asked = Ioc::ALL.into_iter().filter(|ioc| *ioc != Ioc::Clear);
        let answers: Vec<_> = asked.map(|ioc| (ioc, errno(&control, ioc, input(ioc, leaf)))).collect();
        // nothing of it has to be in memory
        control.spa().zio().arc().clear();
        let shown = [Ioc::PoolStats, Ioc::PoolGetProps].map(|ioc| errno(&control, ioc, NvList::new()));
        let still_waits = !waiting.is_finished();
        std::fs::rename(&away, &device).unwrap();
        control.call(Ioc::Clear, "t", &NvList::new()).unwrap();
        waiting.join().unwrap().unwrap();
        // whatever fails, nothing waits any more
        assert!(still_waits);
        assert_eq!(shown, [None, None]);
        for (ioc, errno) in answers {
            // what is stored of a vdev is on the devices
            let is_shown = matches!(ioc, Ioc::PoolStats | Ioc::PoolGetProps);
            match ioc.pool_check().suspended {
                true => assert_eq!(errno, Some(Errno::EAGAIN), "{ioc:?}"),
                false if is_shown => assert_eq!(errno, None, "{ioc:?}"),
                false => assert_ne!(errno, Some(Errno::EAGAIN), "{ioc:?}"),
            }
        }
    });
    create("t/after").unwrap();
}

#[test]
fn a_pool_whose_device_is_gone_is_shown_before_anybody_writes() {
    let (dir, gone) = (tempfile::tempdir().unwrap(), Arc::<AtomicBool>::default());
    let control = pool_with(dir.path(), |new| {
        for device in new.devices.values_mut() {
            let gone = gone.clone();
            let pulled = move || if gone.load(Ordering::SeqCst) { Err(Errno::ENXIO.into()) } else { Ok(()) };
            *device = Arc::new(Tapped::new(device.clone(), move |_| pulled()));
        }
    });
    control.spa().sync().unwrap();
    let (device, away) = (dir.path().join("a"), dir.path().join("away"));
    std::fs::rename(&device, &away).unwrap();
    gone.store(true, Ordering::SeqCst);
    // nothing of it is in memory
    control.spa().zio().arc().clear();
    let shown = [Ioc::PoolStats, Ioc::PoolGetProps].map(|ioc| control.call(ioc, "t", &NvList::new()));
    let is_suspended = control.spa().suspended().is_some();
    gone.store(false, Ordering::SeqCst);
    std::fs::rename(&away, &device).unwrap();
    let [config, props] = shown.map(Result::unwrap);
    assert!(!is_suspended && !config.contains(SUSPENDED));
    let health = props.get_nvlist("health").and_then(|health| health.get_str("value"));
    assert_eq!((config.get_str("name"), health), (Some("t"), Some("UNAVAIL")));
}
