//! Object sets that are received raw: blocks, dnodes and MACs as the sender has them, without a key (OpenZFS:
//! `os_raw_receive`, `dmu_buf_set_crypt_params`).
//!
//! The parts that a sync cannot compute without the key come with the stream: the MAC of the set, and for each block of
//! dnodes the parameters with which its bonus buffers were encrypted. Until all of a block's dnodes have arrived its MAC
//! is wrong; so is that of the set until the end. Neither is authenticated before: the dataset is marked inconsistent.
//!
//! Space is not accounted, since the owner of an object is unknown. The root block records that, and whoever opens the
//! set with its key counts anew.

use std::sync::Arc;

use base::{Endian, ObjectId};
use codec::Compress;
use ondisk::{BlkPtr, DnodePhys, ObjectType, ObjsetPhys, ObjsetType};
use zio::{Buf, CryptParams, Payload, Zio};

use super::dnode::Block;
use super::objset::meta_dnode;
use super::state::Live;
use super::sync::Frozen;
use super::{SyncCx, Tx};
use crate::tree::Tree;
use crate::{Error, Object, Objset};

/// The set-wide parameters of a raw stream (OpenZFS: the `mdn_*` of `crypt_keydata`, and `portable_mac`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawObjset {
    /// The MAC over the portable part, which is the same on every machine.
    pub portable_mac: [u8; 32],
    /// Compression of the meta-dnode, a number of a block pointer.
    pub compress: u8,
    /// Checksum of the meta-dnode, a number of a block pointer.
    pub checksum: u8,
    /// Levels of the meta-dnode's tree.
    pub nlevels: u8,
    /// Bytes of a block of dnodes.
    pub block_size: u64,
    /// log2 of the size of the meta-dnode's indirect blocks.
    pub indirect_shift: u8,
    /// The last block of dnodes.
    pub maxblkid: u64,
}

impl Objset {
    /// A new object set that is received raw; see [`Objset::create`].
    ///
    /// # Errors
    /// [`Error::Refused`] for an impossible meta-dnode.
    pub fn create_raw(
        zio: Arc<Zio>,
        dataset_id: ObjectId,
        os_type: ObjsetType,
        raw: &RawObjset,
        tx: &Tx,
    ) -> Result<Arc<Objset>, Error> {
        let refused =
            |what, value| Err(Error::Refused { objset: dataset_id, object: ObjectId::META_DNODE, what, value });
        if raw.block_size != meta_dnode().datablksz() {
            return refused("size of blocks of dnodes", raw.block_size);
        }
        if !(12..=17).contains(&raw.indirect_shift) {
            return refused("log2 of the size of indirect blocks", raw.indirect_shift.into());
        }
        let meta = DnodePhys { indblkshift: raw.indirect_shift, ..meta_dnode() };
        let objset = Objset::create_with(zio, dataset_id, os_type, meta, 0, tx);
        objset.receive_raw(tx, raw)?;
        Ok(objset)
    }

    /// Marks this set as received raw, from the txg of `tx` on, until it is opened anew.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Refused`] if its meta-dnode is not that of the stream.
    pub fn receive_raw(&self, tx: &Tx, raw: &RawObjset) -> Result<(), Error> {
        let live = self.writable(ObjectId::META_DNODE)?;
        let root = live.root();
        let meta = &root.phys.meta_dnode;
        let same = meta.datablksz() == raw.block_size && meta.indblkshift == raw.indirect_shift;
        if !same || (!root.bp.is_hole() && meta.nlevels != raw.nlevels) {
            return Err(self.refused(ObjectId::META_DNODE, "shape of the meta-dnode", raw.nlevels.into()));
        }
        *live.raw.write() = Some(*raw);
        let flags = live.newest.read().flags & !ObjsetPhys::FLAG_USERACCOUNTING;
        self.set_flags(tx, flags)?;
        let mut txg = live.txg(tx.txg()).lock();
        txg.root = true;
        if txg.hold.is_none() {
            txg.hold = tx.hold().cloned();
        }
        Ok(())
    }

    /// Returns whether it is received raw.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.live().is_some_and(Live::is_raw)
    }

    /// Records the encryption parameters and the byte order in which the block of dnodes that begins with object `first`
    /// is stored.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_dnode_crypt(&self, tx: &Tx, first: ObjectId, crypt: CryptParams, order: Endian) -> Result<(), Error> {
        let live = self.writable(first)?;
        let _ = tx.begin_change();
        let blkid = first.0.checked_div(self.dnodes_per_block());
        let blkid = blkid.ok_or_else(|| self.refused(first, "number of dnodes in a block", 0))?;
        live.txg(tx.txg()).lock().dnode_crypt.insert(blkid, (crypt, order));
        Ok(())
    }

    /// The encryption parameters and byte order of the block of dnodes `blkid` that was read through `bp`: those of the
    /// stream if it gave any in this txg, else the old ones.
    pub(crate) fn raw_block(
        &self,
        given: Option<&(CryptParams, Endian)>,
        bp: Option<&BlkPtr>,
    ) -> (CryptParams, Endian) {
        let before = || match bp {
            Some(bp) => (CryptParams { salt: bp.salt(), iv: bp.iv(), mac: bp.mac() }, bp.endian()),
            None => (CryptParams { salt: 0, iv: [0; 12], mac: [0; 16] }, Endian::Little),
        };
        given.copied().unwrap_or_else(before)
    }

    /// A block of dnodes in its stored form.
    pub(crate) fn read_raw_dnodes(&self, tree: &Tree<'_>, bp: &BlkPtr, blkid: u64) -> Result<Vec<u8>, Error> {
        if bp.lsize() != tree.dn.datablksz() {
            return Err(tree.corrupt("logical size of a block of dnodes", bp.lsize()));
        }
        let bm = zio::Bookmark { objset: self.id(), object: ObjectId::META_DNODE, level: 0, blkid };
        Ok(self.zio().read_noauth(bp, &bm)?.into_vec())
    }
}

impl Object {
    /// Replaces the bonus buffer by `len` bytes in stored form, and the bytes that follow it: `area` is all of the dnode
    /// up to its end, or to the pointer to its spill block.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not fit.
    pub fn set_raw_bonus(&self, tx: &Tx, len: usize, area: &[u8]) -> Result<(), Error> {
        let Some(bonus) = area.get(..len) else { return Err(self.refused("length of the bonus buffer", len as u64)) };
        self.set_bonus(tx, bonus)?;
        let dnode = self.live().ok_or(Error::ReadOnly { objset: self.objset().id(), object: self.id() })?;
        self.objset().change(tx, dnode, |state| {
            if area.len() > state.newest.max_bonus(false) {
                return Err(self.refused("length of the bonus buffer", area.len() as u64));
            }
            let (dirty, _) = state.dirty(tx.txg()).ok_or_else(|| self.out_of_turn(tx))?;
            dirty.raw_bonus = Some(Arc::from(area));
            Ok(())
        })
    }
}

/// A block of dnodes in stored form, to be written.
pub(crate) fn stored(block: Vec<u8>, (crypt, byteorder): (CryptParams, Endian)) -> Block {
    let lsize = block.len() as u64;
    let (bytes, compress, crypt) = (Buf::from(block), Compress::Off, Some(crypt));
    Block::Stored(Box::new(Payload::Stored { bytes, lsize, compress, crypt, byteorder }))
}

/// The sync context for a set that is received raw: without accounting.
pub(crate) fn unaccounted<'a>(cx: &SyncCx<'a>) -> SyncCx<'a> {
    SyncCx { used: None, ..*cx }
}

/// A dnode as it is stored in its slot: all of its bonus area is ciphertext, and stays as the stream brought it, or as it
/// was before.
pub(crate) fn encode_raw(one: &Frozen, there: &[u8], order: Endian) -> Vec<u8> {
    const CORE: usize = 64;
    let dn = DnodePhys { endian: order, ..(*one.new).clone() };
    let mut raw = dn.encode();
    let start = CORE + dn.blkptr.len() * ondisk::BLKPTR_SIZE;
    let len = dn.max_bonus(dn.spill.is_some());
    let kept = || there.get(start..start.saturating_add(len)).filter(|_| one.old.object_type != ObjectType::NONE);
    let area = one.dirty.raw_bonus.as_deref().or_else(kept).unwrap_or_default();
    if let Some(place) = raw.get_mut(start..start.saturating_add(len)) {
        place.iter_mut().zip(area).for_each(|(to, from)| *to = *from);
    }
    raw
}

impl RawObjset {
    /// Sets the fields of the root block and the meta-dnode to those of the sender.
    pub(crate) fn finish(&self, phys: &mut ObjsetPhys) {
        phys.portable_mac = self.portable_mac;
        phys.local_mac = [0; 32];
    }

    /// Sets the shape of the meta-dnode, before its blocks are written.
    pub(crate) fn shape(&self, meta: &mut DnodePhys) {
        (meta.compress, meta.checksum) = (self.compress, self.checksum);
        meta.maxblkid = meta.maxblkid.max(self.maxblkid);
    }
}
