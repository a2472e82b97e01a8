//! Checks that the reference count of the feature `spacemap_histogram` equals the number of space maps with a
//! histogram. As in `zdb`, this comes after everything else.

use std::io::Write;
use std::sync::Arc;

use base::ObjectId;
use pool::Pool;

use crate::error::Failure;

use super::spacemaps::Map;
use super::text::trouble;
use super::top::top_zap_number;

/// Compares the counts; prints only mismatches. Returns the exit status.
pub(super) fn verify(out: &mut dyn Write, pool: &Arc<Pool>) -> Result<u8, Failure> {
    // a map that cannot be opened has no histogram
    let counts =
        |id: ObjectId| u64::from(id.is_some() && Map::open(pool, id).is_ok_and(|map| map.header.histogram.is_some()));
    let (mut dtl, mut metaslab, mut obsolete, mut checkpoint) = (0, 0, 0, 0);
    for vdev in pool.tree().config().walk() {
        dtl += counts(vdev.dtl);
    }
    for top in pool.tree().tops() {
        for m in pool.metaslabs(top.id()).map_err(trouble)? {
            metaslab += u64::from(m.header.as_ref().is_some_and(|h| h.histogram.is_some()));
        }
        obsolete += counts(top_zap_number(pool, top, "com.delphix:indirect_obsolete_sm")?);
        checkpoint += counts(top_zap_number(pool, top, "com.delphix:pool_checkpoint_sm")?);
    }
    let condensing = pool.mos_words("com.delphix:condensing_indirect").map_err(trouble)?;
    let previous = condensing.and_then(|words| words.get(1).copied()).map_or(0, |id| counts(ObjectId(id)));
    let logs = pool.log_space_maps().map_err(trouble)?.len() as u64;
    let state = pool.features().iter().find(|f| f.def.is_some_and(|d| d.name == "spacemap_histogram"));
    let expected = state.map_or(0, |f| f.refcount);
    let actual = dtl + metaslab + obsolete + previous + checkpoint + logs;
    if expected == actual {
        return Ok(0);
    }
    writeln!(out, "space map refcount mismatch: expected {expected} != actual {actual}")?;
    writeln!(
        out,
        "\tDTL: {dtl}, metaslab: {metaslab}, obsolete: {obsolete}, prev obsolete: {previous}, \
         checkpoint: {checkpoint}, log spacemap: {logs}"
    )?;
    Ok(2)
}
