//! Data and holes of a volume.

use std::ops::Range;

use dmu::Object;

use crate::Error;

/// A part of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its bytes.
    pub range: Range<u64>,
    /// Nothing is stored for it, and it reads as zeros.
    pub is_hole: bool,
}

/// Returns the data and holes of a range, at most `max` from its beginning on.
pub(crate) fn extents(data: &Object, range: Range<u64>, max: usize) -> Result<Vec<Extent>, Error> {
    let mut extents = Vec::new();
    let mut at = range.start;
    while at < range.end && extents.len() < max {
        let next_data = data.next_data(at)?.unwrap_or(u64::MAX).min(range.end);
        if next_data > at {
            extents.push(Extent { range: at..next_data, is_hole: true });
            at = next_data;
            continue;
        }
        // there is a byte of data at least
        let next_hole = data.next_hole(at)?.clamp(at + 1, range.end);
        extents.push(Extent { range: at..next_hole, is_hole: false });
        at = next_hole;
    }
    Ok(extents)
}
