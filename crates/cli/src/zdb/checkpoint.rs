//! The checkpoint of a pool, shown whenever there is one: the uberblock that it keeps.

use std::io::Write;
use std::sync::Arc;

use base::Endian;
use ondisk::Uberblock;
use pool::Pool;

use crate::error::{Failure, failed};

use super::options::Options;
use super::spacemaps::{Geometry, Map};
use super::text::trouble;
use super::top::top_zap_number;
use super::uberblock;

/// Shows the checkpoint; with `-mmmm` also the space that it holds. Returns the exit status.
pub(super) fn verify(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>) -> Result<u8, Failure> {
    if !pool.feature_active("zpool_checkpoint") {
        return Ok(0);
    }
    let words = pool.mos_words("com.delphix:zpool_checkpoint").map_err(trouble)?;
    let Some(words) = words else {
        writeln!(out, "\nPartially discarded checkpoint state found:")?;
        show_maps(out, options, pool)?;
        return Ok(0);
    };
    let mut raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    // an older pool stores fewer fields
    raw.resize(raw.len().max(Uberblock::SIZE), 0);
    let mut kept = Uberblock::decode(&raw).map_err(|e| failed(format!("zdb: checkpointed uberblock: {e}")))?;
    kept.endian = Endian::NATIVE;
    uberblock::print(out, &kept, options.level('u'), "\nCheckpointed uberblock found:\n", "\n")?;
    if kept.checkpoint_txg.0 == 0 {
        writeln!(out, "\nub_checkpoint_txg not set in checkpointed uberblock")?;
        return Ok(3);
    }
    if !options.has('L') {
        show_maps(out, options, pool)?;
    }
    Ok(0)
}

fn show_maps(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>) -> Result<(), Failure> {
    if options.level('m') <= 3 {
        return Ok(());
    }
    for top in pool.tree().tops() {
        let id = top_zap_number(pool, top, "com.delphix:pool_checkpoint_sm")?;
        if id.is_some() {
            let geometry = Geometry { start: 0, shift: top.ashift() };
            Map::open(pool, id)?.show(out, geometry, true, None)?;
        }
    }
    Ok(())
}
