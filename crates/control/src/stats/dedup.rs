//! The dedup tables together: `ddt_object_stats`, `ddt_histogram`, `ddt_stats` (OpenZFS: `ddt_get_dedup_object_stats`, `ddt_get_dedup_histogram`).

use std::sync::Arc;

use nvlist::{NvList, Value};
use ondisk::ddt::{DdtHistogram, DdtStat};
use pool::{Error, Pool};

pub(super) const OBJECT_STATS: &str = "ddt_object_stats";
pub(super) const HISTOGRAM: &str = "ddt_histogram";
pub(super) const STATS: &str = "ddt_stats";

/// Bytes of memory of a log entry of a table in OpenZFS, from which its figures are computed.
const LOG_ENTRY_BYTES: u64 = 72;
const FLAT_VALUE_BYTES: u64 = 72;
const TRADITIONAL_VALUE_BYTES: u64 = 256;

/// All tables together (OpenZFS: `ddt_object_t` and `ddt_histogram_t`).
#[derive(Clone, Debug)]
pub struct Dedup {
    /// Entries.
    pub count: u64,
    /// Bytes on disk.
    pub dspace: u64,
    /// Bytes in memory.
    pub mspace: u64,
    /// Entries by the number of their references.
    pub histogram: DdtHistogram,
    /// The sum of that.
    pub total: DdtStat,
}

impl Dedup {
    /// Reads those of a pool.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read(pool: &Arc<Pool>) -> Result<Dedup, Error> {
        let (mut count, mut dspace, mut mspace) = (0u64, 0u64, 0u64);
        let mut sums = DdtHistogram::empty();
        for table in pool.ddts()? {
            for store in &table.stores {
                count = count.saturating_add(store.count);
                dspace = dspace.saturating_add(store.dspace);
                mspace = mspace.saturating_add(store.mspace);
            }
            let logged = table.log_entries()?.len() as u64;
            let value = if table.flat { FLAT_VALUE_BYTES } else { TRADITIONAL_VALUE_BYTES };
            count = count.saturating_add(logged);
            dspace = table.logs.iter().fold(dspace, |sum, log| sum.saturating_add(log.dspace));
            mspace = mspace.saturating_add(logged.saturating_mul(LOG_ENTRY_BYTES + value));
            let histogram = table.histogram(pool)?;
            for (sum, bucket) in sums.buckets.iter_mut().zip(&histogram.buckets) {
                sum.add(bucket);
            }
        }
        let total = sums.total();
        Ok(Dedup { count, dspace, mspace, histogram: sums, total })
    }

    pub(super) fn put(&self, config: &mut NvList) {
        config.insert(OBJECT_STATS, Value::Uint64Array(vec![self.count, self.dspace, self.mspace]));
        config.insert(HISTOGRAM, Value::Uint64Array(self.histogram.to_words()));
        config.insert(STATS, Value::Uint64Array(self.total.to_words().to_vec()));
    }

    /// Reads them back from the configuration of a pool; `None` if it does not have them.
    #[must_use]
    pub fn of(config: &NvList) -> Option<Dedup> {
        let [count, dspace, mspace] = config.get_u64_array(OBJECT_STATS)?.try_into().ok()?;
        let histogram = DdtHistogram::from_words(config.get_u64_array(HISTOGRAM)?).ok()?;
        let total = DdtStat::from_words(config.get_u64_array(STATS)?.try_into().ok()?);
        Some(Dedup { count, dspace, mspace, histogram, total })
    }
}
