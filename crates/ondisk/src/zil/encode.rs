//! Encoding of log records: the inverse of decoding a [`Record`], little-endian like everything that is written.

use base::{Endian, ObjectId};

use super::record::OBJECT_BITS;
use super::{AclPart, AttrPart, Create, RECORD_HEADER_SIZE, Record, Rename, SetAttr, TxType, Write};
use crate::BlkPtr;

/// Bytes of a scan stamp (OpenZFS: `AV_SCANSTAMP_SZ`).
const SCANSTAMP_SIZE: usize = 32;

impl Record<'_> {
    /// The record as stored in a log block, with type `kind`: its header holds type and length, a multiple of 8; txg and sequence number
    /// are 0 and filled in by the log. The parts must be those of the type: an ACL and attributes only in the forms that have them.
    #[must_use]
    pub fn encode(&self, kind: TxType) -> Vec<u8> {
        let mut w = Writer(vec![0; RECORD_HEADER_SIZE]);
        match self {
            Record::Commit => {}
            Record::Create(new) => w.create(new),
            Record::Remove { doid, name } => w.words(&[doid.0]).text(name),
            Record::Link { doid, link_obj, name } => w.words(&[doid.0, link_obj.0]).text(name),
            Record::Rename(rename) => w.rename(rename),
            Record::Write(write) => w.write(write),
            Record::Truncate { foid, offset, length } => drop(w.words(&[foid.0, *offset, *length])),
            Record::SetAttr(set) => w.setattr(set),
            Record::AclV0 { foid, count, aces } => w.words(&[foid.0, *count]).raw(aces),
            Record::Acl { foid, acl } => {
                w.words(&[foid.0]).words(&acl_counts(acl));
                w.acl(acl);
            }
            Record::SetSaXattr { foid, name, value } => {
                let value = value.unwrap_or(&[]);
                w.words(&[foid.0, value.len() as u64]).text(name);
                w.raw(value);
            }
            Record::CloneRange { foid, offset, length, blksz, bps } => {
                w.words(&[foid.0, *offset, *length, *blksz, bps.len() as u64]);
                bps.iter().for_each(|bp| w.blkptr(bp));
            }
        }
        w.finish(kind)
    }
}

/// The number of a new object with the slots of its dnode, less one, in the top 8 bits (OpenZFS: `LR_FOID_SET_SLOTS`).
const fn with_slots(object: ObjectId, slots: u64) -> u64 {
    object.0 & ((1 << OBJECT_BITS) - 1) | slots.saturating_sub(1) << 56
}

/// The counts of an ACL: entries, domains, FUIDs, bytes, flags.
const fn acl_counts(acl: &AclPart<'_>) -> [u64; 5] {
    [acl.count, acl.domains.len() as u64, acl.fuids.len() as u64, acl.aces.len() as u64, acl.flags]
}

/// A record being built.
struct Writer(Vec<u8>);

impl Writer {
    fn words(&mut self, words: &[u64]) -> &mut Self {
        words.iter().for_each(|word| self.0.extend_from_slice(&word.to_le_bytes()));
        self
    }

    fn raw(&mut self, raw: &[u8]) {
        self.0.extend_from_slice(raw);
    }

    fn text(&mut self, text: &[u8]) {
        self.raw(text);
        self.raw(&[0]);
    }

    fn blkptr(&mut self, bp: &BlkPtr) {
        self.raw(&bp.encode(Endian::Little));
    }

    fn create(&mut self, new: &Create<'_>) {
        let foid = with_slots(new.foid, new.slots);
        self.words(&[new.doid.0, foid, new.mode, new.uid, new.gid, new.generation])
            .words(&new.crtime)
            .words(&[new.rdev]);
        if let Some(acl) = &new.acl {
            self.words(&acl_counts(acl));
        }
        if let Some(attrs) = &new.attrs {
            self.attrs(attrs);
        }
        if let Some(acl) = &new.acl {
            self.acl(acl);
        }
        new.domains.iter().for_each(|domain| self.text(domain));
        self.text(new.name);
        if let Some(link) = new.link {
            self.text(link);
        }
    }

    fn rename(&mut self, rename: &Rename<'_>) {
        self.words(&[rename.sdoid.0, rename.tdoid.0]);
        if let Some(new) = &rename.whiteout {
            let foid = with_slots(new.foid, new.slots);
            self.words(&[foid, new.mode, new.uid, new.gid, new.generation]).words(&new.crtime).words(&[new.rdev]);
        }
        self.text(rename.src);
        self.text(rename.dst);
    }

    fn write(&mut self, write: &Write<'_>) {
        self.words(&[write.foid.0, write.offset, write.length, 0]);
        self.blkptr(&write.blkptr);
        self.raw(write.data.unwrap_or(&[]));
    }

    fn setattr(&mut self, set: &SetAttr<'_>) {
        self.words(&[set.foid.0, set.mask, set.mode, set.uid, set.gid, set.size]).words(&set.atime).words(&set.mtime);
        if let Some(attrs) = &set.attrs {
            self.attrs(attrs);
        }
        set.domains.iter().for_each(|domain| self.text(domain));
    }

    fn attrs(&mut self, attrs: &AttrPart<'_>) {
        self.raw(&(attrs.bitmap.len() as u32).to_le_bytes());
        attrs.bitmap.iter().for_each(|word| self.raw(&word.to_le_bytes()));
        self.words(&[attrs.attrs]).words(&attrs.crtime);
        let mut stamp = [0; SCANSTAMP_SIZE];
        stamp.iter_mut().zip(attrs.scanstamp).for_each(|(to, from)| *to = *from);
        self.raw(&stamp);
    }

    fn acl(&mut self, acl: &AclPart<'_>) {
        self.raw(acl.aces);
        self.0.resize(self.0.len() + acl.aces.len().next_multiple_of(8) - acl.aces.len(), 0);
        self.words(&acl.fuids);
        acl.domains.iter().for_each(|domain| self.text(domain));
    }

    fn finish(mut self, kind: TxType) -> Vec<u8> {
        let len = self.0.len().next_multiple_of(8);
        self.0.resize(len, 0);
        let header = [(kind as u64).to_le_bytes(), (len as u64).to_le_bytes()];
        self.0.iter_mut().zip(header.as_flattened()).for_each(|(to, from)| *to = *from);
        self.0
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
