//! Log space maps: the changes of metaslabs that are not yet in their own maps.
//!
//! One log per txg holds all allocations and frees of that txg. The own map of a metaslab with *unflushed txg* U holds its
//! changes before U; its changes in the logs from U on apply on top. Allocating space that an earlier log freed cancels that
//! free, and vice versa, so the two sets of a metaslab stay disjoint and small:
//!
//! * allocation: the parts that are among the unflushed frees are removed there, the rest is added to the unflushed allocations;
//! * free: the same with the two sets exchanged.
//!
//! Vdevs that were removed (indirect, holes) have no metaslabs; entries for them are skipped.
//!
//! Logs must be applied in the order of their txgs. Entries are not ordered by offset, and each lookup in the sets of a metaslab
//! misses the processor's caches. So [`Unflushed::apply`] takes many logs, or parts of logs, at once, sorts their entries by
//! metaslab, and applies the metaslabs in parallel on all cores. OpenZFS (one entry after the other): `spa_ld_log_sm_data`.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{Endian, Txg, tasks};
use ondisk::spacemap::{Action, SpaceMapHeader};

use crate::load::Change;
use crate::{Error, Held, MapGeometry, RangeTree, SpaceMapReader};

/// One allocation or free of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogChange {
    /// The top-level vdev.
    pub vdev: u32,
    /// Allocation or free.
    pub action: Action,
    /// First byte.
    pub start: u64,
    /// The end, exclusive.
    pub end: u64,
}

/// Decodes the log of `txg`, in order. Its memory is proportional to the blocks given.
///
/// # Errors
/// [`Error::NoVdev`], [`Error::OutOfMap`], [`Error::Short`], [`Error::Ondisk`].
pub fn decode_log<B, T>(
    txg: Txg,
    header: &SpaceMapHeader,
    blocks: impl IntoIterator<IntoIter = B>,
) -> Result<Vec<LogChange>, Error>
where
    B: Iterator<Item = (T, Endian)>,
    T: AsRef<[u8]>,
{
    let change = |c: Change| {
        let vdev = c.vdev.ok_or(Error::NoVdev { txg })?;
        Ok(LogChange { vdev, action: c.action, start: c.range.start, end: c.range.end })
    };
    SpaceMapReader::new(header, MapGeometry::LOG, blocks).map(|c| c.and_then(change)).collect()
}

/// Approximate bytes of a segment of a range tree, with its share of half-empty nodes.
const SEGMENT_MEMORY: u64 = 24;

/// The unflushed changes of one metaslab.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct MetaslabChanges {
    /// Free in its own map, allocated now.
    pub allocs: RangeTree,
    /// Allocated in its own map, free now.
    pub frees: RangeTree,
}

impl MetaslabChanges {
    /// Applies a change.
    ///
    /// # Errors
    /// [`Error::Overlap`] if it was made before.
    pub fn apply(&mut self, action: Action, range: Range<u64>) -> Result<(), Error> {
        match action {
            Action::Alloc => self.frees.remove_xor_add(range, &mut self.allocs),
            Action::Free => self.allocs.remove_xor_add(range, &mut self.frees),
        }
    }

    /// Returns the approximate memory of the changes, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (self.allocs.len() + self.frees.len()) as u64 * SEGMENT_MEMORY
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allocs.is_empty() && self.frees.is_empty()
    }

    /// Updates the allocated space of the metaslab's own map with these changes.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Overlap`] if map and logs contradict each other.
    pub fn update(&self, allocated: &mut RangeTree) -> Result<(), Error> {
        self.frees.iter().try_for_each(|r| allocated.remove(r))?;
        self.allocs.iter().try_for_each(|r| allocated.add(r))
    }
}

/// The unflushed changes of all metaslabs of one top-level vdev.
#[derive(Clone, Debug)]
pub struct VdevChanges {
    ms_shift: u32,
    /// Bytes of a sector: a metaslab's own map holds whole sectors.
    sector: u64,
    /// The unflushed txg of each metaslab: its own map holds all earlier changes.
    unflushed_txgs: Vec<Txg>,
    changed: BTreeMap<u64, MetaslabChanges>,
    held: BTreeMap<u64, Held>,
}

impl VdevChanges {
    /// Creates the set for a vdev with metaslabs of 2^`ms_shift` bytes in sectors of 2^`ashift`, and their unflushed txgs: the object
    /// `com.delphix:ms_unflushed_phys_txgs` of the vdev's top ZAP. (Without the object each is 0: all logs apply.)
    #[must_use]
    pub const fn new(ms_shift: u32, ashift: u32, unflushed_txgs: Vec<Txg>) -> Self {
        VdevChanges { ms_shift, sector: 1 << ashift, unflushed_txgs, changed: BTreeMap::new(), held: BTreeMap::new() }
    }

    /// Returns the changes of metaslab `id`, if there are any.
    #[must_use]
    pub fn metaslab(&self, id: u64) -> Option<&MetaslabChanges> {
        self.changed.get(&id)
    }

    /// Returns the metaslabs with changes, by id.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &MetaslabChanges)> {
        self.changed.iter().map(|(id, m)| (*id, m))
    }

    /// Returns the unflushed txg of each metaslab.
    #[must_use]
    pub fn unflushed_txgs(&self) -> &[Txg] {
        &self.unflushed_txgs
    }

    /// Returns the metaslab that a change belongs to; `None` if its own map already has the change.
    fn place(&self, txg: Txg, change: &LogChange) -> Result<Option<u64>, Error> {
        let (vdev, start) = (change.vdev, change.start);
        let stray = || Error::NoMetaslab { txg, vdev, start, size: change.end.saturating_sub(start) };
        let id_of = |at: u64| at.checked_shr(self.ms_shift).unwrap_or(u64::MAX);
        let id = id_of(start);
        let unflushed = usize::try_from(id).ok().and_then(|n| self.unflushed_txgs.get(n)).ok_or_else(stray)?;
        let whole = start.is_multiple_of(self.sector) && change.end.is_multiple_of(self.sector);
        if !whole || change.end <= start || id_of(change.end - 1) != id {
            return Err(stray());
        }
        Ok((txg >= *unflushed).then_some(id))
    }

    /// Returns the unflushed state of all metaslabs, by id.
    #[must_use]
    pub fn into_metaslabs(self) -> Vec<UnflushedMetaslab> {
        let VdevChanges { mut changed, mut held, unflushed_txgs, .. } = self;
        let each = (0..).zip(unflushed_txgs).map(|(id, txg)| UnflushedMetaslab {
            txg,
            changes: changed.remove(&id).unwrap_or_default(),
            held: held.remove(&id).unwrap_or_default(),
        });
        each.collect()
    }
}

/// The state of one metaslab that an import finds in the logs.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct UnflushedMetaslab {
    /// Its unflushed txg: logs from this txg on apply.
    pub txg: Txg,
    /// The changes that are not in its own map.
    pub changes: MetaslabChanges,
    /// Ranges freed by the last txgs. Those that were also allocated since the flush are not in `changes`.
    pub held: Held,
}

impl UnflushedMetaslab {
    /// True if a flush has something to write.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.changes.is_empty() || !self.held.is_empty()
    }
}

/// A change and the metaslab that it belongs to.
struct Placed {
    vdev: u32,
    metaslab: u64,
    txg: Txg,
    action: Action,
    range: Range<u64>,
}

impl Placed {
    const fn metaslab(&self) -> (u32, u64) {
        (self.vdev, self.metaslab)
    }
}

/// An error in the log of a txg.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogError {
    /// The txg.
    pub txg: Txg,
    /// The cause.
    pub source: Error,
}

/// The unflushed changes of a pool (OpenZFS: `ms_unflushed_allocs` and `ms_unflushed_frees` of all metaslabs).
#[derive(Clone, Default, Debug)]
pub struct Unflushed {
    vdevs: BTreeMap<u32, VdevChanges>,
    last: Txg,
    hold_after: Txg,
}

impl Unflushed {
    /// Creates the set for the pool's concrete top-level vdevs, by id.
    #[must_use]
    pub fn new(vdevs: impl IntoIterator<Item = (u32, VdevChanges)>) -> Self {
        Unflushed { vdevs: vdevs.into_iter().collect(), last: Txg(0), hold_after: Txg(u64::MAX) }
    }

    /// Holds the ranges freed by logs later than that of `txg`.
    #[must_use]
    pub fn holding(self, txg: Txg) -> Self {
        Unflushed { hold_after: txg, ..self }
    }

    /// Returns the changes on a vdev.
    #[must_use]
    pub fn vdev(&self, id: u32) -> Option<&VdevChanges> {
        self.vdevs.get(&id)
    }

    /// Returns the changes of all vdevs, by id.
    #[must_use]
    pub fn into_vdevs(self) -> BTreeMap<u32, VdevChanges> {
        self.vdevs
    }

    /// Applies logs, or parts of them, in order.
    ///
    /// # Errors
    /// [`Error::LogOrder`] if a later one was applied before; [`Error::NoMetaslab`]; [`Error::Overlap`] if something is
    /// allocated or freed twice. Some of the changes are then applied.
    pub fn apply(&mut self, logs: Vec<(Txg, Vec<LogChange>)>) -> Result<(), LogError> {
        for (txg, _) in &logs {
            if *txg < self.last {
                return Err(LogError { txg: *txg, source: Error::LogOrder { txg: *txg, after: self.last } });
            }
            self.last = *txg;
        }
        let placed: Result<Vec<_>, LogError> =
            tasks::map(logs, |(txg, changes)| self.place(txg, &changes)).into_iter().collect();
        let mut placed: Vec<Placed> = placed?.into_iter().flatten().collect();
        tasks::sort_by_key(&mut placed, Placed::metaslab);
        let mut work = Vec::new();
        for changes in placed.chunk_by(|a, b| a.metaslab() == b.metaslab()) {
            let Some((vdev, id)) = changes.first().map(Placed::metaslab) else { continue };
            let own = self.vdevs.get_mut(&vdev);
            let now = own.map(|own| (own.changed.remove(&id), own.held.remove(&id))).unwrap_or_default();
            work.push(((vdev, id), (now.0.unwrap_or_default(), now.1.unwrap_or_default()), changes));
        }
        let after = self.hold_after;
        let done = tasks::map(work, |(id, (mut now, mut held), changes)| {
            let mut apply = |c: &Placed| {
                now.apply(c.action, c.range.clone())?;
                match c.action {
                    Action::Free if c.txg > after => held.add(c.txg, c.range.clone()),
                    Action::Alloc if !held.is_empty() => {
                        held.take(&c.range);
                        Ok(())
                    }
                    _ => Ok(()),
                }
            };
            let mut apply = |c: &Placed| apply(c).map_err(|source| LogError { txg: c.txg, source });
            changes.iter().try_for_each(&mut apply).map(|()| (id, now, held))
        });
        for result in done {
            let ((vdev, id), now, held) = result?;
            let Some(own) = self.vdevs.get_mut(&vdev) else { continue };
            own.changed.insert(id, now);
            if !held.is_empty() {
                own.held.insert(id, held);
            }
        }
        Ok(())
    }

    /// Returns the changes of a log that are not in the maps of their metaslabs.
    fn place(&self, txg: Txg, changes: &[LogChange]) -> Result<Vec<Placed>, LogError> {
        let mut placed = Vec::with_capacity(changes.len());
        for change in changes {
            let Some(vdev) = self.vdevs.get(&change.vdev) else { continue };
            if let Some(metaslab) = vdev.place(txg, change).map_err(|source| LogError { txg, source })? {
                let (action, range) = (change.action, change.start..change.end);
                placed.push(Placed { vdev: change.vdev, metaslab, txg, action, range });
            }
        }
        Ok(placed)
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
