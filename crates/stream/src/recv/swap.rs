//! Contents of the other byte order, made ours (OpenZFS: `dmu_ot_byteswap`).

use ::base::Endian;
use ondisk::ByteswapClass;

use super::writer::type_of;

/// Changes what a record holds from the stream's order to the one that is written.
///
/// # Errors
/// What the contents are, if it is not known how to change them.
pub(super) fn to_ours(object_type: u32, order: Endian, data: &mut [u8]) -> Result<(), String> {
    if order == Endian::Little {
        return Ok(());
    }
    match type_of(object_type).byteswap_class() {
        Some(ByteswapClass::Uint8) => {}
        Some(ByteswapClass::Uint16) => data.as_chunks_mut::<2>().0.iter_mut().for_each(|word| word.reverse()),
        Some(ByteswapClass::Uint32) => data.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse()),
        Some(ByteswapClass::Uint64) => data.as_chunks_mut::<8>().0.iter_mut().for_each(|word| word.reverse()),
        _ => return Err(format!("{} in the other byte order", type_of(object_type).name())),
    }
    Ok(())
}
