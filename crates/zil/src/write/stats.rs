//! Statistics of the logs (OpenZFS: kstat `zil`).

use base::counter::Counter;
use parking_lot::Mutex;

/// The statistics of all logs of a pool.
#[derive(Debug, Default)]
#[allow(missing_docs)] // OpenZFS's names, less `zil_`
pub struct ZilStats {
    pub commit_count: Counter,
    pub commit_writer_count: Counter,
    pub commit_error_count: Counter,
    pub commit_stall_count: Counter,
    pub commit_suspend_count: Counter,
    pub commit_crash_count: Counter,
    pub itx_count: Counter,
    pub itx_indirect_count: Counter,
    pub itx_indirect_bytes: Counter,
    pub itx_copied_count: Counter,
    pub itx_copied_bytes: Counter,
    pub itx_needcopy_count: Counter,
    pub itx_needcopy_bytes: Counter,
    pub normal: PlaceStats,
    pub slog: PlaceStats,
}

/// Statistics of the blocks written to log devices, or of those written to the other devices.
#[derive(Debug, Default)]
pub struct PlaceStats {
    /// Number of blocks.
    pub count: Counter,
    /// Bytes of records, chain structures included.
    pub bytes: Counter,
    /// Bytes written.
    pub write: Counter,
    /// Bytes allocated.
    pub alloc: Counter,
}

/// The statistics of the logs of pools that are closed: figures of the process never go back.
static PAST: Mutex<Vec<(&'static str, u64)>> = Mutex::new(Vec::new());

impl Drop for ZilStats {
    fn drop(&mut self) {
        let mut past = PAST.lock();
        if past.is_empty() {
            *past = self.named();
        } else {
            past.iter_mut().zip(self.named()).for_each(|((_, sum), (_, n))| *sum = sum.wrapping_add(n));
        }
    }
}

impl ZilStats {
    /// Returns the statistics of all logs of pools that this process has closed; none if there were none.
    #[must_use]
    pub fn of_closed() -> Vec<(&'static str, u64)> {
        PAST.lock().clone()
    }

    /// Returns all statistics under OpenZFS's names.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let PlaceStats { count, bytes, write, alloc } = &self.normal;
        let slog = &self.slog;
        let all = [
            ("zil_commit_count", &self.commit_count),
            ("zil_commit_writer_count", &self.commit_writer_count),
            ("zil_commit_error_count", &self.commit_error_count),
            ("zil_commit_stall_count", &self.commit_stall_count),
            ("zil_commit_suspend_count", &self.commit_suspend_count),
            ("zil_commit_crash_count", &self.commit_crash_count),
            ("zil_itx_count", &self.itx_count),
            ("zil_itx_indirect_count", &self.itx_indirect_count),
            ("zil_itx_indirect_bytes", &self.itx_indirect_bytes),
            ("zil_itx_copied_count", &self.itx_copied_count),
            ("zil_itx_copied_bytes", &self.itx_copied_bytes),
            ("zil_itx_needcopy_count", &self.itx_needcopy_count),
            ("zil_itx_needcopy_bytes", &self.itx_needcopy_bytes),
            ("zil_itx_metaslab_normal_count", count),
            ("zil_itx_metaslab_normal_bytes", bytes),
            ("zil_itx_metaslab_normal_write", write),
            ("zil_itx_metaslab_normal_alloc", alloc),
            ("zil_itx_metaslab_slog_count", &slog.count),
            ("zil_itx_metaslab_slog_bytes", &slog.bytes),
            ("zil_itx_metaslab_slog_write", &slog.write),
            ("zil_itx_metaslab_slog_alloc", &slog.alloc),
        ];
        all.into_iter().map(|(name, counter)| (name, counter.get())).collect()
    }
}
