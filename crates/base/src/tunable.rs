//! Tunables: the numbers that a user may set, under OpenZFS's names, in one table.
//!
//! A tunable is an atomic, so reading one is a load. `zuse -o NAME=VALUE` and the environment variable `ZUSE_TUNABLES`
//! (`NAME=VALUE,NAME=VALUE`) set them before work starts. The value of a few is a word.
//!
//! What a parameter of OpenZFS's module takes is taken: all numbers of its type, which the table names in its words. A number with which the engine would stand still,
//! or that has a meaning of its own (0 for the default, or for no limit), is shown as it was set, and another one is in force. Negative numbers are refused.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// One tunable: its OpenZFS name, its meaning, its value.
#[derive(Debug)]
pub struct Tunable {
    /// OpenZFS's name for it, or ours if it has none.
    pub name: &'static str,
    /// The quantity that it limits or the feature that it switches, with the unit.
    pub help: &'static str,
    values: Values,
    default: u64,
    /// The value that is in force.
    value: AtomicU64,
    /// The value that was set.
    shown: AtomicU64,
}

/// The values that a tunable can have.
#[derive(Clone, Copy, Debug)]
enum Values {
    /// Any number.
    Any,
    /// Numbers from the first to the second one; others are refused.
    Within(u64, u64),
    /// Numbers of a type of C, of which those within limits are in force.
    Of(Type, Limits),
    /// Words, each for its number.
    Words(&'static [&'static str]),
}

/// The type of a parameter of OpenZFS's module.
#[derive(Clone, Copy, Debug)]
enum Type {
    Int,
    Uint,
    U64,
}

impl Type {
    const fn largest(self) -> u64 {
        match self {
            Type::Int => INT,
            Type::Uint => 0xffff_ffff,
            Type::U64 => u64::MAX,
        }
    }
}

/// The values that can be in force where more can be set.
#[derive(Clone, Copy, Debug)]
struct Limits {
    least: u64,
    most: u64,
    beyond: Beyond,
}

/// The value that is in force in the place of one beyond the limits.
#[derive(Clone, Copy, Debug)]
enum Beyond {
    /// The nearest one.
    Nearest,
    /// The nearest one, but this one for 0.
    Zero(u64),
    /// The default: OpenZFS passes such a value over.
    Default,
}

impl Tunable {
    const fn new(name: &'static str, help: &'static str, values: Values, default: u64) -> Self {
        Tunable { name, help, values, default, value: AtomicU64::new(default), shown: AtomicU64::new(default) }
    }

    /// The number that a text stands for.
    fn parse(&self, text: &str) -> Result<u64, String> {
        let Tunable { name, .. } = self;
        if let Values::Words(words) = self.values {
            let number = (0..).zip(words).find(|(_, word)| **word == text).map(|(number, _)| number);
            return number.ok_or_else(|| format!("tunable '{name}': '{text}' is none of {}", words.join(", ")));
        }
        let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
        let number = parsed.map_err(|_| format!("tunable '{name}': '{text}' is not a number"))?;
        let (least, most) = match self.values {
            Values::Within(least, most) => (least, most),
            Values::Of(of, _) => (0, of.largest()),
            Values::Any | Values::Words(_) => (0, u64::MAX),
        };
        if (least..=most).contains(&number) {
            Ok(number)
        } else {
            Err(format!("tunable '{name}': {text} is not from {least} to {most}"))
        }
    }

    /// The value that is in force if `number` is set.
    fn in_force(&self, number: u64) -> u64 {
        let Values::Of(_, Limits { least, most, beyond }) = self.values else { return number };
        match beyond {
            Beyond::Zero(instead) if number == 0 => instead,
            Beyond::Default if !(least..=most).contains(&number) => self.default,
            _ => number.clamp(least, most),
        }
    }

    /// The value that is in force.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets the value for the rest of the process. It is not compared with the values that a user can give it.
    pub fn set(&self, v: u64) {
        self.value.store(v, Ordering::Relaxed);
        self.shown.store(v, Ordering::Relaxed);
    }

    /// Sets the value as a user does.
    fn set_text(&self, text: &str) -> Result<(), String> {
        let number = self.parse(text)?;
        self.value.store(self.in_force(number), Ordering::Relaxed);
        self.shown.store(number, Ordering::Relaxed);
        Ok(())
    }
}

/// The value that was set.
impl fmt::Display for Tunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.shown.load(Ordering::Relaxed);
        let word = match self.values {
            Values::Words(words) => usize::try_from(value).ok().and_then(|number| words.get(number)),
            _ => None,
        };
        match word {
            Some(word) => f.write_str(word),
            None => value.fmt(f),
        }
    }
}

/// The largest number where OpenZFS has an `int`: also of seconds, and of what is multiplied.
const INT: u64 = 0x7fff_ffff;
/// The most bytes of memory that something may take.
const BYTES: u64 = 1 << 50;
/// The longest time that work in the background may keep a txg open, in ms.
const SLICE_MS: u64 = 60_000;
/// The last sync pass that can be waited for: a txg has few.
const PASSES: u64 = 32;
/// The longest interval of multihost writes, in ms, and the most of them, that an uberblock can say.
const MMP_INTERVAL: u64 = 0xff_ffff;
const MMP_FAILS: u64 = 0xffff;
/// The dirty data that a pool has at most, where nothing else is said.
const DIRTY_DATA: u64 = 256 << 20;

macro_rules! tunables {
    (@values) => { Values::Any };
    (@values in $least:expr => $most:expr) => { Values::Within($least, $most) };
    (@values words [$($word:literal),*]) => { Values::Words(&[$($word),*]) };
    (@values int $least:expr => $most:expr) => { tunables!(@of Int, $least, $most, Beyond::Nearest) };
    (@values uint $least:expr => $most:expr) => { tunables!(@of Uint, $least, $most, Beyond::Nearest) };
    (@values u64 $least:expr => $most:expr) => { tunables!(@of U64, $least, $most, Beyond::Nearest) };
    (@values u64 $least:expr => $most:expr, zero $instead:expr) => { tunables!(@of U64, $least, $most, Beyond::Zero($instead)) };
    (@values u64 $least:expr => $most:expr, else default) => { tunables!(@of U64, $least, $most, Beyond::Default) };
    (@of $type:ident, $least:expr, $most:expr, $beyond:expr) => {
        Values::Of(Type::$type, Limits { least: $least, most: $most, beyond: $beyond })
    };
    ($($(#[$doc:meta])* $id:ident = $name:literal, $default:expr, $help:literal $(, [$($values:tt)*])?;)*) => {
        $($(#[$doc])* #[doc = $help] pub static $id: Tunable =
            Tunable::new($name, $help, tunables!(@values $($($values)*)?), $default);)*

        /// All tunables, in the order of declaration.
        pub static ALL: &[&Tunable] = &[$(&$id),*];
    };
}

tunables! {
    ZFS_ARC_MAX = "zfs_arc_max", 1 << 30, "upper limit of the ARC, in bytes; below 64 MiB, as 0, it is the default", [u64 64 << 20 => BYTES, else default];
    ZFS_RECONSTRUCT_INDIRECT_COMBINATIONS_MAX = "zfs_reconstruct_indirect_combinations_max", 4096,
        "how many combinations of segment copies to try for a split block of a removed device", [uint 1 => 0xffff_ffff];
    ZFS_MAX_RECORDSIZE = "zfs_max_recordsize", 16 << 20, "largest block that is read, in bytes", [uint 512 => 16 << 20];
    ZFS_SEND_QUEUE_LENGTH = "zfs_send_queue_length", 16 << 20, "what a send reads ahead of its output, in bytes", [uint 1 => 0xffff_ffff];
    ZFS_SEND_NO_PREFETCH_QUEUE_LENGTH = "zfs_send_no_prefetch_queue_length", 1 << 20,
        "blocks of pointers and of dnodes that a send reads at once, in bytes", [uint 1 => 0xffff_ffff];
    ZFS_SEND_CORRUPT_DATA = "zfs_send_corrupt_data", 0, "send a pattern in place of blocks that cannot be read, instead of failing";
    ZFS_SEND_UNMODIFIED_SPILL_BLOCKS = "zfs_send_unmodified_spill_blocks", 1, "send spill blocks again though they did not change";
    ZFS_OVERRIDE_ESTIMATE_RECORDSIZE = "zfs_override_estimate_recordsize", 0, "block size for estimates of streams; 0 takes the property's", [uint 0 => 16 << 20];
    ZFS_RECV_QUEUE_LENGTH = "zfs_recv_queue_length", 16 << 20, "what a receive reads ahead of what it writes, in bytes", [uint 1 => 0xffff_ffff];
    ZFS_RECV_WRITE_BATCH_SIZE = "zfs_recv_write_batch_size", 1 << 20, "bytes of a received object that share a transaction, up to 32 MiB", [uint 0 => 32 << 20];
    ZFS_DISABLE_IVSET_GUID_CHECK = "zfs_disable_ivset_guid_check", 0, "raw increments are received whatever their base's set of IVs is";
    ZFS_DIRTY_DATA_MAX = "zfs_dirty_data_max", DIRTY_DATA, "most dirty data in memory, in bytes; 0 is the default", [u64 1 << 20 => BYTES, zero DIRTY_DATA];
    ZFS_DIRTY_DATA_SYNC_PERCENT = "zfs_dirty_data_sync_percent", 20, "dirty data, in percent of the most, that starts a txg sync", [uint 0 => 100];
    ZFS_DELAY_MIN_DIRTY_PERCENT = "zfs_delay_min_dirty_percent", 60, "dirty data, in percent of the most, from which writers are slowed", [uint 0 => 100];
    ZFS_DELAY_SCALE = "zfs_delay_scale", 500_000, "how steeply writers are slowed: the delay in ns at the middle of the slope";
    ZFS_TXG_TIMEOUT = "zfs_txg_timeout", 5, "longest time between two txg syncs, in seconds", [uint 1 => INT];
    ZFS_ASYNC_BLOCK_MAX_BLOCKS = "zfs_async_block_max_blocks", 100_000, "blocks of destroyed datasets that one txg frees; 0 any number", [u64 1 => u64::MAX, zero u64::MAX];
    ZFS_SPA_DISCARD_MEMORY_LIMIT = "zfs_spa_discard_memory_limit", 16 << 20, "bytes of space map entries of a discarded checkpoint that one txg frees", [u64 1 => BYTES];
    ZFS_FREE_MIN_TIME_MS = "zfs_free_min_time_ms", 500, "how long one txg frees blocks of destroyed datasets, in ms", [uint 1 => SLICE_MS];
    ZFS_LIVELIST_MAX_ENTRIES = "zfs_livelist_max_entries", 500_000, "entries from which on a livelist begins a new part", [u64 1 => u64::MAX];
    ZFS_LIVELIST_MIN_PERCENT_SHARED = "zfs_livelist_min_percent_shared", 75, "a clone that shares no more with its origin keeps no livelist, in percent", [int 0 => 100];
    ZFS_SYNC_PASS_DEFERRED_FREE = "zfs_sync_pass_deferred_free", 2, "sync pass from which frees are deferred to the next txg", [uint 1 => PASSES];
    ZFS_SYNC_PASS_DONT_COMPRESS = "zfs_sync_pass_dont_compress", 8, "sync pass from which nothing is compressed", [uint 1 => PASSES];
    ZFS_MULTIHOST_INTERVAL = "zfs_multihost_interval", 1000, "longest time between two multihost writes to a device, in ms: 100 at least, 16777215 at most", [u64 100 => MMP_INTERVAL];
    ZFS_MULTIHOST_IMPORT_INTERVALS = "zfs_multihost_import_intervals", 20, "how many intervals an import watches a pool that another system may use", [uint 1 => INT];
    ZFS_MULTIHOST_FAIL_INTERVALS = "zfs_multihost_fail_intervals", 10, "after how many intervals without a multihost write the pool is suspended; 0 never", [uint 0 => MMP_FAILS];
    SPL_HOSTID = "spl_hostid", 0, "the number that this machine is known by, if not that of /etc/hostid";
    ZAP_MICRO_MAX_SIZE = "zap_micro_max_size", 128 << 10, "largest micro ZAP, in bytes: up to 128 KiB", [int 0 => 128 << 10];
    ZFS_SYNC_PASS_REWRITE = "zfs_sync_pass_rewrite", 2, "sync pass from which a block born in the txg is rewritten in place", [uint 1 => PASSES];
    ZFS_UNFLUSHED_MAX_MEM_AMT = "zfs_unflushed_max_mem_amt", 1 << 30, "memory for unflushed space-map changes, in bytes", [u64 1 => BYTES];
    ZFS_UNFLUSHED_MAX_MEM_PPM = "zfs_unflushed_max_mem_ppm", 1000, "the same, in millionths of the machine's memory; the smaller counts", [u64 1 => 1_000_000];
    ZFS_UNFLUSHED_LOG_BLOCK_PCT = "zfs_unflushed_log_block_pct", 400, "blocks of space-map logs, in percent of the unflushed metaslabs", [uint 1 => INT];
    ZFS_UNFLUSHED_LOG_BLOCK_MIN = "zfs_unflushed_log_block_min", 1000, "least limit of blocks of space-map logs", [u64 0 => INT];
    ZFS_UNFLUSHED_LOG_BLOCK_MAX = "zfs_unflushed_log_block_max", 131_072, "most blocks of space-map logs", [u64 1 => INT];
    ZFS_UNFLUSHED_LOG_TXG_MAX = "zfs_unflushed_log_txg_max", 1000, "most txgs that a metaslab stays unflushed", [u64 1 => INT];
    ZFS_MAX_LOGSM_SUMMARY_LENGTH = "zfs_max_logsm_summary_length", 10, "rows of the summary of space-map logs", [u64 1 => INT];
    ZFS_LOG_SM_BLKSZ = "zfs_log_sm_blksz", 128 << 10, "size of a block of a space-map log, in bytes: a power of two from 4 KiB to 1 MiB", [in 4 << 10 => 1 << 20];
    ZFS_MIN_METASLABS_TO_FLUSH = "zfs_min_metaslabs_to_flush", 1, "least metaslabs flushed in a txg", [u64 0 => INT];
    ZFS_MIN_METASLABS_TO_CONDENSE_PCT = "zfs_min_metaslabs_to_condense_pct", 5, "least metaslabs, in percent, flushed in a txg while condensing on request", [uint 1 => 100];
    ZFS_MAX_LOG_WALKING = "zfs_max_log_walking", 5, "space-map logs whose sizes are averaged to tell the next one's", [u64 1 => INT];
    ZFS_KEEP_LOG_SPACEMAPS_AT_EXPORT = "zfs_keep_log_spacemaps_at_export", 0, "whether an export leaves metaslabs unflushed";
    ZFS_METASLAB_CONDENSE_PCT = "zfs_condense_pct", 200, "size of a space map, in percent of the ideal one, from which it is rewritten", [in 100 => 100_000];
    ZFS_METASLAB_SM_BLKSZ_WITH_LOG = "zfs_metaslab_sm_blksz_with_log", 128 << 10, "block size of new space maps in a pool with logs, in bytes", [int 512 => 16 << 20];
    ZFS_METASLAB_SM_BLKSZ_NO_LOG = "zfs_metaslab_sm_blksz_no_log", 16 << 10, "block size of new space maps in a pool without logs, in bytes", [int 512 => 16 << 20];
    ZFS_VDEV_AGGREGATION_LIMIT = "zfs_vdev_aggregation_limit", 1 << 20, "most bytes that adjacent I/Os are merged into", [uint 0 => 16 << 20];
    ZFS_VDEV_READ_GAP_LIMIT = "zfs_vdev_read_gap_limit", 32 << 10, "most bytes between two reads that are read with them as one", [uint 0 => 16 << 20];
    VDEV_IO = "vdev_io", 0, "how devices are read and written: past the page cache (auto, uring, threads) or through it (buffered)",
        [words ["auto", "uring", "threads", "buffered"]];
    ZFS_VDEV_MAX_ACTIVE = "zfs_vdev_max_active", 1000, "most I/Os that a device has at a time", [uint 1 => INT];
    ZFS_VDEV_SYNC_READ_MIN_ACTIVE = "zfs_vdev_sync_read_min_active", 10, "sync reads that a device has before other classes get more than their minimum", [uint 0 => INT];
    ZFS_VDEV_SYNC_READ_MAX_ACTIVE = "zfs_vdev_sync_read_max_active", 256, "most sync reads that a device has at a time", [uint 1 => INT];
    ZFS_VDEV_SYNC_WRITE_MIN_ACTIVE = "zfs_vdev_sync_write_min_active", 10, "the same for sync writes: the least", [uint 0 => INT];
    ZFS_VDEV_SYNC_WRITE_MAX_ACTIVE = "zfs_vdev_sync_write_max_active", 64, "the same for sync writes: the most", [uint 1 => INT];
    ZFS_VDEV_ASYNC_READ_MIN_ACTIVE = "zfs_vdev_async_read_min_active", 1, "the same for reads ahead: the least", [uint 0 => INT];
    ZFS_VDEV_ASYNC_READ_MAX_ACTIVE = "zfs_vdev_async_read_max_active", 64, "the same for reads ahead: the most", [uint 1 => INT];
    ZFS_VDEV_ASYNC_WRITE_MIN_ACTIVE = "zfs_vdev_async_write_min_active", 2, "the same for writes of a txg: the least", [uint 0 => INT];
    ZFS_VDEV_ASYNC_WRITE_MAX_ACTIVE = "zfs_vdev_async_write_max_active", 64, "the same for writes of a txg: the most", [uint 1 => INT];
    ZFS_VDEV_ASYNC_WRITE_ACTIVE_MIN_DIRTY_PERCENT = "zfs_vdev_async_write_active_min_dirty_percent", 30, "dirty data, in percent of the most, up to which writes of a txg keep to their minimum beside other I/O", [uint 0 => 100];
    ZFS_VDEV_ASYNC_WRITE_ACTIVE_MAX_DIRTY_PERCENT = "zfs_vdev_async_write_active_max_dirty_percent", 60, "dirty data, in percent of the most, from which writes of a txg have their maximum", [uint 0 => 100];
    ZFS_VDEV_SCRUB_MIN_ACTIVE = "zfs_vdev_scrub_min_active", 1, "reads of a scrub or resilver that a device has beside other I/O", [uint 0 => INT];
    ZFS_VDEV_SCRUB_MAX_ACTIVE = "zfs_vdev_scrub_max_active", 64, "reads of a scrub or resilver that an idle device has at a time", [uint 1 => INT];
    ZFS_VDEV_REMOVAL_MIN_ACTIVE = "zfs_vdev_removal_min_active", 1, "the same for the removal of a device: beside other I/O", [uint 0 => INT];
    ZFS_VDEV_REMOVAL_MAX_ACTIVE = "zfs_vdev_removal_max_active", 2, "the same for the removal of a device: where it is idle", [uint 1 => INT];
    ZFS_VDEV_INITIALIZING_MIN_ACTIVE = "zfs_vdev_initializing_min_active", 1, "the same for initializing: beside other I/O", [uint 0 => INT];
    ZFS_VDEV_INITIALIZING_MAX_ACTIVE = "zfs_vdev_initializing_max_active", 1, "the same for initializing: where it is idle", [uint 1 => INT];
    ZFS_VDEV_TRIM_MIN_ACTIVE = "zfs_vdev_trim_min_active", 1, "trims that a device has before other classes get more than their minimum", [uint 0 => INT];
    ZFS_VDEV_TRIM_MAX_ACTIVE = "zfs_vdev_trim_max_active", 2, "most trims that a device has at a time", [uint 1 => INT];
    ZFS_VDEV_REBUILD_MIN_ACTIVE = "zfs_vdev_rebuild_min_active", 1, "I/Os of a rebuild that a device has beside other I/O", [uint 0 => INT];
    ZFS_VDEV_REBUILD_MAX_ACTIVE = "zfs_vdev_rebuild_max_active", 3, "I/Os of a rebuild that an idle device has at a time", [uint 1 => INT];
    ZFS_VDEV_NIA_DELAY = "zfs_vdev_nia_delay", 5, "I/Os of scrub, removal, initialize and rebuild that end before a device counts as idle", [uint 0 => INT];
    ZFS_VDEV_NIA_CREDIT = "zfs_vdev_nia_credit", 5, "I/Os of scrub, removal, initialize and rebuild that begin between two others that end", [uint 1 => INT];
    ZFS_ZEVENT_LEN_MAX = "zfs_zevent_len_max", 512, "events that are kept", [uint 0 => 1 << 20];
    ZFS_INITIALIZE_VALUE = "zfs_initialize_value", 0xdead_beef_dead_beee, "pattern that zpool initialize writes";
    ZFS_INITIALIZE_CHUNK_SIZE = "zfs_initialize_chunk_size", 1 << 20, "bytes of a write of zpool initialize", [u64 512 => 64 << 20];
    ZFS_TRIM_EXTENT_BYTES_MAX = "zfs_trim_extent_bytes_max", 128 << 20, "most bytes that are trimmed at once", [uint 1 << 20 => INT];
    ZFS_TRIM_EXTENT_BYTES_MIN = "zfs_trim_extent_bytes_min", 32 << 10, "extents with fewer bytes are not trimmed", [uint 0 => INT];
    ZFS_TRIM_TXG_BATCH = "zfs_trim_txg_batch", 32, "txgs for which automatic trim collects what is freed", [uint 1 => INT];
    ZFS_TRIM_METASLAB_SKIP = "zfs_trim_metaslab_skip", 0, "whether zpool trim leaves out metaslabs that were never used";
    ZFS_DBGMSG_ENABLE = "zfs_dbgmsg_enable", 1, "whether debug messages are kept";
    ZFS_DBGMSG_MAXSIZE = "zfs_dbgmsg_maxsize", 4 << 20, "bytes of debug messages that are kept", [uint 0 => 1 << 30];
    ZIO_SLOW_IO_MS = "zio_slow_io_ms", 30_000, "how long a device may have an I/O before that counts as slow, in ms", [int 0 => INT];
    ZFS_DEADMAN_ENABLED = "zfs_deadman_enabled", 1, "whether hung I/Os and txgs whose sync hangs are reported";
    ZFS_DEADMAN_FAILMODE = "zfs_deadman_failmode", 0, "what the process does then: go on (wait, continue), or end (panic)",
        [words ["wait", "continue", "panic"]];
    ZFS_DEADMAN_ZIOTIME_MS = "zfs_deadman_ziotime_ms", 300_000, "time after which an I/O is reported as hung, in ms", [u64 0 => INT];
    ZFS_DEADMAN_SYNCTIME_MS = "zfs_deadman_synctime_ms", 600_000, "time after which the sync of a txg is reported as hung, in ms", [u64 0 => INT];
    ZFS_DEADMAN_CHECKTIME_MS = "zfs_deadman_checktime_ms", 60_000, "interval at which hung I/Os and syncs are looked for, in ms", [u64 0 => INT];
    ZFS_VDEV_DEFAULT_MS_COUNT = "zfs_vdev_default_ms_count", 200, "metaslabs that a new vdev of middle size gets", [uint 1 => 1 << 20];
    ZFS_VDEV_DEFAULT_MS_SHIFT = "zfs_vdev_default_ms_shift", 29, "log2 of the least metaslab size of a large vdev", [uint 9 => 63];
    ZFS_VDEV_MS_COUNT_LIMIT = "zfs_vdev_ms_count_limit", 1 << 17, "most metaslabs of a vdev", [uint 10 => 1 << 20];
    ZFS_VDEV_MIN_MS_COUNT = "zfs_vdev_min_ms_count", 16, "least metaslabs of a vdev", [uint 1 => 1 << 20];
    SPA_SLOP_SHIFT = "spa_slop_shift", 5, "1/2^n of a pool is held back, so that a full one can still be freed", [in 1 => 31];
    SPA_NUM_ALLOCATORS = "spa_num_allocators", 4, "most allocators that work side by side in a vdev", [int 1 => 64];
    SPA_CPUS_PER_ALLOCATOR = "spa_cpus_per_allocator", 4, "processors of the machine for each of them", [int 1 => INT];
    METASLAB_FORCE_GANGING = "metaslab_force_ganging", (16 << 20) + 1, "blocks from this size on are sometimes ganged, for tests", [u64 1 << 10 => (16 << 20) + 1];
    METASLAB_FORCE_GANGING_PCT = "metaslab_force_ganging_pct", 3, "how often they are, in percent", [uint 0 => 100];
    ZFS_PREFETCH_DISABLE = "zfs_prefetch_disable", 0, "whether readers are not read ahead of";
    ZFETCH_MAX_STREAMS = "zfetch_max_streams", 8, "readers of one file that are recognized", [uint 1 => INT];
    ZFETCH_MIN_DISTANCE = "zfetch_min_distance", 4 << 20, "bytes read ahead of a reader after which the distance grows slowly", [uint 0 => 1 << 30];
    ZFETCH_MAX_DISTANCE = "zfetch_max_distance", 64 << 20, "most bytes read ahead of a reader", [uint 0 => 1 << 30];
    SPA_LOAD_VERIFY_METADATA = "spa_load_verify_metadata", 1, "whether an import reads the metadata that was born in the last txgs";
    SPA_LOAD_VERIFY_DATA = "spa_load_verify_data", 1, "whether an import that may go back (-F) reads the data that was born in the last txgs, too";
    SPA_LOAD_VERIFY_SHIFT = "spa_load_verify_shift", 4, "such an import has 1/2^n of the ARC's bytes under way at a time", [uint 0 => 63];
    ZIL_REPLAY_DISABLE = "zil_replay_disable", 0, "whether intent logs are thrown away instead of replayed";
    ZIL_REPLAY_PRIME = "zil_replay_prime", 1, "whether what a replay will read is read ahead, many blocks at a time";
    ZIL_REPLAY_PARALLEL = "zil_replay_parallel", 32, "records of an intent log that are replayed at a time; 0 replays one after the other", [in 0 => 256];
    VDEV_LATENCY_MS = "vdev_latency_ms", 0, "how much longer each read, write and flush of a device takes, in ms, to try what slow devices do", [in 0 => 60_000];
    VDEV_LATENCY_DEPTH = "vdev_latency_depth", 32, "how many of them such a device does at a time", [in 1 => INT];
    ZIL_MAXBLOCKSIZE = "zil_maxblocksize", 128 << 10, "largest block of an intent log, in bytes; counts for datasets that are opened later", [uint 4 << 10 => 16 << 20];
    ZIL_MAXCOPIED = "zil_maxcopied", 7680, "longest synchronous write whose data is put into its log record at once, in bytes";
    ZFS_IMMEDIATE_WRITE_SZ = "zfs_immediate_write_sz", 32768, "writes of fewer bytes have their data in the log, whatever else speaks for writing blocks to their place";
    ZIL_NOCACHEFLUSH = "zil_nocacheflush", 0, "whether devices are not told to flush when an intent log was written: unsafe with volatile caches";
    ZIL_SPECIAL_IS_SLOG = "zil_special_is_slog", 1, "whether special devices are written as if they were log devices";
    ZFS_COMMIT_TIMEOUT_PCT = "zfs_commit_timeout_pct", 10, "how long an intent log that several use waits for more to write, in percent of the time that its last write took", [uint 0 => 10_000];
    ZFS_UNLINK_SUSPEND_PROGRESS = "zfs_unlink_suspend_progress", 0, "whether files that have lost their last name stay in the unlinked set, for tests";
    ZFS_ZIL_SAXATTR = "zfs_zil_saxattr", 1, "whether changes of extended attributes that are system attributes are logged";
    ZFS_BCLONE_ENABLED = "zfs_bclone_enabled", 1, "whether a copy within a pool shares blocks";
    ZFS_BCLONE_WAIT_DIRTY = "zfs_bclone_wait_dirty", 1, "whether a copy waits until its source is on disk, so that it can share blocks";
    ZFS_ADMIN_SNAPSHOT = "zfs_admin_snapshot", 0, "whether mkdir, rmdir and mv in .zfs/snapshot make, destroy and rename snapshots";
    ZFS_EXPIRE_SNAPSHOT = "zfs_expire_snapshot", 300, "after how many seconds without use a snapshot below .zfs/snapshot is closed; 0 never", [int 0 => INT];
    ZFS_FALLOCATE_RESERVE_PERCENT = "zfs_fallocate_reserve_percent", 110, "percentage of a preallocation that must be available; 0: it is not supported", [uint 0 => 100_000];
    BUSY_WAIT = "busy_wait", 60, "how long a command that changes a pool waits for another one to be done with it, in seconds", [in 0 => INT];
    ZFS_SCRUB_MIN_TIME_MS = "zfs_scrub_min_time_ms", 100, "the least time that a scrub reads in a txg, in ms, even if the txg is waited for (750 in OpenZFS)", [uint 1 => SLICE_MS];
    ZFS_RESILVER_MIN_TIME_MS = "zfs_resilver_min_time_ms", 200, "the same for a resilver (1500 in OpenZFS)", [uint 1 => SLICE_MS];
    ZFS_SCAN_SUSPEND_PROGRESS = "zfs_scan_suspend_progress", 0, "whether scrubs and resilvers read nothing, for tests";
    ZUSE_SCRUB_THREADS = "zuse_scrub_threads", 0, "threads that check what a scrub or resilver reads; 0 as many as there are cores", [in 0 => 1024];
    ZUSE_SCRUB_DECOMPRESS = "zuse_scrub_decompress", 1, "whether a scrub expands the compressed blocks that it reads, and takes those for damaged that cannot be";
    ZUSE_CATCH_UP_MS = "zuse_catch_up_ms", 3000, "about how long opening a pool for writing waits to resilver devices that missed writes, in ms; 0 not at all", [in 0 => INT];
    ZFS_MAX_NVLIST_BYTES = "zuse_max_nvlist_bytes", 256 << 20, "largest packed nvlist that is decoded, in bytes", [in 1 << 20 => 1 << 31];
}

/// Sets the tunable called `name`.
///
/// # Errors
/// A message: no such tunable, or the value is not a number, is not of its type or within its range, or none of its words.
pub fn set(name: &str, value: &str) -> Result<(), String> {
    let tunable = ALL.iter().find(|t| t.name == name).ok_or_else(|| format!("no tunable '{name}'"))?;
    tunable.set_text(value)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_tunable_is_set_by_name_and_a_bad_one_is_refused() {
        super::set("zfs_max_recordsize", "0x1000000").expect("known name");
        assert!(super::set("zfs_no_such", "1").is_err());
        assert!(super::set("zfs_arc_max", "many").is_err());
    }

    #[test]
    fn a_number_that_a_parameter_does_not_take_is_refused() {
        let before = super::ZFS_TXG_TIMEOUT.get();
        for (name, bad) in [
            ("zfs_txg_timeout", "18446744073709551615"),
            ("zfs_txg_timeout", "4294967296"),
            ("zfs_expire_snapshot", "2147483648"),
            ("spa_slop_shift", "0"),
            ("spa_slop_shift", "32"),
            ("busy_wait", "99999999999"),
        ] {
            let refused = super::set(name, bad).unwrap_err();
            assert!(refused.starts_with(&format!("tunable '{name}': {bad} is not from ")), "{refused}");
        }
        assert_eq!(super::ZFS_TXG_TIMEOUT.get(), before);
        assert_eq!(super::set("spa_slop_shift", "32").unwrap_err(), "tunable 'spa_slop_shift': 32 is not from 1 to 31");
    }

    #[test]
    fn every_number_of_its_type_is_taken_and_what_the_engine_cannot_work_with_is_not_in_force() {
        for tunable in super::ALL {
            // what they are is among what they may be, and in force
            let number = tunable.parse(&tunable.to_string());
            assert_eq!(number.map(|number| tunable.in_force(number)), Ok(tunable.default), "{}", tunable.name);
            let super::Values::Of(of, limits) = tunable.values else { continue };
            for number in [0, 1, of.largest()] {
                assert_eq!(tunable.parse(&number.to_string()), Ok(number), "{}", tunable.name);
                let in_force = tunable.in_force(number);
                assert!((limits.least..=limits.most).contains(&in_force), "{}: {number}", tunable.name);
            }
        }
        for (tunable, set, in_force) in [
            (&super::ZFS_ARC_MAX, "0", 1 << 30),
            (&super::ZFS_ARC_MAX, "1000", 1 << 30),
            (&super::ZFS_ARC_MAX, "67108864", 64 << 20),
            (&super::ZFS_DIRTY_DATA_MAX, "0", 256 << 20),
            (&super::ZFS_DIRTY_DATA_MAX, "1", 1 << 20),
            (&super::ZFS_ASYNC_BLOCK_MAX_BLOCKS, "0", u64::MAX),
            (&super::ZFS_TXG_TIMEOUT, "0", 1),
            (&super::ZFS_MULTIHOST_INTERVAL, "1", 100),
            (&super::ZFS_MULTIHOST_IMPORT_INTERVALS, "0", 1),
            // what does not fit into an uberblock is not cut off there: 65536 would be 0, which is never
            (&super::ZFS_MULTIHOST_FAIL_INTERVALS, "65536", 0xffff),
            (&super::ZFS_SCRUB_MIN_TIME_MS, "100000000", 60_000),
            (&super::ZFS_RECV_WRITE_BATCH_SIZE, "67108864", 32 << 20),
        ] {
            assert_eq!(tunable.parse(set).map(|number| tunable.in_force(number)), Ok(in_force), "{}", tunable.name);
        }
    }

    #[test]
    fn a_tunable_shows_what_was_set() {
        super::set("zfs_vdev_nia_credit", "0").unwrap();
        assert_eq!((super::ZFS_VDEV_NIA_CREDIT.to_string(), super::ZFS_VDEV_NIA_CREDIT.get()), ("0".to_owned(), 1));
        super::ZFS_VDEV_NIA_CREDIT.set(5);
        assert_eq!(super::ZFS_VDEV_NIA_CREDIT.to_string(), "5");
    }

    #[test]
    fn a_tunable_of_words_takes_and_shows_them() {
        assert_eq!(super::VDEV_IO.to_string(), "auto");
        let refused = super::set("vdev_io", "1").unwrap_err();
        assert_eq!(refused, "tunable 'vdev_io': '1' is none of auto, uring, threads, buffered");
        super::set("vdev_io", "threads").unwrap();
        assert_eq!((super::VDEV_IO.to_string(), super::VDEV_IO.get()), ("threads".to_owned(), 2));
        super::set("vdev_io", "auto").unwrap();
        assert_eq!(super::ZFS_VDEV_NIA_DELAY.to_string(), "5");
    }
}
