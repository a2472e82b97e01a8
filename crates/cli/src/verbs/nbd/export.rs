//! Volumes as exports.

use base::Errno;
use nbd::{Export, Extent, Failed, Stopped, Zero};
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

/// A volume in a pool that is open for writing.
pub(super) struct Live {
    pub(super) volume: Volume,
    pub(super) read_only: bool,
}

/// A volume or snapshot in a pool that is open for reading, and a snapshot in any.
pub(super) struct Still(pub(super) Zvol);

#[allow(clippy::needless_pass_by_value)] // it is passed to `map_err`
fn why(e: zpl::Error) -> Failed {
    Failed { errno: e.errno(), why: e.to_string() }
}

/// Asserts that all of a buffer was read: the size of a volume may have changed.
fn all_of(buf: &[u8], read: Result<usize, zpl::Error>) -> Result<(), Failed> {
    match read.map_err(why)? {
        read if read == buf.len() => Ok(()),
        _ => Err(Failed { errno: Errno::ENXIO, why: "the volume has become smaller".to_owned() }),
    }
}

fn extents_of(extents: Result<Vec<zpl::Extent>, zpl::Error>) -> Result<Vec<Extent>, Failed> {
    let extent = |extent: zpl::Extent| Extent { len: extent.range.end - extent.range.start, is_hole: extent.is_hole };
    Ok(extents.map_err(why)?.into_iter().map(extent).collect())
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

/// Reads a range so that it is cached.
fn cache(
    (offset, len): (u64, u64),
    stopped: Stopped<'_>,
    read: impl Fn(u64, &mut [u8]) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let len = len.min(CACHE_MAX);
    let mut buf = vec![0; len.min(CACHE_PIECE) as usize];
    in_pieces((offset, len), CACHE_PIECE, stopped, |at, now| read(at, buf.get_mut(..now as usize).unwrap_or_default()))
}

impl Live {
    fn settle(&self, durable: bool) -> Result<(), Failed> {
        if durable { self.flush() } else { Ok(()) }
    }
}

impl Export for Live {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn block_size(&self) -> u64 {
        self.volume.block_size()
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failed> {
        let read = self.volume.read(offset, buf);
        all_of(buf, read)
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Failed> {
        let written = if durable { self.volume.write_sync(offset, data) } else { self.volume.write(offset, data) };
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
            self.volume.write(at, ZEROS.get(..now as usize).unwrap_or_default()).map_err(why)
        })?;
        self.settle(durable)
    }

    fn trim(&self, offset: u64, len: u64, durable: bool, stopped: Stopped<'_>) -> Result<(), Failed> {
        in_pieces((offset, len), TRIM_PIECE, stopped, |at, now| self.volume.discard(at, now).map_err(why))?;
        self.settle(durable)
    }

    fn flush(&self) -> Result<(), Failed> {
        self.volume.flush().map_err(why)
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, Failed> {
        extents_of(self.volume.extents(offset..offset + len, max))
    }

    fn cache(&self, offset: u64, len: u64, stopped: Stopped<'_>) -> Result<(), Failed> {
        cache((offset, len), stopped, |offset, buf| self.read(offset, buf))
    }
}

/// Why nothing is written: the protocol's part refuses such requests before.
fn read_only() -> Failed {
    Failed { errno: Errno::EROFS, why: "the export is read-only".to_owned() }
}

impl Export for Still {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn block_size(&self) -> u64 {
        self.0.block_size()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failed> {
        let read = self.0.read(offset, buf);
        all_of(buf, read)
    }

    fn write(&self, _offset: u64, _data: &[u8], _durable: bool) -> Result<(), Failed> {
        Err(read_only())
    }

    fn zero(&self, _offset: u64, _len: u64, _how: Zero, _durable: bool, _stopped: Stopped<'_>) -> Result<(), Failed> {
        Err(read_only())
    }

    fn trim(&self, _offset: u64, _len: u64, _durable: bool, _stopped: Stopped<'_>) -> Result<(), Failed> {
        Err(read_only())
    }

    fn flush(&self) -> Result<(), Failed> {
        Ok(())
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, Failed> {
        extents_of(self.0.extents(offset..offset + len, max))
    }

    fn cache(&self, offset: u64, len: u64, stopped: Stopped<'_>) -> Result<(), Failed> {
        cache((offset, len), stopped, |offset, buf| self.read(offset, buf))
    }
}
