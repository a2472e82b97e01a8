//! `-T`: the tables of cloned blocks.

use std::io::Write;
use std::sync::Arc;

use pool::Pool;

use crate::error::Failure;

use super::options::Options;
use super::text;
use super::text::trouble;

/// Shows totals; with `-TT` by vdev, with `-TTT` how often blocks are used, with `-TTTT` each block.
pub(super) fn show(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>) -> Result<(), Failure> {
    if !pool.feature_enabled("block_cloning") {
        return Ok(writeln!(out, "BRT: unsupported on this pool")?);
    }
    if !pool.feature_active("block_cloning") {
        return Ok(writeln!(out, "BRT: empty")?);
    }
    let level = options.level('T');
    let sum = pool.brt_stats().map_err(trouble)?;
    let (used, saved, ratio) = (text::bytes(options, sum.used), text::bytes(options, sum.saved), sum.ratio());
    writeln!(out, "BRT: used {used}; saved {saved}; ratio {}.{:02}x", ratio / 100, ratio % 100)?;
    if level < 2 {
        return Ok(());
    }
    let tables = pool.brts().map_err(trouble)?;
    for top in pool.tree().tops() {
        match tables.iter().find(|table| table.vdev == top.id()) {
            None => writeln!(out, "BRT: vdev {}: empty", top.id())?,
            Some(table) => {
                let count = text::number(options, table.phys.totalcount);
                let [used, saved] = [table.phys.usedspace, table.phys.savedspace].map(|n| text::bytes(options, n));
                writeln!(out, "BRT: vdev {}: refcnt {count}; used {used}; saved {saved}", top.id())?;
            }
        }
    }
    if level < 3 {
        return Ok(());
    }
    if level > 3 {
        writeln!(out, "\n{:<16} {:<10}", "DVA", "REFCNT")?;
    }
    for table in &tables {
        let mut counts = [0u64; 64];
        for entry in table.entries().map_err(trouble)? {
            let (offset, count) = entry.map_err(trouble)?;
            if level > 3 {
                writeln!(out, "{:<16} {count:<10}", format!("{}:{offset:x}", table.vdev))?;
            }
            let bucket = (u64::BITS - count.leading_zeros()) as usize;
            if let Some(bucket) = counts.get_mut(bucket) {
                *bucket += 1;
            }
        }
        if level == 3 {
            writeln!(out, "\nBRT: vdev {}: DVAs with 2^n refcnts:", table.vdev)?;
            text::histogram(out, &counts, 0)?;
        }
    }
    Ok(())
}
