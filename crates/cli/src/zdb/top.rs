//! Facts about top-level vdevs that several parts of the output need.

use std::sync::Arc;

use base::ObjectId;
use pool::Pool;
use vdev::TopVdev;

use super::text::trouble;
use crate::error::Failure;

/// The object that the ZAP of a top-level vdev names; none if it names none.
pub(super) fn top_zap_number(pool: &Arc<Pool>, top: &TopVdev, key: &str) -> Result<ObjectId, Failure> {
    let id = top.config().top_zap;
    if id.is_none() {
        return Ok(ObjectId::NONE);
    }
    let zap = pool.mos().object(id).and_then(dmu::Zap::open).and_then(|zap| zap.lookup_id(key));
    Ok(zap.map_err(|e| trouble(e.into()))?.unwrap_or(ObjectId::NONE))
}

/// The number of whole metaslabs that fit on a vdev, and their bytes.
pub(super) fn whole_metaslabs(top: &TopVdev) -> (u64, u64) {
    let shift = u32::try_from(top.config().ms_shift).unwrap_or(u32::MAX);
    let count = top.config().asize.checked_shr(shift).unwrap_or(0);
    (count, count.checked_shl(shift).unwrap_or(0))
}
