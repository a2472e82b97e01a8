use std::sync::MutexGuard;

use super::super::raw::has_rings;
use super::super::{FileDevice, MemoryDevice};
use super::*;

/// `vdev_io` for the devices that a test opens. One test has it at a time.
pub(crate) struct Tuned(#[allow(dead_code)] MutexGuard<'static, ()>);

pub(crate) fn tuned(word: &str) -> Tuned {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    base::tunable::set("vdev_io", word).unwrap();
    Tuned(alone)
}

impl Drop for Tuned {
    fn drop(&mut self) {
        base::tunable::set("vdev_io", "auto").unwrap();
    }
}

/// A file of so many bytes on a file system with a disk; the system's folder for temporary files may have none.
pub(crate) fn file(size: u64) -> (tempfile::TempDir, std::path::PathBuf, FileDevice) {
    let built = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(built.parent().unwrap()).unwrap();
    let path = dir.path().join("disk");
    let device = FileDevice::create(&path, size).unwrap();
    (dir, path, device)
}

/// Bytes that tell where they are.
fn pattern(at: u64, len: usize, salt: u8) -> Vec<u8> {
    (at..at + len as u64).map(|n| (n / 512) as u8 ^ (n as u8).wrapping_mul(7) ^ salt).collect()
}

/// Writes and reads of all sizes, alone and many at a time, against plain memory.
fn exercise(device: FileDevice, expects: fn(&Way<'_>) -> bool) {
    let size = device.size() as usize;
    let device: Arc<dyn Device> = Arc::new(device);
    assert!(expects(&device.way(4096, 8192)), "{:?}", device.way(4096, 8192));
    let mut plain = vec![0u8; size];
    let mut random = 1u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    for round in 0..12u8 {
        // of one flight no two overlap
        let mut flight = Flight::default();
        let mut at = 0;
        while at < size {
            let unit = [1, 512, 4096][next(3)];
            at = (at + next(64 << 10)).next_multiple_of(unit);
            let len = (next(200 << 10) + 1).next_multiple_of(unit).min(size.saturating_sub(at));
            if len == 0 {
                break;
            }
            let bytes = pattern(at as u64, len, round);
            plain[at..at + len].copy_from_slice(&bytes);
            let offset = at as u64;
            match next(4) {
                0 => device.write_at(offset, &bytes).unwrap(),
                1 => device.write_through_at(offset, &bytes).unwrap(),
                _ => {
                    let mut buffer = Buffer::take(len);
                    buffer.copy_from_slice(&bytes);
                    while flight.is_full(len) {
                        flight.land().unwrap().result.unwrap();
                    }
                    flight.begin(&device, Op { writes: true, offset, buffer }, 0);
                }
            }
            at += len;
        }
        while let Some(landed) = flight.land() {
            landed.result.unwrap();
        }
        let mut count = 0;
        for tag in 0..60u64 {
            let at = next(size);
            let len = (next(100 << 10) + 1).min(size - at);
            flight.begin(
                &device,
                Op { writes: false, offset: at as u64, buffer: Buffer::take(len) },
                tag << 32 | at as u64,
            );
            let mut buf = vec![0; len];
            device.read_at(at as u64, &mut buf).unwrap();
            assert!(buf == plain[at..at + len], "round {round}, {len} bytes at {at}");
        }
        while let Some(landed) = flight.land() {
            landed.result.unwrap();
            let at = (landed.tag & 0xffff_ffff) as usize;
            assert!(
                *landed.buffer == plain[at..at + landed.buffer.len()],
                "round {round}, {} bytes at {at}",
                landed.buffer.len()
            );
            count += 1;
        }
        assert_eq!(count, 60);
    }
    device.flush().unwrap();
    // another one sees the same, through the cache
    assert!(std::fs::read(device.name()).unwrap() == plain);
}

const SIZES: [u64; 3] = [8 << 20, (8 << 20) + 512, (8 << 20) + 4097];

#[test]
fn a_ring_and_memory_hold_the_same() {
    if !has_rings() {
        eprintln!("skipped: this kernel lets this process have no io_uring");
        return;
    }
    let _tuned = tuned("uring");
    for size in SIZES {
        exercise(file(size).2, |way| matches!(way, Way::Ring(_)));
    }
}

#[test]
fn threads_and_memory_hold_the_same() {
    let _tuned = tuned("threads");
    for size in SIZES {
        exercise(file(size).2, |way| matches!(way, Way::Threads));
    }
}

#[test]
fn the_page_cache_and_memory_hold_the_same() {
    let _tuned = tuned("buffered");
    exercise(file(SIZES[1]).2, |way| matches!(way, Way::Here));
}

#[test]
fn writes_that_share_a_unit_do_not_tear_each_other() {
    let _tuned = tuned("auto");
    let (_dir, _, device) = file(1 << 20);
    // 100 bytes each: five to a unit, some over its end
    std::thread::scope(|scope| {
        for n in 0..8u64 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..60u8 {
                    for k in 0..10u64 {
                        device.write_at((k * 8 + n) * 100, &[n as u8 ^ round; 100]).unwrap();
                    }
                }
            });
        }
    });
    let mut all = vec![0; 8000];
    device.read_at(0, &mut all).unwrap();
    for (at, piece) in all.chunks(100).enumerate() {
        assert!(piece.iter().all(|byte| *byte == (at % 8) as u8 ^ 59), "piece {at}");
    }
}

#[test]
fn what_others_write_through_the_cache_is_read_past_it() {
    let _tuned = tuned("uring");
    let (_dir, path, device) = file(1 << 20);
    let other = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut buf = [0; 1024];
    for round in 1..50u8 {
        std::os::unix::fs::FileExt::write_all_at(&other, &[round; 1024], 8192).unwrap();
        device.read_at(8192, &mut buf).unwrap();
        assert!(buf == [round; 1024], "round {round}");
        device.write_through_at(8704, &[round ^ 0xff; 512]).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&other, &mut buf, 8192).unwrap();
        assert!(buf[..512] == [round; 512] && buf[512..] == [round ^ 0xff; 512], "round {round}");
    }
}

#[test]
fn a_device_is_locked_until_the_kernel_has_written_what_it_was_told() {
    let _tuned = tuned("uring");
    let (_dir, path, device) = file(1 << 20);
    // what is under way in a ring has nothing of the device but this
    let Way::Ring(direct) = device.way(0, 4096) else { return eprintln!("skipped: no io_uring") };
    let direct = direct.clone();
    drop(device);
    assert!(FileDevice::open_read_write(&path).is_err());
    drop(direct);
    FileDevice::open_read_write(&path).unwrap();
}

#[test]
fn nothing_stays_in_the_page_cache() {
    let _tuned = tuned("auto");
    let (_dir, path, device) = file(16 << 20);
    let device: Arc<dyn Device> = Arc::new(device);
    let mut flight = Flight::default();
    for n in 0..16u64 {
        let mut buffer = Buffer::take(1 << 20);
        buffer.fill(n as u8);
        while flight.is_full(1 << 20) {
            flight.land().unwrap().result.unwrap();
        }
        flight.begin(&device, Op { writes: true, offset: n << 20, buffer }, n);
    }
    while let Some(landed) = flight.land() {
        landed.result.unwrap();
    }
    device.read_at(4096, &mut vec![0; 1 << 20]).unwrap();
    if let Some(cached) = cached_pages(&path) {
        assert!(cached < 64, "{cached} pages");
    }
}

/// Pages of a file that are in the cache; none where the machine has no `fincore`.
fn cached_pages(path: &std::path::Path) -> Option<u64> {
    let told = std::process::Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(path).output().ok()?;
    String::from_utf8(told.stdout).ok()?.trim().parse().ok()
}

/// A device that fails, or takes its time.
#[derive(Debug)]
struct Odd(MemoryDevice, u64);

impl Device for Odd {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        std::thread::sleep(Duration::from_millis(self.1));
        if offset == 4096 { Err(io::Error::other("bad sector")) } else { self.0.read_at(offset, buf) }
    }

    fn name(&self) -> String {
        "odd".to_owned()
    }
}

#[test]
fn a_slow_device_has_many_under_way_and_tells_which_failed() {
    let device: Arc<dyn Device> = Arc::new(Odd(MemoryDevice::new(vec![7; 1 << 20]), 10));
    let begun = Instant::now();
    let mut flight = Flight::default();
    let mut failed = Vec::new();
    for tag in 0..100u64 {
        while flight.is_full(4096) {
            let landed = flight.land().unwrap();
            failed.extend(landed.result.is_err().then_some(landed.tag));
        }
        flight.begin(&device, Op { writes: false, offset: tag * 4096, buffer: Buffer::take(4096) }, tag);
    }
    while let Some(landed) = flight.land() {
        failed.extend(landed.result.is_err().then_some(landed.tag));
    }
    assert_eq!(failed, [1]);
    // one after the other it would be a second
    assert!(begun.elapsed() < Duration::from_millis(700), "{:?}", begun.elapsed());
}

#[test]
fn a_flight_that_is_dropped_waits_for_what_is_under_way() {
    let _tuned = tuned("auto");
    let (_dir, _, device) = file(8 << 20);
    let device: Arc<dyn Device> = Arc::new(device);
    for _ in 0..20 {
        let mut flight = Flight::default();
        for n in 0..8u64 {
            let mut buffer = Buffer::take(1 << 20);
            buffer.fill(9);
            flight.begin(&device, Op { writes: true, offset: n << 20, buffer }, n);
        }
        flight.go();
        drop(flight);
        let mut buf = [0; 4096];
        device.read_at((8 << 20) - 4096, &mut buf).unwrap();
        assert!(buf == [9; 4096]);
    }
}

#[test]
fn a_file_that_was_cut_within_a_unit_ends_there() {
    let _tuned = tuned("auto");
    let (_dir, path, device) = file(1 << 20);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((64 << 10) + 100).unwrap();
    let (done, told) = std::sync::mpsc::channel();
    let work = move || {
        // as many bytes as there are, and one more
        device.read_at(60 << 10, &mut [0; (4 << 10) + 100]).unwrap();
        let read = device.read_at(60 << 10, &mut [0; (4 << 10) + 101]);
        // what is written shares its unit with what is not there
        let written = device.write_at((64 << 10) + 10, &[1; 10]);
        done.send([read, written].map(|ended| ended.map_err(|error| error.kind()))).unwrap();
    };
    std::thread::Builder::new().spawn(work).unwrap();
    let ended = told.recv_timeout(Duration::from_secs(20)).expect("it asks for the same bytes again and again");
    assert_eq!(ended, [Err(io::ErrorKind::UnexpectedEof); 2]);
}

/// A device that ends nothing while it hangs.
#[derive(Debug, Default)]
struct Hung(Mutex<bool>, Condvar);

impl Device for Hung {
    fn size(&self) -> u64 {
        1 << 30
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        let over = self.1.wait_while(self.0.lock().unwrap(), |over| !*over).unwrap();
        drop(over);
        Ok(())
    }

    fn way(&self, _: u64, _: usize) -> Way<'_> {
        Way::Threads
    }

    fn name(&self) -> String {
        "hung".to_owned()
    }
}

#[test]
fn a_device_that_hangs_leaves_threads_to_others() {
    if tasks::width() == 1 {
        return eprintln!("skipped: on one core callers make their operations themselves");
    }
    let read = |offset| Op { writes: false, offset, buffer: Buffer::take(4096) };
    let hung = Arc::new(Hung::default());
    let device: Arc<dyn Device> = hung.clone();
    let mut flights: [Flight; 4] = Default::default();
    for flight in &mut flights {
        while !flight.is_full(4096) {
            flight.begin(&device, read(0), 0);
        }
    }
    let (done, told) = std::sync::mpsc::channel();
    let work = move || {
        let odd: Arc<dyn Device> = Arc::new(Odd(MemoryDevice::new(vec![7; 1 << 20]), 1));
        let mut flight = Flight::default();
        flight.note_slow();
        (0..32).for_each(|tag| flight.begin(&odd, read(8192), tag));
        while flight.land().is_some() {}
        done.send(()).unwrap();
    };
    std::thread::Builder::new().spawn(work).unwrap();
    let ended = told.recv_timeout(Duration::from_secs(20));
    *hung.0.lock().unwrap() = true;
    hung.1.notify_all();
    ended.expect("it waits for threads that wait for another device");
}

/// A device whose code is wrong.
#[derive(Debug)]
struct Wrong;

impl Device for Wrong {
    fn size(&self) -> u64 {
        1 << 20
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        panic!("on purpose")
    }

    fn name(&self) -> String {
        "wrong".to_owned()
    }
}

#[test]
fn a_panic_of_a_device_is_an_error_of_its_operation() {
    let device: Arc<dyn Device> = Arc::new(Wrong);
    for slow in [false, true] {
        let mut flight = Flight::default();
        if slow {
            flight.note_slow();
        }
        flight.begin(&device, Op { writes: false, offset: 0, buffer: Buffer::take(4096) }, 7);
        let landed = flight.land().unwrap();
        assert!(landed.tag == 7 && landed.result.is_err());
    }
}
