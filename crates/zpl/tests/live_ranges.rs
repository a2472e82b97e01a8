//! Ranges of files and volumes: users of different ranges do not wait for each other, appends do not overlap.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[allow(dead_code)] // what is tested elsewhere
mod power;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base::ObjectId;
use pool::{PropSource, Value};
use power::{ROOT, Rig, bytes};
use vdev::testing::{Call, Tapped};
use vdev::{Device, MemoryDevice};
use zpl::Kind;
use zpl::live::{NewFile, Volume, Zfs};

const BLOCK: u64 = 128 << 10;
/// Longer than anything takes that does not wait for the gate.
const LONG: Duration = Duration::from_secs(60);

/// A gate in front of a device, whose reads do not come back while it is closed.
#[derive(Debug, Default)]
struct Gate {
    closed: AtomicBool,
    /// Number of reads that have met the closed gate.
    met: AtomicUsize,
}

impl Gate {
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Returns when the gate is open.
    fn pass(&self) {
        if self.closed.load(Ordering::SeqCst) {
            self.met.fetch_add(1, Ordering::SeqCst);
            while self.closed.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Returns when a read is at the closed gate.
    fn await_read(&self) {
        while self.met.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn rig() -> (Rig, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let wrap = |device: MemoryDevice| -> Arc<dyn Device> {
        let gate = gate.clone();
        let pass = move |call: &Call| {
            if matches!(call, Call::Read(_)) {
                gate.pass();
            }
            Ok(())
        };
        Arc::new(Tapped::new(Arc::new(device), pass))
    };
    (Rig::with(&["a"], &wrap), gate)
}

/// Waits for the result of a thread, with the gate opened afterwards in any case.
fn await_done(done: &Receiver<()>, gate: &Gate) -> bool {
    let came = done.recv_timeout(LONG).is_ok();
    gate.open();
    came
}

fn file(zfs: &Zfs, name: &[u8]) -> ObjectId {
    zfs.create(&ROOT, zfs.fs().root(), name, &NewFile::new(Kind::File, 0o644)).unwrap().0
}

#[test]
fn a_writer_that_waits_for_a_device_holds_up_no_other_range() {
    let (rig, gate) = rig();
    let zfs = rig.file_system("t/f", &[("primarycache", 1)], false);
    let id = file(&zfs, b"f");
    let mut want = bytes(16 * BLOCK as usize, 1);
    zfs.write(&ROOT, id, 0, &want).unwrap();
    rig.spa.sync().unwrap();
    gate.close();
    let (tell, told) = channel();
    let came = std::thread::scope(|scope| {
        // a part of a block, the rest of which is on the device
        scope.spawn(|| zfs.write(&ROOT, id, 100, &[7; 10]).unwrap());
        gate.await_read();
        scope.spawn(|| {
            zfs.write(&ROOT, id, 8 * BLOCK, &bytes(2 * BLOCK as usize, 2)).unwrap();
            tell.send(()).unwrap();
        });
        await_done(&told, &gate)
    });
    assert!(came, "a writer of another range waited");
    want[100..110].fill(7);
    want[8 * BLOCK as usize..10 * BLOCK as usize].copy_from_slice(&bytes(2 * BLOCK as usize, 2));
    let mut got = vec![0; want.len()];
    zfs.read(id, 0, &mut got).unwrap();
    assert!(got == want);
}

#[test]
fn a_reader_of_a_volume_holds_up_no_writer_of_another_range() {
    let (rig, gate) = rig();
    let size = 4u64 << 20;
    rig.volume("t/v", size, BLOCK);
    let uncached = [("primarycache".to_string(), Value::Number(1))];
    rig.spa.set_props("t/v", &uncached, PropSource::Local).unwrap();
    let volume = Volume::open(&rig.spa, "t/v").unwrap();
    let mut want = bytes(size as usize, 3);
    volume.write(0, &want).unwrap();
    rig.spa.sync().unwrap();
    gate.close();
    let (tell, told) = channel();
    let came = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = vec![0; 4096];
            volume.read(4096, &mut buf).unwrap();
            assert!(buf == want[4096..8192]);
        });
        gate.await_read();
        scope.spawn(|| {
            volume.write(1 << 20, &[9; BLOCK as usize]).unwrap();
            volume.discard(2 << 20, BLOCK).unwrap();
            tell.send(()).unwrap();
        });
        await_done(&told, &gate)
    });
    assert!(came, "a writer of another range waited");
    want[1 << 20..][..BLOCK as usize].fill(9);
    want[2 << 20..][..BLOCK as usize].fill(0);
    let mut got = vec![0; want.len()];
    volume.read(0, &mut got).unwrap();
    assert!(got == want);
}

#[test]
fn appends_and_writes_of_several_threads_keep_out_of_each_others_way() {
    const RECORD: usize = 5000;
    let rig = Rig::with(&["a"], &|inner| Arc::new(inner));
    let zfs = rig.file_system("t/f", &[("recordsize", 16 << 10)], false);
    let (log, table) = (file(&zfs, b"log"), file(&zfs, b"table"));
    std::thread::scope(|scope| {
        for n in 1..5u8 {
            let zfs = &zfs;
            scope.spawn(move || {
                for m in 0..40 {
                    zfs.append(&ROOT, log, &[n; RECORD]).unwrap();
                    // neighbours share blocks
                    let at = (m * 4 + u64::from(n) - 1) * RECORD as u64;
                    zfs.write(&ROOT, table, at, &[n; RECORD]).unwrap();
                }
            });
        }
        // a reader never sees half a record
        scope.spawn(|| {
            let mut buf = [0; RECORD];
            for m in 0..400u64 {
                let got = zfs.read(log, m % 160 * RECORD as u64, &mut buf).unwrap();
                assert!(got == 0 || (got == RECORD && buf.iter().all(|byte| *byte == buf[0] && *byte != 0)));
            }
        });
    });
    let all = |id: ObjectId| {
        let mut buf = vec![0; 1 + 160 * RECORD];
        let len = zfs.read(id, 0, &mut buf).unwrap();
        buf.truncate(len);
        buf
    };
    let (log, table) = (all(log), all(table));
    assert_eq!((log.len(), table.len()), (160 * RECORD, 160 * RECORD));
    let mut counts = [0; 5];
    for record in log.chunks(RECORD) {
        assert!(record.iter().all(|byte| *byte == record[0]));
        counts[record[0] as usize] += 1;
    }
    assert_eq!(counts, [0, 40, 40, 40, 40]);
    assert!(table.chunks(RECORD).zip(0u8..).all(|(record, n)| record.iter().all(|byte| *byte == n % 4 + 1)));
}
