//! A volume that is in use.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base::{Errno, ObjectId};
use nbd::{Extent, Failed, Stopped, Zero};
use pool::{LongHold, PropsWatch, Spa};
use site::Borrowed;
use zpl::Zvol;
use zpl::live::Volume;

/// Bytes that are freed until it is asked whether that is of use still.
const TRIM_PIECE: u64 = 1 << 30;
/// Zeros that are written as data.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
/// Bytes that are read ahead at a time.
const CACHE_PIECE: u64 = 1 << 20;
/// Bytes of one request that are read ahead at most: more would displace what is in use.
const CACHE_MAX: u64 = 32 << 20;
/// Bytes whose range is locked at a time while data and holes are looked for.
const EXTENTS_PIECE: u64 = 128 << 20;
/// Pieces with data that are looked at for one request. Holes are passed over fast; where there is data, each indirect block is read.
const EXTENTS_PIECES: usize = 8;

/// A volume, or a snapshot of one, that is in use until this is dropped.
pub struct Device {
    contents: Contents,
    /// Keeps a snapshot from being destroyed.
    _held: Option<LongHold>,
    /// Keeps the pool of a machine open.
    _borrowed: Option<Borrowed>,
    _used: Option<Used>,
}

/// Counts as a device that is in use, until dropped.
pub(crate) struct Used(Arc<AtomicUsize>);

impl Used {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Used {
        count.fetch_add(1, Ordering::SeqCst);
        Used(count.clone())
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

enum Contents {
    /// A volume in a pool that is open for writing.
    Live(Arc<Live>),
    /// A volume or snapshot in a pool that is open for reading, and a snapshot in any.
    Still(Zvol),
}

/// A volume in a pool that is open for writing.
struct Live {
    volume: Volume,
    spa: Arc<Spa>,
    dataset: ObjectId,
    /// It is not written, whatever its property says.
    never_written: bool,
    /// The property `readonly`.
    read_only: AtomicBool,
}

impl PropsWatch for Live {
    fn props_changed(&self) {
        let read = || is_read_only(&self.spa.view()?.dataset_by_id(self.dataset)?);
        match read() {
            Ok(read_only) => self.read_only.store(read_only, Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(target: "zuse::nbd", dataset = self.dataset.0, %error, "'readonly' stays as it was");
            }
        }
    }
}

/// Returns whether the property `readonly` keeps a volume from being written.
fn is_read_only(dataset: &pool::Dataset) -> Result<bool, pool::Error> {
    Ok(dataset.prop("readonly")?.is_some_and(|prop| prop.value.number() == Some(1)))
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.contents {
            Contents::Live(live) => live.volume.fmt(f),
            Contents::Still(volume) => write!(f, "a volume of {} bytes that does not change", volume.size()),
        }
    }
}

impl Device {
    /// A volume in a pool that is open for writing. With `never_written` it is for reading only; otherwise its property `readonly` says whether it is.
    ///
    /// # Errors
    /// As [`Volume::open`]; when its properties cannot be read.
    pub fn live(spa: &Arc<Spa>, name: &str, never_written: bool) -> Result<Device, zpl::Error> {
        Device::open_live(spa, name, never_written).map(|(device, _)| device)
    }

    /// As [`Device::live`]; with its dataset, whatever the name of that is by now.
    pub(crate) fn open_live(spa: &Arc<Spa>, name: &str, never_written: bool) -> Result<(Device, ObjectId), zpl::Error> {
        let volume = Volume::open(spa, name)?;
        let dataset = volume.dataset();
        let read_only = AtomicBool::new(is_read_only(&spa.view()?.dataset_by_id(dataset)?)?);
        let live = Arc::new(Live { volume, spa: spa.clone(), dataset, never_written, read_only });
        let watch: Arc<dyn PropsWatch> = live.clone();
        spa.watch_props(Arc::downgrade(&watch));
        // it may have been set before it was watched
        spa.tell_props(&*live);
        Ok((Device { contents: Contents::Live(live), _held: None, _borrowed: None, _used: None }, dataset))
    }

    /// A volume that does not change, and what keeps it from being destroyed.
    #[must_use]
    pub fn still(volume: Zvol, held: Option<LongHold>) -> Device {
        Device { contents: Contents::Still(volume), _held: held, _borrowed: None, _used: None }
    }

    pub(crate) fn of(self, borrowed: Borrowed, used: Used) -> Device {
        Device { _borrowed: Some(borrowed), _used: Some(used), ..self }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match &self.contents {
            Contents::Live(live) => live.volume.size(),
            Contents::Still(volume) => volume.size(),
        }
    }

    /// Returns the block size in bytes (property `volblocksize`).
    #[must_use]
    pub fn block_size(&self) -> u64 {
        match &self.contents {
            Contents::Live(live) => live.volume.block_size(),
            Contents::Still(volume) => volume.block_size(),
        }
    }

    /// Returns whether nothing can be written.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match &self.contents {
            Contents::Live(live) => live.never_written || live.read_only.load(Ordering::Relaxed),
            Contents::Still(_) => true,
        }
    }

    /// Returns the volume to write to.
    ///
    /// # Errors
    /// EROFS.
    pub(crate) fn writable(&self) -> Result<&Volume, Failed> {
        match &self.contents {
            Contents::Live(live) if !self.is_read_only() => Ok(&live.volume),
            _ => Err(Failed { errno: Errno::EROFS, why: "the volume is read-only".to_owned() }),
        }
    }

    /// Reads from `offset`; returns the number of bytes, less than requested only at the end.
    ///
    /// # Errors
    /// When a block cannot be read.
    pub(crate) fn read_some(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Failed> {
        let read = match &self.contents {
            Contents::Live(live) => live.volume.read(offset, buf),
            Contents::Still(volume) => volume.read(offset, buf),
        };
        read.map_err(why)
    }

    /// Returns the next byte at or after `from` that is stored, as it is at some moment; `None` if only holes follow.
    fn next_data(&self, from: u64) -> Result<Option<u64>, Failed> {
        let found = match &self.contents {
            Contents::Live(live) => live.volume.next_data(from),
            Contents::Still(volume) => volume.next_data(from),
        };
        found.map_err(why)
    }

    /// Returns the data and holes of a range that is within the volume, with the range locked.
    fn extents_of(&self, range: Range<u64>, max: usize) -> Result<Vec<zpl::Extent>, Failed> {
        let extents = match &self.contents {
            Contents::Live(live) => live.volume.extents(range, max),
            Contents::Still(volume) => volume.extents(range, max),
        };
        extents.map_err(why)
    }
}

#[allow(clippy::needless_pass_by_value)] // it is passed to `map_err`
fn why(e: zpl::Error) -> Failed {
    Failed { errno: e.errno(), why: e.to_string() }
}

/// Does something with each piece of a range, until it is stopped.
fn in_pieces(
    (offset, len): (u64, u64),
    piece: u64,
    stopped: Stopped<'_>,
    mut each: impl FnMut(u64, u64) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut done = 0;
    while done < len {
        if stopped() {
            return Err(Failed::stopped());
        }
        let now = (len - done).min(piece);
        each(offset + done, now)?;
        done += now;
    }
    Ok(())
}

/// Adds a piece of a range, to the last one if that is of the same kind. Returns whether there was room.
fn add(extents: &mut Vec<Extent>, next: Extent, max: usize) -> bool {
    let count = extents.len();
    match extents.last_mut() {
        Some(last) if last.is_hole == next.is_hole => last.len += next.len,
        _ if count >= max => return false,
        _ => extents.push(next),
    }
    true
}

impl nbd::Export for Device {
    fn size(&self) -> u64 {
        Device::size(self)
    }

    fn block_size(&self) -> u64 {
        Device::block_size(self)
    }

    fn is_read_only(&self) -> bool {
        Device::is_read_only(self)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failed> {
        match self.read_some(offset, buf)? {
            read if read == buf.len() => Ok(()),
            // its size was another when it was asked for
            _ => Err(Failed { errno: Errno::ENXIO, why: "the volume has become smaller".to_owned() }),
        }
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Failed> {
        let volume = self.writable()?;
        let written = if durable { volume.write_sync(offset, data) } else { volume.write(offset, data) };
        written.map_err(why)
    }

    /// Zeros that are written are data until they are synced; compression then makes them holes, unless it is off.
    fn zero(&self, offset: u64, len: u64, how: Zero, durable: bool, stopped: Stopped<'_>) -> Result<(), Failed> {
        if how.hole {
            return self.trim(offset, len, durable, stopped);
        }
        if how.fast {
            return Err(Failed { errno: Errno::ENOTSUP, why: "zeros are written as data".to_owned() });
        }
        in_pieces((offset, len), ZEROS.len() as u64, stopped, |at, now| {
            self.writable()?.write(at, ZEROS.get(..now as usize).unwrap_or_default()).map_err(why)
        })?;
        if durable { self.flush() } else { Ok(()) }
    }

    fn trim(&self, offset: u64, len: u64, durable: bool, stopped: Stopped<'_>) -> Result<(), Failed> {
        in_pieces((offset, len), TRIM_PIECE, stopped, |at, now| self.writable()?.discard(at, now).map_err(why))?;
        if durable { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), Failed> {
        match &self.contents {
            Contents::Live(live) => live.volume.flush().map_err(why),
            Contents::Still(_) => Ok(()),
        }
    }

    /// The range is locked piece by piece, as writers wait for it; so what is told is true of each piece at its own moment, as with any answer that comes before another request.
    fn extents(&self, offset: u64, len: u64, max: usize, stopped: Stopped<'_>) -> Result<Vec<Extent>, Failed> {
        let (mut at, end) = (offset, offset.saturating_add(len));
        let (mut extents, mut with_data) = (Vec::new(), 0);
        while at < end && with_data < EXTENTS_PIECES {
            if stopped() {
                return Err(Failed::stopped());
            }
            let piece = at..end.min(at.saturating_add(EXTENTS_PIECE));
            at = piece.end;
            let found = self.extents_of(piece, max)?;
            with_data += usize::from(found.iter().any(|extent| !extent.is_hole));
            // where the most are found before the end of the piece, nothing that follows fits
            let is_whole = found.last().is_some_and(|last| last.range.end == at);
            let added = found.into_iter().all(|extent| {
                let len = extent.range.end - extent.range.start;
                add(&mut extents, Extent { len, is_hole: extent.is_hole }, max)
            });
            if !is_whole || !added {
                break;
            }
        }
        Ok(extents)
    }

    fn cache(&self, offset: u64, len: u64, stopped: Stopped<'_>) -> Result<(), Failed> {
        let len = len.min(CACHE_MAX);
        let mut buf = vec![0; len.min(CACHE_PIECE) as usize];
        let mut read = |at: u64, now: u64| nbd::Export::read(self, at, buf.get_mut(..now as usize).unwrap_or_default());
        in_pieces((offset, len), CACHE_PIECE, stopped, &mut read)
    }
}

impl fuse::Device for Device {
    fn size(&self) -> u64 {
        Device::size(self)
    }

    fn block_size(&self) -> u64 {
        Device::block_size(self)
    }

    fn is_read_only(&self) -> bool {
        Device::is_read_only(self)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.read_some(offset, buf).map_err(|failed| failed.errno)
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Errno> {
        nbd::Export::write(self, offset, data, durable).map_err(|failed| failed.errno)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        nbd::Export::trim(self, offset, len, false, &|| false).map_err(|failed| failed.errno)
    }

    fn flush(&self) -> Result<(), Errno> {
        nbd::Export::flush(self).map_err(|failed| failed.errno)
    }

    fn seek(&self, from: u64, is_data: bool) -> Result<Option<u64>, Errno> {
        let mut at = from;
        let end = Device::size(self);
        while at < end {
            // holes are passed over at once, however long they are; what follows them is looked at with its range locked
            if is_data {
                match self.next_data(at).map_err(|failed| failed.errno)? {
                    Some(data) if data < end => at = data,
                    _ => return Ok(None),
                }
            }
            let piece = at..end.min(at.saturating_add(EXTENTS_PIECE));
            // two at most: what is at the beginning, and what follows it
            let found = self.extents_of(piece.clone(), 2).map_err(|failed| failed.errno)?;
            if let Some(found) = found.iter().find(|extent| extent.is_hole != is_data) {
                return Ok(Some(found.range.start));
            }
            at = piece.end;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_neighbouring_pieces_are_one() {
        let mut extents = Vec::new();
        let extent = |len, is_hole| Extent { len, is_hole };
        assert!(add(&mut extents, extent(4, true), 2) && add(&mut extents, extent(6, true), 2));
        assert!(add(&mut extents, extent(1, false), 2));
        // one more than there may be; the last one grows nevertheless
        assert!(!add(&mut extents, extent(1, true), 2));
        assert!(add(&mut extents, extent(1, false), 2));
        assert_eq!(extents, [extent(10, true), extent(2, false)]);
    }

    #[test]
    fn pieces_end_when_they_are_stopped() {
        let mut done = Vec::new();
        let stopped = std::cell::Cell::new(false);
        let ended = in_pieces((5, 25), 10, &|| stopped.get(), |at, len| {
            done.push((at, len));
            stopped.set(at == 15);
            Ok(())
        });
        assert_eq!((done, ended), (vec![(5, 10), (15, 10)], Err(Failed::stopped())));
    }
}
