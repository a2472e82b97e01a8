//! `zpool status -D`: the dedup tables.

use std::fmt::Write;
use std::sync::Arc;

use ondisk::ddt::{DdtHistogram, DdtStat};
use pool::Pool;
use pool::prop::{nicebytes, nicenum};

use crate::error::{Failure, failed};

/// Bytes of memory of a log entry of a table in OpenZFS, from which its figures are computed.
const LOG_ENTRY_BYTES: u64 = 72;
const FLAT_VALUE_BYTES: u64 = 72;
const TRADITIONAL_VALUE_BYTES: u64 = 256;

/// All tables together (OpenZFS: `ddt_object_t` and `ddt_histogram_t`).
#[derive(Debug)]
pub(super) struct Dedup {
    pub(super) count: u64,
    /// Bytes on disk.
    pub(super) dspace: u64,
    /// Bytes in memory.
    pub(super) mspace: u64,
    pub(super) histogram: DdtHistogram,
    pub(super) total: DdtStat,
}

impl Dedup {
    pub(super) fn of(pool: &Arc<Pool>) -> Result<Dedup, Failure> {
        let trouble = |e: pool::Error| failed(format!("cannot open '{}': {e}", pool.name()));
        let mut all =
            Dedup { count: 0, dspace: 0, mspace: 0, histogram: DdtHistogram::empty(), total: DdtStat::default() };
        for table in pool.ddts().map_err(trouble)? {
            for store in &table.stores {
                all.count = all.count.saturating_add(store.count);
                all.dspace = all.dspace.saturating_add(store.dspace);
                all.mspace = all.mspace.saturating_add(store.mspace);
            }
            let logged = table.log_entries().map_err(trouble)?.len() as u64;
            let value = if table.flat { FLAT_VALUE_BYTES } else { TRADITIONAL_VALUE_BYTES };
            all.count = all.count.saturating_add(logged);
            all.dspace = table.logs.iter().fold(all.dspace, |sum, log| sum.saturating_add(log.dspace));
            all.mspace = all.mspace.saturating_add(logged.saturating_mul(LOG_ENTRY_BYTES + value));
            let histogram = table.histogram(pool).map_err(trouble)?;
            for (sum, bucket) in all.histogram.buckets.iter_mut().zip(&histogram.buckets) {
                sum.add(bucket);
            }
        }
        for bucket in &all.histogram.buckets {
            all.total.add(bucket);
        }
        Ok(all)
    }

    /// The lines of `zpool status -D`.
    pub(super) fn lines(&self, parsable: bool) -> String {
        let mut text = "\n dedup: ".to_owned();
        if self.count == 0 {
            text.push_str("no DDT entries\n");
            return text;
        }
        let nice = |n: u64| if parsable { n.to_string() } else { nicenum(n) };
        // writing to a String does not fail
        let _ = writeln!(
            text,
            "DDT entries {}, size {} on disk, {} in core",
            self.count,
            nice(self.dspace),
            nice(self.mspace)
        );
        text.push_str("\nbucket              allocated                       referenced          \n");
        let _ = writeln!(text, "______   {0}   {0}", "_".repeat(30));
        row(&mut text, ["refcnt", "blocks", "LSIZE", "PSIZE", "DSIZE", "blocks", "LSIZE", "PSIZE", "DSIZE"]);
        row(&mut text, ["------", "------", "-----", "-----", "-----", "------", "-----", "-----", "-----"]);
        for (n, bucket) in self.histogram.buckets.iter().enumerate() {
            stat(&mut text, &nicenum(1_u64.checked_shl(n as u32).unwrap_or(0)), bucket);
        }
        stat(&mut text, "Total", &self.total);
        text.push('\n');
        text
    }
}

fn stat(text: &mut String, title: &str, stat: &DdtStat) {
    if stat.blocks == 0 {
        return;
    }
    let cells = [
        title.to_owned(),
        nicenum(stat.blocks),
        nicebytes(stat.lsize),
        nicebytes(stat.psize),
        nicebytes(stat.dsize),
        nicenum(stat.ref_blocks),
        nicebytes(stat.ref_lsize),
        nicebytes(stat.ref_psize),
        nicebytes(stat.ref_dsize),
    ];
    row(text, std::array::from_fn(|n| cells.get(n).map_or("", String::as_str)));
}

fn row(text: &mut String, [a, b, c, d, e, f, g, h, i]: [&str; 9]) {
    let _ = writeln!(text, "{a:>6}   {b:>6}   {c:>5}   {d:>5}   {e:>5}   {f:>6}   {g:>5}   {h:>5}   {i:>5}");
}
