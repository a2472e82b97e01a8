//! Facts about top-level vdevs that several parts of the output need.

use std::sync::Arc;

use pool::Pool;
use vdev::TopVdev;

use super::text::trouble;
use crate::error::Failure;

/// A number in the ZAP of a top-level vdev; 0 if it is not there.
pub(super) fn top_zap_number(pool: &Arc<Pool>, top: &TopVdev, key: &str) -> Result<u64, Failure> {
    let id = top.config().top_zap.0;
    if id == 0 {
        return Ok(0);
    }
    let zap = pool.mos().object(id).and_then(dmu::Zap::open).and_then(|zap| zap.lookup_u64(key));
    Ok(zap.map_err(|e| trouble(e.into()))?.unwrap_or(0))
}

/// The number of whole metaslabs that fit on a vdev, and their bytes.
pub(super) fn whole_metaslabs(top: &TopVdev) -> (u64, u64) {
    let shift = u32::try_from(top.config().ms_shift).unwrap_or(u32::MAX);
    let count = top.config().asize.checked_shr(shift).unwrap_or(0);
    (count, count.checked_shl(shift).unwrap_or(0))
}
