//! The logging policy that follows from a dataset's properties and the pool's devices.

use base::tunable;
use ondisk::zil::{WRITE_RECORD_SIZE, ZIL_CHAIN_SIZE, ZIL_MIN_BLKSZ};

/// When changes are written to the log (property `sync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// On a commit.
    #[default]
    Standard,
    /// Before each operation returns; the caller that makes the changes commits them.
    Always,
    /// Never: a commit returns at once.
    Disabled,
}

/// The goal of logging (property `logbias`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogBias {
    /// Commits return as soon as possible.
    #[default]
    Latency,
    /// Little is written twice: data is written to its final location, and log devices are not used.
    Throughput,
}

/// The properties of a dataset that concern its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZilPolicy {
    /// Property `sync`.
    pub sync: SyncMode,
    /// Property `logbias`.
    pub logbias: LogBias,
}

/// How the data of a write is logged (OpenZFS: `itx_wr_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    /// Copied into the record when the record is created.
    Copied,
    /// Copied from the file when the record is written.
    NeedCopy,
    /// Written to its final location, with a pointer in the record.
    Indirect,
}

/// The devices of a pool, as far as they affect how writes are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPlaces {
    /// True if there are log devices.
    pub slog: bool,
    /// If there are special devices: the largest data block, in bytes, that is placed on them.
    pub special_small: Option<u64>,
}

/// Returns the current maximum log block size (OpenZFS: `zil_maxblocksize`; a log keeps the value from when it was opened).
pub(crate) fn max_block_size() -> u64 {
    let size = tunable::ZIL_MAXBLOCKSIZE.get().clamp(ZIL_MIN_BLKSZ, ondisk::SPA_MAXBLOCKSIZE);
    size - size % ZIL_MIN_BLKSZ
}

/// Returns the bytes left for a record's data in a block of `max` bytes, after `head` bytes of record header (OpenZFS:
/// `zil_max_log_data`).
pub(crate) const fn max_log_data(max: u64, head: usize) -> u64 {
    max.saturating_sub((ZIL_CHAIN_SIZE + head) as u64)
}

/// Returns how a write of `len` bytes in blocks of `block_size` should be logged; `commit` says that its caller is going to wait
/// for it (OpenZFS: `zil_write_state`, and the limit in `zfs_log_write`).
pub(crate) fn write_state(
    logbias: LogBias,
    places: LogPlaces,
    max: u64,
    len: u64,
    block_size: u64,
    commit: bool,
) -> WriteState {
    if logbias == LogBias::Throughput {
        return WriteState::Indirect;
    }
    // a later write may change the same block again, and then writing it now would have been wasted
    let worth = len >= tunable::ZFS_IMMEDIATE_WRITE_SZ.get() && (len >= block_size / 2 || !commit);
    let allowed = match places {
        LogPlaces { slog: true, .. } => false,
        LogPlaces { special_small: Some(small), .. } => block_size <= small || tunable::ZIL_SPECIAL_IS_SLOG.get() == 0,
        LogPlaces { .. } => true,
    };
    let copied_max = max_log_data(max, WRITE_RECORD_SIZE).min(tunable::ZIL_MAXCOPIED.get());
    match (worth && allowed, commit && len <= copied_max) {
        (true, _) => WriteState::Indirect,
        (false, true) => WriteState::Copied,
        (false, false) => WriteState::NeedCopy,
    }
}
