//! OBJECT records: the dnode becomes that of the stream, whatever exists under its number (OpenZFS: `receive_object`).
//!
//! An existing object may be the same one, changed, or another one that got its number since. The record does not say which. The
//! contents are freed if the structure shows that it is another object; they stay if only the block size grew because this
//! stream, unlike the one before, has large blocks.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use ::base::{Endian, bytes};
use base::ObjectId;
use dmu::{NewObject, Object, Objset, Tx};
use ondisk::sa::SaHeader;
use ondisk::send::Object as ObjectRecord;
use ondisk::{DnodePhys, ObjectType};

use super::check::nblkptr;
use super::raw;
use super::writer::{Fault, has_spill, to_ours, type_of};

/// Offsets of a file's generation: in its attributes, after their header; in an old znode.
const SA_GEN: usize = 16;
const ZNODE_GEN: usize = 64;

/// The result of applying an OBJECT record.
pub(super) enum Fate {
    There(Object),
    /// The old object is freed; its slots can be reused once that is on disk.
    AfterSync,
    /// This object must first be freed from this byte on, and has more blocks than a transaction can free.
    TooLong(ObjectId, u64),
}

/// The properties of the stream that matter for existing objects.
#[derive(Clone, Copy)]
pub(super) struct Existing<'a> {
    pub(super) full: bool,
    pub(super) spill: bool,
    pub(super) order: Endian,
    pub(super) raw: bool,
    pub(super) freeing: &'a Freeing,
}

/// The blocks that one transaction frees.
#[derive(Default)]
pub(super) struct Freeing {
    /// Blocks so far.
    pub(super) blocks: Cell<u64>,
    /// An object that was long and is already mostly freed.
    pub(super) cleared: Option<ObjectId>,
}

impl Freeing {
    /// Counts the blocks of `range` that are freed of an object; `false` if they are too many for one transaction.
    pub(super) fn fits(&self, object: &Object, range: &Range<u64>) -> bool {
        if self.cleared != Some(object.id()) && object.is_long(range) {
            return false;
        }
        self.blocks.set(self.blocks.get().saturating_add(object.blocks_within(range)));
        true
    }
}

/// The decision about an existing object.
enum Reuse {
    Kept,
    /// It must be created anew.
    Anew,
    TooLong,
}

/// The whole range of an object.
pub(super) const ALL: Range<u64> = 0..u64::MAX;

/// Creates or changes the object of a record; `bonus` is its payload.
pub(super) fn put(
    objset: &Arc<Objset>,
    tx: &Tx,
    r: &ObjectRecord,
    bonus: &mut Vec<u8>,
    stream: Existing<'_>,
) -> Result<Fate, Fault> {
    let existing = match objset.object(r.object) {
        Ok(object) => Some(object),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let is_new = existing.is_none();
    let object = match existing {
        Some(object) => match reuse(tx, r, bonus, stream, &object)? {
            Reuse::Kept => object,
            Reuse::TooLong => return Ok(Fate::TooLong(r.object, 0)),
            Reuse::Anew => {
                objset.free_object(tx, r.object)?;
                return Ok(make_room(objset, tx, r, stream.freeing)?.unwrap_or(Fate::AfterSync));
            }
        },
        None => {
            if let Some(fate) = make_room(objset, tx, r, stream.freeing)? {
                return Ok(fate);
            }
            match objset.claim_object(tx, r.object, &shape(r, stream)) {
                Ok(object) => object,
                Err(dmu::Error::Exists { .. }) => return Ok(Fate::AfterSync),
                Err(error) => return Err(error.into()),
            }
        }
    };
    if stream.raw {
        if let Some(from) = raw::cut(r, &object).filter(|from| !stream.freeing.fits(&object, &(*from..u64::MAX))) {
            return Ok(Fate::TooLong(r.object, from));
        }
        raw::shape(tx, r, &object)?;
        object.set_raw_bonus(tx, r.bonuslen as usize, bonus)?;
    } else {
        bonus.truncate(r.bonuslen as usize);
        to_ours(r.bonus_type, stream.order, bonus)?;
        object.set_bonus(tx, bonus)?;
    }
    if !is_new {
        object.set_checksum(tx, r.checksumtype)?;
        object.set_compress(tx, r.compress)?;
    }
    Ok(Fate::There(object.reload()?))
}

fn shape(r: &ObjectRecord, stream: Existing<'_>) -> NewObject {
    // only raw streams carry the rest
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

/// Frees objects that occupy the further slots of a large dnode. Returns `None` if there were none.
fn make_room(objset: &Arc<Objset>, tx: &Tx, r: &ObjectRecord, freeing: &Freeing) -> Result<Option<Fate>, Fault> {
    let (mut at, mut any) = (r.object, None);
    let end = r.object.saturating_add(r.dn_slots.max(1).into());
    while at.saturating_add(1) < end {
        let Some(id) = objset.next_object(at)?.filter(|id| *id < end) else { break };
        if !freeing.fits(&objset.object(id)?, &ALL) {
            return Ok(Some(Fate::TooLong(id, 0)));
        }
        objset.free_object(tx, id)?;
        (at, any) = (id, Some(Fate::AfterSync));
    }
    Ok(any)
}

/// Turns the existing object into that of the record.
fn reuse(tx: &Tx, r: &ObjectRecord, bonus: &[u8], stream: Existing<'_>, object: &Object) -> Result<Reuse, Fault> {
    let old = object.phys();
    let anew = || Ok(if stream.freeing.fits(object, &ALL) { Reuse::Anew } else { Reuse::TooLong });
    if old.slots() != usize::from(r.dn_slots.max(1)) || (stream.raw && !raw::fits(r, object)) {
        return anew();
    }
    let pointers = usize::from(nblkptr(r.bonus_type, r.bonuslen, r.dn_slots.max(1)));
    let (now, wanted) = (object.block_size(), u64::from(r.blksz));
    let resize = !stream.raw && now != wanted && is_other(r, bonus, stream, object)?;
    // fewer pointers than before: another object
    if pointers < old.blkptr.len() {
        return anew();
    }
    if resize {
        if !stream.freeing.fits(object, &ALL) {
            return Ok(Reuse::TooLong);
        }
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
    Ok(Reuse::Kept)
}

/// True if an object with another block size is another object; false if it is the same one whose blocks were sent in pieces
/// until now.
fn is_other(r: &ObjectRecord, bonus: &[u8], stream: Existing<'_>, object: &Object) -> Result<bool, Fault> {
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
            "object {}: block size {} is smaller than the block size of the same file here, {}",
            r.object,
            r.blksz,
            object.block_size()
        ))),
        _ => Err(Fault::Invalid(format!("object {}: its attributes have no generation", r.object))),
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
