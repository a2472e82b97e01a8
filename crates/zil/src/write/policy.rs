//! What a dataset's properties mean for its log.

use base::tunable;
use ondisk::zil::{WRITE_RECORD_SIZE, ZIL_CHAIN_SIZE, ZIL_MIN_BLKSZ};

/// When changes go to the log (property `sync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// When somebody asks.
    #[default]
    Standard,
    /// Before each operation returns; that is for who makes the changes to see to.
    Always,
    /// Never: a commit returns at once.
    Disabled,
}

/// What the log is for (property `logbias`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogBias {
    /// That a commit returns soon.
    #[default]
    Latency,
    /// That little is written twice: data goes to its place, and log devices are left alone.
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

/// How the data of a write should get into the log (OpenZFS: `itx_wr_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    /// In the record, from the beginning.
    Copied,
    /// Copied from the file when the record is written.
    NeedCopy,
    /// In its place, pointed at.
    Indirect,
}

/// What the devices of a pool mean for how writes are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPlaces {
    /// There are log devices.
    pub slog: bool,
    /// There are special devices, and data blocks of up to so many bytes go there.
    pub special_small: Option<u64>,
}

/// The largest log block now (OpenZFS: `zil_maxblocksize`, of which a log takes the value that it has when it is opened).
pub(crate) fn max_block_size() -> u64 {
    let size = tunable::ZIL_MAXBLOCKSIZE.get().clamp(ZIL_MIN_BLKSZ, ondisk::SPA_MAXBLOCKSIZE);
    size - size % ZIL_MIN_BLKSZ
}

/// Bytes that one block of `max` bytes has for a record's data behind `head` bytes (OpenZFS: `zil_max_log_data`).
pub(crate) const fn max_log_data(max: u64, head: usize) -> u64 {
    max.saturating_sub((ZIL_CHAIN_SIZE + head) as u64)
}

/// How a write of `len` bytes in blocks of `block_size` should be logged; `commit`: its caller is going to wait for it (OpenZFS:
/// `zil_write_state`, and the limit in `zfs_log_write`).
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
    // the next write might change the same block again, which would then be written for little
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
