//! Estimates of the length of a stream (OpenZFS: `dmu_send_estimate_fast`; `dmu_send` as a dry run).

use ondisk::BLKPTR_SIZE;
use ondisk::send::RECORD_SIZE;
use pool::{Dataset, Space};

use super::chunk::Chunk;
use super::{Base, Error, Plan, SendFlags};

/// The block size that OpenZFS assumes for every volume: it queries the property, which is not stored in the list of properties
/// (OpenZFS: `ZVOL_DEFAULT_BLOCKSIZE`).
const VOLUME_BLOCK: u64 = 16 << 10;

/// Returns OpenZFS's estimate of the length of a stream: computed from the new space, as if all blocks had the size that the
/// property `recordsize` has now. `written` is the space written since the base ([`Dataset::written_since`]); without it all
/// referenced space counts.
///
/// | stream | space that is counted |
/// |---|---|
/// | full: without flags, `-L`, `-e`, `-p` | uncompressed bytes that the snapshot refers to |
/// | full: `-c`, `-w` | the same, compressed |
/// | `-i` a snapshot, or a bookmark that records sizes | the same, of the space written since |
/// | `-i` any other bookmark, also that of a redacted send | none: [`measure`] counts the blocks that would be sent |
/// | `-R`, `-I` | the sum of all streams, without the headers around them |
/// | `-t` | as the stream that it continues, minus the bytes already received |
///
/// # Errors
/// When properties cannot be read.
pub fn estimate(to: &Dataset, written: Option<Space>, flags: &SendFlags) -> Result<u64, Error> {
    let phys = to.phys();
    let (uncompressed, compressed) =
        written.map_or((phys.uncompressed_bytes, phys.compressed_bytes), |space| (space.uncomp, space.comp));
    let block = match base::tunable::ZFS_OVERRIDE_ESTIMATE_RECORDSIZE.get() {
        0 if to.head_kind()? == pool::Kind::Volume => VOLUME_BLOCK,
        0 => to.head()?.prop("recordsize")?.and_then(|prop| prop.value.number()).unwrap_or(128 << 10),
        size => size,
    };
    let size = if flags.compress || flags.raw { compressed } else { uncompressed };
    Ok(from_space(size, uncompressed / block.max(1)))
}

/// Converts space to stream bytes: block pointers are part of the space but not of the stream, while each block, BEGIN and END
/// add a record.
fn from_space(size: u64, records: u64) -> u64 {
    let per_record = |bytes: usize| records.saturating_mul(bytes as u64);
    let blocks = size.saturating_sub(per_record(BLKPTR_SIZE)).saturating_add(per_record(RECORD_SIZE));
    blocks.saturating_add(2 * RECORD_SIZE as u64)
}

/// Returns the exact length of a stream: all blocks are visited, but no data is read.
///
/// # Errors
/// As [`send`](super::send()).
pub fn measure(to: &Dataset, base: Option<&Base>, flags: &SendFlags) -> Result<u64, Error> {
    let plan = Plan::new(to, base, flags)?;
    let mut bytes = 0u64;
    let mut count = |mut chunk: Chunk| {
        bytes = bytes.saturating_add(chunk.len() as u64);
        chunk.clear();
        Ok(chunk)
    };
    plan.traverse(&mut count, &|| ())?;
    Ok(if flags.saved.is_some() { bytes } else { bytes.saturating_add(RECORD_SIZE as u64) })
}

#[cfg(test)]
mod tests {
    #[test]
    fn estimates_are_those_of_openzfs() {
        // the fixture stresume-a: its kernel's numbers for srca/r@1, and what it printed as the rest of the stream ("1014K")
        let (referenced, recordsize, received) = (2_435_584, 128 << 10, 0x15_61c0);
        let left = super::from_space(referenced, referenced / recordsize) - received;
        assert_eq!(pool::prop::nicebytes(left), "1014K");
    }
}
