//! A record of the writes and flushes of a run, in order.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vdev::{Device, Discards, MemoryDevice};

/// The bytes that a discard leaves, as so many writes.
const JUNK: u8 = 0xa5;
const DISCARD_PIECE: u64 = 1 << 20;

/// An operation on a device. Its position in the log is its number.
#[derive(Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Number of the device.
        device: usize,
        /// Offset in bytes.
        offset: u64,
        /// The bytes written.
        bytes: Arc<[u8]>,
    },
    /// A flush was completed: earlier writes to this device are safe.
    Flush {
        /// Number of the device.
        device: usize,
    },
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::Write { device, offset, bytes } => {
                write!(f, "write of {} at {offset:#x} of device {device}", bytes.len())
            }
            Event::Flush { device } => write!(f, "flush of device {device}"),
        }
    }
}

/// A statement by the pool that a txg is safe.
#[derive(Debug)]
pub struct Promise<P> {
    /// The number of events that had happened.
    pub at: usize,
    /// The txg reported to be on disk.
    pub txg: u64,
    /// Further information on the promise.
    pub payload: P,
}

/// The events, shared by the devices.
#[derive(Debug)]
struct Log {
    limit: u64,
    events: Mutex<(Vec<Event>, u64)>,
}

impl Log {
    /// Does `work` and logs it as an event: no other event comes between them.
    fn add(&self, event: Event, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut guard = self.events.lock();
        let (events, total) = &mut *guard;
        let more = if let Event::Write { bytes, .. } = &event { bytes.len() as u64 } else { 0 };
        if *total + more > self.limit {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the recording has reached its limit"));
        }
        work()?;
        *total += more;
        events.push(event);
        Ok(())
    }
}

/// An in-memory device that records the operations on it.
#[derive(Debug)]
pub struct RecordingDevice {
    number: usize,
    /// Its size as it is known, and as it is: both at most that of the image.
    known: AtomicU64,
    real: AtomicU64,
    image: MemoryDevice,
    log: Arc<Log>,
}

impl Device for RecordingDevice {
    fn size(&self) -> u64 {
        self.known.load(Ordering::Acquire)
    }

    fn refresh_size(&self) -> io::Result<u64> {
        let real = self.real.load(Ordering::Acquire);
        self.known.store(real, Ordering::Release);
        Ok(real)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.image.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let event = Event::Write { device: self.number, offset, bytes: data.into() };
        self.log.add(event, || self.image.write_at(offset, data))
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        // a single write, as on a disk
        let whole: Vec<u8> = data.iter().flat_map(|piece| piece.iter().copied()).collect();
        self.write_at(offset, &whole)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        // what is discarded becomes anything
        let junk: Arc<[u8]> = vec![JUNK; DISCARD_PIECE as usize].into();
        for at in (offset..offset + len).step_by(DISCARD_PIECE as usize) {
            let len = (offset + len - at).min(DISCARD_PIECE);
            let bytes = if len == DISCARD_PIECE { junk.clone() } else { junk[..len as usize].into() };
            let event = Event::Write { device: self.number, offset: at, bytes: bytes.clone() };
            self.log.add(event, || self.image.write_at(at, &bytes))?;
        }
        Ok(())
    }

    fn discards(&self) -> Discards {
        Discards { plainly: true, securely: false }
    }

    fn flush(&self) -> io::Result<()> {
        self.log.add(Event::Flush { device: self.number }, || self.image.flush())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.image.name()
    }
}

/// The initial contents of a device.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) size: usize,
    /// `None` for zeros, which take no memory.
    pub(crate) bytes: Option<Arc<Vec<u8>>>,
}

impl Start {
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.bytes.as_ref().map_or_else(|| vec![0; self.size], |bytes| bytes.to_vec())
    }
}

/// A record of a run in progress.
#[derive(Debug)]
pub struct Recording<P> {
    start: Vec<Start>,
    devices: Vec<Arc<RecordingDevice>>,
    log: Arc<Log>,
    promises: Mutex<Vec<Promise<P>>>,
}

impl<P> Recording<P> {
    /// A record of empty devices with these names and sizes in bytes. It holds at most `limit` bytes; further writes fail.
    #[must_use]
    pub fn new(disks: &[(String, u64)], limit: u64) -> Recording<P> {
        let start = |(name, size): &(String, u64)| Start { name: name.clone(), size: *size as usize, bytes: None };
        Self::start(disks.iter().map(start).collect(), limit)
    }

    /// A record that starts with these images.
    #[must_use]
    pub fn over(images: Vec<(String, Arc<Vec<u8>>)>, limit: u64) -> Recording<P> {
        let start = |(name, bytes): (String, Arc<Vec<u8>>)| Start { name, size: bytes.len(), bytes: Some(bytes) };
        Self::start(images.into_iter().map(start).collect(), limit)
    }

    fn start(start: Vec<Start>, limit: u64) -> Recording<P> {
        let log = Arc::new(Log { limit, events: Mutex::default() });
        let device = |(number, disk): (usize, &Start)| {
            let image = MemoryDevice::writable_from(disk.to_vec()).named(disk.name.clone());
            let [known, real] = [image.size(), image.size()].map(AtomicU64::new);
            Arc::new(RecordingDevice { number, known, real, image, log: log.clone() })
        };
        let devices = start.iter().enumerate().map(device).collect();
        Recording { start, devices, log, promises: Mutex::default() }
    }

    /// The devices, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
    }

    /// Lets all devices be of `size` bytes, of at most those that they were made with; `known` at once, else when somebody looks.
    pub fn resize(&self, size: u64, known: bool) {
        for device in &self.devices {
            device.real.store(size.min(device.image.size()), Ordering::Release);
            if known {
                device.known.store(device.real.load(Ordering::Acquire), Ordering::Release);
            }
        }
    }

    /// Records that `txg` is safe from here on.
    pub fn promise(&self, txg: u64, payload: P) {
        let mut promises = self.promises.lock();
        let at = self.log.events.lock().0.len();
        promises.push(Promise { at, txg, payload });
    }

    /// The number of events so far.
    #[must_use]
    pub fn events(&self) -> usize {
        self.log.events.lock().0.len()
    }

    /// Ends the record. Operations on devices still in use are no longer recorded.
    #[must_use]
    pub fn finish(self) -> Tape<P> {
        let (events, _) = std::mem::take(&mut *self.log.events.lock());
        Tape { start: self.start, events, promises: self.promises.into_inner() }
    }
}

/// A record of a run that has ended.
#[derive(Debug)]
pub struct Tape<P> {
    pub(crate) start: Vec<Start>,
    pub(crate) events: Vec<Event>,
    promises: Vec<Promise<P>>,
}

impl<P> Tape<P> {
    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The promises, in order.
    #[must_use]
    pub fn promises(&self) -> &[Promise<P>] {
        &self.promises
    }

    /// The last promise made before `at` events had happened.
    #[must_use]
    pub fn promised(&self, at: usize) -> Option<&Promise<P>> {
        let before = self.promises.partition_point(|promise| promise.at <= at);
        self.promises.get(before.checked_sub(1)?)
    }

    /// The same run with devices that skipped some flushes, to test whether the harness notices. `skip` gets the number of the device, and
    /// the offset of the last write to it.
    #[must_use]
    pub fn without_flushes(mut self, skip: impl Fn(usize, u64) -> bool) -> Tape<P> {
        let mut last = vec![0; self.start.len()];
        let mut kept = Vec::with_capacity(self.events.len());
        let mut promises = self.promises.iter_mut().peekable();
        for (at, event) in std::mem::take(&mut self.events).into_iter().enumerate() {
            while let Some(promise) = promises.next_if(|promise| promise.at <= at) {
                promise.at = kept.len();
            }
            match &event {
                Event::Write { device, offset, .. } => last[*device] = *offset,
                Event::Flush { device } if skip(*device, last[*device]) => continue,
                Event::Flush { .. } => {}
            }
            kept.push(event);
        }
        promises.for_each(|promise| promise.at = kept.len());
        self.events = kept;
        self
    }

    /// Bytes written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let len = |event: &Event| if let Event::Write { bytes, .. } = event { bytes.len() as u64 } else { 0 };
        self.events.iter().map(len).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_tape_has_everything_in_order_and_an_end() {
        let recording = Recording::new(&[("a".to_string(), 8192), ("b".to_string(), 8192)], 20);
        let [a, b] = <[_; 2]>::try_from(recording.devices()).unwrap();
        a.write_vectored_at(0, &[IoSlice::new(b"abc"), IoSlice::new(b"defg")]).unwrap();
        b.write_at(10, b"xy").unwrap();
        recording.promise(7, "xy");
        b.flush().unwrap();
        assert!(a.write_at(8190, b"xyz").is_err(), "beyond the end");
        assert_eq!(a.write_at(0, &[0; 30]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        let mut buf = [0; 9];
        a.read_at(0, &mut buf).unwrap();
        assert_eq!(&buf, b"abcdefg\0\0");
        assert_eq!(recording.events(), 3);
        let tape = recording.finish();
        let write = |device, offset, bytes: &[u8]| Event::Write { device, offset, bytes: bytes.into() };
        assert_eq!(tape.events(), [write(0, 0, b"abcdefg"), write(1, 10, b"xy"), Event::Flush { device: 1 }]);
        assert!(tape.promised(1).is_none());
        assert_eq!(tape.promised(2).map(|p| (p.txg, p.payload)), Some((7, "xy")));
        assert_eq!(tape.promised(99).map(|p| p.at), Some(2));
        assert_eq!(tape.bytes(), 9);
        let tape = tape.without_flushes(|device, last| device == 1 && last == 10);
        assert_eq!(tape.events().len(), 2);
        assert_eq!(tape.promises()[0].at, 2);
    }
}
