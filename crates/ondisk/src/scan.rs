//! The state of a scrub or resilver (docs/format.md §6.3), and of a sequential rebuild (§11.4).

use base::{ObjectId, Txg};

use crate::{Error, Position};

/// The kind of a scan (OpenZFS: `pool_scan_func_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScanFunc {
    /// Nothing.
    #[default]
    None,
    /// Reads every block.
    Scrub,
    /// Repairs a stale or new device.
    Resilver,
    /// Reads the blocks of the error log.
    ErrorScrub,
    /// A number that no OpenZFS writes.
    Unknown(u64),
}

/// The state of a scan (OpenZFS: `dsl_scan_state_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScanState {
    /// Never ran.
    #[default]
    None,
    /// Running.
    Scanning,
    /// Completed.
    Finished,
    /// Stopped by the user.
    Canceled,
    /// An error scrub is running.
    ErrorScrubbing,
    /// A number that no OpenZFS writes.
    Unknown(u64),
}

impl ScanFunc {
    /// The one that a number stands for.
    #[must_use]
    pub fn from_number(n: u64) -> Self {
        match n {
            0 => ScanFunc::None,
            1 => ScanFunc::Scrub,
            2 => ScanFunc::Resilver,
            3 => ScanFunc::ErrorScrub,
            n => ScanFunc::Unknown(n),
        }
    }

    /// OpenZFS's number.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            ScanFunc::None => 0,
            ScanFunc::Scrub => 1,
            ScanFunc::Resilver => 2,
            ScanFunc::ErrorScrub => 3,
            ScanFunc::Unknown(n) => n,
        }
    }
}

impl ScanState {
    /// The one that a number stands for.
    #[must_use]
    pub fn from_number(n: u64) -> Self {
        match n {
            0 => ScanState::None,
            1 => ScanState::Scanning,
            2 => ScanState::Finished,
            3 => ScanState::Canceled,
            4 => ScanState::ErrorScrubbing,
            n => ScanState::Unknown(n),
        }
    }

    /// OpenZFS's number.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            ScanState::None => 0,
            ScanState::Scanning => 1,
            ScanState::Finished => 2,
            ScanState::Canceled => 3,
            ScanState::ErrorScrubbing => 4,
            ScanState::Unknown(n) => n,
        }
    }
}

/// The record `scan` of the MOS directory (OpenZFS: `dsl_scan_phys_t`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanPhys {
    /// The kind of scan.
    pub func: ScanFunc,
    /// The state of the scan.
    pub state: ScanState,
    /// ZAP of datasets still to visit.
    pub queue_obj: ObjectId,
    /// Blocks born after this are visited.
    pub min_txg: Txg,
    /// Blocks born up to this are visited.
    pub max_txg: Txg,
    /// The same for the dataset under way.
    pub cur_min_txg: Txg,
    /// The same for the dataset under way.
    pub cur_max_txg: Txg,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Total bytes.
    pub to_examine: u64,
    /// Bytes read.
    pub examined: u64,
    /// Bytes skipped.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Errors found.
    pub errors: u64,
    /// Highest dedup class that is visited through its table.
    pub ddt_class_max: u64,
    /// Position in the dedup tables: class, type, checksum, cursor.
    pub ddt_bookmark: [u64; 4],
    /// Position in the block trees.
    pub bookmark: Position,
    /// 1: visit the dataset again; 2: paused.
    pub flags: u64,
}

impl ScanPhys {
    /// The scrub is paused.
    pub const FLAG_SCRUB_PAUSED: u64 = 2;
    /// Words stored.
    pub const WORDS: usize = 24;

    /// Builds it from the words of the ZAP value.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn from_words(words: &[u64]) -> Result<Self, Error> {
        let w = |n: usize| words.get(n).copied().ok_or(Error::short("scan state", Self::WORDS * 8, words.len() * 8));
        Ok(ScanPhys {
            func: ScanFunc::from_number(w(0)?),
            state: ScanState::from_number(w(1)?),
            queue_obj: ObjectId(w(2)?),
            min_txg: Txg(w(3)?),
            max_txg: Txg(w(4)?),
            cur_min_txg: Txg(w(5)?),
            cur_max_txg: Txg(w(6)?),
            start_time: w(7)?,
            end_time: w(8)?,
            to_examine: w(9)?,
            examined: w(10)?,
            skipped: w(11)?,
            processed: w(12)?,
            errors: w(13)?,
            ddt_class_max: w(14)?,
            ddt_bookmark: [w(15)?, w(16)?, w(17)?, w(18)?],
            bookmark: Position::from_words([w(19)?, w(20)?, w(21)?, w(22)?]),
            flags: w(23)?,
        })
    }

    /// The words of the ZAP value.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let (func, state) = (self.func.number(), self.state.number());
        let [ddt0, ddt1, ddt2, ddt3] = self.ddt_bookmark;
        let [objset, object, level, blkid] = self.bookmark.to_words();
        [
            func,
            state,
            self.queue_obj.0,
            self.min_txg.0,
            self.max_txg.0,
            self.cur_min_txg.0,
            self.cur_max_txg.0,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.skipped,
            self.processed,
            self.errors,
            self.ddt_class_max,
            ddt0,
            ddt1,
            ddt2,
            ddt3,
            objset,
            object,
            level,
            blkid,
            self.flags,
        ]
    }
}

/// The record `error_scrub` of the MOS directory (OpenZFS: `dsl_errorscrub_phys_t`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErrorScrubPhys {
    /// The kind; [`ScanFunc::None`] if there is nothing to report.
    pub func: ScanFunc,
    /// The state of the scan.
    pub state: ScanState,
    /// Position in the list of errors; 0 is its beginning.
    pub cursor: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Blocks still to be read.
    pub to_examine: u64,
    /// Blocks read.
    pub examined: u64,
    /// Errors found.
    pub errors: u64,
    /// The error scrub is paused.
    pub paused: bool,
}

impl ErrorScrubPhys {
    /// Words stored.
    pub const WORDS: usize = 9;

    /// Builds it from the words of the ZAP value.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn from_words(words: &[u64]) -> Result<Self, Error> {
        let short = Error::short("error scrub state", Self::WORDS * 8, words.len() * 8);
        let Some([func, state, cursor, start_time, end_time, to_examine, examined, errors, paused]) =
            words.first_chunk::<{ Self::WORDS }>()
        else {
            return Err(short);
        };
        Ok(ErrorScrubPhys {
            func: ScanFunc::from_number(*func),
            state: ScanState::from_number(*state),
            cursor: *cursor,
            start_time: *start_time,
            end_time: *end_time,
            to_examine: *to_examine,
            examined: *examined,
            errors: *errors,
            paused: *paused != 0,
        })
    }

    /// The words of the ZAP value.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        [
            self.func.number(),
            self.state.number(),
            self.cursor,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.errors,
            self.paused.into(),
        ]
    }
}

/// The record `org.openzfs:vdev_rebuild` of a top-level vdev's ZAP (OpenZFS: `vdev_rebuild_phys_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RebuildPhys {
    /// 0 none, 1 active, 2 canceled, 3 complete.
    pub state: u64,
    /// Offset up to which the vdev is rebuilt.
    pub last_offset: u64,
    /// Lowest txg missing.
    pub min_txg: u64,
    /// Highest txg missing.
    pub max_txg: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Milliseconds of work.
    pub scan_time_ms: u64,
    /// Bytes scanned.
    pub bytes_scanned: u64,
    /// Bytes read.
    pub bytes_issued: u64,
    /// Bytes rebuilt.
    pub bytes_rebuilt: u64,
    /// Bytes expected.
    pub bytes_est: u64,
    /// Errors.
    pub errors: u64,
}

impl RebuildPhys {
    /// Builds it from the words of the ZAP value.
    ///
    /// # Errors
    /// [`Error::Truncated`] for fewer than 12.
    pub fn from_words(words: &[u64]) -> Result<Self, Error> {
        let w = |n: usize| words.get(n).copied().ok_or(Error::short("rebuild state", 96, words.len() * 8));
        Ok(RebuildPhys {
            state: w(0)?,
            last_offset: w(1)?,
            min_txg: w(2)?,
            max_txg: w(3)?,
            start_time: w(4)?,
            end_time: w(5)?,
            scan_time_ms: w(6)?,
            bytes_scanned: w(7)?,
            bytes_issued: w(8)?,
            bytes_rebuilt: w(9)?,
            bytes_est: w(10)?,
            errors: w(11)?,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_land_in_their_fields() {
        let words: Vec<u64> = (0..24).map(|n| if n < 2 { 1 } else { n }).collect();
        let s = ScanPhys::from_words(&words).unwrap();
        assert_eq!((s.func, s.state, s.errors, s.flags), (ScanFunc::Scrub, ScanState::Scanning, 13, 23));
        assert_eq!(s.to_words().to_vec(), words);
        assert!(ScanPhys::from_words(&words[..23]).is_err());
        let words = [3, 4, 5, 6, 7, 8, 9, 10, 1];
        let s = ErrorScrubPhys::from_words(&words).unwrap();
        assert_eq!((s.func, s.state, s.errors), (ScanFunc::ErrorScrub, ScanState::ErrorScrubbing, 10));
        assert_eq!(s.to_words(), words);
        assert!(ErrorScrubPhys::from_words(&words[..8]).is_err());
    }
}
