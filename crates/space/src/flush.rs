//! The choice of the metaslabs to flush in a txg, and of the logs that become obsolete.
//!
//! Each txg that changes anything makes one log. The own map of a metaslab that is *flushed* in txg T holds all changes before T;
//! a log is needed as long as any metaslab was last flushed in its txg or before. So the oldest metaslabs are flushed, some in
//! each txg: enough that the logs stay below a number of blocks, a number of txgs and an amount of memory. Metaslabs without
//! unflushed changes just move to the front.
//!
//! The number of flushes is computed from a short *summary* of the logs: rows of consecutive txgs, with the blocks of their logs
//! and the metaslabs that were last flushed in them. If the coming txgs log as many blocks as the last ones, the limit is reached
//! after a certain number of txgs, and freeing the first row's blocks requires flushing that row's metaslabs by then; and so on
//! for the following rows.
//!
//! OpenZFS: `spa_log_spacemap.c`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use base::{ObjectId, Txg, tunable};

/// A metaslab: top-level vdev and number.
pub type MetaslabId = (u32, u32);

/// One log (OpenZFS: `spa_log_sm_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Log {
    object: ObjectId,
    blocks: u64,
}

/// Logs of some consecutive txgs (OpenZFS: `log_summary_entry_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SummaryRow {
    /// First txg.
    pub start: Txg,
    /// Last txg.
    pub end: Txg,
    /// Txgs with a log.
    pub txgs: u64,
    /// Metaslabs that were last flushed in one of them.
    pub metaslabs: u64,
    /// The metaslabs among them that have unflushed changes.
    pub dirty: u64,
    /// Blocks of the logs.
    pub blocks: u64,
}

/// The extent of flushing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlushAll {
    /// The amount that the limits require.
    #[default]
    No,
    /// Everything at once: the pool is exported.
    Export,
    /// Everything that was unflushed at `upto`, over several txgs, on request (`zpool condense`).
    Request {
        /// The last synced txg at the time of the request.
        upto: Txg,
    },
}

/// The progress of a flush on request (OpenZFS: `spa_condense_stat_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Metaslabs flushed so far.
    pub processed: u64,
    /// Metaslabs that were unflushed at the start.
    pub total: u64,
    /// True while it is running.
    pub active: bool,
}

/// Statistics of logs and flushing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LogSpacemapStats {
    /// Memory of unflushed changes, in bytes.
    pub unflushed_memory: u64,
    /// Metaslabs with unflushed changes.
    pub unflushed_metaslabs: u64,
    /// Number of logs.
    pub logs: u64,
    /// Number of blocks of the logs.
    pub log_blocks: u64,
    /// The current limit of blocks.
    pub block_limit: u64,
    /// The oldest log, 0 if there is none.
    pub oldest_txg: Txg,
    /// Metaslabs flushed in the last txg.
    pub flushes: u64,
    /// Space maps rewritten in the last txg.
    pub condenses: u64,
    /// Flushes since the import.
    pub flushes_total: u64,
    /// Rewrites since the import.
    pub condenses_total: u64,
    /// Seconds that reading the logs would take in an import now.
    pub import_seconds: f64,
}

/// The logs of a pool, and the unflushed txg of each metaslab.
#[derive(Clone, Debug, Default)]
pub struct LogSpace {
    logs: BTreeMap<Txg, Log>,
    summary: VecDeque<SummaryRow>,
    /// By unflushed txg.
    by_flushed: BTreeSet<(Txg, MetaslabId)>,
    metaslabs: HashMap<MetaslabId, (Txg, bool)>,
    dirty: u64,
    blocks: u64,
    block_limit: u64,
    memory: u64,
    physical_memory: u64,
    mode: FlushAll,
    progress: Progress,
    stats: LogSpacemapStats,
    /// Log bytes that an import reads per second.
    read_rate: f64,
    block_size: u64,
}

/// Log bytes read per second assumed before any measurement: a disk with seeks.
const READ_RATE: f64 = 50e6;

impl LogSpace {
    /// Creates it without logs. `physical_memory`: bytes of the machine.
    #[must_use]
    pub fn new(physical_memory: u64) -> Self {
        let (read_rate, block_size) = (READ_RATE, log_block_size());
        LogSpace { physical_memory, read_rate, block_size, ..LogSpace::default() }
    }

    /// Creates it at import from the existing logs (txg, object, blocks) and the metaslabs that use them (unflushed txg, whether
    /// they have unflushed changes).
    #[must_use]
    pub fn load(
        physical_memory: u64,
        logs: impl IntoIterator<Item = (Txg, ObjectId, u64)>,
        metaslabs: impl IntoIterator<Item = (MetaslabId, Txg, bool)>,
    ) -> Self {
        let mut this = LogSpace::new(physical_memory);
        let mut users: BTreeMap<Txg, u64> = BTreeMap::new();
        for (id, txg, dirty) in metaslabs {
            *users.entry(txg).or_default() += 1;
            this.by_flushed.insert((txg, id));
            this.metaslabs.insert(id, (txg, dirty));
        }
        this.set_block_limit();
        for (txg, object, blocks) in logs {
            this.logs.insert(txg, Log { object, blocks });
            this.blocks += blocks;
            this.summarize(txg, users.remove(&txg).unwrap_or(0), 0, blocks);
            this.set_block_limit();
        }
        // a metaslab whose txg has no log counts in the oldest row
        for (txg, count) in users {
            if let Some(row) = this.row_of(txg) {
                row.metaslabs += count;
            }
        }
        let dirty: Vec<Txg> = this.metaslabs.values().filter(|m| m.1).map(|m| m.0).collect();
        this.dirty = dirty.len() as u64;
        for txg in dirty {
            if let Some(row) = this.row_of(txg) {
                row.dirty += 1;
            }
        }
        this.set_block_limit();
        this
    }

    /// Returns the row for a metaslab last flushed in `txg`: the last row that does not begin later, or else the first.
    fn row_of(&mut self, txg: Txg) -> Option<&mut SummaryRow> {
        let n = self.summary.iter().take_while(|r| r.start <= txg).count();
        self.summary.get_mut(n.saturating_sub(1))
    }

    fn row_is_full(&self, row: &SummaryRow, txg: Txg) -> bool {
        let rows = tunable::ZFS_MAX_LOGSM_SUMMARY_LENGTH.get().max(1);
        row.end != txg
            && (row.txgs >= tunable::ZFS_UNFLUSHED_LOG_TXG_MAX.get().div_ceil(rows)
                || row.blocks >= self.block_limit.div_ceil(rows).max(1))
    }

    fn summarize(&mut self, txg: Txg, metaslabs: u64, dirty: u64, blocks: u64) {
        if self.summary.back().is_none_or(|row| self.row_is_full(row, txg)) {
            self.summary.push_back(SummaryRow { start: txg, end: txg, txgs: 1, metaslabs: 0, dirty: 0, blocks: 0 });
        }
        if let Some(row) = self.summary.back_mut() {
            if row.end < txg {
                row.end = txg;
                row.txgs += 1;
            }
            row.metaslabs += metaslabs;
            row.dirty += dirty;
            row.blocks += blocks;
        }
    }

    /// Sets the limit of log blocks from the number of dirty metaslabs (OpenZFS: `spa_log_sm_set_blocklimit`).
    pub fn set_block_limit(&mut self) {
        let dirty: u64 = self.summary.iter().map(|r| r.dirty).sum();
        let wanted = dirty.saturating_mul(tunable::ZFS_UNFLUSHED_LOG_BLOCK_PCT.get()) / 100;
        let least = wanted.max(tunable::ZFS_UNFLUSHED_LOG_BLOCK_MIN.get());
        self.block_limit = least.min(tunable::ZFS_UNFLUSHED_LOG_BLOCK_MAX.get());
    }

    /// Begins the log of `txg`, which is space map object `object`.
    pub fn start(&mut self, txg: Txg, object: ObjectId) {
        self.logs.insert(txg, Log { object, blocks: 0 });
        self.set_block_limit();
    }

    /// True if `txg` has a log.
    #[must_use]
    pub fn has_log(&self, txg: Txg) -> bool {
        self.logs.contains_key(&txg)
    }

    /// Sets the number of blocks of the log of `txg`. Called once, when the txg is synced.
    pub fn close(&mut self, txg: Txg, blocks: u64) {
        if let Some(log) = self.logs.get_mut(&txg) {
            log.blocks = blocks;
            self.blocks += blocks;
            self.summarize(txg, 0, 0, blocks);
        }
    }

    /// Returns the unflushed txg of a metaslab; `None` if it was never in a log.
    #[must_use]
    pub fn unflushed_txg(&self, id: MetaslabId) -> Option<Txg> {
        self.metaslabs.get(&id).map(|m| m.0)
    }

    /// Notes that a metaslab has changes in the log of `txg`. Returns true if `txg` becomes its unflushed txg: it had none, or
    /// nothing unflushed.
    pub fn dirtied(&mut self, id: MetaslabId, txg: Txg) -> bool {
        match self.metaslabs.get(&id) {
            Some((_, true)) => false,
            _ => {
                self.moved(id, txg, true);
                true
            }
        }
    }

    /// Notes that a metaslab was flushed in `txg`, or had nothing to flush.
    pub fn flushed(&mut self, id: MetaslabId, txg: Txg) {
        if self.progress.active && self.is_dirty(id) {
            self.progress.processed += 1;
        }
        self.moved(id, txg, false);
    }

    fn moved(&mut self, id: MetaslabId, txg: Txg, dirty: bool) {
        self.leave_row(id);
        self.metaslabs.insert(id, (txg, dirty));
        self.by_flushed.insert((txg, id));
        self.dirty += u64::from(dirty);
        self.summarize(txg, 1, u64::from(dirty), 0);
    }

    /// Takes a metaslab out of the summary row of the txg that it was last flushed in.
    fn leave_row(&mut self, id: MetaslabId) {
        let Some((was, was_dirty)) = self.metaslabs.remove(&id) else { return };
        self.by_flushed.remove(&(was, id));
        self.dirty -= u64::from(was_dirty);
        if let Some(row) = self.row_of(was) {
            row.metaslabs = row.metaslabs.saturating_sub(1);
            row.dirty = row.dirty.saturating_sub(u64::from(was_dirty));
        }
    }

    /// Forgets the metaslabs of a removed vdev; their unflushed changes took `memory` bytes.
    pub fn forget_vdev(&mut self, vdev: u32, memory: u64) {
        let gone: Vec<MetaslabId> = self.metaslabs.keys().filter(|(of, _)| *of == vdev).copied().collect();
        for id in gone {
            self.leave_row(id);
        }
        self.memory = self.memory.saturating_sub(memory);
    }

    /// Removes and returns the logs that are no longer needed: txg and object. The log of the syncing txg is always kept.
    pub fn take_obsolete(&mut self) -> Vec<(Txg, ObjectId)> {
        let Some((oldest, _)) = self.by_flushed.first().copied() else { return Vec::new() };
        let needed = self.logs.split_off(&oldest);
        let gone = std::mem::replace(&mut self.logs, needed);
        for log in gone.values() {
            self.blocks -= log.blocks;
            self.forget_blocks(log.blocks);
        }
        gone.into_iter().map(|(txg, log)| (txg, log.object)).collect()
    }

    /// Removes freed blocks from the oldest rows of the summary.
    fn forget_blocks(&mut self, mut gone: u64) {
        if let Some(row) = self.summary.front_mut() {
            row.txgs = row.txgs.saturating_sub(1);
        }
        while let Some(row) = self.summary.front_mut() {
            if row.blocks > gone {
                row.blocks -= gone;
                return;
            }
            gone -= row.blocks;
            if row.metaslabs != 0 {
                // everything was flushed in this txg: the row is kept for the log that is being written
                row.blocks = 0;
                return;
            }
            self.summary.pop_front();
        }
    }

    /// Adds `delta` to the memory of unflushed changes, in bytes.
    pub fn memory_changed(&mut self, delta: i64) {
        self.memory = self.memory.saturating_add_signed(delta);
    }

    /// True if unflushed changes exceed their memory limit.
    #[must_use]
    pub fn exceeds_memory(&self) -> bool {
        let share = u128::from(self.physical_memory) * u128::from(tunable::ZFS_UNFLUSHED_MAX_MEM_PPM.get()) / 1_000_000;
        self.memory > tunable::ZFS_UNFLUSHED_MAX_MEM_AMT.get() || u128::from(self.memory) > share
    }

    /// Estimates the blocks of the log of `txg`: the average of the last logs.
    fn incoming(&self, txg: Txg) -> u64 {
        let most = usize::try_from(tunable::ZFS_MAX_LOG_WALKING.get()).unwrap_or(usize::MAX);
        let last = self.logs.iter().rev().filter(|(t, _)| **t != txg).take(most);
        let (count, sum) = last.fold((0, 0), |(count, sum), (_, log)| (count + 1, sum + log.blocks));
        if count == 0 { 0 } else { u64::div_ceil(sum, count) }
    }

    /// Returns how many dirty metaslabs must be flushed per txg from `txg` on, so that the logs stay below their limits of blocks
    /// and of txgs (OpenZFS: `spa_estimate_metaslabs_to_flush`).
    #[must_use]
    pub fn estimate(&self, txg: Txg) -> u64 {
        let incoming = signed(self.incoming(txg));
        let mut room = signed(self.block_limit) - signed(self.blocks) - incoming;
        let txgs: u64 = self.summary.iter().map(|r| r.txgs).sum();
        let mut room_txgs = signed(tunable::ZFS_UNFLUSHED_LOG_TXG_MAX.get()) - signed(txgs);
        let (mut ahead, mut flushes) = (1u64, 0u64);
        let mut most = tunable::ZFS_MIN_METASLABS_TO_FLUSH.get();
        for row in &self.summary {
            if room >= 0 && room_txgs >= 0 {
                // no flush is needed for this number of txgs
                let by_blocks = room.checked_div(incoming).map_or(i64::MAX, |n| n + 1);
                let skip = by_blocks.min(room_txgs + 1);
                room -= skip * incoming;
                room_txgs -= skip;
                ahead += skip.unsigned_abs();
            }
            room += signed(row.blocks);
            room_txgs += signed(row.txgs);
            flushes += row.dirty;
            most = most.max(flushes.div_ceil(ahead));
        }
        most
    }

    /// Returns how many dirty metaslabs are to be flushed in `txg`.
    #[must_use]
    pub fn target(&self, txg: Txg) -> u64 {
        match self.mode {
            FlushAll::Export => u64::MAX,
            FlushAll::No => self.estimate(txg),
            FlushAll::Request { .. } => {
                let pct = tunable::ZFS_MIN_METASLABS_TO_CONDENSE_PCT.get().clamp(1, 100);
                self.estimate(txg).max(self.progress.total * pct / 100)
            }
        }
    }

    /// Returns the next metaslab to flush in `txg`, the oldest one, and whether it is dirty. `wanted` is the remainder of
    /// [`LogSpace::target`]. `None` ends the flushing of this txg; it may also end a flush of everything. The caller must then
    /// report it as [flushed](LogSpace::flushed).
    pub fn next_to_flush(&mut self, txg: Txg, wanted: u64) -> Option<(MetaslabId, bool)> {
        let Some((unflushed, id)) = self.by_flushed.first().copied() else {
            self.flush_all_done();
            return None;
        };
        let beyond = matches!(self.mode, FlushAll::Request { upto } if unflushed > upto);
        if unflushed >= txg || beyond {
            self.flush_all_done();
            return None;
        }
        if wanted == 0 && !self.exceeds_memory() {
            return None;
        }
        Some((id, self.is_dirty(id)))
    }

    /// True if a metaslab has unflushed changes.
    #[must_use]
    pub fn is_dirty(&self, id: MetaslabId) -> bool {
        self.metaslabs.get(&id).is_some_and(|m| m.1)
    }

    /// Starts flushing everything.
    pub fn flush_all(&mut self, mode: FlushAll) {
        if self.mode != FlushAll::Export {
            self.mode = mode;
        }
        if let FlushAll::Request { .. } = self.mode {
            self.progress = Progress { processed: 0, total: self.dirty, active: true };
        }
    }

    /// Ends a flush of everything.
    pub fn flush_all_done(&mut self) {
        if std::mem::take(&mut self.mode) != FlushAll::No && self.progress.active {
            self.progress = Progress { processed: self.progress.total, active: false, ..self.progress };
        }
    }

    /// Cancels a flush on request.
    pub fn cancel(&mut self) {
        if let FlushAll::Request { .. } = self.mode {
            self.mode = FlushAll::No;
            self.progress.active = false;
        }
    }

    /// Returns the current extent of flushing.
    #[must_use]
    pub const fn mode(&self) -> FlushAll {
        self.mode
    }

    /// Returns the progress of a flush on request.
    #[must_use]
    pub const fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the summary, oldest row first.
    pub fn summary(&self) -> impl Iterator<Item = &SummaryRow> {
        self.summary.iter()
    }

    /// Records that an import has read `bytes` of logs in `seconds`.
    pub fn measured(&mut self, bytes: u64, seconds: f64) {
        if bytes >= self.block_size && seconds > 0.0 {
            self.read_rate = bytes as f64 / seconds;
        }
    }

    /// Counts the metaslabs flushed and the maps rewritten in a txg.
    pub fn count(&mut self, flushes: u64, condenses: u64) {
        (self.stats.flushes, self.stats.condenses) = (flushes, condenses);
        self.stats.flushes_total += flushes;
        self.stats.condenses_total += condenses;
    }

    /// Returns the current statistics.
    #[must_use]
    pub fn stats(&self) -> LogSpacemapStats {
        LogSpacemapStats {
            unflushed_memory: self.memory,
            unflushed_metaslabs: self.dirty,
            logs: self.logs.len() as u64,
            log_blocks: self.blocks,
            block_limit: self.block_limit,
            oldest_txg: self.logs.first_key_value().map_or(Txg(0), |(txg, _)| *txg),
            import_seconds: (self.blocks * self.block_size) as f64 / self.read_rate,
            ..self.stats
        }
    }
}

/// Returns the block size of a new log, in bytes.
#[must_use]
pub fn log_block_size() -> u64 {
    tunable::ZFS_LOG_SM_BLKSZ.get().clamp(4 << 10, 1 << 20).next_power_of_two()
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

#[cfg(test)]
#[path = "flush_tests.rs"]
mod tests;
