//! OBJECT records: the dnode as the stream has it, whatever is there (OpenZFS: `receive_object`).
//!
//! An object that is there may be the same one, changed, or another one that has got its number since. The record does not say so. The contents go if the
//! structure tells that it is another; they stay if only the block size grew because this stream, unlike the one before, has large blocks.

use std::sync::Arc;

use ::base::{Endian, bytes};
use dmu::{NewObject, Object, Objset, Tx};
use ondisk::sa::SaHeader;
use ondisk::send::Object as ObjectRecord;
use ondisk::{DnodePhys, ObjectType};

use super::check::nblkptr;
use super::writer::{Fault, has_spill, type_of};
use super::{raw, swap};

/// The generation of a file: in its attributes, behind their header; in an old znode.
const SA_GEN: usize = 16;
const ZNODE_GEN: usize = 64;

/// What became of an object.
pub(super) enum Fate {
    There(Object),
    /// The old one is freed; its slots can be used once that is on disk.
    AfterSync,
}

/// What the stream says of objects that may be there.
#[derive(Clone, Copy)]
pub(super) struct Existing {
    pub(super) full: bool,
    pub(super) spill: bool,
    pub(super) order: Endian,
    pub(super) raw: bool,
}

/// Makes or changes the object of a record; `bonus` is its payload.
pub(super) fn put(
    objset: &Arc<Objset>,
    tx: &Tx,
    r: &ObjectRecord,
    bonus: &mut Vec<u8>,
    stream: Existing,
) -> Result<Fate, Fault> {
    let existing = match objset.object(r.object) {
        Ok(object) => Some(object),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let is_new = existing.is_none();
    let object = match existing {
        Some(object) => match reuse(tx, r, bonus, stream, &object)? {
            true => object,
            false => {
                objset.free_object(tx, r.object)?;
                make_room(objset, tx, r)?;
                return Ok(Fate::AfterSync);
            }
        },
        None => {
            if make_room(objset, tx, r)? {
                return Ok(Fate::AfterSync);
            }
            match objset.claim_object(tx, r.object, &shape(r, stream)) {
                Ok(object) => object,
                Err(dmu::Error::Exists { .. }) => return Ok(Fate::AfterSync),
                Err(error) => return Err(error.into()),
            }
        }
    };
    if stream.raw {
        raw::shape(tx, r, &object)?;
        object.set_raw_bonus(tx, r.bonuslen as usize, bonus)?;
    } else {
        bonus.truncate(r.bonuslen as usize);
        swap::to_ours(r.bonus_type, stream.order, bonus).map_err(Fault::Invalid)?;
        object.set_bonus(tx, bonus)?;
    }
    if !is_new {
        object.set_checksum(tx, r.checksumtype)?;
        object.set_compress(tx, r.compress)?;
    }
    Ok(Fate::There(object.reload()?))
}

fn shape(r: &ObjectRecord, stream: Existing) -> NewObject {
    // the rest is told by raw streams only
    let (indirect_shift, nblkptr) = if stream.raw { (r.indblkshift, r.nblkptr) } else { (0, 0) };
    NewObject {
        indirect_shift,
        nblkptr,
        object_type: type_of(r.object_type),
        block_size: r.blksz.into(),
        bonus_type: type_of(r.bonus_type),
        bonus_len: r.bonuslen as usize,
        slots: usize::from(r.dn_slots.max(1)),
        checksum: r.checksumtype,
        compress: r.compress,
        ..NewObject::default()
    }
}

/// Frees objects that stand in the further slots of a large dnode. Tells whether there were any.
fn make_room(objset: &Arc<Objset>, tx: &Tx, r: &ObjectRecord) -> Result<bool, Fault> {
    let (mut at, mut any) = (r.object, false);
    let end = r.object.saturating_add(r.dn_slots.max(1).into());
    while at.saturating_add(1) < end {
        let Some(id) = objset.next_object(at)?.filter(|id| *id < end) else { break };
        objset.free_object(tx, id)?;
        (at, any) = (id, true);
    }
    Ok(any)
}

/// Makes the object that is there into that of the record; `false` if it must be made anew.
fn reuse(tx: &Tx, r: &ObjectRecord, bonus: &[u8], stream: Existing, object: &Object) -> Result<bool, Fault> {
    let old = object.phys();
    if old.slots() != usize::from(r.dn_slots.max(1)) || (stream.raw && !raw::fits(r, object)) {
        return Ok(false);
    }
    let pointers = usize::from(nblkptr(r.bonus_type, r.bonuslen, r.dn_slots.max(1)));
    let (now, wanted) = (object.block_size(), u64::from(r.blksz));
    let resize = !stream.raw && now != wanted && is_other(r, bonus, stream, object)?;
    // fewer pointers: another object
    if pointers < old.blkptr.len() {
        return Ok(false);
    }
    if resize {
        object.free_range(tx, 0, u64::MAX)?;
    }
    let (kind, bonus_type) = (type_of(r.object_type), type_of(r.bonus_type));
    let changed = kind != old.object_type
        || (resize && now != wanted)
        || (stream.raw && now != wanted)
        || bonus_type != old.bonus_type
        || r.bonuslen as usize != old.bonus.len();
    let keeps_spill = stream.spill && has_spill(r.flags);
    let spilled = old.flags & DnodePhys::FLAG_SPILL_BLKPTR != 0;
    if spilled && !keeps_spill && (changed || stream.spill) {
        object.remove_spill(tx)?;
    }
    if kind != old.object_type {
        object.set_type(tx, kind)?;
    }
    if bonus_type != old.bonus_type {
        object.set_bonus_type(tx, bonus_type)?;
    }
    if resize {
        object.set_block_size(tx, wanted, 0)?;
    }
    Ok(true)
}

/// Whether an object with another block size is another object, or the same one whose blocks were sent in pieces until now.
fn is_other(r: &ObjectRecord, bonus: &[u8], stream: Existing, object: &Object) -> Result<bool, Fault> {
    let old = object.phys();
    let file = ObjectType::PLAIN_FILE_CONTENTS;
    if stream.full || type_of(r.object_type) != file || old.object_type != file || object.nblocks() <= 1 {
        return Ok(true);
    }
    let of_old = generation(old.bonus_type, object.bonus(), object.endian());
    let of_new = generation(type_of(r.bonus_type), bonus, stream.order);
    match (of_old, of_new) {
        (Some(old), Some(new)) if old != new => Ok(true),
        (Some(_), Some(_)) if u64::from(r.blksz) > object.block_size() => Ok(false),
        (Some(_), Some(_)) => Err(Fault::Invalid(format!(
            "object {}: block size {} below that of the same file here, {}",
            r.object,
            r.blksz,
            object.block_size()
        ))),
        _ => Err(Fault::Invalid(format!("object {}: no generation in its attributes", r.object))),
    }
}

fn generation(bonus_type: ObjectType, bonus: &[u8], order: Endian) -> Option<u64> {
    match bonus_type {
        ObjectType::ZNODE => bytes::u64(bonus, ZNODE_GEN, order),
        ObjectType::SA => {
            let header = SaHeader::decode(bonus).ok()??;
            bytes::u64(bonus, header.size.checked_add(SA_GEN)?, header.endian)
        }
        _ => None,
    }
}
