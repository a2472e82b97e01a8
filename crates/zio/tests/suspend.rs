//! Which reads that fail wait for the pool to go on, and which give their error.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Errno, Txg, tasks};
use common::BM;
use common::writable::{Top, Writable};
use ondisk::BlkPtr;
use vdev::Device;
use zio::{Buf, Error, Payload, Suspend, WriteCx, WriteProps, WriteReq};

/// A device that is there and reads nothing.
#[derive(Debug)]
struct Unreadable(u64);

impl Device for Unreadable {
    fn size(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(Errno::EIO.into())
    }

    fn name(&self) -> String {
        "unreadable".to_string()
    }
}

/// Lets I/O fail for good, and counts how often it was asked.
#[derive(Default)]
struct Asked(AtomicUsize);

impl Suspend for Asked {
    fn suspend(&self, _: &Error, _: bool, _: &mut Option<u64>) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }
}

#[test]
fn a_read_that_the_sync_can_do_without_waits_for_devices_only() {
    let pool = Writable::new(&[Top::Mirror(1)], 9, 24 << 20);
    let data = Payload::Logical(Buf::from(vec![7; 4096]));
    let req = WriteReq { bm: BM, props: WriteProps::default(), payload: data, orig: BlkPtr::HOLE, fill: 1 };
    let bp = pool.zio.write(&WriteCx { txg: Txg(5), pass: 1 }, vec![req]).unwrap()[0];
    for (is_there, asked_for) in [(true, [0, 1, 0]), (false, [1, 1, 1])] {
        let device = |_, _| is_there.then(|| Arc::new(Unreadable(24 << 20)) as Arc<dyn Device>);
        let zio = pool.open_on(&device);
        let asked = Arc::new(Asked::default());
        zio.set_suspend(asked.clone());
        let read = || assert!(matches!(zio.read_uncached(&bp, &BM), Err(Error::Io { .. })));
        let count = |work: &dyn Fn()| {
            work();
            asked.0.swap(0, Ordering::Relaxed)
        };
        let counts =
            [count(&read), count(&|| tasks::syncing(read)), count(&|| tasks::syncing(|| tasks::can_fail(read)))];
        assert_eq!(counts, asked_for, "{is_there}");
    }
}
