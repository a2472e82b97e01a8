//! The words of `vdev_stats` (OpenZFS: `vdev_stat_t`).

use nvlist::{NvList, Value};
use vdev::{VdevAux, VdevErrors, VdevState};

/// Words of the structure.
const WORDS: usize = 48;
/// The key of the array in a vdev's list.
pub(super) const VDEV_STATS: &str = "vdev_stats";

/// A word of [`VdevStats`], by its place. Words without a name here are always 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VdevStat {
    /// Nanoseconds since counting began.
    Timestamp = 0,
    /// The number of a [`VdevState`].
    State = 1,
    /// The number of a [`VdevAux`].
    Aux = 2,
    /// Allocated bytes, parity included.
    Alloc = 3,
    /// Bytes of all metaslabs, parity included.
    Space = 4,
    /// The same without parity.
    Dspace = 5,
    /// The least size of a device in its place.
    Rsize = 6,
    /// Bytes by which it could grow.
    Esize = 7,
    /// Reads.
    ReadOps = 9,
    /// Writes.
    WriteOps = 10,
    /// Bytes read.
    ReadBytes = 15,
    /// Bytes written.
    WriteBytes = 16,
    /// Reads that failed.
    ReadErrors = 20,
    /// Writes that failed.
    WriteErrors = 21,
    /// Reads of wrong bytes.
    ChecksumErrors = 22,
    /// Whether its data is being moved away.
    Removing = 25,
    /// Bytes that the scan which runs has written to it, if that is a resilver of it.
    ScanProcessed = 26,
    /// Fragmentation of its free space in percent; the largest number if that is not known.
    Fragmentation = 27,
    /// Bytes that are initialized.
    InitializeDone = 28,
    /// Bytes that are to be initialized.
    InitializeTotal = 29,
    /// The state of initializing: never, active, canceled, suspended, complete.
    InitializeState = 30,
    /// The time of that state.
    InitializeTime = 31,
    /// Bytes that only the checkpoint holds.
    Checkpoint = 32,
    /// Whether it missed writes, and waits for a resilver.
    ResilverDeferred = 33,
    /// Slow operations.
    SlowIos = 34,
    /// Whether its device does not trim.
    TrimUnsupported = 36,
    /// Bytes that are trimmed.
    TrimDone = 37,
    /// Bytes that are to be trimmed.
    TrimTotal = 38,
    /// As [`VdevStat::InitializeState`].
    TrimState = 39,
    /// The time of that state.
    TrimTime = 40,
    /// Its property `ashift`.
    ConfiguredAshift = 42,
    /// The smallest I/O that its device does.
    LogicalAshift = 43,
    /// The smallest I/O that its device does well.
    PhysicalAshift = 44,
    /// Whether nothing is allocated on it.
    NoAlloc = 45,
    /// Bytes of its device.
    Pspace = 46,
}

/// The figures of a vdev.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VdevStats([u64; WORDS]);

impl Default for VdevStats {
    fn default() -> VdevStats {
        VdevStats([0; WORDS])
    }
}

impl VdevStats {
    /// Reads those of a vdev's list; all are 0 if it has none. Words that are missing, as an older version has fewer, are 0.
    #[must_use]
    pub fn of(vdev: &NvList) -> VdevStats {
        let mut stats = VdevStats::default();
        let words = vdev.get_u64_array(VDEV_STATS).unwrap_or(&[]);
        stats.0.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
        stats
    }

    /// Puts them into a vdev's list.
    pub fn put(&self, vdev: &mut NvList) {
        vdev.insert(VDEV_STATS, Value::Uint64Array(self.0.to_vec()));
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, stat: VdevStat) -> u64 {
        self.0.get(stat as usize).copied().unwrap_or(0)
    }

    /// Sets one of them.
    pub fn set(&mut self, stat: VdevStat, value: u64) {
        if let Some(word) = self.0.get_mut(stat as usize) {
            *word = value;
        }
    }

    /// The state, and the reason for it. A vdev of which nothing is known cannot be opened.
    #[must_use]
    pub fn health(&self) -> (VdevState, VdevAux) {
        let state = VdevState::from_number(self.get(VdevStat::State)).unwrap_or(VdevState::CantOpen);
        (state, VdevAux::from_number(self.get(VdevStat::Aux)))
    }

    /// Sets the state, and the reason for it.
    pub fn set_health(&mut self, state: VdevState, aux: VdevAux) {
        self.set(VdevStat::State, state.number());
        self.set(VdevStat::Aux, aux.number());
    }

    /// The errors.
    #[must_use]
    pub fn errors(&self) -> VdevErrors {
        VdevErrors {
            read: self.get(VdevStat::ReadErrors),
            write: self.get(VdevStat::WriteErrors),
            checksum: self.get(VdevStat::ChecksumErrors),
        }
    }

    /// Sets the errors.
    pub fn set_errors(&mut self, errors: VdevErrors) {
        self.set(VdevStat::ReadErrors, errors.read);
        self.set(VdevStat::WriteErrors, errors.write);
        self.set(VdevStat::ChecksumErrors, errors.checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_where_openzfs_has_them() {
        let mut stats = VdevStats::default();
        stats.set_health(VdevState::Degraded, VdevAux::ErrExceeded);
        stats.set_errors(VdevErrors { read: 1, write: 2, checksum: 3 });
        stats.set(VdevStat::Pspace, 5);
        let mut list = NvList::new();
        stats.put(&mut list);
        let words = list.get_u64_array("vdev_stats").unwrap_or(&[]);
        assert_eq!((words.len(), words.get(1), words.get(2)), (48, Some(&6), Some(&11)));
        assert_eq!((words.get(20..23), words.get(46)), (Some(&[1, 2, 3][..]), Some(&5)));
        assert_eq!(VdevStats::of(&list), stats);
        assert_eq!(VdevStats::of(&NvList::new()).health(), (VdevState::CantOpen, VdevAux::None));
    }
}
