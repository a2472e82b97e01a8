//! How long a stream will be (OpenZFS: `dmu_send_estimate_fast`).

use ondisk::BLKPTR_SIZE;
use ondisk::send::RECORD_SIZE;
use pool::{Dataset, Space};

use super::{Error, SendFlags};

/// Bytes that a stream will have, as OpenZFS estimates it: from the space that is new, as if all blocks had the size that the properties give.
/// `written` is what was written since the base ([`Dataset::written_since`]); without it all that is referenced counts.
///
/// # Errors
/// When properties cannot be read.
pub fn estimate(to: &Dataset, written: Option<Space>, flags: &SendFlags) -> Result<u64, Error> {
    let phys = to.phys();
    let (uncompressed, compressed) =
        written.map_or((phys.uncompressed_bytes, phys.compressed_bytes), |space| (space.uncomp, space.comp));
    let name = if to.head_kind()? == pool::Kind::Volume { "volblocksize" } else { "recordsize" };
    let block = match base::tunable::ZFS_OVERRIDE_ESTIMATE_RECORDSIZE.get() {
        0 => to.prop(name)?.and_then(|prop| prop.value.number()).unwrap_or(128 << 10),
        size => size,
    };
    let records = uncompressed / block.max(1);
    let size = if flags.compress || flags.raw { compressed } else { uncompressed };
    let per_record = |bytes: usize| records.saturating_mul(bytes as u64);
    // pointers are in the figures and not in the stream; a record goes with each block
    Ok(size.saturating_sub(per_record(BLKPTR_SIZE)).saturating_add(per_record(RECORD_SIZE)))
}
