//! Space maps: a header in the object's bonus, then a log of allocations and frees (docs/format.md §10.1; OpenZFS:
//! `space_map.h`).
//!
//! Offsets and runs are in units of the map's shift: the ashift of its vdev for a metaslab's map, 512 bytes for a log space map, 1 for a
//! dirty time log. An entry takes one word or two; a two-word entry never straddles two blocks of the object.

use base::bytes::{self, bits, with_bits};
use base::{Endian, ObjectId, Txg};

use crate::Error;

/// Size of the header with the histogram; the smallest valid header has [`SPACE_MAP_HEADER_V0_SIZE`].
pub const SPACE_MAP_HEADER_SIZE: usize = 64 + 8 * HISTOGRAM_BUCKETS;
/// Size of the header before feature `spacemap_histogram` (OpenZFS: `SPACE_MAP_SIZE_V0`).
pub const SPACE_MAP_HEADER_V0_SIZE: usize = 24;
/// Buckets of the histogram (OpenZFS: `SPACE_MAP_HISTOGRAM_SIZE`).
pub const HISTOGRAM_BUCKETS: usize = 32;

/// Largest run of a one-word entry, in units (OpenZFS: `SM_RUN_MAX`).
pub const ONE_WORD_RUN_MAX: u64 = 1 << 15;
/// Largest offset of a one-word entry, in units (OpenZFS: `SM_OFFSET_MAX`).
pub const ONE_WORD_OFFSET_MAX: u64 = (1 << 47) - 1;
/// Largest run of a two-word entry, in units (OpenZFS: `SM2_RUN_MAX`).
pub const TWO_WORD_RUN_MAX: u64 = 1 << 36;
/// Largest offset of a two-word entry, in units (OpenZFS: `SM2_OFFSET_MAX`).
pub const TWO_WORD_OFFSET_MAX: u64 = (1 << 63) - 1;

/// The bonus of a space map object (OpenZFS: `space_map_phys_t`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpaceMapHeader {
    /// The object's own number; not maintained.
    pub object: ObjectId,
    /// Bytes of entries.
    pub length: u64,
    /// Bytes allocated, as of the last write of this map (for a log: allocated minus freed).
    pub alloc: i64,
    /// Free segments by size: bucket i counts those of 2^(i+shift) to 2^(i+shift+1) bytes. `None` in an old header.
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
}

impl SpaceMapHeader {
    /// Decodes the bonus.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 24 bytes; [`Error::Invalid`] if the length is not in whole words.
    pub fn decode(bonus: &[u8], e: Endian) -> Result<Self, Error> {
        let word = |n: usize| {
            bytes::u64(bonus, n * 8, e).ok_or(Error::short("space map header", SPACE_MAP_HEADER_V0_SIZE, bonus.len()))
        };
        let (object, length, alloc) = (ObjectId(word(0)?), word(1)?, word(2)? as i64);
        if !length.is_multiple_of(8) {
            return Err(Error::Invalid { what: "space map header", field: "length", value: length });
        }
        let histogram = bonus.get(64..SPACE_MAP_HEADER_SIZE).map(|raw| {
            let mut buckets = [0; HISTOGRAM_BUCKETS];
            buckets.iter_mut().zip(bytes::u64s(raw, e)).for_each(|(b, n)| *b = n);
            buckets
        });
        Ok(SpaceMapHeader { object, length, alloc, histogram })
    }

    /// Encodes it: 24 bytes without a histogram, 320 with.
    #[must_use]
    pub fn encode(&self, e: Endian) -> Vec<u8> {
        let mut words = vec![self.object.0, self.length, self.alloc as u64];
        if let Some(histogram) = &self.histogram {
            words.extend([0; 5]);
            words.extend(histogram);
        }
        words.into_iter().flat_map(|w| e.put_u64(w)).collect()
    }
}

/// The kind of a space map entry (OpenZFS: `maptype_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Action {
    /// Space was allocated.
    Alloc,
    /// Space was freed.
    Free,
}

impl Action {
    const fn of(bit: u64) -> Self {
        if bit == 0 { Action::Alloc } else { Action::Free }
    }
}

/// One entry of a space map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Entry {
    /// A run of units that was allocated or freed.
    Run {
        /// Allocated or freed.
        action: Action,
        /// Its start in units, from the start of the map.
        offset: u64,
        /// Its length in units, not 0.
        run: u64,
        /// The top-level vdev; two-word entries have one, though only logs need it.
        vdev: Option<u32>,
        /// Words that the entry takes, 1 or 2.
        words: u8,
    },
    /// The context in which the following entries were written. With txg 0 it is padding.
    Debug {
        /// Allocated or freed.
        action: Action,
        /// The sync pass.
        pass: u16,
        /// The low 50 bits of the txg.
        txg: Txg,
    },
}

impl Entry {
    /// The word that fills the end of a block where a two-word entry does not fit.
    pub const PADDING: Entry = Entry::Debug { action: Action::Alloc, pass: 0, txg: Txg(0) };

    /// The shortest entry for a run; `None` if no entry can hold the numbers. A `vdev` requires a two-word entry.
    #[must_use]
    pub const fn for_run(action: Action, offset: u64, run: u64, vdev: Option<u32>) -> Option<Self> {
        if run == 0 || run > TWO_WORD_RUN_MAX || offset > TWO_WORD_OFFSET_MAX {
            return None;
        }
        let short = run <= ONE_WORD_RUN_MAX && offset <= ONE_WORD_OFFSET_MAX && vdev.is_none();
        Some(Entry::Run { action, offset, run, vdev, words: if short { 1 } else { 2 } })
    }

    /// Decodes the entry at the front of `words` (native order) and returns the number of words it takes; `None` if it is truncated.
    #[must_use]
    pub fn decode(words: &[u64]) -> Option<(Self, usize)> {
        let word = *words.first()?;
        match bits(word, 62, 2) {
            2 => {
                // of the values of these two bits, 0 and 1 are defined
                let (action, pass) = (Action::of(bits(word, 60, 2)), bits(word, 50, 10) as u16);
                Some((Entry::Debug { action, pass, txg: Txg(bits(word, 0, 50)) }, 1))
            }
            3 => {
                let second = *words.get(1)?;
                let entry = Entry::Run {
                    action: Action::of(bits(second, 63, 1)),
                    offset: bits(second, 0, 63),
                    run: bits(word, 24, 36) + 1,
                    vdev: Some(bits(word, 0, 24) as u32),
                    words: 2,
                };
                Some((entry, 2))
            }
            _ => {
                let entry = Entry::Run {
                    action: Action::of(bits(word, 15, 1)),
                    offset: bits(word, 16, 47),
                    run: bits(word, 0, 15) + 1,
                    vdev: None,
                    words: 1,
                };
                Some((entry, 1))
            }
        }
    }

    /// Encodes the entry: one word, or two. Numbers that do not fit are truncated; [`Entry::for_run`] makes none such.
    #[must_use]
    pub fn encode(&self) -> (u64, Option<u64>) {
        let bit = |action| u64::from(action == Action::Free);
        match *self {
            Entry::Debug { action, pass, txg } => {
                let word = with_bits(with_bits(2 << 62, 60, 2, bit(action)), 50, 10, pass.into());
                (with_bits(word, 0, 50, txg.0), None)
            }
            Entry::Run { action, offset, run, vdev, words: 2 } => {
                let word = with_bits(with_bits(3 << 62, 24, 36, run.wrapping_sub(1)), 0, 24, vdev.unwrap_or(0).into());
                (word, Some(with_bits(with_bits(0, 63, 1, bit(action)), 0, 63, offset)))
            }
            Entry::Run { action, offset, run, .. } => {
                let word = with_bits(with_bits(0, 16, 47, offset), 15, 1, bit(action));
                (with_bits(word, 0, 15, run.wrapping_sub(1)), None)
            }
        }
    }
}

/// The entries of one block of a space map object, or of the part of it that is in use.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    block: &'a [u8],
    endian: Endian,
}

/// The entries of `block`, words of order `e`. A tail of less than a word is an error.
#[must_use]
pub const fn entries(block: &[u8], e: Endian) -> Entries<'_> {
    Entries { block, endian: e }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.block.is_empty() {
            return None;
        }
        let mut words = [0; 2];
        let have = self.block.len().min(16) / 8;
        words.iter_mut().zip(bytes::u64s(self.block, self.endian)).for_each(|(w, v)| *w = v);
        match words.get(..have).and_then(Entry::decode) {
            Some((entry, taken)) => {
                self.block = self.block.get(taken * 8..).unwrap_or(&[]);
                Some(Ok(entry))
            }
            None => {
                let have = std::mem::take(&mut self.block).len();
                Some(Err(Error::short("space map entry", if have < 8 { 8 } else { 16 }, have)))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_with_and_without_histogram() {
        let mut header = SpaceMapHeader { object: ObjectId(7), length: 4096, alloc: -512, histogram: None };
        for e in [Endian::Little, Endian::Big] {
            assert_eq!(SpaceMapHeader::decode(&header.encode(e), e).unwrap(), header);
        }
        header.histogram = Some(std::array::from_fn(|n| n as u64));
        let raw = header.encode(Endian::Big);
        assert_eq!((raw.len(), SpaceMapHeader::decode(&raw, Endian::Big).unwrap()), (SPACE_MAP_HEADER_SIZE, header));
        assert!(SpaceMapHeader::decode(&raw[..23], Endian::Big).is_err());
        assert!(SpaceMapHeader::decode(&[1; 24], Endian::Big).is_err(), "length is not a multiple of 8");
    }

    #[test]
    fn entries_round_trip_at_their_bounds() {
        let runs = [
            (0, 1, None, 1),
            (ONE_WORD_OFFSET_MAX, ONE_WORD_RUN_MAX, None, 1),
            (ONE_WORD_OFFSET_MAX + 1, 1, None, 2),
            (0, ONE_WORD_RUN_MAX + 1, None, 2),
            (TWO_WORD_OFFSET_MAX, TWO_WORD_RUN_MAX, Some((1 << 24) - 1), 2),
            (5, 6, Some(0), 2),
        ];
        let mut entries_in =
            vec![Entry::PADDING, Entry::Debug { action: Action::Free, pass: 1023, txg: Txg((1 << 50) - 1) }];
        for (offset, run, vdev, words) in runs {
            for action in [Action::Alloc, Action::Free] {
                let entry = Entry::for_run(action, offset, run, vdev).unwrap();
                assert!(matches!(entry, Entry::Run { words: w, .. } if w == words), "{entry:?}");
                entries_in.push(entry);
            }
        }
        for e in [Endian::Little, Endian::Big] {
            let words = entries_in.iter().map(Entry::encode).flat_map(|(a, b)| [Some(a), b]).flatten();
            let raw: Vec<u8> = words.flat_map(|w| e.put_u64(w)).collect();
            let back: Vec<Entry> = entries(&raw, e).map(Result::unwrap).collect();
            // a two-word entry always has a vdev
            let named = |e: &Entry| match *e {
                Entry::Run { action, offset, run, words: 2, vdev: None } => {
                    Entry::Run { action, offset, run, words: 2, vdev: Some(0) }
                }
                other => other,
            };
            assert_eq!(back, entries_in.iter().map(named).collect::<Vec<_>>());
        }
        assert!(Entry::for_run(Action::Alloc, 0, 0, None).is_none());
        assert!(Entry::for_run(Action::Alloc, 0, TWO_WORD_RUN_MAX + 1, None).is_none());
    }

    #[test]
    fn a_cut_entry_is_an_error_and_the_end() {
        let (first, _) = Entry::for_run(Action::Free, 1, 1, Some(3)).unwrap().encode();
        let raw = first.to_le_bytes();
        let mut all = entries(&raw, Endian::Little);
        assert!(all.next().unwrap().is_err());
        assert!(all.next().is_none());
        assert!(entries(&[0; 3], Endian::Little).next().unwrap().is_err());
    }
}
