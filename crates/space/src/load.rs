//! Builds the set of allocated bytes from the entries of one space map.

use std::ops::Range;

use base::{Endian, Txg};
use ondisk::spacemap::{self, Action, Entries, Entry, SpaceMapHeader};

use crate::{Error, Held, RangeTree, Recent};

/// The range and unit of a space map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapGeometry {
    /// The first byte of the space that it covers (OpenZFS: `sm_start`).
    pub start: u64,
    /// Bytes that it covers (`sm_size`).
    pub size: u64,
    /// log2 of the unit of its entries (`sm_shift`).
    pub shift: u32,
}

impl MapGeometry {
    /// Returns the geometry of metaslab `id` on a vdev with this metaslab shift and ashift.
    ///
    /// # Errors
    /// [`Error::OutOfMap`] if the numbers overflow.
    pub fn metaslab(id: u64, ms_shift: u32, ashift: u32) -> Result<Self, Error> {
        let bad = Error::OutOfMap { offset: id, run: u64::from(ms_shift) };
        let size = 1u64.checked_shl(ms_shift).ok_or(bad.clone())?;
        let start = id.checked_mul(size).ok_or(bad)?;
        Ok(MapGeometry { start, size, shift: ashift })
    }

    /// Returns the part of this map that a dRAID can use, whose allocations begin and end between groups of `group` bytes (data
    /// and parity sectors of a group). A metaslab of a dRAID starts a little later and is a little smaller than others (OpenZFS:
    /// `vdev_draid_metaslab_init`).
    ///
    /// # Errors
    /// [`Error::OutOfMap`] if no group fits.
    pub fn in_groups(self, group: u64) -> Result<Self, Error> {
        let aligned = || {
            let start = self.start.checked_next_multiple_of(group.max(1))?;
            let room = self.size.checked_sub(start - self.start)?;
            Some(MapGeometry { start, size: room - room % group.max(1), ..self })
        };
        aligned().filter(|g| g.size > 0).ok_or(Error::OutOfMap { offset: self.start, run: group })
    }

    /// The geometry of a pool-wide log: the whole of every vdev, in sectors.
    pub const LOG: MapGeometry = MapGeometry { start: 0, size: u64::MAX, shift: ondisk::SECTOR_SHIFT };

    /// The geometry of a leaf's dirty time log: single txgs.
    pub const DTL: MapGeometry = MapGeometry { start: 0, size: u64::MAX, shift: 0 };

    /// Returns the range of the map.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.size)
    }

    /// Converts a run of units to bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMap`] if it leaves the map.
    pub fn bytes(&self, offset: u64, run: u64) -> Result<Range<u64>, Error> {
        let scaled = |units: u64| units.checked_shl(self.shift).filter(|n| n >> self.shift == units);
        let range = || {
            let start = self.start.checked_add(scaled(offset)?)?;
            let range = start..start.checked_add(scaled(run)?)?;
            (range.end <= self.range().end).then_some(range)
        };
        range().ok_or(Error::OutOfMap { offset, run })
    }
}

/// One allocation or free, in bytes, with the values of the preceding debug entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Allocation or free.
    pub action: Action,
    /// The bytes.
    pub range: Range<u64>,
    /// The top-level vdev, where the entry names one.
    pub vdev: Option<u32>,
    /// The txg of the preceding debug entry, 0 if there was none.
    pub txg: Txg,
    /// The sync pass of that entry.
    pub pass: u16,
}

/// Iterates over the changes in a space map, from its blocks in order (OpenZFS: `space_map_iterate`).
///
/// `blocks` returns each block of the object with the byte order in which it was written; bytes beyond the header's length are
/// ignored.
pub struct SpaceMapReader<B, T> {
    blocks: B,
    /// The current block, and the position in it.
    current: Option<(T, Endian, usize)>,
    /// Bytes of entries that are still to be read.
    left: u64,
    length: u64,
    geometry: MapGeometry,
    txg: Txg,
    pass: u16,
}

impl<B: Iterator<Item = (T, Endian)>, T: AsRef<[u8]>> SpaceMapReader<B, T> {
    /// Creates a reader over the first `header.length` bytes of `blocks`.
    pub fn new(header: &SpaceMapHeader, geometry: MapGeometry, blocks: impl IntoIterator<IntoIter = B>) -> Self {
        let blocks = blocks.into_iter();
        SpaceMapReader {
            blocks,
            current: None,
            left: header.length,
            length: header.length,
            geometry,
            txg: Txg(0),
            pass: 0,
        }
    }

    /// Returns the next entry as stored, including debug entries.
    fn next_entry(&mut self) -> Option<Result<Entry, Error>> {
        loop {
            if let Some((block, endian, at)) = &mut self.current {
                let len =
                    block.as_ref().len().min(usize::try_from(self.left).unwrap_or(usize::MAX).saturating_add(*at));
                let mut entries: Entries<'_> = spacemap::entries(block.as_ref().get(*at..len).unwrap_or(&[]), *endian);
                if let Some(entry) = entries.next() {
                    let words = match &entry {
                        Ok(Entry::Run { words, .. }) => usize::from(*words),
                        Ok(Entry::Debug { .. }) => 1,
                        Err(_) => return Some(self.stop(entry.err()?.into())),
                    };
                    *at += words * 8;
                    self.left = self.left.saturating_sub(words as u64 * 8);
                    return Some(Ok(entry.ok()?));
                }
                self.current = None;
            }
            if self.left == 0 {
                return None;
            }
            match self.blocks.next() {
                Some((block, endian)) if !block.as_ref().is_empty() => self.current = Some((block, endian, 0)),
                _ => {
                    let (need, have) = (self.length, self.length - self.left);
                    return Some(self.stop(Error::Short { need, have }));
                }
            }
        }
    }

    /// Ends the iteration after an error.
    fn stop<X>(&mut self, error: Error) -> Result<X, Error> {
        (self.current, self.left) = (None, 0);
        Err(error)
    }
}

impl<B: Iterator<Item = (T, Endian)>, T: AsRef<[u8]>> Iterator for SpaceMapReader<B, T> {
    type Item = Result<Change, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_entry()? {
                Ok(Entry::Debug { pass, txg, .. }) => {
                    if txg.0 != 0 {
                        (self.txg, self.pass) = (txg, pass);
                    }
                }
                Ok(Entry::Run { action, offset, run, vdev, .. }) => {
                    let (txg, pass) = (self.txg, self.pass);
                    let change =
                        self.geometry.bytes(offset, run).map(|range| Change { action, range, vdev, txg, pass });
                    return Some(change.or_else(|e| self.stop(e)));
                }
                Err(e) => return Some(Err(e)),
            }
        }
    }
}

/// Returns the allocated bytes of a metaslab according to its own space map, starting from an empty set: an allocation must not
/// overlap allocated space, and a free must be of allocated space (OpenZFS: `space_map_load` with `SM_ALLOC`).
///
/// # Errors
/// [`Error::Overlap`], [`Error::Absent`], [`Error::OutOfMap`], [`Error::Short`], [`Error::Allocated`] if the sum is not the
/// header's, [`Error::Ondisk`].
pub fn load_metaslab<B, T>(
    header: &SpaceMapHeader,
    geometry: MapGeometry,
    blocks: impl IntoIterator<IntoIter = B>,
) -> Result<RangeTree, Error>
where
    B: Iterator<Item = (T, Endian)>,
    T: AsRef<[u8]>,
{
    load_recent(header, geometry, blocks, Recent::NONE).map(|(allocated, _)| allocated)
}

/// As [`load_metaslab`]; also returns the ranges freed in `recent` txgs and not allocated since.
///
/// # Errors
/// As [`load_metaslab`].
pub fn load_recent<B, T>(
    header: &SpaceMapHeader,
    geometry: MapGeometry,
    blocks: impl IntoIterator<IntoIter = B>,
    recent: Recent,
) -> Result<(RangeTree, Held), Error>
where
    B: Iterator<Item = (T, Endian)>,
    T: AsRef<[u8]>,
{
    let (mut allocated, mut held) = (RangeTree::new(), Held::default());
    for change in SpaceMapReader::new(header, geometry, blocks) {
        let change = change?;
        match change.action {
            Action::Alloc => {
                if !held.is_empty() {
                    held.take(&change.range);
                }
                allocated.add(change.range)?;
            }
            Action::Free => {
                allocated.remove(change.range.clone())?;
                if recent.contains(change.txg) {
                    held.add(change.txg, change.range)?;
                }
            }
        }
    }
    let entries = allocated.total();
    if i64::try_from(entries) == Ok(header.alloc) {
        Ok((allocated, held))
    } else {
        Err(Error::Allocated { header: header.alloc, entries })
    }
}

/// Returns the free bytes of a metaslab according to its own space map.
///
/// # Errors
/// As [`load_metaslab`].
pub fn load_free<B, T>(
    header: &SpaceMapHeader,
    geometry: MapGeometry,
    blocks: impl IntoIterator<IntoIter = B>,
) -> Result<RangeTree, Error>
where
    B: Iterator<Item = (T, Endian)>,
    T: AsRef<[u8]>,
{
    Ok(load_metaslab(header, geometry, blocks)?.complement(geometry.range()))
}
