//! The pool's history: a ring of records (docs/format.md §6.1).

use base::{Endian, bytes};

use crate::Error;

/// The events that pools before version 5000 recorded by number (OpenZFS: `zfs_history_event_names`).
pub const EVENT_NAMES: [&str; 41] = [
    "invalid event",
    "pool create",
    "vdev add",
    "pool remove",
    "pool destroy",
    "pool export",
    "pool import",
    "vdev attach",
    "vdev replace",
    "vdev detach",
    "vdev online",
    "vdev offline",
    "vdev upgrade",
    "pool clear",
    "pool scrub",
    "pool property set",
    "create",
    "clone",
    "destroy",
    "destroy_begin_sync",
    "inherit",
    "property set",
    "quota set",
    "permission update",
    "permission remove",
    "permission who remove",
    "promote",
    "receive",
    "rename",
    "reservation set",
    "replay_inc_sync",
    "replay_full_sync",
    "rollback",
    "snapshot",
    "filesystem version upgrade",
    "refquota set",
    "refreservation set",
    "pool scrub done",
    "user hold",
    "user release",
    "pool split",
];

/// The bonus of the history object (OpenZFS: `spa_history_phys_t`). Offsets are logical: they only grow and are mapped into the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HistoryPhys {
    /// Bytes at the front that are never overwritten: the record of the pool's creation.
    pub pool_create_len: u64,
    /// Bytes of the whole object.
    pub phys_max_off: u64,
    /// Logical offset of the oldest record after the first.
    pub bof: u64,
    /// Logical offset of the end.
    pub eof: u64,
    /// Records that were overwritten.
    pub records_lost: u64,
}

impl HistoryPhys {
    /// Decodes 40 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::Invalid`] if the offsets are out of order.
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let what = "pool history";
        let w = |n: usize| bytes::u64(buf, n * 8, e).ok_or(Error::short(what, 40, buf.len()));
        let p =
            HistoryPhys { pool_create_len: w(0)?, phys_max_off: w(1)?, bof: w(2)?, eof: w(3)?, records_lost: w(4)? };
        if p.bof > p.eof {
            return Err(Error::Invalid { what, field: "begin", value: p.bof });
        }
        if p.pool_create_len > p.phys_max_off {
            return Err(Error::Invalid { what, field: "length of the first record", value: p.pool_create_len });
        }
        if p.eof - p.bof > p.phys_max_off - p.pool_create_len {
            return Err(Error::Invalid { what, field: "end", value: p.eof });
        }
        Ok(p)
    }

    /// Like [`HistoryPhys::decode`], but repairs one kind of damage: if the first record claims to be as long as the ring or longer, the
    /// header was overwritten after the ring had wrapped around. The start of its records is then unknown, so the history is taken as empty
    /// and the next record is the first.
    ///
    /// # Errors
    /// As [`HistoryPhys::decode`].
    pub fn decode_mended(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let mut raw: [u8; Self::SIZE] = bytes::array(buf, 0).ok_or(Error::short("pool history", 40, buf.len()))?;
        let word = |n: usize| bytes::u64(&raw, n * 8, e).unwrap_or(0);
        if word(0) >= word(1) && word(1) > 0 {
            let eof = e.put_u64(word(3));
            raw[..8].fill(0);
            raw[16..24].copy_from_slice(&eof);
        }
        Self::decode(&raw, e)
    }

    /// Bytes of the bonus buffer.
    pub const SIZE: usize = 40;

    /// Encodes 40 bytes.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; Self::SIZE] {
        let words = [self.pool_create_len, self.phys_max_off, self.bof, self.eof, self.records_lost];
        let mut out = [0; Self::SIZE];
        for (chunk, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = e.put_u64(w);
        }
        out
    }

    /// The position of logical offset `log` in the object.
    #[must_use]
    pub const fn log_to_phys(&self, log: u64) -> u64 {
        let ring = self.phys_max_off.saturating_sub(self.pool_create_len);
        if log < self.pool_create_len || ring == 0 {
            return log;
        }
        (log - self.pool_create_len) % ring + self.pool_create_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_wraps_behind_the_first_record() {
        let p = HistoryPhys { pool_create_len: 100, phys_max_off: 1100, bof: 1500, eof: 2400, records_lost: 3 };
        assert_eq!(p.log_to_phys(50), 50);
        assert_eq!(p.log_to_phys(1099), 1099);
        assert_eq!(p.log_to_phys(1100), 100);
        assert_eq!(p.log_to_phys(2400), 400);
    }

    #[test]
    fn a_ring_without_length_begins_anew() {
        for (len, eof) in [(5000u64, 5000u64), (1100, 1100), (5000, 5800)] {
            let buf: Vec<u8> = [len, 1100, len, eof, 3].iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
            let p = HistoryPhys { pool_create_len: 0, phys_max_off: 1100, bof: eof, eof, records_lost: 3 };
            assert_eq!(HistoryPhys::decode_mended(&buf, Endian::Little), Ok(p));
        }
        let right: Vec<u8> = [100, 1100, 1500, 2400, 3].iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
        assert_eq!(HistoryPhys::decode_mended(&right, Endian::Little), HistoryPhys::decode(&right, Endian::Little));
        assert!(HistoryPhys::decode_mended(&right[..39], Endian::Little).is_err());
    }

    #[test]
    fn impossible_offsets_are_refused() {
        let bad = [[10, 5, 0, 0, 0], [0, 10, 9, 8, 0], [0, 10, 0, 11, 0]];
        for words in bad {
            let buf: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
            assert!(HistoryPhys::decode(&buf, Endian::Little).is_err());
        }
    }
}
