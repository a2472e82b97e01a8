//! The specifics of raw streams: blocks as they are stored, with their encryption parameters; dnodes of exactly the shape that
//! they have at the sender, because MACs cover it (OpenZFS: the `rwa->raw` parts of `receive_object`, `flush_write_batch_impl`
//! and `receive_spill`).

use ::base::Endian;
use codec::Compress;
use dmu::{Object, Objset, Tx};
use ondisk::send::{CryptParams, DRR_RAW_BYTESWAP, Object as ObjectRecord, ObjectRange, Spill, Write};
use zio::{Buf, Payload};

use super::writer::Fault;

/// Returns the byte order of a record's data: that of the stream, unless its flag says that the sender had it in the other one.
fn order_of(order: Endian, flags: u8) -> Endian {
    match (order, flags & DRR_RAW_BYTESWAP != 0) {
        (Endian::Little, false) | (Endian::Big, true) => Endian::Little,
        _ => Endian::Big,
    }
}

fn params(crypt: &CryptParams) -> zio::CryptParams {
    zio::CryptParams { salt: u64::from_le_bytes(crypt.salt), iv: crypt.iv, mac: crypt.mac }
}

/// Returns the block of a WRITE record.
pub(super) fn write(r: &Write, order: Endian, payload: Buf) -> Result<Payload, Fault> {
    stored(payload, r.logical_size, r.compressiontype, &r.crypt, order_of(order, r.flags))
}

/// Returns the block of a SPILL record.
pub(super) fn spill(r: &Spill, order: Endian, payload: Buf) -> Result<Payload, Fault> {
    stored(payload, r.length, r.compressiontype, &r.crypt, order_of(order, r.flags))
}

fn stored(bytes: Buf, lsize: u64, compress: u8, crypt: &CryptParams, byteorder: Endian) -> Result<Payload, Fault> {
    let compress = Compress::from_u8(compress).filter(|_| compress != 0);
    let compress = compress.ok_or_else(|| Fault::Invalid("a raw block without its compression".into()))?;
    let crypt = Some(params(crypt));
    Ok(Payload::Stored { bytes, lsize, compress, crypt, byteorder })
}

/// Sets the encryption parameters of a dnode block. Called when the first of its objects arrives, because a block without objects
/// is a hole.
pub(super) fn range(objset: &Objset, tx: &Tx, r: &ObjectRange, order: Endian) -> Result<(), Fault> {
    Ok(objset.set_dnode_crypt(tx, r.firstobj, params(&r.crypt), order_of(order, r.flags))?)
}

/// True if the existing object can become that of the record: its tree keeps the size and shape of its blocks, or has none.
pub(super) fn fits(r: &ObjectRecord, object: &Object) -> bool {
    let old = object.phys();
    let slots = usize::from(r.dn_slots.max(1));
    let shift = r.indblkshift == 0 || old.indblkshift == r.indblkshift || old.nlevels <= 1;
    old.slots() == slots && old.blkptr.len() == usize::from(r.nblkptr) && shift && old.nlevels <= r.nlevels
}

/// Returns the byte from which the contents of an object are freed: 0 if it is another object, since a raw stream always has
/// blocks as they are; otherwise the end given in the record.
pub(super) fn cut(r: &ObjectRecord, object: &Object) -> Option<u64> {
    let (size, shift) = (u64::from(r.blksz), object.phys().indblkshift);
    if object.block_size() != size || (r.indblkshift != 0 && r.indblkshift != shift) {
        return Some(0);
    }
    r.maxblkid.checked_add(1).and_then(|blocks| blocks.checked_mul(size))
}

/// Gives the tree of an object, existing or new, the shape that the record states.
pub(super) fn shape(tx: &Tx, r: &ObjectRecord, object: &Object) -> Result<(), Fault> {
    let old = object.phys().indblkshift;
    let shift = if r.indblkshift == 0 { old } else { r.indblkshift };
    let from = cut(r, object);
    if let Some(from) = from {
        object.free_range(tx, from, u64::MAX)?;
    }
    if from == Some(0) {
        object.set_maxblkid(tx, 0)?;
        object.set_block_size(tx, r.blksz.into(), shift)?;
    }
    object.set_levels(tx, r.nlevels)?;
    Ok(object.set_maxblkid(tx, r.maxblkid)?)
}
